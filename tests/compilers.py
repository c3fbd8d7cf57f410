"""Whether shaders can be compiled here, for tests that compile some of their own."""

from pathlib import Path

import pytest

from shaderbuild.builder import Builder
from shaderbuild.toolchain import ToolError


def _missing() -> str:
    """Why shaders cannot be compiled here; empty where they can."""
    builder = Builder(Path(__file__).parents[1])
    try:
        builder.glslang, builder.validator, builder.optimizer  # noqa: B018 - each is looked for when it is asked for
    except ToolError as error:
        return str(error)
    return ""


NO_COMPILER = _missing()
needs_compiler = pytest.mark.skipif(bool(NO_COMPILER), reason=NO_COMPILER or "compilers found")
