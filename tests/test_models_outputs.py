"""What models give: names, places, and a mapping whose fields are computed when they are asked for."""

import copy
import pickle
from collections.abc import Mapping

import numpy as np
import pytest

import goldens
from grilly import models
from model_folders import write_folder

CASES = goldens.cases("models")
IDS = CASES["llama"].input_ids


@pytest.fixture(scope="module")
def model(tmp_path_factory, vulkan_backend):
    folder = write_folder(tmp_path_factory.mktemp("llama"), CASES["llama"].arguments)
    return models.load(folder, backend=vulkan_backend)


def test_an_output_is_a_mapping(model, monkeypatch):
    heads, real = [], type(model).head
    monkeypatch.setattr(type(model), "head", lambda self, x: heads.append(1) or real(self, x))
    out = model(IDS)
    assert isinstance(out, Mapping) and len(out) == 2 and out
    assert list(out) == list(out.keys()) == ["logits", "last_hidden_state"] and "logits" in out and "loss" not in out
    assert out.get("loss") is None and out == out and out != model(IDS) and hash(out) == hash(out)
    assert repr(out) == "Output(logits, last_hidden_state)"
    np.testing.assert_array_equal(out[1], out.last_hidden_state)
    assert not heads, "logits are computed when they are asked for"
    assert out[0] is out["logits"] is out.logits is out[np.int64(-2)] and out[0].shape == (*IDS.shape, 61)
    whole = dict(out)
    assert list(whole) == list(out) and all(whole[name] is value for name, value in out.items())
    assert [value is out[name] for name, value in zip(out, out.values(), strict=True)] == [True, True]
    assert dict(**out).keys() == whole.keys() and heads == [1]


def test_fields_that_an_output_lacks(model):
    out = model(IDS)
    with pytest.raises(KeyError, match="no 'pooler_output'; it has logits, last_hidden_state"):
        out["pooler_output"]
    with pytest.raises(AttributeError, match="no pooler_output; it has logits, last_hidden_state"):
        assert out.pooler_output
    for place in (2, -3):
        with pytest.raises(IndexError, match=f"no field {place}; it has 2: logits, last_hidden_state"):
            out[place]
    for key in (slice(2), None, 0.0, ("logits",)):
        with pytest.raises(TypeError, match="expected the name of a field or one's place, of logits, last_hidden"):
            out[key]


@pytest.mark.parametrize("name, first", [
    ("bert", "last_hidden_state"), ("bert_masked_lm", "logits"), ("bert_pretraining", "prediction_logits"),
    ("bert_answers", "start_logits"), ("bert_tokens", "logits"), ("bert_texts", "logits"), ("roberta_texts", "logits"),
    ("distilbert_texts", "logits"), ("gpt2", "logits"), ("t5", "logits"), ("t5_encoder", "last_hidden_state"),
    ("whisper", "logits"), ("vit", "logits"), ("vit_pooled", "last_hidden_state"), ("clip", "logits_per_image"),
])  # fmt: skip
def test_the_first_field_is_that_of_transformers(tmp_path, vulkan_backend, name, first):
    case = CASES[name]
    inputs = ("input_ids", "pixel_values", "input_features", "decoder_input_ids")
    given = {key: getattr(case, key) for key in inputs if getattr(case, key) is not None}
    out = models.load(write_folder(tmp_path / name, case.arguments), backend=vulkan_backend)(**given)
    assert next(iter(out)) == first
    assert out[0] is out[first] and isinstance(out[0], np.ndarray)


def test_an_output_can_be_copied(model):
    out = model(IDS)
    logits = out.logits
    for copied in (copy.copy(out), copy.deepcopy(out), pickle.loads(pickle.dumps(model(IDS)))):
        np.testing.assert_array_equal(copied.logits, logits)
        assert list(copied) == list(out)
