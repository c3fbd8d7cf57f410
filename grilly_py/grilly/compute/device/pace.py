"""How fast a device runs a kernel, seen on the device itself, so that dispatches are as large as its time limit allows.

A call that must be cut is cut small at first, by what the slowest device could do. Small dispatches leave a large
device partly idle, and the first ones find it at rest. So before the first such call of a kernel runs, two of its
dispatches are timed, and the plan is made again with what was seen; then one of the larger dispatches is timed, until
they get no faster.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from .device import Device, DeviceFacts
from .plan import Plan
from .record import Ready
from .tensor import Tensor

LEAST_SECONDS = 1e-3  # a dispatch that ends earlier says little
FASTER = 1.25  # than before: then still larger dispatches are looked at
SPENT = 0.1  # of a call's time may go into that
GROWTH = 4.0  # of a pace at a time, beyond what was seen: a submission may take as many times as long as it should


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
    facts = device.facts
    watched = {} if device.runtime.capturing else dict.fromkeys(_unknown(facts, made.plan), _Watched())
    while watched:
        numbers = _steps(made.plan, watched)
        for kind, before in list(watched.items()):
            seen = _seen(ready, numbers[kind], before, inputs, live)
            watched[kind] = seen
            if seen.pace:
                facts.paces[kind] = seen.pace
            total = sum(made.plan.steps[number].work for number in numbers[kind])
            if seen.pace < FASTER * before.pace or seen.spent * seen.pace > SPENT * total or not seen.pace:
                del watched[kind]
        made = make()
        ready = Ready(device, made.plan)
    return made, ready


class _Watched(NamedTuple):
    """What is known of a kind of steps: its pace, seconds of timing, and their end, 0 or -1, that takes longer."""

    pace: float = 0.0
    spent: float = 0.0
    end: int | None = None


def _steps(plan: Plan, kinds: Container[tuple[Any, ...] | None]) -> dict[tuple[Any, ...], list[int]]:
    """The numbers of the steps of these kinds."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for number, step in enumerate(plan.steps):
        if step.kind is not None and step.kind in kinds:
            found.setdefault(step.kind, []).append(number)
    return found


def _unknown(facts: DeviceFacts, plan: Plan) -> list[tuple[Any, ...]]:
    """Kinds that nobody has timed, whose steps take more than a submission in all."""
    new = {step.kind for step in plan.steps if step.kind not in facts.paces}
    return [
        kind
        for kind, numbers in _steps(plan, new).items()
        if sum(plan.steps[number].work for number in numbers) > facts.work_limit
    ]


def _seen(
    ready: Ready, numbers: list[int], before: _Watched, inputs: Sequence[Tensor | None], live: Sequence[int]
) -> _Watched:
    # Causal pieces at one end do nearly nothing, those at the other end all that is said of them.
    ends = {numbers[end]: end for end in ((0, -1) if before.end is None else (before.end,))}
    times = {number: _time(ready, number, inputs, live) for number in ends}
    longest = max(times, key=times.__getitem__)
    spent = before.spent + sum(times.values())
    if times[longest] < LEAST_SECONDS:
        return _Watched(spent=spent)
    step = ready.plan.steps[longest]
    # Workgroups that leave multiprocessors idle take as long as more of them would. GROWTH, because their number may
    # be a guess, and where memory is the limit it is not so.
    idle = ready.device.facts.units / math.prod(step.groups)
    return _Watched(min(max(idle, 1.0), GROWTH) * step.work / times[longest], spent, ends[longest])


def _time(ready: Ready, number: int, inputs: Sequence[Tensor | None], live: Sequence[int]) -> float:
    runtime = ready.device.runtime
    runtime.synchronize()
    start = time.perf_counter()
    ready.run(inputs, live, only=slice(number, number + 1))
    runtime.synchronize()
    return max(time.perf_counter() - start, 1e-9)


__all__ = ["ready_plan"]
