"""tools/bench_models.py runs from end to end, and its folders hold what their configurations say."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import grilly
from conftest import open_or_skip

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import bench_models as tool
import random_models

pytestmark = pytest.mark.long("of a tool that only the project runs")


QUANTIZED = ["--type", "Q4_K_M", "--batches", "2"]


@pytest.mark.parametrize(
    "name, more", [("llama-1b", []), ("llama-1b", QUANTIZED), ("bert-base", []), ("whisper-large", [])]
)
def test_it_runs(monkeypatch, capsys, tmp_path, name, more):
    open_or_skip("vulkan", lambda: grilly.Compute(runtime="vulkan")).close()
    given = ["--tiny", "--only", name, "--seconds", "0", "--folder", str(tmp_path), "--json", str(tmp_path / "found")]
    monkeypatch.setattr(sys, "argv", ["bench_models.py", *given, *more])
    tool.main()
    printed = capsys.readouterr().out
    assert "FAILED" not in printed
    figures = json.loads((tmp_path / "found").read_text())["results"]
    assert {f["model"] for f in figures} == {name} and all(f["value"] > 0 for f in figures)
    wanted = {"llama-1b": "a captured step", "bert-base": "captured, float32 high", "whisper-large": "12 tokens"}[name]
    assert any(wanted in f["what"] for f in figures)
    if name == "bert-base":
        assert sum(f["what"].startswith(("SentenceEncoder, ", "the model, ")) for f in figures) >= 6


def test_a_failure_is_said_and_the_rest_goes_on(monkeypatch, capsys, tmp_path):
    open_or_skip("vulkan", lambda: grilly.Compute(runtime="vulkan")).close()
    monkeypatch.setattr(sys, "argv", ["bench_models.py", "--tiny", "--only", "minilm", "vit-b16", "--seconds", "0",
                                      "--folder", str(tmp_path)])  # fmt: skip
    monkeypatch.setitem(random_models.MODELS, "minilm", (None, {"architectures": ["Other"]}))
    tool.main()
    printed = capsys.readouterr().out
    assert "FAILED" in printed and "'Other'" in printed and "vit-b16        captured, float16" in printed


def test_folders_are_whole_and_written_once(tmp_path, monkeypatch, vulkan_backend):
    monkeypatch.setattr(random_models, "BLOCK", 4096)
    config = random_models.MODELS["llama-1b"][1]
    folder = random_models.write(tmp_path / "llama", config)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    model = grilly.models.load(random_models.write(folder, config), backend=vulkan_backend)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    weight = model.layers[1].mlp.narrow.weight.numpy().astype(np.float64)
    assert abs(weight.std() - 0.02) < 0.002 and abs(weight.mean()) < 0.002
    assert abs(model.norm.weight.numpy().astype(np.float64).mean() - 1) < 0.02
