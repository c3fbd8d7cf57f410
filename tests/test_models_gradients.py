"""Gradients of models by all of their parameters, against PyTorch's autograd on transformers' models."""

import numpy as np
import pytest

import goldens
import grilly
from grilly import models
from model_folders import write_folder

CASES = goldens.cases("models")
RIGHT = np.array([[1] * 9, [1] * 5 + [0] * 4, [1] * 2 + [0] * 7])
LEFT = RIGHT[:, ::-1].copy()
DECODERS = ["llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gpt2", "gpt2_untied", "longrope",
            "gemma3"]  # fmt: skip
ENCODERS = ["bert", "bert_masked_lm", "bert_texts", "bert_tokens", "bert_pretraining", "bert_answers", "roberta",
            "roberta_texts", "distilbert", "distilbert_masked_lm", "distilbert_texts", "mpnet",
            "nomic_bert"]  # fmt: skip
REST = ["t5", "t5_gated", "t5_encoder", "vit", "vit_pooled", "clip", "whisper"]


@pytest.fixture
def transformers():
    pytest.importorskip("torch")
    found = pytest.importorskip("transformers")
    found.logging.set_verbosity_error()
    found.logging.disable_progress_bar()
    return found


def inputs_of(name, side=RIGHT):
    """What a case's model is called with: padded batches."""
    case = CASES[name]
    if case.pixel_values is None and case.input_features is None and case.attention_mask is None:
        return {"input_ids": case.input_ids, "attention_mask": side}
    names = ("input_ids", "attention_mask", "decoder_input_ids", "pixel_values", "input_features")
    return {key: getattr(case, key) for key in names if getattr(case, key) is not None}


def weights_of(shapes, mask, seed=3):
    """Factors for a loss that depends on all of what a model gives, but on nothing at padding."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes.items():
        factors = rng.normal(size=shape).astype(np.float32)
        if mask is not None and shape[:2] == mask.shape:
            factors *= mask.reshape(mask.shape + (1,) * (len(shape) - 2))
        found[name] = (factors / np.sqrt(factors.size)).astype(np.float32)
    return found


def wanted(transformers, name, folder, inputs, tmp_path, backend):
    """The gradients by torch, as the parameters of a model that is loaded of them, and the loss's factors."""
    import torch

    arguments = CASES[name].arguments["config"]
    kind = getattr(transformers, arguments["architectures"][0])
    model = kind.from_pretrained(folder, attn_implementation="eager").eval()
    out = model(**{key: torch.tensor(array) for key, array in inputs.items()})
    given = {key: out[key] for key in out if isinstance(out[key], torch.Tensor) and out[key].requires_grad}
    given = {key: array for key, array in given.items() if key not in ("loss",)}
    mask = inputs.get("attention_mask")
    factors = weights_of({key: tuple(array.shape) for key, array in given.items()}, mask)
    loss = sum((given[key] * torch.tensor(factors[key])).sum() for key in given)
    loss.backward()
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    model.save_pretrained(tmp_path / "gradients")
    return models.load(tmp_path / "gradients", backend=backend), factors, float(loss.detach())


def agree(name, found, expected, bound=2e-4):
    found, expected = found.numpy(), np.asarray(expected)
    assert found.shape == expected.shape, name
    assert np.isfinite(found).all(), name
    scale = np.abs(expected).max()
    assert np.abs(found - expected).max() <= bound * max(scale, 1e-3), (name, np.abs(found - expected).max(), scale)


def check(transformers, name, tmp_path, backend, side=RIGHT):
    folder = write_folder(tmp_path / "folder", CASES[name].arguments)
    inputs = inputs_of(name, side)
    expected, factors, value = wanted(transformers, name, folder, inputs, tmp_path, backend)
    model = models.load(folder, backend=backend)

    def loss_of(model, inputs):
        out = model(**inputs)
        return sum(grilly.sum(out[key] * model.backend.tensor(factors[key])) for key in factors)

    loss, gradients = grilly.value_and_grad(loss_of)(model, inputs)
    assert abs(float(loss) - value) <= 1e-3 * max(abs(value), 1)
    names = {key: part.numpy() for key, part in expected.named_parameters() if part.requires_grad}
    assert set(gradients) == set(names)
    for key, gradient in gradients.items():
        agree(key, gradient, names[key])
    assert sum(np.abs(gradient).max() > 0 for gradient in names.values()) > 0.9 * len(names)


@pytest.mark.parametrize("name", [*DECODERS, *ENCODERS, *REST])
def test_gradients_by_all_parameters(transformers, vulkan_backend, tmp_path, name):
    check(transformers, name, tmp_path, vulkan_backend)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert_masked_lm"])
def test_padding_on_the_left(transformers, vulkan_backend, tmp_path, name):
    check(transformers, name, tmp_path, vulkan_backend, LEFT)
