"""What an optimizer is given to update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..compute import Tensor
from ..compute.device.dtypes import is_float
from ..compute.quantized import DeviceQuantizedTensor
from ..nn.module import Module
from ..nn.parameter import Parameter


def parameters_of(owner: str, model: Any) -> dict[str, Any]:
    """Parameters or arrays by their names."""
    if isinstance(model, Module):
        return dict(model._entries())
    if not isinstance(model, Mapping):
        said = type(model).__name__
        raise TypeError(f"{owner}: the parameters are a {said}; expected an nn.Module or names with arrays")
    return dict(model)


def unique_names(params: Mapping[str, Any]) -> Iterator[str]:
    """The names, of one that is shared the first; without parameters by which no gradients are taken."""
    seen: set[int] = set()
    for name, own in params.items():
        if id(own) in seen or isinstance(own, Parameter) and not own.requires_grad:
            continue
        seen.add(id(own))
        yield name


def array_of(owner: str, params: Mapping[str, Any], name: str) -> Any:
    """A parameter as an array. Raises ValueError where there is none of the name, TypeError for a quantized one."""
    if name not in params:
        raise ValueError(f"{owner}: there is no parameter {name!r}; there are {', '.join(list(params)[:5])}...")
    own = params[name]
    data = own.data if isinstance(own, Parameter) else own
    if isinstance(data, DeviceQuantizedTensor):
        raise TypeError(f"{owner}: {name} is quantized and has no gradient")
    return floats_of(owner, name, data)


def floats_of(owner: str, name: str, array: Any) -> Any:
    """The array. Raises TypeError for what is none of float32, float16 or bfloat16."""
    if isinstance(array, (Tensor, np.ndarray, np.generic)):
        if is_float(array.dtype):
            return array
        said = f"{array.dtype}; cast it with .astype(numpy.float32)"
    else:
        said = f"a {type(array).__name__}; expected an array"
    raise TypeError(f"{owner}: {name} is {said}")


__all__ = ["array_of", "floats_of", "parameters_of", "unique_names"]
