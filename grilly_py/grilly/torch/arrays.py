"""PyTorch's tensors as NumPy arrays over the same memory, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.attention.bias import CausalBias, CausalVariant

from ..compute.backend import default_backend
from ..compute.device.dtypes import dtype_of
from ..compute.device.tensor import Tensor
from .compiled import uncompiled
from .cuda import copied, entered

#: What grilly's kernels compute with.
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """A NumPy array over the memory of a dense CPU tensor, of any strides; its gradient is the caller's affair."""
    tensor = tensor.detach()
    tensor = tensor.resolve_conj().resolve_neg()  # views of PyTorch's own, which NumPy has not
    if tensor.dtype == torch.bfloat16:  # which NumPy lacks: by its bits
        return tensor.view(torch.int16).numpy().view(dtype_of("bfloat16"))
    return tensor.numpy()


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """A CPU tensor over the memory of an array; a copy where it is read-only or its strides are negative."""
    if any(step < 0 for step in array.strides) or not array.flags.writeable:
        array = array.copy()
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def check_dense(operation: str, **tensors: object) -> None:
    """Raise TypeError for what is no dense tensor of the CPU or of CUDA; None passes.

    Raises NotImplementedError for tensors with a tangent, as results would be without one, and those that torch.func
    finds gradients of.
    """
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{operation}: {name} is a {type(tensor).__name__}; expected a torch.Tensor")
        if tensor.device.type not in ("cpu", "cuda"):
            if tensor.device.type == "meta":
                raise TypeError(f"{operation}: {name} is on meta, where tensors hold no numbers; give one of the CPU")
            raise TypeError(
                f"{operation}: {name} is on {tensor.device}; expected a CPU tensor, or one on the backend's GPU: give "
                f"{name}.cpu(), which copies it"
            )
        if tensor.is_nested:
            raise TypeError(
                f"{operation}: {name} is nested; give a tensor of one length (torch.nested.to_padded_tensor) and a "
                "mask, or packed sequences to flash_attention_varlen"
            )
        if tensor.layout != torch.strided:
            raise TypeError(f"{operation}: {name} is {tensor.layout}; expected a dense tensor: give {name}.to_dense()")
        if torch.compiler.is_compiling():
            continue
        if torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(
                f"{operation}: {name} has a tangent, and there are no derivatives in forward mode (torch.func.jvp); "
                "use those in reverse mode (backward, torch.autograd.grad)"
            )
        if torch._C._functorch.is_gradtrackingtensor(tensor):
            raise NotImplementedError(
                f"{operation}: {name} belongs to a gradient of torch.func (grad, vjp, jacrev), which PyTorch does not "
                "take through operators of others; use backward or torch.autograd.grad"
            )


def plain_mask(mask: Any, query: Any) -> Any:
    """A ``CausalBias`` of PyTorch's as the boolean mask that it means, on the query's device; others as they are.

    Its own memory was never written to: PyTorch's function alone knows what it means.
    """
    if not isinstance(mask, CausalBias):
        return mask
    queries, keys = mask.seq_len_q, mask.seq_len_kv
    first = keys - queries if mask.variant == CausalVariant.LOWER_RIGHT else 0
    return torch.ones((queries, keys), dtype=torch.bool, device=getattr(query, "device", None)).tril(first)


def in_autocast(*tensors: Any) -> tuple[Any, ...]:
    """Tensors in the dtype of ``torch.autocast`` where it is on, as PyTorch has operands of its own attention there."""
    first = tensors[0]
    if not isinstance(first, torch.Tensor) or first.device.type not in ("cpu", "cuda"):
        return tensors  # which are refused; autocast knows no meta
    if not torch.is_autocast_enabled(first.device.type):
        return tensors
    dtype = torch.get_autocast_dtype(first.device.type)
    return tuple(one.to(dtype) if isinstance(one, torch.Tensor) and one.dtype in FLOATS else one for one in tensors)


@uncompiled
def from_torch(tensor: torch.Tensor, backend: Any = None) -> Tensor:
    """A copy of a PyTorch tensor in device memory.

    Parameters
    ----------
    tensor : torch.Tensor
        Dense, on the CPU or on the backend's GPU, any shape, of a dtype that a grilly.Tensor may have. On the GPU it is
        copied there; ``grilly.from_dlpack`` makes a Tensor over memory of ``grilly.torch.empty`` without a copy.
    backend : grilly.Compute, optional
        Whose memory; the default backend's when None.

    Returns
    -------
    grilly.Tensor
        Of the same shape and dtype. It is no part of PyTorch's graph.

    Raises
    ------
    TypeError
        For a tensor elsewhere, or of another dtype.
    UnsupportedError
        As ``cuda_device`` for a CUDA tensor.
    RuntimeError
        For a tensor that requires grad, which would be lost: give ``tensor.detach()``.
    ImportError
        For bfloat16 where ml_dtypes is not installed.
    """
    check_dense("from_torch", tensor=tensor)
    if tensor.requires_grad:
        raise RuntimeError(
            "from_torch: the tensor requires grad, which a grilly.Tensor does not carry; give tensor.detach(), or use "
            "grilly.torch.attention, which is differentiable"
        )
    if tensor.is_cuda:
        return copied(entered("from_torch", tensor, backend), tensor)
    return (default_backend() if backend is None else backend).tensor(array_of(tensor))


@uncompiled
def to_torch(tensor: Tensor) -> torch.Tensor:
    """A copy of a ``grilly.Tensor`` as a PyTorch tensor on the CPU; waits for the work that makes it.

    Parameters
    ----------
    tensor : grilly.Tensor
        Any shape and dtype but those of unsigned integers that PyTorch lacks.

    Returns
    -------
    torch.Tensor
        Of the same shape and dtype.

    Raises
    ------
    TypeError
        For something else.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"to_torch: expected a grilly.Tensor, got {type(tensor).__name__}")
    return tensor_of(tensor.numpy())
