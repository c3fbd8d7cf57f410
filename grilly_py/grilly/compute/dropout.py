"""Dropout on arrays of any shape (shaders/elementwise/dropout.comp)."""

from __future__ import annotations

import math

from ..errors import UnsupportedError
from ..registry import Registry, Request
from .arrays.creation import full
from .arrays.map import gathered
from .arrays.operations import code
from .device.arguments import check_backend, check_float, finish
from .device.call import call
from .device.device import Device, DeviceFacts
from .device.numbers import integer, number
from .device.plan import At, Live, Plan, Planner, fits_binding
from .expressions.expression import halves
from .random import drawn, is_drawn, seed_of

NAME = "dropout"
#: Elements of a dispatch at most; it divides 2^34, so that the upper word of the counter is one for a dispatch.
_MOST = 2**30


def dropout(device: Device, x, p=0.5, training=True, *, seed=None, offset=0):
    """``grilly.functional.dropout`` on a device; documented there."""
    check_float(NAME, input=x)
    p, offset = _terms(p, offset)
    check_backend(NAME, device, seed)
    if seed is not None:
        seed_of(NAME, seed)
    if not training or p == 0.0 or not math.prod(x.shape):
        return x
    if p == 1.0:
        return finish(device, full(device, x.shape, 0.0, x.dtype), x, seed)
    if seed is None:
        seed, offset = drawn(device)
    number_of_seed, tensor = seed_of(NAME, seed)
    live = (number_of_seed & 0xFFFFFFFF, number_of_seed >> 32, offset)
    given = (min(math.floor((1.0 - p) * 2**32), 2**32 - 1), 1.0 / (1.0 - p))
    return call(device, plan, given, (x, tensor), live=live)[0]


def _terms(p, offset) -> tuple[float, int]:
    """Probability and offset. Raises TypeError and ValueError."""
    p, offset = number(NAME, "p", p), integer(NAME, "offset", offset)
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"{NAME}: p is {p}; expected 0 to 1")
    if not 0 <= offset < 2**32:
        raise ValueError(f"{NAME}: offset is {offset}; expected 0 to 2**32 - 1")
    return p, offset


def plan(given: tuple[int, float], layouts, facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches on an array and a seed. ``Live`` words: the seed's halves and the offset."""
    threshold, scale = given
    planner = Planner(facts, layouts)
    x, seed = planner.inputs
    out = planner.empty(x.shape, x.dtype)
    if not x.is_contiguous or math.gcd(layouts[0].offset, x._offset) % 4:
        x = gathered(planner, registry, x, layouts[0].offset)
    choice = registry.resolve(Request("dropout", "float32"))
    unit, step = 4 * choice.threads, _MOST
    rows, results = x.reshape(-1), out.reshape(-1)
    while step > unit and not (fits_binding(facts, rows[:step]) and fits_binding(facts, results[:step])):
        step //= 2
    if step <= unit:
        raise UnsupportedError(f"{NAME}: a binding of {facts.storage_range:,} bytes does not take {unit} elements")
    constants = {"TYPE": code(x.dtype), "SEED": 0 if seed is None else code(seed.dtype),
                 "HALVES": halves(registry), "DRAWN": int(is_drawn(seed))}  # fmt: skip
    for low in range(0, x.size, step):
        part, result = rows[low : low + step], results[low : low + step]
        words = {
            "count": part.size, "x_offset": At(part), "y_offset": At(result), "seed_offset": At(seed),
            "first_low": low // 4 % 2**32, "first_high": low // 4 >> 32, "seed_low": Live(0), "seed_high": Live(1),
            "counter_offset": Live(2), "threshold": threshold, "scale": scale,
        }  # fmt: skip
        sizes = choice.workgroups(part.size, unit)
        planner.dispatch(choice, constants, {"x": part, "seed": seed, "y": result}, words, sizes, float(part.size))
    return planner.plan(out)
