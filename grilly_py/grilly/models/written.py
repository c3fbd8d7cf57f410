"""The text of tokens that come one at a time, of which only the end is decoded anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .tokenizer import Tokenizer

#: How many tokens stay when the window is cut. What decoders do to a token follows from its neighbours.
KEPT = 16


class Tail:
    """The end of a text: decoding all of it for each token would take ever longer.

    Attributes
    ----------
    text : str
        Of the tokens in the window, which are the last ones.
    """

    def __init__(self, tokenizer: Tokenizer, **options: Any) -> None:
        self._tokenizer, self._options, self._tokens, self._kept = tokenizer, options, list[int](), KEPT
        self.text = ""

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, **self._options)

    def begin(self, tokens: list[int], least: int) -> int:
        """Put so many of the last tokens in the window that they have more than ``least`` letters; returns how many."""
        count = KEPT
        while count < len(tokens) and len(self._decode(tokens[-count:])) <= least:
            count *= 2
        self._tokens = tokens[-count:]
        self.text = self._decode(self._tokens) if tokens else ""
        return len(self.text)

    def add(self, token: int) -> str:
        """The text of the window with this token."""
        self._tokens.append(token)
        self.text = self._decode(self._tokens)
        return self.text

    def cut(self, least: int = 1) -> None:
        """Let the first tokens go where the window is long, and what stays has ``least`` letters and is the same alone.

        Alone it is another text where it begins within a character or a word, or has nothing but spaces, which a
        decoder may strip. Such a window is cut after one of the next tokens.
        """
        if len(self._tokens) < 2 * self._kept:
            return
        kept = self._tokens[-self._kept :]
        text = self._decode(kept)
        if len(text) < least:
            self._kept *= 2
        elif text.strip() and self.text.endswith(text) and "\ufffd" not in (text[0], text[-1]):
            self._tokens, self.text = kept, text


class Written:
    """The text of tokens, part by part."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._tail, self._tokens = tokenizer, Tail(tokenizer), list[int]()
        self._parts, self._shown = list[str](), ""  # all of them, and what the window has of them

    def add(self, token: int) -> str:
        """What the text has more with this token: nothing while a character is not whole, or may still be joined."""
        self._tokens.append(token)
        text = self._tail.add(token)
        if not text.startswith(self._shown) or text.endswith("\ufffd"):  # which stands for a part of a character
            return ""
        end = self._tokenizer.settled(text)
        found = text[len(self._shown) : end]
        self._parts.append(found)
        self._shown = text[:end]
        if end == len(text):
            self._tail.cut()
            self._shown = self._tail.text
        return found

    def rest(self) -> str:
        """What was held back; the whole text on a line of its own where a token changed what was there before it."""
        text, shown = self._tokenizer.decode(self._tokens), "".join(self._parts)
        return text[len(shown) :] if text.startswith(shown) else "\n" + text


class Stops:
    """Whether a text has one of the texts that end it, which may be names of special tokens.

    One may begin in what was there before, ``begun``, and ends behind it.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], begun: Sequence[int] = ()) -> None:
        self._tail, self._stops = Tail(tokenizer, skip_special_tokens=False), stops
        self._longest = max(map(len, stops))
        #: Letters of the window that were there before.
        self._begun = self._tail.begin([int(token) for token in begun], self._longest)

    def add(self, token: int) -> bool:
        """Whether the text has one with this token. It had none before, so one begins in the window, or not at all."""
        text = self._tail.add(token)
        found = any(text.find(stop, max(self._begun - len(stop) + 1, 0)) >= 0 for stop in self._stops)
        if not found:
            self._tail.cut(self._longest)
            self._begun = max(self._begun - len(text) + len(self._tail.text), 0)
        return found


__all__ = ["Stops", "Written"]
