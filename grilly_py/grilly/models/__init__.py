"""Whole models from folders as transformers saves them, on any device that grilly runs on.

``grilly.models.load(folder)`` gives a model that is called as in transformers: ``model(input_ids=...)``.
"""

from .loading import ARCHITECTURES, load
from .model import Model, Output

__all__ = ["ARCHITECTURES", "Model", "Output", "load"]
