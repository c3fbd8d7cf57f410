"""Copies in captured work that are left out: the bits stay, and there are fewer dispatches."""

import numpy as np
import pytest

import grilly
import grilly.functional as F
from graphs import default, equal, random
from grilly import nn, optim


def laid(arrays, places, size, before=False):
    """Twice the arrays, each at its place of a new one; and one more than what is there."""
    backend = arrays[0].backend
    whole = grilly.zeros(size, device=backend) if before else backend.empty(size)
    for place, array in zip(places, arrays, strict=True):
        whole[place : place + array.size] = (array * 2.0).reshape(-1)
    parts = [whole[place : place + array.size] for place, array in zip(places, arrays, strict=True)]
    return [F.relu(part) for part in parts]


CASES = {
    # shapes, places and the size of the new array; the dispatches of which none is a copy
    "side by side": (((64,), (4, 16), (3, 64)), (0, 64, 128), 320, 0),
    "with gaps": (((3,), (5,)), (0, 16), 32, 0),
    "not aligned": (((3,), (5,)), (0, 3), 8, 1),
    "over each other": (((64,), (64,)), (0, 16), 80, 1),
    "backwards": (((64,), (64,)), (64, 0), 128, 0),
}


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_copies_to_places(vulkan_backend, name, before):
    """Zeros that were there before are not written over too soon: then all copies stay."""
    shapes, places, size, copies = CASES[name]
    arrays = [random(*shape, seed=number) for number, shape in enumerate(shapes)]
    graph = vulkan_backend.capture(lambda arrays: laid(arrays, places, size, before), arrays)
    for factor in (1.0, -3.0):
        given = [vulkan_backend.tensor(np.float32(factor) * array) for array in arrays]
        equal(graph(given), laid(given, places, size, before))
    copies = 1 + len(arrays) if before else copies
    assert graph.dispatches == 2 * len(arrays) + copies


KEPT = {
    "read later": lambda x, whole: (whole.__setitem__(slice(0, 64), x), whole + 1, x * 2),
    "returned": lambda x, whole: (whole.__setitem__(slice(0, 64), x), whole + 1, x),
    "written later": lambda x, whole: (whole.__setitem__(slice(0, 64), x), [x.__iadd__(1.0)], whole + 1, x + 1),
    "written over": lambda x, whole: (
        whole.__setitem__(slice(0, 64), x), whole.__setitem__(slice(0, 64), x * 3.0), whole + 1, x * 2
    ),
    "twice": lambda x, whole: (
        whole.__setitem__(slice(0, 64), x), whole.__setitem__(slice(64, 128), x), whole[:128] + 1
    ),
    "turned": lambda x, whole: (whole.__setitem__(slice(0, 64), x.reshape(8, 8).T.reshape(64)), whole[:64] + 1),
    "from itself": lambda x, whole: (
        whole.__setitem__(slice(0, 64), x), whole.__setitem__(slice(64, 128), whole[:64]), whole[:128] + 1
    ),
    "cast": lambda x, whole: (whole.__setitem__(slice(0, 64), x.astype("float16").astype("float32")), whole[:64] + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_arrays_that_are_used_otherwise(vulkan_backend, name):
    def call(x):
        whole = x.backend.empty(192)
        return [part[:64] for part in KEPT[name](F.relu(x), whole) if isinstance(part, grilly.Tensor)]

    x = random(64)
    graph = vulkan_backend.capture(call, x)
    for factor in (1.0, -2.0):
        given = vulkan_backend.tensor(np.float32(factor) * x)
        equal(graph(given), call(given))


def program(rng, steps):
    """A random function of two arrays (8, 16), by numbers that were drawn once."""
    drawn = [(rng.integers(9), *rng.integers(0, 1 << 20, 4)) for _ in range(steps)]

    def call(x, y):
        held, backend = [x, y], x.backend
        for kind, first, second, third, fourth in drawn:
            a, b = held[first % len(held)], held[second % len(held)]
            if kind == 0:
                made = a * 0.5 + 1.0
            elif kind == 1:
                made = grilly.concat([a, b], axis=0)[third % 3 :]
            elif kind == 2:
                made = F.softmax(a)
            elif kind == 3:
                made = a[: 8 - third % 3].T.reshape(16, -1).T * 1.5
            elif kind == 4:
                made = grilly.sum(a, axis=0, keepdims=True) + a
            else:
                parts = [a, b, x[: third % 3]][:: 1 - fourth % 2 * 2]
                size = sum(part.shape[0] for part in parts)
                made = grilly.zeros((size, 16), device=backend) if kind == 5 else backend.empty((size, 16))
                for part in parts:
                    made[size - part.shape[0] : size] = part if kind < 8 else part * 0.5
                    size -= part.shape[0]
            if made.shape[0] < 8:
                made = grilly.concat([made, x[made.shape[0] :]], axis=0)
            held.append(made[:24])
        return [held[-1], held[-2] + 0.0, grilly.sum(held[len(held) // 2])]

    return call


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(vulkan_backend, seed):
    with default(vulkan_backend):
        call = program(np.random.default_rng(seed), 14)
        given = [random(8, 16, seed=seed), random(8, 16, seed=seed + 1)]
        graph = vulkan_backend.capture(call, *given)
        for factor in (1.0, 0.25):
            tensors = [vulkan_backend.tensor(np.float32(factor) * array) for array in given]
            equal(graph(*tensors), call(*tensors))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients_lie_where_the_optimizer_reads_them(vulkan_backend, dtype):
    """No copy for any parameter: as many dispatches as the gradients and the update alone, and the same bits."""
    with default(vulkan_backend):

        def trained(captured):
            model = nn.Sequential(nn.Linear(48, 33, rng=0), nn.GELU(), nn.LayerNorm(33), nn.Linear(33, 7, rng=1))
            model.to(vulkan_backend).to(dtype=dtype)
            optimizer = optim.AdamW(1e-2)
            optimizer.init(model)
            of = grilly.value_and_grad(lambda model, x: grilly.mean(model(x) ** 2))

            def step(x):
                loss, gradients = of(model, x)
                optimizer.update(model, gradients)
                return loss

            x = vulkan_backend.tensor(random(5, 48)).astype(dtype)
            run = vulkan_backend.capture(step, x) if captured else step
            losses = [float(run(x)) for _ in range(4)]
            alone = vulkan_backend.capture(lambda x: of(model, x), x)
            return losses, model.state_dict(), run, alone

        losses, found, graph, alone = trained(True)
        wanted, plain, _, _ = trained(False)
    assert losses == wanted
    for name, array in plain.items():
        np.testing.assert_array_equal(found[name], array)
    update = 3  # the numbers of the step, the update, the count
    assert graph.dispatches <= alone.dispatches + update
