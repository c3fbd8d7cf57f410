"""The transposed matrix kernel in AMD's element orders, on any device: its own source with matrices made of arrays.

No matrix units take part. What is tested is that the source is right for the orders that
shaders/include/flash-matrix-transposed.glsl states, and that the self-check finds out where a driver has others.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grilly.compute import selfcheck
from grilly.registry import Manifest, Registry

ROOT = Path(__file__).parents[1]
SOURCE = """\
#version 450
#extension GL_GOOGLE_include_directive : require
#include "attention.glsl"
#include "flash-matrix.glsl"
"""
FAMILY = """\
operation = "attention"
source = "emulated.comp"
push_bytes = 116
bindings = [["q", "r"], ["k", "r"], ["v", "r"], ["mask", "r"], ["o", "rw"], ["lse", "rw"]]
[constants]
HEAD_DIM = 0
VALUE_DIM = 1
MASK = 2
CAUSAL = 3
LSE = 4
MERGE = 5
"""
VARIANT = """\
[[variant]]
name = "{name}"
dtypes = ["float16"]
requires = ["float16-arithmetic"]
align = 8
rank = {rank}
optimize = false
defines = {{ FACTOR_ELEMENTS = {elements}, IN_TURNS = {in_turns}, MATRIX = 1, MATRIX_ELEMENTS = 1, TRANSPOSED = 1, \
ALIGN = 8, MATRIX_M = 16, MATRIX_N = 16, MATRIX_K = 16, SUBGROUP = 32, SUBGROUPS = 1, RF = 2, KEYS = 32, DIM = 32, \
VDIM = 32, Q_SHARED = 1, SUM_COLUMNS = 0, SPLIT_LOOPS = 0, RAISE_WHILE = 0 }}
tile = {{ rows = 32, keys = 32 }}
keys_per_trip = 0.02
"""
# What an invocation holds of a factor, and whether accumulator rows are held in turns.
ORDERS = {"rdna3": (16, 1), "rdna4": (8, 0), "rows-in-sequence": (16, 0), "rows-in-turns": (8, 1)}
FACTS = {"align": 8, "head_dim": 32, "value_dim": 24, "rows": 64}


def emulated(text):
    """``flash-matrix.glsl`` with arrays for matrices and the workgroup for the subgroup."""
    changes = [
        (r"(?m)^#define FACTOR_([AB]) coopmat.*$", r"#define FACTOR_\1 float16_t[FACTOR_ELEMENTS]", 2),
        (r"(?m)^#define SUMS coopmat.*$", "#define SUMS float[8]", 1),
        (r"\bSUMS\(0\.0\)", "zero_sums()", None),
        (r"\bgl_SubgroupID\b", "0u", 1),
        (r"\bgl_SubgroupInvocationID\b", "gl_LocalInvocationIndex", 1),
        (r"(?m)^(shared uvec4 tile\[.*)$", r'\1\n#include "emulated-matrices.glsl"', 1),
    ]
    for old, new, count in changes:
        text, found = re.subn(old, new, text)
        assert found == count or (count is None and found), f"{old} is there {found} times"
    return text


def rolled(text):
    """Loops as loops: arrays need no constant indices, and some drivers take minutes over the code unrolled."""
    return text.replace("[[unroll]]", "[[dont_unroll]]")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """The kernel for each of ORDERS."""
    root = tmp_path_factory.mktemp("emulated")
    include = root / "shaders/include"
    shutil.copytree(ROOT / "shaders/include", include)
    shutil.copytree(ROOT / "tools", root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    names = Path("grilly_py/grilly/registry/names.py")
    (root / names).parent.mkdir(parents=True)
    shutil.copy(ROOT / names, root / names)
    shutil.copy(ROOT / "tests/shaders/emulated-matrices.glsl", include)
    matrix = include / "flash-matrix.glsl"
    matrix.write_text(emulated(matrix.read_text()))
    for path in include.glob("flash-matrix*.glsl"):
        path.write_text(rolled(path.read_text()))
    (root / "shaders/emulated.comp").write_text(SOURCE)
    for name in ("attention-naive.comp", "attention-naive.toml"):  # what the check compares with
        shutil.copy(ROOT / "shaders" / name, root / "shaders")
    variants = [
        VARIANT.format(name=name, rank=rank, elements=elements, in_turns=in_turns)
        for rank, (name, (elements, in_turns)) in enumerate(ORDERS.items())
    ]
    (root / "shaders/emulated.toml").write_text(FAMILY + "".join(variants))
    compiled = subprocess.run(
        [sys.executable, "tools/compile_shaders.py"], cwd=root, capture_output=True, text=True, timeout=300,
        env={**os.environ, "GRILLY_COMPILE_SHADERS": ""},
    )  # fmt: skip
    if compiled.returncode == 2:  # no compiler, or another version
        pytest.skip(compiled.stderr.strip())
    assert compiled.returncode == 0, compiled.stderr
    return Manifest(root / "grilly_py/grilly/spirv")


def verdict(backend, manifest, order, monkeypatch):
    if not {"float16-storage", "float16-arithmetic"} <= backend.runtime.features:
        pytest.skip("the device has no 16-bit numbers")
    registry = Registry(backend.device, backend.runtime.features, manifest)
    monkeypatch.setattr(backend, "registry", registry)
    monkeypatch.setattr(backend, "plans", {})
    (variant,) = (v for v in manifest.variants if v.variant == order)
    return selfcheck.prove(backend, registry.choice(variant), FACTS)


@pytest.mark.parametrize("order", ["rdna3", "rdna4"])
def test_the_orders_of_amd(vulkan_backend, manifest, order, monkeypatch):
    assert verdict(vulkan_backend, manifest, order, monkeypatch) is None


@pytest.mark.parametrize("order", ["rows-in-sequence", "rows-in-turns"])
def test_another_order_is_found_out(vulkan_backend, manifest, order, monkeypatch):
    assert "error" in verdict(vulkan_backend, manifest, order, monkeypatch)
