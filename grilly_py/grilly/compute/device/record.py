"""The one place that allocates what a plan needs, binds it and dispatches."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from math import gcd

import numpy as np

from ...runtime.interface import SUBMISSION_SECONDS
from .caches import Kept
from .device import Device
from .plan import ALIGN_MOST, Layout, Plan
from .tensor import Storage, Tensor

_WORD = struct.Struct("=I")
BOOL = np.dtype(np.bool_)


def sent(device: Device, array: np.ndarray) -> Storage:
    """The array's bytes in new device memory."""
    storage = Storage(device, array.nbytes, idle=True)
    if array.nbytes:
        device.runtime.write(storage.buffer, array)
    return storage


class Ready:
    """A plan with its pipelines made, and what it keeps on the device. It may be run any number of times.

    What a plan keeps is shared by calls in flight together: the runtime orders dispatches that write the same buffer.
    """

    __slots__ = ("device", "plan", "_slots", "_steps", "_written")

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
                program(s.choice.spec(dict(s.constants))), s.bindings, s.push, s.moved, s.live, s.groups,
                s.work / device.facts.most_work(s.kind) * SUBMISSION_SECONDS,
            )
            for s in plan.steps
        )  # fmt: skip
        # Inputs that the plan writes to.
        written: set[int] = set()
        for step in plan.steps:
            for place, access in zip(step.bindings, step.choice.variant.access, strict=True):
                if place is not None and place[0] < plan.inputs and "w" in access:
                    written.add(place[0])
        self._written = tuple(written)

    def run(
        self, inputs: Sequence[Tensor | None], live: Sequence[int] = (), only: slice = slice(None)
    ) -> list[Tensor]:
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
        if self._written:
            replayed = device.runtime.capturing
            for number in self._written:
                storages[number].version += 1
                if replayed:
                    storages[number].written_by_replays()
                    device.captured.written.add(storages[number])
        dispatch = device.runtime.dispatch
        for program, bindings, push, moved, own, groups, seconds in self._steps[only]:
            bound: list = []
            for place in bindings:
                if place is None:
                    bound.append(None)
                else:
                    storage = storages[place[0]]
                    bound.append((storage.buffer, place[1], place[2] or storage.nbytes))
            patched = bytearray(push) if own else None
            for at, number, base, unit in moved:
                offset = inputs[number]._offset
                if offset:
                    if patched is None:
                        patched = bytearray(push)
                    _WORD.pack_into(patched, at, base + offset // unit)
            for at, number, base in own:
                _WORD.pack_into(patched, at, (base + live[number]) & 0xFFFFFFFF)
            dispatch(program, bound, push if patched is None else bytes(patched), groups, seconds)
        for number in self._written:
            storages[number].version += 1
        results = []
        for number, shape, dtype, steps, offset in self.plan.results:
            results.append(Tensor(storages[number], shape, dtype, steps, offset))
        return results


def key_of(device: Device, given: tuple, tensors: Sequence[Tensor | None]) -> tuple | None:
    """All that a plan depends on: ``given``, and a Layout of each tensor. None where a tensor is another device's."""
    home, limit = device.home, device.facts.storage_range
    key: list = [given]
    for tensor in tensors:
        if tensor is None:
            key.append(None)
            continue
        storage = tensor._storage
        if storage.device is not home:
            return None
        if storage.nbytes <= limit:
            # A mask's bytes are cut out of words wherever they lie.
            place = ALIGN_MOST if tensor._dtype is BOOL else gcd(ALIGN_MOST, tensor._offset)
            key.append((tensor._shape, tensor._steps, tensor._dtype, place, None))
        else:
            key.append(placed(tensor))
    return tuple(key)


def placed(tensor: Tensor) -> tuple:
    """A tensor's Layout in a key of plans that depend on where it begins."""
    return tensor.shape, tensor._steps, tensor.dtype, tensor._offset, tensor._storage.nbytes


def ready_for(
    device: Device, kept: Kept[tuple, Ready], plan: Callable, given: tuple, tensors: Sequence[Tensor | None]
) -> Ready:
    """The plan that ``kept`` has for calls like this one, or else a new one.

    Parameters
    ----------
    plan : callable
        ``plan(given, layouts, facts, registry)``; a pure function.
    given : tuple
        All that the plan depends on beyond the layouts of ``tensors``.
    tensors : sequence of Tensor or None
        As ``Ready.run`` takes them.
    """
    key = key_of(device, given, tensors)
    if key is None:
        raise ValueError("a tensor belongs to another backend; move it with backend.tensor(...)")
    ready = device.caches[kept].get(key)
    if ready is None:
        layouts = tuple(None if layout is None else Layout(*layout) for layout in key[1:])
        ready = device.caches[kept].keep(key, Ready(device, plan(given, layouts, device.facts, device.registry)))
    return ready


def run(
    device: Device,
    kept: Kept[tuple, Ready],
    plan: Callable,
    given: tuple,
    tensors: Sequence[Tensor | None],
    live: Sequence[int] = (),
) -> list[Tensor]:
    """Run a call by ``ready_for``; ``live`` as ``Ready.run`` takes it."""
    return ready_for(device, kept, plan, given, tensors).run(tensors, live)


def again(
    device: Device, kept: Kept[tuple, Ready], given: tuple, tensors: Sequence[Tensor | None], live: Sequence[int] = ()
) -> list[Tensor] | None:
    """Run a call that ``run`` has a plan for; None where it has none. Only calls that passed their checks have one."""
    key = key_of(device, given, tensors)
    ready = None if key is None else device.caches[kept].get(key)
    return None if ready is None else ready.run(tensors, live)
