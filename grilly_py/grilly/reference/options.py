"""What may be asked of an attention beside q, k and v: biases, patterns, lengths, sinks and dropout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .philox import kept
from .t5 import t5_bucket

#: An additive mask value below this means "never attend".
NEVER = -3.0e38


def never_attend(mask: ArrayLike) -> np.ndarray:
    """Where a mask forbids attention.

    Parameters
    ----------
    mask : array
        Boolean (True = attend) or floating (added to the scores), any shape.

    Returns
    -------
    ndarray of bool
        True where the mask says "never attend"; the mask's shape.

    Raises
    ------
    TypeError
        If the mask is neither boolean nor floating.
    """
    mask = np.asarray(mask)
    if mask.dtype == np.bool_:
        return ~mask
    if mask.dtype.name == "bfloat16":
        mask = mask.astype(np.float32)
    if not np.issubdtype(mask.dtype, np.floating):
        raise TypeError(f"mask: expected a boolean or floating array, got {mask.dtype}; use mask.astype(bool)")
    lowest = float(np.finfo(mask.dtype).min)
    return mask <= lowest if lowest > NEVER else mask < mask.dtype.type(NEVER)


@dataclass(frozen=True)
class Options:
    """The keyword arguments that every attention of the reference takes; each is off unless given.

    With d the distance ``j - (i + Sk - Sq)`` of key j from query i, a score is made in this order: ``scale * q k^T``,
    `softcap`, then everything that is added, then everything that hides, then the softmax with its `sinks`, then
    dropout. Where `seqlens_q` or `seqlens_k` are given, each sample's own lengths stand for Sq and Sk in d.

    Attributes
    ----------
    attn_bias : array
        Added, broadcastable to ``(B, H, Sq, Sk)``, floating. Unlike a mask it only adds: nothing in it hides a key,
        though minus infinity leaves it no weight.
    alibi_slopes : array
        ``(H,)`` or ``(B, H)``: adds ``-slope * |d|`` (Press et al. 2022, https://arxiv.org/abs/2108.12409).
    t5_table : array
        ``(num_buckets, H)``: adds ``t5_table[t5_bucket(d), h]``.
    t5_bidirectional, t5_max_distance
        As for `t5_bucket`.
    softcap : float
        Above 0: a score s becomes ``softcap * tanh(s / softcap)``, so that it stays within plus and minus softcap
        (Gemma Team 2024, https://arxiv.org/abs/2408.00118, section 2).
    sinks : array
        ``(H,)``: each row of head h has one more score, ``sinks[h]``, of a key without value: it takes weight away from
        the others and counts in the log-sum-exp. A row with nothing to attend to gives zeros and ``sinks[h]``.
    window_size : (left, right)
        Only keys with ``-left <= d <= right`` are visible; None or a negative number sets no bound. With ``causal``,
        right is 0.
    prefix_len : array of int
        ``(B,)``: keys ``j < prefix_len[b]`` are visible to every query in spite of ``causal`` and `window_size`.
    segment_ids : array of int, or two
        ``(B or 1, Sq)`` and ``(B or 1, Sk)``, or one for both where Sq equals Sk: a query sees only keys whose number
        is its own.
    seqlens_q, seqlens_k : array of int
        ``(B,)``: only the first so many queries and keys of a sample exist. The rest of its rows are zeros, with minus
        infinity for log-sum-exp, also with `sinks`.
    block_map, block_size
        ``(B or 1, H or 1, ceil(Sq / bq), ceil(Sk / bk))`` boolean and the pair (bq, bk): only keys in blocks that are
        True are visible.
    dropout_p, dropout_seed, dropout_offset
        Of the softmax's weights those of `dropout_mask` are kept and divided by ``1 - dropout_p``, the others are 0.
    """

    attn_bias: ArrayLike | None = None
    alibi_slopes: ArrayLike | None = None
    t5_table: ArrayLike | None = None
    t5_bidirectional: bool = True
    t5_max_distance: int = 128
    softcap: float = 0.0
    sinks: ArrayLike | None = None
    window_size: tuple[int | None, int | None] | None = None
    prefix_len: ArrayLike | None = None
    segment_ids: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None
    seqlens_q: ArrayLike | None = None
    seqlens_k: ArrayLike | None = None
    block_map: ArrayLike | None = None
    block_size: tuple[int, int] | None = None
    dropout_p: float = 0.0
    dropout_seed: int = 0
    dropout_offset: int = 0


class Rules:
    """Options, mask and ``causal`` of one problem, with all arrays broadcastable to ``(B, Hk, G, Sq, Sk)``."""

    def __init__(self, options: Options, mask, causal: bool, full: tuple[int, int, int, int], key_heads: int):
        batch, heads, queries, keys = full
        self.full, self.key_heads = full, key_heads
        self.mask = grouped("mask", mask, full, key_heads)
        if self.mask is not None:
            never_attend(self.mask[:0])  # raises for a dtype that is no mask's
        self.bias = grouped("attn_bias", options.attn_bias, full, key_heads)
        self.slopes = _slopes(options.alibi_slopes, batch, heads, key_heads)
        self.table = _table(options.t5_table, heads)
        self.t5 = (options.t5_bidirectional, 0 if self.table is None else len(self.table), options.t5_max_distance)
        self.softcap = _cap(options.softcap)
        self.sinks = None
        if options.sinks is not None:
            self.sinks = _shaped("sinks", options.sinks, (heads,)).reshape(1, key_heads, -1, 1)
        left, right = (None if x is None or x < 0 else int(x) for x in options.window_size or (None, None))
        self.window = left, 0 if causal else right
        self.prefix = self._of_samples("prefix_len", options.prefix_len, keys)
        self.lengths = (
            self._of_samples("seqlens_q", options.seqlens_q, queries),
            self._of_samples("seqlens_k", options.seqlens_k, keys),
        )
        own = [n if given is None else given for n, given in zip((queries, keys), self.lengths, strict=True)]
        self.shift = own[1] - own[0]  # a query's own key comes so much later than its row
        self.segments = _segments(options.segment_ids, batch, queries, keys)
        self.block_size = options.block_size
        self.blocks = _blocks(options.block_map, options.block_size, full, key_heads)
        self.dropout = options.dropout_p, options.dropout_seed, options.dropout_offset
        if not 0 <= options.dropout_p < 1:
            raise ValueError(f"dropout_p: {options.dropout_p}; expected at least 0 and below 1")

    def _of_samples(self, name: str, numbers, most: int) -> np.ndarray | None:
        """One number for each sample as ``(B, 1, 1, 1, 1)``."""
        if numbers is None:
            return None
        numbers = _shaped(name, numbers, (self.full[0],)).astype(np.int64)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() <= most:
            raise ValueError(f"{name}: from {numbers.min()} to {numbers.max()}; expected from 0 to {most}")
        return numbers.reshape(-1, 1, 1, 1, 1)

    def distance(self, rows: slice, keys: slice) -> np.ndarray:
        """How much later than a query's own position each key stands, ``([B, 1, 1,] rows, keys)``."""
        return np.arange(keys.start, keys.stop) - (np.arange(rows.start, rows.stop)[:, None] + self.shift)

    def buckets(self, rows: slice, keys: slice) -> np.ndarray:
        """The row of the T5 table for each query and key, of `distance`'s shape."""
        return t5_bucket(self.distance(rows, keys), *self.t5)

    def given(self, rows: slice, keys: slice) -> Iterator[np.ndarray]:
        """The caller's arrays that are added to the scores of a block."""
        if self.bias is not None:
            yield part(self.bias, rows, keys)
        if self.mask is not None and self.mask.dtype != np.bool_:
            yield part(self.mask, rows, keys)

    def positional(self, rows: slice, keys: slice, dtype: DTypeLike) -> Iterator[np.ndarray]:
        """The arrays made from positions that are added to the scores of a block."""
        if self.slopes is not None:
            yield -self.slopes.astype(dtype) * np.abs(self.distance(rows, keys)).astype(dtype)
        if self.table is not None:
            table = self.table.astype(dtype).T.reshape(self.key_heads, -1, len(self.table))
            bias = table[:, :, self.buckets(rows, keys)]
            yield bias if bias.ndim == 4 else np.moveaxis(bias[:, :, :, 0, 0], 2, 0)

    def hidden(self, rows: slice, keys: slice) -> Iterator[np.ndarray]:
        """What may not be attended to in a block (True = never), one array after the other."""
        row, key = np.arange(rows.start, rows.stop)[:, None], np.arange(keys.start, keys.stop)
        if self.mask is not None:
            yield never_attend(part(self.mask, rows, keys))
        left, right = self.window
        own = row + self.shift
        if left is not None:
            yield self._but_prefix(key < own - left, key)
        if right is not None:
            yield self._but_prefix(key > own + right, key)
        if self.segments is not None:
            yield self.segments[0][..., rows, :] != self.segments[1][..., keys]
        for length, index in zip(self.lengths, (row, key), strict=True):
            if length is not None:
                yield index >= length
        if self.blocks is not None:
            yield ~self.blocks[..., row // self.block_size[0], key // self.block_size[1]]

    def _but_prefix(self, never: np.ndarray, key: np.ndarray) -> np.ndarray:
        return never if self.prefix is None else never & (key >= self.prefix)

    def last(self, rows: slice) -> int:
        """One past the last key that any of the rows may see, as far as the window tells."""
        keys = self.full[3]
        if self.window[1] is None or self.prefix is not None:
            return keys
        return min(keys, rows.stop + int(np.max(self.shift, initial=-rows.stop)) + self.window[1])

    def dropout_factor(self, rows: slice, keys: slice, dtype: DTypeLike) -> np.ndarray | None:
        """What dropout multiplies the weights of a block with, 0 or ``1 / (1 - p)``; None without dropout."""
        p, seed, offset = self.dropout
        if p == 0:
            return None
        keep = kept(*self.full[:2], rows, keys, p, seed, offset)
        keep = keep.reshape(self.full[0], self.key_heads, -1, *keep.shape[2:])
        return keep * np.dtype(dtype).type(1 / (1 - p))

    def nonexistent(self) -> np.ndarray | None:
        """Rows past a sample's length, ``(B, 1, 1, Sq)``; None where all exist."""
        return None if self.lengths[0] is None else np.arange(self.full[2]) >= self.lengths[0][..., 0]


def _slopes(slopes: ArrayLike | None, batch: int, heads: int, key_heads: int) -> np.ndarray | None:
    """ALiBi's slopes as ``(B or 1, Hk, G, 1, 1)``."""
    if slopes is None:
        return None
    slopes = _shaped("alibi_slopes", slopes, (heads,), (batch, heads))
    return slopes.reshape(-1, key_heads, heads // key_heads, 1, 1)


def _table(table: ArrayLike | None, heads: int) -> np.ndarray | None:
    """The T5 table. Raises ValueError for another number of heads."""
    if table is None:
        return None
    table = np.asarray(table)
    if table.ndim != 2 or table.shape[1] != heads:
        raise ValueError(f"t5_table: {table.shape}; expected (num_buckets, {heads})")
    return table


def _cap(softcap: float) -> float:
    """The soft-cap in bounds that float32 holds; 0 for none. Raises ValueError for what is no soft-cap."""
    if not (softcap >= 0 and np.isfinite(softcap)):
        raise ValueError(f"softcap: {softcap}; expected a finite positive number, or 0 for none")
    # Beyond 2**100 a cap is above every score that counts, and below its inverse nothing is left of any; float32
    # holds what lies between.
    cap = float(softcap)
    return 0.0 if cap >= 2.0**100 or cap == 0 else max(cap, 2.0**-100)


def _segments(
    given: ArrayLike | tuple[ArrayLike, ArrayLike] | None, batch: int, queries: int, keys: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """The segments of queries, ``(B or 1, 1, 1, Sq, 1)``, and of keys, ``(B or 1, 1, 1, 1, Sk)``."""
    if given is None:
        return None
    pair = given if isinstance(given, tuple) else (given, given)
    ids = [np.atleast_2d(np.asarray(a)) for a in pair]
    for a, n in zip(ids, (queries, keys), strict=True):
        _shaped("segment_ids", a, (1, n), (batch, n))
    return ids[0][:, None, None, :, None], ids[1][:, None, None, None, :]


def _blocks(
    block_map: ArrayLike | None, size: tuple[int, int] | None, full: tuple[int, int, int, int], key_heads: int
) -> np.ndarray | None:
    """The blocks that are visible, ``(B or 1, Hk or 1, G or 1, blocks of queries, blocks of keys)``."""
    if block_map is None:
        return None
    if size is None or min(size) < 1:
        raise ValueError(f"block_map: block_size is {size}; expected two positive numbers")
    blocks = tuple(-(-n // extent) for n, extent in zip(full[2:], size, strict=True))
    visible = np.asarray(block_map, bool)
    if visible.shape[-2:] != blocks:
        raise ValueError(f"block_map: {visible.shape}; expected (B or 1, H or 1, {blocks[0]}, {blocks[1]})")
    return grouped("block_map", visible, (*full[:2], *blocks), key_heads)


def _shaped(name: str, array: ArrayLike, *shapes: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(array)
    if array.shape not in shapes:
        raise ValueError(f"{name}: {array.shape}; expected {' or '.join(map(str, dict.fromkeys(shapes)))}")
    return array


def grouped(name: str, array, full: tuple[int, int, int, int], key_heads: int) -> np.ndarray | None:
    """An array that broadcasts to ``(B, H, Sq, Sk)`` as one that broadcasts to ``(B, Hk, G, Sq, Sk)``, uncopied."""
    if array is None:
        return None
    array = np.asarray(array)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.ndim > 4:
        raise ValueError(f"{name}: at most 4 dimensions, (B, H, Sq, Sk); got {array.shape}")
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    np.broadcast_to(array, full)  # raises when it cannot
    b, h, sq, sk = array.shape
    return array.reshape((b, key_heads, full[1] // key_heads, sq, sk) if h == full[1] else (b, 1, 1, sq, sk))


def part(array: np.ndarray, rows: slice, keys: slice) -> np.ndarray:
    """The block ``rows`` x ``keys`` of an array whose last two dimensions may be 1 for "all alike"."""
    sq, sk = array.shape[-2:]
    return array[..., rows if sq != 1 else slice(None), keys if sk != 1 else slice(None)]
