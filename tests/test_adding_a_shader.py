"""docs/adding-a-shader.md, done: its blocks become files in a copy of the checkout, which then compiles and passes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED_BLOCK = re.compile(r"^`([^`\n]+)`:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_guide_works(tmp_path, vulkan_backend):
    files = dict(NAMED_BLOCK.findall((ROOT / "docs/adding-a-shader.md").read_text()))
    assert {Path(name).suffix for name in files} == {".comp", ".toml", ".py"}
    # Only what the guide's files need (`contiguous` copies): with all families the compiler would take minutes.
    shutil.copytree(ROOT / "shaders/include", tmp_path / "shaders/include")
    (tmp_path / "shaders/elementwise").mkdir()
    for name in ("copy.comp", "copy.toml"):
        shutil.copy(ROOT / "shaders/elementwise" / name, tmp_path / "shaders/elementwise")
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "grilly_py", tmp_path / "grilly_py", ignore=skip)
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=skip)
    (tmp_path / "tests").mkdir()
    for name in ("conftest.py", "leftout.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name, text in files.items():
        path = tmp_path / name
        assert not (ROOT / name).exists(), f"the guide adds {name}, and the checkout has it already"
        path.write_text(text)

    def run(*command):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "grilly_py")}
        environment.pop("GRILLY_SHADERS", None)
        return subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )

    compiled = run("tools/compile_shaders.py")
    if compiled.returncode == 2:  # no compiler, or another version
        pytest.skip(compiled.stderr.strip())
    assert compiled.returncode == 0, compiled.stderr
    sizes = json.loads((tmp_path / "shaders/facts.json").read_text())
    assert {name for name in sizes if name.startswith("relu")} == {"relu.flat.float32", "relu.flat.float16"}
    tests = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_relu.py")
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert re.search(r"\d+ passed", tests.stdout), tests.stdout
    shown = run("-m", "grilly", "shaders", "--operation", "relu", "--explain")
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"relu\.flat.*used", shown.stdout), shown.stdout
