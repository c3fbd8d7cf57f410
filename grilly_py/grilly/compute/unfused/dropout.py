"""Dropout on stored attention weights."""

from __future__ import annotations

import numpy as np

from ...registry import Registry, Request
from ..arrays.map import with_rows
from ..attention import option_checks
from ..device.arguments import four_axes
from ..device.call import call
from ..device.cut import parts, placed
from ..device.device import Device, DeviceFacts
from ..device.numbers import extents
from ..device.plan import At, Live, Plan, Planner
from ..random import seed_words
from .checks import check_scores
from .mask import score_groups


def attention_dropout(device: Device, weights, *, dropout_p, dropout_seed, dropout_offset=0):
    """``grilly.functional.attention_dropout`` on a device; documented there."""
    name = "attention_dropout"
    check_scores(name, weights, "weights")
    p, seed, offset, tensor = option_checks.dropout(name, dropout_p, dropout_seed, dropout_offset)
    if p == 0.0:
        return weights.astype(weights.dtype)  # a copy
    words = option_checks.keep_words(p)
    generator = (seed & 0xFFFFFFFF, seed >> 32, offset)
    drawn = None if tensor is None else seed_words(tensor)
    return call(device, plan, (words["keep_below"], words["keep_scale"]), (weights, drawn), live=generator,
                like=(weights,))[0]  # fmt: skip


def plan(given: tuple[int, float], layouts, facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``attention_dropout``. ``Live`` words: the seed's halves and the offset."""
    threshold, scale = given
    planner = Planner(facts, layouts)
    weights, seed = planner.inputs
    out = planner.empty(weights.shape)
    if not out.size:
        return planner.plan(out)
    weights, _ = with_rows(planner, registry, weights, layouts[0].offset)
    choice = registry.resolve(Request("attention-dropout", "float32"))
    views = (four_axes(out), four_axes(weights))
    call_heads = views[0].shape[1]
    groups = score_groups(choice)
    for (o, w), (batch, head, row) in parts(facts, views, groups, ((), (2,), (0, 1))):
        push = {
            **placed("w", w), **placed("o", o), "queries": o.shape[2], "keys": o.shape[3], "heads": o.shape[1],
            "first_row": row, "first_head": head, "first_batch": batch, "call_heads": call_heads,
            "seed_offset": At(seed), "seed_low": Live(0), "seed_high": Live(1), "counter_offset": Live(2),
            "threshold": threshold, "scale": scale,
        }  # fmt: skip
        constants = {"SEED": 0 if seed is None else seed.size}
        planner.dispatch(choice, constants, {"weights": w, "out": o, "seed": seed}, push, groups(o.shape))
    return planner.plan(out)


def dropout_mask(device: Device, shape, dropout_p, seed, offset=0) -> np.ndarray:
    """``grilly.functional.dropout_mask`` on a device; documented there."""
    name = "dropout_mask"
    device.check_open()
    p, *_ = option_checks.dropout(name, dropout_p, seed, offset)
    shape = extents(name, shape)
    if len(shape) != 4:
        raise ValueError(f"{name}: shape is {shape}; expected (B, H, Sq, Sk)")
    if p == 0.0 or 0 in shape:
        return np.ones(shape, np.bool_)
    ones = device.tensor(np.ones(shape[3], np.float32)).broadcast_to(shape)
    kept = attention_dropout(device, ones, dropout_p=p, dropout_seed=seed, dropout_offset=offset)
    return kept.numpy() != 0
