"""Optimizers: gradients that are read where they lie, and steps that happen or do not."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import numpy as np
import pytest

import grilly
from graphs import default
from grilly import nn, optim
from grilly.compute.arrays.join import join
from grilly.compute.device.caches import Caches
from grilly.errors import OutOfDeviceMemoryError
from grilly.registry import Registry
from toolbox import TOOLS, tool

SHAPES = {"a": (7, 13), "b": (5,), "c": (33,), "d": (7, 13), "e": ()}


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


class Part(nn.Module):
    def __init__(self, shapes):
        super().__init__()
        random = np.random.default_rng(0)
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(random.standard_normal(shape).astype(np.float32)))


def gradients_of(model, random):
    return {
        name: np.asarray(random.standard_normal(parameter.shape), np.float32)
        for name, parameter in model.named_parameters()
    }  # fmt: skip


def near(found, want):
    np.testing.assert_allclose(found, want, rtol=3e-6, atol=3e-6)


def dispatches(backend, call):
    with backend.profile() as profile:
        call()
    return len(profile.timings)


def flat_gradients(model, grads):
    """Gradients that lie as the parameters of an optimizer do, with NaN between them."""
    found, flat = {}, {}
    for name, parameter in model.named_parameters():
        storage, start = parameter.data._storage, parameter.data._offset
        if id(storage) not in flat:
            flat[id(storage)] = grilly.asarray(np.full(storage.nbytes // 4, np.nan, np.float32))
        found[name] = flat[id(storage)][start : start + parameter.data.size].reshape(parameter.shape)
        found[name][...] = grads[name]
    return found


@pytest.mark.parametrize("shapes", [{"a": (8, 8), "b": (16,), "c": (8, 8)}, SHAPES], ids=["whole", "odd"])
def test_gradients_that_lie_side_by_side_are_read_there(backend, shapes):
    """In as many dispatches as for one parameter, and what lies between them is not read."""
    models, random = [Part(shapes) for _ in range(2)], np.random.default_rng(1)
    whole, apart = (optim.AdamW(1e-3, max_grad_norm=0.1) for _ in range(2))
    whole.init(models[0])
    for _ in range(3):
        grads = gradients_of(models[0], random)
        flat = flat_gradients(models[0], grads)
        whole.update(models[0], flat)
        apart.update(models[1], {name: backend.tensor(grad) for name, grad in grads.items()})
    for one, other in zip(models[0].state_dict().values(), models[1].state_dict().values(), strict=True):
        near(one, other)
    counted = dispatches(backend, lambda: whole.update(models[0], flat))
    assert counted == 4 if shapes is not SHAPES else counted <= 4 + 2 * len(SHAPES)
    clipped, norm = optim.clip_grad_norm(flat, 0.1)
    near(norm.numpy(), np.sqrt(sum(np.sum(np.square(grad, dtype=np.float64)) for grad in grads.values())))
    for name, grad in grads.items():
        near(clipped[name].numpy(), grad * min(1, 0.1 / (float(norm) + 1e-6)))


def test_a_step_is_three_dispatches(backend):
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    optimizer = optim.AdamW(1e-3)
    optimizer.init(model)
    grads = flat_gradients(model, gradients_of(model, np.random.default_rng(1)))
    optimizer.update(model, grads)
    assert dispatches(backend, lambda: optimizer.update(model, grads)) == 3


# -- all or nothing


def everything(model, optimizer):
    """The bits of weights and state."""
    arrays = {**model.state_dict(), **{f"state {name}": value for name, value in optimizer.state_dict().items()}}
    return {name: np.array(value).tobytes() for name, value in arrays.items()}


MAKES = {
    "adamw": lambda: optim.AdamW(0.1, max_grad_norm=1.0, groups=[{"params": "a", "lr": 0.2}]),
    "adafactor": lambda: optim.Adafactor(0.1),
    "muon": lambda: optim.Muon(0.1, ns_steps=1, other=optim.Lion(0.1)),
    "scaled": lambda: optim.SGD(0.1, 0.9, loss_scale=optim.LossScale(2.0)),
}


def begun(make):
    """A model and its optimizer after two steps, and gradients."""
    model, optimizer, random = Part(SHAPES), make(), np.random.default_rng(1)
    model.b.data = model.b.data.astype(np.float32)
    grads = gradients_of(model, random)
    for _ in range(2):
        optimizer.update(model, grads)
    return model, optimizer, grads


@pytest.mark.skipif(not (TOOLS / "interrupts.py").exists(), reason="tools/interrupts.py is not in an installed package")
@pytest.mark.parametrize("name", MAKES)
def test_an_interrupted_step_happened_or_did_not(backend, name):
    """KeyboardInterrupt at points chosen at random, of those at which Python runs signal handlers."""
    points = tool("interrupts").Points(str(Path(grilly.__file__).parent))
    model, optimizer, grads = begun(MAKES[name])
    count = points.count(lambda: optimizer.update(model, grads))
    random, outcomes = np.random.default_rng(2), set()

    def stop():
        raise KeyboardInterrupt

    for at in (*random.integers(1, count, 25), count - 1, count):
        before = everything(model, optimizer)
        other, twin = Part(SHAPES), MAKES[name]()
        other.load_state_dict(model.state_dict())
        twin.init(other)
        twin.load_state_dict(optimizer.state_dict())
        twin.update(other, grads)
        after = everything(other, twin)
        raised = False
        try:
            points.run(lambda: optimizer.update(model, grads), int(at), stop)
        except KeyboardInterrupt:
            raised = True
        found = everything(model, optimizer)
        assert found in ((before, after) if raised else (after,)), f"at point {at} of {count}"
        outcomes.add((raised, found == after))
    assert (True, False) in outcomes
    before = everything(model, optimizer)
    optimizer.update(model, grads)
    assert everything(model, optimizer) != before


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("at", range(6))
def test_a_step_without_memory_did_not_happen(backend, monkeypatch, name, at):
    model, optimizer, grads = begun(MAKES[name])
    before, allocate, left = everything(model, optimizer), backend.runtime.allocate, [at]

    def short(*arguments, **named):
        left[0] -= 1
        if left[0] < 0:
            raise OutOfDeviceMemoryError("none is left")
        return allocate(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(backend.runtime, "allocate", short)
        with pytest.raises(OutOfDeviceMemoryError):
            optimizer.update(model, grads)
    assert everything(model, optimizer) == before
    optimizer.update(model, grads)
    assert optimizer.steps == 3


def test_what_is_recorded_together_is_not_recorded_in_part(backend):
    """Where a dispatch is wrong, none of the others has run."""
    from grilly.compute.device.together import together

    x = backend.tensor(np.zeros(8, np.float32))
    double = grilly.elementwise(lambda x: x + 1)
    with pytest.raises(ZeroDivisionError), together(backend.opened):
        double.into([x], x)
        assert x.numpy().tolist() == [0.0] * 8
        raise ZeroDivisionError
    with pytest.raises(ValueError, match="bindings"), together(backend.opened):
        double.into([x], x)
        program, *_ = held = backend.opened.captured.together[0]
        backend.opened.captured.together.append((program, (), *held[2:]))
    assert x.numpy().tolist() == [0.0] * 8
    with together(backend.opened):
        for _ in range(3):
            double.into([x], x)
        with together(backend.opened):
            double.into([x], x)
    assert x.numpy().tolist() == [4.0] * 8
    with backend.profile() as profile, together(backend.opened):  # more than a submission has
        for _ in range(150):
            double.into([x], x)
    assert x.numpy().tolist() == [154.0] * 8 and len(profile.timings) == 150


@grilly.elementwise
def mixed(x, small, half, wide, whole, one):
    """Results of 32, 16, 8 and 64 bits."""
    total = x * one + half.astype("float32") + small.astype("float32")
    return total, total.astype("float16"), (small + whole.astype("int8")).astype("int8"), wide + small.astype("int64")


def only(monkeypatch, backend, operation, name, **tile):
    """For one test, have the device run an operation with the variant of this name, with other tile sizes."""
    manifest = copy.copy(backend.registry.manifest)
    (variant,) = (v for v in manifest.by_operation[operation] if v.variant == name)
    variant = dataclasses.replace(variant, tile={**variant.tile, **tile}, architectures=())
    manifest.by_operation = manifest.by_operation | {operation: (variant,)}
    monkeypatch.setattr(backend.opened, "registry", Registry(backend.device, backend.runtime.features, manifest))
    monkeypatch.setattr(backend.opened, "caches", Caches())


#: Elements of a workgroup of map-several's runs, with one and two of them; a bit fewer and more; and primes.
SIZES = [1, 3, 5, 8, 12, 509, 511, 512, 513, 517, 1021, 1023, 1024, 1025, 1536, 1543, 2050]

LABELS = {"runs": "map-several.runs.float32", "texels": "map-several-texels.texels.float32"}


@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("kernel", ["runs", "texels"])
@pytest.mark.parametrize("size", SIZES)
def test_runs_of_several_results(monkeypatch, vulkan_backend, size, kernel, repeats):
    """Each kernel, where it can run: the last workgroup, each width of elements, results in place of operands."""
    if kernel == "texels" and "texel-buffers" not in vulkan_backend.runtime.features:
        pytest.skip("the device has no texel buffers")
    only(monkeypatch, vulkan_backend, "map-several", kernel, repeats=repeats)
    random = np.random.default_rng(size)
    x, half = (random.standard_normal(size).astype(dtype) for dtype in (np.float32, np.float16))
    small, whole = (random.integers(-60, 60, size).astype(dtype) for dtype in (np.int8, np.int32))
    wide, one = random.integers(-(2**40), 2**40, size), np.float32([1.5])
    room = vulkan_backend.tensor(np.full(size + 9, 7, np.float32))
    room[:size] = x
    given = [room[:size], *(vulkan_backend.tensor(array) for array in (small, half, wide, whole, one))]
    total = x * np.float32(1.5) + half.astype(np.float32) + small.astype(np.float32)
    wanted = total, total.astype(np.float16), small + whole.astype(np.int8), wide + small
    with vulkan_backend.profile() as profile:
        made = mixed(*given)
    assert [timing.label for timing in profile.timings] == [LABELS[kernel]]
    for found, want in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(found.numpy(), want)
    mixed.into([given[0], None, None, given[3]], *given)
    np.testing.assert_array_equal(room.numpy(), np.concatenate([total, np.full(9, 7, np.float32)]))
    np.testing.assert_array_equal(given[3].numpy(), wanted[3])


@pytest.mark.parametrize("kernel", ["words", "processor"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64"])
def test_arrays_are_joined(monkeypatch, vulkan_backend, kernel, dtype):
    """Of many lengths, from any offset and with any strides; what lies between them stays, but for a last word."""
    only(monkeypatch, vulkan_backend, "join", kernel)
    dtype, random = np.dtype(dtype), np.random.default_rng(0)
    each = max(4 // dtype.itemsize, 1)
    lengths = [1, 2, 3, 0, 15, 16, 17, 4095 * each, 4096 * each, 4097 * each + 1, 9001, 5, 7, 12301]
    drawn = random.integers(-100, 100, 2**17).astype(np.float32).astype(dtype)
    source, arrays, places, begin = vulkan_backend.tensor(drawn), [], [], 0
    flat = np.full(2**17, 7, np.float32).astype(dtype)
    for number, length in enumerate(lengths):
        first = [0, 16, 4, 3, 8][number % 5]
        part, want = source[first : first + length], drawn[first : first + length]
        if number == 5:
            part, want = source[: 2 * length : 2], drawn[: 2 * length : 2]
        if number == 6:
            part, want = vulkan_backend.tensor(want), want
        arrays.append(part)
        places.append(begin)
        flat[begin : begin + length] = want
        begin += -(-length // 16) * 16 + 16
    target = vulkan_backend.tensor(np.full(2**17, 7, np.float32).astype(dtype))
    with vulkan_backend.profile() as profile:
        join(vulkan_backend.opened, target, places, arrays)
        vulkan_backend.synchronize()
    found = target.numpy()
    for place, length in zip(places, lengths, strict=True):
        end = -(-(place + length) // each) * each
        found[place + length : end] = 7
    np.testing.assert_array_equal(found.astype(np.float32), flat.astype(np.float32))
    labels = [timing.label for timing in profile.timings]
    apart = sum(part.size > 0 and (not part.is_contiguous or part._offset % each > 0) for part in arrays)
    assert labels.count(f"join.{kernel}.float32") == (0 if dtype.itemsize == 8 else -(-(13 - apart) // 8))


def test_gradients_that_a_replay_is_given_are_joined(backend):
    """By eights, what the function found as well; what it computes is written where it is to be."""
    shapes = {f"p{number}": (number % 5 + 1, 16) for number in range(20)}
    model, optimizer = Part(shapes), optim.SGD(0.5)
    optimizer.init(model)
    before, grads = model.state_dict(), gradients_of(model, np.random.default_rng(2))
    tensors = {name: backend.tensor(grad) for name, grad in grads.items()}
    found = backend.capture(lambda: optimizer.update(model, tensors))
    assert found.dispatches == 3 + 3
    made = backend.capture(lambda: optimizer.update(model, {name: one * 2 for name, one in tensors.items()}))
    assert made.dispatches == 3 + 20
    found()
    made()
    for name, own in model.state_dict().items():
        near(own, before[name] - 1.5 * grads[name])
