"""Compiles every shader that a device can take with the device's own driver, and reports registers and spills.

    python tools/compile_on_devices.py NAME [--report FILE] [--only FAMILY] [--part K/N] [--until TIME]

Nothing runs on the device, so a stand-in for a GPU will do (mesa-drm-shim; tools/lanes.sh lists them). NAME is for the
report. Each binary is compiled for the largest head dimension that it serves; attention with mask, causality,
log-sum-exp and merging, and where spills are judged (JUDGED), but for NVIDIA, once more without them; split attention
for several numbers of rows; the others for what tools/pipelines.py has of them. Variants that the registry gives no
such device are left out. Where spills are judged, what the registry gives calls in which options meet is compiled too.
Statistics are the driver's (VK_KHR_pipeline_executable_properties).

Exits with 1 when the driver refuses a shader, when there is nothing to compile, or, on judged devices, when a variant
spills, when one takes Intel's compiler more than MOST_SECONDS of processor time, or when the driver gives no
statistics.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "grilly_py"))

from grilly.compute.matmul.finish import is_offered
from grilly.registry import Choice, Registry, Request, Variant, serves
from grilly.registry.names import EXTRAS
from grilly.runtime import probe
from grilly.runtime.interface import DeviceInfo, Filling, ProgramSpec
from pipelines import (
    calls_functions,
    constant_sets,
    decode_sets,
    elementwise,
    expressions_behind,
    expressions_by_index,
    linear_sets,
    norms_with_expressions,
    reductions_of_expressions,
    scans_with_expressions,
    score_functions,
    several_results,
    together,
)

#: Families whose holes are filled below, and the library of what fills them, which is never run.
FILLED = (
    "map", "map-several", "map-reduce", "norm-rows-holes", "scan-holes", "scatter-holes", "accumulate-holes",
    "expressions", "attention-function-blocks",
)  # fmt: skip
#: Architectures, by their names' beginnings, whose devices must not be given a variant that spills.
JUDGED = ("amd", "intel", "apple", "qualcomm", "nvidia")
#: Of processor time, for a pipeline on Intel. What does not fit its registers takes Mesa up to minutes.
MOST_SECONDS = 10.0

_PRIVATE = ("stp count", "ldp count")  # Turnip's stores to private memory, and loads from it

CAPTURE_STATISTICS = 0x40  # VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR
FULL_SUBGROUPS = 0x2  # VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT
EXTENSION = "VK_KHR_pipeline_executable_properties"
FEATURES = (  # struct, sType, and the extension that offers it
    ("VkPhysicalDevice16BitStorageFeatures", 1000083000, "VK_KHR_16bit_storage"),
    ("VkPhysicalDevice8BitStorageFeatures", 1000177000, "VK_KHR_8bit_storage"),
    ("VkPhysicalDeviceShaderFloat16Int8Features", 1000082000, "VK_KHR_shader_float16_int8"),
    ("VkPhysicalDeviceVulkanMemoryModelFeatures", 1000211000, "VK_KHR_vulkan_memory_model"),
    ("VkPhysicalDeviceSubgroupSizeControlFeatures", 1000225002, "VK_EXT_subgroup_size_control"),
    ("VkPhysicalDeviceCooperativeMatrixFeaturesKHR", 1000506000, "VK_KHR_cooperative_matrix"),
    (*probe.BFLOAT16_FEATURES, "VK_KHR_shader_bfloat16"),
    ("VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR", 1000269000, EXTENSION),
)


class Compiler:
    """A logical device with everything enabled that it offers, used for nothing but making pipelines."""

    def __init__(self):
        self.ffi, self.lib = probe.load()
        box = self.ffi.new("VkInstance[1]")
        probe.create_instance(self.ffi, self.lib, box)
        self.instance = box[0]
        self.physical = probe.physical_devices(self.ffi, self.lib, self.instance)[0]
        self.info = probe.describe(self.instance, self.physical)
        self.device = self._open()
        self.executables = self._function("vkGetPipelineExecutablePropertiesKHR")
        self.statistics = self._function("vkGetPipelineExecutableStatisticsKHR")

    def _function(self, name: str):
        symbol = self.ffi.new("char[]", name.encode())
        return self.ffi.cast(f"PFN_{name}", self.lib.vkGetDeviceProcAddr(self.device, symbol))

    def _open(self):
        ffi, lib, info = self.ffi, self.lib, self.info
        extensions = info.properties["extensions"]
        offered = [f for f in FEATURES if probe.offers(f[2], info.api_version, extensions)]
        head = ffi.new("VkPhysicalDeviceFeatures2 *")
        head.sType = 1000059000
        chain = [head]
        for kind, stype, _ in offered:
            struct = ffi.new(f"{kind} *")
            struct.sType = stype
            chain[-1].pNext = ffi.cast("void *", struct)
            chain.append(struct)
        lib.vkGetPhysicalDeviceFeatures2(self.physical, head)
        names = [ffi.new("char[]", f[2].encode()) for f in offered if f[2] in extensions]
        name_array = ffi.new("char *[]", names)
        priority = ffi.new("float[]", [1.0])
        queue = ffi.new("VkDeviceQueueCreateInfo *", {
            "sType": 2, "queueFamilyIndex": info.properties["queue_family"], "queueCount": 1,
            "pQueuePriorities": priority,
        })  # fmt: skip
        request = ffi.new("VkDeviceCreateInfo *", {
            "sType": 3, "pNext": ffi.cast("void *", head), "queueCreateInfoCount": 1, "pQueueCreateInfos": queue,
            "enabledExtensionCount": len(names), "ppEnabledExtensionNames": name_array,
        })  # fmt: skip
        device = ffi.new("VkDevice *")
        self._must(lib.vkCreateDevice(self.physical, request, ffi.NULL, device), "vkCreateDevice")
        self.has_statistics = EXTENSION in extensions and bool(chain[-1].pipelineExecutableInfo)
        return device[0]

    @staticmethod
    def _must(result: int, what: str) -> None:
        if result < 0:
            raise RuntimeError(f"{what} failed with VkResult {result}")

    def compile(self, spec: ProgramSpec) -> dict[str, float]:
        """Make a pipeline of ``spec`` and return the driver's statistics. Raises RuntimeError when it is refused."""
        ffi, lib, device = self.ffi, self.lib, self.device
        slots = ffi.new("VkDescriptorSetLayoutBinding[]", len(spec.access))
        for i, letters in enumerate(spec.access):
            kind = 4 if letters == "rt" else 7  # texel or storage buffer
            slots[i].binding, slots[i].descriptorType, slots[i].descriptorCount, slots[i].stageFlags = i, kind, 1, 0x20
        set_info = ffi.new("VkDescriptorSetLayoutCreateInfo *", {
            "sType": 32, "bindingCount": len(spec.access), "pBindings": slots,
        })  # fmt: skip
        set_layout, layout = ffi.new("VkDescriptorSetLayout *"), ffi.new("VkPipelineLayout *")
        module, pipeline = ffi.new("VkShaderModule *"), ffi.new("VkPipeline *")
        null = ffi.NULL
        try:
            self._must(lib.vkCreateDescriptorSetLayout(device, set_info, null, set_layout), "descriptor set layout")
            ranges = ffi.new("VkPushConstantRange[]", [{"stageFlags": 0x20, "size": spec.push_bytes}])
            layout_info = ffi.new("VkPipelineLayoutCreateInfo *", {
                "sType": 30, "setLayoutCount": 1, "pSetLayouts": set_layout,
                "pushConstantRangeCount": 1 if spec.push_bytes else 0, "pPushConstantRanges": ranges,
            })  # fmt: skip
            self._must(lib.vkCreatePipelineLayout(device, layout_info, null, layout), "pipeline layout")
            spirv = spec.spirv if spec.filling is None else spec.filling(spec.spirv)
            code = ffi.new("uint32_t[]", len(spirv) // 4)
            ffi.memmove(code, spirv, len(spirv))
            module_info = ffi.new("VkShaderModuleCreateInfo *", {
                "sType": 16, "codeSize": len(spirv), "pCode": code,
            })  # fmt: skip
            self._must(lib.vkCreateShaderModule(device, module_info, null, module), "shader module")
            values = ffi.new("uint32_t[]", [value for _, value in spec.constants] or [0])
            entries = ffi.new("VkSpecializationMapEntry[]", [
                {"constantID": constant, "offset": 4 * i, "size": 4} for i, (constant, _) in enumerate(spec.constants)
            ])  # fmt: skip
            special = ffi.new("VkSpecializationInfo *", {
                "mapEntryCount": len(spec.constants), "pMapEntries": entries, "dataSize": 4 * len(spec.constants),
                "pData": ffi.cast("void *", values),
            })  # fmt: skip
            entry = ffi.new("char[]", b"main")
            size = ffi.new("VkPipelineShaderStageRequiredSubgroupSizeCreateInfo *", {
                "sType": 1000225001, "requiredSubgroupSize": spec.subgroup_size or 0,
            })  # fmt: skip
            request = ffi.new("VkComputePipelineCreateInfo *")
            request.sType, request.flags, request.layout = 29, CAPTURE_STATISTICS, layout[0]
            request.stage.sType, request.stage.stage = 18, 0x20
            request.stage.module, request.stage.pName, request.stage.pSpecializationInfo = module[0], entry, special
            if not self.has_statistics:
                request.flags = 0
            if spec.subgroup_size:
                request.stage.pNext, request.stage.flags = ffi.cast("void *", size), FULL_SUBGROUPS
            result = lib.vkCreateComputePipelines(device, null, 1, request, null, pipeline)
            self._must(result, "vkCreateComputePipelines")
            return self._read(pipeline[0]) if self.has_statistics else {}
        finally:
            lib.vkDestroyPipeline(device, pipeline[0], null)
            lib.vkDestroyShaderModule(device, module[0], null)
            lib.vkDestroyPipelineLayout(device, layout[0], null)
            lib.vkDestroyDescriptorSetLayout(device, set_layout[0], null)

    def _read(self, pipeline) -> dict[str, float]:
        ffi = self.ffi
        about = ffi.new("VkPipelineInfoKHR *", {"sType": 1000269001, "pipeline": pipeline})
        count = ffi.new("uint32_t *")
        self._must(self.executables(self.device, about, count, ffi.NULL), "executable properties")
        found: dict[str, float] = {}
        for index in range(count[0]):
            which = ffi.new("VkPipelineExecutableInfoKHR *", {
                "sType": 1000269003, "pipeline": pipeline, "executableIndex": index,
            })  # fmt: skip
            number = ffi.new("uint32_t *")
            self._must(self.statistics(self.device, which, number, ffi.NULL), "statistics")
            listed = ffi.new("VkPipelineExecutableStatisticKHR[]", max(number[0], 1))
            for i in range(number[0]):
                listed[i].sType = 1000269004
            self._must(self.statistics(self.device, which, number, listed), "statistics")
            for i in range(number[0]):
                kind, value = int(listed[i].format), listed[i].value
                number_of = (value.b32, value.i64, value.u64, value.f64)[kind]
                name = ffi.string(listed[i].name).decode()
                found[name] = found.get(name, 0) + number_of
        return found


def obstacle(registry: Registry, variant: Variant) -> str | None:
    """What the device lacks for the variant; None when it can take it.

    Architectures that it is for are left aside, those that it shuts out are not.
    """
    facts = {fact: high for fact, (_, high) in variant.limits.items()} | {"align": variant.align}
    shut = tuple(pattern for pattern in variant.architectures if pattern.startswith("!"))
    request = Request(variant.operation, variant.dtype, variant.models[0], facts)
    return registry._lacks(dataclasses.replace(variant, architectures=shut), request)


def most_options(registry: Registry, variant: Variant) -> int:
    """How many options at most a call has that is given the variant: others may be for calls with more of them."""
    kind, rank = (variant.operation, variant.dtype), registry.rank(variant)
    found = (v for v in registry.manifest.variants if (v.operation, v.dtype) == kind and "options" in v.limits)
    above = (v for v in found if serves(v.architectures, registry.architecture) and registry.rank(v) > rank)
    fewest = (v.limits["options"][0] - 1 for v in above)
    return min(fewest, default=len(EXTRAS))


def spills(statistics: dict[str, float]) -> float:
    """Registers spilled to memory, and bytes of scratch memory, whatever the driver calls them."""
    names = {name: name.lower() for name in statistics}
    found = (name for name, lower in names.items() if "spill" in lower or "scratch" in lower or lower in _PRIVATE)
    return sum(statistics[name] for name in found if not name.endswith("to reg"))  # NVK's, between register files


class Asked(NamedTuple):
    """A pipeline to be compiled: a variant as chosen for the device, its constants, and what fills its hole."""

    choice: Choice
    constants: dict[str, int]
    operation: str = ""
    filling: Filling | None = None

    def __str__(self) -> str:
        return " ".join(filter(None, (self.choice.variant.name, self.operation, str(self.constants))))

    def part(self, parts: int) -> int:
        """From 0: in which of so many parts of the pipelines it is, the same for every device."""
        text = f"{self.choice.variant.name} {self.operation} {sorted(self.constants.items())}"
        return zlib.crc32(text.encode()) % parts


def examine(
    name: str, compiler: Compiler, only: str | None = None, part: tuple[int, int] = (0, 1), until: float = math.inf
) -> tuple[list[dict], list[str], int]:
    """Compile what the device can take, of family ``only`` if given.

    ``part`` is which one, from 0, and of how many parts: the pipelines of others are left out. None begins after
    ``until``, seconds since 1970. Returns a row a pipeline, the complaints, and how many came too late.
    """
    info: DeviceInfo = compiler.info
    registry = Registry(info, info.features)
    judged = any(serves((name,), registry.architecture) for name in JUDGED)
    rows, complaints, late = [], [], 0
    for one in asked(registry, info, judged, only):
        if one.part(part[1]) != part[0]:
            continue
        if time.time() >= until:
            late += 1
            continue
        row = {"device": name, "variant": one.choice.variant.name, "constants": one.constants}
        start, worked = time.perf_counter(), time.process_time()
        try:
            row["statistics"] = compiler.compile(one.choice.spec(one.constants, one.filling))
        except RuntimeError as error:
            complaints.append(f"{name}: {one}: {error}")
            continue
        row["seconds"], worked = round(time.perf_counter() - start, 3), time.process_time() - worked
        rows.append(row)
        spilled = spills(row["statistics"])
        if judged and spilled:
            complaints.append(f"{name}: {one}: spills ({spilled:g})")
        if judged and info.vendor == "intel" and worked > MOST_SECONDS:
            complaints.append(f"{name}: {one}: took {worked:.1f} s to compile")
    if not rows and not late:
        complaints.append(f"{name}: no variant could be compiled")
    if rows and judged and not any(row["statistics"] for row in rows):
        complaints.append(f"{name}: the driver gave no statistics, so spills would not be seen")
    return rows, complaints, late


def asked(registry: Registry, info: DeviceInfo, judged: bool, only: str | None) -> Iterator[Asked]:
    """Every pipeline that ``examine`` compiles."""
    for variant in registry.manifest.variants:
        if (only and variant.family != only) or obstacle(registry, variant):
            continue
        if not serves(variant.architectures, registry.architecture):
            continue  # made for other devices' registers, or orders of elements
        choice = Choice(variant, registry._subgroup(variant)[0], registry.manifest)
        size = choice.subgroup_size or info.subgroup_sizes[0]
        if variant.operation in FILLED or calls_functions(variant):
            sets = []
        elif variant.operation in ("attention-decode", "attention-decode-quantized"):
            sets = decode_sets(choice, size, most_options(registry, variant))
        elif variant.operation == "linear":
            sets = linear_sets(choice, info)
        else:
            sets = constant_sets(variant)
        if info.vendor == "nvidia" and variant.operation.startswith("attention") and not only:
            sets = sets[:1]  # its compiler is the slowest
        for constants in sets if judged or only else sets[:1]:
            yield Asked(choice, constants)
        if is_offered(choice):
            for operation, constants, filling in expressions_behind(registry, choice, sets if judged or only else []):
                yield Asked(choice, constants, operation, filling)
        if variant.operation == "map":
            for operation, constants, filling in elementwise(registry):
                yield Asked(choice, constants, operation, filling)
        if variant.operation == "map-several":
            for operation, constants, filling in several_results(registry):
                yield Asked(choice, constants, operation, filling)
        if variant.operation == "norm-rows-holes":
            for operation, constants, filling in norms_with_expressions(registry, choice):
                yield Asked(choice, constants, operation, filling)
        if variant.operation == "attention-function-blocks" or calls_functions(variant):
            for operation, constants, filling in score_functions(registry, choice, size):
                yield Asked(choice, constants, operation, filling)
        if variant.operation == "map-reduce":
            for operation, constants, filling in reductions_of_expressions(registry, choice):
                yield Asked(choice, constants, operation, filling)
        if variant.operation == "scan-holes":
            for operation, constants, filling in scans_with_expressions(registry, choice):
                yield Asked(choice, constants, operation, filling)
        if variant.operation in ("scatter-holes", "accumulate-holes"):
            for operation, constants, filling in expressions_by_index(registry, choice):
                yield Asked(choice, constants, operation, filling)
    if judged:
        given = together(registry, few=info.vendor == "nvidia")  # its compiler is the slowest
        yield from (Asked(choice, own) for choice, own in given if only in (None, choice.variant.family))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="the device's name in the report")
    parser.add_argument("--report", type=Path, help="write all statistics to this file, as JSON")
    parser.add_argument("--only", metavar="FAMILY", help="this shader family only")
    parser.add_argument("--part", metavar="K/N", default="1/1", help="the K-th of N parts of the pipelines only")
    parser.add_argument(
        "--until",
        metavar="TIME",
        type=float,
        default=math.inf,
        help="no pipeline begins after it (in seconds since 1970)",
    )
    options = parser.parse_args()
    place, _, parts = options.part.partition("/")
    if not (place.isdecimal() and parts.isdecimal() and 1 <= int(place) <= int(parts)):
        parser.error(f"--part is {options.part}; expected K/N, as 1/2")
    compiler = Compiler()
    part = (int(place) - 1, int(parts))
    rows, complaints, late = examine(options.name, compiler, options.only, part, options.until)
    if options.report:
        options.report.write_text(json.dumps(rows, indent=1))
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    spilling = [row for row in rows if spills(row["statistics"])]
    slowest = max((row["seconds"] for row in rows), default=0)
    print(
        f"{options.name}: {compiler.info.name}, {compiler.info.driver_version}: {len(rows)} pipelines of "
        f"{len({row['variant'] for row in rows})} binaries compiled, {len(spilling)} with spills, "
        f"slowest {slowest} s, {len(complaints)} complaints"
        + (f"; {late} pipelines did not begin: the time was over (--until)" if late else "")
    )
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
