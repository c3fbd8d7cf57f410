"""New tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compute.arrays import creation as _creation
from ..compute.arrays import shapes as _shapes
from ..compute.arrays.promotion import FLOAT32
from ..compute.backend import Compute
from ..compute.device.capsules import on_host
from ..compute.device.exchange import exchange_of
from ..compute.device.other_arrays import called
from ..compute.device.tensor import Tensor
from ..errors import UnsupportedError
from .operands import Scalar, device_at, tensor_of, tensors_of

_GPUS = {2: "CUDA", 10: "ROCm"}  # DLPack's kDLCUDA and kDLROCM


def _gpu_of(x: Any) -> str | None:
    """Whose GPU memory an array lies in; None for others."""
    return _GPUS.get(x.__dlpack_device__()[0]) if hasattr(x, "__dlpack_device__") else None


def asarray(
    obj: Any, /, *, dtype: Any = None, device: Compute | None = None, copy: bool | None = None
) -> Tensor:
    """A tensor of an array, a tensor, a number, or nested lists of them; Python floats become float32, integers int64.

    Arrays of CUDA and ROCm are taken as `from_dlpack` takes them.

    Raises
    ------
    TypeError
        For other objects, and arrays of a dtype that no tensor has.
    ValueError
        Where ``copy`` is False and a copy is needed.
    OverflowError
        For integers that the dtype does not hold.
    BufferError
        For memory of a GPU that is not shared with the backend.
    """
    if not isinstance(obj, (np.ndarray, Tensor)) and _gpu_of(obj) is not None:
        obj, copy = from_dlpack(obj, device=device, copy=copy), None
    if device is None and isinstance(obj, Tensor):
        return _creation.asarray(obj.backend.opened, obj, dtype, copy)
    return _creation.asarray(device_at(device), obj, dtype, copy)


def from_dlpack(x: Any, /, *, device: Compute | None = None, copy: bool | None = None) -> Tensor:
    """A tensor of what another library's array holds, by DLPack. A tensor stays what it is.

    An array on the host is copied. One of CUDA or ROCm on the backend's GPU is copied there, or not at all where it is
    in memory of grilly's; that needs ``grilly.torch`` to have been imported. See docs/pytorch.md.

    Raises
    ------
    TypeError
        For what does not speak DLPack, and for elements that no tensor has.
    ValueError
        Where ``copy`` is False and the host's memory needs one.
    BufferError
        For memory of a device that is not the backend's, and for what has no capsule, as arrays with gradients.
    """
    if isinstance(x, Tensor) and not copy and device in (None, x.backend):
        return x
    gpu = _gpu_of(x)
    if callable(getattr(x, "is_neg", None)) and x.is_neg():
        # PyTorch exports the memory of such a view, whose elements have the other sign.
        raise BufferError("from_dlpack: the tensor is a negated view; give x.resolve_neg()")
    if gpu is not None:
        try:
            exchange = exchange_of(device_at(device))
        except UnsupportedError as error:
            raise BufferError(
                f"from_dlpack: the array is {gpu}'s, whose memory is not shared: {error}"
            ) from error
        return exchange.take(x, copy)
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack: {called(x)} speaks no DLPack; grilly.asarray takes arrays, lists and numbers")
    if copy is False:
        raise ValueError("from_dlpack: host memory needs a copy to be on the device")
    try:
        array = on_host(x)
    except (BufferError, RuntimeError) as error:
        of = f" of {x.dtype}" if hasattr(x, "dtype") else ""
        raise BufferError(
            f"from_dlpack: {called(x)}{of}: {error} (taken are arrays in the host's memory, of float32, float16, "
            "bfloat16, bool and integers)"
        ) from error
    return device_at(device).tensor(array)


def empty(shape: int | tuple[int, ...], *, dtype: Any = None, device: Compute | None = None) -> Tensor:
    """A tensor whose contents are undefined, float32 unless told otherwise. (NumPy arrays over memory that the device
    reads directly: ``grilly.pinned.empty``.)"""
    return device_at(device).empty(shape, FLOAT32 if dtype is None else dtype)


def full(
    shape: int | tuple[int, ...], fill_value: Scalar, *, dtype: Any = None, device: Compute | None = None
) -> Tensor:
    """A tensor of one value; of a Python number's own dtype (bool, int64, float32) unless told otherwise."""
    return _creation.full(device_at(device), shape, fill_value, dtype)


def zeros(shape: int | tuple[int, ...], *, dtype: Any = None, device: Compute | None = None) -> Tensor:
    """Zeros, float32 unless told otherwise."""
    return _creation.full(device_at(device), shape, 0, FLOAT32 if dtype is None else dtype, "zeros")


def ones(shape: int | tuple[int, ...], *, dtype: Any = None, device: Compute | None = None) -> Tensor:
    """Ones, float32 unless told otherwise."""
    return _creation.full(device_at(device), shape, 1, FLOAT32 if dtype is None else dtype, "ones")


def _like(name: str, x: Any, device: Compute | None) -> tuple[Any, Compute | None]:
    """An array, of which shape and dtype are asked, and where the new one is to be."""
    if isinstance(x, (np.ndarray, np.generic)):
        return x, device
    x = tensor_of(name, x)
    return x, device or x.backend


def empty_like(x: Tensor | np.ndarray, /, *, dtype: Any = None, device: Compute | None = None) -> Tensor:
    """A tensor of x's shape, and of its dtype unless told otherwise, whose contents are undefined."""
    x, device = _like("empty_like", x, device)
    return empty(x.shape, dtype=x.dtype if dtype is None else dtype, device=device)


def full_like(
    x: Tensor | np.ndarray, /, fill_value: Scalar, *, dtype: Any = None, device: Compute | None = None
) -> Tensor:
    """A tensor of x's shape, and of its dtype unless told otherwise, of one value."""
    x, device = _like("full_like", x, device)
    return full(x.shape, fill_value, dtype=x.dtype if dtype is None else dtype, device=device)


def zeros_like(x: Tensor | np.ndarray, /, *, dtype: Any = None, device: Compute | None = None) -> Tensor:
    """Zeros of x's shape, and of its dtype unless told otherwise."""
    x, device = _like("zeros_like", x, device)
    return zeros(x.shape, dtype=x.dtype if dtype is None else dtype, device=device)


def ones_like(x: Tensor | np.ndarray, /, *, dtype: Any = None, device: Compute | None = None) -> Tensor:
    """Ones of x's shape, and of its dtype unless told otherwise."""
    x, device = _like("ones_like", x, device)
    return ones(x.shape, dtype=x.dtype if dtype is None else dtype, device=device)


def arange(
    start: int | float, /, stop: int | float | None = None, step: int | float = 1, *, dtype: Any = None,
    device: Compute | None = None,
) -> Tensor:  # fmt: skip
    """Numbers from ``start`` (0 where it stands alone) up to, but not, ``stop``; int64 where all are integers, else
    float32."""
    return _creation.arange(device_at(device), start, stop, step, dtype)


def linspace(
    start: int | float, stop: int | float, /, num: int, *, dtype: Any = None, device: Compute | None = None,
    endpoint: bool = True,
) -> Tensor:  # fmt: skip
    """``num`` numbers from ``start`` to ``stop`` at equal distances, float32 unless told otherwise."""
    return _creation.linspace(device_at(device), start, stop, num, dtype, endpoint)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Compute | None = None
) -> Tensor:
    """Ones on the diagonal ``k``, zeros elsewhere; float32 unless told otherwise."""
    return _creation.eye(device_at(device), n_rows, n_cols, k, dtype)


def tril(x: Tensor | np.ndarray, /, *, k: int = 0) -> Tensor:
    """x with zeros above the diagonal ``k`` of its last two axes."""
    return _shapes.triangle("tril", tensor_of("tril", x), k)


def triu(x: Tensor | np.ndarray, /, *, k: int = 0) -> Tensor:
    """x with zeros below the diagonal ``k`` of its last two axes."""
    return _shapes.triangle("triu", tensor_of("triu", x), k)


def meshgrid(*arrays: Tensor | np.ndarray, indexing: str = "xy") -> list[Tensor]:
    """Tensors of coordinates, of every combination of elements of one-axis tensors; ``indexing`` is "xy" or "ij"."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing is {indexing!r}; expected 'xy' or 'ij'")
    arrays = tensors_of("meshgrid", *arrays)
    if any(x.ndim != 1 for x in arrays):
        raise ValueError(f"meshgrid: shapes {[x.shape for x in arrays]}; expected one axis each")
    order = list(range(len(arrays)))
    if indexing == "xy" and len(arrays) > 1:
        order[:2] = [1, 0]
    shape = tuple(arrays[n].shape[0] for n in order)
    return [x.reshape(tuple(-1 if order[a] == n else 1 for a in range(len(order)))).broadcast_to(shape)
            for n, x in enumerate(arrays)]  # fmt: skip
