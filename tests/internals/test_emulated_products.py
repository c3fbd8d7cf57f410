"""linear-quantized-matrix where there are no matrix units: its own source with matrices made of arrays, beside float64.

What is tested is what the kernel does with numbers, scales, rows and ends; not that a driver has the order of elements.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import grilly
from compilers import NO_COMPILER
from grilly.compute.device.trial import pin, view_of
from grilly.compute.matmul.linear import linear
from grilly.compute.selfcheck import quantized
from grilly.registry import Manifest, Registry
from grilly.registry.checkout import Checkout
from kernels import pretend
from test_quantized_kernels import grouped

ROOT = Path(__file__).parents[2]
NAME = "linear-quantized-matrix"
#: What takes the place of what a device needs matrix units and subgroups of 32 for.
CHANGES = [
    (r"(?m)^#extension GL_KHR_(cooperative_matrix|memory_scope_semantics).*$", ""),
    (r"(?m)^#define FACTOR_A coopmat.*$", "#define FACTOR_A float16_t[8]"),
    (r"(?m)^#define FACTOR_B coopmat.*$", "#define FACTOR_B float16_t[4]"),
    (r"(?m)^#define SUMS coopmat.*$", '#define SUMS float[4]\n#include "emulated-products.glsl"'),
    (r"\bSUMS\(0\.0\)", "filled_sums(0.0)"),
    (r"const FACTOR_A of_all = FACTOR_A\((.*)\);", r"const FACTOR_A of_all = filled_factor(\1);"),
    (r"gl_SubgroupInvocationID", "(gl_LocalInvocationIndex % 32u)"),
    (r"gl_SubgroupID", "(gl_LocalInvocationIndex / 32u)"),
    (r"subgroupMemoryBarrierShared\(\);", ""),
    (r"subgroupBarrier\(\);", "barrier();"),
    # All subgroups do every trip, past the depth too: barriers stand for a subgroup's own order.
    (r"for \(uint chunk = (.*?); chunk < chunks; chunk \+= SUBGROUPS\)",
     r"for (uint chunk = \1, all = 0u; all < chunks; chunk += SUBGROUPS, all += SUBGROUPS)"),
    (r"\[\[unroll\]\]", "[[dont_unroll]]"),
]  # fmt: skip
#: With an offset, minima, upper bits, two scales a unit, both, 8 bits, and tables that arithmetic replaces.
TYPES = ("Q4_0", "Q4_K", "Q5_0", "Q6_K", "Q3_K", "Q2_K", "Q8_0", "MXFP4", "UINT4", "INT8", "F8_E4M3")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    if NO_COMPILER:
        pytest.skip(NO_COMPILER)
    root = tmp_path_factory.mktemp("products")
    shutil.copytree(ROOT / "shaders", root / "shaders")
    shutil.copy(ROOT / "tests/shaders/emulated-products.glsl", root / "shaders/include")
    path = root / f"shaders/matmul/{NAME}.comp"
    text = path.read_text()
    for old, new in CHANGES:
        text, found = re.subn(old, new, text)
        assert found, f"{old} is not there"
    path.write_text(text)
    path = path.with_suffix(".toml")
    head, variant = path.read_text().split("# NVIDIA's order of elements.")
    needs = ('requires = ["subgroup-basic", "subgroup-shuffle"]', 'matrix = "16x8x16"', 'architectures = ["nvidia"]',
             "subgroup_sizes = [32]")  # fmt: skip
    for line in needs:
        assert line in variant
        variant = variant.replace(line, 'requires = ["float16-arithmetic"]' if "requires" in line else "")
    path.write_text(head + re.sub(r"shared_bytes = \d+", "shared_bytes = 32768", variant))
    return Manifest(Checkout(root))


@pytest.fixture
def kernel(vulkan_backend, manifest, monkeypatch):
    """A view of the device that has the kernel."""
    backend = vulkan_backend
    if not {"float16-storage", "float16-arithmetic"} <= backend.runtime.features:
        pytest.skip("the device has no 16-bit numbers")
    registry = Registry(backend.device, backend.runtime.features, manifest)
    monkeypatch.setattr(backend.opened, "registry", registry)
    pretend(monkeypatch, backend)
    (variant,) = (v for v in manifest.variants if v.family == NAME)
    return pin(view_of(backend.opened), registry.choice(variant))


def weight_of(type: str, rows: int, depth: int):
    if type in ("UINT4", "INT8", "F8_E4M3"):
        return grouped(type + ":64", rows, depth)
    return grilly.quantize(np.random.default_rng(rows).standard_normal((rows, depth), dtype=np.float32), type)


@pytest.mark.parametrize("type", TYPES)
def test_against_float64(kernel, type):
    """Rows and columns past the last, units past the last; rows that are not read are not finite."""
    rng = np.random.default_rng(1)
    for rows, cols, depth in ((3, 24, 768), (13, 37, 1280)):
        weight = weight_of(type, cols, depth)
        x = rng.standard_normal((rows + 1, depth)).astype(np.float16)
        x[rows] = np.nan
        exact = x[:rows].astype(np.float64) @ weight.dequantize(np.float64).T
        found = linear(kernel, kernel.tensor(x)[:rows], weight).numpy()
        assert np.abs(found - exact).max() <= 2.0**-10 * np.abs(exact).max()


def test_epilogues(kernel):
    rng = np.random.default_rng(2)
    weight = weight_of("Q4_K", 44, 512)
    x, bias = rng.standard_normal((5, 512)).astype(np.float16), rng.standard_normal(44).astype(np.float16)
    residual = rng.standard_normal((5, 22)).astype(np.float16)
    gate, up = np.split(x.astype(np.float64) @ weight.dequantize(np.float64).T + bias, 2, axis=1)
    exact = gate / (1 + np.exp(-gate)) * up + residual
    found = linear(kernel, x, weight, bias, activation="silu", gated=True, residual=residual)
    assert np.abs(found - exact).max() <= 2.0**-9 * np.abs(exact).max()


def test_the_self_check_passes(vulkan_backend, kernel, manifest):
    (variant,) = (v for v in manifest.variants if v.family == NAME)
    assert quantized.check(vulkan_backend.opened, vulkan_backend.opened.registry.choice(variant), {}) is None
