"""precision="high": float32 attention from 16-bit parts, every such kernel that the device can run, one by one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import grilly.functional as F
from cases import TILED_CASES, Case, expected, lse_magnitude, make_arrays, output_magnitude
from grilly import nn
from kernels import only_or_skip, request_of, shipped, view_of

VARIANTS = [
    variant for variant in shipped("attention")
    if variant.dtype == "float32" and "high" in variant.limits
]  # fmt: skip
FAMILY = "flash-attention3"  # named, so that few queries are not given to the kernels that split the keys
#: The error allowed, in errors of plain float32, and beside it in roundings of the terms' magnitude.
FACTOR, ROUNDINGS = 4.0, 2.0
CASES = [
    *TILED_CASES,
    Case("long-keys", heads=1, queries=5, keys=2053),
    Case("scores-of-hundreds", queries=70, keys=150, scale=4.0),
]


@pytest.fixture(params=VARIANTS, ids=lambda variant: variant.label)
def pinned(request, backend):
    """A view of the backend that runs a variant, and its largest head dimension; or a skip that says why not."""
    variant = request.param
    dim = variant.limits["head_dim"][1]
    facts = {"align": 4, "head_dim": dim, "value_dim": dim, "rows": 1, "high": 1, "causal": 0}
    return only_or_skip(backend, variant, **facts), dim


def attend(view, arrays, case, mask=None):
    """(output, log-sum-exp) as NumPy arrays."""
    out, lse = view.attention.flash_attention2(
        *(view.tensor(a) for a in arrays), mask=mask, causal=case.causal, scale=case.scale, return_lse=True,
        kernel=FAMILY, precision="high",
    )  # fmt: skip
    return out.numpy(), lse.numpy()


def judge(result, exact, plain, magnitude, what):
    """Errors, the largest and the root mean square, against FACTOR times those of ``plain``."""
    never = np.isneginf(exact)
    assert (np.isneginf(result) == never).all(), f"{what}: minus infinity in the wrong places"
    if never.all():
        return
    error, usual = (np.abs(a[~never].astype(np.float64) - exact[~never]) for a in (result, plain))
    rounding = ROUNDINGS * 2.0**-23 * magnitude
    assert error.max() <= FACTOR * usual.max() + rounding, f"{what}: {error.max():.2e}, float32 {usual.max():.2e}"
    assert np.sqrt((error**2).mean()) <= FACTOR * np.sqrt((usual**2).mean()) + rounding, what


def judge_both(result, case, arrays, mask):
    exact, exact_lse, plain, plain_lse = expected(case, *arrays, mask)
    judge(result[0], exact, plain, output_magnitude(case, *arrays, mask), case.name)
    judge(result[1], exact_lse, plain_lse, lse_magnitude(case, *arrays[:2], plain_lse), f"{case.name} lse")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(pinned, case):
    view, dim = pinned
    case = dataclasses.replace(case, dim=dim)
    *arrays, mask = make_arrays(case)
    judge_both(attend(view, arrays, case, mask), case, arrays, mask)


def test_narrow_heads_and_strides(pinned):
    """Head dimensions below the tile's, unlike for values, in (B, S, H, D) arrays cut out of larger ones."""
    view, dim = pinned
    narrow, value_dim = dim - 4, max(4, dim // 2 - 4)
    case = Case("narrow", heads=4, kv_heads=2, queries=75, keys=93, dim=narrow, value_dim=value_dim, causal=True)
    *arrays, _ = make_arrays(case)

    def within(array):
        big = np.full((array.shape[0], array.shape[2] + 3, array.shape[1], array.shape[3] + 4), np.nan, np.float32)
        big[:, 2 : array.shape[2] + 2, :, : array.shape[3]] = array.transpose(0, 2, 1, 3)
        return view.tensor(big)[:, 2 : array.shape[2] + 2, :, : array.shape[3]].transpose(0, 2, 1, 3)

    out, lse = view.attention.flash_attention2(
        *map(within, arrays), causal=True, return_lse=True, kernel=FAMILY, precision="high"
    )
    judge_both((out.numpy(), lse.numpy()), case, arrays, None)


@pytest.mark.parametrize("power", [100, 40, -40, -90])
def test_powers_of_two_change_exponents_only(pinned, power):
    """What is large or small as a whole comes out as exact: numbers up to 1e30 and down to 1e-27 here."""
    view, dim = pinned
    case = Case("powers", queries=50, keys=75, dim=dim)
    q, k, v, _ = make_arrays(case)
    out, lse = attend(view, (q, k, v), case)
    factor = np.float32(2.0**power)
    scaled, scaled_lse = attend(view, (q / factor, k * factor, v * factor), case)
    assert np.isfinite(scaled).all()
    np.testing.assert_array_equal(scaled / factor, out)
    np.testing.assert_array_equal(scaled_lse, lse)


@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_huge_and_tiny_values(pinned, size):
    view, dim = pinned
    case = Case("sizes", queries=50, keys=75, dim=dim)
    q, k, v, _ = make_arrays(case)
    v *= np.float32(size)
    result = attend(view, (q, k, v), case)
    exact, _, plain, _ = expected(case, q, k, v, None)
    result, exact, plain = (a.astype(np.float64) / size for a in (result[0], exact, plain))
    judge(result, exact, plain, np.abs(v).max() / size, case.name)


def test_largest_float32_values(pinned):
    view, dim = pinned
    case = Case("largest", queries=20, keys=75, dim=dim)
    q, k, v, _ = make_arrays(case)
    v = np.sign(v) * np.float32(3e38)
    exact = expected(case, q, k, v / np.float32(3e38), None)[0]
    out, _ = attend(view, (q, k, v), case)
    np.testing.assert_allclose(out / np.float32(3e38), exact, atol=4e-6)


def test_unlike_sizes(pinned):
    """Rows of q, keys, and columns of v, that differ a thousand times and more in size."""
    view, dim = pinned
    case = Case("unlike", queries=70, keys=150, dim=dim)
    q, k, v, _ = make_arrays(case)
    q[:, :, ::7] *= 1e4
    k[:, :, ::5] *= 1e-3
    q *= np.float32(0.01)
    v[..., 0] *= 1e2
    v[..., 1] *= 1e-2
    out, lse = attend(view, (q, k, v), case)
    exact, exact_lse, plain, plain_lse = expected(case, q, k, v, None)
    for columns in ((0, 1), (1, 2), (2, None)):
        part = (..., slice(*columns))
        judge(out[part], exact[part], plain[part], np.abs(v[part]).max(), f"columns from {columns[0]}")
    judge(lse, exact_lse, plain_lse, lse_magnitude(case, q, k, plain_lse), "lse")


def test_a_sink_before_many_equal_keys(pinned):
    """Weights of 2**-25 each, whose sum counts: too small for float16 beside a weight of 1."""
    view, dim = pinned
    case = Case("sink", heads=1, queries=3, keys=4097, dim=dim, scale=1.0)
    q, k, v, _ = make_arrays(case)
    q[:], k[:] = 0.0, 0.0
    q[..., 0], k[:, :, 0, 0] = 1.0, 25 * np.log(2.0)
    v[:] = 1.0
    v[:, :, 0] = 0.0
    exact = 4096 * 2.0**-25 / (1 + 4096 * 2.0**-25)
    out, _ = attend(view, (q, k, v), case)
    np.testing.assert_allclose(out, exact, rtol=2e-5)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_future_and_hidden_keys_do_not_leak(pinned, poison):
    view, dim = pinned
    case = Case("leak", queries=150, keys=150, dim=dim, causal=True)
    arrays = make_arrays(case)[:3]
    q, k, v = (a.copy() for a in arrays)
    k[:, :, 100:] = poison
    v[:, :, 100:] = poison
    out, _ = attend(view, (q, k, v), case)
    exact, _, plain, _ = expected(case, *arrays, None)
    seen = slice(0, 100)
    judge(out[:, :, seen], exact[:, :, seen], plain[:, :, seen], 4.0, "rows before the poison")
    assert not np.isfinite(out[:, :, 100:]).any()

    case = dataclasses.replace(case, causal=False)
    out, _ = attend(view, (q, k, v), case, np.broadcast_to(np.arange(150) < 100, (150, 150)))
    short = (arrays[0], arrays[1][:, :, :100], arrays[2][:, :, :100])
    exact, _, plain, _ = expected(case, *short, None)
    judge(out, exact, plain, 4.0, "keys hidden by a mask")


def test_infinite_values_stay_in_their_columns(pinned):
    view, dim = pinned
    case = Case("infinite", queries=40, keys=70, dim=dim)
    q, k, v, _ = make_arrays(case)
    exact, _, plain, _ = expected(case, q, k, v, None)
    v[:, :, 3, 1] = np.inf
    v[:, :, 50, 2] = np.nan
    out, _ = attend(view, (q, k, v), case)
    assert np.isposinf(out[..., 1]).all() and np.isnan(out[..., 2]).all()
    others = [0, *range(3, dim)]
    judge(out[..., others], exact[..., others], plain[..., others], 4.0, "other columns")


def test_queries_that_are_not_finite_stay_where_they_are(pinned):
    view, dim = pinned
    case = Case("query", queries=150, keys=70, dim=dim, causal=True)  # the first 80 rows see nothing
    q, k, v = make_arrays(case)[:3]
    q[:, :, 5] = np.nan
    q[:, :, 100] = np.inf
    out, lse = attend(view, (q, k, v), case)
    assert (out[:, :, :80] == 0).all() and np.isneginf(lse[:, :, :80]).all()
    assert np.isnan(out[:, :, 100]).all() and np.isnan(lse[:, :, 100]).all()
    assert np.isfinite(np.delete(out[:, :, 80:], 20, 2)).all()


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_scores_that_are_not_numbers_show(pinned, masked):
    view, dim = pinned
    case = Case("shows", queries=70, keys=75, dim=dim)
    q, k, v = make_arrays(case)[:3]
    q[:, :, 3] = np.nan
    q[:, :, 40, dim // 2] = np.inf
    mask = np.broadcast_to(np.arange(75) < 60, (70, 75)) if masked else None
    out, lse = attend(view, (q, k, v), case, mask)
    assert np.isnan(out[:, :, [3, 40]]).all() and np.isnan(lse[:, :, [3, 40]]).all()
    assert np.isfinite(np.delete(out, [3, 40], 2)).all() and np.isfinite(np.delete(lse, [3, 40], 2)).all()


# -- what is asked for, and by whom ----------------------------------------------------------------------------------


def request(backend, dtype, precision):
    view = view_of(backend)
    tensors = [view.tensor(np.ones((1, 2, 70, 32), dtype)) for _ in range(3)]
    return request_of(view, lambda: view.attention.flash_attention3(*tensors, kernel=FAMILY, precision=precision))


def test_only_float32_at_high_asks_for_parts(backend):
    assert dict(request(backend, np.float32, "high").problem)["high"] == 1
    assert dict(request(backend, np.float32, "highest").problem)["high"] == 0
    if "float16-storage" in backend.runtime.features:
        assert request(backend, np.float16, "high") == request(backend, np.float16, "highest")


def test_kernels_of_parts_are_never_chosen_unasked(backend):
    found = {v.name: why for v, why in backend.registry.explain(request(backend, np.float32, "highest"))}
    assert VARIANTS and all(found[variant.name] is not None for variant in VARIANTS)


def test_high_is_right_whatever_kernel_serves_it(backend):
    case = Case("any", queries=70, keys=90, dim=64, causal=True)
    q, k, v, _ = make_arrays(case)
    out = backend.attention.flash_attention2(q, k, v, causal=True, precision="high")
    exact, _, plain, _ = expected(case, q, k, v, None)
    judge(out, exact, plain, output_magnitude(case, q, k, v, None), "high")


def test_another_precision_is_refused(backend):
    q = np.ones((1, 2, 8, 16), np.float32)
    tensors = [backend.tensor(q) for _ in range(3)]
    backend.attention.flash_attention2(*tensors)  # a plan that the next call must not find
    for call in (
        lambda: backend.attention.flash_attention2(*tensors, precision="low"),
        lambda: backend.attention.flash_attention3(q, q, q, precision="HIGH"),
        lambda: F.flash_attention2(*tensors, precision=None),
        lambda: F.flash_attention3(*tensors, precision=1),
        lambda: nn.FlashAttention2(32, 2, precision="fast"),
        lambda: nn.FlashAttention3(32, 2, precision=""),
        lambda: nn.MultiheadAttention(32, 2, precision="medium"),
    ):
        with pytest.raises(ValueError, match="expected 'highest' or 'high'"):
            call()


@pytest.mark.parametrize("layer", [nn.FlashAttention2, nn.FlashAttention3, nn.MultiheadAttention])
def test_layers_pass_it_on(backend, layer, monkeypatch):
    asked = []
    for name in ("flash_attention2", "flash_attention3", "linear"):
        own = getattr(F, name)

        def spy(*args, own=own, **options):
            asked.append(options["precision"])
            return own(*args, **options)

        monkeypatch.setattr(F, name, spy)
    x = backend.tensor(np.random.default_rng(0).standard_normal((1, 9, 32)).astype(np.float32))
    made = layer(32, 2, precision="high")
    options = {"need_weights": False} if layer is nn.MultiheadAttention else {}
    made(x, x, x, **options)
    assert asked == (["high"] * 3 if layer is nn.MultiheadAttention else ["high"])
