#!/usr/bin/env python3
"""Times whole calls and kernels on the chosen device, beside torch where it is installed; prints a table.

Small calls: float32 (1, 8, 128, 64), Tensor to Tensor from call to completion, and NumPy to NumPy. Large ones: device
time of float32 (4, 32, 4096, 64) and (4, 32, 4096, 128) by timestamps. Every result is checked against float64 first.
The figures in docs/benchmarks come from this script.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import grilly
from grilly import reference
from measured import add_json, spread_of, write


def spread(seconds: list[float]) -> str:
    """Median with the 10th and 90th percentile, in microseconds."""
    cuts = statistics.quantiles(seconds, n=10)
    return f"{statistics.median(seconds) * 1e6:9.1f} us  ({cuts[0] * 1e6:.1f} to {cuts[-1] * 1e6:.1f})"


def measure(call, repeats: int, warm: int = 20) -> list[float]:
    for _ in range(warm):
        call()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def arrays(shape, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, dtype=np.float32) for _ in range(3)]


def check(backend, q, k, v) -> float:
    """The largest error of the first batch and head against float64."""
    out = backend.attention.flash_attention2(*(backend.tensor(a[:1, :1]) for a in (q, k, v))).numpy()
    return float(np.abs(out - reference.naive_attention(q[:1, :1], k[:1, :1], v[:1, :1], dtype=np.float64)[0]).max())


def told(rows: list[dict], what: str, by: str, seconds: list[float], shape=(1, 8, 128, 64)) -> None:
    """Print and keep the times of a small call."""
    print(f"  {what:28}", spread(seconds))
    rows.append({"what": what, "by": by, "shape": shape, **spread_of(seconds)})


def kept(rows: list[dict], by: str, shape, causal: bool, seconds: list[float], label: str) -> None:
    """Print and keep the times of a large kernel."""
    rate = 4 * np.prod(shape) * shape[2] / (2 if causal else 1) / statistics.median(seconds) / 1e12
    middle = statistics.median(seconds) * 1e3
    print(f"  {shape} {'causal' if causal else 'full  '} {middle:8.2f} ms {rate:7.1f} TFLOP/s  {label}")
    what = {"what": "kernel", "by": by, "shape": shape, "causal": causal}
    rows.append({**what, **spread_of(seconds), "tflops": rate, "kernel": label})


def small_calls(backend, repeats: int, rows: list[dict]) -> None:
    q, k, v = arrays((1, 8, 128, 64))
    print(f"  error {check(backend, q, k, v):.2e}")
    tensors = [backend.tensor(a) for a in (q, k, v)]
    run = backend.attention.flash_attention2

    def tensor_call():
        run(*tensors)
        backend.synchronize()

    told(rows, "Tensor to Tensor, completed", "grilly", measure(tensor_call, repeats))
    told(rows, "Tensor to Tensor, not waited", "grilly", measure(lambda: run(*tensors), repeats))
    backend.synchronize()
    told(rows, "NumPy to NumPy", "grilly", measure(lambda: run(q, k, v), repeats))
    with backend.profile() as profile:
        for _ in range(20):
            run(*tensors)
    told(rows, "kernel alone", "grilly", [t.seconds for t in profile.timings])


def kernels(backend, dim: int, repeats: int, kernel, rows: list[dict]) -> None:
    shape = (4, 32, 4096, dim)
    q, k, v = arrays(shape)
    print(f"  error {check(backend, q, k, v):.2e}")
    tensors = [backend.tensor(a) for a in (q, k, v)]
    for causal in (False, True):
        backend.attention.flash_attention2(*tensors, causal=causal, kernel=kernel)
        with backend.profile() as profile:
            for _ in range(repeats):
                backend.attention.flash_attention2(*tensors, causal=causal, kernel=kernel)
        per_call = len(profile.timings) // repeats
        seconds = [sum(t.seconds for t in profile.timings[i * per_call : (i + 1) * per_call]) for i in range(repeats)]
        kept(rows, "grilly", shape, causal, seconds, profile.timings[0].label)


def torch_with_gpu():
    """The module torch, or None, having said why, where it or its GPU is missing."""
    try:
        import torch
    except ImportError as error:
        print(f"torch: {error}")
        return None
    if not torch.cuda.is_available():
        print("torch has no GPU")
        return None
    return torch


def on_cuda(array):
    """A NumPy array, bfloat16 too, as a tensor of torch on the GPU."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
    return torch.from_numpy(array).cuda()


def torch_figures(dims, repeats: int, rows: list[dict]) -> None:
    torch = torch_with_gpu()
    if torch is None:
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    attend = torch.nn.functional.scaled_dot_product_attention
    print(f"torch {torch.__version__}, float32")
    q, k, v = (torch.from_numpy(a).cuda() for a in arrays((1, 8, 128, 64)))

    def call():
        attend(q, k, v)
        torch.cuda.synchronize()

    told(rows, "Tensor to Tensor, completed", "torch", measure(call, repeats))
    host = arrays((1, 8, 128, 64))
    whole = measure(lambda: attend(*(torch.from_numpy(a).cuda() for a in host)).cpu().numpy(), repeats)
    told(rows, "NumPy to NumPy", "torch", whole)
    for dim in dims:
        shape = (4, 32, 4096, dim)
        q, k, v = (torch.from_numpy(a).cuda() for a in arrays(shape))
        for causal in (False, True):
            seconds = []
            for turn in range(8):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                attend(q, k, v, is_causal=causal)
                end.record()
                torch.cuda.synchronize()
                if turn > 2:
                    seconds.append(start.elapsed_time(end) / 1e3)
            kept(rows, "torch", shape, causal, seconds, "scaled_dot_product_attention")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--kernel", help="a shader family, instead of the registry's choice")
    parser.add_argument("--runtime", default="vulkan")
    parser.add_argument("--small", action="store_true", help="leave the large kernels out")
    add_json(parser)
    options = parser.parse_args()
    start = time.perf_counter()
    backend = grilly.Compute(runtime=options.runtime)
    rows: list[dict] = [{"what": "Compute()", "by": "grilly", "seconds": time.perf_counter() - start}]
    print(f"Compute() {rows[0]['seconds']:.3f} s")
    print(f"{backend.device.name}, {backend.device.driver} {backend.device.driver_version}, {backend.runtime.name}")
    print("float32 (1, 8, 128, 64)")
    small_calls(backend, options.repeats, rows)
    dims = () if options.small else (64, 128)
    for dim in dims:
        print(f"float32 (4, 32, 4096, {dim})")
        kernels(backend, dim, 8, options.kernel, rows)
    torch_figures(dims, options.repeats, rows)
    write(options.json, backend, rows)
    backend.close()


if __name__ == "__main__":
    main()
