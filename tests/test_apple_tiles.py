"""Attention and its gradients with what Apple's GPUs and the first Adreno 6xx are given, on any device."""

from __future__ import annotations

import numpy as np
import pytest

from cases import CASES, assert_as_accurate, expected, make_arrays, output_magnitude
from kernels import chosen_as_on, labels, pin, view_of
from test_backward import check, gradient


def of_dim(dim):
    return next(case for case in CASES if case.name.startswith("dim-") and case.dim == dim)


@pytest.mark.parametrize("dim", [256, 129])
def test_results(vulkan_backend, dim):
    """Loaded by vectors, and with 129 columns one by one."""
    case = of_dim(dim)
    q, k, v, mask = make_arrays(case)
    exact, _, plain, _ = expected(case, q, k, v, mask)
    options = {"mask": mask, "causal": case.causal, "scale": case.scale}
    with chosen_as_on(vulkan_backend, "apple") as backend:
        out = backend.attention.flash_attention2(q, k, v, **options)
        assert_as_accurate(out, exact, plain, str(case), output_magnitude(case, q, k, v, mask))
        check(backend, gradient(case, np.float32), (q, k, v), (q, k, v), options, str(case))
        used = labels(backend)
    ending = "" if dim == 256 else "-scalar"
    for family in ("flash-attention2", "flash-backward-dq", "flash-backward-dkv"):
        assert f"{family}.slim-half{ending}" in used


@pytest.mark.parametrize("architecture", ["apple", "qualcomm-adreno6"])
def test_gradients_of_values_wider_than_heads(vulkan_backend, architecture):
    case = next(case for case in CASES if case.name == "dim-one-value-256")
    q, k, v, mask = make_arrays(case)
    options = {"mask": mask, "causal": case.causal, "scale": case.scale}
    with chosen_as_on(vulkan_backend, architecture) as backend:
        check(backend, gradient(case, np.float32), (q, k, v), (q, k, v), options, str(case))
        used = labels(backend)
    assert "flash-backward-dkv.slim-half-scalar" in used


@pytest.mark.parametrize("variant", ["rolled", "rolled-scalar"])
def test_columns_that_are_not_unrolled(vulkan_backend, variant):
    registry = vulkan_backend.registry
    (naive,) = (v for v in registry.manifest.variants if v.name == f"attention-naive.{variant}.float32")
    view = pin(view_of(vulkan_backend), registry.choice(naive))
    for case in (case for case in CASES if case.name in ("dim-80", "dim-256", "value-wider", "dim-one-value-256")):
        if case.dim % naive.align == 0:
            q, k, v, mask = make_arrays(case)
            exact, _, plain, _ = expected(case, q, k, v, mask)
            out = view.attention.flash_attention2(q, k, v, mask=mask, causal=case.causal, scale=case.scale)
            assert_as_accurate(out, exact, plain, str(case), output_magnitude(case, q, k, v, mask))
