"""Attention of few queries with the keys split over the device, against float64 NumPy."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import grilly
import kernels
from cases import Case, assert_as_accurate, check_bfloat16, expected, make_arrays, output_magnitude
from grilly import reference
from kernels import pretend, retiled

FAMILY, PROCESSOR = "flash-decode", "flash-decode-llvmpipe"
EITHER = pytest.mark.parametrize("family", [FAMILY, PROCESSOR])


def need(backend, dtype="float32", family=FAMILY):
    """Skip, saying what the device lacks, when the family has no variant for it."""
    facts = {"align": 8, "head_dim": 64, "value_dim": 64, "masked": 1}
    kernels.need(backend, "attention-decode", dtype, family, **facts)


def lighter(backend, case=None, family=FAMILY):
    """Inside, invocations of processors load fewer words at a time: their compiler takes a third of the seconds.

    The data file's numbers are those of every other device, and of the cases of WHOLE.
    """
    if backend.device.kind != "cpu" or family != FAMILY or case in WHOLE:
        return contextlib.nullcontext()
    return retiled(backend, FAMILY, words=1)


def check(backend, case: Case, dtype=np.float32, view=lambda tensor: tensor, arrays=None, family=FAMILY):
    q, k, v, mask = arrays or make_arrays(case, dtype)
    exact, exact_lse, plain, plain_lse = expected(case, q, k, v, mask)
    out, lse = backend.attention.flash_attention2(
        *(view(backend.tensor(a)) for a in (q, k, v)),
        mask=mask, causal=case.causal, scale=case.scale, return_lse=True, kernel=family,
    )  # fmt: skip
    assert_as_accurate(out.numpy(), exact, plain, f"{case.name} output", output_magnitude(case, q, k, v, mask))
    assert_as_accurate(lse.numpy(), exact_lse, plain_lse, f"{case.name} lse")


LENGTHS = [Case(f"keys-{n}", heads=4, kv_heads=2, queries=1, keys=n) for n in (1, 7, 257, 1023, 8195)]
GROUPS = [Case(f"group-{n}", heads=2 * n, kv_heads=2, queries=1, keys=600) for n in (1, 3, 4, 8, 13)]
DIMS = [Case(f"dim-{n}", heads=3, kv_heads=1, queries=2, keys=300, dim=n) for n in (8, 16, 40, 64, 80, 128, 192, 256)]
QUERIES = [Case(f"queries-{n}", heads=4, kv_heads=2, queries=n, keys=515, causal=True) for n in (1, 2, 5, 16, 67)]
MASKS = [
    Case(f"{mask}-{n}", batch=2, heads=4, kv_heads=2, queries=n, keys=531, mask=mask, causal=n == 3)
    for mask in ("bool-full", "bool-keys", "bool-2d", "bool-dead-rows", "bool-all-false", "add-full", "add-rows")
    for n in (1, 3)
]
MASKS += [Case(f"{mask}-6", heads=2, queries=6, keys=290, mask=mask) for mask in ("add-inf-rows", "add-lowest-rows")]
OTHERS = [
    Case("value-wider", heads=2, queries=3, keys=290, dim=32, value_dim=80),
    Case("value-narrower", heads=2, queries=3, keys=290, dim=96, value_dim=8),
    Case("more-queries-than-keys", heads=2, queries=40, keys=33, causal=True),
    Case("scale", heads=2, queries=1, keys=290, scale=0.7),
    Case("scale-negative", heads=2, queries=1, keys=290, scale=-0.3),
    Case("scale-zero", heads=2, queries=1, keys=290, scale=0.0),
    Case("batch", batch=5, heads=2, queries=1, keys=290),
]
#: Of those of 16 bits, with the data file's numbers everywhere.
WHOLE = [DIMS[3], DIMS[7], LENGTHS[3], GROUPS[4], MASKS[0], MASKS[3]]
ALL = [*LENGTHS, *GROUPS, *DIMS, *QUERIES, *MASKS, *OTHERS]


@pytest.mark.parametrize("case", ALL, ids=str)
def test_float32(backend, case):
    need(backend)
    check(backend, case)


@pytest.mark.parametrize(
    "case", [*LENGTHS, GROUPS[1], GROUPS[4], *DIMS[2::2], *QUERIES[1:4], *MASKS[1::2], *OTHERS], ids=str
)
def test_float32_on_processors(backend, case):
    need(backend, family=PROCESSOR)
    check(backend, case, family=PROCESSOR)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", [DIMS[2], DIMS[7], LENGTHS[3], GROUPS[3], MASKS[1]], ids=str)
def test_sixteen_bits_on_processors(backend, case, dtype):
    need(backend, dtype, PROCESSOR)
    if dtype == "bfloat16":
        check_bfloat16(backend, case, PROCESSOR)
    else:
        check(backend, case, np.float16, family=PROCESSOR)


@pytest.mark.parametrize("case", [*LENGTHS[2:], *GROUPS[2:], *DIMS, *QUERIES[1:4], *MASKS[::3], *OTHERS[:2]], ids=str)
def test_float16(backend, case):
    need(backend, "float16")
    with lighter(backend, case):
        check(backend, case, np.float16)


@pytest.mark.parametrize("case", [*DIMS, LENGTHS[3], QUERIES[2], MASKS[1]], ids=str)
def test_bfloat16(backend, case):
    need(backend, "bfloat16")
    with lighter(backend, case):
        check_bfloat16(backend, case, FAMILY)


@pytest.mark.parametrize(
    "tile",
    [
        {"stages": 1},
        {"words": 1},
        {"words": 8, "stages": 1},
        {"columns": 16},
        {"columns": 64},
        {"rows": 1},
        {"rows": 8},
        {"rows": 3, "keys": 32},
        {"threads": 8},
        {"threads": 64, "resident": 1},
        {"keys": 1000000},
        {"keys": 16, "resident": 1000, "words": 1},
    ],
    ids=str,
)
def test_every_partition(backend, tile):
    """Rows, invocations, keys and splits other than the data file's."""
    need(backend)
    size = backend.device.subgroup_sizes[1]
    if tile.get("threads", size) % size:
        pytest.skip(f"a workgroup of {tile['threads']} is no whole number of subgroups of {size}")
    with retiled(backend, FAMILY, **tile):
        for case in (
            Case("partition", heads=5, kv_heads=1, queries=2, keys=1030, dim=128, causal=True),
            Case("partition-mask", heads=4, kv_heads=2, queries=1, keys=771, mask="bool-keys"),
        ):
            check(backend, case)


def test_teams_leave_their_parts_in_places_of_their_own(vulkan_backend, monkeypatch):
    """Rows that see fewer keys have fewer splits: heads together leave as many parts as each alone."""
    backend, runtime = vulkan_backend, vulkan_backend.runtime
    need(backend)
    rng, dispatch, counts = np.random.default_rng(3), runtime.dispatch, []

    def watched(program, bindings, *rest):
        buffer, offset, length = bindings[8]
        runtime.write(buffer, np.full(length // 4, np.nan, np.float32), offset)
        dispatch(program, bindings, *rest)
        parts = np.empty(length // 4, np.float32)
        runtime.read(buffer, parts, offset)
        counts.append(np.count_nonzero(np.isfinite(parts)))

    q, k, v = (rng.standard_normal((1, 4, n, 16), dtype=np.float32) for n in (200, 200, 200))
    with retiled(backend, FAMILY, resident=1000, rows=2, keys=16):
        for heads in (slice(0, 1), slice(1, 2), slice(2, 3), slice(3, 4), slice(0, 4)):
            given = [backend.tensor(np.ascontiguousarray(a[:, heads])) for a in (q, k, v)]
            backend.attention.flash_attention2(*given, causal=True, kernel=FAMILY)  # its plan is made
            with monkeypatch.context() as patch:
                patch.setattr(runtime, "dispatch", watched)
                backend.attention.flash_attention2(*given, causal=True, kernel=FAMILY)
    assert counts[4] == sum(counts[:4]) > 0


def extras(rng, queries: int, batch=2, heads=6, keys=611) -> dict:
    """Options of attention that bend or hide scores, by name."""

    def f(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    def i(most, *shape):
        return rng.integers(0, most, shape).astype(np.int32)

    return {
        "window": {"window_size": (90, 40)},
        "softcap and sinks": {"softcap": 2.0, "sinks": 3 * f(heads)},
        "bias and t5": {"attn_bias": f(batch, heads, 1, keys), "t5_table": f(32, heads)},
        "alibi by sample": {"alibi_slopes": rng.uniform(0, 0.1, (batch, heads)).astype(np.float32)},
        "prefix": {"causal": True, "window_size": (50, 0), "prefix_len": i(300, batch)},
        "segments": {"segment_ids": (i(3, batch, queries), i(3, batch, keys))},
        "lengths": {
            "seqlens_q": np.array([queries, queries - 1], np.int32), "seqlens_k": np.array([40, 600], np.int32),
            "sinks": f(heads), "causal": True,
        },
        "blocks": {"block_map": rng.random((batch, 1, -(-queries // 2), -(-keys // 32))) < 0.5, "block_size": (2, 32)},
        "dropout": {"dropout_p": 0.3, "dropout_seed": 5, "dropout_offset": 3},
        "many": {
            "causal": True, "window_size": (300, 0), "softcap": 5.0, "sinks": f(heads),
            "attn_bias": f(1, heads, queries, 1), "mask": rng.random((batch, 1, queries, keys)) < 0.7,
            "alibi_slopes": rng.uniform(0, 0.1, heads).astype(np.float32),
            "seqlens_k": np.array([500, 611], np.int32),
        },
    }  # fmt: skip


@pytest.mark.parametrize("name", extras(np.random.default_rng(0), 1))
@pytest.mark.parametrize(("family", "queries"), [(FAMILY, 1), (FAMILY, 5), (PROCESSOR, 5)])
def test_extras(vulkan_backend, family, queries, name):
    """Rows of a workgroup belong to several heads, each with slopes, biases and sinks of its own."""
    need(vulkan_backend, family=family)
    case = Case(f"extras-{queries}-{name}", batch=2, heads=6, kv_heads=2, queries=queries, keys=611, dim=16)
    q, k, v, _ = make_arrays(case)
    options = extras(np.random.default_rng(7), queries)[name]
    exact, *_, exact_lse = reference.naive_attention(q, k, v, dtype=np.float64, return_lse=True, **options)
    plain, *_, plain_lse = reference.naive_attention(q, k, v, return_lse=True, **options)
    out, lse = vulkan_backend.attention.flash_attention2(q, k, v, return_lse=True, kernel=family, **options)
    assert_as_accurate(out, exact, plain, name)
    assert_as_accurate(lse, exact_lse, plain_lse, name)


@pytest.mark.parametrize("splits", [1, 2, 8, 9, 63, 64])
@pytest.mark.parametrize("dim", [8, 64, 256])
def test_numbers_of_splits(backend, splits, dim):
    """Around the counts that an invocation reads at a time; short rows leave invocations to share, long ones do not."""
    need(backend)
    with retiled(backend, FAMILY, keys=1, resident=1000):
        check(backend, Case("splits", heads=3, kv_heads=1, queries=1, keys=64 * splits, dim=dim))


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("kind", ["bool", "additive", "causal"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@EITHER
def test_masked_slots_do_not_leak(backend, family, poison, kind, dtype):
    """What masked keys and values hold never reaches the output, not by a bit."""
    need(backend, dtype, family)
    q, k, v, _ = make_arrays(Case("leak", heads=4, kv_heads=2, queries=3, keys=700, dim=32), dtype)
    allowed = np.ones((3, 700), bool)
    if kind == "causal":
        allowed = np.arange(700) <= np.arange(3)[:, None] + 697
        hidden, mask = slice(699, 700), None  # of rows 0 and 1
    else:
        hidden = slice(333, 610)
        allowed[:, hidden] = False
        mask = allowed if kind == "bool" else np.where(allowed, np.float32(0), np.float32(-np.inf))
    run = backend.attention.flash_attention2
    with lighter(backend, family=family):
        clean = run(q, k, v, mask=mask, causal=kind == "causal", kernel=family)
        k2, v2 = k.copy(), v.copy()
        with np.errstate(over="ignore"):
            k2[:, :, hidden] = poison
            v2[:, :, hidden] = poison
        dirty = run(q, k2, v2, mask=mask, causal=kind == "causal", kernel=family)
    rows = slice(0, 2) if kind == "causal" else slice(None)
    assert np.isfinite(clean).all()
    assert (clean[:, :, rows] == dirty[:, :, rows]).all()
    if kind == "causal" and not np.isfinite(poison):
        assert not np.isfinite(dirty[:, :, 2]).any()


@pytest.mark.parametrize("key", [0, 300, 1022])
@EITHER
def test_what_is_not_finite_shows(backend, family, key):
    """A NaN in a key that is attended to reaches the output, from whichever split; so does an infinite value."""
    need(backend, family=family)
    q, k, v, _ = make_arrays(Case("shows", heads=4, kv_heads=1, queries=1, keys=1023))
    run = backend.attention.flash_attention2
    spoiled = k.copy()
    spoiled[:, :, key] = np.nan
    assert np.isnan(run(q, spoiled, v, kernel=family)).all()
    assert np.isnan(run(q, np.full_like(k, np.nan), v, kernel=family)).all()
    spoiled = v.copy()
    spoiled[:, :, key] = np.inf
    assert np.isposinf(run(q, k, spoiled, kernel=family)).all()


@EITHER
def test_slots_past_the_end_do_not_leak(backend, family):
    """The arrays are windows into larger ones filled with NaN; nothing outside reaches the result."""
    need(backend, family=family)
    case = Case("window", heads=2, queries=3, keys=261, dim=40)
    arrays = make_arrays(case)

    def window(array):
        big = np.full((1, 2, array.shape[2] + 9, array.shape[3] + 8), np.nan, np.float32)
        big[:, :, : array.shape[2], : array.shape[3]] = array
        return backend.tensor(big)[:, :, : array.shape[2], : array.shape[3]]

    out = backend.attention.flash_attention2(*(window(a) for a in arrays[:3]), kernel=family).numpy()
    exact, _, plain, _ = expected(case, *arrays)
    assert_as_accurate(out, exact, plain)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@EITHER
def test_heads_inside_rows(backend, family, dtype):
    """(B, S, H, D) seen as (B, H, S, D): only strides differ, and the result has q's layout."""
    need(backend, dtype, family)
    case = Case("joined", batch=2, heads=6, kv_heads=2, queries=2, keys=530, dim=64)
    arrays = make_arrays(case, dtype)
    swapped = [np.ascontiguousarray(a.transpose(0, 2, 1, 3)) for a in arrays[:3]]
    tensors = [backend.tensor(a).transpose(0, 2, 1, 3) for a in swapped]
    run = backend.attention.flash_attention2
    out = run(*tensors, kernel=family)
    assert out.transpose(0, 2, 1, 3).is_contiguous
    assert (out.numpy() == run(*arrays[:3], kernel=family)).all()


def test_scores_beyond_float16(backend):
    need(backend, "float16")
    q, k, v, mask = make_arrays(Case("large", heads=2, queries=1, keys=300), np.float16)
    check(backend, Case("large", heads=2, queries=1, keys=300), np.float16, arrays=(q * 100, k * 100, v, mask))


@EITHER
def test_smallest_float16_numbers_count(backend, family):
    """Subnormal values are not taken for zero."""
    need(backend, "float16", family)
    q, k, _, _ = make_arrays(Case("tiny", heads=2, queries=1, keys=300), np.float16)
    v = np.full(k.shape, 3 * 2.0**-24, np.float16)
    assert (backend.attention.flash_attention2(q, k, v, kernel=family) == v[:, :, :1]).all()


def test_repeats_are_equal_to_the_bit(backend):
    need(backend)
    q, k, v, _ = make_arrays(Case("repeat", heads=8, kv_heads=2, queries=1, keys=2100))
    tensors = [backend.tensor(a) for a in (q, k, v)]
    first = backend.attention.flash_attention2(*tensors, kernel=FAMILY).numpy()
    for _ in range(30):
        assert (backend.attention.flash_attention2(*tensors, kernel=FAMILY).numpy() == first).all()


def test_sizes_that_do_not_align_are_refused_by_name(backend):
    """kernel="flash-decode" is never ignored: what it cannot do raises and says why; without it, another does."""
    need(backend)
    q, k, v, mask = make_arrays(Case("odd", heads=2, queries=1, keys=600, dim=37))
    with pytest.raises(grilly.UnsupportedError, match="multiples of 4"):
        backend.attention.flash_attention2(q, k, v, kernel=FAMILY)
    want = reference.naive_attention(q, k, v, dtype=np.float64)[0]
    assert np.abs(backend.attention.flash_attention2(q, k, v) - want).max() < 1e-6


def test_low_scores_that_count(backend):
    """Scores just above those that mean "never attend" are attended to, and outweighed by any usual score."""
    need(backend)
    q, k, v, _ = make_arrays(Case("low", heads=2, queries=1, keys=600))
    mask = np.full(600, -2e38, np.float32)
    mask[550:] = -np.inf
    run = backend.attention.flash_attention2
    out, lse = run(q, k, v, mask=mask, scale=0.0, return_lse=True, kernel=FAMILY)
    assert np.abs(out[:, :, 0] - v[:, :, :550].mean(axis=2, dtype=np.float64)).max() < 1e-6
    assert np.allclose(lse, -2e38, rtol=1e-6)
    mask[3] = 0
    assert (run(q, k, v, mask=mask, scale=0.0, kernel=FAMILY)[:, :, 0] == v[:, :, 3]).all()


def test_arrays_beyond_a_binding(backend, monkeypatch):
    """Asked for by name it says so; left to the registry, the kernels that can be cut do it."""
    need(backend)
    if "descriptor-offsets" not in backend.runtime.features:
        pytest.skip(f"the {backend.runtime.name} runtime binds whole buffers only")
    q, k, v, _ = make_arrays(Case("beyond", heads=2, queries=1, keys=600))
    tensors = [backend.tensor(a) for a in (q, k, v)]
    pretend(monkeypatch, backend, storage_range=k.nbytes // 2)
    with pytest.raises(grilly.UnsupportedError, match="beyond a binding"):
        backend.attention.flash_attention2(*tensors, kernel=FAMILY)
    want = reference.naive_attention(q, k, v, dtype=np.float64)[0]
    assert np.abs(backend.attention.flash_attention2(*tensors).numpy() - want).max() < 1e-6


def test_no_keys(backend):
    need(backend)
    q, k = np.ones((1, 2, 1, 8), np.float32), np.ones((1, 2, 0, 8), np.float32)
    out, lse = backend.attention.flash_attention2(q, k, k, return_lse=True, kernel=FAMILY)
    assert (out == 0).all() and np.isneginf(lse).all()


def test_scratch_is_given_back(backend):
    need(backend)
    q, k, v, _ = make_arrays(Case("memory", heads=2, queries=1, keys=1000))
    tensors = [backend.tensor(a) for a in (q, k, v)]
    backend.attention.flash_attention2(*tensors, kernel=FAMILY).numpy()
    before = backend.memory().in_use
    for _ in range(5):
        backend.attention.flash_attention2(*tensors, kernel=FAMILY).numpy()
    assert backend.memory().in_use == before


@pytest.mark.parametrize("keys", [70_000])
def test_many_keys(backend, keys):
    """Past the 65,535 trips after which a driver ends loops."""
    need(backend)
    check(backend, Case("many", heads=1, queries=1, keys=keys, dim=16))


def test_keys_that_are_to_be_split(backend):
    """Asked for by name, a kernel that splits no keys refuses more than one sum may have."""
    need(backend, family=PROCESSOR)
    k = backend.tensor(np.zeros((1, 1, 16_385, 8), np.float32))
    with pytest.raises(grilly.UnsupportedError, match="16385 keys are too many"):
        backend.attention.flash_attention2(k[:, :, :1], k, k, kernel=PROCESSOR)
