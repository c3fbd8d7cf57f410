"""tools/bench_characters.py: its step by hand in NumPy is the model's, and it times both."""

import json
import sys
from pathlib import Path

import pytest

import grilly

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import bench_characters

pytestmark = pytest.mark.long("of tools that only the project runs")


@pytest.fixture(autouse=True)
def the_default_again():
    """The tool makes its own device the default."""
    yield
    grilly.use(None)


def run(monkeypatch, path):
    monkeypatch.setattr(sys, "argv", ["bench_characters", "--seconds", "0.05", "--json", str(path)])
    return bench_characters.main()


def test_both_are_timed(tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, tmp_path / "found.json") == 0
    found = json.loads((tmp_path / "found.json").read_text())["results"]
    assert [line["by"] for line in found] == ["grilly", "NumPy"] and all(line["seconds"] > 0 for line in found)
    assert "times NumPy's time" in capsys.readouterr().out


def test_other_gradients_are_said(tmp_path, monkeypatch, capsys):
    real = bench_characters.gelu
    monkeypatch.setattr(bench_characters, "gelu", lambda x: (real(x)[0], lambda g: 1.01 * real(x)[1](g)))
    assert run(monkeypatch, tmp_path / "found.json") == 1
    assert "WRONG" in capsys.readouterr().out
