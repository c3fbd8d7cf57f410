"""Real ONNX files against ONNX Runtime: a few small ones, and with GRILLY_ONNX_FILES=all every one of them."""

from __future__ import annotations

import importlib.util
import os

import pytest

import grilly
from onnx_files import FEW, FILES, Missing, difference, folder, outputs, session

pytestmark = [pytest.mark.needs("onnx", "ml_dtypes", "onnxruntime"), pytest.mark.usefixtures("default")]
if importlib.util.find_spec("onnx"):
    import grilly.onnx

#: What the largest difference may be, as a share of the largest number. Outputs of quantized networks jump where a
#: number is rounded the other way.
BOUND = 2e-4


@pytest.mark.parametrize(
    "file", FILES if os.environ.get("GRILLY_ONNX_FILES") == "all" else FEW, ids=lambda file: file.label
)
def test_a_real_file_gives_what_onnx_runtime_gives(file):
    try:
        path = folder(file.package, file.version) / file.name
    except Missing as why:
        pytest.skip(str(why))
    model, feeds = grilly.onnx.Model(path), file.feeds()
    wanted = outputs(session(file, 1), feeds)
    assert difference(model.run(feeds), wanted) < BOUND
    assert model.graph is not None, model.uncaptured
    assert difference(model.run(feeds), wanted) < BOUND
