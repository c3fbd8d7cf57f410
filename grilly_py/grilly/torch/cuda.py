"""PyTorch's CUDA tensors over memory that grilly's device and CUDA share, and as grilly's Tensors.

PyTorch for ROCm calls AMD's GPUs "cuda" too, and its tensors ``is_cuda``; below, HIP is then meant.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..compute.backend import default_backend
from ..compute.device.device import Device
from ..compute.device.dtypes import dtype_of, is_storable
from ..compute.device.exchange import exchange_of, provide
from ..compute.device.tensor import Tensor
from ..errors import UnsupportedError
from ..interop.cuda import Cuda
from ..interop.exchange import InteropExchange, open_exchange
from ..interop.hip import Hip

_NAMES = (
    "float32", "float16", "bfloat16", "float64", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16",
    "uint32", "uint64", "complex64", "complex128",
)  # fmt: skip
_DTYPES: dict[torch.dtype, np.dtype | None] = {}


def _open(device: Device) -> InteropExchange:
    if not torch.cuda.is_available():
        raise UnsupportedError("PyTorch has no CUDA here (torch.cuda.is_available() is False)")
    torch.cuda.init()
    interface = Cuda if torch.version.hip is None else Hip
    stream = torch._C._cuda_getCurrentRawStream
    return open_exchange(device, interface, lambda ordinal: functools.partial(stream, ordinal))


provide(_open)


def cuda_device(backend: Any = None) -> torch.device:
    """PyTorch's name of a backend's GPU, with which grilly shares memory.

    Parameters
    ----------
    backend : grilly.Compute, optional
        The default backend when None.

    Returns
    -------
    torch.device
        CUDA's device. Its tensors go to grilly without a way over the host, and ``torch.from_dlpack(t)`` of a
        ``grilly.Tensor`` is a tensor of this device over the same memory.

    Raises
    ------
    UnsupportedError
        Where memory cannot be shared, with the reason: PyTorch has no CUDA, the backend's device is another one than
        CUDA has, or its driver or the runtime exports no memory.
    """
    return torch.device("cuda", _exchange(backend).driver.ordinal)


def empty(
    *size: int | Sequence[int], dtype: torch.dtype | None = None, device: torch.device | str = "cuda"
) -> torch.Tensor:
    """An undefined CUDA tensor in memory that the default backend's GPU and CUDA share: grilly takes it without a copy.

    Parameters
    ----------
    size : int or tuple of int
        The shape.
    dtype : torch.dtype, optional
        PyTorch's default floating dtype when None.
    device : torch.device or str
        "cuda", or the backend's GPU by its number (``cuda_device()``).

    Returns
    -------
    torch.Tensor

    Raises
    ------
    UnsupportedError
        As ``cuda_device``.
    TypeError
        For a dtype that no grilly.Tensor has.
    ValueError
        For another device.
    OutOfDeviceMemoryError
        When the device has no room.
    """
    exchange = _exchange()
    wanted = torch.device(device)
    if wanted.type != "cuda" or wanted.index not in (None, exchange.driver.ordinal):
        raise ValueError(f"empty: device is {device}; expected cuda:{exchange.driver.ordinal}, the backend's GPU")
    shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
    return give(exchange, default_backend().empty(shape, dtype_for("empty", dtype or torch.get_default_dtype())))


def _exchange(backend: Any = None) -> InteropExchange:
    exchange = exchange_of((default_backend() if backend is None else backend).opened)
    assert isinstance(exchange, InteropExchange)
    return exchange


def dtype_for(operation: str, dtype: torch.dtype) -> np.dtype:
    """NumPy's dtype for PyTorch's. Raises TypeError for one that no Tensor has."""
    if not _DTYPES:
        _DTYPES.update({getattr(torch, each): dtype_of(each) for each in _NAMES if hasattr(torch, each)})
    found = _DTYPES.get(dtype)
    if found is None or not is_storable(found):
        raise TypeError(f"{operation}: {dtype} is a dtype that no grilly.Tensor has")
    return found


def entered(operation: str, tensor: torch.Tensor, backend: Any = None) -> InteropExchange:
    """The exchange for a call on CUDA tensors like this one.

    Raises TypeError for another GPU than the backend's, UnsupportedError as ``cuda_device``, and RuntimeError while
    PyTorch captures a CUDA graph, which cannot hold grilly's work.
    """
    try:
        exchange = _exchange(backend)
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{operation}: a tensor is on {tensor.device}, whose memory cannot be shared: {error}; give CPU tensors, "
            "which .cpu() makes"
        ) from None
    if tensor.device.index != exchange.driver.ordinal:
        raise TypeError(
            f"{operation}: a tensor is on {tensor.device}, and the backend's GPU is cuda:{exchange.driver.ordinal}; "
            "give all tensors there, or grilly.use() a backend on the other GPU"
        )
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"{operation}: PyTorch is capturing a CUDA graph, which cannot hold grilly's work")
    exchange.interop.begin()
    return exchange


def taken(
    exchange: InteropExchange, tensor: torch.Tensor, operation: str = "grilly.torch", copy: bool = False
) -> Tensor:
    """A dense CUDA tensor as a Tensor: over the same memory where it is shared, else, or with ``copy``, a copy there.

    Its gradient is the caller's affair.
    """
    if tensor.device.index != exchange.driver.ordinal:
        raise TypeError(f"{operation}: a tensor is on {tensor.device}, and others on cuda:{exchange.driver.ordinal}")
    dtype = dtype_for(operation, tensor.dtype)
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.resolve_neg().resolve_conj()
    shape, strides, pointer = tuple(tensor.shape), tensor.stride(), tensor.data_ptr()
    if not copy:
        found = exchange.over(tensor.untyped_storage().data_ptr(), pointer, shape, dtype, strides)
        if found is not None:
            return found
    stream = exchange.interop.current()
    if not tensor.is_contiguous() and not _dense(shape, strides):
        made = exchange.device.empty(shape, dtype)
        give(exchange, made).copy_(tensor)  # PyTorch gathers the elements on their way
        return made
    return exchange.copied(pointer, tensor.numel() * dtype.itemsize, shape, dtype, strides, stream)


def copied(exchange: InteropExchange, tensor: torch.Tensor) -> Tensor:
    """A copy of a CUDA tensor on the GPU."""
    return taken(exchange, tensor, "from_torch", copy=True)


def _dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements fill their memory without gaps, in any order of the axes."""
    expected = 1
    for stride, extent in sorted(
        (stride, extent) for extent, stride in zip(shape, strides, strict=True) if extent != 1
    ):
        if stride != expected:
            return False
        expected *= extent
    return True


def give(exchange: InteropExchange, tensor: Tensor) -> torch.Tensor:
    """A Tensor as a CUDA tensor over the same memory; PyTorch's current stream comes after the work that makes it."""
    return torch._C._from_dlpack(exchange.give(tensor, exchange.interop.current()))


__all__ = ["copied", "cuda_device", "dtype_for", "empty", "entered", "give", "taken"]
