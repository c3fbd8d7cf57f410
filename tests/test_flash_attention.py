"""Every attention kernel against float64 NumPy, over shapes, masks, layouts and dtypes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import grilly
import kernels
from cases import (
    CASES,
    SIXTEEN_BITS,
    Case,
    assert_as_accurate,
    expected,
    lse_magnitude,
    make_arrays,
    output_magnitude,
    rounded_weights,
)
from grilly import reference
from kernels import request_of, view_of

FAMILIES = [
    None, "attention-naive", "flash-attention2", "flash-attention3",
    "flash-attention-llvmpipe", "flash-attention-texels",
]  # fmt: skip
SMALL = [c for c in CASES if not c.name.startswith("dim-") or c.dim in (1, 7, 32, 64, 80, 129, 256)]


def need(backend, family, dtype="float32", **facts):
    """Skip, saying what the device lacks, when a family has no variant for it."""
    facts = {"align": 1, "head_dim": 64, "value_dim": 64, **facts}
    if "float16-storage" not in backend.runtime.features:
        dtype = "float32"  # to which 16-bit arrays are converted
    kernels.need(backend, "attention", dtype, family, **facts)


def on_matrix_units(backend, case: Case, family, dtype) -> bool:
    """Whether a contiguous call of this case is given to a kernel that rounds its weights to 16 bits."""
    if np.dtype(dtype) == np.float32:
        return False
    view = view_of(backend)
    arrays = make_arrays(case, dtype)[:3]
    request = request_of(view, lambda: view.attention.flash_attention2(*arrays, kernel=family))
    return request is not None and backend.registry.resolve(request).variant.unproven


def check(backend, case: Case, family=None, dtype=np.float32, **options):
    q, k, v, mask = make_arrays(case, dtype)
    exact, exact_lse, plain, plain_lse = expected(case, q, k, v, mask)
    out, lse = backend.attention.flash_attention2(
        *(backend.tensor(a) for a in (q, k, v)),
        mask=mask, causal=case.causal, scale=case.scale, return_lse=True, kernel=family, **options,
    )  # fmt: skip
    magnitude = output_magnitude(case, q, k, v, mask)
    lse_terms = None
    if on_matrix_units(backend, case, family, dtype):
        plain, lse_terms = rounded_weights(case, q, k, v, mask), lse_magnitude(case, q, k, plain_lse)
    assert_as_accurate(out.numpy(), exact, plain, f"{case.name} output", magnitude)
    assert_as_accurate(lse.numpy(), exact_lse, plain_lse, f"{case.name} lse", lse_terms)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_chosen_kernel(backend, case):
    check(backend, case)


@pytest.mark.parametrize("family", FAMILIES[1:])
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_each_family(backend, family, case):
    need(backend, family)
    check(backend, case, family)


#: bfloat16 differs from float16 in how elements are read and written alone.
NARROW = [
    pytest.param(case, *dtype.values, id=f"{dtype.id}-{case}")
    for dtype in SIXTEEN_BITS for case in SMALL
    if case.name in ("prime", "bool-dead-rows", "dim-256")
    or (dtype.id == "float16" and case.name in ("dim-7", "dim-80", "causal", "value-wider"))
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("case", "dtype"), NARROW)
def test_sixteen_bits(backend, family, case, dtype):
    need(backend, family, np.dtype(dtype).name)
    check(backend, case, family, dtype)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("kind", ["bool", "additive", "causal"])
def test_masked_slots_do_not_leak(backend, family, poison, kind):
    """What masked keys and values hold never reaches the output, not by a bit."""
    need(backend, family)
    case = Case("leak", queries=40, keys=90, dim=32, causal=kind == "causal")
    q, k, v, _ = make_arrays(case)
    mask = None
    if kind == "causal":
        mask = np.ones((40, 90), bool)
        q = q[:, :, :20]  # row 19 of 20 sees everything up to key 90; cut the keys' tail off for every row
        mask = np.broadcast_to(np.arange(90) < 70, (20, 90))
        hidden = slice(70, 90)
    else:
        hidden = slice(33, 61)
        allowed = np.ones(90, bool)
        allowed[hidden] = False
        mask = allowed if kind == "bool" else np.where(allowed, np.float32(0), np.float32(-np.inf))
        mask = np.broadcast_to(mask, (40, 90))
    run = backend.attention.flash_attention2
    clean = run(q, k, v, mask=mask, causal=case.causal, kernel=family)
    k2, v2 = k.copy(), v.copy()
    k2[:, :, hidden] = poison
    v2[:, :, hidden] = poison
    dirty = run(q, k2, v2, mask=mask, causal=case.causal, kernel=family)
    assert np.isfinite(clean).all()
    assert (clean == dirty).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_future_keys_do_not_leak(backend, family):
    """Causal: key j is poisoned; rows that do not see it are unchanged to the bit."""
    need(backend, family)
    q, k, v, _ = make_arrays(Case("future", queries=70, keys=70, dim=64))
    run = backend.attention.flash_attention2
    clean = run(q, k, v, causal=True, kernel=family)
    for key in (1, 17, 40, 69):
        k2, v2 = k.copy(), v.copy()
        k2[:, :, key:] = np.nan
        v2[:, :, key:] = np.inf
        dirty = run(q, k2, v2, causal=True, kernel=family)
        assert (dirty[:, :, :key] == clean[:, :, :key]).all(), key
        assert not np.isfinite(dirty[:, :, key:]).any()


@pytest.mark.parametrize("dtype", ["float32", *SIXTEEN_BITS], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("kind", ["plain", "bool", "causal"])
@pytest.mark.parametrize("family", [*FAMILIES, "flash-decode", "flash-decode-matrix", "flash-decode-llvmpipe"])
def test_queries_that_are_not_finite_show(backend, family, kind, dtype):
    """A query with NaN or infinity makes its own row NaN, as everywhere in NumPy, and no other row."""
    case = Case("query", heads=4, kv_heads=2, queries=6, keys=300, causal=kind == "causal")
    q, k, v, _ = make_arrays(case, dtype)
    q[:, :, 1] = np.nan
    q[:, :, 4, 20] = np.inf  # times keys of either sign: scores of either sign
    mask = np.broadcast_to(np.arange(300) % 3 > 0, (6, 300)) if kind == "bool" else None
    try:
        out, lse = backend.attention.flash_attention2(
            q, k, v, mask=mask, causal=case.causal, return_lse=True, kernel=family
        )
    except grilly.UnsupportedError as error:
        pytest.skip(str(error).splitlines()[0])
    out = out.astype(np.float32)
    assert np.isnan(out[:, :, [1, 4]]).all() and np.isnan(lse[:, :, [1, 4]]).all()
    assert np.isfinite(out[:, :, [0, 2, 3, 5]]).all() and np.isfinite(lse[:, :, [0, 2, 3, 5]]).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_slots_past_the_end_do_not_leak(backend, family):
    """The arrays are windows into larger ones filled with NaN; nothing outside is read into the result or written."""
    need(backend, family)
    case = Case("window", heads=2, queries=45, keys=53, dim=40)
    q, k, v, _ = make_arrays(case)

    def window(array):
        rows, dim = array.shape[2] + 9, array.shape[3] + 8
        big = np.full((1, 2, rows, dim), np.nan, np.float32)
        big[:, :, : array.shape[2], : array.shape[3]] = array
        return backend.tensor(big)[:, :, : array.shape[2], : array.shape[3]]

    plain = backend.attention.flash_attention2(q, k, v, kernel=family)
    tight = backend.attention.flash_attention2(window(q), window(k), window(v), kernel=family).numpy()
    assert (plain == tight).all()


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "sliced", "broadcast-batch", "reversed", "fortran", "last-strided"])
def test_layouts(backend, layout):
    """Any strides, of arrays and of tensors, give the same numbers."""
    case = Case("layout", batch=2, heads=3, queries=21, keys=26, dim=16)
    q, k, v, _ = make_arrays(case)

    def lay(a):
        if layout == "bshd":
            return np.ascontiguousarray(a.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
        if layout == "sbhd":
            return np.ascontiguousarray(a.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3)
        if layout == "sliced":
            return np.repeat(np.repeat(a, 2, axis=2), 2, axis=0)[::2, :, ::2]
        if layout == "broadcast-batch":
            return np.broadcast_to(a[:1], a.shape)
        if layout == "reversed":
            return np.ascontiguousarray(a[:, :, ::-1])[:, :, ::-1]
        if layout == "fortran":
            return np.asfortranarray(a)
        return np.repeat(a, 2, axis=3)[..., ::2]

    arrays = [lay(a) for a in (q, k, v)]
    want = backend.attention.flash_attention2(*(np.ascontiguousarray(a) for a in arrays))
    assert np.allclose(backend.attention.flash_attention2(*arrays), want, rtol=0, atol=1e-6)
    tensors = [backend.tensor(a) for a in arrays]
    out = backend.attention.flash_attention2(*tensors)
    assert np.allclose(out.numpy(), want, rtol=0, atol=1e-6)


def test_tensor_views_as_inputs(backend):
    """Heads split out of (B, S, E) on the device, and joined again, are views over the same memory."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 19, 3 * 16)).astype(np.float32)
    t = backend.tensor(x).reshape(2, 19, 3, 16).transpose(0, 2, 1, 3)
    out = backend.attention.flash_attention2(t, t, t)
    joined = out.transpose(0, 2, 1, 3).reshape(2, 19, 48)
    assert kernels.of_one_storage(joined, out), "joining the heads made a copy"
    q = x.reshape(2, 19, 3, 16).transpose(0, 2, 1, 3)
    want = reference.naive_attention(q, q, q, dtype=np.float64)[0].transpose(0, 2, 1, 3).reshape(2, 19, 48)
    assert np.abs(joined.numpy() - want).max() < 1e-6


@pytest.mark.parametrize("rank", [2, 3])
def test_fewer_axes(backend, rank):
    q, k, v, _ = make_arrays(Case("axes", heads=3, queries=17, keys=23, dim=16))
    q, k, v = (a[0] if rank == 3 else a[0, 0] for a in (q, k, v))
    out, lse = backend.attention.flash_attention2(q, k, v, return_lse=True)
    assert out.shape == q.shape and lse.shape == q.shape[:-1]
    want = reference.naive_attention(q, k, v, dtype=np.float64)[0]
    assert np.abs(out - want).max() < 1e-6


def test_empty_arrays(backend):
    run = backend.attention.flash_attention2
    full = np.ones((2, 3, 5, 8), np.float32)
    assert run(full[:0], full[:0], full[:0]).shape == (0, 3, 5, 8)
    assert run(full[:, :, :0], full, full).shape == (2, 3, 0, 8)
    assert run(full[:, :0], full[:, :0], full[:, :0]).shape == (2, 0, 5, 8)
    out, lse = run(full, full[:, :, :0], full[:, :, :0], return_lse=True)
    assert (out == 0).all() and out.shape == full.shape
    assert np.isneginf(lse).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_large_scores(backend, family):
    """Scores of thousands: the running maximum keeps the exponentials in range."""
    need(backend, family)
    case = dataclasses.replace(Case("large", queries=33, keys=70, dim=64), scale=40.0)
    q, k, v, mask = make_arrays(case)
    exact, _, plain, _ = expected(case, q, k, v, mask)
    out = backend.attention.flash_attention2(q, k, v, scale=40.0, kernel=family)
    magnitude = output_magnitude(case, q, k, v, None)
    assert_as_accurate(out, exact, plain, "large scores", magnitude)


@pytest.mark.parametrize("family", FAMILIES)
def test_repeats_are_equal_to_the_bit(backend, family):
    need(backend, family)
    q, k, v, _ = make_arrays(Case("repeat", heads=4, queries=130, keys=150, dim=64))
    tensors = [backend.tensor(a) for a in (q, k, v)]
    first = backend.attention.flash_attention2(*tensors, kernel=family).numpy()
    for _ in range(30):
        assert (backend.attention.flash_attention2(*tensors, kernel=family).numpy() == first).all()


@pytest.mark.parametrize("keys", [65_600, 200_003])
def test_keys_past_the_loop_limit(backend, keys):
    """Mesa's CPU driver ends loops silently after 65,535 trips; uniform values would hide lost keys, these do not."""
    rng = np.random.default_rng(keys)
    q = rng.standard_normal((1, 1, 9, 64)).astype(np.float32)
    k = rng.standard_normal((1, 1, keys, 64)).astype(np.float32)
    v = rng.standard_normal((1, 1, keys, 64)).astype(np.float32)
    v[:, :, -7:] += 100  # losing the last keys changes the result by far more than rounding
    out, lse = backend.attention.flash_attention2(q, k, v, return_lse=True)
    exact, _, exact_lse = reference.naive_attention(q, k, v, dtype=np.float64, return_lse=True)
    plain, _, plain_lse = reference.naive_attention(q, k, v, return_lse=True)
    magnitude = output_magnitude(Case("long"), q, k, v, None)
    assert_as_accurate(out, exact, plain, "output", magnitude)
    assert_as_accurate(lse, exact_lse, plain_lse, "lse")


def test_flash_attention3_layouts(backend):
    q, k, v, _ = make_arrays(Case("three", batch=2, heads=8, queries=17, keys=17, dim=64))
    want = backend.attention.flash_attention2(q, k, v)
    got = backend.attention.flash_attention3(q, k, v, num_heads=8, head_dim=64)
    assert (got == want).all()
    joined = [a.transpose(0, 2, 1, 3).reshape(2, 17, 512) for a in (q, k, v)]
    got = backend.attention.flash_attention3(*joined, num_heads=8, head_dim=64)
    assert got.shape == (2, 17, 512)
    assert np.allclose(got.reshape(2, 17, 8, 64).transpose(0, 2, 1, 3), want, rtol=0, atol=1e-6)


def test_steps_that_no_word_holds(vulkan_backend):
    """Of an axis of one element, which takes any."""
    q = vulkan_backend.tensor(np.random.default_rng(0).standard_normal((1, 2, 8, 16)).astype(np.float32))
    found = vulkan_backend.attention.flash_attention2(q[:, :, :: 2**33], q, q)
    np.testing.assert_array_equal(found.numpy(), vulkan_backend.attention.flash_attention2(q[:, :, :1], q, q).numpy())
