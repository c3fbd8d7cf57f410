"""Schedules of the learning rate: functions of the step.

Each is given the number of steps that were done, a Python number or, where an optimizer makes a kernel of it, a
``grilly.Scalar``. What a program writes itself is a function of that kind: operators and grilly's functions of
elements, with ``grilly.where`` for ``if``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .. import array_api as xp
from ..compute.expressions.scalars import Scalar
from .checks import check_number, check_steps

#: What gives the learning rate of a step.
Schedule = Callable[[Any], Any]


def _is_traced(step: Any) -> bool:
    """Whether it stands for the device's count of steps."""
    return isinstance(step, Scalar)


def _least(x: Any, most: float) -> Any:
    return xp.minimum(x, most) if _is_traced(x) else min(x, most)


def constant(value: float) -> Schedule:
    """The same for every step.

    Raises
    ------
    TypeError, ValueError
        For what is no finite number.
    """
    value = check_number("constant", "value", value)
    return lambda step: value


def linear(start: float, end: float, steps: int) -> Schedule:
    """From ``start`` to ``end`` over so many steps, and ``end`` from then on.

    Raises
    ------
    TypeError, ValueError
        For what is no finite number, and fewer than one step.
    """
    start, end = check_number("linear", "start", start), check_number("linear", "end", end)
    count = check_steps("linear", "steps", steps)
    return lambda step: start + (end - start) * (_least(step, count) / count)


def cosine(start: float, steps: int, end: float = 0.0) -> Schedule:
    """From ``start`` to ``end`` along half a cosine over so many steps, and ``end`` from then on.

    Raises
    ------
    TypeError, ValueError
        For what is no finite number, and fewer than one step.
    """
    start, end = check_number("cosine", "start", start), check_number("cosine", "end", end)
    count = check_steps("cosine", "steps", steps)

    def schedule(step: Any) -> Any:
        angle = _least(step, count) * (math.pi / count)
        return end + (start - end) * 0.5 * (1 + (xp.cos(angle) if _is_traced(angle) else math.cos(angle)))

    return schedule


def step_decay(start: float, every: int, factor: float = 0.1) -> Schedule:
    """``start``, times ``factor`` after every so many steps.

    Raises
    ------
    TypeError, ValueError
        For what is no finite number, a factor that is not above 0, and fewer than one step.
    """
    start = check_number("step_decay", "start", start)
    factor = check_number("step_decay", "factor", factor, 0.0, above=True)
    count = check_steps("step_decay", "every", every)

    def schedule(step: Any) -> Any:
        if _is_traced(step):
            return start * xp.exp(xp.floor(step / count) * math.log(factor))
        return start * factor ** (step // count)

    return schedule


def joined(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """One schedule after the other: each begins at its boundary and counts its steps from there.

    Parameters
    ----------
    schedules : sequence of callable
    boundaries : sequence of int
        The step at which the second begins, the third, and so on; they increase.

    Raises
    ------
    TypeError
        For what is no function.
    ValueError
        For another number of boundaries, and boundaries that do not increase.
    """
    for each in schedules:
        if not callable(each):
            raise TypeError(f"joined: a schedule is a {type(each).__name__}; expected a function of the step")
    own, at = tuple(schedules), tuple(check_steps("joined", "a boundary", each) for each in boundaries)
    if len(own) != len(at) + 1:
        raise ValueError(f"joined: {len(own)} schedules and {len(at)} boundaries; expected one boundary fewer")
    if any(first >= second for first, second in zip(at, at[1:], strict=False)):
        raise ValueError(f"joined: the boundaries {at} do not increase")

    def schedule(step: Any) -> Any:
        if not _is_traced(step):
            number = sum(step >= each for each in at)
            return own[number](step - (0, *at)[number])
        found = own[0](step)
        for boundary, each in zip(at, own[1:], strict=True):
            found = xp.where(step >= boundary, each(step - boundary), found)
        return found

    return schedule


def warmup_cosine(peak: float, warmup: int, steps: int, end: float = 0.0) -> Schedule:
    """From 0 to ``peak`` over ``warmup`` steps, then along half a cosine to ``end`` at ``steps``.

    Parameters
    ----------
    peak, end : float
    warmup, steps : int
        All steps, the first ``warmup`` among them.

    Raises
    ------
    TypeError, ValueError
        For what is no finite number, and where no step is left after the warm-up.
    """
    first = check_steps("warmup_cosine", "warmup", warmup, 0)
    count = check_steps("warmup_cosine", "steps", steps)
    if count <= first:
        raise ValueError(f"warmup_cosine: {count} steps, {first} of them warm-up; expected more steps than that")
    after = cosine(peak, count - first, end)
    return joined([linear(0.0, peak, first), after], [first]) if first else after


__all__ = ["Schedule", "constant", "cosine", "joined", "linear", "step_decay", "warmup_cosine"]
