"""What models capture by themselves: the same results, never of what has changed, in no more memory than is said."""

import copy
import gc
import threading
import weakref

import numpy as np
import pytest

import goldens
from grilly import OutOfDeviceMemoryError, UnsupportedError, models, nn
from model_folders import write_folder

CASES = goldens.cases("models")
INPUTS = ("input_ids", "pixel_values", "input_features", "decoder_input_ids")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("bert"), CASES["bert"].arguments)


@pytest.fixture
def bert(folder, vulkan_backend):
    return models.load(folder, backend=vulkan_backend)


def ids(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 61, shape).astype(np.int32)


def states(model, tokens, **masks):
    return model(tokens, **masks).last_hidden_state


def plain(model, tokens, **masks):
    """The states by a call that neither captures nor replays."""
    kept, model.graphs.kept = model.graphs.kept, 0
    found = states(model, tokens, **masks)
    model.graphs.kept = kept
    return found


def near(found, wanted):
    """The same up to the roundings between operations that are one in a graph."""
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def captured(model, *shape):
    """A model that has a graph for tokens of a shape."""
    for seed in range(3):
        states(model, ids(*shape, seed=seed))
    assert len(model.graphs) and model.graphs.memory > 0
    return model


@pytest.mark.parametrize(
    "name", ["roberta", "vit", "clip", "t5_gated", "whisper", "gpt2", "llama", "gemma2", "dynamic"]
)
def test_replays_are_like_calls_and_have_the_same_bits(vulkan_backend, tmp_path, name):
    case = CASES[name]
    model = models.load(write_folder(tmp_path, case.arguments), backend=vulkan_backend)
    given = {key: getattr(case, key) for key in INPUTS if getattr(case, key) is not None}
    found = [{part: out[part] for part in out} for out in (model(**given) for _ in range(5))]
    assert len(model.graphs) == (2 if name == "clip" else 1)
    for part in found[0]:
        np.testing.assert_array_equal(found[1][part], found[0][part])
        near(found[2][part], found[0][part])
        for other in found[3:]:
            np.testing.assert_array_equal(other[part], found[2][part])


def test_masks_and_tensors(bert, vulkan_backend):
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    for seed in range(4):
        tokens = ids(2, 5, seed=seed)
        near(states(bert, tokens, attention_mask=mask), plain(bert, tokens, attention_mask=mask))
        mask = mask[::-1].copy()
    assert len(bert.graphs) == 1
    sent = vulkan_backend.tensor(ids(2, 5, seed=7))
    first = states(bert, sent, attention_mask=vulkan_backend.tensor(mask))
    before = first.numpy()
    states(bert, ids(2, 5, seed=8), attention_mask=mask)
    np.testing.assert_array_equal(first.numpy(), before)  # a copy: the next replay does not write to it
    near(before, plain(bert, sent, attention_mask=mask).numpy())
    assert len(bert.graphs) == 1


def replace_value(model):
    weight = model.layers[1].mlp.widen.weight
    weight.data = (weight.data * 2).contiguous()


def replace_parameter(model):
    model.layers[0].norm.bias = nn.Parameter(model.layers[0].norm.bias.data + 1)


def write(model):
    model.layers[1].qkv.weight.data[:5] = 0.25


def set_a_number(model):
    model.layers[0].norm.eps = 3.0


def swap_layers(model):
    model.layers[0], model.layers[1] = model.layers[1], model.layers[0]


def take_one_out(model):
    model.layers.pop()


@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize(
    "change", [replace_value, replace_parameter, write, set_a_number, swap_layers, take_one_out]
)
def test_a_changed_model_is_not_replayed_as_it_was(folder, vulkan_backend, change, precision):
    model = captured(models.load(folder, backend=vulkan_backend, precision=precision), 2, 6)
    tokens = ids(2, 6)
    before = states(model, tokens)
    change(model)
    found = states(model, tokens)
    assert not len(model.graphs) and np.abs(found - before).max() > 1e-3
    np.testing.assert_array_equal(found, plain(model, tokens))
    for _ in range(6):  # until it is captured again
        near(states(model, tokens), found)


@pytest.mark.parametrize("change", [replace_value, write])
def test_a_change_during_the_capture(bert, vulkan_backend, monkeypatch, change):
    capture = vulkan_backend.capture

    def changes(*arguments):
        found = capture(*arguments)
        change(bert)
        return found

    monkeypatch.setattr(vulkan_backend, "capture", changes)
    for _ in range(3):
        states(bert, ids(2, 6))
    assert not len(bert.graphs)
    np.testing.assert_array_equal(states(bert, ids(2, 6)), plain(bert, ids(2, 6)))


def test_a_model_that_goes_takes_its_graphs_along(folder, vulkan_backend):
    model = captured(models.load(folder, backend=vulkan_backend), 1, 4)
    held = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [OutOfDeviceMemoryError, UnsupportedError])
def test_what_cannot_be_captured_is_called(bert, vulkan_backend, monkeypatch, error):
    captured(bert, 1, 4)
    tried = []

    def refuses(*arguments):
        tried.append(arguments)
        raise error("no room")

    monkeypatch.setattr(vulkan_backend, "capture", refuses)
    for _ in range(5):
        np.testing.assert_array_equal(states(bert, ids(1, 5)), plain(bert, ids(1, 5)))
    assert len(tried) == 1  # once
    assert len(bert.graphs) == (error is UnsupportedError)  # where there is no room, none takes any


def refuse():
    raise OutOfDeviceMemoryError("no room")


def refusing(function, model, tried):
    """A function that finds no room as long as the model has graphs."""

    def call(*arguments, **options):
        tried.append(len(model.graphs) > 0)
        return refuse() if tried[-1] else function(*arguments, **options)

    return call


def test_in_a_captured_function(bert, vulkan_backend):
    captured(bert, 2, 4)
    graph = vulkan_backend.capture(lambda tokens: bert(tokens).last_hidden_state, ids(2, 4))
    assert graph.dispatches > 10
    near(graph(ids(2, 4, seed=3)).numpy(), plain(bert, ids(2, 4, seed=3)))


def test_dispatches_are_listed(bert, vulkan_backend):
    captured(bert, 1, 4)
    if "timestamps" not in vulkan_backend.runtime.features:
        pytest.skip("the device has no timestamps")
    with vulkan_backend.profile() as profile:
        states(bert, ids(1, 4))
    assert len(profile.timings) > 10


def test_copies_capture_anew(bert):
    captured(bert, 1, 4)
    other = copy.deepcopy(bert.graphs)
    assert not len(other) and other.kept == bert.graphs.kept and len(bert.graphs)


def test_threads(bert):
    lengths, wrong = (3, 4, 5), []
    wanted = {(n, seed): plain(bert, ids(2, n, seed=seed)) for n in lengths for seed in range(4)}

    def call(first):
        for turn in range(24):
            n, seed = lengths[(first + turn) % 3], turn % 4
            if np.abs(states(bert, ids(2, n, seed=seed)) - wanted[n, seed]).max() > 1e-5:
                wrong.append((n, seed))
            if turn == 12 and not first:
                bert.graphs.clear()

    threads = [threading.Thread(target=call, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
