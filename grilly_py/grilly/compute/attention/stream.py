"""Attention over NumPy arrays that do not fit on the device: blocks of queries stay there, keys and values pass by.

Each block of queries keeps a float32 output and its log-sum-exp on the device. Blocks of keys and values arrive one
after the other; attention over each is added to the running result by log-sum-exp, as between the tiles inside a
kernel, so that the result does not depend on where the keys are cut but for rounding. While the device works on a block
the host sends the next one.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from ...errors import OutOfDeviceMemoryError, UnsupportedError
from ...registry import Request
from ...registry.shared import extras_bits
from ..device.arguments import check_precision
from ..device.caches import Kept
from ..device.device import Device
from ..device.plan import Plan as DevicePlan
from ..device.plan import Planner, strided
from ..device.record import Ready
from ..device.record import run as run_plan
from ..device.sixteen_bits import widens
from ..device.tensor import Tensor
from . import decode, option_checks
from .call import MAX_KEYS, NOTHING, Terms
from .checks import check_mask, check_qkv
from .options import CheckedOptions, Options, prepare
from .record import attend as attend_on_device
from .words import WORDS

log = logging.getLogger("grilly.compute.stream")  # as the guide names it
HEAP_SHARE = 0.9  # of the device's memory: the rest is for others, and for what the driver keeps
BLOCK_SHARE = 0.9  # of what is left: the rest is for scratch memory of the kernels
KEYS = 32_768  # of a block to begin with: enough to fill a device, and few merges
BLOCK_BYTES = 256 << 20  # of keys and values in a block at most: the first block's way to the device hides nothing
TILE = 16  # of queries and keys with a class of their own, at least
FEW = 64  # queries up to which kernels may split the keys
SLACK = 2048  # for arrays of a few bytes, each of which takes some hundred
SMALL = 4 << 20  # bytes of a call that is not worth asking how full the device is
REPORT_SECONDS = 1.0
#: Plans of merges.
MERGES: Kept[tuple, Ready] = Kept("merges", 256)


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a streamed call is.

    Attributes
    ----------
    operation : str
        The function's name.
    done, total : int
        Pairs of a query and a key over all batches and heads, without the blocks that a causal mask hides.
    seconds : float
        Since the call began.
    """

    operation: str
    done: int
    total: int
    seconds: float

    def __str__(self) -> str:
        left = self.seconds * (self.total / self.done - 1) if self.done else math.nan
        return (
            f"{self.operation}: {100 * self.done / max(self.total, 1):.0f} % of the pairs of queries and keys, "
            f"{self.seconds:.0f} s gone, about {left:.0f} s left"
        )


def show(progress: Progress) -> None:
    """Write the progress to standard error, over the line before it where that is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{progress}" + ("\n" if progress.done == progress.total else ""))
    else:
        sys.stderr.write(f"{progress}\n")
    sys.stderr.flush()


# -- whether -----------------------------------------------------------------------------------------------------------


def room(device: Device) -> int:
    """Bytes that new arrays may take: of the backend's memory limit, or the device's memory, what is not in use."""
    limit = device.memory_limit
    if limit is None:
        limit = int(HEAP_SHARE * device.info.memory_bytes)
    return limit - device.runtime.memory().in_use


def largest(device: Device) -> int:
    """Bytes of the largest array that the device can hold and kernels can be given, whole or cut."""
    limits = device.info.limits
    most = int(limits.get("allocation") or device.info.memory_bytes)
    return most if device.facts.windows else min(most, int(limits["storage_range"]))


def option_bytes(checked: CheckedOptions | None, mask, full: tuple[int, ...], value_dim: int) -> int:
    """Bytes that a call, or a block of one, takes beside its operands and results; ``full`` is (B, H, Sq, Sk).

    They are the words of options, the bits and classes of tiles that are made of masks, maps and segments, and what
    kernels that split the keys leave of each part. An upper bound, but for what few queries leave on a large device.
    """
    batch, heads, queries, keys = full
    found = 0 if checked is None else checked.nbytes(1 + keys // MAX_KEYS)
    tiles = 4 * batch * heads * -(-queries // TILE) * -(-keys // TILE)
    if mask is not None or checked is not None and checked.bits & extras_bits(("blocks", "segments")):
        found += tiles
    if mask is not None and mask.dtype == np.bool_:
        found += math.prod(mask.shape[:-1]) * (-(-mask.shape[-1] // 32) * 4 + 4 * TILE)
    if queries <= FEW:
        found += 4 * batch * heads * queries * (value_dim + 4) * -(-keys // decode.FEWEST_KEYS)
    return found


def needed(device: Device, q, k, v, mask=None, checked: CheckedOptions | None = None) -> bool:
    """Whether a call must be streamed: its arrays, none of them a Tensor, do not fit beside what is on the device.

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
    sizes += [4 * rows, option_bytes(checked, mask, full, v.shape[-1])]
    if max(sizes) > largest(device):
        return True
    together = sum(_rounded(size) for size in sizes) + SLACK
    if together > room(device):
        device.caches[WORDS].clear()  # kept for calls like earlier ones: what the limit is for goes first
    return together > room(device)


def _rounded(nbytes: int) -> int:
    """What a runtime gives for so many bytes."""
    step = 256 if nbytes <= 1 << 16 else 1 << 12
    return -(-nbytes // step) * step


# -- how it is cut -----------------------------------------------------------------------------------------------------


def ranges(length: int, step: int) -> Iterator[tuple[int, int]]:
    """(start, end) of the parts of ``length``, ``step`` at a time."""
    for start in range(0, length, step):
        yield start, min(start + step, length)


@dataclasses.dataclass
class Plan:
    """Extents of a block. ``heads`` are key heads; ``mask_bytes`` the bytes of masks in a block, by its extents."""

    batch: int
    heads: int
    queries: int
    keys: int
    row_bytes: int  # of a query row: q, the part, its log-sum-exp, the sum and its weight, for all heads of a group
    key_bytes: int  # of a key and its value
    widest: int  # bytes of the longest row of one array
    mask_bytes: Callable[[Plan], int]
    scratch_bytes: Callable[[Plan], int]  # of what kernels take beside their operands

    def rows_bytes(self) -> int:
        """Of what stays on the device."""
        return self.batch * self.heads * self.queries * self.row_bytes

    def keys_bytes(self) -> int:
        """Of one block of keys and values."""
        return self.batch * self.heads * self.keys * self.key_bytes

    def together(self) -> int:
        """Of all: two blocks, one in use and one on its way, and the queries."""
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


def plan(
    operation: str, device: Device, q, k, v, biases, checked: CheckedOptions | None = None
) -> Plan:
    """How to cut four-axis arrays. Raises OutOfDeviceMemoryError when one query and one key do not fit.

    ``biases`` are mask and attn_bias, each or None.
    """
    batch, heads, queries, dim = q.shape
    kv_heads, keys, value_dim = k.shape[1], k.shape[2], v.shape[3]
    group, size = heads // kv_heads, q.dtype.itemsize

    def mask_bytes(block: Plan) -> int:
        extents = (block.batch, group * block.heads, block.queries, block.keys)
        return sum(
            b.dtype.itemsize * math.prod(e for own, e in zip(b.shape, extents, strict=True) if own > 1)
            for b in biases
            if b is not None and not isinstance(b, Tensor)
        )

    def scratch_bytes(block: Plan) -> int:
        full = (block.batch, group * block.heads, block.queries, block.keys)
        mask = biases[0]
        if mask is not None:
            mask = np.broadcast_to(np.zeros((), mask.dtype), full)
        return option_bytes(checked, mask, full, value_dim) + SLACK

    whole = Plan(
        batch, kv_heads, queries, min(keys, KEYS),
        group * ((dim + value_dim) * size + 4 * value_dim + 12),
        (dim + value_dim) * size, group * max(dim * size, 4 * value_dim), mask_bytes, scratch_bytes,
    )  # fmt: skip
    budget, most = BLOCK_SHARE * room(device), min(largest(device), 1 << 32)
    if not whole.shrink(budget, most):
        words = 0 if checked is None else checked.nbytes()
        options = f", {words:,} of them for its options, which are sent whole," if words > 4096 else ""
        raise OutOfDeviceMemoryError(
            f"{operation}: one query and one key need {whole.together():,} bytes{options} and {int(max(budget, 0)):,} "
            "are left for them; free tensors or raise the memory limit"
        )
    whole.grow(keys, budget, most)
    return whole


# -- the call ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Part:
    """What is to be computed: a call's facts, and the part of it that the arrays hold.

    Attributes
    ----------
    operation : str
        For messages.
    causal, scale, kernel, high, checked
        Of the whole call; ``checked.bias`` covers the part.
    shift : int
        Query 0 of the whole call stands at this key of it.
    first : tuple of int
        Batch, query head, query and key of the whole call with which the part begins.
    """

    operation: str
    causal: bool
    scale: float
    kernel: str | None
    high: bool
    checked: CheckedOptions | None
    shift: int
    first: tuple[int, int, int, int] = (0, 0, 0, 0)

    def has(self, *names: str) -> bool:
        """Whether the call uses one of these features."""
        return self.checked is not None and bool(self.checked.bits & extras_bits(names))

    def keys(self, rows: tuple[int, int], keys: int) -> tuple[int, int]:
        """The range of the part's ``keys`` keys outside which none of its rows sees any."""
        low, high = 0, keys
        if self.has("prefix", "lengths"):  # other rules than one line along the diagonal
            return low, high
        place = self.shift + self.first[2] - self.first[3]
        right = 0 if self.checked is None else self.checked.right
        if self.causal if self.checked is None else self.checked.causal:
            high = min(max(rows[1] + place + right, 0), keys)
        if self.has("window"):
            low = min(max(rows[0] + place - self.checked.left, 0), high)
        return low, high


def attend(part: Part, device: Device, q: np.ndarray, k: np.ndarray, v: np.ndarray, mask, lse: bool):
    """Attention on checked NumPy arrays of up to four axes, block by block; o, or (o, lse).

    ``mask`` is bool or float32, an array, a Tensor or None. Raises OutOfDeviceMemoryError when not even one query and
    one key fit, and UnsupportedError for a kernel that cannot be given parts of the call.
    """
    if part.kernel in decode.FAMILIES and (part.causal or part.checked is not None):
        raise UnsupportedError(
            f"{part.operation}: the arrays do not fit on the device; {part.kernel} takes them in parts only where "
            "every query sees every key; leave the kernel to the registry (kernel=None)"
        )
    rank = q.ndim
    q, k, v = (a[(None,) * (4 - rank)] for a in (q, k, v))
    bias = None if part.checked is None else part.checked.bias
    biases = tuple(None if b is None else b[(None,) * (4 - len(b.shape))] for b in (mask, bias))
    o = np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
    sums = np.full(q.shape[:3], -np.inf, np.float32)
    if o.size:
        _Streamed(part, device, q, k, v, biases).run(o, sums)
    shape = o.shape[4 - rank :]
    o, sums = o.reshape(shape), sums.reshape(shape[:-1])
    return (o, sums) if lse else o


@widens("q", "k", "v")
def attend_part(
    operation: str,
    device: Device,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    whole: tuple[int, int, int, int],
    first: tuple[int, int, int, int],
    mask=None,
    attn_bias=None,
    causal: bool,
    scale: float,
    kernel: str | None,
    precision: str,
    options: Options,
) -> tuple[np.ndarray, np.ndarray]:
    """Attention of some queries to some keys of a larger call: the output and log-sum-exp over these keys only.

    Parameters
    ----------
    q, k, v : numpy.ndarray
        Four axes, the part of the whole arrays that begins at ``first``.
    whole : tuple of int
        (B, H, Sq, Sk) of the call.
    first : tuple of int
        Batch, query head, query and key.
    mask, attn_bias : numpy.ndarray, optional
        For the part: broadcastable to (B, H, Sq, Sk) of it.
    options : Options
        Of the whole call, arrays included; ``attn_bias`` is not read.
    """
    device.check_open()
    check_qkv(operation, q, k, v)
    high = check_precision(operation, precision)
    full = (*q.shape[:3], k.shape[2])
    mask = None if mask is None else check_mask(operation, mask, full)
    checked = prepare(operation, dataclasses.replace(options, attn_bias=None), whole, causal)
    if attn_bias is not None:
        checked = checked or CheckedOptions(whole[1], causal)
        checked.offer("bias")
        checked.bias = option_checks.bias(operation, attn_bias, full)
    part = Part(operation, causal, scale, kernel, high, checked, whole[3] - whole[2], first)
    return attend(part, device, q, k, v, mask, True)


@dataclasses.dataclass
class _Streamed:
    """One call: its arrays with four axes, and what is done with each block."""

    part: Part
    device: Device
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    biases: tuple  # mask and attn_bias, each or None

    def __post_init__(self):
        self.group = self.q.shape[1] // self.k.shape[1]
        self.plan = plan(self.part.operation, self.device, self.q, self.k, self.v, self.biases, self.part.checked)
        self.began = self.reported = time.monotonic()
        batch, heads, queries, _ = self.q.shape
        pairs = sum((end - start) * (high - low) for start, end, low, high in self._spans())
        self.total, self.done = batch * heads * pairs, 0
        block = (self.plan.batch, self.plan.heads, self.plan.queries, self.plan.keys)
        self.cut = block != (batch, self.k.shape[1], queries, self.k.shape[2])
        if self.cut:
            log.info(
                "%s: streaming %d queries by %d and %d keys by %d", self.part.operation, queries, self.plan.queries,
                self.k.shape[2], self.plan.keys,
            )  # fmt: skip

    def _spans(self) -> Iterator[tuple[int, int, int, int]]:
        """Blocks of queries, with the range of keys that each needs."""
        for rows in ranges(self.q.shape[2], self.plan.queries):
            yield *rows, *self.part.keys(rows, self.k.shape[2])

    def run(self, o: np.ndarray, lse: np.ndarray) -> None:
        """Fill o and lse, which hold what rows get that see nothing."""
        for batch in ranges(self.q.shape[0], self.plan.batch):
            for heads in ranges(self.k.shape[1], self.plan.heads):
                for start, end, low, high in self._spans():
                    rows = slice(*batch), slice(heads[0] * self.group, heads[1] * self.group), slice(start, end)
                    self._rows(rows, slice(*heads), (low, high), o[rows], lse[rows])
        self._report(0, finished=True)

    def _rows(self, rows: tuple[slice, ...], heads: slice, keys: tuple[int, int], o, lse) -> None:
        """Write the result of one block of queries over a range of keys to o and lse."""
        device = self.device
        blocks = self._blocks(rows, heads, *keys)
        block = next(blocks, None)
        if block is None:
            return
        q = _place(device, self.q[rows])
        # Not set to zero: a weight of minus infinity says that nothing is there yet.
        total = device.empty(o.shape)
        weight = device.tensor(np.broadcast_to(np.array([-np.inf, 0], np.float32), (*lse.shape, 2)).copy())
        begun = False
        while block is not None:
            self._add(rows, q, *block, total, weight, begun)
            begun = True
            block = next(blocks, None)  # sent while the device works on the one before
            # The host may be one block ahead, not more: staging memory and the device's would fill.
            device.runtime.synchronize()
        total.astype(o.dtype).numpy(out=o)
        top, seen = np.moveaxis(weight.numpy().astype(np.float64), -1, 0)
        with np.errstate(divide="ignore"):
            lse[...] = top + np.log(seen)

    def _blocks(self, rows: tuple[slice, ...], heads: slice, low: int, high: int) -> Iterator[tuple[int, tuple]]:
        """The first key and the tensors of each block of keys; each is sent when it is asked for."""
        hidden = True
        for start, end in ranges(high - low, self.plan.keys):
            sent = self._send(rows, heads, low + start, low + end)
            if sent is not None:
                hidden = False
                yield low + start, sent
        if hidden and self.part.has("sinks") and self.part.first[3] == 0:  # which rows that see nothing have too
            yield 0, self._send(rows, heads, 0, min(self.plan.keys, self.k.shape[2]), always=True)

    def _send(self, rows: tuple[slice, ...], heads: slice, start: int, end: int, always: bool = False) -> tuple | None:
        """Keys ``start`` to ``end``, their values and masks on the device; None where a mask hides all of them."""
        places, parts = (*rows, slice(start, end)), []
        for bias in self.biases:
            if bias is not None:
                bias = bias[tuple(p if n > 1 else slice(None) for n, p in zip(bias.shape, places, strict=True))]
                if bias.dtype == np.bool_ and not isinstance(bias, Tensor) and not always and not bias.any():
                    return None
            parts.append(bias)
        full = (*(p.stop - p.start for p in rows), end - start)
        parts = [b if b is None or isinstance(b, Tensor) else _place(self.device, b) for b in parts]
        mask, bias = (None if b is None else b.broadcast_to(full) for b in parts)
        k, v = (_place(self.device, a[rows[0], heads, start:end]) for a in (self.k, self.v))
        return k, v, mask, bias

    def _add(self, rows, q: Tensor, start: int, block: tuple, total: Tensor, weight: Tensor, begun: bool) -> None:
        """Record attention to a block of keys from ``start`` and its merge with the result so far."""
        k, v, mask, bias = block
        part = self.part
        first = tuple(f + s for f, s in zip(part.first, (*(r.start for r in rows), start), strict=True))
        shift = part.shift + first[2] - first[3]
        causal, checked, options = part.causal, part.checked, NOTHING
        if checked is not None:
            checked = copy.copy(checked)
            if begun or part.first[3]:
                checked.bits &= ~extras_bits(("sinks",))  # counted with the first keys
            causal, options = checked.causal, checked.facts()
            if shift + checked.right >= k.shape[2] - 1 and not part.has("lengths"):
                causal = False
        elif not causal or shift >= k.shape[2] - 1:  # every row sees every key: kernels need not look
            causal, shift = False, k.shape[2] - q.shape[2]
        terms = Terms(causal, part.scale, True, part.kernel, part.high, shift, options, first)
        o, lse = attend_on_device(self.device, (q, k, v, mask, bias), terms, checked, keep=False)
        merge(self.device, o, lse, total, weight)
        self.device.runtime.flush()
        self._report(q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2])

    def _report(self, pairs: int, finished: bool = False) -> None:
        self.done = self.total if finished else min(self.done + pairs, self.total)
        now = time.monotonic()
        if not self.cut or not finished and (now - self.reported < REPORT_SECONDS or self.done == self.total):
            return
        self.reported = now
        progress = Progress(self.part.operation, self.done, self.total, now - self.began)
        log.info("%s", progress)
        if self.device.progress is not None:
            self.device.progress(progress)


def _place(device: Device, array: np.ndarray) -> Tensor:
    """The array on the device, its last axis contiguous."""
    if array.shape[-1] > 1 and array.strides[-1] != array.itemsize:
        array = np.ascontiguousarray(array)
    return device.borrow(array)


def merge(device: Device, part: Tensor, part_lse: Tensor, total: Tensor, weight: Tensor) -> None:
    """Record ``total += part``, attention over further keys.

    ``part`` and the float32 ``total`` are (B, H, Sq, Dv) with their last axis contiguous, ``part_lse`` float32
    (B, H, Sq) likewise. ``weight`` is float32 (B, H, Sq, 2) with contiguous queries: largest log-sum-exp so far, and
    the sum of the exponentials relative to it. Where the first is minus infinity, ``total`` may hold anything.
    """
    if math.prod(part.shape[:3]):
        run_plan(device, MERGES, merge_plan, (), (part, part_lse, total, weight))


def merge_plan(given: tuple, layouts, facts, registry) -> DevicePlan:
    """The dispatch of ``merge``."""
    planner = Planner(facts, layouts)
    part, part_lse, total, weight = planner.inputs
    batch, heads, queries, columns = part.shape
    rows = batch * heads * queries
    choice = registry.resolve(Request("attention-merge", part.dtype.name))
    count, stripe = -(-rows // choice.tile["rows"]), choice.tile["stripe"]
    push = {
        **strided("part", part), **strided("part_lse", part_lse, ("batch", "head")), **strided("sum", total),
        **strided("weight", weight, ("batch", "head"), unit=2),
        "heads": heads, "queries": queries, "rows": rows, "columns": columns,
    }  # fmt: skip
    arrays = {"part": part, "part_lse": part_lse, "sum": total, "weight": weight}
    planner.dispatch(choice, {}, arrays, push, (min(count, stripe), -(-count // stripe), 1), 3.0 * part.size)
    return planner.plan()
