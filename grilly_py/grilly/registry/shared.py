"""What kernels and Python share, by name: feature bits, words of headers, values of specialization constants.

The shaders state it; ``shader_facts`` is written from them. Before a kernel is used, the sources of a checkout, or a
wheel's manifest, are compared with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .names import OFFERS
from .shader_facts import FACTS

_FEATURES = {name: name.upper().replace("-", "_") for name in OFFERS}
# One that shaders lack yet has none: what loads them says so.
_BITS = {name: int(FACTS["features"][fact]) for name, fact in _FEATURES.items() if fact in FACTS["features"]}
#: The words of a header of options, in their order.
HEADER = tuple(name.lower() for name, _ in sorted(FACTS["header"].items(), key=lambda item: item[1]))


def extras_bits(names: Iterable[str]) -> int:
    """The bits of FEATURES for names of ``names.OFFERS``."""
    return sum(_BITS[name] for name in set(names))


def extras_in(bits: int) -> list[str]:
    """The names of ``names.OFFERS`` that have their bits in ``bits``."""
    return [name for name, bit in _BITS.items() if bits & bit]


def value(table: str, name: str) -> int:
    """A whole number of a table."""
    return int(FACTS[table][name])


def names_of(table: str) -> dict[str, int]:
    """The whole numbers of a table by their names, in small letters."""
    return {name.lower(): int(number) for name, number in FACTS[table].items()}


def differing(stated: Mapping[str, Mapping[str, int | float]]) -> str:
    """What of the facts that shaders state is not as this package has it; empty where nothing is."""
    for table, facts in stated.items():
        for name, number in facts.items():
            known = FACTS.get(table, {}).get(name)
            if known not in (None, number):
                return f"{name} among the shared {table} is {number} in the shaders and {known} in the package"
    return ""
