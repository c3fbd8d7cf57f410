"""Files that grilly writes: they hold what the folder holds, and other programs read them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

import goldens
from grilly import ModelError, models
from grilly.cli import main
from model_folders import drawn, write_safetensors
from random_tokenizers import trained
from standalone import BLOCK
from test_gguf_models import SAID, arguments, given

CASES = goldens.cases("models")
pytestmark = pytest.mark.skipif(importlib.util.find_spec("tokenizers") is None, reason="not installed: tokenizers")
#: Fields without which GGUF says all of a model; more of them than a reader needs.
MORE = {"mistral": {"sliding_window": 200}, "qwen2": {**SAID["qwen2"]}}
#: Factors of frequencies are written as float32.
ROUNDED = ("llama", "phi3_partial")


@pytest.fixture
def folder(tmp_path):
    """A function that writes the folder of a case, with other fields and tensors."""

    def made(name, changes=None, **fields):
        config, tensors = arguments(name)
        config |= MORE.get(name, {}) | fields
        place = tmp_path / name
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps(config))
        write_safetensors(place / "model.safetensors", tensors | (changes or {}))
        return place

    return made


@pytest.mark.filterwarnings("ignore:.*has no tokenizer.json")
@pytest.mark.parametrize("name", [
    "llama", "mistral", "qwen2", "qwen3", "phi3", "phi3_partial", "gemma", "gemma2", "gemma3", "bert",
    "nomic_bert", "t5", "t5_gated",
])  # fmt: skip
def test_a_file_holds_what_the_folder_holds(vulkan_backend, folder, tmp_path, name):
    source, path = folder(name), tmp_path / "model.gguf"
    models.write_gguf(source, path, "F32")
    found, wanted = (models.load(one, backend=vulkan_backend) for one in (path, source))
    for field, value in wanted(**given(name, wanted)).items():
        other = found(**given(name, found)).get(field)
        if name in ROUNDED:
            assert np.abs(other - value).max() <= 2e-6 * np.abs(value).max()
        elif field != "pooler_output":
            np.testing.assert_array_equal(other, value)


@pytest.mark.filterwarnings("ignore:.*has no tokenizer.json")
def test_the_package_reads_it(folder, tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    models.write_gguf(folder("llama"), path, "Q8_0")
    read, own = gguf.GGUFReader(path), models.GGUF(path)
    keys = {name: field.contents() for name, field in read.fields.items() if not name.startswith("GGUF.")}
    assert keys == own.keys and keys["llama.embedding_length"] == 32
    types = {tensor.name: tensor.tensor_type.name for tensor in read.tensors}
    assert types == {name: one.type for name, one in own.tensors.items()}
    assert types["token_embd.weight"] == "Q8_0" and types["output_norm.weight"] == "F32"
    assert types["blk.0.ffn_down.weight"] == "F16", "rows of 48 have no blocks of 32"
    for tensor in read.tensors:
        np.testing.assert_array_equal(np.asarray(tensor.data).view(np.uint8).reshape(-1),
                                      own.tensor(tensor.name).data.reshape(-1))  # fmt: skip


def large(folder, name="llama", layers=8):
    """A folder whose rows have blocks of 256."""
    shapes = {"model.embed_tokens.weight": (420, 256), "model.norm.weight": (256,)}
    for layer in range(layers):
        parts = {"self_attn.q_proj": 256, "self_attn.k_proj": 128, "self_attn.v_proj": 128, "self_attn.o_proj": 256,
                 "mlp.gate_proj": 256, "mlp.up_proj": 256, "mlp.down_proj": 256}  # fmt: skip
        shapes |= {f"model.layers.{layer}.{part}.weight": (rows, 256) for part, rows in parts.items()}
        shapes |= {f"model.layers.{layer}.{part}_layernorm.weight": (256,) for part in ("input", "post_attention")}
    config = CASES["llama"].arguments["config"] | {
        "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": layers, "head_dim": 32, "vocab_size": 420,
        "num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    }  # fmt: skip
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", drawn(shapes, 3))
    return folder


def with_tokenizer(folder, **told):
    data = json.loads(trained("bytes"))
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    data |= {"pre_tokenizer": level, "decoder": level, "normalizer": None}
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    told = {"tokenizer_class": "TokenizersBackend", "bos_token": "<s>", "eos_token": "</s>", **told}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


def test_the_command(vulkan_backend, tmp_path, capsys):
    source, path = with_tokenizer(large(tmp_path / "folder"), chat_template="{{ messages[0].content }}"), tmp_path / "m"
    assert main(["quantize", str(source), str(path)]) == 0
    assert re.fullmatch(r".*m: [\d.]+ MiB as Q4_K_M, after [\d.]+ s\n", capsys.readouterr().out)
    gguf = models.GGUF(path)
    types = {name.removeprefix("blk.").removesuffix(".weight"): one.type for name, one in gguf.tensors.items()}
    assert types["token_embd"] == "Q6_K", "it is the head too"
    assert {types[f"{layer}.{part}"] for layer in range(8) for part in ("attn_q", "ffn_up")} == {"Q4_K"}
    more = [types[f"{layer}.ffn_down"] for layer in range(8)]
    assert more == [types[f"{layer}.attn_v"] for layer in range(8)]
    assert more == ["Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q6_K"]
    assert gguf.keys["general.file_type"] == 15 and gguf.keys["general.name"] == "folder"
    tokenizers = [models.Tokenizer(one) for one in (path, source)]
    assert len({str(one.tokens_of(["hello World <s>", " it's low"])) for one in tokenizers}) == 1
    assert tokenizers[0].apply_chat_template([{"role": "user", "content": "hi"}]) == "hi"
    assert main(["generate", str(path), "hello", "--max-new-tokens", "3", "--device",
                 str(vulkan_backend.device.index)]) == 0  # fmt: skip
    ids = np.arange(8).reshape(1, 8)
    found, wanted = (models.load(one, backend=vulkan_backend)(ids).logits for one in (path, source))
    assert 0 < np.abs(found - wanted).max() < 0.5 * np.abs(wanted).max()


def test_page(default, tmp_path, monkeypatch):
    """docs/gguf.md's blocks assert what they say, one after the other."""
    template = "{% for m in messages %}<s>{{ m.content }}{% endfor %}"
    with_tokenizer(large(tmp_path / "folder", layers=2), chat_template=template)
    monkeypatch.chdir(tmp_path)
    models.write_gguf("folder", "model.gguf", "Q4_0")
    page, names = (Path(__file__).parents[1] / "docs/gguf.md").read_text(encoding="utf-8"), {}
    for number, block in enumerate(BLOCK.findall(page)):
        exec(compile(block, f"docs/gguf.md, Python block {number}", "exec"), names)
    assert isinstance(names["answer"], str)


def test_a_place_that_cannot_be_written(folder, tmp_path, capsys):
    source = large(tmp_path / "folder", layers=1)
    assert main(["quantize", str(source), str(tmp_path / "none" / "m.gguf")]) == 1
    assert "none" in capsys.readouterr().err
    assert main(["quantize", str(source), "-"]) == 1
    assert "FILE must be a file" in capsys.readouterr().err
    assert main(["quantize", str(tmp_path / "nowhere"), str(tmp_path / "m.gguf")]) == 1
    assert "nowhere is no folder" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["folder"]


@pytest.mark.filterwarnings("ignore:.*has no tokenizer.json")
def test_what_was_there_stays_where_writing_fails(folder, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"what was there")
    source = folder("llama", {"model.layers.1.mlp.up_proj.weight": np.full((48, 32), np.inf, np.float32)})
    with pytest.raises(ModelError, match="blk.1.ffn_up.weight cannot be written as Q8_0: .*infinite or none"):
        models.write_gguf(source, path, "Q8_0")
    assert path.read_bytes() == b"what was there" and sorted(os.listdir(tmp_path)) == ["llama", "model.gguf"]


@pytest.mark.filterwarnings("ignore:.*has no tokenizer.json")
@pytest.mark.parametrize("name, fields, said", [
    ("mistral", {"sliding_window": 5}, "sliding_window is 5; expected none, or at least 96"),
    ("gemma2", {"query_pre_attn_scalar": 12}, "query_pre_attn_scalar is 12; expected 16, as GGUF has no key for it"),
    ("gemma3", {"query_pre_attn_scalar": 12}, "query_pre_attn_scalar is 12; expected 16, as GGUF has no key for it"),
    ("gemma3", {"layer_types": ["full_attention", "full_attention", "sliding_attention"]}, "layer_types is"),
    ("nomic_bert", {"hidden_act": "relu"}, "hidden_act is 'relu'; expected 'silu', as GGUF has no key"),
    ("nomic_bert", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rotary scaling cannot be written"),
    ("t5", {"relative_attention_max_distance": 30}, "relative_attention_max_distance is 30; expected 128"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "type 'dynamic' cannot be written for"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; expected 'silu' or 'swish'"),
    ("bert", {"hidden_act": "relu"}, "hidden_act is 'relu'; expected 'gelu', as GGUF has no key"),
    ("gpt2", {}, "architectures is 'GPT2LMHeadModel'; LlamaForCausalLM, "),
    ("llama", {"spin": 1}, "not known: spin"),
])  # fmt: skip
def test_what_gguf_cannot_say(folder, tmp_path, name, fields, said):
    with pytest.raises(ModelError) as caught:
        models.write_gguf(folder(name, **fields), tmp_path / "model.gguf")
    assert said in str(caught.value) and not (tmp_path / "model.gguf").exists()


def test_tokenizers_that_there_are_no_keys_for(tmp_path):
    source = with_tokenizer(large(tmp_path / "folder", layers=1))
    data = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    for step, said in (
        ({"pre_tokenizer": {"type": "Whitespace"}}, "GGUF has no keys for these words of a BPE"),
        ({"normalizer": {"type": "Lowercase"}}, "GGUF has no keys for these words of a BPE"),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}, "for a model of type WordLevel"),
    ):
        (source / "tokenizer.json").write_text(json.dumps(data | step), encoding="utf-8")
        with pytest.raises(ModelError, match=said):
            models.write_gguf(source, tmp_path / "model.gguf")
    (source / "tokenizer.json").unlink()
    with pytest.warns(UserWarning, match="has no tokenizer.json: the file is without a tokenizer"):
        models.write_gguf(source, tmp_path / "model.gguf", "Q4_0")
    with pytest.raises(ValueError, match="type is 'Q9'; expected one of F32, F16"):
        models.write_gguf(source, tmp_path / "model.gguf", "Q9")
