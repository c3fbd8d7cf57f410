"""Reads from a SPIR-V binary what a family's data file says about it, so that the two cannot disagree.

Word layouts: SPIR-V specification, sections 2.3 (physical layout) and 3.49 (instructions).
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field

_MAGIC = 0x07230203
#: Capabilities (section 3.31) and the feature each needs. Ballots, broadcasts, clusters and quads have no feature yet.
CAPABILITY_FEATURES = {
    61: ("GroupNonUniform", "subgroup-*"),
    62: ("GroupNonUniformVote", "subgroup-vote"),
    63: ("GroupNonUniformArithmetic", "subgroup-arithmetic"),
    65: ("GroupNonUniformShuffle", "subgroup-shuffle"),
    66: ("GroupNonUniformShuffleRelative", "subgroup-shuffle-relative"),
    9: ("Float16", "float16-arithmetic"),
    11: ("Int64", "int64-arithmetic"),
    46: ("SampledBuffer", "texel-buffers"),
    4433: ("StorageBuffer16BitAccess", "float16-storage"),
    4434: ("UniformAndStorageBuffer16BitAccess", "float16-storage"),
    4448: ("StorageBuffer8BitAccess", "int8-storage"),
    4449: ("UniformAndStorageBuffer8BitAccess", "int8-storage"),
    5116: ("BFloat16TypeKHR", "matrix-bfloat16-*"),
    5118: ("BFloat16CooperativeMatrixKHR", "matrix-bfloat16-*"),
    5433: ("CooperativeMatrixTensorAddressingNV", "workgroup-matrix-float16"),
    5439: ("TensorAddressingNV", "workgroup-matrix-float16"),
    5345: ("VulkanMemoryModel", "cooperative-matrix"),
    6022: ("CooperativeMatrixKHR", "cooperative-matrix"),
}
#: Matrix and Shader: every Vulkan device has them.
_FREE = {0, 1}


@dataclass
class Reflection:
    """What one compute shader's binary declares.

    ``threads`` and ``shared_bytes`` are None where they depend on specialization constants. ``bindings`` tells of each
    binding whether every variable there is read-only.
    """

    capabilities: set[int] = field(default_factory=set)
    bindings: dict[int, bool] = field(default_factory=dict)
    texels: set[int] = field(default_factory=set)  # those of the bindings that are texel buffers
    names: dict[int, set[str]] = field(default_factory=dict)  # of the arrays at each binding ("" if stripped)
    descriptor_sets: set[int] = field(default_factory=set)
    constant_ids: set[int] = field(default_factory=set)
    push_bytes: int = 0
    push: list[tuple[str, str, int]] = field(default_factory=list)  # name ("" if stripped), type, offset of each member
    threads: int | None = None
    shared_bytes: int | None = 0


class _Types:
    def __init__(self):
        self.types: dict[int, tuple] = {}
        self.constants: dict[int, int] = {}
        self.offsets: dict[tuple[int, int], int] = {}
        self.strides: dict[int, int] = {}
        self.matrix_strides: dict[tuple[int, int], int] = {}

    def size(self, type_id: int, laid_out: bool) -> int | None:
        """Bytes of a type; with explicit offsets and strides where ``laid_out``. None if not known before run time."""
        kind, *operands = self.types[type_id]
        if kind == "scalar":
            return operands[0]
        if kind in ("vector", "matrix"):
            each = self.size(operands[0], laid_out)
            return None if each is None else each * operands[1]
        if kind == "array":
            each = self.strides.get(type_id) if laid_out else self.size(operands[0], False)
            length = self.constants.get(operands[1])
            return None if each is None or length is None else each * length
        if kind == "struct":
            ends = []
            for index, member in enumerate(operands):
                size = self.size(member, laid_out)
                if size is None:
                    return None
                ends.append(self.offsets.get((type_id, index), 0) + size if laid_out else size)
            return max(ends, default=0) if laid_out else sum(ends)
        return None


def reflect(binary: bytes) -> Reflection:
    """What a binary declares. Raises ValueError when it is no SPIR-V."""
    if len(binary) % 4 or len(binary) < 20:
        raise ValueError(f"{len(binary)} bytes are no SPIR-V module")
    words = array("I", binary)
    if sys.byteorder == "big":
        words.byteswap()
    if words[0] != _MAGIC:
        raise ValueError("it does not begin with SPIR-V's magic number")

    reflection, types = Reflection(), _Types()
    binding_of: dict[int, int] = {}
    variables: list[tuple[int, int, int]] = []  # pointer type, variable, storage class
    read_only: set[int] = set()
    pointers: dict[int, int] = {}
    member_names: dict[tuple[int, int], str] = {}
    own_names: dict[int, str] = {}
    sampled: set[int] = set()
    numbers: dict[int, str] = {}
    spec_ids: set[int] = set()
    workgroup_builtin = None
    at = 5
    while at < len(words):
        length, opcode = words[at] >> 16, words[at] & 0xFFFF
        if length == 0 or at + length > len(words):
            raise ValueError("an instruction runs past the end")
        op = words[at + 1 : at + length]
        at += length
        if opcode == 17:  # OpCapability
            reflection.capabilities.add(op[0])
        elif opcode == 16 and op[1] == 17:  # OpExecutionMode LocalSize
            reflection.threads = op[2] * op[3] * op[4]
        elif opcode == 71:  # OpDecorate
            target, decoration = op[0], op[1]
            if decoration == 1:  # SpecId
                spec_ids.add(op[2])
            elif decoration == 6:  # ArrayStride
                types.strides[target] = op[2]
            elif decoration == 11 and op[2] == 25:  # BuiltIn WorkgroupSize
                workgroup_builtin = target
            elif decoration == 24:  # NonWritable
                read_only.add(target)
            elif decoration == 33:
                binding_of[target] = op[2]
            elif decoration == 34:
                reflection.descriptor_sets.add(op[2])
        elif opcode == 72 and op[2] == 35:  # OpMemberDecorate Offset
            types.offsets[op[0], op[1]] = op[3]
        elif opcode == 72 and op[2] == 24:  # OpMemberDecorate NonWritable
            read_only.add(op[0])
        elif opcode == 5:  # OpName
            own_names[op[0]] = op[1:].tobytes().split(b"\0")[0].decode()
        elif opcode == 6:  # OpMemberName
            member_names[op[0], op[1]] = op[2:].tobytes().split(b"\0")[0].decode()
        elif opcode in (21, 22):  # OpTypeInt, OpTypeFloat
            types.types[op[0]] = ("scalar", op[1] // 8)
            numbers[op[0]] = ("f" if opcode == 22 else "i" if op[2] else "u") + str(op[1])
        elif opcode == 20:  # OpTypeBool
            types.types[op[0]] = ("scalar", 4)
        elif opcode == 23:
            types.types[op[0]] = ("vector", op[1], op[2])
        elif opcode == 24:
            types.types[op[0]] = ("matrix", op[1], op[2])
        elif opcode == 27:  # OpTypeSampledImage
            sampled.add(op[0])
        elif opcode == 28:
            types.types[op[0]] = ("array", op[1], op[2])
        elif opcode == 30:
            types.types[op[0]] = ("struct", *op[1:])
        elif opcode == 32:  # OpTypePointer
            pointers[op[0]] = op[2]
        elif opcode == 43:  # OpConstant
            types.constants[op[1]] = op[2]
        elif opcode == 51 and op[1] == workgroup_builtin:  # OpSpecConstantComposite
            reflection.threads = None
        elif opcode == 59:  # OpVariable
            variables.append((op[0], op[1], op[2]))
        elif opcode == 54:  # OpFunction: all declarations stand before it
            break
    reflection.constant_ids = spec_ids
    for pointer, variable, storage in variables:
        if variable in binding_of:
            number = binding_of[variable]
            texels = pointers[pointer] in sampled
            safe = texels or variable in read_only or pointers[pointer] in read_only
            reflection.bindings[number] = safe and reflection.bindings.get(number, True)
            name = own_names.get(variable, "") if texels else member_names.get((pointers[pointer], 0), "")
            reflection.names.setdefault(number, set()).add(name)
            if texels:
                reflection.texels.add(number)
        if storage == 9:  # PushConstant
            block = pointers[pointer]
            reflection.push_bytes = max(reflection.push_bytes, types.size(block, True) or 0)
            reflection.push = [
                (member_names.get((block, n), ""), numbers.get(kind, "other"), types.offsets.get((block, n), 0))
                for n, kind in enumerate(types.types[block][1:])
            ]
        elif storage == 4:  # Workgroup
            size = types.size(pointers[pointer], False) if pointers[pointer] in types.types else None
            known = size is not None and reflection.shared_bytes is not None
            reflection.shared_bytes = reflection.shared_bytes + size if known else None
    return reflection


def misnamed(names: dict[int, set[str]], bindings: list[str]) -> str:
    """Which binding of a binary has an array that is not called NAME or NAME_..., as its data file has it; or ""."""
    for number, found in sorted(names.items()):
        wanted = bindings[number] if number < len(bindings) else None
        for name in sorted(found):
            if wanted is None or name != wanted and not name.startswith(f"{wanted}_"):
                called = "which the data file lacks" if wanted is None else f"and in the data file {wanted}"
                return f"its binding {number} is called {name} in the source, {called}"
    return ""


def missing_features(reflection: Reflection, requires: set[str]) -> list[str]:
    """Sentences about capabilities in the binary that ``requires`` does not cover."""
    found = []
    for capability in sorted(reflection.capabilities - _FREE):
        if capability not in CAPABILITY_FEATURES:
            found.append(f"it uses SPIR-V capability {capability}, for which grilly has no feature name")
            continue
        name, feature = CAPABILITY_FEATURES[capability]
        if feature == "subgroup-*":
            if not any(other.startswith("subgroup-") for other in requires - {"subgroup-size-control"}):
                found.append(f"it uses {name}, so requires must hold a subgroup feature (subgroup-basic at least)")
        elif feature.endswith("-*"):
            if not any(other.startswith(feature[:-1]) for other in requires):
                found.append(f"it uses {name}, so requires must hold a feature {feature}")
        elif feature not in requires:
            found.append(f"it uses {name}, so requires must hold {feature}")
    return found
