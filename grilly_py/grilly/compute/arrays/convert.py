"""What ``Tensor.contiguous`` and ``Tensor.astype`` do: a copy in C order, with a conversion where it is asked for."""

from __future__ import annotations

import numpy as np

from ..device.copy import copied_again, copy
from ..device.dtypes import is_float
from ..device.plan import ALIGN_MOST
from ..device.tensor import Tensor, contiguous_strides
from .axes import fewest_axes
from .elementwise import cast
from .map import AXES, DEEP_AXES
from .transpose import axes_of


def convert(tensor: Tensor, dtype: np.dtype) -> Tensor:
    """A new tensor in C order with the elements of ``tensor`` as ``dtype``.

    Raises
    ------
    TypeError
        For a dtype that no tensor has.
    UnsupportedError
        When the device cannot for arrays of this size or these strides.
    """
    done = copied_again(tensor, dtype)
    if done is not None:
        return done
    device = tensor._storage.device
    large = max(tensor._storage.nbytes, tensor.size * dtype.itemsize) > device.facts.storage_range
    if large or tensor.is_contiguous or dtype == tensor.dtype and axes_of(device.facts, tensor, ALIGN_MOST) is not None:
        return cast(tensor, dtype, copy=True)  # at the memory's speed
    if dtype.itemsize <= 4 and (dtype == tensor.dtype or is_float(dtype) and is_float(tensor.dtype)) and (
        tensor.dtype.itemsize == 4 or device.sixteen_bits and tensor.dtype.itemsize == 2
    ):  # fmt: skip
        axes, _ = fewest_axes(tensor.shape, [tensor._steps, contiguous_strides(tensor.shape)])
        if not AXES < len(axes) <= DEEP_AXES:  # copy would make a dispatch for each place of those before the last four
            return copy(tensor, dtype)  # of any number of axes
    return cast(tensor, dtype, copy=True)
