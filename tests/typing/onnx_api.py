"""As public_api.py, for what needs onnx."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from typing_extensions import assert_type

import grilly
from grilly import onnx as go


def run(proto: onnx.ModelProto, ids: NDArray[np.int64], x: grilly.Tensor, backend: grilly.Compute) -> None:
    model = go.Model("model.onnx", backend)
    assert_type(model.run({"ids": ids, "x": x}, capture=False), dict[str, NDArray[Any]])
    assert_type(model.inputs, tuple[go.Input, ...])
    assert_type(model.outputs, tuple[str, ...])
    assert_type(model.uncaptured, str | None)
    assert_type(go.Backend.is_compatible(proto), bool)
    assert_type(go.Backend.prepare(proto, capture=True), go.Prepared)

    model.run(ids)  # type: ignore[arg-type]
    go.Backend.prepare(proto, capture="yes")  # type: ignore[arg-type]
