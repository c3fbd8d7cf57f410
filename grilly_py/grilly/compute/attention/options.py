"""What bends or hides attention scores beyond mask and causality: the options, their checks, and what kernels read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from ...registry.shared import HEADER, extras_bits
from ..device.arrays import BiasArray, BoolArray, FloatsLike, IntegersLike
from ..device.numbers import integer
from ..device.tensor import Tensor
from . import option_checks as checks
from .call import OptionFacts
from .foreign import unknown
from .t5 import bucket_words
from .words import as_word

#: Distances from which on T5's buckets are all alike, at most.
MOST_REACH = 2**20


@dataclasses.dataclass(frozen=True)
class Options:
    """Keyword arguments of the attention functions beyond mask, causal and scale, with what each is by default.

    ``grilly.functional.flash_attention2`` documents them, and `keywords.OptionKeywords` has the same names and types.
    """

    attn_bias: BiasArray | None = None
    alibi_slopes: FloatsLike | None = None
    t5_table: FloatsLike | None = None
    t5_bidirectional: bool = True
    t5_max_distance: SupportsIndex = 128
    softcap: float = 0.0
    sinks: FloatsLike | None = None
    window_size: Sequence[int | None] | None = None
    prefix_len: IntegersLike | None = None
    segment_ids: IntegersLike | tuple[IntegersLike, IntegersLike] | None = None
    seqlens_q: IntegersLike | None = None
    seqlens_k: IntegersLike | None = None
    block_map: BoolArray | None = None
    block_size: Sequence[SupportsIndex] | None = None
    dropout_p: float = 0.0
    dropout_seed: SupportsIndex | None = None
    dropout_offset: SupportsIndex = 0


OFF = Options()
NAMES = tuple(field.name for field in dataclasses.fields(Options))


def options_of(operation: str, given: Mapping[str, Any]) -> Options:
    """The options among keyword arguments. Raises TypeError for a name that is none."""
    for name in given:
        if name not in NAMES:
            raise unknown(operation, (name,))
    return Options(**given) if given else OFF


_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Options)}
_PLAIN = frozenset((int, float, bool))


def scalar_key(options: Options) -> tuple | None:
    """The options as a key, where they are numbers and pairs of numbers only; None where any is an array."""
    key: list = []
    for name, value in options.__dict__.items():
        if value is _DEFAULTS[name]:
            continue
        kind = value.__class__
        if kind is tuple:
            for item in value:
                if item.__class__ is not int and item is not None:
                    return None
        elif kind not in _PLAIN:
            return None
        key += (name, kind, value)
    return tuple(key)


def arrays_of(options: Mapping[str, Any]) -> list[Tensor]:
    """The tensors among keyword arguments."""
    return [value for value in options.values() if isinstance(value, Tensor)]


class CheckedOptions:
    """The options of one call, checked: what kernels must offer, the arrays they read, and words of their headers.

    Attributes
    ----------
    bits : int
        Of ``names.EXTRAS``.
    causal : bool
        Whether keys to the right of ``i + shift + right`` are hidden.
    right : int
        See ``causal``.
    left : int
        Of the feature "window".
    bias_dtype : numpy.dtype
        What a bias may be beside float32.
    bias : numpy.ndarray, Tensor or None
        Broadcastable to (B, H, Sq, Sk), float32 or of ``bias_dtype``.
    sinks, t5_table : numpy.ndarray, Tensor or None
        As checked, float32.
    page_steps : tuple of int
        As of OptionFacts.
    arrays : list of (int, array)
        32-bit elements, and the word at which they begin.
    live : dict
        Words of the headers that change with every call.
    size : int
        Words of the arrays.
    partial : bool
        As of OptionFacts.
    """

    def __init__(self, heads: int, causal: bool = False, bias_dtype: np.dtype = checks.FLOAT32):
        self.bias_dtype = bias_dtype
        self.bits = 0
        self.causal = causal
        self.right = 0
        self.left = 0
        self.bias = None
        self.sinks = None
        self.t5_table = None
        self.page_steps: tuple[int, ...] = ()
        self.arrays: list[tuple[int, np.ndarray | Tensor]] = []
        self.live: dict[str, int] = {}
        self.size = 0
        self.partial = False
        self._words: dict[str, int] = {"heads": heads, "left": 0, "right": 0}

    def offer(self, *names: str) -> None:
        """Note that kernels must offer these."""
        self.bits |= extras_bits(names)

    def put(self, array) -> int:
        """Lay out an array of 32-bit elements; the word at which it will be."""
        place = self.size
        self.arrays.append((place, array))
        self.size += array.size
        return place

    def put_as(self, name: str, array) -> None:
        """Lay out an array and let the header's word ``name`` say where."""
        self._words[name] = self.put(array)

    def set(self, **words) -> None:
        """Words of the header, integers or floats."""
        for name, value in words.items():
            self._words[name] = as_word(value)

    def vary(self, **words) -> None:
        """Words of the header that change with every call."""
        for name, value in words.items():
            self.live[name] = as_word(value)

    def facts(self) -> OptionFacts:
        """What a plan knows of them."""
        return OptionFacts(
            self.bits, self.right, self.left, self.page_steps, self.size, tuple(self._words.items()),
            bool(self.arrays or self.live), self.partial,
        )  # fmt: skip

    def nbytes(self, dispatches: int = 1) -> int:
        """Bytes of the words of a call cut into so many dispatches."""
        return 4 * (self.size + len(HEADER) * dispatches)


# -- from options to words ---------------------------------------------------------------------------------------------


def check_t5(operation: str, table, bidirectional: bool, max_distance, heads: int) -> int:
    """``t5_max_distance`` as an int, table and distance checked against each other."""
    shape = tuple(table.shape)
    if len(shape) != 2 or shape[1] != heads:
        raise ValueError(f"{operation}: t5_table has shape {shape}; expected (num_buckets, H) with H = {heads}")
    exact = (shape[0] // 2 if bidirectional else shape[0]) // 2
    if exact < 1 or (bidirectional and shape[0] % 2):
        raise ValueError(
            f"{operation}: t5_table has {shape[0]} rows; expected at least 2 for each direction, as many for both"
        )
    distance = integer(operation, "t5_max_distance", max_distance)
    if not exact < distance <= MOST_REACH:
        raise ValueError(
            f"{operation}: t5_max_distance is {distance}; expected more than {exact}, at most {MOST_REACH}"
        )
    return distance


# -- one entry an option ---------------------------------------------------------------------------------------------

Shape = tuple[int, int, int, int]


def _window(operation: str, options: Options, checked: CheckedOptions, full: Shape) -> None:
    most = full[2] + full[3]
    left, right = checks.window(operation, options.window_size)
    if right is not None and not checked.causal:
        checked.right = min(right, most)
    checked.causal = checked.causal or right is not None
    checked.set(right=checked.right)
    if left is not None:
        checked.offer("window")
        checked.left = min(left, most)
        checked.set(left=checked.left)


def _softcap(operation: str, options: Options, checked: CheckedOptions, full: Shape) -> None:
    cap = checks.softcap(operation, options.softcap)
    if cap:
        checked.offer("soft-cap")
        checked.set(cap=cap)


def _bias(operation: str, options: Options, checked: CheckedOptions, full: Shape) -> None:
    if options.attn_bias is not None:
        checked.offer("bias")
        checked.bias = checks.bias(operation, options.attn_bias, full, checked.bias_dtype)


def _alibi(operation: str, options: Options, checked: CheckedOptions, full: Shape) -> None:
    if options.alibi_slopes is not None:
        batch, heads = full[:2]
        slopes = checks.floats(operation, "alibi_slopes", options.alibi_slopes)
        shapes = ((heads,), (batch, heads))
        checks.check_shape(operation, "alibi_slopes", slopes, shapes, f"(H,) or (B, H) = {shapes[1]}")
        checked.offer("alibi")
        checked.put_as("slopes", slopes)
        checked.set(slopes_batch=heads if len(slopes.shape) == 2 else 0)


def _t5(operation: str, options: Options, checked: CheckedOptions, full: Shape) -> None:
    if options.t5_table is not None:
        heads = full[1]
        bidirectional = bool(options.t5_bidirectional)
        table = checks.floats(operation, "t5_table", options.t5_table)
        reach = check_t5(operation, table, bidirectional, options.t5_max_distance, heads)
        checked.offer("t5")
        checked.put_as("t5_buckets", bucket_words(table.shape[0], bidirectional, reach))
        checked.put_as("t5_table", table)
        checked.t5_table = table
        checked.set(t5_reach=reach, t5_row=heads)


def _sinks(operation: str, options: Options, checked: CheckedOptions, full: Shape) -> None:
    if options.sinks is not None:
        heads = full[1]
        checked.sinks = checks.floats(operation, "sinks", options.sinks)
        checks.check_shape(operation, "sinks", checked.sinks, ((heads,),), f"(H,) = ({heads},)")
        checked.offer("sinks")
        checked.put_as("sink", checked.sinks)


def _prefix(operation: str, options: Options, checked: CheckedOptions, full: Shape) -> None:
    if options.prefix_len is not None:
        prefix = checks.lengths(operation, "prefix_len", options.prefix_len, full[0], full[3])
        if checked.causal or checked.bits & extras_bits(("window",)):
            checked.offer("prefix")
            checked.put_as("prefixes", prefix)


def _segments(operation: str, options: Options, checked: CheckedOptions, full: Shape) -> None:
    if options.segment_ids is None:
        return
    batch, _, queries, keys = full
    pair = checks.segments(operation, options.segment_ids, batch, queries, keys)
    for word, array, count in zip(("q_segments", "k_segments"), pair, (queries, keys), strict=True):
        checked.put_as(word, array)
        checked.set(**{f"{word}_batch": count if array.shape[0] > 1 else 0})
    checked.offer("segments")


def _samples(operation: str, options: Options, checked: CheckedOptions, full: Shape) -> None:
    batch, _, queries, keys = full
    if options.seqlens_q is None and options.seqlens_k is None:
        return
    pair = []
    for name, given, most in (("seqlens_q", options.seqlens_q, queries), ("seqlens_k", options.seqlens_k, keys)):
        # The four numbers of a sample lie together, so they are put together on the host.
        most_of_all = np.full(batch, most, np.int32)
        pair.append(most_of_all if given is None else checks.lengths(operation, name, given, batch, most, read=True))
    samples = np.zeros((batch, 4), np.int32)
    samples[:, 1], samples[:, 3] = pair
    checked.put_as("samples", samples)
    checked.offer("lengths")


def _blocks(operation: str, options: Options, checked: CheckedOptions, full: Shape) -> None:
    if options.block_map is None:
        if options.block_size is not None:
            raise ValueError(f"{operation}: block_size is given without block_map; give both or neither")
        return
    batch, heads, queries, keys = full
    rows, columns = checks.block_size(operation, options.block_size, queries, keys)
    want = (-(-queries // rows), -(-keys // columns))
    blocks = checks.block_map(operation, options.block_map, (batch, heads), want, (rows, columns))
    checked.offer("blocks")
    checked.put_as("block_map", np.frombuffer(blocks.tobytes() + bytes(-blocks.size % 4), np.uint32))
    each = want[0] * want[1]
    checked.set(
        block_batch=each * blocks.shape[1] if blocks.shape[0] > 1 else 0,
        block_head=each if blocks.shape[1] > 1 else 0, block_row=want[1], block_q=rows, block_kv=columns,
    )  # fmt: skip


def _dropout(operation: str, options: Options, checked: CheckedOptions, full: Shape) -> None:
    p, seed, offset = checks.dropout(operation, options.dropout_p, options.dropout_seed, options.dropout_offset)
    if p:
        checked.offer("dropout")
        checked.set(**checks.keep_words(p))
        checked.vary(seed_low=seed, seed_high=seed >> 32, dropout_offset=offset)


class Option(NamedTuple):
    """One option: the keyword arguments that it is given by, and the check that also notes what kernels read of it.

    ``check(operation, options, checked, full)`` raises TypeError or ValueError, naming the operation, what was given,
    and what was expected; ``full`` is (B, H, Sq, Sk).
    """

    arguments: tuple[str, ...]
    check: Callable[[str, Options, CheckedOptions, Shape], None]


#: Every option, in the order of their checks.
OPTIONS = (
    Option(("window_size",), _window),
    Option(("softcap",), _softcap),
    Option(("attn_bias",), _bias),
    Option(("alibi_slopes",), _alibi),
    Option(("t5_table", "t5_bidirectional", "t5_max_distance"), _t5),
    Option(("sinks",), _sinks),
    Option(("prefix_len",), _prefix),
    Option(("segment_ids",), _segments),
    Option(("seqlens_q", "seqlens_k"), _samples),
    Option(("block_map", "block_size"), _blocks),
    Option(("dropout_p", "dropout_seed", "dropout_offset"), _dropout),
)


def prepare(
    operation: str, options: Options, full: Shape, causal: bool, bias_dtype: np.dtype = checks.FLOAT32
) -> CheckedOptions | None:
    """Check the options of a call whose scores have shape ``full``; None where they leave plain attention.

    A bias becomes float32 unless it is of ``bias_dtype``.

    Raises
    ------
    TypeError, ValueError
        For arrays and numbers that do not fit, before any device work.
    """
    checked = CheckedOptions(full[1], causal, bias_dtype)
    for option in OPTIONS:
        option.check(operation, options, checked, full)
    return checked if checked.bits or checked.right or checked.causal != causal else None
