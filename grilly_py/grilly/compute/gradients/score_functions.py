"""Gradients of attention with users' functions."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import GradientError
from ..attention.forward import NotedCall
from ..device.device import Device
from ..device.tape import Entry, as_one
from ..device.tensor import Tensor
from .records import gradient_of
from .whole_scores import TOGETHER, by_scores, other_options


class _Call:
    """The operation that a call with functions is."""

    def __init__(self, device: Device, asked: NotedCall):
        self.device, self.asked = device, asked


def with_functions(device: Device, asked: NotedCall, arrays: Sequence):
    """A call with functions of which a gradient is wanted: its output and its log-sum-exp.

    Raises GradientError for an option that has no gradient beside them.
    """
    options, others = asked.options, other_options(asked.options)
    if others:
        raise GradientError(
            f"{asked.operation}: there is no gradient of score_mod and mask_mod beside {', '.join(others)}; it may be "
            f"beside mask, causal, {', '.join(TOGETHER[2:])}; or write the option as a part of score_mod"
        )
    q, k, v, mask, *_ = arrays
    return as_one(_Call(device, asked), None, arrays,
                  lambda: asked.run(device, q, k, v, mask, options, True))  # fmt: skip


@gradient_of(_Call)
def _pull(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    return by_scores(entry.operation.device, entry.operation.asked, entry, gradients)


__all__ = ["with_functions"]
