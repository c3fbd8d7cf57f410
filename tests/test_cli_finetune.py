"""``grilly finetune``: what it learns and writes, going on after an interrupt, and what it refuses."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

import goldens
import grilly
from grilly import models
from grilly.cli import main
from model_folders import write_folder, write_tokenizer
from standalone import BLOCK

LLAMA = goldens.cases("models")["llama"].arguments
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def folder(tmp_path):
    """A small Llama whose tokens are words, with a template."""
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    folder = write_folder(tmp_path / "model", LLAMA)
    special = ["<unk>", "</s>", "<user>", "<assistant>"]
    words = special + [f"w{number}" for number in range(LLAMA["config"]["vocab_size"] - len(special))]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, "<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(special)
    write_tokenizer(folder, made.to_str(), chat_template=TEMPLATE, eos_token="</s>")
    return folder


@pytest.fixture
def data(tmp_path):
    """Chats whose answers follow from the questions."""
    rng = np.random.default_rng(0)
    file = tmp_path / "data.jsonl"
    with open(file, "w") as opened:
        for _ in range(60):
            first = rng.integers(0, 8)
            asked, told = f"w{first} w{first + 8}", f"w{first + 16} w{first + 24} w{first + 16}"
            chat = [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]
            opened.write(json.dumps({"messages": chat}) + "\n")
    return file


@pytest.fixture
def finetune(vulkan_backend, folder, data, tmp_path):
    def run(*more, steps=12, output="out", source=data):
        return main([
            "finetune", str(folder), str(source), "--output", str(tmp_path / output), "--steps", str(steps),
            "--length", "24", "--batch-size", "2", "--lr", "0.01", "--device", str(vulkan_backend.device.index), *more,
        ])  # fmt: skip

    return run


def losses(folder):
    lines = (folder / "loss.csv").read_text().splitlines()
    assert lines[0] == "step,loss" and [line.split(",")[0] for line in lines[1:]] == [*map(str, range(1, len(lines)))]
    return [float(line.split(",")[1]) for line in lines[1:]]


def adapters_of(folder):
    """How many numbers an adapter has."""
    tensors = pytest.importorskip("safetensors.numpy").load_file(folder / "adapter_model.safetensors")
    return sum(array.size for array in tensors.values())


def test_adapters_learn_answers(finetune, folder, tmp_path, capsys, vulkan_backend):
    assert finetune("--lora", "8", "--batch-size", "4", "--lr", "0.02", "--warmup", "2", steps=40) == 0
    out, said = capsys.readouterr()
    found = losses(tmp_path / "out")
    assert len(found) == 40 and np.mean(found[-5:]) < 0.2 * found[0]
    assert out.startswith(f"40 steps: loss {found[0]:.4f} at first") and "adapter_model.safetensors" in out
    assert "step 40 of 40: loss " in said and "tokens/s, 0 s left" in said
    assert f", {found[-1]:.4f}" not in out and f"{np.mean(found[-4:]):.4f} in the last 4" in out
    own = adapters_of(tmp_path / "out")
    whole = own + sum(np.prod(part.shape) for part in models.load(folder, backend=vulkan_backend).parameters())
    first, second = said.splitlines()[:2]
    assert first.startswith(f"grilly finetune: {own:,} of {whole:,} parameters, ")
    assert second == f"step 1 of 40: loss {found[0]:.4f} (the first 3 steps make kernels, and take longer)"
    model = models.load(folder, backend=vulkan_backend)
    model.load_adapter(tmp_path / "out")
    tokenizer = models.Tokenizer(folder)
    ids, mask = tokenizer.encode(["<user>w3 w11</s><assistant>"], add_special_tokens=False)
    answer = model.generate(ids, mask, max_new_tokens=4)[0, ids.shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=False) == "w19 w27 w19 </s>"
    if (tmp_path / "out" / "loss.png").exists():
        assert (tmp_path / "out" / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_all_weights_learn_texts(finetune, folder, tmp_path, capsys, vulkan_backend):
    source = tmp_path / "texts.jsonl"
    text = " ".join(f"w{number}" for number in range(20))
    source.write_text(f'{json.dumps({"text": text})}\n' * 20)
    assert finetune(steps=10, source=source) == 0
    found = losses(tmp_path / "out")
    assert found[-1] < 0.7 * found[0]
    assert "has the model" in capsys.readouterr().out
    model, before = (models.load(where, backend=vulkan_backend) for where in (tmp_path / "out", folder))
    assert any((model.state_dict()[key] != array).any() for key, array in before.state_dict().items())
    assert models.Tokenizer(tmp_path / "out").has_chat_template


def test_accumulated_batches_are_one(finetune, tmp_path):
    """Two batches of one row are one of two, whatever each has to learn."""
    assert finetune("--lora", "4", steps=6, output="one") == 0
    assert finetune("--lora", "4", "--batch-size", "1", "--accumulate", "2", steps=6, output="two") == 0
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=2e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits(finetune, tmp_path, dtype):
    pytest.importorskip("ml_dtypes")
    assert finetune("--dtype", dtype, "--lora", "8", "--warmup", "2", "--checkpoint-layers", steps=14) == 0
    found = losses(tmp_path / "out")
    assert np.isfinite(found).all() and np.mean(found[-3:]) < 0.8 * found[0]


@pytest.fixture
def before_batch(monkeypatch):
    """Have something done before the batch of a number is given."""
    given = grilly.data.Batches.__next__

    def put(number, action):
        def next_batch(self):
            if self.place == number:
                action()
            return given(self)

        monkeypatch.setattr(grilly.data.Batches, "__next__", next_batch)
        return lambda: monkeypatch.setattr(grilly.data.Batches, "__next__", given)

    return put


@pytest.mark.parametrize("options", [("--lora", "4", "--dropout", "0.1"), ()])
def test_resumed_is_the_same_as_whole(finetune, tmp_path, before_batch, capsys, options):
    """An interrupt after some steps, and the rest: the same bits as without it."""
    assert finetune(*options, output="whole") == 0
    undo = before_batch(4, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert finetune(*options, output="parts") == 130
    assert "interrupted after 5 of 12 steps; the same command with --resume goes on" in capsys.readouterr().err
    undo()
    assert finetune(*options, "--resume", output="parts") == 0
    assert "; 5 of 12 steps are done" in capsys.readouterr().err
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    name = "adapter_model.safetensors" if options else "model.safetensors"
    assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("options", [("--lora", "4", "--dropout", "0.1", "--checkpoint-layers"), ()])
def test_steps_are_replayed(finetune, monkeypatch, options):
    """What is dropped is no reason to call them: the third step is captured, and all from there on are its replays."""
    graphs, replays, capture = [], [], grilly.Compute.capture

    def counted(self, function, *arguments):
        graphs.append(capture(self, function, *arguments))
        return lambda *given: (replays.append(1), graphs[-1](*given))[1]

    monkeypatch.setattr(grilly.Compute, "capture", counted)
    assert finetune(*options, steps=7) == 0
    assert len(graphs) == 1 and len(replays) == 5


def test_checkpoints_outlive_a_crash(finetune, tmp_path, before_batch, capsys):
    def crash():
        raise MemoryError("no room")

    undo = before_batch(7, crash)
    assert finetune("--lora", "2", "--save-every", "3", output="parts") == 1
    assert "grilly finetune: there is not enough memory: no room" in capsys.readouterr().err
    undo()
    assert len(json.loads((tmp_path / "parts" / "checkpoint.json").read_text())["losses"]) == 6
    assert finetune("--lora", "2", "--save-every", "3", "--resume", output="parts") == 0
    assert finetune("--lora", "2", output="whole") == 0
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert len(list((tmp_path / "parts").glob("checkpoint-*.safetensors"))) == 1


@pytest.mark.parametrize("options, why", [
    (("--lora", "0"), "--lora is 0; expected at least 1"),
    (("--alpha", "2"), "--alpha is of adapters; add --lora RANK"),
    (("--lora", "2", "--target", "spin"), "no linear layer is called 'spin'"),
    (("--warmup", "12"), "--warmup is 12; expected fewer than the 12 steps"),
    (("--batch-size", "99"), "fewer than --batch-size 99"), (("--length", "999"), "row of 999 tokens"),
    (("--resume",), "out has no checkpoint.json; leave --resume out to begin"),
    (("--output", ""), "--output: expected a folder; the name is empty"), (("--seed", "-1"), "--seed is -1"),
    (("--lora", "2", "--dropout", "1"), "dropout is 1.0"),
])  # fmt: skip
def test_bad_arguments(finetune, capsys, tmp_path, options, why):
    assert finetune(*options) == 1
    assert why in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_bad_data(finetune, tmp_path, capsys):
    source = tmp_path / "bad.jsonl"
    source.write_text('{"text": "w1 w2"}\n{"txt": 1}\n')
    assert finetune(source=source) == 1
    assert f"grilly finetune: {source}:2: it is an object with txt; expected" in capsys.readouterr().err
    assert finetune(source=tmp_path / "none.jsonl") == 1
    assert "none.jsonl: No such file or directory" in capsys.readouterr().err


def test_an_output_that_has_something_else(finetune, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    assert finetune() == 1
    assert "out is not empty; give another folder, or --resume" in capsys.readouterr().err


def test_an_output_that_cannot_be_written(finetune, tmp_path, capsys):
    """It is said before the first step, not after the last one."""
    (tmp_path / "file").touch()
    assert finetune("--lora", "2", output="file/out") == 1
    said = capsys.readouterr().err
    assert "file/out cannot be written: Not a directory" in said and "step" not in said


def test_a_checkpoint_of_another_training(finetune, capsys):
    assert finetune("--lora", "2", steps=2) == 0
    assert finetune("--lora", "4", "--resume", steps=2) == 1
    assert "a checkpoint of another training: lora was 2, and is 4" in capsys.readouterr().err


@pytest.mark.parametrize("changed, why", [
    ({"facts": []}, "checkpoint.json has no facts of a training"), ({"batches": 5}, "state is a int; expected a map"),
    ({"batches": {"epoch": "x"}}, "epoch of the state is 'x'"), ({"batches": {"batch": -1}}, "the state is -1"),
    ({"losses": []}, "it has 0 losses, and 2 batches"), ({"losses": None}, "cannot be gone on from"),
    ({"file": None}, "neither None.safetensors nor"),
])  # fmt: skip
def test_a_checkpoint_that_was_changed(finetune, tmp_path, capsys, changed, why):
    assert finetune("--lora", "2", steps=2) == 0
    file = tmp_path / "out" / "checkpoint.json"
    told = json.loads(file.read_text())
    for name, value in changed.items():
        told[name] = {**told[name], **value} if isinstance(value, dict) else value
    file.write_text(json.dumps(told))
    assert finetune("--lora", "2", "--resume", steps=2) == 1
    assert why in capsys.readouterr().err


def test_models_that_continue_no_texts(finetune, folder, capsys):
    write_folder(folder, goldens.cases("models")["bert"].arguments)
    assert finetune("--lora", "2") == 1
    assert "Bert is no language model" in capsys.readouterr().err


def test_the_page_runs(vulkan_backend, folder, data, tmp_path, monkeypatch):
    """docs/finetuning.md's blocks, one after the other."""
    folder.rename(tmp_path / "llama")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[1] / "docs/finetuning.md").read_text(encoding="utf-8")
    names: dict = {}
    former = grilly.use(vulkan_backend)
    try:
        for number, block in enumerate(BLOCK.findall(page), 1):
            exec(compile(block, f"docs/finetuning.md, Python block {number}", "exec"), names)
    finally:
        grilly.use(former)
    assert float(names["value"]) < 4
    merged = models.load(tmp_path / "merged", backend=vulkan_backend)
    wanted = names["model"](np.arange(6)[None]).logits
    np.testing.assert_allclose(merged(np.arange(6)[None]).logits, wanted, atol=1e-4 * np.abs(wanted).max())
