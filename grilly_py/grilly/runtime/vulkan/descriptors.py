"""Descriptor sets, kept by what they bind: a repeated call finds its set and writes nothing.

A set is never changed once written, so it may be in use by any number of submissions. When there are too many they all
go at once, which the stream does while the device is idle.
"""

from __future__ import annotations

from .api import NULL, OUT_OF_POOL_MEMORY, ffi, lib
from .device import VulkanDevice
from .memory import Block
from .objects import Handle

MOST = 4096
PER_POOL = 256
BINDINGS = 16  # of one set at most
TEXEL = 16  # bytes: four 32-bit integers, a format that every device reads texel buffers in


class SetLayout:
    """The driver's layout of sets, and what a shader does with their bindings (ProgramSpec.access)."""

    __slots__ = ("value", "access")

    def __init__(self, value, access: tuple[str, ...]):
        self.value = value
        self.access = access


class Descriptors:
    """The descriptor sets of one device."""

    def __init__(self, device: VulkanDevice):
        self._device = device
        self._pools: list[Handle] = []
        self._left = 0  # sets that the last pool has room for
        self._sets: dict[tuple, object] = {}
        self._views: dict[tuple, Handle] = {}  # of texel buffers, by block, start and texels
        self._info = ffi.new("VkDescriptorSetAllocateInfo*")
        self._info.sType = lib.VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO
        self._info.descriptorSetCount = 1
        self._layouts = ffi.new("VkDescriptorSetLayout[1]")
        self._info.pSetLayouts = self._layouts
        self._buffers = ffi.new("VkDescriptorBufferInfo[]", BINDINGS)
        self._shown = ffi.new("VkBufferView[]", BINDINGS)
        self._writes = ffi.new("VkWriteDescriptorSet[]", BINDINGS)
        for i in range(BINDINGS):
            write = self._writes[i]
            write.sType = lib.VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET
            write.dstBinding = i
            write.descriptorCount = 1
            write.pBufferInfo = self._buffers + i
            write.pTexelBufferView = self._shown + i

    @property
    def full(self) -> bool:
        """True when ``reset`` should be called before the next ``get``."""
        return len(self._sets) >= MOST

    def get(self, key: tuple):
        """The set for ``key``: a SetLayout, then for each binding block, start and length in bytes, or one None."""
        found = self._sets.get(key)
        if found is None:
            found = self._sets[key] = self._make(key)
        return found

    def _make(self, key: tuple):
        made = self._allocate(key[0].value)
        access, shown, place = key[0].access, [], 1
        for _ in access:
            size = 1 if key[place] is None else 3
            shown.append(None if size == 1 else key[place : place + 3])
            place += size
        # What a binding that the shader leaves alone shows. Where it could write, that is something that it does write:
        # the barriers are for these, and layers that know of no specialization constants expect them for all.
        filler = next(part for part in shown if part is not None)
        written = (part for part, letters in zip(shown, access, strict=True) if part is not None and "w" in letters)
        for_writes = next(written, filler)
        for count, (part, letters) in enumerate(zip(shown, access, strict=True)):
            block, start, length = part or (for_writes if "w" in letters else filler)
            write = self._writes[count]
            write.dstSet = made[0]
            if letters == "rt":
                write.descriptorType = lib.VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER
                self._shown[count] = self._view(block, start, -(-length // TEXEL)).value
            else:
                write.descriptorType = lib.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
                info = self._buffers[count]
                info.buffer, info.offset, info.range = block.buffer.value, start, length
        lib.vkUpdateDescriptorSets(self._device.handle, len(access), self._writes, 0, NULL)
        return made

    def _view(self, block: Block, start: int, texels: int) -> Handle:
        """The view of so many texels. The last may reach past a buffer's bytes: pieces of memory are whole texels."""
        key = (block, start, texels)
        found = self._views.get(key)
        if found is None:
            info = ffi.new("VkBufferViewCreateInfo*")
            info.sType = lib.VK_STRUCTURE_TYPE_BUFFER_VIEW_CREATE_INFO
            info.buffer = block.buffer.value
            info.format = lib.VK_FORMAT_R32G32B32A32_UINT
            info.offset = start
            info.range = TEXEL * texels
            found = self._views[key] = self._device.objects.create("BufferView", info)
        return found

    def _allocate(self, layout):
        made = ffi.new("VkDescriptorSet[1]")
        self._layouts[0] = layout
        for another in (self._left == 0, True):  # a driver may say earlier that a pool is full
            if another:
                self._pools.append(self._pool())
                self._left = PER_POOL
            self._left -= 1
            self._info.descriptorPool = self._pools[-1].value
            result = lib.vkAllocateDescriptorSets(self._device.handle, self._info, made)
            if result not in OUT_OF_POOL_MEMORY:
                break
        self._device.check(result, "vkAllocateDescriptorSets")
        return made

    def _pool(self) -> Handle:
        kinds = [lib.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER]
        if "texel-buffers" in self._device.info.features:
            kinds.append(lib.VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER)
        sizes = ffi.new("VkDescriptorPoolSize[]", len(kinds))
        for size, kind in zip(sizes, kinds, strict=True):
            size.type = kind
            size.descriptorCount = PER_POOL * BINDINGS
        info = ffi.new("VkDescriptorPoolCreateInfo*")
        info.sType = lib.VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO
        info.maxSets = PER_POOL
        info.poolSizeCount = len(kinds)
        info.pPoolSizes = sizes
        return self._device.objects.create("DescriptorPool", info)

    def reset(self) -> None:
        """Give all sets back. No submission may be using one."""
        self._sets = {}
        self._left = 0
        self._pools = []
        self._views = {}
