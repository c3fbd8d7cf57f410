"""The layout of a family's push constants: names, types and offsets, read from its GLSL and held against each binary.

The manifest has it from the GLSL, so that it needs no compiler; every binary is compared with it as it is made.
"""

from __future__ import annotations

import re
import sys
from array import array

_TYPES = {"uint": "u32", "int": "i32", "float": "f32"}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BLOCK = re.compile(r"layout\s*\(\s*push_constant\b[^)]*\)\s*uniform\s+\w+\s*\{(.*?)\}", re.DOTALL)
_MEMBERS = re.compile(r"(\w+)\s+(\w+(?:\s*,\s*\w+)*)\Z")
#: Debug instructions (SPIR-V specification, section 3.49.2): sources, strings and names.
_DEBUG = {3, 4, 5, 6, 7, 8}


def source_layout(texts: list[str]) -> list[list]:
    """``[[name, "u32" | "i32" | "f32", offset], ...]`` of the push-constant block in a source and what it includes.

    What stands under a condition counts as there: a variant may lack the last members. Raises ValueError for what is no
    list of 32-bit numbers.
    """
    blocks = [block for text in texts for block in _BLOCK.findall(_COMMENT.sub("", text))]
    if len(blocks) > 1:
        raise ValueError(f"there are {len(blocks)} blocks of push constants")
    lines = "".join(blocks).splitlines()
    for line in lines:
        if re.match(r"\s*#\s*(el|define|include)", line):
            raise ValueError(f"{line.strip()!r} in the block of push constants; only #if ... #endif may stand there")
    members: list[list] = []
    for statement in "\n".join(line for line in lines if not line.lstrip().startswith("#")).split(";"):
        if not statement.strip():
            continue
        found = _MEMBERS.match(statement.strip())
        if not found or found[1] not in _TYPES:
            raise ValueError(f"{statement.strip()!r} among push constants; wanted uint, int or float, and names")
        for name in re.split(r"\s*,\s*", found[2]):
            members.append([name, _TYPES[found[1]], 4 * len(members)])
    return members


def misplaced(found: list[tuple], layout: list[list]) -> str:
    """What of a binary's push constants is not as the family's layout says; empty where it is a beginning of it."""
    for place, member in enumerate(map(list, found)):
        wanted = layout[place] if place < len(layout) else None
        if member != wanted:
            return f"its push constant {place} is {member}, and in the family's source {wanted}"
    return ""


def without_names(binary: bytes) -> bytes:
    """A SPIR-V binary without its debug instructions: what the compiler's -g0 makes."""
    words = array("I", binary)
    if sys.byteorder == "big":
        words.byteswap()
    kept, at = words[:5], 5
    while at < len(words):
        length = words[at] >> 16
        if length == 0:
            raise ValueError("an instruction of no words")
        if words[at] & 0xFFFF not in _DEBUG:
            kept.extend(words[at : at + length])
        at += length
    if sys.byteorder == "big":
        kept.byteswap()
    return kept.tobytes()
