"""A backend whose memory is shared with a stand-in of CUDA's driver or HIP's (`drivers`), and what tests see of it from
that side."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading

import numpy as np
import pytest

import drivers
import grilly
from conftest import open_or_skip
from grilly.compute.device import capsules
from grilly.interop.exchange import InteropExchange

A, B = 5, 6  # streams
ARRAY = np.arange(60, dtype=np.float32).reshape(6, 10)
ORDERS = ["timelines", "a moment", "waiting"]
PCI = "0000:03:00.0"


def stand_in(device, noted, delay, kind):
    """A stand-in of a driver that knows two devices, and as the second one the GPU of a device of grilly's; and what it
    calls that."""
    uuid = bytes.fromhex(device.info.properties["device_uuid"])
    devices = [bytes(16), uuid] if kind is drivers.FakeCuda else ["0000:02:00.0", PCI]
    fake = kind(device.info, devices, delay)
    fake.by_descriptor = noted
    return fake, devices[1]


class Shared:
    """A backend whose memory the stand-in shares."""

    def __init__(self, noted, delay, kind):
        self.backend = grilly.Compute(runtime="vulkan")
        device = self.backend.opened
        self.fake, own = stand_in(device, noted, delay, kind)
        self.stream = A
        self.sharing = device.runtime.share()
        self.exchange = device.exchange = InteropExchange(device, kind.kind(self.fake, own), self.current)

    def current(self) -> int:
        return self.stream

    def gate(self, stream=A) -> threading.Event:
        """What the stream waits for before it does what it is given next."""
        event = threading.Event()
        self.fake.stream(stream).give(lambda: event.wait(60))
        return event

    def done(self) -> bool:
        """Whether all that the device was given has run."""
        stream = self.backend.runtime._parts.stream
        stream.poll()
        return stream.completed == stream.serial - 1

    def bytes(self) -> int:
        gc.collect()
        self.backend.synchronize()
        return self.backend.memory().in_use

    def close(self):
        drop()
        self.backend.close()
        self.fake.close()


def mappable_or_skip() -> None:
    """The stand-in reads and writes shared memory through the host, which drivers of GPUs do not let it."""
    with open_or_skip("vulkan", lambda: grilly.Compute(runtime="vulkan")) as backend:
        if backend.device.kind != "cpu":
            pytest.skip(f"the host cannot map memory that {backend.device.name} shares")


@contextlib.contextmanager
def sharing(order="timelines", delay=0.0, dedicated=False):
    """``order``: by "timelines", after "a moment" in which the host waits, by "waiting" alone, or as with "hip"."""
    mappable_or_skip()
    with drivers.exporting(order != "waiting", dedicated) as noted:
        shared = Shared(noted, delay, drivers.FakeHip if order == "hip" else drivers.FakeCuda)
        if order == "timelines":
            shared.exchange.interop.idle = lambda streams, seconds: False
            shared.backend.runtime._parts.stream.finished = lambda serial, seconds: False
        if not shared.backend.runtime._parts.device.external.memories:
            pytest.skip(f"{shared.backend.device.name} exports no memory")
        try:
            yield shared
        finally:
            shared.close()


kept: list = []  # what capsules gave


def shown(capsule, device=(2, 1)) -> np.ndarray:
    """What a capsule of the stand-in's device holds, over the same memory."""
    words, name = capsules.opened(capsule)
    assert name == "float32"
    flat = (ctypes.c_float * words.size).from_address(words.__array_interface__["data"][0])
    array = np.ctypeslib.as_array(flat).reshape(words.shape)
    kept.append((words, array))
    return array


def drop() -> None:
    """Let go of what capsules gave."""
    kept.clear()
    gc.collect()


class Foreign:
    """An array of another library of CUDA's."""

    def __init__(self, array, device=(2, 1)):
        self.array, self.device, self.streams = array, device, []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        address = self.array.__array_interface__["data"][0]
        holder = capsules.Holder(address, self.array.shape, self.array.strides, self.array.itemsize, self.array)
        return capsules.make(holder, self.array.dtype, self.device)
