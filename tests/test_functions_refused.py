"""What is no function of elements, and says so: ``grilly.elementwise``. And what functions leave in memory."""

from __future__ import annotations

import gc
import math
from pathlib import Path

import numpy as np
import pytest

import grilly
import grilly.functional as F
from elementwise_functions import of_all, swish

STATM = Path("/proc/self/statm")


def _nothing(x):
    grilly.exp(x)


def _branches(x):
    return x if x > 0 else -x


def _endless(x):
    return _endless(x)


LEAKED = []


def _leaks(x):
    LEAKED.append(x)
    return x


@pytest.mark.parametrize(("function", "said"), [
    (_nothing, "returns nothing"),
    (lambda x: "text", "returns a str"),
    (lambda x: np.zeros(3), "returns a ndarray"),
    (lambda x: (x, None), r"returns nothing"),
    (lambda x: (), "empty"),
    (_branches, r"grilly\.where"),
    (lambda x: x and 1, r"grilly\.where"),
    (lambda x: max(x, 0), r"grilly\.where"),
    (lambda x: np.exp(x), r"numpy\.exp"),
    (lambda x: np.sum(x), "not those of NumPy"),
    (lambda x: np.asarray(x), "not those of NumPy"),
    (lambda x: math.exp(x), "not those of NumPy"),
    (lambda x: float(x), "scalar"),
    (lambda x: x[0], "scalar"),
    (lambda x: [y for y in x], "scalar"),
    (lambda x: len(x), "scalar"),
    (lambda x: x @ x, "scalar"),
    (lambda x: grilly.sum(x), "sum is no function of elements"),
    (lambda x: grilly.matmul(x, x), "no scalar has or is: matmul"),
    (lambda x: F.softmax(x, dim=0), "no scalar has or is"),
    (lambda x: x.reshape(3), "no attribute 'reshape'"),
    (lambda x: x + np.zeros(3, np.float32), r"numpy\.ndarray of shape \(3,\)"),
    (lambda x: x + "1", "str"),
    (lambda x: x + None, "NoneType"),
    (lambda x: x * 1j, "complex"),
    (lambda x: x & 1, "bitwise_and: operands are float32"),
    (lambda x: x.astype(grilly.int32) ** -1, "power -1"),
    (_endless, "calls itself without end"),
])  # fmt: skip
def test_what_is_no_function_of_elements(vulkan_backend, function, said):
    x = vulkan_backend.tensor(np.zeros((2, 3), np.float32))
    before = vulkan_backend.memory().in_use
    for made in (grilly.elementwise(function), grilly.reduction(function, "sum")):
        with pytest.raises(grilly.ExpressionError, match=said) as raised:
            made(x)
        assert Path(__file__).name in str(raised.value), "no line of the function"
        del raised
    assert vulkan_backend.memory().in_use == before


def test_an_error_names_the_line(vulkan_backend):
    def inner(x):
        return x if x else -x

    with pytest.raises(grilly.ExpressionError) as raised:
        grilly.elementwise(lambda x: inner(x))(vulkan_backend.tensor(np.float32([1])))
    assert f"{Path(__file__).name}:{inner.__code__.co_firstlineno + 1}:" in str(raised.value)


def test_a_loop_without_end_ends(vulkan_backend):
    def function(x):
        while True:
            x = x + 1

    with pytest.raises(grilly.ExpressionError, match="more than 20,000 operations"):
        grilly.elementwise(function)(vulkan_backend.tensor(np.float32([1])))


def test_work_on_whole_arrays_in_a_function(vulkan_backend):
    weight = vulkan_backend.tensor(np.float32([1, 2]))
    x = vulkan_backend.tensor(np.float32([1, 1]))
    with pytest.raises(grilly.ExpressionError, match="makes a tensor"):
        grilly.elementwise(lambda x: x * grilly.exp(weight))(x)
    assert grilly.elementwise(lambda x: x * weight[None])(x).tolist() == [[1.0, 2.0]]


def test_a_scalar_that_was_kept(vulkan_backend):
    x = vulkan_backend.tensor(np.float32([1]))
    LEAKED.clear()
    grilly.elementwise(_leaks)(x)
    with pytest.raises(grilly.ExpressionError, match="outside of the function"):
        LEAKED[0] + x


@pytest.mark.parametrize("given", ["text", None, [1.0], 1j, object()])
def test_arguments_that_are_neither_arrays_nor_numbers(vulkan_backend, given):
    x = vulkan_backend.tensor(np.float32([1]))
    with pytest.raises(grilly.ExpressionError, match="argument 1 is a"):
        swish(x, given)


def test_other_bad_input(vulkan_backend):
    x = vulkan_backend.tensor(np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"swish: shapes \(2, 3\) and \(4,\) do not broadcast"):
        swish(x, np.zeros(4, np.float32))
    with pytest.raises(TypeError, match="float64"):
        swish(x, np.zeros(3))
    with pytest.raises(TypeError, match="no argument is an array"):
        swish(1.0, 2.0)
    with pytest.raises(TypeError, match="expected a function"):
        grilly.elementwise(3)
    with pytest.raises(TypeError, match="masked"):
        swish(np.ma.masked_array(np.zeros(3, np.float32), [0, 1, 0]), 1.0)
    with pytest.raises(TypeError):
        swish(x)
    assert swish(x, np.float64(2)).dtype == np.float32 and swish(x, np.float32(2)).dtype == np.float32


def test_tensors_of_two_backends(vulkan_backend):
    with grilly.Compute(runtime="vulkan") as other:
        with pytest.raises(ValueError, match="different backends"):
            of_all(vulkan_backend.tensor(np.float32([1])), other.tensor(np.float32([1])))


@pytest.mark.long("hundreds of pipelines are compiled")
@pytest.mark.parametrize("many", [400])
def test_functions_made_in_a_loop_do_not_fill_memory(vulkan_backend, many):
    """Past the bound of what is kept, memory grows no more."""
    if not STATM.exists():
        pytest.skip(f"{STATM} is missing, which tells the memory of the process")
    x = vulkan_backend.tensor(np.ones(8, np.float32))
    used = []
    for number in range(many):
        scale = 1 + number / 64
        found = grilly.elementwise(lambda x, scale=scale: x * scale + x)(x)
        if number % 100 == 99:
            gc.collect()
            used.append(_memory())
    assert float(found[0]) == np.float32(scale) + 1
    assert used[-1] - used[-2] < (used[0] + 1) * 0.1, used


def _memory() -> float:
    """Bytes of this process in memory."""
    return int(STATM.read_text().split()[1]) * 4096
