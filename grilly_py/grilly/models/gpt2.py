"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners")."""

from __future__ import annotations

from .. import nn
from ..compute import Tensor
from .cache import ForwardContext, attend
from .config import Config
from .decoder import Decoder
from .layers import ACTIVATIONS, MLP, Dropouts, Embedding, LayerNorm, Layers, Linear, check_dim, heads, joined
from .weights import Weights


class Block(nn.Module):
    """Attention and two linear layers, each on a normalised input and added to it."""

    def __init__(self, config: Config, weights: Weights, number: int) -> None:
        super().__init__()
        width, eps = config.integer("n_embd"), config.eps("layer_norm_epsilon", 1e-5)
        inner = config.integer("n_inner", 4 * width)
        self.number, self.heads, self.width = number, config.integer("n_head"), width
        self.attention_norm = LayerNorm(weights, "ln_1", width, eps)
        self.qkv = Linear(weights, "attn.c_attn", width, 3 * width, transposed=True)
        dropout = config.dropout("resid_pdrop", 0.1)
        self.output = Linear(weights, "attn.c_proj", width, width, transposed=True, dropout=dropout)
        self.norm = LayerNorm(weights, "ln_2", width, eps)
        activation = config.text("activation_function", ACTIVATIONS, "gelu_new")
        names = ("mlp.c_fc", "mlp.c_proj")
        self.mlp = MLP(weights, names, width, inner, activation, transposed=True, dropout=Dropouts(added=dropout))
        self.dropout = config.dropout("attn_pdrop", 0.1)
        scaled = config.flag("scale_attn_weights", True)
        self.scale = (width // self.heads) ** -0.5 if scaled else 1.0
        if config.flag("scale_attn_by_inverse_layer_idx", False):
            self.scale /= number + 1

    def forward(self, x: Tensor, call: ForwardContext) -> Tensor:
        """``(B, S, width)``."""
        qkv = self.qkv(self.attention_norm(x))
        q, k, v = (heads(qkv[..., i * self.width : (i + 1) * self.width], self.heads) for i in range(3))
        dropout = self.dropout if self.training else 0.0
        attended = attend(q, k, v, self.number, call, scale=self.scale, dropout=dropout)
        h = x + self.output(joined(attended))
        return h + self.mlp(self.norm(h))


class GPT2(Decoder):
    """GPT-2 without a head."""

    has_head = False

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        width = config.integer("n_embd")
        self.rows, self.positions = config.integer("vocab_size"), config.integer("n_positions")
        if width % config.integer("n_head"):
            raise config.error("n_embd", "a multiple of n_head")
        check_dim(config, "n_embd", width // config.integer("n_head"))
        self.cached = (config.integer("n_layer"), config.integer("n_head"), width // config.integer("n_head"))
        config.unused("n_ctx", "n_special", "predict_special_tokens", "reorder_and_upcast_attn", "summary_activation",
                      "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
                      "tie_word_embeddings")  # fmt: skip
        below = weights.optional("transformer")
        self.tokens = Embedding(below, "wte", self.rows, width)
        self.places = Embedding(below, "wpe", self.positions, width)
        self.dropout = nn.Dropout(config.dropout("embd_pdrop", 0.1))
        self.blocks = Layers(Block(config, below.at("h", i), i) for i in range(self.cached[0]))
        self.norm = LayerNorm(below, "ln_f", width, config.eps("layer_norm_epsilon", 1e-5))

    def hidden(self, ids: Tensor, call: ForwardContext) -> Tensor:
        """``(B, S)`` to ``(B, S, width)``."""
        x = self.dropout(self.tokens(ids) + self.places(self._sent(call.places(ids.shape[1]))))
        x = self.blocks.through(x, call)
        return self.norm(x)


class GPT2LM(GPT2):
    """GPT-2 with logits, by the token embeddings or a head of its own."""

    has_head = True

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__(config, weights)
        self.lm_head = None
        if config.flag("tie_word_embeddings", True):
            weights.allow("lm_head.weight", copies=weights.optional("transformer").name("wte.weight"))
        else:
            self.lm_head = Linear(weights, "lm_head", config.integer("n_embd"), self.rows, bias=False)

    def head(self, x: Tensor) -> Tensor:
        """``(..., width)`` to ``(..., vocab)``."""
        return self.tokens.logits(x) if self.lm_head is None else self.lm_head(x)
