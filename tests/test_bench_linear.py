"""tools/bench_linear.py runs from end to end: a mistake in it would otherwise show only on the GPU that it is for."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import bench_linear as tool
import grilly.functional as F
from backends import on

pytestmark = pytest.mark.long("of a tool that only the project runs")


def test_every_variant_is_checked_and_timed(tmp_path, monkeypatch, capsys):
    path = tmp_path / "rows.json"
    options = ["--types", "float32", "--variants", "linear-split", "linear.tile.m32", "--shape", "72", "40", "16"]
    monkeypatch.setattr(sys, "argv", ["bench_linear.py", *options, "--repeats", "2", "--json", str(path)])
    monkeypatch.setattr(tool, "torch_with_gpu", lambda: None)
    monkeypatch.setattr(tool, "RAGGED", tool.RAGGED[:2])
    assert tool.main() == 0
    rows = json.loads(path.read_text())["results"]
    assert rows and all(row["tflops"] > 0 and row["by"] == "grilly" for row in rows)
    assert all(row["error"] <= 2 * row["plain"] for row in rows)
    assert all("plain float32's" in row["note"] for row in rows)
    assert "ragged sizes right" in capsys.readouterr().out


def test_what_is_wrong_is_said(backend):
    """A kernel that errs is not called right."""

    dtype = tool.dtype_of("float32")
    assert tool.right(lambda *arrays: on(backend, F.linear)(*arrays), dtype) is None
    assert "error 0.1" in tool.right(lambda *arrays: on(backend, F.linear)(*arrays) + 0.1, dtype)
