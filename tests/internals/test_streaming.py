"""Attention on NumPy arrays that do not fit in the memory limit: streamed in blocks, with the same result."""

from __future__ import annotations

import contextlib
import logging
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grilly
from blockwise import OPTIONS
from cases import (
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
from grilly.compute.attention import merge, progress, stream, stream_plan
from grilly.compute.attention.plan import planned
from grilly.reference import sums
from kernels import forget, plans

CASES = [
    Case("plain", batch=2, heads=3, queries=211, keys=507, dim=32),
    Case("one-query", heads=4, queries=1, keys=2011, dim=64),
    Case("grouped", batch=2, heads=6, kv_heads=2, queries=131, keys=307, dim=32, value_dim=48),
    Case("causal", batch=1, heads=2, queries=401, keys=401, dim=32, causal=True),
    Case("causal-more-keys", heads=2, queries=97, keys=701, dim=32, causal=True),
    Case("causal-more-queries", heads=2, queries=701, keys=211, dim=32, causal=True),
    Case("bool-dead-rows", queries=211, keys=307, dim=32, mask="bool-dead-rows"),
    Case("bool-head", batch=2, heads=3, queries=101, keys=509, dim=32, mask="bool-head"),
    Case("bool-all-false", queries=101, keys=307, dim=32, mask="bool-all-false"),
    Case("add-full-causal", batch=2, heads=2, queries=157, keys=157, dim=32, mask="add-full", causal=True),
    Case("add-inf-rows", queries=211, keys=307, dim=32, mask="add-inf-rows"),
]


def needs(q, k, v, mask=None) -> int:
    """Bytes of a call's arrays."""
    output = q.size // q.shape[-1] * (v.shape[-1] * q.itemsize + 4)
    return q.nbytes + k.nbytes + v.nbytes + output + (0 if mask is None else mask.nbytes)


@contextlib.contextmanager
def limited(backend, limit: int):
    """The backend with ``limit`` bytes beside what it holds; yields counts of what was done."""
    counts = types.SimpleNamespace(merges=0, calls=0, key_bytes=0, limit=limit + backend.memory().in_use)
    add, send = merge.add, stream._Streamed._send

    def counted_add(*arguments):
        counts.merges += 1
        add(*arguments)

    def counted_send(self, *arguments, **options):
        sent = send(self, *arguments, **options)
        counts.key_bytes += 0 if sent is None else sent[0].nbytes
        return sent

    former, backend.memory_limit = backend.memory_limit, counts.limit
    merge.add, stream._Streamed._send = counted_add, counted_send
    try:
        yield counts
    finally:
        backend.memory_limit = former
        merge.add, stream._Streamed._send = add, send


@pytest.mark.parametrize("case", CASES, ids=str)
def test_same_as_the_whole(vulkan_backend, case):
    check(vulkan_backend, case, np.float32)


def test_with_each_runtime(backend):
    check(backend, next(c for c in CASES if c.name == "causal-more-keys"), np.float32)


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
@pytest.mark.parametrize("case", [c for c in CASES if c.name in ("plain", "grouped", "causal")], ids=str)
def test_sixteen_bits(vulkan_backend, case, dtype):
    check(vulkan_backend, case, dtype)


def check(backend, case, dtype):
    """A call with a quarter of the memory that it needs, against float64."""
    q, k, v, mask = make_arrays(case, dtype)
    with limited(backend, needs(q, k, v, mask) // 4) as counts:
        assert stream_plan.needed(backend.opened, q, k, v, mask)

        def attend():
            backend.memory(reset_peak=True)
            return backend.attention.flash_attention2(
                q, k, v, mask=mask, causal=case.causal, scale=case.scale, return_lse=True
            )

        if q.itemsize == 2:
            attend()  # matrix kernels are checked before their first use, which takes memory once
            counts.merges = 0
        out, lse = attend()
        peak = backend.memory().peak
    if case.mask == "bool-all-false":
        assert counts.merges == counts.key_bytes == 0
    else:
        assert counts.merges > 2
        assert peak <= counts.limit
    exact, exact_lse, plain, plain_lse = expected(case, q, k, v, mask)
    magnitude = output_magnitude(case, q, k, v, mask)
    if q.itemsize == 2:
        # Each part is rounded once, and the merged result once more.
        plain = rounded_weights(case, q, k, v, mask)
        assert out.dtype == q.dtype
    assert_as_accurate(out, exact, plain, str(case), magnitude)
    assert_as_accurate(lse, exact_lse, plain_lse, f"{case} lse", lse_magnitude(case, q, k, plain_lse))


@pytest.mark.parametrize("name", OPTIONS)
def test_options(vulkan_backend, name):
    """Each option counts queries and keys in the whole arrays, wherever a block begins."""
    options = dict(OPTIONS[name])
    keys, rng = options.pop("keys", 307), np.random.default_rng(8)
    q, k, v = (rng.standard_normal((2, 3, s, 32)).astype(np.float32) for s in (113, keys, keys))
    with limited(vulkan_backend, needs(q, k, v) // 12) as counts:
        out, lse = vulkan_backend.attention.flash_attention2(q, k, v, return_lse=True, **options)
    assert counts.merges > 6
    exact = reference.naive_attention(q, k, v, dtype=np.float64, return_lse=True, **options)
    np.testing.assert_allclose(out, exact[0], rtol=0, atol=3e-6)
    np.testing.assert_allclose(lse, exact[-1], rtol=0, atol=3e-6)


def test_layouts(vulkan_backend, tmp_path):
    """Joined heads, reversed axes, memory-mapped files, fewer axes."""
    backend = vulkan_backend
    rng = np.random.default_rng(1)
    joined = [rng.standard_normal((2, s, 3 * 32)).astype(np.float32) for s in (101, 307, 307)]
    exact = reference.naive_attention(*(a.reshape(2, -1, 3, 32).transpose(0, 2, 1, 3) for a in joined))[0]
    mapped = []
    for number, array in enumerate(joined):
        array.tofile(tmp_path / str(number))
        mapped.append(np.memmap(tmp_path / str(number), np.float32, "r", shape=array.shape))
    with limited(backend, needs(*joined) // 3) as counts:
        result = backend.attention.flash_attention3(*mapped, num_heads=3)
        assert counts.merges > 2
        reversed_axes = [np.ascontiguousarray(a.T).T for a in joined]
        other = backend.attention.flash_attention3(*reversed_axes, num_heads=3)
        two = backend.attention.flash_attention2(*(a[0] for a in joined))
        three = backend.attention.flash_attention2(*joined)
    np.testing.assert_allclose(result.reshape(2, -1, 3, 32).transpose(0, 2, 1, 3), exact, rtol=0, atol=1e-6)
    np.testing.assert_allclose(other, result, rtol=0, atol=1e-6)
    assert two.shape == (101, 96) and three.shape == (2, 101, 96)
    np.testing.assert_allclose(two, three[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(three, reference.naive_attention(*joined)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_rounding_does_not_add_up(vulkan_backend, dtype):
    """A 16-bit result merged from many blocks of keys is as close as one from few: the running sum is float32."""
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((1, 1, s, 32)).astype(dtype) for s in (16, 4096, 4096))
    exact = reference.naive_attention(q, k, v, dtype=np.float64)[0]
    errors = {}
    for limit in (400_000, 20_000):
        with limited(vulkan_backend, limit) as counts:
            out = vulkan_backend.attention.flash_attention2(q, k, v)
        errors[counts.merges] = np.sqrt(np.mean((out.astype(np.float64) - exact) ** 2))
    few, many = sorted(errors)
    assert few <= 4 and many >= 40
    assert errors[many] <= 1.5 * errors[few]


def test_blocks_in_the_future_are_not_sent(vulkan_backend):
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 1, 1024, 32)).astype(np.float32) for _ in range(3))
    sent = {}
    for causal in (False, True):
        with limited(vulkan_backend, 60_000) as counts:
            vulkan_backend.attention.flash_attention2(q, k, v, causal=causal)
        sent[causal] = counts.key_bytes
    assert sent[True] < 0.7 * sent[False]


def test_blocks_that_a_mask_hides_are_not_sent(vulkan_backend):
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((1, 2, s, 32)).astype(np.float32) for s in (64, 2048, 2048))
    mask = np.zeros(2048, bool)
    mask[1500:1600] = True
    v[:, :, :1000] = np.nan
    with limited(vulkan_backend, 150_000) as counts:
        out = vulkan_backend.attention.flash_attention2(q, k, v, mask=mask)
    assert 0 < counts.key_bytes < k.nbytes / 4
    exact = reference.naive_attention(q, k[:, :, 1500:1600], v[:, :, 1500:1600])[0]
    np.testing.assert_allclose(out, exact, rtol=0, atol=1e-6)


def test_a_million_keys(vulkan_backend):
    """512 MB of keys and values through 32 MB, against float64."""
    rng = np.random.default_rng(5)
    q = rng.standard_normal((1, 1, 16, 64), dtype=np.float32)
    k, v = (rng.standard_normal((1, 1, 1_000_000, 64), dtype=np.float32) for _ in range(2))
    with limited(vulkan_backend, 32 << 20) as counts:
        vulkan_backend.memory(reset_peak=True)
        out, lse = vulkan_backend.attention.flash_attention2(q, k, v, return_lse=True)
        assert vulkan_backend.memory().peak <= counts.limit
    assert counts.merges >= 16
    results = []
    for dtype in (np.float64, np.float32):
        # Scores of unit normal inputs stay below 8, so that no maximum is needed.
        total, weighted = np.zeros((16, 1), dtype), np.zeros((16, 64), dtype)
        for start in range(0, 1_000_000, 50_000):
            part = slice(start, start + 50_000)
            weights = sums.exp(reference.matmul(q[0, 0].astype(dtype), k[0, 0, part].astype(dtype).T) * dtype(0.125))
            total += weights.sum(1, keepdims=True)
            weighted += reference.matmul(weights, v[0, 0, part].astype(dtype))
        results.append(((weighted / total)[None, None], np.log(total)[None, None, :, 0]))
    (exact, exact_lse), (plain, plain_lse) = results
    # The largest error of 1,024 numbers; means would compare the order of NumPy's sums with that of ours.
    assert np.abs(out - exact).max() <= 2 * np.abs(plain - exact).max() + np.finfo(np.float32).eps * np.abs(exact).max()
    assert_as_accurate(lse, exact_lse, plain_lse, "lse")


def test_progress(vulkan_backend, caplog, capsys, monkeypatch):
    seen = []
    monkeypatch.setattr(stream, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(vulkan_backend, "progress", seen.append)
    q, k, v = (np.ones((1, 1, s, 32), np.float32) for s in (64, 1024, 1024))
    with limited(vulkan_backend, 80_000), caplog.at_level(logging.INFO, "grilly"):
        vulkan_backend.attention.flash_attention2(q, k, v, causal=True)
    done = [p.done for p in seen]
    assert len(done) > 3 and done == sorted(set(done)) and done[-1] == seen[-1].total
    assert all(p.operation == "flash_attention2" and p.seconds >= 0 for p in seen)
    assert any("streaming 64 queries" in r.message for r in caplog.records)
    progress.show(seen[-1])
    assert "flash_attention2: 100 % of the pairs" in capsys.readouterr().err


def test_what_progress_may_be(vulkan_backend):
    former = vulkan_backend.progress
    try:
        for given, kept in ((True, progress.show), (print, print), (False, None), (None, None)):
            vulkan_backend.progress = given
            assert vulkan_backend.progress is kept
        for bad in (5, "yes"):
            with pytest.raises(TypeError, match="Compute: progress is .*; expected a function"):
                vulkan_backend.progress = bad
            with pytest.raises(TypeError, match="Compute: progress is .*; expected a function"):
                grilly.Compute(progress=bad)
    finally:
        vulkan_backend.progress = former


def test_what_cannot_be_streamed_is_refused(vulkan_backend):
    q, k, v = (np.ones((1, 1, s, 32), np.float32) for s in (64, 1024, 1024))
    with limited(vulkan_backend, 100):
        with pytest.raises(grilly.OutOfDeviceMemoryError, match="flash_attention2: one query and one key need"):
            vulkan_backend.attention.flash_attention2(q, k, v)
    with limited(vulkan_backend, 80_000):
        with pytest.raises(grilly.UnsupportedError, match="flash-decode takes them in parts only where every query"):
            vulkan_backend.attention.flash_attention2(q[:, :, :1], k, v, causal=True, kernel="flash-decode")
        result = vulkan_backend.attention.flash_attention2(q[:, :, :1], k, v, kernel="flash-decode")
    np.testing.assert_allclose(result, 1, rtol=1e-6)


def test_tensors_are_not_streamed(vulkan_backend):
    arrays = [np.ones((1, 1, s, 32), np.float32) for s in (64, 1024, 1024)]
    tensors = [vulkan_backend.tensor(a) for a in arrays]
    with limited(vulkan_backend, 1000) as counts:
        vulkan_backend.attention.flash_attention2(*tensors)
    assert counts.merges == 0


def test_the_limit(monkeypatch):
    with grilly.Compute(device=np.int64(0), memory_limit=np.int64(10**9)) as backend:
        for value in (0, -1, 2.5, "much", True):
            with pytest.raises(ValueError, match="Compute: memory_limit is .*; expected a number of bytes"):
                grilly.Compute(memory_limit=value)
            with pytest.raises(ValueError, match="Compute: memory_limit is .*; expected a number of bytes"):
                backend.memory_limit = value
        assert backend.memory_limit == 10**9
        backend.memory_limit = None
        assert backend.memory_limit is None
    monkeypatch.setenv("GRILLY_MEMORY_LIMIT", "some")
    with pytest.raises(ValueError, match="GRILLY_MEMORY_LIMIT is 'some'"):
        grilly.Compute()


def test_the_limit_from_the_environment(vulkan_backend, monkeypatch):
    monkeypatch.setenv("GRILLY_MEMORY_LIMIT", "12345678")
    with grilly.Compute(device=vulkan_backend.device.index) as backend:
        assert backend.memory_limit == 12345678
        assert stream_plan.room(backend.opened) == 12345678 - backend.memory().in_use


@settings(deadline=None)
@given(
    batch=st.integers(1, 8), kv_heads=st.integers(1, 8), group=st.integers(1, 8), queries=st.integers(1, 1 << 22),
    keys=st.integers(1, 1 << 22), mask=st.tuples(*[st.booleans()] * 4), budget=st.integers(100_000, 1 << 34),
)  # fmt: skip
def test_plans_fit(batch, kv_heads, group, queries, keys, mask, budget):
    device = types.SimpleNamespace(
        most_memory=budget,
        info=types.SimpleNamespace(limits={"storage_range": 1 << 27, "allocation": 1 << 32}, memory_bytes=1 << 34),
        runtime=types.SimpleNamespace(memory=lambda: types.SimpleNamespace(in_use=0)),
        facts=types.SimpleNamespace(windows=True, architecture="generic"),
    )
    full = (batch, kv_heads * group, queries, keys)

    def array(*shape):
        return np.broadcast_to(np.float32(0), shape)

    bias = array(*(e if own else 1 for e, own in zip(full, mask, strict=True)))
    q, k, v = array(*full[:3], 64), array(batch, kv_heads, keys, 64), array(batch, kv_heads, keys, 32)
    block = stream_plan.plan_blocks("test", device, q, k, v, (None, bias))
    assert 1 <= block.batch <= batch and 1 <= block.heads <= kv_heads
    assert 1 <= block.queries <= queries and 1 <= block.keys <= keys
    rows = block.batch * block.heads * group * block.queries
    held = 4 * (rows * (64 + 2 * 32 + 3) + 2 * block.batch * block.heads * block.keys * 96)
    extents = (block.batch, block.heads * group, block.queries, block.keys)
    held += 2 * 4 * int(np.prod([e for e, own in zip(extents, bias.shape, strict=True) if own > 1]))
    assert held <= budget


def test_blocks_leave_no_plans(vulkan_backend):
    """None like them will come: each begins elsewhere in the call."""
    case = next(c for c in CASES if c.name == "causal-more-keys")
    q, k, v, mask = make_arrays(case)
    forget(vulkan_backend)
    with limited(vulkan_backend, needs(q, k, v, mask) // 4) as counts:
        vulkan_backend.attention.flash_attention2(q, k, v, mask=mask, causal=case.causal)
    assert counts.merges > 1 and not plans(vulkan_backend, planned)
