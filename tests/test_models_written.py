"""The text of tokens that come one at a time: parts that join to the whole, stop strings, and what that decodes."""

import json
import random

import pytest

from grilly import models
from grilly.models.written import KEPT, Stops, Written

tokenizers = pytest.importorskip("tokenizers")

TEXT = (
    "Voilà: déjà vu, naïve façade — 10 °C! 👍🏽 👩‍👩‍👧‍👦 𝒜 日本語 ünïcödé 🇵🇪 don't, can't. \n\n  Two  spaces,\ttabs; "
    "Ελληνικά, кириллица, ไทย, z͑ͧa̴lgo, fi, ½, ‘quotes’, e\u0301. "
)


def byte_level():
    """As GPT-2 and Llama 3: tokens are bytes, of which a character may have several."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    return made


def sentencepiece():
    """As Llama 2: words begin with a space, of which the first is taken off, and rare characters are bytes."""
    pieces = ["<unk>", "<|end|>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"aedint'"]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True, unk_token="<unk>")
    )
    replace, decoders = tokenizers.normalizers.Replace, tokenizers.decoders
    made.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.Prepend("▁"), replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens(["<|end|>"])
    return made


def pieces_of_words():
    """As BERT: what continues a word has ## before it, and spaces before full stops are taken out."""
    words = ["[UNK]", "<|end|>", *"abcde.,!'", *(f"##{letter}" for letter in "abcde")]
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    made.decoder = tokenizers.decoders.WordPiece()
    made.add_special_tokens(["<|end|>"])
    return made


@pytest.fixture(params=[byte_level, sentencepiece, pieces_of_words])
def made(request, tmp_path):
    """A tokenizer of each kind, and ``most``: of how many tokens it gave the text at most."""
    request.param().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({}))
    found = models.Tokenizer(tmp_path)
    decode, found.most = found.decode, 0

    def counted(tokens, **options):
        found.most = max(found.most, len(tokens))
        return decode(tokens, **options)

    found.decode = counted
    return found


def by_the_whole(tokenizer, tokens):
    """The parts, each by decoding all tokens so far."""
    shown, parts = "", []
    for count in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[:count])
        whole = text.startswith(shown) and not text.endswith("\ufffd")
        parts.append(text[len(shown) :] if whole else "")
        shown = text if whole else shown
    return parts


def drawn(tokenizer, count, seed):
    """Tokens of the text, with others between them, special ones too."""
    rng, size = random.Random(seed), tokenizer._tokenizer.get_vocab_size()
    text = tokenizer.encode(TEXT * 3, add_special_tokens=False)[0][0].tolist()
    start = rng.randrange(len(text))
    found = (text[start:] + text)[: count - count // 8]
    for _ in range(count // 8 if seed else 0):
        found.insert(rng.randrange(len(found)), rng.choice([1, rng.randrange(size)]))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_parts_join_to_the_whole_text(made, seed):
    tokens = drawn(made, 200, seed)
    written = Written(made)
    parts = [written.add(token) for token in tokens]
    longest, whole = made.most, made.decode(tokens)
    assert "".join(parts) + written.rest() in (whole, "".join(parts) + "\n" + whole)
    if not seed:  # whole characters, as models write them
        assert "".join(parts) + written.rest() == whole and parts == by_the_whole(made, tokens)
        assert longest <= 3 * KEPT, "only the end is decoded"


def test_words_after_tokens_without_text_keep_their_space(made):
    word = made.encode("a", add_special_tokens=False)[0][0].tolist()
    for many in (1, KEPT, 3 * KEPT):
        written, tokens = Written(made), word * 3 * KEPT + [1] * many + word * 3 * KEPT
        parts = [written.add(token) for token in tokens]
        assert "".join(parts) == made.decode(tokens) and parts == by_the_whole(made, tokens)


@pytest.mark.parametrize("seed", range(4))
def test_a_stop_string_is_found_with_the_token_that_completes_it(made, seed):
    tokens = drawn(made, 160, seed)
    texts = [made.decode(tokens[: count + 1], skip_special_tokens=False) for count in range(len(tokens))]
    rng = random.Random(seed)
    for length in (1, 2, 5, 17, 60, 150):
        place = rng.randrange(max(1, len(texts[-1]) - length))
        stop = texts[-1][place : place + length]
        if "\ufffd" in stop:
            continue
        stops, first = Stops(made, [stop, "never"]), next(i for i, text in enumerate(texts) if stop in text)
        assert [stops.add(token) for token in tokens[: first + 1]] == [False] * first + [True]
    made.most = 0
    never = Stops(made, ["never", "<|never|>"])
    assert not any(never.add(token) for token in tokens * 3)
    assert made.most <= 8 * KEPT, "only the end is decoded"


@pytest.mark.parametrize("seed", range(4))
def test_a_stop_string_may_begin_in_the_prompt(made, seed):
    """As in transformers; one that lies in the prompt as a whole ends nothing."""
    tokens = drawn(made, 90, seed)
    count = len(tokens) // 2
    texts = [made.decode(tokens[: n + 1], skip_special_tokens=False) for n in range(len(tokens))]
    begun = texts[count - 1]
    for before, behind in ((1, 1), (3, 2), (2, 7), (30, 1), (9, 0)):
        stop = texts[-1][len(begun) - before : len(begun) + behind]
        if not stop or "\ufffd" in stop or not texts[-1].startswith(begun):
            continue
        stops = Stops(made, [stop], tokens[:count])
        found = [text.find(stop, max(len(begun) - len(stop) + 1, 0)) >= 0 for text in texts[count:]]
        first = found.index(True) if True in found else len(found) - 1
        assert [stops.add(token) for token in tokens[count : count + first + 1]] == found[: first + 1]
