"""The options of attention beyond mask and causality: their checks, and their parameters for kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from ...registry.shared import PARAMETER_NAMES, extras_bits
from ..device.arrays import BiasArray, BoolArray, FloatsLike, IntegersLike
from ..device.numbers import integer
from ..device.tensor import Tensor
from ..expressions.reads import tensor_words
from ..random import seed_words
from ..structures import rebuilt
from . import option_checks as checks
from .call import OptionSummary
from .foreign import unknown
from .functions import BlockMask, FunctionExpression, Functions, count_words, traced
from .keywords import MaskFunction, ScoreFunction
from .parameters import as_parameter, laid_out
from .t5 import bucket_words

#: Distances from which on T5's buckets are all alike, at most.
MOST_REACH = 2**20


@dataclasses.dataclass(frozen=True)
class Options:
    """Keyword arguments of the attention functions beyond mask, causal and scale, with their defaults.

    ``grilly.functional.flash_attention2`` documents them, and `keywords.OptionKeywords` has the same names and types.
    """

    score_mod: ScoreFunction | None = None
    mask_mod: MaskFunction | None = None
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
    dropout_seed: SupportsIndex | Tensor | None = None
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
    """The options as a key where all are numbers and pairs of numbers; else None."""
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


def as_they_are(options: Options) -> Options:
    """The options with copies of the host's arrays and lists, which may be written to later."""

    def copied(leaf: Any) -> Any:
        return leaf.copy() if isinstance(leaf, np.ndarray) else leaf

    if options is OFF:
        return options
    return Options(**{name: rebuilt(value, copied) for name, value in vars(options).items()})


class CheckedOptions:
    """The checked options of a call: features, arrays and parameters for kernels.

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
        A dtype of biases beside float32.
    bias : numpy.ndarray, Tensor or None
        Broadcastable to (B, H, Sq, Sk), float32 or of ``bias_dtype``.
    sinks, t5_table : numpy.ndarray, Tensor or None
        As checked, float32.
    page_strides : tuple of int
        As of OptionSummary.
    arrays : list of (int, array)
        NumPy arrays of 32-bit elements and Tensors, and the word at which they begin.
    live : dict
        Words of the blocks that change with every call.
    seed : Tensor or None
        What the device has of the words seed_low, seed_high and dropout_offset of the blocks: uint32, (2,) or (3,).
    size : int
        Words of the arrays.
    partial : bool
        As of OptionSummary.
    functions : Functions
        As of OptionSummary.
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
        self.page_strides: tuple[int, ...] = ()
        self.arrays: list[tuple[int, np.ndarray | Tensor]] = []
        self.live: dict[str, int] = {}
        self.seed: Tensor | None = None
        self.size = 0
        self.partial = False
        self.functions = Functions()
        self._parameters: dict[str, int] = {"heads": heads, "left": 0, "right": 0}

    def offer(self, *names: str) -> None:
        """Note that kernels must offer these."""
        self.bits |= extras_bits(names)

    def put(self, array) -> int:
        """Lay out an array; the word at which it will be."""
        place, self.size = laid_out(self.size, array)
        self.arrays.append((place, array))
        return place

    def put_as(self, name: str, array) -> None:
        """Lay out an array and let the parameter ``name`` say where."""
        self._parameters[name] = self.put(array)

    def set(self, **parameters) -> None:
        """Parameters of the blocks, integers or floats."""
        for name, value in parameters.items():
            self._parameters[name] = as_parameter(value)

    def stand_at_positions(self) -> None:
        """Let the functions be given a query's position among the keys, as caches have it, not its row."""
        if self.functions != Functions():
            self.offer("positions")
            self.functions = self.functions._replace(positions=True)

    def vary(self, **parameters) -> None:
        """Parameters of the blocks that change with every call."""
        for name, value in parameters.items():
            self.live[name] = as_parameter(value)

    def summary(self) -> OptionSummary:
        """The options for a plan: no arrays."""
        return OptionSummary(
            self.bits, self.right, self.left, self.page_strides, self.size, tuple(self._parameters.items()),
            bool(self.arrays or self.live), self.partial, self.functions,
        )  # fmt: skip

    def nbytes(self, dispatches: int = 1) -> int:
        """Bytes of the words of a call cut into so many dispatches."""
        return 4 * (self.size + len(PARAMETER_NAMES) * dispatches)


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


def _check_block_mask(operation: str, mask: BlockMask, options: Options, full: Shape) -> None:
    """Raise ValueError for a block mask of other calls, or beside a map of blocks."""
    if mask.shape[2:] != full[2:] or any(own not in (1, given) for own, given in zip(mask.shape, full, strict=True)):
        raise ValueError(
            f"{operation}: mask_mod is a block mask of shape {mask.shape}; expected (B or 1, H or 1, N_q, N_kv) of "
            f"{full}; make another with grilly.block_mask"
        )
    if options.block_map is not None:
        raise ValueError(f"{operation}: block_map is given beside a block mask; give one, as mask_mod or as block_map")


def tensors_read(operation: str, options: Options) -> tuple[Tensor, ...]:
    """The tensors that score_mod and mask_mod read. Raises as their check."""
    given = {"score_mod": options.score_mod, "mask_mod": options.mask_mod}
    found = [traced(operation, name, function) for name, function in given.items() if function is not None]
    return tuple(tensor for one in found for tensor in one.tensors)


def _functions(operation: str, options: Options, checked: CheckedOptions, full: Shape) -> None:
    given = {"score_mod": options.score_mod, "mask_mod": options.mask_mod}
    found = {name: traced(operation, name, function) for name, function in given.items() if function is not None}
    if not found:
        return
    mask = options.mask_mod
    mapped = isinstance(mask, BlockMask)
    if mapped:
        _check_block_mask(operation, mask, options, full)
    tensors: list[Tensor] = []
    own: dict[str, FunctionExpression] = {}
    for name, one in found.items():
        checked.offer("score-function" if name == "score_mod" else "mask-function")
        own[name] = one.own.behind(count_words(operation, tensors))
        tensors += one.tensors
    count_words(operation, tensors)
    checked.functions = Functions(own.get("score_mod"), own.get("mask_mod"), mapped)
    if mapped:
        checked.put_as("block_map", mask.classes)
        checked.set(**_block_parameters(mask.classes.shape, mask.block_size))
    if tensors:
        places = [checked.put(tensor) for tensor in tensors]
        checked.put_as("function_words", tensor_words(tensors, places))


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
    checked.set(**_block_parameters(blocks.shape, (rows, columns)))


def _block_parameters(shape: Sequence[int], size: tuple[int, int]) -> dict[str, int]:
    """The parameters of a map of blocks, (B or 1, H or 1, rows, columns) bytes."""
    batch, heads, rows, columns = shape
    each = rows * columns
    return {
        "block_batch": each * heads if batch > 1 else 0, "block_head": each if heads > 1 else 0, "block_row": columns,
        "block_q": size[0], "block_kv": size[1],
    }  # fmt: skip


def _dropout(operation: str, options: Options, checked: CheckedOptions, full: Shape) -> None:
    p, seed, offset, tensor = checks.dropout(
        operation, options.dropout_p, options.dropout_seed, options.dropout_offset
    )
    if p:
        checked.offer("dropout")
        checked.set(**checks.keep_words(p))
        checked.vary(seed_low=seed, seed_high=seed >> 32, dropout_offset=offset)
        checked.seed = None if tensor is None else seed_words(tensor)


class Option(NamedTuple):
    """One option: its keyword arguments, and its check, which also notes features, arrays and parameters of kernels.

    ``check(operation, options, checked, full)`` raises TypeError or ValueError, naming the operation, what was given,
    and what was expected; ``full`` is (B, H, Sq, Sk).
    """

    arguments: tuple[str, ...]
    check: Callable[[str, Options, CheckedOptions, Shape], None]


#: Every option, in the order of their checks.
OPTIONS = (
    Option(("score_mod", "mask_mod"), _functions),
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
