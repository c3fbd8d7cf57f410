"""Calls of PyTorch's attention on CUDA tensors that were seen before: no checks again, and no memory of their own.

Only calls that passed their checks are known, by shapes, types and terms. Small CUDA tensors that are not in shared
memory are copied by one kernel into tensors that are, which are kept for the next such call of the same stream: the
order of the stream, and grilly's with it, make that safe.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from ..compute.backend import default_backend
from ..compute.device.tensor import Tensor
from ..interop.exchange import InteropExchange
from .cuda import dtype_for, entered, give
from .operators import nobody_looks

KNOWN = 256  # calls
STAGED = 8  # sets of tensors that are kept for copies
STAGED_BYTES = 8 << 20  # of each at most
_known: OrderedDict[tuple, dict[str, Any]] = OrderedDict()


def key_of(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *terms: Any) -> tuple:
    """What a call without a mask is known by."""
    return (query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype, *terms)


def learn(known: tuple, options: dict[str, Any]) -> None:
    """Note a call on four-axis tensors that passed its checks, with grilly's options for it."""
    _known[known] = options
    if len(_known) > KNOWN:
        _known.popitem(last=False)


def cached(operation: str, given: tuple[torch.Tensor, torch.Tensor, torch.Tensor], known: tuple) -> torch.Tensor | None:
    """The result of a call that is known and that nothing of PyTorch's looks at; else None. Raises as ``entered``."""
    options = _known.get(known)
    query, key, value = given
    if options is None or not nobody_looks(*given) or not query.get_device() == key.get_device() == value.get_device():
        return None
    exchange = entered(operation, query)
    attend = default_backend().attention.flash_attention2
    dtype = dtype_for(operation, query.dtype)
    found = []
    for tensor in given:
        base = tensor.untyped_storage().data_ptr()
        mine = exchange.over(base, tensor.data_ptr(), tuple(tensor.shape), dtype, tensor.stride())
        if mine is None:
            break
        found.append(mine)
    else:
        return give(exchange, attend(*found, **options))
    if sum(tensor.numel() for tensor in given) * dtype.itemsize > STAGED_BYTES:
        return None
    place = (exchange.interop.current(), query.dtype, query.shape, key.shape, value.shape)
    # Taken out while it is in use: another thread makes its own.
    staged = exchange.staged.pop(place, None) or _stage(exchange, given)
    torch._foreach_copy_(staged[0], given)
    result = give(exchange, attend(*staged[1], **options))
    exchange.staged[place] = staged
    while len(exchange.staged) > STAGED:
        exchange.staged.popitem(last=False)
    return result


def _stage(exchange: InteropExchange, given: tuple[torch.Tensor, ...]) -> tuple[list[torch.Tensor], list[Tensor]]:
    dtype = dtype_for("staging", given[0].dtype)
    mine = [exchange.device.empty(tuple(tensor.shape), dtype) for tensor in given]
    with torch.inference_mode(False):  # a tensor of that mode could not be written to outside it
        return [give(exchange, tensor) for tensor in mine], mine
