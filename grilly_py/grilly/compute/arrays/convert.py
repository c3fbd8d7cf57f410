"""What ``Tensor.contiguous`` and ``Tensor.astype`` do: a copy in C order, with a conversion where it is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...registry import Registry
from ..device.call import call, run
from ..device.copy import emit_copy
from ..device.device import DeviceFacts
from ..device.dtypes import is_float
from ..device.plan import Layout, Plan, Planner
from ..device.tensor import Tensor, contiguous_strides
from .axes import fewest_axes
from .elementwise import converts
from .map import AXES, DEEP_AXES, emit
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
    return call(tensor._storage.device, plan, (dtype,), (tensor,))[0]


def plan(given: tuple[np.dtype], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``convert``: of the copy kernel, or of the elementwise one."""
    (dtype,) = given
    planner = Planner(facts, layouts)
    (tensor,) = planner.inputs
    asked, result = converts(tensor.dtype, dtype), planner.empty(tensor.shape, dtype)
    if result.size and _is_for_copy(tensor, layouts[0], dtype, facts, registry):
        emit_copy(planner, registry, tensor, result)
    elif result.size:
        emit(planner, registry, asked, result, [tensor], [layouts[0].offset])
    return planner.plan(result)


def fill(tensor: Tensor, source: Tensor) -> None:
    """Write to a contiguous tensor that begins with its memory what another of its shape and dtype has."""
    run(tensor._storage.device, plan_fill, (), (tensor, source))


def plan_fill(given: tuple, layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``fill``."""
    planner = Planner(facts, layouts)
    tensor, source = planner.inputs
    emit(planner, registry, converts(source.dtype, source.dtype), tensor, [source], [layouts[1].offset])
    return planner.plan()


def _is_for_copy(tensor: Tensor, layout: Layout, dtype: np.dtype, facts: DeviceFacts, registry: Registry) -> bool:
    """Whether the copy kernel takes the array and is the faster one: it copies strided arrays of any number of axes."""
    size, same = tensor.dtype.itemsize, dtype == tensor.dtype
    if layout.nbytes is not None or tensor.size * dtype.itemsize > facts.storage_range or tensor.is_contiguous:
        return False
    if same and axes_of(facts, tensor, layout.offset) is not None:  # copied by tiles
        return False
    if dtype.itemsize > 4 or not (same or is_float(dtype) and is_float(tensor.dtype)):
        return False
    if size != 4 and not (size == 2 and "float16-storage" in registry.features):
        return False
    axes, _ = fewest_axes(tensor.shape, [tensor._strides, contiguous_strides(tensor.shape)])
    return not AXES < len(axes) <= DEEP_AXES  # it would need a dispatch for each place of all but the last four
