"""Capsules of DLPack of a test's own making: of NumPy's arrays, and of memory on any device."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from grilly.compute.device import capsules

#: Whether NumPy's capsules come in versions.
VERSIONED = capsules._VERSIONED


def of_array(array):
    """A capsule of an array on the host, in the form that every reader knows."""
    return capsules.of_host(array, None)


def elsewhere(words, dtype: str, device: tuple[int, int]):
    """A capsule of words in host memory that says they are numbers of ``dtype`` on another device."""
    holder = capsules.Holder(words.ctypes.data, words.shape, words.strides, words.itemsize, words)
    return capsules.make(holder, np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype), device)
