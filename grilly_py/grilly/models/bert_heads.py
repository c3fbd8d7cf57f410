"""Heads of BERT and RoBERTa: words for tokens, classes of tokens, classes of texts, places of answers.

Files of XLM-RoBERTa have RoBERTa's names.
"""

from __future__ import annotations

import functools

from .. import functional as F
from .. import nn
from ..compute import Tensor
from ..functional.matmul import Activation
from .bert import Bert, Roberta
from .config import Config
from .layers import ACTIVATIONS, LayerNorm, Linear, activated
from .output import Output
from .weights import Weights


def classifier_dropout(config: Config) -> float:
    """That of the states that a classifier reads."""
    return config.dropout("classifier_dropout", config.dropout("hidden_dropout_prob", 0.1))


class BertMaskedLM(Bert):
    """With the head that says which token stands where one is hidden: ``logits`` ``(B, S, vocab)``."""

    head, layer, layer_norm = "cls.predictions", "transform.dense", "transform.LayerNorm"

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        config.only(tie_word_embeddings=True)
        table = weights.optional(self.prefix).name("embeddings.word_embeddings.weight")
        self._read_head(weights, table, self._eps(config))

    def _read_head(self, weights: Weights, table: str, eps: float) -> None:
        """The head's tensors. ``table`` is the name of the table of tokens, which it may repeat."""
        weights.at(self.prefix).allow("pooler.dense.weight", "pooler.dense.bias")
        weights.allow("cls.seq_relationship.weight", "cls.seq_relationship.bias")
        head = weights.at(self.head)
        head.allow("decoder.weight", copies=table)
        head.allow("decoder.bias", copies=head.name("bias"))
        self.transform = Linear(head, self.layer, self.width, self.width)
        self.transform_norm = LayerNorm(head, self.layer_norm, self.width, eps)
        self.bias = head.parameter("bias", self.rows)

    def head_activation(self) -> Activation:
        """That of the layers."""
        return ACTIVATIONS[self.activation]

    def _logits(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        x = self.transform_norm(activated(self.head_activation(), self.transform(x)))
        return F.linear(x, self.word_embeddings.weight.data, self.bias.data, precision=self.precision)

    def _output(self, host: bool, x: Tensor) -> Output:
        return Output(host, logits=lambda: self._logits(x), last_hidden_state=x)


class RobertaMaskedLM(BertMaskedLM, Roberta):
    """RoBERTa with such a head."""

    head, layer, layer_norm = "lm_head", "dense", "layer_norm"

    def head_activation(self) -> Activation:
        """GELU, whatever the layers have."""
        return "gelu"


class BertPretraining(BertMaskedLM):
    """With both heads that BERT was trained with: ``prediction_logits`` ``(B, S, vocab)`` are those of `BertMaskedLM`.

    ``seq_relationship_logits`` ``(B, 2)`` say whether the second text follows the first (0) or is any other (1).
    """

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        self._need_pooler(weights)
        self.seq_relationship = Linear(weights, "cls.seq_relationship", self.width, 2)

    def _output(self, host: bool, x: Tensor) -> Output:
        return Output(
            host, prediction_logits=lambda: self._logits(x),
            seq_relationship_logits=lambda: self.seq_relationship(self._pooled(x)), last_hidden_state=x,
        )  # fmt: skip


class BertTokenClassifier(Bert):
    """With classes of tokens: ``logits`` ``(B, S, labels)``."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        self.head_dropped = nn.Dropout(self.head_dropout(config))
        self.classifier = Linear(weights, "classifier", self.width, config.labels())

    def head_dropout(self, config: Config) -> float:
        """That of the states that the head reads."""
        return classifier_dropout(config)

    def _output(self, host: bool, x: Tensor) -> Output:
        return Output(host, logits=lambda: self.classifier(self.head_dropped(x)), last_hidden_state=x)


class RobertaTokenClassifier(BertTokenClassifier, Roberta):
    """RoBERTa with classes of tokens."""


class BertClassifier(Bert):
    """With classes of texts, such as how well an answer fits a question: ``logits`` ``(B, labels)``."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        self._need_pooler(weights)
        self.head_dropped = nn.Dropout(classifier_dropout(config))
        self.classifier = Linear(weights, "classifier", self.width, config.labels())

    def _output(self, host: bool, x: Tensor) -> Output:
        return Output(host, logits=lambda: self.classifier(self.head_dropped(self._pooled(x))), last_hidden_state=x)


class BertQuestionAnswering(Bert):
    """With where in the text an answer starts and ends: ``start_logits`` and ``end_logits`` ``(B, S)``."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        if config.labels() != 2:
            raise config.error("id2label", "two labels, for starts and ends of answers")
        self.head_dropped = nn.Dropout(self.head_dropout(config))
        self.qa_outputs = Linear(weights, "qa_outputs", self.width, 2)

    def head_dropout(self, config: Config) -> float:
        """That of the states that the head reads."""
        return 0.0

    def _output(self, host: bool, x: Tensor) -> Output:
        both = functools.cache(lambda: self.qa_outputs(self.head_dropped(x)))
        return Output(host, start_logits=lambda: both()[..., 0], end_logits=lambda: both()[..., 1], last_hidden_state=x)


class RobertaQuestionAnswering(BertQuestionAnswering, Roberta):
    """RoBERTa with such a head."""


class RobertaClassifier(Roberta):
    """RoBERTa with classes of texts: two layers in the place of the pooler."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        self.head_dropped = nn.Dropout(classifier_dropout(config))
        self.dense = Linear(weights, "classifier.dense", self.width, self.width)
        self.out_proj = Linear(weights, "classifier.out_proj", self.width, config.labels())

    def _logits(self, x: Tensor) -> Tensor:
        x = self.dense(self.head_dropped(x[:, 0]))
        return self.out_proj(self.head_dropped(F.tanh(x)))

    def _output(self, host: bool, x: Tensor) -> Output:
        return Output(host, logits=lambda: self._logits(x), last_hidden_state=x)


__all__ = [
    "BertClassifier", "BertMaskedLM", "BertPretraining", "BertQuestionAnswering", "BertTokenClassifier",
    "RobertaClassifier", "RobertaMaskedLM", "RobertaQuestionAnswering", "RobertaTokenClassifier",
]  # fmt: skip
