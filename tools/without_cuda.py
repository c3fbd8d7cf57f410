#!/usr/bin/env python3
"""Lets PyTorch be imported that was installed without the CUDA packages it asks for: ``tools/without_cuda.py``.

PyTorch's package for Linux is one for CPU and CUDA, and its libraries do not load without CUDA's, which are gigabytes.
The loader only wants the libraries and their functions to be there. So small ones are made beside PyTorch's own, with
the functions that PyTorch refers to; each of them answers that there is no device. PyTorch then finds no GPU and works
on the CPU. Where all libraries are there nothing is done, as with PyTorch's packages for the CPU alone. Where some are,
all are made: the system's may be of another version. Needs gcc and readelf.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

#: How names of CUDA's libraries and of their functions begin.
LIBRARIES, FUNCTIONS = ("libcu", "libnv", "libnccl"), ("cu", "nv", "nccl")
#: What the functions do: 100 is cudaErrorNoDevice and CUDA_ERROR_NO_DEVICE, and errors have a text.
ERRORS = "lea text(%rip), %rax\nret\n"
OTHERS = 'mov $100, %eax\nret\ntext: .asciz "CUDA is not installed"\n.section .note.GNU-stack, "", @progbits\n'


def loads(name: str) -> bool:
    """Whether the system has a library of this name."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def make(path: Path, functions: set[tuple[str, str]]) -> None:
    """A library with functions (name and version, "" for none)."""
    names = sorted({name for name, _ in functions})
    with tempfile.TemporaryDirectory() as folder:
        source, versions = Path(folder, "functions.s"), Path(folder, "versions")
        lines = {name: f".globl {name}\n.type {name}, @function\n{name}:\n" for name in names}
        errors = [lines.pop(name) for name in names if re.search("Get.*(String|Name)$", name)]
        source.write_text("".join(errors) + ERRORS + "".join(lines.values()) + OTHERS)
        command = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{path.name}", "-o", str(path), str(source)]
        if named := {version for _, version in functions if version}:
            versions.write_text("".join(
                f"{version} {{ {'; '.join(n for n, v in sorted(functions) if v == version)}; }};\n"
                for version in sorted(named)
            ))  # fmt: skip
            command.append(f"-Wl,--version-script={versions}")
        subprocess.run(command, check=True)


def complete(folder: Path) -> list[str]:
    """Make what the libraries in a folder lack; the names of the libraries made."""
    files = sorted(folder.glob("*.so*"))
    needed: set[str] = set()
    source: dict[str, str] = {}  # the library that a version of symbols is of
    wanted: set[tuple[str, str]] = set()
    defined: set[str] = set()
    for file in files:
        done = subprocess.run(["readelf", "-WdV", "--dyn-syms", file], capture_output=True, text=True, check=True)
        needed.update(re.findall(r"\(NEEDED\).*\[(.*)\]", done.stdout))
        for block in done.stdout.partition("Version needs section")[2].split(" File: ")[1:]:
            source.update(dict.fromkeys(re.findall(r"Name: (\S+)", block), block.split()[0]))
        wanted.update(re.findall(r" GLOBAL +DEFAULT +UND (\w+)@?(\S*)", done.stdout))
        defined.update(re.findall(r" DEFAULT +\d+ (\w+)", done.stdout))
    lacking = sorted(name for name in needed - {file.name for file in files} if name.startswith(LIBRARIES))
    if all(map(loads, lacking)):
        return []
    found: dict[str, set[tuple[str, str]]] = {name: set() for name in lacking}
    for name, version in wanted:
        if version:
            if source.get(version) in found:
                found[source[version]].add((name, version))
        elif name.startswith(FUNCTIONS) and name not in defined:  # of which library it is nobody says
            for library in set(lacking) - set(source.values()):
                found[library].add((name, ""))
    for name, functions in found.items():
        make(folder / name, functions)
    return lacking


def main() -> None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        sys.exit("PyTorch is not installed")
    made = complete(Path(spec.origin).parent / "lib")
    print(f"PyTorch without CUDA: {', '.join(made) or 'nothing is missing'}")


if __name__ == "__main__":
    main()
