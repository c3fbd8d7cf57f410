#!/usr/bin/env python3
"""Times what surrounds the kernels: moving NumPy arrays, and calls from NumPy to NumPy; beside torch on its GPU.

Medians of whole calls by the host's clock, and bytes per second from them. Host arrays: ``grilly.pinned.empty``.
The figures in docs/benchmarks/transfers.md come from this script.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics

import numpy as np

import grilly
from bench_calls import measure, spread, torch_with_gpu
from grilly.runtime.vulkan import copier as copying
from grilly.runtime.vulkan.memory import HostMemory
from grilly.runtime.vulkan.threads import usable_processors
from measured import add_json, spread_of, write

SMALL = (1, 8, 128, 64)
#: What the columns of the first table are, from its left.
WAYS = ("copied by one thread", "copied by threads", "to the device", "to the device from a host array",
        "from the device to a new array", "from the device to an array", "from the device to a host array")  # fmt: skip


def rate(nbytes: int, seconds: list[float]) -> str:
    return f"{nbytes / statistics.median(seconds) / 1e9:6.1f} GB/s"


def repeats_for(nbytes: int) -> int:
    return max(5, min(200, (1 << 28) // nbytes))


def filled(backend, array: np.ndarray) -> np.ndarray:
    held = backend.host_empty(array.shape, array.dtype)
    held[...] = array
    return held


def bus(backend, megabytes, rows: list[dict]) -> None:
    """Bytes per second to and from the device by size, and of the host's own copies."""
    runtime, copier = backend.runtime, backend.runtime._transfers.copier
    print(f"copies: {copier.threads} threads of {usable_processors()} processors")
    print("      MB  one thread | threads | to device: plain | host | from device: new | plain | host")
    for mb in megabytes:
        nbytes = int(mb * (1 << 20))
        n = repeats_for(nbytes)
        source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
        held = filled(backend, source)
        buffer = runtime.allocate(nbytes)

        def up(array, buffer=buffer):
            runtime.write(buffer, array)
            runtime.synchronize()

        def fresh(buffer=buffer, nbytes=nbytes):
            runtime.read(buffer, np.empty(nbytes, np.uint8))

        cells = [
            measure(lambda t=target, s=source: np.copyto(t, s), n, 2),
            measure(lambda t=target, s=source: copier.copy(t, s), n, 2),
            measure(lambda s=source: up(s), n, 3),
            measure(lambda s=held: up(s), n, 3),
            measure(fresh, n, 3),
            measure(lambda t=target, b=buffer: runtime.read(b, t), n, 3),
            measure(lambda t=held, b=buffer: runtime.read(b, t), n, 3),
        ]
        print(f"  {mb:6.2f} ", " | ".join(rate(nbytes, seconds) for seconds in cells))
        for way, seconds in zip(WAYS, cells, strict=True):
            rows.append({"what": way, "bytes": nbytes, **spread_of(seconds)})
        runtime.free(buffer)


@contextlib.contextmanager
def results_in_host_memory(backend):
    """Have attention write its result across the bus, to memory that the host reads at once."""
    from grilly.compute.device import executables
    from grilly.compute.device.tensor import LentStorage

    runtime = backend.runtime

    def storage(device, nbytes, idle=False):
        array = runtime.host_array(-(-nbytes // 4) * 4)
        return LentStorage(device, HostMemory.of(array, runtime._parts)[0].buffer, array)

    made, executables.Storage = executables.Storage, storage
    try:
        yield
    finally:
        executables.Storage = made


@contextlib.contextmanager
def borrowing(backend):
    """Have operations borrow host arrays, whatever they do otherwise."""
    backend.opened.tensor = backend.opened.borrow
    try:
        yield
    finally:
        del backend.opened.tensor


def small_call(backend, repeats: int, rows: list[dict]) -> None:
    """Where the time of a small call goes."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(SMALL, dtype=np.float32) for _ in range(3))
    hosts = [filled(backend, a) for a in (q, k, v)]
    run = backend.attention.flash_attention2
    tensors = [backend.tensor(a) for a in (q, k, v)]
    result = run(*tensors)
    out, host_out = np.empty_like(q), backend.host_empty(q.shape)
    stream = backend.runtime._parts.stream

    def completed():
        run(*tensors)
        backend.synchronize()

    def line(name, call, warm=50):
        seconds = measure(call, repeats, warm)
        print(f"  {name:58}", spread(seconds))
        rows.append({"what": name, "by": "grilly", "shape": SMALL, "dtype": "float32", **spread_of(seconds)})

    def tensor_lines(name):
        line(f"Tensor to Tensor, completed{name}", completed)
        line(f"Tensor to Tensor, not waited{name}", lambda: run(*tensors))
        backend.synchronize()

    print(f"float32 {SMALL}")
    for _ in range(200):
        completed()  # the clock of a device at rest is a fraction of what it is under load
    tensor_lines("")
    stream._recordings.recording = lambda known, commands: None
    tensor_lines(", recorded each time")
    del stream._recordings.recording
    line("NumPy to NumPy", lambda: run(q, k, v))
    line("NumPy to NumPy, from host arrays", lambda: run(*hosts))
    with borrowing(backend):
        line("NumPy to NumPy, from host arrays, borrowed", lambda: run(*hosts))
        line("the same, into a host array", lambda: run(*(backend.opened.borrow(a) for a in hosts)).numpy(out=host_out))
    with results_in_host_memory(backend):
        line("NumPy to NumPy, the kernel writing to host memory", lambda: run(q, k, v))
        with borrowing(backend):
            line("the same, from host arrays, borrowed", lambda: run(*hosts))
        line("Tensor to Tensor, completed, to host memory", completed)
    line("three arrays to the device, stored or staged", lambda: [backend.tensor(a) for a in (q, k, v)])
    line("result to a new array", lambda: result.numpy())
    line("result to the same array", lambda: result.numpy(out=out))
    line("result to a host array (submission, copy, wait)", lambda: result.numpy(out=host_out))
    line("an empty submission's worth: nothing to wait for", backend.synchronize)
    line("np.empty and a host copy of it", lambda: np.copyto(np.empty_like(q), q))
    line("np.empty and a host copy out of a host array", lambda: np.copyto(np.empty_like(q), host_out))


def large_call(backend, shape, repeats: int, scan: bool, rows: list[dict]) -> None:
    """Whole calls on large float16 arrays, and their parts."""
    rng = np.random.default_rng(0)
    one = rng.standard_normal(shape[2:], dtype=np.float32).astype(np.float16)
    q, k, v = (np.ascontiguousarray(np.broadcast_to(one, shape)) for _ in range(3))
    hosts = [filled(backend, a) for a in (q, k, v)]
    out, host_out = np.empty_like(q), backend.host_empty(q.shape, q.dtype)
    run = backend.attention.flash_attention2
    copier = backend.runtime._transfers.copier
    moved = 4 * q.nbytes
    print(f"float16 {shape}, NumPy to NumPy, {moved / 1e6:.0f} MB moved")
    assert np.array_equal(run(q, k, v), run(*hosts))

    def line(name, call):
        seconds = measure(call, repeats, 2)
        print(f"  {name:58} {statistics.median(seconds) * 1e3:8.2f} ms (from {min(seconds) * 1e3:.2f})", flush=True)
        what = {"what": name, "by": "grilly", "shape": shape, "dtype": "float16"}
        rows.append({**what, **spread_of(seconds), "least": min(seconds)})

    line("plain arrays", lambda: run(q, k, v))
    line("host arrays", lambda: run(*hosts))
    with borrowing(backend):
        line("host arrays, borrowed", lambda: run(*hosts))
        line("host arrays, borrowed, into a host array", lambda: run(*map(backend.borrow, hosts)).numpy(out=host_out))
    tensors = [backend.tensor(a) for a in (q, k, v)]
    result = run(*tensors)

    def compute():
        run(*tensors)
        backend.synchronize()

    def upload():
        for array in (q, k, v):
            backend.tensor(array)
        backend.synchronize()

    line("upload alone", upload)
    line("compute alone", compute)
    line("download alone, to a new array", lambda: result.numpy())
    line("download alone, to the same array", lambda: result.numpy(out=out))
    if not scan:
        return
    made = copier.threads, copying.LARGEST_CHUNK
    for threads in (1, 2, 4, 8, 12):
        for chunk in (2 << 20, 4 << 20, 8 << 20, 16 << 20):
            backend.runtime._transfers.copier = copying.Copier(threads)
            copying.LARGEST_CHUNK = chunk
            line(f"plain arrays, {threads} threads, chunks of {chunk >> 20} MB", lambda: run(q, k, v))
    backend.runtime._transfers.copier = copying.Copier(made[0])
    copying.LARGEST_CHUNK = made[1]


def torch_figures(shape, repeats: int, rows: list[dict]) -> None:
    torch = torch_with_gpu()
    if torch is None:
        return
    attend = torch.nn.functional.scaled_dot_product_attention
    print(f"torch {torch.__version__}")
    for size, dtype, unit in ((SMALL, np.float32, "us"), (shape, np.float16, "ms")):
        host = [np.ones(size, dtype) for _ in range(3)]

        def whole(host=host):
            return attend(*(torch.from_numpy(a).cuda() for a in host)).cpu().numpy()

        seconds = measure(whole, repeats * 20 if unit == "us" else repeats, 3)
        scale = 1e6 if unit == "us" else 1e3
        median = statistics.median(seconds) * scale
        print(f"  {size} {np.dtype(dtype)}, NumPy to NumPy {median:8.2f} {unit} (from {min(seconds) * scale:.2f})")
        what = {"what": "NumPy to NumPy", "by": "torch", "shape": size, "dtype": np.dtype(dtype).name}
        rows.append({**what, **spread_of(seconds), "least": min(seconds)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="4,32,4096,128", help="of the large call")
    parser.add_argument("--repeats", type=int, default=7, help="of large calls; small ones take 30 times as many")
    parser.add_argument("--scan", action="store_true", help="try numbers of threads and sizes of chunks")
    parser.add_argument("--megabytes", default="0.25,1,4,16,64,256")
    add_json(parser)
    options = parser.parse_args()
    shape = tuple(int(extent) for extent in options.shape.split(","))
    backend = grilly.Compute(runtime="vulkan")
    print(f"{backend.device.name}, {backend.device.driver} {backend.device.driver_version}")
    rows: list[dict] = []
    bus(backend, [float(mb) for mb in options.megabytes.split(",")], rows)
    small_call(backend, 30 * options.repeats, rows)
    large_call(backend, shape, options.repeats, options.scan, rows)
    torch_figures(shape, options.repeats, rows)
    write(options.json, backend, rows)
    backend.close()


if __name__ == "__main__":
    main()
