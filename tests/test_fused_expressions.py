"""Elementwise operations behind products and convolutions of a graph, in the same dispatch: the bits of the calls."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
import grilly.functional as F
from graphs import default, equal, random

HALVES = ["float32", "float16", pytest.param("bfloat16", marks=pytest.mark.needs("ml_dtypes"))]


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


#: Made of a result, of an array of its shape, and of one that has a number for each channel.
BEHIND = {
    "relu": lambda y, r, c: F.relu(y),
    "residual-relu": lambda y, r, c: F.relu(y + r),
    "batch-norm": lambda y, r, c: (y * c) + c,
    "leaky": lambda y, r, c: F.leaky_relu(r - y, 0.3),
    "numbers": lambda y, r, c: grilly.clip(y * 2.5 - 1.25, -3.0, 0.75),
    "twice": lambda y, r, c: y * (1 - y),
}
#: Of a convolution: the input's shape, the weight's, and the options.
CONVOLUTIONS = {
    "one-by-one": ((2, 8, 5, 7), (12, 8, 1, 1), {}),
    "few-outputs": ((1, 8, 7, 5), (5, 8, 3, 3), {"padding": 1}),
    "many-outputs": ((1, 16, 6, 7), (68, 16, 3, 3), {"stride": 2}),
    "depthwise": ((2, 12, 9, 6), (12, 1, 5, 3), {"padding": (2, 1), "groups": 12}),
    "groups": ((1, 6, 5, 5), (9, 2, 3, 3), {"groups": 3}),
    "one-axis": ((2, 8, 31), (16, 8, 3), {"dilation": 2}),
    "no-batch": ((4, 11, 13), (8, 4, 3, 3), {"padding": 1}),
}


def check(backend, program, made, *given):
    """Hold a replay against the calls; return the dispatches of the program, and of what it is made of alone."""
    graph = backend.capture(program, *given)
    for _ in range(2):
        equal(graph(*given), program(*given))
    return graph.dispatches, backend.capture(made, *given).dispatches


def given(backend, dtype, *shapes):
    return [backend.tensor(random(*shape, seed=n)).astype(dtype) for n, shape in enumerate(shapes)]


def convolved(backend, name, dtype):
    """A convolution as a function, and its arrays: x, two weights, and a number for each channel, also as a bias."""
    shape, weight, options = CONVOLUTIONS[name]
    call = F.conv1d if len(weight) == 3 else F.conv2d
    shapes = (shape, weight, weight, weight[:1], (weight[0], *[1] * (len(weight) - 2)))
    return (lambda x, w, b=None: call(x, w, b, **options)), given(backend, dtype, *shapes)


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("dtype", HALVES)
def test_behind_a_convolution(backend, name, behind, dtype):
    """The residual is a convolution's result too, as in networks: it lies as the other one."""
    made, arrays = convolved(backend, name, dtype)
    found, alone = check(backend, lambda x, w, v, b, c: BEHIND[behind](made(x, w, b), made(x, v), c),
                         lambda x, w, v, b, c: (made(x, w, b), made(x, v)), *arrays)  # fmt: skip
    assert found <= alone + 1
    # Products of several groups take several dispatches, and kernels of processors no long expressions.
    if dtype == "float32" and name not in ("groups", "many-outputs") and (name, behind) != ("one-by-one", "numbers"):
        assert found <= alone


@pytest.mark.parametrize("behind", sorted(BEHIND.keys() - {"residual-relu"}))
@pytest.mark.parametrize("rows", [(1,), (3,), (2, 33)])
@pytest.mark.parametrize("dtype", HALVES)
def test_behind_a_linear_layer(backend, rows, behind, dtype):
    arrays = given(backend, dtype, (*rows, 37), (29, 37), (29,), (*rows, 29), (29,))
    found, alone = check(backend, lambda x, w, b, r, c: BEHIND[behind](F.linear(x, w, b), r, c),
                         lambda x, w, b, r, c: F.linear(x, w, b), *arrays)  # fmt: skip
    assert found <= alone + 1
    if dtype == "float32" and behind != "numbers":  # which is too long for kernels of processors
        assert found == alone


@pytest.mark.parametrize("behind", sorted(BEHIND.keys() - {"residual-relu"}))
@pytest.mark.parametrize("type", ["Q4_K", "Q8_0"])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("dtype", HALVES)
def test_behind_a_quantized_weight(backend, rows, type, behind, dtype):
    """Also of many rows, for which the weight becomes floats."""
    weight = backend.tensor(grilly.quantize(random(48, 256, seed=9), type))
    arrays = given(backend, dtype, (rows, 256), (48,), (rows, 48), (48,))
    found, alone = check(backend, lambda x, b, r, c: BEHIND[behind](F.linear(x, weight, b), r, c),
                         lambda x, b, r, c: F.linear(x, weight, b), *arrays)  # fmt: skip
    assert found <= alone + 1
    if rows < 40 or dtype == "float32" and behind != "numbers":  # which is too long for kernels of processors
        assert found == alone


@pytest.mark.parametrize("dtype", HALVES)
def test_behind_what_a_call_ends_with(backend, dtype):
    """A residual is a part of the call, which adds it before it rounds; what stands behind that is an expression."""
    x, w, r = given(backend, dtype, (5, 40), (24, 40), (5, 24))
    graph = backend.capture(lambda x, w, r: abs(r + F.linear(x, w)), x, w, r)
    equal(graph(x, w, r), abs(F.linear(x, w, residual=r)))
    assert dtype != "float32" or graph.dispatches == 1


def test_integers_and_a_scale(backend):
    """A product of integers as ONNX's MatMulInteger has it: its sums become integers, and those floating again."""
    x, w = (backend.tensor(np.round(9 * random(*size, seed=3))) for size in ((6, 40), (24, 40)))
    scale, bias = backend.tensor(np.float32([0.37])), backend.tensor(random(24, seed=4))

    def whole(x, w, scale, bias):
        return F.linear(x, w).astype(np.int32)

    def scaled(x, w, scale, bias):
        return whole(x, w, scale, bias).astype(np.float32) * scale + bias

    found, alone = check(backend, whole, lambda x, w, scale, bias: F.linear(x, w), x, w, scale, bias)
    assert found == alone == 1
    found, _ = check(backend, scaled, whole, x, w, scale, bias)
    assert found <= 2


@pytest.mark.parametrize(
    "behind, dispatches",
    [
        (lambda y, r, c: (F.relu(y), y), 1),  # it is stored anyway
        (lambda y, r, c: y > 0, 1),  # of another width
        (lambda y, r, c: F.relu(y) + r * c + grilly.sin(c), 3),  # more arrays than two
        (lambda y, r, c: y * grilly.sum(y), 3),  # an array that is made of the result
        (lambda y, r, c: grilly.flip(y, axis=-1) + 1, 1),  # in another order
        (lambda y, r, c: F.relu(y + grilly.reshape(r, y.shape)), 1),  # an array in another order
    ],
    ids=["stored", "narrower", "many-arrays", "of-all", "reversed", "channels-first"],
)
def test_what_is_no_part(backend, behind, dispatches):
    made, (x, w, _, b, c) = convolved(backend, "one-by-one", "float32")
    r = backend.tensor(random(*made(x, w).shape, seed=9))
    found, alone = check(backend, lambda x, w, b, r, c: behind(made(x, w, b), r, c),
                         lambda x, w, b, r, c: made(x, w, b), x, w, b, r, c)  # fmt: skip
    assert alone < found <= alone + dispatches


def test_numbers_are_arguments(backend):
    """Graphs that differ in a number have one program, and each its number."""
    made, (x, w, _, b, c) = convolved(backend, "depthwise", "float32")
    for number in (0.25, -1.5):
        check(backend, lambda x, w, b, number=number: F.relu(made(x, w, b) * number),
              lambda x, w, b: made(x, w, b), x, w, b)  # fmt: skip
