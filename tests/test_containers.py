"""Sequential, ModuleList, Identity and Dropout."""

import numpy as np
import pytest

import grilly
import grilly.functional as F
from cases import DTYPES, epsilon
from grilly import nn, reference


def draw(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def mlp():
    return nn.Sequential(nn.Linear(6, 8, rng=0), nn.Identity(), nn.Linear(8, 3, rng=1))


# -- containers -------------------------------------------------------------------------------------------------------


def test_sequential_is_its_modules_in_a_row(backend):
    model = mlp().to(backend)
    x = draw(4, 6)
    exact = reference.linear(x, model[0].weight.numpy(), model[0].bias.numpy(), dtype=np.float64)
    exact = reference.linear(exact, model[2].weight.numpy(), model[2].bias.numpy(), dtype=np.float64)
    found = model(x)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5)
    on_device = model(backend.tensor(x))
    assert isinstance(on_device, grilly.Tensor)
    np.testing.assert_array_equal(on_device.numpy(), found)
    assert nn.Sequential()(x) is x


def test_backward_is_of_its_own_forward(vulkan_backend):
    """Whatever its modules did since: a part of them ran, or another forward failed on its way."""
    model = nn.Sequential(nn.Linear(6, 8, rng=0), nn.Tanh(), nn.Linear(8, 3, rng=1)).to(vulkan_backend).train()
    x, grad = draw(4, 6), draw(4, 3, seed=1)
    model(x)
    wanted = model.backward(grad)
    model(x)
    model[:2](draw(4, 6, seed=2))
    np.testing.assert_array_equal(model.backward(grad), wanted)
    model(x)
    with pytest.raises(ValueError):
        model(draw(4, 7))
    np.testing.assert_array_equal(model.backward(grad), wanted)


def test_backward_runs_in_reverse(vulkan_backend):
    model = mlp().to(vulkan_backend).train()
    x, grad = draw(4, 6), draw(4, 3, seed=1)
    hidden = nn.Linear(6, 8, rng=0).to(vulkan_backend)(x)
    model(x)
    found = model.backward(grad)
    assert isinstance(found, np.ndarray)
    first, last = model[0], model[2]
    dhidden = grad.astype(np.float64) @ last.weight.numpy()
    np.testing.assert_allclose(found, dhidden @ first.weight.numpy(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(last.weight.grad, grad.T.astype(np.float64) @ hidden, rtol=0, atol=1e-5)
    np.testing.assert_allclose(first.weight.grad, dhidden.T @ x, rtol=0, atol=1e-5)
    with pytest.raises(RuntimeError, match="Sequential.backward: no forward"):
        model.backward(grad)
    model(vulkan_backend.tensor(x))
    assert isinstance(model.backward(vulkan_backend.tensor(grad)), grilly.Tensor)
    model(x)
    on_device = model.backward(vulkan_backend.tensor(grad))
    np.testing.assert_array_equal(on_device.numpy(), found)


def test_names_of_the_state_are_pytorchs():
    assert list(mlp().state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    named = nn.Sequential({"up": nn.Linear(2, 3), "act": nn.Identity(), "down": nn.Linear(3, 2, bias=False)})
    assert list(named.state_dict()) == ["up.weight", "up.bias", "down.weight"]
    assert named.up is named[0] and list(named[1:].state_dict()) == ["down.weight"]
    other = mlp()
    other.load_state_dict(mlp().state_dict())


@pytest.mark.parametrize("kind", [nn.Sequential, lambda *modules: nn.ModuleList(modules)])
def test_they_are_lists(kind):
    a, b, c, d = (nn.Linear(2, 2, bias=False) for _ in range(4))
    row = kind(a, b)
    assert row.append(c) is row and len(row) == 3 and list(row) == [a, b, c] and b in row and d not in row
    assert row[0] is a and row[-1] is c and row[np.int64(1)] is b
    part = row[1:]
    assert type(part) is type(row) and list(part) == [b, c]
    assert row.insert(1, d) is row and list(row) == [a, d, b, c]
    assert list(row.state_dict()) == ["0.weight", "1.weight", "2.weight", "3.weight"]
    assert row.pop() is c and row.pop(0) is a and list(row) == [d, b]
    row[-1] = a
    assert list(row) == [d, a] and row.extend([b, c]) is row
    del row[0], row[1:]
    assert list(row) == [a] and list(row.state_dict()) == ["0.weight"]
    for bad in (lambda: row[1], lambda: row.pop(-2)):
        with pytest.raises(IndexError, match="out of bounds for 1 modules"):
            bad()
    for bad in (lambda: row.append(3), lambda: row.insert(0, 3), lambda: row.__setitem__(0, 3)):
        with pytest.raises(TypeError, match="expected an nn.Module, got int"):
            bad()
    assert list(row) == [a]


def test_the_list_of_names_stays_the_slices_of_a_list_are_numbered_anew():
    row = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(4)])
    assert list(row[2:].state_dict()) == ["0.weight", "1.weight"]
    with pytest.raises(NotImplementedError, match="ModuleList has no forward"):
        row(1)


@pytest.mark.parametrize("kind", [nn.ModuleList, lambda modules: nn.Sequential(*modules)], ids=["list", "sequential"])
def test_sums_of_containers(kind):
    first, second, third = nn.ReLU(), nn.Tanh(), nn.SiLU()
    own = same = kind([first, second])
    more = own + [third]
    assert type(more) is type(own) and list(more) == [first, second, third] and len(own) == 2
    own += [third]
    assert own is same and list(own) == [first, second, third]


@pytest.mark.parametrize("name", ["", "a.b", "forward", "training"])
def test_names_that_are_refused(name):
    with pytest.raises(ValueError, match="names no module"):
        nn.Sequential({name: nn.Identity()})


def test_identity():
    thing = object()
    layer = nn.Identity(54, unused=True)
    assert layer(thing) is thing and layer.backward(thing) is thing and not layer.state_dict()


# -- dropout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_is_the_reference(backend, dtype):
    x = draw(7, 13, 3, dtype=dtype)
    for p, seed, offset in ((0.1, 3, 0), (0.75, 2**63 + 5, 9)):
        exact = reference.dropout(x, p, seed, offset, dtype=np.float64)
        found = F.dropout(backend.tensor(x), p, seed=seed, offset=offset).numpy()
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(found == 0, exact == 0)
        bound = 2 * epsilon(np.float32) + (0 if dtype == np.float32 else epsilon(dtype) / 2)
        assert (np.abs(found.astype(np.float64) - exact) <= bound * np.abs(exact)).all()


def test_dropout_keeps_what_the_generator_says(vulkan_backend):
    words = reference.philox([(n, 0, 0, 2) for n in range(251)], (5, 0)).reshape(-1)[:1001]
    kept = words < int(0.7 * 2**32)
    found = F.dropout(np.ones(1001, np.float32), 0.3, seed=5, offset=2)
    np.testing.assert_array_equal(found != 0, kept)
    assert abs(kept.mean() - 0.7) < 0.07
    wrong = np.full(1001, np.nan, np.float32)  # what is dropped is 0 whatever it was
    assert (F.dropout(wrong, 0.3, seed=5, offset=2)[~kept] == 0).all()


def test_dropout_of_views(vulkan_backend):
    x = draw(11, 30)
    tensor = vulkan_backend.tensor(x)
    for view in (lambda a: a.T, lambda a: a[1:, 3:], lambda a: a[3, 5:]):
        whole = np.ascontiguousarray(view(x))
        np.testing.assert_array_equal(
            F.dropout(view(tensor), 0.4, seed=1).numpy(), F.dropout(vulkan_backend.tensor(whole), 0.4, seed=1).numpy()
        )


def test_dropout_that_drops_nothing_or_all(vulkan_backend):
    x = vulkan_backend.tensor(draw(5))
    assert F.dropout(x, 0.0, seed=1) is x and F.dropout(x, 0.9, training=False) is x
    assert (F.dropout(x, 1.0).numpy() == 0).all()
    assert F.dropout(vulkan_backend.tensor(draw(0, 3))).shape == (0, 3)


def test_seeds_on_the_device_and_in_a_capture(vulkan_backend):
    x = draw(300)
    tensor = vulkan_backend.tensor(x)
    expected = {seed: F.dropout(tensor, 0.5, seed=seed).numpy() for seed in (1, 2)}
    assert (expected[1] != expected[2]).any()
    for dtype in (np.int64, np.int32, np.uint8):
        found = F.dropout(x, 0.5, seed=vulkan_backend.tensor(np.array([2], dtype)))
        assert isinstance(found, grilly.Tensor)
        np.testing.assert_array_equal(found.numpy(), expected[2])
    graph = vulkan_backend.capture(lambda a, seed: F.dropout(a, 0.5, seed=seed), x, np.array([1]))
    for seed in (1, 2):
        np.testing.assert_array_equal(graph(x, np.array([seed])).numpy(), expected[seed])
    graph = vulkan_backend.capture(lambda a: nn.Dropout().eval()(a) + 1, x)
    np.testing.assert_array_equal(graph(x).numpy(), x + 1)


def test_the_layer(vulkan_backend):
    layer = nn.Dropout(0.25).to(vulkan_backend).train()
    x, grad = draw(9, 31), draw(9, 31, seed=1)
    grilly.manual_seed(4)
    first, dx = layer(x), layer.backward(grad)
    second = layer(x)
    assert (first != second).any()
    np.testing.assert_array_equal(dx, F.dropout(vulkan_backend.tensor(grad), 0.25, seed=4, offset=0).numpy())
    np.testing.assert_array_equal(dx == 0, first == 0)
    grilly.manual_seed(4)
    np.testing.assert_array_equal(layer(vulkan_backend.tensor(x)).numpy(), first)
    layer.eval()
    assert layer(x) is x
    assert repr(layer) == "Dropout(p=0.25)"


def test_what_dropout_refuses(vulkan_backend):
    x = draw(3)
    for error, match, call in (
        (TypeError, "input is float64; expected float32", lambda: F.dropout(np.zeros(3))),
        (ValueError, "p is 1.5; expected 0 to 1", lambda: F.dropout(x, 1.5)),
        (ValueError, "seed is -1", lambda: F.dropout(x, seed=-1)),
        (TypeError, "seed is 0.5; expected an integer", lambda: F.dropout(x, seed=0.5)),
        (TypeError, "seed is a tensor of float32", lambda: F.dropout(x, seed=vulkan_backend.tensor(x[:1]))),
        (ValueError, "offset is 4294967296", lambda: F.dropout(x, seed=1, offset=2**32)),
        (ValueError, "Dropout: p is -1.0", lambda: nn.Dropout(-1)),
    ):
        with pytest.raises(error, match=match):
            call()


def test_a_module_may_stand_at_several_places(default):
    """Each place has its own record, and parameters get the gradients of all."""
    relu, tied = nn.ReLU(), nn.Linear(4, 4, rng=0)
    module = nn.Sequential(tied, relu, nn.Sequential(nn.Linear(4, 4, rng=1), relu, tied, relu), nn.Identity(), relu)
    apart = nn.Sequential(
        nn.Linear(4, 4, rng=0), nn.ReLU(),
        nn.Sequential(nn.Linear(4, 4, rng=1), nn.ReLU(), nn.Linear(4, 4, rng=0), nn.ReLU()), nn.Identity(), nn.ReLU(),
    )  # fmt: skip
    x, grad = np.random.default_rng(0).standard_normal((2, 3, 4), dtype=np.float32)
    module.train()
    apart.train()
    for _ in range(3):  # forwards without backward take the place of those before
        np.testing.assert_array_equal(module(x), apart(x))
    np.testing.assert_array_equal(module.backward(grad), apart.backward(grad))
    sums = apart[0].weight.grad + apart[2][2].weight.grad
    np.testing.assert_allclose(tied.weight.grad, sums, rtol=1e-6)
    np.testing.assert_array_equal(module[2][0].weight.grad, apart[2][0].weight.grad)
    with pytest.raises(RuntimeError, match="no forward"):
        module.backward(grad)


def test_a_container_at_two_places(default):
    inner = nn.Sequential(nn.Linear(4, 4, rng=0), nn.Tanh())
    module = nn.Sequential(inner, inner).train()
    x = np.ones((2, 4), np.float32)
    y = module(x)
    found = module.backward(np.ones_like(y))
    first, second = (nn.Sequential(nn.Linear(4, 4, rng=0), nn.Tanh()).train() for _ in range(2))
    second(first(x))
    np.testing.assert_array_equal(found, first.backward(second.backward(np.ones_like(y))))


def test_a_layer_that_ran_twice_elsewhere_is_explained(default):
    relu, x = nn.ReLU().train(), np.ones(3, np.float32)
    relu(relu(x))
    relu.backward(x)
    with pytest.raises(RuntimeError, match="runs twice keeps the last: .*each place needs a layer of its own"):
        relu.backward(x)
