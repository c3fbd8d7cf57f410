"""What ``grilly generate``, ``embed`` and ``transcribe`` read: folders, files, standard input."""

from __future__ import annotations

import io
import json
import os
import re
import sys

import numpy as np
import pytest

import goldens
from grilly import ModelError, models
from grilly.cli import main
from model_folders import drawn, write_folder, write_safetensors, write_tokenizer
from sounds import write_wav, write_whisper

BERT = goldens.cases("models")["bert"]


# -- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data, why", [
    (b"", "standard input has no lines"), (b"\xff w3", "standard input cannot be read: 'utf-8' codec can't decode"),
    (None, "standard input cannot be read: it is closed"),
])  # fmt: skip
def test_standard_input_that_is_no_text(tmp_path, monkeypatch, capsys, data, why):
    monkeypatch.setattr(sys, "stdin", None if data is None else io.TextIOWrapper(io.BytesIO(data), encoding="latin-1"))
    assert main(["embed", str(tmp_path), "-", "--output", str(tmp_path / "out.npy")]) == 1
    assert capsys.readouterr().err.startswith(f"grilly embed: {why}")


@pytest.mark.parametrize("encoding, mark", [("utf-16", "UTF-16"), ("utf-16-be", "UTF-16"), ("utf-32", "UTF-32")])
def test_a_text_of_another_encoding(tmp_path, capsys, encoding, mark):
    file = tmp_path / "lines.txt"
    file.write_bytes(("\ufeff" * encoding.endswith("be") + "w3 w4\n").encode(encoding))
    assert main(["embed", str(tmp_path), str(file)]) == 1
    assert f"; expected UTF-8; it begins as {mark} does: iconv --from-code {mark} " in capsys.readouterr().err


@pytest.mark.parametrize("name, why", [("none.txt", "No such file or directory"), (".", "Is a directory")])
def test_a_file_that_is_none(tmp_path, capsys, name, why):
    file = tmp_path / name
    assert main(["embed", str(tmp_path), str(file)]) == 1
    assert capsys.readouterr().err == f"grilly embed: {file} cannot be read: {why}\n"


def with_tokenizer(folder, words):
    """The folder, with a tokenizer of these words, between which are spaces."""
    tokenizers = pytest.importorskip("tokenizers")
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token=words[0]))
    write_tokenizer(folder, tokenizer.to_str())
    return folder


def test_signs_that_standard_output_lacks(vulkan_backend, tmp_path, monkeypatch, capsys):
    """They do not end a text in its midst. What the model does not use is said as a line of the command's."""
    given = goldens.cases("models")["llama"].arguments
    folder = with_tokenizer(write_folder(tmp_path, given), [f"é’日{number}" for number in range(61)])
    write_safetensors(folder / "model.safetensors", drawn(given["tensors"], 0) | {"spin": np.zeros(1, np.float32)})
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(data, encoding="cp1252"))
    device = ["--device", str(vulkan_backend.device.index)]
    assert main(["generate", str(folder), "é’日5", "--max-new-tokens", "2", *device]) == 0
    assert re.fullmatch(rb"(\xe9\x92\\u65e5\d+\s+){2}", data.getvalue())
    assert capsys.readouterr().err.startswith(f"grilly generate: {folder}: LlamaLM does not use spin; that is right ")


def test_where_vectors_go(vulkan_backend, tmp_path, monkeypatch, capsys):
    folder = with_tokenizer(write_bert(tmp_path / "model"), [f"w{number}" for number in range(61)])
    file, device = tmp_path / "lines.txt", ["--device", str(vulkan_backend.device.index)]
    file.write_text("w3\nw4\n")
    for given, output, said in (
        ("/dev/null", None, "/dev/null has no lines"), ("-", None, "--output must say where to write; standard input"),
        (str(file), str(tmp_path), "Is a directory"),
    ):  # fmt: skip
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"w3")))
        assert main(["embed", str(folder), given, *(["--output", output] if output else []), *device]) == 1
        assert said in capsys.readouterr().err
    if not os.path.exists("/dev/fd"):
        return
    reads, writes = os.pipe()
    assert main(["embed", str(folder), str(file), "--output", f"/dev/fd/{writes}", *device]) == 0
    assert f"/dev/fd/{writes}: 2 vectors of 32" in capsys.readouterr().out
    vectors = np.load(io.BytesIO(os.read(reads, 2**16)))
    assert vectors.shape == (2, 32) and np.isfinite(vectors).all() and not np.array_equal(*vectors)
    os.close(reads)
    os.close(writes)


# -- sounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, why", [("none.wav", "No such file or directory"), (".", "Is a directory")])
def test_a_sound_that_is_none(vulkan_backend, tmp_path, capsys, name, why):
    file = tmp_path / name
    assert main(["transcribe", str(tmp_path), str(file), "--device", str(vulkan_backend.device.index)]) == 1
    assert capsys.readouterr().err == f"grilly transcribe: {file} cannot be read: {why}\n"
    with pytest.raises(OSError, match=why):
        models.read_sound(file)


# -- fields of config.json --------------------------------------------------------------------------------------------

#: What older programs wrote beside BERT.
OLDER = {
    "_num_labels": 2, "num_labels": 2, "directionality": "bidi", "gradient_checkpointing": False, "use_cache": True,
    "position_embedding_type": "absolute", "classifier_dropout": None, "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3, "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform", "output_past": True, "xla_device": True,
}  # fmt: skip


def write_bert(folder, **fields):
    """The folder of a small BERT with more fields."""
    return write_folder(folder, {**BERT.arguments, "config": {**BERT.arguments["config"], **fields}})


def test_fields_of_older_berts(vulkan_backend, tmp_path):
    out = models.load(write_bert(tmp_path, **OLDER), backend=vulkan_backend)(BERT.input_ids)
    plain = models.load(write_bert(tmp_path), backend=vulkan_backend)(BERT.input_ids)
    np.testing.assert_array_equal(out.last_hidden_state, plain.last_hidden_state)
    with pytest.raises(ModelError, match="position_embedding_type is 'relative_key'; expected 'absolute'"):
        models.load(write_bert(tmp_path, position_embedding_type="relative_key"), backend=vulkan_backend)


@pytest.mark.parametrize("name", ["generate", "embed", "transcribe"])
def test_fields_to_ignore(vulkan_backend, tmp_path, capsys, monkeypatch, name):
    """--ignore reaches load: only what is named is passed over."""
    pytest.importorskip("tokenizers")
    if name == "transcribe":
        folder, file = write_whisper(tmp_path / "model"), write_wav(tmp_path / "a.wav", np.zeros((400, 1), int))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "spin": 1, "charm": 2}))
        given = [str(file), "--max-new-tokens", "1", "--language", "en"]
    else:
        import tokenizers

        folder, file = write_bert(tmp_path / "model", spin=1, charm=2), tmp_path / "lines.txt"
        words = {f"w{number}": number for number in range(61)}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
        write_tokenizer(folder, tokenizer.to_str())
        file.write_text("w3\n")
        given = [str(file)] if name == "embed" else ["w3"]
    arguments = [name, str(folder), *given, "--device", str(vulkan_backend.device.index)]
    for more, unknown in (([], "charm, spin;"), (["--ignore", "spin"], "charm;")):
        assert main([*arguments, *more]) == 1
        assert f"config.json: not known: {unknown}" in capsys.readouterr().err
    status = main([*arguments, "--ignore", "spin", "--ignore", "charm"])
    error = capsys.readouterr().err
    assert "not known" not in error
    # BERT writes no texts, which is found after its fields.
    assert (status, "Bert writes no texts" in error) == ((1, True) if name == "generate" else (0, False)), error


# -- numbers of tokens ------------------------------------------------------------------------------------------------


def test_numbers_of_other_shapes(vulkan_backend, tmp_path):
    bert = models.load(write_bert(tmp_path), backend=vulkan_backend)
    ids = np.array([[3, 4, 5], [6, 7, 8]])
    for name in ("token_type_ids", "position_ids"):
        for shape in ((2, 2), (2, 1), (3, 3), (1, 4)):
            numbers = np.zeros(shape, np.int32)
            for given in (numbers, vulkan_backend.tensor(numbers)):
                said = f"Bert: {name} has shape \\({shape[0]}, {shape[1]}\\); expected \\(2, 3\\), as input_ids, or"
                with pytest.raises(ValueError, match=said):
                    bert(ids, **{name: given})
        with pytest.raises(ValueError, match=f"Bert: {name} has shape \\(3,\\); expected \\(B, S\\)"):
            bert(ids, **{name: np.zeros(3, np.int32)})
        with pytest.raises(ValueError, match=f"Bert: {name} is int32 \\(3,\\); expected integers"):
            bert(ids, **{name: vulkan_backend.tensor(np.zeros(3, np.int32))})
        row = np.array([[0, 1, 1]])
        wanted = bert(ids, **{name: np.tile(row, (2, 1))}).last_hidden_state
        np.testing.assert_array_equal(bert(ids, **{name: row}).last_hidden_state, wanted)
