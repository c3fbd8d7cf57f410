"""ONNX models on the device: a backend for ONNX's tools, and ``Model`` for programs.

Needs the extra ``grilly-vulkan[onnx]``.
"""

from __future__ import annotations

try:
    import onnx as _onnx  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        "grilly.onnx needs the package onnx; run: pip install 'grilly-vulkan[onnx]'", name=error.name
    ) from error

from .backend import Backend, Prepared
from .model import Input, Model
from .operators import OPERATORS

__all__ = ["OPERATORS", "Backend", "Input", "Model", "Prepared"]
