"""Commands: what they measure and print, and what is stopped or refused before anything is begun."""

from __future__ import annotations

import errno
import importlib.util
import io
import json
import os
import re
import sys

import numpy as np
import pytest

import goldens
import grilly
from grilly import ModelError, cli, models
from grilly.cli import bench, embed, main, output, shaders
from grilly.cli.common import readable
from grilly.models.llama import LlamaLM
from grilly.models.whisper import Whisper
from model_folders import drawn, write_folder, write_safetensors, write_tokenizer
from sounds import write_wav
from test_cli import shell, small_bench
from test_models_sounds import LONG, by_hand, needs_tokenizers, transcriber, whisper_folder
from test_models_texts import encoder, folder
from test_sixteen_bits import narrow

#: Fixtures of other files, found by their names here.
FIXTURES = encoder, folder, narrow, transcriber, whisper_folder


@needs_tokenizers
def test_transcribe_command(vulkan_backend, transcriber, whisper_folder, tmp_path, capsys, monkeypatch):
    file = write_wav(tmp_path / "a.wav", np.round(LONG * 32768).astype(int)[:, None])
    device = ["--device", str(vulkan_backend.device.index)]
    options = ["--language", "de", "--max-new-tokens", "5"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert main(["transcribe", str(whisper_folder), "-", *options, *device]) == 0
    out, err = capsys.readouterr()
    assert out == by_hand(transcriber, LONG, [3, 12, 13, 15], max_new_tokens=5) + "\n"
    assert err.startswith("2.2 s of sound in")
    for arguments, why in (
        ([whisper_folder, file, "--language", "xx"], "language is 'xx'"),
        ([whisper_folder, tmp_path / "none.wav"], "none.wav cannot be read: No such file"),
        ([whisper_folder, __file__], f"{__file__} is no "),
        ([whisper_folder, "-"], "standard input is empty; expected a sound"),
        ([tmp_path / "none", file], "none is no folder"),
        ([whisper_folder, write_wav(tmp_path / "b.wav", np.zeros((0, 1), int))], "b.wav has no samples"),
    ):
        assert main(["transcribe", *map(str, arguments), *device]) == 1
        out, err = capsys.readouterr()
        assert why in err and "Traceback" not in err and not out.strip()

    begun, step = [], Whisper._next

    def interrupted(self, *arguments):
        begun.append(None)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return step(self, *arguments)

    monkeypatch.setattr(Whisper, "_next", interrupted)
    assert main(["transcribe", str(whisper_folder), str(file), "--max-new-tokens", "3", *device]) == 130
    out, err = capsys.readouterr()
    assert out.endswith("\n") and out.strip() and err == "grilly transcribe: interrupted\n"


@needs_tokenizers
def test_an_interrupted_text_ends_its_line(vulkan_backend, folder, capsys, monkeypatch):
    begun, step = [], LlamaLM._next

    def interrupted(self, *arguments):
        begun.append(None)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return step(self, *arguments)

    monkeypatch.setattr(LlamaLM, "_next", interrupted)
    device = ["--device", str(vulkan_backend.device.index)]
    assert main(["generate", str(folder), "w5 w6", "--max-new-tokens", "3", *device]) == 130
    out, err = capsys.readouterr()
    assert out.endswith("\n") and out.strip() and err == "grilly generate: interrupted\n"


@needs_tokenizers
def test_what_no_encoder_has_is_said_before_weights_are_read(vulkan_backend, encoder, folder, monkeypatch):
    def load(path):
        return models.SentenceEncoder.load(path, backend=vulkan_backend)

    monkeypatch.setattr("grilly.models.weights.Weights._sent", None)  # that sends weights to the device
    with pytest.raises(ModelError, match="config.json: model_type is 'llama'; sentences are encoded by BERT"):
        load(folder)
    steps = json.loads((encoder / "modules.json").read_text())
    (encoder / "modules.json").write_text(json.dumps([*steps, {"path": "2_Dense", "type": "models.Dense"}]))
    (encoder / "2_Dense").mkdir()
    write_safetensors(encoder / "2_Dense/model.safetensors", {"linear.weight": np.ones((7, 5), np.float32)})
    (encoder / "2_Dense/config.json").write_text(json.dumps({"in_features": 5, "out_features": 7, "bias": False}))
    with pytest.raises(ModelError, match="in_features is 5; expected 32"):
        load(encoder)
    (encoder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="tokenizer.json is missing"):
        load(encoder)


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-16"])
@pytest.mark.parametrize("data, lines", [
    ("é w3\n".encode(), "é w3\n"), ("\ufeffé w3\n".encode(), "é w3\n"), (b"w3\r\nw4\rw5", "w3\nw4\nw5"),
])  # fmt: skip
def test_standard_input_is_utf8(tmp_path, monkeypatch, encoding, data, lines):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding=encoding))
    (tmp_path / "lines.txt").write_bytes(data)
    assert embed._text("-") == embed._text(str(tmp_path / "lines.txt")) == lines


def test_texts_of_the_shell(tmp_path, capsys):
    """A shell's bytes that its locale does not know are UTF-8, or no text."""
    for arguments in (["\udcff"], ["w3", "--stop", "\udcff"], ["w3", "--system", "\udcff"]):
        with pytest.raises(SystemExit):
            main(["generate", str(tmp_path), *arguments])
        assert r"'\udcff': expected a text in UTF-8" in capsys.readouterr().err
    assert readable("w3 é") == readable("w3 é".encode().decode("ascii", "surrogateescape")) == "w3 é"


@pytest.mark.parametrize("case, said", [
    ("bert", "Bert writes no texts"), ("whisper", "Whisper writes down sounds; run: grilly transcribe "),
    ("t5_encoder", "T5Encoder writes no texts"), ("llama_bare", "Llama writes no texts"),
    ("system", "--system is for chats, and .* has no chat template"),
])  # fmt: skip
def test_what_cannot_continue_texts_is_said_before_weights_are_read(
    vulkan_backend, tmp_path, capsys, monkeypatch, case, said
):
    tokenizers = pytest.importorskip("tokenizers")
    given = goldens.cases("models")[{"llama_bare": "llama", "system": "llama"}.get(case, case)].arguments
    folder = write_folder(tmp_path / "model", given)
    words = tokenizers.models.WordLevel({f"w{number}": number for number in range(61)}, unk_token="w0")
    write_tokenizer(folder, tokenizers.Tokenizer(words).to_str())
    if case == "llama_bare":
        (folder / "config.json").write_text(json.dumps({**given["config"], "architectures": ["LlamaModel"]}))
        bare = {name.removeprefix("model."): array for name, array in drawn(given["tensors"], 0).items()}
        write_safetensors(folder / "model.safetensors", {n: a for n, a in bare.items() if not n.startswith("lm_head")})
    monkeypatch.setattr("grilly.models.weights.Weights._sent", None)  # that sends weights to the device
    more = ["--system", "Be short."] if case == "system" else []
    assert main(["generate", str(folder), "w3", *more, "--device", str(vulkan_backend.device.index)]) == 1
    assert re.search(said, capsys.readouterr().err)


def test_shaders_says_so(narrow, vulkan_backend, monkeypatch, capsys):
    monkeypatch.setattr(shaders, "registry_of", lambda device, runtime: ("vulkan", narrow.registry))
    text = "float16 arrays are converted to float32 on this device: no 16-bit storage"
    for more in (["--explain", "--dims", "64", "--dtype", "float16"], ["--dtype", "float16"]):
        assert cli.main(["shaders", "--operation", "attention", *more]) == 0
        said = capsys.readouterr().out
        assert said.count(text) == 1 and "bfloat16" not in said
    assert cli.main(["shaders", "--operation", "attention", "--explain", "--dims", "64", "--dtype", "float32"]) == 0
    assert "converted" not in capsys.readouterr().out
    monkeypatch.undo()
    if "float16-storage" in vulkan_backend.runtime.features:
        assert cli.main(["shaders", "--operation", "attention", "--explain", "--dims", "64"]) == 0
        assert "converted" not in capsys.readouterr().out


def test_bench_json(vulkan_backend, tmp_path):
    from grilly.cli.measure import Problem, naive_bytes

    path = tmp_path / "bench.json"
    done = shell(*small_bench("--json", str(path)))
    assert done.returncode == 0, done.stderr
    assert "length 33: flash" in done.stderr  # progress
    report = json.loads(path.read_text())
    assert report["device"]["name"] == vulkan_backend.device.name
    assert report["versions"]["grilly"] == grilly.__version__
    assert report["versions"]["numpy"] == np.__version__
    assert report["command"].endswith(f"--json {path}") and len(report["date"]) == 10
    methods = {"flash", "flash, NumPy in and out", "naive on the device", "naive in NumPy"}
    if importlib.util.find_spec("torch"):
        methods.add("torch on cpu")
        assert report["versions"]["torch"]
    results = {(r["length"], r["method"]): r for r in report["results"]}
    assert {method for _, method in results} >= methods
    for (length, method), result in results.items():
        assert result["failed"] is None and result["skipped"] is None
        assert result["repeats"] == 2
        assert 0 < result["p10_seconds"] <= result["median_seconds"] <= result["p90_seconds"]
        flops = 4 * 2 * length * length * 20
        assert result["gflops"] == pytest.approx(flops / result["median_seconds"] / 1e9)
        assert 0 <= result["error"] < 1e-5
        assert result["rows_checked"] == length
        if method in ("flash", "naive on the device") and "timestamps" in vulkan_backend.runtime.features:
            assert 0 < result["device_seconds"]
    for length in (16, 33):
        flash, naive = results[length, "flash"], results[length, "naive on the device"]
        # In a pool, sizes are rounded up a little.
        operands = 4 * 4 * 2 * length * 20
        assert operands <= flash["device_bytes"] <= operands + 4096
        needed = naive_bytes(Problem(1, 2, length, 20, False, "float32"))
        assert needed <= naive["device_bytes"] <= needed + 4096  # what is computed is what is used
        assert flash["saved_percent"] == pytest.approx(100 * (1 - flash["device_bytes"] / naive["device_bytes"]))


def test_bench_sees_a_wrong_result(vulkan_backend, capsys, monkeypatch):
    from grilly.compute.methods import Attention

    right = Attention.flash_attention2

    def wrong(self, q, k, v, **options):
        return right(self, q, k, v, scale=0.2, **options)  # 1/sqrt(20) is 0.2236

    monkeypatch.setattr(Attention, "flash_attention2", wrong)
    assert main(small_bench("--json", "-")) == 1
    results = json.loads(capsys.readouterr().out)["results"]
    flash = [r for r in results if r["method"] == "flash"]
    assert all(r["failed"].startswith("wrong: error") and r["median_seconds"] is None for r in flash)
    assert not [r for r in results if r["method"] == "naive in NumPy" and r["failed"]]


@pytest.mark.parametrize(
    ("slack", "limits", "fails"), [(1.0, 0.5, False), (1.0, 2.0, True), (16.0, 8.0, False), (16.0, 32.0, True)]
)
def test_others_are_judged_less_strictly(slack, limits, fails):
    from grilly.cli.measure import Check, Method, Problem, measure

    problem = Problem(batch=1, heads=2, length=9, dim=20, causal=False, dtype="float32")
    arrays = problem.arrays()
    check = Check(problem, *arrays)
    output = check.exact + limits * check.limit
    result = measure(Method("theirs", lambda *_: lambda: output, slack=slack), problem, arrays, check, 1, 1.0)
    assert bool(result.failed) == fails, result.failed


@pytest.mark.parametrize("option, file, said", [
    ("--json", "no/such/folder.json", "No such file"), ("--json", ".", "Is a directory"),
    ("--plot", "no/such/folder.png", "No such file"), ("--plot", ".", "it is a folder; give a file in it"),
    ("--plot", "bench.word", "the ending is none of .*png.*svg"),
])  # fmt: skip
def test_a_file_that_cannot_be_written_is_found_before_anything_is_measured(
    vulkan_backend, tmp_path, capsys, monkeypatch, option, file, said
):
    if option == "--plot" and importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed: pip install 'grilly-vulkan[bench]'")
    monkeypatch.setattr(bench, "_sweep", None)
    assert main(small_bench(option, str(tmp_path / file))) == 1
    assert re.search(f"cannot be written: {said}", capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_looking_whether_a_file_can_be_written_leaves_it_alone(tmp_path):
    kept = tmp_path / "kept.json"
    kept.write_text("{}")
    output.check_writable(str(kept))
    output.check_writable(str(tmp_path / "new.json"))
    assert kept.read_text() == "{}" and list(tmp_path.iterdir()) == [kept]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_looking_whether_a_pipe_can_be_written_is_not_seen_at_its_other_end(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    output.check_writable(str(pipe))  # to open it would wait for a reader
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    output.check_writable(str(pipe))
    writer = os.open(pipe, os.O_WRONLY)
    with pytest.raises(BlockingIOError):  # a writer that had come and gone would have ended it
        os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    link.symlink_to(tmp_path / "new.json")
    output.check_writable(str(link))
    assert sorted(tmp_path.iterdir()) == [link, pipe] and link.is_symlink()


def test_where_naive_ends():
    from grilly.cli.measure import Problem, first_length, naive_bytes

    assert first_length(Problem(1, 1, 1, 1, False, "float32"), lambda n: n <= 12345) == 12346
    problem = Problem(2, 8, 100, 64, False, "float32")
    assert naive_bytes(problem) == 4 * (3 * 2 * 8 * 100 * 64 + 2 * 2 * 8 * 100 * 100)
    assert naive_bytes(problem, 1) == 4 * (4 * 2 * 8 * 64 + 2 * 8)  # with few keys the output is the larger
    end = first_length(problem, lambda n: naive_bytes(problem, n) <= 2**31)
    assert naive_bytes(problem, end - 1) <= 2**31 < naive_bytes(problem, end)


def test_quantities():
    assert [output.bytes_text(n) for n in (0, 1023, 1024, 1536, 2**31, 141 * 2**30, None)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "2.0 GiB", "141 GiB", None,
    ]  # fmt: skip
    assert [output.time_text(s) for s in (1.234e-5, 4.2e-4, 0.0421, 1.5, 75.0, 1234.0, None)] == [
        "12.3 us", "420 us", "42.1 ms", "1.50 s", "75.0 s", "1234 s", None,
    ]  # fmt: skip


def test_plain_table():
    text = output.plain_table(("n", "what"), [["1", "one two three four five"], ["22", ""]], frozenset({"n"}), 24)
    assert text.splitlines() == [" n  what", "--  --------------------", " 1  one two three four", "    five", "22"]


@pytest.mark.parametrize("rich", [True, False])
def test_tables_on_a_terminal(rich, monkeypatch, capsys):
    """With rich and without it every cell is there, markup characters too; NO_COLOR is respected."""
    if rich and importlib.util.find_spec("rich") is None:
        pytest.skip("rich is not installed: pip install 'grilly-vulkan[bench]'")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    if not rich:
        monkeypatch.setitem(sys.modules, "rich", None)
    output.heading("A heading")
    output.table(("a", "b"), [["[bold]", None], ["x", 3]], right=("b",), styles={(1, 1): "bold green"})
    text = capsys.readouterr().out
    for word in ("A heading", "[bold]", "-", "x", "3"):
        assert word in text
    assert "\x1b[32m" not in text and "\x1b[1;32m" not in text


@pytest.mark.parametrize("error, said", [
    (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
    (PermissionError(errno.EACCES, "Permission denied", "model/config.json"), "model/config.json: Permission denied"),
    (FileNotFoundError(errno.ENOENT, "No such file or directory", "a.npy"), "a.npy: No such file or directory"),
    (OSError("the file ends too early"), "the file ends too early"),
], ids=repr)  # fmt: skip
def test_errors_of_the_system(monkeypatch, capsys, error, said):
    def run(args):
        raise error

    monkeypatch.setattr(bench, "run", run)
    assert main(["bench"]) == 1
    assert capsys.readouterr() == ("", f"grilly bench: {said}\n")
