"""Builds shaders: data files to cases, cases to checked binaries in the cache folder, binaries to the wheel's archives.

Used by tools/compile_shaders.py, by setup.py when a wheel is built, and by grilly itself in a source checkout
(registry/checkout.py). Needs neither NumPy nor grilly.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2] / "grilly_py/grilly"


def _load(path: str):
    # By path, not as grilly's: building must not need NumPy nor a package that imports cleanly.
    spec = importlib.util.spec_from_file_location(f"grilly_build_{Path(path).stem}", _PACKAGE / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


names = _load("registry/names.py")
files = _load("runtime/files.py")
spirv = _load("runtime/spirv.py")
