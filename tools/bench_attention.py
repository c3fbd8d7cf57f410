#!/usr/bin/env python3
"""Times attention kernels on the chosen device, beside torch's on its GPU, and compares their errors.

    python tools/bench_attention.py [--dtypes float16 ...] [--cases d64 ...] [--variants] [--json FILE]

Device times: timestamps around dispatches (torch: events), medians with the 10th and 90th percentile; four sets of
random inputs take turns, so that none is found in the cache, and the device is kept busy before each measurement.
Errors are the largest and the root-mean-square difference from float64 over sampled rows of the first and last head.
``--variants`` times every variant that can run, not only the registry's choice.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import grilly
from bench_calls import on_cuda, torch_with_gpu
from grilly.compute.device.trial import pin, view_of
from grilly.registry import Choice, Request
from grilly.registry.measured import bucket
from measured import add_json, spread_of, write

CASES = {  # name: (batch, heads, length, head dimension), causal
    "d64": ((4, 32, 4096, 64), False),
    "d64-causal": ((4, 32, 4096, 64), True),
    "d128": ((4, 32, 4096, 128), False),
    "d128-causal": ((4, 32, 4096, 128), True),
    "d96": ((4, 32, 4096, 96), False),
    "d256": ((4, 16, 4096, 256), False),
    "long": ((1, 32, 16384, 128), False),
    "long-causal": ((1, 32, 16384, 128), True),
    "many": ((16, 32, 1024, 64), False),
    "short": ((32, 8, 512, 64), False),
    "few": ((1, 8, 1024, 64), False),
}


def spread(seconds: list[float]) -> str:
    cuts = statistics.quantiles(seconds, n=10)
    return f"{statistics.median(seconds) * 1e3:8.3f} ms ({cuts[0] * 1e3:.3f} to {cuts[-1] * 1e3:.3f})"


def operations(shape, causal: bool) -> float:
    batch, heads, length, dim = shape
    return 4.0 * batch * heads * length * length * dim / (2 if causal else 1)


def error(out, q, k, v, causal: bool) -> tuple[float, float]:
    """Largest and root-mean-square error over some rows; all arrays (length, dim) of one head."""
    rows = np.unique(np.linspace(0, len(q) - 1, 64).astype(int))
    q, k, v, out = (a.astype(np.float64) for a in (q[rows], k, v, out[rows]))
    scores = q @ k.T / np.sqrt(q.shape[1])
    if causal:
        scores = np.where(np.arange(len(k)) <= rows[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    off = np.abs(out - weights / weights.sum(-1, keepdims=True) @ v)
    return float(off.max()), float(np.sqrt(np.mean(off**2)))


def measure(view, sets, causal: bool, precision: str, repeats: int) -> list[float]:
    def call(n):
        return view.attention.flash_attention2(*sets[n % len(sets)], causal=causal, **options)

    options = {"precision": precision}
    # The first call checks and compiles kernels while the device rests, so the clock that warms it starts after.
    call(0)
    view.synchronize()
    start, n = time.perf_counter(), 0
    while n < 3 or time.perf_counter() - start < 0.3:
        call(n)
        n += 1
        if n % 8 == 0:
            view.synchronize()
    view.synchronize()
    with view.profile() as profile:
        for n in range(repeats):
            call(n)
    each = len(profile.timings) // repeats
    return [
        sum(t.seconds for t in profile.timings[i * each : (i + 1) * each]) for i in range(repeats)
    ], profile.timings[0].label


def torch_times(arrays, causal: bool, repeats: int):
    """(kernel, seconds, errors) of torch's kernels for the arrays; nothing without torch and its GPU."""
    torch = torch_with_gpu()
    if torch is None:
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.backends.cuda.matmul.allow_tf32 = False
    sixteen = arrays[0][0].dtype != np.float32
    kinds = (
        [("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)]
        if sixteen
        else [("efficient", SDPBackend.EFFICIENT_ATTENTION)]
    )

    sets = [[on_cuda(a) for a in group] for group in arrays]
    for name, kind in kinds:
        with sdpa_kernel(kind):

            def call(n):
                return torch.nn.functional.scaled_dot_product_attention(*sets[n % len(sets)], is_causal=causal)

            call(0)
            torch.cuda.synchronize()
            start, n = time.perf_counter(), 0
            while n < 3 or time.perf_counter() - start < 0.3:
                out = call(n)
                torch.cuda.synchronize()
                n += 1
            seconds = []
            for n in range(repeats):
                a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                a.record()
                out = call(n)
                b.record()
                torch.cuda.synchronize()
                seconds.append(a.elapsed_time(b) / 1e3)
            last = arrays[(repeats - 1) % len(arrays)]
            found = [
                error(out[b, h].float().cpu().numpy(), *(x[b, h] for x in last), causal) for b, h in ((0, 0), (-1, -1))
            ]
            yield f"torch {name}", seconds, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=["float16", "bfloat16"])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--precision", default="highest")
    parser.add_argument("--variants", nargs="?", const="", help="every variant whose name holds this text")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--no-torch", action="store_true")
    add_json(parser)
    options = parser.parse_args()
    backend = grilly.Compute()
    print(f"{backend.device.name}, {backend.device.driver} {backend.device.driver_version}")
    rng = np.random.default_rng(0)
    lines = []
    for dtype in options.dtypes:
        if dtype == "bfloat16":
            import ml_dtypes

            kind = np.dtype(ml_dtypes.bfloat16)
        else:
            kind = np.dtype(dtype)
        for name in options.cases:
            shape, causal = CASES[name]
            arrays = [[rng.standard_normal(shape, dtype=np.float32).astype(kind) for _ in range(3)]]
            # Further sets are the first with its heads moved on: the same numbers elsewhere in memory.
            arrays += [[np.roll(a, n, axis=1) for a in arrays[0]] for n in range(1, 4)]
            sets = [[backend.tensor(a) for a in group] for group in arrays]
            print(f"{dtype} {name} {shape}{' causal' if causal else ''}")

            def report(label, seconds, found, shape=shape, causal=causal, dtype=dtype, name=name):
                rate = operations(shape, causal) / statistics.median(seconds) / 1e12
                worst, mean = max(f[0] for f in found), max(f[1] for f in found)
                print(
                    f"  {label:42s} {rate:7.1f} TFLOP/s {spread(seconds)}  error {worst:.1e} rms {mean:.1e}", flush=True
                )
                by = label if label.startswith("torch ") else "grilly"
                what = {"case": name, "shape": shape, "causal": causal, "dtype": dtype, "by": by, "kernel": label}
                lines.append({**what, **spread_of(seconds), "tflops": rate, "error": worst, "rms": mean})

            views = [("", backend)]
            if options.variants is not None:
                dim = shape[3]
                facts = {
                    "align": 8,
                    "head_dim": dim,
                    "value_dim": dim,
                    **bucket({"keys": shape[2], "rows": shape[0] * shape[1] * shape[2]}),
                    "causal": int(causal),
                    "high": int(options.precision == "high"),
                }
                explained = backend.registry.explain(Request("attention", dtype, problem=facts))
                able = [
                    v for v, why in explained if (why is None or "self-check" in why) and options.variants in v.label
                ]
                views = [
                    (
                        v.label,
                        grilly.Compute.over(
                            pin(
                                view_of(backend.opened),
                                Choice(v, (v.subgroup_sizes or (None,))[0], backend.registry.manifest),
                            )
                        ),  # fmt: skip
                    )
                    for v in able
                ]
            for _, view in views:
                seconds, label = measure(view, sets, causal, options.precision, options.repeats)
                extra = {} if options.precision == "highest" else {"precision": options.precision}
                out = view.attention.flash_attention2(*sets[0], causal=causal, **extra)
                found = []
                for b, h in ((0, 0), (shape[0] - 1, shape[1] - 1)):
                    found.append(error(out[b, h].numpy().astype(np.float32), *(x[b, h] for x in arrays[0]), causal))
                report(label, seconds, found)
            del sets
            if not options.no_torch:
                for label, seconds, found in torch_times(arrays, causal, options.repeats):
                    report(label, seconds, found)
    write(options.json, backend, lines)


if __name__ == "__main__":
    main()
