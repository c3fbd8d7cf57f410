"""What kernels and Python share, by name: feature bits, parameters of options, values of specialization constants.

The shaders state it; ``shader_constants`` is written from them. Before a kernel is used, the sources of a checkout, or
a wheel's manifest, are compared with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .names import OFFERS
from .shader_constants import CONSTANTS

_FEATURES = {name: name.upper().replace("-", "_") for name in OFFERS}
# One that shaders lack yet has none: what loads them says so.
_BITS = {name: int(CONSTANTS["features"][fact]) for name, fact in _FEATURES.items() if fact in CONSTANTS["features"]}
#: The parameters of a block of options, in their order.
PARAMETER_NAMES = tuple(name.lower() for name, _ in sorted(CONSTANTS["parameters"].items(), key=lambda item: item[1]))


def extras_bits(names: Iterable[str]) -> int:
    """The bits of FEATURES for names of ``names.OFFERS``."""
    return sum(_BITS[name] for name in set(names))


def extras_in(bits: int) -> list[str]:
    """The names of ``names.OFFERS`` that have their bits in ``bits``."""
    return [name for name, bit in _BITS.items() if bits & bit]


def value(table: str, name: str) -> int:
    """A whole number of a table."""
    return int(CONSTANTS[table][name])


def names_of(table: str) -> dict[str, int]:
    """The whole numbers of a table by their names, in small letters."""
    return {name.lower(): int(number) for name, number in CONSTANTS[table].items()}


def differing(stated: Mapping[str, Mapping[str, int | float]]) -> str:
    """What of the constants that shaders state is not as this package has it; empty where nothing is."""
    for table, constants in stated.items():
        for name, number in constants.items():
            known = CONSTANTS.get(table, {}).get(name)
            if known not in (None, number):
                return f"{name} among the shared {table} is {number} in the shaders and {known} in the package"
    return ""
