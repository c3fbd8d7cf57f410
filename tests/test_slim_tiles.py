"""Attention's tiles for devices with few registers, with options alone and many at once, on any device."""

from __future__ import annotations

import pytest

from features import Cell
from kernels import only, shipped
from test_matrix_extras import PLAIN, judge_cell

#: In registers, and in shared memory; what dropout keeps.
OPTIONS = {
    "dropout": {"dropout": 0.5},
    "words": {
        "softcap": 1.5, "alibi": "heads", "sinks": "heads", "lengths": "both", "segments": "documents",
        "window": (19, 15),
    },
    "all": {
        "mask": "bool-full", "bias": "full", "alibi": "heads", "t5": "both-ways", "softcap": 1.5, "sinks": "heads",
        "causal": "on", "prefix": "some", "lengths": "keys", "blocks": (16, 16), "dropout": 0.1,
    },
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
def test_options(vulkan_backend, options):
    (variant,) = (v for v in shipped("attention", "flash-attention2") if v.name == "flash-attention2.slim.v64.float32")
    chosen = PLAIN | {"size": (53, 67), "hidden": "nan", "width": (64, 64)} | OPTIONS[options]
    judge_cell(only(vulkan_backend, variant), Cell("float32", tuple(chosen.values())), variant.family)
