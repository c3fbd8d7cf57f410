"""Gradients of convolutions, and of their gradients."""

from __future__ import annotations

from collections.abc import Sequence

from ..arrays.elementwise import binary
from ..convolution import backward, forward
from ..convolution.backward import convolution_backward
from ..device.tape import Entry
from ..device.tensor import Tensor
from .records import gradient_of

_SIZES = ("stride", "padding", "dilation", "groups", "precision")


@gradient_of(forward.plan)
def _convolution(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    axes, *sizes, _ = entry.static
    (x, weight, *_), (gradient, *_) = entry.arrays, gradients  # a second result is the weight's split
    return convolution_backward(
        gradient._storage.device, f"conv{axes}d", axes, gradient, x, weight, needs=entry.needs[:3],
        **dict(zip(_SIZES, sizes, strict=True)),
    )  # fmt: skip


@gradient_of(backward.plan_weights)
def _backward(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """By the output's gradient, x and the weight: each is a convolution, or a gradient of one."""
    axes, *sizes, _ = entry.static
    (grad_output, x, weight), (by_dx, by_dweight, by_dbias) = entry.arrays, gradients
    name, options = f"conv{axes}d", dict(zip(_SIZES, sizes, strict=True))
    device = next(one for one in gradients if one is not None)._storage.device

    def pull(x, weight, *needs: bool) -> Sequence[Tensor | None]:
        return convolution_backward(device, name, axes, grad_output, x, weight, needs=(*needs, False), **options)

    found: Tensor | None = None
    if entry.needs[0]:
        pairs = [pair for pair in ((by_dx, weight), (x, by_dweight)) if all(one is not None for one in pair)]
        terms = [forward.convolution(device, name, axes, *pair, **options) for pair in pairs]
        if by_dbias is not None:
            terms.append(by_dbias.reshape((-1, *(1,) * axes)).broadcast_to(tuple(grad_output.shape)))
        found = terms[0]
        for term in terms[1:]:
            found = binary("add", found, term)
    by_x = pull(x, by_dweight, True, False)[0] if entry.needs[1] and by_dweight is not None else None
    by_weight = pull(by_dx, weight, False, True)[1] if entry.needs[2] and by_dx is not None else None
    return found, by_x, by_weight
