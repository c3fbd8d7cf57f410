"""What benchmarks write with --json begins alike, and has what the tables of docs/benchmarks read of it."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import grilly
from conftest import open_or_skip

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tools"), str(ROOT / "tools/docsite")]
import data  # noqa: E402

import measured  # noqa: E402

pytestmark = pytest.mark.long("of a tool that only the project runs")

#: The tool, its file of figures, arguments, and what is put in place of its large shapes.
RUNS = {
    "bench_arrays": ("arrays", ["--names", "x + y", "--shape", "8", "16", "--seconds", "0.01"], {}),
    "bench_attention": ("attention", ["--dtypes", "float16", "--repeats", "2"], {"few": ((1, 2, 24, 16), True)}),
    "bench_backward": ("gradients", ["--dtypes", "float16", "--repeats", "2"], {"one": ((1, 2, 24, 16), True)}),
    "bench_features": ("options", ["--features", "window", "--repeats", "2"], {"d64": (1, 2, 24, 16)}),
    "bench_calls": ("calls", ["--small", "--repeats", "2"], {}),
    "bench_transfers": ("transfers", ["--shape", "1,2,24,16", "--repeats", "2", "--megabytes", "0.25"], {}),
    "bench_decode": ("decoding", ["--megabytes", "3", "--repeats", "3"], [("b1", 1, 4, 2, 1, 512, 16)]),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_tool_writes_what_its_table_reads(name, monkeypatch, tmp_path, capsys):
    open_or_skip("vulkan", lambda: grilly.Compute(runtime="vulkan")).close()
    monkeypatch.setenv("GRILLY_RUNTIME", "vulkan")
    source, arguments, cases = RUNS[name]
    tool = importlib.import_module(name)
    if cases:
        monkeypatch.setattr(tool, "CASES", [tool.Case(*case) for case in cases] if name == "bench_decode" else cases)
    if hasattr(tool, "torch_with_gpu"):
        monkeypatch.setattr(tool, "torch_with_gpu", lambda: None)
    path = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", [f"/somewhere/{name}.py", *arguments, "--json", str(path)])
    assert not tool.main()
    found = json.loads(path.read_text())
    assert found["command"].startswith(f"{name}.py --") and len(found["date"]) == 10
    assert found["versions"]["grilly"] == grilly.__version__ and set(data.DEVICE) <= set(found["device"])
    ours = [one for one in data.read(source).results if "torch" not in str(one.get("by", one.get("name")))]
    read = set(ours[1]) - {"note", "torch"}
    assert any(read <= set(one) for one in found["results"]), (read, found["results"])
    capsys.readouterr()


def test_a_result_is_a_line():
    found = {"versions": {"a": "1"}, "results": [{"x": np.float32(0.5)}, {"y": np.arange(2)}], "none": []}
    text = measured.text(found)
    assert json.loads(text) == {"versions": {"a": "1"}, "results": [{"x": 0.5}, {"y": [0, 1]}], "none": []}
    assert '\n  {"x": 0.5},\n  {"y": [0, 1]}\n' in text
    with pytest.raises(TypeError, match="object is nothing that JSON has"):
        measured.text({"results": [object()]})


def test_every_benchmark_has_the_same_way():
    for path in sorted((ROOT / "tools").glob("bench_*.py")):
        source = path.read_text(encoding="utf-8")
        assert "add_json(parser)" in source and "write(" in source and "import json" not in source, path.name
