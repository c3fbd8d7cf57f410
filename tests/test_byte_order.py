"""Attention of arrays whose bytes are in the other order than the machine's, as files and networks have them."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
import grilly.functional as F
from grilly import nn

RNG = np.random.default_rng(0)


def swapped(array):
    return array.astype(array.dtype.newbyteorder("S"))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_attention_and_its_gradients(default, dtype):
    q, k, v, grad = (RNG.standard_normal((1, 2, 7, 8)).astype(dtype) for _ in range(4))
    out, lse = F.flash_attention2(q, k, v, return_lse=True)
    found, _ = F.flash_attention2(*map(swapped, (q, k, v)), return_lse=True)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, out)
    wanted = F.flash_attention2_backward(grad, q, k, v, out, lse)
    for arrays in (map(swapped, (grad, q, k, v, out)), (grad, swapped(q), swapped(k), swapped(v), out)):
        for one, other in zip(F.flash_attention2_backward(*arrays, lse), wanted, strict=True):
            assert one.dtype == dtype
            np.testing.assert_array_equal(one, other)


def test_arrays_beyond_the_memory(vulkan_backend):
    q, k = np.ones((1, 1, 64, 8), ">f4"), np.ones((1, 1, 400, 8), ">f4")
    with grilly.Compute(memory_limit=12000) as small:
        found = small.attention.flash_attention2(q, k, k * 2)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, 2, rtol=1e-6)


@pytest.mark.parametrize("values", [
    np.array(["abc", "defgh"]), np.array([b"abc", b"d"]), np.array(["2020-01-02", "1999-12-31"], "M8[s]"),
    np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]), np.array([1 + 2j]),
], ids=lambda values: values.dtype.kind)  # fmt: skip
def test_pinned_arrays_of_types_with_a_size_a_unit_or_fields(default, values):
    found = grilly.pinned.asarray(swapped(values))
    assert found.dtype == values.dtype and found.dtype.isnative
    np.testing.assert_array_equal(found, values)


def test_a_cache(default):
    cache = nn.KVCache(1, 5, 2, 8, dtype=">f4")
    k, v, q = (RNG.standard_normal((1, 3, 2, 8), dtype=np.float32) for _ in range(3))
    cache.fill(swapped(k), swapped(v))
    found = cache.attend(swapped(q))
    wanted = F.flash_attention2(*(a.swapaxes(1, 2) for a in (q, k, v))).swapaxes(1, 2)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
