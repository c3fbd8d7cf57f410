"""MPNet (Song et al. 2020, arXiv:2004.09297): positions as in RoBERTa, and biases of distances as in T5."""

from __future__ import annotations

from typing import Any

from ..compute import Tensor
from .bert import Roberta
from .config import Config
from .weights import Weights

#: Of the table of biases, and the distance from which on all have its last ones: no field of config.json changes them.
BUCKETS, DISTANCE = 32, 128


class MPNet(Roberta):
    """MPNet without a head."""

    prefix = "mpnet"
    names = (
        "attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o", "attention.LayerNorm",
        "intermediate.dense", "output.dense", "output.LayerNorm",
    )  # fmt: skip
    typed = False

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        config.only(relative_attention_num_buckets=BUCKETS, pad_token_id=1)
        heads = config.integer(self.sizes[1])
        below = weights.optional(self.prefix).at(self.encoder[0])
        self.table = below.parameter("relative_attention_bias.weight", BUCKETS, heads)

    def _options(self, places: Tensor | None) -> dict[str, Any]:
        assert self.table is not None
        return {"t5_table": self.table.data.astype("float32", copy=False), "t5_bidirectional": True,
                "t5_max_distance": DISTANCE}  # fmt: skip
