"""Logarithmic mel spectrograms: what Whisper (arXiv:2212.04356) reads of sound."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import ArrayLike

from ..compute.device.arrays import NDArray

#: Powers below this count as silence.
FLOOR = 1e-10
#: How far below its loudest place a sound is told apart, in powers of ten.
RANGE = 8.0
#: The mel scale of Slaney's Auditory Toolbox: mels are 200/3 Hz up to 1000 Hz, and then equal steps of the logarithm.
LINEAR, BREAK, STEP = 200 / 3, 1000.0, math.log(6.4) / 27


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    bend = BREAK / LINEAR
    return np.where(mels < bend, LINEAR * mels, BREAK * np.exp(STEP * (np.maximum(mels, bend) - bend)))


@functools.lru_cache(maxsize=4)
def mel_filters(bins: int, n_fft: int = 400, sampling_rate: int = 16000) -> NDArray[np.float64]:
    """Triangles over the frequencies of a Fourier transform, each of area 1 in hertz, up to 8000 Hz.

    Parameters
    ----------
    bins : int
        How many.
    n_fft : int
        Samples of the transform.
    sampling_rate : int
        Samples a second.

    Returns
    -------
    numpy.ndarray
        float64 ``(bins, n_fft // 2 + 1)``; not to be written to.
    """
    top = BREAK / LINEAR + math.log(8000 / BREAK) / STEP
    corners = _hertz(np.linspace(0, top, bins + 2))
    frequencies = np.linspace(0, sampling_rate // 2, n_fft // 2 + 1)
    low, middle, high = (corners[i : bins + i, None] for i in range(3))
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    filters = np.maximum(0, np.minimum(rising, falling)) * (2 / (high - low))
    filters.flags.writeable = False
    return filters


def log_mel(
    samples: ArrayLike, bins: int = 80, *, n_samples: int | None = None, sampling_rate: int = 16000, n_fft: int = 400,
    hop_length: int = 160,
) -> NDArray[np.float32]:  # fmt: skip
    """The logarithmic mel spectrogram of a sound, as transformers' WhisperFeatureExtractor gives it.

    Computed on the host in float64, whatever the samples' dtype.

    Parameters
    ----------
    samples : array
        ``(N,)`` floats, from -1 to 1.
    bins : int
        Bands of frequencies: 80, or 128 for Whisper large v3.
    n_samples : int, optional
        The sound is cut to so many samples, or followed by silence: 480,000 for Whisper, which is 30 s. By default it
        stays as it is.
    sampling_rate : int
        Samples a second.
    n_fft : int
        Samples that each transform looks at, through a Hann window.
    hop_length : int
        Samples from one transform to the next.

    Returns
    -------
    numpy.ndarray
        float32 ``(bins, N // hop_length)``, N being ``n_samples`` if given.

    Raises
    ------
    TypeError
        For samples that are no floats.
    ValueError
        For samples of another shape, not finite, or fewer than a transform needs.
    """
    sound = np.asarray(samples)
    if sound.dtype.kind != "f":
        raise TypeError(f"log_mel: samples are {sound.dtype}; expected floats from -1 to 1")
    if sound.ndim != 1:
        raise ValueError(f"log_mel: samples have shape {sound.shape}; expected (N,), of one channel")
    if not np.isfinite(sound).all():
        raise ValueError("log_mel: samples are not all finite")
    sound = sound.astype(np.float64)
    if n_samples is not None:
        sound = np.pad(sound[:n_samples], (0, max(n_samples - len(sound), 0)))
    if len(sound) <= n_fft // 2 or len(sound) < hop_length:
        least = max(n_fft // 2 + 1, hop_length)
        raise ValueError(f"log_mel: {len(sound)} samples; expected at least {least}, or n_samples for silence after it")
    mirrored = np.pad(sound, n_fft // 2, mode="reflect")  # so that transforms have their samples in the middle
    frames = np.lib.stride_tricks.sliding_window_view(mirrored, n_fft)[::hop_length][: len(sound) // hop_length]
    window = 0.5 - 0.5 * np.cos(2 * math.pi * np.arange(n_fft) / n_fft)
    power = np.abs(np.fft.rfft(frames * window)) ** 2
    mel = np.log10(np.maximum(mel_filters(bins, n_fft, sampling_rate) @ power.T, FLOOR))
    return ((np.maximum(mel, mel.max() - RANGE) + 4) / 4).astype(np.float32)
