"""Modules, parameters and tensors are copied and pickled at any time."""

import copy
import pickle

import numpy as np
import pytest

import grilly
from grilly import nn
from kernels import of_one_storage


def used(backend):
    """A layer that has run forward and backward, which leaves things on the device."""
    layer = nn.MultiheadAttention(8, 2, rng=0).to(backend).train()
    x = np.linspace(-1, 1, 48, dtype=np.float32).reshape(2, 3, 8)
    layer(x, x, x)
    layer.backward(np.ones((2, 3, 8), np.float32))
    layer(x, x, x)  # kept for another backward
    return layer, x


def pickled(value):
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("way", [copy.deepcopy, pickled])
def test_a_used_layer(vulkan_backend, way):
    layer, x = used(vulkan_backend)
    twin = way(layer).to(vulkan_backend)
    assert twin.training
    for (name, one), (same, other) in zip(layer.named_parameters(), twin.named_parameters(), strict=True):
        assert name == same and one is not other
        np.testing.assert_array_equal(one.data, other.data)
        np.testing.assert_array_equal(one.grad, other.grad)
        assert one.grad is not other.grad and not other.data.flags.writeable
    with pytest.raises(RuntimeError, match="no forward"):
        twin.backward(np.ones((2, 3, 8), np.float32))
    np.testing.assert_array_equal(twin(x, x, x)[0], layer(x, x, x)[0])
    twin.backward(np.ones((2, 3, 8), np.float32))  # it has kept what this needs
    next(twin.parameters()).data = np.zeros(next(twin.parameters()).shape, np.float32)
    assert np.any(next(layer.parameters()).data), "the original is not touched"


def test_what_is_shared_stays_shared():
    net = nn.ModuleList([nn.Linear(3, 3, rng=0), nn.Linear(3, 3, rng=1)])
    net[1].weight = net[0].weight
    for twin in (copy.deepcopy(net), pickled(net)):
        assert twin[1].weight is twin[0].weight is not net[0].weight


def test_parameters_that_are_tensors(vulkan_backend):
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    parameter = nn.Parameter(vulkan_backend.tensor(data))
    twin = copy.deepcopy(parameter)
    assert twin.data.backend is vulkan_backend and not of_one_storage(twin.data, parameter.data)
    np.testing.assert_array_equal(twin.numpy(), data)
    back = pickled(parameter)
    assert isinstance(back.data, np.ndarray)
    np.testing.assert_array_equal(back.data, data)


def test_a_cache(vulkan_backend):
    """Also after calls, and the two grow apart."""
    cache = nn.KVCache(2, 8, 2, 4, backend=vulkan_backend)
    step = np.linspace(-1, 1, 48, dtype=np.float32).reshape(2, 3, 2, 4)
    cache.attend(step, step, step)
    for way in (copy.copy, copy.deepcopy):
        twin = way(cache)
        assert twin.lengths.tolist() == [3, 3] and twin.max_len == 8
        found = twin.attend(step, -step, step).numpy()
        assert cache.lengths.tolist() == [3, 3] and len(twin) == 6
        again = copy.deepcopy(cache)
        np.testing.assert_array_equal(again.attend(step, -step, step).numpy(), found)
    with pytest.raises(TypeError, match="a KVCache is memory of an open device and cannot be pickled; .*fill"):
        pickle.dumps(cache)


def test_tensors(vulkan_backend):
    tensor = vulkan_backend.tensor(np.arange(6, dtype=np.float32).reshape(2, 3)).T
    assert of_one_storage(copy.copy(tensor), tensor)
    deep = copy.deepcopy(tensor)
    assert not of_one_storage(deep, tensor)
    np.testing.assert_array_equal(deep.numpy(), tensor.numpy())
    with pytest.raises(TypeError, match=r"cannot be pickled; pickle t.numpy\(\)"):
        pickle.dumps(tensor)


def test_devices_and_graphs(vulkan_backend):
    """A module may hold its device: the copy has the same one."""
    layer = nn.Linear(3, 2, rng=0)
    layer.home = vulkan_backend
    assert copy.copy(vulkan_backend) is copy.deepcopy(layer).home is vulkan_backend
    with pytest.raises(TypeError, match="a grilly.Compute is an open device and cannot be pickled"):
        pickle.dumps(layer)
    graph = vulkan_backend.capture(lambda x: x + 1, np.ones(3, np.float32))
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="neither copied nor pickled; capture the function again"):
            way(graph)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickled])
def test_a_layer_whose_backend_was_closed(vulkan_backend, way):
    """What belonged to it is on the host, and the copy goes to the default backend."""
    with grilly.Compute() as closed:
        layer, x = nn.Linear(8, 2, rng=0).to(closed), np.ones((3, 8), np.float32)
        wanted = layer(x)
    with pytest.raises(grilly.ClosedError):
        layer(x)
    np.testing.assert_array_equal(way(layer)(x), wanted)


class OnAnotherGPU:
    """As CuPy's arrays: known to DLPack, and not given to NumPy."""

    shape, dtype = (2, 4), np.dtype(np.float32)

    def __dlpack__(self, **options):
        raise BufferError("elsewhere")

    def __dlpack_device__(self):
        return 2, 0

    def __array__(self, *options):
        raise TypeError("implicit conversion is not allowed")


def test_arrays_of_another_gpu_are_led_to_dlpack():
    with pytest.raises(TypeError, match=r"weight is no array for NumPy: .*; give grilly.from_dlpack\(weight\)"):
        nn.Linear(4, 2, bias=False).load_state_dict({"weight": OnAnotherGPU()})


def test_tensors_that_are_no_parameters(vulkan_backend):
    """As the weight of a loss: arrays in what is pickled, Tensors in copies."""
    weight = np.linspace(1, 2, 4, dtype=np.float32)
    loss = nn.CrossEntropyLoss(vulkan_backend.tensor(weight))
    logits, target = np.random.default_rng(0).standard_normal((3, 4), dtype=np.float32), np.array([0, 1, 3])
    wanted = loss(vulkan_backend.tensor(logits), target).numpy()
    for way in (copy.copy, copy.deepcopy, pickled, lambda m: pickle.loads(pickle.dumps(m, 0))):
        twin = way(loss)
        assert isinstance(twin.weight, grilly.Tensor if way in (copy.copy, copy.deepcopy) else np.ndarray)
        np.testing.assert_array_equal(twin(vulkan_backend.tensor(logits), target).numpy(), wanted)


def test_a_weight_of_a_loss_goes_where_the_logits_are(vulkan_backend):
    """As parameters do."""
    weight = np.linspace(1, 2, 4, dtype=np.float32)
    loss = nn.CrossEntropyLoss(vulkan_backend.tensor(weight)).train()
    logits, target = np.random.default_rng(0).standard_normal((3, 4), dtype=np.float32), np.array([0, 1, 3])
    wanted = loss(vulkan_backend.tensor(logits), target).numpy(), loss.backward().numpy()
    with grilly.Compute() as other:
        found = loss(other.tensor(logits), target)
        assert found.backend is other
        np.testing.assert_array_equal(found.numpy(), wanted[0])
        np.testing.assert_array_equal(loss.backward().numpy(), wanted[1])
