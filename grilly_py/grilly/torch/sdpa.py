"""``grilly.torch.scaled_dot_product_attention``: PyTorch's signature and rules on grilly's operator."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch

from ..compute.attention import foreign
from ..compute.attention.sdpa import check_mask_shape, in_four_axes
from ..compute.device.numbers import number
from . import quick
from .arrays import check_dense, in_autocast, plain_mask
from .attention import check_floats, drop_seed, run
from .words import in_torch

NAME = "grilly.torch.scaled_dot_product_attention"
#: What `attention` beside it has, it has for PyTorch's tensors.
_KEYWORDS = in_torch(foreign.SDPA_KEYWORDS)


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **unknown: NoReturn,
) -> torch.Tensor:
    """Exact attention with the rules of ``torch.nn.functional.scaled_dot_product_attention``.

    On tensors of the CPU, or of the backend's GPU. The work runs on the default backend (``grilly.use``), as the
    operator ``grilly::attention`` of ``torch.library``.

    Parameters
    ----------
    query : torch.Tensor
        ``(N, ..., Hq, L, E)``, or less axes down to ``(L, E)``; float32, float16 or bfloat16;
        E from 1 to 576, to 256 for gradients.
    key, value : torch.Tensor
        ``(N, ..., H, S, E)`` and ``(N, ..., H, S, Ev)``, of the query's dtype. The leading axes of the three broadcast
        to each other.
    attn_mask : torch.Tensor, optional
        Of two axes or more, broadcastable to ``(N, ..., Hq, L, S)``. Boolean: True = take part. Floating: added to the
        scaled scores, and differentiable. Or a ``CausalBias`` of ``torch.nn.attention.bias``.
    dropout_p : float
        From 0 to 1; seeds come from PyTorch's generator (``torch.manual_seed``). Which weights are dropped is not what
        PyTorch's own function would drop.
    is_causal : bool
        Query i attends only to keys ``j <= i``, also where L and S differ. Not together with ``attn_mask``.
    scale : float, optional
        Multiplies the scores; ``1 / sqrt(E)`` when None.
    enable_gqa : bool
        Whether H may be a divisor of Hq (query head h then uses key head ``h // (Hq / H)``).

    Returns
    -------
    torch.Tensor
        ``(N, ..., Hq, L, Ev)`` in the query's dtype. A row with nothing to attend to is zeros, as in PyTorch from 2.5
        on. Gradients: query, key, value and a floating attn_mask.

    Raises
    ------
    TypeError
        For what is no dense tensor of these dtypes, all on the CPU or on the backend's GPU, and a mask that is neither
        boolean nor floating.
    ValueError
        For shapes that do not go together, a mask beside ``is_causal``, a dropout_p outside 0 to 1, or a scale that is
        not finite.
    UnsupportedError
        When no kernel for the device and dtype exists, and as ``grilly.torch.cuda_device`` for CUDA tensors.

    Notes
    -----
    A row whose additive mask holds nothing but numbers below -1e15, such as the dtype's lowest, attends alike to all
    keys that have the largest of them: beside it a score is lost, as in PyTorch.
    """
    if unknown:
        raise foreign.unknown(NAME, unknown, _KEYWORDS)
    query, key, value, attn_mask = in_autocast(query, key, value, plain_mask(attn_mask, query))
    known = None
    if attn_mask is None and not dropout_p and type(query) is type(key) is type(value) is torch.Tensor:
        if query.is_cuda and not torch.compiler.is_compiling() and (scale is None or type(scale) is float):
            known = quick.key_of(query, key, value, is_causal, scale, enable_gqa)
            found = quick.cached(NAME, (query, key, value), known)
            if found is not None:
                return found
    check_floats(NAME, query=query, key=key, value=value)
    check_dense(NAME, attn_mask=attn_mask)
    scale, dropout_p = None if scale is None else number(NAME, "scale", scale), number(NAME, "dropout_p", dropout_p)
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"{NAME}: dropout_p is {dropout_p}; expected 0 to 1")
    if attn_mask is not None and is_causal:
        raise ValueError(f"{NAME}: attn_mask is given and is_causal is True; leave one out")
    lead, kv_lead = _leading(query, key, value, bool(enable_gqa))
    length, keys = query.shape[-2], key.shape[-2]
    q, k, v = _four(query, lead), _four(key, kv_lead), _four(value, kv_lead)
    scale = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale
    options = _options(lead, (length, keys), attn_mask, scale, dropout_p, bool(is_causal), q.device)
    if is_causal and keys > length:  # no query sees keys from `length` on
        k, v = k[:, :, :length], v[:, :, :length]
    out = run(q, k, v, False, **options)[0]
    if known is not None and q is query and k is key and v is value:
        right = options.get("right")
        window = {} if right is None else {"window_size": (None, right)}
        quick.learn(known, {"scale": options["scale"], "causal": options.get("causal", False), **window})
    return out if len(lead) == 2 else out.reshape(*lead, length, value.shape[-1])


def _options(
    lead: tuple[int, ...], extent: tuple[int, int], attn_mask: torch.Tensor | None, scale: float, dropout_p: float,
    is_causal: bool, device: torch.device,
) -> dict[str, Any]:  # fmt: skip
    """Keyword arguments of `run`; ``extent`` is (L, S). Causal keys beyond L are the caller's to cut off."""
    length, keys = extent
    options: dict[str, Any] = {"scale": scale, "lowest_is_never": False}
    if attn_mask is not None:
        mask = _mask(attn_mask, lead, extent)
        differentiable = mask.requires_grad and torch.is_grad_enabled()
        options["attn_bias" if differentiable else "mask"] = mask
    if is_causal:
        # The diagonal begins at the top left. With less keys than queries, grilly has it at the bottom right.
        options |= {"right": length - keys} if keys < length else {"causal": True}
    if dropout_p == 1.0:
        kept = {name: options[name] for name in ("scale", "attn_bias") if name in options}  # a bias has a gradient of 0
        return {"mask": torch.zeros((1, 1, 1, 1), dtype=torch.bool, device=device), **kept}
    if dropout_p:
        options |= {"dropout_p": float(dropout_p), "dropout_seed": drop_seed()}
    return options


def _leading(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, gqa: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What stands before the last two axes of the output, and of key and value where they are alike. Checks shapes."""
    q, k, v = (tuple(tensor.shape) for tensor in (query, key, value))
    if not gqa and len(q) == 4 and q[:2] == k[:2] == v[:2] and k[2] == v[2] and k[3] == q[3]:  # the common case
        return q[:2], q[:2]
    least = 3 if gqa else 2
    for name, shape in (("query", q), ("key", k), ("value", v)):
        if len(shape) < least:
            raise ValueError(f"{NAME}: {name} has shape {shape}; expected at least {least} axes")
    if k[-1] != q[-1]:
        raise ValueError(f"{NAME}: key has {k[-1]} elements in its last axis and query has {q[-1]}; they must be equal")
    if k[-2] != v[-2]:
        raise ValueError(f"{NAME}: key has {k[-2]} keys and value has {v[-2]}; they must be equal")
    cut = 3 if gqa else 2
    if gqa:
        if v[-3] != k[-3]:
            raise ValueError(f"{NAME}: key has {k[-3]} heads and value has {v[-3]}; they must be equal")
        if k[-3] == 0 or q[-3] % k[-3]:
            raise ValueError(f"{NAME}: key has {k[-3]} heads and query has {q[-3]}; query's must be a multiple")
    parts = [shape[:-cut] for shape in (q, k, v)]
    common = _broadcast(parts)
    if common is None:
        hint = "" if gqa else "; with fewer key heads than query heads set enable_gqa=True"
        raise ValueError(
            f"{NAME}: query, key and value have shapes {q}, {k} and {v}, whose leading axes do not broadcast{hint}"
        )
    if gqa:
        return (*common, q[-3]), (*common, k[-3])
    # One head of keys serves all queries without being repeated.
    single = len(common) > 0 and all(len(part) == 0 or part[-1] == 1 for part in parts[1:])
    return common, (*common[:-1], 1) if single else common


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape that all broadcast to, or None. By hand: ``torch.broadcast_shapes`` is a node of a compiled graph."""
    rank = max(len(shape) for shape in shapes)
    common = []
    for extents in zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True):
        wide = [extent for extent in extents if extent != 1]
        if any(extent != wide[0] for extent in wide):
            return None
        common.append(wide[0] if wide else 1)
    return tuple(common)


def _four(tensor: torch.Tensor, lead: tuple[int, ...]) -> torch.Tensor:
    """``(..., S, E)`` as ``(B, H, S, E)`` after broadcasting to ``lead``; itself where it has that form."""
    if len(lead) == 2 and tuple(tensor.shape[:-2]) == lead:
        return tensor
    rows = tensor.shape[-2:]
    heads = lead[-1] if lead else 1
    return tensor.expand(*lead, *rows).reshape(math.prod(lead[:-1]), heads, *rows)


def _mask(mask: torch.Tensor, lead: tuple[int, ...], matrix: tuple[int, int]) -> torch.Tensor:
    """The mask with at most four axes, broadcastable to ``(B, H, L, S)``."""
    if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        raise TypeError(f"{NAME}: attn_mask is {mask.dtype}; expected bool (True = take part) or a floating dtype")
    check_mask_shape(NAME, tuple(mask.shape), (*lead, *matrix))
    found: torch.Tensor = in_four_axes(mask, lead, torch.Tensor.expand)
    return found
