"""Folders of quantized safetensors: what config.json calls ``quantization_config``, one file for each method."""

from .checkpoint import METHODS, QuantizedCheckpoint, checkpoint_of

__all__ = ["METHODS", "QuantizedCheckpoint", "checkpoint_of"]
