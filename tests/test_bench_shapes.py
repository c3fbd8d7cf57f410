"""tools/bench_shapes.py runs from end to end: a mistake in it would otherwise show only on the GPU that it is for."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest

import bench_shapes as tool

pytestmark = pytest.mark.long("of a tool that only the project runs")


def run(monkeypatch, tmp_path, *options) -> tuple[int, list[dict]]:
    path = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["bench_shapes.py", *options, "--no-torch", "--json", str(path)])
    return tool.main(), json.loads(path.read_text())["results"]


SMALL = [
    tool.encoder("plain", 2, 4, 40, 16),
    tool.encoder("biased", 1, 2, 33, 16, "bias"),
    tool.prefill("all", 1, 4, 2, 50, 16, 20, "softcap", "sinks"),
    tool.decoding("few", 2, 4, 2, 70, 16, 3),
]


@pytest.mark.parametrize("gradients", [False, True])
def test_every_kind_of_shape(monkeypatch, tmp_path, capsys, gradients):
    monkeypatch.setattr(tool, "SHAPES", SMALL)
    flags = ["--gradients"] if gradients else []
    status, lines = run(monkeypatch, tmp_path, "--dtype", "float32", "--seconds", "0.02", *flags)
    assert status == 0 and [line["name"] for line in lines] == [shape.name for shape in SMALL]
    assert all(0 < line["grilly"] < 60 and 0 <= line["error"] < 2e-5 for line in lines)
    assert "plain" in capsys.readouterr().out


def test_what_is_wrong_is_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tool, "SHAPES", SMALL[:2])
    monkeypatch.setattr(tool, "error_of", lambda shape, *_: math.nan if shape.name == "biased" else 0.0)
    status, _ = run(monkeypatch, tmp_path, "--dtype", "float32", "--seconds", "0.02")
    assert status == 1 and "WRONG: biased" in capsys.readouterr().out


def test_pairs():
    """As many as a mask has."""
    for queries, keys, window in ((30, 30, None), (5, 90, None), (30, 30, 7), (40, 60, 11)):
        shape = tool.Shape("", "", 1, 1, 1, queries, keys, 8, True, window)
        back = np.arange(queries)[:, None] + keys - queries - np.arange(keys)
        seen = np.count_nonzero((back >= 0) & (back <= (window if window is not None else keys)))
        # The usual count for a causal square leaves out half of the diagonal.
        assert shape.pairs() == (queries * keys / 2 if window is None and queries == keys else seen)


def test_the_table():
    assert len(tool.SHAPES) >= 30 and len({shape.name for shape in tool.SHAPES}) == len(tool.SHAPES)
    assert tool.geometric([2.0, 8.0]) == pytest.approx(4.0)
