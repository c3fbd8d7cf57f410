"""Tokenizers from keys of GGUF files give the tokens and texts that those of folders give."""

from __future__ import annotations

import functools
import importlib.util
import json
import random

import numpy as np
import pytest

import goldens
from gguf_files import ARRAY, F32, I32, TEXT, U32, file, key
from gguf_models import tokenizer_keys, write_gguf
from grilly import ModelError, models
from grilly.cli import main
from model_folders import drawn, write_safetensors
from random_tokenizers import SENTENCES, WORDS, trained

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("gguf", "tokenizers"))), reason="not installed: gguf, tokenizers"
)
CASES = goldens.cases("models")
#: Patterns as tokenizer.json of known models has them.
PATTERNS = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+",
    "gpt-4o": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
}  # fmt: skip
_SIGNS = [
    "hello", "World", "wide", "newest", "lower", " ", "  ", "\n", "\t", "'s", "'LL", "é", "e\u0301", "中文", "😀", "7",
    "2024", "3.14", "!", "...", "/", "_", "<s>", "</s>", "<|endoftext|>", "<a>", "▁", "\u00a0", "Zü", "-",
]  # fmt: skip


@functools.cache
def texts():
    """Sentences, and random rows of words and signs."""
    draw = random.Random(3)
    made = ["".join(draw.choices(_SIGNS, k=draw.randint(1, 12))) for _ in range(300)]
    return [*SENTENCES, *made, "", " ", "\n\n", " a"]


def folder_of(tmp_path, data, **told):
    """A folder with the files of a tokenizer."""
    folder = tmp_path / "folder"
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


def gguf_of(folder, model, *, family="llama", **options):
    """A GGUF file of the folder's tokenizer, beside the weights of some model."""
    case = CASES[family].arguments
    weights = drawn(case["tensors"], case["seed"], case["embeddings"])
    return write_gguf(folder.parent / "model.gguf", case["config"], weights,
                      tokenizer=tokenizer_keys(folder, model, **options))  # fmt: skip


def agree(folder, path, *, all_of=True):
    """Both give the same tokens of all texts, and the same texts of these tokens."""
    wanted, found = models.Tokenizer(folder), models.Tokenizer(path)
    for special in (True, False):
        rows = wanted.tokens_of(texts(), special)
        assert found.tokens_of(texts(), special) == rows
    for row in rows:
        for skip in (True, False):
            assert found.decode(row, skip) == wanted.decode(row, skip)
    draw = np.random.default_rng(0)
    size = len(json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"])
    for row in draw.integers(0, size, (50, 9)):
        assert found.decode(row) == wanted.decode(row)
    named = {name: token for name, token in found.special_tokens.items() if name in wanted.special_tokens}
    assert named == {name: token for name, token in wanted.special_tokens.items() if name in named}


def around(tokens, data, end=None):
    """The step that puts tokens of these texts around a text."""
    from tokenizers import processors

    vocabulary = data["model"]["vocab"]
    numbers = {token: vocabulary[token] for token in (*tokens, *filter(None, [end]))}
    return json.loads(processors.TemplateProcessing(
        " ".join([*tokens, "$A", *filter(None, [end])]), special_tokens=list(numbers.items())
    ).__getstate__())  # fmt: skip


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", *PATTERNS])
def test_bytes(tmp_path, pre):
    data = json.loads(trained("bytes"))
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": pre not in PATTERNS}
    steps = [level]
    if pre == "smollm":
        steps.insert(0, {"type": "Digits", "individual_digits": True})
    if pre in PATTERNS:
        steps.insert(0, {"type": "Split", "pattern": {"Regex": PATTERNS[pre]}, "behavior": "Isolated", "invert": False})
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    data["normalizer"] = {"type": "NFC"} if pre == "qwen2" else None
    data["decoder"] = {**level, "add_prefix_space": True}
    begins = pre in ("llama-bpe", "tekken")
    data["model"]["ignore_merges"] = begins
    data["post_processor"] = around(["<s>"], data) if begins else None
    folder = folder_of(tmp_path, data, tokenizer_class="TokenizersBackend", bos_token="<s>", eos_token="</s>")
    agree(folder, gguf_of(folder, "gpt2", pre=pre))


def pieces():
    """A vocabulary as SentencePiece makes it, and the scores: of what is merged minus its place."""
    data = json.loads(trained("BPE"))
    vocabulary, scores = data["model"]["vocab"], [0.0] * len(data["model"]["vocab"])
    for place, pair in enumerate(data["model"]["merges"]):
        number = vocabulary["".join(pair if isinstance(pair, list) else pair.split(" "))]
        scores[number] = scores[number] or -float(place + 1)
    return data, vocabulary, scores


def joined(text, vocabulary, scores):
    """What SentencePiece does: the two neighbours with the best score become one, the first of equals first."""
    parts = list(text)
    while True:
        pairs = [(-scores[vocabulary[a + b]], place) for place, (a, b) in enumerate(zip(parts, parts[1:], strict=False))
                 if a + b in vocabulary]  # fmt: skip
        if not pairs:
            break
        place = min(pairs)[1]
        parts[place : place + 2] = ["".join(parts[place : place + 2])]
    rows = [[vocabulary[part]] if part in vocabulary else [vocabulary[f"<0x{byte:02X}>"] for byte in part.encode()]
            for part in parts]  # fmt: skip
    return [number for row in rows for number in row]


@pytest.mark.parametrize("space", [True, False])
def test_pieces_are_joined_by_their_scores(tmp_path, space):
    data, vocabulary, scores = pieces()
    folder = folder_of(tmp_path, data, bos_token="<s>", eos_token="</s>", unk_token="<unk>", add_prefix_space=space)
    made = models.Tokenizer(gguf_of(folder, "llama", scores=scores))
    for text in texts():
        if not text or any(word in text for word in (*WORDS, "\u2581")):  # these are found first
            continue
        if space and text[0] == " ":  # as in tokenizer.json, no second space is put before it
            continue
        marked = ("\u2581" * space + text).replace(" ", "\u2581")
        wanted = joined(marked, vocabulary, scores)
        assert made.tokens_of([text], False)[0] == wanted, text
        assert made.tokens_of([text])[0] == [vocabulary["<s>"], *wanted]
        assert made.decode(wanted) == text


@pytest.mark.parametrize("name, family", [("Llama", "llama"), ("Gemma", "gemma")])
def test_pieces_as_in_a_folder(tmp_path, name, family):
    base = pytest.importorskip("transformers.tokenization_utils_base")
    if not hasattr(base, "generate_merges"):
        pytest.skip("not in this version of transformers: generate_merges")
    data, vocabulary, scores = pieces()
    plain = {token: scores[number] for token, number in vocabulary.items() if scores[number]}
    data["model"]["merges"] = [f"{a} {b}" for a, b in base.generate_merges(vocabulary, plain)]
    begin = "<bos>" if name == "Gemma" else "<s>"
    data["post_processor"] = around([begin], data)
    named = {"bos_token": begin, "eos_token": "<eos>" if name == "Gemma" else "</s>", "unk_token": "<unk>"}
    space = {} if name == "Gemma" else {"add_prefix_space": True}
    folder = folder_of(tmp_path, data, tokenizer_class=f"{name}Tokenizer", **named, **space)
    agree(folder, gguf_of(folder, "llama", family=family, scores=scores))


def test_scores(tmp_path):
    data = json.loads(trained("Unigram"))
    special = {token["content"]: token["id"] for token in data["added_tokens"]}
    data["model"]["unk_id"] = special["<unk>"]
    spaces = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    data |= {"normalizer": None, "decoder": spaces, "pre_tokenizer": {
        "type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, spaces]}}  # fmt: skip
    from tokenizers import processors

    data["post_processor"] = json.loads(processors.TemplateProcessing(
        "$A </s>", special_tokens=[("</s>", special["</s>"])]).__getstate__())  # fmt: skip
    folder = folder_of(tmp_path, data, tokenizer_class="TokenizersBackend", eos_token="</s>", unk_token="<unk>")
    agree(folder, gguf_of(folder, "t5"))


@pytest.mark.parametrize("lower", [True, False])
def test_parts_of_words(tmp_path, lower):
    data = json.loads(trained("WordPiece"))
    vocabulary = data["model"]["vocab"]
    if lower:  # no capital letters but in special tokens
        kept = [token for token in vocabulary if token.startswith(("[", "<")) or token == token.lower()]
        data["model"]["vocab"] = {token: number for number, token in enumerate(kept)}
        for token in data["added_tokens"]:
            token["id"] = data["model"]["vocab"][token["content"]]
    named = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]",
             "mask_token": "[MASK]"}  # fmt: skip
    folder = folder_of(tmp_path, data, tokenizer_class="BertTokenizer", do_lower_case=lower, **named)
    agree(folder, gguf_of(folder, "bert", family="bert"))


def test_templates_of_chats(tmp_path):
    data = json.loads(trained("bytes"))
    template = "{% for m in messages %}{{ bos_token }}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    folder = folder_of(tmp_path, data, tokenizer_class="TokenizersBackend", bos_token="<s>", chat_template=template)
    said = [{"role": "user", "content": "hello"}]
    path = gguf_of(folder, "gpt2", pre="gpt-2")
    made = models.Tokenizer(path)
    assert made.has_chat_template
    assert made.apply_chat_template(said) == models.Tokenizer(folder).apply_chat_template(said) == "<s>user: hello\n"
    with pytest.raises(ModelError, match="model.gguf: the tokenizer has no template named 'spin'; it has default"):
        made.apply_chat_template(said, chat_template="spin")
    folder_of(tmp_path, data, tokenizer_class="TokenizersBackend")
    bare = models.Tokenizer(gguf_of(folder, "gpt2", pre="gpt-2"))
    assert not bare.has_chat_template
    with pytest.raises(ModelError, match="model.gguf: tokenizer.chat_template is missing"):
        bare.apply_chat_template(said)


def keyed(**changes):
    """Keys of a small tokenizer, some of them others; ... leaves one out."""
    plain = {
        "model": (TEXT, "gpt2"), "pre": (TEXT, "gpt-2"), "tokens": (ARRAY, (TEXT, ["a", "b", "ab", "<s>"])),
        "token_type": (ARRAY, (I32, [1, 1, 1, 3])), "merges": (ARRAY, (TEXT, ["a b"])), "bos_token_id": (U32, 3),
    }  # fmt: skip
    return file([key("general.architecture", TEXT, "llama"), *(
        key(f"tokenizer.ggml.{name}", *given) for name, given in (plain | changes).items() if given is not ...
    )])  # fmt: skip


@pytest.mark.parametrize("changes, said", [
    ({"model": ...}, "tokenizer.ggml: model is missing; expected one of gpt2, llama, t5, bert"),
    ({"model": (TEXT, "rwkv")}, "model is 'rwkv'; expected one of gpt2"),
    ({"pre": ...}, "pre is missing; expected one of gpt-2"), ({"pre": (TEXT, "default")}, "pre is 'default'; expected"),
    ({"tokens": ...}, "tokens is missing; expected a list"), ({"tokens": (ARRAY, (I32, [1]))}, "tokens is array"),
    ({"merges": ...}, "merges is missing"), ({"merges": (ARRAY, (TEXT, ["ab"]))}, "merges has texts that are no two"),
    ({"merges": (ARRAY, (TEXT, ["a x"]))}, "cannot be read"),
    ({"token_type": (ARRAY, (I32, [1]))}, "token_type is [1]; expected 4 numbers, as there are so many tokens"),
    ({"token_type": (U32, 1)}, "token_type is 1; expected 4 numbers"),
    ({"bos_token_id": (U32, 4)}, "bos_token_id is 4; expected the number of one of 4 tokens"),
    ({"bos_token_id": (TEXT, "<s>")}, "bos_token_id is '<s>'; expected a whole number"),
    ({"add_bos_token": (U32, 1)}, "add_bos_token is 1; expected true or false"),
    ({"model": (TEXT, "llama")}, "tokenizer.ggml.scores is missing"),
    ({"model": (TEXT, "llama"), "scores": (ARRAY, (F32, [0, 0, 0, np.nan]))}, "scores is missing, or has numbers"),
    ({"model": (TEXT, "bert")}, "unk_token is None; expected a token, as BertTokenizer puts it into texts"),
    ({"model": (TEXT, "t5"), "scores": (ARRAY, (F32, [0, 0, 0, 0])), "unknown_token_id": (U32, 9)},
     "unknown_token_id is 9; expected the number of one of 4 tokens"),
])  # fmt: skip
def test_keys_that_make_no_tokenizer(tmp_path, changes, said):
    path = tmp_path / "model.gguf"
    path.write_bytes(keyed())
    assert models.Tokenizer(path).tokens_of(["<s>ab"]) == [[3, 2]]
    path.write_bytes(keyed(**changes))
    with pytest.raises(ModelError) as caught:
        models.Tokenizer(path)
    assert str(caught.value).startswith(str(path)) and said in str(caught.value)


def test_several_tokens_end_a_text(vulkan_backend, tmp_path):
    from gguf import GGUFValueType

    case = CASES["llama"].arguments
    weights = drawn(case["tensors"], case["seed"], case["embeddings"])
    numbers = [(f"tokenizer.ggml.{name}_token_id", number, GGUFValueType.UINT32) for name, number in
               (("eos", 5), ("eot", 7), ("padding", 2), ("bos", 1))]  # fmt: skip
    path = write_gguf(tmp_path / "model.gguf", case["config"], weights, more=numbers)
    model = models.load(path, backend=vulkan_backend)
    assert (model.eos_token_id, model.pad_token_id) == ([5, 7], 2)


def test_commands(vulkan_backend, tmp_path, capsys):
    """generate and embed take a file where they take a folder, and info lists it."""
    data = json.loads(trained("WordPiece"))
    named = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]",
             "mask_token": "[MASK]"}  # fmt: skip
    case = CASES["bert"].arguments
    size = len(data["model"]["vocab"])
    tensors = {name: (size, 32) if "word_emb" in name else shape for name, shape in case["tensors"].items()}
    config, weights = case["config"] | {"vocab_size": size}, drawn(tensors, 1)
    folder = folder_of(tmp_path, data, tokenizer_class="BertTokenizer", do_lower_case=False, **named)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", weights)
    path = write_gguf(tmp_path / "model.gguf", config, weights, tokenizer=tokenizer_keys(folder, "bert"))
    lines, device = tmp_path / "lines.txt", ["--device", str(vulkan_backend.device.index)]
    lines.write_text("hello World\nlower new\n")
    assert main(["embed", str(path), str(lines), "--output", str(tmp_path / "a.npy"), *device]) == 0
    encoder = models.SentenceEncoder.load(folder, backend=vulkan_backend)
    encoder.pooling = "cls"  # as the file says
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), encoder.encode(["hello World", "lower new"]))
    assert main(["generate", str(path), "hello", *device]) == 1
    assert "Bert writes no texts" in capsys.readouterr().err
    assert main(["info", str(path)]) == 0
    out = capsys.readouterr().out
    assert "bert.block_count" in out and "Tensors: 37" in out and f"{size} x 32" in out
    assert main(["info", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["keys"]["bert.block_count"] == 2 and found["tensors"][0]["nbytes"] == 4 * np.prod(
        found["tensors"][0]["shape"])  # fmt: skip
    assert main(["info", str(lines)]) == 1
    assert "lines.txt is no GGUF file" in capsys.readouterr().err
