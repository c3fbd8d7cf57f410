"""tools/bench_host.py runs from end to end, and every operation that it times can be called."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import bench_host as tool

pytestmark = pytest.mark.long("of a tool that only the project runs")


def test_every_operation_is_timed(vulkan_backend, monkeypatch, tmp_path, capsys):
    path = tmp_path / "found.json"
    monkeypatch.setattr(tool.grilly, "Compute", lambda: vulkan_backend)
    monkeypatch.setattr(tool.grilly, "use", lambda backend: None)
    monkeypatch.setattr(sys, "argv", ["bench_host.py", "--calls", "1", "--json", str(path)])
    assert tool.main() == 0
    found = json.loads(path.read_text())["results"]
    assert {one["name"] for one in found} == set(tool.work(vulkan_backend)) and all(one["grilly"] > 0 for one in found)
    assert len(capsys.readouterr().out.splitlines()) == len(found)


def test_what_is_held_is_submitted_later(vulkan_backend):
    x = vulkan_backend.tensor(np.array([1, 2], np.float32))
    with tool.held(vulkan_backend.runtime):
        y = x + x
    assert y.tolist() == [2.0, 4.0]
