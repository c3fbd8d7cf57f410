"""What bends or hides attention scores beyond mask and causality: argument checks, and what the kernels read of it.

The words that shaders/include/extras.glsl reads: arrays first, then one header for each dispatch of a call.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..registry.names import extras_bits
from .dtypes import is_float
from .launch import FLOAT32
from .tensor import Storage, Tensor

if TYPE_CHECKING:
    from .backend import Compute

#: The header's words, in the order of shaders/include/extras.glsl; the last four of flash-matrix-tiles.glsl.
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
INT32 = np.dtype(np.int32)
#: Aux words that a backend keeps on the device for calls that repeat them: so many of at most so many bytes.
_KEPT, _KEPT_BYTES = 64, 1 << 18


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
    page_steps : tuple of int
        Elements from one page of k and of v to the next; empty unless the keys lie in pages.
    places : tuple of int
        The words at which the samples' lengths and the table of pages begin, where they are.
    write : callable or None
        Called with the words' storage, to write more of them on the device.
    before : list of callable
        Called with the words' storage when it is complete, before attention is recorded.
    out : pair of Tensor, or None
        Where o (B, H, Sq, Dv) and lse (B, H, Sq) go, in place of new tensors.
    """

    def __init__(self, heads: int):
        self.bits = 0
        self.causal = False
        self.right = 0
        self.left = 0
        self.bias = None
        self.page_steps: tuple[int, ...] = ()
        self.places: tuple[int, int] = (0, 0)
        self.write: Callable[[Storage], None] | None = None
        self.before: list[Callable[[Storage], None]] = []
        self.out: tuple[Tensor, Tensor] | None = None
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
        if not loose and self.write is None and words.nbytes <= _KEPT_BYTES:
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
            if len(backend.extra_words) >= _KEPT:
                backend.extra_words.pop(next(iter(backend.extra_words)))
            backend.extra_words[key] = storage
        return storage, places


# -- checks ----------------------------------------------------------------------------------------------------------


def _array(operation: str, name: str, array, dtype, shapes: tuple[tuple, ...], text: str):
    """An array of one of ``shapes`` as ``dtype`` (float32 or int32): a NumPy array, or a Tensor that has it already."""
    if not isinstance(array, Tensor):
        array = np.asarray(array)
    kinds = "fV" if dtype == FLOAT32 else "iu"
    if isinstance(array, Tensor):
        if array.dtype != dtype:
            raise TypeError(f"{operation}: {name} is a Tensor of {array.dtype}; expected {dtype}")
    elif array.dtype.kind not in kinds and not (dtype == FLOAT32 and is_float(array.dtype)):
        raise TypeError(f"{operation}: {name} is {array.dtype}; expected {dtype}")
    if tuple(array.shape) not in shapes:
        raise ValueError(f"{operation}: {name} has shape {tuple(array.shape)}; expected {text}")
    return array if isinstance(array, Tensor) else array.astype(dtype)


def _lengths(operation: str, name: str, given, batch: int, most: int):
    array = _array(operation, name, given, INT32, ((batch,),), f"(B,) = ({batch},)")
    if not isinstance(array, Tensor) and array.size and not 0 <= array.min() <= array.max() <= most:
        raise ValueError(f"{operation}: {name} goes from {array.min()} to {array.max()}; expected 0 to {most}")
    return array


def check_window(operation: str, window) -> tuple[int | None, int | None]:
    """``window_size`` as two bounds, None where there is none."""
    if window is None:
        return None, None
    try:
        left, right = (None if bound is None else operator.index(bound) for bound in window)
    except (TypeError, ValueError):
        raise TypeError(
            f"{operation}: window_size is {window!r}; expected (left, right), each an integer or None"
        ) from None
    for bound in (left, right):
        if bound is not None and bound < -1:
            raise ValueError(f"{operation}: window_size is {(left, right)}; expected numbers from 0 up, -1 or None")
    return None if left in (None, -1) else left, None if right in (None, -1) else right


def check_dropout(operation: str, p, seed, offset) -> float:
    """``dropout_p`` as a float. Raises ValueError for one outside [0, 1), or a seed or offset out of range."""
    p = float(p)
    if not 0.0 <= p < 1.0:
        raise ValueError(f"{operation}: dropout_p is {p}; expected at least 0 and below 1")
    if not 0 <= operator.index(seed) < 2**64:
        raise ValueError(f"{operation}: dropout_seed is {seed}; expected 0 to 2**64 - 1")
    if not 0 <= operator.index(offset) < 2**32:
        raise ValueError(f"{operation}: dropout_offset is {offset}; expected 0 to 2**32 - 1")
    return p


def keep_words(p: float) -> dict:
    """What a generator's word must be below to keep a weight, and what the weight is then multiplied by."""
    return {"keep_below": min(math.floor((1.0 - p) * 2**32), 2**32 - 1), "keep_scale": 1.0 / (1.0 - p)}


def check_bias(operation: str, bias, full: tuple[int, ...]):
    """``attn_bias`` as float32, a NumPy array or a Tensor, checked to broadcast to ``full``."""
    dtype = getattr(bias, "dtype", None)
    if dtype is None:
        raise TypeError(
            f"{operation}: attn_bias is a {type(bias).__name__}; expected a numpy.ndarray or a grilly.Tensor"
        )
    shape = tuple(bias.shape)
    padded = (1,) * (len(full) - len(shape)) + shape
    if len(shape) > len(full) or any(m not in (1, f) for m, f in zip(padded, full, strict=True)):
        raise ValueError(
            f"{operation}: attn_bias has shape {shape}, which does not broadcast to (B, H, Sq, Sk) = {tuple(full)}"
        )
    if not (is_float(dtype) or (dtype == np.float64 and not isinstance(bias, Tensor))):
        raise TypeError(f"{operation}: attn_bias is {dtype}; expected float32, float16 or bfloat16")
    with np.errstate(over="ignore"):
        return bias.astype(FLOAT32)


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
    shape = tuple(getattr(table, "shape", ()))
    if len(shape) != 2 or shape[1] != heads:
        raise ValueError(f"{operation}: t5_table has shape {shape}; expected (num_buckets, H) with H = {heads}")
    exact = (shape[0] // 2 if bidirectional else shape[0]) // 2
    if exact < 1 or (bidirectional and shape[0] % 2):
        raise ValueError(
            f"{operation}: t5_table has {shape[0]} rows; expected at least 2 for each direction, as many for both"
        )
    distance = operator.index(max_distance)
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
    left, right = check_window(operation, options.window_size)
    extras.causal = causal or right is not None
    extras.right = 0 if causal or right is None else min(right, keys + queries)
    extras.set(left=0, right=extras.right)
    if left is not None:
        extras.offer("window")
        extras.left = min(left, keys + queries)
        extras.set(left=extras.left)
    cap = float(options.softcap)
    if not (cap >= 0 and math.isfinite(cap)):
        raise ValueError(f"{operation}: softcap is {options.softcap}; expected a finite number above 0, or 0 for none")
    if cap:
        extras.offer("soft-cap")
        extras.set(cap=cap)
    if options.attn_bias is not None:
        extras.offer("bias")
        extras.bias = check_bias(operation, options.attn_bias, full)
    if options.alibi_slopes is not None:
        shapes = ((heads,), (batch, heads))
        text = f"(H,) or (B, H) = {shapes[1]}"
        slopes = _array(operation, "alibi_slopes", options.alibi_slopes, FLOAT32, shapes, text)
        extras.offer("alibi")
        extras.put_as("slopes", slopes)
        extras.set(slopes_batch=heads if len(slopes.shape) == 2 else 0)
    if options.t5_table is not None:
        bidirectional = bool(options.t5_bidirectional)
        reach = check_t5(operation, options.t5_table, bidirectional, options.t5_max_distance, heads)
        table = _array(operation, "t5_table", options.t5_table, FLOAT32, (tuple(options.t5_table.shape),), "")
        extras.offer("t5")
        extras.put_as("t5_buckets", bucket_words(table.shape[0], bidirectional, reach))
        extras.put_as("t5_table", table)
        extras.set(t5_reach=reach, t5_row=heads)
    if options.sinks is not None:
        extras.offer("sinks")
        extras.put_as("sink", _array(operation, "sinks", options.sinks, FLOAT32, ((heads,),), f"(H,) = ({heads},)"))
    if options.prefix_len is not None:
        prefix = _lengths(operation, "prefix_len", options.prefix_len, batch, keys)
        if extras.causal or left is not None:
            extras.offer("prefix")
            extras.put_as("prefixes", prefix)
    _prepare_segments(operation, options, extras, full)
    _prepare_lengths(operation, options, extras, full)
    _prepare_blocks(operation, options, extras, full)
    p = check_dropout(operation, options.dropout_p, options.dropout_seed, options.dropout_offset)
    if p:
        extras.offer("dropout")
        seed = operator.index(options.dropout_seed)
        extras.set(
            seed_low=seed, seed_high=seed >> 32, dropout_offset=operator.index(options.dropout_offset), **keep_words(p)
        )
    return extras if extras.bits or extras.right or extras.causal != causal else None


def _prepare_segments(operation: str, options: Options, extras: Extras, full) -> None:
    given = options.segment_ids
    if given is None:
        return
    batch, _, queries, keys = full
    pair = given if isinstance(given, (tuple, list)) and len(given) == 2 else (given, given)
    names = ("segment_ids of queries", "segment_ids of keys")
    for name, array, count, word in zip(names, pair, (queries, keys), ("q_segments", "k_segments"), strict=True):
        array = array if isinstance(array, Tensor) else np.atleast_2d(np.asarray(array))
        shapes = ((1, count), (batch, count))
        array = _array(operation, name, array, INT32, shapes, f"(B or 1, {count})")
        extras.put_as(word, array)
        extras.set(**{f"{word}_batch": count if array.shape[0] > 1 else 0})
    extras.offer("segments")


def _prepare_lengths(operation: str, options: Options, extras: Extras, full) -> None:
    batch, _, queries, keys = full
    if options.seqlens_q is None and options.seqlens_k is None:
        return
    pair = []
    for name, given, most in (("seqlens_q", options.seqlens_q, queries), ("seqlens_k", options.seqlens_k, keys)):
        length = np.full(batch, most, np.int32) if given is None else _lengths(operation, name, given, batch, most)
        # The four numbers of a sample lie together, so they are put together on the host.
        pair.append(length.numpy() if isinstance(length, Tensor) else length)
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
    try:
        rows, columns = (operator.index(size) for size in options.block_size)
    except (TypeError, ValueError):
        rows = columns = 0
    if rows < 1 or columns < 1:
        raise ValueError(f"{operation}: block_size is {options.block_size!r}; expected two integers from 1 up")
    blocks = options.block_map
    blocks = blocks.numpy() if isinstance(blocks, Tensor) else np.asarray(blocks)
    if blocks.dtype != np.bool_:
        raise TypeError(f"{operation}: block_map is {blocks.dtype}; expected bool (True = attend)")
    want = (-(-queries // rows), -(-keys // columns))
    shape = (1,) * (4 - blocks.ndim) + blocks.shape
    if len(shape) != 4 or shape[0] not in (1, batch) or shape[1] not in (1, heads) or shape[2:] != want:
        raise ValueError(
            f"{operation}: block_map has shape {blocks.shape}; expected (B or 1, H or 1, {want[0]}, {want[1]}) for "
            f"blocks of {rows} queries and {columns} keys"
        )
    blocks = blocks.reshape(shape)
    extras.offer("blocks")
    extras.put_as("block_map", np.frombuffer(blocks.tobytes() + bytes(-blocks.size % 4), np.uint32))
    each = want[0] * want[1]
    extras.set(
        block_batch=each * shape[1] if shape[0] > 1 else 0, block_head=each if shape[1] > 1 else 0, block_row=want[1],
        block_q=rows, block_kv=columns,
    )  # fmt: skip
