"""How fast a device runs a kernel, seen on the device itself, so that dispatches are as large as its time limit allows.

A call that must be cut is cut small at first, by what the slowest device could do. Small dispatches leave a large
device partly idle. So before the first such call of a kernel runs, two of its dispatches are timed, and the plan is
made again with what was seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from .device import Device, DeviceFacts
from .plan import Plan
from .record import Ready
from .tensor import Tensor

LEAST_SECONDS = 1e-3  # a dispatch that ends earlier says little


class HasPlan(Protocol):
    """What planning gives."""

    plan: Plan


Made = TypeVar("Made", bound=HasPlan)


def ready_plan(
    device: Device, make: Callable[[], Made], inputs: Sequence[Tensor | None], live: Sequence[int] = ()
) -> tuple[Made, Ready]:
    """What ``make`` makes, and its plan prepared; where that is cut for time, both after its kernels were timed.

    ``inputs`` and ``live`` are what it is run with: the timed dispatches read them, and write to memory of their own.
    In a captured function nothing can be timed: a kernel that was not seen before goes by what the slowest device
    could do.
    """
    made = make()
    ready = Ready(device, made.plan)
    unknown = {} if device.runtime.capturing else _unknown(device.facts, made.plan)
    if not unknown:
        return made, ready
    for kind, numbers in unknown.items():
        pace = _seen(ready, numbers, inputs, live)
        if pace is not None:
            device.facts.paces[kind] = pace
    made = make()
    return made, Ready(device, made.plan)


def _unknown(facts: DeviceFacts, plan: Plan) -> dict[tuple, list[int]]:
    """Steps by kinds that nobody has timed, where they take more than a submission in all."""
    found: dict[tuple, list[int]] = {}
    for number, step in enumerate(plan.steps):
        if step.kind is not None and step.kind not in facts.paces:
            found.setdefault(step.kind, []).append(number)
    return {
        kind: numbers
        for kind, numbers in found.items()
        if sum(plan.steps[number].work for number in numbers) > facts.work_limit
    }


def _seen(
    ready: Ready, numbers: list[int], inputs: Sequence[Tensor | None], live: Sequence[int]
) -> float | None:
    # Causal pieces at one end do nearly nothing, those at the other end all that is said of them.
    ends = [(ready.plan.steps[number].work, _time(ready, number, inputs, live)) for number in {numbers[0], numbers[-1]}]
    if max(seconds for _, seconds in ends) < LEAST_SECONDS:
        return None
    return min(work / seconds for work, seconds in ends)


def _time(ready: Ready, number: int, inputs: Sequence[Tensor | None], live: Sequence[int]) -> float:
    runtime = ready.device.runtime
    runtime.synchronize()
    start = time.perf_counter()
    ready.run(inputs, live, only=slice(number, number + 1))
    runtime.synchronize()
    return max(time.perf_counter() - start, 1e-9)


__all__ = ["ready_plan"]
