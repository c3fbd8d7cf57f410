"""What Tensor's operators and indices call, under the names of device/operators.py's ArrayOperations."""

from __future__ import annotations

from .elementwise import binary, in_place, unary
from .indexing import assigned, selected
from .matmul import matmul

__all__ = ["assigned", "binary", "in_place", "matmul", "selected", "unary"]
