"""A new shape of the same structure makes no pipeline that a shape before it has made."""

from __future__ import annotations

import numpy as np
import pytest

import faults
import grilly
from grilly import functional as F

#: What is done with arrays of so many rows and columns, multiples of eight. Where a kernel holds what it reads of a row
#: (norms, products of one row) that row's length is a constant, as it is one of a model's.
CALLS = {
    "elementwise": lambda t, rows, cols: (t(rows, cols) + t(cols)) * 2 - t(rows, 1),
    "reductions": lambda t, rows, cols: (grilly.sum(t(rows, cols), axis=1), grilly.max(t(rows, cols), axis=0)),
    "convolution": lambda t, rows, cols: F.conv2d(t(2, 8, rows, cols), t(8, 8, 3, 3), padding=1),
    "norms": lambda t, rows, cols: F.layer_norm(t(rows, cols, 96), (96,), t(96), t(96)),
    "softmax": lambda t, rows, cols: F.softmax(t(rows, cols, 40), dim=-1),
    "linear": lambda t, rows, cols: F.linear(t(rows, cols), t(24, cols), t(24)),
    "linear, a row": lambda t, rows, cols: F.linear(t(1, 96), t(rows, 96), t(rows)),
    "attention": lambda t, rows, cols: F.flash_attention2(t(1, 2, rows, 32), t(1, 2, cols, 32), t(1, 2, cols, 32)),
}


@pytest.fixture
def driver(vulkan_backend):
    with faults.between() as found:
        yield found


@pytest.mark.parametrize("call", CALLS)
def test_a_new_shape_makes_no_pipeline(driver, vulkan_backend, call):
    if vulkan_backend.device.kind != "cpu":
        pytest.skip("on GPUs, kernels are made for a shape where that is faster")
    with grilly.Compute(runtime="vulkan") as backend:
        made = []
        for rows, cols in ((40, 72), (56, 88), (72, 136), (24, 104)):
            CALLS[call](lambda *shape: backend.tensor(np.ones(shape, np.float32)), rows, cols)
            backend.synchronize()
            made.append(driver.counts()["Pipeline"])
        assert made == made[:1] * 4
