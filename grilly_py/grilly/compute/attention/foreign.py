"""Keyword arguments of PyTorch, flash-attn and transformers for what has another name here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_PADDING = (
    "mask=m[:, None, None] for m of shape (B, Sk) that is True = attend (PyTorch's key_padding_mask is True = ignore: "
    "give ~m), or seqlens_k for samples that are padded on the right"
)
_NO_WEIGHTS = "nothing: the weights are never stored; F.attention_scores and F.softmax make them"
_GROUPED = "nothing: key heads that divide the query heads are taken as they are"
_WINDOW = "window_size=(left, right)"
_VARLEN = "F.flash_attention_varlen"
_DROPOUT = dict.fromkeys(("dropout", "attention_dropout"), "dropout_p, with dropout_seed")
# What every function but PyTorch's own calls alike.
_TERMS = {
    "is_causal": "causal; it is aligned to the bottom right, as in flash-attn, where PyTorch's is_causal begins at the "
    "top left: F.scaled_dot_product_attention has that",
    "softmax_scale": "scale",
    "sm_scale": "scale",
    "scaling": "scale",
    **dict.fromkeys(("logits_soft_cap", "logit_cap"), "softcap"),
    "attn_logit_softcapping": "softcap",
    "sliding_window": f"{_WINDOW}: for transformers' sliding_window=n give (n - 1, 0)",
    "window": _WINDOW,
    "window_left": _WINDOW,
    "s_aux": "sinks",
    "learnable_sink": "sinks",
    "alibi": "alibi_slopes",
    "return_attn_probs": "return_lse for the log-sum-exp; the weights are never stored",
    "return_softmax_lse": "return_lse",
    "need_weights": _NO_WEIGHTS,
    "output_attentions": _NO_WEIGHTS,
    "enable_gqa": _GROUPED,
    "num_key_value_groups": _GROUPED,
    "deterministic": "nothing: every run gives the same bits",
    "query_pre_attn_scalar": "scale=query_pre_attn_scalar**-0.5",
    **dict.fromkeys(("num_splits", "pack_gqa"), "nothing: how the work is divided is chosen for the device"),
    **dict.fromkeys(("position_ids", "position_embeddings", "rope_theta"), "q and k that F.rope or nn.RoPE has turned"),
}
#: What to give instead, by the other libraries' keyword: whole sequences,
WORDS = {
    **_TERMS,
    **_DROPOUT,
    "attn_mask": "mask, True = attend as in scaled_dot_product_attention (PyTorch's MultiheadAttention means the "
    "opposite), or attn_bias for a sum with a gradient",
    "attention_mask": _PADDING,
    "key_padding_mask": _PADDING,
    "position_bias": "attn_bias, or t5_table for T5's relative positions",
    "block_mask": "block_map, with block_size",
    "seqused_q": "seqlens_q",
    "seqused_k": "seqlens_k",
    "custom_mask": "mask",
    "bias": "attn_bias",
    "score_mod": "attn_bias, or the option that it is: softcap, alibi_slopes, t5_table",
    "kv_layout": "nothing: arrays are (B, H, S, D)",
    "cu_seqlens_q": _VARLEN,
    "cu_seqlens_k": _VARLEN,
    "cu_seq_lens_q": f"{_VARLEN}, as cu_seqlens_q",
    "cu_seq_lens_k": f"{_VARLEN}, as cu_seqlens_k",
    "max_seqlen_q": _VARLEN,
    "max_seqlen_k": _VARLEN,
    "cache_seqlens": "F.flash_attention_with_kvcache",
    "block_table": "F.flash_attention_with_kvcache, as page_table",
    **dict.fromkeys(
        ("past_key_values", "past_key_value", "layer_past", "use_cache"),
        "F.flash_attention_with_kvcache or nn.KVCache",
    ),
}
#: packed sequences,
PACKED_WORDS = {
    **_TERMS,
    **_DROPOUT,
    "cu_seq_lens_q": "cu_seqlens_q",
    "cu_seq_lens_k": "cu_seqlens_k",
    "max_length_q": "max_seqlen_q",
    "max_length_k": "max_seqlen_k",
    "block_table": "F.flash_attention_with_kvcache, as page_table",
    **dict.fromkeys(("attention_mask", "key_padding_mask"), "nothing: cu_seqlens_k says which keys there are"),
    **dict.fromkeys(("mask", "attn_mask"), "F.flash_attention2, which has mask"),
}
#: caches,
CACHE_WORDS = {
    **_TERMS,
    "block_table": "page_table",
    **dict.fromkeys(("seqlens_k", "seqused_k", "cache_position"), "cache_seqlens"),
    **dict.fromkeys(("attention_mask", "key_padding_mask"), "cache_seqlens, for samples that are padded on the right"),
    **dict.fromkeys(("past_key_values", "past_key_value", "layer_past"), "k_cache and v_cache, or nn.KVCache"),
    **dict.fromkeys(("position_ids", "position_embeddings"), "rotary=(cos, sin), whose rows are positions"),
    "rotary_cos": "rotary=(cos, sin)",
    "rotary_sin": "rotary=(cos, sin)",
}
#: and PyTorch's own function.
SDPA_WORDS = {
    "causal": "is_causal, which begins at the top left; F.flash_attention2 has causal, aligned to the bottom right",
    "mask": "attn_mask",
    "attn_bias": "attn_mask, floating",
    "dropout": "dropout_p",
    **dict.fromkeys(("softmax_scale", "sm_scale", "scaling"), "scale"),
}


def unknown(operation: str, names: Iterable[str], words: Mapping[str, str] = WORDS) -> TypeError:
    """The error for keyword arguments that an operation does not have, with what to give instead where it is known."""
    name = next(iter(names))
    way = f"; here give {words[name]}" if name in words else ""
    return TypeError(f"{operation}: got an unexpected keyword argument {name!r}{way}")
