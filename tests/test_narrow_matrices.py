"""flash-attention-narrow with Intel's matrices made of arrays, on any device: its own source in both shapes.

No matrix units take part. What is tested is that the source is right for the order of elements that it states, and
that the self-check finds out where a driver has another one.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from compilers import NO_COMPILER
from features import Cell
from grilly.compute import selfcheck
from grilly.registry import Manifest, Registry
from grilly.registry.checkout import Checkout
from kernels import pin, pretend, view_of
from test_matrix_extras import PLAIN, judge_cell

ROOT = Path(__file__).parents[1]
FAMILY = (ROOT / "shaders/attention/flash-attention-narrow.toml").read_text().partition("[sets.")[0]
VARIANT = """
[[variant]]
name = "{name}"
{use}dtypes = ["float16"]
requires = ["float16-arithmetic", "subgroup-shuffle", "subgroup-vote", "subgroup-arithmetic"]
subgroup_sizes = {sizes}
align = 8
rank = 1
defines = {{ {defines} }}
tile = {{ rows = {rows}, keys = {keys}, mask_bits = 1 }}
keys_per_trip = 0.02
"""
SHARED = {
    "MATRIX": 1, "MATRIX_ELEMENTS": 1, "ALIGN": 8, "MATRIX_M": 8, "MATRIX_K": 16, "DIM": 32, "VDIM": 32, "KEYS": 32,
    "B_ELEMENTS": 16, "Q_SHARED": 1, "HELD_OPTIONS": 99,
}  # fmt: skip
EIGHT = SHARED | {"MATRIX_N": 8, "SUBGROUP": 8, "A_ELEMENTS": 16, "LOCKSTEP": 1}
SIXTEEN = SHARED | {"MATRIX_N": 16, "SUBGROUP": 16, "A_ELEMENTS": 8}
#: Kernels by name, and whether they are right for the order that they are given.
KERNELS = {
    "eight": (EIGHT | {"TEAMS": 2, "SHARES": 2, "SPLITS": 2}, True),
    "eight-shares": (EIGHT | {"TEAMS": 1, "SHARES": 4, "SPLITS": 4}, True),
    "eight-twice": (EIGHT | {"TEAMS": 1, "SHARES": 4, "SPLITS": 2, "Q_SHARED": 0}, True),
    "eight-crowded": (EIGHT | {"TEAMS": 2, "SHARES": 2, "SPLITS": 2, "HELD_OPTIONS": 0}, True),
    "sixteen": (SIXTEEN | {"TEAMS": 1, "SHARES": 1, "SPLITS": 1}, True),
    "sixteen-short": (SIXTEEN | {"TEAMS": 1, "SHARES": 1, "SPLITS": 1, "KEYS": 16, "Q_SHARED": 0}, True),
    "another-order": (SIXTEEN | {"TEAMS": 1, "SHARES": 1, "SPLITS": 1, "OTHER_ORDER": 1}, False),
}
#: Those that are tried with all options, with their words in registers and in shared memory.
WITH_OPTIONS = ("eight-shares", "eight-twice", "eight-crowded")
#: Options that meet, beside NaN where keys are hidden.
SHAPE = {"hidden": "nan", "size": (53, 41), "width": (32, 24), "heads": (2, 1), "batch": 2}
MEETING = {
    "indices": {
        "softcap": 1.5, "alibi": "heads", "sinks": "heads", "window": (19, 15), "lengths": "both",
        "segments": "documents",
    },
    "arrays": {
        "mask": "bool-full", "bias": "full", "t5": "both-ways", "causal": "on", "prefix": "some", "blocks": (16, 16),
        "dropout": 0.1,
    },
}  # fmt: skip
FACTS = {"align": 8, "head_dim": 32, "value_dim": 24, "rows": 64}


def emulated(text, count_of):
    """The source with arrays for matrices."""
    for old, new in (
        (r"(?m)^#define FACTOR_([AB]) coopmat.*$", r"#define FACTOR_\1 float16_t[\1_ELEMENTS]"),
        (r"(?m)^#define SUMS coopmat.*$", "#define SUMS float[8]"),
        (r"\bSUMS\(([^()]*)\)", r"filled_sums(\1)"),
        (r"(s_frag\[i\]\[f\]) \*= (\w+);", r"for (uint e = 0u; e < ELEMENTS; ++e) \1[e] *= \2;"),
        (r"(?m)^(uint thread, lane, subgroup,.*)$", r'\1\n#include "narrow-matrices.glsl"'),
        (r"(?m)^    subgroup = gl_SubgroupID;$", "    subgroup = SUBGROUP == 8 ? gl_SubgroupID : 0u;"),
        (r"(?m)^    lane = gl_SubgroupInvocationID;$",
         "    lane = SUBGROUP == 8 ? gl_SubgroupInvocationID : gl_LocalInvocationIndex;"),
    ):  # fmt: skip
        text, times = re.subn(old, new, text)
        count_of[old] = count_of.get(old, 0) + times
    return text.replace("[[unroll]]", "[[dont_unroll]]")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    if NO_COMPILER:
        pytest.skip(NO_COMPILER)
    root = tmp_path_factory.mktemp("narrow")
    room = root / "shaders/attention"
    families = shutil.ignore_patterns("*.comp", "*.toml")
    for name, skip in {"attention": families, "masks": families, "include": None}.items():
        shutil.copytree(ROOT / "shaders" / name, root / "shaders" / name, ignore=skip)
    found: dict[str, int] = {}
    matrix = room / "matrix"
    for path in (ROOT / "shaders/attention/flash-attention-narrow.comp", matrix / "factors.glsl", matrix / "bend.glsl"):
        (room / path.relative_to(path.parents[1 if path.parent.name == "matrix" else 0])).write_text(
            emulated(path.read_text(), found)
        )
    assert all(found.values()), found
    matrices = (ROOT / "tests/shaders/narrow-matrices.glsl").read_text()
    other = "#ifdef OTHER_ORDER\n#undef A_ROW\n#define A_ROW(e) (lane / 8u * 4u + (e) / 2u)\n#endif\nshared float left"
    assert "shared float left" in matrices
    (root / "shaders/include/narrow-matrices.glsl").write_text(matrices.replace("shared float left", other))
    masks = (f"masks/attention-{name}" for name in ("tiles", "mask-bits", "mask-lanes"))
    for name in ("attention/attention-naive", *masks):  # what the check compares with and uses
        for ending in ("comp", "toml"):
            shutil.copy(ROOT / f"shaders/{name}.{ending}", root / f"shaders/{name}.{ending}")
    variants = [
        VARIANT.format(
            name=name, rows=defines["TEAMS"] * defines["SUBGROUP"], keys=defines["KEYS"],
            use='use = ["options", "classed", "paged"]\n' if name in WITH_OPTIONS else "",
            sizes=[8] if defines["SUBGROUP"] == 8 else [],
            defines=", ".join(f"{define} = {value}" for define, value in defines.items()),
        )
        for name, (defines, _) in KERNELS.items()
    ]  # fmt: skip
    (room / "flash-attention-narrow.toml").write_text(FAMILY + "".join(variants))
    return Manifest(Checkout(root))


def chosen(backend, manifest, kernel, monkeypatch):
    """The kernel's choice, of a registry that the backend has for the test."""
    features, sizes = backend.runtime.features, backend.device.subgroup_sizes
    if not {"float16-storage", "float16-arithmetic"} <= features:
        pytest.skip("the device has no 16-bit numbers")
    registry = Registry(backend.device, features, manifest)
    if KERNELS[kernel][0]["SUBGROUP"] == 8 and (registry.architecture != "llvmpipe" or sizes != (8, 8)):
        pytest.skip("needs subgroups of 8 that run in lockstep")
    monkeypatch.setattr(backend.opened, "registry", registry)
    pretend(monkeypatch, backend)
    (variant,) = (v for v in manifest.variants if v.family == "flash-attention-narrow" and v.variant == kernel)
    return registry.choice(variant)


@pytest.mark.parametrize("options", MEETING)
def test_many_options(vulkan_backend, manifest, options, monkeypatch):
    choice = chosen(vulkan_backend, manifest, "eight-crowded", monkeypatch)
    cell = Cell("float16", tuple((PLAIN | SHAPE | MEETING[options]).values()))
    judge_cell(pin(view_of(vulkan_backend), choice), cell, choice.variant.family)


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "eight-crowded"])
def test_the_self_check(vulkan_backend, manifest, kernel, monkeypatch):
    choice = chosen(vulkan_backend, manifest, kernel, monkeypatch)
    found = selfcheck.prove(vulkan_backend.opened, choice, FACTS)
    if KERNELS[kernel][1]:
        assert found is None
    else:
        assert "error" in found
