"""Attention by way of its stored weights: the steps in a row, with dropout on the weights."""

from __future__ import annotations

from ..device.device import Device
from .dropout import attention_dropout
from .mask import attention_mask
from .output import attention_output
from .scores import attention_scores
from .softmax import softmax


def stored_attention(
    device: Device,
    q,
    k,
    v,
    *,
    mask=None,
    attn_bias=None,
    causal=False,
    scale=None,
    dropout_p=0.0,
    dropout_seed=0,
    dropout_offset=0,
):
    """Attention step by step: scores, bias, mask, softmax, dropout, output.

    Each step frees what it read, so that two matrices of scores live at a time.

    Parameters
    ----------
    q, k, v : numpy.ndarray or grilly.Tensor
        As for ``attention_scores`` and ``attention_output``.
    mask, causal
        As for ``attention_mask``.
    attn_bias : numpy.ndarray or grilly.Tensor, optional
        float32, broadcastable to ``(B, H, Sq, Sk)``, added to the scaled scores.
    scale : float, optional
        ``1 / sqrt(D)`` when None.
    dropout_p, dropout_seed, dropout_offset
        As for ``attention_dropout``.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        ``(B, H, Sq, Dv)`` (less the axes that q lacks), in v's dtype; a Tensor when an input was one.

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As the steps do.
    """
    weights = attention_scores(device, q, k, scale=scale)
    if attn_bias is not None:
        weights = attention_mask(device, weights, mask=attn_bias)
    if mask is not None or causal:
        weights = attention_mask(device, weights, mask=mask, causal=causal)
    weights = softmax(device, weights)
    if dropout_p:
        weights = attention_dropout(
            device, weights, dropout_p=dropout_p, dropout_seed=dropout_seed, dropout_offset=dropout_offset
        )
    return attention_output(device, weights, v)
