"""The plan of attention's gradients. Pure functions of a BackwardCall and DeviceFacts.

Three kernels (Dao 2023, "FlashAttention-2", algorithm 2): one finds delta, a number for each row; one walks the keys
for each tile of queries and gives dq; one walks the queries for each tile of keys and gives dk and dv. No two
workgroups add to one number, so there are no atomics and every run gives the same bits. Where memory allows, the last
one stores dS, and dq is a product with it (backward_stored.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import gcd
from typing import NamedTuple

import numpy as np

from ...registry import Choice, Registry, Request
from ...registry.shared import value
from ..device.cut import parts
from ..device.device import NO_PACES, DeviceFacts, Throughputs
from ..device.plan import ALIGN_MOST, Layout, Planner, strided
from ..device.tensor import Tensor
from . import backward_stored as stored
from .backward_chunks import Chunk, bind_results, split
from .backward_shares import add_shares, shares_of
from .call import MAX_KEYS, NOTHING, OptionSummary, mask_kind
from .functions import LONGEST
from .operands import FLOAT32, PARAMETERS, AttentionPlan, bias_parameters, parameters_slot

_ADD, _FOLLOW = value("accumulate", "ADD_TO_RESULT"), value("accumulate", "KEYS_FOLLOW")


class BackwardTerms(NamedTuple):
    """What a call asks for, beside its arrays.

    Attributes
    ----------
    causal, scale
        As of AttentionCall.
    shift : int
        Query i sees keys up to ``i + shift`` under causality.
    options : OptionSummary
    packed : tuple or None
        Where sequences lie one after the other: the rows of q's array and of k's, and whether sequences cover them all.
    """

    causal: bool
    scale: float
    shift: int
    options: OptionSummary = NOTHING
    packed: tuple[tuple[int, bool], tuple[int, bool]] | None = None


class BackwardCall(NamedTuple):
    """The record of a call for gradients: layouts of the arrays with four axes, and of lse with three, and the terms.

    ``g`` is the gradient of the output ``o``. Where there is a gradient of lse too, lse has a fourth axis: each number
    and its gradient. Packed, g, o and lse are those of all sequences as one.
    """

    q: Layout
    k: Layout
    v: Layout
    g: Layout
    o: Layout
    lse: Layout
    mask: Layout | None
    bias: Layout | None
    causal: bool
    scale: float
    shift: int
    options: OptionSummary = NOTHING
    packed: tuple[tuple[int, bool], tuple[int, bool]] | None = None

    def constants(self, views: Mapping[str, Tensor]) -> dict[str, int]:
        """The specialization constants that all kernels have."""
        mask = views.get("mask")
        return {
            "HEAD_DIM": views["q"].shape[3], "VALUE_DIM": views["v"].shape[3],
            "MASK": mask_kind(mask), "CAUSAL": int(self.causal),
            "FEATURES": self.options.bits,
        }  # fmt: skip


class _Job(NamedTuple):
    """A dispatch: its kernel, its chunk, whether its results are float32, and the array for dS or None."""

    choice: Choice
    chunk: Chunk
    wide: bool
    ds: Tensor | None = None


def requests(views: Mapping[str, Tensor], call: BackwardCall) -> list[Request]:
    """What the registry is asked for: a kernel for dq, and one for dk and dv."""
    layouts = (call.q, call.k, call.v, call.g)
    dims = (call.q.shape[3], call.v.shape[3])
    places = [n for array in layouts for n in (array.offset, *array.strides[:3])]
    if call.packed is not None:  # the strides between sequences are 0
        places = [n for name in "qkvg" for n in views[name]._strides[:3]] + [array.offset for array in layouts]
    aligned = gcd(ALIGN_MOST, *dims, *places)
    asked = (
        ("align", aligned), ("causal", int(call.causal)), ("extras", call.options.bits), ("head_dim", dims[0]),
        ("options", call.options.bits.bit_count()), ("value_dim", dims[1]),
    )  # fmt: skip
    dtype = call.q.dtype.name
    return [Request(f"attention-backward-{name}", dtype, problem=asked) for name in ("dq", "dkv")]


def plan(
    call: BackwardCall, facts: DeviceFacts, registry: Registry, throughputs: Throughputs = NO_PACES,
    choices: Sequence[Choice] | None = None,
) -> AttentionPlan:  # fmt: skip
    """The plan of a call. Results: dq, dk, dv and stats; with ``choices`` only those of these kernels, and stats.

    ``stats`` are ``(B, H, Sq, 4)`` float32: lse, delta and two numbers of the kernels for every row. ``throughputs`` as
    of ``Device.throughputs``. Sums of several dispatches are float32 for every dtype of q.
    """
    layouts = [call.q, call.k, call.v, call.g, call.o, call.lse, call.mask, call.bias]
    planner = Planner(facts, [*layouts, PARAMETERS if call.options.contents else None])
    q, k, v, g, o, lse, mask, bias, given = planner.inputs
    stats = row_stats(planner, registry, g, o, lse)
    views = views_of(call, {"q": q, "k": k, "v": v, "g": g, "stats": stats, "mask": mask, "bias": bias})
    functions = call.options.functions
    assert functions.derived or functions.score is None, "a score function without its derivative"
    jobs, results = _jobs(planner, registry, views, call, throughputs, choices)
    bits = call.options.bits
    blocks = [block(facts, job.chunk) for job in jobs] if bits else []
    parameters, made = parameters_slot(planner, call, given, blocks)
    for number, (choice, chunk, wide, ds) in enumerate(jobs):
        constants = {
            **call.constants(chunk.views), "GROUP": chunk.group // chunk.shares, "WIDE": int(wide),
            "ACCUMULATE": _ADD * chunk.accumulate + _FOLLOW * chunk.more,
        }  # fmt: skip
        if "STORES" in choice.variant.constants:
            constants["STORES"] = int(ds is not None)
        if "SHARES" in choice.variant.constants:
            constants["SHARES"] = chunk.shares
        written = chunk.results
        windows, row = bind_results(facts, written)
        width = written[0].shape[3]
        out = (row, written[0]._strides[0] // width, written[0]._strides[1] // width)
        arrays, push = operands(chunk, out, call.scale, parameters, made.places[number] if made else 0)
        batch, heads, owned, _ = written[0].shape
        groups = (-(-owned // choice.tile["rows"]), heads, batch)
        names = [name for name in ("dq", "dk", "dv") if name in chunk.views]
        stores = choice.variant.operation == stored.OPERATION
        filling = None if stores else functions.filling(registry, choice.variant.unproven and _is_short(call))
        planner.dispatch(
            choice, constants, {**arrays, **dict(zip(names, windows, strict=True)), "stored": ds}, push, groups,
            stored.flops(chunk) if stores else chunk.flops(), _kind(choice, call), filling,
        )  # fmt: skip
    arrays = [add_shares(planner, registry, array, shares, views["q"].dtype) for array, shares in results]
    return AttentionPlan(planner.plan(*arrays, stats), made)


def views_of(call: BackwardCall, tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """The arrays that there are, by name, as the kernels of pairs see them.

    Packed, a row's own numbers are those of all sequences as one: in the views of ``g`` and ``stats`` every sequence is
    at row 0, and kernels add its first row.
    """
    views = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if call.packed is not None:
        for name in ("g", "stats"):
            own = views[name]
            shape, strides = (*views["q"].shape[:3], own.shape[3]), (0, *own._strides[1:])
            views[name] = Tensor(own._storage, shape, own.dtype, strides, own._offset)
    return views


def _is_short(call: BackwardCall) -> bool:
    """Whether functions may take any index for small."""
    return max(call.q.shape[2], call.k.shape[2]) <= LONGEST


def _jobs(
    planner: Planner, registry: Registry, views: dict[str, Tensor], call: BackwardCall, throughputs: Throughputs,
    choices: Sequence[Choice] | None,
) -> tuple[list[_Job], list[tuple[Tensor, int]]]:  # fmt: skip
    """The dispatches in order, and the results dq, dk and dv, each with its shares; or those of ``choices`` only."""
    if choices is None or choices[0].variant.operation == stored.OPERATION:
        for_dq, for_dkv = requests(views, call)
        if choices is None:
            dkv = registry.resolve(for_dkv)
            product = stored.stored_dq(registry, for_dq, dkv)
        else:
            dkv, product = stored.storing(registry, for_dkv, choices[0])
        if product is not None:
            mark = planner.mark()
            found = _stored(planner, views, call, throughputs, dkv, product)
            if found is not None:
                jobs, results = found
                return jobs, results if choices is None else results[:1]
            planner.back(mark)
        choices = [registry.resolve(for_dq), dkv] if choices is None else [registry.resolve(for_dq)]
    jobs, results = [], []
    for choice in choices:
        arrays, chunks = _cut(planner, choice, views, call, throughputs)
        jobs += [_Job(choice, chunk, arrays[0].dtype == FLOAT32) for chunk in chunks]
        results += [(array, chunks[0].shares) for array in arrays]
    return jobs, results


def _stored(
    planner: Planner,
    views: dict[str, Tensor],
    call: BackwardCall,
    throughputs: Throughputs,
    dkv: Choice,
    product: Choice,
) -> tuple[list[_Job], list[tuple[Tensor, int]]] | None:
    """As ``_jobs``, with dS in memory; None without room for it or a kernel that stores it."""
    lengths = views["q"].shape[2], views["k"].shape[2]
    mark = planner.mark()
    arrays, chunks = _cut(planner, dkv, views, call, throughputs)
    stored_chunks = stored.stored_chunks(planner.facts, chunks, dkv, *lengths)
    if chunks[0].shares > 1 and (stored_chunks is None or len(stored_chunks) > 1):
        planner.back(mark)
        arrays, chunks = _cut(planner, dkv, views, call, throughputs, shared=False)
        stored_chunks = stored.stored_chunks(planner.facts, chunks, dkv, *lengths)
    if stored_chunks is None:
        return None
    dq, seen = _result(planner, call, "dq", views["q"].shape, views["q"].dtype)
    # A stored_chunk's dS lies where that of the one before the last did, whose dq is done by then.
    largest = max(stored.nbytes(stored_chunk, dkv) for stored_chunk in stored_chunks)
    places = [planner.empty((largest // 4,)) for _ in stored_chunks[:2]]
    jobs = []
    for number, stored_chunk in enumerate(stored_chunks):
        place = places[number % 2]
        wide = stored_chunk.shares > 1
        jobs += [_Job(dkv, stored_chunk, wide, place), _Job(product, stored.for_dq(stored_chunk, seen), False, place)]
    return jobs, [(dq, 1), *((array, chunks[0].shares) for array in arrays)]


def row_stats(planner: Planner, registry: Registry, g: Tensor, o: Tensor, lse: Tensor) -> Tensor:
    """lse, delta and two zeros for every row, ``(B, H, Sq, 4)`` float32, from 4-D tensors and lse as BackwardCall's."""
    batch, heads, queries, value_dim = g.shape
    stats = planner.empty((batch, heads, queries, 4))
    choice = registry.resolve(Request("attention-backward-rows", g.dtype.name))
    rows = choice.tile["rows"]

    def groups(shape):
        return -(-shape[2] // rows), shape[1], shape[0]

    def work(shape):
        return 2.0 * math.prod(shape) * value_dim

    axes, paired = ((2,), (1,), (0,)), lse.ndim == 4
    whole = (stats, g, o, lse if paired else lse[..., None])
    for (to, g_part, o_part, sums), _ in parts(planner.facts, whole, groups, axes, work=work):
        push = {
            **strided("g", g_part), **strided("o", o_part), **strided("lse", sums),
            **strided("stats", to, ("batch", "head"), unit=4), "queries": to.shape[2],
        }  # fmt: skip
        planner.dispatch(
            choice, {"VALUE_DIM": value_dim, "LSE_GRAD": int(paired)},
            {"g": g_part, "o": o_part, "lse": sums, "stats": to}, push, groups(to.shape),
        )  # fmt: skip
    return stats


def _kind(choice: Choice, call: BackwardCall) -> tuple | None:
    """As in ``Step``: None where the pace depends on what a mask or lengths hide."""
    if call.mask is not None or call.options.bits:
        return None
    return choice.variant.name, call.q.shape[3], call.v.shape[3], call.causal


def _cut(
    planner: Planner, choice: Choice, views: dict[str, Tensor], call: BackwardCall, throughputs: Throughputs,
    shared: bool = True,
) -> tuple[list[Tensor], list[Chunk]]:  # fmt: skip
    """Arrays for the results of one of the two kernels, and its dispatches.

    Parameters
    ----------
    shared : bool
        Whether workgroups may share the query heads of a key head; only one dispatch's do.
    """
    most_walked = max(int(min(MAX_KEYS, planner.facts.loop_trips * choice.keys_per_trip)), 1)
    most_work = planner.facts.most_work(_kind(choice, call), throughputs)
    names = {"dq": "q"} if choice.variant.operation == "attention-backward-dq" else {"dk": "k", "dv": "v"}

    def cut(dtype: np.dtype, shares: int = 1) -> tuple[list[Tensor], list[Chunk]]:
        made = {}
        for name, of in names.items():
            batch, heads, *others = views[of].shape
            made[name] = _result(planner, call, name, (batch, heads * shares, *others), dtype)
        seen = {name: view for name, (_, view) in made.items()}
        chunk = Chunk({**views, **seen}, call.shift, shares=shares)
        return [array for array, _ in made.values()], split(planner.facts, chunk, most_walked, most_work)

    mark, dtype = planner.mark(), views["q"].dtype
    shares = shares_of(planner.facts, choice, views["q"], views["k"], call.causal) if shared and not call.packed else 1
    if shares > 1:
        arrays, chunks = cut(FLOAT32, shares)
        if len(chunks) == 1:
            return arrays, chunks
        planner.back(mark)
    arrays, chunks = cut(dtype)
    if dtype != FLOAT32 and any(p.accumulate for p in chunks):
        planner.back(mark)
        arrays, chunks = cut(FLOAT32)  # sums of several dispatches are rounded once, at the end
    return arrays, chunks


def _result(
    planner: Planner, call: BackwardCall, name: str, shape: tuple[int, ...], dtype: np.dtype
) -> tuple[Tensor, Tensor]:
    """A new array for dq, dk or dv of this shape, and the view for kernels.

    Packed, the array is (H, rows, D). Kernels add a sequence's first row themselves: in the view all sequences begin at
    row 0.
    """
    if call.packed is None:
        array = planner.empty(shape, dtype)
        return array, array
    _, heads, _, width = shape
    rows, covered = call.packed[0 if name == "dq" else 1]
    array = planner.empty((heads, rows, width), dtype, zero=not covered)
    return array, Tensor(array._storage, shape, array.dtype, (0, rows * width, width, 1))


def block(facts: DeviceFacts, chunk: Chunk) -> dict[str, int]:
    """The parameters of a dispatch that differ from chunk to chunk."""
    batch, head, row, key = chunk.first
    parameters = {"first_batch": batch, "first_head": head, "first_row": row, "first_key": key}
    return {**parameters, **bias_parameters(facts, chunk.views.get("bias"))}


def operands(
    chunk: Chunk, out: tuple[int, int, int], scale: float, parameters: Tensor | None, place: int
) -> tuple[dict, dict]:
    """The arrays but for the results, and the push constants of shaders/backward/flash-backward.glsl."""
    views = chunk.views
    arrays = {name: views.get(name) for name in ("q", "k", "v", "mask", "g", "stats", "bias")}
    push = {
        **strided("q", views["q"]), **strided("k", views["k"]), **strided("v", views["v"]), **strided("g", views["g"]),
        **strided("mask", views.get("mask"), ("batch", "head", "row", "key")),
        **strided("stats", views["stats"], ("batch", "head"), unit=4),
        **dict(zip(("out_offset", "out_batch", "out_head"), out, strict=True)),
        "queries": views["q"].shape[2], "keys": views["k"].shape[2], "causal_shift": chunk.shift, "scale": scale,
        "extra": place,
    }  # fmt: skip
    return {**arrays, "extra": parameters}, push
