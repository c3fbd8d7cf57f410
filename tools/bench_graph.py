#!/usr/bin/env python3
"""Times replays of captured graphs (`Compute.capture`) on the chosen device; prints a table.

A graph is a chain of small products, each of which waits for the one before: so the time of a replay over the number of
dispatches is how fast dependent dispatches follow each other. Beside it the host's time of a replay, without waiting,
and the same calls one by one. Results are compared with those of the calls first, bit for bit.

With --caches a graph is a step of decoding: rotary embedding, a token into a cache with room for so many, attention to
what is there. Beside the replay, whose workgroups are those of a full cache, the function planned for the very length.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import grilly
from grilly import nn
from grilly.compute.attention.kvcache import flash_attention_with_kvcache
from grilly.compute.matmul.linear import linear
from measured import add_json, write


def chain(backend, count: int, width: int):
    """A function of so many products, with weights that leave the size of numbers as it is."""
    rng = np.random.default_rng(0)
    weights = [
        backend.tensor(np.linalg.qr(rng.standard_normal((width, width)))[0].astype(np.float32)) for _ in range(8)
    ]

    def call(x):
        for number in range(count):
            x = linear(backend.opened, x, weights[number % len(weights)])
        return x

    return call


def times(backend, call, repeats: int) -> tuple[float, float]:
    """Medians in seconds: until the call returns, and until its work is done."""
    returned, done = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        returned.append(time.perf_counter() - start)
        backend.synchronize()
        done.append(time.perf_counter() - start)
        del result
    return statistics.median(returned), statistics.median(done)


def decoding(backend, options) -> list[dict]:
    """Print and give the times of steps with caches of ``options.caches`` tokens, at several lengths."""
    batch, heads, kv_heads, dim = options.heads
    rng = np.random.default_rng(0)
    shapes = [(batch, 1, n, dim) for n in (heads, kv_heads, kv_heads)]
    one = [backend.tensor(rng.standard_normal(shape).astype(options.dtype)) for shape in shapes]
    rope = nn.RoPE(dim)
    rows = []
    for room in options.caches:
        cache = nn.KVCache(batch, room, kv_heads, dim, dtype=options.dtype, backend=backend)
        for held in (cache.k, cache.v):
            held[:] = backend.tensor(rng.standard_normal(held.shape).astype(options.dtype))
        step = backend.capture(lambda q, k, v, cache=cache: cache.attend(q, k, v, rotary=rope), *one)
        tables = rope.tables(backend, room)
        lengths = [n for n in (16, 128, 512, 1024, 4096, 16384, 65536) if n < room] + [room - 1]
        for length in lengths:

            def planned(cache=cache, length=length, tables=tables):
                return flash_attention_with_kvcache(
                    backend.opened, one[0], cache.k, cache.v, *one[1:], length, rotary=tables, causal=True
                )

            def replayed(cache=cache, length=length, step=step):
                cache.lengths = length
                return step(*one, copy=False)

            found, wanted = replayed().numpy().astype(np.float64), planned().numpy().astype(np.float64)
            error = float(np.abs(found - wanted).max())
            if error > 1e-5 * (1 if options.dtype == "float32" else 200):
                raise SystemExit(f"{length} of {room} keys: a replay differs from the call by {error:.1e}")
            host, done = times(backend, replayed, options.repeats)
            _, other = times(backend, planned, options.repeats)
            rows.append({"keys": length, "room": room, "dispatches": step.dispatches, "host": host, "seconds": done,
                         "planned": other, "error": error})  # fmt: skip
            print(
                f"  {batch} x {heads}/{kv_heads} x {dim} {options.dtype}, {length:6} of {room:6} keys: replay of "
                f"{step.dispatches} dispatches {done * 1e6:.1f} us, host {host * 1e6:.1f}; planned for the length "
                f"{other * 1e6:.1f}; greatest difference {error:.1e}"
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="*", default=[1, 100, 1000], help="dispatches of a graph")
    parser.add_argument("--width", type=int, default=64, help="of the products, of 4 rows")
    parser.add_argument("--caches", type=int, nargs="*", help="room for so many tokens: steps of decoding instead")
    parser.add_argument("--heads", type=int, nargs=4, default=[1, 32, 8, 128], help="B, H, Hk, D of the steps")
    parser.add_argument("--dtype", default="float16", help="of the steps")
    parser.add_argument("--repeats", type=int, default=50)
    add_json(parser)
    options = parser.parse_args()
    with grilly.Compute(runtime="vulkan") as backend:
        print(f"{backend.device.name}, {backend.device.driver} {backend.device.driver_version}")
        if options.caches:
            return write(options.json, backend, decoding(backend, options))
        rows: list[dict] = []
        x = np.random.default_rng(1).standard_normal((4, options.width)).astype(np.float32)
        tensor, before = backend.tensor(x), None
        for count in options.counts:
            call = chain(backend, count, options.width)
            start = time.perf_counter()
            graph = backend.capture(call, x)
            captured = time.perf_counter() - start
            if not np.array_equal(graph(x).numpy(), call(tensor).numpy()):
                raise SystemExit(f"{count} dispatches: a replay differs from the calls")
            host, done = times(backend, lambda graph=graph: graph(tensor), options.repeats)
            array, _ = times(backend, lambda graph=graph: graph(x), options.repeats)
            _, own = times(backend, lambda graph=graph: graph(tensor, copy=False), options.repeats)
            _, calls = times(backend, lambda call=call: call(tensor), max(options.repeats // 10, 3))
            print(
                f"  {graph.dispatches:5} dispatches, {graph.memory:,} bytes, captured in {captured * 1e3:.1f} ms: host "
                f"{host * 1e6:.1f} us, of an array {array * 1e6:.1f}; done {done * 1e6:.1f} us, without a copy "
                f"{own * 1e6:.1f}; the calls one by one {calls * 1e6:.1f}"
            )
            if before is not None and count > before[0]:
                each = (own - before[1]) / (count - before[0])
                print(f"        {each * 1e6:.2f} us from one dispatch to the next")
            before = count, own
            rows.append({"dispatches": graph.dispatches, "memory": graph.memory, "captured": captured, "host": host,
                         "from an array": array, "seconds": done, "without a copy": own, "calls": calls})  # fmt: skip
        write(options.json, backend, rows)


if __name__ == "__main__":
    main()
