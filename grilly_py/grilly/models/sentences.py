"""SentenceEncoder: texts to vectors (Reimers and Gurevych 2019, arXiv:1908.10084)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from .. import array_api as xp
from .. import linalg, nn
from ..compute import Compute, Tensor
from ..compute.attention import foreign
from ..compute.device.arrays import NDArray
from ..compute.device.numbers import integer
from .architectures import encoder_of
from .bert import Bert
from .graphs import Graphs
from .loading import load_as
from .model import Model
from .packing import by_length, by_tokens, packed
from .sentence_folder import POOLING, Dense, Steps, limits
from .sentence_folder import prompts as prompts_of
from .tokenizer import Tokenizer

#: Keyword arguments of sentence-transformers' encode, and what to give here instead.
_KEYWORDS = {
    "normalize_embeddings": "nothing: encoder.normalized says whether the folder asks for it",
    "convert_to_numpy": "nothing: vectors are NumPy's",
    "convert_to_tensor": "nothing: vectors are NumPy's; grilly.asarray(vectors) puts them on the device",
    "show_progress_bar": "nothing: progress is not shown",
    "device": "nothing; SentenceEncoder.load(folder, backend=...) chooses it",
    "precision": "nothing; vectors are float32",
    "truncate_dim": "nothing; vectors[:, :n] has the first n elements",
    "output_value": "nothing; encoder.model(input_ids, attention_mask) gives each token's",
    "task": "prompt_name",
}


class SentenceEncoder(nn.Module):
    """An encoder of a folder, the way its tokens become one vector, and its tokenizer.

    ``SentenceEncoder.load(folder)`` makes one.

    Attributes
    ----------
    model : Bert
    tokenizer : Tokenizer
    pooling : str
        "mean" of a text's tokens, their "max", the first ("cls"), or their sum by the root of their number
        ("mean_sqrt_len").
    normalized : bool
        Whether vectors are scaled to length 1.
    lower : bool
        Whether texts are put in lower case before they become tokens.
    prompts : dict of str to str
        What texts are begun with, by name.
    default_prompt : str or None
        The name of the one that is used where a call names none.
    dense : nn.ModuleList
        Layers that the pooled vectors go through.
    width : int
        Elements of a vector.
    graphs : Graphs
        What was captured, as ``grilly.models.Model.graphs``: batches of one size and length are replayed.
    """

    def __init__(
        self, model: Bert, tokenizer: Tokenizer, pooling: str = "mean", normalized: bool = True, lower: bool = False,
        prompts: Mapping[str, str] | None = None, default_prompt: str | None = None, dense: Sequence[Dense] = (),
    ) -> None:  # fmt: skip
        super().__init__()
        if pooling not in POOLING:
            raise ValueError(f"SentenceEncoder: pooling is {pooling!r}; expected one of {', '.join(POOLING)}")
        self.model, self.tokenizer, self.pooling, self.normalized = model, tokenizer, pooling, normalized
        self.lower, self.prompts, self.default_prompt = lower, dict(prompts or {}), default_prompt
        self.dense, self.width = nn.ModuleList(dense), dense[-1].outputs if dense else model.width
        self.graphs = Graphs()
        self.eval()

    @classmethod
    def load(
        cls, folder: str | Path, dtype: DTypeLike | None = None, backend: Compute | None = None, **options: Any
    ) -> SentenceEncoder:
        """An encoder from a folder as sentence-transformers saves it: modules.json says what follows the model.

        Parameters
        ----------
        folder : str or Path
            ``model_type`` of config.json says which encoder it has; a head that ``architectures`` names is passed over.
            Also of an encoder without modules.json: its vectors are then the mean of the tokens', scaled to length 1.
            Prompts are those of config_sentence_transformers.json, lower case and the longest text those of
            sentence_bert_config.json, or else tokenizer_config.json's ``model_max_length``. Or a GGUF file, which says
            the pooling; vectors are then scaled to length 1.
        dtype, backend, **options
            As for ``grilly.models.load``.

        Raises
        ------
        ModelError
            As ``load``, and for other encoders and steps after the model.
        ImportError
            Where the package tokenizers is not installed; the message says what to run.
        """
        folder = Path(folder)
        ignored = options.get("ignore", ())
        steps = Steps.of(folder, ignored)
        longest, lower = limits(folder, ignored)
        prompts, default_prompt = prompts_of(folder, steps.pools_prompts)
        tokenizer = Tokenizer(folder)

        def check(model: Model) -> None:
            assert isinstance(model, Bert)
            steps.layers(model.width)

        model = load_as(encoder_of, folder, dtype, backend, check=check, **options)
        assert isinstance(model, Bert)
        tokenizer.cut(min(longest or tokenizer.longest or model.longest, model.longest))
        dense = steps.layers(model.width, model.backend)
        return cls(model, tokenizer, steps.pooling, steps.normalized, lower, prompts, default_prompt, dense)

    def encode(
        self, sentences: str | Sequence[str], batch_size: int = 32, *, prompt_name: str | None = None,
        prompt: str | None = None, **unknown: NoReturn,
    ) -> NDArray[np.float32]:  # fmt: skip
        """Vectors of sentences, without the white space around them; they are cut at the model's longest.

        Parameters
        ----------
        sentences : str or sequence of str
        batch_size : int
            Sentences run together, at least 1; those of like lengths.
        prompt_name : str, optional
            Each sentence is begun with this one of ``prompts``, by default ``default_prompt``.
        prompt : str, optional
            ... or with this text; "" for none.

        Returns
        -------
        numpy.ndarray
            float32 ``(n, width)``, or ``(width,)`` for one str.

        Raises
        ------
        TypeError
            For anything but strings, a batch size that is no integer, and keyword arguments of other libraries.
        ValueError
            For a batch size below 1, prompts that are not there, a sentence without a token (what an empty one is where
            the tokenizer adds none of its own) or with a lone surrogate, and tokens beyond the model's vocabulary,
            which a tokenizer of another model may give.
        """
        if unknown:
            raise foreign.unknown("SentenceEncoder.encode", unknown, _KEYWORDS)
        if self.pooling not in POOLING:
            raise ValueError(f"SentenceEncoder: pooling is {self.pooling!r}; expected one of {', '.join(POOLING)}")
        texts, batch_size = checked("SentenceEncoder.encode", sentences, batch_size)
        prompt_name = self.default_prompt if prompt_name is None else prompt_name
        if prompt is None and prompt_name is not None:
            if prompt_name not in self.prompts:
                named = ", ".join(sorted(self.prompts)) or "none"
                raise ValueError(f"SentenceEncoder: prompt_name is {prompt_name!r}; the folder's prompts: {named}")
            prompt = self.prompts[prompt_name]
        texts = [f"{prompt or ''}{text}".strip() for text in texts]
        texts = [text.lower() for text in texts] if self.lower else texts
        result = np.zeros((len(texts), self.width), np.float32)
        rows = self.tokenizer.tokens_of(texts)
        lengths = [len(row) for row in rows]
        if 0 in lengths:
            raise ValueError(f"SentenceEncoder.encode: sentence {lengths.index(0)}, counted from 0, has no tokens; "
                             "leave it out, or give a prompt")  # fmt: skip
        # A processor has the time that is spent on padding; what a GPU would save was not measured.
        packs = self.model.backend.device.kind == "cpu" and self.pooling != "max"
        batches = by_tokens(lengths, batch_size, self.model.longest) if packs else by_length(lengths, batch_size)
        found = []
        for batch in batches:
            own = [rows[i] for i in batch]
            alike = len(own[0]) == len(own[-1])
            found.append(self._packed(own) if packs and not alike else self._pooled(*self.tokenizer.padded(own)))
        for batch, vectors in zip(batches, found, strict=True):  # all are under way before the first is waited for
            result[batch] = vectors.numpy()[: len(batch)]
        return result[0] if isinstance(sentences, str) else result

    def _pooled(self, ids: NDArray[Any], mask: NDArray[Any]) -> Tensor:
        """The vectors of a batch, float32 ``(B, width)``."""
        ids, _ = self.model._numbers("input_ids", ids, self.model.rows)
        if mask.all():  # no padding: nothing else to send
            return self.graphs.run(self, self.model.backend, self._vectors, ids)
        kept = mask[:, :, None].astype(np.float32)
        count = self._divisor(np.maximum(mask.sum(axis=1, keepdims=True), 1).astype(np.float32))
        seen = (mask != 0)[:, None, None]
        return self.graphs.run(self, self.model.backend, self._vectors, ids, seen, kept, count)

    def _packed(self, rows: Sequence[list[int]]) -> Tensor:
        """The vectors of texts, and some more behind them, float32 ``(n, width)``."""
        pack = packed(rows, [self.model.positions_of(row) for row in rows], self.model.padding)
        ids, _ = self.model._numbers("input_ids", pack.ids, self.model.rows)
        if self.pooling == "cls":
            chosen = pack.first
        else:
            chosen = pack.members / self._divisor(np.maximum(pack.members.sum(axis=1, keepdims=True), 1))
        return self.graphs.run(self, self.model.backend, self._vectors_of_pack, ids, pack.own, pack.places, chosen)

    def _vectors_of_pack(self, ids: Tensor, own: Tensor, places: Tensor, chosen: Tensor) -> Tensor:
        """The vectors of packed texts, float32 ``(n, width)``.

        ``chosen`` has the place of each text's first token, or the weights of all tokens in each text ``(n, T)``.
        """
        x = self.model.states(ids, own, None, places)[0].astype("float32", copy=False)
        return self._scaled(xp.take(x, chosen, axis=0) if self.pooling == "cls" else xp.matmul(chosen, x))

    def _divisor(self, tokens: Any) -> Any:
        return tokens if self.pooling == "mean" else np.sqrt(tokens)

    def _vectors(
        self, ids: Tensor, seen: Tensor | None = None, kept: Tensor | None = None, count: Tensor | None = None
    ) -> Tensor:
        """The vectors of a batch, float32 ``(B, width)``.

        ``ids`` ``(B, S)``; of batches with padding also its mask, boolean ``(B, 1, 1, S)`` and float32 ``(B, S, 1)``,
        and the divisors of the sums ``(B, 1)``.
        """
        x = self.model.states(ids, seen, None, None).astype("float32", copy=False)
        if self.pooling == "cls":
            found = x[:, 0]
        elif self.pooling == "max":
            found = xp.max(x if kept is None else xp.where(kept != 0, x, -np.inf), axis=1)
        elif kept is None:
            found = xp.sum(x, axis=1) / float(self._divisor(x.shape[1]))
        else:
            found = xp.sum(x * kept, axis=1) / count
        return self._scaled(found)

    def _scaled(self, found: Tensor) -> Tensor:
        """Pooled vectors after the dense layers, of length 1 where that is asked."""
        for layer in self.dense:
            found = layer(found)
        if not self.normalized:
            return found
        return found / xp.maximum(linalg.vector_norm(found, axis=-1, keepdims=True), 1e-12)


def checked(owner: str, sentences: str | Sequence[str], batch_size: int) -> tuple[list[str], int]:
    """The sentences as a list, and the batch size.

    Raises TypeError for anything but strings and an integer, and ValueError for a batch size below 1.
    """
    texts = [sentences] if isinstance(sentences, str) else list(sentences) if isinstance(sentences, Iterable) else None
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{owner}: expected a str or a sequence of str")
    batch_size = integer(owner, "batch_size", batch_size)
    if batch_size < 1:
        raise ValueError(f"{owner}: batch_size is {batch_size}; it must be at least 1")
    return texts, batch_size
