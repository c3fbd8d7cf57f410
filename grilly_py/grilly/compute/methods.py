"""``backend.attention``: the attention operations of one backend, bound to it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from .attention import public
from .device.device import Device
from .unfused import mask, output, scores, softmax, t5_bias

Arguments = ParamSpec("Arguments")


def _method(
    operation: Callable[Concatenate[Device, Arguments], Any],
) -> Callable[Concatenate[Attention, Arguments], Any]:
    """An operation on a device as a method."""

    @functools.wraps(operation)
    def method(attention: Attention, /, *arguments: Arguments.args, **options: Arguments.kwargs) -> Any:
        return operation(attention._device, *arguments, **options)

    return method


class Attention:
    """The attention operations of one ``grilly.Compute``.

    Each is ``grilly.functional``'s function of its name on this backend: the same arguments, results and errors, which
    are documented there; but ``softmax`` is that of scores. Tensors of another backend raise ValueError.
    """

    def __init__(self, device: Device):
        self._device = device

    flash_attention2 = _method(public.flash_attention2)
    flash_attention2_backward = _method(public.flash_attention2_backward)
    flash_attention3 = _method(public.flash_attention3)
    attention_scores = _method(scores.attention_scores)
    attention_mask = _method(mask.attention_mask)
    t5_bias = _method(t5_bias.t5_bias)
    softmax = _method(softmax.softmax)
    attention_output = _method(output.attention_output)


__all__ = ["Attention"]
