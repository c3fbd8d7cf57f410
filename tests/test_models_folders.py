"""What grilly.models.load says of folders that are no models, before anything is on a device."""

import json
import re
import shutil
import warnings

import numpy as np
import pytest

import goldens
from grilly import models
from grilly.models import ARCHITECTURES
from model_folders import change, drawn, on_paper, refused, write_folder, write_safetensors

CASES = goldens.cases("models")
pytestmark = pytest.mark.usefixtures("no_models_on_devices")


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model", CASES["llama"].arguments)


def test_a_good_folder_reaches_the_device(folder):
    with pytest.raises(AssertionError, match="went on"):
        models.load(folder)


def test_no_folder_and_no_config(folder):
    refused(folder / "nowhere", "nowhere is no folder and no file; a model is read from its files, and not downloaded")
    (folder / "config.json").unlink()
    refused(folder, "config.json is missing")
    (folder / "config.json").write_text("{")
    refused(folder, "config.json cannot be read as JSON")
    (folder / "config.json").write_text("[]")
    refused(folder, "config.json holds a list")


def test_unknown_architecture(folder):
    change(folder, architectures=["MambaForCausalLM"])
    refused(folder, "config.json: architectures is 'MambaForCausalLM'", *ARCHITECTURES)


@pytest.mark.parametrize("name, value, expected", [
    ("hidden_size", ..., "hidden_size is missing; expected a whole number"),
    ("hidden_size", "32", "hidden_size is '32'; expected a whole number"),
    ("num_hidden_layers", 0, "num_hidden_layers is 0; expected a whole number, at least 1"),
    ("hidden_size", 10**30, "expected a whole number, at least 1 and below 2**31"),
    ("num_key_value_heads", 3, "num_attention_heads is 4; expected a multiple of num_key_value_heads"),
    ("hidden_act", "mish", "hidden_act is 'mish'; expected one of gelu"),
    ("rms_norm_eps", True, "rms_norm_eps is True; expected a finite number"),
    ("mlp_bias", 1, "mlp_bias is 1; expected true or false"),
    ("sliding_window", 7, "sliding_window is 7; expected None"),
    ("attention_sinks", 4, "not known: attention_sinks"),
    ("rope_parameters", {"rope_type": "longrope"}, "rope_parameters: scaling of type 'longrope' lacks 'long_factor'"),
    ("rope_parameters", {"rope_type": "longrope", "short_factor": [1.0] * 3, "long_factor": [1.0] * 3},
     "rope_parameters: longrope's factors have shape (3,); expected (4,)"),
    ("rope_parameters", {"rope_type": "dynamic"}, "rope_parameters: scaling of type 'dynamic' lacks 'factor'"),
    ("rope_parameters", {"rope_type": "spiral"}, "rope_parameters: rope_type is 'spiral'; expected one of default, "),
    ("rope_parameters", {"full_attention": {"rope_type": "default"}},
     "rope_parameters: layers of kind 'full_attention' have one of their own; expected one for all layers"),
    ("rope_parameters", {"rope_type": "default", "partial_rotary_factor": 0.5},
     "rope_parameters: partial_rotary_factor is 0.5; expected 1"),
    ("rope_parameters", {"rope_type": "llama3", "factor": 8.0},
     "rope_parameters: scaling of type 'llama3' lacks 'high_freq_factor'"),
    ("rope_parameters", {"rope_type": "linear", "factor": 8.0, "spin": 1},
     "rope_parameters: scaling of type 'linear' has 'spin'"),
    ("quantization_config", {"bits": 4}, "quantization_config: quant_method is missing; expected one of awq, gptq"),
])  # fmt: skip
def test_fields(folder, name, value, expected):
    change(folder, **{name: value})
    refused(folder, "config.json", expected)


def test_the_user_may_vouch_for_a_field(folder):
    change(folder, colour="red")
    refused(folder, "not known: colour", "ignore=['colour']")
    with pytest.raises(AssertionError, match="went on"):
        models.load(folder, ignore=["colour"])


def test_tensors_are_compared_all_at_once(folder):
    tensors = drawn(CASES["llama"].arguments["tensors"], 0)
    del tensors["model.norm.weight"], tensors["lm_head.weight"]
    tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((48, 31), np.float32)
    tensors["model.layers.2.extra"] = np.zeros(3, np.float32)
    write_safetensors(folder / "model.safetensors", tensors)
    refused(
        folder, "missing: model.norm.weight", "missing: lm_head.weight",
        "too many: model.layers.2.extra in model.safetensors",
        "wrong: model.layers.0.mlp.up_proj.weight has shape [48, 31] of F32 in model.safetensors; expected [48, 32]",
    )  # fmt: skip


@pytest.mark.parametrize("case, bare, unused", [
    ("bert_masked_lm", "BertModel", ["cls.predictions.bias", "cls.predictions.transform.LayerNorm.bias"]),
    ("roberta_tokens", "RobertaModel", ["classifier.bias", "classifier.weight"]),
    ("llama", "LlamaModel", ["lm_head.weight"]), ("gpt2_untied", "GPT2Model", ["lm_head.weight"]),
    ("vit", "ViTModel", ["classifier.bias", "classifier.weight"]), ("t5", "T5EncoderModel", []),
])  # fmt: skip
def test_a_head_of_which_config_says_nothing_is_not_used(tmp_path, case, bare, unused):
    """As in transformers; also where the names lack the prefix that those of models with heads have."""
    made = write_folder(tmp_path / case, CASES[case].arguments)
    change(made, architectures=[bare])
    tensors = drawn(CASES[case].arguments["tensors"], 0)
    for prefix in ("", "bert.", "roberta.", "model.", "transformer.", "vit."):
        named = {name.removeprefix(prefix): array for name, array in tensors.items()}
        write_safetensors(made / "model.safetensors", named)
        with warnings.catch_warnings(record=True) as caught, pytest.raises(AssertionError, match="went on"):
            warnings.simplefilter("always")
            models.load(made)
        text = f"{made}: .* does not use {', '.join(unused)}.*; that is right for a head of another task"
        assert [bool(re.match(text, str(warning.message))) for warning in caught] == [True] * bool(unused)
        assert all(warning.filename == __file__ for warning in caught)


def test_unused_tensors_are_named(folder):
    change(folder, architectures=["LlamaModel"])
    tensors = drawn(CASES["llama"].arguments["tensors"], 0)
    more = {f"spin.{number}": np.zeros(1, np.float32) for number in range(30)}
    write_safetensors(folder / "model.safetensors", tensors | more)
    with pytest.warns(UserWarning, match="Llama does not use lm_head.weight, spin.0.* and 11 more;"):
        with pytest.raises(AssertionError, match="went on"):
            models.load(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="does not use"):
            models.load(folder)


@pytest.mark.parametrize("case, headed, missing", [
    ("bert", "BertForMaskedLM", "cls.predictions.bias"), ("bert", "BertForTokenClassification", "classifier.weight"),
    ("bert_masked_lm", "BertForQuestionAnswering", "qa_outputs.weight"),
    ("llama", "LlamaForCausalLM", "lm_head.weight"),
    ("t5_encoder", "T5Model", "decoder.block.0.layer.0.SelfAttention.q.weight"),
])  # fmt: skip
def test_a_head_that_is_not_there_is_missing(tmp_path, case, headed, missing):
    made = write_folder(tmp_path / case, CASES[case].arguments)
    change(made, architectures=[headed], is_encoder_decoder=headed.startswith("T5"))
    tensors = {name: array for name, array in drawn(CASES[case].arguments["tensors"], 0).items() if name != missing}
    write_safetensors(made / "model.safetensors", tensors)
    text = refused(made, f"missing: {missing}")
    assert ("too many: cls.predictions.bias" in text) == (case == "bert_masked_lm")


@pytest.mark.parametrize("name, copy, of", [
    ("llama", "lm_head.weight", "model.embed_tokens.weight"),
    ("gpt2", "lm_head.weight", "transformer.wte.weight"),
    ("whisper", "proj_out.weight", "model.decoder.embed_tokens.weight"),
    ("t5", "encoder.embed_tokens.weight", "shared.weight"),
    ("bert_masked_lm", "cls.predictions.decoder.bias", "cls.predictions.bias"),
    ("roberta_masked_lm", "lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
])  # fmt: skip
def test_a_tied_tensor_may_lie_there_twice_but_not_differ(tmp_path, name, copy, of):
    """Versions of transformers take either of the two then."""
    made = write_folder(tmp_path / name, CASES[name].arguments)
    change(made, tie_word_embeddings=True)
    tensors = drawn(CASES[name].arguments["tensors"], 0)
    write_safetensors(made / "model.safetensors", tensors | {copy: tensors[of]})
    with pytest.raises(AssertionError, match="went on"):
        models.load(made)
    other = tensors[of].copy()
    other[-1] += 1
    write_safetensors(made / "model.safetensors", tensors | {copy: other})
    refused(made, f"wrong: {copy} differs from {of}")


@pytest.mark.parametrize("name, field, absent, other", [
    ("mistral", "sliding_window", 4096, None), ("qwen2", "sliding_window", 4096, None),
    ("gemma2", "attn_logit_softcapping", 50.0, 0.0), ("gemma2", "final_logit_softcapping", 30.0, 0.0),
])  # fmt: skip
def test_a_field_that_is_not_there_is_not_null(tmp_path, name, field, absent, other):
    """Where transformers' default is not what null means."""
    made = write_folder(tmp_path / name, CASES[name].arguments)

    def value(model):
        if field == "sliding_window":
            return model.layers[1].attention.window
        return model.softcap if field.startswith("final") else model.layers[1].attention.softcap

    assert value(on_paper(made)) not in (absent, other)
    change(made, **{field: None})
    assert value(on_paper(made)) == other
    change(made, **{field: ...})
    assert value(on_paper(made)) == absent


def test_truncated_and_damaged_files(folder):
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    refused(folder, f"model.safetensors is truncated: {len(whole) - 5} bytes, and its tensors need {len(whole)}")
    for damaged in (b"", whole[:7], whole[:100], b"\xff" * 100):
        file.write_bytes(damaged)
        refused(folder, "model.safetensors is truncated or no safetensors file")
    length = int.from_bytes(whole[:8], "little")
    file.write_bytes(whole[:8] + b"?" * length + whole[8 + length :])
    refused(folder, "model.safetensors: its header is no JSON object of tensors")
    header = json.loads(whole[8 : 8 + length])
    for wrong in ({"dtype": "F8"}, {"data_offsets": [0, 7]}, {"shape": [-1, 3]}, {"shape": None}):
        text = json.dumps(header | {"model.norm.weight": header["model.norm.weight"] | wrong}).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])
        refused(folder, "model.safetensors: model.norm.weight")
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    refused(folder, "model.safetensors is a pointer of Git LFS", "git lfs pull")
    file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    refused(folder, "neither model.safetensors nor model.safetensors.index.json", "pytorch_model.bin cannot be read")


def shards(folder):
    """The folder's tensors in two files and an index."""
    tensors = drawn(CASES["llama"].arguments["tensors"], 0)
    (folder / "model.safetensors").unlink()
    places = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(tensors)}
    for file in set(places.values()):
        write_safetensors(folder / file, {name: tensors[name] for name in tensors if places[name] == file})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return places


def test_shards(folder):
    places = shards(folder)
    with pytest.raises(AssertionError, match="went on"):
        models.load(folder)
    first, second = sorted(set(places.values()))
    kept = (folder / second).read_bytes()
    (folder / second).unlink()
    refused(folder, f"{second} is missing, with {sum(file == second for file in places.values())} tensors")
    shutil.copy(folder / first, folder / second)  # the wrong tensors
    name = next(name for name, file in places.items() if file == second)
    refused(folder, f"{second} lacks {name}", "too")
    (folder / second).write_bytes(kept[:-1])
    refused(folder, f"{second} is truncated")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    refused(folder, "'../secret.safetensors' is no file beside it")
    index.write_text("{}")
    refused(folder, "model.safetensors.index.json: no weight_map")


def test_dtypes(folder):
    for dtype in ("float64", "int8", "auto"):
        with pytest.raises(TypeError, match=f"dtype {dtype}; expected float32, .*, or None for that of the folder"):
            models.load(folder, dtype=dtype)


def test_the_dtype_that_a_folder_has(folder, vulkan_backend):
    """One tensor that was kept in float32 does not make a model of 16 bits twice as large."""
    made = drawn(CASES["llama"].arguments["tensors"], 0)
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(10**5, np.float32)}  # which no model asks for
    kept = {
        name: array.astype(np.float32 if name.endswith("norm.weight") else np.float16) for name, array in made.items()
    }
    write_safetensors(folder / "model.safetensors", buffer | kept)
    for fields, wanted in (
        ({"dtype": ...}, "float16"), ({"dtype": None}, "float16"), ({"dtype": "auto"}, "float16"),
        ({"dtype": "float64"}, "float16"), ({"dtype": ["float32"]}, "float16"), ({"dtype": "float32"}, "float32"),
        ({"dtype": ..., "torch_dtype": "float32"}, "float32"), ({"dtype": "float16"}, "float16"),
    ):  # fmt: skip
        change(folder, torch_dtype=...)
        change(folder, **fields)
        model = models.load(folder, backend=vulkan_backend)
        assert model.dtype.name == wanted and model.norm.weight.data.dtype.name == wanted, fields
        assert models.load(folder, "float32", vulkan_backend).dtype.name == "float32"
    change(folder, dtype=..., torch_dtype=...)
    write_safetensors(folder / "model.safetensors", {name: array.astype(np.float64) for name, array in made.items()})
    assert models.load(folder, backend=vulkan_backend).dtype.name == "float32"


def test_weights_that_float16_does_not_hold(folder, vulkan_backend):
    tensors = drawn(CASES["llama"].arguments["tensors"], 0)
    tensors["model.norm.weight"][3] = 70000
    write_safetensors(folder / "model.safetensors", tensors)
    refused(
        folder, "numbers past 65504", "beyond: model.norm.weight in model.safetensors", "dtype='bfloat16'",
        dtype="float16", backend=vulkan_backend,
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_dtype_becomes_every_other(folder, vulkan_backend, dtype):
    """As NumPy converts them: also q, k and v of three dtypes, which become one weight."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kinds = [np.dtype(kind) for kind in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)]
    made = drawn(CASES["llama"].arguments["tensors"], 0)
    for turn in range(4):
        tensors = {name: array.astype(kinds[(place + turn) % 4]) for place, (name, array) in enumerate(made.items())}
        write_safetensors(folder / "model.safetensors", tensors)
        model = models.load(folder, dtype, vulkan_backend)
        first, wanted = model.layers[0], np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
        for found, parts in (
            (first.attention.qkv, [f"self_attn.{part}_proj" for part in "qkv"]),
            (first.mlp.widen, ["mlp.gate_proj", "mlp.up_proj"]), (first.mlp.narrow, ["mlp.down_proj"]),
            (first.norm, ["post_attention_layernorm"]),
        ):  # fmt: skip
            arrays = [tensors[f"model.layers.0.{part}.weight"].astype(np.float32).astype(wanted) for part in parts]
            assert np.array_equal(found.weight.numpy().view(np.uint8), np.concatenate(arrays).view(np.uint8)), parts


def test_shards_dtypes_and_progress(folder, vulkan_backend):
    """The files' dtype, in shards, is what is computed with where no other is said; progress ends with all of them."""
    ids = np.array([[5, 9, 17, 33]])
    wanted = models.load(folder, backend=vulkan_backend)(ids).logits
    tensors = drawn(CASES["llama"].arguments["tensors"], CASES["llama"].arguments["seed"])
    places = shards(folder)
    for file in set(places.values()):  # float32 as bfloat16, as the upper halves of its numbers
        own = {name: array for name, array in tensors.items() if places[name] == file}
        header, data = {}, b""
        for name, array in own.items():
            halves = (array.view(np.uint32) >> 16).astype(np.uint16).tobytes()
            header[name] = {"dtype": "BF16", "shape": array.shape, "data_offsets": [len(data), len(data) + len(halves)]}
            data += halves
        text = json.dumps(header).encode()
        (folder / file).write_bytes(len(text).to_bytes(8, "little") + text + data)
    seen = []
    model = models.load(folder, "float32", vulkan_backend, progress=lambda done, total: seen.append((done, total)))
    total = sum(array.nbytes // 2 for array in tensors.values())
    assert seen[-1] == (total, total) and [done for done, _ in seen] == sorted(done for done, _ in seen)
    error = np.abs(model(ids).logits - wanted).max()
    assert 0 < error < 0.1 * np.abs(wanted).max()
    pytest.importorskip("ml_dtypes")
    change(folder, dtype=...)
    assert models.load(folder, backend=vulkan_backend).dtype.name == "bfloat16"
    assert models.load(folder, "float16", vulkan_backend)(ids).logits.dtype == np.float16


#: Fields that files on model hubs have besides those that transformers 5 writes.
OLD = {
    "bert": {"gradient_checkpointing": False, "position_embedding_type": "absolute", "_name_or_path": "x"},
    "roberta": {"output_past": True, "mlm_probability": 0.15},
    "distilbert": {"tie_weights_": True, "sinusoidal_pos_embds": True, "qa_dropout": 0.1},
    "mpnet": {"relative_attention_num_buckets": 32, "hidden_dropout_prob": 0.1},
    "phi3": {"original_max_position_embeddings": 4096, "embd_pdrop": 0.0, "auto_map": {}, "attention_bias": False},
    "gemma": {"hidden_activation": "gelu_pytorch_tanh", "rope_theta": 10000.0},
    "gpt2": {"n_ctx": 80, "n_special": 0, "predict_special_tokens": True,
             "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}},
    "llama": {"pretraining_tp": 1, "torch_dtype": "bfloat16", "max_length": 20},
    "mistral": {"rope_theta": 10000.0, "attention_dropout": 0.0},
    "qwen2": {"use_mrope": False},
    "gemma2": {"cache_implementation": "hybrid", "hidden_act": "gelu_pytorch_tanh", "sliding_window_size": 5},
    "t5": {"n_positions": 512, "output_past": True, "task_specific_params": {}, "is_gated_act": False},
    "vit": {"num_labels": 5, "encoder_stride": 16},
    "clip": {"text_config_dict": None, "vision_config_dict": None, "text_config": {
        "prefix": None, "num_beams": 1, "top_k": 50, "tie_word_embeddings": True, "chunk_size_feed_forward": 0,
        "is_decoder": False, "is_encoder_decoder": False, "add_cross_attention": False, "dropout": 0.0,
        "cross_attention_hidden_size": None, "torchscript": False, "typical_p": 1.0, "tf_legacy_loss": False,
    }},
    "whisper": {"max_length": 448, "forced_decoder_ids": [[1, 3]], "num_hidden_layers": 2},
}  # fmt: skip


@pytest.mark.parametrize("name", OLD)
def test_fields_of_files_that_are_about(tmp_path, name):
    made = write_folder(tmp_path / name, CASES[name].arguments)
    config = CASES[name].arguments["config"]
    for field, value in OLD[name].items():
        change(made, **{field: {**config[field], **value} if isinstance(config.get(field), dict) else value})
    with pytest.raises(AssertionError, match="went on"):
        models.load(made)


#: Fields that files of any family may have.
ANY = {
    "_num_labels": 2, "num_labels": 2, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
    "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}, "is_llama_config": True,
    "transformers.js_config": {"dtype": "fp32"}, "max_sequence_length": 4096, "max_seq_length": 128,
    "_flash_attn_2_enabled": True, "use_flash_attention_2": False, "attn_implementation": "sdpa",
    "_attn_implementation": "eager", "neftune_noise_alpha": 5, "xla_device": True, "add_cross_attention": False,
    "chunk_size_feed_forward": 0, "is_decoder": False, "pruned_heads": {}, "tie_encoder_decoder": False,
}  # fmt: skip


@pytest.mark.parametrize("name", OLD)
def test_fields_without_effect(tmp_path, name):
    made = write_folder(tmp_path / name, CASES[name].arguments)
    both = CASES[name].arguments["config"].get("is_encoder_decoder", False)
    change(made, **ANY, is_encoder_decoder=both)
    with pytest.raises(AssertionError, match="went on"):
        models.load(made)
    others = {"add_cross_attention": True, "chunk_size_feed_forward": 5, "is_encoder_decoder": not both}
    if name in ("bert", "roberta", "distilbert", "mpnet", "t5", "vit", "clip", "whisper"):
        others["is_decoder"] = True
    for field, value in others.items():
        change(made, **{field: value})
        refused(made, f"config.json: {field} is {value!r}; expected ", ignore=[field])
        change(made, **ANY, is_encoder_decoder=both)


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("name", OLD)
def test_all_fields_of_a_configuration_of_transformers(tmp_path, name):
    """Also those that save_pretrained leaves out."""
    import transformers

    made = write_folder(tmp_path / name, CASES[name].arguments)
    given = dict(CASES[name].arguments["config"])
    config = transformers.CONFIG_MAPPING[given.pop("model_type")](**given)
    (made / "config.json").write_text(json.dumps(config.to_dict()))
    with pytest.raises(AssertionError, match="went on"):
        models.load(made)


@pytest.mark.parametrize("name", OLD)
def test_each_family_refuses_what_it_does_not_know(tmp_path, name):
    made = write_folder(tmp_path / name, CASES[name].arguments)
    change(made, spin=1)
    refused(made, "config.json: not known: spin")


def test_a_whole_file_goes_before_an_index(folder):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "gone.safetensors"}}))
    with pytest.raises(AssertionError, match="went on"):
        models.load(folder)
    (folder / "model.safetensors").unlink()
    refused(folder, "gone.safetensors is missing")


@pytest.mark.parametrize("name, value, expected", [
    ("eos_token_id", "</s>", "a token or a list of tokens"),
    ("eos_token_id", [2, "</s>"], "a token or a list of tokens"),
    ("pad_token_id", [0], "a token"),
    ("decoder_start_token_id", 1.5, "a token"),
    ("suppress_tokens", 5, "a list of tokens"),
    ("begin_suppress_tokens", {"5": 1}, "a list of tokens"),
    ("repetition_penalty", 0, "a finite number above 0"),
    ("repetition_penalty", "1.1", "a finite number above 0"),
])  # fmt: skip
def test_generation_config_of_other_kinds(folder, name, value, expected):
    file = folder / "generation_config.json"
    file.write_text(json.dumps({name: value}))
    refused(folder, f"generation_config.json: {name} is {value!r}; expected {expected}")
    file.unlink()
    change(folder, **{name: value})
    refused(folder, f"config.json: {name} is {value!r}; expected {expected}")


def test_generation_config_is_read_before_weights_are_on_the_device(folder):
    (folder / "generation_config.json").write_text("[" * 100_000)
    refused(folder, "generation_config.json cannot be read as JSON")


@pytest.mark.parametrize("case, fields, said", [
    ("llama", {"rms_norm_eps": -1e-6}, "rms_norm_eps is -1e-06; expected a finite number, at least 0"),
    ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; expected a finite number"),
    ("llama", {"rms_norm_eps": 10**400}, "expected a finite number"),
    ("llama", {"rope_theta": 0}, "rope_theta is 0; expected a finite number above 0"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0; expected a finite number above 0"),
    ("gemma2", {"layer_types": [["full_attention"]] * 99}, "layer_types is"),
    ("gemma3", {"attn_logit_softcapping": 5.0}, "attn_logit_softcapping is 5.0; expected None"),
    ("gemma3", {"rope_parameters": {"rope_type": "default"}}, "expected full_attention and sliding_attention"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True; expected False"),
    ("gemma3", {"rope_local_base_freq": 0}, "rope_local_base_freq is 0; expected a finite number above 0"),
    ("gemma3", {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "facto": 3}}}, "facto"),
    ("nomic_bert", {"head_dim": 4}, "head_dim is 4; expected 8"),
    ("nomic_bert", {"num_attention_heads": 32, "head_dim": None}, "expected an even number of elements for each of"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; expected 1.0"),
    ("phi3", {"partial_rotary_factor": 0.4, "rope_parameters": None}, "0.4; expected a part of a head of 8 that is an"),
    ("phi3", {"partial_rotary_factor": 2, "rope_parameters": None}, "2; expected a part of a head of 8 that is an"),
    ("mistral", {"layer_types": [["full_attention"]] * 99}, "layer_types is"),
    ("vit_classifier", {"id2label": 3}, "id2label is 3; expected an object of names by number"),
])  # fmt: skip
def test_fields_of_other_kinds(tmp_path, case, fields, said):
    if case not in CASES:
        case = next(name for name, one in CASES.items() if "ForImageClass" in str(one.arguments["config"]))
    made = write_folder(tmp_path / "model", CASES[case].arguments)
    change(made, **fields)
    refused(made, said)


BIG = {"hidden_size": 4 * 513, "dim": 4 * 513, "n_embd": 4 * 513, "d_model": 4 * 513}


@pytest.mark.parametrize("case, fields, said", [
    *[(name, BIG, f"{field} is {value}; expected heads of at most 512 elements, and these have 513")
      for name, field, value in (("bert", "hidden_size", 2052), ("distilbert", "dim", 2052),
                                 ("mpnet", "hidden_size", 2052), ("gpt2", "n_embd", 2052), ("vit", "hidden_size", 2052),
                                 ("whisper", "encoder_attention_heads", 4))],
    ("llama", {"head_dim": 514}, "head_dim is 514; expected heads of at most 512 elements, and these have 514"),
    ("mistral", {"hidden_size": 4 * 514, "head_dim": None}, "hidden_size is 2056; expected heads of at most 512"),
    ("gemma2", {"head_dim": 576}, "head_dim is 576; expected heads of at most 512 elements"),
    ("t5", {"d_kv": 513}, "d_kv is 513; expected heads of at most 512 elements"),
    ("clip", {"text_config": {"hidden_size": 2052, "num_attention_heads": 4}},
     "text_config: num_attention_heads is 4; expected heads of at most 512 elements"),
    ("t5", {"relative_attention_num_buckets": 2}, "relative_attention_num_buckets is 2; expected an even number, at"),
    ("t5", {"relative_attention_num_buckets": 7}, "relative_attention_num_buckets is 7; expected an even number, at"),
    ("t5", {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 16},
     "relative_attention_max_distance is 16; expected more than 16, at most 1048576"),
    ("t5", {"relative_attention_max_distance": 2**20 + 1}, "relative_attention_max_distance is 1048577; expected more"),
    ("vit", {"patch_size": 99}, "patch_size is 99; expected at most image_size, "),
    ("clip", {"vision_config": {"patch_size": 99, "image_size": 32}},
     "vision_config: patch_size is 99; expected at most image_size, 32"),
])  # fmt: skip
def test_sizes_that_no_kernel_has(tmp_path, case, fields, said):
    made = write_folder(tmp_path / "model", CASES[case].arguments)
    change(made, **fields)
    refused(made, f"config.json: {said}")


def test_headers_of_other_kinds(folder):
    file = folder / "model.safetensors"
    for shape, places in (([1.0], [0, 4]), ([1], [0, 4.0]), ([True], [0, 4])):
        text = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": places}}).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
        refused(folder, "expected dtype (of", "shape, data_offsets")


@pytest.mark.parametrize("options, said", [
    ({"ignore": "spin"}, "ignore is 'spin'; expected a list"),
    ({"backend": "cpu"}, "backend is 'cpu'; expected a grilly.Compute"),
])  # fmt: skip
def test_arguments_of_other_kinds(folder, options, said):
    with pytest.raises(TypeError, match=said):
        models.load(folder, **options)


# -- what transformers reads otherwise than one might think ----------------------------------------------------------


def test_a_model_type_of_another_family(folder):
    """Models that share a class differ by it: what llama's would compute is not what mistral's does."""
    change(folder, architectures=["MistralForCausalLM"])
    refused(folder, "config.json: model_type is 'llama'; expected 'mistral', as MistralForCausalLM has it")
    change(folder, architectures=["LlamaForCausalLM"], model_type=5)
    refused(folder, "model_type is 5; expected 'llama'")


def test_bytes_after_the_tensors(folder):
    """The package safetensors refuses such a file too: its header is of another one."""
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole + b"\0" * 8)
    refused(folder, f"model.safetensors has {len(whole) + 8} bytes, and its tensors end after {len(whole)}")


def test_a_damaged_shard_is_told_once(folder):
    """... and not again for each tensor that the index says it has."""
    second = max(shards(folder).values())
    (folder / second).write_bytes(b"\0" * 20)
    text = refused(folder, f"{second} is truncated or no safetensors file")
    assert "lacks" not in text
