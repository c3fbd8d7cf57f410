"""Models of which layers stay in host memory, and what an error leaves on the device."""

import copy
import gc
import json
import pickle

import numpy as np
import pytest

import goldens
import grilly
from grilly import ModelError, OutOfDeviceMemoryError, UnsupportedError, models
from grilly.cli import main
from model_folders import drawn, write_folder, write_safetensors

CASES = goldens.cases("models")
IDS = np.arange(18).reshape(2, 9) * 5 % 61
LAYERS = 6


@pytest.fixture
def deep(tmp_path):
    """A folder of a Llama with more layers."""
    case = CASES["llama"].arguments
    config, tensors = case["config"] | {"num_hidden_layers": LAYERS}, {}
    for name, shape in case["tensors"].items():
        for layer in range(LAYERS) if ".layers.0." in name else ():
            tensors[name.replace(".layers.0.", f".layers.{layer}.")] = shape
        if ".layers." not in name:
            tensors[name] = shape
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", drawn(tensors, case["seed"], case["embeddings"]))
    return folder


def same(first, second):
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("count", [1, 2, LAYERS])
def test_layers_in_host_memory(vulkan_backend, deep, count):
    """The same bits, with prompts, caches and generation; each call sends the layers again."""
    whole = models.load(deep, backend=vulkan_backend)
    some = models.load(deep, backend=vulkan_backend, offload=count)
    assert whole.offload is None and len(some.offload.layers) == count and some.offload.count == LAYERS
    assert f"model.layers.{LAYERS - 1}" in some.offload.layers and some.offload.seconds > 0
    assert some.offload.on_device <= some.offload.nbytes
    for _ in range(4):  # as often as a call is captured
        same(some(IDS).logits, whole(IDS).logits)
    same(some.generate(IDS[:, :5], max_new_tokens=40), whole.generate(IDS[:, :5], max_new_tokens=40))


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5_gated", "gemma3"])
def test_other_architectures(vulkan_backend, tmp_path, name):
    folder = write_folder(tmp_path / name, CASES[name].arguments)
    whole, some = (models.load(folder, backend=vulkan_backend, offload=count) for count in (0, 99))
    given = {"input_ids": IDS, **({"decoder_input_ids": IDS[:, :4]} if name.startswith("t5") else {})}
    for field, value in whole(**given).items():
        same(some(**given)[field], value)
    assert len(some.offload.layers) == some.offload.count >= 2


def test_memory(vulkan_backend, deep):
    """What stays on the host takes none on the device, and goes with the model."""
    gc.collect()
    before = vulkan_backend.memory().in_use
    whole = models.load(deep, backend=vulkan_backend)
    all_of_it = vulkan_backend.memory().in_use - before
    del whole
    some = models.load(deep, backend=vulkan_backend, offload=LAYERS)
    some(IDS)
    gc.collect()
    taken = vulkan_backend.memory().in_use - before
    saved = some.offload.nbytes - some.offload.on_device
    assert saved > 0.3 * all_of_it and taken <= all_of_it - saved + 2**16
    del some
    gc.collect()
    assert vulkan_backend.memory().in_use == before


def test_as_many_as_must(deep):
    with grilly.Compute(runtime="vulkan") as backend:
        whole = models.load(deep, backend=backend, offload="auto")
        assert whole.offload is None
        wanted, needed = whole(IDS).logits, backend.memory().in_use
        del whole
        gc.collect()
    with grilly.Compute(runtime="vulkan") as backend:
        backend.memory_limit = backend.memory().in_use + int(0.9 * needed)
        with pytest.raises(OutOfDeviceMemoryError, match="and offload='auto' keeps layers on the host .memory_limit"):
            models.load(deep, backend=backend)
        with pytest.warns(UserWarning, match=r"of 6 layers stay in host memory; each call sends .* bytes, in .* s"):
            some = models.load(deep, backend=backend, offload="auto")
        assert 2 < len(some.offload.layers) < LAYERS
        same(some(IDS).logits, wanted)
        backend.memory_limit = 4096
        with pytest.raises(OutOfDeviceMemoryError, match="beside those of 6 layers in host memory, take .*"):
            models.load(deep, backend=backend, offload="auto")


def test_copies_and_files(vulkan_backend, deep, tmp_path):
    some = models.load(deep, backend=vulkan_backend, offload=4)
    wanted = some(IDS).logits
    same(copy.deepcopy(some)(IDS).logits, wanted)
    some.save(tmp_path / "saved")
    same(models.load(tmp_path / "saved", backend=vulkan_backend)(IDS).logits, wanted)
    state = some.state_dict()
    whole = models.load(deep, backend=vulkan_backend).state_dict()
    for name, value in whole.items():
        same(np.asarray(state[name]), np.asarray(value))
    parameter = some.layers[5].mlp.narrow.weight
    same(pickle.loads(pickle.dumps(parameter)).numpy(), parameter.numpy())
    parameter.data = parameter.data * 0
    assert not parameter.numpy().any() and np.abs(some(IDS).logits - wanted).max() > 0


def test_what_is_refused(vulkan_backend, deep, tmp_path):
    for offload in (-1, True, 1.5, "all", None):
        with pytest.raises(ValueError, match="load: offload is .*; expected a number of layers from 0 on, or 'auto'"):
            models.load(deep, backend=vulkan_backend, offload=offload)
    some = models.load(deep, backend=vulkan_backend, offload=2)
    ids = vulkan_backend.tensor(IDS.astype(np.int32))
    with pytest.raises(UnsupportedError, match="stay in host memory .offload., which a captured function cannot read"):
        vulkan_backend.capture(lambda ids: some(ids).logits, ids)
    with pytest.raises(UnsupportedError, match="which what gradients are taken of cannot read"):
        x = vulkan_backend.tensor(np.ones((1, 32), np.float32))
        grilly.value_and_grad(lambda x: some.layers[5].mlp(x).sum())(x)
    with pytest.raises(ValueError, match="a matrix in host memory"):
        some.layers[5].mlp.narrow.weight.requires_grad = True
    with pytest.raises(TypeError, match="expected a Tensor"):
        some.layers[5].mlp.narrow.weight.data = np.zeros((32, 48), np.float32)


def test_commands(vulkan_backend, deep, capsys, monkeypatch):
    """info says before loading what fits, and what offload would do; generate is told to."""
    device = ["--device", str(vulkan_backend.device.index)]
    assert main(["info", str(deep), *device]) == 0
    out = capsys.readouterr().out
    assert "LlamaLM, computed in float32" in out and "a token" in out and "yes, with" in out
    assert main(["info", str(deep), "--json", "--dtype", "float16", *device]) == 0
    found = json.loads(capsys.readouterr().out)
    whole = models.load(deep, "float16", vulkan_backend)
    nbytes = sum(parameter.data.nbytes for parameter in whole.parameters())
    assert found["needs"]["weights"] == found["device_nbytes"] == nbytes and found["needs"]["fits"]
    cache = whole.make_cache(1, 8)
    assert found["needs"]["cache_of_a_token"] * 8 == cache.nbytes
    monkeypatch.setenv("GRILLY_MEMORY_LIMIT", str(nbytes))
    assert main(["info", str(deep), "--dtype", "float16", *device]) == 0
    assert "no; load(..., offload='auto') keeps" in capsys.readouterr().out
    monkeypatch.setenv("GRILLY_MEMORY_LIMIT", "4096")
    assert main(["info", str(deep), *device]) == 0
    assert "no, nor with all layers in host memory" in capsys.readouterr().out
    monkeypatch.delenv("GRILLY_MEMORY_LIMIT")
    (deep / "config.json").write_text(json.dumps({"architectures": ["Unheard"]}))
    assert main(["info", str(deep)]) == 0
    assert "architectures is 'Unheard'; expected one of" in " ".join(capsys.readouterr().out.split())
    for given in ("-1", "some"):
        with pytest.raises(SystemExit):
            main(["generate", str(deep), "x", "--offload", given])
        assert "no number of layers, and not auto" in capsys.readouterr().err


@pytest.mark.parametrize("offload", [0, 3])
def test_an_error_leaves_nothing_on_the_device(vulkan_backend, deep, offload):
    """As long as somebody holds it, too: numbers that float16 does not hold are found when all is there."""
    raw = bytearray((deep / "model.safetensors").read_bytes())
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    start = 8 + length + header[f"model.layers.{LAYERS - 1}.mlp.down_proj.weight"]["data_offsets"][0]
    raw[start : start + 4] = np.float32(1e6).tobytes()
    (deep / "model.safetensors").write_bytes(raw)
    gc.collect()
    before = vulkan_backend.memory().in_use
    with pytest.raises(ModelError, match="numbers past 65504") as held:
        models.load(deep, "float16", vulkan_backend, offload=offload)
    gc.collect()
    assert held.value.__traceback__ is not None and vulkan_backend.memory().in_use == before
