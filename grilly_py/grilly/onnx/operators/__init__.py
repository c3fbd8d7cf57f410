"""The operators, a file for each kind; importing this fills the table."""

from ..table import OPERATORS
from . import (
    activations,
    attention,
    control,
    detection,
    drawing,
    einsum,
    elementwise,
    fused,
    fused_attention,
    fused_quantized,
    indexing,
    losses,
    matmul,
    normalization,
    pooling,
    quantization,
    recurrence,
    recurrent,
    reductions,
    resizing,
    sampling,
    scattering,
    sequences,
    shapes,
    spectra,
    transposed,
    windows,
)

__all__ = [
    "OPERATORS", "activations", "attention", "control", "detection", "drawing", "einsum", "elementwise", "fused",
    "fused_attention", "fused_quantized", "indexing", "losses", "normalization", "pooling", "matmul", "quantization",
    "recurrence", "recurrent", "reductions", "resizing", "sampling", "scattering", "sequences", "shapes", "spectra",
    "transposed", "windows",
]  # fmt: skip
