"""Pictures of documents: drawn from the tables as they stand, shown somewhere, and small."""

import re
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools/docsite"))
import bars  # noqa: E402
import charts  # noqa: E402
import drawings  # noqa: E402

#: What tools/docsite/gallery.py makes on a device; tests/test_examples.py checks the programs.
SHOWN_BY_EXAMPLES = {"denoise.png", "disc.png", "patterns.png", "search.svg"}
DRAWN = {**{name: lambda chart=chart: chart().svg() for name, chart in charts.CHARTS.items()}, **drawings.DRAWINGS}


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_is_what_the_tables_say(name):
    path = bars.PICTURES / f"{name}.svg"
    script = "charts" if name in charts.CHARTS else "drawings"
    assert path.read_text(encoding="utf-8") == DRAWN[name](), f"run: python tools/docsite/{script}.py"
    xml.etree.ElementTree.parse(path)


def test_every_picture_is_shown_with_a_text_and_is_small():
    files = {path.name for path in bars.PICTURES.iterdir()}
    assert files == SHOWN_BY_EXAMPLES | {f"{name}.svg" for name in DRAWN}
    shown = set()
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        shown |= {name for _, name in re.findall(r"!\[([^\]]+)\]\([^)]*pictures/([^)]+)\)", page.read_text("utf-8"))}
    assert shown == files
    assert all(path.stat().st_size < 50_000 for path in bars.PICTURES.iterdir())


def test_a_table_that_is_not_there_is_an_error():
    with pytest.raises(LookupError, match="0 tables"):
        bars.rows("lavapipe.md", "| nothing |")
    with pytest.raises(LookupError, match="3 tables"):
        bars.rows("decode.md", "| kernel and setting | B = 16 | B = 1 |")
    assert bars.rows("lavapipe.md", "| D | WIDTH = 8 | NumPy |")[1] == ["64", "60", "53"]


def test_a_bar_is_as_long_as_its_number():
    chart = bars.Chart("t", "u", "n", ("a", "b"), [("one", [2.0, None]), ("two", [4.0, 1.0])])
    found = re.findall(r'<rect x="\d+" y="\d+" width="([\d.]+)" height="13" rx', chart.svg())
    one, two, other = map(float, found)
    assert two == pytest.approx(2 * one, abs=0.2) and two == pytest.approx(4 * other, abs=0.4)
