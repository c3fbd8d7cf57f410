"""The files of a tokenizer: tokenizer.json, and what the files beside it change of it, as in transformers.

Or a GGUF file, whose keys become the fields of both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .config import Config, read_json
from .fields import TOKENIZER_REFUSED
from .gguf import GGUF
from .gguf.tokenizer import templates_of, tokenizer_of
from .special_tokens import SpecialTokens
from .tokenizer_classes import KINDS, around, changed, class_of, number_of

#: Files from which other programs make a tokenizer.json.
_SLOW = ("vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
         "tekken.json", "tiktoken.model")  # fmt: skip


@dataclass
class Files:
    """What the files of a tokenizer say.

    Attributes
    ----------
    tokenizer : tokenizers.Tokenizer
    longest : int or None
        ``model_max_length``: of how many tokens a text may be.
    side : str
        "right" or "left": which end of a longer text is cut off.
    padding : int
        The token that stands where a text has none.
    joined : bool
        Whether signs lose the spaces before them when tokens become text.
    suffix : str
        What words end with in tokens: a space stands for it in texts.
    timed : bool
        Whether texts are without times such as "<|0.02|>".
    prompt : tuple of int or None
        The token that what was said before begins with, and the one that follows it.
    named : dict of str to str
        Special tokens by their names, as templates of chats know them.
    templates : dict of str to (str, str) or None
        Chat templates of a GGUF file, each with its place, for messages; None where they are in files of a folder.
    """

    tokenizer: Any
    longest: int | None
    side: str
    padding: int
    joined: bool
    suffix: str
    timed: bool
    prompt: tuple[int | None, int | None] | None
    named: dict[str, str]
    templates: dict[str, tuple[str, str]] | None = None


def read_tokenizer(folder: Path, read: Any) -> Files:
    """The tokenizer of a folder or a GGUF file; ``read`` makes one of a text. Raises ModelError as `Tokenizer` says."""
    if folder.is_file():
        gguf = GGUF(folder)
        data, told, padding = tokenizer_of(gguf)
        config = Config(str(folder), told)
        return _read(folder, config, {"pad_token_id": padding}, json.dumps(data), templates_of(gguf), read)
    if not folder.is_dir():
        raise ModelError(f"{folder} is no folder and no file")
    file = folder / "tokenizer.json"
    if not file.is_file():
        others = ", ".join(name for name in _SLOW if (folder / name).is_file())
        made = f"; of {others} transformers makes one: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        raise ModelError(f"{file} is missing" + (made if others else ""))
    told_file, model = folder / "tokenizer_config.json", folder / "config.json"
    config = Config(str(told_file), read_json(told_file) if told_file.is_file() else {})
    _refuse(config)
    fields = read_json(model) if model.is_file() else {}
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from None
    return _read(file, config, fields, text, None, read)


def _read(
    file: Path, config: Config, fields: Mapping[str, Any], text: str,
    templates: dict[str, tuple[str, str]] | None, read: Any,
) -> Files:  # fmt: skip
    """What a tokenizer.json says, beside the fields of tokenizer_config.json and config.json."""
    folder = file.parent
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ModelError(f"{file} holds a {type(data).__name__}; expected an object with fields")
        kind = class_of(config, Config(str(folder / "config.json"), fields), text)
        tokens = SpecialTokens(folder, config, kind, data)
        tokenizer = read(json.dumps(changed(config, kind, tokens.named, data)) if KINDS[kind].steps else text)
    except ModelError:
        raise
    except Exception as error:  # the package raises Exception itself
        raise ModelError(f"{file} cannot be read: {error}") from None
    tokens.add_to(tokenizer)
    if (post := around(config, kind, tokens.named, tokenizer)) is not None:
        tokenizer.post_processor = post
    _split_special(config, tokenizer)
    bpe = type(tokenizer.model).__name__ == "BPE"
    forced = config.flag("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", False)
    # The words of a BPE have their spaces in them, and none is to be lost.
    joined = config.flag("clean_up_tokenization_spaces", False) and (forced or not bpe)
    side = (data.get("truncation") or {}).get("direction", "right").lower()
    prompt = None
    if kind == "Whisper":
        begun, follows = (
            number_of(tokenizer, tokens.named, token) for token in ("<|startofprev|>", "<|startoftranscript|>"))
        prompt = begun, follows
    return Files(
        tokenizer, _longest(config), config.text("truncation_side", ("right", "left"), side),
        _padding(fields, number_of(tokenizer, {}, tokens.named.get("pad_token"))), joined,
        "</w>" if kind == "CLIP" else "", kind == "Whisper", prompt,
        {name: token for name, token in tokens.named.items() if token is not None}, templates,
    )  # fmt: skip


def _refuse(config: Config) -> None:
    """Raise ModelError for fields that ask for what is not done."""
    config.only(**dict.fromkeys(TOKENIZER_REFUSED, (False, [], {})))
    config.only(fast_tokenizer_files=([], ["tokenizer.json"]))
    code = config.fields.get("auto_map")
    if code and (not isinstance(code, Mapping) or "AutoTokenizer" in code):
        raise config.error("auto_map", "none of AutoTokenizer: a folder's code is not run")


def _longest(config: Config) -> int | None:
    """The most tokens of a text."""
    name = "model_max_length" if "model_max_length" in config.fields else "max_len"
    longest = config.number(name, None, least=1)
    # transformers writes 1e30 for one without an end.
    return None if longest is None or longest >= 2**31 else int(longest)


def _padding(fields: Mapping[str, Any], named: int | None) -> int:
    """The token that stands where a text has none."""
    told = fields.get("pad_token_id")
    return named if named is not None else told if isinstance(told, int) and told >= 0 else 0  # -1 stands for none


def _split_special(config: Config, tokenizer: Any) -> None:
    """Have special tokens in texts split, where the configuration says so."""
    if config.flag("split_special_tokens", False):
        if not hasattr(tokenizer, "encode_special_tokens"):
            raise config.error("split_special_tokens", "false, or the package tokenizers 0.16 or newer")
        tokenizer.encode_special_tokens = True


__all__ = ["Files", "read_tokenizer"]
