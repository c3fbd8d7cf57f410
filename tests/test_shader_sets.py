"""Sets of settings in the shaders' data files (docs/shader-files.md)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compilers import needs_compiler
from shaderbuild.families import SETS_FILE, FamilyError, read_family

ROOT = Path(__file__).resolve().parents[1]

SETS = """\
operation = "add"
source = "add.comp"
use = ["interface"]

[constants]
N = 0

[sets.two]
requires = ["subgroup-basic"]
defines = { FACTOR = 2 }

[sets.sizes]

[[sets.sizes.case]]
name = "small"
limits = { head_dim = [1, 64] }

[[sets.sizes.case]]
name = "large"
use = ["wide"]
defines = { FACTOR = 3 }

[sets.wide]
limits = { head_dim = [65, 256] }

[[variant]]
name = "y"
use = ["two", "sizes", "everywhere"]
defines = { ON = true }
offers = ["bias"]
"""
SHARED_SETS = """\
[sets.everywhere]
rank = 5
rank_on = { nvidia = 9 }
offers = ["window", "sinks"]

[sets.interface]
push_bytes = 4
bindings = [["a", "r"], ["o", "rw"]]
"""


SOURCE = """\
#version 450
layout(local_size_x = 64) in;
layout(constant_id = 0) const int N = 4;
layout(set = 0, binding = 0) readonly buffer A { float a[]; };
layout(set = 0, binding = 1) buffer O { float o[]; };
layout(push_constant) uniform P { uint n; };
void main() {
  uint i = gl_GlobalInvocationID.x;
  if (i < n) o[i] = a[i] * FACTOR + N;
}
"""


@pytest.fixture
def with_sets(tmp_path):
    """A repository with one family by sets, some of them shared with other families."""
    (tmp_path / "shaders/include").mkdir(parents=True)
    (tmp_path / "shaders/add.toml").write_text(SETS)
    (tmp_path / "shaders/add.comp").write_text(SOURCE)
    (tmp_path / "shaders" / SETS_FILE).write_text(SHARED_SETS)
    return tmp_path


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def tool(repo, *arguments):
    command = [sys.executable, str(ROOT / "tools/compile_shaders.py"), "--root", str(repo), *arguments]
    environment = {**os.environ, "GRILLY_CACHE_DIR": str(repo / "cache")}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_sets_are_merged_into_what_uses_them(with_sets):
    small, large = read_family(with_sets / "shaders/add.toml")
    assert [small.name, large.name] == ["add.y.small.float32", "add.y.large.float32"]
    assert (small.push_bytes, small.bindings) == (4, [["a", "r"], ["o", "rw"]])
    assert small.settings["requires"] == ["subgroup-basic"]
    assert (small.settings["rank"], small.settings["rank_on"]) == (5, {"nvidia": 9})
    assert small.settings["defines"] == {"FACTOR": 2, "ON": True}
    assert sorted(small.settings["offers"]) == ["bias", "sinks", "window"]
    assert large.settings["defines"] == {"FACTOR": 3, "ON": True}, "a case overrides its variant's sets"
    assert large.settings["limits"] == {"head_dim": [65, 256]}
    assert small.sets == {"interface", "everywhere"}
    assert large.line == 18, "a case of a set is where the set states it"


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ('use = ["two"', 'use = ["too"', 28, "there is no set too; sets: everywhere, interface, sizes, two, wide"),
        ('use = ["wide"]\n', "", 22, "nothing uses set wide"),
        ("[sets.wide]", "[sets.wide]\nrang = 1", 24, "unknown key 'rang' in set wide"),
        ("[sets.wide]", '[sets.wide]\nuse = ["two"]', 24, "unknown key 'use' in set wide"),
        ("[sets.wide]", "[sets.Wide]", 8, "lower-case"),
        ('requires = ["subgroup-basic"]', 'requires = ["wings"]', 9, "wings"),
        ("ON = true", "FACTOR = 1", 28, "defines.FACTOR is stated by set two and by variant y"),
        ('["bias"]', '["sinks"]', 28, "offers.sinks is stated by set everywhere and by variant y"),
        ("[sets.two]", "[sets.two]\nrank = 1", 29, "rank is stated by set everywhere and by set two"),
        ("defines = { ON = true }", "rank = 1", 28, "rank is stated by set everywhere and by variant y"),
        ("[sets.two]", "[sets.two]\npush_bytes = 4", 29, "set two states push_bytes, which variant y cannot have"),
        ('use = ["wide"]', 'use = ["sizes"]', 20, "set sizes states case, which variant y, case large cannot have"),
        ('use = ["interface"]', 'use = ["interface"]\npush_bytes = 4', 3, "push_bytes is stated by set interface"),
        ("[sets.two]", "[sets.interface]\n[sets.two]", 8, "set interface is in include/sets.toml too"),
        ('use = ["two", "sizes"', 'use = ["two", "two"', 28, "wanted a list of names of sets"),
        ("ON = true }", 'ON = true }\n[[variant.case]]\nname = "a"', 28, "case is stated by set sizes and by"),
    ],
)
def test_mistakes_with_sets_are_named_with_file_and_line(with_sets, old, new, line, said):
    edit(with_sets / "shaders/add.toml", old, new)
    with pytest.raises(FamilyError) as caught:
        read_family(with_sets / "shaders/add.toml")
    text = str(caught.value)
    assert said in text
    assert text.startswith(f"add.toml:{line}: "), text


def test_mistakes_in_the_shared_sets_are_named_with_file_and_line(with_sets):
    edit(with_sets / "shaders" / SETS_FILE, "rank = 5", "rang = 5")
    with pytest.raises(FamilyError, match=r"include/sets\.toml:2: unknown key 'rang' in set everywhere"):
        read_family(with_sets / "shaders/add.toml")


@needs_compiler
def test_a_shared_set_that_no_family_uses_is_an_error(with_sets):
    done = tool(with_sets)
    assert done.returncode == 0, done.stderr
    assert tool(with_sets, "--check").returncode == 0
    edit(with_sets / "shaders" / SETS_FILE, "[sets.interface]", "[sets.idle]\nrank = 3\n\n[sets.interface]")
    done = tool(with_sets, "--check")
    assert done.returncode == 1
    assert "shaders/include/sets.toml:6: nothing uses set idle" in done.stderr
