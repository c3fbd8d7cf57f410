"""Samples from files of JSON lines: texts, and chats by a tokenizer's template."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import ModelError
from ..models import Tokenizer
from .packing import Sample
from .samples import of_chat, of_text


def read_jsonl(file: str | Path, tokenizer: Tokenizer) -> list[Sample]:
    """The samples of a file that has a JSON object in each line.

    Parameters
    ----------
    file : str or Path
        Each line ``{"text": "..."}``, or ``{"messages": [{"role": "user", "content": "..."}, ...]}``, of which the
        assistant's messages are learned; beside the messages there may be ``tools``. Empty lines are passed over.
    tokenizer : grilly.models.Tokenizer

    Returns
    -------
    list of Sample

    Raises
    ------
    ValueError
        For a line that is not so, with the file and the line's number; and for a file without any.
    OSError
        Where the file cannot be read.
    """
    found: list[Sample] = []
    for number, record in _records(Path(file)):
        try:
            found += _samples(record, tokenizer)
        except (ValueError, TypeError, ModelError) as error:
            raise ValueError(f"{file}:{number}: {error}") from error
    if not found:
        raise ValueError(f"{file}: there are no lines")
    return found


def _records(file: Path) -> Iterator[tuple[int, Any]]:
    """What lines hold, with their numbers from 1."""
    with open(file, "rb") as opened:
        for number, line in enumerate(opened, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if text.strip():
                    yield number, json.loads(text)
            except UnicodeDecodeError as error:
                raise ValueError(f"{file}:{number}: it is no UTF-8 at byte {error.start + 1}") from None
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{file}:{number}: it is no JSON: {error}") from None


def _samples(record: Any, tokenizer: Tokenizer) -> list[Sample]:
    if not isinstance(record, Mapping) or ("text" in record) == ("messages" in record):
        kind = f"an object with {', '.join(map(str, record)) or 'nothing'}" if isinstance(record, Mapping) else "none"
        raise ValueError(f"it is {kind}; expected an object with either text or messages")
    if "text" in record:
        if not isinstance(record["text"], str) or not record["text"]:
            raise ValueError(f"text is {record['text']!r:.100}; expected letters")
        return [of_text(tokenizer, record["text"])]
    messages = record["messages"]
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"messages is {messages!r:.100}; expected a list of them")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(f"messages[{place}] is {message!r:.100}; expected an object with role and content")
    tools = {} if record.get("tools") is None else {"tools": record["tools"]}
    return of_chat(tokenizer, messages, **tools)


__all__ = ["read_jsonl"]
