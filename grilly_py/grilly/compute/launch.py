"""From tensors to dispatches: what all operations share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UnsupportedError
from .dtypes import FLOATS_TEXT, is_float
from .tensor import Tensor

if TYPE_CHECKING:
    from ..registry import Choice
    from ..runtime.interface import Program
    from .backend import Compute

FLOAT32 = np.dtype(np.float32)
#: Alignments beyond this many elements make no difference to any kernel.
ALIGN_MOST = 16
#: What float32 may be computed from: float32 products, or also products of its 16-bit parts.
PRECISIONS = ("highest", "high")


def backend_of(operation: str, *arrays) -> Compute:
    """The backend of the tensors among ``arrays``, or the default one. Raises ValueError when they differ."""
    found = None
    for array in arrays:
        if isinstance(array, Tensor):
            if found is None:
                found = array.backend
            elif array.backend is not found:
                raise ValueError(f"{operation}: the tensors belong to different backends; move one with .tensor(...)")
    if found is not None:
        found.check_open()
        return found
    from .backend import default_backend

    return default_backend()


def check_backend(operation: str, backend: Compute, *arrays) -> None:
    """Raise ValueError for a tensor of another backend among the arrays, and the pairs of arrays."""
    for array in arrays:
        if isinstance(array, (tuple, list)) and len(array) == 2:
            check_backend(operation, backend, *array)
        elif isinstance(array, Tensor) and array._storage.backend.runtime is not backend.runtime:
            raise ValueError(f"{operation}: a tensor belongs to another backend; move it with backend.tensor(...)")


def check_float(operation: str, **arrays) -> np.dtype:
    """The common dtype of the named arrays. Raises TypeError unless all are of one floating type of ours."""
    first = None
    for name, array in arrays.items():
        dtype = getattr(array, "dtype", None)
        if dtype is None:
            raise TypeError(
                f"{operation}: {name} is a {type(array).__name__}; expected a numpy.ndarray or a grilly.Tensor"
            )
        if not is_float(dtype):
            raise TypeError(
                f"{operation}: {name} is {dtype}; expected {FLOATS_TEXT}; cast with {name}.astype(numpy.float32)"
            )
        if first is None:
            first = (name, dtype)
        elif dtype != first[1]:
            raise TypeError(
                f"{operation}: {name} is {dtype} and {first[0]} is {first[1]}; give both the same dtype"
            )
    return np.dtype(first[1])


def check_precision(operation: str, precision) -> bool:
    """Whether ``precision`` is "high". Raises ValueError unless it is one of PRECISIONS."""
    if precision not in PRECISIONS:
        raise ValueError(f"{operation}: precision is {precision!r}; expected 'highest' or 'high'")
    return precision == "high"


def alignment(*numbers: int) -> int:
    """The largest power of two, up to ALIGN_MOST, that divides all numbers."""
    return gcd(ALIGN_MOST, *numbers)


def binding(backend: Compute, tensor: Tensor) -> tuple[tuple, int]:
    """A descriptor for ``tensor`` and the element offset of its first element inside the descriptor.

    The whole storage is bound where it fits a binding; otherwise a window of it, which the plan has made small enough.
    """
    storage = tensor._storage
    limit = backend.device.limits["storage_range"]
    if storage.nbytes <= limit:
        return (storage.buffer, 0, storage.nbytes), tensor._offset
    size = tensor.dtype.itemsize
    start = tensor._offset * size
    base = start - start % window_alignment(backend)
    end = start + span(tensor)
    if "descriptor-offsets" not in backend.runtime.features:
        raise UnsupportedError(
            f"a tensor of {storage.nbytes:,} bytes is larger than one binding ({limit:,}), and the "
            f"{backend.runtime.name} runtime binds whole buffers only; use runtime='vulkan' or smaller arrays"
        )
    length = min(-(-(end - base) // 4) * 4, storage.nbytes - base)
    if length > limit:
        raise UnsupportedError(f"a view of {length:,} bytes does not fit one binding of {limit:,} bytes")
    return (storage.buffer, base, length), (start - base) // size


def window_alignment(backend: Compute) -> int:
    """Bytes to which a descriptor's start inside a storage is rounded down."""
    return max(backend.device.limits["offset_alignment"], 16)


def span(tensor: Tensor) -> int:
    """Bytes from the first to past the last element of a view."""
    if tensor.size == 0:
        return 0
    last = sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor._steps, strict=True))
    return (last + 1) * tensor.dtype.itemsize


def fits_binding(backend: Compute, tensor: Tensor) -> bool:
    """True when ``binding`` can bind the view."""
    limit = backend.device.limits["storage_range"]
    return tensor._storage.nbytes <= limit or span(tensor) + window_alignment(backend) + 4 <= limit


def program_of(backend: Compute, choice: Choice, constants: Mapping[str, int | float]) -> Program:
    """The pipeline of a chosen variant with these specialization constants."""
    return backend.runtime.program(choice.spec(dict(constants)))


def launch(
    backend: Compute,
    program: Program,
    tensors: Sequence[Tensor | None],
    push,
    groups: tuple[int, int, int],
    work: float = 0.0,
) -> None:
    """Record one dispatch: ``push(offsets)`` gets the tensors' element offsets and returns the push constants."""
    bindings, offsets = [], []
    for tensor in tensors:
        if tensor is None:
            bindings.append(None)
            offsets.append(0)
        else:
            descriptor, offset = binding(backend, tensor)
            bindings.append(descriptor)
            offsets.append(offset)
    backend.runtime.dispatch(program, bindings, push(offsets), groups, work)


def finish(backend: Compute, result: Tensor, *inputs):
    """What an operation returns: the tensor when any input was one (its work submitted), else a NumPy array."""
    if any(isinstance(array, Tensor) for array in inputs):
        backend.runtime.flush()
        return result
    return result.numpy()
