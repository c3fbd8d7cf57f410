"""Keyword arguments that PyTorch's and transformers' layers take, for what has another name in layers here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..compute.attention import foreign
from ..functional.keywords import keywords_of

_IGNORED = "True = attend here, and PyTorch's layers mean True = ignore: give"
_PLACED = "nothing; layer.to(backend, dtype) has both"
_BATCH = "nothing: inputs are always (B, S, E) or (S, E)"
_WHOLE = f"mask. {_IGNORED} ~m for a boolean one"
_PADDING = f"mask. {_IGNORED} ~m[:, None, None] for m of shape (B, Sk)"
_CAUSAL = "causal"
_NO_DROPOUT = "nothing: the layer drops no weights; nn.FlashAttention has dropout, and F.flash_attention2 dropout_p"
_CAST = "mask=m[:, None, None] for transformers' m of shape (B, Sk), cast to bool"
_GROUPED = ("num_kv_heads", "num_key_value_heads", "num_key_value_groups", "enable_gqa")
#: Options of attention that no layer has.
_BENT = {
    name: f"F.flash_attention2, which has {word}"
    for word, names in {
        "window_size": ("window_size", "sliding_window", "window"), "softcap": ("softcap", "attn_logit_softcapping"),
        "sinks": ("sinks", "s_aux", "learnable_sink"), "alibi_slopes": ("alibi_slopes", "alibi"),
        "seqlens_k": ("seqlens_k", "seqused_k"),
    }.items()
    for name in names
}  # fmt: skip
#: What layers without projections are asked for.
_FLASH = {
    **_BENT,
    **dict.fromkeys(_GROUPED, "nothing: key heads that divide the query heads are taken as they are"),
    "attn_mask": _WHOLE,
    "key_padding_mask": _PADDING,
    "attention_mask": _CAST,
    "is_causal": f"{_CAUSAL}, aligned to the bottom right",
    **dict.fromkeys(("need_weights", "output_attentions"), "nn.MultiheadAttention, which has need_weights"),
}
_OF_FLASH2 = {
    **_FLASH,
    "batch_first": _BATCH,
    **dict.fromkeys(("softmax_scale", "sm_scale", "scaling"), "scale"),
    **dict.fromkeys(("dropout", "attention_dropout", "dropout_p"), _NO_DROPOUT),
    **dict.fromkeys(("attn_bias", "position_bias"), "mask, floating; F.flash_attention2 has attn_bias"),
}
#: What any layer is asked for, and what some are, by the layer's name.
_ALL = {"device": _PLACED, "dtype": _PLACED, "inplace": "nothing: results are new arrays"}
OF_PARAMETER = {"requires_grad": "nothing: backward finds the gradients of all parameters of a layer in train()"}
_KEYWORDS: dict[str, dict[str, str]] = {
    "FlashAttention": {
        **_FLASH,
        **dict.fromkeys(("dropout_p", "attention_dropout"), "dropout, when the layer is made"),
        **dict.fromkeys(("scale", "softmax_scale", "sm_scale", "scaling"), "F.flash_attention2, which has scale"),
        **dict.fromkeys(("position_bias", "bias"), "attn_bias"),
    },
    "FlashAttention2": _OF_FLASH2,
    "FlashAttention3": _OF_FLASH2,
    "MultiheadAttention": {
        **_BENT,
        **dict.fromkeys(_GROUPED, "F.flash_attention2, which takes key heads that divide the query heads"),
        **dict.fromkeys(("scale", "softmax_scale", "scaling"), "F.flash_attention2, which has scale"),
        "batch_first": _BATCH,
        **dict.fromkeys(("dropout", "dropout_p", "attention_dropout"), _NO_DROPOUT),
        "attn_mask": _WHOLE,
        "key_padding_mask": _PADDING,
        "attention_mask": _CAST,
        "is_causal": f"{_CAUSAL}, aligned to the bottom right",
        "add_bias_kv": "F.flash_attention2, to whose k and v a learned row of each head is appended",
        "add_zero_attn": "F.flash_attention2, with sinks=numpy.zeros(H, numpy.float32)",
        "hidden_states": "query",
        "key_value_states": "key",
        "output_attentions": "need_weights",
        "encoder_hidden_states": "key",
        "encoder_attention_mask": _CAST,
        "attn_bias": "mask, floating",
        **dict.fromkeys(
            ("position_ids", "position_embeddings"),
            "nothing: the layer turns nothing; nn.RoPE turns queries and keys of heads of one's own",
        ),
        **dict.fromkeys(("past_key_value", "past_key_values", "layer_past", "use_cache"), "cache, of make_cache"),
    },
    "TransformerEncoderLayer": {
        "batch_first": _BATCH,
        "src": "x",
        "src_mask": _WHOLE,
        "src_key_padding_mask": _PADDING,
        "is_causal": _CAUSAL,
        "attn_mask": _WHOLE,
        "key_padding_mask": _PADDING,
        "attention_mask": _CAST,
        "hidden_states": "x",
    },
    "TransformerDecoderLayer": {
        "batch_first": _BATCH,
        "tgt": "x",
        "tgt_mask": _WHOLE,
        "tgt_key_padding_mask": _PADDING,
        "memory_key_padding_mask": f"memory_{_PADDING}",
        **dict.fromkeys(("tgt_is_causal", "is_causal"), _CAUSAL),
        "attn_mask": _WHOLE,
        "key_padding_mask": _PADDING,
        "attention_mask": _CAST,
        "hidden_states": "x",
        "encoder_hidden_states": "memory",
        "encoder_attention_mask": f"memory_{_CAST}",
        "memory_is_causal": "memory_mask, numpy.tri(S, M, dtype=bool)",
    },
    "CrossEntropyLoss": dict.fromkeys(("size_average", "reduce"), "reduction"),
    **dict.fromkeys(("Softmax", "LogSoftmax", "GLU"), {"axis": "dim"}),
    "Embedding": keywords_of("embedding"),
    "LayerNorm": keywords_of("layer_norm"),
    "RMSNorm": keywords_of("rms_norm"),
    "RoPE": {
        **dict.fromkeys(("theta", "rope_theta"), "base"),
        **dict.fromkeys(("rope_scaling", "rope_parameters"), "scaling"),
        "rope_type": 'scaling={"rope_type": ...}, with what the type needs',
        **dict.fromkeys(("scaling_factor", "factor"), 'scaling={"rope_type": "linear", "factor": ...}'),
        **dict.fromkeys(("head_dim", "dims", "rotary_dim"), "dim"),
        "partial_rotary_factor": "dim, the elements of a row that are rotated",
        **dict.fromkeys(("traditional", "interleave", "rotary_interleaved"), "interleaved"),
        "max_position_embeddings": "max_seq_len",
        **dict.fromkeys(("position_ids", "input_pos"), "positions"),
        **dict.fromkeys(("seqlen_offset", "seqlen_offsets"), "offset"),
        **dict.fromkeys(("unsqueeze_dim", "seq_dimension"), "nothing: rows are the last axis but one, (B, H, S, D)"),
    },
}


#: What PyTorch's layers take without a keyword, after what is taken so here.
_PLACES = {
    "MultiheadAttention": "mask= (True = attend) in the place of key_padding_mask, and others by keyword",
    "TransformerEncoderLayer": "mask= (True = attend) in the place of src_mask",
    "TransformerDecoderLayer": "mask= and memory_mask= (True = attend) in the place of tgt_mask and memory_mask",
}


def refuse_places(layer: type, function: Callable[..., Any], count: int) -> None:
    """Raise TypeError for more arguments without keywords than a layer's function takes, where PyTorch's takes more."""
    word = next((_PLACES[each.__name__] for each in layer.__mro__ if each.__name__ in _PLACES), None)
    if word is None:
        return
    kinds = [each.kind for each in inspect.signature(function).parameters.values()]
    most = kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if count > most and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise TypeError(f"{layer.__name__}: {count} arguments without a keyword, and {most} is the most; give {word}")


def refuse(layer: type, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise TypeError for a keyword that a layer's function does not have and another library's has.

    The message says what to give instead. Others are left to Python.
    """
    words = {**getattr(layer, "_foreign", {}), **_ALL}
    words |= {name: word for each in layer.__mro__ for name, word in _KEYWORDS.get(each.__name__, {}).items()}
    known = [name for name in given if name in words]
    if not known:
        return
    taken = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in taken.values()):
        return
    unknown = [name for name in known if name not in taken]
    if unknown:
        raise foreign.unknown(layer.__name__, unknown, words)
