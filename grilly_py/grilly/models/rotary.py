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
    """Radians per position of each pair of elements i and i + P, ``(P,)``; a factor of queries and keys; and how long a
    text may be, None where that does not matter."""

    frequencies: NDArray[np.float64]
    factor: float = 1.0
    longest: int | None = None

    def tables(self, backend: Compute, length: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the first positions, ``(length, P)`` each, without the factor."""
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
        For a kind of scaling that is not there, and fields that it needs or does not know.
    """
    base = config.number("rope_theta", 10000.0, above=0)
    name = "rope_parameters" if "rope_parameters" in config else "rope_scaling"
    config.unused("rope_parameters", "rope_scaling")
    given = config.inner(name)
    if given is None:
        return Rotary(*rope_scaling(dim, base))
    kind = given.text("rope_type", TYPES, given.text("type", TYPES, "default"))
    given.only(partial_rotary_factor=1.0)
    scaling = {"rope_type": "default", **given.fields}
    scaling.pop("partial_rotary_factor", None)
    if "type" in scaling:
        scaling.pop("rope_type" if "rope_type" not in given.fields else "type")
    given.unused(*given.fields)  # rope_scaling names those that it does not know
    longest = None
    if kind == "longrope":  # where its trained length stands beside it in older files, transformers reads that
        trained = config.integer("original_max_position_embeddings", positions)
        longest = scaling.setdefault("original_max_position_embeddings", trained)
    elif kind == "dynamic":
        longest = positions
    try:
        return Rotary(*rope_scaling(dim, base, scaling, max_seq_len=positions), longest)
    except (ValueError, TypeError) as error:
        raise ModelError(f"{given.where}: {str(error).removeprefix('rope: ')}") from None
