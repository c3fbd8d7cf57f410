#!/usr/bin/env python3
"""Times what moves arrays once through memory (elementwise operations, casts, norms, softmax, reductions, copies), as a
program gets it, beside torch on its GPU in the same run.

    python tools/bench_arrays.py [--names TEXT ...] [--shape 16384 4096] [--dtypes float16 ...] [--json FILE]

A figure is wall time: calls on Tensors back to back with one wait at the end, as in bench_shapes.py. GB/s count what
has to be read and written once. The first line is the limit: a copy of the same array. Every result is compared with
float64 on some rows, or with the sums of all.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import grilly
import grilly.functional as F
from bench_calls import torch_with_gpu
from bench_shapes import chain, warm_up
from grilly.compute.device.dtypes import dtype_of
from measured import add_json, write

Arrays = dict[str, Any]


class Work(NamedTuple):
    """What is timed: x and y are (rows, width), w and b (width,)."""

    name: str
    reads: int  # of arrays of x's size
    writes: float  # likewise; what is smaller counts nothing
    ours: Callable[[Arrays], Any]
    exact: Callable[[Arrays], np.ndarray]  # of float64 arrays
    torch: Callable[[Any, Arrays], Any]
    axis: int | None = None  # the axis that is reduced, where one is


def normed(x, w, b, eps=1e-5):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(x.var(-1, keepdims=True) + eps) * w + b


def softmaxed(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def gelu(x):
    from math import erf

    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


WORK = [
    Work("copy", 1, 1, lambda a: grilly.asarray(a["x"], copy=True), lambda a: a["x"], lambda t, a: a["x"].clone()),
    Work("x + y", 2, 1, lambda a: a["x"] + a["y"], lambda a: a["x"] + a["y"], lambda t, a: a["x"] + a["y"]),
    Work("x + w", 1, 1, lambda a: a["x"] + a["w"], lambda a: a["x"] + a["w"], lambda t, a: a["x"] + a["w"]),
    Work("exp", 1, 1, lambda a: grilly.exp(a["x"]), lambda a: np.exp(a["x"]), lambda t, a: t.exp(a["x"])),
    Work("gelu", 1, 1, lambda a: F.gelu(a["x"]), lambda a: gelu(a["x"]), lambda t, a: t.nn.functional.gelu(a["x"])),
    Work(
        "gelu, tanh", 1, 1, lambda a: F.gelu(a["x"], approximate="tanh"),
        lambda a: a["x"] * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (a["x"] + 0.044715 * a["x"] ** 3))),
        lambda t, a: t.nn.functional.gelu(a["x"], approximate="tanh"),
    ),
    Work(
        "silu", 1, 1, lambda a: F.silu(a["x"]), lambda a: a["x"] / (1 + np.exp(-a["x"])),
        lambda t, a: t.nn.functional.silu(a["x"]),
    ),
    Work(
        "swiglu", 2, 1, lambda a: F.swiglu(a["x"], a["y"]), lambda a: a["x"] / (1 + np.exp(-a["x"])) * a["y"],
        lambda t, a: t.nn.functional.silu(a["x"]) * a["y"],
    ),
    Work(
        "where", 2, 1, lambda a: grilly.where(a["x"] > 0, a["x"], a["y"]),
        lambda a: np.where(a["x"] > 0, a["x"], a["y"]), lambda t, a: t.where(a["x"] > 0, a["x"], a["y"]),
    ),
    Work(
        "cast to float32", 1, 2, lambda a: a["x"].astype("float32"), lambda a: a["x"], lambda t, a: a["x"].float(),
    ),
    Work(
        "rms_norm", 1, 1, lambda a: F.rms_norm(a["x"], a["x"].shape[-1:], a["w"], 1e-5),
        lambda a: a["x"] / np.sqrt((a["x"] ** 2).mean(-1, keepdims=True) + 1e-5) * a["w"],
        lambda t, a: t.nn.functional.rms_norm(a["x"], a["x"].shape[-1:], a["w"], 1e-5),
    ),
    Work(
        "layer_norm", 1, 1, lambda a: F.layer_norm(a["x"], a["x"].shape[-1:], a["w"], a["b"]),
        lambda a: normed(a["x"], a["w"], a["b"]),
        lambda t, a: t.nn.functional.layer_norm(a["x"], a["x"].shape[-1:], a["w"], a["b"]),
    ),
    Work(
        "add_rms_norm", 2, 2, lambda a: F.add_rms_norm(a["x"], a["y"], a["x"].shape[-1:], a["w"], 1e-5)[0],
        lambda a: (lambda s: s / np.sqrt((s**2).mean(-1, keepdims=True) + 1e-5) * a["w"])(a["x"] + a["y"]),
        lambda t, a: t.nn.functional.rms_norm(a["x"] + a["y"], a["x"].shape[-1:], a["w"], 1e-5),
    ),
    Work(
        "softmax", 1, 1, lambda a: F.softmax(a["x"], -1), lambda a: softmaxed(a["x"]),
        lambda t, a: t.softmax(a["x"], -1),
    ),
    Work(
        "log_softmax", 1, 1, lambda a: F.log_softmax(a["x"], -1), lambda a: np.log(softmaxed(a["x"])),
        lambda t, a: t.log_softmax(a["x"], -1),
    ),
    Work(
        "sum of rows", 1, 0, lambda a: grilly.sum(a["x"], axis=-1), lambda a: a["x"].sum(-1),
        lambda t, a: a["x"].sum(-1), -1,
    ),
    Work(
        "sum of columns", 1, 0, lambda a: grilly.sum(a["x"], axis=0), lambda a: a["x"].sum(0),
        lambda t, a: a["x"].sum(0), 0,
    ),
    Work(
        "max of rows", 1, 0, lambda a: grilly.max(a["x"], axis=-1), lambda a: a["x"].max(-1),
        lambda t, a: a["x"].amax(-1), -1,
    ),
    Work(
        "argmax of rows", 1, 0, lambda a: grilly.argmax(a["x"], axis=-1), lambda a: a["x"].argmax(-1),
        lambda t, a: a["x"].argmax(-1), -1,
    ),
    Work(
        "sum of all", 1, 0, lambda a: grilly.sum(a["x"]), lambda a: a["x"].sum(keepdims=True)[0],
        lambda t, a: a["x"].sum(), 0,
    ),
    Work(
        "transpose", 1, 1, lambda a: grilly.asarray(a["x"].T, copy=True), lambda a: a["x"].T,
        lambda t, a: a["x"].T.contiguous(), 0,
    ),
]  # fmt: skip
#: Relative errors that a result may have: of its dtype's rounding, several times, and for sums of many terms more.
BOUNDS = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5}


def error_of(work: Work, found: np.ndarray, arrays: Arrays) -> float:
    """The largest error, over some rows where rows are apart, as a share of the largest magnitude or 1."""
    if work.axis == 0:
        exact = work.exact(arrays)
    else:
        some = slice(None, None, max(arrays["x"].shape[0] // 8, 1))
        exact = work.exact({n: a[some] if a.ndim == 2 else a for n, a in arrays.items()})
        found = found[some]
    scale = max(float(np.abs(exact).max()), 1.0)
    if work.name.startswith("sum"):  # of numbers that cancel: by the size of the terms
        scale = max(scale, float(np.sqrt(arrays["x"].size / max(exact.size, 1))))
    return float(np.abs(found.astype(np.float64) - exact).max()) / scale


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", default=[""], help="work whose name holds one of these")
    parser.add_argument("--shape", nargs=2, type=int, default=[16384, 4096], metavar=("ROWS", "WIDTH"))
    parser.add_argument("--dtypes", nargs="+", default=["float16", "float32"])
    parser.add_argument("--seconds", type=float, default=0.1, help="for each figure")
    parser.add_argument("--no-torch", action="store_true")
    add_json(parser)
    options = parser.parse_args()
    backend = grilly.Compute()
    grilly.use(backend)
    torch = None if options.no_torch else torch_with_gpu()
    if torch is not None:
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    print(f"{backend.device.name}, {backend.device.driver} {backend.device.driver_version}, {tuple(options.shape)}")
    warm_up(backend, 0.7 if backend.device.kind != "cpu" else 0.0)
    lines: list[dict] = []
    for name in options.dtypes:
        dtype, rng = dtype_of(name), np.random.default_rng(0)
        rows = rng.standard_normal((64, options.shape[1]), dtype=np.float32)
        rows -= rows.mean()  # or the sum of all would be beyond float16
        given = {
            "x": np.resize(rows, options.shape).astype(dtype),
            "y": np.resize(rows[::-1] * 0.5, options.shape).astype(dtype),
            "w": (1 + 0.1 * rows[0]).astype(dtype), "b": (0.1 * rows[1]).astype(dtype),
        }  # fmt: skip
        exact = {n: a.astype(np.float64) for n, a in given.items()}
        held = {n: backend.tensor(a) for n, a in given.items()}
        theirs = {}
        if torch is not None:
            kind = getattr(torch, name)
            theirs = {n: torch.from_numpy(a.astype(np.float32)).cuda().to(kind) for n, a in given.items()}
        for work in WORK:
            if not any(text in work.name for text in options.names) or work.name == f"cast to {name}":
                continue
            nbytes = given["x"].nbytes * (work.reads + work.writes)
            line: dict = {"name": work.name, "dtype": name, "bytes": nbytes}
            try:
                line["error"] = error_of(work, work.ours(held).numpy(), exact)
                line["grilly"] = chain(functools.partial(work.ours, held), backend.synchronize, options.seconds)
                line["GB/s"] = nbytes / line["grilly"] / 1e9
            except Exception as error:  # the others are to be timed all the same
                line["failed"] = f"{type(error).__name__}: {error}"
                print(f"{name:9s} {work.name:16s} {line['failed']}", flush=True)
                lines.append(line)
                continue
            if torch is not None:
                call = functools.partial(work.torch, torch, theirs)
                line["torch"] = chain(call, torch.cuda.synchronize, options.seconds)
            beside = f"  torch {line['torch'] * 1e6:8.1f} us" if "torch" in line else ""
            rate = f"{line['grilly'] * 1e6:9.1f} us {line['GB/s']:7.0f} GB/s"
            print(f"{name:9s} {work.name:16s} {rate}{beside}  error {line['error']:.1e}", flush=True)
            lines.append(line)
    write(options.json, backend, lines)
    wrong = [f"{x['dtype']} {x['name']}" for x in lines if not x.get("error", np.inf) <= BOUNDS[x["dtype"]]]
    if wrong:
        print(f"WRONG: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
