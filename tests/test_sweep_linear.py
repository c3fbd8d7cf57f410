"""tools/sweep_linear.py runs from end to end: a mistake in it would otherwise show only on the GPU that it is for."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import sweep_linear as tool

pytestmark = pytest.mark.long("of a tool that only the project runs")


def test_candidates_are_checked_and_timed(tmp_path, monkeypatch, capsys):
    path = tmp_path / "rows.json"
    options = ["--types", "float32", "--shape", "1", "72", "64", "--shape", "20", "40", "16", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", ["sweep_linear.py", *options, "--repeats", "1", "--seconds", "4", "--best", "2"])
    monkeypatch.setitem(os.environ, "GRILLY_SELF_CHECK", os.environ.get("GRILLY_SELF_CHECK", ""))  # put back at the end
    monkeypatch.setattr(tool, "torch_with_gpu", lambda: None)
    assert tool.main() == 0
    rows = json.loads(path.read_text())["results"]
    assert {tuple(row["shape"]) for row in rows} == {(1, 72, 64), (20, 40, 16)}
    assert all(row["device"] > 0 and row["call"] > 0 for row in rows)
    assert capsys.readouterr().out.count(" *") == 2


def test_what_is_wrong_is_said():
    exact = np.ones((2, 3))
    assert tool.wrong(exact, exact, exact, "float32") is None
    assert "error 0.1" in tool.wrong(exact + 0.1, exact, exact, "float16")
