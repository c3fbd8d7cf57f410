"""Language models with caches of 8 and 4 bits, captured or not; numbers: internals/test_quantized_kernels.py."""

import copy
import json

import numpy as np
import pytest

import goldens
from grilly import UnsupportedError, models
from grilly.cli import main
from model_folders import write_folder
from test_cli_models import with_tokenizer

CASES = goldens.cases("models")
IDS = CASES["llama"].input_ids
TYPES = ("q8_0", "q4_0")
WIDTHS = {"llama": ("head_dim", 32), "gemma3": ("head_dim", 64), "t5": ("d_kv", 32)}


def widened(name):
    """A golden case with heads that blocks divide."""
    given = copy.deepcopy(CASES[name].arguments)
    field, width = WIDTHS[name]
    former, given["config"][field] = given["config"][field], width
    for tensor, shape in given["tensors"].items():
        for part, axis in (("q", 0), ("k", 0), ("v", 0), ("o", 1)):
            if tensor.endswith((f"{part}_proj.weight", f"Attention.{part}.weight")):
                shape[axis] = shape[axis] // former * width
        if tensor.endswith(("q_norm.weight", "k_norm.weight")):
            shape[0] = width
    return given


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    return {name: write_folder(made / name, widened(name)) for name in WIDTHS}


def test_a_cache_goes_on_and_is_copied(folders, vulkan_backend):
    """Samples go on from lengths of their own, in a cache and in its copy alike."""
    model = models.load(folders["llama"], backend=vulkan_backend)
    for kind, bits in (("q8_0", 8.5), ("q4_0", 4.5)):
        cache = model.make_cache(3, 16, kind)
        model(IDS[:, :5], past_key_values=cache)
        cache.lengths[1] -= 2
        other = copy.deepcopy(cache)
        assert cache.nbytes == other.nbytes == sum(x.nbytes for x in (*cache.k, *cache.v))
        assert cache.nbytes == len(cache.k) * 2 * 3 * 16 * 2 * 32 * bits / 8
        again = [model(IDS[:, 5:6], past_key_values=one).logits for one in (cache, other)]
        np.testing.assert_array_equal(*again)
        assert cache.lengths.tolist() == other.lengths.tolist() == [6, 4, 6]


@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.parametrize("kind", TYPES)
def test_generation(folders, vulkan_backend, name, kind):
    """A graph's tokens are those of calls, whether the model was told the type or the call."""
    told = models.load(folders[name], backend=vulkan_backend, cache_dtype=kind)
    model = models.load(folders[name], backend=vulkan_backend)
    assert told.cache_dtype == kind and model.cache_dtype is None
    ids = np.tile(IDS, (1, 3))  # more than decoding kernels take
    mask = np.ones_like(ids)
    mask[1, :4] = 0
    how = {"max_new_tokens": 24, "pad_token_id": 60, "eos_token_id": ()}
    wanted = told.generate(ids, mask, **how)
    np.testing.assert_array_equal(told.generate(ids, mask, use_graph=False, **how), wanted)
    np.testing.assert_array_equal(model.generate(ids, mask, cache_dtype=kind, **how), wanted)
    if name != "t5":
        cache = told.make_cache(3, 16)
        assert cache.k[0].dtype == kind
        model(IDS, past_key_values=cache)  # of any model of these heads and angles


def test_what_is_refused(folders, vulkan_backend, tmp_path):
    model = models.load(folders["llama"], backend=vulkan_backend)
    in_use = vulkan_backend.memory().in_use
    for call in (
        lambda kind: models.load(folders["llama"], backend=vulkan_backend, cache_dtype=kind),
        lambda kind: model.generate(IDS, max_new_tokens=2, cache_dtype=kind),
        lambda kind: model.make_cache(1, 8, kind),
    ):
        for kind in ("q5_0", "Q8_0", "float16", 8):
            with pytest.raises(ValueError, match=f"cache_dtype is {kind!r}; expected None, 'q8_0' or 'q4_0'"):
                call(kind)
    plain = write_folder(tmp_path / "plain", CASES["llama"].arguments)
    with pytest.raises(UnsupportedError, match="load: heads of 8 elements are no whole blocks of 32"):
        models.load(plain, backend=vulkan_backend, cache_dtype="q8_0")
    bert = write_folder(tmp_path / "bert", CASES["bert"].arguments)
    with pytest.raises(ValueError, match="load: cache_dtype is 'q8_0', and Bert has no cache"):
        models.load(bert, backend=vulkan_backend, cache_dtype="q8_0")
    assert vulkan_backend.memory().in_use == in_use


def test_commands(folders, vulkan_backend, tmp_path, capsys):
    folder = with_tokenizer(write_folder(tmp_path / "llama", widened("llama")), [f"w{number}" for number in range(61)])
    device = ["--device", str(vulkan_backend.device.index)]
    texts = []
    for kind in ("q8_0", "q4_0"):
        assert main(["generate", str(folder), "w3 w4", "--max-new-tokens", "6", "--cache-dtype", kind, *device]) == 0
        texts.append(capsys.readouterr().out.split())
    assert [len(text) for text in texts] == [6, 6]
    with pytest.raises(SystemExit):
        main(["generate", str(folder), "w3", "--cache-dtype", "q5_0", *device])
    assert "invalid choice: 'q5_0'" in capsys.readouterr().err
    assert main(["info", str(folder), "--json", *device]) == 0
    needs = json.loads(capsys.readouterr().out)["needs"]
    model = models.load(folder, backend=vulkan_backend)
    for name in TYPES:
        assert needs[f"cache_of_a_token_{name}"] * 16 == model.make_cache(2, 8, name).nbytes
    assert main(["info", str(folder), *device]) == 0
    assert " as q8_0, " in capsys.readouterr().out
