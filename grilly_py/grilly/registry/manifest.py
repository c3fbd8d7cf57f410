"""The manifest: every variant there is, checked, and where its binary comes from.

A source of shaders is a wheel's folder (``packed``) or a checkout (``checkout``). A choice is made from the entries
alone; a binary is read, or compiled, when it is first used.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from ..errors import ShaderError
from ..runtime.lifetime import in_child
from .checkout import Checkout, checkout_of
from .names import DTYPES, FEATURES, OFFERS, SIXTEEN_BITS
from .packed import Packed
from .shared import extras_bits

#: A folder written by ``tools/compile_shaders.py --pack``, to use in place of the package's own shaders.
FOLDER_VARIABLE = "GRILLY_SHADERS"
_PACKAGE = Path(__file__).resolve().parents[1]


class Source(Protocol):
    """Where a manifest's entries and binaries come from. Every method raises ShaderError, with the remedy."""

    #: For messages: what the entries are from.
    place: str
    #: For messages: what to do about a wrong entry.
    remedy: str

    def entries(self) -> list[dict]:
        """The entries, in order of precedence among equals."""

    def key(self, name: str) -> str:
        """A hash over all that the variant ``name`` is made from, its identity between runs."""

    def binary(self, name: str) -> tuple[bytes, str]:
        """The variant's SPIR-V and its SHA-256, which has been compared with a recorded one."""


@dataclass(frozen=True, eq=False)
class Variant:
    """One binary: a case of a variant of a family, for one dtype.

    Attributes
    ----------
    name : str
        ``family.variant[.case].dtype``.
    label : str
        ``family.variant[.case]``, as shown where the dtype is known.
    models : tuple of str
        Model architectures served.
    rank, rank_on
        Precedence among variants that can run, and its value on certain architectures.
    limits : mapping
        Fact name to the inclusive (lowest, highest) value the variant is right for.
    align : int
        The power of two that must divide every offset, stride and dimension, in elements.
    offers : tuple of str
        Names of ``names.OFFERS``: what an attention kernel can do beyond masks and causality. ``offered`` has their
        bits.
    tile : mapping
        Sizes the plan reads, such as ``rows`` and ``keys``.
    threads, shared_bytes, push_bytes : int
        Invocations in a workgroup; bytes of shared memory and of push constants.
    keys_per_trip : float or None
        Keys handled per loop trip of one invocation.
    push : tuple of (str, str)
        The push constants' names and types: "uint", "int" or "float".
    access : tuple of str
        "r", "w", "rw" or "rt" (texels) of each binding; ``bindings`` holds their names.
    constants : mapping
        Specialization constant's name to its id.
    """

    family: str
    variant: str
    case: str
    dtype: str
    operation: str
    models: tuple[str, ...]
    rank: int
    rank_on: Mapping[str, int]
    requires: tuple[str, ...]
    offers: tuple[str, ...]
    architectures: tuple[str, ...]
    subgroup_sizes: tuple[int, ...]
    align: int
    limits: Mapping[str, tuple[int, int]]
    tile: Mapping[str, int]
    threads: int
    shared_bytes: int
    keys_per_trip: float | None
    push_bytes: int
    push: tuple[tuple[str, str], ...]
    bindings: tuple[str, ...]
    access: tuple[str, ...]
    constants: Mapping[str, int]
    defines: Mapping[str, float]
    position: int
    target: str = ""
    label: str = field(init=False)
    name: str = field(init=False)
    offered: int = field(init=False)

    def __post_init__(self):
        label = ".".join(part for part in (self.family, self.variant, self.case) if part)
        object.__setattr__(self, "label", label)
        object.__setattr__(self, "name", f"{label}.{self.dtype}")
        object.__setattr__(self, "offered", extras_bits(self.offers))

    @property
    def unproven(self) -> bool:
        """Whether it uses matrix units, which some drivers offer and compute wrongly: it needs a self-check."""
        return any(feature == "cooperative-matrix" or feature.startswith("matrix-") for feature in self.requires)


_REQUIRED = {
    "family": str,
    "variant": str,
    "case": str,
    "dtype": str,
    "operation": str,
    "models": list,
    "rank": int,
    "rank_on": dict,
    "requires": list,
    "offers": list,
    "architectures": list,
    "subgroup_sizes": list,
    "align": int,
    "limits": dict,
    "tile": dict,
    "threads": int,
    "shared_bytes": int,
    "keys_per_trip": (int, float, type(None)),
    "push_bytes": int,
    "push": list,
    "bindings": list,
    "constants": dict,
    "defines": dict,
    "target": str,
}


def _variant(entry: dict, position: int) -> Variant:
    """The entry as a Variant; raises ValueError saying what is wrong with it."""
    if not isinstance(entry, dict):
        raise ValueError("it is no object")
    for key, kind in _REQUIRED.items():
        if key not in entry:
            raise ValueError(f"it lacks {key!r}")
        if not isinstance(entry[key], kind) or isinstance(entry[key], bool):
            raise ValueError(f"{key!r} is {entry[key]!r}")
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"dtype {entry['dtype']!r} is not one of {', '.join(DTYPES)}")
    unknown = [feature for feature in entry["requires"] if feature not in FEATURES]
    if unknown:
        raise ValueError(f"it requires unknown features {unknown}")
    unknown = [name for name in entry["offers"] if name not in OFFERS]
    if unknown:
        raise ValueError(f"it offers unknown features {unknown}")
    requires = set(entry["requires"])
    if entry["dtype"] in SIXTEEN_BITS:
        requires.add("float16-storage")
    values = {key: entry[key] for key in _REQUIRED}
    for key in ("models", "offers", "architectures", "subgroup_sizes"):
        values[key] = tuple(values[key])
    try:
        values["limits"] = {fact: (int(low), int(high)) for fact, (low, high) in values["limits"].items()}
        values["bindings"] = tuple(name for name, _ in entry["bindings"])
        values["access"] = tuple(access for _, access in entry["bindings"])
        values["push"] = tuple((name, {"uint": "uint", "int": "int", "float": "float"}[kind])
                               for name, kind in entry["push"])  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its limits, push constants or bindings are malformed: {error}") from error
    if 4 * len(values["push"]) != entry["push_bytes"]:
        raise ValueError(f"it names {len(values['push'])} push constants, and push_bytes is {entry['push_bytes']}")
    if not set(values["access"]) <= {"r", "w", "rw", "rt"}:
        raise ValueError(f"its bindings' access letters are {values['access']}")
    values["requires"] = tuple(sorted(requires))
    return Variant(position=position, **values)


class Manifest:
    """The shaders of one source.

    Parameters
    ----------
    source : Path or Source
        A folder as in a wheel, or another source.

    Raises
    ------
    ShaderError
        When an entry is missing or damaged, or two name or serve the same thing.
    """

    def __init__(self, source: Path | Source):
        self.source: Source = Packed(source) if isinstance(source, Path) else source
        self._binaries: dict[str, tuple[bytes, str]] = {}
        self.variants = self._load()
        self.by_operation: dict[str, tuple[Variant, ...]] = {}
        for variant in self.variants:
            present = self.by_operation.get(variant.operation, ())
            self.by_operation[variant.operation] = (*present, variant)

    def _load(self) -> tuple[Variant, ...]:
        place, remedy = self.source.place, self.source.remedy
        variants, seen, named = [], {}, set()
        for position, entry in enumerate(self.source.entries()):
            try:
                variant = _variant(entry, position)
                if variant.name in named:
                    raise ValueError("an entry before it has its name")
            except ValueError as error:
                name = [str(entry.get(key)) for key in ("family", "variant", "case", "dtype") if entry.get(key)]
                text = f"{place}: entry {position + 1} ({'.'.join(name)}): {error}; {remedy}"
                raise ShaderError(text) from error
            named.add(variant.name)
            limits = tuple(sorted(variant.limits.items()))
            for model in variant.models:
                devices = (variant.architectures, frozenset(variant.requires))
                identity = (variant.operation, model, variant.dtype, variant.family, variant.variant, limits, devices)
                if identity in seen:
                    raise ShaderError(
                        f"{place}: {variant.name} and {seen[identity]} both serve operation {variant.operation}, "
                        f"model {model}, {variant.dtype} within the same limits, on the same devices; give one others "
                        "or remove it"
                    )
                seen[identity] = variant.name
            variants.append(variant)
        if not variants:
            raise ShaderError(f"{place} lists no variants; {remedy}")
        return tuple(variants)

    def key(self, variant: Variant) -> str:
        """A hash over all that the variant is made from. Raises ShaderError as ``binary`` does."""
        return self.source.key(variant.name)

    def binary(self, variant: Variant) -> bytes:
        """The variant's SPIR-V, read or compiled at first use.

        Raises ShaderError when it is missing or damaged; in a checkout when it does not compile, with the compiler's
        own words, or when there is no compiler.
        """
        return self._binary(variant)[0]

    def digest(self, variant: Variant) -> str:
        """The SHA-256 of the variant's SPIR-V. Raises ShaderError as ``binary`` does."""
        return self._binary(variant)[1]

    def _binary(self, variant: Variant) -> tuple[bytes, str]:
        found = self._binaries.get(variant.name)
        if found is None:
            found = self._binaries.setdefault(variant.name, self.source.binary(variant.name))
        return found


_lock = threading.RLock()  # a signal handler may come here in the midst of it
in_child(_lock._at_fork_reinit)
_default: Manifest | None = None


def default_manifest() -> Manifest:
    """The package's manifest, loaded at the first call and kept.

    It is that of the folder which the environment variable ``GRILLY_SHADERS`` names, else of the source checkout that
    holds the package, else of the package's own folder.

    Raises ShaderError as Manifest does.
    """
    global _default
    with _lock:
        if _default is None:
            _default = Manifest(default_source())
        return _default


def default_source() -> Source:
    """Where ``default_manifest`` finds its shaders."""
    if folder := os.environ.get(FOLDER_VARIABLE):
        return Packed(Path(folder), f"{FOLDER_VARIABLE} names it; run: python tools/compile_shaders.py --pack {folder}")
    root = checkout_of(_PACKAGE)
    return Packed(files(__package__.partition(".")[0]) / "spirv") if root is None else Checkout(root)
