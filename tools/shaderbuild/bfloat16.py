"""Turns a module's 16-bit floats from half precision into bfloat16, for compilers that know no bfloat16.

A shader compiled for the data type bfloat16 writes ``float16_t`` for the elements of cooperative matrices and of the
arrays they are loaded from. What the compiler makes of it differs from the module wanted in declarations and constants
only, as long as nothing computes in the type: SPV_KHR_bfloat16 allows it in memory, in conversions and in matrix
products. The module is rewritten before the optimizer sees it, so that constants folded from others are right.

spirv-val refuses most arithmetic and all extended instructions on bfloat16 scalars and vectors by their name. Refused
here is what it lets pass: comparisons, arithmetic on cooperative matrices, and instructions that know half precision
without naming its type.

Sources: SPIR-V specification, sections 2.3 and 3; SPV_KHR_bfloat16; GLSL.std.450 extended instructions.
"""

from __future__ import annotations

import struct
import sys
from array import array

_EXTENSION = "SPV_KHR_bfloat16"
_ENCODING = 0  # FP Encoding BFloat16KHR
_FLOAT16, _MATRIX = 9, 6022  # capabilities Float16, CooperativeMatrixKHR
_BFLOAT16, _BFLOAT16_MATRIX = 5116, 5118  # capabilities BFloat16TypeKHR, BFloat16CooperativeMatrixKHR

#: Arithmetic that spirv-val allows on cooperative matrices, or on vectors.
_ARITHMETIC = {
    127: "OpFNegate",
    129: "OpFAdd",
    131: "OpFSub",
    133: "OpFMul",
    136: "OpFDiv",
    142: "OpVectorTimesScalar",
    143: "OpMatrixTimesScalar",
}
_COMPARISONS = dict(
    enumerate(
        f"OpF{order}{relation}"
        for relation in ("Equal", "NotEqual", "LessThan", "GreaterThan", "LessThanEqual", "GreaterThanEqual")
        for order in ("Ord", "Unord")
    )
)
_FIRST_COMPARISON = 180  # OpFOrdEqual
#: GLSL.std.450 instructions between half precision and words.
_HALF_WORDS = {58: "PackHalf2x16 (packHalf2x16)", 62: "UnpackHalf2x16 (unpackHalf2x16)"}


class Bfloat16Error(Exception):
    """The module computes in half precision, so its floats cannot become bfloat16."""


def bfloat16_bits(half: int) -> int:
    """The bfloat16 nearest to a half-precision number (ties to even), both as 16-bit words.

    Raises
    ------
    Bfloat16Error
        The number is NaN or infinite: most likely a constant past the range of half precision.
    """
    if half & 0x7C00 == 0x7C00:
        raise Bfloat16Error(
            f"a 16-bit constant is infinite or NaN (0x{half:04x}); half precision ends at 65504: use a float32 constant"
        )
    word = struct.unpack("<I", struct.pack("<f", struct.unpack("<e", struct.pack("<H", half))[0]))[0]
    return (word + 0x7FFF + (word >> 16 & 1)) >> 16


def to_bfloat16(binary: bytes) -> bytes:
    """The module with bfloat16 for its 16-bit floats; unchanged where it declares none.

    Parameters
    ----------
    binary : bytes
        A valid SPIR-V module with specialization constants in place, before any optimizer.

    Raises
    ------
    Bfloat16Error
        An instruction computes in half precision, or a constant does not fit.
    """
    words = array("I", binary)
    if sys.byteorder == "big":
        words.byteswap()
    halves: set[int] = set()  # the float type of 16 bits
    several: set[int] = set()  # vectors and cooperative matrices of it
    values: set[int] = set()  # results of these types
    computed: list[str] = []
    matrix = False
    written = array("I", words[:5])
    extension_at = None
    at = 5
    while at < len(words):
        length, opcode = words[at] >> 16, words[at] & 0xFFFF
        instruction = words[at : at + length]
        at += length
        if opcode == 17 and instruction[1] == _MATRIX:
            matrix = True
        elif opcode == 17:  # OpCapability: capabilities come first, and the extension after the last
            pass
        elif extension_at is None:
            extension_at = len(written)
        if opcode == 22 and instruction[2] == 16 and length == 3:  # OpTypeFloat
            halves.add(instruction[1])
            instruction = array("I", [4 << 16 | 22, instruction[1], 16, _ENCODING])
        elif opcode in (23, 4456) and instruction[2] in halves:  # OpTypeVector, OpTypeCooperativeMatrixKHR
            several.add(instruction[1])
        elif opcode in (43, 50) and instruction[1] in halves:  # OpConstant, OpSpecConstant
            instruction[3] = bfloat16_bits(instruction[3] & 0xFFFF)
        elif opcode in _ARITHMETIC and (instruction[1] in several or instruction[1] in halves):
            computed.append(_ARITHMETIC[opcode])
        elif opcode - _FIRST_COMPARISON in _COMPARISONS and instruction[3] in values:
            computed.append(_COMPARISONS[opcode - _FIRST_COMPARISON])
        elif opcode == 12 and instruction[4] in _HALF_WORDS:  # OpExtInst; shaders have no other set of instructions
            computed.append(_HALF_WORDS[instruction[4]])
        elif opcode == 116:
            computed.append("OpQuantizeToF16")
        if length > 2 and (instruction[1] in halves or instruction[1] in several):
            values.add(instruction[2])
        written.extend(instruction)
    if computed:
        raise Bfloat16Error(
            f"a bfloat16 binary may load, store, convert and multiply matrices of 16-bit floats, and this one has "
            f"{', '.join(sorted(set(computed)))}: convert to float32 first"
        )
    if not halves:
        return binary
    name = _EXTENSION.encode() + b"\0"
    name += b"\0" * (-len(name) % 4)
    text = array("I", struct.unpack(f"<{len(name) // 4}I", name))
    extension = array("I", [(len(text) + 1) << 16 | 10, *text])
    capabilities = [_BFLOAT16, *([_BFLOAT16_MATRIX] if matrix else [])]
    head = array("I")
    position = 5
    while position < extension_at:
        if written[position + 1] != _FLOAT16:
            head.extend(written[position : position + 2])
        position += 2
    for capability in capabilities:
        head.extend([2 << 16 | 17, capability])
    result = written[:5] + head + extension + written[extension_at:]
    if sys.byteorder == "big":
        result.byteswap()
    return result.tobytes()
