"""``attn_implementation="grilly"`` for models of the transformers library.

Needs the extra ``grilly-vulkan[transformers]``.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

try:
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel, __version__
    from transformers.masking_utils import eager_mask, sdpa_mask
except ModuleNotFoundError as error:
    raise ImportError(
        "grilly.transformers needs transformers 5 and PyTorch; run: pip install 'grilly-vulkan[transformers]'",
        name=error.name,
    ) from error

from .torch import attention

#: What models ask for. No "flash" may be in it: transformers would treat it as the flash-attn package.
NAME = "grilly"
#: Arguments that belong to other ways of attention: they change a result, and grilly does not know them.
_REFUSED = ("cache", "cu_seq_lens_q", "cu_seq_lens_k", "block_table", "indices", "block_indices", "sinks")

__all__ = ["attend", "register"]


def register() -> None:
    """Make "grilly" an attention implementation that models can be asked for.

    Then ``from_pretrained(..., attn_implementation="grilly")`` or ``model.set_attn_implementation("grilly")`` have a
    model's attention done by ``grilly.torch.attention``: forward, generation with a cache, and gradients; on the CPU
    or the backend's GPU, in float32, float16 or bfloat16. Calling it again changes nothing.

    Masks are those of "sdpa": boolean, True = attend, and none where causality says everything; models that know only
    "eager" get its masks, which are added. A model whose attention does not go through transformers' AttentionInterface
    gets NotImplementedError when it asks for its mask.
    """
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, _mask)


def _mask(*args: Any, **kwargs: Any) -> torch.Tensor | None:
    """The mask of "sdpa", for models that give it to `attend`: others would add it to their scores, or do without."""
    config = kwargs.get("config")
    module = "" if config is None else type(config).__module__
    if _has_its_own(module):
        model = f"{type(config).__name__.removesuffix('Config')} of transformers {__version__}"
        raise NotImplementedError(
            f"attn_implementation='{NAME}': {model} does not go through AttentionInterface; use "
            "attn_implementation='eager'"
        )
    if _knows_eager_alone(module):
        # Its layers do not say whether they are causal, so no mask may be left out, and parts of it may add one.
        return eager_mask(*args, **{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    return sdpa_mask(*args, **kwargs)


def _modeling(module: str) -> ModuleType | None:
    """The module of models that goes with one of configurations; None where it is not loaded, or unknown."""
    found = sys.modules.get(module.replace("configuration_", "modeling_"))
    return None if found is None or found.__name__ == module else found


@torch.compiler.assume_constant_result
def _knows_eager_alone(module: str) -> bool:
    """Whether none of the models of a module of configurations says that other ways of attention fit it."""
    models = _modeling(module)
    return models is not None and _without_other_ways(models)


@functools.cache
def _without_other_ways(models: ModuleType) -> bool:
    classes = [each for each in vars(models).values() if isinstance(each, type) and issubclass(each, PreTrainedModel)]
    own = [each for each in classes if each.__module__ == models.__name__]
    return bool(own) and not any(
        each._supports_sdpa or getattr(each, "_supports_attention_backend", False) for each in own
    )


@torch.compiler.assume_constant_result
def _has_its_own(module: str) -> bool:
    """Whether the models of a module of configurations compute attention without AttentionInterface.

    A modeling module that uses it imports ALL_ATTENTION_FUNCTIONS. One that has no attention, as of models of images
    and text, leaves it to others. Of one that is not loaded nothing is known.
    """
    models = _modeling(module)
    if models is None or hasattr(models, "ALL_ATTENTION_FUNCTIONS"):
        return False
    return any(
        "Attention" in name and isinstance(each, type) and each.__module__ == models.__name__
        for name, each in vars(models).items()
    )


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls for each attention layer of a model.

    Parameters
    ----------
    module : torch.nn.Module
        The layer; its ``is_causal`` counts where the argument is None.
    query : torch.Tensor
        ``(B, H, Sq, D)``.
    key, value : torch.Tensor
        ``(B, H_kv, Sk, D)`` and ``(B, H_kv, Sk, Dv)``; H_kv divides H.
    attention_mask : torch.Tensor, optional
        Broadcastable to ``(B, H, Sq, Sk)``: bool (True = attend) or floating, which is added.
    dropout : float
        The probability to drop a weight.
    scaling : float, optional
        Multiplies the scores; ``1 / sqrt(D)`` when None.
    is_causal : bool, optional
        Counts only without a mask and for more than one query; the first query stands at the first key.
    position_bias : torch.Tensor, optional
        Broadcastable to ``(B, H, Sq, Sk)``, added to the scores: T5's.
    softcap : float, optional
        Scores s become ``softcap * tanh(s / softcap)``: Gemma 2's.
    s_aux : torch.Tensor, optional
        ``(H,)``: a logit that takes part in each row's softmax and has no value: GPT-OSS's sinks.
    **kwargs
        Others of transformers: ``sliding_window`` is in the mask already.

    Returns
    -------
    output : torch.Tensor
        ``(B, Sq, H, Dv)``.
    weights : None
        They are never stored.

    Raises
    ------
    NotImplementedError
        For ``output_attentions=True``, a paged cache, sequences packed into one, and keys chosen by the model or sinks
        for each token, which some models hand on beside the mask: use "eager" or "sdpa" for them.
    TypeError, ValueError, UnsupportedError
        As ``grilly.torch.attention``.
    """
    for name in _REFUSED:
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"attn_implementation='{NAME}' does not take {name}; use 'sdpa'")
    if kwargs.get("output_attentions"):
        raise NotImplementedError(
            f"attn_implementation='{NAME}' never stores weights, and output_attentions is True; use 'eager'"
        )
    options: dict[str, Any] = {}
    queries, keys = query.shape[2], key.shape[2]
    if attention_mask is None:
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        if causal and queries > 1:
            if keys > queries:  # the rest of a cache that is not filled yet
                key, value = key[:, :, :queries], value[:, :, :queries]
                position_bias = None if position_bias is None else position_bias[..., :queries]
            options["window_size"] = (None, max(queries - keys, 0))
    elif attention_mask.dtype == torch.bool:
        options["mask"] = attention_mask
    elif position_bias is None:
        options["attn_bias"] = attention_mask
    else:
        position_bias = position_bias + attention_mask
    if position_bias is not None:
        options["attn_bias"] = position_bias
    if softcap is not None:
        options["softcap"] = softcap
    if s_aux is not None:
        options["sinks"] = s_aux
    out = attention(query, key, value, scale=scaling, dropout_p=dropout, **options)
    return out.transpose(1, 2).contiguous(), None
