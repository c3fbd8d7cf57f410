"""Numbers that kernels and Python share, read from GLSL for the manifest, so that they stand in one place.

A line `// constants: TABLE` in a shader says that the constants below it, up to an empty line, belong to that table.
Where two files state one of them they must agree.
"""

from __future__ import annotations

import re
from pathlib import Path

_MARK = re.compile(r"^// constants: ([a-z]+)\b.*\n((?:.+\n)*)", re.MULTILINE)
_CONSTANTS = re.compile(r"^const (?:uint|int|float) ([^;]+);(?:\s*//.*)?$")
_ONE = re.compile(r"(\w+) = (0x[0-9A-Fa-f]+|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)u?")
_MODULE = '''\
"""What kernels and Python share, by table and name. tools/compile_shaders.py writes this file from shaders/."""

CONSTANTS: dict[str, dict[str, int | float]] = {{
{}}}
'''


def shared_constants(paths: list[Path], show=str) -> dict[str, dict[str, int | float]]:
    """Tables of names and values. Raises ValueError with file and line for what cannot be read or differs."""
    tables: dict[str, dict[str, int | float]] = {}
    stated: dict[tuple[str, str], str] = {}
    for path in paths:
        text = path.read_text(encoding="utf-8")
        for mark in _MARK.finditer(text):
            first = text.count("\n", 0, mark.start()) + 2
            for number, line in enumerate(mark[2].splitlines(), first):
                place = f"{show(path)}:{number}"
                if line.startswith("//"):
                    continue
                found = _CONSTANTS.match(line)
                if not found:
                    raise ValueError(f"{place}: {line!r} among shared constants; wanted const uint, int or float")
                for part in found[1].split(", "):
                    one = _ONE.fullmatch(part)
                    if not one:
                        raise ValueError(f"{place}: {part!r} among shared constants; wanted NAME = number")
                    value = int(one[2], 0) if re.fullmatch(r"-?\d+|0x.*", one[2]) else float(one[2])
                    table = tables.setdefault(mark[1], {})
                    if table.setdefault(one[1], value) != value:
                        other = stated[mark[1], one[1]]
                        raise ValueError(f"{place}: {one[1]} is {value}, and {table[one[1]]} at {other}")
                    stated.setdefault((mark[1], one[1]), place)
    return tables


def python_text(tables: dict[str, dict[str, int | float]]) -> str:
    """The module by which Python has them (grilly/registry/shader_constants.py)."""
    lines = []
    for table in sorted(tables):
        lines.append(f'    "{table}": {{')
        lines += [f'        "{name}": {value!r},' for name, value in tables[table].items()]
        lines.append("    },")
    return _MODULE.format("".join(f"{line}\n" for line in lines))
