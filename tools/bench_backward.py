#!/usr/bin/env python3
"""Times the gradients of attention on the chosen device, beside torch's flash kernel on its GPU, and compares errors.

    python tools/bench_backward.py [--dtypes float16 ...] [--cases d64-causal ...] [--variants] [--json FILE]

Device times: timestamps around dispatches (torch: events around ``autograd.grad``), medians with the 10th and 90th
percentile; two sets of random inputs take turns, and the device is kept busy before each measurement. Errors are
the largest and the root-mean-square difference from float64 over dq, dk and dv of the first head. ``--variants`` times
every variant of the kernel for dq, and of that for dk and dv, that can run, not only the registry's choice.
Operations are counted as is usual: 2.5 times those of the forward pass.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import grilly
from bench_calls import on_cuda, torch_with_gpu
from grilly.compute.device.dtypes import dtype_of
from grilly.compute.device.trial import pin, view_of
from grilly.registry import Request
from measured import add_json, spread_of, write

CASES = {  # name: (batch, heads, length, head dimension), causal
    "d64": ((4, 16, 4096, 64), False),
    "d64-causal": ((4, 16, 4096, 64), True),
    "d128": ((4, 16, 4096, 128), False),
    "d128-causal": ((4, 16, 4096, 128), True),
    "few": ((1, 2, 200, 64), True),
}
SECONDS = 0.3  # to keep the device busy before a measurement


def operations(shape, causal: bool) -> float:
    batch, heads, length, dim = shape
    return 10.0 * batch * heads * length * length * dim / (2 if causal else 1)


def exact(arrays, causal: bool) -> list[np.ndarray]:
    """dq, dk and dv of one head in float64."""
    g, q, k, v = (a.astype(np.float64) for a in arrays)
    scores = q @ k.T / np.sqrt(q.shape[1])
    if causal:
        scores[np.triu_indices(len(q), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    d_weights = g @ v.T
    d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True)) / np.sqrt(q.shape[1])
    return [d_scores @ k, d_scores.T @ q, weights.T @ g]


def errors(found, wanted) -> list[tuple[float, float]]:
    """Largest and root-mean-square error of each result's first head."""
    off = [np.abs(np.asarray(a, np.float64) - b) for a, b in zip(found, wanted, strict=True)]
    return [(float(a.max()), float(np.sqrt(np.mean(a**2)))) for a in off]


def measure(view, sets, causal: bool, repeats: int):
    """Seconds of each call, and of each dispatch of one call by its label."""

    def call(n):
        return view.attention.flash_attention2_backward(*sets[n % len(sets)], causal=causal)

    call(0)
    view.synchronize()
    start, n = time.perf_counter(), 0
    while n < 3 or time.perf_counter() - start < SECONDS:
        call(n)
        view.synchronize()
        n += 1
    with view.profile() as profile:
        for n in range(repeats):
            call(n)
    each = len(profile.timings) // repeats
    calls = [profile.timings[i * each : (i + 1) * each] for i in range(repeats)]
    parts: dict[str, list[float]] = {}
    for timings in calls:
        for timing in timings:
            parts.setdefault(timing.label, []).append(timing.seconds)
    return [sum(t.seconds for t in c) for c in calls], {name: statistics.median(s) for name, s in parts.items()}


def torch_backward(arrays, causal: bool, repeats: int):
    """Seconds of torch's flash kernel for the same arrays, and its gradients' first head; None without its GPU."""
    torch = torch_with_gpu()
    if torch is None:
        return None
    from torch.nn.attention import SDPBackend, sdpa_kernel

    g, *qkv = (on_cuda(a) for a in arrays)
    qkv = [a.requires_grad_() for a in qkv]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=causal)

    def call():
        return torch.autograd.grad(out, qkv, g, retain_graph=True)

    start, n = time.perf_counter(), 0
    while n < 3 or time.perf_counter() - start < SECONDS:
        found = call()
        torch.cuda.synchronize()
        n += 1
    seconds = []
    for _ in range(repeats):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        found = call()
        b.record()
        torch.cuda.synchronize()
        seconds.append(a.elapsed_time(b) / 1e3)
    return seconds, [a[0, 0].float().cpu().numpy() for a in found]


def show(name: str, seconds: list[float], work: float, off, beside: float | None) -> dict:
    cuts = statistics.quantiles(seconds, n=10)
    middle = statistics.median(seconds)
    ratio = "" if beside is None else f"  {beside / middle:5.2f} of torch's speed"
    print(f"  {name:44s} {middle * 1e3:9.3f} ms ({cuts[0] * 1e3:.3f} to {cuts[-1] * 1e3:.3f})"
          f" {work / middle / 1e12:7.1f} TFLOP/s{ratio}")  # fmt: skip
    print("      " + "   ".join(f"{n} {a:.1e} / {b:.1e}" for n, (a, b) in zip(("dq", "dk", "dv"), off, strict=True)))
    return {"name": name, **spread_of(seconds), "tflops": work / middle / 1e12, "errors": off}


def run_case(backend, name: str, dtype: str, repeats: int, variants: bool) -> list[dict]:
    shape, causal = CASES[name]
    batch, heads, length, dim = shape
    work = operations(shape, causal)
    rng = np.random.default_rng(0)
    arrays = [[rng.standard_normal(shape, np.float32).astype(dtype_of(dtype)) for _ in range(4)] for _ in range(2)]
    print(f"{name} {shape} {dtype}{' causal' if causal else ''}: largest / root-mean-square errors under each line")
    wanted = exact([a[0, 0] for a in arrays[0]], causal)
    rows, theirs = [], torch_backward(arrays[0], causal, repeats)
    beside = None
    if theirs is not None:
        beside = statistics.median(theirs[0])
        rows.append(show("torch flash", theirs[0], work, errors(theirs[1], wanted), None))
    sets = []
    for group in arrays:
        g, *qkv = (backend.tensor(a) for a in group)
        out, lse = backend.attention.flash_attention2(*qkv, causal=causal, return_lse=True)
        sets.append((g, *qkv, out, lse))
    view = grilly.Compute.over(view_of(backend.opened))
    choices = [("chosen", None)]
    if variants:
        facts = {
            "align": 16, "causal": int(causal), "extras": 0, "head_dim": dim, "options": 0, "value_dim": dim,
        }  # fmt: skip
        for kernel in ("dq", "dq-stored", "dkv"):
            request = Request(f"attention-backward-{kernel}", dtype, problem=facts)
            choices += [(choice.variant.label, choice) for choice in backend.registry.candidates(request)]
    for label, choice in choices:
        pin(view.opened, choice)
        seconds, parts = measure(view, sets, causal, repeats)
        found = view.attention.flash_attention2_backward(*sets[0], causal=causal)
        off = errors([a[0, 0].numpy() for a in found], wanted)
        rows.append(show(label, seconds, work, off, beside) | {"parts": parts})
        print("      " + "   ".join(f"{part} {s * 1e3:.3f} ms" for part, s in parts.items()))
    return [{"case": name, "shape": shape, "causal": causal, "dtype": dtype, **row} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", nargs="+", default=["float16"], choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--cases", nargs="+", default=[c for c in CASES if c != "few"], choices=list(CASES))
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--device")
    add_json(parser)
    options = parser.parse_args()
    rows = []
    with grilly.Compute(options.device) as backend:
        print(f"{backend.device.name}, {backend.device.driver} {backend.device.driver_version}, {backend.runtime.name}")
        for dtype in options.dtypes:
            for name in options.cases:
                rows += run_case(backend, name, dtype, options.repeats, options.variants)
        write(options.json, backend, rows)


if __name__ == "__main__":
    main()
