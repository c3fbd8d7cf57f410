"""Generation and caches of grilly.models, against calls without them."""

import json
import math
import warnings

import numpy as np
import pytest

import goldens
from conftest import open_or_skip
from grilly import CaptureError, Compute, OutOfDeviceMemoryError, Tensor, models
from hostcalls import counted
from model_folders import refused, write_folder

CASES = goldens.cases("models")
IDS = CASES["llama"].input_ids
WEIGHTS = 4 * sum(math.prod(shape) for shape in CASES["llama"].arguments["tensors"].values())  # bytes
CACHE = 4 * 2 * 2 * 3 * 64 * 2 * 8  # of three texts of 64 tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory, vulkan_backend):
    folder = write_folder(tmp_path_factory.mktemp("llama"), CASES["llama"].arguments)
    return models.load(folder, backend=vulkan_backend)


def test_prompts_padded_on_either_side_go_on_alike(model):
    left = np.array([[1] * 9, [0] * 4 + [1] * 5, [0] * 7 + [1] * 2])
    right = left[:, ::-1]
    moved = np.zeros_like(IDS)
    for row in range(3):
        moved[row, right[row] == 1] = IDS[row, left[row] == 1]
    wanted = model.generate(IDS, left, max_new_tokens=6)
    np.testing.assert_array_equal(model.generate(moved, right, max_new_tokens=6)[:, 9:], wanted[:, 9:])
    alone = model.generate(IDS[2:, 7:], max_new_tokens=6)
    np.testing.assert_array_equal(alone[:, 2:], wanted[2:, 9:])


def test_a_graph_and_single_steps_give_the_same(model):
    wanted = model.generate(IDS, max_new_tokens=12)
    np.testing.assert_array_equal(model.generate(IDS, max_new_tokens=12, use_graph=False), wanted)
    np.testing.assert_array_equal(np.stack(list(model.stream(IDS, max_new_tokens=12)), axis=1), wanted[:, 9:])


@pytest.mark.parametrize("how", [{}, {"do_sample": True, "seed": 0}])
def test_the_next_step_is_under_way_when_a_token_is_read(model, monkeypatch, how):
    """And the host's part of a token is one or two hundred Python calls, whatever the size of the model."""
    runtime, order = model.backend.runtime, []
    stream = model.stream(IDS, max_new_tokens=16, **how)
    calls = {name: getattr(runtime, name) for name in ("replay", "collect")}
    for name, call in calls.items():

        def noted(*arguments, call=call, name=name):
            order.append(name)
            return call(*arguments)

        monkeypatch.setattr(runtime, name, noted)
    found = [next(stream) for _ in range(8)]
    monkeypatch.undo()
    assert order == ["replay", "collect"] * 8
    calls = [counted(lambda: found.append(next(stream))).total() for _ in range(4)]
    assert min(calls) <= 250, calls
    np.testing.assert_array_equal(
        np.stack([*found, *stream], axis=1), model.generate(IDS, max_new_tokens=16, **how)[:, 9:]
    )


def test_a_cache_goes_on_where_it_was(model):
    whole = model(IDS).logits
    cache = model.make_cache(3, 16)
    found = [model(IDS[:, start:stop], past_key_values=cache).logits for start, stop in ((0, 4), (4, 5), (5, 9))]
    assert cache.lengths.tolist() == [9, 9, 9]
    np.testing.assert_allclose(np.concatenate(found, axis=1), whole, atol=1e-4 * np.abs(whole).max())
    # samples of their own lengths: the second forgets three tokens and gets them again
    cache.lengths[1] -= 3
    again = model(IDS[:, 6:], past_key_values=cache).logits
    np.testing.assert_allclose(again[1], whole[1, 6:], atol=1e-4 * np.abs(whole).max())
    with pytest.raises(ValueError, match="follow from its lengths"):
        model(IDS, attention_mask=np.ones_like(IDS), past_key_values=cache)
    with pytest.raises(ValueError):
        model(IDS, past_key_values=cache)  # 12 + 9 tokens in a cache for 16


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_captured_call_goes_on_with_its_cache(tmp_path, vulkan_backend, name):
    """Replays find the lengths that the ones before left, and those that are set between them."""
    own = models.load(write_folder(tmp_path / name, CASES[name].arguments), backend=vulkan_backend)
    whole = own(IDS).logits
    cache = own.make_cache(3, 12)
    own(IDS[:, :4], past_key_values=cache)

    def step(ids):
        return own(ids, past_key_values=cache).logits

    graph = vulkan_backend.capture(step, IDS[:, :1].astype(np.int32))
    assert cache.lengths.tolist() == [4, 4, 4], "nothing ran in the capture"
    for place in range(4, 9):
        found = graph(IDS[:, place : place + 1].astype(np.int32)).numpy()
        np.testing.assert_allclose(found[:, 0], whole[:, place], atol=1e-4 * np.abs(whole).max())
    assert cache.lengths.tolist() == [9, 9, 9]
    cache.lengths[:] = [6, 4, 5]  # samples of their own lengths
    found = graph(IDS[[0, 1, 2], [6, 4, 5]].astype(np.int32)[:, None]).numpy()
    np.testing.assert_allclose(found[:, 0], whole[[0, 1, 2], [6, 4, 5]], atol=1e-4 * np.abs(whole).max())
    own(IDS[:, 7:8], past_key_values=cache)  # a call between replays counts too
    assert cache.lengths.tolist() == [8, 6, 7]
    cache.lengths = np.array([12, 3, 3])
    with pytest.raises(ValueError, match="holds 12 tokens and the graph adds 1; there is room for 12"):
        graph(IDS[:, :1].astype(np.int32))
    assert cache.lengths.tolist() == [12, 3, 3]
    with pytest.raises(CaptureError, match="Cache.lengths"):
        vulkan_backend.capture(lambda ids: (step(ids), cache.lengths), IDS[:, :1].astype(np.int32))
    if name == "gpt2":  # which has 80 positions
        cache = own.make_cache(3, 81)
        with pytest.raises(ValueError, match="81 tokens are more than the 80 positions"):
            vulkan_backend.capture(step, IDS[:, :1].astype(np.int32))


def test_texts_end(model):
    free = model.generate(IDS, max_new_tokens=8)[:, 9:]
    end = int(free[0, 2])
    found = model.generate(IDS, max_new_tokens=8, eos_token_id=[end, 999], pad_token_id=60)[:, 9:]
    for row, tokens in zip(found, free, strict=True):
        stop = list(tokens).index(end) + 1 if end in tokens else len(tokens)
        stop = min(stop, len(row))
        np.testing.assert_array_equal(row[:stop], tokens[:stop])
        assert (row[stop:] == 60).all()
    first = model.generate(IDS[:1], max_new_tokens=8, eos_token_id=end)
    assert first.shape == (1, 9 + list(free[0]).index(end) + 1), "nothing comes after the only text has ended"


def test_suppressed_tokens(model, monkeypatch):
    free = model.generate(IDS[:1], max_new_tokens=12)[0, 9:]
    first = next(token for token in free if token != free[0])
    monkeypatch.setattr(model, "suppress_tokens", [int(first), 1000])
    held = model.generate(IDS[:1], max_new_tokens=12)[0, 9:]
    place = list(free).index(first)
    assert first not in held and list(held[:place]) == list(free[:place])
    monkeypatch.setattr(model, "suppress_tokens", None)
    monkeypatch.setattr(model, "begin_suppress_tokens", [int(free[0])])
    begun = model.generate(IDS[:1], max_new_tokens=12)[0, 9:]
    assert begun[0] != free[0] and model.generate(IDS[:1], max_new_tokens=1, do_sample=True, seed=0)[0, 9] != free[0]


def test_repetition_penalty(model):
    free = model.generate(IDS[:1], max_new_tokens=16)[0, 9:]
    held = model.generate(IDS[:1], max_new_tokens=16, repetition_penalty=1e6)[0]
    assert len(set(free)) < 16, "the case shows nothing otherwise"
    assert len(set(held[9:])) == 16 and not set(held[9:]) & set(held[:9])


def test_what_the_folder_says(tmp_path, vulkan_backend):
    folder = write_folder(tmp_path / "llama", CASES["llama"].arguments)
    plain = models.load(folder, backend=vulkan_backend)
    assert (plain.repetition_penalty, plain.not_applied) == (1.0, {})
    said = {"repetition_penalty": 1.5, "num_beams": 4, "min_length": 0, "guidance_scale": None, "pad_token_id": -1,
            "no_repeat_ngram_size": 3, "temperature": 0.6, "eos_token_id": [-1], "forced_eos_token_id": 0}  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(said))
    model = models.load(folder, backend=vulkan_backend)
    assert model.pad_token_id is None and model.eos_token_id is None, "a negative token stands for none"
    assert model.not_applied == {"num_beams": 4, "no_repeat_ngram_size": 3, "forced_eos_token_id": 0}
    with pytest.warns(UserWarning, match="no_repeat_ngram_size=3, num_beams=4, which is not applied") as warned:
        found = model.generate(IDS[:1], max_new_tokens=16)
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match="Llama.*.generate: the folder asks for .*num_beams=4") as warned:
        next(model.stream(IDS[:1], max_new_tokens=16))
    assert warned[0].filename == __file__
    model.not_applied.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(model.generate(IDS[:1], max_new_tokens=16), found)
    kwargs = {"max_new_tokens": 16, "eos_token_id": [999]}
    np.testing.assert_array_equal(plain.generate(IDS[:1], repetition_penalty=1.5, **kwargs), found)
    np.testing.assert_array_equal(model.generate(IDS[:1], repetition_penalty=1.0, **kwargs),
                                  plain.generate(IDS[:1], **kwargs))  # fmt: skip


@pytest.mark.parametrize("said, count", [
    ({}, 20), ({"max_new_tokens": 5}, 5), ({"max_length": 12}, 3), ({"max_new_tokens": 5, "max_length": 12}, 5),
])  # fmt: skip
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_how_many_tokens_the_folder_asks_for(tmp_path, vulkan_backend, name, said, count):
    """As transformers: max_length counts what is there too, of T5 what answers begin with."""
    folder = write_folder(tmp_path / name, CASES[name].arguments)
    (folder / "generation_config.json").write_text(json.dumps({**said, "eos_token_id": 999}))
    own = models.load(folder, backend=vulkan_backend)
    ids, begun = CASES[name].input_ids, 1 if name == "t5" else CASES[name].input_ids.shape[1]
    count = 11 if (name, said) == ("t5", {"max_length": 12}) else count
    assert own.generate(ids).shape == (len(ids), begun + count)
    assert own.generate(ids, max_new_tokens=2).shape == (len(ids), begun + 2)
    own.max_new_tokens, own.max_length = None, begun
    with pytest.raises(ValueError, match=f"max_length is {begun}, and {begun} tokens are there; give max_new_tokens"):
        own.generate(ids)


def test_what_the_call_says_itself_is_not_warned_of(tmp_path, vulkan_backend):
    folder = write_folder(tmp_path / "llama", CASES["llama"].arguments)
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, "min_p": 0.1}))
    own = models.load(folder, backend=vulkan_backend)
    for options, said in (({}, "do_sample=True, min_p=0.1"), ({"do_sample": True}, "asks for min_p=0.1")):
        with pytest.warns(UserWarning, match=f"{said}, which is not applied"):
            own.generate(IDS, max_new_tokens=1, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own.generate(IDS, max_new_tokens=1, do_sample=False)


@pytest.mark.parametrize("options, said", [
    ({"temperature": 0.5}, "temperature is"), ({"top_p": 0.9}, "top_p is"), ({"top_k": 5}, "top_k is"),
    ({"seed": 3}, "seed is"), ({"seed": 3, "top_p": 0.5, "do_sample": False}, "top_p and seed are"),
])  # fmt: skip
def test_numbers_for_sampling_without_sampling(model, options, said):
    """As `grilly generate`: the text would be the likeliest one all the same."""
    with pytest.raises(ValueError, match=f"generate: {said} for sampling; give do_sample=True too"):
        model.generate(IDS, max_new_tokens=1, **options)
    model.generate(IDS, max_new_tokens=1, temperature=1.0, top_k=50, top_p=1.0, seed=None)


def test_caches_that_are_not_of_this_model(model):
    halves = models.Cache(model.backend, 2, 3, 64, *model.cached[1:], np.float16)
    for cache, said in (
        ((), "LlamaLM: past_key_values is a tuple; expected a cache of make_cache"),
        (halves, r"of another model: .* are \(2, 2, 8, 'float16'\); expected \(2, 2, 8, 'float32'\)"),
        (models.Cache(model.backend, 1, 3, 64, *model.cached[1:], np.float32), "of another model"),
        (model.make_cache(3, 8), "room for 3 texts of 8 tokens; with this call there are 3 of 9"),
        (model.make_cache(2, 64), "room for 2 texts of 64 tokens; with this call there are 3 of 9"),
    ):
        with pytest.raises((TypeError, ValueError), match=said):
            model(IDS, past_key_values=cache)


def test_rows_of_different_lengths(model):
    ragged = [[5, 6], [7]]
    for call in (lambda: model(ragged), lambda: model.generate(ragged), lambda: model([[5, 6], [7, 8]], ragged),
                 lambda: model.generate([[5, 6], [7, 8]], ragged)):  # fmt: skip
        with pytest.raises(ValueError, match="(input_ids|mask) has rows of different lengths.* are padded"):
            call()
    with pytest.raises(TypeError, match="input_ids is of .*; expected integers"):
        model.generate([["a", "b"]])


def test_answers_of_t5_begin_with_its_first_token(tmp_path, vulkan_backend):
    """As in transformers, which puts it before decoder_input_ids none of which begin with it."""
    own = models.load(write_folder(tmp_path / "t5", CASES["t5"].arguments), backend=vulkan_backend)
    ids, start = CASES["t5"].input_ids, own.decoder_start_token_id
    begun = np.array([[7, 8]] * len(ids))
    whole = np.concatenate([np.full((len(ids), 1), start), begun], axis=1)
    wanted = own.generate(ids, decoder_input_ids=whole, max_new_tokens=4)
    assert wanted.shape == (len(ids), 7)
    np.testing.assert_array_equal(own.generate(ids, decoder_input_ids=begun, max_new_tokens=4), wanted)
    begun[0, 0] = start
    assert own.generate(ids, decoder_input_ids=begun, max_new_tokens=4).shape == (len(ids), 6)


def test_whisper_takes_the_mask_of_its_processor(tmp_path, vulkan_backend):
    """It has no effect, as in transformers."""
    case = CASES["whisper"]
    own = models.load(write_folder(tmp_path / "whisper", case.arguments), backend=vulkan_backend)
    given = {"input_features": case.input_features, "attention_mask": np.zeros((len(case.input_features), 100), int)}
    out, plain = own(**given, decoder_input_ids=case.tokens[:, :2]), own(case.input_features, case.tokens[:, :2])
    np.testing.assert_array_equal(out.logits, plain.logits)


def test_whisper_streams_by_the_name_of_its_input(tmp_path, vulkan_backend):
    case = CASES["whisper"]
    own = models.load(write_folder(tmp_path / "whisper", case.arguments), backend=vulkan_backend)
    wanted = own.generate(input_features=case.input_features, max_new_tokens=5)
    found = list(own.stream(input_features=case.input_features, max_new_tokens=5))
    np.testing.assert_array_equal(np.stack(found, axis=1), wanted[:, 1:])
    begun = np.full((len(wanted), 1), 7)  # such as a word that was said before: nothing comes before it
    assert own.generate(case.input_features, decoder_input_ids=begun, max_new_tokens=2).shape == (len(wanted), 3)


def test_no_pictures(tmp_path, vulkan_backend):
    own = models.load(write_folder(tmp_path / "vit", CASES["vit"].arguments), backend=vulkan_backend)
    shape = (own.patches.channels, own.patches.side, own.patches.side)
    with pytest.raises(ValueError, match=r"pixel_values has shape \(0, .*; expected \(any but 0, "):
        own(np.zeros((0, *shape)))


def test_seeds(model):
    options = {"max_new_tokens": 12, "do_sample": True, "temperature": 2.0}
    one, same, other = (model.generate(IDS, seed=seed, **options) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    greedy = model.generate(IDS, max_new_tokens=12)
    np.testing.assert_array_equal(model.generate(IDS, seed=3, top_k=1, **options), greedy)


def test_the_folder_says_how_tokens_are_drawn(tmp_path, vulkan_backend, model):
    folder = write_folder(tmp_path / "llama", CASES["llama"].arguments)
    said = {"do_sample": True, "temperature": 3.0, "top_k": 7, "top_p": 0.9, "eos_token_id": 999}
    (folder / "generation_config.json").write_text(json.dumps(said))
    own = models.load(folder, backend=vulkan_backend)
    options = {"max_new_tokens": 12, "do_sample": True, "seed": 1, "eos_token_id": 999}
    names = ("temperature", "top_k", "top_p")
    found = own.generate(IDS, **options)
    np.testing.assert_array_equal(found, model.generate(IDS, **options, **{name: said[name] for name in names}))
    assert (found != model.generate(IDS, **options)).any(), "the case shows nothing otherwise"
    for name in names:  # the call wins
        changed = {**{name: said[name] for name in names}, name: {"temperature": 0.7, "top_k": 0, "top_p": 0.2}[name]}
        np.testing.assert_array_equal(own.generate(IDS, **options, **{name: changed[name]}),
                                      model.generate(IDS, **options, **changed))  # fmt: skip
    greedy = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": 999}
    np.testing.assert_array_equal(own.generate(IDS, **greedy), model.generate(IDS, **greedy))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.0, "top_k": None, "top_p": 1}))
    own = models.load(folder, backend=vulkan_backend)
    assert own.top_k == 50 and own.generate(IDS, max_new_tokens=1).shape == (len(IDS), IDS.shape[1] + 1)
    with pytest.raises(ValueError, match="temperature is 0.0; expected a finite number above 0"):
        own.generate(IDS, max_new_tokens=1, do_sample=True)
    (folder / "generation_config.json").write_text(json.dumps({"top_k": "many"}))
    refused(folder, "generation_config.json: top_k is 'many'", backend=vulkan_backend)


def test_tensors_stay_on_the_device(model):
    sent = model.backend.tensor(IDS)
    out = model(sent)
    assert isinstance(out.logits, Tensor) and isinstance(out.last_hidden_state, Tensor)
    np.testing.assert_array_equal(out.logits.numpy(), model(IDS).logits)
    graph = model.backend.capture(lambda ids: model(ids).logits, sent)
    np.testing.assert_array_equal(graph(sent).numpy(), out.logits.numpy())
    with pytest.raises(CaptureError):
        model.backend.capture(lambda: model(IDS).logits)


@pytest.mark.parametrize("arguments, options, match", [
    ((np.zeros((1, 2)),), {}, "expected integers"),
    ((np.zeros(3, int),), {}, r"expected \(B, S\)"),
    ((np.array([[3, 61]]),), {}, "go from 3 to 61; expected 0 to 60"),
    ((np.array([[3, 4]]), np.zeros((1, 2))), {}, "prompt 0 has no token"),
    ((np.array([[3, 4]]), np.ones((1, 3))), {}, "attention_mask has shape"),
    ((np.array([[3, 4]]), np.array([[0, -np.inf]])), {}, "attention_mask has other numbers than 1"),
    ((np.array([[3, 4], [9, 9]]),), {"pad_token_id": 9, "eos_token_id": 8}, "prompt 1 has no token but"),
    ((IDS,), {"max_new_tokens": 0}, "max_new_tokens is 0"),
    ((IDS,), {"eos_token_id": "</s>"}, "eos_token_id is '</s>'; expected a whole number"),
    ((IDS,), {"eos_token_id": [3.5]}, "eos_token_id is 3.5; expected a whole number"),
    ((IDS,), {"pad_token_id": "a"}, "pad_token_id is 'a'; expected a whole number"),
    ((IDS,), {"max_new_tokens": 2.5}, "max_new_tokens is 2.5; expected a whole number"),
    ((IDS,), {"temperature": 0.0}, "temperature is 0.0; .* without do_sample the likeliest"),
    ((IDS,), {"temperature": "1"}, "temperature is '1'"),
    ((IDS,), {"top_k": 2.5}, "top_k is 2.5"),
    ((IDS,), {"seed": -1}, "seed is -1"),
    ((IDS,), {"top_p": 1.5}, "top_p is 1.5"),
    ((IDS,), {"top_k": -1}, "top_k is -1"),
    ((IDS,), {"repetition_penalty": "2"}, "repetition_penalty is '2'"),
    ((IDS,), {"stop_strings": "x"}, "need a tokenizer"),
    ((IDS,), {"stop_strings": ""}, "stop_strings has an empty text"),
    ((IDS,), {"stop_strings": ["x", ""]}, "stop_strings has an empty text"),
    ((IDS,), {"decoder_input_ids": IDS}, "for models with an encoder"),
])  # fmt: skip
def test_refused(model, arguments, options, match):
    with pytest.raises((TypeError, ValueError), match=match):
        model.generate(*arguments, **options)


def test_padding_is_seen_where_no_mask_says_it(model):
    """As in transformers, where the token of padding is known and ends no text."""
    mask = np.array([[1] * 9, [0] * 4 + [1] * 5, [0] * 7 + [1] * 2])
    ids = np.where(mask == 1, IDS, 0)
    assert model.pad_token_id == 0
    wanted = model.generate(ids, mask, max_new_tokens=6)
    np.testing.assert_array_equal(model.generate(ids, max_new_tokens=6), wanted)
    sent = model.backend.tensor(ids.astype(np.int32))
    np.testing.assert_array_equal(model.generate(sent, max_new_tokens=6), wanted)
    as_tokens = model.generate(ids, np.ones_like(mask), max_new_tokens=6, eos_token_id=0)
    np.testing.assert_array_equal(model.generate(ids, max_new_tokens=6, eos_token_id=0), as_tokens)
    assert (as_tokens[:, 9:11] != wanted[:, 9:11]).any(), "the case shows nothing otherwise"


def test_positions_of_all_texts_at_once(model):
    wanted = model(IDS).last_hidden_state
    for places in (np.arange(9)[None], np.tile(np.arange(9), (3, 1))):
        np.testing.assert_array_equal(model(IDS, position_ids=places).last_hidden_state, wanted)
    assert np.abs(model(IDS, position_ids=2 * np.arange(9)[None]).last_hidden_state - wanted).max() > 0.01
    with pytest.raises(ValueError, match=r"position_ids has shape \(1, 8\); expected \(3, 9\), as input_ids, or"):
        model(IDS, position_ids=np.arange(8)[None])


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_positions_in_tensors_of_any_integers(tmp_path, vulkan_backend, name):
    own = models.load(write_folder(tmp_path / name, CASES[name].arguments), backend=vulkan_backend)
    ids, places = vulkan_backend.tensor(IDS), 2 * np.tile(np.arange(9), (3, 1))
    wanted = own(IDS, position_ids=places).last_hidden_state
    for dtype in (np.int32, np.int64, np.uint8, np.int16):
        for given in (places, places[:1]):
            found = own(ids, position_ids=vulkan_backend.tensor(given.astype(dtype))).last_hidden_state.numpy()
            np.testing.assert_allclose(found, wanted, atol=1e-6, err_msg=str(dtype))


def test_what_answers_begin_with(tmp_path, vulkan_backend):
    case = CASES["t5"]
    own = models.load(write_folder(tmp_path / "t5", case.arguments), backend=vulkan_backend)
    begun = np.random.RandomState(5).randint(3, 61, case.input_ids.shape)  # of the shape of what is read and its mask
    wanted = own.generate(case.input_ids, case.attention_mask, decoder_input_ids=begun, repetition_penalty=1e6)
    for row in wanted:
        assert len(set(row)) == len(row), "the penalty is for all tokens of an answer, whatever the encoder's mask"
    with pytest.raises(ValueError, match="3 inputs and 1 decoder_input_ids"):
        own.generate(case.input_ids, decoder_input_ids=begun[:1])
    with pytest.raises(TypeError, match="decoder_input_ids is of float64"):
        own.generate(case.input_ids, decoder_input_ids=[[0.7]] * 3)
    with pytest.raises(ValueError, match="decoder_input_ids are missing: .* decoder_start_token_id, 0"):
        own(case.input_ids)


@pytest.mark.parametrize("name, given", [("t5", "input_ids"), ("whisper", "input_features")])
def test_no_samples_to_write_of(tmp_path, vulkan_backend, name, given):
    own = models.load(write_folder(tmp_path / name, CASES[name].arguments), backend=vulkan_backend)
    inputs = getattr(CASES[name], given)[:0]
    for none in (inputs, vulkan_backend.tensor(inputs)):
        with pytest.raises(ValueError, match=rf"{given} has shape \(0, .*\); expected at least one sample"):
            own.generate(none)
    with pytest.raises(ValueError, match=f"{given} has shape"):
        own.generate(inputs, decoder_input_ids=np.zeros((0, 1), int))
    with pytest.raises(ValueError, match=f"{given} has shape"):
        own(inputs, decoder_input_ids=np.zeros((0, 1), int))


def test_sounds_by_their_name(tmp_path, vulkan_backend):
    case = CASES["whisper"]
    own = models.load(write_folder(tmp_path / "whisper", case.arguments), backend=vulkan_backend)
    found = own.generate(input_features=case.input_features, decoder_input_ids=case.tokens[:, :2], max_new_tokens=4)
    np.testing.assert_array_equal(found, case.tokens[:, :6])
    with pytest.raises(ValueError, match="81 tokens are more than the 80 positions; max_new_tokens may be 80 here"):
        own.generate(case.input_features, max_new_tokens=81)
    with pytest.raises(ValueError, match="decoder_input_ids are missing"):
        own(case.input_features)


def test_positions_end(tmp_path, vulkan_backend):
    gpt2 = models.load(write_folder(tmp_path / "gpt2", CASES["gpt2"].arguments), backend=vulkan_backend)
    assert gpt2.generate(IDS, max_new_tokens=72).shape == (3, 81), "nothing reads the last token"
    with pytest.raises(ValueError, match="max_new_tokens may be 72"):
        gpt2.generate(IDS, max_new_tokens=73)
    with pytest.raises(ValueError, match="the prompt alone is too long"):
        gpt2.generate(np.zeros((1, 82), int))
    with pytest.raises(ValueError, match="81 tokens are more than the 80 positions"):
        gpt2(np.zeros((1, 81), int))


def test_kompute_generates_step_by_step(backend, tmp_path):
    own = models.load(write_folder(tmp_path / "llama", CASES["llama"].arguments), backend=backend)
    out = own.generate(IDS, np.array([[1] * 9, [0] * 4 + [1] * 5, [0] * 7 + [1] * 2]), max_new_tokens=6)
    np.testing.assert_array_equal(out[:, 9:], CASES["llama"].tokens[:, :6])


def test_no_room_for_the_cache(model):
    """A petabyte for keys and values."""
    said = rf"a cache of 1048576 texts of up to 1048576 tokens takes \d+ MiB beside the weights, {WEIGHTS:,} bytes, "
    with pytest.raises(OutOfDeviceMemoryError, match=said):
        model.make_cache(2**20, 2**20)
    assert model.generate(IDS, max_new_tokens=1).shape == (3, 10)


def test_no_room_for_the_weights(monkeypatch, tmp_path, vulkan_backend):
    def empty(shape, dtype):
        raise OutOfDeviceMemoryError("no room")

    folder = write_folder(tmp_path / "llama", CASES["llama"].arguments)
    monkeypatch.setattr(vulkan_backend, "empty", empty)
    numbers = sum(np.prod(shape) for shape in CASES["llama"].arguments["tensors"].values())
    with pytest.raises(OutOfDeviceMemoryError, match=f"take {2 * numbers:,} bytes as float16, with .*no room"):
        models.load(folder, "float16", vulkan_backend)


def test_a_limit_of_memory_refuses_weights_and_caches(tmp_path):
    """Before anything is taken."""
    case = CASES["llama"]
    folder = write_folder(tmp_path / "llama", case.arguments)
    with open_or_skip("vulkan", lambda: Compute(runtime="vulkan", memory_limit=WEIGHTS // 2)) as backend:
        with pytest.raises(OutOfDeviceMemoryError, match=f"the weights take {WEIGHTS:,} bytes as float32, with"):
            models.load(folder, backend=backend)
        assert backend.memory().in_use == 0
        backend.memory_limit = 2 * WEIGHTS
        own = models.load(folder, backend=backend)
        backend.memory_limit = held = backend.memory().in_use
        said = (f"to 64 tokens takes {CACHE:,} bytes beside the weights, {WEIGHTS:,} bytes, with {held:,} bytes in "
                f"use; fewer.*memory_limit is {held:,}")  # fmt: skip
        with pytest.raises(OutOfDeviceMemoryError, match=said):
            own.generate(IDS, max_new_tokens=8)
        backend.memory_limit = 1 << 30
        assert own.generate(IDS, max_new_tokens=8).shape == (3, 17)


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_what_lies_in_a_cache_before_its_tokens_does_not_matter(name, tmp_path, vulkan_backend, monkeypatch):
    case = CASES[name]
    own = models.load(write_folder(tmp_path / name, case.arguments), backend=vulkan_backend)
    empty = vulkan_backend.empty

    def poisoned(shape, dtype=np.float32):
        tensor = empty(shape, dtype)
        tensor[...] = np.nan
        return tensor

    monkeypatch.setattr(vulkan_backend, "empty", poisoned)
    mask = case.attention_mask if name == "t5" else np.array([[1] * 9, [0] * 4 + [1] * 5, [0] * 7 + [1] * 2])
    found = own.generate(case.input_ids, mask, max_new_tokens=8)
    np.testing.assert_array_equal(found[:, -8:], case.tokens[:, 1:9] if name == "t5" else case.tokens[:, :8])
