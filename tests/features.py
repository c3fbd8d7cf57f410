"""The features of attention combined: a generated set of calls in which every two variants meet.

`CELLS` has, for each element type, one cell for every variant of every axis alone (the others at their first), and for
float32 and float16 as many more as it takes for each pair of variants of two axes to occur together. Nothing is random
from one run to the next: a cell's name is also its seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from cases import BFLOAT16, epsilon
from grilly import reference

#: The axes, each with its variants; the first is the plain one. The last five axes shape the arrays themselves.
AXES: dict[str, tuple] = {
    "mask": (
        None, "bool-full", "bool-keys", "bool-dead-rows", "bool-head", "add-full", "add-inf-rows", "add-lowest",
    ),
    "bias": (None, "full", "heads", "keys", "half"),
    "alibi": (None, "heads", "batch"),
    "t5": (None, "both-ways", "one-way"),
    "softcap": (None, 1.5, 30.0),
    "sinks": (None, "heads"),
    "causal": (None, "on"),
    "window": (None, (19, 15), (25, -1), (None, 3), (6, 1)),
    "prefix": (None, "some"),
    "segments": (None, "pair", "documents"),
    "lengths": (None, "both", "keys", "queries"),
    "blocks": (None, (16, 16), (5, 7), (64, 64)),
    "dropout": (None, 0.1, 0.5),
    "scale": (None, 0.7, -0.3),
    "hidden": (None, "nan", "inf"),
    "size": ((37, 53), (1, 67), (131, 127), (64, 128), (53, 41), (41, 41)),
    "width": ((64, 64), (33, 33), (16, 16), (8, 8), (16, 64)),
    "heads": ((4, 2), (2, 2), (5, 1), (1, 1)),
    "batch": (2, 1),
    "layout": (None, "heads-inside"),
}  # fmt: skip

#: What the registry's messages call each axis that a kernel may lack.
CALLED = {
    "bias": "bias", "alibi": "alibi", "t5": "t5", "softcap": "soft-cap", "sinks": "sinks", "window": "window",
    "prefix": "prefix", "segments": "segments", "lengths": "lengths", "blocks": "blocks", "dropout": "dropout",
}  # fmt: skip


#: Of a call's rows so many see a key at least, so that no cell compares zeros alone.
LEAST_SEEING = 0.15


@dataclass(frozen=True)
class Cell:
    """One combination: the element type's name and a variant of each axis, in the order of `AXES`."""

    dtype: str
    variants: tuple

    def __getitem__(self, axis: str):
        return self.variants[list(AXES).index(axis)]

    @property
    def features(self) -> list[str]:
        """The axes that are not at their first variant."""
        return [axis for axis, variant in zip(AXES, self.variants, strict=True) if variant != AXES[axis][0]]

    def __str__(self) -> str:
        parts = [self.dtype, "{}x{}".format(*self["size"]), "d{}v{}".format(*self["width"])]
        parts += ["b{}h{}k{}".format(self["batch"], *self["heads"])]
        for axis in self.features:
            if axis not in ("size", "width", "heads", "batch"):
                variant = self[axis]
                text = ",".join(map(str, variant)) if isinstance(variant, tuple) else str(variant)
                parts.append(axis if variant in ("on", "some") else f"{axis}={text}")
        return "_".join(parts)


def all_pairs(axes: dict) -> list:
    """Every two variants of two different axes."""
    return [((a, x), (b, y)) for a, b in combinations(axes, 2) for x in axes[a] for y in axes[b]]


def pairwise(seed: int, axes: dict, within=({},)) -> list[dict]:
    """Combinations in which every pair of variants occurs: each new one takes as many missing pairs as it can.

    It starts from the first missing pair; the other axes follow in a random order, each with the variant that adds most
    missing pairs to those already chosen, and of equals the one used least. Each combination lies within one of
    ``within``, which says for some axes the variants that they may have: the best of those that hold the pair.
    """
    rng = np.random.default_rng(seed)
    missing = dict.fromkeys(all_pairs(axes))  # a set that keeps its order
    used = {(axis, variant): 0 for axis, variants in axes.items() for variant in variants}
    order = {axis: i for i, axis in enumerate(axes)}
    found = []

    def pair(one, other):
        return (one, other) if order[one[0]] < order[other[0]] else (other, one)

    def complete(chosen: dict, bounds: dict) -> dict:
        for axis in rng.permutation([axis for axis in axes if axis not in chosen]).tolist():
            allowed = bounds.get(axis, axes[axis])
            gains = [
                (sum(pair((axis, x), other) in missing for other in chosen.items()), -used[axis, x]) for x in allowed
            ]
            chosen[axis] = allowed[max(range(len(gains)), key=gains.__getitem__)]
        return chosen

    def gain(combination: dict) -> int:
        return sum(pair(*two) in missing for two in combinations(combination.items(), 2))

    while missing:
        first = dict(next(iter(missing)))
        fitting = [b for b in within if all(x in b.get(axis, axes[axis]) for axis, x in first.items())]
        chosen = max((complete(dict(first), bounds) for bounds in fitting), key=gain)
        for two in combinations(chosen.items(), 2):
            missing.pop(pair(*two), None)
        for item in chosen.items():
            used[item] += 1
        found.append({axis: chosen[axis] for axis in axes})
    return found


def singles() -> list[tuple]:
    """The plain combination, and each variant alone."""
    plain = {axis: variants[0] for axis, variants in AXES.items()}
    return [tuple(plain.values())] + [
        tuple((plain | {axis: variant}).values()) for axis, variants in AXES.items() for variant in variants[1:]
    ]


def cells() -> list[Cell]:
    """All of them, without repeats."""
    combined = {"float32": pairwise(0, AXES), "float16": pairwise(1, AXES), "bfloat16": []}
    return list(
        dict.fromkeys(
            Cell(dtype, variants)
            for dtype, found in combined.items()
            for variants in [*singles(), *(tuple(each.values()) for each in found)]
        )
    )


# -- the few for a slow device ----------------------------------------------------------------------------------------

#: Of the variants of these axes a kernel is compiled anew, by kinds: all of one kind have the same code.
KINDS: dict[str, dict] = {
    "mask": {"none": AXES["mask"][:1], "boolean": AXES["mask"][1:5], "additive": AXES["mask"][5:]},
    "window": {"none": (None,), "both": ((19, 15), (6, 1)), "left": ((25, -1),), "right": ((None, 3),)},
    **{axis: {"off": AXES[axis][:1], "on": AXES[axis][1:]} for axis in (*CALLED, "causal") if axis != "window"},
}


@dataclass(frozen=True)
class Part:
    """What one strategy does in the short run: ``width``, and the combined cells of every ``step``-th kernel."""

    strategy: str | None
    dtype: str
    width: tuple[int, int]
    alone: bool = True
    start: int = 0
    step: int = 1
    runtime: str = "vulkan"


#: The short run. Kernels that share their source (flash-tiles.glsl; those for llvmpipe, whose forms are for texels and
#: for widths that are multiples of 8, of 4 and of nothing) share the combined cells; where ``start`` is ``step`` there
#: are none.
PARTS = [
    Part("attention-naive", "float32", (33, 33)),
    Part("flash-attention2", "float16", (64, 64), start=0, step=2),
    Part("flash-attention3", "float32", (16, 64), start=1, step=2),
    Part("flash-attention-texels", "float32", (12, 20), start=0, step=4),
    Part("flash-attention-llvmpipe", "float16", (9, 7), alone=False, start=1, step=4),
    Part("flash-attention-llvmpipe", "float32", (12, 20), alone=False, start=2, step=4),
    Part("flash-attention-llvmpipe", "float32", (8, 8), start=3, step=4),
    Part(None, "bfloat16", (16, 16), start=1, step=1),
    Part(None, "float32", (8, 8), start=1, step=1, runtime="kompute"),
]
#: Strategies that together meet every pair.
GROUPS = [
    ("attention-naive",),
    ("flash-attention2", "flash-attention3"),
    ("flash-attention-texels", "flash-attention-llvmpipe"),
]
_SHORT_AXES = {axis: variants for axis, variants in AXES.items() if axis != "width"}


def short_combined() -> list[list[dict]]:
    """Combinations in which every pair of variants occurs, the width aside; a list for each kernel they need."""
    kernels = pairwise(2, {axis: tuple(kinds) for axis, kinds in KINDS.items()})
    bounds = [{axis: KINDS[axis][kind] for axis, kind in kernel.items()} for kernel in kernels]
    found = pairwise(3, _SHORT_AXES, bounds)
    return [
        [each for each in found if all(each[axis] in allowed for axis, allowed in bound.items())] for bound in bounds
    ]


def short_cells() -> list[tuple[Part, Cell]]:
    """The cells of the short run, each with the part it belongs to."""
    alone = [dict(zip(AXES, variants, strict=True)) for variants in singles() if variants[_WIDTH] == AXES["width"][0]]
    kernels = short_combined()
    chosen = []
    for part in PARTS:
        combinations_ = [*(alone if part.alone else [])]
        if part.start < part.step:
            combinations_ += [each for kernel in kernels[part.start :: part.step] for each in kernel]
        for each in combinations_:
            each = {axis: part.width if axis == "width" else each[axis] for axis in AXES}
            chosen.append((part, Cell(part.dtype, tuple(each.values()))))
    return chosen


_WIDTH = list(AXES).index("width")


@dataclass
class Call:
    """The arrays and options of a cell.

    ``q``, ``k`` and ``v`` are what a kernel gets; ``clean`` are the same without what is put into hidden places, for
    the reference; ``options`` are keyword arguments of both.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    clean: tuple[np.ndarray, np.ndarray, np.ndarray]
    options: dict


def make(cell: Cell) -> Call:
    """The arrays and options of a cell, the same in every run; where options together hide nearly all, drawn again."""
    for attempt in range(100):
        call, seeing = _draw(cell, np.random.default_rng([attempt, *str(cell).encode()]))
        if seeing >= LEAST_SEEING:
            return call
    raise AssertionError(f"{cell}: at most {seeing:.0%} of the rows see a key")


def _draw(cell: Cell, rng: np.random.Generator) -> tuple[Call, float]:
    """A call, and how large a part of its rows sees a key."""
    dtype = BFLOAT16 if cell.dtype == "bfloat16" else np.dtype(cell.dtype)
    batch, (heads, kv_heads), (queries, keys), (dim, value_dim) = (
        cell[axis] for axis in ("batch", "heads", "size", "width")
    )
    q = rng.standard_normal((batch, heads, queries, dim)).astype(dtype)
    k = rng.standard_normal((batch, kv_heads, keys, dim)).astype(dtype)
    v = rng.standard_normal((batch, kv_heads, keys, value_dim)).astype(dtype)
    options = {**_adding(cell, rng), **_hiding(cell, rng), "causal": cell["causal"] == "on", "scale": cell["scale"]}
    if cell["softcap"]:
        options["softcap"] = cell["softcap"]
    if cell["sinks"]:
        options["sinks"] = rng.standard_normal(heads).astype(np.float32)
    clean = q, k, v
    seen = reference.attention_weights(q, k, dtype=np.float64, **options) > 0
    if cell["hidden"]:
        q, k, v = (a.copy() for a in clean)
        blind, unseen = ~seen.any(-1), ~seen.reshape(batch, kv_heads, -1, keys).any(2)
        q[blind], k[unseen], v[unseen] = (np.nan if cell["hidden"] == "nan" else np.inf,) * 3
    if cell["dropout"]:
        options |= {"dropout_p": cell["dropout"], "dropout_seed": int(rng.integers(2**63)), "dropout_offset": 5}
    return Call(q, k, v, clean, options), seen.any(-1).mean()


def _full(cell: Cell) -> tuple[int, int, int, int]:
    return (cell["batch"], cell["heads"][0], *cell["size"])


def _mask(kind: str, full: tuple, rng: np.random.Generator) -> np.ndarray:
    batch, heads, queries, keys = full
    shape = {
        "bool-full": full, "bool-keys": (batch, 1, 1, keys), "bool-head": (heads, 1, keys), "add-full": full,
    }.get(kind, (queries, keys))  # fmt: skip
    shown = rng.random(shape) < 0.85
    if kind in ("bool-dead-rows", "add-inf-rows", "add-lowest"):
        shown[1::3] = False
    if kind.startswith("bool"):
        return shown
    added = rng.standard_normal(shape).astype(np.float32)
    if kind != "add-full":
        added[~shown] = -np.inf if kind == "add-inf-rows" else np.finfo(np.float32).min
    return added


def _adding(cell: Cell, rng: np.random.Generator) -> dict:
    """The mask, and the options that are added to scores."""
    full = batch, heads, queries, keys = _full(cell)
    options = {}
    if cell["mask"]:
        options["mask"] = _mask(cell["mask"], full, rng)
    if cell["bias"]:
        shape = {"full": full, "heads": (1, heads, queries, keys), "keys": (batch, 1, 1, keys)}
        bias = rng.standard_normal(shape.get(cell["bias"], (queries, keys)))
        options["attn_bias"] = bias.astype(np.float16 if cell["bias"] == "half" else np.float32)
    if cell["alibi"]:
        shape = (heads,) if cell["alibi"] == "heads" else (batch, heads)
        options["alibi_slopes"] = (rng.random(shape) / 2).astype(np.float32)
    if cell["t5"] == "both-ways":
        options["t5_table"] = rng.standard_normal((32, heads)).astype(np.float32)
    elif cell["t5"]:
        options |= {"t5_bidirectional": False, "t5_max_distance": 40}
        options["t5_table"] = rng.standard_normal((12, heads)).astype(np.float32)
    return options


def _hiding(cell: Cell, rng: np.random.Generator) -> dict:
    """The options that hide keys and rows, but for the mask and ``causal``."""
    batch, heads, queries, keys = _full(cell)
    options = {}
    if cell["window"]:
        options["window_size"] = cell["window"]
    if cell["prefix"]:
        options["prefix_len"] = rng.integers(keys // 4, keys + 1, batch).astype(np.int32)
    if cell["segments"]:
        # Documents one after the other; a pair has them in no order, and one array for both only where it can be.
        q_ids, k_ids = (np.sort(rng.integers(0, 2, (batch, n))).astype(np.int32) for n in (queries, keys))
        if cell["segments"] == "pair":
            q_ids, k_ids = rng.permuted(q_ids, axis=1), rng.permuted(k_ids, axis=1)[:1]
        options["segment_ids"] = k_ids if cell["segments"] == "documents" and queries == keys else (q_ids, k_ids)
    if cell["lengths"]:
        for name, most in (("seqlens_q", queries), ("seqlens_k", keys)):
            lengths = rng.integers(-(-most // 2), most + 1, batch).astype(np.int32)
            if batch > 1 and cell["lengths"] != "both":
                lengths[-1] = 0
            if cell["lengths"] == "both" or name == {"queries": "seqlens_q", "keys": "seqlens_k"}[cell["lengths"]]:
                options[name] = lengths
    if cell["blocks"]:
        (rows, columns), by_head = cell["blocks"], cell["blocks"] != (5, 7)
        shape = (1 if by_head else batch, heads if by_head else 1, -(-queries // rows), -(-keys // columns))
        kept = rng.random(shape) < 0.75
        kept.flat[-1], kept.flat[0] = False, True
        options |= {"block_map": kept, "block_size": cell["blocks"]}
    return options


@dataclass
class Expected:
    """What a cell's call should give, and what errors are judged against (`cases.assert_as_accurate`).

    ``exact`` and ``exact_lse`` are float64; ``plain`` and ``plain_lse`` the reference in float32, the output rounded to
    the cell's type; ``rounded`` the same with the unnormalised weights rounded to that type, as matrix units take them;
    ``magnitude`` the largest sum of absolute terms behind an output, ``lse_magnitude`` that behind a score.
    """

    exact: np.ndarray
    exact_lse: np.ndarray
    plain: np.ndarray
    plain_lse: np.ndarray
    rounded: np.ndarray
    magnitude: float
    lse_magnitude: float


def expect(call: Call) -> Expected:
    """The reference's results for a call."""
    dtype, options = call.q.dtype, call.options
    exact, _, exact_lse = reference.naive_attention(*call.clean, dtype=np.float64, return_lse=True, **options)
    q, k, v = (a.astype(np.float32) for a in call.clean)
    plain, _, plain_lse = reference.naive_attention(q, k, v, return_lse=True, **options)
    dropout = {name: value for name, value in options.items() if name.startswith("dropout")}
    weights = reference.attention_weights(
        q, k, **{name: value for name, value in options.items() if name not in dropout}
    )
    top = np.maximum(weights.max(-1, keepdims=True, initial=0), np.finfo(np.float32).tiny)
    weights = (weights / top).astype(dtype).astype(np.float32) * top
    if dropout:
        p, seed, offset = (dropout[f"dropout_{name}"] for name in ("p", "seed", "offset"))
        weights *= reference.dropout_mask(weights.shape, p, seed, offset) * np.float32(1 / (1 - p))
    rounded = reference.matmul(weights, np.repeat(v, q.shape[1] // v.shape[1], 1)).astype(dtype)
    magnitude = reference.naive_attention(q, k, np.abs(v), **options)[0].max(initial=0)
    return Expected(
        exact, exact_lse, plain.astype(dtype), plain_lse, rounded, float(magnitude), _score_magnitude(call, q, k)
    )


def _score_magnitude(call: Call, q: np.ndarray, k: np.ndarray) -> float:
    """The largest sum of absolute terms behind a score or a sink that counts."""
    options = call.options
    scale = q.shape[-1] ** -0.5 if options["scale"] is None else abs(options["scale"])
    terms = reference.matmul(np.abs(q), np.abs(np.repeat(k, q.shape[1] // k.shape[1], 1)).swapaxes(-1, -2)) * scale
    most = float(terms.max(initial=1))
    for name in ("attn_bias", "mask", "t5_table", "sinks"):
        array = np.asarray(options.get(name, 0.0))
        if array.dtype != bool:
            array = array.astype(np.float32)
            most += float(np.abs(array[array > reference.NEVER]).max(initial=0))
    return most


def lse_magnitude(expected: Expected, dtype, on_matrix_units: bool) -> float:
    """What one float32 rounding of a log-sum-exp is relative to; on matrix units the sum may be of rounded weights."""
    return expected.lse_magnitude + (epsilon(dtype) / 2 / epsilon(np.float32) if on_matrix_units else 0)


#: Every cell.
CELLS = cells()
#: The cells of the short run.
SHORT = short_cells()
