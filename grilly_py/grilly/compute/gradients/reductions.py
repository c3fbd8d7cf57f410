"""Gradients of reductions and of running sums and products."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...errors import GradientError
from ..arrays import reductions, scans
from ..arrays.creation import full
from ..arrays.elementwise import binary, cast, unary, where
from ..arrays.promotion import FLOAT32
from ..arrays.reductions import moment, sum_of
from ..arrays.scans import running
from ..arrays.shapes import concat, flip
from ..device.tape import Entry
from ..device.tensor import Tensor
from .records import gradient_of


def _read(static: tuple, needs: tuple[bool, ...]) -> tuple[Sequence[int], bool]:
    """x and the result, but of sums and means."""
    return ((), False) if static[0].name in ("sum", "mean") else ((0,), static[0].name not in ("prod", "var"))


@gradient_of(reductions.plan, reads=_read)
def _reduced(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (x,), (terms,), (y,), (gradient,) = entry.arrays, entry.static, entry.results, gradients
    kept = tuple(1 if axis in terms.axes else extent for axis, extent in enumerate(x.shape))
    gradient, y = gradient.reshape(kept), y.reshape(kept)
    count = math.prod(x.shape[axis] for axis in terms.axes)
    name = terms.name
    if name in ("sum", "mean"):
        share = gradient if name == "sum" else binary("multiply", gradient, 1 / max(count, 1))
        return (share.broadcast_to(x.shape),)
    if name == "prod":
        return (_of_product(x, terms.axes, gradient),)
    if name in ("max", "min"):
        # Shared equally by all that are the extreme, as PyTorch's amax does.
        ties = binary("equal", x, y)
        ties = binary("logical_or", ties, binary("logical_and", unary("isnan", x), unary("isnan", y)))
        number = sum_of("sum", cast(ties, FLOAT32), terms.axes, None, True)
        return (where(ties, binary("divide", gradient, cast(number, x.dtype)), 0.0),)
    if name in ("var", "std"):
        apart = binary("subtract", x, moment("mean", x, terms.axes, True))
        left = count - terms.correction
        if name == "var":
            return (binary("multiply", apart, binary("multiply", gradient, 2 / left if left else math.inf)),)
        return (_over(binary("multiply", apart, 1 / left if left else math.inf), gradient, y),)
    if name in ("norm", "rms"):
        return (_over(x if name == "norm" else binary("multiply", x, 1 / max(count, 1)), gradient, y),)
    raise GradientError(f"there is no gradient of {name}")


def _over(x: Tensor, gradient: Tensor, y: Tensor) -> Tensor:
    """``x * gradient / y``; 0 where y is, as at a norm's least value."""
    share = binary("divide", gradient, where(binary("equal", y, 0.0), 1.0, y))
    return binary("multiply", x, where(binary("equal", y, 0.0), 0.0, share))


def _of_product(x: Tensor, axes: tuple[int, ...], gradient: Tensor) -> Tensor:
    """Of each element the product of all others, times the gradient: also where some are 0."""
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    order = [*rest, *axes]
    rows = x.transpose(order)
    shape = rows.shape
    flat = rows.reshape((*shape[: len(rest)], -1))
    before = running("prod", flat, -1, None, True)._selected((..., slice(0, flat.shape[-1])))
    turned = running("prod", flip(flat, (flat.ndim - 1,)), -1, None, True)._selected((..., slice(0, flat.shape[-1])))
    others = binary("multiply", before, flip(turned, (flat.ndim - 1,))).reshape(shape)
    back = others.transpose([order.index(axis) for axis in range(x.ndim)])
    return binary("multiply", back, gradient)


@gradient_of(scans.plan, reads=lambda static, needs: ((), False) if static[0] == "sum" else ((0,), False))
def _running(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (x,), (gradient,) = entry.arrays, gradients
    name, axis, _, before = entry.static
    if before:
        gradient = gradient._selected((*(slice(None),) * axis, slice(1, None)))
    if name == "sum":
        return (_from_the_end(gradient, axis),)
    # The gradient by an element is what is before it times s, where s = gradient + (the next element) (the next s).
    first = running("prod", x, axis, None, True)._selected((*(slice(None),) * axis, slice(0, x.shape[axis])))
    return (binary("multiply", first, _recurrence(x, gradient, axis)),)


def _from_the_end(x: Tensor, axis: int) -> Tensor:
    """Sums of each element and all behind it."""
    return flip(running("sum", flip(x, (axis,)), axis), (axis,))


def _recurrence(x: Tensor, gradient: Tensor, axis: int) -> Tensor:
    """s with ``s[i] = gradient[i] + x[i + 1] s[i + 1]``, in as many steps as the extent has binary digits."""
    factor, total, step = _moved_up(x, 1, axis), gradient, 1
    while step < x.shape[axis]:
        total = binary("add", total, binary("multiply", factor, _moved_up(total, step, axis)))
        factor = binary("multiply", factor, _moved_up(factor, step, axis))
        step *= 2
    return total


def _moved_up(x: Tensor, places: int, axis: int) -> Tensor:
    """x with each element in the place of one so many places before it, and zeros at the end."""
    shape = list(x.shape)
    shape[axis] = places
    zeros = full(x._storage.device, tuple(shape), 0.0, x.dtype)
    return concat([x._selected((*(slice(None),) * axis, slice(places, None))), zeros], axis)
