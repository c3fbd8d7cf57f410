"""tools/bench_graph.py runs from end to end."""

import sys
from pathlib import Path

import pytest

import grilly
from conftest import open_or_skip

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import bench_graph as tool

pytestmark = pytest.mark.long("of a tool that only the project runs")


def test_it_runs(monkeypatch, capsys):
    open_or_skip("vulkan", lambda: grilly.Compute(runtime="vulkan")).close()
    monkeypatch.setattr(sys, "argv", ["bench_graph.py", "--counts", "1", "5", "--width", "16", "--repeats", "2"])
    tool.main()
    assert "us from one dispatch to the next" in capsys.readouterr().out


def test_steps_of_decoding(monkeypatch, capsys):
    open_or_skip("vulkan", lambda: grilly.Compute(runtime="vulkan")).close()
    given = ["--caches", "40", "--heads", "2", "4", "2", "16", "--dtype", "float32", "--repeats", "2"]
    monkeypatch.setattr(sys, "argv", ["bench_graph.py", *given])
    tool.main()
    printed = capsys.readouterr().out
    assert printed.count("planned for the length") == 2 and "39 of     40 keys" in printed


def test_a_replay_that_differs_is_said(monkeypatch):
    open_or_skip("vulkan", lambda: grilly.Compute(runtime="vulkan")).close()
    monkeypatch.setattr(sys, "argv", ["bench_graph.py", "--counts", "1", "--width", "16", "--repeats", "2"])
    monkeypatch.setattr(grilly.Compute, "capture", lambda self, call, x: lambda x: self.tensor(x))
    with pytest.raises(SystemExit, match="a replay differs"):
        tool.main()
