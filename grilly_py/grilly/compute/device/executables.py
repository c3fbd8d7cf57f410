"""Executables: plans with memory and pipelines. The one place that allocates, binds and dispatches."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from math import gcd

import numpy as np

from ...runtime.interface import SUBMISSION_SECONDS
from .device import Device, Noted, NotedCall
from .plan import ALIGN_MOST, Layout, Operation, Plan
from .tensor import Storage, Tensor

_WORD = struct.Struct("=I")


def sent(device: Device, array: np.ndarray) -> Storage:
    """The array's bytes in new device memory."""
    storage = Storage(device, array.nbytes, idle=True)
    if array.nbytes:
        device.runtime.write(storage.buffer, array)
    return storage


class Executable:
    """A plan with its pipelines and constants on the device. It may be run any number of times.

    Calls in flight together share the constants: the runtime orders dispatches that write the same buffer. ``written``
    are the numbers of the inputs that it writes to.
    """

    __slots__ = ("device", "plan", "_slots", "_steps", "written")

    def __init__(self, device: Device, plan: Plan):
        if device.planned is not None:
            device.planned(plan)
        self.device = device.home
        self.plan = plan
        with device.runtime.aside():  # the plan is kept for other calls
            self._slots = tuple(slot if slot.__class__ is int else sent(device, slot) for slot in plan.slots)
        program = device.runtime.program
        self._steps = tuple(
            (
                program(s.choice.spec(dict(s.constants), s.filling)), s.bindings, s.push, s.moved, s.live, s.groups,
                s.work / device.facts.most_work(s.kind, device.throughputs) * SUBMISSION_SECONDS, s.operation,
            )
            for s in plan.steps
        )  # fmt: skip
        written: set[int] = set()
        for step in plan.steps:
            for place, access in zip(step.bindings, step.choice.variant.access, strict=True):
                if place is not None and place[0] < plan.inputs and "w" in access:
                    written.add(place[0])
        self.written = tuple(written)

    def run(self, inputs: Sequence[Tensor | None], live: Sequence[int] = (), only: slice = slice(None)) -> list[Tensor]:
        """Record the plan's dispatches.

        Parameters
        ----------
        inputs : sequence of Tensor or None
            Of the layouts that the plan was made for.
        live : sequence of int
            What the plan's ``Live`` words are.
        only : slice
            Of the plan's steps.

        Returns
        -------
        list of Tensor
            The plan's results. Nothing is submitted: see ``Runtime.flush``.
        """
        device = self.device
        storages: list = []
        for tensor in inputs:
            storages.append(None if tensor is None else tensor._storage)
        for slot in self._slots:
            if slot.__class__ is int:
                slot = Storage(device, slot) if slot > 0 else sent(device, np.zeros(-slot, np.uint8))
            storages.append(slot)
        # Counted before the first dispatch: an interrupt between two leaves what was written. And again after the last:
        # another thread may have kept something of the former contents in between.
        if self.written:
            self._count_writes(storages)
        dispatch, held = device.runtime.dispatch, device.captured.together
        captured = device.captured.work
        first = at = 0 if captured is None else len(captured.commands)
        for program, bindings, push, moved, own, groups, seconds, operation in self._steps[only]:
            bound: list = []
            for place in bindings:
                if place is None:
                    bound.append(None)
                else:
                    storage = storages[place[0]]
                    bound.append((storage.buffer, place[1], place[2] or storage.nbytes))
            patched = bytearray(push) if own else None
            for word, number, base, unit in moved:
                offset = inputs[number]._offset
                if offset:
                    if patched is None:
                        patched = bytearray(push)
                    _WORD.pack_into(patched, word, base + offset // unit)
            for word, number, base in own:
                _WORD.pack_into(patched, word, (base + live[number]) & 0xFFFFFFFF)
            if held is None:
                dispatch(program, bound, push if patched is None else bytes(patched), groups, seconds)
            else:
                held.append((program, bound, push if patched is None else bytes(patched), groups, seconds))
            if captured is not None:
                at += 1
                _note(device, operation, bindings, inputs, live, at)
        if captured is not None:
            _note_call(device, self.plan, inputs, first, at)
        for number in self.written:
            storages[number].version += 1
        results = []
        for number, shape, dtype, strides, offset in self.plan.results:
            results.append(Tensor(storages[number], shape, dtype, strides, offset))
        return results

    def _count_writes(self, storages: Sequence[Storage]) -> None:
        """Count that inputs are written to, now or by replays."""
        device, replayed = self.device, self.device.runtime.capturing
        for number in self.written:
            storages[number].version += 1
            if replayed:
                storages[number].written_by_replays()
                device.captured.written.add(storages[number])

    def commands(
        self, bound: Mapping[int, tuple], offsets: Sequence[int], room: Callable[[int], object]
    ) -> list[tuple[tuple, Noted | None]]:
        """The plan's dispatches as commands of captured work, each with the operation that it is.

        Parameters
        ----------
        bound : mapping
            By a slot's number what is bound there, ``(memory, start, bytes)``: of the inputs, and of what results may
            have.
        offsets : sequence of int
            Where the inputs begin, in elements.
        room : callable
            Gives memory for the other slots.
        """
        places = dict(bound)
        for number, slot in enumerate(self._slots, self.plan.inputs):
            if number not in places:
                places[number] = (room(slot), 0, slot) if slot.__class__ is int else (slot.buffer, 0, slot.nbytes)
        made: list[tuple[tuple, Noted | None]] = []
        for program, bindings, push, moved, _, groups, seconds, operation in self._steps:
            words = bytearray(push)
            for at, number, base, unit in moved:
                _WORD.pack_into(words, at, base + offsets[number] // unit)
            own = tuple(None if place is None else places[place[0]] for place in bindings)
            noted = None if operation is None else Noted(operation, (), _offsets(operation, offsets))
            made.append(((program, own, bytes(words), groups, seconds), noted))
        return made


def _note(
    device: Device, operation: Operation | None, bindings: tuple, inputs: Sequence, live: Sequence[int], count: int
) -> None:
    """Note the operation, if it is one, that was captured last, unless it reads or writes a part of a large array.

    Nor where there are not ``count`` commands: a signal handler has called grilly, and which command is whose is not
    known.
    """
    work = device.captured.work
    if work is None or not device.runtime.capturing or operation is None or len(work.commands) != count:
        return
    if any(place is not None and place[1:] != (0, 0) for place in bindings):
        return
    offsets = _offsets(operation, [0 if tensor is None else tensor._offset for tensor in inputs])
    work.operations[count - 1] = Noted(operation, live, offsets)


def _offsets(operation: Operation, inputs: Sequence[int]) -> list[int]:
    """Where an operation's arrays and its result begin; ``inputs``: where those of the plan do."""
    return [
        tensor._offset + (inputs[tensor._storage.number] if tensor._storage.moves else 0)
        for tensor in (*operation.arrays, operation.result)
    ]


def _note_call(device: Device, plan: Plan, inputs: Sequence[Tensor | None], first: int, count: int) -> None:
    """Note the call, if its plan is one's, whose commands begin there, with the exceptions of ``_note``."""
    work = device.captured.work
    if work is None or not device.runtime.capturing or plan.operation is None or not plan.steps:
        return
    if len(work.commands) != count:
        return
    if any(place is not None and place[1:] != (0, 0) for step in plan.steps for place in step.bindings):
        return
    layouts = [None if t is None else Layout(t.shape, t._strides, t.dtype, t._offset) for t in inputs]
    work.calls[first] = NotedCall(plan, tuple(layouts))


def key_of(device: Device, given: tuple, tensors: Sequence[Tensor | None]) -> tuple | None:
    """The key of a plan: ``given``, and a Layout of each tensor.

    None for a tensor of another device, and for an array that is no Tensor.
    """
    home, limit = device.home, device.facts.storage_range
    key: list = [given]
    for tensor in tensors:
        if tensor is None:
            key.append(None)
            continue
        if tensor.__class__ is not Tensor:
            return None
        storage = tensor._storage
        if storage.device is not home:
            return None
        if storage.nbytes <= limit:
            key.append((tensor._shape, tensor._strides, tensor._dtype, gcd(ALIGN_MOST, tensor._offset), None))
        else:
            key.append(placed(tensor))
    return tuple(key)


def placed(tensor: Tensor) -> tuple:
    """A tensor's Layout with its own offset, for keys of plans that depend on it."""
    return tensor.shape, tensor._strides, tensor.dtype, tensor._offset, tensor._storage.nbytes
