"""Self-checks of attention of few queries."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np

from ...registry import Choice
from ..attention.options import OFF
from ..device.device import Device
from ..device.dtypes import dtype_of
from ..device.trial import pin, view_of
from .attention import bent, with_functions
from .comparing import NAIVE, ROUNDING, SPREAD, attention_bound, difference, longer, proven, run


def check(device: Device, choice: Choice, facts: Mapping[str, int]) -> str | None:
    """Attention of few queries, by kernels that split the keys: plain, causal, with options and users' functions."""
    variant, dtype = choice.variant, dtype_of(choice.variant.dtype)
    dim, value_dim = facts["head_dim"], facts["value_dim"]
    naive = proven(device, "attention", variant.dtype, facts, NAIVE)
    tested, trusted = pin(view_of(device), choice), pin(view_of(device), naive)
    keys = 2 * variant.tile["keys"] + 67
    ahead = copy.copy(choice)  # as for so many keys that they are loaded ahead
    ahead.tile = {**choice.tile, "ahead": 0}
    problems = [("plain", variant.tile["rows"] + 3, 1, 1.0, choice), ("plain", 3, 1, SPREAD, ahead)]
    if variant.offers:
        problems += [("causal", 4, 5, SPREAD, ahead), ("bent", 2, 9, 1.0, choice)]
    if "score-function" in variant.offers:
        problems += [("functions", 2, 9, 1.0, choice)]
    for name, group, queries, spread, how in problems:
        pin(tested, how)
        rng = np.random.default_rng([dim, value_dim])
        kv_heads = 1 if name in ("bent", "functions") else 2
        q = longer(rng, (1, kv_heads * group, queries, dim), dtype, spread)
        k, v = (longer(rng, (1, kv_heads, keys, last), dtype) for last in (dim, value_dim))
        options: dict = {"causal": name == "causal", "options": bent(rng, queries, keys) if name == "bent" else OFF}
        alike = options  # the same for the trusted kernel
        if name == "functions":
            options["options"], its, seen = with_functions(device, OFF, queries, keys)
            alike = {"mask": seen, "options": its}
        got, got_lse = run(tested, q, k, v, kernel=variant.family, return_lse=True, **options)
        expected, expected_lse = run(trusted, q, k, v, return_lse=True, **alike)
        magnitude = run(trusted, q, k, np.abs(v), **alike)[0].astype(np.float64)
        wide = [np.abs(array.astype(np.float64))[:, :, :-8] for array in (q, np.repeat(k, group, 1))]
        scores = float(np.max(wide[0] @ wide[1].swapaxes(2, 3))) / dim**0.5
        off = difference(got, expected, attention_bound(magnitude, scores, variant.dtype), variant.dtype)
        if off is None:
            bound = np.float64(ROUNDING[variant.dtype] * max(1.0, scores / 8))
            off = difference(got_lse, expected_lse, bound, "float32")
            off = off and f"log-sum-exp, {off}"
        if off is not None:
            return f"{name} attention of {group} x {queries} rows to {keys} keys, D = {dim}, Dv = {value_dim}: {off}"
    return None
