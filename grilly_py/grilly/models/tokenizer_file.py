"""The files of a tokenizer: tokenizer.json, and what tokenizer_config.json changes of it, as in transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .config import Config, read_json

#: Classes of tokenizers in transformers whose tokenizer_config.json says how a text is normalised: the field, and its
#: name in tokenizer.json.
_NORMALISING = ("Bert", "DistilBert", "MPNet")
_NORMALISED = {
    "do_lower_case": "lowercase", "strip_accents": "strip_accents", "tokenize_chinese_chars": "handle_chinese_chars",
}  # fmt: skip
#: ... and those whose tokenizer_config.json says whether a space comes before a text.
_SPACING = ("GPT2", "Qwen2", "Roberta")
#: Fields that name special tokens. Those that tokenizer.json lacks get their numbers in this order, as in transformers.
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


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
    """

    tokenizer: Any
    longest: int | None
    side: str
    padding: int
    joined: bool


def read_tokenizer(folder: Path, read: Any) -> Files:
    """The tokenizer of a folder; ``read`` makes one of a text. Raises ModelError as `Tokenizer` says."""
    if not folder.is_dir():
        raise ModelError(f"{folder} is no folder")
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ModelError(f"{file} is missing")
    told = folder / "tokenizer_config.json"
    config = Config(str(told), read_json(told) if told.is_file() else {})
    model = folder / "config.json"
    fields = read_json(model) if model.is_file() else {}
    try:
        text = file.read_text(encoding="utf-8")
        tokenizer = read(_changed(text, config, fields.get("model_type")))
    except ModelError:
        raise
    except Exception as error:  # the package raises Exception itself
        raise ModelError(f"{file} cannot be read: {error}") from None
    _add_special(tokenizer, config)
    # transformers writes 1e30 for one without an end.
    longest = config.number("model_max_length", None, least=1)
    padding = fields.get("pad_token_id")
    # The words of a BPE have their spaces in them, and none is to be lost.
    joined = config.flag("clean_up_tokenization_spaces", False) and type(tokenizer.model).__name__ != "BPE"
    return Files(
        tokenizer, None if longest is None or longest >= 2**31 else int(longest),
        config.text("truncation_side", ("right", "left"), "right"),
        padding if isinstance(padding, int) and padding >= 0 else 0,  # -1 stands for none
        joined,
    )  # fmt: skip


def _changed(text: str, config: Config, model_type: Any) -> str:
    """The text of tokenizer.json, with what tokenizer_config.json says instead."""
    name = config.fields.get("tokenizer_class")
    family = str(name).removesuffix("Fast").removesuffix("Tokenizer")
    # In a folder of another model transformers leaves the file's steps alone.
    if family == "Llama" and model_type == "llama":
        return _llama(text, config)
    wanted = {}
    if family in _NORMALISING:
        for field, inner in _NORMALISED.items():
            if field in config.fields:
                # Where null is told of accents, they follow lower case.
                wanted["BertNormalizer", inner] = config.flag(field, None)
    elif family in _SPACING and "add_prefix_space" in config:
        for kind in ("ByteLevel", "RobertaProcessing"):
            wanted[kind, "add_prefix_space"] = config.flag("add_prefix_space")
    if not wanted:
        return text
    data, found = json.loads(text), set()
    parts = [*_parts(data.get("normalizer")), *_parts(data.get("pre_tokenizer")), *_parts(data.get("post_processor"))]
    for part in parts:
        for (kind, field), value in wanted.items():
            if part.get("type") == kind:
                found.add(field)
                part[field] = value
    missing = {field for _, field in wanted} - found
    if missing:
        raise ModelError(
            f"{config.where}: tokenizer_class is {name!r}, and tokenizer.json has no place for its "
            + ", ".join(sorted(missing))
        )
    return json.dumps(data)


def _llama(text: str, config: Config) -> str:
    """The text of a Llama's tokenizer.json with other steps, which follow from tokenizer_config.json alone."""
    data = json.loads(text)
    steps = [*_parts(data.get("pre_tokenizer")), *_parts(data.get("decoder"))]
    # Llama 3 has a tokenizer of bytes, which transformers takes as it is, whatever its class is called.
    if "merges" not in data["model"] or any(step.get("type") == "ByteLevel" for step in steps):
        return text
    space = config.flag("add_prefix_space", True)
    scheme = "never" if not space else "always" if config.flag("legacy", False) else "first"
    data["normalizer"] = None
    data["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    ]  # fmt: skip
    if space:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    data["decoder"] = {"type": "Sequence", "decoders": decoders}
    return json.dumps(data)


def _add_special(tokenizer: Any, config: Config) -> None:
    """Add the tokens that tokenizer_config.json alone has, and those that it alone says are special."""
    from tokenizers import AddedToken

    def made(where: Config, field: str, said: Any) -> Any:
        fields: Any = {"content": said, "special": True} if isinstance(said, str) else said
        try:
            return AddedToken(fields["content"], **{name: fields[name] for name in _FLAGS if name in fields})
        except (KeyError, TypeError):
            raise where.error(field, "a token, or an object with its content and flags such as lstrip") from None

    tokens = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    there = {content: repr(token) for content, token in tokens.items()}
    if (listed := config.inner("added_tokens_decoder")) is not None:
        for number, said in listed.fields.items():
            token = made(listed, number, said)
            tokens[token.content] = token
    named = [(name, config.fields[name]) for name in _SPECIAL if name in config]
    # add_bos_token and its like are flags.
    others = {name: said for name, said in config.fields.items() if isinstance(said, (str, Mapping))}
    named += [(name, said) for name, said in others.items() if name.endswith("_token") and name not in _SPECIAL]
    field = "extra_special_tokens"
    extra = config.fields.get(field)
    if isinstance(extra, Mapping):
        named += [(field, said) for said in extra.values()]
    if not extra or isinstance(extra, Mapping):
        field = "additional_special_tokens"  # its name in older files
    for name, said in named:
        token = made(config, name, said)
        tokens.setdefault(token.content, token).special = True
    for said in config.list(field, []):
        token = made(config, field, said)
        tokens.setdefault(token.content, token)
    tokenizer.add_tokens([token for content, token in tokens.items() if repr(token) != there.get(content)])


def _parts(part: Any) -> Iterator[dict[str, Any]]:
    """A step of a tokenizer, or those that are in it."""
    if isinstance(part, dict):
        yield part
        for name in ("normalizers", "pretokenizers", "processors", "decoders"):
            for inner in part.get(name) or ():
                yield from _parts(inner)


__all__ = ["Files", "read_tokenizer"]
