"""Memory: flash attention allocates its inputs, its output and O(queries) more; everything is given back."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import grilly
from grilly import reference
from threads import together

pytestmark = pytest.mark.long("what leaks shows after many calls only")


def settled(backend) -> int:
    gc.collect()
    backend.synchronize()
    return backend.memory(reset_peak=True).in_use


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("keys", [300, 20_000])
def test_flash_allocates_inputs_output_and_rows(backend, keys, lse):
    q = np.ones((1, 2, 300, 32), np.float32)
    k, v = np.ones((2, 1, 2, keys, 32), np.float32)  # one array for both is sent once
    before = settled(backend)
    # By name: so few rows would be split over the keys on a large GPU, whose parts take more.
    backend.attention.flash_attention2(q, k, v, return_lse=lse, kernel="flash-attention2")
    rows = 2 * 300
    arrays = 2 * q.nbytes + 2 * k.nbytes
    peak = backend.memory().peak - before
    assert arrays <= peak <= arrays + 4 * rows + 5 * 4096  # sizes are rounded up to pages
    assert settled(backend) == before


def test_65536_keys_on_this_device(vulkan_backend):
    """N = 65536, D = 64, one head: the scores alone would take 17 GB. A sample of the rows is checked."""
    backend = vulkan_backend
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((65536, 64), dtype=np.float32) for _ in range(3))
    queries = q
    if backend.device.kind == "cpu":
        queries = q[::16]  # 65,536 keys all the same, in seconds rather than minutes
    before = settled(backend)
    out = backend.attention.flash_attention2(queries, k, v)
    used = backend.memory().peak - before
    assert used <= queries.nbytes * 2 + k.nbytes * 2 + 4 * len(queries) + 5 * 4096
    rows = slice(None, None, len(queries) // 7)
    exact = reference.naive_attention(queries[rows], k, v, dtype=np.float64)[0]
    assert np.abs(out[rows] - exact).max() < 1e-6


def test_objects_return_to_the_start(backend):
    """A thousand calls, tensors dropped in every way, leave nothing behind."""
    x = np.ones((1, 2, 16, 8), np.float32)
    before = settled(backend)
    kept = []
    for i in range(300):
        t = backend.tensor(x)
        out = backend.attention.flash_attention2(t, t, t)
        if i % 3 == 0:
            kept.append(out[:, :1].transpose(0, 2, 1, 3))
        if i % 50 == 0:
            kept.clear()
    kept.clear()
    del t, out
    assert settled(backend) == before


def test_threads(backend):
    """Eight threads on one backend, each with its own numbers."""
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(8):
            q, k, v = (rng.standard_normal((1, 2, 40, 16), dtype=np.float32) for _ in range(3))
            out = backend.attention.flash_attention2(q, k, v)
            if np.abs(out - reference.naive_attention(q, k, v)[0]).max() > 1e-5:
                failures.append(seed)

    together(8, work)
    assert not failures


def test_many_backends_open_and_close(backend):
    x = np.ones((1, 1, 4, 8), np.float32)
    for _ in range(5):
        with grilly.Compute(runtime=backend.runtime.name) as own:
            assert np.allclose(own.attention.flash_attention2(x, x, x), 1)


def test_profile(vulkan_backend):
    backend = vulkan_backend
    if "timestamps" not in backend.runtime.features:
        pytest.skip(f"{backend.device.name} has no timestamps")
    x = backend.tensor(np.ones((1, 2, 128, 64), np.float32))
    with backend.profile() as profile:
        for _ in range(70):  # more than one submission holds
            backend.attention.flash_attention2(x, x, x)
    assert len(profile.timings) == 70
    assert all(t.seconds > 0 for t in profile.timings)
    assert profile.seconds == pytest.approx(sum(t.seconds for t in profile.timings))
    assert all("." in t.label for t in profile.timings)
    assert "70 dispatches" in repr(profile)
    backend.attention.flash_attention2(x, x, x)
    assert len(profile.timings) == 70


def test_profile_of_rows(vulkan_backend):
    backend = vulkan_backend
    if "timestamps" not in backend.runtime.features:
        pytest.skip(f"{backend.device.name} has no timestamps")
    x = backend.tensor(np.ones((1, 2, 128, 64), np.float32))
    with backend.profile(by="row") as profile:
        for _ in range(70):  # more than one row holds
            out = backend.attention.flash_attention2(x, x, x)
        assert np.allclose(out.numpy(), 1)  # which does not wait for the row to be full
    counts = [int(timing.label.split(" x ")[0]) for timing in profile.timings]
    assert counts == [64, 6]
    assert all(timing.seconds > 0 for timing in profile.timings)
    assert "2 rows" in repr(profile)
    with backend.profile() as outer:
        with pytest.raises(grilly.GrillyError, match="measured already"), backend.profile():
            pass
        backend.attention.flash_attention2(x, x, x)
    assert len(outer.timings) == 1
    with pytest.raises(ValueError, match="'dispatch' or 'row'"), backend.profile(by="call"):
        pass


def test_profile_without_timestamps_says_so():
    backend = pytest.importorskip("kp") and grilly.Compute(runtime="kompute")
    with backend:
        if "timestamps" in backend.runtime.features:
            pytest.skip("this runtime has timestamps")
        with pytest.raises(grilly.UnsupportedError, match="timestamps"), backend.profile():
            pass


def test_exit_without_closing():
    """An interpreter that ends with work in flight and tensors alive exits cleanly."""
    import subprocess
    import sys

    import children

    code = (
        "import numpy as np, grilly, grilly.functional as F\n"
        "b = grilly.Compute(runtime='vulkan'); x = b.tensor(np.ones((1, 2, 256, 64), np.float32))\n"
        "y = [F.flash_attention2(x, x, x) for _ in range(5)]\n"
        "print('end')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=children.environment())
    assert done.returncode == 0 and done.stdout.strip() == "end" and not done.stderr, done.stderr
