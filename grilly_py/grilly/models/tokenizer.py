"""Texts to tokens and back, by a folder's tokenizer.json or a GGUF file's keys, and the package tokenizers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..compute.attention import foreign
from ..compute.device.arrays import NDArray
from ..compute.device.numbers import integer
from ..errors import ModelError
from .chat import INSTALL, ChatTemplates
from .keywords import CHATS
from .tokenizer_file import read_tokenizer

#: Signs that lose the spaces around them, in this order, where a folder says so (clean_up_tokenization_spaces).
_SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
#: Times, which texts of sounds are without.
_TIME = r"<\|\d+\.\d+\|>"
_BEGUN = {sign[:length] for sign in _SPACED for length in range(1, len(sign))}


class Tokenizer:
    """The tokenizer of a model's folder, or of its GGUF file.

    Parameters
    ----------
    folder : str or Path
        With tokenizer.json, and tokenizer_config.json where it has one. Or a GGUF file.
    longest : int, optional
        Texts of more tokens are cut there.

    Attributes
    ----------
    longest : int or None
        The folder's ``model_max_length``, the file's ``context_length``. Nothing is cut there unless asked for.
    special_tokens : dict of str to str
        Special tokens by their names, such as ``eos_token``, as templates of chats know them.

    Raises
    ------
    ImportError
        Where the package tokenizers is not installed; the message says what to run.
    ModelError
        Where there is no tokenizer.json, or one that the package cannot read, or one that tokenizer_config.json does
        not go with. For keys that are missing or make no tokenizer that is known here.
    """

    def __init__(self, folder: str | Path, longest: int | None = None) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise ImportError(f"Tokenizer: {error}; run: {INSTALL}") from None
        self._folder = Path(folder)
        files = read_tokenizer(self._folder, tokenizers.Tokenizer.from_str)
        self._tokenizer, self._padding, self._side = files.tokenizer, files.padding, files.side
        self._joined, self._suffix, self._timed, self._prompt = files.joined, files.suffix, files.timed, files.prompt
        self.special_tokens, self._templates = files.named, files.templates
        self.longest = files.longest
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        if longest is not None:
            self.cut(longest)

    def cut(self, longest: int) -> None:
        """Cut texts of more tokens there from now on; their beginnings where the folder's truncation_side is "left".

        Raises TypeError for what is no integer, and ValueError for fewer than the tokens that are put around each text.
        """
        longest, least = integer("Tokenizer", "longest", longest), self._tokenizer.num_special_tokens_to_add(False)
        if longest < max(least, 1):
            raise ValueError(f"Tokenizer: longest is {longest}; expected at least {max(least, 1)}, as {least} tokens "
                             "are put around each text")  # fmt: skip
        self._tokenizer.enable_truncation(longest, direction=self._side)

    def encode(
        self, texts: str | Sequence[str], add_special_tokens: bool = True
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens ``(B, S)``, padded on the right, and an attention mask ``(B, S)``, 1 for tokens; B is 1 for one str.

        ``add_special_tokens``: those that the folder puts before and after a text. What `apply_chat_template` gives has
        them. Raises ValueError where no text has a token, and for a text with a lone surrogate.
        """
        return self.padded(self.tokens_of([texts] if isinstance(texts, str) else list(texts), add_special_tokens))

    def tokens_of(self, texts: list[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Each text's tokens, as `encode` has them before they are padded.

        Raises ValueError for a text with a lone surrogate, ModelError for unknown words where the vocabulary lacks the
        token that stands for them.
        """
        try:
            found = self._tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)
        except TypeError:  # which says this of any text that is no UTF-8
            _check_surrogates(texts)
            raise
        except Exception as error:  # the package raises Exception itself
            file = self._folder if self._templates is not None else self._folder / "tokenizer.json"
            raise ModelError(f"{file} has no tokens of a text: {error}") from None
        return [one.ids for one in found]

    def places_of(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """A text's tokens, with none put around it, and for each its first letter in the text and the one behind it.

        Raises as `tokens_of`.
        """
        tokens = self.tokens_of([text], add_special_tokens=False)[0]
        return tokens, self._tokenizer.encode(text, add_special_tokens=False).offsets

    def padded(self, rows: Sequence[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What `encode` makes of the tokens of texts. Raises ValueError where no text has a token."""
        longest = max(map(len, rows), default=0)
        if not longest:
            raise ValueError("Tokenizer.encode: the texts have no tokens")
        mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows], np.int64)
        return np.array([row + [self._padding] * (longest - len(row)) for row in rows], np.int64), mask

    @cached_property
    def _chat(self) -> ChatTemplates:
        return ChatTemplates(self._folder, self.special_tokens, self._templates)

    @property
    def has_chat_template(self) -> bool:
        """Whether the folder has a template of chats."""
        return "default" in self._chat.sources

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] | None = None,
        documents: Sequence[Mapping[str, str]] | None = None, chat_template: str | None = None,
        add_generation_prompt: bool = False, **variables: Any,
    ) -> str:  # fmt: skip
        """The text of a conversation, in the form that the model was trained on: as in transformers, not tokenized.

        Parameters
        ----------
        conversation : sequence of mappings
            Messages such as ``{"role": "user", "content": "Hello"}``.
        tools, documents : sequence, optional
            What the template shows of functions that the model may call, as JSON schemas, and of texts to answer from.
        chat_template : str, optional
            The name of one of several templates of the folder; by default "default", or "tool_use" with tools.
        add_generation_prompt : bool
            End with what the model's answer begins after.
        **variables
            Others that the template knows. Arguments of transformers that are no variables are refused,
            unless they are None or False.

        Returns
        -------
        str
            With the special tokens in it: ``encode([text], add_special_tokens=False)`` makes tokens of it.

        Raises
        ------
        ModelError
            Where the folder has no template, and for what goes wrong in it: a mistake in it, or messages that it
            refuses. It names the file.
        ValueError
            For a conversation without messages.
        TypeError
            For messages, tools and documents that are no mappings, and for other arguments of transformers.
        ImportError
            Without jinja2 3.1.6 or newer; the message says what to run.
        """
        # What is off asks for nothing: tokenize=False is the way to a text there.
        variables = {name: x for name, x in variables.items() if name not in CHATS or x not in (None, False)}
        foreign.refuse("apply_chat_template", variables, CHATS)
        if not conversation:
            raise ValueError("apply_chat_template: the conversation has no messages")
        _check_mappings("conversation", conversation, 'messages such as {"role": "user", "content": "Hello"}')
        _check_mappings("tools", tools or (), "JSON schemas, as mappings")
        _check_mappings("documents", documents or (), "mappings")
        given = {"tools": tools, "documents": documents, "add_generation_prompt": add_generation_prompt}
        return self._chat.render(chat_template, conversation, {**given, **variables})

    def decode(self, tokens: Sequence[int] | NDArray[Any], skip_special_tokens: bool = True) -> str:
        """The text of tokens ``(S,)``, without those that are no text, such as the one that ends it.

        ``skip_special_tokens``: False for their names too. Raises ValueError for tokens of another shape, such as those
        of several texts, and for numbers that are no tokens; TypeError for what are no integers.
        """
        if np.ndim(tokens) != 1:
            raise ValueError(f"Tokenizer.decode: tokens have shape {np.shape(tokens)}; expected those of one text")
        given = [integer("Tokenizer.decode", "a token", token) for token in tokens]
        if given and not 0 <= min(given) <= max(given) < 2**32:
            raise ValueError(f"Tokenizer.decode: tokens from {min(given)} to {max(given)}; expected 0 to 2**32 - 1")
        if skip_special_tokens and self._prompt is not None and given[:1] == [self._prompt[0]]:
            given = given[given.index(self._prompt[1]) :] if self._prompt[1] in given else []
        text = str(self._tokenizer.decode(given, skip_special_tokens=skip_special_tokens))
        if self._suffix:
            text = text.replace(self._suffix, " ").strip()
        for sign in _SPACED if self._joined else ():
            text = text.replace(sign, sign.strip())
        return re.sub(_TIME, "", text) if self._timed else text

    def settled(self, text: str) -> int:
        """How many letters of a decoded text stay, whatever comes after it: a sign may take spaces from its end."""
        end = len(text)
        while self._joined and (begun := next((one for one in _BEGUN if text.endswith(one, 0, end)), None)):
            end -= len(begun)
        return end


def _check_mappings(name: str, given: Any, expected: str) -> None:
    """Raise TypeError for what is no list of mappings."""
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        raise TypeError(f"apply_chat_template: {name} is {given!r:.100}; expected a list of {expected}")
    for number, one in enumerate(given):
        if not isinstance(one, Mapping):
            raise TypeError(f"apply_chat_template: {name}[{number}] is {one!r:.100}; expected a list of {expected}")


def _check_surrogates(texts: list[str]) -> None:
    """Raise ValueError for a text with half of a character, as what is cut from UTF-16 or was read with
    "surrogateescape" may have."""
    for number, text in enumerate(texts):
        try:
            if isinstance(text, str):
                text.encode()
        except UnicodeEncodeError as error:
            sign = f"U+{ord(text[error.start]):04X}"
            raise ValueError(
                f"Tokenizer: text {number} has a lone surrogate, {sign} at {error.start}, which is no character; "
                'text.encode("utf-8", "replace").decode() has a question mark there'
            ) from None
