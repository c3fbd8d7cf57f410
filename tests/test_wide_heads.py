"""Heads of more than 256 columns, values of another width than keys, and values that are the first columns of the keys
(DeepSeek's latent attention), against float64 NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
import kernels
import test_kvcache
from cases import DTYPES, Case, assert_as_accurate, expected, lse_magnitude, make_arrays, output_magnitude
from cases import rounded_weights as rounded
from grilly import functional as F
from grilly import nn, reference

TILES, DECODE = "flash-attention-wide", "flash-decode-wide"
BOTH = pytest.mark.parametrize("family", [TILES, DECODE])
WIDTHS = ((320, 320), (384, 64), (512, 512), (576, 512), (72, 512), (301, 257))


def judge(result, case: Case, q, k, v, mask):
    out, lse = (np.asarray(a.numpy() if isinstance(a, grilly.Tensor) else a) for a in result)
    exact, exact_lse, plain, plain_lse = expected(case, q, k, v, mask)
    if np.dtype(q.dtype).itemsize == 2:
        plain = rounded(case, q, k, v, mask)  # as matrix units have it
    assert_as_accurate(out, exact, plain, f"{case.name} output", output_magnitude(case, q, k, v, mask))
    assert_as_accurate(lse, exact_lse, plain_lse, f"{case.name} lse", lse_magnitude(case, q, k, plain_lse))


def check(backend, case: Case, dtype=np.float16, family=None):
    q, k, v, mask = make_arrays(case, dtype)
    tensors = [backend.tensor(a) for a in (q, k, v)]
    result = backend.attention.flash_attention2(
        *tensors, mask=mask, causal=case.causal, scale=case.scale, return_lse=True, kernel=family
    )
    judge(result, case, q, k, v, mask)


def need(backend, family, **facts):
    operation = "attention-decode" if family == DECODE else "attention"
    facts = {"align": 8, "head_dim": 64, "value_dim": 32, "rows": 8, "masked": 0} | facts
    kernels.need(backend, operation, "float16", family, **facts)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS, ids=str)
@pytest.mark.parametrize("kind", ["tiles", "decode"])
def test_widths(backend, width, dtype, kind):
    """By the kernel that is chosen: several queries under causality, and one token of several heads over many keys."""
    shape = {"queries": 37, "keys": 53, "causal": True} if kind == "tiles" else {"queries": 1, "keys": 600}
    check(backend, Case(kind, heads=4, kv_heads=2, dim=width[0], value_dim=width[1], **shape), dtype)


@pytest.mark.parametrize("mask", ["bool-dead-rows", "add-inf-rows", "bool-all-false"])
def test_masks(backend, mask):
    check(backend, Case("masked", batch=2, queries=19, keys=45, dim=512, mask=mask), np.float32)


@pytest.mark.parametrize("options", [
    {"softcap": 2.0, "window_size": (20, 4)}, {"alibi_slopes": np.float32([0.5, 0.1])},
    {"dropout_p": 0.2, "dropout_seed": 3},
    {"score_mod": lambda score, b, h, q, k: score - abs(q - k) * 0.1},
], ids=lambda o: "-".join(o))  # fmt: skip
def test_options(backend, options):
    case = Case("options", queries=33, keys=70, dim=320, value_dim=264)
    q, k, v, _ = make_arrays(case)
    wanted = dict(options)
    if "score_mod" in options:
        far = np.abs(np.arange(33)[:, None] - np.arange(70)) * np.float32(-0.1)
        wanted = {"attn_bias": far.astype(np.float32)}
    try:
        found = backend.attention.flash_attention2(*(backend.tensor(a) for a in (q, k, v)), **options).numpy()
    except grilly.UnsupportedError as error:
        assert "score_mod" in options
        pytest.skip(str(error).splitlines()[0])
    exact = reference.flash_attention(q, k, v, dtype=np.float64, **wanted)
    np.testing.assert_allclose(found, exact, rtol=0, atol=2e-5)


# -- values that are the first columns of the keys --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 5, 40])
def test_values_in_keys(backend, queries, dtype):
    """One key head, whose values are 512 of its 576 columns: nothing is copied. A call of equal layouts with values of
    its own is another call."""
    case = Case("latent", batch=2, heads=8, kv_heads=1, queries=queries, keys=530, dim=576, value_dim=512)
    q, k, _, _ = make_arrays(case, dtype)
    other = make_arrays(case, dtype, seed=1)[1]
    queries_, keys, others = (backend.tensor(a) for a in (q, k, other))
    for _ in range(2):
        for source, held in ((k, keys), (other, others)):
            values = held[..., :512]
            result = backend.attention.flash_attention2(queries_, keys, values, return_lse=True)
            judge(result, case, q, k, source[..., :512], None)


def test_arrays_of_numpy(default):
    case = Case("host", heads=8, kv_heads=1, queries=3, keys=90, dim=576, value_dim=512)
    q, k, _, _ = make_arrays(case, np.float32)
    judge(F.flash_attention2(q, k, k[..., :512], return_lse=True), case, q, k, k[..., :512], None)
    shifted = k[..., 8:520]  # not the first ones
    judge(F.flash_attention2(q, k, shifted, return_lse=True), case, q, k, shifted, None)


@pytest.mark.parametrize("page", [None, 16])
def test_a_cache_that_has_both(backend, page):
    """A cache of latent rows: its values are a view of its keys, with samples of several lengths, and pages."""
    rng = np.random.default_rng(0)
    room, lengths = 96, np.array([96, 5, 40], np.int32)
    rows = rng.standard_normal((3, room, 1, 576)).astype(np.float32)
    q = rng.standard_normal((3, 1, 4, 576)).astype(np.float32)
    table, stored = None, rows
    if page:
        table = rng.permutation(3 * room // page).reshape(3, room // page).astype(np.int32)
        stored = np.empty((3 * room // page, page, 1, 576), np.float32)
        stored[table.reshape(-1)] = rows.reshape(-1, page, 1, 576)
    cache = backend.tensor(stored)
    out = F.flash_attention_with_kvcache(
        backend.tensor(q), cache, cache[..., :512], cache_seqlens=lengths, page_table=table, scale=0.07
    ).numpy()
    for b, length in enumerate(lengths):
        keys = rows[b, :length].swapaxes(0, 1)[None]
        exact = reference.flash_attention(
            q[b : b + 1].swapaxes(1, 2), keys, keys[..., :512], dtype=np.float64, scale=0.07
        )
        np.testing.assert_allclose(out[b], exact[0].swapaxes(0, 1), rtol=0, atol=2e-5)


def test_layers(default):
    """A cache and packed sequences of wide heads."""
    cache = nn.KVCache(1, 20, 1, 320, value_dim=288)
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((1, 7, 1, 320)).astype(np.float32) for _ in range(2))
    v = rng.standard_normal((1, 7, 1, 288)).astype(np.float32)
    found = cache.attend(q, k, v, causal=True)
    exact = reference.flash_attention(*(a.swapaxes(1, 2) for a in (q, k, v)), dtype=np.float64, causal=True)
    np.testing.assert_allclose(np.asarray(found), exact.swapaxes(1, 2), rtol=0, atol=2e-5)
    packed = F.flash_attention_varlen(q[0], k[0], v[0], np.array([0, 3, 7]), np.array([0, 3, 7]), 4, 4)
    for first, end in ((0, 3), (3, 7)):
        parts = (a[:, first:end].swapaxes(1, 2) for a in (q, k, v))
        exact = reference.flash_attention(*parts, dtype=np.float64)
        np.testing.assert_allclose(packed[first:end], exact[0].swapaxes(0, 1), rtol=0, atol=2e-5)


def test_what_is_refused(default):
    def call(dim, value_dim, function=F.flash_attention2, **more):
        q, k, v = (np.zeros((1, 1, 3, n), np.float32) for n in (dim, dim, value_dim))
        return function(q, k, v, **more)

    with pytest.raises(ValueError, match="head dimension of q and k is 577; expected 1 to 576"):
        call(577, 64)
    with pytest.raises(ValueError, match="head dimension of v is 513; expected 1 to 512"):
        call(64, 513)
    out, lse = call(264, 64, return_lse=True)
    arrays = (np.zeros((1, 1, 3, n), np.float32) for n in (264, 264, 64))
    with pytest.raises(grilly.UnsupportedError, match="at most 256 columns, and these have 264 in q and k, 64 in v"):
        F.flash_attention2_backward(out, *arrays, out, lse)
    packed, starts = np.zeros((3, 1, 264), np.float32), ([0, 3], [0, 3], 3, 3)
    out, lse = F.flash_attention_varlen(packed, packed, packed, *starts, return_lse=True)
    with pytest.raises(grilly.UnsupportedError, match="varlen_backward: gradients are of heads of at most 256 columns"):
        F.flash_attention_varlen_backward(out, packed, packed, packed, out, lse, *starts)
    with pytest.raises(grilly.UnsupportedError, match="varlen: gradients are of heads of at most 256 columns"):
        grilly.grad(lambda q: grilly.sum(F.flash_attention_varlen(q, q, q, *starts)))(grilly.asarray(packed))


# -- the kernels on matrix units, of any width ------------------------------------------------------------------------


@pytest.mark.parametrize("case", [
    *(Case(f"keys-{n}", heads=4, kv_heads=2, queries=1, keys=n) for n in (1, 15, 16, 17, 257)),
    *(Case(f"group-{n}", heads=n, kv_heads=1, queries=1, keys=200) for n in (3, 7, 33)),
    *(Case(f"queries-{n}", heads=4, kv_heads=2, queries=n, keys=115, causal=True) for n in (5, 19, 67)),
    Case("narrow", heads=2, queries=3, keys=290, dim=24, value_dim=8, scale=-0.3),
    Case("equal", heads=2, queries=9, keys=90, dim=32),
    Case("mask", batch=2, heads=4, kv_heads=2, queries=5, keys=131, mask="bool-dead-rows", causal=True),
], ids=str)  # fmt: skip
@BOTH
def test_matrix_units(backend, family, case):
    need(backend, family)
    dims = {} if case.name in ("narrow", "equal") else {"dim": 64, "value_dim": 32}
    check(backend, Case(**(vars(case) | dims)), family=family)


@BOTH
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_a_row_does_not_see_does_not_reach_it(backend, family, poison):
    """Values that are not finite of the last key, which only the last query sees, and past the keys."""
    need(backend, family)
    case = Case("poison", heads=8, kv_heads=2, queries=5, keys=131, dim=64, value_dim=32, causal=True)
    q, k, v, _ = make_arrays(case, np.float16)
    run = backend.attention.flash_attention2
    want = run(*(backend.tensor(a) for a in (q, k, v)), causal=True, kernel=family).numpy()
    k, v = (np.concatenate([a, np.full_like(a[:, :, :9], poison)], 2) for a in (k, v))
    v[:, :, 130, ::2] = poison
    given = [backend.tensor(a)[:, :, :n] for a, n in ((q, 5), (k, 131), (v, 131))]
    got = run(*given, causal=True, kernel=family).numpy()
    np.testing.assert_allclose(got[:, :, :4], want[:, :, :4], rtol=0, atol=2e-3)
    shown = got[:, :, 4, ::2]
    assert (np.isnan(shown) if np.isnan(poison) else shown == poison).all()
    np.testing.assert_allclose(got[:, :, 4, 1::2], want[:, :, 4, 1::2], rtol=0, atol=2e-3)


@BOTH
def test_values_in_keys_that_some_do_not_see(backend, family):
    """The keys are then not finite either, so a row that sees one is NaN, and no other."""
    need(backend, family)
    case = Case("poison", heads=8, kv_heads=1, queries=5, keys=131, dim=64, causal=True)
    q, k, *_ = make_arrays(case, np.float16)
    k[:, :, 130, 3] = np.nan
    keys = backend.tensor(k)
    run = backend.attention.flash_attention2
    got = run(backend.tensor(q), keys, keys[..., :32], causal=True, kernel=family).numpy()
    exact = reference.flash_attention(q, k, k[..., :32], dtype=np.float64, causal=True)
    assert np.isnan(got[:, :, 4]).all()
    np.testing.assert_allclose(got[:, :, :4], exact[:, :, :4], rtol=0, atol=3e-3)


@pytest.mark.parametrize("page", [None, 64, 24])
def test_caches(backend, page):
    """Lengths of samples, one without keys, and pages; with sinks."""
    need(backend, DECODE)
    problem = test_kvcache.Problem(
        np.float16, [310, 0, 77], page=page, room=330, heads=8, queries=5, fresh=5, dim=64, value_dim=32
    )
    sinks = np.linspace(-1, 4, 8, dtype=np.float32)
    problem.check(backend, options={"causal": True, "sinks": sinks}, kernel=DECODE)


def test_repeats_are_equal_to_the_bit(backend):
    need(backend, DECODE)
    arrays = make_arrays(Case("repeat", heads=8, kv_heads=2, queries=2, keys=900, dim=64, value_dim=32), np.float16)
    tensors = [backend.tensor(a) for a in arrays[:3]]
    first, *others = (backend.attention.flash_attention2(*tensors, kernel=DECODE).numpy() for _ in range(5))
    assert all((first == other).all() for other in others)
