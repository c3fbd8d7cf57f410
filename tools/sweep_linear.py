"""Times every kernel and tiling that can serve linear at some shapes, beside PyTorch, and checks each against float64.

    python tools/sweep_linear.py [--types ...] [--shape ROWS COLUMNS DEPTH ...] [--activation gelu] [--seconds 60]
                                 [--best 6] [--json FILE]

A candidate is a variant and numbers of its data file's `tile`: what stands in TILES in turn, deals that come out alike
once. For each, two times in microseconds: on the device, the median of single dispatches by timestamps; and of a call,
where calls follow each other with one wait at the end. W rotates through as much memory as no cache holds where it has
8 MB or more; a smaller one is found in the cache, as it would be between layers. Every candidate's result is compared
with float64 at some columns; one that errs more than rounding explains is printed as WRONG. `*` is what the registry
chooses.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "grilly_py"))

import grilly
from bench_calls import torch_with_gpu
from bench_linear import dtype_of
from grilly.compute.device.trial import pin, request_of, view_of
from grilly.compute.matmul.linear import linear
from grilly.compute.matmul.tile_schedule import tile_schedule
from grilly.compute.selfcheck.comparing import ROUNDING
from grilly.registry.measured import CHECK_VARIABLE
from measured import add_json, write

SHAPES = {  # rows, columns, depth
    "float16": [
        (1, 4096, 4096), (1, 14336, 4096), (1, 2048, 2048), (1, 1024, 4096), (4, 4096, 4096), (8, 4096, 4096),
        (16, 14336, 4096), (16, 4096, 4096), (32, 4096, 4096), (64, 14336, 4096), (512, 3072, 768), (512, 768, 768),
        (4096, 768, 768), (4096, 11008, 4096),
    ],
    "bfloat16": [(1, 4096, 4096), (16, 14336, 4096)],
    "float32": [(1, 4096, 4096), (1, 2048, 2048), (8, 4096, 4096), (16, 4096, 4096), (512, 3072, 768)],
}  # fmt: skip
#: Numbers to try in place of a data file's, by family; "threads" is the variant's.
TILES = {
    "linear-rows": {"words": [16, 8], "columns": [1, 2, 4], "threads": [128, 256], "fill": [64, 8]},
    "linear-rows-matrix": {"fill": [8, 4, 16], "splits": [1, 4]},
    "linear-matrix-small": {"splits": [1, 4]},
}
#: Bytes through which W rotates.
ROTATED = 200 << 20
LEAST_ROTATED = 8 << 20


class Candidate:
    """A kernel with numbers of its own, as something to call."""

    def __init__(self, backend, choice, tile: dict):
        self.choice = choice
        choice.threads = tile.pop("threads", choice.threads)
        choice.tile = {**choice.tile, **tile}
        self.view = pin(view_of(backend.opened), choice)
        self.name = choice.variant.name

    def __call__(self, x, weight, bias, activation=None):
        return linear(self.view, x, weight, bias, precision="high", activation=activation)

    def told(self, facts, shape, itemsize: int) -> str:
        """The deal in short, or the tile of kernels that have but one."""
        tiling = tile_schedule(self.choice, facts, *shape, itemsize)
        constants = " ".join(
            f"{name.lower()} {value}" for name, value in tiling.constants.items() if name != "SUBGROUP"
        )
        return f"{self.name} [{tiling.rows}x{tiling.cols} {constants}]"


def hopeless(choice, best, rows: int) -> bool:
    """Whether a kernel cannot come near: mostly empty tiles, or vector units for 16-bit types beside matrix units."""
    if choice.variant.name == best.variant.name:
        return False
    if choice.variant.family == "linear" and (best.variant.unproven or choice.variant.align < best.variant.align):
        return True
    return choice.tile["rows"] > 4 * max(rows, 16)


def candidates(backend, request, shape, itemsize: int) -> list[Candidate]:
    """All that can serve the request, the registry's choice first."""
    found, seen = [], set()
    facts = backend.opened.facts
    able = backend.registry.candidates(request)
    for own in able:
        if hopeless(own, able[0], shape[0]):
            continue
        tiles = TILES.get(own.variant.family, {})
        tiles = {name: values for name, values in tiles.items() if name == "threads" or name in own.tile}
        kinds = [{}, *(dict(zip(tiles, values, strict=True)) for values in itertools.product(*tiles.values()))]
        for tile in kinds:
            if "threads" in tile and "THREADS" not in own.variant.constants:
                del tile["threads"]
            one = Candidate(backend, backend.registry.choice(own.variant), dict(tile))
            tiling = tile_schedule(one.choice, facts, *shape, itemsize)
            # Cases of linear-rows are one binary.
            kernel = own.variant.family if own.variant.family == "linear-rows" else own.variant.name
            key = (kernel, tiling.rows, tiling.cols, tiling.splits, tuple(tiling.constants.items()))
            if key not in seen:
                seen.add(key)
                found.append(one)
    # Where the time is over before all were timed, those that were are of all kinds.
    others = found[1:]
    random.Random(0).shuffle(others)
    return found[:1] + others


def repeated(rng, shape, dtype, scale: float) -> np.ndarray:
    """Random numbers, few of them drawn and then repeated: large arrays take seconds to draw."""
    count = int(np.prod(shape))
    drawn = (rng.standard_normal(min(count, 1_000_003), dtype=np.float32) * np.float32(scale)).astype(dtype)
    return np.resize(drawn, count).reshape(shape)


def wrong(y, exact, magnitude, dtype: str) -> str | None:
    """What is wrong with y at some columns, or None."""
    bound = ROUNDING[dtype] * np.abs(exact) + (2.0**-18 if dtype != "float32" else 1e-5) * magnitude
    error = np.abs(y.astype(np.float64) - exact)
    return None if (error <= bound).all() else f"error {error.max():.3g}"


def call_seconds(backend, call, weights, count: int) -> float:
    """Seconds of a call among ``count`` that are not waited for one by one."""
    begin = time.perf_counter()
    for turn in range(count):
        call(weights[turn % len(weights)])
    backend.synchronize()
    return (time.perf_counter() - begin) / count


def device_seconds(backend, call, weights, count: int) -> float:
    """The median of the device's time for a call."""
    times = []
    for turn in range(count):
        with backend.profile() as profile:
            call(weights[turn % len(weights)])
        times.append(profile.seconds)
    return statistics.median(times)


def torch_times(torch, name: str, x, weight, copies: int, bias, count: int) -> tuple[float, float]:
    """PyTorch's two times, by its events and back to back."""
    to = getattr(torch, name)
    words = np.int32 if name == "float32" else np.int16  # NumPy's bfloat16 is none that PyTorch knows
    x, bias, weight = (torch.from_numpy(a.view(words)).cuda().view(to) for a in (x, bias, weight))
    weights = [weight, *(weight.clone() for _ in range(copies - 1))]
    run = torch.nn.functional.linear
    events = []
    for turn in range(count + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run(x, weights[turn % len(weights)], bias)
        end.record()
        torch.cuda.synchronize()
        events.append(start.elapsed_time(end) / 1000)
    begin = time.perf_counter()
    for turn in range(4 * count):
        run(x, weights[turn % len(weights)], bias)
    torch.cuda.synchronize()
    return statistics.median(events[3:]), (time.perf_counter() - begin) / (4 * count)


def sweep(backend, torch, name: str, shape, activation, until: float, count: int, best: int, rows: list) -> None:
    """Time all candidates at one shape and print the best."""
    dtype = dtype_of(name)
    outputs, depth = shape[1:]
    rng = np.random.default_rng(3)
    x = repeated(rng, (shape[0], depth), dtype, 1.0)
    weight = repeated(rng, (outputs, depth), dtype, depth**-0.5)
    bias = repeated(rng, (outputs,), dtype, 1.0)
    copies = max(2, -(-ROTATED // weight.nbytes)) if weight.nbytes >= LEAST_ROTATED else 1
    sent, sent_bias = backend.tensor(x), backend.tensor(bias)
    weights = [backend.tensor(weight) for _ in range(copies)]
    some_rows = np.unique(rng.integers(0, shape[0], 16))
    some = np.unique(rng.integers(0, outputs, 64))
    factors = x[some_rows].astype(np.float64), weight[some].astype(np.float64).T
    exact = factors[0] @ factors[1] + bias[some]
    if activation is not None:
        exact = grilly.reference.activation(activation, exact)
    magnitude = np.abs(factors[0]) @ np.abs(factors[1]) + np.abs(bias[some].astype(np.float64))
    moved = weight.nbytes + x.nbytes + shape[0] * outputs * dtype.itemsize
    work = 2.0 * shape[0] * outputs * depth
    size = f"{moved / 1e6:.1f} MB, {work / 1e9:.2f} GFLOP"
    print(f"\n{name} ({shape[0]}, {depth}) x ({outputs}, {depth}): {size}", flush=True)

    def report(mark, text, device, call, note=""):
        rates = f"{moved / device / 1e9:7.0f} GB/s {work / device / 1e12:6.1f} TFLOP/s"
        print(f" {mark} {device * 1e6:8.1f} {call * 1e6:8.1f} us {rates}  {text} {note}", flush=True)
        rows.append({"type": name, "shape": shape, "name": text, "device": device, "call": call})

    if torch is not None:
        report(" ", "torch", *torch_times(torch, name, x, weight, copies, bias, count))
    view = view_of(backend.opened)
    request = request_of(view, lambda: linear(view, sent, weights[0], sent_bias, precision="high"))
    timed, left = [], 0
    for place, subject in enumerate(candidates(backend, request, shape, dtype.itemsize)):
        if place and time.perf_counter() > until:
            left += 1
            continue
        told = subject.told(backend.opened.facts, shape, dtype.itemsize)

        def call(w, subject=subject):
            return subject(sent, w, sent_bias, activation)

        try:
            found = wrong(call(weights[0]).numpy()[np.ix_(some_rows, some)], exact, magnitude, name)
        except grilly.GrillyError as error:
            found = str(error)
        if found is not None:
            print(f"   WRONG {told}: {found}", flush=True)
            rows.append({"type": name, "shape": shape, "name": told, "wrong": found})
            continue
        call_seconds(backend, call, weights, 3)
        device = device_seconds(backend, call, weights, count)
        timed.append((device, call_seconds(backend, call, weights, 4 * count), told, "*" if place == 0 else " "))
    timed.sort()
    for place, (device, took, told, mark) in enumerate(timed):
        if place < best or mark == "*":
            report(mark, told, device, took)
    if left:
        print(f"   {left} candidates were left out: the time is over", flush=True)


def main() -> int:
    """The command line; returns the exit status: 0 well, 1 a candidate was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--shape", nargs=3, type=int, action="append", help="rows, columns and depth, in place of all")
    parser.add_argument("--activation", help="at the end of grilly's products; torch's are without")
    parser.add_argument("--seconds", type=float, default=60.0, help="after which only the registry's choices are timed")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--best", type=int, default=6, help="candidates to print")
    add_json(parser)
    options = parser.parse_args()
    os.environ[CHECK_VARIABLE] = "0"  # every result is checked here, and the checks would take half of the time
    torch = torch_with_gpu()
    backend = grilly.Compute()
    print(f"{backend.device.name}, {backend.device.driver_version}; torch {torch and torch.__version__}")
    print("     device     call")
    begin = time.perf_counter()
    todo = [(name, tuple(shape)) for name in options.types for shape in options.shape or SHAPES[name]]
    rows: list[dict] = []
    for number, (name, shape) in enumerate(todo):
        # What is left of the time in equal shares, so that the last shapes have candidates too.
        now = time.perf_counter()
        until = now + max(begin + options.seconds - now, 0.0) / (len(todo) - number)
        sweep(backend, torch, name, shape, options.activation, until, options.repeats, options.best, rows)
    print(f"\n{time.perf_counter() - begin:.0f} s")
    write(options.json, backend, rows)
    backend.close()
    return int(any("wrong" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
