"""Caches of language models: whose they are, what they may hold, and copies of them."""

import copy
import pickle

import numpy as np
import pytest

import goldens
from conftest import open_or_skip
from grilly import CaptureError, Compute, OutOfDeviceMemoryError, models
from model_folders import change, write_folder

CASES = goldens.cases("models")
IDS = CASES["llama"].input_ids


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("llama"), CASES["llama"].arguments)


@pytest.fixture(scope="module")
def model(folder, vulkan_backend):
    return models.load(folder, backend=vulkan_backend)


def test_keys_that_other_angles_turned(model, tmp_path, vulkan_backend):
    layers, *shape = model.cached
    scaled = {"rope_type": "yarn", "factor": 2.0, "attention_factor": 1.5}
    for parameters, said in (
        ({"rope_type": "default", "rope_theta": 500.0}, "by rotary angles, this model's by other ones"),
        ({"rope_theta": 10000.0, **scaled}, "by rotary angles, this model's by other ones"),
        (None, "by no rotary angles, this model's by rotary angles"),
    ):
        if parameters is None:
            cache = models.Cache(vulkan_backend, layers, 3, 16, *shape, np.float32)
        else:
            folder = write_folder(tmp_path / "other", CASES["llama"].arguments)
            change(folder, rope_parameters=parameters, rope_theta=...)
            cache = models.load(folder, backend=vulkan_backend).make_cache(3, 16)
        with pytest.raises(ValueError, match=f"past_key_values is of another model: its keys are rotated {said}"):
            model(IDS, past_key_values=cache)
    gpt2 = models.load(write_folder(tmp_path / "gpt2", CASES["gpt2"].arguments), backend=vulkan_backend)
    layers, *shape = gpt2.cached
    cache = models.Cache(vulkan_backend, layers, 3, 16, *shape, np.float32, model.rotary)
    with pytest.raises(ValueError, match="by rotary angles, this model's by no rotary angles"):
        gpt2(IDS, past_key_values=cache)
    gpt2(IDS, past_key_values=gpt2.make_cache(3, 16))


def test_copies_of_a_model_share_caches(model, folder, vulkan_backend):
    wanted = model(IDS).logits[:, 5:]
    for other in (copy.deepcopy(model), models.load(folder, backend=vulkan_backend)):
        cache = model.make_cache(3, 16)
        model(IDS[:, :5], past_key_values=cache)
        found = other(IDS[:, 5:], past_key_values=cache).logits
        np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
    assert model.rotary.turns_as(pickle.loads(pickle.dumps(model.rotary)))


def test_lengths_are_checked_where_they_are_assigned(model):
    cache = model.make_cache(2, 10)
    for lengths, said in (
        ([1.7, 2.2], r"Cache: lengths are float64 \(2,\); expected integers \(2,\)"),
        ([True, False], r"Cache: lengths are bool \(2,\); expected integers \(2,\)"),
        ([1, 2, 3], r"Cache: lengths are int64 \(3,\); expected integers \(2,\)"),
        ([3, 50], "Cache: lengths go from 3 to 50; expected 0 to 10"),
        ([-1, 2], "Cache: lengths go from -1 to 2; expected 0 to 10"),
    ):
        with pytest.raises(ValueError, match=said):
            cache.lengths = lengths
        assert cache.lengths.tolist() == [0, 0]
    cache.lengths = [10, 4]
    assert cache.lengths.tolist() == [10, 4] and cache.lengths.dtype == np.int32
    cache.lengths = 3
    assert cache.lengths.tolist() == [3, 3]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_of_a_cache_go_on_by_themselves(vulkan_backend, tmp_path, name, copied):
    model = models.load(write_folder(tmp_path / name, CASES[name].arguments), backend=vulkan_backend)
    wanted = model(IDS).logits
    error = {"atol": 1e-4 * np.abs(wanted).max()}
    cache = model.make_cache(3, 16)
    model(IDS[:, :4], past_key_values=cache)
    other = copied(cache)
    assert other.lengths.tolist() == [4, 4, 4] and other.nbytes == cache.nbytes and other.tables is cache.tables
    step = vulkan_backend.capture(
        lambda ids: model(ids, past_key_values=other).logits, np.flip(IDS[:, 4:5], 0).astype(np.int32)
    )
    for place in range(4, 9):
        step(np.flip(IDS[:, place : place + 1], 0).astype(np.int32))  # other tokens
    assert cache.lengths.tolist() == [4, 4, 4] and other.lengths.tolist() == [9, 9, 9]
    last = copied(other)
    assert last.lengths.tolist() == [9, 9, 9], "what replays added counts"
    np.testing.assert_allclose(model(IDS[:, 4:], past_key_values=cache).logits, wanted[:, 4:], **error)
    last.lengths = 4
    np.testing.assert_allclose(model(IDS[:, 4:], past_key_values=last).logits, wanted[:, 4:], **error)
    with pytest.raises(CaptureError, match="copying a Cache"):
        vulkan_backend.capture(lambda ids: model(ids, past_key_values=copied(cache)).logits, IDS.astype(np.int32))
    with pytest.raises(TypeError, match=r"a Cache is memory .* cannot be pickled; copy.deepcopy\(cache\) copies it"):
        pickle.dumps(cache)


def test_no_room_for_a_copy(tmp_path):
    folder = write_folder(tmp_path / "llama", CASES["llama"].arguments)
    with open_or_skip("vulkan", lambda: Compute(runtime="vulkan")) as backend:
        cache = models.load(folder, backend=backend).make_cache(3, 64)
        backend.memory_limit = backend.memory().in_use + 10
        with pytest.raises(OutOfDeviceMemoryError, match="a copy of a cache takes .* in use; fewer texts"):
            copy.deepcopy(cache)
