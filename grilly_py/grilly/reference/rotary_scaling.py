"""Other frequencies of rotary positions, for models that run past the length they were trained for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

#: What each type must have and may have beside its name.
_KEYS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    name: (frozenset(must), frozenset(may))
    for name, must, may in (
        ("default", (), ()),
        ("linear", ("factor",), ()),
        ("ntk", ("factor",), ()),
        ("dynamic", ("factor",), ("original_max_position_embeddings",)),
        ("yarn", ("factor",), ("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
                               "mscale", "mscale_all_dim", "truncate")),
        ("longrope", ("short_factor", "long_factor"),
         ("factor", "original_max_position_embeddings", "attention_factor")),
        ("llama3", ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    )
}  # fmt: skip
#: Types that depend on the length of training: "llama3" must have it.
_FOLLOW = ("dynamic", "yarn", "longrope")


def rope_scaling(
    dim: int,
    base: float = 10000.0,
    scaling: Mapping[str, Any] | None = None,
    length: int = 0,
    max_seq_len: int | None = None,
) -> tuple[np.ndarray, float]:
    """Radians that each pair turns by per position, float64 ``(dim / 2,)``, and what the turned elements are scaled by.

    Without ``scaling`` pair i turns by ``w_i = base ** (-2 i / dim)``, and the scale is 1.

    Parameters
    ----------
    dim : int
        Elements that are turned; even.
    base : float
        Called ``rope_theta`` in transformers.
    scaling : mapping, optional
        transformers' ``rope_scaling`` or ``rope_parameters``, its type under "rope_type" or "type". With f for "factor"
        and M for "original_max_position_embeddings", or else ``max_seq_len``:

        - "default": nothing.
        - "linear": ``w_i / f`` (Chen et al. 2023, arXiv:2306.15595).
        - "ntk": ``base * f ** (dim / (dim - 2))`` for the base.
        - "dynamic": the same with ``f length / M - (f - 1)`` for f once ``length`` exceeds M. (transformers 5.24
          ignores "original_max_position_embeddings" here.)
        - "yarn" (Peng et al. 2023, arXiv:2309.00071): ``w_i / f`` for pairs that turn less than "beta_slow" (1) times
          within M positions, ``w_i`` for those that turn more than "beta_fast" (32) times, and between them a mixture,
          linear in i, of which the ends are whole numbers unless "truncate" is False. The scale is
          "attention_factor"; without it ``0.1 ln(f) + 1``, or with "mscale" and "mscale_all_dim" the quotient of
          ``0.1 m ln(f) + 1`` for both.
        - "longrope" (Ding et al. 2024, arXiv:2402.13753): ``w_i`` divided by "long_factor" [i] once ``length`` exceeds
          M, by "short_factor" [i] up to there. The scale is "attention_factor", or else
          ``sqrt(1 + ln(f) / ln(M))`` with ``max_seq_len / M`` for f where it is not given, and 1 for f up to 1.
        - "llama3": ``w_i / f`` for waves longer than M / "low_freq_factor", ``w_i`` for those shorter than
          M / "high_freq_factor", and between them a mixture, linear in M / wavelength.

        "rope_theta" may be there, and is then the base; and a "partial_rotary_factor" of 1.
    length : int
        Of the sequence, for "dynamic" and "longrope".
    max_seq_len : int, optional
        The model's ``max_position_embeddings``; needed where a type asks for M, or "longrope" for f, and has none.

    Raises
    ------
    ValueError
        If ``dim`` is not even and positive, or ``scaling`` has another type, lacks a key, has one that its type does
        not know, or a number that makes no sense; and without a length that its type follows.
    TypeError
        If ``scaling`` is no mapping.
    """
    if dim < 2 or dim % 2:
        raise ValueError(f"rope: dim is {dim}; it must be even and at least 2")
    kind, given = _understood(scaling)
    base = float(given.get("rope_theta", base))
    plain = base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    factor = given.get("factor", 1.0)
    trained = given.get("original_max_position_embeddings", max_seq_len)
    if trained is None and kind in _FOLLOW:
        raise ValueError(
            f"rope: scaling of type {kind!r} follows the length that the model was trained for; give max_seq_len (its "
            "max_position_embeddings), or scaling with 'original_max_position_embeddings'"
        )
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "ntk" or kind == "dynamic" and length > trained:
        grow = factor if kind == "ntk" else factor * length / trained - (factor - 1)
        return plain * grow ** (-np.arange(0, dim, 2, dtype=np.float64) / max(dim - 2, 1)), 1.0
    if kind == "yarn":
        return _yarn(plain, base, factor, trained, given)
    if kind == "longrope":
        divide = np.asarray(given["long_factor" if length > trained else "short_factor"], np.float64)
        if divide.shape != plain.shape:
            raise ValueError(f"rope: longrope's factors have shape {divide.shape}; expected ({len(plain)},)")
        if "factor" not in given and "attention_factor" not in given:
            if max_seq_len is None:
                raise ValueError(
                    "rope: scaling of type 'longrope' has no 'factor'; give max_seq_len (max_position_embeddings), by "
                    "which it is found"
                )
            factor = max_seq_len / trained
        found = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
        return plain / divide, float(given.get("attention_factor", found))
    if kind == "llama3":
        low, high = given["low_freq_factor"], given["high_freq_factor"]
        smooth = np.clip((trained * plain / (2 * math.pi) - low) / (high - low), 0, 1)
        return (1 - smooth) * plain / factor + smooth * plain, 1.0
    return plain, 1.0


def _understood(scaling: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """The type, and the other keys that say something. Raises TypeError and ValueError for what is not understood."""
    if scaling is None:
        return "default", {}
    if not isinstance(scaling, Mapping):
        raise TypeError(
            f'rope: scaling is {scaling!r}; expected a dict, such as {{"rope_type": "linear", "factor": 2.0}}'
        )
    nested = [name for name, value in scaling.items() if isinstance(value, Mapping)]
    if nested:  # transformers' of models whose layers are not all alike
        raise ValueError(
            "rope: scaling has one dict for each kind of layer; give one of them, "
            f"scaling=rope_parameters[{nested[0]!r}]"
        )
    given = {name: value for name, value in scaling.items() if value is not None}
    kinds = {given.pop(name) for name in ("rope_type", "type") if name in given}
    if len(kinds) != 1 or (kind := kinds.pop()) not in _KEYS:
        raise ValueError(
            f"rope: scaling is {dict(scaling)}; expected one type, of {', '.join(map(repr, _KEYS))}, under 'rope_type'"
        )
    must, may = _KEYS[kind]
    part = given.pop("partial_rotary_factor", 1.0)
    if part != 1.0:
        raise ValueError(
            f"rope: scaling has 'partial_rotary_factor' {part}; give dim=int(head_dim * {part}) and scaling without it"
        )
    if odd := sorted(given.keys() - must - may - {"rope_theta"}):
        raise ValueError(f"rope: scaling of type {kind!r} has {odd[0]!r}, which it does not know")
    if lacks := sorted(must - given.keys()):
        raise ValueError(f"rope: scaling of type {kind!r} lacks {lacks[0]!r}")
    for name, value in given.items():
        if name == "truncate":
            continue
        numbers = np.asarray(value, np.float64)
        least = 1 if name == "factor" else 0
        if not (np.isfinite(numbers).all() and (numbers >= least if least else numbers > 0).all()):
            raise ValueError(f"rope: {name} of scaling is {value}; expected {'1 or more' if least else 'more than 0'}")
        if numbers.ndim != (name in ("short_factor", "long_factor")):
            raise ValueError(f"rope: {name} of scaling is {value}; expected {'a number' if numbers.ndim else 'a list'}")
    if kind == "llama3" and not given["low_freq_factor"] < given["high_freq_factor"]:
        raise ValueError("rope: low_freq_factor of scaling is not below high_freq_factor")
    return kind, given


def _yarn(plain: np.ndarray, base: float, factor: float, trained: float, given: dict[str, Any]):
    pairs = len(plain)

    def pair(turns: float) -> float:
        """The pair, not whole, that turns so many times within the trained length."""
        return pairs * math.log(trained / (2 * math.pi * turns)) / math.log(base)

    first, last = pair(given.get("beta_fast", 32)), pair(given.get("beta_slow", 1))
    if given.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    # Where both ends are one pair, the step between the two kinds lies there.
    divided = np.clip((np.arange(pairs) - first) / (last - first if last != first else 0.001), 0, 1)

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    found = scale(1)
    if "mscale" in given and "mscale_all_dim" in given:
        found = scale(given["mscale"]) / scale(given["mscale_all_dim"])
    return plain * (1 - divided) + plain / factor * divided, float(given.get("attention_factor", found))


__all__ = ["rope_scaling"]
