"""Memory of models: graphs that are kept and given up, caches, and weights on their way to the device; and the
dispatches of their graphs."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import faults
import goldens
import grilly
from conftest import open_or_skip
from grilly import Compute, OutOfDeviceMemoryError, models
from grilly.models import graphs as module
from grilly.models.generation import CAPTURED, Generates
from grilly.models.room import room
from kernels import chosen_as_on
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


# -- dispatches of what is captured

INPUTS = ("input_ids", "pixel_values", "input_features", "decoder_input_ids", "attention_mask")
#: At most: of a call, a decoding step and a training step in float32 on Mesa's CPU driver; of a call and a decoding
#: step in float16 with the kernels that a GPU gets. Layers are written as papers have them: fusion makes them so few.
NUMBERS = {
    "bert": ((18, None, 114), (18, None)), "roberta": ((22, None, 114), (22, None)),
    "mpnet": ((25, None, 125), (26, None)), "nomic_bert": ((22, None, 111), (22, None)),
    "vit": ((19, None, 127), (20, None)), "clip": ((50, None, 270), (53, None)), "gpt2": ((18, 26, 117), (18, 26)),
    "llama": ((23, 24, 108), (23, 19)), "qwen3": ((27, 28, 124), (27, 23)), "phi3": ((23, 24, 108), (23, 19)),
    "gemma": ((23, 24, 108), (23, 20)), "gemma2": ((28, 30, 122), (28, 26)), "gemma3": ((45, 45, 197), (45, 39)),
    "t5": ((49, 33, 266), (51, 28)), "t5_gated": ((38, 21, 195), (40, 18)), "whisper": ((48, 34, 305), (49, 35)),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_captured_takes_few_dispatches(vulkan_backend, tmp_path, monkeypatch, name):
    if vulkan_backend.device.architecture != "llvmpipe":
        pytest.skip("the numbers are those of Mesa's CPU driver")
    case = goldens.cases("models")[name]
    folder = write_folder(tmp_path, case.arguments)
    given = {key: getattr(case, key) for key in INPUTS if getattr(case, key) is not None}
    capture_of, seen = Compute.capture, []

    def noted(*arguments):
        seen.append(capture_of(*arguments))
        return seen[-1]

    monkeypatch.setattr(Compute, "capture", noted)

    def counted(architecture, dtype):
        with chosen_as_on(vulkan_backend, architecture):
            model = models.load(folder, dtype, backend=vulkan_backend)

            def results(*arrays):
                return [*model(**dict(zip(given, arrays, strict=True))).values()]

            def training(*arrays):
                return dict(grilly.grad(lambda model: grilly.sum(results(*arrays)[0] ** 2))(model))

            arrays = [vulkan_backend.tensor(array) for array in given.values()]
            numbers = [vulkan_backend.capture(function, *arrays).dispatches for function in (results, training)]
            if not isinstance(model, Generates):
                return numbers[0], None, numbers[1]
            seen.clear()
            model.generate(given.get("input_features", given.get("input_ids"))[:2], max_new_tokens=CAPTURED + 1)
            return numbers[0], seen[-1].dispatches, numbers[1]

    on_cpu, on_gpu = counted(None, "float32"), counted("nvidia-hopper", "float16")[:2]
    for found, most in zip((*on_cpu, *on_gpu), sum(NUMBERS[name], ()), strict=True):
        assert found is most is None or found <= most, (name, on_cpu, on_gpu)
