"""Parts of models: texts of tokens, drawing tokens, packing, what the files of a folder ask for."""

from __future__ import annotations

import importlib
import importlib.util
import json
import random

import numpy as np
import pytest

import goldens
import grilly
from grilly import ModelError, models
from grilly.models import chat, checkpoint
from grilly.models.defaults import Defaults
from grilly.models.loading import _Progress
from grilly.models.packing import by_tokens, packed
from grilly.models.sampling import Sampler
from grilly.models.written import KEPT, Stops, Written
from model_folders import drawn, write_folder, write_safetensors, write_tokenizer
from test_extreme_squares import check
from test_models_chat import USER, tokenizer_of
from test_models_folders import CASES as FOLDERS
from test_models_folders import folder
from test_models_generation import model
from test_models_texts import CASES as TEXTS
from test_models_texts import WORDS
from test_models_texts import folder as texts_folder
from test_tokenizer_files import ALWAYS, FIRST, NEVER, SIGNS, added, joining, llama, written
from test_tokenizer_folders import GENERATION, NONSENSE

#: Fixtures of other files, found by their names here.
FIXTURES = folder, model, texts_folder

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
    chunks = ["<unk>", "<|end|>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"aedint'"]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({chunk: i for i, chunk in enumerate(chunks)}, [], byte_fallback=True, unk_token="<unk>")
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


def some_tokens(tokenizer, count, seed):
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
    tokens = some_tokens(made, 200, seed)
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
    tokens = some_tokens(made, 160, seed)
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
    tokens = some_tokens(made, 90, seed)
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


_MISSING = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]


OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}


@pytest.mark.parametrize("options, wanted", [
    ({}, [0.1, 0.5, 0.25, 0.15]),
    ({"top_k": 2}, [0, 2 / 3, 1 / 3, 0]),
    ({"top_p": 0.7}, [0, 2 / 3, 1 / 3, 0]),
    ({"top_p": 0.8}, [0, 0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9]),
    ({"top_k": 3, "top_p": 0.8}, [0, 2 / 3, 1 / 3, 0]),  # top_p is of what top_k leaves
    ({"temperature": 0.5}, np.array([0.1, 0.5, 0.25, 0.15]) ** 2 / 0.345),
    ({"repetition_penalty": 2.0}, np.array([0.1, 0.5, 0.0625, 0.15]) / 0.8125),  # the logit of token 2 is below 0
])  # fmt: skip
def test_drawn_tokens_have_their_probabilities(vulkan_backend, options, wanted):
    count = 4000
    logits = np.log(np.tile(np.array([[0.1, 0.5, 0.25, 0.15]], np.float32), (count, 1)))
    sampler = Sampler(True, seed=0, **OFF | options)
    seen = sampler.seen(vulkan_backend, [np.array([2])] * count, 4)
    tokens = sampler(vulkan_backend.tensor(logits), vulkan_backend.tensor(sampler.draws(count)), seen).numpy()
    found = np.bincount(tokens, minlength=4) / count
    assert np.abs(found - wanted).max() < 5 * np.sqrt(0.25 / count)
    assert (found[np.array(wanted) == 0] == 0).all()
    ends = vulkan_backend.tensor(np.repeat(np.array([[0], [1 - 2**-24]], np.float32), count // 2, axis=0))
    allowed = np.flatnonzero(wanted)
    assert np.isin(sampler(vulkan_backend.tensor(logits), ends, seen).numpy(), allowed).all()


def theirs(logits: np.ndarray, seen: np.ndarray, options: dict) -> np.ndarray:
    """Probabilities by transformers' processors, in the order in which its `generate` applies them."""
    import torch
    from transformers import generation

    processors = []
    if "repetition_penalty" in options:
        processors.append(generation.RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]))
    for name, kind in (("temperature", "Temperature"), ("top_k", "TopK"), ("top_p", "TopP")):
        if name in options:
            processors.append(getattr(generation, f"{kind}LogitsWarper")(options[name]))
    scores = torch.tensor(logits)
    for processor in processors:
        scores = processor(torch.tensor(seen), scores)
    return torch.softmax(scores.double(), dim=-1).numpy()


@pytest.mark.skipif(bool(_MISSING), reason=f"not installed: {', '.join(_MISSING)}")
@pytest.mark.parametrize("options", [
    {}, {"temperature": 0.6}, {"temperature": 3.0}, {"top_k": 5}, {"top_k": 1}, {"top_k": 500}, {"top_p": 0.5},
    {"top_p": 0.05}, {"repetition_penalty": 1.3}, {"repetition_penalty": 0.7},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2},
    {"temperature": 2.0, "top_k": 7, "top_p": 0.6},
], ids=str)  # fmt: skip
def test_probabilities_are_those_of_transformers(vulkan_backend, options):
    rng = np.random.default_rng(5)
    count, rows = 4096, 61
    for logits in rng.normal(0, 3, (3, rows)).astype(np.float32):
        seen = rng.integers(0, rows, (1, 12))
        wanted = theirs(logits[None], seen, options)[0]
        sampler = Sampler(True, seed=0, **OFF | options)
        # Draws at even distances: a token comes up for each that falls into its share.
        draws = ((np.arange(count) + 0.5) / count).astype(np.float32)[:, None]
        had = sampler.seen(vulkan_backend, [seen[0]] * count, rows)
        tokens = sampler(vulkan_backend.tensor(np.tile(logits, (count, 1))), vulkan_backend.tensor(draws), had).numpy()
        found = np.bincount(tokens, minlength=rows)
        assert np.abs(found - count * wanted).max() <= 1.5
        assert (found[wanted == 0] == 0).all()


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


@pytest.mark.parametrize("told, type_of", [
    ({"tokenizer_class": "CLIPTokenizerFast"}, "clip"), ({}, "clip"), ({"tokenizer_class": "CLIPTokenizer"}, "vit"),
])  # fmt: skip
def test_texts_of_tokens_of_clip(tmp_path, told, type_of):
    """Words of which end with </w>, where a space stands in a text, as transformers 5.24 has it."""
    import tokenizers

    words = ["<|startoftext|>", "<|endoftext|>", "a", "b", "a</w>", "b</w>", "ab</w>", ".</w>"]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(
        {word: i for i, word in enumerate(words)}, [("a", "b</w>")], end_of_word_suffix="</w>"))  # fmt: skip
    made.decoder = tokenizers.decoders.ByteLevel()
    folder = written(tmp_path / "a", made, **told)
    (folder / "config.json").write_text(json.dumps({"model_type": type_of}))
    found = models.Tokenizer(folder)
    assert found.encode("AB  a.")[0].tolist() == [[0, 6, 4, 7, 1]]
    assert found.decode([0, 6, 4, 7, 1]) == "ab a ."
    assert found.decode([0, 6, 4, 7, 1], skip_special_tokens=False) == "<|startoftext|>ab a . <|endoftext|>"
    written(folder, made, tokenizer_class="PreTrainedTokenizerFast")
    assert models.Tokenizer(folder).decode([6, 4]) == "ab</w>a</w>"
    text = Written(found)
    assert "".join(text.add(token) for token in [2, 5, 6, 4, 7] * 20) + text.rest() == " ".join(["ab ab a ."] * 20)


@pytest.mark.parametrize("told, wanted, text", [
    ({}, FIRST, "hi yo"), ({"legacy": False, "add_prefix_space": True}, FIRST, "hi yo"),
    ({"legacy": True, "add_prefix_space": None}, ALWAYS, "hi yo"), ({"legacy": None}, FIRST, "hi yo"),
    ({"legacy": True, "add_prefix_space": False}, NEVER, " hi yo"), ({"add_prefix_space": False}, NEVER, " hi yo"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("kind", ["LlamaTokenizer", "LlamaTokenizerFast"])
def test_the_spaces_of_llama(tmp_path, kind, told, wanted, text):
    """What tokenizer.json says of them counts for nothing, but in a folder of another model."""
    for prepends in (True, False):
        folder = written(tmp_path / "a", llama(prepends), tokenizer_class=kind, **told)
        (folder / "config.json").write_text('{"model_type": "llama"}')
        found = models.Tokenizer(folder)
        ids = [*found.encode("hi</s> yo")[0][0], *found.encode("hi</s>yo")[0][0]]
        assert [found._tokenizer.id_to_token(token) for token in ids] == wanted
        assert found.decode([10, 11]) == text
    (folder / "config.json").write_text('{"model_type": "mistral"}')
    for one in ("hi</s>yo", " hi yo"):
        assert models.Tokenizer(folder).encode(one)[0][0].tolist() == llama(False).encode(one).ids


@pytest.mark.parametrize("told, wanted", [
    ({"eos_token": "<|im_end|>"}, {"<|im_end|>": "normalized special"}),
    ({"eos_token": added("<|im_end|>", lstrip=True)}, {"<|im_end|>": "normalized special"}),
    ({"eos_token": "w"}, {"w": "special", "<|im_end|>": "normalized"}),
    ({"pad_token": added("[PAD]", lstrip=True)}, {"<|im_end|>": "normalized", "[PAD]": "lstrip normalized special"}),
    ({"extra_special_tokens": ["<b>", "<|im_end|>"], "image_token": "<i>", "pad_token": "<p>", "add_bos_token": True},
     {"<|im_end|>": "normalized", "<p>": "special", "<i>": "special", "<b>": "special"}),
    ({"additional_special_tokens": [added("<a>")]}, {"<|im_end|>": "normalized", "<a>": "normalized"}),
    ({"extra_special_tokens": {"image_token": "<i>"}}, {"<|im_end|>": "normalized", "<i>": "special"}),
    ({"added_tokens_decoder": {"3": added("<|im_end|>", special=True)}}, {"<|im_end|>": "normalized special"}),
], ids=lambda case: ",".join(case))  # fmt: skip
def test_special_tokens_that_the_configuration_names(tmp_path, told, wanted):
    """Their numbers and fields are those of transformers 5.24."""
    import tokenizers

    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"u": 0, "v": 1, "w": 2}, unk_token="u"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_tokens([tokenizers.AddedToken("<|im_end|>", special=False)])
    tokenizer = models.Tokenizer(written(tmp_path / "a", made, **told))
    fields = ("lstrip", "rstrip", "single_word", "normalized", "special")
    tokens = sorted(tokenizer._tokenizer.get_added_tokens_decoder().items())
    found = {token.content: " ".join(field for field in fields if getattr(token, field)) for _, token in tokens}
    assert found == wanted and list(found) == list(wanted)
    for number, token in tokens:
        assert tokenizer.encode(f"v {token.content}")[0].tolist() == [[1, number]]
        assert tokenizer.decode([1, number]) == ("v" if token.special else f"v {token.content}")


def test_parts_of_a_text_whose_signs_are_joined(tmp_path):
    """What the next token may take a space from is held back, and the window is cut all the same."""
    tokenizer = joining(tmp_path / "a")
    for seed in range(12):
        tokens = np.random.RandomState(seed).randint(2, len(SIGNS), 150).tolist()
        text = Written(tokenizer)
        parts = [text.add(token) for token in tokens]
        assert "".join(parts) + text.rest() == tokenizer.decode(tokens)
        assert sum(map(bool, parts)) > 75 and len(text._tail._tokens) <= 4 * KEPT


@pytest.mark.parametrize("name", sorted(set().union(*GENERATION.values())))
def test_what_becomes_of_a_field_of_generation(tmp_path, name):
    from grilly.models.defaults import Defaults
    from grilly.models.whisper_tokens import read_tokens

    value = "quantized" if name == "cache_implementation" else NONSENSE
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text(json.dumps({name: value}))
    if name in GENERATION["effect"]:
        with pytest.raises(ModelError, match=rf"generation_config.json: {name} is "):
            Defaults(tmp_path, {})
            read_tokens(tmp_path, 9)
    else:
        assert Defaults(tmp_path, {}).not_applied == ({name: value} if name in GENERATION["warning"] else {})


def test_what_answers_begin_with_where_the_folder_says_it_otherwise(tmp_path):
    from grilly.models.defaults import Defaults

    (tmp_path / "generation_config.json").write_text('{"bos_token_id": 3}')
    assert Defaults(tmp_path, {}).tokens["decoder_start_token_id"] == 3
    assert Defaults(tmp_path, {"decoder_start_token_id": 5}).tokens["decoder_start_token_id"] == 5


def test_packages_that_are_missing_or_old(tmp_path, monkeypatch):
    import jinja2

    tokenizer = tokenizer_of(tmp_path, {"chat_template.jinja": "x"})
    monkeypatch.setattr(jinja2, "__version__", "3.1.5")
    with pytest.raises(ImportError, match=r"jinja2 is 3.1.5; before 3.1.6 .*grilly-vulkan\[models\]"):
        tokenizer.apply_chat_template(USER)
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"run: pip install .*\[models\]"):
        tokenizer.apply_chat_template(USER)
    assert chat.LEAST_JINJA == (3, 1, 6)


def test_pooled_vectors_of_length_one(vulkan_backend):
    from grilly.models.clip import unit

    rng = np.random.default_rng(3)
    for scale in (1e30, 1.0, 1e-30):
        x = (scale * rng.standard_normal((3, 65))).astype(np.float32)
        exact = x / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
        check(unit(grilly.asarray(x, device=vulkan_backend)), exact, "float32", scale)


@pytest.mark.usefixtures("no_models_on_devices")
def test_bfloat16_without_ml_dtypes(folder, vulkan_backend, monkeypatch):
    """Weights of bfloat16 can be loaded as other types without it."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    tensors = drawn(FOLDERS["llama"].arguments["tensors"], 0)
    halves = {name: array.astype(ml_dtypes.bfloat16) for name, array in tensors.items()}
    write_safetensors(folder / "model.safetensors", halves)
    real = checkpoint.dtype_of

    def missing(dtype):
        if isinstance(dtype, str) and dtype == "bfloat16":
            raise ImportError("no ml_dtypes")
        return real(dtype)

    monkeypatch.setattr(checkpoint, "dtype_of", missing)
    found = models.load(folder, "float32", vulkan_backend).norm.weight.numpy()
    assert np.array_equal(found, halves["model.norm.weight"].astype(np.float32))


@pytest.mark.usefixtures("no_models_on_devices")
def test_progress_without_a_console(folder, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    for progress in (None, True):
        with pytest.raises(AssertionError, match="went on"):
            models.load(folder, progress=progress)
        assert not _Progress("model", 8, progress)._shown


@pytest.mark.parametrize("name, value", [
    ("do_sample", True), ("stop_strings", ["a"]), ("force_words_ids", [[5]]), ("dola_layers", "low"), ("min_p", 0.1),
    ("watermarking_config", {"bias": 2}), ("typical_p", 0.9), ("num_return_sequences", 3), ("epsilon_cutoff", 0.1),
    ("eta_cutoff", 0.1), ("max_time", 1.0), ("token_healing", True), ("return_timestamps", True), ("top_h", 0.4),
])  # fmt: skip
def test_what_a_language_model_s_folder_asks_for_in_vain(model, tmp_path, name, value):
    (tmp_path / "generation_config.json").write_text(json.dumps({name: value}))
    assert Defaults(tmp_path, {}).not_applied == {name: value}
    harmless = {"do_sample": False, "typical_p": 1.0, "num_return_sequences": 1, "return_timestamps": False}
    (tmp_path / "generation_config.json").write_text(json.dumps({name: harmless.get(name)}))
    assert Defaults(tmp_path, {}).not_applied == {}


def test_stop_strings(vulkan_backend, texts_folder, monkeypatch):
    """Each text ends where it has one, also one of several tokens, or of a token that is no text."""
    model, tokenizer = models.load(texts_folder, backend=vulkan_backend), models.Tokenizer(texts_folder)
    ids = TEXTS["llama"].input_ids
    whole = model.generate(ids, max_new_tokens=16)[:, ids.shape[1] :]

    def stopped(stops, end):
        """The tokens with a text's end after its first ``end``."""
        found = model.generate(ids, max_new_tokens=16, stop_strings=stops, tokenizer=tokenizer, pad_token_id=0)
        row = found[0, ids.shape[1] :]
        np.testing.assert_array_equal(row[:end], whole[0, :end])
        assert not row[end:].any()
        for other in range(1, len(ids)):
            if not any(stop in tokenizer.decode(whole[other]) for stop in stops):
                np.testing.assert_array_equal(found[other, ids.shape[1] :], whole[other])

    place = next(i for i in range(4, 15) if whole[0, i] not in whole[0, :i] and whole[0, i] != 0)
    pair = f"{WORDS[whole[0, place - 1]]} {WORDS[whole[0, place]]}"
    stopped([f"{pair}"], place + 1)
    stopped((f"{pair} ", pair, "never"), place + 1)
    added, add = [], Stops.add
    monkeypatch.setattr(Stops, "add", lambda self, token: added.append(self) or add(self, token))
    stopped([pair], place + 1)
    assert added.count(added[0]) == place + 1, "what has ended is not decoded any more"
    assert added.count(added[1]) > place + 1, "the case shows nothing otherwise"
    special = f"w{whole[0, place]}"
    tokenizer._tokenizer.add_special_tokens([special])
    assert special not in tokenizer.decode(whole[0]).split()
    assert special in tokenizer.decode(whole[0], skip_special_tokens=False).split()
    stopped([special], place + 1)
