"""Tensors held against arrays, element by element."""

from __future__ import annotations

import numpy as np


def same(tensor, array):
    """The tensor holds exactly what the array does, with its shape and dtype."""
    got, want = tensor.numpy(), np.asarray(array)
    assert got.shape == want.shape and got.dtype == want.dtype, (got.shape, got.dtype, want.shape, want.dtype)
    np.testing.assert_array_equal(got, want)
