"""Self-checks of attention: tile by tile, by classes of tiles, and by split-KV."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

import numpy as np

from ...registry import Choice
from ..attention.options import OFF, Options
from ..device.device import Device
from ..device.dtypes import dtype_of
from ..device.trial import pin, view_of, with_classes
from .comparing import HIGH_BOUND, NAIVE, ROUNDING, SPREAD, attention_bound, difference, longer, proven, run

#: What bends scores without numbers that are read for each.
_RULES = ("alibi", "soft-cap")


def ends(queries: int, keys: int) -> Options:
    """What is done at the ends of rows and of samples; for one sample and two heads."""
    return Options(sinks=np.float32([1.5, -0.5]), seqlens_q=np.int32([queries - 3]), seqlens_k=np.int32([keys - 9]))


def bent(rng, queries: int, keys: int) -> Options:
    """What changes scores, and what hides keys by their indices; for one sample and two heads."""
    return dataclasses.replace(
        _bent_beside_functions(rng, queries, keys),
        alibi_slopes=np.float32([0.05, 0.01]),
        t5_table=rng.standard_normal((8, 2)).astype(np.float32),
    )


def _bent_beside_functions(rng, queries: int, keys: int) -> Options:
    """What of it kernels offer beside functions."""
    bias = rng.standard_normal((1, 2, queries, keys)).astype(np.float32)
    bias[rng.random(bias.shape) < 0.1] = -np.inf
    return dataclasses.replace(
        ends(queries, keys),
        softcap=2.0,
        attn_bias=bias,
        window_size=(keys // 2, keys // 4),
    )


def _by_rule(name: str, queries: int, keys: int) -> Options:
    """One rule that bends scores; for one sample and two heads."""
    if name == "alibi":
        return dataclasses.replace(ends(queries, keys), alibi_slopes=np.float32([0.05, 0.01]))
    return Options(softcap=20.0)


def _picky(rng, queries: int, keys: int) -> Options:
    """What hides keys by data, and dropout."""
    documents = [np.sort(rng.integers(0, 3, (1, count))).astype(np.int32) for count in (queries, keys)]
    return Options(
        segment_ids=tuple(documents),
        block_map=rng.random((1, 1, -(-queries // 24), -(-keys // 16))) < 0.7,
        block_size=(24, 16),
        window_size=(-1, keys // 8),
        prefix_len=np.int32([keys // 3]),
        dropout_p=0.2,
        dropout_seed=7,
    )


def _tiled(rng, seen: np.ndarray, rows: int, keys: int, with_map: bool) -> Options:
    """What has classes of tiles: makes tiles of ``seen`` whole and hidden, and a map of blocks as wide as words."""
    seen[:, :, :rows, :keys] = True
    seen[:, :, :rows, keys : 2 * keys] = False
    if not with_map:
        return OFF
    blocks = rng.random((1, 1, -(-seen.shape[2] // 24), -(-seen.shape[3] // 32))) < 0.8
    return Options(block_map=blocks, block_size=(24, 32))


def with_functions(device: Device, beside: Options, queries: int, keys: int) -> tuple[Options, Options, np.ndarray]:
    """Functions of users for one sample and two heads, and a bias and a mask that are the same.

    Beside other options, before which scores are modified, a mask function alone.
    """
    head, query, key = np.ogrid[:2, :queries, :keys]
    seen = (key + query) % (head + 3) != 0
    slopes = np.float32([0.05, -0.01])
    table = device.tensor(slopes)
    own = dataclasses.replace(beside, mask_mod=lambda batch, head, query, key: (key + query) % (head + 3) != 0)
    if beside is not OFF:
        return own, beside, seen[None]
    own = dataclasses.replace(own, score_mod=lambda score, batch, head, query, key: score + table[head] * (query - key))
    bias = (slopes[:, None, None] * (query - key)).astype(np.float32)
    return own, Options(attn_bias=bias[None]), seen[None]


def check(device: Device, choice: Choice, facts: Mapping[str, int]) -> str | None:
    """Attention by a kernel of whole tiles: plain, causal, masked and with options, at odd sizes."""
    variant, dtype = choice.variant, dtype_of(choice.variant.dtype)
    dim, value_dim = facts["head_dim"], facts["value_dim"]
    naive = proven(device, "attention", variant.dtype, facts, NAIVE)
    trusted = pin(view_of(device), naive)
    queries, keys = 2 * variant.tile["rows"] + 5, 2 * variant.tile.get("keys", 64) + 67
    problems = [("plain", 1.0), ("causal", SPREAD), ("masked", SPREAD)]
    if set(variant.offers) == {"sinks", "lengths"}:
        problems += [("ends", SPREAD)]
    elif variant.offers and "bias" not in variant.offers:
        problems += [(name, 1.0) for name in _RULES]
    elif "score-function" in variant.offers:
        problems += [("functions", 1.0), ("beside functions", 1.0), ("tiled", SPREAD)]
    elif variant.offers:
        problems += [("bent", 1.0), ("picky", SPREAD), ("tiled", SPREAD)]
    for name, spread in problems:
        rng = np.random.default_rng([dim, value_dim])
        q = longer(rng, (1, 2, queries, dim), dtype, spread)
        k, v = (longer(rng, (1, 1, keys, last), dtype) for last in (dim, value_dim))
        # The kernel compared with gets every problem as a mask, so that it is one program.
        seen = np.ones((1, 1, queries, keys), bool)
        options: dict = {}
        made = {"bent": partial(bent, rng), "picky": partial(_picky, rng), "ends": ends}
        made["beside functions"] = partial(_bent_beside_functions, rng)
        made |= {rule: partial(_by_rule, rule) for rule in _RULES}
        more = its = made[name](queries, keys) if name in made else OFF
        tested = pin(with_classes(view_of(device)) if name == "tiled" else view_of(device), choice)
        if name == "causal":
            options["causal"], seen = True, np.tril(seen, keys - queries)
        elif name == "masked":
            seen = rng.random(seen.shape) < 0.7
            seen[:, :, 3] = False
            options.update(mask=seen, return_lse=True)
        elif name in ("bent", "ends", *_RULES):
            options["return_lse"] = True
            if name == "soft-cap":
                q[:, :, variant.tile["rows"] :] *= 8  # beyond what a polynomial is for
        elif name == "picky":
            seen = rng.random(seen.shape) < 0.9
            options.update(mask=seen, return_lse=True)
        elif name == "tiled":
            seen = rng.random(seen.shape) < 0.7
            with_map = "blocks" in variant.offers
            more = its = _tiled(rng, seen, variant.tile["rows"], variant.tile.get("keys", 64), with_map)
            options.update(mask=seen, return_lse=True)
        elif name.endswith("functions"):
            more, its, seen = with_functions(device, more, queries, keys)
            options["return_lse"] = True
        got = run(tested, q, k, v, options=more, **options)
        wrong = _wrong(name, trusted, got, variant.dtype, q, k, v, seen, its)
        if wrong is not None:
            return wrong
    return None


def _wrong(
    name: str, trusted: Device, got: list, dtype: str, q, k, v, seen: np.ndarray, options: Options = OFF
) -> str | None:
    """What sets O, and the log-sum-exp if there is one, apart from the trusted kernel's, and in which problem."""
    expected, expected_lse = run(trusted, q, k, v, mask=seen, return_lse=True, options=options)
    magnitude = run(trusted, q, k, np.abs(v), mask=seen, return_lse=True, options=options)[0].astype(np.float64)
    wide = [np.abs(array.astype(np.float64))[:, :, :-8] for array in (q, k)]
    scores = float(np.max(wide[0] @ wide[1].swapaxes(2, 3))) / q.shape[3] ** 0.5
    off = difference(got[0], expected, attention_bound(magnitude, scores, dtype), dtype)
    if off is None and len(got) > 1:
        lse_bound = (HIGH_BOUND if dtype == "float32" else ROUNDING[dtype]) * max(1.0, scores / 8)
        off = difference(got[1], expected_lse, np.float64(lse_bound), "float32")
        off = off and f"log-sum-exp, {off}"
    if off is None:
        return None
    queries, keys = (array.shape[2] - 8 for array in (q, k))
    return f"{name} attention of {queries} queries to {keys} keys, D = {q.shape[3]}, Dv = {v.shape[3]}: {off}"


def check_tiles(device: Device, choice: Choice, facts: Mapping[str, int]) -> str | None:
    """A mask, and a map of blocks: each with tiles that are hidden as a whole, and rows that see nothing."""
    variant, dtype = choice.variant, dtype_of(choice.variant.dtype)
    dim, value_dim = facts["head_dim"], facts["value_dim"]
    tested = pin(with_classes(view_of(device)), choice)
    trusted = pin(view_of(device), proven(device, "attention", variant.dtype, facts, NAIVE))
    rows, size = variant.tile["rows"], variant.tile["keys"]
    queries, keys = 2 * rows + 5, 3 * size + 3
    for name in ("masked", "block-sparse"):
        rng = np.random.default_rng([dim, value_dim])
        q = longer(rng, (1, 2, queries, dim), dtype, SPREAD)
        k, v = (longer(rng, (1, 1, keys, last), dtype) for last in (dim, value_dim))
        blocks = np.array([[1, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]], bool)[None, None]
        seen = blocks.repeat(rows, 2).repeat(size, 3)[:, :, :queries, :keys]
        options: dict = {"options": Options(block_map=blocks, block_size=(rows, size))}
        if name == "masked":
            seen = seen & (rng.random((1, 2, queries, keys)) < 0.6)
            seen[:, :, 3] = False
            options = {"mask": seen}
        got = run(tested, q, k, v, kernel=variant.family, return_lse=True, **options)
        wrong = _wrong(name, trusted, got, variant.dtype, q, k, v, seen)
        if wrong is not None:
            return wrong
    return None


def check_split_kv(device: Device, choice: Choice, facts: Mapping[str, int]) -> str | None:
    """Two splits of the keys, plain and causal, with the log-sum-exp."""
    variant, dtype = choice.variant, dtype_of(choice.variant.dtype)
    dim, value_dim = facts["head_dim"], facts["value_dim"]
    tested = pin(view_of(device), choice)
    trusted = pin(view_of(device), proven(device, "attention", variant.dtype, facts, NAIVE))
    queries, keys = variant.tile["rows"] + 5, 3 * variant.tile["keys"] + 3
    for name in ("plain", "causal"):
        rng = np.random.default_rng([dim, value_dim])
        q = longer(rng, (1, 2, queries, dim), dtype, SPREAD)
        k, v = (longer(rng, (1, 1, keys, last), dtype) for last in (dim, value_dim))
        seen = np.ones((1, 1, queries, keys), bool)
        if name == "causal":
            seen = np.tril(seen, keys - queries)
        got = run(tested, q, k, v, kernel=variant.family, return_lse=True, causal=name == "causal")
        wrong = _wrong(name, trusted, got, variant.dtype, q, k, v, seen)
        if wrong is not None:
            return wrong
    return None
