"""Sequences: Python lists of arrays, each where it is. The host knows how many there are."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import array_api as xp
from ..table import Call, Value, operator, within
from .shapes import check_parts


@operator("SequenceEmpty", folds=False)
def empty(call: Call) -> list[Value]:
    """A sequence of nothing."""
    return []


@operator("SequenceConstruct", folds=False)
def sequence(call: Call, *given: Value) -> list[Value]:
    """A sequence of arrays."""
    return list(given)


@operator("SequenceLength", folds=False)
def length(call: Call, given: list[Value]) -> np.ndarray:
    """How many arrays there are."""
    return np.asarray(len(given), np.int64)


@operator("SequenceAt", host=(1,), folds=False)
def element(call: Call, given: list[Value], place: np.ndarray) -> Value:
    """The array at a place."""
    return given[within(int(place.item()), len(given), "place")]


@operator("SequenceInsert", host=(2,), folds=False)
def inserted(call: Call, given: list[Value], value: Value, place: np.ndarray | None = None) -> list[Value]:
    """The sequence with an array at a place, or at its end."""
    at = len(given) if place is None else within(int(place.item()), len(given) + 1, "place")
    return [*given[:at], value, *given[at:]]


@operator("SequenceErase", host=(1,), folds=False)
def erased(call: Call, given: list[Value], place: np.ndarray | None = None) -> list[Value]:
    """The sequence without the array at a place, or without its last."""
    at = within(-1 if place is None else int(place.item()), len(given), "place")
    return [*given[:at], *given[at + 1 :]]


@operator("ConcatFromSequence", folds=False)
def joined(call: Call, given: list[Value]) -> Value:
    """All arrays one after the other, along an axis of theirs or a new one; on the host where all of them are."""
    axis, new = int(call.attributes["axis"]), call.get("new_axis", 0)
    if all(isinstance(value, np.ndarray) for value in given):
        return (np.stack if new else np.concatenate)(given, axis)
    return (xp.stack if new else xp.concat)([call.tensor(value) for value in given], axis=axis)


@operator("SplitToSequence", host=(1,), folds=False)
def divided(call: Call, x: Value, sizes: np.ndarray | None = None) -> list[Value]:
    """Parts along an axis: of sizes that are given, of one size but for the last, or single places; views."""
    axis = within(int(call.get("axis", 0)), x.ndim)
    before, extent = (slice(None),) * axis, x.shape[axis]
    if sizes is None:
        keep = call.get("keepdims", 1)
        return [x[(*before, slice(n, n + 1) if keep else n)] for n in range(extent)]
    step = int(sizes.item()) if sizes.ndim == 0 else 0
    if not step:
        check_parts(sizes.reshape(-1).tolist(), extent, axis)
    ends = [*range(step, extent, step), extent] if step else np.cumsum(sizes).tolist()
    return [x[(*before, slice(begin, end))] for begin, end in zip([0, *ends], ends, strict=False)]


@operator("SequenceMap", folds=False)
def mapped(call: Call, given: list[Value], *others: Any) -> Any:
    """A graph for each array of a sequence; further sequences go along with it, arrays are given whole."""
    rounds = [
        call.branches["body"](value, *(other[n] if isinstance(other, list) else other for other in others))
        for n, value in enumerate(given)
    ]
    return tuple(map(list, zip(*rounds, strict=True))) if rounds else tuple([] for _ in call.wanted)
