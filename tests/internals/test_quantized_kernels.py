"""Kernels and plans of quantized weights: every kernel that can run, cut calls, and memory for floats.

And models with quantized caches, whose attention is also computed by the host.
"""

import functools
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import grilly
import grilly.functional as F
from backends import has_sixteen_bits
from compilers import NO_COMPILER
from grilly import models
from grilly.compute import quantized
from grilly.compute.device.plan import Layout
from grilly.compute.device.trial import pin, view_of
from grilly.compute.matmul import quantized as products
from grilly.compute.matmul.linear import linear, linear_backward
from grilly.compute.selfcheck import quantized as selfcheck
from grilly.quantization.groups import GroupedTensor, Grouping, Parts
from grilly.quantization.packing import GROUPED, PACKINGS
from grilly.registry import Choice, Manifest, default_manifest
from grilly.registry.checkout import Checkout
from kernels import with_shaders
from model_folders import write_folder
from test_kvcache import attend, turn
from test_kvcache_quantized import TYPES, numbers
from test_models_quantized_caches import IDS, widened

ROOT = Path(__file__).parents[2]
#: Also what llvmpipe does not choose, but can run.
VARIANTS = {
    v.label: v for v in default_manifest().by_operation["linear-quantized"]
    if v.dtype == "float32" and (not v.subgroup_sizes or 8 in v.subgroup_sizes)
}  # fmt: skip


def drawn(*shape):
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def grouped(type, rows, depth):
    """A matrix of a type whose scales are of groups, with levels and zeros of every kind."""
    kind, _, size = type.partition(":")
    rng, own = np.random.default_rng([rows, depth, int(size)]), GROUPED[kind]
    groups = -(-depth // int(size))
    words = rng.integers(0, 2**32, (rows, depth * own.low // 32), np.uint64).astype(np.uint32)
    if own.table == "e4m3":
        words &= np.uint32(0xBFBFBFBF)  # without numbers that are none
    scales = (rng.standard_normal((rows, groups)) / 2**own.low).astype(np.float16).astype(np.float32)
    if own.scales == "bfloats_zeros":
        scales = (scales.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    zeros = rng.integers(0, 2**own.low, (rows, groups)).astype(np.uint8) if own.scales.endswith("zeros") else None
    return GroupedTensor((rows, depth), own.low, kind, Grouping(int(size)), lambda: Parts(words, scales, zeros))


def layouts(facts, weight, *arrays):
    return [None if array is None else Layout.of(array, facts) for array in (*arrays, *weight.arrays)]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_kernel(vulkan_backend, name):
    """With epilogues, rows and columns past the last, and units past the last."""
    device, variant = vulkan_backend.opened, VARIANTS[name]
    if set(variant.requires) - device.runtime.features:
        pytest.skip("the device lacks what the kernel requires")
    size = 8 if variant.subgroup_sizes else None
    view = pin(view_of(device), Choice(variant, size, default_manifest()))
    for type in ("Q4_1", "Q3_K", "Q8_0", "MXFP4", "Q2_K"):
        packed = grilly.quantize(drawn(38, 768), type)
        weight, plain = vulkan_backend.tensor(packed), packed.dequantize()
        for rows in (1, 3, 5):
            x, bias = drawn(rows, 768), drawn(38)
            for gated in (False, True):
                given = {"activation": "silu", "gated": gated, "residual": drawn(rows, 19 if gated else 38)}
                found = linear(view, vulkan_backend.tensor(x), weight, bias, **given).numpy()
                np.testing.assert_allclose(found, F.linear(x, plain, bias, **given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_kernel_with_groups(vulkan_backend, name):
    device, variant = vulkan_backend.opened, VARIANTS[name]
    if set(variant.requires) - device.runtime.features:
        pytest.skip("the device lacks what the kernel requires")
    size = 8 if variant.subgroup_sizes else None
    view, x = pin(view_of(device), Choice(variant, size, default_manifest())), drawn(1, 352)
    for type in ("INT8:96", "UINT4:128", "UINT8_BF16:64", "NF4:64", "F8_E4M3:352"):
        packed = grouped(type, 19, 352)
        exact = x.astype(np.float64) @ packed.dequantize(np.float64).T
        found = linear(view, vulkan_backend.tensor(x), vulkan_backend.tensor(packed)).numpy()
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())


def test_no_more_floats_than_the_scratch_memory_takes(vulkan_backend, monkeypatch):
    packed = grilly.quantize(drawn(300, 256), "Q4_K")
    weight, device = vulkan_backend.tensor(packed), vulkan_backend.opened
    monkeypatch.setattr(products, "SCRATCH", 70 * 256 * 4)
    view = view_of(device)
    x, bias, residual, plain = drawn(40, 256), drawn(300), drawn(40, 150), packed.dequantize()
    for gated in (False, True):
        given = (("Q4_K",), False, "relu", gated, ())
        own = vulkan_backend.tensor(x)
        made = products.plan(given, layouts(device.facts, weight, own, None, None, None), device.facts, device.registry)
        assert max(slot for slot in made.slots if isinstance(slot, int)) <= max(products.SCRATCH, 40 * 300 * 4)
        kwargs = {"activation": "relu", "gated": gated, "residual": residual if gated else None}
        found = linear(view, own, weight, bias, **kwargs).numpy()
        np.testing.assert_allclose(found, F.linear(x, plain, bias, **kwargs), rtol=1e-4, atol=1e-4)
    grad = drawn(40, 300)
    found = linear_backward(view, vulkan_backend.tensor(grad), x, weight)[0].numpy()
    np.testing.assert_allclose(found, grad @ plain, rtol=1e-4, atol=1e-3)


def test_tensors_beyond_a_binding(vulkan_backend, monkeypatch):
    """Rows are cut where bindings do not take them all."""
    packed = grilly.quantize(drawn(64, 256), "Q5_K")
    weight, device = vulkan_backend.tensor(packed), vulkan_backend.opened
    monkeypatch.setattr(quantized.Rows, "fits", lambda rows, facts: rows.count <= 10)
    view = view_of(device)
    for rows, gated in ((1, False), (2, True), (30, False)):
        x, bias = drawn(rows, 256), drawn(64)
        found = linear(view, vulkan_backend.tensor(x), weight, bias, activation="relu", gated=gated).numpy()
        wanted = F.linear(x, packed.dequantize(), bias, activation="relu", gated=gated)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    compute, (given, c) = grilly.Compute.over(view), map(vulkan_backend.tensor, (drawn(2, 256), drawn(64)))
    alone = compute.capture(lambda x: linear(view, x, weight), given)
    behind = compute.capture(lambda x: linear(view, x, weight) * c, given)  # which is no part of several dispatches
    assert behind.dispatches == alone.dispatches + 1
    np.testing.assert_array_equal(behind(given).numpy(), (linear(view, given, weight) * c).numpy())
    given, places = (weight.types, weight.shape, np.dtype(np.float32)), layouts(device.facts, weight, None)
    steps = quantized.plan(given, places, device.facts, device.registry).steps
    assert len(steps) == 8 and sum(step.push_constants()["count"] for step in steps) == 64 * 256 // 8


@pytest.mark.parametrize("kind", GROUPED)
@pytest.mark.parametrize("size", [32, 96, 128, 320])
def test_groups(vulkan_backend, kind, size):
    """The last group may be smaller; numbers are those of the host, bit for bit."""
    packed = grouped(f"{kind}:{size}", 7, 320)
    weight = vulkan_backend.tensor(packed)
    np.testing.assert_array_equal(weight.dequantize().numpy(), packed.dequantize())
    assert weight.nbytes == packed.nbytes == quantized.packed_nbytes(packed.type, packed.shape)


@pytest.mark.parametrize("name", PACKINGS)
def test_bytes_on_the_device(vulkan_backend, name):
    """What is said of them before is what they are."""
    one = grilly.quantization.TYPES[name]
    raw = np.zeros((3, one.nbytes * 3), np.uint8)
    packed = grilly.QuantizedTensor(raw, (3, one.block * 3), name)
    assert vulkan_backend.tensor(packed).nbytes == quantized.packed_nbytes(name, packed.shape)


# -- caches of 8 and 4 bits -------------------------------------------------------------------------------------------

#: How far logits may be, as a part of the largest: a level may be the next one where rounding of the rotation decides.
NEAR = {"float32": 0.001, "float16": 0.1}


def by_host(kind, q, keys, values, k, v, lengths, *, rotary, window_size, scale, softcap, **_):
    """Attention over a cache of floats whose new numbers are rounded as those of a quantized one, in float64."""
    outs, tables = [], [np.asarray(table) for table in rotary]
    arrays = [np.asarray(x).astype(np.float64) for x in (q, k, v)]
    for b, length in enumerate(np.asarray(lengths)):
        places = np.arange(length, length + q.shape[1])
        turned, new, value = (x[b] for x in arrays)
        turned, new = (turn(x, *tables, places, False) for x in (turned, new))
        keys[b, places[0] : places[-1] + 1] = numbers(new, kind).astype(keys.dtype)
        values[b, places[0] : places[-1] + 1] = numbers(value, kind).astype(values.dtype)
        seen = [np.asarray(x[b, : places[-1] + 1]).astype(np.float64) for x in (keys, values)]
        options = {"causal": True, "window_size": window_size, "scale": scale, "softcap": softcap}
        outs.append(attend([turned, *seen], np.float64, options)[0])
    return q.backend.tensor(np.stack(outs).astype(q.dtype))


def logits(model, cache):
    """Of a prompt and of single tokens after it; samples go on from lengths of their own."""
    found = [model(IDS[:, :5], past_key_values=cache).logits]
    cache.lengths[1] -= 2
    for place in range(5, 9):
        found.append(model(IDS[:, place : place + 1], past_key_values=cache).logits)
    return np.concatenate(found, axis=1)


@pytest.mark.parametrize("name, dtype", [("llama", "float32"), ("gemma3", "float32"), ("llama", "float16")])
@pytest.mark.parametrize("kind", TYPES)
def test_logits_are_those_of_rounded_keys_and_values(tmp_path, vulkan_backend, monkeypatch, name, kind, dtype):
    if dtype == "float16" and not has_sixteen_bits(vulkan_backend):
        pytest.skip("the device has no 16-bit storage")
    model = models.load(write_folder(tmp_path, widened(name)), dtype, backend=vulkan_backend)
    cache = model.make_cache(3, 16, kind)
    found = logits(model, cache).astype(np.float32)
    plain = logits(model, model.make_cache(3, 16)).astype(np.float32)
    monkeypatch.setattr("grilly.models.cache.F.flash_attention_with_kvcache", functools.partial(by_host, kind))
    wanted = logits(model, model.make_cache(3, 16)).astype(np.float32)
    monkeypatch.undo()
    error, rounding = (np.abs(x - wanted).max() / np.abs(wanted).max() for x in (found, plain))
    assert error < NEAR[dtype] and 4 * error < rounding


# -- linear-quantized-matrix where there are no matrix units: its own source with matrices made of arrays. What is
# tested is what the kernel does with numbers, scales, rows and ends; not that a driver has the order of elements.

EMULATED = "linear-quantized-matrix"
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
EMULATED_TYPES = ("Q4_0", "Q4_K", "Q5_0", "Q6_K", "Q3_K", "Q2_K", "Q8_0", "MXFP4", "UINT4", "INT8", "F8_E4M3")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    if NO_COMPILER:
        pytest.skip(NO_COMPILER)
    root = tmp_path_factory.mktemp("products")
    shutil.copytree(ROOT / "shaders", root / "shaders")
    shutil.copy(ROOT / "tests/shaders/emulated-products.glsl", root / "shaders/include")
    path = root / f"shaders/matmul/{EMULATED}.comp"
    text = path.read_text()
    for old, new in CHANGES:
        text, found = re.subn(old, new, text)
        assert found, f"{old} is not there"
    path.write_text(text)
    path = path.with_suffix(".toml")
    head, variant = path.read_text().split("# NVIDIA's order of elements.")
    needs = ('requires = ["subgroup-basic"]', 'matrix = "16x8x16"', 'architectures = ["nvidia"]',
             "subgroup_sizes = [32]")  # fmt: skip
    for line in needs:
        assert line in variant
        variant = variant.replace(line, 'requires = ["float16-arithmetic"]' if "requires" in line else "")
    path.write_text(head + re.sub(r"shared_bytes = \d+", "shared_bytes = 32768", variant))
    return Manifest(Checkout(root))


@pytest.fixture
def emulated(vulkan_backend, manifest, monkeypatch):
    """A view of the device that has the kernel."""
    registry = with_shaders(monkeypatch, vulkan_backend, manifest)
    (variant,) = (v for v in manifest.variants if v.family == EMULATED)
    return pin(view_of(vulkan_backend.opened), registry.choice(variant))


def weight_of(type: str, rows: int, depth: int):
    if type in ("UINT4", "INT8", "F8_E4M3"):
        return grouped(type + ":64", rows, depth)
    return grilly.quantize(np.random.default_rng(rows).standard_normal((rows, depth), dtype=np.float32), type)


@pytest.mark.parametrize("type", EMULATED_TYPES)
def test_the_matrix_kernel_emulated(emulated, type):
    """Rows and columns past the last, units past the last; rows that are not read are not finite."""
    rng = np.random.default_rng(1)
    for rows, cols, depth in ((3, 24, 768), (13, 37, 1280)):
        weight = weight_of(type, cols, depth)
        x = rng.standard_normal((rows + 1, depth)).astype(np.float16)
        x[rows] = np.nan
        exact = x[:rows].astype(np.float64) @ weight.dequantize(np.float64).T
        found = linear(emulated, emulated.tensor(x)[:rows], weight).numpy()
        assert np.abs(found - exact).max() <= 2.0**-10 * np.abs(exact).max()


def test_epilogues_of_the_matrix_kernel(emulated):
    rng = np.random.default_rng(2)
    weight = weight_of("Q4_K", 44, 512)
    x, bias = rng.standard_normal((5, 512)).astype(np.float16), rng.standard_normal(44).astype(np.float16)
    residual = rng.standard_normal((5, 22)).astype(np.float16)
    gate, up = np.split(x.astype(np.float64) @ weight.dequantize(np.float64).T + bias, 2, axis=1)
    exact = gate / (1 + np.exp(-gate)) * up + residual
    found = linear(emulated, x, weight, bias, activation="silu", gated=True, residual=residual)
    assert np.abs(found - exact).max() <= 2.0**-9 * np.abs(exact).max()


def test_the_self_check_of_the_matrix_kernel(vulkan_backend, emulated, manifest):
    (variant,) = (v for v in manifest.variants if v.family == EMULATED)
    assert selfcheck.check(vulkan_backend.opened, vulkan_backend.opened.registry.choice(variant), {}) is None
