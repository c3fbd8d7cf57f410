"""Sound from WAV files, by Python's own module wave."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np

from ..compute.device.arrays import NDArray


def remedy(file: str | Path, sampling_rate: int = 16000) -> str:
    """What to run to make a file that can be read of one that cannot."""
    return f"run: ffmpeg -i {Path(file).name} -ac 1 -ar {sampling_rate} -c:a pcm_s16le new.wav"


def read_wav(file: str | Path) -> tuple[NDArray[np.float32], int]:
    """The sound in a WAV file.

    Parameters
    ----------
    file : str or Path
        Samples are whole numbers of 8, 16, 24 or 32 bits; channels are averaged. Where a program that wrote to a pipe
        left the sizes open, the sound goes to the end of the file.

    Returns
    -------
    samples : numpy.ndarray
        float32 ``(N,)``, from -1 to 1.
    sampling_rate : int
        Samples a second.

    Raises
    ------
    OSError
        Where the file cannot be read.
    ValueError
        For a file that is no WAV file, is truncated, or holds samples of another kind, such as floats; the message says
        what to run.
    """
    whole = _sized(Path(file).read_bytes())
    try:
        with wave.open(io.BytesIO(whole), "rb") as opened:
            width, channels, rate = opened.getsampwidth(), opened.getnchannels(), opened.getframerate()
            count = opened.getnframes()
            data = opened.readframes(count)
    except (wave.Error, EOFError) as error:
        why = str(error) or "it ends too early"
        raise ValueError(f"{file} is no WAV file that can be read ({why}); {remedy(file)}") from None
    if width not in (1, 2, 3, 4):
        raise ValueError(f"{file} has samples of {8 * width} bits; expected 8, 16, 24 or 32; {remedy(file)}")
    if len(data) != count * channels * width:
        raise ValueError(f"{file} is truncated: it says {count * channels * width} bytes of sound, and has {len(data)}")
    if width == 1:  # the only width without a sign
        numbers = np.frombuffer(data, np.uint8).astype(np.float64) - 128
    elif width == 3:
        wide = np.zeros((count * channels, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        numbers = wide.view("<i4")[:, 0] / 256.0
    else:
        numbers = np.frombuffer(data, f"<i{width}").astype(np.float64)
    mono = numbers.reshape(count, channels).mean(axis=1) / 2.0 ** (8 * width - 1)
    return mono.astype(np.float32), rate


def _sized(data: bytes) -> bytes:
    """A file with its sizes in place, where its writer could not go back to put them in: they are 0 or all ones."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return data
    start = 12
    while data[start : start + 4] != b"data":
        if start + 8 > len(data):
            return data
        size = int.from_bytes(data[start + 4 : start + 8], "little")
        start += 8 + size + size % 2
    size, rest = data[start + 4 : start + 8], data[start + 8 :]
    if size not in (bytes(4), b"\xff" * 4) or (size == bytes(4) and _is_chunk(rest)) or len(data) >= 2**32:
        return data
    whole, sound = ((length).to_bytes(4, "little") for length in (len(data) - 8, len(rest)))
    return b"".join((data[:4], whole, data[8 : start + 4], sound, rest))


def _is_chunk(data: bytes) -> bool:
    """Whether another part of the file stands here: then the sound before it is empty indeed."""
    size = int.from_bytes(data[4:8], "little")
    return len(data) >= 8 + size and all(32 <= letter < 127 for letter in data[:4])
