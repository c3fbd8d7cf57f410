"""Texts of unlike lengths in one row of tokens: SentenceEncoder on a processor."""

import numpy as np
import pytest

import goldens
from grilly import models
from grilly.models.packing import by_tokens, packed
from model_folders import write_folder, write_tokenizer

CASES = goldens.cases("models")


def test_a_row_of_texts():
    pack = packed([[5, 6, 7], [8], [9, 5]], [[0, 1, 2], [0], [0, 1]], 4)
    assert pack.ids.tolist() == [[5, 6, 7, 8, 9, 5, 4, 4]] and pack.places.tolist() == [[0, 1, 2, 0, 0, 1, 0, 0]]
    texts = [{0, 1, 2}, {3}, {4, 5}, {6, 7}]  # the last one is what the row is filled up with
    assert pack.own.shape == (1, 1, 8, 8)
    for token, seen in enumerate(pack.own[0, 0]):
        assert set(np.flatnonzero(seen)) == next(text for text in texts if token in text)
    assert [set(np.flatnonzero(row)) for row in pack.members[:3]] == texts[:3] and not pack.members[3:].any()
    assert pack.first[:3].tolist() == [0, 3, 4] and pack.first.shape == pack.members.shape[:1]
    long = packed([[1] * 50, [2] * 31], [range(50), range(31)], 0)
    assert long.ids.shape == (1, 96) and long.own.sum() == 50**2 + 31**2 + 15**2


def test_which_texts_share_a_row():
    lengths = [60, 3, 100, 300, 90, 7]
    rows = by_tokens(lengths, 32, 512)
    assert rows == [[1, 5, 0, 4], [2], [3]]
    assert by_tokens(lengths, 2, 512) == [[1, 5], [0, 4], [2], [3]]
    assert by_tokens(lengths, 32, 100) == [[1, 5, 0], [4], [2], [3]], "96 tokens, so that a row may be filled up to 96"
    assert by_tokens([], 32, 512) == []


@pytest.mark.parametrize("pooling", ["mean", "cls", "mean_sqrt_len", "max"])
@pytest.mark.parametrize("case", ["bert", "roberta", "distilbert", "mpnet"])
def test_texts_together_are_as_each_alone(vulkan_backend, tmp_path, case, pooling):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{n}": n for n in range(61)}, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    folder = write_folder(tmp_path / "model", CASES[case].arguments)
    write_tokenizer(folder, made.to_str())
    encoder = models.SentenceEncoder.load(folder, backend=vulkan_backend)
    encoder.pooling = pooling
    random = np.random.RandomState(0)
    # w0 and w1 are the padding's numbers, which RoBERTa leaves out of its count of positions.
    texts = [" ".join(f"w{n}" for n in random.randint(0, 61, size)) for size in (9, 1, 4, 4, 23, 2, 11, 1, 30)]
    alone = np.stack([encoder.encode(text) for text in texts])
    assert np.abs(alone - alone[0]).max() > 0.01
    for _ in range(4):  # captured and replayed
        np.testing.assert_allclose(encoder.encode(texts), alone, atol=3e-6)
    np.testing.assert_allclose(encoder.encode(texts, batch_size=2), alone, atol=3e-6)
    for given, number in (([*texts, "", " "], len(texts)), (["", *texts], 0), ("", 0), ([" ", ""], 0)):
        with pytest.raises(ValueError, match=f"encode: sentence {number}, counted from 0, has no tokens"):
            encoder.encode(given, batch_size=4)
    np.testing.assert_allclose(encoder.encode(["", "w5"], prompt="w9 ")[0], encoder.encode("w9"), atol=3e-6)
    assert encoder.encode([]).shape == (0, encoder.width)
