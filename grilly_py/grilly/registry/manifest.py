"""Loads spirv/manifest.json, checks it, and reads the binaries it lists."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ShaderError
from ..runtime.files import parse_json, read_file
from ..runtime.lifetime import in_child
from .names import DTYPES, EXTRAS, FEATURES, MANIFEST_SCHEMA, SIXTEEN_BITS, extras_bits

if TYPE_CHECKING:
    from importlib.abc import Traversable

#: Set to 1, it compiles the changed shaders of a source checkout before the manifest is loaded.
COMPILE_VARIABLE = "GRILLY_COMPILE_SHADERS"
_PACKAGE = Path(__file__).resolve().parents[1]
#: Bytes of a manifest, or of a binary, at most.
_MOST_BYTES = 256 << 20
_REINSTALL = "reinstall grilly, or in a source checkout run: python tools/compile_shaders.py"


@dataclass(frozen=True, eq=False)
class Variant:
    """One binary: a case of a variant of a family, for one dtype.

    Attributes
    ----------
    name : str
        ``family.variant[.case].dtype``.
    label : str
        ``family.variant[.case]``, as shown where the dtype is known.
    file, sha256 : str
        The binary's file in the manifest's folder, and the SHA-256 of its bytes.
    models : tuple of str
        Model architectures served.
    rank, rank_on
        Precedence among variants that can run, and its value on certain architectures.
    limits : mapping
        Fact name to the inclusive (lowest, highest) value the variant is right for.
    align : int
        The power of two that must divide every offset, stride and dimension, in elements.
    offers : tuple of str
        Names of ``names.EXTRAS``: what an attention kernel can do beyond masks and causality. ``offered`` has their
        bits.
    tile : mapping
        Sizes the plan reads, such as ``rows`` and ``keys``.
    threads, shared_bytes, push_bytes : int
        Invocations in a workgroup; bytes of shared memory and of push constants.
    keys_per_trip : float or None
        Keys handled per loop trip of one invocation.
    access : tuple of str
        "r", "w" or "rw" of each binding; ``bindings`` holds their names.
    constants : mapping
        Specialization constant's name to its id.
    """

    family: str
    variant: str
    case: str
    dtype: str
    operation: str
    file: str
    sha256: str
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
    bindings: tuple[str, ...]
    access: tuple[str, ...]
    constants: Mapping[str, int]
    defines: Mapping[str, float]
    position: int
    compiler: str = ""
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
    "file": str,
    "sha256": str,
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
    "bindings": list,
    "constants": dict,
    "defines": dict,
    "compiler": str,
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
    unknown = [name for name in entry["offers"] if name not in EXTRAS]
    if unknown:
        raise ValueError(f"it offers unknown features {unknown}")
    if Path(entry["file"]).name != entry["file"]:
        raise ValueError(f"file {entry['file']!r} is not a bare file name")
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
    except (TypeError, ValueError) as error:
        raise ValueError(f"its limits or bindings are malformed: {error}") from error
    if not set(values["access"]) <= {"r", "w", "rw"}:
        raise ValueError(f"its bindings' access letters are {values['access']}")
    values["requires"] = tuple(sorted(requires))
    return Variant(position=position, **values)


def read_resource(path: Path | Traversable) -> bytes:
    """The bytes of a file of a folder, or of an archive that the package was imported from.

    Raises
    ------
    FileNotFoundError
        When it is not there.
    OSError
        When it cannot be read.
    """
    if isinstance(path, Path):
        data = read_file(path, _MOST_BYTES)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return data
    try:
        return path.read_bytes()
    except KeyError as error:  # what zipfile raises for a name that the archive lacks
        raise FileNotFoundError(errno.ENOENT, "No such file in the archive", str(path)) from error


class Manifest:
    """The compiled shaders of one folder.

    Parameters
    ----------
    folder : Path, optional
        Holds ``manifest.json`` and the binaries; the package's own by default, wherever it was imported from.

    Raises
    ------
    ShaderError
        When the manifest is missing or damaged, names the same thing twice, or was made for another version of grilly.
    """

    def __init__(self, folder: Path | None = None):
        if folder is not None:
            self.folder = Path(folder)
        else:  # what was imported from an archive lies in no folder
            self.folder = (_PACKAGE if _PACKAGE.is_dir() else resources.files("grilly")) / "spirv"
        self.path = self.folder / "manifest.json"
        self._binaries: dict[str, bytes] = {}
        self.variants = self._load()
        self.by_operation: dict[str, tuple[Variant, ...]] = {}
        for variant in self.variants:
            present = self.by_operation.get(variant.operation, ())
            self.by_operation[variant.operation] = (*present, variant)

    def _load(self) -> tuple[Variant, ...]:
        try:
            data = parse_json(read_resource(self.path))
        except FileNotFoundError:
            raise ShaderError(f"{self.path} is missing; {_REINSTALL}") from None
        except (OSError, ValueError, MemoryError) as error:
            raise ShaderError(f"{self.path} cannot be read as JSON: {error}; {_REINSTALL}") from error
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema != MANIFEST_SCHEMA:
            raise ShaderError(f"{self.path} has schema {schema!r}, this grilly reads {MANIFEST_SCHEMA}; {_REINSTALL}")
        entries = data.get("variants")
        if not isinstance(entries, list) or not entries:
            raise ShaderError(f"{self.path} lists no variants; {_REINSTALL}")
        variants, seen = [], {}
        for position, entry in enumerate(entries):
            try:
                variant = _variant(entry, position)
            except ValueError as error:
                name = entry.get("file") if isinstance(entry, dict) else None
                raise ShaderError(f"{self.path}: entry {position + 1} ({name}): {error}; {_REINSTALL}") from error
            limits = tuple(sorted(variant.limits.items()))
            for model in variant.models:
                identity = (variant.operation, model, variant.dtype, variant.family, variant.variant, limits)
                if identity in seen:
                    raise ShaderError(
                        f"{self.path}: {variant.name} and {seen[identity]} both serve operation {variant.operation}, "
                        f"model {model}, {variant.dtype} within the same limits; give one other limits or remove it"
                    )
                seen[identity] = variant.name
            variants.append(variant)
        return tuple(variants)

    def binary(self, variant: Variant) -> bytes:
        """The variant's SPIR-V, read at first use.

        Raises ShaderError when the file is missing or its SHA-256 is not the manifest's.
        """
        spirv = self._binaries.get(variant.file)
        if spirv is None:
            path = self.folder / variant.file
            try:
                spirv = read_resource(path)
            except OSError as error:
                raise ShaderError(f"{path} cannot be read: {error.strerror or error}; {_REINSTALL}") from error
            digest = hashlib.sha256(spirv).hexdigest()
            if digest != variant.sha256:
                raise ShaderError(
                    f"{path} is damaged: its SHA-256 is {digest}, manifest.json says {variant.sha256}; {_REINSTALL}"
                )
            self._binaries[variant.file] = spirv
        return spirv


def compile_checkout(package: Path = _PACKAGE) -> None:
    """Run tools/compile_shaders.py of the source checkout that holds the package.

    Raises ShaderError when there is no such checkout, or with the compiler's own words when a shader does not compile.
    """
    root = package.parents[1]
    tool = root / "tools/compile_shaders.py"
    if not tool.is_file() or not (root / "shaders").is_dir():
        raise ShaderError(
            f"{COMPILE_VARIABLE} is set, but {package} is not in a source checkout ({root} has no shaders/ and "
            f"tools/compile_shaders.py); unset it, or install grilly from a checkout with pip install -e"
        )
    done = subprocess.run([sys.executable, str(tool)], capture_output=True, text=True)
    if done.returncode:
        raise ShaderError(f"{COMPILE_VARIABLE} is set, and shaders do not compile:\n{done.stderr.strip()}")


_lock = threading.Lock()
in_child(_lock._at_fork_reinit)
_default: Manifest | None = None


def default_manifest() -> Manifest:
    """The package's manifest, loaded at the first call and kept.

    With the environment variable ``GRILLY_COMPILE_SHADERS=1`` the first call compiles changed shaders beforehand.

    Raises ShaderError as Manifest and ``compile_checkout`` do.
    """
    global _default
    with _lock:
        if _default is None:
            if os.environ.get(COMPILE_VARIABLE, "") not in ("", "0"):
                compile_checkout()
            _default = Manifest()
        return _default
