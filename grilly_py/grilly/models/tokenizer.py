"""Texts to tokens and back, by the folder's tokenizer.json and the package tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..compute.device.arrays import NDArray
from ..errors import ModelError
from .config import read_json

#: The remedy where the package is missing.
INSTALL = 'pip install "grilly-vulkan[models]"'


class Tokenizer:
    """The tokenizer of a model's folder.

    Parameters
    ----------
    folder : str or Path
        With tokenizer.json.
    longest : int, optional
        Texts of more tokens are cut there.

    Raises
    ------
    ImportError
        Where the package tokenizers is not installed; the message says what to run.
    ModelError
        Where there is no tokenizer.json, or one that the package cannot read.
    """

    def __init__(self, folder: str | Path, longest: int | None = None) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise ImportError(f"Tokenizer: {error}; run: {INSTALL}") from None
        file = Path(folder) / "tokenizer.json"
        if not file.is_file():
            raise ModelError(f"{file} is missing")
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises Exception itself
            raise ModelError(f"{file} cannot be read: {error}") from None
        config = Path(folder) / "config.json"
        padding = read_json(config).get("pad_token_id") if config.is_file() else None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        if longest is not None:
            self._tokenizer.enable_truncation(longest)
        self._padding = padding if isinstance(padding, int) else 0

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens ``(B, S)``, padded on the right, and an attention mask ``(B, S)``, 1 for tokens.

        Raises ValueError where no text has a token.
        """
        rows = [found.ids for found in self._tokenizer.encode_batch(list(texts))]
        longest = max(map(len, rows), default=0)
        if not longest:
            raise ValueError("Tokenizer.encode: the texts have no tokens")
        mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows], np.int64)
        return np.array([row + [self._padding] * (longest - len(row)) for row in rows], np.int64), mask

    def decode(self, tokens: Sequence[int] | NDArray[Any]) -> str:
        """The text of tokens, without those that are no text, such as the one that ends it."""
        return str(self._tokenizer.decode([int(token) for token in tokens]))


class Written:
    """The text of tokens that come one at a time."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._tokens, self._shown = tokenizer, list[int](), ""

    def add(self, token: int) -> str:
        """What the text has more with this token: nothing while a character is not whole."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        if not text.startswith(self._shown) or text.endswith("\ufffd"):  # which stands for a part of a character
            return ""
        found, self._shown = text[len(self._shown) :], text
        return found

    def rest(self) -> str:
        """What was held back; the whole text on a line of its own where a token changed what was there before it."""
        text = self._tokenizer.decode(self._tokens)
        return text[len(self._shown) :] if text.startswith(self._shown) else "\n" + text
