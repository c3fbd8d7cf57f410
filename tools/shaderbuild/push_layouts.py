"""Reads the push constants of a shader from its source: the names and types that Python packs them by.

SPIR-V as it is shipped has no names, so they come from the block `uniform Push { ... }` of the source or of a file that
it includes. Types and size are compared with the binary's, so that the two cannot disagree.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

_INCLUDE = re.compile(r'^[ \t]*#include[ \t]+"([^"]+)"', re.M)
_BLOCK = re.compile(r"layout\s*\(\s*push_constant[^)]*\)\s*uniform\s+\w+\s*\{(.*?)\}", re.S)
_OPTIONAL = re.compile(r"^[ \t]*#if.*?^[ \t]*#endif[^\n]*\n", re.S | re.M)
_DIRECTIVE = re.compile(r"^[ \t]*#[^\n]*\n", re.M)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_MEMBER = re.compile(r"(uint|int|float)\s+(\w+(?:\s*,\s*\w+)*)\s*\Z")


def _blocks(path: Path, folders: tuple[Path, ...], seen: set[Path], read: Callable[[Path], str]):
    """The bodies of the push-constant blocks in a file and what it includes."""
    seen.add(path)
    text = read(path)
    yield from _BLOCK.findall(text)
    for name in _INCLUDE.findall(text):
        found = next(((f / name).resolve() for f in (path.parent, *folders) if (f / name).is_file()), None)
        if found is not None and found not in seen:
            yield from _blocks(found, folders, seen, read)


def _members(body: str) -> list[list[str]]:
    made = []
    for declaration in _COMMENT.sub("", body).split(";"):
        if declaration.strip():
            match = _MEMBER.match(declaration.strip())
            if match is None:
                raise ValueError(
                    f"push constants hold {declaration.strip()!r}; expected words of the types uint, int and float"
                )
            made += [[name.strip(), match.group(1)] for name in match.group(2).split(",")]
    return made


def push_layout(source: Path, push_bytes: int, read: Callable[[Path], str]) -> list[list[str]]:
    """``[[name, "uint" | "int" | "float"], ...]`` of a shader whose push constants take so many bytes.

    ``read`` gives a file's text. Parts of the block between ``#if...`` and ``#endif`` belong to it if that makes it as
    long as ``push_bytes`` says.

    Raises
    ------
    ValueError
        Where the source has no such block, or one of another length.
    """
    if push_bytes == 0:
        return []
    folders = (source.parent, source.parent / "include")
    lengths = []
    for body in _blocks(source, folders, set(), read):
        for text in (_DIRECTIVE.sub("", body), _DIRECTIVE.sub("", _OPTIONAL.sub("", body))):
            members = _members(text)
            if 4 * len(members) == push_bytes:
                return members
            lengths.append(4 * len(members))
    found = ", ".join(map(str, sorted(set(lengths)))) or "none"
    raise ValueError(f"push_bytes is {push_bytes}, and the source has push constants of {found} bytes")
