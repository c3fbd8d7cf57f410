"""Numbers that kernels and Python share: what tools/shaderbuild/shared_constants.py reads of GLSL."""

import runpy
from pathlib import Path

import pytest

from grilly import reference
from grilly.reference.philox import MULTIPLIERS, ROUNDS, WEYL
from grilly.registry.names import OFFERS
from grilly.registry.shader_constants import CONSTANTS
from grilly.registry.shared import PARAMETER_NAMES, differing, extras_bits
from shaderbuild.builder import Builder, CompileError
from shaderbuild.everything import build
from shaderbuild.shared_constants import python_text, shared_constants

ROOT = Path(__file__).resolve().parents[2]

FIRST = """\
const uint NO_FACT = 9u;
// constants: tiles, of which there are three
// A comment.
const uint HIDDEN = 0u, MIXED = 1u;
const uint SEEN = 2u;  // all

// constants: keys
const uint KEY = 0xBB67AE85u;

const uint NO_FACT_EITHER = 9u;
// constants: numbers
const float FLOOR = -3.0e38;
"""
SECOND = "// constants: tiles\nconst uint SEEN = 2u;\n\n// constants: parameters\nconst int LEFT = 7;\n"


def read(tmp_path, *texts):
    paths = [tmp_path / f"{number}.glsl" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return shared_constants(paths, lambda path: path.name)


def test_marked_constants_are_read(tmp_path):
    assert read(tmp_path, FIRST, SECOND) == {
        "tiles": {"HIDDEN": 0, "MIXED": 1, "SEEN": 2}, "keys": {"KEY": 0xBB67AE85}, "numbers": {"FLOOR": -3.0e38},
        "parameters": {"LEFT": 7},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("SEEN = 2u", "SEEN = 3u", r"1\.glsl:2: SEEN is 3, and 2 at 0\.glsl:5"),
        ("const uint SEEN = 2u;", "uint seen;", r"1\.glsl:2: 'uint seen;' among shared constants"),
        ("LEFT = 7", "LEFT = RIGHT + 1", r"1\.glsl:5: 'LEFT = RIGHT \+ 1' among shared constants"),
    ],
)
def test_differences_and_what_is_no_number_are_named(tmp_path, old, new, said):
    assert old in SECOND
    with pytest.raises(ValueError, match=said):
        read(tmp_path, FIRST, SECOND.replace(old, new))


def test_the_shaders_constants_are_whole():
    tables = Builder(ROOT).shared_constants()
    assert sorted(tables["parameters"].values()) == list(range(len(tables["parameters"]))), "words without gaps"
    assert tables["tiles"] == {"TILE_EMPTY": 0, "TILE_PARTIAL": 1, "TILE_FULL": 2}
    assert tables["numbers"]["NEVER"] < tables["numbers"]["MASK_FLOOR"] < 0.0
    assert sorted(tables["features"].values()) == [1 << place for place in range(len(tables["features"]))]


def test_python_has_them_from_the_shaders():
    """The written file is what the shaders state, and all that Python knows of headers and bits comes from it."""
    tables = Builder(ROOT).shared_constants()
    assert tables == CONSTANTS and not differing(tables)
    assert (ROOT / "grilly_py/grilly/registry/shader_constants.py").read_text() == python_text(tables)
    assert {name.upper(): place for place, name in enumerate(PARAMETER_NAMES)} == tables["parameters"]
    assert {name.upper().replace("-", "_"): extras_bits((name,)) for name in OFFERS} == tables["features"]
    assert extras_bits(("window", "paged", "window")) == tables["features"]["WINDOW"] | tables["features"]["PAGED"]


def test_the_reference_has_the_shaders_numbers():
    """The reference imports nothing of the package, so it states them again."""
    philox, numbers = CONSTANTS["philox"], CONSTANTS["numbers"]
    assert tuple(philox[f"PHILOX_MULTIPLIER_{n}"] for n in (0, 1)) == MULTIPLIERS
    assert tuple(philox[f"PHILOX_WEYL_{n}"] for n in (0, 1)) == WEYL
    assert philox["PHILOX_ROUNDS"] == ROUNDS
    assert numbers["MASK_FLOOR"] == reference.NEVER


def repository(tmp_path, constants):
    """The builder of a repository with a package, whose shaders state constants."""
    for folder in ("shaders/include", "grilly_py/grilly/registry"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "shaders/include/constants.glsl").write_text(constants)
    return Builder(tmp_path)


def test_a_package_that_has_others_fails_the_build(tmp_path):
    builder = repository(tmp_path, "// constants: parameters\nconst uint LEFT = 0u, RIGHT = 1u;\n")
    constants = "grilly_py/grilly/registry/shader_constants.py"
    said = f"{constants} is not what shaders state; run: python tools/compile_shaders.py --constants"
    assert said in build(builder, 1, check=True).problems, "there is none"
    build(builder, 1)
    written = tmp_path / constants
    assert runpy.run_path(str(written))["CONSTANTS"] == {"parameters": {"LEFT": 0, "RIGHT": 1}}
    assert said not in build(builder, 1, check=True).problems
    written.write_text(written.read_text().replace("1", "2"))
    assert said in build(builder, 1, check=True).problems


@pytest.mark.parametrize(
    ("constants", "said"),
    [
        (
            "parameters\nconst uint LEFT = 0u, RIGHT = 2u;",
            r"the parameters among shared constants are \[0, 2\]; expected \[0, 1\]",
        ),
        (
            "parameters\nconst uint LEFT = 1u, RIGHT = 1u;",
            r"the parameters among shared constants are \[1, 1\]; expected \[0, 1\]",
        ),
        ("features\nconst int WINDOW = 1, WINGS = 2;", "features .*'WINGS'.* of registry/names.py"),
    ],
)
def test_gaps_twins_and_features_without_a_name_fail_the_build(tmp_path, constants, said):
    builder = repository(tmp_path, f"// constants: {constants}\n")
    with pytest.raises(CompileError, match=said):
        builder.check_python(written=True)
