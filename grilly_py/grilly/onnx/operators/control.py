"""Choices between graphs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..table import Call, operator


@operator("If", host=(0,))
def choose(call: Call, condition: np.ndarray) -> Any:
    """One of two graphs; the host must know which."""
    return call.branches["then_branch" if condition.item() else "else_branch"]()
