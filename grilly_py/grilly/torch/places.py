"""Where an operator's tensors are, the host or the backend's GPU, and how grilly takes and gives them there."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..compute.device.tensor import Tensor
from ..interop.exchange import InteropExchange
from .arrays import array_of, tensor_of
from .cuda import entered, give, taken

#: Finite values of an additive mask are raised to this: to grilly a dtype's lowest number says "never".
LOWEST = np.float32(-1e38)
#: In rows of nothing above this, scores are lost beside the mask, and all keys at the row's maximum count alike, as in
#: PyTorch. What they have becomes one number that forward and backward round alike, and other keys are hidden.
LOST = np.float32(-1e15)
#: Rows of nothing above this are moved up, which leaves their weights as they are: a log-sum-exp beside such numbers
#: keeps too few bits for backward.
LOW = np.float32(-1e3)


class Host:
    """Tensors of the CPU, as NumPy arrays over the same memory."""

    def array(self, tensor: torch.Tensor) -> Any:
        """An operand."""
        return array_of(tensor)

    def table(self, tensor: torch.Tensor) -> Any:
        """Numbers of an option that kernels read as float32."""
        return array_of(tensor)

    def integers(self, tensor: torch.Tensor) -> Any:
        """Lengths, ids, or a map."""
        return array_of(tensor)

    def mask(self, tensor: torch.Tensor) -> Any:
        """A mask, whose lowest number says "never"."""
        return array_of(tensor)

    def added(self, tensor: torch.Tensor) -> Any:
        """A mask as it is, or an additive one as float32 whose finite values all count as numbers."""
        mask = array_of(tensor)
        if mask.dtype == np.bool_:
            return mask
        with np.errstate(over="ignore"):
            mask = mask.astype(np.float32, copy=False)
        if not ((mask < LOW) | (mask > -LOW)).any():
            return mask
        top = mask.max(axis=-1, keepdims=True)
        size = -np.abs(top)
        lost = (size <= LOST) & np.isfinite(top)
        shared = np.where(mask == top, LOWEST, np.float32(-np.inf))
        top = np.where((size < LOW) & (size > LOST), top, np.float32(0))
        moved = np.where(np.isneginf(mask), mask, np.maximum(mask - top, LOWEST))
        return np.where(lost, shared, moved)

    def shared_out(self, gradient: torch.Tensor, mask: torch.Tensor | None, keys: int) -> torch.Tensor:
        """The output's gradient, divided in each row of an additive mask by how many keys its weight is shared among
        where scores are lost.

        The log-sum-exp of such a row has no room for the logarithm of that number, so backward's weights are so many
        times too large; gradients are linear in them and in the output's gradient.
        """
        if mask is None or mask.dtype == torch.bool or mask.numel() == 0:
            return gradient
        mask = mask.detach().float()
        top = mask.amax(dim=-1, keepdim=True)
        lost = torch.isfinite(top) & (top.abs() >= -float(LOST))
        if not mask.is_cuda and not lost.any():  # on a GPU asking would wait
            return gradient
        count = (mask == top).sum(dim=-1, keepdim=True) * max(keys // mask.shape[-1], 1)
        return (gradient.float() / torch.where(lost, count, 1)).to(gradient.dtype)

    def result(self, array: Any) -> torch.Tensor:
        """What grilly gives, as a tensor in C order."""
        return tensor_of(np.ascontiguousarray(array))


class Gpu(Host):
    """CUDA tensors, as Tensors over the same memory or copies on the GPU; an option's may be on the CPU."""

    def __init__(self, exchange: InteropExchange):
        self._exchange = exchange

    def array(self, tensor: torch.Tensor) -> Any:
        return taken(self._exchange, tensor.detach()) if tensor.is_cuda else array_of(tensor)

    def table(self, tensor: torch.Tensor) -> Any:
        return self.array(tensor.detach().float())

    def integers(self, tensor: torch.Tensor) -> Any:
        # Numbers of other types are checked by the host.
        return self.array(tensor if tensor.dtype == torch.int32 else tensor.cpu())

    def mask(self, tensor: torch.Tensor) -> Any:
        tensor = tensor.detach()
        if tensor.dtype in (torch.float16, torch.float64):
            lowest = tensor <= torch.finfo(tensor.dtype).min
            tensor = tensor.float().masked_fill(lowest, -torch.inf)
        return self.array(tensor if tensor.dtype == torch.bool else tensor.float())

    def added(self, tensor: torch.Tensor) -> Any:
        if not tensor.is_cuda:
            return super().added(tensor)
        if tensor.dtype == torch.bool:
            return self.array(tensor)
        mask = tensor.detach().float()
        top = mask.amax(dim=-1, keepdim=True)
        size = -top.abs()
        lost = (size <= float(LOST)) & torch.isfinite(top)
        shared = torch.full_like(mask, -torch.inf).masked_fill(mask == top, float(LOWEST))
        top = torch.where((size < float(LOW)) & (size > float(LOST)), top, 0)
        moved = torch.where(torch.isneginf(mask), mask, (mask - top).clamp_min(float(LOWEST)))
        return self.array(torch.where(lost, shared, moved))

    def result(self, array: Any) -> torch.Tensor:
        if isinstance(array, Tensor):
            return give(self._exchange, array.contiguous())
        return super().result(array)


HOST = Host()


def place_of(operation: str, tensor: torch.Tensor) -> Host:
    """Where a call's first tensor is. Raises as ``cuda.entered``."""
    return Gpu(entered(operation, tensor)) if tensor.is_cuda else HOST
