"""Compute pipelines, made once per ProgramSpec, and the pipeline cache kept on disk."""

from __future__ import annotations

import contextlib
import hashlib
import weakref
from collections.abc import Callable
from pathlib import Path

from ...errors import DeviceLostError, GrillyError, OutOfDeviceMemoryError, ShaderError
from ..binary import verify
from ..files import cache_folder, read_file, replace_file
from ..interface import Program, ProgramSpec
from ..pruned import code_for
from .api import NULL, ffi, lib, out
from .descriptors import SetLayout
from .device import VulkanDevice
from .objects import Handle
from .threads import Job, Threads

MAGIC = b"grilly-pipelines-1\n"
MOST_BYTES = 1 << 30  # of a pipeline cache that is read
FILLED = 1024  # pipelines of filled binaries, at most, that the cache gets: a program may make any number


class VulkanProgram(Program):
    """A pipeline with its layouts: the driver's handles, which the device's Pipelines keep.

    Attributes
    ----------
    pipeline
        None until it is known to be made. Whoever dispatches the program then calls ``make``.
    """

    __slots__ = ("handle", "pipeline", "layout", "set_layout", "making", "_pipelines", "__weakref__")

    def __init__(self, spec: ProgramSpec, pipelines: Pipelines):
        super().__init__(spec)
        self._pipelines = pipelines
        self.handle = self.pipeline = self.making = None

    def make(self) -> None:
        """Wait for the pipeline, or make it. Raises ShaderError."""
        self._pipelines.finish(self)


class Making(Job):
    """The driver's making of one pipeline. Its compiler takes from a millisecond to half a second of one processor.

    Several may be made at the same time: the driver itself keeps order in the pipeline cache.
    """

    __slots__ = ("handle", "place", "result", "_call", "_needed")

    def __init__(self, handle: Handle, place, call: Callable[[object], int], needed: tuple):
        super().__init__()
        self.handle: Handle | None = handle  # until it is done: the place is filled in however the program fares
        self.place, self.result = place, 0
        self._call = call
        self._needed = needed  # what the driver reads meanwhile

    def work(self) -> None:
        self.result = self._call(self.place)
        if self.result < 0:
            self.place[0] = NULL  # undefined after a failure, and to be destroyed if an interrupt lost the job

    def let_go(self) -> None:
        # The handle as well: a thread may hold the job for longer than the device lasts.
        self._needed, self.handle = (), None


class Pipelines:
    """All pipelines of one device."""

    def __init__(self, device: VulkanDevice):
        self._device = device
        info = device.info
        # A processor's subgroups are its vectors, of one size and always full. Asked for, Mesa's driver would keep the
        # same code twice: for this runtime, and for kompute, which cannot ask.
        given = info.kind == "cpu" and info.subgroup_sizes[0] == info.subgroup_sizes[1]
        self._asks_for_subgroups = "subgroup-size-control" in info.features and not given
        self._programs: dict[ProgramSpec, VulkanProgram] = {}
        #: Programs of filled binaries, as long as a plan, a recording or work in flight has them.
        self._filled: weakref.WeakValueDictionary[ProgramSpec, VulkanProgram] = weakref.WeakValueDictionary()
        self._cached = self._cached_of_filled = 0  # pipelines that the cache was given
        self._layouts: dict[tuple[tuple[str, ...], int], tuple[Handle, Handle, SetLayout]] = {}
        self._path = self._cache_path()
        self._saved = 0
        self._threads = Threads()
        self._makings: list[Making] = []  # that threads have, or that an interrupt kept from them
        self._cache = self._load_cache()

    # -- programs --------------------------------------------------------------------------------------------------

    def get(self, spec: ProgramSpec, later: bool = False) -> VulkanProgram:
        """The program for ``spec``; the first call compiles it.

        ``later``: it is not dispatched soon, so that a thread may compile it, beside others.
        """
        programs = self._programs if spec.filling is None else self._filled
        program = programs.get(spec)
        if program is None:
            if spec.filling is not None:
                self._device.objects.sweep()
            verify(spec)  # drivers crash on damaged binaries
            program = VulkanProgram(spec, self)
            if later and self._threads.threads > 1:
                program.making = self._prepared(program)
                self._makings = [making for making in self._makings if not making.done]
                self._makings.append(program.making)
                self._threads.begin(program.making)
            else:
                self.finish(program)
            programs[spec] = program
        if not later and program.pipeline is None:
            self.finish(program)
        return program

    def finish(self, program: VulkanProgram) -> None:
        """Wait for the program's pipeline, or make it here."""
        making = program.making
        if making is not None and not making.given_up:
            making.wait()
        program.making = None  # where an interrupt comes now, the next call makes it anew
        if making is None or making.given_up or making.result < 0:  # in a thread it may have failed long ago
            making = self._prepared(program)
            making.run()
        try:
            handle = self._device.objects.made(program.handle, making.place, making.result, "vkCreateComputePipelines")
        except (DeviceLostError, OutOfDeviceMemoryError):
            raise
        except GrillyError as error:
            driver = self._device.info.driver
            raise ShaderError(f"{program.spec.name}: {driver} could not compile it: {error}") from error
        program.pipeline = handle.value

    def settle(self) -> None:
        """Wait for what threads are making, and keep them from what they have not begun."""
        for making in self._makings:
            making.give_up()

    def _layout(self, access: tuple[str, ...], push_bytes: int) -> tuple[Handle, SetLayout]:
        key = (access, push_bytes)
        if key in self._layouts:
            return self._layouts[key][1:]
        buffer, texels = lib.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, lib.VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER
        slots = ffi.new("VkDescriptorSetLayoutBinding[]", len(access))
        for i, letters in enumerate(access):
            slots[i].binding = i
            slots[i].descriptorType = texels if letters == "rt" else buffer
            slots[i].descriptorCount = 1
            slots[i].stageFlags = lib.VK_SHADER_STAGE_COMPUTE_BIT
        info = ffi.new("VkDescriptorSetLayoutCreateInfo*")
        info.sType = lib.VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO
        info.bindingCount = len(access)
        info.pBindings = slots
        set_layout = self._device.objects.create("DescriptorSetLayout", info)
        set_layouts = ffi.new("VkDescriptorSetLayout[1]", [set_layout.value])
        push = ffi.new("VkPushConstantRange*")
        push.stageFlags = lib.VK_SHADER_STAGE_COMPUTE_BIT
        push.size = push_bytes
        layout_info = ffi.new("VkPipelineLayoutCreateInfo*")
        layout_info.sType = lib.VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO
        layout_info.setLayoutCount = 1
        layout_info.pSetLayouts = set_layouts
        layout_info.pushConstantRangeCount = 1 if push_bytes else 0
        layout_info.pPushConstantRanges = push
        layout = self._device.objects.create("PipelineLayout", layout_info)
        self._layouts[key] = (set_layout, layout, SetLayout(set_layout.value, access))
        return self._layouts[key][1:]

    def _module(self, spec: ProgramSpec):
        # Drivers are free to crash on anything that is not SPIR-V, so what can be seen here is refused here.
        if len(spec.spirv) < 20 or len(spec.spirv) % 4 or spec.spirv[:4] != b"\x03\x02\x23\x07":
            raise ShaderError(f"{spec.name}: the shader binary is not SPIR-V")
        spirv = code_for(self._device.info, spec)
        code = ffi.new("uint32_t[]", len(spirv) // 4)
        ffi.memmove(code, spirv, len(spirv))
        info = ffi.new("VkShaderModuleCreateInfo*")
        info.sType = lib.VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO
        info.codeSize = len(spirv)
        info.pCode = code
        try:
            return self._device.objects.create("ShaderModule", info)
        except (DeviceLostError, OutOfDeviceMemoryError):
            raise
        except GrillyError as error:
            raise ShaderError(f"{spec.name}: the driver refused the shader: {error}") from error

    def _prepared(self, program: VulkanProgram) -> Making:
        """All that the driver needs for the program's pipeline; the program gets its layouts."""
        spec = program.spec
        layout, set_layout = self._layout(spec.access, spec.push_bytes)
        module = self._module(spec)
        entry = ffi.new("char[]", b"main")
        count = len(spec.constants)
        values = ffi.new("uint32_t[]", max(count, 1))
        entries = ffi.new("VkSpecializationMapEntry[]", max(count, 1))
        for i, (constant, value) in enumerate(spec.constants):
            values[i] = value & 0xFFFFFFFF
            entries[i].constantID = constant
            entries[i].offset = 4 * i
            entries[i].size = 4
        special = ffi.new("VkSpecializationInfo*")
        special.mapEntryCount = count
        special.pMapEntries = entries
        special.dataSize = 4 * count
        special.pData = values
        info = ffi.new("VkComputePipelineCreateInfo*")
        info.sType = lib.VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO
        info.layout = layout.value
        stage = info.stage
        stage.sType = lib.VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO
        stage.stage = lib.VK_SHADER_STAGE_COMPUTE_BIT
        stage.module = module.value
        stage.pName = entry
        stage.pSpecializationInfo = special
        size = None
        if spec.subgroup_size is not None and self._asks_for_subgroups:
            size = ffi.new("VkPipelineShaderStageRequiredSubgroupSizeCreateInfo*")
            size.sType = lib.VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO
            size.requiredSubgroupSize = spec.subgroup_size
            stage.pNext = size
            stage.flags = lib.VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT
        program.layout, program.set_layout = layout.value, set_layout
        handle, place = self._device.objects.begin("Pipeline")
        program.handle = handle
        device, cache = self._device.handle, self._cache.value
        if spec.filling is not None and self._cached_of_filled >= FILLED:
            cache = NULL
        else:
            self._cached += 1
            self._cached_of_filled += spec.filling is not None
        return Making(
            handle, place, lambda place: lib.vkCreateComputePipelines(device, cache, 1, info, NULL, place),
            (module, entry, values, entries, special, info, size),
        )  # fmt: skip

    # -- the cache on disk -----------------------------------------------------------------------------------------

    def _cache_path(self) -> Path:
        info = self._device.info
        identity = f"{info.vendor_id:x}-{info.device_id:x}-{info.driver_version}-{info.properties.get('cache_uuid')}"
        return cache_folder() / "pipelines" / (hashlib.sha256(identity.encode()).hexdigest()[:24] + ".bin")

    def _load_cache(self):
        data = b""
        try:
            stored = read_file(self._path, MOST_BYTES) or b""
            digest, payload = stored[len(MAGIC) : len(MAGIC) + 32], stored[len(MAGIC) + 32 :]
            # Drivers trust this data, so a damaged file must not reach them.
            if stored.startswith(MAGIC) and hashlib.sha256(payload).digest() == digest:
                data = payload
        except OSError:
            pass
        blob = ffi.new("uint8_t[]", data or b"\0")
        info = ffi.new("VkPipelineCacheCreateInfo*")
        info.sType = lib.VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO
        info.initialDataSize = len(data)
        info.pInitialData = blob
        return self._device.objects.create("PipelineCache", info)

    def save(self) -> None:
        """Write the cache if pipelines were made since the last time. A read-only home is no error."""
        if self._cache is None or self._cached == self._saved:
            return
        size = out("size_t")
        if lib.vkGetPipelineCacheData(self._device.handle, self._cache.value, size, NULL) < 0 or not size[0]:
            return
        blob = ffi.new("uint8_t[]", size[0])
        if lib.vkGetPipelineCacheData(self._device.handle, self._cache.value, size, blob) != 0:
            return
        payload = bytes(ffi.buffer(blob, size[0]))
        self._saved = self._cached
        with contextlib.suppress(OSError):
            replace_file(self._path, MAGIC + hashlib.sha256(payload).digest() + payload)

    def close(self) -> None:
        """Keep the cache on disk, then destroy every pipeline."""
        self.settle()
        self._threads.close()
        self.save()
        for program in (*self._programs.values(), *self._filled.values()):
            program.handle = program.making = None
        self._makings = []
        self._programs = {}
        self._filled = weakref.WeakValueDictionary()
        self._layouts = {}
        self._cache = None
