"""Optimizers: norms of gradients, steps that are left out, what stays between steps, and averages."""

from __future__ import annotations

import numpy as np
import pytest

from graphs import default
from grilly import optim
from optimizers import (
    CASES,
    MATRICES,
    SHAPES,
    dispatches,
    gradients_of,
    model_of,
    near,
    torch,
)  # fmt: skip


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


# -- norms and infinities


@pytest.mark.needs("torch")
def test_clip_grad_norm(backend):
    model = model_of()
    random = np.random.default_rng(3)
    for limit, dtype in ((0.5, "float32"), (1e6, "float32"), (0.5, "float16")):
        grads = gradients_of(model, random, dtype)
        theirs = [torch.nn.Parameter(torch.zeros(grad.shape)) for grad in grads.values()]
        for parameter, grad in zip(theirs, grads.values(), strict=True):
            parameter.grad = torch.tensor(np.float32(grad))
        want = torch.nn.utils.clip_grad_norm_(theirs, limit)
        clipped, norm = optim.clip_grad_norm({name: backend.tensor(grad) for name, grad in grads.items()}, limit)
        near(norm.numpy(), want.numpy())
        for (name, found), parameter in zip(clipped.items(), theirs, strict=True):
            assert found.dtype == grads[name].dtype
            near(found.numpy(), parameter.grad.numpy(), rtol=2e-6 if dtype == "float32" else 1e-3)


@pytest.mark.parametrize("make", [
    lambda: optim.SGD(0.1, 0.9, max_grad_norm=1.0), lambda: optim.AdamW(0.1), lambda: optim.Lion(0.1),
    lambda: optim.Adafactor(0.1), lambda: optim.Muon(0.1, other=optim.AdamW(0.1)),
])  # fmt: skip
def test_parameters_without_elements(backend, make):
    full = {"w": np.ones((3, 3), np.float32)}
    none = {"a": np.zeros((0, 3), np.float32), "b": np.zeros((3, 0), np.float32), "c": np.zeros(0, np.float16)}
    optimizer = make()
    (want,) = make().update(full, full).values()
    found = optimizer.update(full | none, full | none)
    np.testing.assert_array_equal(found["w"].numpy(), want.numpy())
    assert {name: found[name].shape for name in none} == {name: none[name].shape for name in none}
    optimizer.load_state_dict(optimizer.state_dict())
    assert make().update(none, none)["a"].shape == (0, 3)
    clipped, norm = optim.clip_grad_norm(full | none, 1.0)
    assert float(norm) == 3.0 and clipped["b"].shape == (3, 0)
    average = optim.EMA(none | full, 0.5)
    average.update(none | full)
    assert average.state_dict()["a"].shape == (0, 3)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("case", ["sgd", "adamw", "adafactor", "muon"])
def test_a_step_with_infinities_is_left_out(backend, case, bad):
    model = model_of(MATRICES)
    make = CASES[case][0] if case in CASES else lambda **more: optim.Muon(0.01, **more)
    optimizer, random = make(loss_scale=optim.LossScale(16.0, interval=3)), np.random.default_rng(1)
    optimizer.update(model, {name: grad * 16 for name, grad in gradients_of(model, random).items()})
    weights, state = model.state_dict(), optimizer.state_dict()
    grads = gradients_of(model, random)
    grads["b"][3, 4] = bad
    optimizer.update(model, grads)
    assert (optimizer.steps, optimizer.skipped, optimizer.loss_scale) == (1, 1, 8.0)
    changed = {"skipped", "good_steps", "loss_scale"}
    for before, after in ((weights, model.state_dict()), (state, optimizer.state_dict())):
        for name, value in before.items():
            if name not in changed:
                np.testing.assert_array_equal(value, after[name], err_msg=name)
    for _ in range(3):
        optimizer.update(model, gradients_of(model, random))
    assert (optimizer.steps, optimizer.skipped, optimizer.loss_scale) == (4, 1, 16.0)
    assert all(np.isfinite(value).all() for value in model.state_dict().values())


def test_the_loss_scale_goes_out_of_gradients_again(backend):
    models = [model_of() for _ in range(2)]
    scales = None, optim.LossScale(1024.0)
    plain, scaled = (optim.AdamW(1e-2, max_grad_norm=0.3, loss_scale=scale) for scale in scales)
    random = np.random.default_rng(1)
    loss = scaled.scale(backend.tensor(np.float32(0.5)))
    assert loss.shape == () and float(loss) == 512.0
    for _ in range(20):
        grads = gradients_of(models[0], random)
        plain.update(models[0], grads)
        scaled.update(models[1], {name: grad * np.float32(1024) for name, grad in grads.items()})
    for one, other in zip(models[0].state_dict().values(), models[1].state_dict().values(), strict=True):
        near(one, other)
    with pytest.raises(ValueError, match="loss_scale"):
        plain.scale(loss)


# -- state


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", ["sgd", "dampening", "adamw", "adafactor", "muon"])
def test_state_goes_to_safetensors_and_back(backend, tmp_path, case, dtype):
    """Bit for bit, so that what goes on from it has the bits of what never stopped."""
    files = pytest.importorskip("safetensors.numpy")
    make = CASES[case][0] if case in CASES else lambda **more: optim.Muon(0.01, **more)
    shapes = MATRICES if case == "muon" else SHAPES
    model, random = model_of(shapes, dtype=dtype), np.random.default_rng(1)
    optimizer = make(max_grad_norm=0.5, loss_scale=optim.LossScale(4.0))
    for _ in range(3):
        optimizer.update(model, gradients_of(model, random, dtype))
    files.save_file(optimizer.state_dict(), tmp_path / "optimizer.safetensors")
    weights = {name: np.array(value) for name, value in model.state_dict().items()}
    files.save_file(weights, tmp_path / "model.safetensors")
    other, second = make(max_grad_norm=0.5, loss_scale=optim.LossScale(4.0)), model_of(shapes, seed=9, dtype=dtype)
    second.load_state_dict(files.load_file(tmp_path / "model.safetensors"))
    other.init(second)
    other.load_state_dict(files.load_file(tmp_path / "optimizer.safetensors"))
    for name, value in optimizer.state_dict().items():
        np.testing.assert_array_equal(value, other.state_dict()[name], err_msg=name)
    for _ in range(3):
        grads = gradients_of(model, random, dtype)
        optimizer.update(model, grads)
        other.update(second, grads)
    for (name, value), found in zip(model.state_dict().items(), second.state_dict().values(), strict=True):
        np.testing.assert_array_equal(value, found, err_msg=name)
    assert other.steps == 6


def test_state_that_does_not_fit(backend):
    model, optimizer = model_of(), optim.AdamW(1e-3)
    with pytest.raises(ValueError, match="init"):
        optimizer.state_dict()
    with pytest.raises(ValueError, match="init"):
        optimizer.load_state_dict({})
    optimizer.init(model)
    state = optimizer.state_dict()
    with pytest.raises(ValueError, match="missing are .*'step'"):
        optimizer.load_state_dict({name: value for name, value in state.items() if name != "step"})
    with pytest.raises(ValueError, match=r"unexpected \['more'\]"):
        optimizer.load_state_dict({**state, "more": state["step"]})
    with pytest.raises(ValueError, match=r"exp_avg.second has shape \(4,\)"):
        optimizer.load_state_dict({**state, "exp_avg.second": np.zeros(4, np.float32)})
    with pytest.raises(TypeError, match="float64"):
        optimizer.load_state_dict({**state, "exp_avg.second": np.zeros(33)})
    with pytest.raises(TypeError, match="list"):
        optimizer.load_state_dict([])


# -- averages


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_moving_averages(backend, dtype):
    model, random = model_of(dtype=dtype), np.random.default_rng(1)
    optimizer = optim.SGD(0.1)
    optimizer.init(model)
    average = optim.EMA(model, 0.9)
    want = {name: np.float64(value) for name, value in model.state_dict().items()}
    for _ in range(10):
        optimizer.update(model, gradients_of(model, random, dtype))
        average.update(model)
        for name, value in model.state_dict().items():
            want[name] = 0.9 * want[name] + 0.1 * np.float64(value)
    found = average.state_dict()
    for name, value in want.items():
        near(found[name], value)
    assert dispatches(backend, lambda: average.update(model)) == 1
    other = model_of(seed=5, dtype=dtype)
    average.copy_to(other)
    for name, value in other.state_dict().items():
        np.testing.assert_array_equal(value, average.averages()[name].numpy().astype(dtype))
    again = optim.EMA(other, 0.9)
    again.load_state_dict(found)
    for name, value in again.state_dict().items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, found[name])
    with pytest.raises(ValueError, match="first.bias"):
        average.update(model_of(MATRICES))
    with pytest.raises(ValueError, match="load_state_dict"):
        again.load_state_dict({})
    with pytest.raises(TypeError, match="Module"):
        average.copy_to({})
