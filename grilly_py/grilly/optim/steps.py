"""What is computed once in a step, on the device: the learning rate, corrections, the loss's scale, the count."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from .. import array_api as xp
from ..compute.arrays.functions import ElementwiseFunction, elementwise
from .checks import check_number
from .rule import Group

#: Numbers of a step that kernels read, of which the last is what gradients are multiplied with.
NUMBERS = 4


@dataclasses.dataclass(frozen=True)
class LossScale:
    """How a loss is scaled, so that gradients of float16 do not vanish: by a factor that follows what they hold.

    A step whose gradients are not finite is left out, and the factor made smaller; after enough steps it grows.

    Parameters
    ----------
    initial : float
        The first factor.
    growth, backoff : float
        What it is multiplied with after ``interval`` steps in a row, and after a step that was left out.
    interval : int

    Raises
    ------
    TypeError, ValueError
        For what is no positive number, growth below 1, and backoff above 1.
    """

    initial: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        for name in ("initial", "growth", "backoff", "interval"):
            check_number("LossScale", name, getattr(self, name), least=0.0, above=True)
        if self.growth < 1 or self.backoff > 1 or self.interval != int(self.interval):
            raise ValueError(
                f"LossScale: growth is {self.growth}, backoff {self.backoff} and interval {self.interval}; expected "
                "growth >= 1, backoff <= 1 and a number of steps"
            )


def step_numbers(group: Group, limit: float | None, scaled: bool) -> ElementwiseFunction:
    """What makes the numbers of a step, NUMBERS of them."""
    rule, schedule, measures = group.rule, group.schedule, limit is not None or scaled

    def values(place: Any, step: Any, *rest: Any) -> Any:
        step = step.astype("float32")
        rate = rest[-1] if schedule is None else rest[-1] * schedule(step)
        found = list(rule.values(rate, step))
        found += [0.0] * (NUMBERS - 1 - len(found))
        if measures:
            norm = xp.sqrt(rest[0])
            factor = xp.where(xp.isfinite(rest[0]), 1.0, math.nan)
            if scaled:
                norm, factor = norm / rest[1], factor / rest[1]
            found.append(factor if limit is None else factor * xp.minimum(limit / (norm + 1e-6), 1.0))
        else:
            found.append(1.0)
        made = found[-1]
        for number, value in enumerate(found[:-1]):
            made = xp.where(place == number, value, made)
        return made

    return elementwise(values)


def counter(scale: LossScale | None, measures: bool) -> ElementwiseFunction:
    """What counts a step, and follows with the loss's scale."""
    if scale is None and not measures:
        return elementwise(lambda done: done + 1)

    def count(done: Any, left_out: Any, *rest: Any) -> tuple[Any, ...]:
        skips = xp.isnan(rest[-1])
        found = done + xp.where(skips, 0, 1), left_out + xp.where(skips, 1, 0)
        found = tuple(each.astype("int32") for each in found)
        if scale is None:
            return found
        good, factor = rest[0] + 1, rest[1]
        grows = good >= scale.interval
        larger = xp.minimum(factor * scale.growth, 2.0**120)
        factor = xp.where(skips, factor * scale.backoff, xp.where(grows, larger, factor))
        return *found, xp.where(skips | grows, 0, good).astype("int32"), factor

    return elementwise(count)


__all__ = ["NUMBERS", "LossScale", "counter", "step_numbers"]
