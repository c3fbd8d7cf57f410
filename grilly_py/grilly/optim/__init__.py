"""Optimizers: what changes a model's parameters by their gradients."""

from .averages import EMA
from .clipping import clip_grad_norm
from .elementwise import SGD, Adam, AdamW, Lion
from .matrices import Adafactor, Muon
from .optimizer import Optimizer
from .schedules import constant, cosine, joined, linear, step_decay, warmup_cosine
from .steps import LossScale

__all__ = [
    "EMA",
    "Adafactor",
    "Adam",
    "AdamW",
    "Lion",
    "LossScale",
    "Muon",
    "Optimizer",
    "SGD",
    "clip_grad_norm",
    "constant",
    "cosine",
    "joined",
    "linear",
    "step_decay",
    "warmup_cosine",
]
