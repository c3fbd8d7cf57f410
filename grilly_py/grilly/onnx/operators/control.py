"""Choices between graphs, graphs that are repeated, and values that may be missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import array_api as xp
from ...compute import Tensor
from ..table import Call, Value, operator, within


@operator("If", host=(0,))
def choose(call: Call, condition: np.ndarray) -> Any:
    """One of two graphs; the host must know which."""
    return call.branches["then_branch" if condition.item() else "else_branch"]()


def _stacked(call: Call, values: Sequence[Value], axis: int) -> Value:
    """What the rounds of a loop gave, along a new axis; on the host where all of it is."""
    if not values:
        raise call.refuse("a loop of no rounds, whose outputs have no shape then")
    if all(isinstance(value, np.ndarray) for value in values):
        return np.stack([np.asarray(value) for value in values], axis)
    return xp.stack([call.tensor(value) for value in values], axis=axis)


@operator("Loop", host=(0, 1))
def loop(call: Call, count: np.ndarray | None, condition: np.ndarray | None, *states: Value) -> Any:
    """A graph so many times, or while it says so: its last states, and what each round gave beside them.

    The host must know how often. Where the device computes the condition it waits for each round.
    """
    body, kept, rows = call.branches["body"], tuple(states), []
    most = None if count is None else int(count.item())
    goes, number = condition is None or bool(condition.item()), 0
    while goes and (most is None or number < most):
        told, *found = body(np.asarray(number, np.int64), np.asarray(goes), *kept)
        kept, number = tuple(found[: len(states)]), number + 1
        rows.append(found[len(states) :])
        if number != most:
            goes = bool(np.asarray(told.numpy() if isinstance(told, Tensor) else told).item())
    if not rows:
        rows_of = [()] * (len(call.wanted) - len(states))
    else:
        rows_of = list(zip(*rows, strict=True))
    return (*kept, *(_stacked(call, values, 0) for values in rows_of))


@operator("Scan")
def scan(call: Call, *given: Value) -> Any:
    """A graph for each place along an axis of arrays: its last states, and what each round gave beside them."""
    if call.version < 9:
        raise call.refuse("Scan before operator set 9 has samples of lengths of their own; convert the model")
    body, several = call.branches["body"], int(call.attributes["num_scan_inputs"])
    states, arrays = tuple(given[: len(given) - several]), given[len(given) - several :]
    axes = call.get("scan_input_axes", [0] * several)
    axes = [within(int(axis), array.ndim) for array, axis in zip(arrays, axes, strict=True)]
    backwards = call.get("scan_input_directions", [0] * several)
    count = arrays[0].shape[axes[0]]
    rows = []
    for number in range(count):
        parts = [
            array[(slice(None),) * axis + (count - 1 - number if turned else number,)]
            for array, axis, turned in zip(arrays, axes, backwards, strict=True)
        ]
        found = body(*states, *parts)
        states, more = tuple(found[: len(states)]), found[len(states) :]
        rows.append(more)
    if not rows:
        raise call.refuse("a scan of no rounds, whose outputs have no shape then")
    results = []
    for place, values in enumerate(zip(*rows, strict=True)):
        turned = call.get("scan_output_directions", [0] * len(rows[0]))[place]
        axis = call.get("scan_output_axes", [0] * len(rows[0]))[place]
        results.append(_stacked(call, values[::-1] if turned else values, axis))
    return (*states, *results)


@operator("Optional", either=(0,))
def optional(call: Call, value: Value | None = None) -> Value | None:
    """A value, or none."""
    return value


@operator("OptionalHasElement", either=(0,))
def is_there(call: Call, value: Value | None = None) -> np.ndarray:
    """Whether there is a value; known to the host."""
    return np.asarray(value is not None)


@operator("OptionalGetElement", either=(0,))
def value_of(call: Call, value: Value) -> Value:
    """The value, which must be there."""
    return value
