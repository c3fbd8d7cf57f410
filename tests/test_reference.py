"""The NumPy reference against definitions written out by hand, and against PyTorch where it is installed."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from grilly import reference as ref


def by_hand(q, k, v, scale, visible, bias):
    """One head, one query at a time, only the visible keys, in float64: nothing shared with the reference's code."""
    out = np.zeros((len(q), v.shape[1]))
    lse = np.full(len(q), -np.inf)
    for i in range(len(q)):
        keys = [j for j in range(len(k)) if visible[i, j]]
        if not keys:
            continue
        scores = [float(q[i] @ k[j]) * scale + bias[i, j] for j in keys]
        top = max(scores)
        powers = [math.exp(s - top) for s in scores]
        out[i] = sum(p * v[j] for p, j in zip(powers, keys, strict=True)) / sum(powers)
        lse[i] = top + math.log(sum(powers))
    return out, lse


def data(rng, b=2, h=4, hk=2, sq=7, sk=11, d=5, dv=3, dtype=np.float64):
    q = rng.standard_normal((b, h, sq, d)).astype(dtype)
    k = rng.standard_normal((b, hk, sk, d)).astype(dtype)
    v = rng.standard_normal((b, hk, sk, dv)).astype(dtype)
    return q, k, v


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("sq, sk", [(7, 11), (11, 7), (1, 13), (13, 1), (5, 5)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["none", "bool", "float", "row"])
@pytest.mark.parametrize("heads, key_heads", [(4, 4), (4, 2), (3, 1)])
def test_both_equal_the_definition(rng, sq, sk, causal, kind, heads, key_heads):
    q, k, v = data(rng, 2, heads, key_heads, sq, sk)
    bias = rng.standard_normal((heads, sq, sk))
    visible, added, mask = np.ones((2, heads, sq, sk), bool), np.zeros((2, heads, sq, sk)), None
    if kind == "bool":
        mask = rng.random((2, 1, sq, sk)) < 0.6
        visible = visible & mask
    elif kind == "float":
        mask = rng.standard_normal((heads, sq, sk)).astype(np.float32)
        mask[:, 0] = -np.inf
        mask[:, -1, ::2] = np.finfo(np.float32).min
        visible = visible & ~(mask < -1e30)
        added = np.where(visible, mask, 0.0)
    elif kind == "row":
        mask = rng.random(sk) < 0.5
        visible = visible & mask
    if causal:
        visible = visible & np.array([[j <= i + sk - sq for j in range(sk)] for i in range(sq)])
    naive, nbytes, naive_lse = ref.naive_attention(q, k, v, 0.7, mask, causal, attn_bias=bias, return_lse=True)
    flash, flash_lse = ref.flash_attention(
        q, k, v, 0.7, mask, causal, attn_bias=bias, return_lse=True, block_q=3, block_k=4
    )
    assert nbytes >= 8 * 2 * heads * sq * sk
    group = heads // key_heads
    for b in range(2):
        for h in range(heads):
            want, lse = by_hand(q[b, h], k[b, h // group], v[b, h // group], 0.7, visible[b, h], bias[h] + added[b, h])
            for out, out_lse in ((naive, naive_lse), (flash, flash_lse)):
                np.testing.assert_allclose(out[b, h], want, rtol=1e-12, atol=1e-13)
                np.testing.assert_allclose(out_lse[b, h], lse, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("block_q, block_k", [(1, 1), (2, 3), (7, 11), (64, 64), (1000, 1)])
def test_tiles_do_not_change_the_result(rng, block_q, block_k):
    q, k, v = data(rng)
    want, _ = ref.naive_attention(q, k, v, causal=True)
    got = ref.flash_attention(q, k, v, causal=True, block_q=block_q, block_k=block_k)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)


def test_scale_defaults_to_the_root_of_the_width(rng):
    q, k, v = data(rng, d=9)
    np.testing.assert_array_equal(ref.naive_attention(q, k, v)[0], ref.naive_attention(q, k, v, 1 / 3)[0])


def test_causal_is_aligned_to_the_bottom_right():
    for sq, sk, want in [
        (2, 4, [[1, 1, 1, 0], [1, 1, 1, 1]]),
        (4, 2, [[0, 0], [0, 0], [1, 0], [1, 1]]),
        (3, 3, [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
    ]:
        weights = ref.attention_weights(np.ones((sq, 1)), np.ones((sk, 1)), causal=True)
        np.testing.assert_array_equal(weights > 0, np.array(want, bool))


NEVER = [
    False,
    np.float32(-np.inf),
    np.finfo(np.float32).min,
    np.float32(-3.1e38),
    np.float16(-65504),
    np.finfo(np.float64).min,
]


@pytest.mark.parametrize("value", NEVER, ids=[f"{np.asarray(x).dtype}:{x}" for x in NEVER])
def test_a_row_with_nothing_to_attend_to_is_zeros(rng, value):
    q, k, v = data(rng)
    mask = np.full((7, 11), value)
    mask[3] = True if mask.dtype == bool else 0
    for out, lse in (
        ref.naive_attention(q, k, v, mask=mask, return_lse=True)[::2],
        ref.flash_attention(q, k, v, mask=mask, return_lse=True, block_k=4),
    ):
        rest = np.arange(7) != 3
        assert (out[:, :, rest] == 0).all() and (lse[:, :, rest] == -np.inf).all()
        assert np.isfinite(out).all() and (out[:, :, 3] != 0).all() and np.isfinite(lse[:, :, 3]).all()


def test_a_large_finite_penalty_is_only_added(rng):
    q, k, v = data(rng)
    out, _ = ref.naive_attention(q, k, v, mask=np.full((7, 11), -1e9, np.float32))
    np.testing.assert_allclose(out, ref.naive_attention(q, k, v)[0], atol=1e-6)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("kind", ["bool", "float", "causal"])
def test_what_a_masked_key_holds_never_reaches_the_result(rng, poison, kind):
    q, k, v = data(rng, sq=7, sk=9, dtype=np.float32)
    hidden = np.zeros((7, 9), bool)
    hidden[:, [2, 8]] = True
    hidden[:5, 5] = True
    options = {"mask": ~hidden}
    if kind == "float":
        options = {"mask": np.where(hidden, -np.inf, 0).astype(np.float32)}
    elif kind == "causal":
        options, hidden = {"causal": True}, np.triu(np.ones((7, 9), bool), 3)
    for attend in (
        lambda k, v: ref.naive_attention(q, k, v, **options)[0],
        lambda k, v: ref.flash_attention(q, k, v, **options, block_q=2, block_k=2),
    ):
        clean = attend(k, v)
        for j in np.flatnonzero(hidden.any(axis=0)):
            k2, v2 = k.copy(), v.copy()
            k2[:, :, j], v2[:, :, j] = poison, poison
            rows = hidden[:, j]
            np.testing.assert_allclose(attend(k2, v2)[:, :, rows], clean[:, :, rows], rtol=1e-6, atol=1e-6)


def test_nan_that_is_attended_to_shows():
    v = np.array([[1.0], [np.nan]])
    for out in (
        ref.naive_attention(np.zeros((2, 1)), np.zeros((2, 1)), v, causal=True)[0],
        ref.flash_attention(np.zeros((2, 1)), np.zeros((2, 1)), v, causal=True),
    ):
        assert out[0] == 1 and np.isnan(out[1])


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_empty_arrays(shape):
    sq, sk = shape
    q, k, v = np.ones((2, sq, 4)), np.ones((2, sk, 4)), np.ones((2, sk, 3))
    for out, lse in (ref.naive_attention(q, k, v, return_lse=True)[::2], ref.flash_attention(q, k, v, return_lse=True)):
        assert out.shape == (2, sq, 3) and (out == 0).all()
        assert lse.shape == (2, sq) and (lse == -np.inf).all()


def test_ranks_agree(rng):
    q, k, v = data(rng, b=1, h=1, hk=1)
    mask = rng.random((7, 11)) < 0.7
    full, _ = ref.naive_attention(q, k, v, mask=mask)
    np.testing.assert_array_equal(ref.naive_attention(q[0], k[0], v[0], mask=mask)[0], full[0])
    np.testing.assert_array_equal(ref.naive_attention(q[0, 0], k[0, 0], v[0, 0], mask=mask)[0], full[0, 0])
    assert ref.flash_attention(q[0, 0], k[0, 0], v[0, 0]).shape == (7, 3)


def test_bytes_are_those_of_the_score_matrix(rng):
    q, k, v = data(rng, 1, 2, 2, 64, 96, dtype=np.float32)
    assert ref.naive_attention(q, k, v)[1] == 4 * 2 * 64 * 96
    assert ref.naive_attention(q, k, v, causal=True)[1] == 4 * 2 * 64 * 96 + 64 * 96


def test_computes_in_the_dtype_asked_for(rng):
    q, k, v = data(rng, dtype=np.float32)
    assert ref.naive_attention(q, k, v)[0].dtype == np.float32
    assert ref.flash_attention(q, k, v).dtype == np.float32
    exact = ref.naive_attention(q, k, v, dtype=np.float64)[0]
    assert exact.dtype == np.float64
    assert 0 < np.abs(ref.naive_attention(q, k, v)[0] - exact).max() < 1e-5


def test_running_state_in_any_split_and_merge(rng):
    scores, v = rng.standard_normal((6, 10)) * 30, rng.standard_normal((10, 3))
    scores[:, :4] = -np.inf
    scores[2] = -np.inf
    whole = ref.RunningState.start((6,), 3, np.float64).update(scores.copy(), v)
    assert (whole.max_val == scores.max(axis=1)).all()
    state = ref.RunningState.start((6,), 3, np.float64)
    for part in (slice(0, 4), slice(4, 5), slice(5, 10)):
        state = state.update(scores[:, part].copy(), v[part])
    for got, want in zip(state.finish(), whole.finish(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    halves = []
    for part in (slice(0, 6), slice(6, 10)):
        halves += ref.RunningState.start((6,), 3, np.float64).update(scores[:, part].copy(), v[part]).finish()
    for got, want in zip(ref.merge(*halves), whole.finish(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    assert (whole.finish()[0][2] == 0).all() and whole.finish()[1][2] == -np.inf


@pytest.mark.parametrize(
    "q, k, v, mask, error, words",
    [
        ((2, 3), (4, 5), (4, 5), None, ValueError, "head dimension 3 and k has 5"),
        ((2, 3), (4, 3), (5, 3), None, ValueError, "all but the last"),
        ((3, 2, 3), (2, 4, 3), (2, 4, 3), None, ValueError, "k has 2 heads and q has 3"),
        ((2, 3), (1, 4, 3), (1, 4, 3), None, ValueError, "same 2, 3 or 4"),
        ((2, 3), (4, 3), (4, 3), np.ones((2, 5), bool), ValueError, "broadcast"),
        ((2, 3), (4, 3), (4, 3), np.ones((2, 4), int), TypeError, "boolean or floating"),
    ],
)
def test_bad_input(q, k, v, mask, error, words):
    with pytest.raises(error, match=words):
        ref.naive_attention(np.ones(q), np.ones(k), np.ones(v), mask=mask)
    with pytest.raises(error, match=words):
        ref.flash_attention(np.ones(q), np.ones(k), np.ones(v), mask=mask)
    with pytest.raises(ValueError, match="at least 1"):
        ref.flash_attention(np.ones((1, 1)), np.ones((1, 1)), np.ones((1, 1)), block_k=0)


# ------------------------------------------------------------------------------------------------------------ positions


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_turns_complex_numbers(rng, interleaved):
    x = rng.standard_normal((2, 3, 9, 8))
    z = x[..., ::2] + 1j * x[..., 1::2] if interleaved else x[..., :4] + 1j * x[..., 4:]
    turn = np.exp(1j * (np.arange(9)[:, None] + 5) * 100.0 ** (-np.arange(4) / 4))
    got = ref.rope(x, offset=5, base=100.0, interleaved=interleaved)
    got = got[..., ::2] + 1j * got[..., 1::2] if interleaved else got[..., :4] + 1j * got[..., 4:]
    np.testing.assert_allclose(got, z * turn, atol=1e-12)


def test_rope_depends_on_distance_only(rng):
    q, k = rng.standard_normal((1, 16)), rng.standard_normal((1, 16))
    near = ref.rope(q, offset=3) @ ref.rope(k, offset=1).T
    np.testing.assert_allclose(ref.rope(q, offset=1003) @ ref.rope(k, offset=1001).T, near, atol=1e-10)


def test_rope_positions_and_part_of_the_width(rng):
    x = rng.standard_normal((2, 3, 4, 8))
    np.testing.assert_array_equal(ref.rope(x, positions=[6, 7, 8, 9]), ref.rope(x, offset=6))
    got = ref.rope(x, positions=[[0, 1, 2, 3], [4, 5, 6, 7]], dim=4)
    np.testing.assert_array_equal(got[1], ref.rope(x[1, ..., :], offset=4, dim=4))
    np.testing.assert_array_equal(got[..., 4:], x[..., 4:])
    assert (got[0, :, 1:, :4] != x[0, :, 1:, :4]).all()


def test_rope_scaling(rng):
    x = rng.standard_normal((1, 12, 8))
    half = ref.rope(x, scaling={"type": "linear", "factor": 2.0}, positions=np.arange(0, 24, 2))
    np.testing.assert_allclose(half, ref.rope(x), atol=1e-12)
    ntk = ref.rope_frequencies(8, scaling={"type": "ntk", "factor": 4.0})
    plain = ref.rope_frequencies(8)
    assert ntk[0] == plain[0] == 1 and math.isclose(ntk[-1], plain[-1] / 4)
    dynamic = {"type": "dynamic", "factor": 2.0}
    np.testing.assert_array_equal(ref.rope_frequencies(8, scaling=dynamic, length=16, max_seq_len=16), plain)
    grown = ref.rope_frequencies(8, scaling=dynamic, length=32, max_seq_len=16)
    assert math.isclose(grown[-1], plain[-1] / 3)  # 2 * 32 / 16 - 1
    np.testing.assert_array_equal(ref.rope(x, scaling=dynamic, max_seq_len=12), ref.rope(x))
    assert (ref.rope(x, scaling=dynamic, max_seq_len=11)[..., 1:, 1:4] != ref.rope(x)[..., 1:, 1:4]).any()
    for bad in ({"type": "yarn"}, {"type": "linear"}, {"type": "ntk", "factor": 0.5}):
        with pytest.raises(ValueError, match="scaling"):
            ref.rope_frequencies(8, scaling=bad)
    with pytest.raises(ValueError, match="even"):
        ref.rope_frequencies(7)


def test_t5_buckets_by_hand():
    one_way = ref.t5_bucket([3, 0, -1, -15, -16, -127, -128, -5000], bidirectional=False)
    np.testing.assert_array_equal(one_way, [0, 0, 1, 15, 16, 31, 31, 31])
    both = ref.t5_bucket([0, -1, -7, -8, -5000, 1, 7, 8, 5000])
    np.testing.assert_array_equal(both, [0, 1, 7, 8, 15, 17, 23, 24, 31])
    for bidirectional in (False, True):
        away = ref.t5_bucket(-np.arange(300), bidirectional)
        assert (np.diff(away) >= 0).all() and set(away) == set(range(16 if bidirectional else 32))


def test_t5_bias_looks_the_buckets_up(rng):
    table = rng.standard_normal((32, 2))
    bias = ref.t5_bias(table, 3, 5, bidirectional=False, offset=2)
    for i in range(3):
        for j in range(5):
            np.testing.assert_array_equal(bias[:, i, j], table[max(0, i + 2 - j)])


# ------------------------------------------------------------------------------------------------- projections, imports


def test_linear_and_multihead(rng):
    x, w, b = rng.standard_normal((2, 3, 4)), rng.standard_normal((5, 4)), rng.standard_normal(5)
    np.testing.assert_allclose(ref.linear(x, w, b), np.einsum("bsi,oi->bso", x, w) + b)
    eye, zero = np.eye(4), np.zeros(4)
    out, weights = ref.multihead(x, x, x, 2, (eye, eye, eye, eye), (zero, zero, zero, zero), causal=True)
    heads = x.reshape(2, 3, 2, 2).transpose(0, 2, 1, 3)
    want, _ = ref.naive_attention(heads, heads, heads, causal=True)
    np.testing.assert_allclose(out, want.transpose(0, 2, 1, 3).reshape(2, 3, 4))
    assert weights.shape == (2, 2, 3, 3)
    np.testing.assert_allclose(weights.sum(-1), 1)


def test_imports_numpy_only():
    """The specification must not lean on the code it specifies."""
    for path in Path(ref.__file__).parent.glob("*.py"):
        for line in path.read_text().splitlines():
            if line.startswith(("import ", "from ")):
                name = line.split()[1]
                assert name.startswith(".") or name.split(".")[0] in (
                    "__future__",
                    "collections",
                    "contextlib",
                    "contextvars",
                    "dataclasses",
                    "math",
                    "typing",
                    "numpy",
                ), f"{path.name}: {line}"
    assert not [name for name in ref.__all__ if not getattr(ref, name).__doc__]


# -------------------------------------------------------------------------------------------------------------- PyTorch


@pytest.mark.needs("torch")
def test_against_live_torch(rng):
    torch = pytest.importorskip("torch", reason="torch is not installed; tests/golden has its recorded results")
    sdpa = torch.nn.functional.scaled_dot_product_attention
    q, k, v = data(rng, 2, 4, 2, 13, 17, 8, 5)
    mask = rng.random((2, 1, 13, 17)) < 0.7
    mask[..., 0] = True
    with torch.no_grad():
        want = sdpa(*map(torch.from_numpy, (q, k, v, mask)), enable_gqa=True).numpy()
    np.testing.assert_allclose(ref.naive_attention(q, k, v, mask=mask)[0], want, atol=1e-12)
    np.testing.assert_allclose(ref.flash_attention(q, k, v, mask=mask, block_k=5), want, atol=1e-12)


def test_import_does_not_need_a_device():
    code = "import sys, grilly.reference; sys.exit('vulkan' in sys.modules or 'kp' in sys.modules)"
    home = str(Path(ref.__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
