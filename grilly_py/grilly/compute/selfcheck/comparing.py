"""What self-checks have in common: the kernel to compare with, random arrays, and bounds of what may differ."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...errors import UnsupportedError
from ...registry import Choice, Request
from ..attention import forward
from ..device.device import Device

NAIVE = "attention-naive"
#: Distance between neighbouring numbers at 1.
ROUNDING = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}
#: What float32 kernels on matrix units (split operands) may be off by, relative to the sum of their terms' magnitudes.
HIGH_BOUND = 1e-5
#: Scores of this spread (their standard deviation, natural base) make exp overflow or vanish under a wrong maximum.
SPREAD = 10.0


def proven(device: Device, operation: str, dtype: str, facts: Mapping[str, int], family: str | None = None) -> Choice:
    """The best variant that needs no proof, to compare with. Raises UnsupportedError where there is none."""
    if family == NAIVE:
        # It has every option, and no use for classes of tiles and ways to read, which the request may ask for.
        facts = {name: fact for name, fact in facts.items() if name not in ("extras", "options")}
    request = Request(operation, dtype, problem=tuple(sorted(facts.items())), prefer=family)
    found = [v for v, reason in device.registry.explain(request) if reason is None and not v.unproven]
    if not found:
        raise UnsupportedError(f"there is no {family or 'other'} kernel for {dtype} to compare with")
    return device.registry.choice(min(found, key=lambda v: (-device.registry.rank(v), v.position)))


def difference(got: np.ndarray, expected: np.ndarray, bound: np.ndarray, dtype: str) -> str | None:
    """What sets two results apart, or None.

    Parameters
    ----------
    got, expected : numpy.ndarray
        ``(..., D)``. Rows with infinities must have them in the same places.
    bound : numpy.ndarray
        The largest difference that roundings explain, of each element.
    dtype : str
        For 16-bit types the root mean square is held to two roundings as well: sums of random terms come out far
        more alike than a bound on each element says, and a forgotten key shows only there.
    """
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(got[~finite], expected[~finite]):
        return "wrong infinities"
    error = np.abs(got[finite] - expected[finite])
    bound = np.broadcast_to(bound, expected.shape)[finite]
    if not np.all(error <= bound):  # NaN too
        worst = np.nanargmax(np.where(np.isfinite(error), error / np.maximum(bound, 1e-300), np.inf))
        return f"error {error[worst]:.2g}, {bound[worst]:.2g} expected at most"
    size = np.sqrt(np.mean(expected[finite] ** 2)) if finite.any() else 0.0
    apart = np.sqrt(np.mean(error**2)) if finite.any() else 0.0
    if dtype != "float32" and apart > 2 * ROUNDING[dtype] * size:
        return f"root mean square error {apart / size:.2g} of the result's, {2 * ROUNDING[dtype]:.2g} expected at most"
    return None


def attention_bound(magnitude: np.ndarray, scores: float, dtype: str) -> np.ndarray:
    """The largest difference expected between two attention kernels.

    Parameters
    ----------
    magnitude : numpy.ndarray
        Attention over the absolute values of V: the sum of the magnitudes of each output's terms.
    scores : float
        The largest sum of magnitudes behind a score.
    dtype : str
        For a 16-bit type: half a rounding each of P, of the row sum made of it, and of both results, with as much to
        spare. For float32: HIGH_BOUND, and more in proportion where scores exceed those of unit normal inputs.
    """
    if dtype != "float32":
        return 4 * ROUNDING[dtype] * magnitude + 1e-6
    return HIGH_BOUND * max(1.0, scores / 8) * magnitude + 1e-7


def product_bound(result: np.ndarray, magnitude: np.ndarray, dtype: str) -> np.ndarray:
    """The largest difference expected between two kernels' products.

    ``result`` is the product, ``magnitude`` the product of the absolute values. For 16-bit types: a rounding of the
    result for each of the two, and float32's over the sum, where matrix units may truncate; for float32 HIGH_BOUND.
    """
    if dtype != "float32":
        return 2 * ROUNDING[dtype] * np.abs(result) + 2.0**-18 * magnitude + 1e-7
    return HIGH_BOUND * magnitude + 1e-7


def longer(rng, shape, dtype, scale: float = 1.0) -> np.ndarray:
    """Random normal numbers ``(B, H, S + 8, D)``, the last 8 rows NaN: beyond what is attended to."""
    made = rng.standard_normal((*shape[:2], shape[2] + 8, shape[3])) * scale
    made[:, :, shape[2] :] = np.nan
    return made.astype(dtype)


def run(device: Device, q, k, v, kernel: str = NAIVE, **options) -> list[np.ndarray]:
    """O, and the log-sum-exp if asked for, of arrays by ``longer``."""
    tensors = [device.tensor(array)[:, :, :-8] for array in (q, k, v)]
    # Naming a family keeps the call from the kernels for decoding; which variant runs is pinned.
    result = forward.flash_attention("self-check", device, *tensors, kernel=kernel, **options)
    return [part.numpy() for part in (result if isinstance(result, tuple) else (result,))]
