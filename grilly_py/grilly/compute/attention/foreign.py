"""Keyword arguments of PyTorch, flash-attn and transformers, and their names here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])
_PADDING = (
    "mask=m[:, None, None] for m of shape (B, Sk) that is True = attend (PyTorch's key_padding_mask is True = ignore: "
    "give ~m), or seqlens_k for samples that are padded on the right"
)
_NO_WEIGHTS = "nothing: the weights are never stored; F.attention_scores and F.softmax make them"
_GROUPED = "nothing: key heads that divide the query heads are taken as they are"
_WINDOW = "window_size=(left, right)"
_PAST = ("past_key_values", "past_key_value", "layer_past", "use_cache", "cache_position")
_VARLEN = "F.flash_attention_varlen"
_DROPOUT = {
    **dict.fromkeys(("dropout", "attention_dropout", "attn_dropout", "p"), "dropout_p, with dropout_seed"),
    **dict.fromkeys(("seed", "generator", "rng_state"), "dropout_seed"),
    "training": "dropout_p=0.0 where it is False",
}
# What every function but PyTorch's own calls alike.
_TERMS = {
    "is_causal": "causal; it is aligned to the bottom right, as in flash-attn, where PyTorch's is_causal begins at the "
    "top left: F.scaled_dot_product_attention has that",
    "softmax_scale": "scale",
    "sm_scale": "scale",
    "scaling": "scale",
    **dict.fromkeys(("logits_soft_cap", "logit_cap", "soft_cap", "logit_softcap"), "softcap"),
    "attn_logit_softcapping": "softcap",
    "sliding_window": f"{_WINDOW}: for transformers' sliding_window=n give (n - 1, 0)",
    "window": _WINDOW,
    "window_left": _WINDOW,
    "local_window_size": _WINDOW,
    "use_top_left_mask": "F.scaled_dot_product_attention, whose is_causal begins at the top left",
    "head_mask": "nothing: multiply the result, which has an axis of heads",
    **dict(zip(("query", "key", "value"), "qkv", strict=True)),
    "s_aux": "sinks",
    **dict.fromkeys(("learnable_sink", "sink"), "sinks"),
    "alibi": "alibi_slopes",
    "return_attn_probs": "return_lse for the log-sum-exp; the weights are never stored",
    **dict.fromkeys(("return_softmax_lse", "return_aux"), "return_lse"),
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
KEYWORDS = {
    **_TERMS,
    **_DROPOUT,
    "attn_mask": "mask, True = attend as in scaled_dot_product_attention (PyTorch's MultiheadAttention means the "
    "opposite), or attn_bias for a sum with a gradient",
    "attention_mask": _PADDING,
    "key_padding_mask": _PADDING,
    "position_bias": "attn_bias, or t5_table for T5's relative positions",
    "block_mask": "mask_mod=grilly.block_mask(...), or block_map with block_size",
    "page_table": "F.flash_attention_with_kvcache",
    **dict.fromkeys(("seqused_q", "query_seq_lengths"), "seqlens_q"),
    **dict.fromkeys(("seqused_k", "key_value_seq_lengths"), "seqlens_k"),
    "custom_mask": "mask",
    "bias": "attn_bias",
    "kv_layout": "nothing: arrays are (B, H, S, D)",
    "cu_seqlens_q": _VARLEN,
    "cu_seqlens_k": _VARLEN,
    "cu_seq_lens_q": f"{_VARLEN}, as cu_seqlens_q",
    "cu_seq_lens_k": f"{_VARLEN}, as cu_seqlens_k",
    "max_seqlen_q": _VARLEN,
    "max_seqlen_k": _VARLEN,
    "max_length_q": f"{_VARLEN}, as max_seqlen_q",
    "max_length_k": f"{_VARLEN}, as max_seqlen_k",
    "cache_seqlens": "F.flash_attention_with_kvcache",
    "block_table": "F.flash_attention_with_kvcache, as page_table",
    **dict.fromkeys(_PAST, "F.flash_attention_with_kvcache or nn.KVCache"),
}
#: packed sequences,
PACKED_KEYWORDS = {
    **_TERMS,
    **_DROPOUT,
    "cu_seq_lens_q": "cu_seqlens_q",
    "cu_seq_lens_k": "cu_seqlens_k",
    "max_length_q": "max_seqlen_q",
    "max_length_k": "max_seqlen_k",
    "zero_tensors": "nothing: every row of the result is written",
    "block_table": "F.flash_attention_with_kvcache, as page_table",
    **dict.fromkeys(("attention_mask", "key_padding_mask"), "nothing: cu_seqlens_k says which keys there are"),
    **dict.fromkeys(("mask", "attn_mask"), "F.flash_attention2, which has mask"),
    **dict.fromkeys(("attn_bias", "position_bias", "bias"), "F.flash_attention2, which has attn_bias"),
    "segment_ids": "nothing: cu_seqlens_q and cu_seqlens_k say where sequences begin",
    **dict.fromkeys(("seqused_q", "query_seq_lengths"), "cu_seqlens_q, and q without the rows between"),
    **dict.fromkeys(("seqused_k", "key_value_seq_lengths"), "cu_seqlens_k, and k and v without the rows between"),
    **dict.fromkeys(("cache_seqlens", *_PAST), "F.flash_attention_with_kvcache or nn.KVCache"),
}
#: caches,
CACHE_KEYWORDS = {
    **_TERMS,
    "block_table": "page_table",
    **dict.fromkeys(("seqlens_k", "seqused_k", "key_value_seq_lengths", "cache_position"), "cache_seqlens"),
    "cache_leftpad": "nothing: samples begin at key 0, and cache_seqlens says where each ends",
    "cache_batch_idx": "page_table=cache_batch_idx[:, None]: each row of the cache is then a page",
    **dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), "nothing: the shapes of q and of the cache say it"),
    "query_seq_lengths": "nothing: every row of q is a query; leave out those that are not",
    **dict.fromkeys(("attention_mask", "key_padding_mask"), "cache_seqlens, for samples that are padded on the right"),
    **dict.fromkeys(
        ("past_key_values", "past_key_value", "layer_past", "use_cache"), "k_cache and v_cache, or nn.KVCache"
    ),
    **dict.fromkeys(("mask", "attn_mask", "custom_mask"), "F.flash_attention2, which has mask"),
    **dict.fromkeys(("bias", "attn_bias"), "F.flash_attention2, which has attn_bias"),
    "position_bias": "t5_table for T5's relative positions; F.flash_attention2 has attn_bias",
    **dict.fromkeys(("dropout_p", "dropout", "attention_dropout"), "F.flash_attention2, which has dropout_p"),
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k", "cu_seq_lens_q", "cu_seq_lens_k"), _VARLEN),
    **dict.fromkeys(("position_ids", "position_embeddings"), "rotary=(cos, sin), whose rows are positions"),
    "rotary_cos": "rotary=(cos, sin)",
    "rotary_sin": "rotary=(cos, sin)",
}
_MERGE = "F.merge_attention, of two calls with return_lse=True"
_CACHES = f"{_MERGE}: F.flash_attention_with_kvcache for the keys in caches, and F.flash_attention2 for the prefix"
#: a shared prefix and keys of each sample's own, and what merges such results,
CASCADE_KEYWORDS = {
    **_TERMS,
    "shared_k": "k_shared",
    "shared_v": "v_shared",
    **dict.fromkeys(("unique_k", "k_unique"), "k"),
    **dict.fromkeys(("unique_v", "v_unique"), "v"),
    **dict.fromkeys(("unique_kv_cache", "paged_kv_cache", "k_cache", "page_table", "cache_seqlens"), _CACHES),
    **dict.fromkeys(("seqused_k", "key_value_seq_lengths"), "seqlens_k"),
    **dict.fromkeys(("score_mod", "mask_mod", "mask", "attn_bias", "window_size", "alibi_slopes", "sinks"),
                    f"{_MERGE}, which have it"),
}  # fmt: skip
MERGE_KEYWORDS = {"v_a": "out", "s_a": "lse", "v_b": "other", "s_b": "other_lse"}
_OURS_ALONE = (
    "window_size", "softcap", "sinks", "alibi_slopes", "t5_table", "prefix_len", "segment_ids", "seqlens_q",
    "seqlens_k", "block_map", "block_size", "dropout_seed", "return_lse", "kernel", "precision", "score_mod",
)  # fmt: skip
_ALIKE = (
    "need_weights", "output_attentions", "deterministic", "num_splits", "pack_gqa", "position_ids",
    "position_embeddings", "rope_theta", "kv_layout", "cu_seqlens_q", "cu_seqlens_k", "cu_seq_lens_q", "cu_seq_lens_k",
    "max_seqlen_q", "max_seqlen_k", "max_length_q", "max_length_k", "cache_seqlens", "block_table", "past_key_values",
    "past_key_value", "layer_past", "use_cache", "cache_position", "head_mask",
)  # fmt: skip
_BENT = {
    name: f"F.flash_attention2, where it is {KEYWORDS[name]}"
    for name in (
        "attn_logit_softcapping", "logits_soft_cap", "logit_cap", "soft_cap", "logit_softcap", "sliding_window",
        "window", "window_left", "local_window_size", "s_aux", "learnable_sink", "alibi", "seqused_q", "seqused_k",
        "query_seq_lengths", "key_value_seq_lengths", "block_mask", "return_attn_probs",
        "return_softmax_lse", "return_aux",
    )
}  # fmt: skip
#: and PyTorch's own function.
SDPA_KEYWORDS = {
    **{name: f"F.flash_attention2, which has {name}" for name in _OURS_ALONE},
    **_BENT,
    **{name: KEYWORDS[name] for name in _ALIKE},
    "key_padding_mask": "attn_mask=~m[:, None, None] for m of shape (N, S) that is True = ignore",
    "attention_mask": "attn_mask=m[:, None, None], boolean, for m of shape (N, S) that is True = take part",
    "num_key_value_groups": "enable_gqa=True",
    "query_pre_attn_scalar": KEYWORDS["query_pre_attn_scalar"],
    **dict.fromkeys(("position_bias", "bias"), "attn_mask, floating"),
    **dict.fromkeys(("seed", "generator", "rng_state"), "F.flash_attention2, which has dropout_seed"),
    "training": KEYWORDS["training"],
    "sink": "F.flash_attention2, which has sinks",
    "mask_mod": "attn_mask",
    "page_table": KEYWORDS["page_table"],
    "causal": "is_causal, which begins at the top left; F.flash_attention2 has causal, aligned to the bottom right",
    **dict.fromkeys(("mask", "custom_mask"), "attn_mask"),
    "attn_bias": "attn_mask, floating",
    **dict.fromkeys(("dropout", "attention_dropout", "p"), "dropout_p"),
    **dict.fromkeys(("softmax_scale", "sm_scale", "scaling"), "scale"),
    **dict(zip("qkv", ("query", "key", "value"), strict=True)),
    "use_top_left_mask": "is_causal, which begins at the top left",
}
_UNFUSED = {
    **{name: KEYWORDS[name] for name in ("softmax_scale", "sm_scale", "scaling", "query", "key", "value")},
    "mask": "F.attention_mask, between F.attention_scores and F.softmax, or F.flash_attention2, which has mask",
    "causal": "F.attention_mask, between F.attention_scores and F.softmax, or F.flash_attention2, which has causal",
}
_UNFUSED |= {"attn_mask": _UNFUSED["mask"], "attention_mask": _UNFUSED["mask"], "is_causal": _UNFUSED["causal"]}
_CONFIG = "config=FlashConfig(...), which has"
#: Attention in steps, and by a configuration.
STEP_KEYWORDS: dict[str, dict[str, str]] = {
    "attention_scores": _UNFUSED,
    "naive_attention": _UNFUSED,
    "attention_mask": {
        "is_causal": KEYWORDS["is_causal"],
        "attn_mask": KEYWORDS["attn_mask"].partition(", or attn_bias")[0],
        "attention_mask": "mask=m[:, None, None] for m of shape (B, Sk) that is True = attend",
        **dict.fromkeys(("scale", "softmax_scale", "sm_scale", "scaling"), "F.attention_scores, which has scale"),
    },
    "flash_attention": {
        **{name: KEYWORDS[name] for name in ("query", "key", "value")},
        **dict.fromkeys(("scale", "softmax_scale", "sm_scale", "scaling"), f"{_CONFIG} scale"),
        **dict.fromkeys(("causal", "is_causal"), f"{_CONFIG} causal, aligned to the bottom right"),
        **dict.fromkeys(("mask", "attn_mask", "attention_mask"), "F.flash_attention2, which has mask"),
    },
    "FlashConfig": {
        **{name: KEYWORDS[name] for name in ("softmax_scale", "sm_scale", "scaling", "is_causal")},
        **dict.fromkeys(("mask", "attn_mask", "attention_mask"), "F.flash_attention2, which has mask"),
    },
}


def unknown(operation: str, names: Iterable[str], words: Mapping[str, str] = KEYWORDS) -> TypeError:
    """The error for unknown keyword arguments of an operation, with the names here where they are known."""
    name = next(iter(names))
    way = f"; here give {words[name]}" if name in words else ""
    return TypeError(f"{operation}: got an unexpected keyword argument {name!r}{way}")


def refuse(operation: str, given: Iterable[str], words: Mapping[str, str]) -> None:
    """Raise `unknown` for a keyword of another library."""
    if known := [name for name in given if name in words]:
        raise unknown(operation, known, words)


def named(words: Mapping[str, str]) -> Callable[[_Function], _Function]:
    """Of a function whose arguments that must be given have other names elsewhere: say ours.

    Python would say that they are missing, before the function could look at its keywords.
    """

    def around(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError:
                refuse(function.__name__, kwargs, words)
                raise

        return cast(_Function, call)

    return around
