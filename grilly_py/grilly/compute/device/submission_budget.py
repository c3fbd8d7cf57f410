"""The throughput of kernels, measured on the device, so that dispatches are as large as its time limit allows.

A call that must be cut is cut small at first, by what the slowest device could do. Small dispatches leave a large
device partly idle, and the first ones find it at rest. So before the first such call of a kernel runs, two of its
dispatches are timed, and the plan is made again with what was seen; then one of the larger dispatches is timed, until
they get no faster.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple, TypeVar

from .device import Device, Throughputs
from .executables import Executable
from .plan import Plan
from .tensor import Tensor

LEAST_SECONDS = 1e-3  # the shortest dispatch whose time is used
FASTER = 1.25  # timing goes on with larger dispatches while the pace grows by this factor
SPENT = 0.1  # the share of a call's time that timing may take
GROWTH = 4.0  # the most by which a pace is assumed to be above what was measured: a submission may exceed its time so


Made = TypeVar("Made", bound=Executable)


def within_budget(
    device: Device, make: Callable[[Throughputs], Made], inputs: Sequence[Tensor | None], live: Sequence[int] = ()
) -> Made:
    """The executable that ``make`` makes of the device's throughputs.

    Where its plan is cut for time, the kernels are timed first, and it is made again.

    ``inputs`` and ``live`` as of ``Executable.run``: the timed dispatches read them, and write to memory of their own.
    In a captured function nothing can be timed: a kernel without a throughput is cut as for the slowest device.
    """
    throughputs = device.throughputs
    executable = make(throughputs)
    unknown = [] if device.runtime.capturing else _unknown(device.facts.work_limit, throughputs, executable.plan)
    watched = dict.fromkeys(unknown, _Watched())
    while watched:
        numbers = _steps(executable.plan, watched)
        for kind, before in list(watched.items()):
            seen = _seen(executable, numbers[kind], before, inputs, live)
            watched[kind] = seen
            if seen.throughput:
                throughputs[kind] = seen.throughput
            total = sum(executable.plan.steps[number].work for number in numbers[kind])
            if (
                seen.throughput < FASTER * before.throughput
                or seen.spent * seen.throughput > SPENT * total
                or not seen.throughput
            ):
                del watched[kind]
        executable = make(throughputs)
    return executable


class _Watched(NamedTuple):
    """A kind of steps: its throughput, seconds spent on timing, and its slower end, 0 or -1."""

    throughput: float = 0.0
    spent: float = 0.0
    end: int | None = None


def _steps(plan: Plan, kinds: Container[tuple[Any, ...] | None]) -> dict[tuple[Any, ...], list[int]]:
    """The numbers of the steps of these kinds."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for number, step in enumerate(plan.steps):
        if step.kind is not None and step.kind in kinds:
            found.setdefault(step.kind, []).append(number)
    return found


def _unknown(work_limit: float, throughputs: Throughputs, plan: Plan) -> list[tuple[Any, ...]]:
    """Kinds without a throughput whose steps together exceed one submission."""
    new = {step.kind for step in plan.steps if step.kind not in throughputs}
    return [
        kind
        for kind, numbers in _steps(plan, new).items()
        if sum(plan.steps[number].work for number in numbers) > work_limit
    ]


def _seen(
    executable: Executable, numbers: list[int], before: _Watched, inputs: Sequence[Tensor | None], live: Sequence[int]
) -> _Watched:
    # Causal pieces at one end do nearly nothing, those at the other end all that is said of them.
    ends = {numbers[end]: end for end in ((0, -1) if before.end is None else (before.end,))}
    times = {number: _time(executable, number, inputs, live) for number in ends}
    longest = max(times, key=times.__getitem__)
    spent = before.spent + sum(times.values())
    if times[longest] < LEAST_SECONDS:
        return _Watched(spent=spent)
    step = executable.plan.steps[longest]
    # Workgroups that leave multiprocessors idle take as long as more of them would. GROWTH, because their number may
    # be a guess, and where memory is the limit it is not so.
    idle = executable.device.facts.units / math.prod(step.groups)
    return _Watched(min(max(idle, 1.0), GROWTH) * step.work / times[longest], spent, ends[longest])


def _time(executable: Executable, number: int, inputs: Sequence[Tensor | None], live: Sequence[int]) -> float:
    runtime = executable.device.runtime
    runtime.synchronize()
    start = time.perf_counter()
    executable.run(inputs, live, only=slice(number, number + 1))
    runtime.synchronize()
    return max(time.perf_counter() - start, 1e-9)


__all__ = ["within_budget"]
