"""The floors of docs/architecture.md: a module imports only from floors below its own."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import children
import grilly

PACKAGE = Path(__file__).parents[1] / "grilly_py" / "grilly"
# Floor of each top-level part; a higher number may import a lower or an equal one.
FLOORS = {
    "errors": 0, "quantization": 0, "reference": 0, "runtime": 1, "registry": 2, "compute": 3,
    "array_api": 4, "functional": 4, "linalg": 4, "pinned": 4, "random": 4, "interop": 4,
    "cuda": 5, "dask": 5, "nn": 5, "optim": 5, "torch": 5, "transforms": 5,
    "integrations": 6, "models": 6, "onnx": 6, "transformers": 6, "data": 7, "cli": 8, "__init__": 9, "__main__": 9,
}  # fmt: skip
MODULES = sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_parts(path: Path) -> set[str]:
    """Top-level parts of grilly that a module imports, at any depth of its code."""
    package = ("grilly", *path.relative_to(PACKAGE).parent.parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            full = (*base, *(node.module.split(".") if node.module else ()))
            names = [(*full, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        for name in names:
            if name[0] == "grilly" and len(name) > 1 and name[1] in FLOORS:
                found.add(name[1])
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path):
    part = part_of(path)
    assert part in FLOORS, f"{part} has no floor: add it to docs/architecture.md and here"
    upward = {other for other in imported_parts(path) if FLOORS[other] > FLOORS[part]}
    assert not upward, f"{part} imports from a floor above it: {upward}"


def test_public_modules_are_imported_by_their_names():
    for name in ("data", "functional", "linalg", "models", "nn", "pinned", "quantization", "random", "reference"):
        module = importlib.import_module(f"grilly.{name}")
        assert getattr(grilly, name) is module and module.__name__ == f"grilly.{name}"


def files_imported(path: Path) -> set[Path]:
    """The package's files that a file imports: at its top, inside functions, and for type checkers alone."""
    package = ("grilly", *path.relative_to(PACKAGE).parent.parts)
    found = set()

    def file_of(name: tuple[str, ...]) -> Path | None:
        below = PACKAGE.joinpath(*name[1:])
        for candidate in (below.with_suffix(".py"), below / "__init__.py"):
            if candidate.is_file() and below != PACKAGE:
                return candidate
        return PACKAGE / "__init__.py" if name == ("grilly",) else None

    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            if module[:1] == ("grilly",):  # a name is a file of the package, or else something that the module has
                found |= {file_of((*module, alias.name)) or file_of(module) for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
            found |= {file_of(name) for name in names if name[0] == "grilly"}
    return found - {None, path}


def circles(imports: dict[Path, set[Path]]) -> list[set[Path]]:
    """Sets of files that import each other, however far around."""
    reach = {path: set(others) for path, others in imports.items()}
    changed = True
    while changed:
        changed = False
        for others in reach.values():
            more = set().union(*(reach.get(other, set()) for other in others)) - others
            if more:
                others |= more
                changed = True
    found = []
    for path, others in reach.items():
        circle = {other for other in others if path in reach.get(other, ())} | {path}
        if path in others and circle not in found:
            found.append(circle)
    return found


def test_no_file_takes_part_in_a_circle_of_imports():
    found = circles({path: files_imported(path) for path in MODULES})
    assert not found, [sorted(str(p.relative_to(PACKAGE)) for p in circle) for circle in found]


def test_circles_are_found():
    a, b, c, d = (Path(name) for name in "abcd")
    assert circles({a: {b}, b: {c}, c: set(), d: {a}}) == []
    assert circles({a: {b}, b: {c}, c: {a, d}, d: set()}) == [{a, b, c}]
    init = PACKAGE / "compute/__init__.py"
    assert PACKAGE / "compute/backend.py" in files_imported(init)
    assert PACKAGE / "runtime/interface.py" in files_imported(PACKAGE / "compute/device/tensor.py"), "for types alone"


USERS = ("nn", "functional", "optim", "integrations", "models", "data", "dask", "torch", "transformers", "onnx")


@pytest.mark.parametrize("path", [p for p in MODULES if part_of(p) in USERS], ids=str)
def test_users_floors_say_no_vulkan(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        for name in [a.name for a in getattr(node, "names", []) if isinstance(node, (ast.Import, ast.ImportFrom))]:
            assert "vulkan" not in name.lower()


def test_import_touches_no_vulkan_and_no_extra():
    code = (
        "import sys; sys.modules['vulkan'] = None; sys.modules['kp'] = None\n"
        "import grilly, grilly.functional, grilly.models, grilly.nn, grilly.reference\n"
        "extras = ('tokenizers', 'jinja2', 'soundfile', 'soxr')\n"
        "print(sorted(m for m in sys.modules if 'vulkan' in m.split('.')[1:] or m in extras))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=children.environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
