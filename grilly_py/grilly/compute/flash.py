"""Attention in one kernel: argument checks, the plan (how a call is cut into dispatches), and the call."""

from __future__ import annotations

import dataclasses
import math
import struct
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from ..registry import Request
from ..registry.measured import bucket
from ..runtime.interface import work_limit
from . import decode, stream, tiles
from . import extras as extras_
from .checks import MAX_DIM as MAX_DIM
from .checks import check_mask, check_qkv, check_scale
from .launch import ALIGN_MOST, FLOAT32, binding, check_backend, check_precision, fits_binding, program_of, span
from .prepared import MAX_KEYS, PUSH, Prepared, descriptor, mask_kind
from .tensor import Storage, Tensor, contiguous_strides
from .widen import widens

if TYPE_CHECKING:
    from ..runtime.interface import Program
    from .backend import Compute
    from .extras import Extras

# The narrowest heads computed from 16-bit parts: sums of fewer products are more exact in plain float32.
SPLIT_DIM = 16
# Where the driver ends loops silently (docs/architecture.md), with room for a kernel's outer loops and for the trip in
# which it looks at a tile's class.
LOOP_TRIPS = {"llvmpipe": 64_000}


# -- the plan --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Piece:
    """One dispatch: views of the operands and what changes with them."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    lse: Tensor | None
    mask: Tensor | None
    shift: int
    merge: bool
    bias: Tensor | None = None
    first: tuple[int, int, int, int] = (0, 0, 0, 0)  # batch, head, row and key of the whole call
    paged: bool = False  # k and v begin at page 0 whatever the first key is

    def cut(self, axis: str, at: int) -> tuple[Piece, Piece]:
        """Two pieces that together do this one's work, cut along "batch", "group", "head", "query" or "key"."""
        index = {"batch": 0, "group": 1, "head": 1, "query": 2, "key": 3}[axis]
        pieces = []
        for low, high in ((0, at), (at, None)):
            part = (slice(None),) * index + (slice(low, high),)
            fields: dict = {}
            if axis == "key":
                # Of paged keys only the number changes: the kernel looks for them from `first` on.
                span_ = slice(self.k.shape[2] - low if high is None else high) if self.paged else slice(low, high)
                keys = (slice(None), slice(None), span_)
                fields.update(k=self.k[keys], v=self.v[keys], shift=self.shift - low, merge=self.merge or low > 0)
            else:
                fields.update(q=self.q[part], o=self.o[part], lse=None if self.lse is None else self.lse[part])
                if axis == "query":
                    fields.update(shift=self.shift + low)
                elif axis == "batch":
                    fields.update(k=self.k[part], v=self.v[part])
                elif axis == "group":
                    ratio = self.q.shape[1] // self.k.shape[1]
                    heads = (slice(None), slice(low // ratio, None if high is None else high // ratio))
                    fields.update(k=self.k[heads], v=self.v[heads])
            fields["mask"] = None if self.mask is None else self.mask[part]
            fields["bias"] = None if self.bias is None else self.bias[part]
            fields["first"] = tuple(f + low if axis_ == index else f for axis_, f in enumerate(self.first))
            pieces.append(dataclasses.replace(self, **fields))
        return pieces[0], pieces[1]

    def flops(self) -> float:
        """Floating-point operations of the two products, halved where causal leaves out about half."""
        b, h, queries, dim = self.q.shape
        return 2.0 * b * h * queries * self.k.shape[2] * (dim + self.v.shape[3])


def _place_to_cut(backend: Compute, piece: Piece, max_keys: float, most_work: float) -> tuple[str, int] | None:
    """Where to cut a piece that one dispatch cannot do, as arguments of ``Piece.cut``; None when it can."""
    batch, heads, queries, _ = piece.q.shape
    kv_heads, keys = piece.k.shape[1], piece.k.shape[2]
    if keys > max_keys:
        # Equal shares, of whole 256s where they are large, so that kernels see full tiles.
        share = math.ceil(keys / math.ceil(keys / max_keys))
        whole = -(-share // 256) * 256
        return "key", whole if whole <= max_keys else min(share, int(max_keys))
    _, most_heads, most_batch = backend.device.limits["groups"]
    if batch > most_batch:
        return "batch", most_batch
    if heads > most_heads:
        return ("group", kv_heads // 2 * (heads // kv_heads)) if kv_heads > 1 else ("head", heads // 2)
    large = [t for t in (piece.q, piece.k, piece.v, piece.o, piece.lse, piece.mask, piece.bias) if t is not None]
    large = [t for t in large if not fits_binding(backend, t)]
    if not large and piece.flops() <= most_work:
        return None

    def helps(axis: int) -> bool:
        """Halving the axis shortens what is too large; it does not where another axis is outermost in memory."""
        return not large or any(
            4 * t._steps[axis] * (t.shape[axis] // 2) * t.dtype.itemsize > span(t) for t in large
        )

    if batch > 1 and helps(0):
        return "batch", batch // 2
    if kv_heads > 1 and helps(1):
        return "group", kv_heads // 2 * (heads // kv_heads)
    if heads > kv_heads == 1 and helps(1):
        return "head", heads // 2
    key_side = any(t is piece.k or t is piece.v for t in large)
    if keys > 1 and (key_side or queries == 1):
        return "key", keys // 2
    if queries > 1:
        return "query", queries // 2
    raise AssertionError("one query and one key, 1 KiB each, do not fit a binding")


def split(backend: Compute, piece: Piece, max_keys: float = math.inf) -> list[Piece]:
    """The dispatches that do a piece, in the order in which they must run."""
    most_work = work_limit(backend.device)
    todo, done = [piece], []
    while todo:
        piece = todo.pop()
        place = _place_to_cut(backend, piece, max_keys, most_work)
        if place is None:
            done.append(piece)
        else:
            todo.extend(reversed(piece.cut(*place)))
    return done


# -- the call --------------------------------------------------------------------------------------------------------


def output_like(backend: Compute, q: Tensor, value_dim: int) -> Tensor:
    """An undefined (B, H, Sq, Dv) tensor; its axes lie in memory in the order of q's, so that joining heads is free."""
    batch, heads, queries, _ = q.shape
    order = sorted(range(3), key=lambda axis: (-q._steps[axis] if q.shape[axis] > 1 else -math.inf, axis))
    shape = (batch, heads, queries)
    laid = Tensor(
        Storage(backend, batch * heads * queries * value_dim * q.dtype.itemsize),
        (*(shape[a] for a in order), value_dim),
        q.dtype,
    )
    return laid if order == [0, 1, 2] else laid.transpose([*(order.index(a) for a in range(3)), 3])


def to_device(backend: Compute, array) -> Tensor:
    """The array as a tensor of ``backend`` whose last axis is contiguous, as the kernels ask."""
    if not isinstance(array, Tensor):
        if array.shape[-1] > 1 and array.strides[-1] != array.itemsize:
            array = np.ascontiguousarray(array)
        return backend.borrow(array)
    return array if array.shape[-1] <= 1 or array._steps[-1] == 1 else array.contiguous()


@dataclasses.dataclass(frozen=True)
class Ready(Prepared):
    """A call that one dispatch does, prepared."""

    program: Program
    tiled: tuple[tiles.Classes, Storage, int] | None = None  # with the words and the place of the header among them

    def run(self, backend: Compute, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lse: bool):
        """Record the dispatch; returns o and, if asked for, lse."""
        o, sums = self.results(backend, q, lse)
        bindings, push = [descriptor(tensor) for tensor in (q, k, v, mask, o, sums)], self.push(q, k, v, mask)
        if self.tiled is not None:
            classes, words, place = self.tiled
            made = classes.record(backend, words, mask)
            bindings += [(words.buffer, 0, words.nbytes), None, (made.buffer, 0, made.nbytes)]
            push += struct.pack("=I", place)
        bindings += [None] * (len(self.program.spec.access) - len(bindings))
        backend.runtime.dispatch(self.program, bindings, push, self.groups, self.work)
        return o, sums


def attend(
    backend: Compute,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    lse: bool,
    kernel: str | None,
    high: bool = False,
    shift: int | None = None,
    extras: Extras | None = None,
    first: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> tuple[Tensor, Tensor | None]:
    """Record attention on checked 4-D tensors; returns o (B, H, Sq, Dv) and, if asked for, lse (B, H, Sq).

    ``high`` says that kernels may compute float32 from 16-bit parts. Query i stands at key i + ``shift``, by default
    Sk - Sq. ``extras`` knows whether keys to the right are hidden, so with it ``causal`` says nothing. ``first`` is the
    batch, head, query and key at which the tensors begin in the call that ``extras`` is of.
    """
    if shift is None:
        shift = k.shape[2] - q.shape[2]
    if extras is not None:
        causal = extras.causal
    key = _plan_key(backend, q, k, v, mask, causal, scale, lse, kernel, high, shift)
    if extras is not None:
        key = None if key is None or extras.out is not None else key + extras.kind
    ready = backend.plans.get(key)
    if ready is not None and extras is None:
        return ready.run(backend, q, k, v, mask, lse)
    if ready is not None:
        return _run_with_extras(backend, ready, q, k, v, mask, lse, extras, first)
    return _plan(backend, q, k, v, mask, causal, scale, lse, kernel, high, shift, extras, first, key)


def _plan_key(backend, q, k, v, mask, causal, scale, lse, kernel, high, shift) -> tuple | None:
    """All that a plan over whole storages depends on; None when a storage is larger than a binding."""
    limit = backend.device.limits["storage_range"]
    if max(q._storage.nbytes, k._storage.nbytes, v._storage.nbytes) > limit:
        return None
    if mask is not None and mask._storage.nbytes > limit:
        return None
    return (
        q.shape, k.shape, v.shape, q._steps, k._steps, v._steps, q.dtype, k.dtype, v.dtype, causal, scale, lse, kernel,
        high, shift, gcd(ALIGN_MOST, q._offset, k._offset, v._offset),
        None if mask is None else (mask.dtype, mask.shape, mask._steps),
    )  # fmt: skip


def _plan(backend, q, k, v, mask, causal, scale, lse, kernel, high, shift, extras, first, key):
    """Plan a call and record it; a plan of one dispatch over whole storages is kept under ``key``."""
    batch, heads, queries, head_dim = q.shape
    kv_heads, keys, value_dim = k.shape[1], k.shape[2], v.shape[3]
    if extras is not None and extras.out is not None:
        o, sums = extras.out
    else:
        o = output_like(backend, q, value_dim)
        sums = backend.empty((batch, heads, queries)) if lse else None
    if o.size == 0:
        return o, sums
    group = heads // kv_heads
    strides = [*q._steps[:3], *k._steps[:3], *v._steps[:3], *o._steps[:3]]
    if extras is not None:
        strides += extras.page_steps
    aligned = gcd(ALIGN_MOST, q._offset, k._offset, v._offset, head_dim, value_dim, *strides)
    bias = None if extras is None else _device_bias(backend, extras, (batch, heads, queries, keys))
    if (extras is None or extras.out is None) and (kernel is None or kernel in decode.FAMILIES):
        whole = key is not None and (bias is None or bias._storage.nbytes <= backend.device.limits["storage_range"])
        split_keys = decode.plan(
            backend, q, k, v, o, mask, causal, scale, lse, aligned, kernel, whole, shift, extras
        )
        if split_keys is not None:
            backend.plans.keep(key, split_keys)
            if extras is None:
                return split_keys.run(backend, q, k, v, mask, lse)
            return _run_with_extras(backend, split_keys, q, k, v, mask, lse, extras, first, bias)
    # Rounded, so that the registry sees few different requests.
    counts = bucket({"keys": keys, "rows": batch * heads * queries})
    facts = (
        ("align", aligned), ("causal", int(causal)), ("head_dim", head_dim),
        ("high", int(high and q.dtype == FLOAT32 and head_dim >= SPLIT_DIM)), *counts.items(),
        ("value_dim", value_dim),
        *((("extras", extras.bits),) if extras is not None else ()),
    )  # fmt: skip
    request = Request("attention", q.dtype.name, facts=facts, prefer=kernel)
    trips = LOOP_TRIPS.get(backend.device.architecture, math.inf)
    most = MAX_KEYS if q.dtype == FLOAT32 else math.inf  # a 16-bit result is rounded more coarsely at every merge
    right = 0 if extras is None else extras.right
    paged = extras is not None and bool(extras.page_steps)
    piece = Piece(q, k, v, o, sums, mask, shift + right, False, bias, first, paged)
    for choice in tiles.kernels(backend, request, 2.0 * q.size * keys, mask, extras, causal):
        max_keys = max(min(most, trips * choice.keys_per_trip), 1)
        pieces = split(backend, dataclasses.replace(piece, lse=sums), max_keys)
        if sums is None and any(p.merge for p in pieces):
            sums = backend.empty((batch, heads, queries))
            pieces = split(backend, dataclasses.replace(piece, lse=sums), max_keys)
        classes = tiles.plan(backend, choice, pieces, extras)
        if classes is not None:
            break
    constants = {
        "HEAD_DIM": head_dim, "VALUE_DIM": value_dim, "MASK": mask_kind(mask), "CAUSAL": int(causal),
        "LSE": int(sums is not None), "MERGE": 0,
    }  # fmt: skip
    bits, own = (0, None) if extras is None else (extras.bits, extras)
    if classes is not None:
        bits, own = bits | tiles.TILES, classes[0].extras
    else:
        classes = [None] * len(pieces)
    if "FEATURES" in choice.variant.constants:
        constants["FEATURES"] = bits
    words, places = (None, [None] * len(pieces))
    if bits:
        words, places = own.storage(backend, [_header(backend, *pair) for pair in zip(pieces, classes, strict=True)])
    for p, of_tiles, place in zip(pieces, classes, places, strict=True):
        program = program_of(backend, choice, {**constants, "MERGE": int(p.merge)})
        made = None if of_tiles is None else of_tiles.record(backend, words, p.mask)
        _record(backend, program, p, group, scale, choice.tile["rows"], words, place, made)
    small = key is not None and extras is None and len(pieces) == 1 and (lse or sums is None) and o._offset == 0
    if small and o._storage.nbytes <= backend.device.limits["storage_range"]:
        lse_steps = contiguous_strides((batch, heads, queries))[:2] if lse else (0, 0)
        ready = Ready(
            (q._steps[:3], k._steps[:3], v._steps[:3], o._steps[:3]),
            (0, *lse_steps, queries, keys, group, shift, scale),
            (-(-queries // choice.tile["rows"]), heads, batch),
            piece.flops(),
            o.shape,
            o._steps,
            o._storage.nbytes,
            (batch, heads, queries),
            program,
            None if classes[0] is None else (classes[0], words, places[0]),
        )
        backend.plans.keep(key, ready)
    return o, (sums if lse else None)


def _device_bias(backend: Compute, extras: Extras, full: tuple[int, ...]) -> Tensor | None:
    if extras.bias is None:
        return None
    return (extras.bias if isinstance(extras.bias, Tensor) else backend.tensor(extras.bias)).broadcast_to(full)


def _run_with_extras(backend: Compute, ready: decode.Ready, q, k, v, mask, lse, extras: Extras, first, bias=None):
    """Record a prepared call whose words are not a part of the plan."""
    if not extras.bits:
        return ready.run(backend, q, k, v, mask, lse)
    if bias is None:
        bias = _device_bias(backend, extras, (*q.shape[:3], k.shape[2]))
    piece = Piece(q, k, v, q, None, mask, 0, False, bias, first)
    words, places = extras.storage(backend, [_header(backend, piece)])
    return ready.run(backend, q, k, v, mask, lse, words, places[0], bias)


def _header(backend: Compute, p: Piece, classes: tiles.Classes | None = None) -> dict:
    """The words of a dispatch's header that differ from piece to piece."""
    batch, head, row, key = p.first
    header = {"first_batch": batch, "first_head": head, "first_row": row, "first_key": key}
    header["sink_here"] = int(not p.merge)
    if p.bias is not None:
        names = ("bias_batch", "bias_head", "bias_row", "bias_key")
        header.update(bias_offset=binding(backend, p.bias)[1], **dict(zip(names, p.bias._steps, strict=True)))
    return header if classes is None else {**header, **classes.header()}


def _record(
    backend: Compute, program: Program, p: Piece, group: int, scale: float, rows: int, words: Storage | None = None,
    place: int | None = None, classes: Storage | None = None,
) -> None:  # fmt: skip
    (q, q0), (k, k0), (v, v0), (o, o0) = (binding(backend, t) for t in (p.q, p.k, p.v, p.o))
    lse, lse0 = (None, 0) if p.lse is None else binding(backend, p.lse)
    mask, mask0 = (None, 0) if p.mask is None else binding(backend, p.mask)
    mask_steps = (0, 0, 0, 0) if p.mask is None else p.mask._steps
    lse_steps = (0, 0) if p.lse is None else p.lse._steps[:2]
    batch, heads, queries, _ = p.q.shape
    ratio = group if p.k.shape[1] > 1 else max(heads, 1)
    push = PUSH.pack(
        q0, *p.q._steps[:3], k0, *p.k._steps[:3], v0, *p.v._steps[:3], o0, *p.o._steps[:3],
        mask0, *mask_steps, lse0, *lse_steps, queries, p.k.shape[2], ratio, p.shift, scale,
    )  # fmt: skip
    bindings = [q, k, v, mask, o, lse]
    if words is not None:
        push += struct.pack("=I", place)
        bindings += [(words.buffer, 0, words.nbytes), None if p.bias is None else binding(backend, p.bias)[0]]
    if classes is not None:
        bindings.append((classes.buffer, 0, classes.nbytes))
    bindings += [None] * (len(program.spec.access) - len(bindings))
    backend.runtime.dispatch(program, bindings, push, (-(-queries // rows), heads, batch), p.flops())


@widens("q", "k", "v")
def flash_attention(
    operation: str,
    backend: Compute,
    q,
    k,
    v,
    *,
    mask=None,
    causal=False,
    scale=None,
    return_lse=False,
    kernel=None,
    precision="highest",
    shift=None,
    options=extras_.OFF,
):
    """Check the arguments, attend, and return what users get. The public functions document the arguments.

    ``shift`` is where query 0 stands among the keys, by default Sk - Sq.
    """
    backend.check_open()
    high = check_precision(operation, precision)
    causal, return_lse = bool(causal), bool(return_lse)
    if kernel is not None and not isinstance(kernel, str):
        raise TypeError(f"{operation}: kernel is a {type(kernel).__name__}; expected the name of a shader family")
    check_backend(operation, backend, q, k, v, mask)
    plain = options is extras_.OFF
    if not plain:
        check_backend(operation, backend, *vars(options).values())
    if plain and mask is None and type(q) is type(k) is type(v) is Tensor and len(q.shape) == 4:
        # A call like an earlier one needs no checks: only calls that passed them have a plan.
        number = scale if scale is not None else 1.0 / math.sqrt(q.shape[3] or 1)
        place = k.shape[2] - q.shape[2] if shift is None and len(k.shape) == 4 else shift
        key = _plan_key(backend, q, k, v, None, causal, number, return_lse, kernel, high, place)
        ready = backend.plans.get(key)
        if ready is not None:
            result = ready.run(backend, q, k, v, None, return_lse)
            backend.runtime.flush()
            return result if return_lse else result[0]
    rank = check_qkv(operation, q, k, v)
    q_shape, k_shape = ((1,) * (4 - rank) + tuple(a.shape) for a in (q, k))
    scale = check_scale(operation, scale, q_shape[3])
    full = (*q_shape[:3], k_shape[2])
    if mask is not None:
        mask = check_mask(operation, mask, full)
    extras = None if plain else extras_.prepare(operation, options, full, causal)
    if stream.needed(backend, q, k, v, mask, extras):
        place = full[3] - full[2] if shift is None else shift
        part = stream.Part(operation, bool(causal), scale, kernel, high, extras, place)
        return stream.attend(part, backend, q, k, v, mask, return_lse)
    tensors = [_four(to_device(backend, a)) for a in (q, k, v)]
    device_mask = None
    if mask is not None:
        device_mask = (mask if isinstance(mask, Tensor) else backend.tensor(mask)).broadcast_to(full)
    o, lse = attend(
        backend, *tensors, device_mask, bool(causal), scale, return_lse, kernel, high, shift=shift, extras=extras
    )
    shape = (*tuple(q.shape)[:-1], v.shape[-1])
    o = o.reshape(shape) if rank != 4 else o
    results = [o] if lse is None else [o, lse.reshape(shape[:-1])]
    if any(isinstance(a, Tensor) for a in (q, k, v)):
        backend.runtime.flush()
    else:
        results = [r.numpy() for r in results]
    return results[0] if lse is None else tuple(results)


def _four(tensor: Tensor) -> Tensor:
    return tensor[(None,) * (4 - tensor.ndim)] if tensor.ndim < 4 else tensor
