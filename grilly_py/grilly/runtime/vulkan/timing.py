"""Time stamps of the device around dispatches, and the times that they come to."""

from __future__ import annotations

from collections import Counter

from ..interface import Timing
from .api import ffi, lib
from .descriptors import Descriptors
from .device import VulkanDevice
from .recording import Recorder


class Stamps:
    """Room for the time stamps of one submission at a time, on a device whose compute queue has them.

    Parameters
    ----------
    device : VulkanDevice
    most : int
        Dispatches in a submission at most.

    Attributes
    ----------
    labels : list of str
        What was recorded with stamps and not read yet: a label for each pair of stamps.
    """

    __slots__ = ("labels", "_device", "_queries", "_count", "_mask", "_period")

    def __init__(self, device: VulkanDevice, most: int):
        self.labels: list[str] = []
        self._device, self._count = device, 2 * most
        self._mask = (1 << device.timestamp_bits) - 1
        self._period = float(device.info.properties.get("timestamp_period", 1.0)) * 1e-9
        info = ffi.new("VkQueryPoolCreateInfo*")
        info.sType = lib.VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO
        info.queryType = lib.VK_QUERY_TYPE_TIMESTAMP
        info.queryCount = self._count
        self._queries = device.objects.create("QueryPool", info)

    def record(self, recorder: Recorder, command, journal: list[tuple], descriptors: Descriptors, what: str) -> None:
        """Record a journal with stamps around each dispatch, where ``what`` is "dispatch", or around all of them."""
        lib.vkCmdResetQueryPool(command, self._queries.value, 0, self._count)
        labels = [entry[0].spec.name for entry in journal if entry[0] is not None]
        each = what == "dispatch"
        recorder.separate(command)
        if not each:
            self._stamp(command, 0)
        place = 0
        for entry in journal:
            if entry[0] is None:
                recorder.copy(command, *entry[1:])
                continue
            # Alone on the device, so that the difference of two stamps is the time of what lies between.
            recorder.separate(command)
            if each:
                self._stamp(command, 2 * place)
            recorder.dispatch(command, *entry, descriptors)
            if each:
                self._stamp(command, 2 * place + 1)
            place += 1
        if not each and labels:
            self._stamp(command, 1)
            labels = [", ".join(f"{n} x {label}" for label, n in Counter(labels).items())]
        self.labels = labels

    def _stamp(self, command, query: int) -> None:
        lib.vkCmdWriteTimestamp(command, lib.VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, self._queries.value, query)

    def read(self) -> list[Timing]:
        """The times of a submission that has finished, once: afterwards there are none."""
        count = 2 * len(self.labels)
        ticks = ffi.new("uint64_t[]", count)
        flags = lib.VK_QUERY_RESULT_64_BIT | lib.VK_QUERY_RESULT_WAIT_BIT
        result = lib.vkGetQueryPoolResults(
            self._device.handle, self._queries.value, 0, count, 8 * count, ticks, 8, flags
        )
        self._device.check(result, "vkGetQueryPoolResults")
        found = []
        for i, label in enumerate(self.labels):
            start = ticks[2 * i] & self._mask
            spent = (ticks[2 * i + 1] - ticks[2 * i]) & self._mask
            found.append(Timing(label, spent * self._period, start * self._period))
        self.labels = []
        return found
