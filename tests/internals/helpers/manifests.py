"""Small manifests for tests of the registry: no compiler, no real shader; and manifests put together of others."""

import gzip
import hashlib
import json
import lzma

from grilly.registry import Manifest
from grilly.registry.names import MANIFEST

SPIRV = bytes.fromhex("03022307") + bytes(16)
BLOCK = lzma.compress(SPIRV)


def entry(name, operation="attention", **changes):
    """A manifest entry called ``family.variant[.case].dtype`` that any device can run, with ``changes``."""
    family, variant, *case, dtype = name.split(".")
    made = {
        "family": family, "variant": variant, "case": ".".join(case), "dtype": dtype, "operation": operation,
        "target": "vulkan1.1", "models": ["generic"], "rank": 0, "rank_on": {}, "requires": [], "offers": [],
        "architectures": [],
        "subgroup_sizes": [], "align": 1, "limits": {}, "tile": {}, "threads": 64, "shared_bytes": 0,
        "keys_per_trip": None, "push_bytes": 16,
        "push": [["x_offset", "uint"], ["y_offset", "uint"], ["count", "int"], ["scale", "float"]],
        "bindings": [["x", "r"], ["y", "w"]], "constants": {}, "defines": {},
        "key": hashlib.sha256(name.encode()).hexdigest()[:32], "sha256": hashlib.sha256(SPIRV).hexdigest()[:32],
        "archive": f"{family}.xz", "block": [0, len(BLOCK)], "place": [0, len(SPIRV)],
    }  # fmt: skip
    assert changes.keys() <= made.keys()
    if "push_bytes" in changes and "push" not in changes:
        changes["push"] = [[f"word_{n}", "uint"] for n in range(changes["push_bytes"] // 4)]
    return {**made, **changes}


def write_manifest(folder, entries):
    """Write the manifest and the archives into ``folder``; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    for made in entries:
        if "/" not in made.get("archive", "/"):
            (folder / made["archive"]).write_bytes(BLOCK)
    manifest = {"schema": 6, "constants": {}, "families": {}, "variants": entries}
    put_manifest(folder, json.dumps(manifest).encode())
    return folder


def manifest_file(folder):
    """Where the manifest of a folder of packed shaders lies."""
    return folder / MANIFEST


def read_packed(folder):
    """(entries of a folder's manifest, its binaries by the names of their variants)."""
    shaders = Manifest(folder)
    return shaders.source.entries(), {variant.name: shaders.binary(variant) for variant in shaders.variants}


def put_manifest(folder, data: bytes) -> None:
    """Write these bytes as a folder's manifest."""
    (folder / MANIFEST).write_bytes(gzip.compress(data, 1))


def manifest_text(folder) -> str:
    """A folder's manifest, as JSON."""
    return gzip.decompress((folder / MANIFEST).read_bytes()).decode()


class Joined:
    """A source made of others; a family that an earlier one has is left out of a later one.

    ``more`` has pairs of a further entry and the name of the variant whose binary it has.
    """

    place, remedy = "joined", "look at the test"

    def __init__(self, *sources, more=()):
        self._entries, self._where = [], {}
        for source in sources:
            families = {made["family"] for made in self._entries}
            new = [made for made in source.entries() if made["family"] not in families]
            self._entries += new
            self._where |= {name_of(made): (source, name_of(made)) for made in new}
        for made, real in more:
            self._entries.append(made)
            self._where[name_of(made)] = self._where[real]

    def entries(self):
        return self._entries

    def key(self, name):
        source, real = self._where[name]
        return f"{name}: {source.key(real)}"

    def binary(self, name):
        source, real = self._where[name]
        return source.binary(real)


def name_of(made):
    """The name of an entry's variant."""
    return ".".join(made[key] for key in ("family", "variant", "case", "dtype") if made[key])
