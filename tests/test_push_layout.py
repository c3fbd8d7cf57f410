"""The layout of push constants: what shaderbuild/push_layout.py reads of a source, and holds against each binary."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from compilers import needs_compiler
from manifests import manifest_text
from shaderbuild.push_layout import misplaced, source_layout

ROOT = Path(__file__).resolve().parents[1]

BLOCK = """\
layout(push_constant, std430) uniform Push {
    uint q_offset, q_row;  // uint of_a_comment;
    int shift;
    float scale;
#ifdef MORE
    uint extra;
#endif
} pc;
"""
LAYOUT = [["q_offset", "u32", 0], ["q_row", "u32", 4], ["shift", "i32", 8], ["scale", "f32", 12], ["extra", "u32", 16]]


def test_a_source_is_read():
    assert source_layout(["// layout(push_constant) uniform Other { uint no; };", BLOCK]) == LAYOUT
    assert source_layout(["void main() {}"]) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("#endif", "#else\n    uint other;\n#endif", "#else"),
        ("uint extra", "vec2 extra", "vec2 extra"),
        ("uint extra", "uint extra[2]", r"extra\[2\]"),
        ("} pc;", "} pc;\nlayout(push_constant) uniform More { uint n; };", "2 blocks"),
    ],
)
def test_what_is_no_list_of_numbers_is_refused(old, new, said):
    with pytest.raises(ValueError, match=said):
        source_layout([BLOCK.replace(old, new)])


def test_a_variant_may_lack_the_last_members_and_no_others():
    found = [tuple(member) for member in LAYOUT]
    assert misplaced(found, LAYOUT) == misplaced(found[:4], LAYOUT) == misplaced([], LAYOUT) == ""
    assert "push constant 1 is ['q_row', 'i32', 4]" in misplaced([found[0], ("q_row", "i32", 4)], LAYOUT)
    assert "push constant 0 is ['q_row', 'u32', 0]" in misplaced([("q_row", "u32", 0)], LAYOUT)
    assert "in the family's source None" in misplaced([*found, ("one_more", "u32", 20)], LAYOUT)


TOML = """\
operation = "add"
source = "add.comp"
push_bytes = 8
bindings = [["o", "rw"]]

[[variant]]
name = "x"
defines = { SECOND = 0 }
"""
SOURCE = """\
#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) buffer O { uint o[]; };
layout(push_constant) uniform P { FIRST uint n; int m; } pc;
void main() { o[pc.n] = uint(pc.m); }
"""


@needs_compiler
def test_a_binary_that_differs_from_its_source_is_an_error(tmp_path):
    """A macro in the block, which a reader of the source does not see, moves what follows."""
    (tmp_path / "shaders").mkdir()
    (tmp_path / "shaders/add.toml").write_text(TOML)

    def build(first):
        (tmp_path / "shaders/add.comp").write_text(SOURCE.replace("FIRST", first))
        command = [sys.executable, str(ROOT / "tools/compile_shaders.py"), "--root", str(tmp_path)]
        environment = {**os.environ, "GRILLY_CACHE_DIR": str(tmp_path / "cache")}
        command += ["--pack", str(tmp_path / "packed")]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    done = build("")
    assert done.returncode == 0, done.stderr
    manifest = json.loads(manifest_text(tmp_path / "packed"))
    assert all("push" not in entry for entry in manifest["variants"]), "stated once, by family"
    assert manifest["families"]["add"]["push"] == [["n", "uint"], ["m", "int"]]
    done = build("\n#if SECOND\n uint one;\n#endif\n")
    assert done.returncode == 1
    assert re.search(r"shaders/add\.toml:6: add\.x\.float32: its push constant 0 is \['n', 'u32', 0\]", done.stderr)
    done = build("layout(offset = 4)")
    assert done.returncode == 1 and "shaders/add.comp: 'layout(offset = 4) uint n'" in done.stderr
    (tmp_path / "shaders/add.toml").write_text(TOML.replace("push_bytes = 8", "push_bytes = 12"))
    assert "push_bytes is 12, and its source's push constants are fewer" in build("").stderr
