"""Checks of the arrays and numbers of `options.Options`."""

from __future__ import annotations

import math

import numpy as np

from ..device.arguments import FLOAT32, no_array
from ..device.dtypes import is_float
from ..device.numbers import integer, number
from ..device.tensor import Tensor
from ..random import seed_of
from .checks import check_broadcast

INT32 = np.dtype(np.int32)
_INT32 = np.iinfo(np.int32)
#: From here up a soft-cap changes no score that float32 can tell from another; below its inverse all become 0. Within,
#: a score over the cap is no denormal number, which devices may take for 0.
MOST_CAP = 2.0**100


def as_array(operation: str, name: str, given):
    """A Tensor as it is, anything else as a NumPy array. Raises ValueError for lists that are no array."""
    if isinstance(given, Tensor):
        return given
    try:
        return np.asarray(given)
    except ValueError as error:
        raise ValueError(f"{operation}: {name} is no array: {error}; give rows of equal lengths") from None


def check_shape(operation: str, name: str, array, shapes: tuple[tuple, ...], text: str) -> None:
    """Raise ValueError unless the array has one of the shapes, which ``text`` describes."""
    if tuple(array.shape) not in shapes:
        raise ValueError(f"{operation}: {name} has shape {tuple(array.shape)}; expected {text}")


def floats(operation: str, name: str, given):
    """An array of floating numbers as float32: a NumPy array, or a Tensor that has the type already."""
    array = as_array(operation, name, given)
    if isinstance(array, Tensor):
        if array.dtype != FLOAT32:
            raise TypeError(
                f"{operation}: {name} is a Tensor of {array.dtype}; expected float32; cast it with .astype('float32')"
            )
        return array
    if array.dtype.kind != "f" and not is_float(array.dtype):
        raise TypeError(
            f"{operation}: {name} is {array.dtype}; expected float32; cast it with .astype(numpy.float32)"
        )
    with np.errstate(over="ignore"):
        return array.astype(FLOAT32)


def integers(operation: str, name: str, given):
    """An array of integers in the type that it has: a NumPy array, or an int32 Tensor."""
    array = as_array(operation, name, given)
    if isinstance(array, Tensor):
        if array.dtype != INT32:
            raise TypeError(f"{operation}: {name} is a Tensor of {array.dtype}; expected int32")
    elif array.size == 0 and not hasattr(given, "dtype"):
        return array.astype(INT32)  # of an empty list NumPy makes floats
    elif array.dtype.kind not in "iu":
        raise TypeError(f"{operation}: {name} is {array.dtype}; expected integers, as numpy.int32 has them")
    return array


def lengths(operation: str, name: str, given, batch: int, most: int, read: bool = False):
    """One number from 0 to ``most`` for each sample, int32. ``read`` brings a Tensor to the host, to be checked too."""
    array = integers(operation, name, given)
    check_shape(operation, name, array, ((batch,),), f"(B,) = ({batch},)")
    if isinstance(array, Tensor):
        if not read:
            return array
        array = array.numpy()
    if array.size and not 0 <= int(array.min()) <= int(array.max()) <= most:
        raise ValueError(
            f"{operation}: {name} goes from {array.min()} to {array.max()}; expected 0 to {most}, which is what the "
            "arrays hold"
        )
    return array.astype(INT32)


def segments(operation: str, given, batch: int, queries: int, keys: int) -> list:
    """The segment ids of queries and of keys, ``(B or 1, N)`` int32 each.

    Ids beyond int32 are numbered anew: equal ones stay equal. Raises ValueError for such ids beside a Tensor of ids.
    """
    pair = given if _is_pair(given) else (given, given)
    arrays = []
    for name, array, count in zip(("queries", "keys"), pair, (queries, keys), strict=True):
        name = f"segment_ids of {name}"
        array = integers(operation, name, array)
        array = array[None] if len(array.shape) == 1 else array
        text = f"(B or 1, {count})"
        if given is not pair:
            text += ", or a tuple (ids of queries, ids of keys)"
        check_shape(operation, name, array, ((1, count), (batch, count)), text)
        arrays.append(array)
    hosts = [array for array in arrays if not isinstance(array, Tensor)]
    if all(_fits(array) for array in hosts):
        return [array if isinstance(array, Tensor) else array.astype(INT32) for array in arrays]
    if len(hosts) == 1:
        raise ValueError(
            f"{operation}: segment_ids go from {hosts[0].min()} to {hosts[0].max()} and the other side's are a Tensor; "
            "expected numbers that fit int32 on both sides; number the segments from 0"
        )
    # As integers of Python, which are compared whole whatever the arrays' types are.
    every = np.concatenate([array.reshape(-1).astype(object) for array in arrays])
    numbers = np.unique(every, return_inverse=True)[1].astype(INT32).reshape(-1)
    return [part.reshape(a.shape) for part, a in zip(np.split(numbers, [arrays[0].size]), arrays, strict=True)]


def _is_pair(given) -> bool:
    """A tuple of two, or a list of two arrays. A list of two lists is one array with two rows."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        return False
    return isinstance(given, tuple) or all(hasattr(array, "shape") for array in given)


def _fits(array: np.ndarray) -> bool:
    return array.size == 0 or _INT32.min <= int(array.min()) <= int(array.max()) <= _INT32.max


def softcap(operation: str, given) -> float:
    """``softcap`` as a float within the bounds of MOST_CAP, 0 for none."""
    cap = number(operation, "softcap", given)
    if not (cap >= 0 and math.isfinite(cap)):
        raise ValueError(f"{operation}: softcap is {given}; expected a finite number above 0, or 0 for none")
    return 0.0 if cap >= MOST_CAP or cap == 0 else max(cap, 1 / MOST_CAP)


def bias(operation: str, given, full: tuple[int, ...], dtype: np.dtype = FLOAT32):
    """``attn_bias`` as float32 or of ``dtype``, checked to broadcast to ``full``."""
    if not isinstance(given, (np.ndarray, Tensor)):
        raise no_array(operation, "attn_bias", given)
    own = given.dtype
    check_broadcast(operation, "attn_bias", tuple(given.shape), full)
    if not (is_float(own) or (own == np.float64 and not isinstance(given, Tensor))):
        raise TypeError(f"{operation}: attn_bias is {own}; expected float32, float16 or bfloat16")
    with np.errstate(over="ignore"):
        return given if own == dtype else given.astype(FLOAT32, copy=False)


def window(operation: str, given) -> tuple[int | None, int | None]:
    """``window_size`` as two bounds, None where there is none."""
    if given is None:
        return None, None
    try:
        left, right = (None if bound is None else integer(operation, "window_size", bound) for bound in given)
    except (TypeError, ValueError):
        raise TypeError(
            f"{operation}: window_size is {given!r}; expected (left, right), each an integer or None"
        ) from None
    for bound in (left, right):
        if bound is not None and bound < -1:
            raise ValueError(f"{operation}: window_size is {(left, right)}; expected numbers from 0 up, -1 or None")
    return None if left in (None, -1) else left, None if right in (None, -1) else right


def dropout(operation: str, p, seed, offset) -> tuple[float, int, int, Tensor | None]:
    """Probability, seed and offset, and the seed where it is a tensor. Raises TypeError, and ValueError for one out of
    range."""
    p = number(operation, "dropout_p", p)
    missing, (seed, tensor) = seed is None, seed_of(operation, 0 if seed is None else seed, "dropout_seed")
    offset = integer(operation, "dropout_offset", offset)
    if not 0.0 <= p < 1.0:
        raise ValueError(f"{operation}: dropout_p is {p}; expected at least 0 and below 1")
    if not 0 <= offset < 2**32:
        raise ValueError(f"{operation}: dropout_offset is {offset}; expected 0 to 2**32 - 1")
    if missing and p:
        raise ValueError(f"{operation}: dropout_p is {p} and there is no dropout_seed; give that of the forward call")
    return p, seed, offset, tensor


def keep_words(p: float) -> dict:
    """The bound below which a generator's 16-bit number keeps a weight, and the factor of a kept weight."""
    return {"keep_below": min(math.floor((1.0 - p) * 2**16), 2**16 - 1), "keep_scale": 1.0 / (1.0 - p)}


def block_size(operation: str, given, queries: int, keys: int) -> tuple[int, int]:
    """``block_size`` as two ints, each side at most that of the scores."""
    try:
        rows, columns = (integer(operation, "block_size", size) for size in given)
    except (TypeError, ValueError):
        rows = columns = 0
    if rows < 1 or columns < 1:
        raise ValueError(f"{operation}: block_size is {given!r}; expected two integers from 1 up")
    return min(rows, max(queries, 1)), min(columns, max(keys, 1))


def block_map(operation: str, given, heads: tuple[int, int], want: tuple[int, int], blocks: tuple[int, int]):
    """``block_map`` as four-axis bool on the host; ``heads`` are (B, H), ``want`` the numbers of ``blocks``."""
    array = as_array(operation, "block_map", given)
    array = array.numpy() if isinstance(array, Tensor) else array
    if array.dtype != np.bool_:
        raise TypeError(f"{operation}: block_map is {array.dtype}; expected bool (True = attend)")
    shape = (1,) * (4 - array.ndim) + array.shape
    if len(shape) != 4 or shape[0] not in (1, heads[0]) or shape[1] not in (1, heads[1]) or shape[2:] != want:
        raise ValueError(
            f"{operation}: block_map has shape {array.shape}; expected (B or 1, H or 1, {want[0]}, {want[1]}) for "
            f"blocks of {blocks[0]} queries and {blocks[1]} keys"
        )
    return array.reshape(shape)
