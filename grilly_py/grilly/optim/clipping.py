"""Gradients scaled down where their norm is too large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import array_api as xp
from ..compute import Tensor
from ..compute.arrays.functions import elementwise, reduction
from ..compute.backend import backend_of
from .checks import check_number
from .flat import Layout
from .parameters import floats_of

square_of = reduction(lambda gradient: gradient.astype("float32") * gradient.astype("float32"), "sum")


@elementwise
def _clipped(gradient: Any, square: Any, limit: Any) -> Any:
    factor = xp.minimum(limit / (xp.sqrt(square) + 1e-6), 1.0)
    return (gradient.astype("float32") * factor).astype(gradient.dtype)


def clip_grad_norm(grads: Mapping[str, Any], max_norm: float) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients, all times one factor where the norm of all together is above ``max_norm``, as in PyTorch.

    An optimizer with ``max_grad_norm`` does it within its own dispatches.

    Parameters
    ----------
    grads : mapping of str to array
    max_norm : float

    Returns
    -------
    clipped : dict of str to grilly.Tensor
        Of the gradients' dtypes.
    norm : grilly.Tensor
        What it was, float32, without axes. Infinite where the sum of squares is: gradients become 0 then, or NaN.

    Raises
    ------
    TypeError
        For what is no floating array.
    ValueError
        For no gradients, a norm that is not above 0, and arrays of different backends.
    """
    max_norm = check_number("clip_grad_norm", "max_norm", max_norm, least=0.0, above=True)
    if not isinstance(grads, Mapping):
        raise TypeError(f"clip_grad_norm: grads is a {type(grads).__name__}; expected names with arrays")
    if not grads:
        raise ValueError("clip_grad_norm: there are no gradients")
    for name, grad in grads.items():
        floats_of("clip_grad_norm", f"the gradient of {name}", grad)
    backend = backend_of("clip_grad_norm", *grads.values())
    layouts = Layout.found(grads, backend.opened.facts.storage_range // 4)
    flats = [layout.gathered(backend, grads) for layout in layouts]
    squares = [square_of(part) for layout, flat in zip(layouts, flats, strict=True) for part in layout.filled(flat)]
    square = squares[0]
    for each in squares[1:]:
        square = square + each
    found: dict[str, Tensor] = {}
    for layout, flat in zip(layouts, flats, strict=True):
        found |= layout.views(_clipped(flat, square.reshape(1), max_norm))
    return {name: found[name] for name in grads}, xp.sqrt(square)


__all__ = ["clip_grad_norm", "square_of"]
