"""Dispatches that are recorded together: all of them, or none where an error or an interrupt comes between."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .device import Device


@contextlib.contextmanager
def together(device: Device) -> Iterator[None]:
    """Hold back what this thread's calls dispatch on the device, and record it at the end of the ``with`` block.

    Where the block raises, nothing of it is recorded: what it was to write stays as it is. (More than 64 dispatches are
    recorded in parts of 64.) In a captured function, which is taken whole or not at all, and in another such block
    nothing is held back. With kompute, which runs each dispatch at once, an error at the end can leave some of them
    done. The block does not read results.
    """
    if device.captured.together is not None or device.runtime.capturing:
        yield
        return
    with held_back(device) as held:
        yield
    device.runtime.dispatch_together(held)
    device.runtime.flush()


@contextlib.contextmanager
def held_back(device: Device) -> Iterator[list[tuple]]:
    """A list that takes what this thread's calls dispatch in the ``with`` block, in place of the device."""
    before, held = device.captured.together, list[tuple]()
    device.captured.together = held
    try:
        yield held
    finally:
        device.captured.together = before


__all__ = ["held_back", "together"]
