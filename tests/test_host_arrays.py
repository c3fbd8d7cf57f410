"""NumPy arrays over memory that host and device share."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest

import children
import grilly
import grilly.functional as F
from buffers import download, host_array, scale, upload
from grilly import reference

MIB = 1 << 20


def test_host_memory_goes_with_the_last_array(vulkan):
    before = vulkan.memory()
    array = host_array(vulkan, (1000, 1000))
    held = vulkan.memory().host - before.host
    assert 4_000_000 <= held < 4_010_000
    row = array[7:8]
    del array
    gc.collect()
    assert vulkan.memory().host - before.host == held
    row[:] = 3
    del row
    for i in range(500):
        array = host_array(vulkan, 100_000 + i)
        array[:] = i
    del array
    gc.collect()
    after = vulkan.memory()
    assert after.host == before.host and after.in_use == before.in_use


def test_lent_arrays_are_used_in_place_and_waited_for(vulkan):
    if not vulkan.device.unified:
        pytest.skip(f"{vulkan.device.name} does not address the host's memory as its own")
    count = 200_000
    array = host_array(vulkan, count)
    array[:] = 1
    assert vulkan.lend(np.ones(8, np.float32)) is None
    buffer, place = vulkan.lend(array[64:])
    assert place == 256
    y = upload(vulkan, np.zeros(count, np.float32))
    for i in range(5):
        buffer, place = vulkan.lend(array)
        scale(vulkan, buffer, y, count, 1.0, ((2, 0),))
        vulkan.flush()
        array[:] = i + 2  # after the flush: the dispatch has read what was there before
    assert (download(vulkan, y) == 1 + 2 + 3 + 4 + 5).all()


def test_borrowed_tensors(vulkan_backend):
    backend, rng = vulkan_backend, np.random.default_rng(0)
    q, k, v = (backend.host_asarray(rng.standard_normal((1, 2, 70, 32), dtype=np.float32)) for _ in range(3))
    exact = reference.naive_attention(q, k, v, dtype=np.float64)[0]
    out = backend.attention.flash_attention2(*(backend.borrow(a) for a in (q, k, v)))
    for a in (q, k, v):
        a[:] = np.nan
    assert np.abs(out.numpy() - exact).max() < 1e-6
    host = backend.host_empty((3, 5, 7))
    host[:] = np.arange(105).reshape(3, 5, 7)
    repeated = np.broadcast_to(host[0], (4, 5, 7))
    for view in (host, host[1:], host.transpose(2, 0, 1), host[:, 1:3], host[..., ::2], repeated):
        assert np.array_equal(backend.borrow(view).numpy(), view)
    odd = backend.host_empty(41, np.uint8)[1:].view(np.float32)  # no multiple of the element's size into its memory
    odd[:] = 3
    assert (backend.borrow(odd).numpy() == 3).all()


def test_tensors_of_host_arrays_are_copies(backend):
    array = backend.host_asarray(np.ones((300, 1000), np.float32))
    tensors = []
    for i in range(6):
        array[:] = i
        tensors.append(backend.tensor(array))
    array[:] = -1
    assert [float(np.unique(t.numpy()).item()) for t in tensors] == list(range(6))


def test_results_into_an_array(backend):
    values = np.random.default_rng(0).standard_normal((4, 5, 6), dtype=np.float32)
    tensor = backend.tensor(values)
    for out in (np.empty_like(values), backend.host_empty(values.shape), np.empty((6, 5, 4), np.float32).T):
        assert tensor.numpy(out=out) is out and np.array_equal(out, values)
    out = backend.host_empty((6, 5, 4))
    assert np.array_equal(tensor.transpose(2, 1, 0).numpy(out=out), values.T)
    for wrong in (np.empty((4, 5, 7), np.float32), np.empty(values.shape, np.float16)):
        with pytest.raises(ValueError, match="out is"):
            tensor.numpy(out=wrong)


def test_attention_on_host_arrays(backend):
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 4, 33, 16), dtype=np.float32) for _ in range(3))
    want = backend.attention.flash_attention2(q, k, v)
    held = [backend.host_asarray(a) for a in (q, k, v)]
    got = backend.attention.flash_attention2(*held)
    assert np.array_equal(got, want)
    assert all(np.array_equal(a, b) for a, b in zip(held, (q, k, v), strict=True))
    mixed = backend.attention.flash_attention2(backend.tensor(q), held[1], held[2])
    weights = rng.standard_normal((48, 16), dtype=np.float32)
    weight = backend.host_asarray(weights)
    tensor = F.linear(backend.tensor(q), weight)
    for array in (*held, weight):
        array[:] = np.nan  # the calls have returned: their tensors do not change any more
    assert np.array_equal(mixed.numpy(), want)
    assert np.abs(tensor.numpy() - q @ weights.T).max() < 1e-5


def test_empty_and_asarray(backend):
    former = grilly.use(backend)
    try:
        array = grilly.pinned.empty((3, 4), np.float16)
        assert type(array) is np.ndarray and array.shape == (3, 4) and array.dtype == np.float16
        assert array.flags.c_contiguous and array.flags.writeable
        assert grilly.pinned.empty(5).dtype == np.float32 and grilly.pinned.empty((0, 3)).shape == (0, 3)
        values = np.arange(12.0).reshape(3, 4).T
        held = grilly.pinned.asarray(values, np.float32)
        assert np.array_equal(held, values) and held.dtype == np.float32
        if backend.runtime.name == "vulkan":
            assert grilly.pinned.asarray(held) is held and grilly.pinned.asarray(held.T) is not held
        empty = grilly.pinned.empty
        for bad, error in [(lambda: empty(3, object), TypeError), (lambda: empty((-1, 2)), ValueError)]:
            with pytest.raises(error, match="empty"):
                bad()
    finally:
        grilly.use(former)
    with grilly.Compute(runtime=backend.runtime.name) as closed:
        pass
    with pytest.raises(grilly.ClosedError):
        closed.host_empty(3)


def test_more_host_memory_than_there_is(vulkan_backend):
    with pytest.raises(grilly.OutOfDeviceMemoryError, match="room"):
        vulkan_backend.host_empty(1 << 45, np.uint8)


def test_exit_with_host_arrays_alive():
    code = (
        "import numpy as np, grilly\n"
        "b = grilly.Compute(runtime='vulkan'); a = b.host_empty((64, 64)); a[:] = 1; kept = [a[3:]]\n"
        "c = grilly.Compute(runtime='vulkan'); d = c.host_empty(9); c.close()\n"
        "print('end')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=children.environment())
    assert done.returncode == 0 and done.stdout.strip() == "end" and not done.stderr, done.stderr
