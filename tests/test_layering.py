"""The floors of docs/architecture.md: a module imports only from floors below its own."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import children

PACKAGE = Path(__file__).parents[1] / "grilly_py" / "grilly"
# Floor of each top-level part; a higher number may import a lower or an equal one.
FLOORS = {
    "errors": 0, "reference": 0, "runtime": 1, "registry": 2, "compute": 3,
    "functional": 4, "dask": 5, "nn": 5, "integrations": 6, "cli": 7, "__init__": 8, "__main__": 8,
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


USERS = ("nn", "functional", "integrations", "dask")


@pytest.mark.parametrize("path", [p for p in MODULES if part_of(p) in USERS], ids=str)
def test_users_floors_say_no_vulkan(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        for name in [a.name for a in getattr(node, "names", []) if isinstance(node, (ast.Import, ast.ImportFrom))]:
            assert "vulkan" not in name.lower()


def test_import_touches_no_vulkan():
    code = (
        "import sys; sys.modules['vulkan'] = None; sys.modules['kp'] = None\n"
        "import grilly, grilly.functional, grilly.nn, grilly.reference\n"
        "print(sorted(m for m in sys.modules if m.startswith('grilly.runtime.vulkan')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=children.environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
