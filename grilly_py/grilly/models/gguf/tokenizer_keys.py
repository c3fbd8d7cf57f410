"""The keys of a GGUF file for a folder's tokenizer."""

from __future__ import annotations

import base64
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ...compute.device.callers import callers_level
from ...errors import ModelError
from ..chat import ChatTemplates
from ..tokenizer import Tokenizer
from ..tokenizer_file import Files, read_tokenizer
from .tokenizer import BYTE, CONTROL, NAMED, NORMAL, PREFIX, UNKNOWN, UNUSED, USER, WORDS, signature, steps_of
from .writer import write_file

#: Texts by which two tokenizers are compared.
TRIED = (
    "Hello world, it's 2024: don't we've I'LL", "two  spaces\n\n\tand lines\r\n ", "Zürich café naïve ﬁ e\u0301",
    "中文 日本語 한국어 русский عربى 😀👍🏽", "def f(x):\n    return x ** 2 + 3.14159  # 1,000,000", "a", "..?! (\"')",
)  # fmt: skip


def keys_of_tokenizer(folder: Path, family: str, rows: int) -> dict[str, Any]:
    """The keys; none where the folder has no tokenizer.json, with a warning.

    Parameters
    ----------
    folder : Path
    family : str
        The model's, in GGUF.
    rows : int
        Of the table of tokens: names are made up for those that the tokenizer lacks.

    Raises
    ------
    ModelError
        For a tokenizer that GGUF has no keys for, and for more tokens than rows.
    """
    if not (folder / "tokenizer.json").is_file():
        warnings.warn(f"{folder} has no tokenizer.json: the file is without a tokenizer", UserWarning,
                      stacklevel=callers_level())  # fmt: skip
        return {}
    import tokenizers

    files = read_tokenizer(folder, tokenizers.Tokenizer.from_str)
    data = json.loads(files.tokenizer.to_str())
    tokens, types = _tokens(folder, files, data, rows)
    model, more = _model(folder, data, tokens, types)
    keys = {"model": model, "tokens": tokens, "token_type": np.array(types, "<i4"), **more}
    numbers = files.tokenizer.get_vocab(with_added_tokens=True)
    for name, (key, *_) in NAMED.items():
        if files.named.get(name) in numbers:
            keys[key] = numbers[files.named[name]]
    keys |= _around(files.tokenizer)
    found = {f"{PREFIX}{name}": value for name, value in keys.items()}
    for name, (text, _) in ChatTemplates(folder, files.named).sources.items():
        found["tokenizer.chat_template" + ("" if name == "default" else f".{name}")] = text
    _try(folder, {"general.architecture": family, **found}, [token["content"] for token in data["added_tokens"]])
    return found


def _tokens(folder: Path, files: Files, data: dict[str, Any], rows: int) -> tuple[list[str], list[int]]:
    """The tokens by number, and the type of each."""
    numbers = files.tokenizer.get_vocab(with_added_tokens=True)
    if max(numbers.values(), default=0) >= rows:
        raise ModelError(f"{folder / 'tokenizer.json'} has tokens up to {max(numbers.values())}; the table has {rows}")
    tokens, types = [f"[PAD{number}]" for number in range(rows)], [UNUSED] * rows
    for token, number in numbers.items():
        tokens[number], types[number] = token, NORMAL
    if data["model"].get("byte_fallback"):
        for byte in range(256):
            if (number := numbers.get(f"<0x{byte:02X}>")) is not None:
                types[number] = BYTE
    for added in data["added_tokens"]:
        unknown = added["content"] == files.named.get("unk_token")
        types[added["id"]] = USER if not added["special"] else UNKNOWN if unknown else CONTROL
    return tokens, types


def _model(
    folder: Path, data: dict[str, Any], tokens: list[str], types: list[int]
) -> tuple[str, dict[str, Any]]:  # fmt: skip
    """The name of the tokenizer's model, and its keys. BERT's tokens are marked as files mark them."""
    model, where = data["model"], folder / "tokenizer.json"
    if model["type"] == "WordPiece":
        for number, token in enumerate(tokens):
            if types[number] == NORMAL and not (token.startswith("[") and token.endswith("]")):
                tokens[number] = token[2:] if token.startswith("##") else f"▁{token}"
        return "bert", {}
    if model["type"] == "Unigram":
        scores = np.zeros(len(tokens), "<f4")
        scores[: len(model["vocab"])] = [score for _, score in model["vocab"]]
        table = (data.get("normalizer") or {}).get("precompiled_charsmap")
        more = {} if table is None else {"precompiled_charsmap": np.frombuffer(base64.b64decode(table), np.uint8)}
        return "t5", {"scores": scores, "add_space_prefix": _space(data), "remove_extra_whitespaces": True, **more}
    if model["type"] != "BPE":
        raise ModelError(f"{where}: GGUF has no keys for a model of type {model['type']}")
    pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"]]
    if model.get("byte_fallback"):
        scores = np.full(len(tokens), -1e6, "<f4")
        for rank, pair in reversed(list(enumerate(pairs))):
            scores[model["vocab"]["".join(pair)]] = -rank - 1
        return "llama", {"scores": scores, "add_space_prefix": _space(data)}
    wanted = signature(data)
    for name in WORDS:
        for space in (False, True):
            if signature(steps_of(name, space)) == wanted:
                return "gpt2", {"pre": name, "merges": [" ".join(pair) for pair in pairs], "add_space_prefix": space}
    raise ModelError(f"{where}: GGUF has no keys for these words of a BPE: {wanted!s:.300}")


def _space(data: dict[str, Any]) -> bool:
    """Whether a space is put before a text."""
    text = json.dumps([data.get("normalizer"), data.get("pre_tokenizer")])
    return '"prepend_scheme": "always"' in text or '"prepend_scheme": "first"' in text or '"Prepend"' in text


def _around(tokenizer: Any) -> dict[str, Any]:
    """The keys of tokens that are put before and after a text."""
    whole, alone = (tokenizer.encode("a", add_special_tokens=special).ids for special in (True, False))
    place = next((at for at in range(len(whole)) if whole[at : at + len(alone)] == alone), 0)
    before, after = whole[:place], whole[place + len(alone) :]
    found: dict[str, Any] = {"add_bos_token": bool(before), "add_eos_token": bool(after)}
    if before:
        found["bos_token_id"] = before[-1]
    if after:
        found["eos_token_id"] = after[0]
    return found


def _try(folder: Path, keys: dict[str, Any], added: list[str]) -> None:
    """Compare the tokenizer of the keys with the folder's.

    Raises ModelError where texts give other tokens, and warns where only texts with special tokens in their midst do.
    """
    with tempfile.TemporaryDirectory() as place:
        write_file(Path(place) / "tokenizer.gguf", keys, {})
        made, wanted = Tokenizer(Path(place) / "tokenizer.gguf"), Tokenizer(folder)
    for text in TRIED:
        if made.tokens_of([text]) != wanted.tokens_of([text]):
            raise ModelError(f"{folder / 'tokenizer.json'}: GGUF has no keys for this tokenizer: {text!r} would have "
                             "other tokens")  # fmt: skip
    texts = [f"a {token} b{token}c" for token in added[:100]]
    if made.tokens_of(texts) != wanted.tokens_of(texts):
        warnings.warn(f"{folder}: in the file white space beside special tokens within a text has other tokens",
                      UserWarning, stacklevel=callers_level())  # fmt: skip


__all__ = ["keys_of_tokenizer"]
