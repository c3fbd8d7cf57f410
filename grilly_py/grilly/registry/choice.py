"""What the registry is asked and what it answers: a request, and the variant chosen, of which programs are made."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ..runtime.interface import Filling, ProgramSpec
from .manifest import Manifest, Variant


class Request(NamedTuple):
    """What is to be computed, as far as the choice of a binary depends on it.

    Attributes
    ----------
    operation, dtype, model : str
        What the family's data file calls ``operation``, the element type, and the model architecture.
    problem : mapping of str to int, or tuple of (str, int)
        Sizes that variants have limits on, such as ``head_dim``. ``align`` is the largest power of two that divides
        every offset, stride and dimension, in elements (1 if left out). ``extras`` has the bits of what an attention
        call needs of ``names.EXTRAS`` (none if left out).
    prefer : str or None
        Only variants of this family are looked at.
    """

    operation: str
    dtype: str
    model: str = "generic"
    problem: Mapping[str, int] | tuple[tuple[str, int], ...] = ()
    prefer: str | None = None


class Choice:
    """A variant chosen for a device; ``spec`` makes a program of it.

    Attributes
    ----------
    variant : Variant
        The manifest's entry.
    subgroup_size : int or None
        The size to request; None leaves it to the driver.
    tile, threads, keys_per_trip
        The variant's, for the plan.
    """

    __slots__ = ("variant", "subgroup_size", "tile", "threads", "keys_per_trip", "_manifest", "_specs")

    def __init__(self, variant: Variant, subgroup_size: int | None, manifest: Manifest):
        self.variant = variant
        self.subgroup_size = subgroup_size
        self.tile = variant.tile
        self.threads = variant.threads
        self.keys_per_trip = variant.keys_per_trip
        self._manifest = manifest
        self._specs: dict[tuple, ProgramSpec] = {}

    def __repr__(self) -> str:
        return f"Choice({self.variant.name}, subgroup_size={self.subgroup_size})"

    def workgroups(self, items: int, each: int | None = None) -> tuple[int, int, int]:
        """Workgroups for so many items, ``each`` of them in one (by default one of an invocation), in stripes along x.

        A device may take no more than 65,535 along an axis: the kernel counts ``stripe`` of its tile along x.
        """
        count, stripe = -(-items // (self.threads if each is None else each)), self.tile["stripe"]
        return min(count, stripe), -(-count // stripe), 1

    def spec(
        self, constants: Mapping[str, int | float | bool] | None = None, filling: Filling | None = None
    ) -> ProgramSpec:
        """The program with these specialization constants.

        Parameters
        ----------
        constants : mapping
            A value for every constant the family declares. A float becomes the 32 bits of a float32, True and False
            1 and 0.
        filling : Filling, optional
            What fills the holes of the binary.

        Raises
        ------
        ValueError
            When a constant is missing, unknown, or does not fit 32 bits.
        ShaderError
            When the binary is missing or damaged.
        """
        # True == 1 == 1.0 as dictionary keys, and 1.0 has other bits than 1: the types belong to the key.
        key = tuple([(name, value, value.__class__) for name, value in constants.items()]) if constants else ()
        spec = self._specs.get(key)
        if spec is None:
            spec = self._specs[key] = self._make(dict(constants or {}))
        return spec if filling is None else replace(spec, filling=filling)

    def _make(self, constants: dict) -> ProgramSpec:
        variant = self.variant
        if constants.keys() != variant.constants.keys():
            missing = sorted(variant.constants.keys() - constants.keys())
            unknown = sorted(constants.keys() - variant.constants.keys())
            raise ValueError(
                f"{variant.name}: specialization constants missing: {missing}, unknown: {unknown}; "
                f"it declares {sorted(variant.constants)}"
            )
        pairs = sorted((variant.constants[name], _bits(variant, name, value)) for name, value in constants.items())
        return ProgramSpec(
            name=variant.name,
            digest=self._manifest.digest(variant),
            spirv=self._manifest.binary(variant),
            access=variant.access,
            push_bytes=variant.push_bytes,
            constants=tuple(pairs),
            subgroup_size=self.subgroup_size,
        )


def _bits(variant: Variant, name: str, value) -> int:
    if isinstance(value, float):
        try:
            return struct.unpack("<I", struct.pack("<f", value))[0]
        except OverflowError:
            raise ValueError(f"{variant.name}: constant {name} = {value} does not fit a float32") from None
    try:
        number = value.__index__()
    except AttributeError:
        raise ValueError(f"{variant.name}: constant {name} = {value!r}; wanted int, float or bool") from None
    if not -(2**31) <= number < 2**32:
        raise ValueError(f"{variant.name}: constant {name} = {number} does not fit 32 bits")
    return number & 0xFFFFFFFF
