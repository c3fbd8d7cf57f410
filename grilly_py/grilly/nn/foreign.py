"""Keyword arguments that PyTorch's and transformers' layers take, for what has another name in layers here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..compute.attention import foreign

_IGNORED = "True = attend here, and PyTorch's layers mean True = ignore: give"
_PLACED = "nothing; layer.to(backend, dtype) has both"
_BATCH = "nothing: inputs are always (B, S, E) or (S, E)"
_WHOLE = f"mask. {_IGNORED} ~m for a boolean one"
_PADDING = f"mask. {_IGNORED} ~m[:, None, None] for m of shape (B, Sk)"
_CAUSAL = "causal"
_NO_DROPOUT = "nothing: the layer drops no weights; nn.FlashAttention2 and F.flash_attention2 have dropout_p"
#: What any layer is asked for, and what some are, by the layer's name.
_ALL = {"device": _PLACED, "dtype": _PLACED, "inplace": "nothing: results are new arrays"}
_WORDS: dict[str, dict[str, str]] = {
    "MultiheadAttention": {
        "batch_first": _BATCH,
        **dict.fromkeys(("dropout", "dropout_p", "attention_dropout"), _NO_DROPOUT),
        "attn_mask": _WHOLE,
        "key_padding_mask": _PADDING,
        "attention_mask": "mask=m[:, None, None] for transformers' m of shape (B, Sk), cast to bool",
        "is_causal": f"{_CAUSAL}, aligned to the bottom right",
        "hidden_states": "query",
        "key_value_states": "key",
        "output_attentions": "need_weights",
        **dict.fromkeys(("past_key_value", "past_key_values", "layer_past", "use_cache"), "cache, of make_cache"),
    },
    "TransformerEncoderLayer": {
        "batch_first": _BATCH,
        "src": "x",
        "src_mask": _WHOLE,
        "src_key_padding_mask": _PADDING,
        "is_causal": _CAUSAL,
    },
    "TransformerDecoderLayer": {
        "batch_first": _BATCH,
        "tgt": "x",
        "tgt_mask": _WHOLE,
        "tgt_key_padding_mask": _PADDING,
        "memory_key_padding_mask": f"memory_{_PADDING}",
        "tgt_is_causal": _CAUSAL,
        "memory_is_causal": "memory_mask, numpy.tri(S, M, dtype=bool)",
    },
    "CrossEntropyLoss": dict.fromkeys(("size_average", "reduce"), "reduction"),
    **dict.fromkeys(("Softmax", "LogSoftmax", "GLU"), {"axis": "dim"}),
    "Embedding": {
        **dict.fromkeys(("max_norm", "norm_type"), "nothing: rows are not scaled; give a table whose rows are"),
        **dict.fromkeys(("sparse", "scale_grad_by_freq"), "nothing: the gradient is a whole table, summed"),
    },
    "RoPE": {
        **dict.fromkeys(("theta", "rope_theta"), "base"),
        "rope_scaling": "scaling",
        "max_position_embeddings": "max_seq_len",
        "position_ids": "positions",
        **dict.fromkeys(("unsqueeze_dim", "seq_dimension"), "nothing: rows are the last axis but one, (B, H, S, D)"),
    },
}


def refuse(layer: type, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise TypeError for a keyword that a layer's function does not have and another library's has.

    The message says what to give instead. Others are left to Python.
    """
    words = {**_ALL, **{name: word for each in layer.__mro__ for name, word in _WORDS.get(each.__name__, {}).items()}}
    known = [name for name in given if name in words]
    if not known:
        return
    taken = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in taken.values()):
        return
    unknown = [name for name in known if name not in taken]
    if unknown:
        raise foreign.unknown(layer.__name__, unknown, words)
