"""What torch.compile is to go around, as it does around code that it cannot trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, at which compiled code is interrupted; other calls pass by what PyTorch has for that."""
    outside = torch.compiler.disable(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return outside(*args, **kwargs)
        return function(*args, **kwargs)

    return call


__all__ = ["uncompiled"]
