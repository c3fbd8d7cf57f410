"""T5's relative positions."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike


def t5_bucket(
    relative_position: ArrayLike, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128
) -> np.ndarray:
    """The bucket of T5's relative attention bias for each distance (Raffel et al. 2020, section 2.1).

    Half the buckets (of each direction, when ``bidirectional``) hold one distance each; the others are logarithmically
    wider, up to ``max_distance``, and the last takes all that is farther.

    Parameters
    ----------
    relative_position : array of int
        Key position minus query position.
    bidirectional : bool
        Whether keys after the query get buckets of their own; otherwise they share bucket 0.
    num_buckets, max_distance : int
        The size of the table, and the distance from which all is alike.

    Returns
    -------
    ndarray of int64
    """
    relative = np.asarray(relative_position, np.int64)
    first = 0
    if bidirectional:
        num_buckets //= 2
        first = (relative > 0) * num_buckets
        distance = np.abs(relative)
    else:
        distance = np.maximum(-relative, 0)
    exact = num_buckets // 2
    # float32, as in the models these weights were trained in: it decides which side of a boundary a distance falls on
    log = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    far = exact + (log / np.float32(math.log(max_distance / exact)) * np.float32(num_buckets - exact)).astype(np.int64)
    return first + np.where(distance < exact, distance, np.minimum(far, num_buckets - 1))


def t5_bias(
    table: ArrayLike,
    queries: int,
    keys: int,
    bidirectional: bool = True,
    max_distance: int = 128,
    offset: int = 0,
) -> np.ndarray:
    """T5's relative attention bias, ``(H, Sq, Sk)``.

    Parameters
    ----------
    table : array
        ``(num_buckets, H)``, the model's ``relative_attention_bias.weight``.
    queries, keys : int
        Sq and Sk.
    bidirectional, max_distance
        As for `t5_bucket`.
    offset : int
        The position of the first query among the keys: ``Sk - Sq`` when earlier keys come from a cache.
    """
    table = np.asarray(table)
    relative = np.arange(keys) - (np.arange(queries)[:, None] + offset)
    return np.moveaxis(table[t5_bucket(relative, bidirectional, len(table), max_distance)], -1, 0)
