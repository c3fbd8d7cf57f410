"""Batches of tokens to train language models on: of one long array, or of texts and chats packed into rows."""

from .batching import IGNORED, Batches, batches
from .files import read_jsonl
from .packing import Rows, Sample, pack
from .samples import of_chat, of_text

__all__ = ["IGNORED", "Batches", "Rows", "Sample", "batches", "of_chat", "of_text", "pack", "read_jsonl"]
