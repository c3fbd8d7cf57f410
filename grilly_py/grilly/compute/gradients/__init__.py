"""Gradients of the operations that a tape has noted (device/tape.py): one file for each room of compute."""

from . import (  # noqa: F401 their gradients are entered
    attention,
    convolution,
    dropout,
    elementwise,
    embedding,
    functions,
    indexing,
    linear,
    losses,
    matmul,
    norms,
    reductions,
    rope,
    shapes,
    steps,
)
from .pull import pulled

__all__ = ["pulled"]
