"""Memory of models: graphs that are kept and given up, caches, and weights on their way to the device; and the
dispatches of their graphs."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import faults
import goldens
import grilly.functional as F
from conftest import open_or_skip
from grilly import Compute, OutOfDeviceMemoryError, models
from grilly.models import graphs as module
from grilly.models import layers
from grilly.models.generation import CAPTURED
from grilly.models.room import room
from model_folders import change, drawn, write_folder, write_safetensors
from test_models_folders import CASES as FOLDERS
from test_models_folders import folder as llama_folder
from test_models_generation import CACHE, IDS, WEIGHTS, model
from test_models_graphs import CASES, bert, captured, folder, ids, plain, refuse, refusing, replace_value, states

#: Fixtures of other files, found by their names here.
FIXTURES = bert, folder, llama_folder, model


def test_no_room_for_a_prompt_or_a_graph(model, monkeypatch):
    beside = f"beside the weights, {WEIGHTS:,} bytes, and the cache, {CACHE:,} bytes, with"

    def refused(*arguments, **options):
        raise OutOfDeviceMemoryError("the device is full")

    monkeypatch.setattr(model, "hidden", refused)
    with pytest.raises(OutOfDeviceMemoryError, match=f"a prompt of 3 x 9 tokens {beside} .*; fewer .*is full"):
        model.generate(IDS)
    monkeypatch.undo()
    runtime = model.backend.runtime
    record = runtime.record

    def full(capture):
        with monkeypatch.context() as patch:
            patch.setattr(runtime, "_allocate", refused)
            return record(capture)

    monkeypatch.setattr(runtime, "record", full)
    said = rf"the graph of a step; use_graph=False needs none {beside} .*; fewer .*\(the graph takes [\d,]+ bytes: "
    with pytest.raises(OutOfDeviceMemoryError, match=said):
        model.generate(IDS)
    monkeypatch.undo()
    assert model.generate(IDS, max_new_tokens=8).shape == (3, 17)


def test_what_is_taken_counts_afterwards_too(vulkan_backend, monkeypatch):
    monkeypatch.setattr(vulkan_backend.opened, "memory_limit", vulkan_backend.memory().in_use + 4096)
    with room(vulkan_backend, "little", 100, "less"):
        vulkan_backend.empty((100,))
    with pytest.raises(OutOfDeviceMemoryError, match="much, with .* in use; less .*memory_limit is"):
        with room(vulkan_backend, "much", 0, "less"):
            kept = vulkan_backend.empty((10000,))
    del kept


@pytest.mark.parametrize("offload", [0, 1])
def test_a_device_that_is_full_midway_is_left_empty(folder, vulkan_backend, monkeypatch, offload):
    """As long as somebody holds the error, too."""
    gc.collect()
    before, left = vulkan_backend.memory().in_use, [9]
    empty = vulkan_backend.opened.empty

    def refused(*arguments, **options):
        left[0] -= 1
        if left[0] < 0:
            raise OutOfDeviceMemoryError("the device is full")
        return empty(*arguments, **options)

    monkeypatch.setattr(vulkan_backend.opened, "empty", refused)
    said = "the weights.* take .* with .* in use; .*the device is full"
    with pytest.raises(OutOfDeviceMemoryError, match=said) as held:
        models.load(folder, backend=vulkan_backend, offload=offload)
    gc.collect()
    assert held.value.__cause__ is not None and vulkan_backend.memory().in_use == before


def test_another_model_s_changes_cost_no_graph(folder, bert, vulkan_backend):
    captured(bert, 1, 4)
    graph = next(iter(bert.graphs._graphs.values()))
    other = models.load(folder, backend=vulkan_backend)
    replace_value(other)
    states(bert, ids(1, 4))
    assert next(iter(bert.graphs._graphs.values())) is graph


def test_the_oldest_go_first(bert):
    bert.graphs.kept = 2
    for length in (3, 4, 5):
        captured(bert, 1, length)
    assert [key[1][0] for key in bert.graphs._graphs] == [(1, 4), (1, 5)]
    for _ in range(4):  # as many calls as before again do not capture what was let go of
        states(bert, ids(1, 3))
    assert (1, 3) not in [key[1][0] for key in bert.graphs._graphs]
    states(bert, ids(1, 3))
    assert [key[1][0] for key in bert.graphs._graphs] == [(1, 5), (1, 3)]


def test_memory(bert, vulkan_backend, monkeypatch):
    weights = sum(parameter.data.nbytes for parameter in bert.parameters())
    monkeypatch.setattr(module, "BYTES", 0)
    monkeypatch.setattr(module, "SHARE", 0.0)
    for length in range(8, 80, 8):
        for seed in range(3):
            states(bert, ids(4, length, seed=seed))
        assert bert.graphs.memory <= weights
    assert 0 < len(bert.graphs) < 8
    held, used = bert.graphs.memory, vulkan_backend.memory().in_use
    bert.graphs.clear()
    assert bert.graphs.memory == 0 and vulkan_backend.memory().in_use <= used - held
    monkeypatch.setattr(vulkan_backend.opened, "memory_limit", 1000)
    for seed in range(9):
        np.testing.assert_array_equal(states(bert, ids(4, 8, seed=seed)), plain(bert, ids(4, 8, seed=seed)))
    assert not len(bert.graphs)


def test_no_room_for_a_replay_s_results(bert, vulkan_backend, monkeypatch):
    captured(bert, 1, 4)
    wanted = plain(bert, ids(1, 4))

    def refuses(*arguments):
        raise OutOfDeviceMemoryError("no room")

    monkeypatch.setattr("grilly.compute.graph.Graph.__call__", refuses)
    np.testing.assert_array_equal(states(bert, ids(1, 4)), wanted)
    assert not len(bert.graphs)


def test_generation_comes_first(tmp_path, vulkan_backend, monkeypatch):
    """A cache or a step's graph that has no room beside what was captured takes its place."""
    model = models.load(write_folder(tmp_path, CASES["gpt2"].arguments), backend=vulkan_backend)
    wanted = model.generate(ids(1, 4), max_new_tokens=6)
    tried = []
    captured(model, 2, 16)
    monkeypatch.setattr(models.cache.Cache, "__init__", refusing(models.cache.Cache.__init__, model, tried))
    np.testing.assert_array_equal(model.generate(ids(1, 4), max_new_tokens=6), wanted)
    assert tried == [True, False] and not len(model.graphs)
    monkeypatch.undo()
    monkeypatch.setattr(type(model), "_prompt", lambda *arguments: refuse())
    with pytest.raises(OutOfDeviceMemoryError):
        model.generate(ids(1, 4))


@pytest.mark.usefixtures("no_models_on_devices")
def test_weights_across_a_bus(llama_folder):
    """To memory that the host cannot address, in chunks, with parts of one weight side by side."""
    case = FOLDERS["llama"].arguments
    shapes = {name: [(1500 if extent == 48 else extent) for extent in shape] for name, shape in case["tensors"].items()}
    tensors = drawn(shapes, 0)
    write_safetensors(llama_folder / "model.safetensors", tensors)
    change(llama_folder, intermediate_size=1500)
    with open_or_skip("vulkan", lambda: Compute(runtime="vulkan")) as backend:
        if backend.device.kind != "cpu":
            pytest.skip("only a processor's memory can be shown as one behind a bus")
    from grilly.runtime.vulkan import copier

    with pytest.MonkeyPatch.context() as patch, faults.between(bus=True), Compute(runtime="vulkan") as backend:
        patch.setattr(copier, "LARGEST_CHUNK", 1 << 16)
        assert not backend.empty((1,))._storage.buffer.suballocation.block.readable
        for dtype in ("float32", "float16"):
            found = models.load(llama_folder, dtype, backend).layers[1].mlp.widen.weight.numpy()
            parts = [tensors[f"model.layers.1.mlp.{part}_proj.weight"].astype(dtype) for part in ("gate", "up")]
            assert np.array_equal(found, np.concatenate(parts))


# -- dispatches of a captured call and of a captured step

INPUTS = ("input_ids", "pixel_values", "input_features", "decoder_input_ids", "attention_mask")
#: Of a call, and of a step, on Mesa's CPU driver; None where the family continues no texts.
NUMBERS = {
    "llama": (23, 26), "gemma2": (29, 33), "gpt2": (19, 27), "bert": (18, None), "vit": (19, None),
    "t5_gated": (38, 22), "whisper": (50, 35),
}  # fmt: skip


def single(self, x, residual=None, activation=None, gated=False, norm=None):
    """`layers.Linear.forward` in single operations.

    Layers hand it what belongs to it, so that calls that are not captured, such as that of a prompt, take no more
    dispatches, and round as captured ones do.
    """
    bias = None if self.bias is None else self.bias.data
    y = F.linear(x if norm is None else norm(x), self.weight.data, bias, precision=self.precision)
    functions = {"gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), None: lambda x: x}
    function = functions.get(activation) or getattr(F, activation)
    cols = y.shape[-1] // 2
    y = function(y[..., :cols]) * y[..., cols:] if gated else function(y)
    return y if residual is None else residual + y


@pytest.mark.parametrize("name", NUMBERS)
def test_single_operations_take_no_more(vulkan_backend, tmp_path, monkeypatch, name):
    case = goldens.cases("models")[name]
    model = models.load(write_folder(tmp_path, case.arguments), backend=vulkan_backend)
    given = {key: getattr(case, key) for key in INPUTS if getattr(case, key) is not None}
    source = given.get("input_features", given.get("input_ids"))
    capture_of, seen = Compute.capture, []

    def capture(self, *arguments):
        graph = capture_of(self, *arguments)
        seen.append(graph.dispatches)
        return graph

    def counted():
        """Dispatches of a call, and of a step."""
        graph = capture_of(vulkan_backend, lambda *arrays: [*model(**dict(zip(given, arrays, strict=True))).values()],
                         *map(vulkan_backend.tensor, given.values()))  # fmt: skip
        seen.clear()
        tokens = model.generate(source, max_new_tokens=CAPTURED + 1) if NUMBERS[name][1] else None
        return (graph.dispatches, seen[0] if seen else None), tokens

    monkeypatch.setattr(Compute, "capture", capture)
    handed, tokens = counted()
    if vulkan_backend.device.architecture == "llvmpipe":
        assert handed == NUMBERS[name]
    monkeypatch.setattr(layers.Linear, "forward", single)
    alone, others = counted()
    assert alone == handed
    np.testing.assert_equal(others, tokens)
