"""The gradients of attention as the kernels compute them, and which kernels ran."""

from __future__ import annotations

import contextlib

import numpy as np

from grilly import reference
from grilly.compute.attention import backward
from grilly.reference import attention as internals
from grilly.reference import sums
from kernels import forget


def recomputed(grad, q, k, v, out, lse, options, sixteen=False):
    """The formulas of the kernels in float32 NumPy, and the largest sum of absolute terms behind each result.

    The weights come from the log-sum-exp and delta from the output, as in Dao 2023, algorithm 2: where a row sees one
    key its dS is a rounding error then, and not zero. With ``sixteen``, weights and dS are rounded to the arrays' type
    before they multiply, as matrix units take them.
    """
    dtype = q.dtype if sixteen else np.float32
    grad, q, k, v, out = (a.astype(np.float32) for a in (grad, q, k, v, out))
    options = dict(options)
    scale, mask, causal = (options.pop(name, None) for name in ("scale", "mask", "causal"))
    p = internals.problem(q, k, v, scale, mask, bool(causal), np.float32, options)
    grad, out = (a.reshape(*p.q.shape[:-1], v.shape[-1]) for a in (grad, out))
    capped = internals.products(p, *p.all)
    scores = capped.copy()
    internals.finish_scores(p, scores, *p.all)
    seen = scores != -np.inf
    lse = lse.reshape(*scores.shape[:-1], 1)
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.where(seen, sums.exp(scores - lse), 0).astype(np.float32)
        d_weights = reference.matmul(grad, p.v.swapaxes(-1, -2))
        terms = reference.matmul(np.abs(grad), np.abs(p.v).swapaxes(-1, -2))
        factor = p.rules.dropout_factor(*p.all, p.q.dtype)
        factor = np.float32(1) if factor is None else factor
        d_weights, terms = (np.where(seen, a * factor, 0) for a in (d_weights, terms))
        delta = (grad * out).sum(-1, keepdims=True)
        deltas = np.abs(grad * out).sum(-1, keepdims=True)
        d_scores = np.where(seen, weights * (d_weights - delta), 0)
        terms = np.where(seen, weights * (terms + deltas), 0)
        d_products = d_scores.copy()
        most = terms * np.float32(abs(p.scale))
        if p.rules.softcap:
            d_products *= 1 - np.square(capped / np.float32(p.rules.softcap))
        d_products = np.where(seen, d_products, 0).astype(dtype).astype(np.float32) * np.float32(p.scale)
        dropped = (weights * factor).astype(dtype).astype(np.float32)
    product = reference.matmul
    results = {
        "dq": (product(d_products, p.k), product(most, np.abs(p.k))),
        "dk": (product(d_products.swapaxes(-1, -2), p.q).sum(2), product(most.swapaxes(-1, -2), np.abs(p.q)).sum(2)),
        "dv": (
            product(dropped.swapaxes(-1, -2), grad).sum(2),
            product(dropped.swapaxes(-1, -2), np.abs(grad)).sum(2),
        ),
    }
    from grilly.reference.backward import _of_table, _summed_to

    if p.rules.bias is not None:
        results["dbias"] = tuple(_summed_to(a, p.rules.bias.shape) for a in (d_scores, terms))
    if p.rules.table is not None:
        where = p.rules.buckets(*p.all), p.rules.table.shape
        results["dt5_table"] = tuple(_of_table(a, *where) for a in (d_scores, terms))
    if p.rules.sinks is not None:
        with np.errstate(over="ignore"):
            share = np.where(lse == -np.inf, 0, sums.exp(p.rules.sinks.astype(np.float32) - lse[..., 0])[..., None])
        results["dsinks"] = tuple((share * a).sum((0, 3, 4)).reshape(-1) for a in (-delta, deltas))
    return results


@contextlib.contextmanager
def chosen_kernels(backend):
    """Gathers the choices of the kernels for dq, and for dk and dv."""
    original, chosen = backward.plan, []

    def noted(*arguments):
        made = original(*arguments)
        own = {s.choice.variant: s.choice for s in made.plan.steps}
        chosen.extend(c for v, c in own.items() if v.operation.startswith("attention-backward-d"))
        return made

    forget(backend)
    backward.plan = noted
    try:
        yield chosen
    finally:
        backward.plan = original
