"""The text of a tensor for ``print``."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np


def printed(tensor: Any) -> str:
    """The elements as NumPy prints an array, by its options; of many only those that are shown are fetched."""
    options = np.get_printoptions()
    if tensor.size <= options["threshold"]:
        return str(tensor.numpy())
    edge = options["edgeitems"]
    long = [extent > 2 * edge for extent in tensor.shape]
    # One element stands for those that are not shown.
    shape = [2 * edge + 1 if cut else extent for extent, cut in zip(tensor.shape, long, strict=True)]
    found = np.zeros(shape, tensor.dtype)
    ends = (slice(None, edge), slice(-edge, None)) if edge else (slice(0, 0),)
    for part in itertools.product(*(ends if cut else (slice(None),) for cut in long)):
        own = tuple(slice(*end.indices(extent)) for end, extent in zip(part, tensor.shape, strict=True))
        found[part] = tensor[own].numpy()
    return str(np.array2string(found, threshold=0))
