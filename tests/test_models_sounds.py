"""Sound to features and to text: log_mel against transformers, WAV files, Transcriber and the command transcribe."""

import struct
import wave

import numpy as np
import pytest

import goldens
from grilly import models

FEATURES = goldens.cases("log_mel")


@pytest.mark.parametrize("name", FEATURES)
def test_log_mel(name):
    case = FEATURES[name]
    bins, keep = case.arguments["bins"], case.arguments["keep"]
    found = models.log_mel(case.samples / 32768, bins, n_samples=case.arguments["n_samples"])
    assert found.shape == (bins, case.arguments["frames"]) and found.dtype == np.float32
    # Both compute in float64; transformers keeps the transform in complex64, so powers are 2**-22 off.
    np.testing.assert_allclose(found[:, ::keep], case.features, atol=2e-6)


def test_log_mel_of_what_is_no_sound():
    with pytest.raises(TypeError, match="int16; expected floats"):
        models.log_mel(np.zeros(400, np.int16))
    with pytest.raises(ValueError, match=r"shape \(2, 400\); expected \(N,\)"):
        models.log_mel(np.zeros((2, 400)))
    with pytest.raises(ValueError, match="not all finite"):
        models.log_mel(np.full(400, np.nan))
    with pytest.raises(ValueError, match="200 samples; expected at least 201"):
        models.log_mel(np.zeros(200))
    assert models.log_mel(np.zeros(0), n_samples=1600).shape == (80, 10)


def write_wav(file, numbers, width=2, rate=16000):
    """Whole numbers ``(N, channels)`` of ``width`` bytes."""
    with wave.open(str(file), "wb") as made:
        made.setparams((numbers.shape[1], width, rate, 0, "NONE", ""))
        numbers = numbers + 128 if width == 1 else numbers
        made.writeframes(b"".join(int(n).to_bytes(width, "little", signed=width > 1) for n in numbers.ravel()))
    return file


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_wav(tmp_path, width, channels):
    top = 2 ** (8 * width - 1)
    numbers = np.array([[0, 1], [-top, -top], [top - 1, top - 1], [-1, top // 2], [3, -3]])[:, :channels]
    samples, rate = models.read_wav(write_wav(tmp_path / "a.wav", numbers, width, 8000))
    assert rate == 8000 and samples.dtype == np.float32
    np.testing.assert_array_equal(samples, (numbers.mean(axis=1) / top).astype(np.float32))


def test_files_that_are_no_sound(tmp_path):
    file = tmp_path / "a.wav"
    with pytest.raises(FileNotFoundError):
        models.read_wav(file)
    for text in (b"", b"RIFF", b"some text that is no sound"):
        file.write_bytes(text)
        with pytest.raises(ValueError, match=r"a.wav is no WAV file .*; run: ffmpeg -i a.wav -ac 1 -ar 16000"):
            models.read_wav(file)
    floats = struct.pack("<HHIIHH", 3, 1, 16000, 64000, 4, 32)
    body = b"WAVEfmt " + struct.pack("<I", len(floats)) + floats + b"data" + struct.pack("<I", 4) + bytes(4)
    file.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    with pytest.raises(ValueError, match=r"unknown format: 3\); run: ffmpeg"):
        models.read_wav(file)
    whole = write_wav(file, np.zeros((100, 1), int)).read_bytes()
    file.write_bytes(whole[:-20])
    with pytest.raises(ValueError, match="truncated: it says 200 bytes of sound, and has 180"):
        models.read_wav(file)
