"""The gradients of attention: argument checks, the plan (how a call is cut into dispatches), and the call.

Three kernels (Dao 2023, "FlashAttention-2", algorithm 2): one finds delta, a number for each row; one walks the keys
for each tile of queries and gives dq; one walks the queries for each tile of keys and gives dk and dv. No two
workgroups add to one number, so there are no atomics and every run gives the same bits.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from ..registry import Request
from ..runtime.interface import work_limit
from . import extras as extras_
from .dtypes import is_sixteen_bits
from .flash import LOOP_TRIPS, check_mask, check_qkv, check_scale, to_device
from .launch import (
    ALIGN_MOST,
    FLOAT32,
    binding,
    check_backend,
    check_float,
    fits_binding,
    launch,
    program_of,
    span,
    window_alignment,
)
from .parts import four_axes, parts, strides
from .prepared import MAX_KEYS, mask_kind
from .tensor import Tensor
from .widen import lacks_sixteen_bits

if TYPE_CHECKING:
    from ..registry import Choice
    from .backend import Compute
    from .extras import Extras
    from .tensor import Storage

NAME = "flash_attention2_backward"
#: The push constants of shaders/backward/flash-backward.glsl and of shaders/backward/flash-backward-rows.comp.
PUSH = struct.Struct("=29IifI")
_ROWS_PUSH = struct.Struct("=16I")
DOC = """The gradients of attention: of ``sum(grad_out * output)`` by q, k and v.

        With P the weights, S the scores and P's rows made anew from ``lse``, tile by tile, so that no N_q x N_kv matrix
        is ever stored::

            dV = P^T dO     dP = dO V^T     dS = P (dP - rowsum(dO O))     dQ = scale dS K     dK = scale dS^T Q

        Sums are float32 whatever the inputs are, every run gives the same bits, and grouped key heads get the sum over
        their query heads. A row with nothing to attend to contributes nothing.

        Parameters
        ----------
        grad_out : numpy.ndarray or grilly.Tensor
            The gradient of the output, of its shape ``(B, H, N_q, D_v)`` and dtype.
        q, k, v : numpy.ndarray or grilly.Tensor
            As given to ``flash_attention2``.
        out, lse : numpy.ndarray or grilly.Tensor
            What ``flash_attention2(..., return_lse=True)`` gave for these arguments.
        mask, causal, scale, **options
            The same as there: dropout's mask is drawn anew from its seed and offset.
        return_dbias : bool
            Also return the gradient of ``attn_bias``, summed over the axes along which it was broadcast.
        return_dsinks : bool
            Also return the gradient of ``sinks``.
        return_dt5_table : bool
            Also return the gradient of ``t5_table``.

        Returns
        -------
        dq, dk, dv : numpy.ndarray or grilly.Tensor
            Of the shapes and dtype of q, k and v; Tensors when an array was one, and then without waiting.
        dbias, dsinks, dt5_table : numpy.ndarray or grilly.Tensor
            float32; each only if asked for, in this order.

        Raises
        ------
        TypeError, ValueError, UnsupportedError, OutOfDeviceMemoryError
            As ``flash_attention2``; also where grad_out, out or lse has not the output's shape or dtype, or where the
            gradient of something is asked for that was not given.

        References
        ----------
        T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023,
        arXiv:2307.08691, algorithm 2.
"""
# Which axis of which operand a cut along "query", "key", "batch" or "head" (of the queries) shortens.
_OF_QUERIES = ("q", "g", "stats", "mask", "bias", "dq")
_OF_KEYS = ("k", "v", "dk", "dv")


@dataclasses.dataclass(frozen=True)
class Call:
    """What all dispatches of a call share."""

    causal: bool
    scale: float
    shift: int
    extras: Extras | None = None
    # Where sequences lie one after the other: the rows of q's array and of k's, and how many of them belong to one.
    packed: tuple[tuple[int, int], tuple[int, int]] | None = None

    @property
    def bits(self) -> int:
        """What the kernels must offer, as bits of ``names.EXTRAS``."""
        return 0 if self.extras is None else self.extras.bits

    def constants(self, views: dict[str, Tensor]) -> dict[str, int]:
        """The specialization constants that all kernels have."""
        return {
            "HEAD_DIM": views["q"].shape[3], "VALUE_DIM": views["v"].shape[3], "MASK": mask_kind(views.get("mask")),
            "CAUSAL": int(self.causal), "FEATURES": self.bits,
        }  # fmt: skip

    def result(self, backend: Compute, name: str, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Tensor, Tensor]:
        """A new array for dq, dk or dv of this shape, and what kernels see of it.

        Packed, the array is (H, rows, D), and kernels, which add a sequence's first row themselves, see every sequence
        at row 0.
        """
        if self.packed is None:
            array = backend.empty(shape, dtype)
            return array, array
        _, heads, _, width = shape
        rows, covered = self.packed[0 if name == "dq" else 1]
        whole = (heads, rows, width)
        array = backend.empty(whole, dtype) if covered == rows else backend.tensor(np.zeros(whole, dtype))
        return array, Tensor(array._storage, shape, array.dtype, (0, rows * width, width, 1))


@dataclasses.dataclass
class Piece:
    """One dispatch of the kernel for dq (``results`` holds dq) or for dk and dv: views of the operands."""

    views: dict[str, Tensor]
    shift: int
    accumulate: bool = False
    more: bool = False  # pieces with later keys of the same queries follow
    first: tuple[int, int, int, int] = (0, 0, 0, 0)  # batch, query head, query and key of the whole call

    @property
    def results(self) -> list[Tensor]:
        """What it writes."""
        return [self.views[name] for name in ("dq", "dk", "dv") if name in self.views]

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.views["q"].shape[1] // self.views["k"].shape[1]

    def cut(self, axis: str, at: int) -> tuple[Piece, Piece]:
        """Two pieces that together do this one's work, in this order; ``at`` counts queries, keys, batches, query heads
        ("member", of one key head) or key heads ("head")."""
        adds = axis == "key" if "dq" in self.views else axis in ("query", "member")
        pieces = []
        for low, high in ((0, at), (at, None)):
            views = {}
            for name, view in self.views.items():
                of_queries = name in _OF_QUERIES
                place, ratio = 2, 1
                if axis == "batch":
                    place = 0
                elif axis in ("head", "member"):
                    place, ratio = 1, self.group if axis == "head" and of_queries else 1
                    if axis == "member" and not of_queries:
                        ratio = 0
                elif name in ("mask", "bias"):
                    place = 2 if axis == "query" else 3
                elif of_queries != (axis == "query"):
                    ratio = 0
                part = slice(low * ratio, None if high is None else high * ratio)
                views[name] = view[(slice(None),) * place + (part,)] if ratio else view
            shift = self.shift + (low if axis == "query" else -low if axis == "key" else 0)
            index = {"batch": 0, "head": 1, "member": 1, "query": 2, "key": 3}[axis]
            step = low * self.group if axis == "head" else low
            first = tuple(f + step if n == index else f for n, f in enumerate(self.first))
            more = self.more or (adds and axis == "key" and low == 0)
            pieces.append(Piece(views, shift, self.accumulate or (adds and low > 0), more, first))
        return pieces[0], pieces[1]

    def flops(self) -> float:
        """Floating-point operations of the products."""
        batch, heads, queries, dim = self.views["q"].shape
        keys, value_dim = self.views["v"].shape[2:]
        products = 2 * dim + value_dim if "dq" in self.views else 2 * dim + 2 * value_dim
        return 2.0 * batch * heads * queries * keys * products


def _result_fits(backend: Compute, view: Tensor) -> bool:
    """Whether ``_bind_results`` can bind the view."""
    limit = backend.device.limits["storage_range"]
    slack = window_alignment(backend) * view.shape[3] * view.dtype.itemsize
    return view._storage.nbytes <= limit or span(view) + slack + 4 <= limit


def _bind_results(backend: Compute, results: list[Tensor]) -> tuple[list[tuple], int]:
    """Descriptors of the results, which have the same rows, and the number of the first row in all of them."""
    limit = backend.device.limits["storage_range"]
    row = results[0]._offset // results[0].shape[3]
    if all(view._storage.nbytes <= limit for view in results):
        return [(view._storage.buffer, 0, view._storage.nbytes) for view in results], row
    # A row number that is a multiple of the alignment begins at an aligned byte, whatever the width of a row.
    base = row - row % window_alignment(backend)
    found = []
    for view in results:
        start = base * view.shape[3] * view.dtype.itemsize
        end = view._offset * view.dtype.itemsize + span(view)
        length = min(-(-(end - start) // 4) * 4, view._storage.nbytes - start)
        found.append((view._storage.buffer, start, length))
    return found, row - base


def _place_to_cut(backend: Compute, piece: Piece, most_walked: int, most_work: float) -> tuple[str, int] | None:
    """Where to cut a piece that one dispatch cannot do, as arguments of ``Piece.cut``; None when it can."""
    batch, heads, queries, _ = piece.views["q"].shape
    kv_heads, keys = piece.views["k"].shape[1:3]
    for_queries = "dq" in piece.views
    if for_queries and keys > most_walked:
        return "key", _share(keys, most_walked)
    if not for_queries and piece.group * queries > most_walked:
        if piece.group <= most_walked:
            return "query", _share(queries, most_walked // piece.group)
        return ("head", kv_heads // 2) if kv_heads > 1 else ("member", heads // 2)
    _, most_heads, most_batch = backend.device.limits["groups"]
    if batch > most_batch:
        return "batch", most_batch
    if (heads if for_queries else kv_heads) > most_heads:
        return ("head", kv_heads // 2) if kv_heads > 1 else ("member", heads // 2)
    large = {
        name: view for name, view in piece.views.items()
        if not (_result_fits if name in ("dq", "dk", "dv") else fits_binding)(backend, view)
    }  # fmt: skip
    if not large and piece.flops() <= most_work:
        return None

    def helps(axis: int) -> bool:
        return not large or any(
            4 * t._steps[axis] * (t.shape[axis] // 2) * t.dtype.itemsize > span(t) for t in large.values()
        )

    if batch > 1 and helps(0):
        return "batch", batch // 2
    if kv_heads > 1 and helps(1):
        return "head", kv_heads // 2
    if heads > 1 and kv_heads == 1 and helps(1):
        return "member", heads // 2
    key_side = any(name in _OF_KEYS for name in large) if large else not for_queries
    if keys > 1 and (key_side or queries == 1):
        return "key", keys // 2
    if queries > 1:
        return "query", queries // 2
    raise AssertionError("one query and one key, 1 KiB each, do not fit a binding")


def _share(count: int, most: int) -> int:
    """An equal share of ``count`` of at most ``most``, whole 64s where it is large."""
    share = math.ceil(count / math.ceil(count / most))
    whole = -(-share // 64) * 64
    return whole if whole <= most else share


def split(backend: Compute, piece: Piece, most_walked: int) -> list[Piece]:
    """The dispatches that do a piece, in the order in which they must run."""
    most_work = work_limit(backend.device)
    todo, done = [piece], []
    while todo:
        piece = todo.pop()
        place = _place_to_cut(backend, piece, most_walked, most_work)
        if place is None:
            done.append(piece)
        else:
            todo.extend(reversed(piece.cut(*place)))
    return done


def row_stats(backend: Compute, g: Tensor, o: Tensor, lse: Tensor) -> Tensor:
    """lse, delta and two zeros for every row, ``(B, H, Sq, 4)`` float32,
    from checked 4-D tensors and lse ``(B, H, Sq)``."""
    batch, heads, queries, value_dim = g.shape
    stats = backend.empty((batch, heads, queries, 4))
    choice = backend.registry.resolve(Request("attention-backward-rows", g.dtype.name))
    program = program_of(backend, choice, {"VALUE_DIM": value_dim})
    rows = choice.tile["rows"]

    def groups(shape):
        return -(-shape[2] // rows), shape[1], shape[0]

    sums = lse[..., None]
    for (stats_part, g_part, o_part, lse_part), _ in parts(
        backend, (stats, g, o, sums), groups, ((2,), (1,), (0,)), work=lambda shape: 2.0 * math.prod(shape) * value_dim
    ):

        def push(offsets, stats=stats_part, g=g_part, o=o_part, lse=lse_part):
            return _ROWS_PUSH.pack(
                offsets[0], *strides(g), offsets[1], *strides(o), offsets[2], *strides(lse),
                offsets[3] // 4, *(step // 4 for step in strides(stats)[:2]), stats.shape[2],
            )  # fmt: skip

        launch(backend, program, (g_part, o_part, lse_part, stats_part), push, groups(stats_part.shape))
    return stats


def _gradients(
    backend: Compute, choice: Choice, views: dict[str, Tensor], shapes: dict[str, tuple], call: Call
) -> list[Tensor]:
    """Record the dispatches that make the results named in ``shapes``; in the dtype of q."""
    trips = LOOP_TRIPS.get(backend.device.architecture, math.inf)
    most_walked = max(int(min(MAX_KEYS, trips * choice.keys_per_trip)), 1)
    dtype = views["q"].dtype

    def cut(dtype: np.dtype) -> tuple[list[Tensor], list[Piece]]:
        made = {name: call.result(backend, name, shape, dtype) for name, shape in shapes.items()}
        piece = Piece({**views, **{name: view for name, (_, view) in made.items()}}, call.shift)
        return [array for array, _ in made.values()], split(backend, piece, most_walked)

    arrays, pieces = cut(dtype)
    if dtype != FLOAT32 and any(p.accumulate for p in pieces):
        dtype = FLOAT32  # sums of several dispatches are rounded once, at the end
        arrays, pieces = cut(dtype)
    words, places = None, [0] * len(pieces)
    if call.bits:
        words, places = call.extras.storage(backend, [header(backend, p) for p in pieces])
    for p, place in zip(pieces, places, strict=True):
        constants = {
            **call.constants(p.views), "GROUP": p.group, "ACCUMULATE": p.accumulate + 2 * p.more,
            "WIDE": int(dtype == FLOAT32),
        }  # fmt: skip
        results = p.results
        descriptors, row = _bind_results(backend, results)
        width = results[0].shape[3]
        out = (row, results[0]._steps[0] // width, results[0]._steps[1] // width)
        bindings, push = operands(backend, p, out, call.scale, words, place)
        batch, heads, owned, _ = results[0].shape
        groups = (-(-owned // choice.tile["rows"]), heads, batch)
        program = program_of(backend, choice, constants)
        backend.runtime.dispatch(program, [*bindings, *descriptors], push, groups, p.flops())
    return [array.astype(views["q"].dtype) for array in arrays]


def header(backend: Compute, piece: Piece) -> dict:
    """The words of a dispatch's header that differ from piece to piece."""
    batch, head, row, key = piece.first
    words = {"first_batch": batch, "first_head": head, "first_row": row, "first_key": key}
    bias = piece.views.get("bias")
    if bias is not None:
        names = ("bias_batch", "bias_head", "bias_row", "bias_key")
        words.update(bias_offset=binding(backend, bias)[1], **dict(zip(names, bias._steps, strict=True)))
    return words


def operands(
    backend: Compute, piece: Piece, out: tuple[int, int, int], scale: float, words: Storage | None, place: int
) -> tuple[list, bytes]:
    """Bindings 0 to 8 and the push constants of shaders/backward/flash-backward.glsl."""
    bindings, places = [], []
    for name in ("q", "k", "v", "mask", "g", "stats"):
        view = piece.views.get(name)
        descriptor, offset = (None, 0) if view is None else binding(backend, view)
        bindings.append(descriptor)
        steps = (0,) * 4 if view is None else view._steps
        if name == "stats":
            places.append((offset // 4, steps[0] // 4, steps[1] // 4))
        else:
            places.append((offset, *(steps if name == "mask" else steps[:3])))
    bias = piece.views.get("bias")
    bindings += [
        None if words is None else (words.buffer, 0, words.nbytes),
        None if bias is None else binding(backend, bias)[0],
        None,
    ]
    q, k, v, mask, g, stats = places
    queries, keys = piece.views["q"].shape[2], piece.views["k"].shape[2]
    push = PUSH.pack(*q, *k, *v, *g, *mask, *stats, *out, queries, keys, piece.shift, scale, place)
    return bindings, push


def check_results(
    operation: str, q, shape: tuple[int, ...], lse_shape: tuple[int, ...], grad_out, out, lse
) -> None:
    """Check what forward gave, and the gradient of its output, which has ``shape`` and q's dtype."""
    check_float(operation, q=q, grad_out=grad_out, out=out)
    for name, array in (("grad_out", grad_out), ("out", out)):
        if tuple(array.shape) != shape:
            raise ValueError(f"{operation}: {name} has shape {tuple(array.shape)}; expected the output's, {shape}")
    dtype = getattr(lse, "dtype", None)
    if dtype != FLOAT32:
        raise TypeError(
            f"{operation}: lse is {type(lse).__name__ if dtype is None else dtype}; expected the float32 array that "
            "attention gives with return_lse=True"
        )
    if tuple(lse.shape) != lse_shape:
        raise ValueError(f"{operation}: lse has shape {tuple(lse.shape)}; expected {lse_shape}")


def flash_attention_backward(
    backend: Compute,
    grad_out,
    q,
    k,
    v,
    out,
    lse,
    *,
    mask=None,
    causal=False,
    scale=None,
    return_dbias=False,
    return_dsinks=False,
    return_dt5_table=False,
    options=extras_.OFF,
):
    """Check the arguments, find the gradients, and return what users get. ``DOC`` documents the arguments."""
    backend.check_open()
    arrays = (grad_out, q, k, v, out, lse)
    check_backend(NAME, backend, *arrays, mask, *vars(options).values())
    rank = check_qkv(NAME, q, k, v)
    shape = (*tuple(q.shape)[:-1], v.shape[-1])
    check_results(NAME, q, shape, shape[:-1], grad_out, out, lse)
    wanted = {"attn_bias": return_dbias, "sinks": return_dsinks, "t5_table": return_dt5_table}
    for name, asked in wanted.items():
        if asked and getattr(options, name) is None:
            raise ValueError(f"{NAME}: the gradient of {name} is asked for, which the call lacks; give {name}")
    q_shape, k_shape = ((1,) * (4 - rank) + tuple(a.shape) for a in (q, k))
    scale = check_scale(NAME, scale, q_shape[3])
    full = (*q_shape[:3], k_shape[2])
    if mask is not None:
        mask = check_mask(NAME, mask, full)
    extras = None if options is extras_.OFF else extras_.prepare(NAME, options, full, bool(causal))
    call = Call(bool(causal) if extras is None else extras.causal, scale, full[3] - full[2], extras)
    if extras is not None:
        call = dataclasses.replace(call, shift=call.shift + extras.right)
    dtype = np.dtype(q.dtype)
    shapes = [tuple(array.shape) for array in (q, k, v)]
    # As checked: the caller's may be lists, or of another type.
    given = {"attn_bias": "bias", "sinks": "sinks", "t5_table": "t5_table"}
    more = {name: getattr(extras, given[name]) for name, asked in wanted.items() if asked}
    if 0 in full:
        results = [backend.tensor(np.zeros(shape, dtype)) for shape in shapes]
        results += [backend.tensor(np.zeros(tuple(array.shape), np.float32)) for array in more.values()]
    else:
        tensors = [to_device(backend, array) for array in arrays]
        if is_sixteen_bits(dtype) and lacks_sixteen_bits(backend):
            tensors = [tensor.astype(FLOAT32) for tensor in tensors]
        g, q4, k4, v4, o = (four_axes(tensor) for tensor in tensors[:5])
        stats = row_stats(backend, g, o, tensors[5][(None,) * (4 - rank)])
        views = {"q": q4, "k": k4, "v": v4, "g": g, "stats": stats}
        for name, array in (("mask", mask), ("bias", None if extras is None else extras.bias)):
            if array is not None:
                views[name] = (array if isinstance(array, Tensor) else backend.tensor(array)).broadcast_to(full)
        results = attention_gradients(backend, views, call)
        results = [result.astype(dtype).reshape(shape) for result, shape in zip(results, shapes, strict=True)]
        from .backward_sums import bias_gradient, sinks_gradient, t5_gradient

        if return_dbias:
            results.append(bias_gradient(backend, views, call, tuple(more["attn_bias"].shape)))
        if return_dsinks:
            results.append(sinks_gradient(backend, stats, more["sinks"]))
        if return_dt5_table:
            results.append(t5_gradient(backend, views, call, tuple(more["t5_table"].shape)))
    if any(isinstance(array, Tensor) for array in arrays):
        backend.runtime.flush()
    else:
        results = [result.numpy() for result in results]
    return tuple(results)


def attention_gradients(backend: Compute, views: dict[str, Tensor], call: Call) -> list[Tensor]:
    """Record dq, dk and dv of checked 4-D tensors q, k, v, g, stats, and mask and bias where there are any."""
    choices = [backend.registry.resolve(request) for request in requests(views, call)]
    return [result for choice in choices for result in gradients_by(backend, choice, views, call)]


def requests(views: dict[str, Tensor], call: Call) -> list[Request]:
    """What the registry is asked for: a kernel for dq, and one for dk and dv."""
    tensors = [views[name] for name in ("q", "k", "v", "g")]
    head_dim, value_dim = tensors[0].shape[3], tensors[2].shape[3]
    places = [n for tensor in tensors for n in (tensor._offset, *tensor._steps[:3])]
    aligned = gcd(ALIGN_MOST, head_dim, value_dim, *places)
    facts = (
        ("align", aligned), ("causal", int(call.causal)), ("extras", call.bits), ("head_dim", head_dim),
        ("value_dim", value_dim),
    )  # fmt: skip
    dtype = tensors[0].dtype.name
    return [Request(f"attention-backward-{name}", dtype, facts=facts) for name in ("dq", "dkv")]


def gradients_by(backend: Compute, choice: Choice, views: dict[str, Tensor], call: Call) -> list[Tensor]:
    """Record what one of the two kernels gives: dq, or dk and dv."""
    if choice.variant.operation == "attention-backward-dq":
        return _gradients(backend, choice, views, {"dq": views["q"].shape}, call)
    return _gradients(backend, choice, views, {"dk": views["k"].shape, "dv": views["v"].shape}, call)
