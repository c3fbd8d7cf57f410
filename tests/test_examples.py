"""docs/examples: each runs as it is, and what it computes is right."""

import re
import runpy
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

import grilly
from grilly.integrations import minilm
from test_minilm import weights

EXAMPLES = Path(__file__).parents[1] / "docs/examples"
pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="docs/examples is not in an installed package")
HELPERS = {"png", "random_folder"}


@pytest.fixture
def example(vulkan_backend, monkeypatch, capsys):
    """What runs an example with arguments: its names and the lines that it printed."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    former = grilly.use(vulkan_backend)

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        names = runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return names, capsys.readouterr().out.splitlines()

    yield run
    grilly.use(former)


def shape(path):
    """Rows and columns of a PNG, whose pixels can be read."""
    data = path.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    start = data.index(b"IDAT")
    pixels = zlib.decompress(data[start + 4 : start + 4 + int.from_bytes(data[start - 4 : start], "big")])
    assert len(pixels) % height == 0 and (len(pixels) // height - 1) % width == 0
    return height, width


def test_denoise(example, tmp_path):
    """The same as means by weights in float64, and nearer to the picture without noise."""
    names, lines = example("denoise", str(tmp_path / "out.png"))
    before, after = (float(number) for number in re.findall(r"([\d.]+) dB", lines[0]))
    assert after > before + 5
    assert shape(tmp_path / "out.png") == (192, 3 * 192 + 16)
    noise, rng = 0.1, np.random.default_rng(1)
    image = names["picture"](24) + rng.standard_normal((24, 24), dtype=np.float32) / 10
    patches = names["surroundings"](image).astype(np.float64)
    assert patches.shape == (576, 25) and np.array_equal(patches[:, 12], image.ravel())
    apart = ((patches[:, None] - patches) ** 2).sum(axis=2)
    weights = np.exp(-apart / (2 * (0.75 * noise * 5) ** 2))
    expected = weights @ image.ravel().astype(np.float64) / weights.sum(axis=1)
    np.testing.assert_allclose(names["denoise"](image, noise).ravel(), expected, rtol=0, atol=1e-3)


def test_patterns(example, tmp_path):
    names, lines = example("patterns", str(tmp_path / "out.png"))
    pairs = {line[:16].strip(): int(line[16:].split()[0]) for line in lines}
    i, j = np.mgrid[:48, :48]
    sees = {"everything": i >= 0, "causal": j <= i, "a window of 8": (j <= i) & (j > i - 8),
            "a prefix of 12": (j <= i) | (j < 12), "ALiBi": j <= i,
            "three documents": (j <= i) & (i // 16 == j // 16)}  # fmt: skip
    assert pairs == {name: pattern.sum() for name, pattern in sees.items()}
    for name, pattern in sees.items():
        found = names["weights"](**names["PATTERNS"][name])
        np.testing.assert_allclose(found.sum(axis=1), 1, rtol=0, atol=1e-5)
        assert not found[~pattern].any()
    assert shape(tmp_path / "out.png") == (2 * 144 + 12, 3 * 144 + 24)


@weights
def test_sentence_search(example):
    names, lines = example("sentence_search")
    assert len(lines) == 3 and "Knead the dough" in lines[0]
    _, lines = example("sentence_search", "what will the weather be like?")
    assert "Heavy rain" in lines[0]
    encoder = grilly.models.SentenceEncoder.load(minilm.model_path())
    found = names["search"](encoder, "A cat sleeps.", names["SENTENCES"], count=6)
    assert "kitten" in found[0][0] and len(found) == 6
    assert [cosine for _, cosine in found] == sorted((cosine for _, cosine in found), reverse=True)


def test_generate_by_hand(example, vulkan_backend):
    """The tokens are the likeliest ones of the same model in float64, without a cache."""
    names, lines = example("generate_by_hand", "12")
    tokens = [int(token) for token in lines[0].split()]
    assert len(tokens) == 12 and len(set(tokens)) > 3
    # The same weights, by their seed; those of the run are on a device that is closed.
    model = names["weights"](vulkan_backend)
    tables = {name: model[name].numpy().astype(np.float64) for name in ("tokens", "places", "head")}
    text = np.array([1, 2, 3, *tokens])
    x = tables["tokens"][text] + tables["places"][: len(text)]

    def norm(x):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.finfo(np.float32).eps)

    for layer in model["layers"]:
        w = {name: layer[name].numpy().astype(np.float64) for name in ("qkv", "out", "up", "down")}
        qkv = (norm(x) @ w["qkv"].T).reshape(len(text), 3, names["HEADS"], -1).transpose(1, 2, 0, 3)
        attended = grilly.reference.naive_attention(*qkv[:, None], causal=True, dtype=np.float64)[0][0]
        x = x + attended.transpose(1, 0, 2).reshape(x.shape) @ w["out"].T
        x = x + grilly.reference.activation("gelu", norm(x) @ w["up"].T) @ w["down"].T
    logits = norm(x) @ tables["head"].T
    for place, token in enumerate(tokens, start=2):
        assert logits[place, token] >= logits[place].max() - 1e-4


def test_classify_image(example, tmp_path):
    names, lines = example("classify_image")
    assert len(lines) == 3 and {line.split()[1] for line in lines} == set(names["LABELS"])
    folder = names["random_vit"](tmp_path)
    found = names["classify"](str(folder))
    assert sum(probability for _, probability in found) == pytest.approx(1)
    shown = [f"{probability:6.1%}  {label}" for label, probability in found]
    assert shown == lines
    _, again = example("classify_image", str(folder))
    assert again == lines
    image = names["picture"](40)
    assert image.shape == (40, 40, 3) and image[18, 20, 0] > 200 > image[0, 0, 0]
    pixels = names["pixel_values"](image)
    assert pixels.shape == (1, 3, 40, 40) and pixels.min() >= -1 and pixels.max() <= 1


@pytest.mark.needs("tokenizers")
def test_translate(example, tmp_path):
    names, lines = example("translate")
    assert len(lines) == 4 and lines[0] == "translate English to German: the house is small"
    assert all(set(line.split()) <= set(names["WORDS"]) and line.split() for line in lines[1::2])
    folder = names["random_t5"](tmp_path)
    _, again = example("translate", str(folder), "the house is old")
    assert again == lines[2:], "a text alone gives what it gives in a batch"


@pytest.mark.long("it trains for many seconds; adapter.py does so in a short run")
def test_characters(example, tmp_path):
    """It learns: in few steps from a guess to less than what the letters' frequencies tell; the curve falls too."""
    names, lines = example("characters", "45", str(tmp_path / "curve.png"))
    counts = np.unique(list(names["pages"]()), return_counts=True)[1]
    frequencies = counts / counts.sum()
    assert re.fullmatch(r"\d+ letters, \d+ different ones: a guess has a loss of 4\.\d\d", lines[0])
    before, after = (float(number) for number in re.findall(r"\d+\.\d\d", lines[1])[::-1])
    assert after < -np.sum(frequencies * np.log(frequencies)) - 0.2 < 4 < before
    assert lines[2].startswith("The ") and shape(tmp_path / "curve.png") == (160, 480)
    picture = names["curve"]([4.0, 2.0, 1.0], 4)
    assert [int(np.flatnonzero(picture[:, column] == 40)[0]) for column in (0, 240, 479)] == [0, 80, 119]


@weights
@pytest.mark.long("it trains for many seconds; adapter.py does so in a short run")
def test_pairs(example):
    names, lines = example("pairs")
    before, after = (int(re.search(r"(\d+)%", line)[1]) for line in lines)
    assert before < 60 and after == 100
    assert float(lines[1].rpartition(" ")[2]) < 0.5


@pytest.mark.needs("tokenizers", "jinja2")
def test_adapter(example, tmp_path):
    names, lines = example("adapter")
    assert lines[0] == "What is the capital of France ?" and "Paris ." not in lines[1]
    assert lines[2] == "after:  The capital of France is Paris ."
    folder, file = names["small_llama"](tmp_path / "llama"), names["questions"](tmp_path / "data.jsonl")
    question, before, _, losses = names["run"](folder, file, tmp_path / "adapter", steps=1)
    assert (question, f"before: {before}") == tuple(lines[:2])
    assert lines[3] == f"loss:   {losses[0]:.2f}, then {float(lines[3].rpartition(' ')[2]):.2f}"


def test_every_example_is_tested_and_named():
    found = {path.stem for path in EXAMPLES.glob("*.py")} - HELPERS
    page = (EXAMPLES.parent / "gallery.md").read_text(encoding="utf-8")
    own = Path(__file__).read_text(encoding="utf-8")
    for name in found:
        assert f"examples/{name}.py" in page and f"def test_{name}(" in own
