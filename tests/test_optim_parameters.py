"""Optimizers: parameters and gradients of a step, in modules or by names, few and many, of any strides."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest

import grilly
from conftest import open_or_skip
from graphs import default
from grilly import nn, optim
from optimizers import (
    CASES,
    HALVES,
    SHAPES,
    dispatches,
    gradients_of,
    model_of,
    near,
    torch,
    torch_parameters,
)  # fmt: skip


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", ["sgd", "adamw", "adafactor"])
def test_arrays_by_names(backend, case, dtype):
    """Given arrays stay as they are; what is returned has the numbers that a module gets."""
    models = [model_of(dtype=dtype) for _ in range(2)]
    ours, _ = CASES[case]
    one, other, random = ours(), ours(), np.random.default_rng(1)
    params = {name: backend.tensor(value) for name, value in models[0].state_dict().items()}
    for number in range(8):
        grads = gradients_of(models[0], random, dtype)
        one.update(models[0], grads)
        before, held = {name: value.numpy() for name, value in params.items()}, params
        params = other.update(params, grads)
        for name, value in held.items():
            np.testing.assert_array_equal(value.numpy(), before[name])
        if number == 5:  # values from elsewhere are taken
            models[0].load_state_dict({name: np.full(shape, 0.5, dtype) for name, shape in SHAPES.items()})
            params = {name: backend.tensor(np.full(shape, 0.5, dtype)) for name, shape in SHAPES.items()}
    for name, value in models[0].state_dict().items():
        np.testing.assert_array_equal(params[name].numpy(), value)


def test_parameters_that_are_replaced(backend):
    model, grads = model_of(), gradients_of(model_of(), np.random.default_rng(1))
    optimizer = optim.SGD(0.5)
    optimizer.update(model, grads)
    model.second.data = np.zeros(33, np.float32)
    optimizer.update(model, grads)
    near(model.state_dict()["second"], -0.5 * grads["second"])
    model.load_state_dict(model_of(seed=4).state_dict())
    optimizer.update(model, grads)
    for name, value in model_of(seed=4).state_dict().items():
        near(model.state_dict()[name], value - np.float32(0.5) * grads[name])


def test_parameters_of_another_dtype_need_another_optimizer(backend):
    model, grads = model_of(), gradients_of(model_of(), np.random.default_rng(1))
    optimizer = optim.AdamW(1e-3)
    optimizer.update(model, grads)
    model.to(dtype="float16")
    with pytest.raises(ValueError, match=r"scalar is float16 of shape \(\), and was float32"):
        optimizer.update(model, grads)
    assert optimizer.steps == 1
    optim.AdamW(1e-3).update(model, grads)


def test_a_copy_of_a_module_is_its_own(backend):
    model, grads = model_of(), gradients_of(model_of(), np.random.default_rng(1))
    optim.SGD(0.1).init(model)
    other = copy.deepcopy(model)
    optim.SGD(0.1).update(model, grads)
    for (name, value), before in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        near(value, before - np.float32(0.1) * grads[name])


def test_some_parameters_alone(backend):
    model = model_of()
    before, grads = model.state_dict(), gradients_of(model, np.random.default_rng(1))
    optimizer = optim.AdamW(0.1)
    optimizer.update(model, {"second": grads["second"]})
    after = model.state_dict()
    for name, value in before.items():
        assert np.array_equal(value, after[name]) == (name != "second")
    assert not any("first" in name for name in optimizer.state_dict())


def test_bad_gradients(backend):
    model, optimizer = model_of({"a": (5,), "b": (2, 3)}), optim.AdamW(1e-3)
    a, b = np.ones(5, np.float32), np.ones((2, 3), np.float32)
    before = model.state_dict()
    bad = [
        ({"a": a, "c": b}, ValueError, "no parameter 'c'"), ({"a": a[:4], "b": b}, ValueError, r"a has shape \(4,\)"),
        ({"a": a, "b": np.ones((2, 3), np.int32)}, TypeError, "b is int32"),
        ({"a": a, "b": np.ones((2, 3))}, TypeError, "float64"), ({"a": a, "b": [1.0]}, TypeError, "a list"),
        ([a, b], TypeError, "grads is a list"), ({}, ValueError, "no parameters"),
    ]  # fmt: skip
    for grads, error, match in bad:
        with pytest.raises(error, match=match):
            optimizer.update(model, grads)
    optimizer.init(model)
    for grads, error, match in [*bad[:6], ({"a": a}, ValueError, r"missing: \['b'\]")]:
        with pytest.raises(error, match="|".join((match, "unexpected"))):
            optimizer.update(model, grads)
    with pytest.raises(TypeError, match="begun with a module"):
        optimizer.update({"a": a, "b": b}, {"a": a, "b": b})
    with pytest.raises(TypeError, match="Module"):
        optimizer.update(3, {"a": a, "b": b})
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    assert optimizer.steps == 0


def test_shared_parameters_have_one_name(backend):
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    one = np.ones((3, 3), np.float32)
    with pytest.raises(ValueError, match="another name"):
        optim.SGD(0.1).update(model, {"0.weight": one, "1.weight": one})
    before = model.state_dict()["1.weight"]
    optim.SGD(0.5).update(model, {"0.weight": one})
    near(model.state_dict()["1.weight"], before - 0.5)


# -- many of them


def strided(backend, grad, number):
    """A gradient as programs have them: a NumPy array, in C order, transposed, with gaps, or from any element on."""
    if number % 5 == 0:
        return grad
    if number % 5 == 1:
        return backend.tensor(np.array(grad.T, order="C")).T
    if number % 5 == 2:
        wide = np.zeros((*grad.shape, 2), grad.dtype)
        wide[..., 1] = grad
        return backend.tensor(wide)[..., 1]
    if number % 5 == 3:
        return backend.tensor(np.concatenate([np.zeros(number, grad.dtype), grad.ravel()]))[number:].reshape(grad.shape)
    return backend.tensor(grad)


#: Many parameters, of one element, of odd and of whole numbers of them.
_SHAPES = [(), (1,), (3,), (16,), (7, 5), (31,), (16, 24), (5, 3, 2), (129,)]
MANY = {f"p{number}": _SHAPES[number % 9] for number in range(61)}


@pytest.mark.needs("torch")
@pytest.mark.parametrize("case", ["adamw", "momentum", "sgd"])
def test_many_gradients_of_any_strides(backend, case):
    """As PyTorch has it, captured to the same bits, and in few dispatches where they lie in C order."""
    ours, theirs = CASES[case]
    models = [model_of(MANY) for _ in range(2)]
    optimizers, random = [ours() for _ in models], np.random.default_rng(1)
    others = torch_parameters(models[0])
    other = theirs(list(others.values()))
    for optimizer, model in zip(optimizers, models, strict=True):
        optimizer.init(model)
    tensors = {name: backend.tensor(grad) for name, grad in gradients_of(models[0], random).items()}
    graph = backend.capture(functools.partial(optimizers[1].update, models[1], tensors))
    for _ in range(5):
        grads = gradients_of(models[0], random)
        for name, parameter in others.items():
            parameter.grad = torch.tensor(grads[name])
        other.step()
        given = {name: strided(backend, grad, number) for number, (name, grad) in enumerate(grads.items())}
        optimizers[0].update(models[0], given)
        for name, tensor in tensors.items():
            tensor[...] = grads[name]
        graph()
    for name, value in models[0].state_dict().items():
        near(value, others[name].detach().numpy(), err_msg=name)
        np.testing.assert_array_equal(value, models[1].state_dict()[name], err_msg=name)
    assert dispatches(backend, lambda: optimizers[0].update(models[0], tensors)) <= 3 + 61 // 8 + 1


@pytest.mark.parametrize("dtype", HALVES)
def test_many_parameters_of_two_dtypes(backend, dtype):
    """Of 16 bits and of 32, with gradients of the other: as float32 alone, and captured to the same bits."""
    shapes = {f"a.{name}": shape for name, shape in MANY.items()} | {f"b.{name}": shape for name, shape in MANY.items()}

    def made():
        model = model_of(shapes)
        model.a.to(dtype=dtype)
        return model

    def grads_of(random):
        return {name: np.asarray(random.standard_normal(shape), np.float32) for name, shape in shapes.items()}

    found = []
    for captured in (False, True):
        model, optimizer, random = made(), optim.AdamW(1e-2), np.random.default_rng(3)
        optimizer.init(model)
        held = {name: backend.tensor(grad) for name, grad in grads_of(random).items()}
        step = functools.partial(optimizer.update, model, held)
        step = backend.capture(step) if captured else step
        for _ in range(4):
            for name, grad in grads_of(random).items():
                held[name][...] = grad
            step()
        found.append({name: np.array(value) for name, value in model.state_dict().items()})
    for name, value in found[0].items():
        assert value.tobytes() == found[1][name].tobytes(), name
    want = model_of(shapes)  # the same in float32: parameters of 16 bits are what its masters would be, rounded
    for name, parameter in want.named_parameters():
        if name.startswith("a."):
            parameter.data = np.float32(dict(made().named_parameters())[name].numpy())
    optimizer, random = optim.AdamW(1e-2), np.random.default_rng(3)
    grads_of(random)
    for _ in range(4):
        optimizer.update(want, grads_of(random))
    for name, value in want.state_dict().items():
        rounded = np.asarray(value).astype(found[0][name].dtype)
        np.testing.assert_array_equal(np.float32(found[0][name]), np.float32(rounded), err_msg=name)


@pytest.mark.parametrize("case", ["adamw", "momentum"])
def test_both_runtimes_give_the_same_bits(case):
    found = []
    for runtime in ("vulkan", "kompute"):
        opener = functools.partial(grilly.Compute, runtime=runtime)
        with open_or_skip(runtime, opener) as backend, default(backend):
            model, optimizer, random = model_of(MANY), CASES[case][0](), np.random.default_rng(1)
            for _ in range(3):
                grads = gradients_of(model, random)
                optimizer.update(model, {name: backend.tensor(grad) for name, grad in grads.items()})
            found.append({name: np.array(value) for name, value in model.state_dict().items()})
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name], err_msg=name)
