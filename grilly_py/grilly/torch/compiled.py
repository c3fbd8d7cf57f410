"""What torch.compile is to go around, as it does around code that it cannot trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """``torch.compiler.disable``, of which type checkers do not know that the function stays what it is."""
    return torch.compiler.disable(function)  # type: ignore[no-any-return]


__all__ = ["uncompiled"]
