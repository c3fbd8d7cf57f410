#!/usr/bin/env python3
"""Times what operations on Tensors take of the calling thread: Python, and none of the device's work.

    python tools/bench_host.py [--names TEXT ...] [--calls 12] [--json FILE]

Arrays are small, calls repeat, and their submission is left to the end of a round, outside of what is timed: on a GPU
several calls share one. A figure is processor time of the thread for one call, the least of several rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

import grilly
import grilly.functional as F
from grilly import linalg
from measured import add_json, write


def work(backend: grilly.Compute) -> dict[str, Callable[[], Any]]:
    """Calls by name, on tensors of the backend."""
    rng = np.random.default_rng(0)

    def floats(*shape):
        return backend.tensor(rng.standard_normal(shape, dtype=np.float32))

    x, y, matrix, row, table = (floats(*s) for s in ((4, 8, 16), (4, 8, 16), (16, 16), (16,), (8, 16)))
    q = floats(1, 2, 8, 16)
    image, filters, logits = floats(1, 3, 8, 8), floats(4, 3, 3, 3), floats(4, 10)
    mask = backend.tensor(rng.integers(0, 2, (4, 8, 16)).astype(bool))
    ids, classes = (backend.tensor(np.array(n)) for n in ((1, 2, 0), (1, 2, 3, 0)))
    return {
        "x + y": lambda: x + y, "x * 2": lambda: x * 2, "x ** 2": lambda: x**2, "-x": lambda: -x,
        "x > y": lambda: x > y, "x += y": lambda: x.__iadd__(y), "exp": lambda: grilly.exp(x),
        "isnan": lambda: grilly.isnan(x), "clip": lambda: grilly.clip(x, -1.0, 1.0),
        "where": lambda: grilly.where(mask, x, y), "where, a number": lambda: grilly.where(mask, x, 0.0),
        "astype": lambda: x.astype(np.float16), "contiguous": lambda: x.transpose(0, 2, 1).contiguous(),
        "concat": lambda: grilly.concat([x, y], axis=1), "concat of four": lambda: grilly.concat([x, y, x, y]),
        "stack": lambda: grilly.stack([x, y]), "split": lambda: grilly.split(x, 2, axis=1),
        "flip": lambda: grilly.flip(x, axis=1), "roll": lambda: grilly.roll(x, 1, axis=1),
        "tile": lambda: grilly.tile(x, (2, 1, 1)), "repeat": lambda: grilly.repeat(x, 2, axis=0),
        "tril": lambda: grilly.tril(x), "squeeze": lambda: grilly.squeeze(x[None], axis=0),
        "x[1:]": lambda: x[1:], "x[ids]": lambda: table[ids], "x[:1] = 0": lambda: x.__setitem__((slice(0, 1),), 0.0),
        "take": lambda: grilly.take(table, ids, axis=0), "reshape": lambda: x.reshape(4, 128),
        "take_along_axis": lambda: grilly.take_along_axis(logits, classes.reshape(4, 1), axis=1),
        "sum": lambda: grilly.sum(x, axis=-1), "mean": lambda: grilly.mean(x, axis=-1),
        "max": lambda: grilly.max(x, axis=-1), "var": lambda: grilly.var(x, axis=-1),
        "std": lambda: grilly.std(x, axis=-1), "argmax": lambda: grilly.argmax(x, axis=-1),
        "any": lambda: grilly.any(mask), "cumulative_sum": lambda: grilly.cumulative_sum(x, axis=-1),
        "sort": lambda: grilly.sort(x), "argsort": lambda: grilly.argsort(x), "topk": lambda: grilly.topk(x, 3),
        "arange": lambda: grilly.arange(16), "zeros": lambda: grilly.zeros((4, 4)),
        "full": lambda: grilly.full((4, 4), 1.0), "random.normal": lambda: grilly.random.normal((4, 4), seed=1),
        "x @ y": lambda: x @ matrix, "x @ x.mT": lambda: x @ x.mT, "outer": lambda: linalg.outer(row, row),
        "tensordot": lambda: grilly.tensordot(table, matrix, axes=1), "linear": lambda: F.linear(x, matrix, row),
        "linear_backward": lambda: F.linear_backward(x, x, matrix), "gelu": lambda: F.gelu(x),
        "silu": lambda: F.silu(x), "swiglu": lambda: F.swiglu(x, y), "softmax": lambda: F.softmax(x),
        "layer_norm": lambda: F.layer_norm(x, 16, row, row), "rms_norm": lambda: F.rms_norm(x, 16, row),
        "dropout": lambda: F.dropout(x, 0.1, seed=1), "embedding": lambda: F.embedding(ids, table),
        "conv2d": lambda: F.conv2d(image, filters, padding=1),
        "cross_entropy": lambda: F.cross_entropy(logits, classes),
        "flash_attention2": lambda: F.flash_attention2(q, q, q),
        "flash_attention2, causal": lambda: F.flash_attention2(q, q, q, causal=True),
        "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(q, q, q),
    }  # fmt: skip


@contextlib.contextmanager
def held(runtime) -> Iterator[None]:
    """Inside, what calls record is not submitted when they end."""
    with mock.patch.object(type(runtime), "flush", lambda runtime: None):
        yield


def least(call: Callable[[], Any], backend: grilly.Compute, calls: int, rounds: int = 9) -> float:
    """Seconds of the thread's processor time that a call takes."""
    for _ in range(5):
        call()
    found = []
    for _ in range(rounds):
        backend.synchronize()
        with held(backend.runtime):
            start = time.thread_time()
            for _ in range(calls):
                call()
            found.append((time.thread_time() - start) / calls)
    backend.synchronize()
    return min(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", default=[""], help="operations whose name holds one of these")
    parser.add_argument("--calls", type=int, default=12, help="of a round, 64 dispatches at most")
    add_json(parser)
    options = parser.parse_args()
    backend = grilly.Compute()
    grilly.use(backend)
    lines = []
    for name, call in work(backend).items():
        if any(text in name for text in options.names):
            lines.append({"name": name, "grilly": least(call, backend, options.calls)})
    for line in sorted(lines, key=lambda line: -line["grilly"]):
        print(f"{line['name']:30s} {line['grilly'] * 1e6:6.1f} us")
    write(options.json, backend, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
