"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108): BERT with half of the layers, and without types of tokens."""

from __future__ import annotations

from .. import functional as F
from .. import nn
from ..compute import Tensor
from .bert import Bert
from .bert_heads import BertMaskedLM, BertQuestionAnswering, BertTokenClassifier
from .config import Config
from .layers import LayerNorm, Linear
from .output import Output
from .weights import Weights


class DistilBert(Bert):
    """DistilBERT without a head."""

    prefix, encoder = "distilbert", ("transformer", "layer")
    names = (
        "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "sa_layer_norm", "ffn.lin1",
        "ffn.lin2", "output_layer_norm",
    )  # fmt: skip
    sizes = ("dim", "n_heads", "n_layers", "hidden_dim")
    act, dropouts = "activation", ("attention_dropout", "dropout")
    typed = False

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        config.unused("sinusoidal_pos_embds")  # the files have the table either way
        config.unused("qa_dropout", "seq_classif_dropout", "tie_weights_")  # the first two of heads

    def _eps(self, config: Config) -> float:
        config.unused("layer_norm_eps")  # transformers does not read it here
        return 1e-12


class DistilBertMaskedLM(BertMaskedLM, DistilBert):
    """DistilBERT with the head that says which token stands where one is hidden."""

    def _read_head(self, weights: Weights, table: str, eps: float) -> None:
        weights.allow("vocab_projector.weight", copies=table)
        self.transform = Linear(weights, "vocab_transform", self.width, self.width)
        self.transform_norm = LayerNorm(weights, "vocab_layer_norm", self.width, eps)
        self.bias = weights.parameter("vocab_projector.bias", self.rows)


class DistilBertClassifier(DistilBert):
    """With classes of texts: ``logits`` ``(B, labels)``."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        self.dense = Linear(weights, "pre_classifier", self.width, self.width)
        self.head_dropped = nn.Dropout(config.dropout("seq_classif_dropout", 0.2))
        self.classifier = Linear(weights, "classifier", self.width, config.labels())

    def _output(self, host: bool, x: Tensor) -> Output:
        def logits() -> Tensor:
            return self.classifier(self.head_dropped(F.relu(self.dense(x[:, 0]))))

        return Output(host, logits=logits, last_hidden_state=x)


class DistilBertTokenClassifier(BertTokenClassifier, DistilBert):
    """DistilBERT with classes of tokens."""

    def head_dropout(self, config: Config) -> float:
        """That of the states that the head reads."""
        return config.dropout("dropout", 0.1)


class DistilBertQuestionAnswering(BertQuestionAnswering, DistilBert):
    """DistilBERT with where an answer starts and ends."""

    def head_dropout(self, config: Config) -> float:
        """That of the states that the head reads."""
        return config.dropout("qa_dropout", 0.1)
