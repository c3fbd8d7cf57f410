"""Models in GGUF files: the file, the fields of its keys, its tensors by transformers' names, its tokenizer."""

from .checkpoint import GGUFCheckpoint
from .config import fields_of, pooling_of
from .file import GGUF, StoredTensor

__all__ = ["GGUF", "GGUFCheckpoint", "StoredTensor", "fields_of", "pooling_of"]
