"""Spectra of signals: Fourier transforms as products of matrices, and mel filters."""

from __future__ import annotations

import functools
import math

import numpy as np

from ... import array_api as xp
from ...compute import Tensor
from ..table import Call, operator, wide, within
from .elementwise import dtype_of

#: Elements of a transform's matrix: of 2,896 complex numbers, or the half spectrum of 5,791 real ones.
LARGEST = 2**25


@functools.lru_cache(maxsize=8)
def _matrix(given: int, parts: int, gives: int, length: int, inverse: bool, real: bool) -> np.ndarray:
    """The transform of ``given`` numbers of one or two parts to ``gives`` numbers, as float32 (given parts, gives 2).

    ``real``: of half a spectrum, to real numbers; (given parts, gives).
    """
    turns = np.outer(np.arange(given), np.arange(gives)) % length * (2 * np.pi / length)
    cosines, sines = np.cos(turns), np.sin(turns) * (1 if inverse else -1)
    if real:
        # What half a spectrum leaves out is its mirror image, but for the first number and that in the middle.
        twice = np.full((given, 1), 2.0)
        twice[0] = 1.0
        if length % 2 == 0 and given > length // 2:
            twice[length // 2] = 1.0
        found = np.stack([cosines * twice, -sines * twice], axis=1)[..., None]
    else:
        found = np.stack([np.stack([cosines, sines], -1), np.stack([-sines, cosines], -1)], axis=1)
    found = found[:, :parts].reshape(given * parts, -1)
    return (found / length if inverse else found).astype(np.float32, copy=False)


def _transformed(call: Call, x: Tensor, length: int, inverse: bool, half: bool) -> Tensor:
    """The transform of rows ``(..., n, 1 or 2)``, cut off or filled with zeros to its length."""
    parts, real = x.shape[-1], inverse and half
    if parts not in (1, 2):
        raise call.refuse(f"x has shape {x.shape}; expected a last axis of 1 (real) or 2 (complex) numbers")
    given = min(x.shape[-2], length // 2 + 1 if real else length)
    gives = length // 2 + 1 if half and not inverse else length
    if given * parts * gives * (1 if real else 2) > LARGEST:
        raise call.refuse(f"a transform of {length} numbers; grilly's are products with a matrix, "
                          f"of at most {LARGEST:,} elements")  # fmt: skip
    table = call.tensor(_matrix(given, parts, gives, length, inverse, real))
    rows = wide(x)[..., :given, :].reshape((*x.shape[:-2], given * parts))
    if rows.ndim == 1:
        return xp.matmul(rows.reshape((1, -1)), table).reshape((gives, -1)).astype(x.dtype, copy=False)
    return xp.matmul(rows, table).reshape((*x.shape[:-2], gives, 1 if real else 2)).astype(x.dtype, copy=False)


@operator("DFT", host=(1, 2))
def fourier_transform(
    call: Call, x: Tensor, length: np.ndarray | None = None, axis: np.ndarray | None = None
) -> Tensor:
    """The discrete Fourier transform along an axis, of numbers of one part (real) or two (complex)."""
    inverse, half = bool(call.get("inverse", 0)), bool(call.get("onesided", 0))
    place = call.get("axis", 1 if call.version < 20 else -2) if axis is None else int(axis.item())
    place = within(place, x.ndim)
    moved = xp.moveaxis(x, place, -2)
    if length is not None:
        count = int(length.item())
    else:
        count = 2 * (moved.shape[-2] - 1) if inverse and half else moved.shape[-2]
    return xp.moveaxis(_transformed(call, moved, count, inverse, half), -2, place)


@operator("STFT", host=(1, 3))
def short_time_fourier_transform(
    call: Call, signal: Tensor, step: np.ndarray, window: Tensor | None = None, length: np.ndarray | None = None
) -> Tensor:
    """The transforms of windows of a signal ``(N, L, 1 or 2)``, one every so many steps."""
    if signal.ndim == 2:
        signal = xp.expand_dims(signal, axis=-1)
    if length is None and window is None:
        raise call.refuse("neither a window nor a frame_length")
    count, every = int(length.item()) if length is not None else window.shape[0], int(step.item())
    frames = (signal.shape[1] - count) // every + 1
    places = np.arange(frames)[:, None] * every + np.arange(count)
    found = xp.take(wide(signal), places.reshape(-1), axis=1)
    found = found.reshape((signal.shape[0], frames, count, signal.shape[2]))
    if window is not None:
        found = xp.multiply(found, wide(window)[:, None])
    half = bool(call.get("onesided", 1)) and signal.shape[2] == 1
    return _transformed(call, found, count, False, half).astype(signal.dtype, copy=False)


@operator("MelWeightMatrix", host=(0, 1, 2, 3, 4))
def mel_filters(
    call: Call, bins: np.ndarray, length: np.ndarray, rate: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Triangles over the frequencies of a spectrum, evenly spaced in mel, ``(length / 2 + 1, bins)``; on the host."""
    count, size = int(bins.item()), int(length.item())
    ends = [2595 * math.log10(1 + float(each.item()) / 700) for each in (low, high)]
    mels = ends[0] + np.arange(count + 2) * (ends[1] - ends[0]) / (count + 2)
    hertz = 700 * (10 ** (mels / 2595) - 1)
    edges = ((size + 1) * hertz // float(rate.item())).astype(np.int64, copy=False)
    places = np.arange(size // 2 + 1)[:, None]
    left, middle, right = edges[:-2], edges[1:-1], edges[2:]
    rising = np.where(middle > left, (places - left) / np.maximum(middle - left, 1), 1.0)
    rising = np.where((places >= left) & (places <= middle), rising, 0)
    falling = (right - places) / np.maximum(right - middle, 1)
    found = np.where((places >= middle) & (places < right), falling, rising)
    return found.astype(dtype_of(call, call.get("output_datatype", 1)))
