"""Random numbers, which follow from the seed of the run, or of the node, and the node's place among those that draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import array_api as xp
from ... import functional as F
from ... import random
from ...compute import Tensor
from ..table import Call, Value, operator, wide
from .elementwise import dtype_of

#: Operators that draw, if nothing else decides.
DRAWING = frozenset({
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip


def _numbers(call: Call, shape: Sequence[int], dtype: Any) -> Tensor:
    """Normal or uniform numbers, as the operator's name says."""
    seed, offset = call.source()
    options = {"dtype": dtype, "seed": seed, "offset": offset, "device": call.backend}
    if "Normal" in call.name:
        mean, std = call.get("mean", 0.0), call.get("scale", 1.0)
        return random.normal(tuple(shape), mean=mean, std=std, **options)
    low, high = call.get("low", 0.0), call.get("high", 1.0)
    return random.uniform(tuple(shape), low=low, high=high, **options)


@operator("RandomNormal", "RandomUniform", folds=False)
def drawn(call: Call) -> Tensor:
    """An array of random numbers."""
    return _numbers(call, call.attributes["shape"], dtype_of(call, call.get("dtype", 1)))


@operator("RandomNormalLike", "RandomUniformLike", folds=False)
def drawn_like(call: Call, x: Value) -> Tensor:
    """An array of random numbers in the shape of ``x``, and in its dtype unless the node names one."""
    return _numbers(call, x.shape, dtype_of(call, call.get("dtype")) if call.get("dtype") else x.dtype)


@operator("Bernoulli", known=False)
def bernoulli(call: Call, x: Tensor) -> Tensor:
    """1 with the probability that x has, else 0."""
    dtype = dtype_of(call, call.get("dtype")) if call.get("dtype") else x.dtype
    seed, offset = call.source()
    numbers = random.uniform(x.shape, seed=seed, offset=offset, device=call.backend)
    return xp.less(numbers, x).astype(dtype, copy=False)


@operator("Multinomial", known=False)
def multinomial(call: Call, x: Tensor) -> Tensor:
    """Places along the second axis, each drawn with the probability that the softmax of x gives it."""
    dtype = dtype_of(call, call.get("dtype", 6))
    seed, offset = call.source()
    reached = xp.cumulative_sum(F.softmax(wide(x), -1), axis=1)
    reached = xp.divide(reached, reached[:, -1:])  # 1 from the last place on that can be drawn
    shape = (x.shape[0], int(call.get("sample_size", 1)), 1)
    numbers = random.uniform(shape, seed=seed, offset=offset, device=call.backend)
    below = xp.less_equal(reached.reshape((x.shape[0], 1, x.shape[1])), numbers)
    return xp.sum(below, axis=2, dtype=np.int32).astype(dtype, copy=False)


@operator("Dropout", host=(1, 2), folds=False)
def dropout(call: Call, x: Value, ratio: np.ndarray | None = None, training: np.ndarray | None = None) -> Any:
    """The same array, and a mask that keeps everything; while training elements are dropped at random."""
    share = 0.5 if ratio is None else float(ratio.item())
    if training is None or not training.item() or not share:
        return x, xp.ones(x.shape, dtype=np.bool_, device=call.backend) if call.wants(1) else None
    if not 0 <= share < 1:
        raise ValueError(f"ratio is {share}; expected 0 or more, and less than 1")
    seed, offset = call.source()
    factors = xp.ones(x.shape, dtype=np.float32, device=call.backend)
    factors = F.dropout(factors, share, seed=seed, offset=offset)
    return xp.multiply(wide(call.tensor(x)), factors).astype(x.dtype, copy=False), xp.not_equal(factors, 0)
