"""docs/adding-a-shader.md, done: its blocks become files in a copy of the checkout, which then compiles and passes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import guides
from compilers import needs_compiler


@needs_compiler
def test_the_guide_works(tmp_path, vulkan_backend):
    guide = guides.Guide("adding-a-shader.md")
    assert {Path(name).suffix for name in guide.touched} == {".comp", ".toml", ".py"}
    # Only what the guide's files need (a view is copied by `map`): with all families the compiler would take minutes.
    copied = [f"arrays/{name}.{ending}" for name in ("map", "expressions") for ending in ("comp", "toml")]
    guides.bare_copy(tmp_path, ("include", *copied))
    guide.apply(tmp_path)
    compiled = guides.run(tmp_path, "tools/compile_shaders.py")
    assert compiled.returncode == 0, compiled.stderr
    sizes = json.loads((tmp_path / "shaders/sizes.json").read_text())
    assert {name for name in sizes if name.startswith("relu")} == {"relu.flat.float32", "relu.flat.float16"}
    assert guides.passed(tmp_path, "tests/internals/test_relu.py") >= 6
    shown = guides.run(tmp_path, "-m", "grilly", "shaders", "--operation", "relu", "--explain")
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"relu\.flat.*used", shown.stdout), shown.stdout
