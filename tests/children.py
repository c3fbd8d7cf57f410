"""Environments for the Python processes that tests start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "grilly_py"


def environment(package: Path | str = PACKAGE, **variables: str) -> dict[str, str]:
    """This process's environment and import path, with ``package`` (a folder that holds grilly) in front."""
    path = os.pathsep.join([str(package), *(entry for entry in sys.path if entry)])
    return {**os.environ, "PYTHONPATH": path, **{name: str(value) for name, value in variables.items()}}
