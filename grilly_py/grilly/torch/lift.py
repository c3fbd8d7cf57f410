"""``grilly.torch.lift``: any of grilly's functions and layers on PyTorch's tensors, without gradients."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from ..compute.device.tensor import Tensor
from ..interop.exchange import InteropExchange
from .arrays import array_of, check_dense, tensor_of, to_torch
from .compiled import uncompiled
from .cuda import entered, give, taken


def lift(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with PyTorch's tensors for arrays: of its arguments, also in tuples, lists and dicts, and results.

    Parameters
    ----------
    function : callable
        One of ``grilly.functional``, of ``backend.attention``, an ``nn`` module, or anything else that takes NumPy
        arrays and returns new ones.

    Returns
    -------
    callable
        Takes tensors where ``function`` takes arrays, without a copy, and gives tensors where it gives arrays. Where it
        gives grilly's Tensors, as functions of the array API do, tensors on the CPU are copies of them. With tensors of
        CUDA, on the backend's GPU, it takes and gives grilly's Tensors for them: over the same memory where that is
        shared (``grilly.torch.empty``, and what grilly gave), else a copy on the GPU. What is no tensor goes through as
        it is.

    Raises
    ------
    RuntimeError
        When the callable is given a tensor that requires grad where gradients are enabled: the result would not be part
        of PyTorch's graph. ``grilly.torch.attention`` and ``scaled_dot_product_attention`` are differentiable.
    TypeError
        When it is given a tensor that is not dense, or on another device.
    NotImplementedError
        Within a transform of torch.func, such as vmap.
    UnsupportedError
        As ``grilly.torch.cuda_device`` for CUDA tensors.

    Examples
    --------
    >>> rope = grilly.torch.lift(grilly.functional.rope)
    >>> with torch.no_grad():
    ...     turned = rope(x, positions=positions)
    """
    name = getattr(function, "__name__", type(function).__name__)

    @uncompiled
    def lifted(*args: Any, **kwargs: Any) -> Any:
        tensors = list(_tensors((*args, *kwargs.values())))
        first = next((tensor for tensor in tensors if tensor.is_cuda), None)
        exchange = None if first is None else entered(name, first)
        given = [_given(name, value, exchange) for value in args]
        more = {key: _given(name, value, exchange) for key, value in kwargs.items()}
        result = function(*given, **more)
        if exchange is not None:
            return _result(result, functools.partial(give, exchange))
        return _result(result, to_torch if tensors else _stays)

    # A module has no signature of its own worth copying.
    return functools.wraps(function)(lifted) if hasattr(function, "__name__") else lifted


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """PyTorch's tensors among the arguments of a call."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())


def _stays(tensor: Tensor) -> Tensor:
    return tensor


def _given(name: str, value: Any, exchange: InteropExchange | None) -> Any:
    if isinstance(value, (tuple, list)):
        items = [_given(name, item, exchange) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: _given(name, item, exchange) for key, item in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    check_dense(name, tensor=value)
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        raise NotImplementedError(
            f"{name}: a tensor belongs to a transform of torch.func (vmap), which knows grilly.torch.attention and "
            "scaled_dot_product_attention alone; call it outside, on the whole tensor"
        )
    if value.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            f"{name}: a tensor requires grad, and the result would not carry it; give tensor.detach(), call within "
            "torch.no_grad(), or use grilly.torch.attention or scaled_dot_product_attention, which are differentiable"
        )
    return taken(exchange, value.detach(), name) if exchange is not None and value.is_cuda else array_of(value)


def _result(value: Any, back: Callable[[Tensor], Any]) -> Any:
    """What a function gave, with PyTorch's tensors for arrays, and for Tensors what ``back`` makes of them."""
    if isinstance(value, np.ndarray):
        return tensor_of(value)
    if isinstance(value, Tensor):
        return back(value)
    if isinstance(value, (tuple, list)):
        items = [_result(item, back) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if type(value) is dict:
        return {key: _result(item, back) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        given = {name: _result(v, back) for name, v in own.items() if isinstance(v, (np.ndarray, Tensor))}
        return dataclasses.replace(value, **given)
    return value
