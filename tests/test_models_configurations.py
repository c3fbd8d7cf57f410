"""What a model is on paper: what the fields of config.json make of it, without weights and without a device."""

import json

import numpy as np
import pytest

import goldens
from grilly import ModelError, models
from model_folders import change, on_paper, refused, write_folder

CASES = goldens.cases("models")
pytestmark = pytest.mark.usefixtures("no_models_on_devices")


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model", CASES["llama"].arguments)


def test_a_model_type_that_old_files_lack_is_that_of_the_architecture(tmp_path):
    made = write_folder(tmp_path / "model", CASES["mistral"].arguments)
    change(made, model_type=..., sliding_window=...)
    model = on_paper(made)
    assert [layer.attention.window for layer in model.layers] == [4096] * len(model.layers)


def test_rope_scaling_counts_where_rope_parameters_is_there_too(folder):
    change(folder, rope_parameters={"rope_type": "default", "rope_theta": 500.0}, rope_theta=700.0)
    plain = on_paper(folder).rotary.frequencies
    change(folder, rope_scaling={"type": "linear", "factor": 4.0})
    np.testing.assert_allclose(on_paper(folder).rotary.frequencies, 700.0 ** (-np.arange(4) / 4) / 4)
    change(folder, rope_scaling=None)
    np.testing.assert_array_equal(on_paper(folder).rotary.frequencies, plain)


def test_defaults_and_forms_that_transformers_has(tmp_path):
    vit = write_folder(tmp_path / "vit", CASES["vit"].arguments)
    side = json.loads((vit / "config.json").read_text())["image_size"]
    change(vit, image_size=[side, side])
    assert on_paper(vit).patches.side == side
    change(vit, image_size=[side, side + 1])
    with pytest.raises(ModelError, match="image_size is "):
        on_paper(vit)
    gemma = write_folder(tmp_path / "gemma2", CASES["gemma2"].arguments)
    change(gemma, query_pre_attn_scalar=...)
    assert on_paper(gemma).layers[0].attention.scale == 1 / 16


@pytest.mark.parametrize("kind, more", [
    ("yarn", {}), ("llama3", {"low_freq_factor": 1.0, "high_freq_factor": 4.0}),
])  # fmt: skip
def test_a_trained_length_beside_the_rotary_parameters_counts_first(folder, kind, more):
    """As in transformers; and without either the model's positions."""
    scaling = {"rope_type": kind, "factor": 4.0, **more}

    def frequencies(inner, beside):
        given = {**scaling, **({} if inner is None else {"original_max_position_embeddings": inner})}
        change(folder, rope_scaling=given, original_max_position_embeddings=beside)
        return on_paper(folder).rotary.frequencies

    change(folder, max_position_embeddings=256, rope_theta=100.0)
    wanted = frequencies(16, None)
    assert (wanted != frequencies(64, None)).any()
    np.testing.assert_array_equal(frequencies(64, 16), wanted)
    np.testing.assert_array_equal(frequencies(None, 16), wanted)
    np.testing.assert_array_equal(frequencies(None, None), frequencies(256, None))


@pytest.mark.parametrize("name, absent", [("qwen3", 128), ("gemma", 256), ("gemma2", 256), ("llama", 8)])
def test_elements_of_a_head_where_the_file_does_not_say(tmp_path, name, absent):
    made = write_folder(tmp_path / name, CASES[name].arguments)
    for value, expected in ((..., absent), (None, 8)):  # of a width of 32 and 4 heads
        change(made, head_dim=value)
        assert on_paper(made).layers[0].attention.dim == expected


@pytest.mark.parametrize("name", ["mistral", "phi3"])
def test_layers_without_a_window_where_transformers_gives_all_of_them_one(tmp_path, name):
    made = write_folder(tmp_path / name, CASES[name].arguments)
    layers = CASES[name].arguments["config"]["num_hidden_layers"]
    change(made, sliding_window=5, layer_types=["full_attention"] + ["sliding_attention"] * (layers - 1))
    refused(made, "layer_types is ['full_", f"expected {layers} of sliding_attention, or sliding_window null")
    for fields in ({"layer_types": ["sliding_attention"] * layers},
                   {"layer_types": ["full_attention"] * layers, "sliding_window": None}):  # fmt: skip
        change(made, **fields)
        with pytest.raises(AssertionError, match="went on"):
            models.load(made)


def test_the_second_of_two_configurations_of_clip_counts(tmp_path):
    """As in openai/clip-vit-large-patch14, where the two say the same of most."""
    made = write_folder(tmp_path / "clip", CASES["clip"].arguments)
    text = CASES["clip"].arguments["config"]["text_config"]
    change(made, text_config=text | {"hidden_size": 99, "eos_token_id": 2}, text_config_dict=text)
    assert on_paper(made).text.end == text["eos_token_id"]
    with pytest.raises(AssertionError, match="went on"):
        models.load(made)
    change(made, vision_config_dict={"image_size": 12, "patch_size": 4})  # the rest of it has its defaults
    refused(made, "expected [768, 3, 4, 4] of a floating dtype")
    change(made, vision_config_dict={"spin": 1})
    refused(made, "config.json: vision_config_dict: not known: spin")


@pytest.mark.parametrize("name, field, value", [
    ("bert", "pruned_heads", {"0": [1]}), ("clip", "pruned_heads", {"0": [1]}), ("t5", "tie_encoder_decoder", True),
    ("whisper", "num_hidden_layers", 3),
])  # fmt: skip
def test_fields_that_old_versions_of_transformers_follow(tmp_path, name, field, value):
    made = write_folder(tmp_path / name, CASES[name].arguments)
    change(made, **{field: value})
    refused(made, f"config.json: {field} is {value!r}; expected ")
