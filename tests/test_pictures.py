"""Pictures of documents: shown somewhere, small, and drawn as they stand. tests/test_figures.py has the charts."""

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
SHOWN_BY_EXAMPLES = {"denoise.png", "disc.png", "letters.png", "patterns.png", "search.svg"}


@pytest.mark.parametrize("name", drawings.DRAWINGS)
def test_a_drawing_is_as_its_script_makes_it(name):
    path = bars.PICTURES / f"{name}.svg"
    assert path.read_text(encoding="utf-8") == drawings.DRAWINGS[name](), "run: python tools/docsite/drawings.py"
    xml.etree.ElementTree.parse(path)


def test_every_picture_is_shown_with_a_text_and_is_small():
    files = {path.name for path in bars.PICTURES.iterdir()}
    assert files == SHOWN_BY_EXAMPLES | {f"{name}.svg" for name in (*charts.CHARTS, *drawings.DRAWINGS)}
    shown = set()
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        shown |= {name for _, name in re.findall(r"!\[([^\]]+)\]\([^)]*pictures/([^)]+)\)", page.read_text("utf-8"))}
    assert shown == files
    assert all(path.stat().st_size < 50_000 for path in bars.PICTURES.iterdir())


def test_a_long_foot_is_broken():
    chart = bars.Chart("t", "u", "word " * 40, ("a",), [("one", [2.0])])
    lines = re.findall(r'<text x="20" y="(\d+)" font-size="11"[^>]*>([^<]*)</text>', chart.svg())
    assert len(lines) == 3 and all(len(text) <= bars.FOOT for _, text in lines)
    height = int(re.search(r' height="(\d+)" font-family', chart.svg())[1])
    assert height - 20 < int(lines[-1][0]) < height


def test_a_bar_is_as_long_as_its_number():
    chart = bars.Chart("t", "u", "n", ("a", "b"), [("one", [2.0, None]), ("two", [4.0, 1.0])])
    found = re.findall(r'<rect x="\d+" y="\d+" width="([\d.]+)" height="13" rx', chart.svg())
    one, two, other = map(float, found)
    assert two == pytest.approx(2 * one, abs=0.2) and two == pytest.approx(4 * other, abs=0.4)
