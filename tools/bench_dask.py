#!/usr/bin/env python3
"""Times grilly.dask.flash_attention on one GPU and on two of one machine, a worker process for each; prints the ratio.

    python tools/bench_dask.py                              S = 262144, H = 32, D = 128, float16
    python tools/bench_dask.py --causal --key-chunk 65536   also chunks of keys, joined in a tree
    python tools/bench_dask.py --mode processes             without Dask: plain processes, each with half of the heads

Workers make the inputs from a seed, each those of its own heads, so that nothing travels between processes; making them
is not timed, sending them to the GPUs and fetching the results is. Every run starts from a task graph without results.
Two rows of each chunk of heads are held against float64 where they were computed.

Dask mode needs, beyond grilly's own requirements, the wheels of: dask distributed click cloudpickle fsspec jinja2
locket markupsafe msgpack packaging partd psutil pyyaml sortedcontainers tblib toolz tornado zict importlib_metadata
zipp lazy-importer urllib3: what `pip download "dask[array,distributed]"` fetches.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shlex
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "grilly_py"))

from measured import add_json, write


def made(heads: int, length: int, dim: int, seed: int) -> np.ndarray:
    """Unit normal float16 numbers; every 4,096 rows are the first ones in another order of columns, which is quick."""
    rng = np.random.default_rng(seed)
    rows = min(length, 4096)
    base = rng.standard_normal((heads, rows, dim), dtype=np.float32).astype(np.float16)
    array = np.empty((1, heads, length, dim), np.float16)
    for start in range(0, length, rows):
        part = array[0, :, start : start + rows]
        part[...] = base[:, : part.shape[1], rng.permutation(dim)]
    return array


def error(q, k, v, out, causal: bool) -> float:
    """The largest error of a row in the middle and of the last, of the chunk's first head, against float64."""
    length, block = q.shape[2], 65_536  # keys at a time: a million of them in float64 take a gigabyte
    rows = np.array((length // 2, length - 1))
    keys = np.arange(length)
    wanted = [keys[start : start + block] for start in range(0, length, block)]
    scores = q[0, 0, rows].astype(np.float64) / np.sqrt(q.shape[3])
    scores = np.concatenate([scores @ k[0, 0, part].astype(np.float64).T for part in wanted], 1)
    if causal:
        scores[keys > rows[:, None]] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    sums = sum(weights[:, part] @ v[0, 0, part].astype(np.float64) for part in wanted)
    return float(np.abs(sums / weights.sum(axis=1, keepdims=True) - out[0, 0, rows]).max())


def device() -> tuple[int, str, dict]:
    """The number and name of the device that this process's tasks use, and how a file of figures names it."""
    from grilly.cli.common import measured_on
    from grilly.dask import worker_backend

    backend = worker_backend()
    return backend.device.index, backend.device.name, measured_on(backend.device, backend.runtime.name)


def report(name: str, workers: int, seconds: list[float], args, errors: list[float]) -> dict:
    """Print what so many workers took, and give it; ``seconds[0]`` is the first run, which makes the pipelines."""
    first, *seconds = seconds
    flops = 4.0 * args.heads * args.length**2 * args.dim / (2 if args.causal else 1)
    best = statistics.median(seconds)
    print(
        f"{name:12} median {best:7.3f} s of {[round(s, 3) for s in seconds]}, {flops / best / 1e12:7.1f} TFLOP/s, "
        f"largest error {max(errors):.1e}", flush=True,
    )  # fmt: skip
    found = {"workers": workers, "mode": args.mode, "seconds": best, "runs": seconds, "first": first}
    return {**found, "tflops": flops / best / 1e12, "error": max(errors)}


# -- with Dask ---------------------------------------------------------------------------------------------------------


def with_dask(workers: int, args) -> tuple[dict, dict]:
    """The result of the call on a cluster of so many processes, and where it ran."""
    import dask
    import dask.array as da
    import distributed

    from grilly import dask as grilly_dask

    cluster = distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1",
        memory_limit=0,
    )  # fmt: skip
    with cluster, distributed.Client(cluster) as client:
        names = {w["id"]: address for address, w in client.scheduler_info()["workers"].items()}
        addresses = [names[n] for n in sorted(names)]
        # As tasks: outside of one a process does not know its worker's number, nor so its GPU.
        used = {a: client.submit(device, workers=[a], pure=False).result() for a in addresses}
        print(f"{workers} worker(s): " + "; ".join(f"{used[a][1]} (device {used[a][0]})" for a in addresses))
        if len({used[a][0] for a in addresses}) < workers:
            print("*** the workers share a device: the ratio says nothing about several GPUs")
        begin = time.perf_counter()
        futures, arrays = [], []
        for seed in range(3):
            parts = []
            for number, first in enumerate(range(0, args.heads, args.head_chunk)):
                heads = min(args.head_chunk, args.heads - first)
                future = client.submit(
                    made, heads, args.length, args.dim, 1000 * seed + first, workers=[addresses[number % workers]],
                )  # fmt: skip
                futures.append(future)
                shape = (1, heads, args.length, args.dim)
                parts.append(da.from_delayed(dask.delayed(future), shape, np.float16))
            arrays.append(da.concatenate(parts, 1).persist())
        client.gather([client.submit(len, future) for future in futures])  # raises what making them raised
        distributed.wait(arrays)
        print(f"  inputs after {time.perf_counter() - begin:.1f} s", flush=True)
        q, k, v = arrays
        q = q.rechunk({2: args.query_chunk})
        k, v = (a.rechunk({2: args.key_chunk}) for a in (k, v))
        seconds = []
        for turn in range(args.repeats + 1):  # the first one makes the pipelines
            out = grilly_dask.flash_attention(q, k, v, causal=args.causal)
            start = time.perf_counter()
            out = out.persist()
            distributed.wait(out)
            seconds.append(time.perf_counter() - start)
            print(f"  run {turn}: {seconds[-1]:.3f} s", flush=True)
            if turn < args.repeats:
                del out
                wait_until_gone(client, "_output_of")
        parts = [a.rechunk({2: -1}).to_delayed().reshape(-1) for a in (*arrays, out)]
        checks = [dask.delayed(error)(*four, args.causal) for four in zip(*parts, strict=True)]
        errors = client.gather(client.compute(checks))
    return report(f"{workers} worker(s)", workers, seconds, args, errors), used[addresses[0]][2]


def wait_until_gone(client, name: str) -> None:
    """Until no worker holds results of tasks with this name: otherwise a second run would find the first one's."""
    while any(name in str(key) for held in client.has_what().values() for key in held):
        time.sleep(0.01)


# -- without Dask ------------------------------------------------------------------------------------------------------


def one_process(index: int, heads: range, args, barrier, results) -> None:
    """Attend to some of the heads on the device of this number."""
    import grilly
    from grilly.cli.common import measured_on

    gpus = [d for d in grilly.devices() if d.kind == "discrete"] or grilly.devices()
    with grilly.Compute(gpus[index % len(gpus)].index) as backend:
        chunks = []
        for first in heads:
            count = min(args.head_chunk, args.heads - first)
            chunks.append([made(count, args.length, args.dim, 1000 * seed + first) for seed in range(3)])
        seconds = []
        for _ in range(args.repeats + 1):
            barrier.wait()
            start = time.perf_counter()
            outs = [backend.attention.flash_attention2(*arrays, causal=args.causal) for arrays in chunks]
            barrier.wait()
            seconds.append(time.perf_counter() - start)
        errors = [error(*arrays, out, args.causal) for arrays, out in zip(chunks, outs, strict=True)]
        where = measured_on(backend.device, backend.runtime.name)
        results.put((seconds, errors, f"{backend.device.name} (device {backend.device.index})", where))


def with_processes(workers: int, args) -> tuple[dict, dict]:
    """The same by plain processes: no scheduler, no tree."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(workers), context.Queue()
    firsts = range(0, args.heads, args.head_chunk)
    processes = [
        context.Process(target=one_process, args=(n, firsts[n::workers], args, barrier, results))
        for n in range(workers)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=args.limit) for _ in processes]
    for process in processes:
        process.join()
    print(f"{workers} process(es): " + "; ".join(f[2] for f in found), flush=True)
    seconds = [max(times) for times in zip(*(f[0] for f in found), strict=True)]
    return report(f"{workers} process(es)", workers, seconds, args, [e for f in found for e in f[1]]), found[0][3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("dask", "processes"), default="dask")
    parser.add_argument("--length", type=int, default=262_144)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--head-chunk", type=int, default=2, help="heads of a task (default 2)")
    parser.add_argument("--query-chunk", type=int, default=-1, help="queries of a task (default all)")
    parser.add_argument("--key-chunk", type=int, default=-1, help="keys of a task (default all)")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--limit", type=float, default=240, help="seconds to wait for plain processes")
    add_json(parser)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])
    os.environ.pop("GRILLY_DEVICE", None)  # workers take the GPUs by their numbers
    begin = time.perf_counter()
    print(f"{args.mode}: S = {args.length}, H = {args.heads}, D = {args.dim}, float16, causal = {args.causal}")
    found = [(with_dask if args.mode == "dask" else with_processes)(n, args) for n in args.workers]
    results = [result for result, _ in found]
    fewest, *more = sorted(results, key=lambda result: result["workers"])
    for result in more:
        ratio = fewest["seconds"] / result["seconds"]
        print(f"{fewest['workers']} to {result['workers']}: {ratio:.3f} times as fast")
    # A worker says where it ran, but not what was called.
    write(args.json, {**found[0][1], "command": shlex.join(["bench_dask.py", *sys.argv[1:]])}, results)
    print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
