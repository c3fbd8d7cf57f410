"""Checking a SPIR-V binary before a driver sees it: some drivers crash on one that is damaged.

Layout of a module and its instructions: SPIR-V specification, section 2.3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator

import numpy as np

from ..errors import ShaderError
from .interface import ProgramSpec

_MAGIC = 0x07230203
_HEADER = 5  # words
_ENTRY_POINT, _DECORATE = 15, 71  # opcodes
_COMPUTE = 5  # execution model GLCompute
_BINDING = 33  # decoration


def instructions(name: str, spirv: bytes, opcodes: Collection[int]) -> Iterator[tuple[int, list[int]]]:
    """The opcode and the operand words of each instruction with one of these opcodes, and of the last one.

    Raises
    ------
    ShaderError
        The bytes are no SPIR-V module, or one that was cut short or damaged.
    """
    if len(spirv) < 4 * _HEADER or len(spirv) % 4:
        raise ShaderError(f"{name}: {len(spirv)} bytes are not a SPIR-V module")
    words = np.frombuffer(spirv, "<u4").tolist()  # a binary has thousands, and an array's numbers are slow one by one
    if words[0] != _MAGIC:
        raise ShaderError(f"{name}: the binary does not begin with SPIR-V's magic number")
    at = _HEADER
    count = len(words)
    while at < count:
        length, opcode = words[at] >> 16, words[at] & 0xFFFF
        if length == 0 or at + length > count:
            raise ShaderError(f"{name}: the SPIR-V module is cut short or damaged at word {at}")
        start, at = at + 1, at + length
        if at == count or opcode in opcodes:
            yield opcode, words[start:at]


def verify(spec: ProgramSpec) -> None:
    """See that ``spec.spirv`` is the binary that was recorded, whole, with a compute entry point called main.

    Raises
    ------
    ShaderError
        It is not, or it uses a binding that ``spec.access`` does not declare.
    """
    entry = False
    opcode = 0
    for opcode, words in instructions(spec.name, spec.spirv, (_ENTRY_POINT, _DECORATE)):
        if opcode == _ENTRY_POINT:
            entry |= words[0] == _COMPUTE and np.array(words[2:], "<u4").tobytes().split(b"\0")[0] == b"main"
        elif opcode == _DECORATE and words[1] == _BINDING and words[2] >= len(spec.access):
            raise ShaderError(
                f"{spec.name}: the shader uses binding {words[2]}, and {len(spec.access)} bindings are declared"
            )
    if opcode != 56:  # OpFunctionEnd closes every module that has a function
        raise ShaderError(f"{spec.name}: the SPIR-V module is cut short: its last function does not end")
    if not entry:
        raise ShaderError(f"{spec.name}: the module has no compute entry point called main")
    if hashlib.sha256(spec.spirv).hexdigest() != spec.digest:
        raise ShaderError(f"{spec.name}: the binary's SHA-256 is not the one recorded for it; the file is damaged")
