"""The files of a tokenizer: tokenizer.json, and what tokenizer_config.json changes of it, as in transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
    """

    tokenizer: Any
    longest: int | None
    side: str
    padding: int


def read_tokenizer(folder: Path, read: Any) -> Files:
    """The tokenizer of a folder; ``read`` makes one of a text. Raises ModelError as `Tokenizer` says."""
    if not folder.is_dir():
        raise ModelError(f"{folder} is no folder")
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ModelError(f"{file} is missing")
    told = folder / "tokenizer_config.json"
    config = Config(str(told), read_json(told) if told.is_file() else {})
    try:
        text = file.read_text(encoding="utf-8")
        tokenizer = read(_changed(text, config))
    except ModelError:
        raise
    except Exception as error:  # the package raises Exception itself
        raise ModelError(f"{file} cannot be read: {error}") from None
    # transformers writes 1e30 for one without an end.
    longest = config.number("model_max_length", None, least=1)
    model = folder / "config.json"
    padding = read_json(model).get("pad_token_id") if model.is_file() else None
    return Files(
        tokenizer, None if longest is None or longest >= 2**31 else int(longest),
        config.text("truncation_side", ("right", "left"), "right"),
        padding if isinstance(padding, int) and padding >= 0 else 0,  # -1 stands for none
    )  # fmt: skip


def _changed(text: str, config: Config) -> str:
    """The text of tokenizer.json, with what tokenizer_config.json says instead."""
    name = config.fields.get("tokenizer_class")
    family = str(name).removesuffix("Fast").removesuffix("Tokenizer")
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


def _parts(part: Any) -> Iterator[dict[str, Any]]:
    """A step of a tokenizer, or those that are in it."""
    if isinstance(part, dict):
        yield part
        for name in ("normalizers", "pretokenizers", "processors"):
            for inner in part.get(name) or ():
                yield from _parts(inner)


__all__ = ["Files", "read_tokenizer"]
