"""Where many options meet: what those devices are given then whose registers the usual kernels would pass, on any."""

from __future__ import annotations

import numpy as np
import pytest

import features
import test_features
from features import AXES, Cell
from kernels import chosen_as_on, labels
from test_backward import check as check_gradients

#: All that a call may have but pages, and masks of tiles.
OPTIONS = {
    "causal": "on", "window": (19, 15), "prefix": "some", "softcap": 30.0, "bias": "full", "alibi": "heads",
    "t5": "both-ways", "sinks": "heads", "segments": "pair", "lengths": "both", "blocks": (16, 16), "dropout": 0.1,
}  # fmt: skip


def cell(width, mask):
    plain = {axis: variants[0] for axis, variants in AXES.items()}
    return Cell("float32", tuple((plain | OPTIONS | {"width": width, "size": (64, 128), "mask": mask}).values()))


@pytest.mark.parametrize("mask", [None, "bool-full"])
@pytest.mark.parametrize("architecture, width, wanted", [
    ("apple", (33, 31), "many-scalar.v32"),
    *(pytest.param(*kernel, marks=pytest.mark.long("kernels of other devices")) for kernel in (
        ("apple", (32, 32), "many.v32"), ("apple", (64, 64), "many.v64"),
        ("apple", (32, 192), "slim-half"), ("apple", (33, 191), "slim-half-scalar"),
        ("qualcomm-adreno6", (64, 64), "many.v64-adreno6"), ("qualcomm-adreno6", (33, 63), "many-scalar.v64-adreno6"),
    )),
])  # fmt: skip
def test_results(vulkan_backend, monkeypatch, architecture, width, wanted, mask):
    # These have 32 KiB of shared memory: with more, another tile is chosen for wide values.
    limits = vulkan_backend.device.limits
    monkeypatch.setitem(limits, "shared_bytes", min(limits["shared_bytes"], 32768))
    with chosen_as_on(vulkan_backend, architecture) as backend:
        test_features.check(backend, None, cell(width, mask))
        assert f"flash-attention2.{wanted}" in labels(backend)


@pytest.mark.long("kernels of other devices")
@pytest.mark.parametrize("architecture, width, wanted", [
    ("intel-xe2", (64, 64), "dkv.many.d128"), ("intel-xe2", (63, 61), "dkv.many-scalar.d128"),
    ("intel-xe2", (128, 96), "dkv.many.d128"), ("intel-xe2", (192, 32), "dkv.many.d256"),
    ("intel-xe2", (33, 191), "dkv.many-scalar.d256"),
    ("apple", (32, 32), "dkv.many.d32"), ("apple", (64, 64), "dq.many"), ("apple", (61, 33), "dq.many-scalar"),
])  # fmt: skip
def test_gradients(vulkan_backend, architecture, width, wanted):
    if wanted.endswith("d256") and vulkan_backend.device.limits["shared_bytes"] < 33796:
        pytest.skip("the device has less than 33,796 bytes of shared memory")
    call = features.make(cell(width, "add-full"))
    shape = (*call.q.shape[:3], call.v.shape[3])
    grad = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    with chosen_as_on(vulkan_backend, architecture) as backend:
        check_gradients(backend, grad, (call.q, call.k, call.v), call.clean, call.options, f"{architecture} {width}")
        assert f"flash-backward-{wanted}" in labels(backend)
