"""The operators, a file for each kind; importing this fills the table."""

from ..table import OPERATORS
from . import (
    activations,
    attention,
    control,
    einsum,
    elementwise,
    indexing,
    losses,
    normalization,
    pooling,
    products,
    quantization,
    recurrence,
    reductions,
    scattering,
    shapes,
    windows,
)

__all__ = [
    "OPERATORS", "activations", "attention", "control", "einsum", "elementwise", "indexing", "losses", "normalization",
    "pooling", "products", "quantization", "recurrence", "reductions", "scattering", "shapes", "windows",
]  # fmt: skip
