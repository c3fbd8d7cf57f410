"""Models from folders against transformers: tests/golden/models.npz has what it computed for the same weights."""

import copy
import json
import pickle

import numpy as np
import pytest

import goldens
import grilly
from grilly import functional as F
from grilly import models
from model_folders import drawn, write_folder, write_safetensors

CASES = goldens.cases("models")
MASKS = {
    "left": np.array([[1] * 9, [0] * 4 + [1] * 5, [0] * 7 + [1] * 2]),
    "right": np.array([[1] * 9, [1] * 5 + [0] * 4, [1] * 2 + [0] * 7]),
}
TEXTS = [name for name, case in CASES.items() if case.tokens is not None and case.logits_left is not None]
ANSWERS = [name for name, case in CASES.items() if case.decoder_input_ids is not None]
SIDES = [(name, side) for name in TEXTS for side in MASKS if getattr(CASES[name], f"logits_{side}") is not None]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory, vulkan_backend):
    """Models by the names of their cases; each is loaded once."""
    found = {}

    def load(name):
        if name not in found:
            folder = write_folder(tmp_path_factory.mktemp(name), CASES[name].arguments)
            found[name] = models.load(folder, backend=vulkan_backend)
        return found[name]

    return load


def agree(found, wanted, mask=None):
    """Within 1e-4 of the largest number, where the mask has tokens."""
    assert found.shape == wanted.shape and found.dtype == np.float32
    kept = slice(None) if mask is None else mask != 0
    assert np.abs(found[kept] - wanted[kept]).max() <= 1e-4 * np.abs(wanted[kept]).max()


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "mpnet", "nomic_bert"])
def test_encoders(loaded, name):
    case = CASES[name]
    mask = MASKS["right"] if case.attention_mask is None else case.attention_mask
    out = loaded(name)(input_ids=case.input_ids, attention_mask=mask, token_type_ids=case.token_type_ids)
    agree(out.last_hidden_state, case.last_hidden_state, mask)
    if case.pooler_output is not None:
        agree(out.pooler_output, case.pooler_output)


def test_masked_language_model(loaded):
    case = CASES["bert_masked_lm"]
    out = loaded("bert_masked_lm")(input_ids=case.input_ids, attention_mask=MASKS["left"])
    agree(out.logits, case.logits_left, MASKS["left"])


@pytest.mark.parametrize("name", [
    "bert_texts", "bert_tokens", "roberta_masked_lm", "roberta_texts", "roberta_tokens", "distilbert_masked_lm",
    "distilbert_texts", "distilbert_tokens",
])  # fmt: skip
def test_heads_of_encoders(loaded, name):
    case = CASES[name]
    out = loaded(name)(input_ids=case.input_ids, attention_mask=MASKS["right"])
    agree(out.logits, case.logits, None if name.endswith("texts") else MASKS["right"])


@pytest.mark.parametrize("name", [
    "bert_pretraining", "bert_answers", "roberta_answers", "distilbert_answers", "t5_encoder",
])  # fmt: skip
def test_what_else_encoders_give(loaded, name):
    case = CASES[name]
    out = loaded(name)(input_ids=case.input_ids, attention_mask=MASKS["right"])
    wanted = {key: value for key in out if (value := getattr(case, key)) is not None}
    assert set(out) - set(wanted) <= {"last_hidden_state"} and wanted
    for key, value in wanted.items():
        agree(out[key], value, None if key == "seq_relationship_logits" else MASKS["right"])


@pytest.mark.parametrize("name, side", SIDES)
def test_logits(loaded, name, side):
    case = CASES[name]
    out = loaded(name)(input_ids=case.input_ids, attention_mask=MASKS[side])
    agree(out.logits, getattr(case, f"logits_{side}"), MASKS[side])


@pytest.mark.parametrize("name", TEXTS)
def test_greedy_tokens(loaded, name):
    case = CASES[name]
    out = loaded(name).generate(case.input_ids, MASKS["left"], max_new_tokens=64, pad_token_id=0)
    np.testing.assert_array_equal(out[:, :9], case.input_ids)
    np.testing.assert_array_equal(out[:, 9:], case.tokens)


@pytest.mark.parametrize("name, trained", [("dynamic", 96), ("longrope", 80)])
def test_angles_that_change_with_the_length_end_where_they_would(loaded, name, trained):
    model, ids = loaded(name), np.tile(CASES[name].input_ids[:1], 11)
    assert model(ids[:, :trained]).logits.shape == (1, trained, 61)
    with pytest.raises(ValueError, match=f"{trained + 1} tokens are more than the {trained} positions"):
        model(ids[:, : trained + 1])
    with pytest.raises(ValueError, match=f"{trained + 1} tokens are more than the model's {trained} positions"):
        model.generate(ids[:, : trained - 3], max_new_tokens=5)  # nothing reads the last


def read_by(case):
    """What a golden case's encoder is given."""
    names = ("input_ids", "attention_mask", "input_features")
    return {name: getattr(case, name) for name in names if getattr(case, name) is not None}


@pytest.mark.parametrize("name", ANSWERS)
def test_logits_of_answers(loaded, name):
    case = CASES[name]
    agree(loaded(name)(**read_by(case), decoder_input_ids=case.decoder_input_ids).logits, case.logits)


@pytest.mark.parametrize("name", ANSWERS)
def test_greedy_answers(loaded, name):
    case = CASES[name]
    begun = case.tokens[:, :2] if name == "whisper" else None
    out = loaded(name).generate(
        *read_by(case).values(), max_new_tokens=64, pad_token_id=0, decoder_input_ids=begun
    )
    np.testing.assert_array_equal(out, case.tokens)


def test_pictures(loaded):
    case = CASES["vit"]
    agree(loaded("vit")(pixel_values=case.pixel_values).logits, case.logits)
    case = CASES["vit_pooled"]
    out = loaded("vit_pooled")(pixel_values=case.pixel_values)
    agree(out.last_hidden_state, case.last_hidden_state)
    agree(out.pooler_output, case.pooler_output)


@pytest.mark.parametrize("name", ["clip", "clip_old"])
def test_texts_and_pictures(loaded, name):
    case, model = CASES[name], loaded(name)
    out = model(input_ids=case.input_ids, pixel_values=case.pixel_values, attention_mask=case.attention_mask)
    for part in ("text_embeds", "image_embeds", "logits_per_image"):
        agree(out[part], getattr(case, part))
    alone = model(pixel_values=case.pixel_values)
    np.testing.assert_array_equal(alone.image_embeds, out.image_embeds)
    assert "text_embeds" not in alone


@pytest.mark.parametrize("name", ["clip", "clip_old"])
def test_parts_of_clip(vulkan_backend, tmp_path, name):
    """Files of one encoder alone, with the prefix of the older ones and without, give what the whole model gives."""
    case = CASES[name]
    whole = models.load(write_folder(tmp_path / "whole", case.arguments), backend=vulkan_backend)
    out, config = whole(case.input_ids, case.pixel_values), case.arguments["config"]
    tensors = drawn(case.arguments["tensors"], case.arguments["seed"])
    for part, prefix, projection, given, features in (
        ("text", "text_model.", "text_projection.", case.input_ids, whole.get_text_features),
        ("vision", "vision_model.", "visual_projection.", case.pixel_values, whole.get_image_features),
    ):
        (tmp_path / part).mkdir()
        own = {key: array for key, array in tensors.items() if key.startswith(prefix)}
        states, found = out[f"{part}_last_hidden_state"], features(given)
        embeds = out["text_embeds" if part == "text" else "image_embeds"]
        np.testing.assert_array_equal(found.last_hidden_state, states)
        length = np.linalg.norm(found.pooler_output, axis=1, keepdims=True)
        assert np.abs(length - 1).max() > 0.01
        np.testing.assert_allclose(found.pooler_output / length, embeds, atol=1e-6)
        for projected in (False, True):
            architecture = f"CLIP{part.title()}Model" + ("WithProjection" if projected else "")
            fields = {**config[f"{part}_config"], "model_type": f"clip_{part}_model", "architectures": [architecture]}
            fields["projection_dim"] = config["projection_dim"]
            (tmp_path / part / "config.json").write_text(json.dumps(fields))
            extra = {key: array for key, array in tensors.items() if projected and key.startswith(projection)}
            for cut in ("", prefix):
                kept = {key.removeprefix(cut): array for key, array in own.items()}
                write_safetensors(tmp_path / part / "model.safetensors", kept | extra)
                model = models.load(tmp_path / part, backend=vulkan_backend)
                again = model(given)
                np.testing.assert_array_equal(again.last_hidden_state, states)
                if projected:
                    embedded = again["text_embeds" if part == "text" else "image_embeds"]
                    np.testing.assert_allclose(embedded, found.pooler_output, atol=1e-6)
                else:
                    assert again.pooler_output.shape == (len(given), model.encoder.width)


@pytest.mark.parametrize("name", ["vit", "clip"])
def test_pictures_become_tokens_in_three_dispatches(loaded, vulkan_backend, name):
    """Windows as a matrix, their product, the first token with the places: none for a picture or a row of one."""
    model = loaded(name)
    part = model.picture if name == "clip" else model
    pixels = np.concatenate([CASES[name].pixel_values] * 3)
    first = part.first.data.reshape(-1)
    graph = vulkan_backend.capture(lambda x: part.patches(x, first, part.places.data), pixels)
    assert graph.dispatches == 3
    alone = part.patches(vulkan_backend.tensor(pixels[:1]), first, part.places.data).numpy()
    np.testing.assert_allclose(graph(pixels).numpy()[:1], alone, rtol=1e-5, atol=1e-5)


HALVES = [name for name, case in CASES.items() if case.float16_error is not None]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", HALVES)
def test_sixteen_bits(vulkan_backend, tmp_path, name, dtype):
    """No further from float32 than twice what transformers is in the same type."""
    case = CASES[name]
    model = models.load(write_folder(tmp_path / name, case.arguments), dtype, vulkan_backend)
    inputs = {"input_ids", "token_type_ids", "attention_mask", "pixel_values", "input_features", "decoder_input_ids"}
    sent = {key: getattr(case, key) for key in inputs if getattr(case, key) is not None}
    masked = case.attention_mask is None and case.last_hidden_state is not None
    side = "right" if masked else "left" if case.logits_left is not None else None
    if side:
        sent["attention_mask"] = MASKS[side]
    out = model(**sent)
    wanted = next(a for a in (case.logits_left, case.logits, case.last_hidden_state) if a is not None)
    found = out.last_hidden_state if case.last_hidden_state is not None else out.logits
    assert found.dtype.name == dtype
    kept = MASKS[side] != 0 if side else ...
    error = np.abs(found.astype(np.float32)[kept] - wanted[kept]).max()
    assert 0 < error <= 2 * getattr(case, f"{dtype}_error")


@pytest.mark.parametrize("name", ["bert_masked_lm", "clip", "mpnet", "qwen3", "t5_gated", "whisper"])
def test_every_product_is_of_the_precision_asked_for(loaded, vulkan_backend, tmp_path, monkeypatch, name):
    case, found = CASES[name], []
    model = models.load(write_folder(tmp_path / name, case.arguments), backend=vulkan_backend, precision="high")
    sent = {key: getattr(case, key) for key in ("input_ids", "pixel_values", "input_features", "decoder_input_ids")
            if getattr(case, key) is not None}  # fmt: skip
    for function in (F.linear, F.flash_attention2, F.flash_attention3, F.flash_attention_with_kvcache,
                     F.conv1d, F.conv2d):  # fmt: skip

        def watched(*arguments, function=function, **options):
            found.append((function.__name__, options.get("precision")))
            return function(*arguments, **options)

        monkeypatch.setattr(F, function.__name__, watched)
    out = model(**sent)
    part = {"clip": "logits_per_image", "mpnet": "pooler_output"}.get(name, "logits")
    result = out[part]
    if hasattr(model, "generate"):
        model.generate(case.input_ids if case.input_features is None else case.input_features, max_new_tokens=2)
    assert found and all(precision == "high" for _, precision in found), found
    monkeypatch.undo()
    agree(result, loaded(name)(**sent)[part])


def test_names_of_older_files(vulkan_backend, tmp_path):
    """BERT as it was first saved: below a prefix, gamma and beta for weight and bias, a buffer, no pooler."""
    case = CASES["bert"]
    folder = write_folder(tmp_path / "bert", case.arguments)
    weights = drawn(case.arguments["tensors"], case.arguments["seed"])
    old = {"bert.embeddings.position_ids": np.zeros((1, 96), np.float32)}
    for name, array in weights.items():
        if not name.startswith("pooler"):
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            old[f"bert.{name}"] = array
    write_safetensors(folder / "model.safetensors", old)
    config = {**case.arguments["config"], "position_embedding_type": "absolute", "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    out = models.load(folder, backend=vulkan_backend)(case.input_ids, MASKS["right"], case.token_type_ids)
    agree(out.last_hidden_state, case.last_hidden_state, MASKS["right"])
    with pytest.raises(AttributeError, match="no pooler_output; it has last_hidden_state"):
        out.pooler_output  # noqa: B018


def test_fields_of_older_files(vulkan_backend, tmp_path):
    """rope_theta and rope_scaling beside each other, no head_dim, no layer_types, as transformers 4 wrote them."""
    case = CASES["qwen2"]
    config = dict(case.arguments["config"])
    rope = config.pop("rope_parameters")
    del config["layer_types"]
    config |= {"rope_theta": rope["rope_theta"], "rope_scaling": {
        "type": "yarn", "factor": rope["factor"],
        "original_max_position_embeddings": rope["original_max_position_embeddings"],
    }}  # fmt: skip
    folder = write_folder(tmp_path / "qwen2", {**case.arguments, "config": config})
    out = models.load(folder, backend=vulkan_backend)(case.input_ids, MASKS["left"])
    agree(out.logits, case.logits_left, MASKS["left"])


def test_gemma_3_in_the_words_of_older_files(vulkan_backend, tmp_path):
    case = CASES["gemma3"]
    config = dict(case.arguments["config"])
    del config["layer_types"], config["rope_parameters"]
    config |= {"rope_theta": 5000.0, "rope_local_base_freq": 100.0, "sliding_window_pattern": 2,
               "rope_scaling": {"rope_type": "linear", "factor": 4.0}}  # fmt: skip
    folder = write_folder(tmp_path / "gemma3", {**case.arguments, "config": config})
    out = models.load(folder, backend=vulkan_backend)(case.input_ids, MASKS["left"])
    agree(out.logits, case.logits_left, MASKS["left"])


@pytest.mark.parametrize("name, architecture, prefix", [
    ("gpt2", "GPT2Model", "transformer."), ("llama", "LlamaModel", "model."), ("gemma", "GemmaModel", "model."),
    ("gemma2", "Gemma2Model", "model."), ("gemma3", "Gemma3TextModel", "model."),
    ("t5_gated", "T5Model", ""), ("whisper", "WhisperModel", "model."),
])  # fmt: skip
def test_models_without_a_head(loaded, vulkan_backend, tmp_path, name, architecture, prefix):
    """The states are those of the model with a head, of which the names lose their prefix."""
    case = CASES[name]
    folder = write_folder(tmp_path / name, case.arguments)
    weights = drawn(case.arguments["tensors"], case.arguments["seed"], case.arguments["embeddings"])
    kept = {key.removeprefix(prefix): array for key, array in weights.items() if not key.startswith("lm_head")}
    write_safetensors(folder / "model.safetensors", kept)
    config = {**case.arguments["config"], "architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(config))
    model = models.load(folder, backend=vulkan_backend)
    read = "input_ids" if case.input_features is None else "input_features"
    sent = {read: getattr(case, read)}
    if case.decoder_input_ids is not None:
        sent["decoder_input_ids"] = case.decoder_input_ids
    out = model(**sent)
    np.testing.assert_allclose(out.last_hidden_state, loaded(name)(**sent).last_hidden_state, rtol=1e-5, atol=1e-5)
    assert "logits" not in out
    with pytest.raises(ValueError, match="no head that gives logits"):
        model.generate(sent[read])


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "clip"])
def test_models_are_copied_and_pickled(loaded, vulkan_backend, name):
    """Also after captures; copies stay on the backend, and what was pickled goes to the default one."""
    case, model = CASES[name], loaded(name)
    given = {"input_ids": case.input_ids}
    if name == "t5":
        given["decoder_input_ids"] = case.input_ids
    if name == "clip":
        given["pixel_values"] = case.pixel_values
    for _ in range(3):
        out = model(**given)
    former = grilly.use(vulkan_backend)
    try:
        for way in (copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))):
            twin = way(model)
            assert twin.backend is vulkan_backend and type(twin) is type(model)
            found = twin(**given)
            for what in out:
                np.testing.assert_allclose(found[what], out[what], rtol=1e-5, atol=1e-5, err_msg=what)
    finally:
        grilly.use(former)
    assert not any(parameter is other for parameter, other in zip(twin.parameters(), model.parameters(), strict=True))
