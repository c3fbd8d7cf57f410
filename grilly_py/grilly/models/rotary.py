"""The angles of rotary position embedding (Su et al. 2021, arXiv:2104.09864) as configurations describe them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..compute import Compute, Tensor
from ..compute.device.arrays import NDArray
from ..errors import ModelError
from ..reference.rotary_scaling import rope_scaling
from .config import Config

#: Kinds of scaling. The last two depend on how long a text has become, and change when it passes the trained length:
#: here they are computed up to that.
TYPES = ("default", "linear", "llama3", "yarn", "dynamic", "longrope")


@dataclass(frozen=True)
class Rotary:
    """Radians per position of each pair of elements i and i + P, ``(P,)``; a factor of what is rotated; how long a text
    may be, None where that does not matter; whether heads are rotated as a whole; and the angles of layers with
    windows, None where they are the same."""

    frequencies: NDArray[np.float64]
    factor: float = 1.0
    longest: int | None = None
    whole: bool = True
    local: Rotary | None = None

    def turns_as(self, other: Rotary | None) -> bool:
        """Whether the other turns keys alike, by its numbers: copies of a model have a Rotary of their own."""
        return (
            other is not None
            and np.array_equal(self.frequencies, other.frequencies)
            and (self.factor, self.whole) == (other.factor, other.whole)
            and (other.local is None if self.local is None else self.local.turns_as(other.local))
        )

    def tables(self, backend: Compute, length: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the first positions, ``(length, P)`` each; with the factor where heads are not whole."""
        angles, factor = np.arange(length)[:, None] * self.frequencies, 1.0 if self.whole else self.factor
        cosines, sines = (factor * function(angles) for function in (np.cos, np.sin))
        return backend.tensor(cosines.astype(np.float32)), backend.tensor(sines.astype(np.float32))


#: Those that know how long the texts of training were.
TRAINED = ("llama3", "yarn", "longrope")


def rotary_of(config: Config, dim: int, positions: int, partial: bool = False, trained: int | None = None) -> Rotary:
    """The angles that ``rope_parameters``, or ``rope_theta`` and ``rope_scaling`` of older files, describe.

    Where both are there ``rope_scaling`` counts, as in transformers.

    Parameters
    ----------
    config : Config
    dim : int
        Elements of a head.
    positions : int
        ``max_position_embeddings``.
    partial : bool
        Whether ``partial_rotary_factor`` may say that only the first elements are rotated.
    trained : int, optional
        What ``original_max_position_embeddings`` is by default. Beside the field it counts before the one in it, as in
        transformers.

    Raises
    ------
    ModelError
        For a kind of scaling that is not there, and fields that it needs or does not know.
    """
    base = config.number("rope_theta", 10000.0, above=0)
    name = "rope_scaling" if config.fields.get("rope_scaling") else "rope_parameters"
    config.unused("rope_parameters", "rope_scaling")
    given = config.inner(name)
    share = _share(config, 1.0, partial)
    if given is None:
        rotated = _rotated(config, dim, share)
        return Rotary(*rope_scaling(rotated, base), whole=rotated == dim)
    for of, value in given.fields.items():
        if isinstance(value, dict):
            raise ModelError(f"{given.where}: layers of kind {of!r} have one of their own; expected one for all layers")
    rotated = _rotated(given, dim, _share(given, share, partial))
    kind = given.text("rope_type", TYPES, given.text("type", TYPES, "default"))
    scaling = {"rope_type": "default", **given.fields}
    scaling.pop("partial_rotary_factor", None)
    if "type" in scaling:
        scaling.pop("rope_type" if "rope_type" not in given.fields else "type")
    given.unused(*given.fields)  # rope_scaling names those that it does not know
    beside = config.integer("original_max_position_embeddings", trained)
    if kind in TRAINED:
        if beside is not None:
            scaling["original_max_position_embeddings"] = beside
        elif scaling.get("original_max_position_embeddings") is None:
            scaling["original_max_position_embeddings"] = positions
    longest = {"longrope": scaling.get("original_max_position_embeddings"), "dynamic": positions}.get(kind)
    try:
        return Rotary(*rope_scaling(rotated, base, scaling, max_seq_len=positions), longest, rotated == dim)
    except (ValueError, TypeError) as error:
        raise ModelError(f"{given.where}: {str(error).removeprefix('rope: ')}") from None


def _share(config: Config, default: float, partial: bool) -> float:
    """The part of a head that is rotated."""
    if not partial:
        config.only(partial_rotary_factor=1.0)
    share: float = config.number("partial_rotary_factor", default, above=0.0)
    return share


def _rotated(config: Config, dim: int, share: float) -> int:
    """How many elements of a head that is."""
    rotated = int(dim * share)
    if rotated % 2 or not 2 <= rotated <= dim:
        raise config.error("partial_rotary_factor", f"a part of a head of {dim} that is an even number of elements")
    return rotated
