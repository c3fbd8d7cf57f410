"""The matrix kernels in the element orders and shapes of NVIDIA, AMD and Intel, on any device: their own source with
matrices made of arrays.

No matrix units take part. What is tested is that the source is right for the orders that quads.glsl and
form-transposed.glsl (shaders/attention/matrix) state, that the form without an order is right for any order and for a
shape that is no square, and that the self-check finds out where a driver has an order that its kernel does not expect.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import features
import test_matrix_functions
from compilers import NO_COMPILER
from features import Cell
from grilly import reference
from grilly.compute import selfcheck
from grilly.compute.attention import added, varlen
from grilly.registry import Manifest
from grilly.registry.checkout import Checkout
from grilly.registry.names import FUNCTIONS
from grilly.registry.names import OFFERS as EVERY
from grilly.registry.shared import extras_bits
from kernels import pin, pretend, view_of, with_classes, with_shaders
from test_matrix import far_from_zero, judge
from test_matrix_extras import PLAIN, judge_cell, judge_rows_apart
from test_score_functions import of_everything, problem, relative
from test_varlen import Problem

ROOT = Path(__file__).parents[2]
SOURCE = """\
#version 450
#extension GL_GOOGLE_include_directive : require
#include "matrix/flash.glsl"
"""
FAMILY = """\
operation = "{operation}"
source = "emulated.comp"
push_bytes = {push_bytes}
bindings = [["q", "r"], ["k", "r"], ["v", "r"], ["mask", "r"], ["o", "rw"], ["lse", "rw"]{more}]
[constants]
HEAD_DIM = 0
VALUE_DIM = 1
MASK = 2
CAUSAL = 3
LSE = 4
MERGE = 5
{last}
"""
_EXTRA_ARRAYS = ', ["extra", "r"], ["bias", "r"], ["tiles", "r"]'
#: By the data file's name: what its kernels are for, and what they have beyond the six arrays.
FAMILIES = {
    "emulated": {"operation": "attention", "push_bytes": 116, "more": "", "last": ""},
    "emulated-tiles": {"operation": "attention-tiled", "push_bytes": 120, "more": _EXTRA_ARRAYS, "last": ""},
    "emulated-options": {"operation": "attention", "push_bytes": 120, "more": _EXTRA_ARRAYS, "last": "FEATURES = 6"},
    "emulated-ends": {"operation": "attention", "push_bytes": 120, "more": _EXTRA_ARRAYS, "last": "FEATURES = 6"},
    "emulated-computed": {"operation": "attention", "push_bytes": 120, "more": _EXTRA_ARRAYS, "last": "FEATURES = 6"},
    "emulated-functions": {"operation": "attention", "push_bytes": 120, "more": _EXTRA_ARRAYS, "last": "FEATURES = 6"},
}  # fmt: skip
#: What those of each family offer.
OFFERS = {"emulated": "[]", "emulated-tiles": '["tiles"]', "emulated-options": str(list(EVERY))}
OFFERS["emulated-ends"] = '["sinks", "lengths"]'
OFFERS["emulated-functions"] = str(["window", "soft-cap", "bias", "sinks", "lengths", "tiles", *FUNCTIONS])
OFFERS["emulated-computed"] = '["soft-cap", "alibi", "sinks", "lengths"]'
MASKS_AS_BITS = ("emulated-options", "emulated-functions")
VARIANT = """\
[[variant]]
name = "{name}"
dtypes = ["float16"]
requires = ["float16-arithmetic"]
align = 8
rank = {rank}
optimize = false
defines = {{ {defines} }}
tile = {{ rows = {rows}, keys = {keys}, {form} = 1 }}
holes = {holes}
offers = {offers}
keys_per_trip = 0.02
"""
SHARED = {
    "MATRIX": 1, "MATRIX_ELEMENTS": 1, "ALIGN": 8, "MATRIX_M": 16, "MATRIX_N": 16, "MATRIX_K": 16, "SUBGROUP": 32,
    "SUBGROUPS": 1, "RF": 2, "KEYS": 32, "DIM": 32, "VDIM": 32, "Q_SHARED": 1, "A_ELEMENTS": 8,
}  # fmt: skip
AMD = SHARED | {"ORDER": 3}
IN_SEQUENCE, IN_TURNS, QUADS, SCRAMBLED = ({"EMULATED": number} for number in (1, 2, 3, 4))  # emulated-matrices.glsl
WHOLE_FACTORS = {"A_ELEMENTS": 16, "B_ELEMENTS": 16}
HALF_FACTORS = {"A_ELEMENTS": 8, "B_ELEMENTS": 8}
#: The schedule without options, with sinks and each sample's own rows and keys.
ENDS = SHARED | QUADS | {"OPTIONS": 1, "ORDER": 1, "B_ELEMENTS": 9, "Q_SHARED": 0, "RAISE_WHILE": 1}
#: Kernels by name, and whether they are right for the order that they are given.
KERNELS = {
    "rdna3": (AMD | IN_TURNS | WHOLE_FACTORS, True),
    "rdna4": (AMD | IN_SEQUENCE | HALF_FACTORS, True),
    "rows-in-sequence": (AMD | IN_SEQUENCE | WHOLE_FACTORS, False),
    "rows-in-turns": (AMD | IN_TURNS | HALF_FACTORS, False),
    "quads": (
        SHARED | QUADS | {"ORDER": 1, "B_ELEMENTS": 9, "Q_SHARED": 0, "BUFFERS": 4, "CHUNK": 16, "RAISE_WHILE": 1}, True
    ),
    "quads-retry": (
        SHARED | QUADS | {"ORDER": 1, "B_ELEMENTS": 9, "Q_SHARED": 0, "BUFFERS": 2, "RAISE_WHILE": 1, "RETRY": 1,
                          "STEPS": 1}, True
    ),
    "quads-whole-rows": (
        SHARED | QUADS | {"ORDER": 1, "B_ELEMENTS": 9, "Q_SHARED": 0, "BUFFERS": 3, "RAISE_WHILE": 1, "RETRY": 1,
                          "STEPS": 1, "SPLIT_LOOPS": 1, "WHOLE_ROWS": 1}, True
    ),
    "quads-whole-rows-48": (
        SHARED | QUADS | {"ORDER": 1, "B_ELEMENTS": 9, "Q_SHARED": 0, "BUFFERS": 3, "CHUNK": 16, "DIM": 48, "VDIM": 48,
                          "RF": 1, "WHOLE_ROWS": 1}, True
    ),
    "quads-tiles": (
        SHARED | QUADS | {"OPTIONS": 3, "ORDER": 1, "B_ELEMENTS": 9, "Q_SHARED": 0, "KEYS": 64, "BUFFERS": 2,
                          "RAISE_WHILE": 1, "RETRY": 1, "STEPS": 1}, True
    ),
    "quads-tiles-16": (
        SHARED | QUADS | {"OPTIONS": 3, "ORDER": 1, "B_ELEMENTS": 9, "Q_SHARED": 0, "KEYS": 64, "RF": 1,
                          "RAISE_WHILE": 1}, True
    ),
    "quads-ends": (ENDS | {"BUFFERS": 4, "CHUNK": 16, "SPLIT_LOOPS": 1, "WHOLE_ROWS": 1}, True),
    "quads-ends-retry": (ENDS | {"BUFFERS": 3, "RETRY": 1, "STEPS": 1}, True),
    "quads-ends-turns": (ENDS | {"RETRY": 1, "STEPS": 1, "SPLIT_LOOPS": 1, "WHOLE_ROWS": 1}, True),
    "quads-computed": (ENDS | {"OPTIONS": 2, "RETRY": 1, "STEPS": 1, "WHOLE_ROWS": 1}, True),
    "quads-functions": (
        SHARED | QUADS | {"OPTIONS": 4, "FUNCTIONS": 1, "ORDER": 1, "B_ELEMENTS": 9, "Q_SHARED": 0, "KEYS": 64,
                          "CHUNK": 32, "BUFFERS": 2, "SPLIT_LOOPS": 1}, True
    ),
    "rdna4-functions": (AMD | IN_SEQUENCE | HALF_FACTORS | {"OPTIONS": 4, "FUNCTIONS": 1, "RF": 1}, True),
    "any-8x16": (
        SHARED | SCRAMBLED | {"MATRIX_M": 8, "SUBGROUP": 16, "B_ELEMENTS": 16, "RF": 1, "Q_SHARED": 2}, True
    ),
}  # fmt: skip
#: Kernels with options, and what is on when they are tried: one program each, as these take the longest to compile.
#: Heads of 129 to 256 columns: tiles of fewer keys than a subgroup has invocations, and part of q in shared memory.
WIDE = {"OPTIONS": 4, "KEYS": 16, "RF": 1, "DIM": 256, "VDIM": 256}
WITH_OPTIONS = {
    "quads-wide": (
        SHARED | QUADS | WIDE | {"ORDER": 1, "B_ELEMENTS": 9, "BUFFERS": 2, "Q_SHARED": 5},
        {"mask": "bool-dead-rows", "softcap": 1.5, "window": (19, 15), "alibi": "heads", "hidden": "nan",
         "size": (53, 41), "width": (200, 160), "heads": (2, 2), "batch": 1},
    ),
    "rdna4-wide": (
        AMD | IN_SEQUENCE | HALF_FACTORS | WIDE | {"Q_SHARED": 10},
        {"causal": "on", "segments": "documents", "softcap": 1.5, "sinks": "heads",
         "size": (37, 53), "width": (256, 136), "heads": (2, 1), "batch": 1},
    ),
}  # fmt: skip
#: What is added to scores by the kernel that reads it in pairs or fours, and how it is read then (``added.features``).
ADDED_TO = SHARED | QUADS | {
    "OPTIONS": 4, "ORDER": 1, "B_ELEMENTS": 9, "Q_SHARED": 0, "KEYS": 64, "CHUNK": 32, "BUFFERS": 2, "RAISE_WHILE": 1,
    "SPLIT_LOOPS": 1, "DRAWN_TOGETHER": 4, "APART": 1,
}  # fmt: skip
ADDED = {
    "bias": ({"bias": "full", "t5": "both-ways", "size": (54, 70)}, ["bias-pairs"]),
    "bias-odd": ({"bias": "heads", "alibi": "heads", "causal": "on", "size": (53, 71)}, []),
    "half": ({"bias": "half", "softcap": 1.5, "size": (54, 70)}, ["bias-halves", "bias-pairs"]),
    "half-odd": ({"bias": "half", "hidden": "inf", "size": (41, 71)}, ["bias-halves"]),
    "mask": ({"mask": "add-inf-rows", "alibi": "batch", "hidden": "nan", "size": (54, 70)}, ["mask-pairs"]),
    "mask-odd": ({"mask": "add-lowest", "softcap": 300.0, "size": (53, 71)}, []),
    "fours": ({"bias": "full", "causal": "on", "hidden": "nan", "size": (53, 72)}, ["added-fours"]),
    "fours-half": ({"bias": "half", "softcap": 1.5, "window": (19, 15), "size": (41, 68)},
                   ["added-fours", "bias-halves"]),
    "fours-mask": ({"mask": "add-inf-rows", "hidden": "nan", "size": (54, 76)}, ["added-fours"]),
    "fours-lowest": ({"mask": "add-lowest", "causal": "on", "size": (70, 44)}, ["added-fours"]),
    "fours-both": ({"mask": "add-full", "bias": "keys", "dropout": 0.5, "size": (40, 72)}, ["added-fours"]),
    "both": ({"mask": "add-full", "bias": "keys", "t5": "one-way", "causal": "on", "size": (70, 54)},
             ["bias-pairs", "mask-pairs"]),
}  # fmt: skip
#: Of these, those that are read behind the products too.
READ_LATE = ["bias", "half-odd", "fours-mask", "both"]
#: Ends of samples and of rows, with NaN or infinities past them.
AT_ENDS = {
    "sinks": {"sinks": "heads", "causal": "on", "hidden": "nan", "size": (70, 54)},
    "lengths": {"lengths": "both", "hidden": "nan", "size": (53, 71)},
    "fewer-keys": {"lengths": "both", "causal": "on", "hidden": "nan", "scale": -0.3, "size": (107, 61)},
    "few-rows": {"lengths": "queries", "sinks": "heads", "hidden": "nan", "size": (75, 69)},
    "few-keys": {"lengths": "keys", "window": (None, 3), "sinks": "heads", "hidden": "inf", "size": (41, 130)},
    "mask": {"lengths": "both", "mask": "bool-dead-rows", "hidden": "nan", "layout": "heads-inside", "size": (53, 71)},
    "added": {"lengths": "both", "mask": "add-inf-rows", "sinks": "heads", "causal": "on", "hidden": "nan",
              "size": (70, 75)},
}  # fmt: skip
OF_ENDS = [name for name in KERNELS if name.startswith("quads-ends")]


def family_of(defines):
    """The data file of a kernel."""
    if "FUNCTIONS" in defines:
        return "emulated-functions"
    by_options = ("emulated", "emulated-ends", "emulated-computed", "emulated-tiles", "emulated-options")
    return by_options[defines.get("OPTIONS", 0)]


FACTS = {"align": 8, "head_dim": 32, "value_dim": 24, "rows": 64}


def emulated(texts):
    """The files of shaders/attention/matrix, by name, with arrays for matrices and the workgroup for the subgroup.

    Loops stay loops: arrays need no constant indices, and some drivers take minutes over the code unrolled.
    """
    changes = [
        (r"(?m)^#define FACTOR_([AB]) coopmat.*$", r"#define FACTOR_\1 float16_t[\1_ELEMENTS]", 2),
        (r"(?m)^#define SUMS coopmat.*$", "#define SUMS float[8]", 1),
        (r"\bSUMS\(([^()]*)\)", r"filled_sums(\1)", None),
        (r"\bFACTOR_B\(([^()]*)\)", r"filled_factor(\1)", None),
        (r"\bcoopmat<float16_t, [^>]*gl_MatrixUseAccumulator>", "float16_t[8]", None),
        (r"(s_frag\[i\]\[f\]) \*= (\w+);", r"for (uint e = 0u; e < ELEMENTS; ++e) \1[e] *= \2;", 1),
        (r"\bgl_SubgroupID\b", "0u", 1),
        (r"\bgl_SubgroupInvocationID\b", "gl_LocalInvocationIndex", 1),
        (r"(?m)^(shared uvec4 tile\[.*)$", r'\1\n#include "emulated-matrices.glsl"', 1),
    ]
    for old, new, count in changes:
        replaced = {name: re.subn(old, new, text) for name, text in texts.items()}
        found = sum(times for _, times in replaced.values())
        assert found == count or (count is None and found), f"{old} is there {found} times"
        texts = {name: text for name, (text, _) in replaced.items()}
    return {name: text.replace("[[unroll]]", "[[dont_unroll]]") for name, text in texts.items()}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """The kernels of KERNELS."""
    if NO_COMPILER:
        pytest.skip(NO_COMPILER)
    root = tmp_path_factory.mktemp("emulated")
    room = root / "shaders/attention"
    families = shutil.ignore_patterns("*.comp", "*.toml")
    rooms = dict.fromkeys(("attention", "masks", "arrays", "elementwise"), families)
    for name, skip in (rooms | {"include": None}).items():
        shutil.copytree(ROOT / "shaders" / name, root / "shaders" / name, ignore=skip)
    shutil.copy(ROOT / "tests/shaders/emulated-matrices.glsl", root / "shaders/include")
    own = [path for path in room.glob("matrix/*.glsl") if path.name != "wide.glsl"]  # a kernel of its own
    for path, text in emulated({path: path.read_text() for path in own}).items():
        path.write_text(text)
    (room / "emulated.comp").write_text(SOURCE)
    of_functions = ("arrays/expressions", "arrays/scatter", "elementwise/copy")
    masks = (f"masks/attention-{name}" for name in ("tiles", "mask-bits", "mask-lanes"))
    for name in ("attention/attention-naive", *of_functions, *masks):
        for ending in ("comp", "toml"):  # what the check compares with and uses
            shutil.copy(ROOT / f"shaders/{name}.{ending}", root / f"shaders/{name}.{ending}")
    kernels = KERNELS | WITH_OPTIONS | {"quads-added": (ADDED_TO, {})}
    for family, settings in FAMILIES.items():
        variants = [
            VARIANT.format(
                name=name, rank=rank, rows=defines["MATRIX_M"] * defines["RF"], keys=defines["KEYS"],
                offers=OFFERS[family], form="mask_bits" if family in MASKS_AS_BITS else "mask_order",
                holes=str(family == "emulated-functions").lower(),
                defines=", ".join(f"{define} = {value}" for define, value in defines.items()),
            )
            for rank, (name, (defines, _)) in enumerate(kernels.items())
            if family_of(defines) == family
        ]  # fmt: skip
        (room / f"{family}.toml").write_text(FAMILY.format(**settings) + "".join(variants))
    return Manifest(Checkout(root))


def chosen(backend, manifest, kernel, monkeypatch):
    """The kernel's choice, of a registry that the backend has for the test."""
    registry = with_shaders(monkeypatch, backend, manifest)
    (variant,) = (v for v in manifest.variants if v.variant == kernel and v.family in FAMILIES)
    return registry.choice(variant)


def verdict(backend, manifest, kernel, monkeypatch):
    return selfcheck.prove(backend.opened, chosen(backend, manifest, kernel, monkeypatch), FACTS)


@pytest.mark.parametrize("kernel", [
    name for name, (_, right) in KERNELS.items() if right and name not in OF_ENDS[:2]  # for those: test_ends
])  # fmt: skip
def test_the_orders_of_devices(vulkan_backend, manifest, kernel, monkeypatch):
    assert verdict(vulkan_backend, manifest, kernel, monkeypatch) is None


@pytest.mark.parametrize("kernel", [name for name, (_, right) in KERNELS.items() if not right])
def test_another_order_is_found_out(vulkan_backend, manifest, kernel, monkeypatch):
    assert "error" in verdict(vulkan_backend, manifest, kernel, monkeypatch)


@pytest.mark.parametrize("kernel", WITH_OPTIONS)
def test_options_of_wide_heads(vulkan_backend, manifest, kernel, monkeypatch):
    choice = chosen(vulkan_backend, manifest, kernel, monkeypatch)
    cell = Cell("float16", tuple((PLAIN | WITH_OPTIONS[kernel][1]).values()))
    judge_cell(pin(with_classes(view_of(vulkan_backend)), choice), cell, choice.variant.family)


@pytest.mark.parametrize(("name", "late"), [*((name, False) for name in ADDED), *((name, True) for name in READ_LATE)])
def test_what_is_added(vulkan_backend, manifest, name, late, monkeypatch):
    """Biases and additive masks, read two or four numbers at a time where they lie so, also beside distances."""
    options, wanted = ADDED[name]
    choice = chosen(vulkan_backend, manifest, "quads-added", monkeypatch)
    if late:
        wanted = [*wanted, "added-late"]
    else:
        offers = tuple(name for name in choice.variant.offers if name != "added-late")
        choice.variant = dataclasses.replace(choice.variant, offers=offers)
    seen = []
    monkeypatch.setattr(added, "features", lambda *given, real=added.features: seen.append(real(*given)) or seen[-1])
    view = pin(view_of(vulkan_backend), choice)

    def change(given):
        """A bias stays as it is on the device."""
        return given | ({"attn_bias": view.tensor(given["attn_bias"])} if "attn_bias" in given else {})

    cell = Cell("float16", tuple((PLAIN | {"width": (32, 24), "heads": (4, 2)} | options).values()))
    judge_cell(view, cell, choice.variant.family, change)
    assert seen == [extras_bits(wanted)]


def test_rows_that_a_mask_mixes(vulkan_backend, manifest, monkeypatch):
    choice = chosen(vulkan_backend, manifest, "quads-added", monkeypatch)
    view = pin(with_classes(view_of(vulkan_backend)), choice)
    judge_rows_apart(view, 32, np.dtype(np.float16), "first", True, choice.variant.family, monkeypatch)


@pytest.mark.parametrize("kernel", ["quads-functions", "rdna4-functions"])
@pytest.mark.parametrize("judge_one", [
    *(partial(test_matrix_functions.judge_functions, make=make) for make in (relative, of_everything)),
    test_matrix_functions.judge_hidden, test_matrix_functions.judge_numbers, test_matrix_functions.judge_beside,
    test_matrix_functions.judge_cache,
], ids=["relative", "of_everything", "hidden", "numbers", "beside", "cache"])  # fmt: skip
def test_functions(vulkan_backend, manifest, kernel, judge_one, monkeypatch):
    """Score functions and mask functions."""
    choice = chosen(vulkan_backend, manifest, kernel, monkeypatch)
    view = pin(view_of(vulkan_backend), choice)
    judge_one(view, choice.variant.family, "float16", problem(67, 93, 32, dtype=np.float16))


#: Scores that only the distance bends, in tiles on either side of the diagonal and on none (``leans``).
LEANING = {
    "alibi": {"alibi": "batch", "size": (70, 330)},
    "alibi-below": {"alibi": "heads", "size": (330, 70), "heads": (2, 1)},
    "alibi-causal": {"alibi": "heads", "causal": "on", "sinks": "heads", "size": (150, 210)},
    "alibi-window": {"alibi": "heads", "window": (19, 15), "lengths": "both", "size": (70, 330)},
    "alibi-mask": {"alibi": "heads", "mask": "bool-dead-rows", "hidden": "nan", "size": (54, 204)},
    "t5": {"t5": "both-ways", "size": (70, 430)},
    "t5-causal": {"t5": "one-way", "causal": "on", "size": (210, 230)},
    "t5-lengths": {"t5": "one-way", "lengths": "keys", "hidden": "inf", "size": (310, 130), "heads": (2, 1)},
}  # fmt: skip


@pytest.mark.parametrize("name", LEANING)
def test_what_leans(vulkan_backend, manifest, name, monkeypatch):
    choice = chosen(vulkan_backend, manifest, "quads-added", monkeypatch)
    options = {"width": (32, 24), "heads": (4, 2)} | LEANING[name]
    cell = Cell("float16", tuple((PLAIN | options).values()))
    judge_cell(pin(with_classes(view_of(vulkan_backend)), choice), cell, choice.variant.family)


@pytest.mark.parametrize("kernel", ["quads-added", "quads-computed"])
@pytest.mark.parametrize("steep", [3.0, 64.0, -3.0])
def test_steep_slopes(vulkan_backend, manifest, steep, kernel, monkeypatch):
    """Slopes of which products would lose bits to what is added, and slopes that raise scores with the distance."""
    choice = chosen(vulkan_backend, manifest, kernel, monkeypatch)
    cell = Cell("float16", tuple((PLAIN | {"width": (32, 24), "heads": (4, 2), "size": (70, 330)}).values()))
    view = pin(view_of(vulkan_backend), choice)
    call = features.make(cell)
    slopes = np.full(4, steep, np.float32)
    want = reference.flash_attention(*(a.astype(np.float64) for a in (call.q, call.k, call.v)), alibi_slopes=slopes)
    out = view.attention.flash_attention2(call.q, call.k, call.v, alibi_slopes=slopes, kernel=choice.variant.family)
    assert np.abs(out - want).max() <= 2e-3 * np.abs(call.v).max()


@pytest.mark.parametrize("cap", [1.5, 4.0, 20.0, 300.0], ids=["beyond", "both", "half", "near"])
def test_soft_cap_and_dropout(vulkan_backend, manifest, cap, monkeypatch):
    """Scores up to half of the cap, and beyond it; and generators that run side by side."""
    choice = chosen(vulkan_backend, manifest, "quads-added", monkeypatch)
    options = {"width": (32, 24), "heads": (4, 2), "softcap": cap, "dropout": 0.5, "size": (70, 71)}
    cell = Cell("float16", tuple((PLAIN | options).values()))
    judge_cell(pin(view_of(vulkan_backend), choice), cell, choice.variant.family)


#: Scores that a rule bends, in the kernels that have nothing else to do to them.
BY_RULE = {
    **{name: LEANING[name] for name in ("alibi", "alibi-below", "alibi-causal")},
    "both": {"alibi": "batch", "softcap": 1.5, "causal": "on", "size": (70, 330)},
    "alibi-odd": {"alibi": "heads", "lengths": "both", "mask": "bool-dead-rows", "hidden": "nan",
                  "layout": "heads-inside", "size": (91, 203)},
    "cap-mask": {"softcap": 1.5, "mask": "add-inf-rows", "causal": "on", "size": (70, 75)},
    "cap-low": {"softcap": 1.5, "lengths": "both", "causal": "on", "hidden": "inf", "size": (107, 203)},
    "cap-lengths": {"softcap": 30.0, "lengths": "both", "causal": "on", "scale": -0.3, "hidden": "nan",
                    "size": (107, 161)},
}  # fmt: skip


@pytest.mark.parametrize("name", BY_RULE)
def test_scores_that_a_rule_changes(vulkan_backend, manifest, name, monkeypatch):
    choice = chosen(vulkan_backend, manifest, "quads-computed", monkeypatch)
    cell = Cell("float16", tuple((PLAIN | {"width": (32, 24), "heads": (4, 2)} | BY_RULE[name]).values()))
    judge_cell(pin(view_of(vulkan_backend), choice), cell, choice.variant.family)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("cap", "large"), [(0.001, 1), (4.0, 1), (20.0, 1), (20.0, 150), (30.0, 40), (5e6, 150)])
def test_scores_that_outgrow_a_polynomial(vulkan_backend, manifest, cap, large, causal, monkeypatch):
    """From some key on scores are so large that the soft-cap needs more than it does for small ones."""
    choice = chosen(vulkan_backend, manifest, "quads-computed", monkeypatch)
    view = pin(view_of(vulkan_backend), choice)
    cell = Cell("float16", tuple((PLAIN | {"width": (32, 24), "heads": (4, 2), "size": (150, 331)}).values()))
    call = features.make(cell)
    call.k[:, :, 200:] *= large
    call.k[:, 1, 40:200] *= large
    exact = [a.astype(np.float64) for a in (call.q, call.k, call.v)]
    want, want_lse = reference.flash_attention(*exact, softcap=cap, causal=causal, return_lse=True)
    out, lse = view.attention.flash_attention2(
        call.q, call.k, call.v, softcap=cap, causal=causal, kernel=choice.variant.family, return_lse=True
    )
    assert np.abs(out - want).max() <= 2e-3 * np.abs(call.v).max()
    assert np.abs(lse - want_lse).max() <= 1e-5 * max(1, np.abs(want_lse).max())


@pytest.mark.parametrize("first", [30, 150])
@pytest.mark.parametrize("kernel", ["quads-retry", "quads-ends-turns"])
def test_maxima_far_from_zero(vulkan_backend, manifest, kernel, first, monkeypatch):
    choice = chosen(vulkan_backend, manifest, kernel, monkeypatch)
    view = pin(view_of(vulkan_backend), choice)
    case, arrays = far_from_zero(32, np.float16, first)
    out, lse = view.attention.flash_attention2(*arrays, scale=case.scale, kernel=choice.variant.family, return_lse=True)
    judge((out, lse), case, arrays, None)


def test_sinks_of_rows_without_keys(vulkan_backend, manifest, monkeypatch):
    """The log-sum-exp is the sink, however small."""
    choice = chosen(vulkan_backend, manifest, "quads-ends-turns", monkeypatch)
    view = pin(view_of(vulkan_backend), choice)
    q, k, v = (np.ones((2, 2, n, 32), np.float16) for n in (5, 7, 7))
    sinks = np.array([-300, 3], np.float32)
    out, lse = view.attention.flash_attention2(
        q, k, v, sinks=sinks, seqlens_k=np.array([0, 7], np.int32), kernel=choice.variant.family, return_lse=True
    )
    assert (out[0] == 0).all() and (np.abs(lse[0] - sinks[:, None]) <= 1e-4).all()
    assert np.isfinite(lse).all() and (out[1, 0] == 1).all()


@pytest.mark.parametrize(("kernel", "name", "trips"), [
    *((OF_ENDS[number % 2], name, None) for number, name in enumerate(AT_ENDS)), ("quads-ends-turns", "few-rows", None),
    ("quads-ends-turns", "fewer-keys", None), ("quads-ends", "few-keys", 2000), ("quads-ends-retry", "few-keys", 2000),
])  # fmt: skip
def test_ends(vulkan_backend, manifest, kernel, name, trips, monkeypatch):
    """Sinks, and samples with their own numbers of rows and keys; with ``trips`` the keys are cut into dispatches."""
    choice = chosen(vulkan_backend, manifest, kernel, monkeypatch)
    if trips:
        pretend(monkeypatch, vulkan_backend, loop_trips=trips)
    cell = Cell("float16", tuple((PLAIN | {"width": (32, 24), "heads": (4, 2)} | AT_ENDS[name]).values()))
    judge_cell(pin(view_of(vulkan_backend), choice), cell, choice.variant.family)


@pytest.mark.parametrize(("kernel", "causal"), zip(OF_ENDS, (False, True, True), strict=True))
def test_ends_of_packed_sequences(vulkan_backend, manifest, kernel, causal, monkeypatch):
    """One behind the other, with values of NaN in one of them, which the others do not meet."""
    choice = chosen(vulkan_backend, manifest, kernel, monkeypatch)
    view = pin(view_of(vulkan_backend), choice)
    problem = Problem(np.float16, ([70, 0, 1, 37, 5, 0, 13], [53, 9, 7, 11, 0, 0, 101]), rest=3, dim=24, value_dim=32)
    asked = {"causal": causal, "sinks": np.array([0.5, -1, 2, 0], np.float32)}

    def attend(*given):
        arrays = [view.tensor(array) for array in given[:3]]
        found = varlen.flash_attention_varlen(
            view.opened, *arrays, *given[3:], return_lse=True, kernel=choice.variant.family, **asked
        )
        return [array.numpy() for array in found]

    found = problem.call(attend)
    problem.check(found, **asked)
    keys = slice(*problem.cu[1][2:4])
    problem.arrays[2] = problem.arrays[2].copy()
    problem.arrays[2][keys] = np.nan
    out, lse = problem.call(attend)
    rows = np.r_[: problem.cu[0][2], problem.cu[0][3] : len(out)]
    np.testing.assert_array_equal(out[rows], found[0][rows])
    np.testing.assert_array_equal(lse, found[1])
    assert np.isnan(out[problem.cu[0][2] : problem.cu[0][3]]).all()
