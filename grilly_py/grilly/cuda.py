"""Memory shared with CUDA or HIP, without PyTorch: for arrays of JAX, CuPy and others on the same GPU.

Once this module is imported, ``grilly.from_dlpack`` takes such arrays by a copy on the GPU, and ``from_dlpack`` of
these libraries makes arrays over the memory of Tensors. Tensors are then arrays of the GPU, which NumPy's own
``from_dlpack`` refuses: ``t.numpy()`` copies them. `grilly.torch` does the same for PyTorch.
"""

from __future__ import annotations

import functools
import sys

from .compute import Compute
from .compute.backend import default_backend
from .compute.device.device import Device
from .compute.device.exchange import exchange_of, provide
from .errors import UnsupportedError
from .interop.cuda import Cuda
from .interop.exchange import InteropExchange, open_exchange
from .interop.hip import Hip


def ordinal(backend: Compute | None = None) -> int:
    """The number that CUDA, or HIP on AMD's GPUs, has for a backend's GPU.

    Parameters
    ----------
    backend : grilly.Compute, optional
        The default backend when None.

    Raises
    ------
    UnsupportedError
        Where memory cannot be shared, with the reason: neither driver is there, or the driver or the runtime exports no
        memory.
    """
    exchange = exchange_of((default_backend() if backend is None else backend).opened)
    assert isinstance(exchange, InteropExchange)
    return exchange.driver.ordinal


def _open(device: Device) -> InteropExchange:
    reasons = []
    for interface in (Cuda, Hip):
        try:
            return open_exchange(device, interface, lambda number: functools.partial(_stream, number))
        except UnsupportedError as error:
            reasons.append(str(error))
    raise UnsupportedError("; ".join(dict.fromkeys(reasons)))


def _stream(number: int) -> int:
    """The stream that the calling thread uses: PyTorch's, where a program has both, and else the default one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return torch._C._cuda_getCurrentRawStream(number)


provide(_open, instead=False)

__all__ = ["ordinal"]
