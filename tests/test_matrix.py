"""Every attention kernel on matrix units that the device can run, one by one, against float64 NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cases import (
    BFLOAT16,
    TILED_CASES,
    Case,
    assert_as_accurate,
    expected,
    lse_magnitude,
    make_arrays,
    output_magnitude,
    rounded_weights,
)
from kernels import only_or_skip, shipped

VARIANTS = [v for v in shipped("attention") if v.unproven and v.dtype != "float32"]
FAMILY = "flash-attention3"  # named, so that few queries are not given to the kernels that split the keys
CASES = [
    *TILED_CASES,
    Case("long-keys", heads=1, queries=5, keys=1031),
    Case("scores-of-thousands", queries=70, keys=150, scale=40.0),
]


def dtype_of(variant):
    if variant.dtype == "float16":
        return np.dtype(np.float16)
    if BFLOAT16 is None:
        pytest.skip("ml_dtypes is not installed")
    return np.dtype(BFLOAT16)


def pinned(backend, variant, value_dim=None):
    """A view of the backend that runs the variant, and its largest head dimension; or a skip that says why not."""
    dim = min(variant.limits[name][1] for name in ("head_dim", "value_dim"))
    within = {fact: low for fact, (low, _) in variant.limits.items()}
    facts = {**within, "align": 8, "head_dim": dim, "value_dim": value_dim or dim}
    return only_or_skip(backend, variant, **facts), dim


def attend(view, arrays, case, mask=None):
    """(output, log-sum-exp) as NumPy arrays."""
    out, lse = view.attention.flash_attention2(
        *(view.tensor(a) for a in arrays), mask=mask, causal=case.causal, scale=case.scale, return_lse=True,
        kernel=FAMILY,
    )  # fmt: skip
    return out.numpy(), lse.numpy()


def judge(result, case, arrays, mask):
    out, lse = result
    exact, exact_lse, _, plain_lse = expected(case, *arrays, mask)
    plain = rounded_weights(case, *arrays, mask)
    assert_as_accurate(out, exact, plain, f"{case.name} output", output_magnitude(case, *arrays, mask))
    assert_as_accurate(lse, exact_lse, plain_lse, f"{case.name} lse", lse_magnitude(case, *arrays[:2], plain_lse))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.label + "." + v.dtype)
def test_case(backend, variant, case):
    dtype = dtype_of(variant)
    view, dim = pinned(backend, variant)
    case = dataclasses.replace(case, dim=dim)
    *arrays, mask = make_arrays(case, dtype)
    judge(attend(view, arrays, case, mask), case, arrays, mask)


def far_from_zero(dim, dtype, first):
    """A case and its arrays: scores of the first keys are 80 below to 80 above the others', by rows."""
    case = Case("far", queries=91, keys=150, dim=dim, scale=1.0)
    q, k, v, _ = make_arrays(case, np.float32)
    q, k = q * 0.3, k * 0.3
    q[..., 0], k[..., 0] = np.linspace(-20, 20, 91), np.where(np.arange(150) < first, 4, 0)
    return case, [a.astype(dtype) for a in (q, k, v)]


@pytest.mark.parametrize("first", [30, 150])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.label + "." + v.dtype)
def test_maxima_far_from_zero(backend, variant, first):
    """Some kernels guess the first tile's, and make its weights again where that was wrong."""
    dtype = dtype_of(variant)
    view, dim = pinned(backend, variant)
    case, arrays = far_from_zero(dim, dtype, first)
    judge(attend(view, arrays, case), case, arrays, None)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.label + "." + v.dtype)
def test_narrow_heads_and_strides(backend, variant):
    """Head dimensions below the tile's, unlike for values, in (B, S, H, D) arrays cut out of larger ones."""
    dtype = dtype_of(variant)
    view, dim = pinned(backend, variant)
    narrow, value_dim = max(8, dim - 24), max(8, dim // 2)
    case = Case("narrow", heads=4, kv_heads=2, queries=75, keys=93, dim=narrow, value_dim=value_dim, causal=True)
    *arrays, _ = make_arrays(case, dtype)

    def within(array):
        big = np.full((array.shape[0], array.shape[2] + 3, array.shape[1], array.shape[3] + 8), np.nan, dtype)
        big[:, 2 : array.shape[2] + 2, :, : array.shape[3]] = array.transpose(0, 2, 1, 3)
        return view.tensor(big)[:, 2 : array.shape[2] + 2, :, : array.shape[3]].transpose(0, 2, 1, 3)

    out, lse = view.attention.flash_attention2(*map(within, arrays), causal=True, return_lse=True, kernel=FAMILY)
    judge((out.numpy(), lse.numpy()), case, arrays, None)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.label + "." + v.dtype)
def test_future_and_hidden_keys_do_not_leak(backend, variant, poison):
    dtype = dtype_of(variant)
    view, dim = pinned(backend, variant)
    case = Case("leak", queries=150, keys=150, dim=dim, causal=True)
    arrays = make_arrays(case, dtype)[:3]
    q, k, v = (a.copy() for a in arrays)
    k[:, :, 100:] = poison
    v[:, :, 100:] = poison
    out, _ = attend(view, (q, k, v), case)
    clean, exact = rounded_weights(case, *arrays, None), expected(case, *arrays, None)[0]
    assert_as_accurate(out[:, :, :100], exact[:, :, :100], clean[:, :, :100], "rows before the poison")
    assert not np.isfinite(out[:, :, 100:].astype(np.float32)).any()

    mask = np.arange(150) < 100
    case = dataclasses.replace(case, causal=False)
    out, _ = attend(view, (q, k, v), case, np.broadcast_to(mask, (150, 150)))
    short = (arrays[0], arrays[1][:, :, :100], arrays[2][:, :, :100])
    clean, exact = rounded_weights(case, *short, None), expected(case, *short, None)[0]
    assert_as_accurate(out, exact, clean, "keys hidden by a mask")


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.label + "." + v.dtype)
def test_queries_that_are_not_finite_stay_where_they_are(backend, variant):
    dtype = dtype_of(variant)
    view, dim = pinned(backend, variant)
    case = Case("query", queries=150, keys=70, dim=dim, causal=True)  # the first 80 rows see nothing
    q, k, v = make_arrays(case, dtype)[:3]
    q[:, :, 5] = np.nan
    q[:, :, 100] = np.inf
    out, lse = attend(view, (q, k, v), case)
    assert (out[:, :, :80] == 0).all() and np.isneginf(lse[:, :, :80]).all()
    assert np.isnan(out[:, :, 100].astype(np.float32)).all() and np.isnan(lse[:, :, 100]).all()
    others = np.delete(out[:, :, 80:], 20, 2).astype(np.float32)
    assert np.isfinite(others).all() and np.isfinite(np.delete(lse[:, :, 80:], 20, 2)).all()


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.label + "." + v.dtype)
def test_scores_that_are_not_numbers_show(backend, variant, masked):
    """Rows whose scores are all NaN are NaN, whatever the device's max() makes of it; a hidden NaN changes nothing."""
    dtype = dtype_of(variant)
    view, dim = pinned(backend, variant)
    case = Case("shows", queries=70, keys=75, dim=dim)
    q, k, v = make_arrays(case, dtype)[:3]
    q[:, :, 3] = np.nan
    q[:, :, 40, dim // 2] = np.inf
    mask = None
    if masked:
        mask = np.ones((70, 75), bool)
        mask[:, 60:] = mask[3, :30] = mask[50] = False  # row 50 sees nothing
        q[:, :, 50] = np.nan
        k[:, :, 60:] = np.nan
    out, lse = attend(view, (q, k, v), case, mask)
    out = out.astype(np.float32)
    assert np.isnan(out[:, :, [3, 40]]).all() and np.isnan(lse[:, :, [3, 40]]).all()
    if masked:
        assert (out[:, :, 50] == 0).all() and np.isneginf(lse[:, :, 50]).all()
    others = [row for row in range(70) if row not in (3, 40, 50)]
    assert np.isfinite(out[:, :, others]).all() and np.isfinite(lse[:, :, others]).all()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.label + "." + v.dtype)
def test_repeats_are_equal_to_the_bit(backend, variant):
    dtype = dtype_of(variant)
    view, dim = pinned(backend, variant)
    case = Case("repeat", heads=4, queries=130, keys=350, dim=dim, causal=True)
    tensors = [view.tensor(a) for a in make_arrays(case, dtype)[:3]]
    first = view.attention.flash_attention2(*tensors, causal=True, kernel=FAMILY).numpy()
    for _ in range(250 if backend.device.kind != "cpu" else 5):
        assert (view.attention.flash_attention2(*tensors, causal=True, kernel=FAMILY).numpy() == first).all()
