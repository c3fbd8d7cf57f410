#!/usr/bin/env python3
"""Times what attention calls can ask for on the chosen device, as ratios to the plain call of the same shape.

    python tools/bench_features.py [--cases d64 ...] [--features window mask ...] [--dtype float16] [--json FILE]
    python tools/bench_features.py --calls [--features bias ...]

Device times by timestamps around dispatches, those that make classes of tiles included; medians of calls after two that
warm up. The kernel named is the one that attended. ``mask`` is a random broadcast boolean mask that keeps 90 %, so that
no tile is hidden or clear; ``mask-documents`` is one of eight equal documents in a row.

With ``--calls``: wall time of calls back to back, as tools/bench_shapes.py takes it, full and causal, at (2, 16, 4096,
64) and 128. Ratios are then speeds relative to the plain call.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial

import numpy as np

import grilly
from bench_shapes import chain, warm_up
from measured import add_json, write

CASES = {"d64": (4, 32, 4096, 64), "long64": (1, 16, 16384, 64), "long128": (1, 16, 16384, 128)}
CALLS = {"calls64": (2, 16, 4096, 64), "calls128": (2, 16, 4096, 128)}  # for --calls
BARS = {"causal": 0.60, "window": 0.08, "blocks": 0.33, "mask": 1.25, "mask-documents": 1.25}


def features(backend, shape, rng) -> dict:
    """What each line calls attention with; made when asked for."""
    batch, heads, length, _ = shape

    def numbers():
        return rng.standard_normal((1, 1, length, length), np.float32)

    def mask():
        kept = np.frombuffer(rng.bytes(length * length), np.uint8).reshape(1, 1, length, length) > 25
        return {"mask": backend.tensor(kept)}

    def documents():
        name = np.arange(length) * 8 // length
        return {"mask": backend.tensor((name[:, None] == name)[None, None])}

    def blocks(size):
        count = -(-length // size)
        return {"block_map": rng.random((1, 1, count, count)) < 0.25, "block_size": (size, size)}

    def lengths():
        given = rng.integers(length // 2, length + 1, batch).astype(np.int32)
        return {"seqlens_q": given, "seqlens_k": given}

    return {
        "full": dict,
        "causal": lambda: {"causal": True},
        "window": lambda: {"window_size": (511, 0)},
        "window-both": lambda: {"window_size": (256, 256)},
        "blocks": lambda: blocks(128),
        "blocks-64": lambda: blocks(64),
        "mask": mask,
        "mask-documents": documents,
        "alibi": lambda: {"alibi_slopes": (2.0 ** -np.linspace(1, 8, heads)).astype(np.float32)},
        "soft-cap": lambda: {"softcap": 30.0},
        "sinks": lambda: {"sinks": np.zeros(heads, np.float32)},
        "lengths": lengths,
        "dropout": lambda: {"dropout_p": 0.1},
        "bias": lambda: {"attn_bias": backend.tensor(numbers())},
        "bias-half": lambda: {"attn_bias": backend.tensor(numbers().astype(np.float16))},
        "mask-added": lambda: {"mask": backend.tensor(numbers())},
        "t5": lambda: {"t5_table": rng.standard_normal((32, heads)).astype(np.float32)},
        "lengths-k": lambda: {"seqlens_k": np.full(batch, length, np.int32)},
    }


def measure(backend, sets, options: dict, repeats: int) -> tuple[list[float], str]:
    """Seconds of each call, and the kernel."""

    def call(n):
        return backend.attention.flash_attention2(*sets[n % len(sets)], **options)

    for n in range(2):
        call(n)
    backend.synchronize()
    start, n = time.perf_counter(), 0
    while time.perf_counter() - start < 0.4:  # a device at rest runs slower
        call(n)
        n += 1
        if n % 4 == 0:
            backend.synchronize()
    backend.synchronize()
    with backend.profile() as profile:
        for n in range(repeats):
            call(n)
    each = len(profile.timings) // repeats
    calls = [profile.timings[i * each : (i + 1) * each] for i in range(repeats)]
    longest = max(calls[0], key=lambda timing: timing.seconds)
    return [sum(timing.seconds for timing in call_) for call_ in calls], longest.label


def time_calls(backend, names, chosen, dtype, length: int | None, rng) -> list[dict]:
    """Wall time of calls back to back, full and causal: a line for each feature."""
    lines = []
    for name in names:
        batch, heads, usual, dim = CALLS[name]
        shape = (batch, heads, length or usual, dim)
        q, k, v = (backend.tensor(rng.standard_normal(shape, np.float32).astype(dtype)) for _ in range(3))
        print(f"{name} {shape}: us a call, speed relative to the plain call; the same under a causal mask")
        plain: list[float] = []
        for feature, make in features(backend, shape, rng).items():
            if feature == "causal" or (feature != "full" and chosen and feature not in chosen):
                continue
            given = make()
            calls = [partial(backend.attention.flash_attention2, q, k, v, causal=c, **given) for c in (False, True)]
            for call in calls:
                call()  # compiled and checked: seconds, in which the GPU rests
            if backend.device.kind != "cpu":
                warm_up(backend, 0.5, calls[0])
            seconds = [chain(call, backend.synchronize, 0.15) for call in calls]
            plain = plain or seconds
            ratios = [p / s for p, s in zip(plain, seconds, strict=True)]
            found = "  ".join(f"{s * 1e6:9.1f} {r:6.3f}" for s, r in zip(seconds, ratios, strict=True))
            print(f"  {feature:16}{found}", flush=True)
            lines.append(dict(case=name, feature=feature, seconds=seconds[0], causal=seconds[1], ratios=ratios))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", help="some of the shapes")
    parser.add_argument("--calls", action="store_true", help="wall time of calls back to back, full and causal")
    parser.add_argument("--features", nargs="+", help="these lines only; full is always there")
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16", "float32"])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--length", type=int, help="instead of the cases' own, to try the tool on a slow device")
    add_json(parser)
    options = parser.parse_args()
    shapes = CALLS if options.calls else CASES
    cases = options.cases or list(shapes)
    if unknown := set(cases) - set(shapes):
        parser.error(f"--cases: unknown {', '.join(sorted(unknown))}; choose from {', '.join(shapes)}")
    backend = grilly.Compute()
    print(f"{backend.device.name}, {backend.device.driver} {backend.device.driver_version}, {options.dtype}")
    if options.dtype == "bfloat16":
        import ml_dtypes

        dtype = np.dtype(ml_dtypes.bfloat16)
    else:
        dtype = np.dtype(options.dtype)
    rng, lines = np.random.default_rng(0), []
    if options.calls:
        lines = time_calls(backend, cases, options.features, dtype, options.length, rng)
        write(options.json, backend, lines)
        return
    for name in cases:
        batch, heads, length, dim = CASES[name]
        shape = (batch, heads, options.length or length, dim)
        sets = []
        for _ in range(2):
            numbers = [rng.standard_normal(shape, np.float32).astype(dtype) for _ in range(3)]
            sets.append([backend.tensor(a) for a in numbers])
        print(f"{name} {shape}")
        full = None
        for feature, make in features(backend, shape, rng).items():
            if feature != "full" and options.features and feature not in options.features:
                continue
            try:
                seconds, kernel = measure(backend, sets, make(), options.repeats)
            except grilly.GrillyError as error:
                print(f"  {feature:16} {str(error).splitlines()[0]}")
                continue
            median = statistics.median(seconds)
            full = full or median
            bar = f", at most {BARS[feature]}" if feature in BARS else ""
            print(f"  {feature:16}{median * 1e3:9.3f} ms  {median / full:6.3f}{bar}  {kernel}", flush=True)
            lines.append(dict(case=name, feature=feature, seconds=median, ratio=median / full, kernel=kernel))
    write(options.json, backend, lines)


if __name__ == "__main__":
    main()
