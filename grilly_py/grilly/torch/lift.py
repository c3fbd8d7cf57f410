"""``grilly.torch.lift``: any of grilly's functions and layers on PyTorch's tensors, without gradients."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .arrays import array_of, check_host, tensor_of


def lift(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with PyTorch's CPU tensors for arrays: of its arguments, also in tuples and lists, and results.

    Parameters
    ----------
    function : callable
        One of ``grilly.functional``, of ``backend.attention``, an ``nn`` module, or anything else that takes NumPy
        arrays and returns new ones.

    Returns
    -------
    callable
        Takes tensors where ``function`` takes arrays, without a copy, and gives tensors where it gives arrays. What is
        no tensor goes through as it is.

    Raises
    ------
    RuntimeError
        When the callable is given a tensor that requires grad where gradients are enabled: the result would not be part
        of PyTorch's graph. ``grilly.torch.attention`` and ``scaled_dot_product_attention`` are differentiable.
    TypeError
        When it is given a tensor that is not dense or not on the CPU.

    Examples
    --------
    >>> rope = grilly.torch.lift(grilly.functional.rope)
    >>> with torch.no_grad():
    ...     turned = rope(x, positions)
    """
    name = getattr(function, "__name__", type(function).__name__)

    def lifted(*args: Any, **kwargs: Any) -> Any:
        given = [_given(name, value) for value in args]
        return _result(function(*given, **{key: _given(name, value) for key, value in kwargs.items()}))

    # A module has no signature of its own worth copying.
    return functools.wraps(function)(lifted) if hasattr(function, "__name__") else lifted


def _given(name: str, value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        items = [_given(name, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if not isinstance(value, torch.Tensor):
        return value
    check_host(name, tensor=value)
    if value.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            f"{name}: a tensor requires grad, and the result would not carry it; give tensor.detach(), call within "
            "torch.no_grad(), or use grilly.torch.attention or scaled_dot_product_attention, which are differentiable"
        )
    return array_of(value)


def _result(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return tensor_of(value)
    if isinstance(value, (tuple, list)):
        items = [_result(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **{n: _result(v) for n, v in own.items() if isinstance(v, np.ndarray)})
    return value
