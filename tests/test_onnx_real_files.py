"""Real ONNX files against ONNX Runtime: a few small ones, and with GRILLY_ONNX_FILES=all every one of them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

import grilly
from real_files import FEW, FILES, Missing, difference, folder, outputs, session

pytestmark = [pytest.mark.needs("onnx", "ml_dtypes", "onnxruntime"), pytest.mark.usefixtures("default")]
if importlib.util.find_spec("onnx"):
    import grilly.onnx

#: What the largest difference may be, as a share of the largest number. ONNX Runtime's results with and without its
#: optimizations differ by up to 3e-4.
BOUND = 5e-4
#: Numbers of quantized networks jump where one is rounded the other way: with an input that is larger by a millionth
#: ONNX Runtime's own results differ by 2e-2.
BOUNDS = {"ddddocr/common_old.onnx": 5e-2}


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
    bound = BOUNDS.get(file.label, BOUND)
    assert difference(model.run(feeds), wanted) < bound
    assert model.graph is not None or "NonZero" in model.uncaptured, model.uncaptured  # of the Piper voice
    assert difference(model.run(feeds), wanted) < bound


def test_the_page_has_a_line_for_each_file():
    page = (Path(__file__).parents[1] / "docs" / "onnx.md").read_text(encoding="utf-8")
    lines = [line.split(" | ") for line in page.splitlines() if line.count(" | ") == 8]
    assert [tuple(line[:2]) for line in lines[1:]] == [(f"| {f.package} {f.version}", f"`{f.name}`") for f in FILES]
