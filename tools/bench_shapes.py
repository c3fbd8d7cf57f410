#!/usr/bin/env python3
"""Times attention at the shapes of models, as a program gets it, beside torch on its GPU in the same run.

    python tools/bench_shapes.py [--names TEXT ...] [--gradients] [--dtype float16] [--seconds 0.3] [--json FILE]

A figure is wall time: calls on Tensors back to back with one wait at the end, long enough that the clock does not
matter, Python's time included, torch's calls likewise; the median of several such chains. Operations are those of the
two products, halved for causal calls and, with a window, counted where a query sees a key; TFLOP/s from that. The error
is the largest difference from float64 over some rows of the first and the last head. "FA2" is torch's flash kernel,
"cuDNN" the other; a kernel that cannot do the call (a bias, sinks, a soft-cap) has no figure, and the ratio is to the
best of those that can do less: the plain call. At the end: the geometric mean of the ratios, and the worst.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
import time
from functools import partial
from typing import NamedTuple

import numpy as np

import grilly
from bench_calls import on_cuda, torch_with_gpu
from grilly.compute.device.dtypes import dtype_of
from measured import add_json, write

#: Errors beyond which a result is wrong: results are averages of numbers of about 1, few of them above 4.
BOUNDS = {"float16": 5e-3, "bfloat16": 4e-2, "float32": 2e-5}


class Shape(NamedTuple):
    """What a model asks of attention; ``kind`` groups the shapes in the report."""

    name: str
    kind: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    causal: bool = False
    window: int | None = None
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        length = f"{self.queries}" if self.queries == self.keys else f"{self.queries} x {self.keys}"
        extra = [*(["causal"] if self.causal else []), *([f"window {self.window}"] if self.window else [])]
        return f"({self.batch}, {heads}, {length}, {self.dim})" + "".join(f" {e}" for e in (*extra, *self.options))

    def pairs(self) -> float:
        """Query-key pairs of one head that are seen."""
        if not self.causal:
            return float(self.queries * self.keys)
        first = self.keys - self.queries  # the last key that query 0 sees
        rows = first + 1 + np.arange(self.queries, dtype=np.float64)
        if self.window is None:
            return self.queries * self.keys / 2 if first == 0 else float(rows.sum())
        return float(np.minimum(rows, self.window + 1).sum())

    def operations(self) -> float:
        """Floating-point operations of the two products."""
        return 4.0 * self.batch * self.heads * self.pairs() * self.dim


def encoder(name, batch, heads, length, dim, *options) -> Shape:
    return Shape(name, "encoder", batch, heads, heads, length, length, dim, options=options)


def prefill(name, batch, heads, kv_heads, length, dim, window=None, *options) -> Shape:
    return Shape(name, "prefill", batch, heads, kv_heads, length, length, dim, True, window, options)


def decoding(name, batch, heads, kv_heads, keys, dim, queries=1) -> Shape:
    return Shape(name, "decoding", batch, heads, kv_heads, queries, keys, dim, queries > 1)


SHAPES = [
    encoder("BERT-base", 32, 12, 128, 64),
    encoder("BERT-large", 64, 16, 512, 64),
    encoder("MiniLM", 64, 12, 128, 32),
    encoder("ViT-B/16", 128, 12, 197, 64),
    encoder("ViT-L/14", 64, 16, 257, 64),
    encoder("SigLIP", 16, 16, 729, 72),
    encoder("Whisper large, encoder", 8, 20, 1500, 64),
    encoder("T5, encoder", 16, 16, 512, 64, "bias"),
    encoder("Swin, windows", 1024, 4, 49, 32, "bias"),
    encoder("Stable Diffusion, U-Net", 8, 8, 4096, 40),
    encoder("SDXL", 4, 10, 4096, 64),
    encoder("Flux", 1, 24, 4608, 128),
    Shape("CLIP, text", "encoder", 256, 8, 8, 77, 77, 64, True),
    Shape("Stable Diffusion, text", "cross", 16, 8, 8, 4096, 77, 40),
    Shape("SDXL, text", "cross", 8, 10, 10, 4096, 77, 64),
    Shape("Whisper large, to sound", "cross", 8, 20, 20, 224, 1500, 64),
    prefill("GPT-2", 8, 12, 12, 1024, 64),
    prefill("Mistral", 2, 32, 8, 3000, 128),
    prefill("Llama 70B", 1, 64, 8, 8192, 128),
    prefill("Llama 3.2 1B", 4, 32, 8, 2048, 64),
    prefill("Qwen2 7B", 2, 28, 4, 4096, 128),
    prefill("Gemma", 2, 8, 4, 4096, 256),
    prefill("Gemma 2, window", 1, 8, 4, 8192, 256, 4096, "softcap"),
    prefill("Phi", 4, 32, 32, 2048, 80),
    prefill("Phi-3", 2, 32, 32, 2048, 96),
    prefill("GPT-OSS, window", 1, 64, 8, 4096, 64, 127, "sinks"),
    prefill("GPT-OSS", 1, 64, 8, 4096, 64, None, "sinks"),
    prefill("Falcon, one key head", 2, 71, 1, 2048, 64),
    Shape("a chunk of a prefill", "prefill", 1, 32, 8, 512, 8192, 128, True),
    decoding("Llama 8B, 1k", 1, 32, 8, 1024, 128),
    decoding("Llama 8B, 8k", 1, 32, 8, 8192, 128),
    decoding("Llama 8B, 64k", 1, 32, 8, 65536, 128),
    decoding("Llama 8B, 8 x 1k", 8, 32, 8, 1024, 128),
    decoding("Llama 8B, 8 x 8k", 8, 32, 8, 8192, 128),
    decoding("Llama 8B, 64 x 1k", 64, 32, 8, 1024, 128),
    decoding("Llama 8B, 64 x 8k", 64, 32, 8, 8192, 128),
    decoding("Falcon, 8 x 8k", 8, 71, 1, 8192, 64),
    decoding("five tokens at once", 8, 32, 8, 8192, 128, 5),
]


def arrays_of(shape: Shape, dtype) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    b, d = shape.batch, shape.dim
    sizes = [(b, shape.heads, shape.queries, d), *[(b, shape.kv_heads, shape.keys, d)] * 2]
    # One row of numbers, moved on from head to head: drawing all of them would take longer than timing.
    found = []
    for size in sizes:
        head = rng.standard_normal(size[2:], dtype=np.float32).astype(dtype)
        array = np.empty(size, dtype)
        for n, index in enumerate(np.ndindex(size[:2])):
            array[index] = np.roll(head, n, axis=0)
        found.append(array)
    return found


def option_arrays(shape: Shape) -> dict:
    rng = np.random.default_rng(1)
    given: dict = {}
    if shape.window is not None:
        given["window_size"] = (shape.window, 0)
    if "bias" in shape.options:
        given["attn_bias"] = rng.standard_normal((1, shape.heads, shape.queries, shape.keys), dtype=np.float32)
    if "softcap" in shape.options:
        given["softcap"] = 50.0
    if "sinks" in shape.options:
        given["sinks"] = rng.standard_normal(shape.heads, dtype=np.float32)
    return given


def error_of(shape: Shape, out: np.ndarray, arrays, options: dict) -> float:
    """The largest error of some rows, the first and last head of the first and last batch."""
    rows = np.unique(np.linspace(0, shape.queries - 1, 8).astype(int))
    keys, worst = np.arange(shape.keys), 0.0
    for b, h in ((0, 0), (shape.batch - 1, shape.heads - 1)):
        g = h * shape.kv_heads // shape.heads
        q, k, v = (a.astype(np.float64) for a in (arrays[0][b, h][rows], arrays[1][b, g], arrays[2][b, g]))
        scores = q @ k.T / math.sqrt(shape.dim)
        if "softcap" in options:
            scores = options["softcap"] * np.tanh(scores / options["softcap"])
        if "attn_bias" in options:
            scores += options["attn_bias"][0, h][rows]
        last = rows[:, None] + shape.keys - shape.queries
        if shape.causal:
            scores[keys > last] = -np.inf
        if shape.window is not None:
            scores[keys < last - shape.window] = -np.inf
        sink = options["sinks"][h] if "sinks" in options else -np.inf
        top = np.maximum(scores.max(-1, keepdims=True), sink)
        weights = np.exp(scores - top)
        wanted = weights @ v / (weights.sum(-1, keepdims=True) + np.exp(sink - top))
        worst = max(worst, float(np.abs(out[b, h][rows].astype(np.float64) - wanted).max()))
    return worst


def chain(call, wait, seconds: float, chains: int = 5) -> float:
    """Seconds a call takes, back to back: the median of several chains."""
    call()
    wait()
    start, count = time.perf_counter(), 0
    while count < 2 or time.perf_counter() - start < seconds / 4:  # as long as a chain will be, to warm the clock up
        call()
        count += 1
        if count % 4 == 0:
            wait()
    wait()
    each = max((time.perf_counter() - start) / count, 1e-7)
    count = max(int(seconds / chains / each), 2)
    found = []
    for _ in range(chains):
        start = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        found.append((time.perf_counter() - start) / count)
    return statistics.median(found)


def grilly_calls(backend, shape: Shape, tensors, options: dict, precision: str, gradients: bool):
    """What to time: a function of nothing."""
    given = {**options, "causal": shape.causal}
    given |= {name: backend.tensor(given[name]) for name in ("attn_bias",) if name in given}
    attend = backend.attention.flash_attention2
    if not gradients:
        return lambda: attend(*tensors, precision=precision, **given)
    out, lse = attend(*tensors, return_lse=True, precision=precision, **given)
    back = backend.attention.flash_attention2_backward
    return lambda: back(out, *tensors, out, lse, **given)


def torch_figures(torch, shape: Shape, arrays, seconds: float, gradients: bool) -> dict[str, float]:
    """Seconds a call by the names of torch's kernels, of those that can do the plain call of this shape."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if arrays[0].dtype == np.float32:
        kinds = {"efficient": SDPBackend.EFFICIENT_ATTENTION}
    else:
        kinds = {"FA2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}

    q, k, v = (on_cuda(a) for a in arrays)
    if gradients:
        for tensor in (q, k, v):
            tensor.requires_grad_(True)
    # Its causal mask is aligned to the upper left, so for few queries it is left out: as fast or faster.
    causal = shape.causal and shape.queries == shape.keys
    found = {}
    for name, kind in kinds.items():
        with contextlib.suppress(RuntimeError), sdpa_kernel(kind):

            def call(causal=causal):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=causal, enable_gqa=shape.heads != shape.kv_heads
                )

            if gradients:
                out = call()
                grad = torch.ones_like(out)

                def run(out=out, grad=grad):
                    return torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
            else:
                run = call
            with contextlib.nullcontext() if gradients else torch.no_grad():
                found[name] = chain(run, torch.cuda.synchronize, seconds)
    return found


def warm_up(backend, seconds: float = 0.7, call=None) -> None:
    """Work until a GPU has its full rate, without pauses: with ``call``, as matrix units have theirs last."""
    if call is None:
        x = backend.tensor(np.ones((4, 16, 1024, 64), np.float32))
        call = partial(backend.attention.flash_attention2, x, x, x)
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(16):
            call()
        backend.synchronize()


def geometric(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", default=[""], help="shapes whose name or kind holds one of these")
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16", "float32"])
    parser.add_argument("--precision", default="highest", choices=["highest", "high"], help="of float32")
    parser.add_argument("--gradients", action="store_true", help="the backward pass alone")
    parser.add_argument("--most", type=float, default=math.inf, help="leave out what takes more operations")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each figure")
    parser.add_argument("--no-torch", action="store_true")
    add_json(parser)
    options = parser.parse_args()
    backend = grilly.Compute()
    torch = None if options.no_torch else torch_with_gpu()
    if torch is not None:
        torch.backends.cuda.matmul.allow_tf32 = False
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    print(f"{backend.device.name}, {backend.device.driver} {backend.device.driver_version}, {options.dtype}")
    warm_up(backend, 0.7 if backend.device.kind != "cpu" else 0.0)
    lines, dtype = [], dtype_of(options.dtype)
    factor = 2.5 if options.gradients else 1.0
    for shape in SHAPES:
        if not any(text.lower() in f"{shape.name} {shape.kind}".lower() for text in options.names):
            continue
        if shape.operations() > options.most:
            continue
        arrays, given = arrays_of(shape, dtype), option_arrays(shape)
        tensors = [backend.tensor(a) for a in arrays]
        out = backend.attention.flash_attention2(*tensors, causal=shape.causal, precision=options.precision, **given)
        line = {"name": shape.name, "shape": str(shape), "kind": shape.kind, "dtype": options.dtype}
        line["error"] = error_of(shape, out.numpy(), arrays, given)
        call = grilly_calls(backend, shape, tensors, given, options.precision, options.gradients)
        if backend.device.kind != "cpu":
            warm_up(backend, 0.3)  # its clock fell while the host made the arrays
        line["grilly"] = chain(call, backend.synchronize, options.seconds)
        del tensors, out, call
        if torch is not None:
            line |= torch_figures(torch, shape, arrays, options.seconds, options.gradients)
        peer = line.get("FA2") or line.get("efficient")
        line["tflops"] = rates = {
            name: factor * shape.operations() / line[name] / 1e12
            for name in ("grilly", "FA2", "cuDNN", "efficient") if name in line
        }  # fmt: skip
        line["ratio"] = peer / line["grilly"] if peer else None
        figures = "  ".join(f"{name} {rate:6.1f}" for name, rate in rates.items())
        ratio = f"  {line['ratio']:.2f}x" if peer else ""
        print(
            f"{shape.name:26s} {str(shape):44s} {line['grilly'] * 1e6:10.1f} us  {figures}{ratio}  "
            f"error {line['error']:.1e}",
            flush=True,
        )
        lines.append(line)
    ratios = {line["name"]: line["ratio"] for line in lines if line["ratio"]}
    if ratios:
        worst = min(ratios, key=ratios.get)
        mean = geometric(list(ratios.values()))
        print(f"{len(ratios)} shapes: {mean:.3f}x in the mean, worst {ratios[worst]:.2f}x: {worst}")
    write(options.json, backend, lines)
    wrong = [line["name"] for line in lines if not line["error"] <= BOUNDS[options.dtype]]
    if wrong:
        print(f"WRONG: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
