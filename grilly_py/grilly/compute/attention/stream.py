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
import time
from collections.abc import Iterator

import numpy as np

from ...errors import UnsupportedError
from ...registry.shared import extras_bits
from ..device.arrays import Unpack
from ..device.call import call
from ..device.device import Device
from ..device.dtypes import dtype_of
from ..device.tensor import Tensor
from . import decode, merge, option_checks
from .call import NOTHING, AttentionTerms
from .checks import check_mask, check_qkv, take_terms
from .executables import attention_executable
from .keywords import TermKeywords
from .options import CheckedOptions, Options, prepare
from .plan import planned
from .progress import Progress
from .stream_plan import plan_blocks, ranges

log = logging.getLogger("grilly.compute.stream")  # as the guide names it
REPORT_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Part:
    """The terms of a whole call, and the place of the arrays in it.

    Attributes
    ----------
    operation : str
        For messages.
    causal, scale, kernel, high, checked
        Of the whole call; ``checked.bias`` covers the part.
    shift : int
        The key of query 0, both of the whole call.
    first : tuple of int
        Batch, query head, query and key of the whole call at which the part begins.
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
        """The range of the part's ``keys`` keys that any of its ``rows`` may see."""
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


def attend(part: Part, device: Device, q: np.ndarray, k: np.ndarray, v: np.ndarray, mask) -> list[np.ndarray]:
    """Attention on checked NumPy arrays of up to four axes, block by block; o and lse.

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
    o = np.zeros((*q.shape[:3], v.shape[3]), dtype_of(q.dtype))
    sums = np.full(q.shape[:3], -np.inf, np.float32)
    if o.size:
        _Streamed(part, device, q, k, v, biases).run(o, sums)
    shape = o.shape[4 - rank :]
    return [o.reshape(shape), sums.reshape(shape[:-1])]


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
    options: Options,
    **terms: Unpack[TermKeywords],
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
    terms
        Likewise; the scale is a number.
    """
    causal, scale, kernel, high = take_terms(operation, terms)

    def record(q, k, v):
        check_qkv(operation, q, k, v)
        full = (*q.shape[:3], k.shape[2])
        added = None if mask is None else check_mask(operation, mask, full)
        checked = prepare(operation, dataclasses.replace(options, attn_bias=None), whole, causal)
        if attn_bias is not None:
            checked = checked or CheckedOptions(whole[1], causal)
            checked.offer("bias")
            checked.bias = option_checks.bias(operation, attn_bias, full)
        part = Part(operation, causal, scale, kernel, high, checked, whole[3] - whole[2], first)
        return attend(part, device, q, k, v, added), None

    o, lse = call(device, planned, None, (q, k, v), record=record, floats=3, results=2, narrow=1)
    return o, lse


@dataclasses.dataclass
class _Streamed:
    """A streamed call: its arrays with four axes, and the work for each block."""

    part: Part
    device: Device
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    biases: tuple  # mask and attn_bias, each or None

    def __post_init__(self):
        self.group = self.q.shape[1] // self.k.shape[1]
        part = self.part
        self.block = plan_blocks(part.operation, self.device, self.q, self.k, self.v, self.biases, part.checked)
        self.began = self.reported = time.monotonic()
        batch, heads, queries, _ = self.q.shape
        pairs = sum((end - start) * (high - low) for start, end, low, high in self._spans())
        self.total, self.done = batch * heads * pairs, 0
        extents = (self.block.batch, self.block.heads, self.block.queries, self.block.keys)
        self.cut = extents != (batch, self.k.shape[1], queries, self.k.shape[2])
        if self.cut:
            log.info(
                "%s: streaming %d queries by %d and %d keys by %d", part.operation, queries, self.block.queries,
                self.k.shape[2], self.block.keys,
            )  # fmt: skip

    def _spans(self) -> Iterator[tuple[int, int, int, int]]:
        """Blocks of queries, with the range of keys that each needs."""
        for rows in ranges(self.q.shape[2], self.block.queries):
            yield *rows, *self.part.keys(rows, self.k.shape[2])

    def run(self, o: np.ndarray, lse: np.ndarray) -> None:
        """Fill o and lse. They begin as zeros and minus infinities, the results of rows without keys."""
        for batch in ranges(self.q.shape[0], self.block.batch):
            for heads in ranges(self.k.shape[1], self.block.heads):
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
        total.astype(o.dtype, copy=False).numpy(out=o)
        top, seen = np.moveaxis(weight.numpy().astype(np.float64), -1, 0)
        with np.errstate(divide="ignore"):
            lse[...] = top + np.log(seen)

    def _blocks(self, rows: tuple[slice, ...], heads: slice, low: int, high: int) -> Iterator[tuple[int, tuple]]:
        """The first key and the tensors of each block of keys; each is sent when it is asked for."""
        hidden = True
        for start, end in ranges(high - low, self.block.keys):
            sent = self._send(rows, heads, low + start, low + end)
            if sent is not None:
                hidden = False
                yield low + start, sent
        if hidden and self.part.has("sinks") and self.part.first[3] == 0:  # which rows that see nothing have too
            yield 0, self._send(rows, heads, 0, min(self.block.keys, self.k.shape[2]), always=True)

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
            checked.partial = True
            if begun or part.first[3]:
                checked.bits &= ~extras_bits(("sinks",))  # counted with the first keys
            causal, options = checked.causal, checked.summary()
            if shift + checked.right >= k.shape[2] - 1 and not part.has("lengths"):
                causal = False
        elif not causal or shift >= k.shape[2] - 1:  # every row sees every key: kernels need not look
            causal, shift = False, k.shape[2] - q.shape[2]
        terms = AttentionTerms(causal, part.scale, True, part.kernel, part.high, shift, options, first)
        found = attention_executable(self.device, (q, k, v, mask, bias), terms, keep=False)
        assert found is not None, "a bias of 16 bits"
        o, lse = found.run((q, k, v, mask, bias, found.parameters_of(self.device, checked, keep=False)))
        merge.add(self.device, o, lse, total, weight)
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
