"""Numbers that kernels and Python share: what tools/shaderbuild/shared_facts.py reads of GLSL."""

from pathlib import Path

import pytest

from shaderbuild.shared_facts import shared_facts

ROOT = Path(__file__).resolve().parents[1]

FIRST = """\
const uint NO_FACT = 9u;
// facts: tiles, of which there are three
// A comment.
const uint HIDDEN = 0u, MIXED = 1u;
const uint SEEN = 2u;  // all

const uint NO_FACT_EITHER = 9u;
// facts: numbers
const float FLOOR = -3.0e38;
"""
SECOND = "// facts: tiles\nconst uint SEEN = 2u;\n\n// facts: header\nconst int LEFT = 7;\n"


def read(tmp_path, *texts):
    paths = [tmp_path / f"{number}.glsl" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return shared_facts(paths, lambda path: path.name)


def test_marked_constants_are_read(tmp_path):
    assert read(tmp_path, FIRST, SECOND) == {
        "tiles": {"HIDDEN": 0, "MIXED": 1, "SEEN": 2}, "numbers": {"FLOOR": -3.0e38}, "header": {"LEFT": 7},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("SEEN = 2u", "SEEN = 3u", r"1\.glsl:2: SEEN is 3, and 2 at 0\.glsl:5"),
        ("const uint SEEN = 2u;", "uint seen;", r"1\.glsl:2: 'uint seen;' among shared facts"),
        ("LEFT = 7", "LEFT = RIGHT + 1", r"1\.glsl:5: 'LEFT = RIGHT \+ 1' among shared facts"),
    ],
)
def test_differences_and_what_is_no_number_are_named(tmp_path, old, new, said):
    assert old in SECOND
    with pytest.raises(ValueError, match=said):
        read(tmp_path, FIRST, SECOND.replace(old, new))


def test_the_shaders_facts_are_whole():
    sources = [path for path in sorted((ROOT / "shaders").rglob("*")) if path.suffix in (".glsl", ".comp")]
    tables = shared_facts(sources)
    assert sorted(tables["header"].values()) == list(range(len(tables["header"]))), "words without gaps"
    assert tables["tiles"] == {"TILE_HIDDEN": 0, "TILE_MIXED": 1, "TILE_SEEN": 2}
    assert tables["numbers"]["NEVER"] < tables["numbers"]["MASK_FLOOR"] < 0.0
    assert list(tables["features"].values()) == [1 << place for place in range(len(tables["features"]))]
