"""Products of matrices with any leading axes: ``@``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...registry import Registry
from ..device.call import call
from ..device.device import Device, DeviceFacts
from ..device.plan import Layout, Plan, Planner
from ..device.tensor import Tensor
from ..matmul.call import Matmul
from ..matmul.matmul import emit_matmul
from .elementwise import binary, cast, operand
from .map import mapped, shown
from .operations import spec
from .promotion import FLOAT32, INT32, kind_of, promoted
from .reductions import sum_of

#: Whole numbers up to which every one is a float32.
EXACT = 2**24


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
        integers of more than 8 bits takes memory for all its terms.

    Raises
    ------
    TypeError
        For Python numbers and bool.
    ValueError
        For arrays without axes, and shapes that do not go together.
    """
    device: Device = (x if isinstance(x, Tensor) else y)._storage.device
    x, y = (one if one.__class__ is Tensor else operand("matmul", device, one) for one in (x, y))
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise TypeError("matmul: an operand is a number; expected arrays")
    dtype = promoted(x.dtype, y.dtype)
    if kind_of(dtype) == "floating":

        def check(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            _check_shapes(x, y)
            common = promoted(x.dtype, y.dtype)  # float32 where 16-bit arrays were widened
            return cast(x, common), cast(y, common)

        return call(device, plan, (), (x, y), check, floats=2)[0]
    if kind_of(dtype) == "bool":
        raise TypeError("matmul: operands are bool; expected numbers")
    _check_shapes(x, y)
    if x.dtype.itemsize == y.dtype.itemsize == 1 and dtype.itemsize <= 2:
        most = EXACT // (largest(x.dtype) * largest(y.dtype))
        return cast(whole_product(cast(x, FLOAT32), cast(y, FLOAT32), most), dtype)
    rows = cast(x._selected(None) if x.ndim == 1 else x, dtype)._selected((..., None, slice(None)))
    columns = cast(y._selected((slice(None), None)) if y.ndim == 1 else y, dtype).swapaxes(-1, -2)
    terms = binary("multiply", rows, columns._selected((..., None, slice(None), slice(None))))
    found = sum_of("sum", terms, -1, dtype)
    return found.reshape(_shape_of_product(x, y, found.shape))


def _check_shapes(x: Tensor, y: Tensor) -> None:
    """Raise ValueError for factors whose shapes do not go together."""
    if not x.ndim or not y.ndim:
        raise ValueError(f"matmul: shapes {x.shape} and {y.shape}; an operand has no axes")
    if x.shape[-1] != y.shape[-2:][0]:
        raise ValueError(f"matmul: shapes {x.shape} and {y.shape}; x's last axis and y's last but one differ")
    try:
        np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except ValueError:
        raise ValueError(f"matmul: leading axes of {x.shape} and {y.shape} do not broadcast") from None


def _shape_of_product(x: Tensor, y: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape ``(..., M, N)`` without the axes of factors of one axis."""
    rows, cols = shape[-2:]
    return (*shape[:-2], *(() if x.ndim == 1 else (rows,)), *(() if y.ndim == 1 else (cols,)))


def largest(dtype: np.dtype) -> int:
    """The largest magnitude of an integer dtype."""
    info = np.iinfo(dtype)
    return max(-int(info.min), int(info.max))


def from_zero(x: Tensor, zero: Tensor | None) -> Tensor:
    """Integers less their zeros, as float32: one dispatch, in the order of axes that x has in memory."""
    if zero is None:
        return cast(x, FLOAT32)
    found = mapped(x._storage.device, spec("subtract", FLOAT32), (x, zero, None))
    x._storage.device.runtime.flush()
    return found


def whole_product(x: Tensor, y: Tensor, most: int) -> Tensor:
    """The product of float32 arrays of whole numbers, exact, as int32 that wraps.

    ``most`` terms have sums within ``EXACT``, in any order. So the depth is cut into parts of that many, which are
    products of floats, and these are added as integers.
    """
    step, parts = even(x.shape[-1], most), []
    for first in range(0, max(x.shape[-1], 1), step):
        some = slice(first, first + step)
        parts.append(matmul(x[..., some], y[some] if y.ndim == 1 else y[..., some, :]))
    return added_as_integers(parts)


def even(depth: int, most: int) -> int:
    """The length of parts of a depth, up to ``most``: about equal, and where there are several in whole sixteens."""
    parts = -(-depth // most)
    if parts <= 1:
        return max(depth, 1)
    step = -(-depth // parts)
    return min(-(-step // 16) * 16, most // 16 * 16 or most)


def added_as_integers(parts: Sequence[Tensor]) -> Tensor:
    """The sum of float32 arrays of whole numbers within ``EXACT`` as int32, which wraps."""
    device: Device = parts[0]._storage.device
    if len(parts) == 1:
        return cast(parts[0], INT32)
    found = parts[0]
    for part in parts[1:]:
        found = mapped(device, spec("add", INT32), (found, part, None))
    device.runtime.flush()
    return found


def plan(given: tuple, layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``matmul`` of two arrays of one floating dtype, of any strides."""
    planner = Planner(facts, layouts)
    x, y = planner.inputs
    a = x[None] if x.ndim == 1 else x
    b = y[:, None] if y.ndim == 1 else y
    rows, depth, cols = *a.shape[-2:], b.shape[-1]
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    result = planner.empty((*lead, rows, cols), x.dtype)
    shape = _shape_of_product(x, y, result.shape)
    if not result.size:
        return planner.plan(result.reshape(shape))
    b, offsets = b.swapaxes(-1, -2), [layouts[0].offset, layouts[1].offset]
    if math.prod(b.shape[:-2]) == 1:  # one matrix for all rows
        lead, rows, a = (), math.prod(lead) * rows, a.broadcast_to((*lead, rows, depth))
    # Leading axes as the two that products have.
    outer, inner = math.prod(lead[:-1]), math.prod(lead[-1:])
    factors = []
    for number, (factor, own) in enumerate(((a, (rows, depth)), (b, (cols, depth)))):
        wide = factor.broadcast_to((*lead, *factor.shape[-2:])) if lead else factor
        view, offsets[number] = shown(planner, registry, wide, (outer, inner, *own), offsets[number])
        factors.append(view)
    c = result.reshape((outer, inner, rows, cols))
    emit_matmul(planner, registry, Matmul("linear", *factors, c, offsets=(offsets[0], offsets[1])))
    return planner.plan(result.reshape(shape))
