"""Which calls are streamed, and the extents of their blocks, by the free memory of the device."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np

from ...errors import OutOfDeviceMemoryError
from ...registry.shared import extras_bits
from ..device.device import Device
from ..device.tensor import Tensor
from . import split_kv
from .call import MAX_KEYS
from .options import CheckedOptions
from .parameters import PARAMETERS
from .rates import rates_of

BLOCK_SHARE = 0.9  # of what is left: the rest is for scratch memory of the kernels
KEYS = 32_768  # of a block to begin with: enough to fill a device, and few merges
BLOCK_BYTES = 256 << 20  # of keys and values in a block at most: the first block's way to the device hides nothing
TILE = 16  # of queries and keys with a class of their own, at least
FEW = 64  # queries up to which kernels may split the keys
SLACK = 2048  # for arrays of a few bytes, each of which takes some hundred
SMALL = 4 << 20  # bytes of a call that is not worth asking how full the device is


def room(device: Device) -> int:
    """Bytes for new arrays: the unused part of the backend's memory limit, or of the device's memory."""
    return device.most_memory - device.runtime.memory().in_use


def largest(device: Device) -> int:
    """Bytes of the largest array for the device and its kernels, whole or cut."""
    limits = device.info.limits
    most = int(limits.get("allocation") or device.info.memory_bytes)
    return most if device.facts.windows else min(most, int(limits["storage_range"]))


def option_bytes(
    device: Device, size: int, checked: CheckedOptions | None, mask, full: tuple[int, ...], value_dim: int
) -> int:
    """Bytes that a call, or a block of one, takes beside its operands and results; ``full`` is (B, H, Sq, Sk).

    ``size`` is that of an element.

    They are the parameters of options, the bits and classes of tiles, and the partial results of split keys. An upper
    bound, but for the partial results of few queries on a large device.
    """
    batch, heads, queries, keys = full
    found = 0 if checked is None else checked.nbytes(1 + keys // MAX_KEYS)
    tiles = 4 * batch * heads * -(-queries // TILE) * -(-keys // TILE)
    if mask is not None or checked is not None and checked.bits & extras_bits(("blocks", "segments")):
        found += tiles
    if mask is not None and mask.dtype == np.bool_:
        rows, columns = mask.shape[:-1], mask.shape[-1] if mask.ndim else 1
        found += math.prod(rows) * (-(-columns // 32) * 4 + 4 * TILE)
    rates = rates_of(device.facts)
    if queries <= FEW:
        found += 4 * batch * heads * queries * (value_dim + 4) * -(-keys // rates.decode.split.least_keys)
    elif size == 2 and mask is None:
        shared = split_kv.results_bytes(batch * heads * queries, value_dim) * -(-keys // rates.tiles.tail.least_keys)
        found += min(shared, device.facts.workspace)
    return found


def needed(device: Device, q, k, v, mask=None, checked: CheckedOptions | None = None) -> bool:
    """Whether a call must be streamed: its NumPy arrays do not fit into the free memory of the device.

    A call with Tensors among q, k and v is never streamed.
    """
    if isinstance(q, Tensor) or isinstance(k, Tensor) or isinstance(v, Tensor):
        return False
    if q.nbytes + k.nbytes + v.nbytes < SMALL and mask is None and checked is None and device.memory_limit is None:
        return False
    rows = q.size // max(q.shape[-1], 1)
    output = rows * v.shape[-1] * q.dtype.itemsize
    sizes = [q.nbytes, k.nbytes, v.nbytes, output]
    biases = (mask, None if checked is None else checked.bias)
    sizes += [b.nbytes for b in biases if b is not None and not isinstance(b, Tensor)]
    full = (*((1,) * (4 - q.ndim) + q.shape)[:3], k.shape[-2])
    sizes += [4 * rows, option_bytes(device, q.dtype.itemsize, checked, mask, full, v.shape[-1])]
    if max(sizes) > largest(device):
        return True
    together = sum(_rounded(size) for size in sizes) + SLACK
    if together > room(device):
        device.caches[PARAMETERS].clear()  # kept for calls like earlier ones: what the limit is for goes first
    return together > room(device)


def _rounded(nbytes: int) -> int:
    """Bytes that a runtime allocates for so many."""
    step = 256 if nbytes <= 1 << 16 else 1 << 12
    return -(-nbytes // step) * step


def ranges(length: int, step: int) -> Iterator[tuple[int, int]]:
    """(start, end) of the parts of ``length``, ``step`` at a time; none of no length, whose block has no extent."""
    for start in range(0, length, max(step, 1)):
        yield start, min(start + step, length)


@dataclasses.dataclass
class Block:
    """Extents of a block. ``heads`` are key heads; ``mask_bytes`` the bytes of masks in a block, by its extents."""

    batch: int
    heads: int
    queries: int
    keys: int
    row_bytes: int  # of a query row: q, the part, its log-sum-exp, the sum and its weight, for all heads of a group
    key_bytes: int  # of a key and its value
    widest: int  # bytes of the longest row of one array
    mask_bytes: Callable[[Block], int]
    scratch_bytes: Callable[[Block], int]  # of what kernels take beside their operands

    def rows_bytes(self) -> int:
        """Bytes of the queries' block: it stays on the device."""
        return self.batch * self.heads * self.queries * self.row_bytes

    def keys_bytes(self) -> int:
        """Bytes of one block of keys and values."""
        return self.batch * self.heads * self.keys * self.key_bytes

    def together(self) -> int:
        """Bytes of the queries and two blocks of keys: one in use and one on its way."""
        return self.rows_bytes() + 2 * (self.keys_bytes() + self.mask_bytes(self)) + self.scratch_bytes(self)

    def fits(self, budget: float, most: int) -> bool:
        """Whether two blocks, one in use and one on its way, and the queries fit."""
        longest = self.batch * self.heads * max(self.queries * self.widest, self.keys * self.key_bytes)
        return self.together() <= budget and max(longest, self.mask_bytes(self)) <= most

    def shrink(self, budget: float, most: int) -> bool:
        """Make the block fit: first fewer batches and heads, which costs nothing, then fewer queries and keys, each
        block of which sees all blocks of the other. False when it cannot."""
        while not self.fits(budget, most):
            if self.batch > 1:
                self.batch = -(-self.batch // 2)
            elif self.heads > 1:
                self.heads = -(-self.heads // 2)
            elif self.queries > self.keys:
                self.queries = -(-self.queries // 2)
            elif self.keys > 1:
                self.keys = -(-self.keys // 2)
            else:
                return False
        return True

    def grow(self, keys: int, budget: float, most: int) -> None:
        """Take more keys at a time where there is room: fewer merges."""
        while self.keys < keys:
            more = dataclasses.replace(self, keys=min(2 * self.keys, keys))
            if more.keys_bytes() > BLOCK_BYTES or not more.fits(budget, most):
                return
            self.keys = more.keys


def plan_blocks(operation: str, device: Device, q, k, v, biases, checked: CheckedOptions | None = None) -> Block:
    """How to cut four-axis arrays. Raises OutOfDeviceMemoryError when one query and one key do not fit.

    ``biases`` are mask and attn_bias, each or None.
    """
    batch, heads, queries, dim = q.shape
    kv_heads, keys, value_dim = k.shape[1], k.shape[2], v.shape[3]
    group, size = heads // kv_heads, q.dtype.itemsize

    def mask_bytes(block: Block) -> int:
        extents = (block.batch, group * block.heads, block.queries, block.keys)
        return sum(
            b.dtype.itemsize * math.prod(e for own, e in zip(b.shape, extents, strict=True) if own > 1)
            for b in biases
            if b is not None and not isinstance(b, Tensor)
        )

    def scratch_bytes(block: Block) -> int:
        full = (block.batch, group * block.heads, block.queries, block.keys)
        mask = biases[0]
        if mask is not None:
            mask = np.broadcast_to(np.zeros((), mask.dtype), full)
        return option_bytes(device, size, checked, mask, full, value_dim) + SLACK

    whole = Block(
        batch, kv_heads, queries, min(keys, KEYS),
        group * ((dim + value_dim) * size + 4 * value_dim + 12),
        (dim + value_dim) * size, group * max(dim * size, 4 * value_dim), mask_bytes, scratch_bytes,
    )  # fmt: skip
    budget, most = BLOCK_SHARE * room(device), min(largest(device), 1 << 32)
    if not whole.shrink(budget, most):
        parameters = 0 if checked is None else checked.nbytes()
        options = f", {parameters:,} of them for its options, which are sent whole," if parameters > 4096 else ""
        raise OutOfDeviceMemoryError(
            f"{operation}: one query and one key need {whole.together():,} bytes{options} and {int(max(budget, 0)):,} "
            "are left for them; free tensors or raise the memory limit"
        )
    whole.grow(keys, budget, most)
    return whole
