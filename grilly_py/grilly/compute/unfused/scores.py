"""Attention scores: ``scale * q k^T``."""

from __future__ import annotations

from ...registry import Registry
from ..attention.checks import check_scale
from ..device.arguments import check_float, finish, four_axes, to_device
from ..device.caches import Kept
from ..device.device import Device, DeviceFacts
from ..device.plan import Plan, Planner
from ..device.record import Ready, run
from ..device.sixteen_bits import widens
from ..products.matmul import product
from .checks import check_pair

#: Plans of scores.
PLANS: Kept[tuple, Ready] = Kept("plans of attention_scores", 256)


@widens("q", "k", narrow=False)
def attention_scores(device: Device, q, k, *, scale=None):
    """``scale * q k^T``.

    Parameters
    ----------
    q : numpy.ndarray or grilly.Tensor
        ``(B, H, Sq, D)``, ``(H, Sq, D)`` or ``(Sq, D)``; float32, float16 or bfloat16.
    k : numpy.ndarray or grilly.Tensor
        ``(B, H_kv, Sk, D)``, of q's rank and dtype; H_kv divides H.
    scale : float, optional
        ``1 / sqrt(D)`` when None.

    Returns
    -------
    numpy.ndarray or grilly.Tensor
        ``(B, H, Sq, Sk)`` (less the axes that q lacks), float32; a Tensor when an input was one, and then without
        waiting.

    Raises
    ------
    TypeError
        For dtypes other than float32, float16 and bfloat16, or differing ones.
    ValueError
        For shapes that do not go together, or a scale that is not finite.
    """
    name = "attention_scores"
    device.check_open()
    check_float(name, q=q, k=k)
    check_pair(name, ("q", "k"), q, k)
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"{name}: k has head dimension {k.shape[-1]} and q has {q.shape[-1]}; they must be equal")
    scale = check_scale(name, scale, max(q.shape[-1], 1))
    shape = (*q.shape[:-1], k.shape[-2])
    if 0 in shape:
        return finish(device, device.empty(shape), q, k)
    tensors = [to_device(device, array) for array in (q, k)]
    return finish(device, run(device, PLANS, plan, (scale,), tensors)[0], q, k)


def plan(given: tuple[float], layouts, facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``attention_scores``."""
    planner = Planner(facts, layouts)
    q, k = planner.inputs
    scores = planner.empty((*q.shape[:-1], k.shape[-2]))
    product(
        planner, registry, "attention-scores", *(four_axes(t) for t in (q, k, scores)), columns_are_rows=True,
        scale=given[0], offsets=(layouts[0].offset, layouts[1].offset),
    )  # fmt: skip
    return planner.plan(scores)
