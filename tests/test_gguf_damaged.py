"""Damaged files of whole models: what the reader lets pass is refused by load or Tokenizer, or is a model."""

from __future__ import annotations

import importlib.util
import json
import random
import warnings

import pytest

import goldens
from gguf_models import tokenizer_keys, write_gguf
from grilly import ModelError, models
from model_folders import drawn
from random_tokenizers import trained
from test_gguf_files import mutated

pytestmark = [
    pytest.mark.skipif(not all(map(importlib.util.find_spec, ("gguf", "tokenizers"))), reason="not installed: gguf"),
    pytest.mark.usefixtures("no_models_on_devices"),
]


def header(path):
    """How many bytes come before the tensors."""
    return min(one.start for one in models.GGUF(path).tensors.values())


@pytest.mark.parametrize("name, model, kind", [
    ("llama", "gpt2", "bytes"), ("gemma2", "llama", "BPE"), ("bert", "bert", "WordPiece"), ("t5", "t5", "Unigram"),
    ("phi3_partial", "llama", "BPE"),
])  # fmt: skip
def test_damaged_models(tmp_path, name, model, kind):
    case, data = goldens.cases("models")[name].arguments, json.loads(trained(kind))
    folder, path = tmp_path / "folder", tmp_path / "model.gguf"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    named = {} if model == "bert" else {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    pre = {"pre": "gpt-2"} if model == "gpt2" else {"scores": [0.0] * len(data["model"]["vocab"])}
    weights = drawn(case["tensors"], case["seed"], case["embeddings"])
    write_gguf(path, case["config"], weights, tokenizer=tokenizer_keys(folder, model, **pre))
    whole, draw, end = path.read_bytes(), random.Random(1), header(path)
    # Of the texts of tokens most of the header is made, and of what is not them most is tried.
    begins = (b"llama", b"gemma", b"bert.", b"phi3.", b"token", b"t5.at", b"blk.0", b"enc.b")
    keys = [at for at in range(end) if whole[at : at + 5] in begins]
    outcomes = set()
    for _ in range(150):
        at = draw.choice(keys) if draw.random() < 0.7 else draw.randrange(end - 40)
        part = whole[at : at + 64]
        path.write_bytes(whole[:at] + mutated(part, draw) + whole[at + 64 :])
        for read in (models.Tokenizer, models.load):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    read(path)
                    outcomes.add("read")
                except ModelError as error:
                    assert str(path) in str(error)
                    outcomes.add("refused")
                except AssertionError as error:
                    assert "went on" in str(error)
                    outcomes.add("went on")
    assert outcomes == {"read", "refused", "went on"}
