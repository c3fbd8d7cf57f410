"""What bends or hides attention scores beyond mask and causality: argument checks, and what the kernels read of it.

The words that shaders/attention/extras.glsl reads: arrays first, then one header for each dispatch of a call.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..registry.names import extras_bits
from . import option_checks as checks
from .checks import integer
from .tensor import Storage, Tensor

if TYPE_CHECKING:
    from .backend import Compute

#: The header's words, in the order of shaders/attention/extras.glsl; the last four of matrix/next-tile.glsl.
HEADER = (
    "first_batch", "first_head", "first_row", "first_key", "heads", "left", "right", "cap", "slopes", "slopes_batch",
    "t5_buckets", "t5_reach", "t5_table", "t5_row", "sink", "sink_here", "prefixes",
    "q_segments", "q_segments_batch", "k_segments", "k_segments_batch", "samples", "packed",
    "block_map", "block_batch", "block_head", "block_row", "block_q", "block_kv",
    "keep_below", "keep_scale", "seed_low", "seed_high", "dropout_offset",
    "bias_offset", "bias_batch", "bias_head", "bias_row", "bias_key", "tile_batch", "tile_head", "tile_row",
    "pages", "pages_batch", "page_keys", "k_page", "v_page",
    "mask_bits", "mask_bits_batch", "mask_bits_head", "mask_bits_row",
)  # fmt: skip
_PLACE = {name: place for place, name in enumerate(HEADER)}
#: Distances from which on T5's buckets are all alike, at most.
MOST_REACH = 2**20
#: Bytes of a call's words that a backend keeps on the device for calls that repeat them, at most.
KEPT_BYTES = 1 << 18


@dataclasses.dataclass(frozen=True)
class Options:
    """Keyword arguments of the attention functions beyond mask, causal and scale; their documentation is there."""

    attn_bias: Any = None
    alibi_slopes: Any = None
    t5_table: Any = None
    t5_bidirectional: bool = True
    t5_max_distance: int = 128
    softcap: float = 0.0
    sinks: Any = None
    window_size: Any = None
    prefix_len: Any = None
    segment_ids: Any = None
    seqlens_q: Any = None
    seqlens_k: Any = None
    block_map: Any = None
    block_size: Any = None
    dropout_p: float = 0.0
    dropout_seed: int = 0
    dropout_offset: int = 0


OFF = Options()
NAMES = tuple(field.name for field in dataclasses.fields(Options))


def options_of(operation: str, given: dict) -> Options:
    """The options among keyword arguments. Raises TypeError for a name that is none."""
    for name in given:
        if name not in NAMES:
            raise TypeError(f"{operation}: got an unexpected keyword argument {name!r}")
    return Options(**given) if given else OFF


def with_options(function) -> inspect.Signature:
    """The function's signature with the options in place of its ``**options``."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    more = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default)
        for field in dataclasses.fields(Options)
    ]
    return signature.replace(parameters=own + more)


def without_self(method) -> inspect.Signature:
    """The signature of a method as a function."""
    signature = inspect.signature(method)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def arrays_of(options: dict) -> list[Tensor]:
    """The tensors among keyword arguments."""
    return [value for value in options.values() if isinstance(value, Tensor)]


class Extras:
    """Checked options of one call: what the kernels must offer, the arrays they read, and the header's common words.

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
    bias : numpy.ndarray, Tensor or None
        Broadcastable to (B, H, Sq, Sk), float32.
    sinks, t5_table : numpy.ndarray, Tensor or None
        As checked, float32.
    page_steps : tuple of int
        Elements from one page of k and of v to the next; empty unless the keys lie in pages.
    places : tuple of int
        The words at which the samples' lengths and the table of pages begin, where they are.
    write : callable or None
        Called with the words' storage, to write more of them on the device.
    before : list of callable
        Called with the words' storage when it is complete, before attention is recorded.
    passing : bool
        Whether the words are of one block of a streamed call: none like them will come, so none are kept.
    out : pair of Tensor, or None
        Where o (B, H, Sq, Dv) and lse (B, H, Sq) go, in place of new tensors.
    """

    def __init__(self, heads: int):
        self.bits = 0
        self.causal = False
        self.right = 0
        self.left = 0
        self.bias = None
        self.sinks = None
        self.t5_table = None
        self.page_steps: tuple[int, ...] = ()
        self.places: tuple[int, int] = (0, 0)
        self.write: Callable[[Storage], None] | None = None
        self.before: list[Callable[[Storage], None]] = []
        self.out: tuple[Tensor, Tensor] | None = None
        self.passing = False
        self._words: dict[str, int] = {"heads": heads}
        self._arrays: list[tuple[int, np.ndarray | Tensor]] = []
        self._size = 0

    def offer(self, *names: str) -> None:
        """Note that kernels must offer these."""
        self.bits |= extras_bits(names)

    def put(self, array) -> int:
        """Lay out an array of 32-bit elements; the word at which it will be."""
        place = self._size
        self._arrays.append((place, array))
        self._size += array.size
        return place

    def put_as(self, name: str, array) -> None:
        """Lay out an array and let the header's word ``name`` say where."""
        self._words[name] = self.put(array)

    def set(self, **words) -> None:
        """Words of the header, integers or floats."""
        for name, value in words.items():
            if isinstance(value, float):
                value = int(np.float32(value).view(np.uint32))
            self._words[name] = value & 0xFFFFFFFF

    def word(self, name: str) -> int:
        """A word of the header that all dispatches share; 0 where it was not set."""
        return self._words.get(name, 0)

    @property
    def kind(self) -> tuple:
        """All that a plan of one dispatch depends on."""
        return self.bits, self.causal, self.right, self.left, self.page_steps

    def nbytes(self, dispatches: int = 1) -> int:
        """Bytes of the words of a call cut into so many dispatches."""
        return 4 * (self._size + len(HEADER) * dispatches)

    def storage(self, backend: Compute, headers: list[dict]) -> tuple[Storage, list[int]]:
        """The words on the device, and where each of the headers (these words and the common ones) begins."""
        storage, places = self._storage(backend, headers)
        for step in self.before:
            step(storage)
        return storage, places

    def _storage(self, backend: Compute, headers: list[dict]) -> tuple[Storage, list[int]]:
        first = self._size
        words = np.zeros(first + len(HEADER) * len(headers), np.uint32)
        loose = []
        for place, array in self._arrays:
            if isinstance(array, Tensor):
                loose.append((place, array))
            elif array.size:
                words[place : place + array.size] = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
        places = [first + n * len(HEADER) for n in range(len(headers))]
        for place, header in zip(places, headers, strict=True):
            for name, value in {**self._words, **header}.items():
                words[place + _PLACE[name]] = value & 0xFFFFFFFF
        key = None
        if not (loose or self.passing or self.write) and words.nbytes <= KEPT_BYTES:
            key = words.tobytes()
            kept = backend.extra_words.get(key)
            if kept is not None:
                return kept, places
        storage = Storage(backend, words.nbytes, idle=True)
        backend.runtime.write(storage.buffer, words)
        for place, tensor in loose:
            from .copy import copy_into

            copy_into(tensor, Tensor(storage, tensor.shape, tensor.dtype, offset=place))
        if self.write is not None:
            self.write(storage)
        if key is not None:
            backend.extra_words.keep(key, storage)
        return storage, places


# -- from options to words ---------------------------------------------------------------------------------------------


def bucket_words(buckets: int, bidirectional: bool, max_distance: int) -> np.ndarray:
    """The T5 bucket of every distance from -max_distance to max_distance, int32."""
    from .three_shader import bucket_starts

    each = buckets // 2 if bidirectional else buckets
    exact = each // 2
    starts = bucket_starts(each, max_distance)
    far = np.arange(max_distance + 1)
    one = np.where(far < exact, far, exact - 1 + np.searchsorted(starts, far, side="right")).astype(np.int32)
    right = one[1:] + each if bidirectional else np.zeros(max_distance, np.int32)
    return np.concatenate([one[::-1], right])


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


def prepare(operation: str, options: Options, full: tuple[int, int, int, int], causal: bool) -> Extras | None:
    """Check the options of a call whose scores have shape ``full``; None where they leave plain attention.

    Raises
    ------
    TypeError, ValueError
        For arrays and numbers that do not fit, before any device work.
    """
    batch, heads, queries, keys = full
    extras = Extras(heads)
    left, right = checks.window(operation, options.window_size)
    extras.causal = causal or right is not None
    extras.right = 0 if causal or right is None else min(right, keys + queries)
    extras.set(left=0, right=extras.right)
    if left is not None:
        extras.offer("window")
        extras.left = min(left, keys + queries)
        extras.set(left=extras.left)
    cap = checks.softcap(operation, options.softcap)
    if cap:
        extras.offer("soft-cap")
        extras.set(cap=cap)
    if options.attn_bias is not None:
        extras.offer("bias")
        extras.bias = checks.bias(operation, options.attn_bias, full)
    if options.alibi_slopes is not None:
        slopes = checks.floats(operation, "alibi_slopes", options.alibi_slopes)
        shapes = ((heads,), (batch, heads))
        checks.check_shape(operation, "alibi_slopes", slopes, shapes, f"(H,) or (B, H) = {shapes[1]}")
        extras.offer("alibi")
        extras.put_as("slopes", slopes)
        extras.set(slopes_batch=heads if len(slopes.shape) == 2 else 0)
    if options.t5_table is not None:
        bidirectional = bool(options.t5_bidirectional)
        table = checks.floats(operation, "t5_table", options.t5_table)
        reach = check_t5(operation, table, bidirectional, options.t5_max_distance, heads)
        extras.offer("t5")
        extras.put_as("t5_buckets", bucket_words(table.shape[0], bidirectional, reach))
        extras.put_as("t5_table", table)
        extras.t5_table = table
        extras.set(t5_reach=reach, t5_row=heads)
    if options.sinks is not None:
        extras.sinks = checks.floats(operation, "sinks", options.sinks)
        checks.check_shape(operation, "sinks", extras.sinks, ((heads,),), f"(H,) = ({heads},)")
        extras.offer("sinks")
        extras.put_as("sink", extras.sinks)
    if options.prefix_len is not None:
        prefix = checks.lengths(operation, "prefix_len", options.prefix_len, batch, keys)
        if extras.causal or left is not None:
            extras.offer("prefix")
            extras.put_as("prefixes", prefix)
    if options.segment_ids is not None:
        pair = checks.segments(operation, options.segment_ids, batch, queries, keys)
        for word, array, count in zip(("q_segments", "k_segments"), pair, (queries, keys), strict=True):
            extras.put_as(word, array)
            extras.set(**{f"{word}_batch": count if array.shape[0] > 1 else 0})
        extras.offer("segments")
    _prepare_lengths(operation, options, extras, full)
    _prepare_blocks(operation, options, extras, full)
    p, seed, offset = checks.dropout(operation, options.dropout_p, options.dropout_seed, options.dropout_offset)
    if p:
        extras.offer("dropout")
        extras.set(seed_low=seed, seed_high=seed >> 32, dropout_offset=offset, **checks.keep_words(p))
    return extras if extras.bits or extras.right or extras.causal != causal else None


def _prepare_lengths(operation: str, options: Options, extras: Extras, full) -> None:
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
    extras.put_as("samples", samples)
    extras.offer("lengths")


def _prepare_blocks(operation: str, options: Options, extras: Extras, full) -> None:
    if options.block_map is None:
        if options.block_size is not None:
            raise ValueError(f"{operation}: block_size is given without block_map; give both or neither")
        return
    batch, heads, queries, keys = full
    rows, columns = checks.block_size(operation, options.block_size, queries, keys)
    want = (-(-queries // rows), -(-keys // columns))
    blocks = checks.block_map(operation, options.block_map, (batch, heads), want, (rows, columns))
    extras.offer("blocks")
    extras.put_as("block_map", np.frombuffer(blocks.tobytes() + bytes(-blocks.size % 4), np.uint32))
    each = want[0] * want[1]
    extras.set(
        block_batch=each * blocks.shape[1] if blocks.shape[0] > 1 else 0, block_head=each if blocks.shape[1] > 1 else 0,
        block_row=want[1], block_q=rows, block_kv=columns,
    )  # fmt: skip
