"""The operators, a file for each kind; importing this fills the table."""

from ..table import OPERATORS
from . import activations, attention, elementwise, indexing, normalization, products, reductions, shapes

__all__ = [
    "OPERATORS", "activations", "attention", "elementwise", "indexing", "normalization", "products", "reductions",
    "shapes",
]  # fmt: skip
