"""Tests of behaviour use the public interface: only internals/, and conftest.py for fixtures, look inside grilly."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import interface
from interface import TESTS, documented, is_public, outside, uses

INTERNALS = TESTS / "internals"


@pytest.mark.parametrize("path", outside(), ids=lambda path: str(path.relative_to(TESTS)))
def test_a_test_uses_what_is_public(path):
    found = uses(path.read_text(encoding="utf-8"))
    assert not found, "\n".join(f"{path.name}:{use.line}: {use.kind} {use.what}" for use in found)


def test_internals_are_few_files_of_moderate_length():
    files = [*INTERNALS.glob("test_*.py")]
    assert 0 < len(files) <= 47
    assert max(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= 600


@pytest.mark.parametrize("path", [path for path in TESTS.rglob("*.py") if not path.name.startswith("test_")],
                         ids=lambda path: str(path.relative_to(TESTS)))  # fmt: skip
def test_helpers_say_what_they_are_for(path):
    """In a docstring of the file, and of each function and class that others may use."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    if "helpers" in path.parts or path.name == "conftest.py":
        named = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        bare = [node.name for node in named if not ast.get_docstring(node)]
        assert not [name for name in bare if not name.startswith(("_", "pytest_"))]


@pytest.mark.parametrize("program, kind", [
    ("from grilly.registry import Registry", "import"),
    ("from grilly.nn import module", "import"),
    ("from grilly.dask import default_backend", "import"),
    ("import grilly.runtime.vulkan", "import"),
    ("import grilly\ngrilly.compute.graph.fuse(1)", "import"),
    ("import grilly.functional as F\nF.words", "import"),
    ("def test():\n    from grilly import runtime", "import"),
    ("importlib.import_module('grilly.compute.device')", "import"),
    ("run('import grilly\\nfrom grilly.runtime import open_runtime')", "import"),
    ("run('import grilly; grilly.compute.backend.default_backend()')", "import"),
    ("tensor._storage", "attribute"),
    ("del thing.graph._recording", "attribute"),
    ("backend.opened.caches", "attribute"),
    ("setattr(tensor, '_storage', None)", "attribute"),
    ("monkeypatch.setattr('grilly.compute.backend._default', None)", "replaced"),
    ("monkeypatch.setattr('grilly.compute.attention.plan.MAX_KEYS', 4)", "replaced"),
    ("import grilly.dask as d\nmonkeypatch.setattr(d, 'default_backend', None)", "replaced"),
])  # fmt: skip
def test_what_looks_inside_is_found(program, kind):
    assert [use.kind for use in uses(program)] == [kind]


@pytest.mark.parametrize("program", [
    "import grilly\ngrilly.exp(grilly.asarray(1.0)).backend.runtime.name",
    "import grilly.functional as F\nfrom grilly import nn, models\nF.dropout(1)\nnn.Linear(1, 2)\nmodels.load",
    "from grilly.compute.backend import Profile\nfrom grilly.runtime.interface import DeviceInfo",
    "from grilly.cli import main\nfrom grilly.errors import ClosedError\nfrom grilly.integrations import minilm",
    "class Own:\n    def __init__(self):\n        self._storage = 1",
    "torch._C.anything()\nnamed._replace(x=1)\nmodel.config._attn_implementation",
    "monkeypatch.setattr(other, 'numpy', None)",
])  # fmt: skip
def test_what_users_write_is_no_fault(program):
    assert uses(program) == []


def test_what_is_documented_is_there():
    """So that a page's mistake in writing does not pass for a public name. test_site.py looks at the others."""
    assert {"grilly.functional", "grilly.nn", "grilly.cli", "grilly.integrations.minilm"} <= documented()
    for name in ("grilly.cli.main", "grilly.integrations.minilm.MiniLM"):
        home, _, last = name.rpartition(".")
        assert is_public(name) and hasattr(importlib.import_module(home), last)
    assert Path(interface.PACKAGE / "grilly").is_dir() and "_storage" in interface.private_names()
