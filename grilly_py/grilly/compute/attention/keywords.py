"""Keyword arguments of the attention functions by name and type, for ``**options: Unpack[...]``.

Editors and type checkers read them here. `OptionKeywords` has the names and types of `options.Options`, which a test
holds against it; ``grilly.functional.flash_attention2`` documents each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, TypedDict

from ..device.arrays import (
    BiasArray,
    BoolArray,
    Float32Array,
    FloatsLike,
    HostFloats,
    IntegersLike,
    MaskArray,
    Precision,
)
from ..device.tensor import Tensor

#: Of scalars (score, batch, head, query, key), and (batch, head, query, key).
ScoreFunction = Callable[[Any, Any, Any, Any, Any], Any]
MaskFunction = Callable[[Any, Any, Any, Any], Any]


class TermKeywords(TypedDict, total=False):
    """Of every forward call."""

    causal: bool
    scale: float | None
    kernel: str | None
    precision: Precision


class ScoreModKeywords(TypedDict, total=False):
    """The options that every form of attention takes."""

    softcap: float
    alibi_slopes: FloatsLike | None
    sinks: FloatsLike | None
    window_size: Sequence[int | None] | None


class FunctionKeywords(TypedDict, total=False):
    """Functions of users, which every forward call takes."""

    score_mod: ScoreFunction | None
    mask_mod: MaskFunction | None


class DropoutKeywords(TypedDict, total=False):
    """Of dropout."""

    dropout_p: float
    dropout_seed: SupportsIndex | Tensor | None
    dropout_offset: SupportsIndex


class PlaceKeywords(ScoreModKeywords, DropoutKeywords, total=False):
    """Every option but ``attn_bias``."""

    t5_table: FloatsLike | None
    t5_bidirectional: bool
    t5_max_distance: SupportsIndex
    prefix_len: IntegersLike | None
    segment_ids: IntegersLike | tuple[IntegersLike, IntegersLike] | None
    seqlens_q: IntegersLike | None
    seqlens_k: IntegersLike | None
    block_map: BoolArray | None
    block_size: Sequence[SupportsIndex] | None


class OptionKeywords(PlaceKeywords, FunctionKeywords, total=False):
    """Every option."""

    attn_bias: BiasArray | None


class AttentionKeywords(TermKeywords, OptionKeywords, total=False):
    """Of ``flash_attention2``, but for ``return_lse``."""

    mask: MaskArray | None


class JoinedKeywords(AttentionKeywords, total=False):
    """Of ``flash_attention3``, but for ``return_lse``."""

    num_heads: SupportsIndex | None
    head_dim: SupportsIndex | None
    num_kv_heads: SupportsIndex | None


class WantedKeywords(TypedDict, total=False):
    """Of ``flash_attention2_backward``: gradients beside those of q, k and v, and the gradient of lse."""

    return_dbias: bool
    return_dsinks: bool
    return_dt5_table: bool
    grad_lse: Float32Array | None


class GradientKeywords(OptionKeywords, WantedKeywords, total=False):
    """Of ``flash_attention2_backward``."""

    mask: MaskArray | None
    causal: bool
    scale: float | None


class PackedOptionKeywords(ScoreModKeywords, FunctionKeywords, DropoutKeywords, total=False):
    """The options of packed sequences."""


class PackedKeywords(TermKeywords, PackedOptionKeywords, total=False):
    """Of ``flash_attention_varlen``, but for ``return_lse``."""


class PackedGradientKeywords(PackedOptionKeywords, total=False):
    """Of ``flash_attention_varlen_backward``."""

    causal: bool
    scale: float | None
    return_dsinks: bool
    grad_lse: Float32Array | None


class CascadeKeywords(TermKeywords, total=False):
    """Of ``cascade_attention``, but for ``return_lse``."""

    softcap: float
    seqlens_k: IntegersLike | None


class StepKeywords(TermKeywords, ScoreModKeywords, FunctionKeywords, total=False):
    """Of ``flash_attention_with_kvcache``, but for ``return_lse`` and rotary tables."""

    t5_table: FloatsLike | None
    t5_bidirectional: bool
    t5_max_distance: SupportsIndex


class CacheKeywords(StepKeywords, total=False):
    """Of ``flash_attention_with_kvcache``, but for ``return_lse``."""

    rotary: tuple[FloatsLike, FloatsLike] | None
    rotary_interleaved: bool


class HostCacheKeywords(TermKeywords, FunctionKeywords, total=False):
    """Of ``flash_attention_with_kvcache`` on NumPy arrays: with a Tensor among them the result would be a Tensor."""

    softcap: float
    alibi_slopes: HostFloats | None
    sinks: HostFloats | None
    window_size: Sequence[int | None] | None
    t5_table: HostFloats | None
    t5_bidirectional: bool
    t5_max_distance: SupportsIndex
    rotary: tuple[HostFloats, HostFloats] | None
    rotary_interleaved: bool
