"""Attention by way of its stored weights: the steps of `three_shader` in a row, with dropout on the weights."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from ..registry import Request
from . import option_checks, three_shader
from .checks import extents
from .launch import finish, launch, program_of
from .parts import four_axes, parts, strides
from .three_shader import to_device

if TYPE_CHECKING:
    from .backend import Compute

_DROPOUT_PUSH = struct.Struct("=19If")


def attention_dropout(backend: Compute, weights, *, dropout_p, dropout_seed, dropout_offset=0):
    """Attention weights with some of them dropped: each is 0 with probability p, or else divided by ``1 - p``.

    Which ones depends on seed, offset, row, key, head and batch alone, by a counter-based generator: the same on every
    device, and the same as in attention that does not store its weights.

    Parameters
    ----------
    weights : numpy.ndarray or grilly.Tensor
        ``(B, H, Sq, Sk)``, ``(H, Sq, Sk)`` or ``(Sq, Sk)``, float32.
    dropout_p : float
        p, at least 0 and below 1.
    dropout_seed : int
        From 0 to 2**64 - 1.
    dropout_offset : int
        From 0 to 2**32 - 1; another one for each call gives each call weights of its own to drop.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        A new array of the weights' shape; a Tensor when they were one, and then without waiting.

    Raises
    ------
    TypeError
        If the weights are not float32.
    ValueError
        For a wrong rank, or p, seed or offset outside their ranges.

    References
    ----------
    J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011: Philox4x32-10.
    """
    name = "attention_dropout"
    backend.check_open()
    three_shader._check_float32(name, weights=weights)
    if len(weights.shape) not in (2, 3, 4):
        raise ValueError(
            f"{name}: weights has shape {tuple(weights.shape)}; expected (B, H, Sq, Sk), (H, Sq, Sk) or (Sq, Sk)"
        )
    p, seed, offset = option_checks.dropout(name, dropout_p, dropout_seed, dropout_offset)
    if p == 0.0:
        return weights
    out = backend.empty(weights.shape)
    if out.size:
        choice = backend.registry.resolve(Request("attention-dropout", "float32"))
        program = program_of(backend, choice, {})
        views = (four_axes(out), four_axes(to_device(backend, weights)))
        call_heads = views[0].shape[1]
        generator = (seed & 0xFFFFFFFF, seed >> 32, offset, int((1.0 - p) * 2**32), 1.0 / (1.0 - p))
        rows, keys = choice.tile["rows"], choice.tile["keys"]

        def groups(shape):
            return -(-shape[3] // keys), -(-shape[2] // rows), shape[0] * shape[1]

        for (o, w), (batch, head, row) in parts(backend, views, groups, ((), (2,), (0, 1))):

            def push(offsets, o=o, w=w, batch=batch, head=head, row=row):
                return _DROPOUT_PUSH.pack(
                    offsets[0], *strides(w), offsets[1], *strides(o), *o.shape[2:], o.shape[1],
                    row, head, batch, call_heads, *generator,
                )  # fmt: skip

            launch(backend, program, (w, o), push, groups(o.shape))
    return finish(backend, out, weights)


def stored_attention(
    backend: Compute,
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
    weights = three_shader.attention_scores(backend, q, k, scale=scale)
    if attn_bias is not None:
        weights = three_shader.attention_mask(backend, weights, mask=attn_bias)
    if mask is not None or causal:
        weights = three_shader.attention_mask(backend, weights, mask=mask, causal=causal)
    weights = three_shader.softmax(backend, weights)
    if dropout_p:
        weights = attention_dropout(
            backend, weights, dropout_p=dropout_p, dropout_seed=dropout_seed, dropout_offset=dropout_offset
        )
    return three_shader.attention_output(backend, weights, v)


def dropout_mask(backend: Compute, shape, dropout_p, seed, offset=0) -> np.ndarray:
    """Which attention weights dropout keeps: the same on every device and with every kernel.

    Parameters
    ----------
    shape : tuple of int
        ``(B, H, Sq, Sk)``, H query heads.
    dropout_p : float
        The probability to drop a weight, at least 0 and below 1.
    seed, offset : int
        ``dropout_seed`` (64 bits) and ``dropout_offset`` (32 bits) of the attention functions.

    Returns
    -------
    numpy.ndarray
        ``shape``, bool: True = kept. For ``flash_attention_varlen`` sequence b has the first n_q rows and n_kv keys of
        ``mask[b]``.

    Raises
    ------
    TypeError, ValueError
        For a shape that is not four integers from 0 up, and numbers out of range.

    References
    ----------
    The generator is Philox4x32-10: J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011,
    doi:10.1145/2063384.2063405. Word j % 4 of counter ``(j // 4, i, h + H * b, offset)`` under the key (low half of the
    seed, high half) decides on key j of row i: it is kept where the word is below ``floor((1 - dropout_p) * 2**32)``.
    """
    name = "dropout_mask"
    backend.check_open()
    p, seed, offset = option_checks.dropout(name, dropout_p, seed, offset)
    shape = extents(name, shape)
    if len(shape) != 4:
        raise ValueError(f"{name}: shape is {shape}; expected (B, H, Sq, Sk)")
    if p == 0.0 or 0 in shape:
        return np.ones(shape, np.bool_)
    ones = backend.tensor(np.ones(shape[3], np.float32)).broadcast_to(shape)
    kept = attention_dropout(backend, ones, dropout_p=p, dropout_seed=seed, dropout_offset=offset)
    return kept.numpy() != 0
