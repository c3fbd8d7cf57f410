#!/usr/bin/env python3
"""Times linear layers with quantized weights as a program gets them, beside float16 weights of the same shape.

    python tools/bench_quantized.py [--types Q4_K ...] [--rows 1 8 16 512] [--shape N K ...] [--json FILE]

Calls on Tensors one after the other with one wait at the end. The weights of a call are another copy than those of the
call before, as many as are larger together than the device's cache. TB/s count the bytes of weights alone, as they lie
on the device. Results are compared with float64 products of the dequantized weights, on some columns.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np

import grilly
import grilly.functional as F
from bench_shapes import chain, warm_up
from grilly.quantization import TYPES
from measured import add_json, write

SHAPES = [(57344, 4096), (13824, 5120), (14336, 4096), (18944, 3584), (8192, 2048), (4096, 4096)]
#: Bytes of copies of a weight together.
BEYOND_CACHE = 2**28
#: Relative errors, of the largest result.
BOUND = 4e-3


def weights_of(type: str, rows: int, depth: int, rng) -> tuple[grilly.QuantizedTensor, np.ndarray]:
    """A weight whose rows repeat every 128, and those rows as numbers."""
    some = rng.standard_normal((128, depth), dtype=np.float32) / np.float32(depth**0.5)
    found = grilly.quantize(some, type)
    data = np.resize(found.data, (rows, found.data.shape[1]))
    return grilly.QuantizedTensor(data, (rows, depth), type), found.dequantize(np.float64)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    types = ["float16", "Q4_0", "Q4_K", "Q6_K", "Q8_0"]
    parser.add_argument("--types", nargs="+", default=types, help=f"float16, {', '.join(TYPES)}")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 16, 512])
    parser.add_argument("--shape", nargs=2, type=int, action="append", metavar=("N", "K"), help="in place of all")
    parser.add_argument("--dtype", default="float16", help="of x")
    parser.add_argument("--seconds", type=float, default=0.15, help="for each figure")
    add_json(parser)
    options = parser.parse_args()
    backend = grilly.Compute()
    grilly.use(backend)
    print(f"{backend.device.name}, {backend.device.driver} {backend.device.driver_version}; us and TB/s by rows")
    lines: list[dict] = []
    wrong = False
    for shape in options.shape or SHAPES:
        shape, rng = tuple(shape), np.random.default_rng(0)
        xs = {m: backend.tensor(rng.standard_normal((m, shape[1])).astype(options.dtype)) for m in options.rows}
        for type in options.types:
            if type == "float16":
                exact = (rng.standard_normal((128, shape[1])) / shape[1] ** 0.5).astype(np.float16)
                weight, exact = np.resize(exact, shape), exact.astype(np.float64)
            else:
                weight, exact = weights_of(type, *shape, rng)
            copies = max(BEYOND_CACHE // weight.nbytes + 1, 2)
            held = [backend.tensor(weight) for _ in range(copies)]
            said = []
            # The device has waited for the host; after 0.5 s an H200 still had a fifth of its rate.
            warm_up(backend, 3.0 if backend.device.kind != "cpu" else 0.0)
            for m, x in xs.items():
                turn = itertools.cycle(held)
                found = F.linear(x, held[0]).numpy()[:, -128:].astype(np.float64)
                due = np.roll(x.numpy().astype(np.float64) @ exact.T, -(shape[0] % 128), axis=1)
                error = float(np.abs(found - due).max() / np.abs(due).max())
                seconds = chain(lambda x=x, turn=turn: F.linear(x, next(turn)), backend.synchronize, options.seconds)
                rate = weight.nbytes / seconds
                line = {"type": type, "shape": shape, "rows": m, "seconds": seconds, "rate": rate, "error": error}
                lines.append(line)
                bad = "" if error <= BOUND else " WRONG"
                wrong = wrong or bool(bad)
                said.append(f"{m:5}: {seconds * 1e6:8.1f} {rate / 1e12:5.2f} {error:.0e}{bad}")
            print(f"{shape!s:16} {type:8} {'  '.join(said)}", flush=True)
            write(options.json, backend, lines)
            del held
    return int(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
