"""Writes tests/golden/log_mel.npz: what transformers' WhisperFeatureExtractor computes.

    python tests/golden/make_log_mel.py

Needs transformers; the tests do not. Its NumPy code is recorded, which is nearer to float64 than its code for torch.
"""

import json
from pathlib import Path

import numpy as np
import transformers
from transformers import WhisperFeatureExtractor

meta, arrays = {}, {}


def sound(seed, count):
    """Tones that swell, noise and a silence, as 16-bit numbers."""
    random, time = np.random.RandomState(seed), np.arange(count) / 16000
    tones = sum(np.sin(2 * np.pi * f * time * (1 + time)) / (i + 2) for i, f in enumerate((220, 701, 2930)))
    values = tones * np.hanning(count) + 0.02 * (random.random_sample(count) - 0.5)
    values[count // 3 : count // 2] = 0
    return np.round(values / np.abs(values).max() * 30000).astype(np.int16)


def case(name, bins, samples, keep, **options):
    made = WhisperFeatureExtractor(feature_size=bins, **options)
    given = samples.astype(np.float32) / 32768
    padded = np.zeros(made.n_samples, np.float32)
    padded[: len(given)] = given[: made.n_samples]
    exact = made._np_extract_fbank_features(padded[None], "cpu")[0]
    called = made(given, sampling_rate=16000, return_tensors="np").input_features[0]
    print(f"{name}: {exact.shape}; what a call gives is {np.abs(called - exact).max():.1e} off")
    meta[name] = {"bins": bins, "n_samples": made.n_samples, "keep": keep, "frames": exact.shape[1]}
    arrays[f"{name}/samples"] = samples
    arrays[f"{name}/features"] = exact[:, ::keep].astype(np.float32)
    arrays[f"{name}/call_error"] = np.asarray(np.abs(called - exact).max(), np.float32)


if __name__ == "__main__":
    case("small", 80, sound(1, 9000), 1, chunk_length=1)
    case("cut", 128, sound(2, 17000), 3, chunk_length=1)
    case("whole", 80, sound(3, 12000), 60)
    file = Path(__file__).parent / "log_mel.npz"
    text = json.dumps({"transformers": transformers.__version__, "cases": meta})
    np.savez_compressed(file, meta=np.array(text), **arrays)
    print(f"{file.name}: {file.stat().st_size / 1024:.0f} KiB")
