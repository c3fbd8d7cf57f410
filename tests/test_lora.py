"""Adapters of models: what they compute, their files beside the package peft, and weights they are merged into."""


import json

import numpy as np
import pytest

import goldens
import grilly
from grilly import functional as F
from grilly import models
from model_folders import write_folder

CASES = goldens.cases("models")
#: A case of each family, with layers to adapt by their names.
TARGETS = {
    "llama": ["q_proj", "v_proj"], "qwen2": ["k_proj", "gate_proj"], "qwen3": ["q_proj", "up_proj", "down_proj"],
    "mistral": "all-linear", "phi3": ["qkv_proj", "gate_up_proj"], "gemma": "all-linear",
    "gemma2": ["v_proj", "o_proj"], "gemma3": ["q_proj", "o_proj"], "gpt2": ["c_attn", "c_proj"],
    "bert_texts": ["query", "value"], "roberta_masked_lm": ["key", "output.dense"],
    "distilbert_tokens": ["q_lin", "lin1"], "mpnet": ["attn.q", "attn.v"], "nomic_bert": ["out_proj", "fc2"],
    "t5": ["q", "v", "wo"], "t5_gated": ["wi_0", "k"], "t5_encoder": ["q", "wi_1"], "vit": ["q_proj", "fc1"],
    "vit_pooled": ["v_proj"], "clip": ["q_proj", "out_proj", "fc1"], "whisper": ["q_proj", "v_proj", "fc2"],
}  # fmt: skip


#: Those whose layers transformers has as the files have them; of Nomic BERT it splits one.
EXCHANGED = [name for name in TARGETS if name != "nomic_bert"]


def given(case):
    """The arguments of a case's model."""
    names = ("input_ids", "attention_mask", "decoder_input_ids", "pixel_values", "input_features")
    return {name: getattr(case, name) for name in names if getattr(case, name) is not None}


def first(output):
    return output[0]


def close(found, wanted, bound=1e-4):
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= bound * np.abs(wanted).max()


def fill(model, seed=0):
    """Matrices B that are not zero."""
    rng = np.random.default_rng(seed)
    for name, parameter in model.named_parameters():
        if name.endswith("lora_B"):
            parameter.data = rng.normal(0, 0.3, parameter.shape).astype(np.float32)


@pytest.fixture
def loaded(tmp_path, vulkan_backend):
    def load(name, **fields):
        folder = write_folder(tmp_path / name, CASES[name].arguments)
        return models.load(folder, backend=vulkan_backend), folder

    return load


@pytest.mark.parametrize("name", TARGETS)
def test_merged_weights_compute_what_adapters_add(loaded, name):
    model, _ = loaded(name)
    plain = first(model(**given(CASES[name])))
    assert grilly.lora(model, 4, 8, TARGETS[name], rng=0) is model
    np.testing.assert_allclose(first(model(**given(CASES[name]))), plain, rtol=1e-5, atol=1e-5)
    fill(model)
    next(part for part in model.modules() if hasattr(part, "lora_A")).alpha = 11.0  # beside others of one layer
    adapted = first(model(**given(CASES[name])))
    assert np.abs(adapted - plain).max() > 1e-3 * np.abs(plain).max()
    weights = {name: array.copy() for name, array in model.state_dict().items()}
    model.merge_adapter()
    close(first(model(**given(CASES[name]))), adapted)
    model.unmerge_adapter()
    for key, array in model.state_dict().items():
        np.testing.assert_array_equal(array, weights[key])
    close(first(model(**given(CASES[name]))), adapted, 5e-6)  # sums may be in another order
    model.merge_and_unload()
    close(first(model(**given(CASES[name]))), adapted)
    assert not any("lora" in key for key in model.state_dict())


@pytest.fixture
def peft():
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    found = pytest.importorskip("peft")

    def model_of(name, folder):
        architecture = getattr(transformers, CASES[name].arguments["config"]["architectures"][0])
        # Some versions leave out the soft-cap of Gemma 2 otherwise.
        return architecture.from_pretrained(folder, attn_implementation="eager").eval()

    found.model_of = model_of
    return found


def computed(model, case):
    import torch

    with torch.no_grad():
        out = model(**{key: torch.tensor(array) for key, array in given(case).items()})
    return first(out).numpy()


@pytest.mark.parametrize("name", EXCHANGED)
def test_peft_reads_what_is_written(loaded, peft, tmp_path, name):
    model, folder = loaded(name)
    grilly.lora(model, 4, 8, TARGETS[name], rslora=name == "llama", rng=0)
    fill(model)
    model.save_adapter(tmp_path / "adapter")
    wrapped = peft.PeftModel.from_pretrained(peft.model_of(name, folder), tmp_path / "adapter").eval()
    close(first(model(**given(CASES[name]))), computed(wrapped.base_model.model, CASES[name]))
    names = {key for key, _ in wrapped.named_parameters() if "lora_A" in key}
    assert len(names) == sum(key.endswith("lora_A") for key in model.state_dict())


@pytest.mark.parametrize("name", EXCHANGED)
def test_what_peft_writes_is_read(loaded, peft, tmp_path, name):
    import torch

    model, folder = loaded(name)
    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=TARGETS[name], use_rslora=name == "gpt2",
                             rank_pattern={"q_proj": 2}, alpha_pattern={"layers.0.self_attn.q_proj": 7})  # fmt: skip
    torch.manual_seed(0)
    wrapped = peft.get_peft_model(peft.model_of(name, folder), config).eval()
    for key, parameter in wrapped.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(parameter, std=0.3)
    wrapped.save_pretrained(tmp_path / "adapter")
    model.load_adapter(tmp_path / "adapter")
    close(first(model(**given(CASES[name]))), computed(wrapped.base_model.model, CASES[name]))


# -- gradients --------------------------------------------------------------------------------------------------------


def loss_of(model, inputs):
    out = first(model(**inputs))
    factors = np.random.default_rng(1).normal(size=out.shape).astype(np.float32)
    return grilly.sum(out * model.backend.tensor(factors)) / out.size


@pytest.mark.parametrize("name", ["llama", "phi3", "gemma2", "gpt2", "bert_texts", "t5_gated", "vit", "whisper"])
def test_gradients_follow_from_those_of_the_weights(loaded, name):
    """Of ``W + s B A`` the gradients by A and B are ``s B^T G`` and ``s G A^T``, with G that by the sum."""
    model, _ = loaded(name)
    grilly.lora(model, 3, 6, rng=0)
    fill(model)
    inputs = given(CASES[name])
    _, found = grilly.value_and_grad(loss_of)(model, inputs)
    assert found and all("lora" in key for key in found)
    parts = {key: array.copy() for key, array in model.state_dict().items() if "lora" in key}
    places = {key: layer.adapters.starts for key, layer in model.named_modules() if getattr(layer, "adapters", None)}
    model.merge_and_unload()
    for parameter in model.parameters():
        parameter.requires_grad = True
    _, whole = grilly.value_and_grad(loss_of)(model, inputs)
    for layer, starts in places.items():
        for part, start in starts.items():
            a, b = (f"{layer}.adapters.{part}.lora_{which}" for which in "AB")
            gradient = whole[f"{layer}.weight"].numpy()[start : start + len(parts[b])].astype(np.float64)
            for key, wanted in ((a, 2 * parts[b].T @ gradient), (b, 2 * gradient @ parts[a].T)):
                scale = np.abs(wanted).max()
                assert np.abs(found[key].numpy() - wanted).max() <= 1e-3 * scale + 1e-7, key


def test_quantized_weights_with_adapters(loaded, tmp_path, vulkan_backend):
    _, folder = loaded("llama")
    models.write_gguf(folder, tmp_path / "model.gguf", "Q8_0")
    model, plain = (
        models.load(tmp_path / "model.gguf", backend=vulkan_backend, dequantize=floats) for floats in (False, True)
    )
    found = []
    for each in (model, plain):
        grilly.lora(each, 4, rng=0)
        fill(each)
        found.append(grilly.value_and_grad(loss_of)(each, {"input_ids": CASES["llama"].input_ids}))
    (value, gradients), (wanted, others) = found
    assert abs(float(value) - float(wanted)) < 1e-5
    assert gradients.keys() == others.keys() and gradients
    for key, gradient in gradients.items():
        close(gradient.numpy(), others[key].numpy(), 1e-3)
    with pytest.raises(ValueError, match="a quantized weight takes no adapter; load the model with dequantize=True"):
        model.merge_adapter()
    model.save_adapter(tmp_path / "adapter")
    of_folder = models.load(folder, backend=vulkan_backend)
    of_folder.load_adapter(tmp_path / "adapter")
    assert {key for key in of_folder.state_dict() if "lora" in key} == set(gradients)


def test_dropout_of_adapters(loaded):
    model, _ = loaded("llama")
    grilly.lora(model, 4, targets="q_proj", dropout=0.5, rng=0)
    fill(model)
    ids = CASES["llama"].input_ids
    plain = model(ids).logits
    np.testing.assert_array_equal(model(ids).logits, plain)
    model.train()
    assert np.abs(model(ids).logits - plain).max() > 1e-3


def test_the_model_learns_by_its_adapters(loaded):
    """Some steps of descent take a text's loss down, and the weights stay as they were."""
    model, _ = loaded("llama")
    grilly.lora(model, 8, 16, rng=0)
    before = {key: array.copy() for key, array in model.state_dict().items() if "lora" not in key}
    ids = np.random.default_rng(0).integers(0, model.rows, (2, 12))

    def loss(model, ids):
        logits = model(ids[:, :-1]).logits
        return F.cross_entropy(logits.reshape(-1, model.rows), ids[:, 1:].reshape(-1).astype("int32"))

    losses = []
    for _ in range(8):
        value, gradients = grilly.value_and_grad(loss)(model, ids)
        losses.append(float(value))
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data - 0.5 * gradients[name]
    assert losses[-1] < losses[0] - 0.3
    for key, array in before.items():
        np.testing.assert_array_equal(model.state_dict()[key], array)


# -- files and bad input ----------------------------------------------------------------------------------------------


def test_the_files_are_peft_s(loaded, tmp_path):
    """Names and fields as https://huggingface.co/docs/peft has them in its page of checkpoints."""
    model, folder = loaded("llama")
    grilly.lora(model, 4, 8, ["q_proj", "v_proj"], 0.1, rslora=True)
    model.save_adapter(tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    wanted = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(folder), "r": 4,
        "lora_alpha": 8.0, "lora_dropout": 0.1, "target_modules": ["q_proj", "v_proj"], "use_rslora": True,
        "bias": "none", "fan_in_fan_out": False, "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {},
    }  # fmt: skip
    assert {key: config[key] for key in wanted} == wanted
    found = pytest.importorskip("safetensors.numpy").load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    layers = CASES["llama"].arguments["config"]["num_hidden_layers"]
    assert set(found) == {
        f"base_model.model.model.layers.{layer}.self_attn.{part}.lora_{which}.weight"
        for layer in range(layers) for part in ("q_proj", "v_proj") for which in "AB"
    }  # fmt: skip


def test_layers_that_are_trained_whole(loaded, tmp_path, vulkan_backend):
    model, folder = loaded("bert_texts")
    grilly.lora(model, 2, targets=["query"], trained=["classifier"], rng=0)
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name for name in names if "lora" not in name} == {"classifier.weight", "classifier.bias"}
    model.classifier.weight.data = model.classifier.weight.data + 1
    model.save_adapter(tmp_path / "adapter")
    again = models.load(folder, backend=vulkan_backend)
    again.load_adapter(tmp_path / "adapter")
    np.testing.assert_array_equal(again.state_dict()["classifier.weight"], model.state_dict()["classifier.weight"])
    assert {name for name, parameter in again.named_parameters() if parameter.requires_grad} == names
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["modules_to_save"] == ["classifier"]


@pytest.mark.parametrize("options, why", [
    ({"rank": 0}, "rank is 0; expected at least 1"),
    ({"dropout": 1.0}, "dropout is 1.0; expected at least 0 and below 1"),
    ({"targets": ["q_prj"]}, "no linear layer is called 'q_prj'; the model has down_proj, gate_proj, k_proj"),
    ({"trained": ["head"]}, "no layer is called 'head'"),
    ({"trained": ["q_proj"]}, "'q_proj' is computed together with other layers"),
])  # fmt: skip
def test_bad_options(loaded, options, why):
    model, _ = loaded("llama")
    with pytest.raises(ValueError, match=why):
        grilly.lora(model, **options)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any("lora" in name for name in model.state_dict())


def test_bad_models(loaded):
    with pytest.raises(TypeError, match="a Linear has no linear layers from files; expected a model of grilly.models"):
        grilly.lora(grilly.nn.Linear(2, 2))
    model, _ = loaded("llama")
    with pytest.raises(TypeError, match="unexpected keyword argument 'lora_alpha'; here give alpha"):
        grilly.lora(model, lora_alpha=8)
    for call in (model.merge_adapter, model.unmerge_adapter, model.merge_and_unload, model.unload):
        with pytest.raises(ValueError, match="the model has no adapters"):
            call()
    grilly.lora(model, 2)
    with pytest.raises(ValueError, match="the model has adapters already"):
        grilly.lora(model, 2)
    model.unload()
    grilly.lora(model, 2)


@pytest.fixture
def written(loaded, tmp_path):
    model, _ = loaded("llama")
    grilly.lora(model, 2, targets=["q_proj"], rng=0)
    model.save_adapter(tmp_path / "adapter")
    model.unload()
    return model, tmp_path / "adapter"


@pytest.mark.parametrize("fields, why", [
    ({"peft_type": "IA3"}, "peft_type is 'IA3'; expected 'LORA'"), ({"use_dora": True}, "use_dora is True"),
    ({"bias": "all"}, "bias is 'all'; expected 'none'"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
])  # fmt: skip
def test_adapters_that_are_not_computed(written, fields, why):
    model, folder = written
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    with pytest.raises(grilly.ModelError, match=why):
        model.load_adapter(folder)


def test_damaged_adapters(written):
    from model_folders import write_safetensors

    model, folder = written
    file, zeros = folder / "adapter_model.safetensors", np.zeros((2, 3), np.float32)
    path = "base_model.model.model.layers.0.self_attn.q_proj"
    for tensors, why in (
        ({f"{path}.lora_A.weight": zeros}, "the other one of lora_A and lora_B is missing"),
        ({f"{path}.lora_A.weight": zeros, f"{path}.lora_B.weight": zeros}, r"lora_A is F32 \[2, 3\] and lora_B F32"),
        ({f"{path}x.lora_A.weight": zeros}, "the model has no linear layer model.layers.0.self_attn.q_projx"),
        ({"base_model.model.spin": zeros}, "base_model.model.spin: the model has no such parameter"),
        ({}, "it has no tensors of LoRA"),
    ):
        write_safetensors(file, tensors)
        with pytest.raises(grilly.ModelError, match=why):
            model.load_adapter(folder)
        assert not any("lora" in name for name in model.state_dict())
    file.unlink()
    with pytest.raises(grilly.ModelError, match="neither adapter_model.safetensors nor"):
        model.load_adapter(folder)
