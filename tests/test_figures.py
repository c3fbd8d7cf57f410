"""Figures of docs/benchmarks: pages and charts are what the measured data says, and new measurements get in whole."""

import json
import re
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools/docsite"))
import bars  # noqa: E402
import charts  # noqa: E402
import data  # noqa: E402
import figures  # noqa: E402
import tables  # noqa: E402

MARK = re.compile(r"<!-- figures: (\S+) -->")


@pytest.mark.parametrize("name", tables.TABLES)
def test_pages_and_pictures_are_what_the_data_says(name):
    files = figures.made(name, data.read(name))
    assert len(files) >= 2
    for path, text in files.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python tools/docsite/figures.py"
        if path.suffix == ".svg":
            xml.etree.ElementTree.parse(path)


def test_nothing_is_left_over():
    """Every file of data has a table, every mark a file, every chart's file a table."""
    assert {path.name for path in data.DATA.iterdir()} == {f"{name}.json" for name in tables.TABLES}
    assert {source for source, _ in charts.CHARTS.values()} == set(tables.TABLES)
    marks = [(name, path.name) for path in figures.BENCHMARKS.glob("*.md")
             for name in MARK.findall(path.read_text(encoding="utf-8"))]  # fmt: skip
    assert sorted(marks) == sorted((name, page) for name, (page, _) in tables.TABLES.items())


def changed(numbers, by: float):
    """The same data with other figures."""
    if isinstance(numbers, dict):
        kept = ("shape", "dim", "workers")
        return {name: value if name in kept else changed(value, by) for name, value in numbers.items()}
    if isinstance(numbers, list):
        return [changed(one, by) for one in numbers]
    return numbers * by if isinstance(numbers, float) else numbers


@pytest.mark.parametrize("name", tables.TABLES)
def test_another_figure_is_another_page(name):
    """That a table has its numbers from the data."""
    found = data.read(name)
    other = data.Measured(name, {**found.found, "results": changed(found.results, 2.5)})
    page = next(iter(figures.made(name, found)))
    old, new = (figures.made(name, one)[page] for one in (found, other))
    assert old != new


def test_a_table_replaces_the_one_below_its_mark():
    page = "a\n\n<!-- figures: one -->\n\n| old |\n|---|\n| 1 |\n\nb | c\n"
    assert figures.placed(page, "one", "| new |\n") == "a\n\n<!-- figures: one -->\n\n| new |\n\nb | c\n"
    for wrong in (page.replace("one", "two"), page + page, page.replace("-->\n\n", "-->\n")):
        with pytest.raises(LookupError, match=r"[02] times '<!-- figures: one"):
            figures.placed(wrong, "one", "| new |\n")


def test_a_figure_that_is_not_there_is_an_error():
    found = data.read("two-gpus")
    with pytest.raises(LookupError, match="two-gpus has no result with workers 3"):
        found.one(workers=3)
    assert found.maybe(workers=3) == {} and found.maybe(before=True, workers=1) == {}


def test_what_nobody_reads_is_refused(tmp_path):
    written = {"versions": {}, "device": {"name": "x", "limits": {}}, "reslts": []}
    (tmp_path / "odd.json").write_text(json.dumps(written))
    with pytest.raises(ValueError, match=r"unknown \['device.limits', 'reslts'\], lacking \['results'\]"):
        data.read("odd", tmp_path)


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """The data, the pages and the pictures copied, so that a test may change them."""
    for folder in ("docs/benchmarks/data", "docs/pictures"):
        (tmp_path / folder).mkdir(parents=True)
    for path in [*figures.BENCHMARKS.glob("*.md"), *data.DATA.iterdir(), *bars.PICTURES.glob("*.svg")]:
        (tmp_path / path.relative_to(ROOT)).write_bytes(path.read_bytes())
    for module, name in ((figures, "ROOT"), (figures, "DATA"), (figures, "BENCHMARKS"), (figures, "PICTURES")):
        monkeypatch.setattr(module, name, tmp_path / getattr(module, name).relative_to(ROOT))
    monkeypatch.setattr(figures, "read", lambda name: data.read(name, figures.DATA))
    return tmp_path


def measurement(name: str, **other) -> dict:
    """What a benchmark would have written, on another device."""
    device = {"index": 0, "name": "A GPU", "architecture": "new", "driver": "d", "driver_version": "1", "limits": {}}
    found = {"command": "bench_x.py --json /a/b.json --all", "date": "2030-01-02", "versions": {"grilly": "1"},
             "device": device, "runtime": "vulkan", "results": data.read(name).results}  # fmt: skip
    return {**found, **other}


def take(monkeypatch, folder, *given: object) -> int:
    paths = []
    for number, one in enumerate(given[1:]):
        paths.append(folder / f"{number}.json")
        paths[-1].write_text(json.dumps(one))
    monkeypatch.setattr(sys, "argv", ["figures.py", "--take", str(given[0]), *map(str, paths)])
    return figures.main()


def test_a_new_measurement_gets_in(monkeypatch, elsewhere, capsys):
    """In two files of one device: the former results become "before", page and picture follow."""
    former = data.read("arrays").results
    half = len(former) // 2
    slower = [{**one, "grilly": one["grilly"] * 2} for one in former]
    new = [measurement("arrays", results=some) for some in (slower[:half], slower[half:])]
    assert take(monkeypatch, elsewhere, "arrays", *new) == 0
    found = data.read("arrays", figures.DATA)
    assert found.results == slower and found.found["before"] == former
    assert found.found["device"] == {"name": "A GPU", "architecture": "new", "driver": "d", "driver_version": "1"}
    assert found.found["command"] == "bench_x.py --all; bench_x.py --all" and found.found["date"] == "2030-01-02"
    copy = former[0]
    row = f"| copy | {copy['grilly'] * 2e6:.0f} | {copy['GB/s']:,.0f} | {copy['grilly'] * 1e6:.0f} |"
    assert row in (figures.BENCHMARKS / "h200-arrays.md").read_text()
    assert "A GPU, driver 1" in (figures.PICTURES / "arrays.svg").read_text()
    assert capsys.readouterr().out.count("written:") == 2


@pytest.mark.parametrize("wrong", ["lacks one", "no results", "two devices"])
def test_half_a_measurement_does_not(monkeypatch, elsewhere, capsys, wrong):
    new = [measurement("calls")]
    if wrong == "lacks one":
        new[0]["results"] = [one for one in new[0]["results"] if one["what"] != "kernel alone"]
    elif wrong == "no results":
        new[0]["results"] = []
    else:
        new.append(measurement("calls", device={"name": "Another GPU"}))
    before = {path: path.read_bytes() for path in elsewhere.rglob("*.*") if path.is_file()}
    assert take(monkeypatch, elsewhere, "calls", *new) == 1
    said = capsys.readouterr().err
    named = {"lacks one": "what 'kernel alone'", "no results": "no results", "two devices": "differ in device"}
    assert "nothing was changed" in said and named[wrong] in said
    assert all(path.read_bytes() == kept for path, kept in before.items())


def test_an_unknown_name_is_said(monkeypatch, elsewhere, capsys):
    with pytest.raises(SystemExit):
        take(monkeypatch, elsewhere, "nothing", measurement("calls"))
    assert "--take needs one of attention, shapes" in capsys.readouterr().err
