"""tools/bench_training.py and bench_quantized.py run from end to end: mistakes would else show on a GPU only."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import bench_quantized
import bench_training
import grilly

pytestmark = pytest.mark.long("of tools that only the project runs")


@pytest.fixture(autouse=True)
def the_default_again():
    """The tools make their own device the default."""
    yield
    grilly.use(None)


def results(monkeypatch, tool, path, *options):
    monkeypatch.setattr(sys, "argv", [tool.__name__, *options, "--json", str(path)])
    assert tool.main() == 0
    return json.loads(path.read_text())["results"]


def test_steps_of_training(tmp_path, monkeypatch):
    options = ["--tiny", "--seconds", "0.1", "--folder", str(tmp_path / "models")]
    found = results(monkeypatch, bench_training, tmp_path / "training.json", *options)
    steps = [line for line in found if "loss" in line]
    assert len(found) == 12 and len(steps) == 4
    assert all(line["rate"] > 0 and line["by"] == "grilly" for line in found)
    assert all(line["peak"] > 0 and 5 < line["loss"] < 6 for line in steps)  # log(256), of weights that know nothing


def test_quantized_weights(tmp_path, monkeypatch):
    options = ["--types", "float16", "Q4_K", "--rows", "1", "3", "--shape", "160", "256", "--seconds", "0.02"]
    found = results(monkeypatch, bench_quantized, tmp_path / "quantized.json", *options)
    assert [(line["type"], line["rows"]) for line in found] == [(t, m) for t in ("float16", "Q4_K") for m in (1, 3)]
    assert all(line["rate"] > 0 and line["error"] <= bench_quantized.BOUND for line in found)


def test_a_wrong_product_is_said(tmp_path, monkeypatch, capsys):
    real = bench_quantized.F.linear
    monkeypatch.setattr(bench_quantized.F, "linear", lambda *given: real(*given) + 1)
    options = ["--types", "Q4_0", "--rows", "1", "--shape", "160", "256", "--seconds", "0.02"]
    monkeypatch.setattr(sys, "argv", ["bench_quantized", *options])
    assert bench_quantized.main() == 1
    assert "WRONG" in capsys.readouterr().out
