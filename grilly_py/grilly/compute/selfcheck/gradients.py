"""Self-checks of attention's gradients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...registry import Choice
from ...registry.names import FUNCTIONS
from ...registry.shared import extras_bits
from ..attention import backward, backward_stored
from ..attention.backward_plan import BackwardTerms
from ..attention.options import Options
from ..device.device import Device
from ..device.dtypes import dtype_of
from ..device.trial import pin, view_of
from .comparing import ROUNDING, difference, longer, proven, run


def check(device: Device, choice: Choice, facts: Mapping[str, int]) -> str | None:
    """Gradients of grouped heads over odd numbers of rows, some hidden ones NaN, against those of vector units."""
    variant, dtype = choice.variant, dtype_of(choice.variant.dtype)
    dim, value_dim = facts["head_dim"], facts["value_dim"]
    operation = variant.operation
    stored = operation == backward_stored.OPERATION
    trusted = proven(device, "attention-backward-dq" if stored else operation, variant.dtype, facts)
    names = ["plain", "causal", "masked"] + (["functions"] if "score-function" in variant.offers and not stored else [])
    queries, keys = 2 * variant.tile["rows"] + 77, 2 * variant.tile["rows"] + 101
    for name in names:
        rng = np.random.default_rng([dim, value_dim])
        q, g = (longer(rng, (1, 4, queries, last), dtype) for last in (dim, value_dim))
        k, v = (longer(rng, (1, 2, keys, last), dtype) for last in (dim, value_dim))
        options: dict = {"causal": name == "causal"}
        if name == "masked":
            options["mask"] = rng.random((1, 1, queries, keys)) < 0.7
            options["mask"][:, :, 3] = False
        checked = None
        if name == "functions":
            options["options"] = _functions(device)
            own = options["options"]
            checked = backward.with_derivatives(backward.prepare(backward.NAME, own, (1, 4, queries, keys), False), own)
            bits = extras_bits(FUNCTIONS)
            facts = {**facts, "extras": bits, "options": bits.bit_count()}
            trusted = proven(device, operation, variant.dtype, facts)
        out, lse = _attended(device, (q, k, v), variant.dtype, facts, options)
        tensors = [device.tensor(a)[:, :, :-8] for a in (q, k, v, g)] + [device.tensor(a) for a in (out, lse)]
        mask = options.get("mask")
        tensors += [None if mask is None else device.tensor(mask).broadcast_to((1, 4, queries, keys)), None]
        terms = BackwardTerms(options["causal"], dim**-0.5, keys - queries)
        if checked is not None:
            terms = terms._replace(options=checked.summary())
        both = [backward.gradients_by(device, kernel, tensors, terms, checked) for kernel in (choice, trusted)]
        for got, expected in zip(*both, strict=True):
            got, expected = got.numpy(), expected.numpy()
            # The weights and dS are rounded to 16 bits before they multiply; terms are of like size.
            bound = 8 * ROUNDING[variant.dtype] * np.abs(expected.astype(np.float64)).max(initial=1e-3)
            off = difference(got, expected, np.float64(bound), variant.dtype)
            if off is not None:
                return f"gradients, {name}, of {queries} queries to {keys} keys, D = {dim}, Dv = {value_dim}: {off}"
    return None


def _functions(device: Device) -> Options:
    """Functions of users for four heads: the first with a derivative that differs from head to head."""
    table = device.tensor(np.float32([1.0, 0.5, -0.75, 1.25]))
    return Options(
        score_mod=lambda score, batch, head, query, key: score * table[head] - 0.01 * (query - key),
        mask_mod=lambda batch, head, query, key: (key + query) % (head + 3) != 0,
    )


def _attended(
    device: Device, arrays: tuple, dtype: str, facts: Mapping[str, int], options: dict
) -> list[np.ndarray]:  # fmt: skip
    """O and log-sum-exp of arrays by ``longer``, by a kernel that needs no proof."""
    if "options" not in options:
        return run(device, *arrays, return_lse=True, **options)
    own = proven(device, "attention", dtype, facts)
    return run(pin(view_of(device), own), *arrays, kernel=own.variant.family, return_lse=True, **options)
