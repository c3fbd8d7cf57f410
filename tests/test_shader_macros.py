"""Macros that may not stand together: the build of such a kernel fails, and says why.

The rules are the ``#error`` lines of attention's shaders, its gradients' and those of decoding.
"""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from pathlib import Path

import pytest

from compilers import needs_compiler
from shaderbuild.builder import Builder, CompileError

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("attention", "backward", "decode")

# Kernels that are built, by what breaks rules when it is changed.
ROWS = "flash-attention3.matrix-short.d64.float16"  # NVIDIA's order, no options
COLUMNS = "flash-attention3.matrix-8.d16.float16"  # llvmpipe's
QUERIES = "flash-attention3.matrix-transposed.d64.float16"  # AMD's
ANY = "flash-attention3.matrix-any.d64.float16"
FLOAT32 = "flash-attention3.matrix-split.d64.float32"
SPLIT_KV = "flash-attention3-split-kv.matrix.d64.float16"
ENDS = "flash-attention3.matrix.d128.float16"
RETRY = "flash-attention3.matrix.d64.float16"
TILED = "flash-attention3-tiles.matrix.d64.float16"
COMPUTED = "flash-attention3.matrix-computed.d64.float16"
OPTIONS = "flash-attention3.matrix-extra.d64.float16"
OPTIONS_8 = "flash-attention3.matrix-extra-8.d16.float16"
VECTORS = "flash-attention3.tall.v64.float32"
WIDE = "flash-attention-wide.one.d384.float16"
WIDE_8 = "flash-attention-wide.eight.d32.float16"
NARROW = "flash-attention-narrow.eight.d64.float16"
DKV = "flash-backward-dkv.matrix.d64.float16"
DQ_STORED = "flash-backward-dq-stored.matrix.d64.float16"
DKV_VECTORS = "flash-backward-dkv.tile.d64.float32"
DECODE = "flash-decode-matrix.quads.d64.float16"

#: Changes that break a rule, by the reason that the build gives. A macro that is None is left out.
BROKEN = {
    # attention/matrix/combinations.glsl
    "an invocation holds eight elements of an accumulator, whose rows are 8 or 16 numbers long": [
        (ROWS, {"SUBGROUP": 64}), (ANY, {"MATRIX_M": 8, "MATRIX_N": 32})
    ],
    "rows of factors are whole words of 16 bytes": [(ANY, {"MATRIX_K": 4})],
    "NVIDIA's order is known of matrices of 16 x 16 x 16": [
        (ROWS, {"MATRIX_K": 8}), (ROWS, {"MATRIX_M": 8, "MATRIX_N": 8, "MATRIX_K": 8, "SUBGROUP": 8})
    ],
    "llvmpipe's order is known of matrices of 8 x 8 x 8": [(COLUMNS, {"MATRIX_K": 16}), (ROWS, {"ORDER": 2})],
    "queries are columns of matrices whose sides are equal": [
        (QUERIES, {"MATRIX_K": 8}), (QUERIES, {"MATRIX_M": 8, "SUBGROUP": 16})
    ],
    "ORDER is 0 to 3": [(ROWS, {"ORDER": 4}), (ROWS, {"ORDER": -1})],
    "TURN_SHARED is for queries in columns": [(COLUMNS, {"TURN_SHARED": 1}), (ANY, {"TURN_SHARED": 1})],
    "DIM and VDIM are whole fragments": [
        (ROWS, {"DIM": 72}), (ROWS, {"VDIM": 72}), (DKV, {"DIM": 72}), (DKV, {"VDIM": 72})
    ],
    "a tile is whole chunks, and a chunk whole fragments of keys": [
        (ROWS, {"KEYS": 40}), (ENDS, {"CHUNK": 8}), (ENDS, {"CHUNK": 48}), (COLUMNS, {"CHUNK": 4})
    ],
    "Q_SHARED is at most the fragments of a row of q": [(ROWS, {"Q_SHARED": 5})],
    "OPTIONS is 0 to 4": [(ROWS, {"OPTIONS": 5}), (ROWS, {"OPTIONS": -1})],
    "FUNCTIONS, APART and DRAWN_TOGETHER are for kernels with all options": [
        (ROWS, {"FUNCTIONS": 1}), (TILED, {"APART": 1}), (ENDS, {"DRAWN_TOGETHER": 8})
    ],
    "keys are split where numbers are of 16 bits and there are no options": [
        (ENDS, {"SPLIT_KV": 1}), (OPTIONS, {"SPLIT_KV": 1}), (FLOAT32, {"SPLIT_KV": 1})
    ],
    "float32 has neither options nor queries in columns": [
        (FLOAT32, {"OPTIONS": 1}), (FLOAT32, {"ORDER": 3})
    ],
    "float32 has q in registers and sums in float32": [(FLOAT32, {"Q_SHARED": 1}), (FLOAT32, {"SUM_ON_MATRIX": 1})],
    "float32 has tiles of k and v, twice as large, take turns in one place": [
        (FLOAT32, {"BUFFERS": number}) for number in (2, 3, 4)
    ],
    "GROUP_K and GROUP_V divide the fragments of keys and of columns": [
        (FLOAT32, {"GROUP_K": 3}), (FLOAT32, {"GROUP_V": 3})
    ],
    "BUFFERS is 1 to 4": [(ROWS, {"BUFFERS": 0}), (ROWS, {"BUFFERS": 5})],
    "with classes of tiles BUFFERS is 1 or 2": [(OPTIONS, {"BUFFERS": 3}), (TILED, {"BUFFERS": 4})],
    "the scores of part of a tile are held where v does not lie in the place of k": [(ROWS, {"CHUNK": 32})],
    "the scores of part of a tile are held where the order of rows is known": [
        (ANY, {"BUFFERS": 2, "CHUNK": 16}), (QUERIES, {"BUFFERS": 2, "CHUNK": 16})
    ],
    "SUM_ON_MATRIX is for NVIDIA's order": [(kernel, {"SUM_ON_MATRIX": 1}) for kernel in (COLUMNS, QUERIES, ANY)],
    "RETRY is for 16-bit rows of a known order, sums by lanes, and OPTIONS up to 3": [
        (ANY, {"RETRY": 1}), (QUERIES, {"RETRY": 1}), (ROWS, {"RETRY": 1}), (FLOAT32, {"RETRY": 1}),
        (OPTIONS, {"SUM_ON_MATRIX": 0, "RETRY": 1}),
    ],
    "STEPS is for 16-bit numbers and queries in rows": [(FLOAT32, {"STEPS": 1}), (QUERIES, {"STEPS": 1})],
    "STEPS is for threads that take whole rows of k and v, and tiles of whole steps": [
        (RETRY, {"DIM": 48}), (RETRY, {"VDIM": 48}), (RETRY, {"SUBGROUPS": 8, "KEYS": 16})
    ],
    "STEPS is, with all options, for steps of whole fragments of keys": [
        (OPTIONS, {"DIM": 128, "STEPS": 1}), (OPTIONS, {"VDIM": 128, "STEPS": 1})
    ],
    "WHOLE_ROWS is for rows of a known order and q in registers": [
        (ANY, {"WHOLE_ROWS": 1}), (QUERIES, {"WHOLE_ROWS": 1}), (RETRY, {"Q_SHARED": 1})
    ],
    "WHOLE_ROWS is for 16-bit results that lie where they are asked for": [
        (FLOAT32, {"WHOLE_ROWS": 1}), (SPLIT_KV, {"WHOLE_ROWS": 1}), (OPTIONS, {"WHOLE_ROWS": 1}),
        (TILED, {"WHOLE_ROWS": 1}),
    ],
    "TILED is for rows of a known order, and units of four fragments of keys": [
        (TILED, {"ORDER": None, "RETRY": 0}), (TILED, {"KEYS": 32}),
        (TILED, {"ORDER": 3, "RETRY": 0, "STEPS": 0}),
    ],
    "COMPUTED is for NVIDIA's order, RETRY, and a barrier after a tile's first half": [
        (COMPUTED, {"RETRY": 0}), (COMPUTED, {"BUFFERS": 4}),
        (COMPUTED, {"ORDER": 2, "MATRIX_M": 8, "MATRIX_N": 8, "MATRIX_K": 8, "SUBGROUP": 8, "STEPS": 0}),
    ],
    "with all options a row's keys are whole words of 8, 16 or 32 bits, and whole sixteens": [
        (OPTIONS_8, {"KEYS": 24}), (OPTIONS, {"KEYS": 48, "CHUNK": 48}),
        (OPTIONS, {"ORDER": None, "SUM_ON_MATRIX": 0, "MATRIX_M": 32, "SUBGROUP": 64, "CHUNK": None}),
    ],
    "with all options a subgroup has up to four fragments of scores, or multiples of four": [
        (OPTIONS, {"RF": 3, "KEYS": 32})
    ],
    "DRAWN_TOGETHER divides the generators of a lane, of which there is one for two fragments": [
        (OPTIONS, {"DRAWN_TOGETHER": 3})
    ],
    # attention/matrix/wide.glsl
    "an invocation holds eight elements of an accumulator, and rows are whole words of 16 bytes": [
        (WIDE, {"SUBGROUP": 16}), (WIDE, {"MATRIX_M": 64, "MATRIX_N": 4}), (WIDE, {"MATRIX_K": 4})
    ],
    "a part of a row is whole fragments": [(WIDE, {"DIM": 336}), (WIDE, {"VDIM": 336})],
    "a tile is whole fragments of keys": [(WIDE, {"KEYS": 8}), (WIDE, {"KEYS": 16, "MATRIX_K": 32})],
    "Q_SHARED is at most the fragments of a part of a row of q": [(WIDE, {"Q_SHARED": 7})],
    "as many invocations have a row of scores, or a key, as any other": [(WIDE, {"RF": 3}), (WIDE, {"KEYS": 48})],
    "a power of two of a subgroup's invocations share a row of scores, each with pairs of keys": [
        (WIDE, {"PARTS": 6, "KEYS": 48, "DIM": 576, "VDIM": 576}), (WIDE, {"PARTS": 8}),
        (WIDE_8, {"PARTS": 16, "RF": 1, "KEYS": 32, "DIM": 128, "VDIM": 128}),
    ],
    # attention/flash-attention-narrow.comp
    "a subgroup has 8 or 16 invocations": [(NARROW, {"SUBGROUP": 32})],
    "DIM is whole factors, and every subgroup of a team has whole fragments of VDIM": [
        (NARROW, {"DIM": 72}), (NARROW, {"VDIM": 72})
    ],
    "TEAM_SIZE divides SUBGROUP, and SPLITS divides TEAM_SIZE": [
        (NARROW, {"TEAM_SIZE": 3, "VDIM": 72}), (NARROW, {"SPLITS": 3})
    ],
    "a tile is whole sixteens of keys, and a split of it one to four eights": [
        (NARROW, {"KEYS": 72, "SPLITS": 1, "TEAM_SIZE": 1}), (NARROW, {"KEYS": 16}), (NARROW, {"KEYS": 160})
    ],
    # backward
    "an invocation holds eight elements of an accumulator, which becomes a first factor as it is": [
        (DKV, {"SUBGROUP": 64}), (DKV, {"MATRIX_K": 8}), (DQ_STORED, {"SUBGROUP": 64})
    ],
    "ORDER is 0, or 1 of matrices of 16 x 16 x 16": [
        (DKV, {"ORDER": 2}), (DKV, {"MATRIX_M": 8, "SUBGROUP": 16}),
        (DKV, {"MATRIX_N": 8, "MATRIX_K": 8, "SUBGROUP": 16}),
    ],
    "a walked tile is whole turns, of whole fragments": [(DKV, {"WALK": 40}), (DKV, {"TURN": 3})],
    "dS is stored in whole tiles": [
        (DKV, {"STORED": 64}), (DKV, {"WALK": 256}), (DQ_STORED, {"STORED": 64}), (DQ_STORED, {"WALK": 48})
    ],
    "an invocation brings the numbers of two walked rows": [(DKV, {"SUBGROUPS": 1, "WALK": 128})],
    "DIM is whole fragments, and so are the keys of a tile": [(DQ_STORED, {"DIM": 72}), (DQ_STORED, {"WALK": 8})],
    "one tile or two are on their way": [(DQ_STORED, {"AHEAD": 0}), (DQ_STORED, {"AHEAD": 3})],
    "TX divides THREADS, an even number of times, and JC divides KT": [
        (DKV_VECTORS, {"TX": 128}), (DKV_VECTORS, {"JC": 3})
    ],
    "TX divides THREADS, and JC divides KT": [(VECTORS, {"TX": 24}), (VECTORS, {"JC": 3})],
    "TX and DC are whole vectors of four": [
        (DKV_VECTORS, {"TX": 2}), (DKV_VECTORS, {"DC": 18}), (VECTORS, {"TX": 2}), (VECTORS, {"DC": 18})
    ],
    "tiles of owned and of walked rows are whole eights": [
        (DKV_VECTORS, {"TX": 64, "TM": 1}), (DKV_VECTORS, {"TX": 4, "KT": 3, "JC": 1})
    ],
    "tiles of rows and of keys are whole eights": [
        (VECTORS, {"TX": 64, "TM": 1}), (VECTORS, {"TX": 4, "KT": 3, "JC": 1})
    ],
    # decode/flash-decode-matrix.comp
    "DIM and VDIM are 64 or 128": [(DECODE, {"DIM": 96}), (DECODE, {"VDIM": 32})],
    "FUNCTIONS stands beside EXTRAS": [(DECODE, {"FUNCTIONS": 1})],
}  # fmt: skip


@cache
def built():
    """The build tool, and the cases that it builds by name."""
    builder = Builder(ROOT)
    cases, errors = builder.families([path.stem for path in builder.sources(".toml") if path.parent.name in ROOMS])
    assert not errors
    return builder, {case.name: case for case in cases}


def test_every_rule_is_broken_here():
    files = [path for room in ROOMS for path in (ROOT / "shaders" / room).rglob("*.*") if path.suffix != ".toml"]
    rules = {reason for path in files for reason in re.findall(r"#\s*error (.*)", path.read_text(encoding="utf-8"))}
    assert rules == {f'"{reason}"' for reason in BROKEN}


@needs_compiler
@pytest.mark.parametrize(("reason", "name", "changes"), [
    (reason, name, changes) for reason, broken in BROKEN.items() for name, changes in broken
])  # fmt: skip
def test_a_broken_rule_fails_the_build_with_its_reason(reason, name, changes):
    builder, cases = built()
    defines = cases[name].settings["defines"] | changes
    defines = {macro: value for macro, value in defines.items() if value is not None}
    case = dataclasses.replace(cases[name], settings={**cases[name].settings, "defines": defines})
    with pytest.raises(CompileError) as error:
        builder.compile(builder.job(case))
    found = re.search(r": '#error' : (.*)", str(error.value))
    assert found and found.group(1).strip() == reason, str(error.value)
