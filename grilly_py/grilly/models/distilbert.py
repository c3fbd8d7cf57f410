"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108): BERT with half of the layers, and without types of tokens."""

from __future__ import annotations

from .. import functional as F
from ..compute import Tensor
from .bert import Bert
from .config import Config
from .layers import ACTIVATIONS, LayerNorm, Linear
from .model import Output
from .weights import Weights


class DistilBert(Bert):
    """DistilBERT without a head."""

    prefix, encoder = "distilbert", "transformer"
    names = (
        "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "sa_layer_norm", "ffn.lin1",
        "ffn.lin2", "output_layer_norm",
    )  # fmt: skip
    sizes = ("dim", "n_heads", "n_layers", "hidden_dim")
    act = "activation"
    typed = False

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        config.unused("sinusoidal_pos_embds")  # the files have the table either way
        config.unused("qa_dropout", "seq_classif_dropout", "tie_weights_")


class DistilBertMaskedLM(DistilBert):
    """With the head that says which token stands where one is hidden: ``logits`` ``(B, S, vocab)``."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        config.only(tie_word_embeddings=True)
        table = weights.optional(self.prefix).name("embeddings.word_embeddings.weight")
        weights.allow("vocab_projector.weight", copies=table)
        self.transform = Linear(weights, "vocab_transform", self.width, self.width)
        self.transform_norm = LayerNorm(weights, "vocab_layer_norm", self.width, 1e-12)
        self.bias = weights.parameter("vocab_projector.bias", self.rows)

    def _logits(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        x = self.transform_norm(self.transform(x, activation=ACTIVATIONS[self.activation]))
        return F.linear(x, self.word_embeddings.weight.data, self.bias.data, precision=self.precision)

    def _output(self, host: bool, x: Tensor) -> Output:
        return Output(host, last_hidden_state=x, logits=lambda: self._logits(x))


class DistilBertClassifier(DistilBert):
    """With classes of texts: ``logits`` ``(B, labels)``."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        self.dense = Linear(weights, "pre_classifier", self.width, self.width)
        self.classifier = Linear(weights, "classifier", self.width, config.labels())

    def _output(self, host: bool, x: Tensor) -> Output:
        return Output(
            host, last_hidden_state=x, logits=lambda: self.classifier(self.dense(x[:, 0], activation="relu"))
        )


class DistilBertTokenClassifier(DistilBert):
    """With classes of tokens: ``logits`` ``(B, S, labels)``."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        self.classifier = Linear(weights, "classifier", self.width, config.labels())

    def _output(self, host: bool, x: Tensor) -> Output:
        return Output(host, last_hidden_state=x, logits=lambda: self.classifier(x))
