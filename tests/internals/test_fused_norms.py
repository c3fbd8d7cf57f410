"""Norms and softmaxes of a graph with elementwise operations beside them: one dispatch, the bits of the calls.

On GPUs kernels with holes add up a row in another order than those without, which shows in float32.
"""

from __future__ import annotations

import numpy as np
import pytest

import grilly.compute.graph
import grilly.functional as F
from graphs import bits, default, equal, random, random_program
from graphs import check as check_bits
from grilly import array_api as xp
from grilly.compute.norms import fusion


@pytest.fixture
def backend(vulkan_backend, monkeypatch):
    """One that fuses whatever its kernels can do, worth it or not."""
    monkeypatch.setattr(fusion, "most_calls", lambda *_: 1000)
    with default(vulkan_backend):
        yield vulkan_backend


def check(backend, function, *arguments, dispatches=None):
    """As ``graphs.check``; on GPUs float32 may differ by the rounding of sums."""
    if backend.device.kind == "cpu":
        return check_bits(backend, function, *arguments, dispatches=dispatches)
    wanted, graph = function(*arguments), backend.capture(function, *arguments)
    assert dispatches in (None, graph.dispatches)
    for _ in range(2):
        found = graph(*arguments)
        for one, other in zip(*(t if isinstance(t, tuple) else (t,) for t in (found, wanted)), strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape
            if one.dtype != np.float32:
                np.testing.assert_array_equal(bits(one), bits(other))
                continue
            other = other.numpy()
            np.testing.assert_allclose(one.numpy(), other, rtol=2e-6, atol=2e-6 * np.abs(other).max(initial=0))
    return graph


def scaled(x, y, w, b):
    return F.rms_norm(x + y, x.shape[-1:]) * w


def biased(x, y, w, b):
    return F.softmax(x * 0.125 + y)


def activated(x, y, w, b):
    return F.gelu(F.layer_norm(x, x.shape[-1:], w, b))


def both(x, y, w, b):
    return F.log_softmax(x * w + 0.25) * -0.5 + y


def doubled(x, y, w, b):
    """With what is made before the norm behind it as well."""
    first = x * 2.0
    return F.layer_norm(first, x.shape[-1:]) * first + y


PROGRAMS = [scaled, biased, activated, both, doubled]


@pytest.mark.parametrize(
    "shape, dtype",
    [((7, 13), "float32"), ((5, 1), "float32"), ((2, 1028), "float32"), ((6, 512), "float32"), ((33, 301), "float16"),
     ((3, 64), "float16")],
)  # fmt: skip
def test_one_dispatch_with_the_bits_of_the_calls(backend, shape, dtype):
    x, y = (backend.tensor(random(*shape, seed=seed) * 3).astype(dtype) for seed in (1, 2))
    w, b = (backend.tensor(random(shape[-1], seed=seed)).astype(dtype) for seed in (3, 4))
    for program in PROGRAMS:
        check(backend, program, x, y, w, b, dispatches=1)


@pytest.mark.needs("ml_dtypes")
def test_bfloat16(backend):
    x, y = (backend.tensor(random(3, 264, seed=seed) * 3).astype("bfloat16") for seed in (1, 2))
    for program in PROGRAMS:
        check(backend, program, x, y, x[0], y[0], dispatches=1)


@pytest.mark.parametrize("shape, axis", [((64, 24), 0), ((3, 19, 8), 1), ((700, 4), 0), ((2, 5, 7), -2)])
def test_along_other_axes(backend, shape, axis):
    x, y = (backend.tensor(random(*shape, seed=seed)) for seed in (1, 2))
    row = backend.tensor(random(shape[-1], seed=3))
    check(backend, lambda x, y: F.softmax(x * y, dim=axis) - 1.0, x, y, dispatches=1)
    check(backend, lambda x, row: F.log_softmax(x + row, dim=axis) * row, x, row, dispatches=1)


def test_operands_that_broadcast_or_have_strides(backend):
    def tensor(*shape, seed, dtype="float16"):
        return backend.tensor(random(*shape, seed=seed)).astype(dtype)

    x, row, column, one = tensor(4, 6, 8, seed=1), tensor(8, seed=2), tensor(6, 1, seed=3), tensor(1, seed=4)
    check(backend, lambda x, a, b: F.softmax(x * a + b), x, row, column, dispatches=1)
    check(backend, lambda x, a, b: F.rms_norm(x * a, (8,)) * b, x, one, column, dispatches=1)
    scores, bias = tensor(2, 3, 5, 12, seed=5), tensor(2, 1, 5, 12, seed=6)
    check(backend, lambda s, b: F.softmax(s * 0.5 + b), scores, bias, dispatches=1)
    check(backend, lambda x, r: F.layer_norm(x[1:, ::2] + 1.0, (8,)) * r, x, row, dispatches=1)
    check(backend, lambda x, r: F.softmax(x[..., 1:6] * r[2:7]), x, row, dispatches=1)
    check(backend, lambda x: F.softmax(x[0, :, 1:] + x[1, :, :-1]), x, dispatches=1)
    turned = tensor(8, 6, seed=7)
    check(backend, lambda x, t: F.log_softmax(x[0] + t.T) * x[1], x, turned, dispatches=1)
    check(backend, lambda x: F.layer_norm(x * 2.0, (6, 8)) + 1.0, x, dispatches=1)
    check(backend, lambda x, a: F.layer_norm(x * a, (6, 8)), x, row, dispatches=2)  # along a part of a row
    check(backend, lambda x: F.softmax((x * 2.0).reshape(24, 8)).reshape(4, 48) * 0.5, x, dispatches=1)


def test_different_dtypes(backend):
    x, mask = backend.tensor(random(6, 20)), backend.tensor(random(6, 20, seed=1) > 0)
    check(backend, lambda x, mask: F.softmax(xp.where(mask, x * 0.5, -np.inf)), x, mask, dispatches=1)
    check(backend, lambda x: F.softmax(x.astype("float16")), x, dispatches=1)
    check(backend, lambda x: (F.softmax(x) * 100.0).astype("int32"), x, dispatches=1)
    check(backend, lambda x: F.softmax(x).astype("float16"), x, dispatches=2)  # elements of another width
    whole = backend.tensor(np.arange(120, dtype=np.int8).reshape(6, 20) - 60)
    check(backend, lambda n, x: F.rms_norm(n.astype("float16") * 0.25, (20,)), whole, x, dispatches=1)
    check(backend, lambda n, x: F.rms_norm(n.astype("float32") * x, (20,)) > 0, whole, x, dispatches=2)


def test_numbers_at_the_edges(backend):
    edges = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-40, 3e38, 1e30, 1e-30, 2.0**-126, 1.0], np.float32)
    x, y = (backend.tensor(part) for part in np.meshgrid(edges, edges))
    for program in (scaled, biased, doubled):
        check(backend, program, x, y, x[0], y[0], dispatches=1)
    check(backend, lambda x: F.rms_norm(x * 1e25, (9,)) * 2.0, backend.tensor(random(5, 9)), dispatches=1)
    check(backend, lambda x: F.layer_norm(x * 1e-30, (9,), eps=0.0), backend.tensor(random(5, 9)), dispatches=1)


def test_sums_of_norms_with_a_residual_are_stored(backend):
    x, r = backend.tensor(random(6, 24)), backend.tensor(random(6, 24, seed=1))

    def program(x, r):
        y, s = F.add_rms_norm(x * 0.5, r, (24,))
        return F.silu(y), s

    check(backend, program, x, r, dispatches=1)

    def used_between(x, r):
        y, s = F.add_layer_norm(x, r, (24,))
        total = xp.sum(s, axis=0)
        return y * total

    check(backend, used_between, x, r, dispatches=3)


def test_results_that_somebody_needs_are_stored(backend):
    x, y = backend.tensor(random(6, 24)), backend.tensor(random(6, 24, seed=1))

    def normed(x, y):
        n = F.rms_norm(x + y, (24,))
        return n, n * 2.0

    check(backend, normed, x, y, dispatches=2)
    check(backend, lambda x, y: F.softmax(F.softmax(x * 2.0) * y) + 1.0, x, y, dispatches=2)
    weight = backend.tensor(random(24, seed=2))
    check(backend, lambda x, w: F.rms_norm(x, (24,), w * 2.0) * 0.5, x, weight, dispatches=2)
    row = backend.tensor(random(1, 24))
    check(backend, lambda x, w: F.rms_norm(x, (24,), (w * 2.0)[0]) * 0.5, row, row, dispatches=2)


@pytest.mark.parametrize("shape, dtype", [((6, 24), "float32"), ((3, 4099), "float32"), ((5, 7, 264), "float16")])
def test_rows_that_others_read_too_are_written_by_the_norm(backend, shape, dtype):
    """As those of a residual stream: a sum and its norm are what `F.add_rms_norm` is."""
    x, y, z = (backend.tensor(random(*shape, seed=seed)).astype(dtype) for seed in (1, 2, 3))
    last = shape[-1:]

    def kept(x, y):
        h = x + y
        return h, F.rms_norm(h, last) * 2.0

    check(backend, kept, x, y, dispatches=1)

    def stream(x, y, z):
        h = x + y
        h = h + F.silu(F.layer_norm(h, last)) * z
        return h + F.rms_norm(h, last)

    check(backend, stream, x, y, z, dispatches=3 if dtype == "float16" else 2)  # whose expressions are longer

    def used_twice(x, y):
        h = F.silu(x) * y
        return F.softmax(h), xp.exp(h), F.rms_norm(h, last)

    check(backend, used_twice, x, y, dispatches=3)


def test_rows_that_others_read_stay_where_they_are_made(backend):
    x, y = backend.tensor(random(6, 24)), backend.tensor(random(6, 24, seed=1))

    def between(x, y):
        """The sum over rows is read behind the norm, and needs what the norm would write."""
        h = x + y
        return F.rms_norm(h, (24,)) * xp.sum(h, axis=0)

    assert check(backend, between, x, y).dispatches == 3

    def before(x, y):
        h = x + y
        total = xp.sum(h, axis=0)
        return F.rms_norm(h, (24,)) + 1.0, total

    check(backend, before, x, y, dispatches=3)

    def again(x, y):
        h = x + y
        n = F.rms_norm(h, (24,))
        h += y
        return n, h

    check(backend, again, x, y, dispatches=3)

    def part(x, y):
        h = x + y
        return h, F.rms_norm(h[1:], (24,)), F.rms_norm(h.T, (6,))

    check(backend, part, x, y, dispatches=3)

    def wide(x, y):
        """A chain of more than a norm takes is not torn."""
        h = ((x + y[0]) * y[1] + y[2]) * y[3] - y[4]
        return h, F.rms_norm(h, (24,))

    check(backend, wide, x, y, dispatches=2)
    kept = backend.tensor(random(6, 24, seed=2))

    def in_place(x, y):
        kept[...] = kept * 0.5
        return F.rms_norm(kept, (24,)) * x

    wanted = []
    for _ in range(3):
        wanted.append(in_place(x, y).numpy())
    kept[...] = backend.tensor(random(6, 24, seed=2))
    graph = backend.capture(in_place, x, y)
    for one in wanted:
        np.testing.assert_array_equal(graph(x, y).numpy(), one)


def test_what_is_written_between(backend):
    state = backend.tensor(random(4, 8, seed=1))

    def step(x):
        before = state * 2.0  # of what the last step left
        state[...] = x
        return F.softmax(before)

    x = [backend.tensor(random(4, 8, seed=seed)) for seed in (2, 3, 4)]
    wanted = [step(each) for each in x]
    state[...] = backend.tensor(random(4, 8, seed=1))
    graph = backend.capture(step, x[0])
    for each, found in zip(x, wanted, strict=True):
        equal(graph(each), found)
    weight = backend.tensor(random(8, seed=5))

    def weighted(x):
        y = F.rms_norm(x, (8,), weight)
        weight[...] = x[0]
        return y * 2.0

    wanted = [weighted(each) for each in x]
    weight[...] = backend.tensor(random(8, seed=5))
    graph = backend.capture(weighted, x[0])
    for each, found in zip(x, wanted, strict=True):
        equal(graph(each), found)


def test_what_the_kernel_does_not_take(backend):
    x = backend.tensor(random(2, 6, 12))
    many = [backend.tensor(random(2, 6, 12, seed=seed)) for seed in range(4)]
    check(backend, lambda *a: F.softmax(a[0] + a[1] + a[2] + a[3]), *many, dispatches=2)
    check(backend, lambda x: F.group_norm(x * 2.0, 3) + 1.0, x, dispatches=3)
    check(backend, lambda x: F.softmax_backward(x * 2.0, F.softmax(x)), x, dispatches=3)
    check(backend, lambda x: F.softmax((((x + 1.5) * 2.5 + 3.5) * 4.5 + 5.5) * 6.5), x, dispatches=2)  # words
    check(backend, lambda x: xp.sum(F.softmax(x * 2.0), axis=-1), x, dispatches=2)


def test_rows_that_are_read_twice(backend):
    long = [backend.tensor(random(3, 4099, seed=seed)) for seed in range(3)]
    check(backend, lambda x, y, _: F.softmax(x + y) * 2.0, *long, dispatches=1)
    twice = 2 if backend.device.kind == "cpu" else None  # GPUs hold rows of this length
    check(backend, lambda x, y, z: F.softmax((x + y) * z), *long, dispatches=twice)


def test_few_calls_where_more_do_not_pay(backend, monkeypatch):
    monkeypatch.setattr(fusion, "most_calls", lambda *_: 1)
    x = backend.tensor(random(4, 16))
    check(backend, lambda x: F.gelu(F.softmax(x)), x, dispatches=1)
    check(backend, lambda x: F.gelu(F.gelu(F.softmax(x))), x, dispatches=2)


UNARY = [F.silu, xp.tanh, xp.square, lambda x: x * 0.5, lambda x: x + 1.0, xp.abs]
BINARY = [xp.add, xp.multiply, xp.maximum, xp.subtract]


NORMS = [
    lambda x, axis: F.softmax(x, dim=axis), lambda x, axis: F.log_softmax(x, dim=axis),
    lambda x, _: F.layer_norm(x, x.shape[-1:]), lambda x, _: F.rms_norm(x, x.shape[-1:]),
]  # fmt: skip


def test_random_programs(backend, monkeypatch):
    plain = fused = 0
    for seed in range(12):
        program, arrays = random_program(np.random.default_rng(seed), UNARY, BINARY, NORMS, 2)
        tensors = [backend.tensor(array) for array in arrays]
        fused += check(backend, program, *tensors).dispatches
        with monkeypatch.context() as patch:
            patch.setattr(grilly.compute.graph, "fuse_norms", lambda *_: None)
            graph = backend.capture(program, *tensors)
            for found, wanted in zip(graph(*tensors), program(*tensors), strict=True):
                np.testing.assert_array_equal(bits(found), bits(wanted))
            plain += graph.dispatches
    assert fused < plain
