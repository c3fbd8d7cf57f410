"""Small manifests for tests of the registry: no compiler, no real shader."""

import hashlib
import json

SPIRV = bytes.fromhex("03022307") + bytes(16)


def entry(name, operation="attention", **changes):
    """A manifest entry called ``family.variant[.case].dtype`` that any device can run, with ``changes``."""
    family, variant, *case, dtype = name.split(".")
    made = {
        "family": family, "variant": variant, "case": ".".join(case), "dtype": dtype, "operation": operation,
        "file": f"{name}.spv", "sha256": hashlib.sha256(SPIRV).hexdigest(), "key": "0" * 64, "compiler": "none",
        "target": "vulkan1.1", "models": ["generic"], "rank": 0, "rank_on": {}, "requires": [], "offers": [],
        "architectures": [],
        "subgroup_sizes": [], "align": 1, "limits": {}, "tile": {}, "threads": 64, "shared_bytes": 0,
        "keys_per_trip": None, "push_bytes": 16,
        "push": [["x_offset", "uint"], ["y_offset", "uint"], ["count", "int"], ["scale", "float"]],
        "bindings": [["x", "r"], ["y", "w"]], "constants": {}, "defines": {},
    }  # fmt: skip
    assert changes.keys() <= made.keys()
    if "push_bytes" in changes and "push" not in changes:
        changes["push"] = [[f"word_{n}", "uint"] for n in range(changes["push_bytes"] // 4)]
    return {**made, **changes}


def write_manifest(folder, entries):
    """Write manifest.json and the binaries into ``folder``; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    for made in entries:
        if "/" not in made.get("file", "/"):
            (folder / made["file"]).write_bytes(SPIRV)
    (folder / "manifest.json").write_text(json.dumps({"schema": 2, "variants": entries}))
    return folder
