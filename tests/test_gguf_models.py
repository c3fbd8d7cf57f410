"""Models from GGUF files give what the same weights give from folders of safetensors, bit for bit."""

from __future__ import annotations

import importlib.util
import json
import re
import tracemalloc
import warnings

import numpy as np
import pytest

import goldens
import grilly
from gguf_files import F32, I32, TEXT, U32, file, key
from gguf_models import stored, write_gguf
from grilly import ModelError, models
from grilly.cli import main
from model_folders import drawn, write_safetensors

CASES = goldens.cases("models")
pytestmark = pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="not installed: gguf")
#: Fields that GGUF has no key for: with them as below, files say all of a model.
SAID = {
    "qwen2": {"use_sliding_window": False}, "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16},
    "t5": {"relative_attention_max_distance": 128, "scale_decoder_outputs": None},
    "t5_gated": {"relative_attention_max_distance": 128, "scale_decoder_outputs": None},
}
#: Where a file says factors of frequencies and not how they came about, angles differ by rounding.
ROUNDED = ("llama", "phi3_partial")


def arguments(name):
    case = CASES[name].arguments
    config = {key: value for key, value in (case["config"] | SAID.get(name, {})).items() if value is not None}
    tensors = drawn(case["tensors"], case["seed"], case["embeddings"])
    return config, tensors


def write(folder, config, tensors):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def given(name, model):
    ids = np.arange(18).reshape(2, 9) * 5 % 61
    return {"input_ids": ids, "decoder_input_ids": ids[:, :4]} if name.startswith("t5") else {"input_ids": ids}


@pytest.mark.parametrize("name", [
    "llama", "qwen2", "qwen3", "phi3", "phi3_partial", "gemma", "gemma2", "gemma3", "bert", "nomic_bert",
    "t5", "t5_gated",
])  # fmt: skip
def test_a_file_gives_what_a_folder_gives(vulkan_backend, tmp_path, name):
    config, tensors = arguments(name)
    folder = write(tmp_path / "folder", config, tensors)
    path = write_gguf(tmp_path / "model.gguf", config, tensors)
    found, wanted = (models.load(source, backend=vulkan_backend) for source in (path, folder))
    assert type(found) is type(wanted) and found.dtype == np.float32
    for field, value in wanted(**given(name, wanted)).items():
        other = found(**given(name, found)).get(field)
        if field == "pooler_output":  # the converter leaves the pooler out
            assert other is None
        elif name in ROUNDED:
            assert np.abs(other - value).max() <= 2e-6 * np.abs(value).max()
        else:
            np.testing.assert_array_equal(other, value)
    if "bert" not in name:
        ids = given(name, wanted)["input_ids"]
        tokens = [model.generate(ids, np.ones_like(ids), max_new_tokens=12) for model in (found, wanted)]
        np.testing.assert_array_equal(*tokens)


@pytest.mark.parametrize("dtype, dequantize", [("float32", True), ("float16", True), (None, False), ("float16", False)])
def test_quantized_weights(vulkan_backend, tmp_path, capsys, dtype, dequantize):
    """Of each type one tensor at least; a folder with the same numbers gives the same, and nearly so if they stay
    quantized, where layers have rows of several types. The command says what they take."""
    config, _ = arguments("llama")
    config |= {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 3, "head_dim": 32,
               "num_attention_heads": 8, "num_key_value_heads": 4, "rope_parameters": {"rope_type": "default",
                                                                                       "rope_theta": 1e4}}  # fmt: skip
    shapes = {"model.embed_tokens.weight": (61, 256), "model.norm.weight": (256,), "lm_head.weight": (61, 256)}
    for layer in range(3):
        begin = f"model.layers.{layer}"
        for part, rows in (("self_attn.q_proj", 256), ("self_attn.k_proj", 128), ("self_attn.v_proj", 128),
                           ("self_attn.o_proj", 256), ("mlp.gate_proj", 256), ("mlp.up_proj", 256),
                           ("mlp.down_proj", 256)):  # fmt: skip
            shapes[f"{begin}.{part}.weight"] = (rows, 256)
        shapes |= {f"{begin}.{norm}.weight": (256,) for norm in ("input_layernorm", "post_attention_layernorm")}
    tensors = drawn(shapes, 7)
    import gguf

    kinds = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "BF16",
             "F16")  # fmt: skip
    named = stored(gguf, config, tensors)
    matrices = [name for name, array in named.items() if array.ndim == 2]
    types = {name: kinds[place % len(kinds)] for place, name in enumerate(matrices)}
    path = write_gguf(tmp_path / "model.gguf", config, tensors, types)
    # What the file holds, by the names of the folder: the way back of rows of q and k is written out here.
    read, held = models.GGUF(path), {}
    for (name, array), at in zip(tensors.items(), named, strict=True):
        numbers = read.tensor(at).dequantize()
        if re.search("attn_[qk]", at):
            heads = 8 if "attn_q" in at else 4
            numbers = np.concatenate([
                np.concatenate([one[0::2], one[1::2]]) for one in numbers.reshape(heads, 32, 256)
            ])  # fmt: skip
        assert numbers.shape == array.shape
        held[name] = numbers
    folder = write(tmp_path / "folder", config, held)
    ids = np.arange(14).reshape(2, 7) * 5 % 61
    found = models.load(path, dtype, vulkan_backend, dequantize=dequantize)
    wanted = models.load(folder, dtype, vulkan_backend)
    assert found.dtype == wanted.dtype == (dtype or "float32")
    assert isinstance(found.lm_head.weight.data, grilly.QuantizedTensor) != dequantize
    asked = [*(["--dtype", dtype] if dtype else []), *(["--dequantize"] if dequantize else [])]
    assert main(["info", str(path), "--json", *asked]) == 0
    needs = json.loads(capsys.readouterr().out)["needs"]
    assert needs["weights"] == sum(parameter.data.nbytes for parameter in found.parameters())
    assert bool(needs["quantized"]) != dequantize
    other = tmp_path / "other.gguf"  # of a family that is not loaded, where the types alone tell
    other.write_bytes(path.read_bytes().replace(b"llama", b"alpac"))
    assert main(["info", str(other), "--json", *asked]) == 0
    told = json.loads(capsys.readouterr().out)
    floats = sum(np.prod(one["shape"]) * (2 if one["type"] in ("F16", "BF16") else 4) for one in told["tensors"])
    assert told["needs"] is None and (told["device_nbytes"] == floats) == dequantize and told["device_nbytes"] <= floats
    if dequantize:
        np.testing.assert_array_equal(found(ids).logits, wanted(ids).logits)
        return
    if dtype is not None:  # the folder's weights are rounded to it
        logits = wanted(ids).logits.astype(np.float32)
        assert np.abs(found(ids).logits.astype(np.float32) - logits).max() < 2e-2 * np.abs(logits).max()
        return
    np.testing.assert_allclose(found(ids).logits, wanted(ids).logits, rtol=1e-4, atol=1e-4)
    tokens = [model.generate(ids, np.ones_like(ids), max_new_tokens=12) for model in (found, wanted)]
    np.testing.assert_array_equal(*tokens)


def test_the_default_dtype_is_that_of_most_bytes(vulkan_backend, tmp_path):
    config, tensors = arguments("llama")
    import gguf

    names = [name for name, array in stored(gguf, config, tensors).items() if array.ndim == 2]
    path = write_gguf(tmp_path / "model.gguf", config, tensors, dict.fromkeys(names, "F16"))
    model = models.load(path, backend=vulkan_backend)
    assert model.dtype == np.float16


@pytest.fixture
def llama(tmp_path):
    """A function that writes a file with more keys, or other tensors."""
    config, tensors = arguments("llama")

    def made(more=(), tensors=tensors, types=None, **fields):
        kinds = [(name, value, importlib.import_module("gguf").GGUFValueType(kind)) for name, value, kind in more]
        return write_gguf(tmp_path / "model.gguf", config | fields, tensors, types, more=kinds)

    return made


@pytest.mark.parametrize("more, said", [
    ([("llama.attention.scale", 0.5, F32)], "model.gguf: llama: not known: attention.scale; if they do not"),
    ([("llama.expert_count", 8, U32)], "llama: expert_count is 8; expected 0"),
    ([("llama.attention.sliding_window", 8, U32)], "attention.sliding_window is 8; expected 0: no window"),
    ([("llama.rope.scaling.type", "spiral", TEXT)], "rope.scaling.type is 'spiral'; expected one of none, linear"),
    ([("llama.rope.scaling.yarn_ext_factor", 0.5, F32)], "yarn_ext_factor is 0.5; expected 1.0"),
])  # fmt: skip
@pytest.mark.usefixtures("no_models_on_devices")
def test_keys_that_are_not_computed(llama, more, said):
    with pytest.raises(ModelError, match=re.escape(said)):
        models.load(llama(more))


@pytest.mark.usefixtures("no_models_on_devices")
def test_the_user_may_vouch_for_a_key(llama):
    with pytest.raises(AssertionError, match="went on"):
        models.load(llama([("llama.colour", "red", TEXT)]), ignore=["colour"])


@pytest.mark.usefixtures("no_models_on_devices")
def test_tensors_that_are_not_those_of_the_keys(llama, tmp_path):
    tensors = arguments("llama")[1]
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.norm.weight"] = np.zeros(31, np.float32)
    with pytest.raises(ModelError) as caught:
        models.load(llama(tensors=tensors))
    for part in ("missing: model.layers.1.mlp.up_proj.weight", "wrong: model.norm.weight has shape [31] of F32 in"):
        assert part in str(caught.value)


@pytest.mark.parametrize(("name", "heads"), [("llama", {"head_dim": 16}), ("bert", {"num_attention_heads": 2**16})])
def test_nothing_is_made_of_a_width_that_the_tensors_have_not(tmp_path, name, heads):
    config, tensors = arguments(name)
    path = write_gguf(tmp_path / "model.gguf", config | {"hidden_size": 2**22} | heads, tensors)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=r"expected \[61, 4194304\]"):
            models.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


@pytest.mark.usefixtures("no_models_on_devices")
@pytest.mark.parametrize("keys, said", [
    ([], "general.architecture is None; expected one of llama, qwen2"),
    ([key("general.architecture", TEXT, "nomic-bert-moe")], "general.architecture is 'nomic-bert-moe'; expected one"),
    ([key("general.architecture", TEXT, "gemma3n")], "general.architecture is 'gemma3n'; expected one of llama"),
    ([key("general.architecture", TEXT, "llama"), key("general.type", TEXT, "adapter")],
     "general.type is 'adapter'; expected 'model'"),
    ([key("general.architecture", TEXT, "llama")], "llama: embedding_length is missing; expected a whole number"),
    ([key("general.architecture", TEXT, "llama"), key("llama.embedding_length", I32, -1)], "embedding_length is -1"),
    ([key("general.architecture", TEXT, "llama"), key("llama.block_count", U32, 2**30)],
     "block_count is 1073741824; expected at most 0, as there are so many tensors"),
])  # fmt: skip
def test_keys_that_say_no_model(tmp_path, keys, said):
    path = tmp_path / "model.gguf"
    path.write_bytes(file(keys))
    with pytest.raises(ModelError, match=re.escape(str(path)) + ".*" + re.escape(said)):
        models.load(path)


@pytest.mark.usefixtures("no_models_on_devices")
def test_types_that_cannot_be_read(tmp_path):
    from gguf_files import info

    path = tmp_path / "model.gguf"
    names = ("embedding_length", "block_count", "attention.head_count", "context_length", "feed_forward_length")
    keys = [key("general.architecture", TEXT, "llama"), *(key(f"llama.{name}", U32, 1) for name in names)]
    keys.append(key("llama.attention.layer_norm_rms_epsilon", F32, 1e-5))
    infos = [info("token_embd.weight", (256, 1), 16, 0), info("blk.0.ffn_up.weight", (256, 1), 16, 96)]
    path.write_bytes(file(keys, infos, bytes(192)))
    with pytest.raises(ModelError, match="tensors of types that cannot be read: 2 of IQ2_XXS; F32, F16, .* can"):
        models.load(path)


@pytest.mark.usefixtures("no_models_on_devices")
def test_what_is_no_gguf_file(tmp_path):
    folder = write(tmp_path / "folder", *arguments("llama"))
    with pytest.raises(ModelError, match="model.safetensors is no GGUF file: it begins with"):
        models.load(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model.gguf")
    with pytest.raises(ModelError, match="a GGUF file is loaded by its own name: .*model.gguf"):
        models.load(folder)


def test_a_tensor_without_use_is_told(vulkan_backend, llama):
    tensors = arguments("llama")[1]
    path = llama(tensors=tensors, types={})
    import gguf

    writer = gguf.GGUFWriter(path.with_name("more.gguf"), "llama")
    read = models.GGUF(path)
    for name, value in read.keys.items():
        if name != "general.architecture":
            kind = {str: TEXT, float: F32, bool: 7}.get(type(value), U32)
            writer.add_key_value(name, value, gguf.GGUFValueType(kind))
    for name in read.tensors:
        writer.add_tensor(name, read.tensor(name).dequantize())
    writer.add_tensor("spin", np.zeros(3, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.warns(UserWarning, match="LlamaLM does not use spin;"):
        models.load(path.with_name("more.gguf"), backend=vulkan_backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        models.load(path, backend=vulkan_backend)


def test_parts_of_a_model(vulkan_backend, tmp_path):
    """As the package writes them."""
    import gguf

    config, tensors = arguments("qwen3")
    whole = write_gguf(tmp_path / "whole.gguf", config, tensors)
    read = models.GGUF(whole)
    writer = gguf.GGUFWriter(tmp_path / "parts.gguf", "qwen3", split_max_tensors=9)
    for name, value in read.keys.items():
        if name != "general.architecture":
            writer.add_key_value(name, value, gguf.GGUFValueType({str: TEXT, float: F32}.get(type(value), U32)))
    for name in read.tensors:
        writer.add_tensor(name, read.tensor(name).dequantize())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    paths = sorted(tmp_path.glob("parts-*.gguf"))
    assert len(paths) == 3
    ids = np.arange(8).reshape(1, 8)
    found, wanted = (models.load(path, backend=vulkan_backend)(ids).logits for path in (paths[1], whole))
    np.testing.assert_array_equal(found, wanted)
    assert grilly.models.GGUF(paths[0]).tensors.keys() == read.tensors.keys()
