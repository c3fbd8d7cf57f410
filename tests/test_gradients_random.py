"""Gradients of programs that are drawn, against PyTorch's in float64."""

import functools

import numpy as np
import pytest

import grilly

torch = pytest.importorskip("torch")

UNARY = {
    "tanh": (grilly.tanh, torch.tanh), "sin": (grilly.sin, torch.sin), "negative": (grilly.negative, torch.negative),
    "bounded": (lambda x: grilly.exp(-x * x), lambda x: torch.exp(-x * x)),
    "root": (lambda x: grilly.sqrt(x * x + 1.0), lambda x: torch.sqrt(x * x + 1.0)),
    "log": (lambda x: grilly.log(x * x + 0.5), lambda x: torch.log(x * x + 0.5)),
    "abs": (grilly.abs, torch.abs), "clip": (lambda x: grilly.clip(x, -1.0, 0.5), lambda x: torch.clip(x, -1.0, 0.5)),
    "halves": (lambda x: grilly.where(x > 0.1, x, x * 0.25), lambda x: torch.where(x > 0.1, x, x * 0.25)),
    "transposed": (lambda x: x.T, lambda x: x.T), "turned": (lambda x: grilly.flip(x, axis=0), lambda x: x.flip(0)),
    "some": (lambda x: x[::2], lambda x: x[::2]), "row": (lambda x: x[-1:], lambda x: x[-1:]),
    "flat": (lambda x: x.reshape(1, -1), lambda x: x.reshape(1, -1)),
    "sums": (lambda x: grilly.cumulative_sum(x, axis=1), lambda x: x.cumsum(1)),
    "means": (lambda x: grilly.mean(x, axis=0, keepdims=True), lambda x: x.mean(0, True)),
    "total": (lambda x: grilly.sum(x, axis=1, keepdims=True), lambda x: x.sum(1, True)),
    "largest": (lambda x: grilly.max(x, axis=1, keepdims=True), lambda x: x.amax(1, True)),
    "sorted": (lambda x: grilly.sort(x, axis=1), lambda x: x.sort(1).values),
    "taken": (lambda x: grilly.take(x, np.arange(3) % x.shape[0], axis=0), lambda x: x[np.arange(3) % x.shape[0]]),
    "lower": (grilly.tril, torch.tril), "twice": (lambda x: grilly.tile(x, (2, 1)), lambda x: x.tile(2, 1)),
}  # fmt: skip
BINARY = {
    "add": (grilly.add, torch.add), "subtract": (grilly.subtract, torch.subtract),
    "multiply": (grilly.multiply, torch.multiply), "maximum": (grilly.maximum, torch.maximum),
    "ratio": (lambda x, y: x / (y * y + 1.0), lambda x, y: x / (y * y + 1.0)),
    "hypot": (lambda x, y: grilly.hypot(x, y * y + 0.5), lambda x, y: torch.hypot(x, y * y + 0.5)),
}  # fmt: skip


def program(seed, instructions=9):
    """Two arrays, and a list of (name, numbers of values), each instruction's result being one more value."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 6, 2))
    arrays = [rng.uniform(-1, 1, shape).astype(np.float32), rng.uniform(-1, 1, shape[::-1]).astype(np.float32)]
    shapes, steps = [a.shape for a in arrays], []
    while len(steps) < instructions:
        first, second = (int(n) for n in rng.integers(max(len(shapes) - 4, 0), len(shapes), 2))
        kind = rng.integers(4)
        if kind == 0 and shapes[first][1] == shapes[second][0]:
            steps.append(("product", (first, second)))
        elif kind == 1:
            steps.append((str(rng.choice([*BINARY])), (first, second)))
        elif kind == 2 and shapes[first][0] == shapes[second][0]:
            steps.append(("joined", (first, second)))
        else:
            steps.append((str(rng.choice([*UNARY])), (first,)))
        try:
            probe = run(steps[-1:], [torch.zeros(shapes[n]) for n in steps[-1][1]], 1, range(2))[-1]
        except RuntimeError:  # shapes that do not broadcast
            steps.pop()
            continue
        if probe.numel() > 200:
            steps.pop()
            continue
        shapes.append(tuple(probe.shape))
    return arrays, steps


def run(steps, values, library, numbers=None):
    """All values of a program, by grilly (0) or PyTorch (1)."""
    values = [*values]
    joined = (lambda x, y: grilly.concat([x, y], axis=1), lambda x, y: torch.cat([x, y], 1))
    table = {**UNARY, **BINARY, "product": (grilly.matmul, torch.matmul), "joined": joined}
    for name, places in steps:
        own = places if numbers is None else numbers[: len(places)]
        values.append(table[name][library](*(values[n] for n in own)))
    return values


def check(seed, captured=None):
    arrays, steps = program(seed)
    weights = [np.cos(np.arange(n + 1.0)).astype(np.float32) for n in range(3)]

    def loss(library, *values):
        """A weighted sum of the means of the last values."""
        mean = (grilly.mean, torch.mean)[library]
        parts = zip(run(steps, values, library)[-3:], weights, strict=True)
        return functools.reduce(lambda x, y: x + y, (mean(x) * float(w[-1]) for x, w in parts))

    exact = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]
    expected = loss(1, *exact)
    gradients = torch.autograd.grad(expected, exact, allow_unused=True)
    step = grilly.value_and_grad(functools.partial(loss, 0), (0, 1))
    value, found = captured.capture(step, *arrays)(*arrays) if captured else step(*arrays)
    np.testing.assert_allclose(value.item(), expected.item(), rtol=1e-4, atol=1e-4)
    for one, known, array in zip(found, gradients, arrays, strict=True):
        known = np.zeros(array.shape) if known is None else known.numpy()
        scale = max(np.abs(known).max(), 1e-2)
        np.testing.assert_allclose(one.numpy(), known, rtol=2e-4, atol=2e-4 * scale, err_msg=f"{seed}: {steps}")


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(default, seed):
    check(seed)


@pytest.mark.parametrize("seed", range(100, 103))
def test_random_programs_captured(default, seed):
    check(seed, default)


@pytest.mark.long("2,000 programs; the short run has some of each kind")
@pytest.mark.parametrize("part", range(20))
def test_many_random_programs(default, part):
    for seed in range(1000 + 100 * part, 1100 + 100 * part):
        check(seed)
