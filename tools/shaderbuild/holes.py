"""Functions that stay functions in a binary, by their names: what expressions fill and what they call.

In GLSL they are ``hole_NAME`` and ``function_NAME``. The optimizer leaves a function alone that is not to be inlined;
grilly/runtime/linking.py takes that back.
"""

from __future__ import annotations

import struct
import sys
from array import array

_NAME, _FUNCTION, _DONT_INLINE = 5, 54, 2
_DEBUG = frozenset((3, 4, 5, 6, 7, 8))  # SPIR-V specification, section 3.49.2: sources, strings and names
_PREFIXES = ("hole_", "function_")


def with_functions(binary: bytes) -> bytes:
    """A binary without debug instructions but for the names of these functions, which are marked."""
    words = array("I", binary)
    if sys.byteorder == "big":
        words.byteswap()
    kept, named, at = words[:5], set(), 5
    while at < len(words):
        length, opcode = words[at] >> 16, words[at] & 0xFFFF
        if length == 0:
            raise ValueError("an instruction of no words")
        instruction = words[at : at + length]
        at += length
        if opcode == _NAME:
            name = instruction[2:].tobytes().split(b"\0")[0].decode().split("(")[0]  # glslang adds types
            if name.startswith(_PREFIXES):
                named.add(instruction[1])
                text = name.encode() + b"\0" * (4 - len(name) % 4)
                kept.extend((2 + len(text) // 4 << 16 | _NAME, instruction[1]))
                kept.extend(struct.unpack(f"<{len(text) // 4}I", text))
        elif opcode not in _DEBUG:
            if opcode == _FUNCTION and instruction[2] in named:
                instruction[3] |= _DONT_INLINE
            kept.extend(instruction)
    if sys.byteorder == "big":
        kept.byteswap()
    return kept.tobytes()
