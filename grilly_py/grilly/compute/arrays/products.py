"""Products of matrices with any leading axes: ``@``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...registry import Registry
from ..device.caches import Kept
from ..device.device import Device, DeviceFacts
from ..device.plan import Layout, Plan, Planner
from ..device.record import Ready, run
from ..device.tensor import Tensor
from ..products.linear import linear
from ..products.matmul import product
from .elementwise import binary, cast, operand
from .promotion import FLOAT32, kind_of, promoted
from .reductions import sum_of

#: Plans of batched products.
PLANS: Kept[tuple, Ready] = Kept("plans of matmul", 512)


def matmul(x, y) -> Tensor:
    """The product of two arrays of matrices, as NumPy's.

    Parameters
    ----------
    x, y : Tensor or array
        ``(..., M, K)`` and ``(..., K, N)``, whose leading axes broadcast; or ``(K,)``, which stands for a row as x and
        for a column as y, without the axis in the result. At least one is a tensor.

    Returns
    -------
    Tensor
        ``(..., M, N)``, of the dtype that both promote to; sums are float32, or wrap in the integer dtype. A product of
        integers takes memory for all its terms.

    Raises
    ------
    TypeError
        For Python numbers and bool.
    ValueError
        For arrays without axes, and shapes that do not go together.
    """
    device: Device = (x if isinstance(x, Tensor) else y)._storage.device
    x, y = operand("matmul", device, x), operand("matmul", device, y)
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise TypeError("matmul: an operand is a number; expected arrays")
    if not x.ndim or not y.ndim:
        raise ValueError(f"matmul: shapes {x.shape} and {y.shape}; an operand has no axes")
    dtype = promoted(x.dtype, y.dtype)
    if kind_of(dtype) == "bool":
        raise TypeError("matmul: operands are bool; expected numbers")
    a = cast(x.view(None) if x.ndim == 1 else x, dtype)
    b = cast(y.view((slice(None), None)) if y.ndim == 1 else y, dtype)
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matmul: shapes {x.shape} and {y.shape}; x's last axis and y's last but one differ")
    try:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ValueError(f"matmul: leading axes of {x.shape} and {y.shape} do not broadcast") from None
    if kind_of(dtype) != "floating":
        columns = b.swapaxes(-1, -2).view((..., None, slice(None), slice(None)))
        terms = binary("multiply", a.view((..., None, slice(None))), columns)
        found = sum_of("sum", terms, -1, dtype)
    elif 0 in (*lead, a.shape[-2], b.shape[-1]):
        found = device.empty((*lead, a.shape[-2], b.shape[-1]), dtype)
    elif dtype != FLOAT32 and not device.sixteen_bits:
        found = cast(matmul(cast(a, FLOAT32), cast(b, FLOAT32)), dtype)
    elif b.ndim == 2:
        found = linear(device, a, b.transpose())
    else:
        found = _batched(device, a, b, lead)
    device.runtime.flush()
    shape = found.shape
    if y.ndim == 1:
        found = found.reshape(shape[:-1])
    if x.ndim == 1:
        found = found.reshape((*shape[:-2], *shape[len(shape) - 1 :][: y.ndim != 1]))
    return found


def _batched(device: Device, a: Tensor, b: Tensor, lead: tuple[int, ...]) -> Tensor:
    """The product of arrays whose leading axes are ``lead`` after broadcasting."""
    batch, rows, columns = math.prod(lead), a.shape[-2], b.shape[-1]
    left = a.broadcast_to((*lead, *a.shape[-2:])).reshape((batch, 1, *a.shape[-2:]))
    right = b.swapaxes(-1, -2).broadcast_to((*lead, columns, b.shape[-2])).reshape((batch, 1, columns, b.shape[-2]))
    depth = a.shape[-1]
    left, right = (t if depth <= 1 or t._steps[-1] == 1 else t.contiguous() for t in (left, right))
    (found,) = run(device, PLANS, plan, (), (left, right))
    return found.reshape((*lead, rows, columns))


def plan(given: tuple, layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``(B, 1, M, K)`` times the transpose of ``(B, 1, N, K)``, last axes contiguous."""
    planner = Planner(facts, layouts)
    a, b = planner.inputs
    result = planner.empty((*a.shape[:3], b.shape[2]), a.dtype)
    offsets = (layouts[0].offset, layouts[1].offset)
    product(planner, registry, "linear", a, b, result, columns_are_rows=True, offsets=offsets)
    return planner.plan(result)
