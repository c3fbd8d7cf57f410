"""Samples of texts and of chats, by a model's tokenizer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..models import Tokenizer
from .packing import Sample


def of_text(tokenizer: Tokenizer, text: str) -> Sample:
    """A text with the token that ends texts behind it, where the folder has one."""
    (tokens,) = tokenizer.tokens_of([text])
    end = tokenizer.special_tokens.get("eos_token")
    ends = tokenizer.tokens_of([end], add_special_tokens=False)[0] if end else []
    return Sample(tokens if ends and tokens[-1:] == ends else [*tokens, *ends])


def of_chat(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[Sample]:
    """A conversation by the folder's chat template, of which the assistant's answers alone are learned.

    What comes after the last answer is left out.

    Parameters
    ----------
    tokenizer : grilly.models.Tokenizer
    messages : sequence of mappings
        As of ``tokenizer.apply_chat_template``.
    **variables
        As there: ``tools`` and others.

    Returns
    -------
    list of Sample
        One; or one for each answer where the template shows an answer in another way once others follow it, such as
        without its thoughts.

    Raises
    ------
    ValueError
        For a conversation without an answer.
    ModelError, TypeError, ImportError
        As ``tokenizer.apply_chat_template``.
    """
    answers = [number for number, message in enumerate(messages) if message.get("role") == "assistant"]
    if not answers:
        raise ValueError("the conversation has no message whose role is assistant, so there is nothing to learn")

    def shown(count: int, **more: Any) -> str:
        return tokenizer.apply_chat_template(messages[:count], **more, **variables) if count else ""

    def span(answer: int) -> tuple[int, int]:
        """Where an answer stands in the text up to it: behind what a model is given to answer."""
        asked, told = shown(answer, add_generation_prompt=True), shown(answer + 1)
        return len(os.path.commonprefix([asked, told])), len(told)

    whole = shown(answers[-1] + 1)
    if all(whole.startswith(shown(answer + 1)) for answer in answers):
        return [_learned(tokenizer, whole, [span(answer) for answer in answers])]
    return [_learned(tokenizer, shown(answer + 1), [span(answer)]) for answer in answers]


def _learned(tokenizer: Tokenizer, text: str, spans: Sequence[tuple[int, int]]) -> Sample:
    """A text's tokens, of which those in spans of letters are learned, also in part."""
    tokens, places = tokenizer.places_of(text)
    return Sample(tokens, [any(first < end and start < last for first, last in spans) for start, end in places])


__all__ = ["of_chat", "of_text"]
