"""The angles of rotary position embedding (Su et al. 2021, arXiv:2104.09864) as configurations describe them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..compute import Compute, Tensor
from ..compute.device.arrays import NDArray
from .config import Config

TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Rotary:
    """Radians per position of each pair of elements i and i + P, ``(P,)``; and a factor of queries and keys."""

    frequencies: NDArray[np.float64]
    factor: float = 1.0

    def tables(self, backend: Compute, length: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the first positions, ``(length, P)`` each."""
        angles = np.arange(length)[:, None] * self.frequencies
        return backend.tensor(np.cos(angles).astype(np.float32)), backend.tensor(np.sin(angles).astype(np.float32))


def rotary_of(config: Config, dim: int, positions: int) -> Rotary:
    """The angles that ``rope_parameters``, or ``rope_theta`` and ``rope_scaling`` of older files, describe.

    Parameters
    ----------
    config : Config
    dim : int
        Elements of a head, all of which are turned.
    positions : int
        ``max_position_embeddings``.

    Raises
    ------
    ModelError
        For a kind of scaling that is not there, and fields that it needs or that are not known.
    """
    base = config.number("rope_theta", 10000.0)
    name = "rope_parameters" if "rope_parameters" in config else "rope_scaling"
    config.unused("rope_parameters", "rope_scaling")
    given = config.inner(name)
    if given is None:
        return Rotary(_plain(base, dim))
    base = given.number("rope_theta", base)
    kind = given.text("rope_type", TYPES, given.text("type", TYPES, "default"))
    given.only(partial_rotary_factor=1.0)
    plain = _plain(base, dim)
    if kind == "default":
        given.unused("factor")
        return Rotary(plain)
    factor = given.number("factor")
    if kind == "linear":
        return Rotary(plain / factor)
    trained = given.integer("original_max_position_embeddings", positions)
    return _llama3(plain, factor, trained, given) if kind == "llama3" else _yarn(plain, factor, trained, base, given)


def _plain(base: float, dim: int) -> NDArray[np.float64]:
    return base ** (-np.arange(0, dim, 2) / dim)


def _llama3(plain: Any, factor: float, trained: int, given: Config) -> Rotary:
    """Slow pairs are slowed by the factor, fast ones left alone, with a line between: Llama 3.1's model card."""
    low, high = given.number("low_freq_factor"), given.number("high_freq_factor")
    turns = trained * plain / (2 * math.pi)  # of each pair over the length that the model was trained for
    share = np.clip((turns - low) / (high - low), 0, 1)
    return Rotary(plain * (share + (1 - share) / factor))


def _yarn(plain: Any, factor: float, trained: int, base: float, given: Config) -> Rotary:
    """The same by the number of the pair, and scores sharpened (Peng et al. 2023, arXiv:2309.00071)."""
    fast, slow = given.number("beta_fast", 32.0), given.number("beta_slow", 1.0)
    given.only(mscale=None, mscale_all_dim=None)
    dim = 2 * len(plain)

    def pair(turns: float) -> float:  # the pair that makes so many turns
        return dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(fast), pair(slow)
    if given.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    share = 1 - np.clip((np.arange(len(plain)) - low) / max(high - low, 0.001), 0, 1)
    sharper = given.number("attention_factor", 0.1 * math.log(factor) + 1 if factor > 1 else 1.0)
    return Rotary(plain * (share + (1 - share) / factor), sharper)
