"""Whole models from folders as transformers saves them, and from GGUF files, on any device that grilly runs on.

``grilly.models.load(folder)`` gives a model that is called as in transformers: ``model(input_ids=...)``.
"""

from .cache import Cache
from .gguf import GGUF, StoredTensor
from .gguf.export import write_gguf
from .loading import ARCHITECTURES, load
from .model import Model
from .offload import Offload
from .output import Output
from .sentences import SentenceEncoder
from .sounds import read_sound
from .spectrogram import log_mel
from .tokenizer import Tokenizer
from .transcription import Transcriber

__all__ = [
    "ARCHITECTURES", "Cache", "GGUF", "Model", "Offload", "Output", "SentenceEncoder", "StoredTensor", "Tokenizer",
    "Transcriber", "load", "log_mel", "read_sound", "write_gguf",
]  # fmt: skip
