"""Scripts of tools/ as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[1] / "tools"


def tool(name: str) -> ModuleType:
    """tools/NAME.py, loaded anew; a skip in an installed package, which has no tools."""
    path = TOOLS / f"{name}.py"
    if not path.exists():
        pytest.skip(f"tools/{name}.py is not in an installed package")
    spec = importlib.util.spec_from_file_location(f"{name}_tool", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
