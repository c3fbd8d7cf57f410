"""What prepared attention calls share: a plan's outcome, to be recorded again and again."""

from __future__ import annotations

import dataclasses
import math
import struct
from typing import TYPE_CHECKING

from .launch import FLOAT32
from .tensor import Storage, Tensor

if TYPE_CHECKING:
    from .backend import Compute

#: The push constants of shaders/attention/attention.glsl.
PUSH = struct.Struct("=27Iif")
# Keys in one dispatch at most. Rounding errors of a float32 sum grow with its length; ranges beyond this are summed by
# themselves and merged, which keeps the error of 200,000 keys at that of NumPy's blocked products for next to no time.
MAX_KEYS = 16_384


def mask_kind(mask) -> int:
    """The specialization constant MASK: 0 for none, 1 for a boolean mask, 2 for an additive one."""
    return 0 if mask is None else 1 if mask.dtype.kind == "b" else 2


def descriptor(tensor: Tensor | None) -> tuple | None:
    """A descriptor for all of a tensor's storage."""
    return None if tensor is None else (tensor._storage.buffer, 0, tensor._storage.nbytes)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """All of a call that depends on shapes and strides, nothing that depends on data."""

    before_mask: tuple[tuple, ...]  # strides of q, k, v, and of what the kernel writes its output to
    after_mask: tuple
    groups: tuple[int, int, int]
    work: float
    out_shape: tuple[int, ...]
    out_steps: tuple[int, ...]
    out_bytes: int
    lse_shape: tuple[int, ...]

    def results(self, backend: Compute, q: Tensor, lse: bool) -> tuple[Tensor, Tensor | None]:
        """Undefined tensors for o and, if asked for, lse."""
        o = Tensor(Storage(backend, self.out_bytes), self.out_shape, q.dtype, self.out_steps)
        sums = Tensor(Storage(backend, 4 * math.prod(self.lse_shape)), self.lse_shape, FLOAT32) if lse else None
        return o, sums

    def push(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> bytes:
        """The kernel's push constants."""
        q_steps, k_steps, v_steps, o_steps = self.before_mask
        mask_place = (0, 0, 0, 0, 0) if mask is None else (mask._offset, *mask._steps)
        return PUSH.pack(
            q._offset, *q_steps, k._offset, *k_steps, v._offset, *v_steps, 0, *o_steps, *mask_place, *self.after_mask
        )
