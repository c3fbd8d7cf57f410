"""Models while they are trained: what is dropped, rows of several texts, and weights written again."""

import json

import numpy as np
import pytest

import goldens
import grilly
from grilly import functional as F
from grilly import models, nn
from model_folders import change, write_folder

CASES = goldens.cases("models")
#: Each with the fields of its shares.
DROPOUTS = {
    "gpt2": ["attn_pdrop", "embd_pdrop", "resid_pdrop"], "llama": ["attention_dropout"],
    "gemma2": ["attention_dropout"], "phi3": ["attention_dropout", "resid_pdrop"],
    "bert_texts": ["attention_probs_dropout_prob", "hidden_dropout_prob", "classifier_dropout"],
    "roberta_tokens": ["attention_probs_dropout_prob", "hidden_dropout_prob", "classifier_dropout"],
    "bert_answers": ["attention_probs_dropout_prob", "hidden_dropout_prob"],
    "distilbert_texts": ["attention_dropout", "dropout", "seq_classif_dropout"],
    "distilbert_answers": ["attention_dropout", "dropout", "qa_dropout"],
    "mpnet": ["attention_probs_dropout_prob", "hidden_dropout_prob"], "t5": ["dropout_rate"],
    "t5_gated": ["dropout_rate"], "vit": ["attention_probs_dropout_prob", "hidden_dropout_prob"],
    "whisper": ["attention_dropout", "activation_dropout", "dropout"],
}  # fmt: skip


def inputs_of(name):
    names = ("input_ids", "attention_mask", "decoder_input_ids", "pixel_values", "input_features")
    return {key: getattr(CASES[name], key) for key in names if getattr(CASES[name], key) is not None}


@pytest.mark.parametrize("name, field", [(name, field) for name, fields in DROPOUTS.items() for field in fields])
def test_what_is_dropped_in_training(vulkan_backend, tmp_path, name, field):
    """Each share by itself: nothing in eval(), something in train(), the same for the same seed."""
    folder = write_folder(tmp_path, CASES[name].arguments)
    change(folder, **{**dict.fromkeys(DROPOUTS[name], 0.0), field: 0.5})
    model = models.load(folder, backend=vulkan_backend)

    def call():
        grilly.manual_seed(5)
        return model(**inputs_of(name))[0]

    plain, dropped, again = call(), (model.train(), call())[1], call()
    assert model.training and all(module.training for module in model.modules())
    np.testing.assert_array_equal(dropped, again)
    assert np.abs(dropped - plain).max() > 1e-3 * np.abs(plain).max()
    np.testing.assert_array_equal((model.eval(), call())[1], plain)


@pytest.mark.parametrize("name", DROPOUTS)
def test_nothing_is_dropped_at_shares_of_zero(vulkan_backend, tmp_path, name):
    folder = write_folder(tmp_path, CASES[name].arguments)
    change(folder, **dict.fromkeys(DROPOUTS[name], 0.0))
    model = models.load(folder, backend=vulkan_backend)
    plain = model(**inputs_of(name))[0]
    np.testing.assert_array_equal(model.train()(**inputs_of(name))[0], plain)


def test_a_share_that_is_none(vulkan_backend, tmp_path):
    folder = write_folder(tmp_path, CASES["gpt2"].arguments)
    change(folder, resid_pdrop=1.0)
    with pytest.raises(grilly.ModelError, match="resid_pdrop is 1.0; expected a number from 0 on, below 1"):
        models.load(folder, backend=vulkan_backend)


def test_a_model_in_training_keeps_nothing(vulkan_backend, tmp_path):
    """Its gradients are taken by functions; it generates, and gives arrays for arrays. A module around keeps them."""
    folder = write_folder(tmp_path, CASES["gpt2"].arguments)
    change(folder, **dict.fromkeys(DROPOUTS["gpt2"], 0.0))
    model = models.load(folder, backend=vulkan_backend)
    inputs = inputs_of("gpt2")
    tokens = model.generate(inputs["input_ids"], max_new_tokens=3)

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(ids)[0]

    around = Around().train()
    np.testing.assert_array_equal(model.generate(inputs["input_ids"], max_new_tokens=3), tokens)
    out = model(inputs["input_ids"])[0]
    assert isinstance(out, np.ndarray)
    with pytest.raises(RuntimeError, match="a model keeps nothing; take gradients with grilly.value_and_grad"):
        model.backward(out)
    y = around(inputs["input_ids"])
    assert isinstance(y, np.ndarray) and around.backward(np.ones_like(y)) is None
    wanted = grilly.grad(lambda m: grilly.sum(m(inputs["input_ids"])[0]))(model)
    assert any(one.numpy().any() for one in wanted.values())
    for name, parameter in model.named_parameters():
        grad = 0 if parameter.grad is None else parameter.grad  # where nothing depends on it
        np.testing.assert_allclose(grad, wanted[name].numpy(), rtol=1e-4, atol=1e-5)


# -- rows of several texts --------------------------------------------------------------------------------------------


def loss_of(model, batch):
    inputs = {name: array for name, array in batch.items() if name != "labels"}
    logits = model(**inputs).logits
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch["labels"].reshape(-1), reduction="sum")


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "mistral"])
def test_texts_in_one_row_are_as_alone(vulkan_backend, tmp_path, name):
    model = models.load(write_folder(tmp_path, CASES[name].arguments), backend=vulkan_backend)
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, model.rows, count) for count in (9, 5, 7, 2)]
    rows = grilly.data.pack(texts, 13)
    assert len(rows) == 2
    batch = {key: getattr(rows, key) for key in ("input_ids", "labels", "position_ids", "segment_ids")}
    loss, gradients = grilly.value_and_grad(loss_of)(model, batch)
    alone = [grilly.value_and_grad(loss_of)(model, {"input_ids": text[None, :-1], "labels": text[None, 1:]})
             for text in texts]  # fmt: skip
    np.testing.assert_allclose(float(loss), sum(float(value) for value, _ in alone), rtol=1e-5)
    for key, gradient in gradients.items():
        wanted = sum(one[key].numpy() for _, one in alone)
        np.testing.assert_allclose(gradient.numpy(), wanted, atol=3e-5 * max(np.abs(wanted).max(), 1e-2), err_msg=key)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert_texts", "t5", "vit", "clip", "whisper"])
def test_layers_that_are_computed_again(vulkan_backend, tmp_path, name):
    """The same gradients, of parameters by themselves and of such as an optimizer lays side by side."""
    model = models.load(write_folder(tmp_path, CASES[name].arguments), backend=vulkan_backend)

    def loss(model, inputs):
        out = model(**inputs)[0]
        return grilly.sum(out * out) / out.size

    wanted = grilly.value_and_grad(loss)(model, inputs_of(name))[1]
    names = [key for key, parameter in model.named_parameters() if parameter.requires_grad]
    assert model.checkpoint_layers() is model
    found = [grilly.value_and_grad(loss)(model, inputs_of(name))[1]]
    grilly.optim.SGD(0.0).init(model, names)
    found.append(grilly.value_and_grad(loss)(model, inputs_of(name))[1])
    for gradients in found:
        assert gradients.keys() == wanted.keys()
        for key, gradient in wanted.items():
            gradient = gradient.numpy()
            np.testing.assert_allclose(gradients[key].numpy(), gradient, atol=1e-5 * np.abs(gradient).max() + 1e-8)


def test_rows_of_several_texts_are_replayed(vulkan_backend, tmp_path):
    """The third call of a kind is captured: segments and positions are arguments of the graph."""
    model = models.load(write_folder(tmp_path, CASES["llama"].arguments), backend=vulkan_backend)
    rng = np.random.default_rng(0)
    for _ in range(5):
        first, second = rng.integers(0, model.rows, (2, 2, 4))
        lengths = [[1] * 4 + [2] * 4] * 2
        both = model(np.concatenate([first, second], axis=1), position_ids=np.tile(np.arange(4), (2, 2)),
                     segment_ids=np.array(lengths)).logits  # fmt: skip
        np.testing.assert_allclose(both[:, :4], model(first).logits, atol=1e-4)
        np.testing.assert_allclose(both[:, 4:], model(second).logits, atol=1e-4)
    assert len(model.graphs) == 2


def test_segments_beside_a_cache(vulkan_backend, tmp_path):
    model = models.load(write_folder(tmp_path, CASES["llama"].arguments), backend=vulkan_backend)
    ids = np.zeros((1, 2), np.int64)
    with pytest.raises(ValueError, match="a row is one text"):
        model(ids, past_key_values=model.make_cache(1, 4), segment_ids=np.ones((1, 2), np.int32))
    with pytest.raises(ValueError, match=r"segment_ids has shape \(1, 3\)"):
        model(ids, segment_ids=np.ones((1, 3), np.int32))


# -- what is written --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "phi3", "gpt2", "gpt2_untied", "bert_texts", "t5_gated", "vit", "clip",
                                  "whisper", "mpnet"])  # fmt: skip
def test_models_are_saved_as_their_folders(vulkan_backend, tmp_path, name):
    folder = write_folder(tmp_path / "one", CASES[name].arguments)
    model = models.load(folder, backend=vulkan_backend)
    model.save(tmp_path / "other")
    first, second = (models.load(tmp_path / part, backend=vulkan_backend).state_dict() for part in ("one", "other"))
    assert first.keys() == second.keys()
    for key, array in first.items():
        np.testing.assert_array_equal(second[key], array)
    for parameter in model.parameters():
        parameter.data = parameter.data * 2
    model.save(tmp_path / "other")
    for key, array in models.load(tmp_path / "other", backend=vulkan_backend).state_dict().items():
        np.testing.assert_array_equal(array, 2 * first[key])


def test_the_dtype_is_saved(vulkan_backend, tmp_path):
    folder = write_folder(tmp_path / "one", CASES["llama"].arguments)
    (folder / "tokenizer.json").write_text("{}")
    model = models.load(folder, "float16", backend=vulkan_backend)
    model.save(tmp_path / "two")
    assert json.loads((tmp_path / "two" / "config.json").read_text())["dtype"] == "float16"
    assert (tmp_path / "two" / "tokenizer.json").is_file()
    assert models.load(tmp_path / "two", backend=vulkan_backend).dtype == np.float16
    grilly.lora(model, 2)
    with pytest.raises(ValueError, match="is no tensor of the folder; merge_and_unload"):
        model.save(tmp_path / "three")
