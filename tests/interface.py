"""What a file uses of the package that is not public, read from its source.

    python tests/interface.py [FILE ...]    prints it, with the places; by default of all tests outside of internals/

Public is what the pages of docs/api document: each name behind ``:::``. Of such a module also what its ``__all__``
lists is public, or where it has none, what it has without an underscore and is no module of its own.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parent
PAGES = TESTS.parent / "docs/api"
PACKAGE = TESTS.parent / "grilly_py"
#: Files that may look inside: the fixtures open runtimes, and the test of this file has faults in its strings.
EXEMPT = {"conftest.py", "test_interface.py"}
#: Attributes of public objects that are the package's own all the same.
INSIDE = {"opened"}
#: Functions that are given an attribute's name.
BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}
IMPORTED = re.compile(r"^\s*import grilly|^\s*from grilly|[;'\"] *(?:import|from) grilly", re.MULTILINE)
DOTTED = re.compile(r"from (grilly[\w.]*) import \(?([\w, ]+)|\b(grilly(?:\.\w+)+)")


class Use(NamedTuple):
    """One thing that is not public: an ``import``, an ``attribute``, or a part that is ``replaced``."""

    line: int
    kind: str
    what: str


@functools.cache
def documented() -> frozenset[str]:
    """The names of docs/api, and grilly itself."""
    pages = (page.read_text(encoding="utf-8") for page in PAGES.glob("*.md"))
    return frozenset({"grilly"}.union(*(re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE) for page in pages)))


@functools.cache
def source(module: str) -> Path | None:
    """The file of a module of the package."""
    path = PACKAGE.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def body(module: str) -> list[ast.stmt]:
    """The statements of a module of the package."""
    file = source(module)
    return ast.parse(file.read_text()).body if file else []


@functools.cache
def listed(module: str) -> frozenset[str]:
    """The names that a module writes in its ``__all__``, and those of the modules of which it imports all."""
    found: set[str] = set()
    for node in body(module):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            constants = (each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant))
            found.update(value for value in constants if isinstance(value, str))
        elif isinstance(node, ast.ImportFrom) and node.level and node.names[0].name == "*":
            made = (each for each in body(f"{module}.{node.module}") if isinstance(each, ast.Assign))
            found.update(name for each in made if not is_private(name := ast.unparse(each.targets[0])))
    return frozenset(found)


@functools.cache
def private_names() -> frozenset[str]:
    """Names with one underscore that the package defines: of functions, classes, variables and attributes."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return frozenset(filter(is_private, found)) - {"_"}


def is_private(name: str) -> bool:
    """Whether a name has a leading underscore and is none of Python's own."""
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


@functools.cache
def is_public(name: str) -> bool:
    """Whether a user may write this dotted name."""
    parts = [part for part in name.split(".") if not part.startswith("__")]
    if any(map(is_private, parts)):
        return False
    homes = (end for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in documented())
    end = next(homes, 0)
    home, inside = ".".join(parts[:end]), parts[end:]
    if not end or not inside:
        return bool(end)
    if inside[0] in listed(home):
        return len(inside) == 1 or source(f"{home}.{inside[0]}") is None
    # The names of grilly itself are made of several lists.
    return source(f"{home}.{inside[0]}") is None and (home == "grilly" or not listed(home))


def uses(text: str) -> list[Use]:
    """What a program uses that is not public, in the order of its lines."""
    reader = _Reader()
    reader.visit(ast.parse(text))
    return sorted(set(reader.found))


class _Reader(ast.NodeVisitor):
    def __init__(self) -> None:
        self.found: list[Use] = []
        self.names: dict[str, str] = {}  # what a name of the file stands for

    def note(self, node: ast.AST, kind: str, what: str) -> None:
        self.found.append(Use(node.lineno, kind, what))

    def check(self, node: ast.AST, name: str) -> None:
        if not is_public(name):
            self.note(node, "import", name)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] == "grilly":
                self.names[alias.asname or "grilly"] = alias.name if alias.asname else "grilly"
                self.check(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if not node.level and node.module.split(".")[0] == "grilly":
            for alias in node.names:
                self.names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                self.check(node, f"{node.module}.{alias.name}")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self.of_package(node.attr) and ast.unparse(node.value) not in ("self", "cls"):
            self.note(node, "attribute", ast.unparse(node))
        elif (name := self.dotted(node)) and is_public(name.rpartition(".")[0]):
            self.check(node, name)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = ast.unparse(node.func).rpartition(".")[2]
        texts = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if function in BY_NAME:
            for text in texts:
                if text.startswith("grilly."):
                    if not is_public(text):
                        self.note(node, "replaced", text)
                elif self.of_package(text):
                    self.note(node, "attribute", f"{ast.unparse(node.args[0])}.{text}")
                elif function == "setattr" and (home := self.dotted(node.args[0])) and not is_public(f"{home}.{text}"):
                    self.note(node, "replaced", f"{home}.{text}")
        elif function in ("import_module", "importorskip"):
            for text in texts:
                if text.startswith("grilly."):
                    self.check(node, text)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Programs in strings, which tests give to other processes."""
        if isinstance(node.value, str) and IMPORTED.search(node.value):
            for module, names, dotted in DOTTED.findall(node.value):
                for name in [f"{module}.{each.split()[0]}" for each in names.split(",") if each.strip()] or [dotted]:
                    self.check(node, name)

    def dotted(self, node: ast.AST) -> str | None:
        """The package's name for a chain of attributes; None for anything else."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute) and (home := self.dotted(node.value)):
            return f"{home}.{node.attr}"
        return None

    @staticmethod
    def of_package(name: str) -> bool:
        return name in private_names() or name in INSIDE


def outside() -> list[Path]:
    """The files of tests that may use the public interface only."""
    return sorted(path for path in TESTS.rglob("*.py") if "internals" not in path.parts and path.name not in EXEMPT)


if __name__ == "__main__":
    found = {path: uses(path.read_text()) for path in [*map(Path, sys.argv[1:])] or outside()}
    for path, what in sorted(found.items(), key=lambda item: -len(item[1])):
        for use in what:
            print(f"{path}:{use.line}: {use.kind} {use.what}")
    print(f"{sum(map(bool, found.values()))} of {len(found)} files, {sum(map(len, found.values()))} uses")
