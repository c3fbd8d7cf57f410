"""linear-rows-matrix in NVIDIA's order of elements, on any device: its own source with matrices made of arrays.

As tests/test_element_orders.py does for attention: a workgroup is one subgroup, and no matrix units take part.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from compilers import NO_COMPILER
from grilly.compute.products.linear import linear
from grilly.registry import Manifest, Registry
from grilly.registry.checkout import Checkout
from kernels import pretend

ROOT = Path(__file__).parents[1]
NAME = "linear-rows-matrix"
VARIANT = """
[[variant]]
name = "rows{rows}"
dtypes = ["float16"]
requires = ["float16-arithmetic"]
align = 8
rank = {rank}
limits = {{ rows = [1, {rows}] }}
threads = 32
shared_bytes = {shared}
defines = {{ ORDER = 1, ROWS = {rows}, COLUMNS = {columns}, UNROLL = 2, EMULATED = 3, A_ELEMENTS = 8, B_ELEMENTS = 9 }}
tile = {{ rows = {rows}, cols = {columns}, columns = {columns}, trip = 64, deep = 1, fill = {fill}, splits = 4 }}
keys_per_trip = 1
"""
CHANGES = [
    (r"(?m)^#extension GL_KHR_cooperative_matrix.*\n", "", 1),
    (r"(?m)^#define FACTOR_A coopmat.*$", "#define FACTOR_A float16_t[A_ELEMENTS]", 1),
    (r"(?m)^#define FACTOR_B coopmat.*$", "#define FACTOR_B float16_t[B_ELEMENTS]", 1),
    (r"(?m)^#define SUMS coopmat.*$", "#define SUMS float[8]\n#define MASK_ORDER 0", 1),
    (r"\bSUMS\(0\.0\)", "filled_sums(0.0)", 1),
    (r"\bgl_SubgroupID\b", "0u", None),
    (r"\bgl_SubgroupInvocationID\b", "gl_LocalInvocationIndex", None),
    (
        r"(?m)^(shared float sums\[.*)$",
        r"""\1
shared uvec4 tile[1];
const int ROW_MAJOR = 0;
#include "emulated-matrices.glsl"
void store_sums(SUMS part, uint start, uint stride) {
    for (uint e = 0u; e < 8u; ++e) {
        sums[start + SUM_ROW(gl_LocalInvocationIndex, e) * stride + SUM_COLUMN(gl_LocalInvocationIndex, e)] = part[e];
    }
}""",
        1,
    ),
    (
        r"coopMatStore\(\s*(sum\[i\]\[j\]), sums, (.*),\s*gl_CooperativeMatrixLayoutRowMajor\s*\)",
        r"store_sums(\1, \2)", 1,
    ),
]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """The kernel for 16 and 32 rows, which divides the depth among workgroups in one of them."""
    if NO_COMPILER:
        pytest.skip(NO_COMPILER)
    root = tmp_path_factory.mktemp("emulated")
    room = root / "shaders/products"
    shutil.copytree(ROOT / "shaders/include", root / "shaders/include")
    shutil.copy(ROOT / "tests/shaders/emulated-matrices.glsl", root / "shaders/include")
    room.mkdir()
    # Without matrices there is no need of Vulkan's memory model, and it has no other scope.
    splits = (ROOT / "shaders/products/splits.glsl").read_text()
    (room / "splits.glsl").write_text(splits.replace("gl_ScopeQueueFamily", "gl_ScopeDevice"))
    for name in ("epilogue.glsl", "linear-push.glsl"):
        shutil.copy(ROOT / "shaders/products" / name, room)
    text = (ROOT / f"shaders/products/{NAME}.comp").read_text()
    for old, new, count in CHANGES:
        text, found = re.subn(old, new, text)
        assert found == count or (count is None and found), f"{old} is there {found} times"
    (room / f"{NAME}.comp").write_text(text.replace("[[unroll]]", "[[dont_unroll]]"))
    head = (ROOT / f"shaders/products/{NAME}.toml").read_text().split("# NVIDIA's order")[0]
    kinds = ({"rows": 16, "columns": 32, "fill": 1}, {"rows": 32, "columns": 16, "fill": 64})
    # sums, what emulated matrices pass through, an unused word of 16 bytes, and whether a workgroup was the last.
    other = 4 * 4 * 256 + 4 * 32 + 16 + 4
    made = "".join(
        VARIANT.format(**kind, rank=99 - kind["rows"], shared=64 * kind["columns"] + other) for kind in kinds
    )
    (room / f"{NAME}.toml").write_text(head + made)
    (root / "shaders/include/sets.toml").write_text("")
    return Manifest(Checkout(root))


@pytest.mark.parametrize("rows", [1, 16, 23])
def test_the_order_of_nvidia(vulkan_backend, manifest, rows, monkeypatch):
    backend = vulkan_backend
    if not {"float16-storage", "float16-arithmetic"} <= backend.runtime.features:
        pytest.skip("the device has no 16-bit numbers")
    monkeypatch.setattr(backend.opened, "registry", Registry(backend.device, backend.runtime.features, manifest))
    pretend(monkeypatch, backend, subgroup_size=32)
    rng = np.random.default_rng(rows)
    for cols, depth in ((40, 64), (8, 1000)):
        shapes = (rows, depth), (2 * cols, depth), (2 * cols,), (rows, cols)
        x, weight, bias, residual = (rng.integers(-3, 4, shape).astype(np.float16) for shape in shapes)
        exact = x.astype(np.float64) @ weight.astype(np.float64).T + bias
        got = linear(backend.opened, x, weight[:cols], bias[:cols])
        np.testing.assert_array_equal(got, exact[:, :cols].astype(np.float16))
        got = linear(backend.opened, x, weight, bias, activation="relu", gated=True, residual=residual)
        with np.errstate(over="ignore"):
            gated = (np.maximum(exact[:, :cols], 0) * exact[:, cols:] + residual).astype(np.float16)
        np.testing.assert_array_equal(got, gated)
