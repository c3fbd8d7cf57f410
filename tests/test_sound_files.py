"""Sound from files: WAV by soundfile and by Python's wave, other formats, other rates, and what is refused in words."""

import io
import struct
import sys

import numpy as np
import pytest

from grilly import models
from sounds import write_wav

#: Sizes of programs that write to a pipe (ffmpeg, SoX, and those that leave zeros), and one past the end of the file.
OPEN = [0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF - 36, 0x7FFFF000, 0, 1000]
COUNT = np.arange(1, 101)
RNG = np.random.default_rng(0)


@pytest.fixture(params=[pytest.param("soundfile", marks=pytest.mark.needs("soundfile")), "wave"])
def reader(request, monkeypatch):
    """By which module WAV files are read."""
    if request.param == "wave":
        monkeypatch.setitem(sys.modules, "soundfile", None)
    return request.param


def chunk(name, data, size=None):
    """A part of a WAV file, which may say another size than it has."""
    return name + struct.pack("<I", len(data) if size is None else size) + data


def form(tag=1, channels=1, rate=8000, bits=16):
    frame = channels * bits // 8
    return chunk(b"fmt ", struct.pack("<HHIIHH", tag, channels, rate, rate * frame & 0xFFFFFFFF, frame & 0xFFFF, bits))


def wav(*chunks, size=None):
    return chunk(b"RIFF", b"WAVE" + b"".join(chunks), size)


def encoded(samples, rate=16000, **options):
    """What soundfile writes."""
    import soundfile

    made = io.BytesIO()
    soundfile.write(made, samples, rate, **options)
    return made.getvalue()


# -- WAV --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_whole_numbers(reader, tmp_path, width, channels):
    top = 2 ** (8 * width - 1)
    numbers = np.array([[0, 1], [-top, -top], [top - 1, top - 1], [-1, top // 2], [3, -3]])[:, :channels]
    samples, rate = models.read_sound(write_wav(tmp_path / "a.wav", numbers, width, 8000))
    assert rate == 8000 and samples.dtype == np.float32
    np.testing.assert_array_equal(samples, (numbers.mean(axis=1) / top).astype(np.float32))


@pytest.mark.parametrize("size", OPEN)
@pytest.mark.parametrize("whole", [None, 0, 36, 0xFFFFFFFF, 0x7FFFFFFF])
def test_sizes_that_were_left_open(reader, size, whole):
    for before in (b"", chunk(b"LIST", b"INFOISFT\5\0\0\0Lavf1") + b"\0"):
        for channels, after in ((1, b""), (1, b"\1"), (2, b"\1\2\3")):  # a frame that is cut is none
            sound = chunk(b"data", np.repeat(COUNT, channels).astype("<i2").tobytes() + after, size)
            samples, rate = models.read_sound(wav(form(channels=channels), before, sound, size=whole))
            assert rate == 8000
            np.testing.assert_array_equal(samples * 32768, COUNT)


@pytest.mark.parametrize("part", [
    chunk(b"LIST", b"INFOabc"), chunk(b"LIST", b"x"), chunk(b"LIST", b""), chunk(b"LIST", b"INFOISFTabcd"),
    chunk(b"LIST", b"INFOISFT\xff\0\0\0ab"), chunk(b"id3 ", b"abc"), chunk(b"LIST", b"INFOabcd", 10**6),
    chunk(b"LIST", b"INFOabcd", 0xFFFFFFFF), chunk(b"LIST", b"INFOabc", 6), b"LIS",
])  # fmt: skip
def test_other_parts_of_a_file(reader, part):
    """After the sound they do not matter. Before it their sizes must be right, an odd one with a byte behind it."""
    sound = chunk(b"data", COUNT.astype("<i2").tobytes())
    samples, _ = models.read_sound(wav(form(), sound, part))
    np.testing.assert_array_equal(samples * 32768, COUNT)
    size = int.from_bytes(part[4:8], "little")
    if size == len(part) - 8:
        samples, _ = models.read_sound(wav(form(), part + bytes(size % 2), sound))
        np.testing.assert_array_equal(samples * 32768, COUNT)
    else:
        with pytest.raises((ValueError, ImportError), match="^the sound is no .*(data|damaged|chunk)"):
            models.read_sound(wav(form(), part, sound))


def test_sounds_without_samples(reader):
    """Nothing after the header, or other parts of the file, which are no sound."""
    for after, whole in ((b"", None), (b"", 0), (b"", 0xFFFFFFFF), (chunk(b"id3 ", b"abcd"), None)):
        samples, rate = models.read_sound(wav(form(), chunk(b"data", b""), after, size=whole))
        assert samples.shape == (0,) and samples.dtype == np.float32 and rate == 8000


@pytest.mark.parametrize("data", [
    b"RIFF", b"RIFF\0\0\0\0WAVE", b"RIFF\0\0\0\0WAVEdata", bytes(40), b"some text that is no sound", wav(form()),
    wav(chunk(b"data", bytes(8))), wav(form(channels=0), chunk(b"data", bytes(8))),
    wav(form(rate=0), chunk(b"data", bytes(8))), wav(form(tag=0x1234), chunk(b"data", bytes(8))),
    wav(form(bits=64), chunk(b"data", bytes(8))), wav(chunk(b"fmt ", bytes(3), 99), chunk(b"data", bytes(8))),
])  # fmt: skip
def test_files_that_are_no_sound(reader, tmp_path, data):
    file = tmp_path / "a.wav"
    file.write_bytes(data)
    error, why = {
        "soundfile": (ValueError, r"a.wav is no sound that libsndfile reads \(\w.*\w\); run: ffmpeg -i FILE new.wav$"),
        "wave": (ImportError, r"a.wav is no WAV file that Python's module wave reads \(.*\w\), and soundfile cannot be "
                 r'imported \(.*\); run: pip install "grilly-vulkan\[sound\]"$'),
    }[reader]  # fmt: skip
    with pytest.raises(error, match=why):
        models.read_sound(file)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError):
        models.read_sound(tmp_path / "a.wav")
    with pytest.raises(IsADirectoryError):
        models.read_sound(tmp_path)
    (tmp_path / "a.wav").write_bytes(b"")
    with pytest.raises(ValueError, match="a.wav is empty; expected a sound"):
        models.read_sound(str(tmp_path / "a.wav"))


def test_without_libsndfile(tmp_path, monkeypatch):
    """soundfile alone is there: importing it raises an OSError."""
    (tmp_path / "soundfile.py").write_text("raise OSError('sndfile library not found')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "soundfile", raising=False)
    samples, _ = models.read_sound(wav(form(), chunk(b"data", COUNT.astype("<i2").tobytes())))
    np.testing.assert_array_equal(samples * 32768, COUNT)
    with pytest.raises(ImportError, match=r"cannot be imported \(sndfile library not found\); run: pip install"):
        models.read_sound(b"fLaC" + bytes(40))


# -- other formats ----------------------------------------------------------------------------------------------------

STEREO = np.round(RNG.standard_normal((500, 2)) * 4000) / 32768


@pytest.mark.needs("soundfile")
@pytest.mark.parametrize("name, subtype", [
    ("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("WAVEX", "PCM_24"), ("WAV", "FLOAT"), ("WAV", "DOUBLE"),
    ("AIFF", "PCM_16"), ("W64", "PCM_16"), ("RF64", "PCM_16"), ("CAF", "PCM_16"), ("AU", "PCM_16"),
])  # fmt: skip
def test_formats_without_loss(tmp_path, name, subtype):
    wanted, _ = models.read_sound(encoded(STEREO, format="WAV", subtype="PCM_16"))
    np.testing.assert_array_equal(wanted, STEREO.mean(axis=1).astype(np.float32))
    (tmp_path / "a.raw").write_bytes(encoded(STEREO, 11025, format=name, subtype=subtype))  # names count for nothing
    samples, rate = models.read_sound(tmp_path / "a.raw")
    assert rate == 11025 and samples.dtype == np.float32
    np.testing.assert_array_equal(samples, wanted)


@pytest.mark.needs("soundfile")
@pytest.mark.parametrize("name, subtype", [
    ("WAV", "ULAW"), ("WAV", "IMA_ADPCM"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"),
])  # fmt: skip
def test_formats_with_loss(name, subtype):
    tone = 0.5 * np.sin(np.arange(8000) * 0.1)
    samples, rate = models.read_sound(encoded(np.stack([tone, tone / 2], 1), format=name, subtype=subtype))
    assert rate == 16000 and 8000 <= len(samples) < 8600  # some have whole blocks only
    assert np.abs(samples - np.resize(0.75 * tone, len(samples)))[2000:6000].max() < 0.02  # ends are worse


@pytest.mark.needs("soundfile")
def test_many_channels():
    numbers = RNG.integers(-32768, 32768, (30, 1000))
    samples, _ = models.read_sound(wav(form(channels=1000), chunk(b"data", numbers.astype("<i2").tobytes())))
    np.testing.assert_array_equal(samples, (numbers.mean(axis=1) / 32768).astype(np.float32))
    with pytest.raises(ValueError, match="(?i)channel"):
        models.read_sound(wav(form(channels=1025), chunk(b"data", bytes(2050))))


@pytest.mark.needs("soundfile")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf, [np.inf, -np.inf], 1e39])
def test_samples_that_are_no_numbers(tmp_path, value):
    samples = np.zeros((5, 2))
    samples[2] = value
    (tmp_path / "a.wav").write_bytes(encoded(samples, format="WAV", subtype="DOUBLE"))
    with pytest.raises(ValueError, match="a.wav has samples that are not finite"):
        models.read_sound(tmp_path / "a.wav")


@pytest.mark.needs("soundfile")
@pytest.mark.filterwarnings("error")  # libsndfile seeks before the beginning of the second
def test_damaged_files(tmp_path):
    file, tone = tmp_path / "a.sound", np.sin(np.arange(20000) * 0.1)
    flac, aiff, mp3 = (encoded(tone, format=name) for name in ("FLAC", "AIFF", "MP3"))
    piped = flac[:21] + bytes([flac[21] & 0xF0]) + bytes(4) + flac[26:]  # the header has the number of samples, or 0
    for data, why in (
        (flac[: len(flac) // 2], r"a.sound is no sound that libsndfile reads \(\w.*\w\)"),
        (piped, r"a.sound is no sound that libsndfile reads \(\w.*\w\)"),
        (aiff[:30], r"a.sound is no sound that libsndfile reads \(\w.*\w\)"),
        (mp3 * 4, rf"a.sound: libsndfile finds 1.2 s of sound in {len(mp3)} of {4 * len(mp3)} bytes; run: ffmpeg"),
    ):  # fmt: skip
        file.write_bytes(data)
        with pytest.raises(ValueError, match=why):
            models.read_sound(file)
    assert len(models.read_sound(mp3 + b"TAG" + bytes(125))[0]) == len(tone)


# -- other rates ------------------------------------------------------------------------------------------------------


@pytest.mark.needs("soxr")
@pytest.mark.parametrize("rate", [8000, 44100, 768000])
def test_other_rates(reader, tmp_path, rate):
    """A tone of 1 kHz is that of the other rate, but for the ends; one that is too high for it is gone."""
    place = np.arange(rate // 5) / rate
    low, high = (np.sin(2 * np.pi * hertz * place) for hertz in (1000, 11000))
    for tone, wanted in ((low, 1), (high, 0))[: 2 if rate > 22000 else 1]:
        file = write_wav(tmp_path / "a.wav", np.round(tone * 8388607)[:, None].astype(int), 3, rate)
        samples, found = models.read_sound(file, 16000)
        assert found == 16000 and samples.dtype == np.float32 and samples.shape == (3200,)
        sine = wanted * np.sin(2 * np.pi * 1000 * np.arange(3200) / 16000)
        assert np.abs(samples - sine)[500:-500].max() < 2e-6


@pytest.mark.needs("soxr")
def test_extreme_rates(reader):
    sound = chunk(b"data", np.full(10, 16384, "<i2").tobytes())
    samples, _ = models.read_sound(wav(form(rate=1), sound), 16000)
    assert samples.shape == (160000,) and abs(samples[80000] - 0.5) < 1e-3  # 10 samples are few for a filter
    samples, rate = models.read_sound(wav(form(rate=0x7FFFFFFF), sound))
    assert rate == 0x7FFFFFFF and samples.shape == (10,)


@pytest.mark.needs("soxr")
@pytest.mark.parametrize("wanted", [0, -16000, np.nan, np.inf])
def test_impossible_rates(wanted):
    with pytest.raises(ValueError, match=f"the sound: sampling_rate is {wanted}; expected a number above 0"):
        models.read_sound(wav(form(), chunk(b"data", bytes(8))), wanted)


def test_other_rates_without_soxr(monkeypatch):
    monkeypatch.setitem(sys.modules, "soxr", None)
    data = wav(form(), chunk(b"data", bytes(8)))
    assert models.read_sound(data, 8000)[1] == 8000
    why = r"the sound: the sound has 8000 samples a second and 16000 are wanted, which needs soxr .*; run: pip install "
    with pytest.raises(ImportError, match=why):
        models.read_sound(data, 16000)
