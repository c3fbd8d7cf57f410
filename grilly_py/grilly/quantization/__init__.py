"""Numbers of few bits in blocks, as GGUF files store them: their types, and both ways between them and floats.

Everything here is NumPy; nothing else of grilly is imported.
"""

from .tensor import QuantizedTensor, quantize
from .types import TYPES, QuantizationType

__all__ = ["TYPES", "QuantizationType", "QuantizedTensor", "quantize"]
