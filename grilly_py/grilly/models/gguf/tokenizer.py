"""The fields of tokenizer.json and tokenizer_config.json, made of the keys of a GGUF file."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from ...errors import ModelError
from ..config import Config
from ..tokenizer_classes import AS_IT_IS, QWEN2_WORDS, Steps, bpe, level, sequence, split, unigram
from .file import GGUF

#: The prefix of the keys of tokenizers.
PREFIX = "tokenizer.ggml."
#: Types of tokens.
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
#: Names of special tokens in tokenizer_config.json, and the keys of their numbers, the first that is there.
NAMED = {
    "bos_token": ("bos_token_id",), "eos_token": ("eos_token_id",), "unk_token": ("unknown_token_id",),
    "sep_token": ("seperator_token_id", "separator_token_id"), "pad_token": ("padding_token_id",),
    "cls_token": ("cls_token_id",), "mask_token": ("mask_token_id",),
}  # fmt: skip
_LLAMA3_WORDS = QWEN2_WORDS.replace(r"\p{N}|", r"\p{N}{1,3}|")
_CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
          r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")  # fmt: skip
_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#: What one word is, by the names of pre-tokenizers: a pattern, or "bytes" for GPT-2's words, or "digits" where each
#: digit is a word and the rest is GPT-2's.
WORDS = {
    **dict.fromkeys(("gpt-2", "gpt2", "phi-2", "mpt", "olmo", "roberta-bpe", "jina-es", "jina-de", "jina-v1-en",
                     "jina-v2-es", "jina-v2-de"), "bytes"),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), "digits"),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "dbrx", "smaug-bpe"), _LLAMA3_WORDS),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez"), QWEN2_WORDS),
    "gpt-4o": _CASED % (_ENDINGS, _ENDINGS, "{1,3}"), "tekken": _CASED % ("", "", ""),
}  # fmt: skip
#: Those whose words are one token wherever the vocabulary has them. A token is put before texts, unless a key says no.
WHOLE = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken")
#: Those that bring letters and their marks together first.
COMPOSED = ("qwen2",)
#: Tokens of Phi-3 that do not take the white space after them.
_NOT_STRIPPED = ("<unk>", "<s>", "<|endoftext|>")


class _Keys:
    """The keys of a tokenizer, checked."""

    def __init__(self, gguf: GGUF) -> None:
        self._path = gguf.path
        fields = {key.removeprefix(PREFIX): value for key, value in gguf.keys.items() if key.startswith(PREFIX)}
        self.config, self.fields = Config(f"{gguf.path}: tokenizer.ggml", fields), fields
        self.architecture = gguf.keys.get("general.architecture")
        self.longest = gguf.keys.get(f"{self.architecture}.context_length")
        self.model = self.config.text("model", MODELS)
        self.tokens = self._texts("tokens")
        count = len(self.tokens)
        types = self._numbers("token_type", count)
        self.types: list[int] = [NORMAL] * count if types is None else [int(one) for one in types]

    def _texts(self, name: str) -> list[str]:
        found = self.config.list(name)
        if not all(isinstance(each, str) for each in found):
            raise ModelError(f"{self._path}: tokenizer.ggml.{name} is no list of texts")
        return list(found)

    def _numbers(self, name: str, count: int) -> np.ndarray[Any, np.dtype[Any]] | None:
        found = self.fields.get(name)
        if found is None:
            return None
        if not isinstance(found, np.ndarray) or len(found) != count:
            raise ModelError(f"{self._path}: tokenizer.ggml.{name} is {str(found):.60}; expected {count} numbers, as "
                             "there are so many tokens")  # fmt: skip
        return found

    def scores(self) -> list[float]:
        """One for each token. Raises ModelError where there are none."""
        found = self._numbers("scores", len(self.tokens))
        if found is None or not np.isfinite(found).all():
            raise ModelError(f"{self._path}: tokenizer.ggml.scores is missing, or has numbers that are none")
        return [float(score) for score in found]

    def merges(self) -> list[str]:
        """Pairs of tokens with a space between them."""
        found = self._texts("merges")
        if not all(each.count(" ") == 1 for each in found):
            raise ModelError(f"{self._path}: tokenizer.ggml.merges has texts that are no two tokens with a space")
        return found

    def token(self, *names: str) -> str | None:
        """The token of the first of these keys that is there."""
        for name in names:
            number: int | None = self.config.integer(name, None, least=0)
            if number is not None:
                if number >= len(self.tokens):
                    raise self.config.error(name, f"the number of one of {len(self.tokens)} tokens")
                return self.tokens[number]
        return None

    def vocabulary(self) -> dict[str, int]:
        """Numbers of tokens by their texts; of a text that occurs twice the first."""
        return {token: number for number, token in reversed(list(enumerate(self.tokens)))}


def tokenizer_of(gguf: GGUF) -> tuple[Steps, dict[str, Any], int | None]:
    """The objects in tokenizer.json and tokenizer_config.json, and the number of the padding.

    Raises
    ------
    ModelError
        For keys that are missing or of other kinds or lengths, and for unknown models and pre-tokenizers.
    """
    keys = _Keys(gguf)
    data, told, ends = MODELS[keys.model](keys)
    named = {name: keys.token(*of) for name, of in NAMED.items()}
    told = {**named, **told, "model_max_length": keys.longest if type(keys.longest) is int else None}
    told["added_tokens_decoder"] = _added(keys)
    flags = [keys.config.flag(f"add_{name}_token", absent) for name, absent in zip(("bos", "eos"), ends, strict=True)]
    around = [told[f"{name}_token"] if flag else None for name, flag in zip(("bos", "eos"), flags, strict=True)]
    data = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], **data}
    data["post_processor"] = _around(keys, *around)
    return data, told, keys.config.integer("padding_token_id", None, least=0)


def templates_of(gguf: GGUF) -> dict[str, tuple[str, str]]:
    """Chat templates by name, each with its key, for messages."""
    name, found = "tokenizer.chat_template", {}
    for key, value in gguf.keys.items():
        if (key == name or key.startswith(f"{name}.")) and isinstance(value, str):
            found[key.removeprefix(name).removeprefix(".") or "default"] = value, f"{gguf.path}: {key}"
    return found


def _added(keys: _Keys) -> dict[str, dict[str, Any]]:
    """Tokens that texts are searched for before they are cut into words, by their numbers."""
    found = {}
    strips = keys.architecture == "phi3"
    for number, (token, kind) in enumerate(zip(keys.tokens, keys.types, strict=True)):
        if kind in (UNKNOWN, CONTROL, USER):
            flags = {"normalized": False, "special": kind != USER, "lstrip": False}
            flags["rstrip"] = strips and kind == CONTROL and token not in _NOT_STRIPPED
            found[str(number)] = {"content": token, **flags}
    return found


def _around(keys: _Keys, begin: str | None, end: str | None) -> Steps | None:
    """The post-processor, which puts tokens before and after a text."""
    if begin is None and end is None:
        return None
    numbers = keys.vocabulary()
    before, after = ([{"SpecialToken": {"id": token, "type_id": 0}}] if token is not None else []
                     for token in (begin, end))  # fmt: skip
    first, second = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    special = {token: {"id": token, "ids": [numbers[token]], "tokens": [token]} for token in (begin, end) if token}
    return {"type": "TemplateProcessing", "single": [*before, first, *after],
            "pair": [*before, first, *after, *before, second, *after], "special_tokens": special}  # fmt: skip


def steps_of(name: str, space: bool) -> Steps:
    """The steps of a pre-tokenizer. ``space`` says whether one is put before a text."""
    words = WORDS[name]
    known = {"bytes": [level(space)], "digits": [{"type": "Digits", "individual_digits": True}, level(space)]}
    steps = known.get(words) or [split({"Regex": words}, "Isolated"), level(space, False)]
    return {"pre_tokenizer": sequence("pretokenizers", *steps), "decoder": level(True),
            "normalizer": {"type": "NFC"} if name in COMPOSED else None,
            "model": bpe(ignore_merges=name in WHOLE)}  # fmt: skip


def signature(data: Steps) -> tuple[Any, ...]:
    """The parts of a tokenizer.json that cut texts into words, for comparing two of them."""

    def flat(step: Steps | None, parts: str) -> list[Steps]:
        return [] if step is None else step[parts] if step.get("type") == "Sequence" else [step]

    found = []
    for step in flat(data.get("pre_tokenizer"), "pretokenizers"):
        plain = {name: value for name, value in step.items() if name != "trim_offsets"}
        found.append(tuple(sorted((name, str(value)) for name, value in plain.items())))
    normal = tuple(step["type"] for step in flat(data.get("normalizer"), "normalizers"))
    return normal, bool(data["model"].get("ignore_merges")), tuple(found)


def _bytes(keys: _Keys) -> tuple[Steps, dict[str, Any], tuple[bool, bool]]:
    """Merges of bytes, as GPT-2 has them."""
    name = keys.config.text("pre", WORDS)
    data = steps_of(name, keys.config.flag("add_space_prefix", False))
    data["model"] |= {"type": "BPE", "vocab": keys.vocabulary(), "merges": keys.merges()}
    return data, {"tokenizer_class": AS_IT_IS}, (name in WHOLE, False)


def _pieces(keys: _Keys) -> tuple[Steps, dict[str, Any], tuple[bool, bool]]:
    """Merges of SentencePiece: tokens have scores, and the pair that makes the best token is joined first."""
    vocabulary, pairs = keys.vocabulary(), []
    for token, score, kind in zip(keys.tokens, keys.scores(), keys.types, strict=True):
        if kind not in (NORMAL, USER) or " " in token:
            continue
        for cut in range(1, len(token)):
            left, right = vocabulary.get(token[:cut]), vocabulary.get(token[cut:])
            if left is not None and right is not None:
                pairs.append((-score, -cut, cut - len(token), left, right))
    merges = [f"{keys.tokens[left]} {keys.tokens[right]}" for *_, left, right in sorted(pairs)]
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges}
    name = "Gemma" if str(keys.architecture).startswith("gemma") else "Llama"
    told = {"tokenizer_class": f"{name}Tokenizer", "add_prefix_space": keys.config.flag("add_space_prefix", True),
            "legacy": keys.architecture == "phi3"}  # fmt: skip
    return {"model": model}, told, (True, False)


def _scores(keys: _Keys) -> tuple[Steps, dict[str, Any], tuple[bool, bool]]:
    """Unigrams, as T5 and XLM-RoBERTa have them: a text becomes its likeliest sequence of pieces."""
    keys.config.only(remove_extra_whitespaces=True)
    unknown = keys.config.integer("unknown_token_id", 2, least=0)
    characters = keys.fields.get("precompiled_charsmap")
    data: Steps = {}
    if isinstance(characters, np.ndarray) and characters.size:
        text = base64.b64encode(characters.astype(np.uint8).tobytes()).decode()
        data = {"normalizer": {"type": "Precompiled", "precompiled_charsmap": text}}
    steps = unigram(data, unknown, "always" if keys.config.flag("add_space_prefix", True) else "never")
    pairs = [[token, score] for token, score in zip(keys.tokens, keys.scores(), strict=True)]
    while pairs and keys.types[len(pairs) - 1] == UNUSED:  # tokens that only fill up the table
        pairs.pop()
    model = {"type": "Unigram", **steps["model"], "vocab": pairs}
    return {**steps, "model": model}, {"tokenizer_class": AS_IT_IS}, (False, True)


def _words(keys: _Keys) -> tuple[Steps, dict[str, Any], tuple[bool, bool]]:
    """WordPiece, as BERT has it. Files mark pieces that begin a word, tokenizer.json those that do not."""

    def unmarked(token: str, kind: int) -> str:
        whole = kind in (UNKNOWN, CONTROL, USER) or token.startswith("[") and token.endswith("]")
        return token.removeprefix("▁") if whole or token.startswith("▁") else f"##{token}"

    keys.tokens = [unmarked(token, kind) for token, kind in zip(keys.tokens, keys.types, strict=True)]
    vocabulary = keys.vocabulary()
    named = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]",
             "mask_token": "[MASK]"}  # fmt: skip
    told: dict[str, Any] = {
        name: keys.token(*NAMED[name]) or (text if text in vocabulary else None) for name, text in named.items()}
    plain = (token for token, kind in zip(keys.tokens, keys.types, strict=True) if kind == NORMAL and token[:1] != "[")
    # No key says it: a vocabulary without capital letters is one of texts in lower case.
    told["do_lower_case"] = not any("A" <= letter <= "Z" for token in plain for letter in token)
    told["tokenizer_class"] = "BertTokenizer"
    return {"model": {"type": "WordPiece", "vocab": vocabulary}}, told, (False, False)


#: By tokenizer.ggml.model: the function that makes the fields, and whether tokens are put before and after a text.
MODELS = {"gpt2": _bytes, "llama": _pieces, "t5": _scores, "bert": _words}

__all__ = ["signature", "steps_of", "templates_of", "tokenizer_of"]
