"""Sound from files, by the packages soundfile (libsndfile) and soxr; WAV files also by Python's own module wave."""

from __future__ import annotations

import contextlib
import io
import math
import wave
from pathlib import Path
from typing import Any

import numpy as np

from ..compute.device.arrays import NDArray
from ..compute.device.numbers import number

INSTALL = 'pip install "grilly-vulkan[sound]"'
#: Samples that are decoded at once.
BLOCK = 1 << 20
#: So many bytes after the last frame of an MP3 may be tags.
TAGS = 4096
#: The largest size: to the end of the file.
OPEN = b"\xff" * 4


def read_sound(file: str | Path | bytes, sampling_rate: int | None = None) -> tuple[NDArray[np.float32], int]:
    """The sound in a file, its channels averaged.

    Parameters
    ----------
    file : str, Path or bytes
        A name, or what a file holds: WAV, FLAC, OGG, MP3 or another format of libsndfile. Without the package
        soundfile, WAV as Python's module wave reads it. Where the sizes in a WAV file are past its end, or were left
        open by a program that wrote to a pipe, the sound goes to the end of the file.
    sampling_rate : int, optional
        Samples a second that are wanted, which the package soxr makes of others. By default the file's.

    Returns
    -------
    samples : numpy.ndarray
        float32 ``(N,)``, from -1 to 1; floats of the file stay as they are.
    sampling_rate : int
        Samples a second.

    Raises
    ------
    OSError
        Where the file cannot be read.
    ValueError
        For a file that is empty, damaged or no such sound, samples that are not finite, and impossible rates.
    ImportError
        Where a package that is needed is not installed; the message says what to run.
    """
    data, called = (file, "the sound") if isinstance(file, bytes) else (Path(file).read_bytes(), str(file))
    samples, rate = decode(data, called)
    if sampling_rate is None:
        return samples, rate
    return resample(called, samples, rate, sampling_rate), sampling_rate


def decode(data: bytes, called: str) -> tuple[NDArray[np.float32], int]:
    """`read_sound` of what a file holds; errors begin with what it is ``called``."""
    if not data:
        raise ValueError(f"{called} is empty; expected a sound")
    data = _to_the_end(data)
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError where libsndfile is missing
        samples, rate = _by_wave(data, called, error)
    else:
        samples, rate = _by_soundfile(data, called, soundfile)
    if not np.isfinite(samples).all():
        raise ValueError(f"{called} has samples that are not finite")
    return samples, rate


def resample(operation: str, samples: NDArray[Any], given: float, wanted: float) -> NDArray[Any]:
    """Samples ``(N,)`` with ``wanted`` a second, of ``given`` a second; errors begin with the operation."""
    for rate in (given, wanted):
        if not 0 < number(operation, "sampling_rate", rate) < math.inf:
            raise ValueError(f"{operation}: sampling_rate is {rate!r}; expected a number above 0")
    if given == wanted:
        return samples
    try:
        import soxr
    except ImportError as error:
        raise ImportError(f"{operation}: the sound has {given} samples a second and {wanted} are wanted, which needs "
                          f"soxr ({error}); run: {INSTALL}") from None  # fmt: skip
    found: NDArray[Any] = soxr.resample(np.ascontiguousarray(samples, np.float32), given, wanted)
    return found


class _Bytes(io.BytesIO):
    """What libsndfile reads. Damaged files have it seek before the beginning, which is no error to print."""

    def seek(self, offset: int, whence: int = 0) -> int:
        with contextlib.suppress(ValueError):
            super().seek(offset, whence)
        return self.tell()


def _by_soundfile(data: bytes, called: str, soundfile: Any) -> tuple[NDArray[np.float32], int]:
    source, parts, ended = _Bytes(data), [np.zeros(0, np.float32)], False
    try:
        # What is not finite is said later, and of the whole sound.
        with np.errstate(over="ignore", invalid="ignore"), soundfile.SoundFile(source) as opened:
            rate, size = opened.samplerate, max(BLOCK // opened.channels, 1)
            while len(part := opened.read(size, dtype="float64", always_2d=True)):
                parts.append(part.mean(axis=1).astype(np.float32))
            # The length of an MP3 without one is a guess from its first frame, and reading stops there.
            ended = opened.format != "MP3" or opened.tell() < opened.frames or len(data) - source.tell() <= TAGS
    except soundfile.SoundFileError as error:
        why = getattr(error, "error_string", str(error)).rstrip(".")
        raise ValueError(f"{called} is no sound that libsndfile reads ({why}); run: ffmpeg -i FILE new.wav") from None
    samples = np.concatenate(parts)
    if not ended:
        raise ValueError(f"{called}: libsndfile finds {len(samples) / rate:.1f} s of sound in {source.tell()} of "
                         f"{len(data)} bytes; run: ffmpeg -i FILE new.wav")  # fmt: skip
    return samples, rate


def _by_wave(data: bytes, called: str, missing: Exception) -> tuple[NDArray[np.float32], int]:
    try:
        with wave.open(io.BytesIO(data), "rb") as opened:
            width, channels, rate = opened.getsampwidth(), opened.getnchannels(), opened.getframerate()
            numbers = np.frombuffer(opened.readframes(len(data)), np.uint8)
        if width > 4 or not rate:
            raise wave.Error(f"{8 * width} bits, {rate} samples a second")
    except (wave.Error, EOFError, RuntimeError) as error:
        why = str(error) or "it is damaged"
        raise ImportError(f"{called} is no WAV file that Python's module wave reads ({why}), and soundfile cannot be "
                          f"imported ({missing}); run: {INSTALL}") from None  # fmt: skip
    numbers = numbers[: len(numbers) // (width * channels) * width * channels].reshape(-1, width)
    wide = np.zeros((len(numbers), 4), np.uint8)
    wide[:, 4 - width :] = numbers ^ 128 if width == 1 else numbers  # the only width without a sign
    return (wide.view("<i4").reshape(-1, channels).mean(axis=1) / 2.0**31).astype(np.float32), rate


def _to_the_end(data: bytes) -> bytes:
    """A WAV file whose sizes reach its end at least: a program that writes to a pipe cannot go back to put them in."""
    place = 12
    while data[:4] == b"RIFF" and data[8:12] == b"WAVE" and place + 8 <= len(data):
        name, size = data[place : place + 4], int.from_bytes(data[place + 4 : place + 8], "little")
        place += 8
        if name == b"data":
            is_open = size == 0 and not _is_chunk(data[place:])
            if is_open or int.from_bytes(data[4:8], "little") < len(data) - 8:  # the latter matters to wave
                sound = OPEN if is_open else data[place - 4 : place]
                return b"".join((data[:4], OPEN, data[8 : place - 4], sound, data[place:]))
            break
        place += size + size % 2
    return data


def _is_chunk(data: bytes) -> bool:
    """Whether another part of the file stands here: then the sound before it is empty indeed."""
    size = int.from_bytes(data[4:8], "little")
    return len(data) >= 8 + size and all(32 <= letter < 127 for letter in data[:4])
