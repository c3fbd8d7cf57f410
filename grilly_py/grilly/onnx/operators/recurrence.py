"""Linear attention: a state that each token changes and reads."""

from __future__ import annotations

import math
from typing import Any

from ... import array_api as xp
from ...compute import Tensor
from ..table import Call, operator, wide

_RULES = ("linear", "gated", "delta", "gated_delta")


def _heads(x: Tensor, count: int) -> Tensor:
    """(B, T, heads D) as (B, heads, T, D), float32."""
    batch, tokens, width = x.shape
    return xp.permute_dims(wide(x).reshape((batch, tokens, count, width // count)), (0, 2, 1, 3))


@operator("LinearAttention")
def linear_attention(
    call: Call, q: Tensor, k: Tensor, v: Tensor, past: Tensor | None = None, decay: Tensor | None = None,
    beta: Tensor | None = None,
) -> Any:  # fmt: skip
    """Token by token ``S = exp(decay) S + k (v - S^T k)^T`` as far as the rule goes, and ``scale q^T S``."""
    rule, count = call.get("update_rule", "gated_delta"), int(call.attributes["kv_num_heads"])
    if rule not in _RULES:
        raise call.refuse(f"update_rule is {rule!r}")
    groups = int(call.attributes["q_num_heads"]) // count
    batch, tokens, _ = q.shape
    width = q.shape[2] // (count * groups)
    scale = call.get("scale", 0.0) or 1 / math.sqrt(width)
    queries = xp.multiply(_heads(q, count * groups), scale).reshape((batch, count, groups, tokens, width))
    keys, values = _heads(k, count), _heads(v, count)
    if past is None:
        state = xp.zeros((batch, count, width, values.shape[3]), dtype="float32", device=call.backend)
    else:
        state = wide(past)
    kept = None if decay is None or "gated" not in rule else xp.exp(_heads(decay, count))
    rate = None if beta is None or "delta" not in rule else _heads(beta, beta.shape[2])
    found = []
    for token in range(tokens):
        key, value = keys[:, :, token, :, None], values[:, :, token, None]
        if kept is not None:
            state = xp.multiply(state, kept[:, :, token, :, None])
        if rate is not None:
            read = xp.matmul(xp.matrix_transpose(key), state)
            value = xp.multiply(xp.subtract(value, read), rate[:, :, token, :, None])
        state = xp.add(state, xp.multiply(key, value))
        found.append(xp.matmul(queries[:, :, :, token], state).reshape((batch, 1, -1)))
    kept = q.dtype if past is None else past.dtype
    return xp.concat(found, axis=1).astype(q.dtype, copy=False), state.astype(kept, copy=False)
