"""The buckets of T5's relative position bias."""

from __future__ import annotations

import math

import numpy as np


def bucket_starts(buckets: int, max_distance: int) -> np.ndarray:
    """The least distance in each of the wider buckets of one direction, ``(buckets - buckets // 2,)`` int32.

    In float32, as in the models that were trained with these buckets: it decides which side of a boundary a distance is
    on. A bucket that no distance falls into starts where the next one does.
    """
    exact = buckets // 2
    distance = np.arange(exact, max_distance + 1, dtype=np.float32)
    steps = np.log(distance / np.float32(exact)) / np.float32(math.log(max_distance / exact))
    bucket = np.minimum(exact + (steps * np.float32(buckets - exact)).astype(np.int64), buckets - 1)
    # Should rounding leave the last bucket empty, it starts one further.
    return (exact + np.searchsorted(bucket, np.arange(exact, buckets))).astype(np.int32)


def bucket_words(buckets: int, bidirectional: bool, max_distance: int) -> np.ndarray:
    """The T5 bucket of every distance from -max_distance to max_distance, int32."""
    each = buckets // 2 if bidirectional else buckets
    exact = each // 2
    starts = bucket_starts(each, max_distance)
    far = np.arange(max_distance + 1)
    one = np.where(far < exact, far, exact - 1 + np.searchsorted(starts, far, side="right")).astype(np.int32)
    right = one[1:] + each if bidirectional else np.zeros(max_distance, np.int32)
    return np.concatenate([one[::-1], right])
