"""What the namespace says of itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compute.arrays.promotion import FLOAT32, INT64
from ..compute.backend import Compute
from .data_types import isdtype


class _Info:
    """What the standard's inspection says of this namespace."""

    def capabilities(self) -> dict[str, Any]:
        """Boolean masks and shapes that depend on contents are supported; axes are not limited."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> None:
        """None: the backend that is opened at first use."""

    def default_dtypes(self, *, device: Compute | None = None) -> dict[str, np.dtype]:
        """float32 and int64."""
        return {"real floating": FLOAT32, "integral": INT64, "indexing": INT64}

    def dtypes(self, *, device: Compute | None = None, kind: Any = None) -> dict[str, np.dtype]:
        """The standard's dtypes that tensors may have."""
        names = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float32")
        return {name: np.dtype(name) for name in names if kind is None or isdtype(np.dtype(name), kind)}

    def devices(self) -> list[None]:
        """The default one."""
        return [None]


def __array_namespace_info__() -> _Info:
    """The standard's inspection: capabilities, devices and dtypes."""
    return _Info()
