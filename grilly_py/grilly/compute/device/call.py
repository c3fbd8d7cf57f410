"""The frame of a call: from the arguments that users give to the results that they get, for every operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...errors import OutOfDeviceMemoryError
from .autocast import CASTING, cast
from .caches import DeviceCache
from .device import Device
from .executables import Executable, key_of
from .plan import Layout, Plan
from .sixteen_bits import rounded, widened
from .tape import OPEN, as_one, refuse_writes, wanted
from .tensor import Tensor

#: Of plans: what is called in place of them where a gradient is wanted. ``function(device, static, arrays)``, with the
#: checked arrays, gives the results by operations that have gradients (compute/gradients); None: the plan is run.
IN_PARTS: dict[Callable | DeviceCache, Callable] = {}


def call(
    device: Device, plan: Callable | DeviceCache, static: tuple | None, arrays: Sequence, check: Callable | None = None,
    live: Sequence = (), *, record: Callable | None = None, floats: int = 0, results: int = 1,
    narrow: int | None = None, like: Sequence | None = None,
) -> list:  # fmt: skip
    """Run a call of an operation.

    A call on Tensors with the key of an earlier one is a cache hit: it is run at once. Any other is checked first, its
    arrays are sent to the device, and its plan is made.

    Parameters
    ----------
    plan : callable or DeviceCache
        ``plan(static, layouts, facts, registry)`` gives a ``Plan``. A pure function, also of empty arrays. Each has
        its plan cache, ``device.caches[plan]``, whose key is the static arguments and the layouts of the arrays. With
        ``record`` only the cache is used.
    static : tuple or None
        The other arguments, hashable. ``1``, ``1.0`` and ``True`` are one key, so each is to have one type. None: the
        call has no key.
    arrays : sequence of Tensor, numpy.ndarray or None
    check : callable, optional
        ``check(*arrays)`` raises what is wrong with the arguments, before any device work. It may return arrays that
        the plan takes in place of these. What it accepts depends on the key alone.
    live : sequence
        The values of the plan's ``Live`` words. They are no part of the key, so they are checked before.
    record : callable, optional
        In place of ``check`` and ``plan``, for operations of several plans and for plans that depend on contents:
        ``record(*arrays)`` checks, sends and runs a call. It returns the results, and what ``run(arrays, live)`` of
        later calls with this key gives them: an Executable or the like; None where such calls are recorded anew.
    floats : int
        The first so many arrays are of one floating dtype; those of 16 bits become float32 on devices without 16-bit
        storage.
    results : int
        The first so many results are the user's; further ones stay Tensors.
    narrow : int, optional
        The first so many results are rounded to the dtype of arrays that became float32; by default the user's.
    like : sequence, optional
        The arrays that decide on Tensors or NumPy arrays as results; by default ``arrays``.

    Returns
    -------
    list
        The results: Tensors where one of the arrays is a Tensor, their work submitted; else NumPy arrays.
    """
    if device.home.closed:
        device.check_open()
    if CASTING.dtype is not None:
        arrays = cast(plan, arrays, floats)
    if OPEN.tapes:

        def again() -> list:
            return call(device, plan, static, arrays, check, live, record=record, floats=floats, results=results,
                        narrow=narrow, like=like)  # fmt: skip

        return _taped(device, plan, static, arrays, check, live, again)
    if floats and not device.sixteen_bits:
        dtype, wide = widened(arrays[:floats])
        if dtype is not None:
            found = call(device, plan, static, (*wide, *arrays[floats:]), check, live, record=record, results=results,
                         like=like)  # fmt: skip
            count = results if narrow is None else narrow
            return rounded(device, found, dtype, count) if count else found
    key = None if static is None else key_of(device, static, arrays)
    executable = device.caches[plan].get(key)
    if executable is not None:
        try:
            found = executable.run(arrays, live)
        except OutOfDeviceMemoryError:
            if record is None:
                raise
            device.caches[plan].pop(key, None)  # there may be a plan that takes less
        else:
            device.runtime.flush()
            return found
    if record is None:
        checked = (None if check is None else check(*arrays)) or arrays
        found = run(device, plan, static, [on_device(device, array) for array in checked], live)
    else:
        found, executable = record(*arrays)
        if key is not None and executable is not None:
            device.caches[plan].keep(key, executable)
    if any(isinstance(array, Tensor) for array in (arrays if like is None else like)):
        device.runtime.flush()
        return found
    return [
        result.numpy() if number < results and isinstance(result, Tensor) else result
        for number, result in enumerate(found)
    ]


def _taped(
    device: Device, plan: Callable | DeviceCache, static: tuple | None, arrays: Sequence, check: Callable | None,
    live: Sequence, compute: Callable[[], list],
) -> list:  # fmt: skip
    """A call of an operation of which a gradient may be wanted."""
    parts = IN_PARTS.get(plan)
    if parts is not None and wanted(*arrays):
        found = parts(device, static, (None if check is None else check(*arrays)) or arrays)
        if found is not None:
            return found
    return as_one(plan, static, arrays, compute, live)


def on_device(device: Device, array) -> Tensor | None:
    """An array as a tensor of the device, in the order that its axes have in memory; None stays."""
    return array if array is None or isinstance(array, Tensor) else device.borrow(array)


def run(
    device: Device, plan: Callable, static: tuple, tensors: Sequence[Tensor | None], live: Sequence[int] = ()
) -> list[Tensor]:
    """Run a plan on tensors that were checked; nothing is submitted. Parameters as of ``call``.

    Raises GradientError for a plan that writes to tensors, where a gradient depends on them.
    """
    executable = executable_for(device, plan, static, tensors)
    if not OPEN.tapes:
        return executable.run(tensors, live)
    written = [tensors[number] for number in executable.written]
    if written:
        refuse_writes(written, tensors)
    return as_one(plan, static, tensors, lambda: executable.run(tensors, live), live)


def executable_for(device: Device, plan: Callable, static: tuple, tensors: Sequence[Tensor | None]) -> Executable:
    """The plan of the cache for these tensors, or else a new one.

    Raises ValueError for a tensor of another backend.
    """
    key = key_of(device, static, tensors)
    if key is None:
        raise ValueError("a tensor belongs to another backend; move it with backend.tensor(...)")
    return executable_of(device, plan, key)


def plan_of(device: Device, plan: Callable, key: tuple) -> Plan:
    """The plan of a key, which begins with the static arguments; that of the cache, where there is one."""
    executable = device.caches[plan].get(key)
    if executable is not None:
        return executable.plan
    layouts = tuple(None if layout is None else Layout(*layout) for layout in key[1:])
    found: Plan = plan(key[0], layouts, device.facts, device.registry)
    return found


def executable_of(device: Device, plan: Callable, key: tuple) -> Executable:
    """The same with its pipelines, from then on in the cache."""
    plans = device.caches[plan]
    executable = plans.get(key)
    if executable is None:
        executable = plans.keep(key, Executable(device, plan_of(device, plan, key)))
    return executable


__all__ = ["call", "executable_for", "executable_of", "on_device", "plan_of", "run"]
