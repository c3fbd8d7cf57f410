"""grilly.dask: attention on Dask arrays equals attention on the whole ones, whoever computes the chunks."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import children
import grilly
from blockwise import OPTIONS
from cases import epsilon
from grilly import reference

dask = pytest.importorskip("dask", reason="dask is not installed; pip install 'grilly-vulkan[dask]'")
import dask.array as da  # noqa: E402

import grilly.dask as grilly_dask  # noqa: E402


@pytest.fixture
def used(vulkan_backend):
    """The shared backend as the default one, which tasks in this process use."""
    former = grilly.use(vulkan_backend)
    with dask.config.set(scheduler="synchronous"):
        yield vulkan_backend
    grilly.use(former)


def make(batch=2, heads=4, kv_heads=2, queries=131, keys=307, dim=32, value_dim=24, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((batch, heads, queries, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, value_dim))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def cut(arrays, *chunks):
    return [da.from_array(a, chunks=c) for a, c in zip(arrays, chunks, strict=True)]


def attends(array) -> int:
    """Tasks of an array's graph that attend."""
    return sum("_attend_chunk" in str(key) for key in array.__dask_graph__())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries, keys", [(131, 307), (307, 131), (200, 200)])
def test_chunked_over_all_axes(used, queries, keys, causal):
    q, k, v = make(queries=queries, keys=keys)
    arrays = cut((q, k, v), (1, 2, 50, 16), (2, 1, 60, 32), (2, 2, 77, 24))
    out, lse = grilly_dask.flash_attention(*arrays, causal=causal, scale=0.3, return_lse=True)
    assert out.dtype == q.dtype and lse.dtype == np.float32
    assert out.chunks[:3] == arrays[0].chunks[:3] == lse.chunks
    exact = reference.naive_attention(q, k, v, 0.3, causal=causal, return_lse=True, dtype=np.float64)
    out, lse = dask.compute(out, lse)
    np.testing.assert_allclose(out, exact[0], rtol=0, atol=2e-6)
    np.testing.assert_allclose(lse, exact[-1], rtol=0, atol=2e-6)


def test_chunks_in_the_future_are_no_tasks():
    q, k, v = (da.zeros((1, 1, 1000, 16), chunks=(1, 1, 100, 16), dtype=np.float32) for _ in range(3))
    assert attends(grilly_dask.flash_attention(q, k, v)) == 100
    assert attends(grilly_dask.flash_attention(q, k, v, causal=True)) == 55
    assert attends(grilly_dask.flash_attention(q, k, v, causal=True, window_size=(100, 0))) == 10 + 9
    longer = da.zeros((1, 1, 1500, 16), chunks=(1, 1, 100, 16), dtype=np.float32)
    assert attends(grilly_dask.flash_attention(q, longer, longer, causal=True)) == 50 + 55
    assert attends(grilly_dask.flash_attention(longer, k, v, causal=True)) == 55


@pytest.mark.parametrize("name", OPTIONS)
def test_options(used, name):
    """Every option counts in the whole arrays."""
    options = dict(OPTIONS[name])
    q, k, v = make(2, 3, 3, 113, options.pop("keys", 307), 32, 32)
    exact = reference.naive_attention(q, k, v, dtype=np.float64, return_lse=True, **options)
    if "mask" in options:
        options["mask"] = da.from_array(options["mask"], chunks=40)
    arrays = cut((q, k, v), (1, 2, 50, 32), (1, 1, 80, 32), (1, 1, 80, 32))
    out, lse = dask.compute(*grilly_dask.flash_attention(*arrays, return_lse=True, **options))
    np.testing.assert_allclose(out, exact[0], rtol=0, atol=3e-6)
    np.testing.assert_allclose(lse, exact[-1], rtol=0, atol=3e-6)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"sinks": np.ones(1, np.float32)}], ids=" ".join)
@pytest.mark.parametrize("chunks", [(0, 6), (3, 0, 3), (0,), (0, 0)])
def test_chunks_of_no_keys(used, chunks, options):
    """They add nothing, and sinks count once although several chunks begin at key 0."""
    q, k, v = make(1, 1, 1, 3, sum(chunks))
    arrays = cut((q, k, v), q.shape, (1, 1, chunks, 32), (1, 1, chunks, 24))
    exact = reference.naive_attention(q, k, v, return_lse=True, dtype=np.float64, **options)
    out, lse = dask.compute(*grilly_dask.flash_attention(*arrays, return_lse=True, **options))
    np.testing.assert_allclose(out, exact[0], rtol=0, atol=2e-6)
    np.testing.assert_allclose(lse, exact[-1], rtol=0, atol=2e-6)


@pytest.mark.parametrize("options", [{}, {"window_size": (1, 1)}], ids=str)
def test_rows_alone_in_a_chunk_beside_lengths(used, options):
    """Such a row stands where its sample's length says, not where it would in a call of its own."""
    q, k, v = make(batch=1, heads=1, kv_heads=1, queries=9, keys=9, dim=16, value_dim=16)
    options = {"causal": True, "seqlens_k": np.array([6])} | options
    want = reference.naive_attention(q, k, v, dtype=np.float64, **options)[0]
    rows, keys = (1, 1, (2, 1, 6), 16), (1, 1, 3, 16)
    chunked = (da.from_array(a, chunks=each) for a, each in ((q, rows), (k, keys), (v, keys)))
    np.testing.assert_allclose(grilly_dask.flash_attention(*chunked, **options).compute(), want, rtol=0, atol=1e-5)


def test_options_are_those_of_the_call(used):
    q, k, v = (da.from_array(a) for a in make(batch=1, heads=2, kv_heads=2, queries=3, keys=5))
    sinks = np.zeros(2, np.float32)
    lazy = grilly_dask.flash_attention(q, k, v, sinks=sinks)
    want = lazy.compute()
    sinks[:] = 50
    np.testing.assert_array_equal(lazy.compute(), want)


def test_fewer_axes_and_numpy_arrays(used):
    q, k, v = make(1, 3, 3, 71, 83, 32, 32)
    for axes in (2, 3):
        own = [a[0, 0] if axes == 2 else a[0] for a in (q, k, v)]
        result = grilly_dask.flash_attention(da.from_array(own[0], chunks=30), *own[1:])
        assert result.ndim == axes
        np.testing.assert_allclose(result, reference.naive_attention(*own)[0], rtol=0, atol=1e-6)


def test_heads_that_cut_through_a_group(used):
    q, k, v = make(1, 6, 2, 33, 41)
    result = grilly_dask.flash_attention(*cut((q, k, v), (1, 2, 33, 32), (1, 1, 20, 32), (1, 2, 41, 24)))
    assert result.chunks[1] == (3, 3)
    np.testing.assert_allclose(result, reference.naive_attention(q, k, v)[0], rtol=0, atol=1e-6)


def test_float16_is_joined_in_float32(used):
    q, k, v = make(1, 1, 1, 64, 4096, dtype=np.float16)
    exact = reference.naive_attention(q, k, v, dtype=np.float64)[0]
    errors = []
    for size in (4096, 64):
        out = grilly_dask.flash_attention(*cut((q, k, v), q.shape, (1, 1, size, 32), (1, 1, size, 24))).compute()
        assert out.dtype == np.float16
        errors.append(np.sqrt(np.mean((out.astype(np.float64) - exact) ** 2)))
    assert errors[1] <= 1.5 * errors[0]


def test_chunks_that_do_not_fit_are_streamed(used, monkeypatch):
    q, k, v = make(1, 2, 2, 64, 2048)
    monkeypatch.setattr(used, "memory_limit", 100_000 + used.memory().in_use)
    result = grilly_dask.flash_attention(*cut((q, k, v), q.shape, (1, 2, 1024, 32), (1, 2, 1024, 24)), causal=True)
    exact = reference.naive_attention(q, k, v, causal=True)[0]
    used.memory(reset_peak=True)
    np.testing.assert_allclose(result, exact, rtol=0, atol=2e-6)
    assert used.memory().peak <= used.memory_limit


def test_refusals():
    q, k, v = cut(make(), (1, 4, 50, 32), (1, 2, 50, 32), (1, 2, 50, 24))
    with pytest.raises(ValueError, match="dask.flash_attention: k has 2 heads and q has 3"):
        grilly_dask.flash_attention(q[:, :3], k, v)
    with pytest.raises(TypeError, match="dask.flash_attention: q is a list; expected a dask.array.Array"):
        grilly_dask.flash_attention([1.0], k, v)
    with pytest.raises(TypeError, match="unexpected keyword argument 'windw'"):
        grilly_dask.flash_attention(q, k, v, windw=3)
    with pytest.raises(ValueError, match=r"mask has shape \(7,\), which does not broadcast"):
        grilly_dask.flash_attention(q, k, v, mask=np.ones(7, bool))
    with pytest.raises(ValueError, match=r"padding mask \(B, Sk\), True = attend, is given as mask\[:, None, None\]"):
        grilly_dask.flash_attention(q, k, v, mask=np.ones((2, 307), bool))
    with pytest.raises(TypeError, match="attn_bias is int64; expected float32"):
        grilly_dask.flash_attention(q, k, v, attn_bias=np.ones(307, np.int64))
    with pytest.raises(ValueError, match="k has chunks of unknown size"):
        grilly_dask.flash_attention(q, k[:, :, k[0, 0, :, 0] > 0], v)


def test_join():
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 1, s, 8)) for s in (5, 40, 40))
    mask = rng.random((5, 40)) < 0.5
    mask[0], mask[1, :20], mask[2, 20:] = False, False, False
    whole = reference.naive_attention(q, k, v, mask=mask, return_lse=True)
    halves = [reference.naive_attention(q, k[:, :, s], v[:, :, s], mask=mask[:, s], return_lse=True)
              for s in (slice(20), slice(20, None))]  # fmt: skip
    o, lse = grilly_dask.join(*((h[0], h[-1]) for h in halves))
    assert o.dtype == np.float32
    np.testing.assert_allclose(o, whole[0], rtol=0, atol=4 * epsilon(np.float32))
    np.testing.assert_allclose(lse, whole[-1], rtol=1e-12)


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_schedulers(used, scheduler, monkeypatch, tmp_path):
    """Out of core: chunks come from files and go by any of Dask's schedulers."""
    monkeypatch.setenv("PYTHONPATH", children.environment()["PYTHONPATH"])
    q, k, v = make(1, 2, 2, 150, 150)
    mapped = []
    for number, array in enumerate((q, k, v)):
        array.tofile(tmp_path / str(number))
        mapped.append(da.from_array(np.memmap(tmp_path / str(number), np.float32, "r", shape=array.shape), chunks=60))
    result = grilly_dask.flash_attention(*mapped, causal=True)
    exact = reference.naive_attention(q, k, v, causal=True)[0]
    np.testing.assert_allclose(result.compute(scheduler=scheduler, num_workers=2), exact, rtol=0, atol=2e-6)


def test_the_page_runs(used):
    text = (Path(__file__).parents[1] / "docs/dask.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names: dict = {}
    exec(compile(block, "docs/dask.md, the block", "exec"), names)
    exact = reference.naive_attention(*(names[n].compute() for n in "qkv"), causal=True)[0]
    np.testing.assert_allclose(names["result"], exact, rtol=0, atol=2e-6)


@pytest.mark.long("a cluster of processes, and one that is waited for")
def test_a_worker_that_dies(used, monkeypatch):
    """Two processes, one killed when it holds results: the other and its successor give the same, bit for bit."""
    distributed = pytest.importorskip("distributed", reason="no distributed; pip install 'grilly-vulkan[dask]'")
    monkeypatch.setenv("PYTHONPATH", children.environment()["PYTHONPATH"])
    monkeypatch.setenv("GRILLY_DEVICE", str(used.device.index))
    q, k, v = make(1, 4, 2, 600, 600)
    arrays = cut((q, k, v), (1, 2, 100, 32), (1, 1, 100, 32), (1, 1, 100, 24))

    def result(delay):
        # Chunks take their time, so that the worker dies before they are all there.
        slow = [a.map_blocks(_slowly, delay, dtype=a.dtype, meta=a._meta) for a in arrays]
        return grilly_dask.flash_attention(*slow, causal=True, return_lse=True)

    expected = dask.compute(*result(0.0))
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    )
    with cluster, distributed.Client(cluster) as client:
        processes = client.run(os.getpid)
        assert len(set(processes.values())) == 2 and os.getpid() not in processes.values()
        futures = client.compute(list(result(0.15)))
        deadline = time.monotonic() + 120
        victim = None
        while victim is None and time.monotonic() < deadline:
            time.sleep(0.05)
            for address, held in client.has_what().items():
                if sum("_attend_chunk" in str(key) for key in held) >= 2:
                    victim = address
        assert victim is not None, "no worker held two results within two minutes"
        assert not all(f.done() for f in futures)
        os.kill(processes[victim], signal.SIGKILL)
        results = client.gather(futures)
        now = client.run(os.getpid)
        assert processes[victim] not in now.values()
    for got, want in zip(results, expected, strict=True):
        np.testing.assert_array_equal(got, want)


def _slowly(block, delay):
    time.sleep(delay)
    return block
