"""Measures every variant of linear on matrix units, beside PyTorch, and checks each against float64.

    python tools/bench_linear.py [--types float16 bfloat16 float32] [--variants TEXT ...] [--repeats 20] [--json FILE]

A variant is first run on small problems with ragged edges, then on the large ones with a sample of rows checked; one
that errs more than twice as much as plain float32, summed in one order on every processor, is named and not timed.
Times are the device's timestamps (PyTorch's: its events) of all dispatches of a call: float32 includes splitting x and
W. Variants take turns, three arrays x rotate so that none is found in the cache, and the device is warmed first.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "grilly_py"))

import grilly
from bench_calls import torch_with_gpu
from grilly import reference
from grilly.compute.device.trial import pin, view_of
from grilly.compute.matmul.linear import linear
from grilly.registry import Request
from measured import add_json, write

SHAPES = {  # rows, columns, depth
    "float16": [(4096, 4096, 4096), (8192, 8192, 8192), (16384, 1024, 1024), (512, 4096, 4096)],
    "bfloat16": [(4096, 4096, 4096), (8192, 8192, 8192), (16384, 1024, 1024)],
    "float32": [(4096, 4096, 4096), (16384, 1024, 1024)],
}
RAGGED = [(1, 8, 8), (7, 264, 72), (129, 136, 200), (300, 520, 1000)]


def dtype_of(name: str) -> np.dtype:
    """The NumPy type; bfloat16 is that of ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


class Subject:
    """A variant, as something to call."""

    def __init__(self, backend, registry, variant):
        self.device = pin(view_of(backend.opened), registry.choice(variant))
        self.variant = variant
        self.name = f"{variant.family}.{variant.variant}{'.' + variant.case if variant.case else ''}"

    def __call__(self, x, weight, bias):
        return linear(self.device, x, weight, bias, precision="high")


def references(x, weight, bias) -> tuple[np.ndarray, float]:
    """y in float64, and the largest error of float32 sums in a fixed order, rounded to the precision of x."""
    exact = x.astype(np.float64) @ weight.astype(np.float64).T + bias.astype(np.float64)
    with reference.portable():
        plain = reference.linear(x, weight, bias, dtype=np.float32).astype(x.dtype)
    return exact, error(plain, exact)


def error(y, exact) -> float:
    """The largest difference."""
    return float(np.abs(y.astype(np.float64) - exact).max())


def arrays(rng, rows, cols, depth, dtype):
    """x of unit variance, W scaled so that y is, b."""
    return (
        rng.standard_normal((rows, depth), dtype=np.float32).astype(dtype),
        (rng.standard_normal((cols, depth), dtype=np.float32) / np.float32(depth**0.5)).astype(dtype),
        rng.standard_normal(cols, dtype=np.float32).astype(dtype),
    )


def right(subject: Subject, dtype: np.dtype) -> str | None:
    """What is wrong with the subject on ragged problems, None where nothing is."""
    rng = np.random.default_rng(1)
    for rows, cols, depth in RAGGED:
        x, weight, bias = arrays(rng, rows, cols, depth, dtype)
        exact, plain = references(x, weight, bias)
        mine = error(subject(x, weight, bias), exact)
        floor = 2.0**-22 * float(np.abs(exact).max())
        if not mine <= 2 * plain + floor:
            return f"({rows}, {cols}, {depth}): error {mine:.3g}, plain float32's {plain:.3g}"
    return None


def seconds(backend, subject, xs, weight, bias, turn: int) -> float:
    """Device seconds of one call."""
    with backend.profile() as profile:
        subject(xs[turn % len(xs)], weight, bias)
    return sum(timing.seconds for timing in profile.timings)


class Torch:
    """PyTorch's linear, timed by its events."""

    name = "torch"

    def __init__(self, torch, arrays, name, tensor_cores=False):
        self.torch, self.tensor_cores = torch, tensor_cores
        to = getattr(torch, name)
        self.xs, (self.weight, self.bias) = (
            [torch.from_numpy(a.astype(np.float32)).cuda().to(to) for a in some] for some in arrays
        )
        if tensor_cores:
            self.name = "torch tf32"

    def call(self, turn):
        self.torch.backends.cuda.matmul.allow_tf32 = self.tensor_cores
        return self.torch.nn.functional.linear(self.xs[turn % len(self.xs)], self.weight, self.bias)

    def seconds(self, turn):
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self.call(turn)
        end.record()
        self.torch.cuda.synchronize()
        return start.elapsed_time(end) / 1000

    def sample(self, turn, rows):
        return self.call(turn)[rows].to(self.torch.float32).cpu().numpy()


def report(name, dtype, shape, times, errors, note, rows):
    """Print and keep one line: TFLOP/s at the median time and at the 90th and 10th percentiles.

    ``errors``: the largest, and that of float32 sums in a fixed order ("plain").
    """
    work = 2.0 * shape[0] * shape[1] * shape[2] / 1e12
    low, high = np.percentile(times, [10, 90])
    middle = statistics.median(times)
    row = {"by": name if name.startswith("torch") else "grilly", "name": name, "dtype": dtype, "shape": shape}
    row |= {"tflops": work / middle, "p90": work / high, "p10": work / low, **errors, "note": note}
    rows.append(row)
    spread = f"({row['p90']:.1f} to {row['p10']:.1f})"
    print(f"  {name:34} {row['tflops']:7.1f} TFLOP/s {spread} {middle * 1e6:9.1f} us  {note}", flush=True)


def measure(backend, torch, name, shape, subjects, repeats, rows):
    """Check and time all subjects, and PyTorch, on one shape."""
    dtype = dtype_of(name)
    rng = np.random.default_rng(2)
    x, weight, bias = arrays(rng, *shape, dtype)
    others = [np.roll(x, shift, axis=0) for shift in (1, 2)]
    sent = [backend.tensor(a) for a in (x, *others)]
    sent_weight, sent_bias = backend.tensor(weight), backend.tensor(bias)
    sample = np.unique(rng.integers(0, shape[0], 32))
    print(f"\n{name} {shape[0]} x {shape[1]} x {shape[2]}", flush=True)
    exact, plain = references(x[sample], weight, bias)
    able, notes, errors = [], {}, {}
    for subject in subjects:
        begin = time.perf_counter()
        y = subject(sent[0], sent_weight, sent_bias)
        backend.synchronize()
        took = time.perf_counter() - begin
        errors[subject] = mine = error(y.numpy()[sample], exact)
        notes[subject] = f"error {mine:.2e}, plain float32's {plain:.2e}; first call {took:.2f} s"
        if mine <= 2 * plain:
            able.append(subject)
        else:
            print(f"  {subject.name:34} WRONG: {notes[subject]}", flush=True)
            rows.append({"name": subject.name, "shape": shape, "wrong": notes[subject]})
    theirs = []
    if torch is not None:
        theirs.append(Torch(torch, ((x, *others), (weight, bias)), name))
        if name == "float32":
            theirs.append(Torch(torch, ((x, *others), (weight, bias)), name, tensor_cores=True))
    times = {subject: [] for subject in (*able, *theirs)}
    until = time.perf_counter() + 0.5
    turn = 0
    while able and time.perf_counter() < until:
        seconds(backend, able[turn % len(able)], sent, sent_weight, sent_bias, turn)
        turn += 1
    for turn in range(repeats):
        for subject in able:
            # Two calls in a row, the second one timed: the first brings the clock back up.
            for again in range(2):
                took = seconds(backend, subject, sent, sent_weight, sent_bias, 2 * turn + again)
            times[subject].append(took)
        for other in theirs:
            for again in range(2):
                took = other.seconds(2 * turn + again)
            times[other].append(took)
    for other in theirs:
        wrong = error(other.sample(0, sample), exact)
        report(other.name, name, shape, times[other], {"error": wrong, "plain": plain}, f"error {wrong:.2e}", rows)
    for subject in able:
        found = {"error": errors[subject], "plain": plain}
        report(subject.name, name, shape, times[subject], found, notes[subject], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--variants", nargs="+", default=["linear-matrix"], help="parts of variants' names")
    parser.add_argument("--shape", nargs=3, type=int, action="append", help="rows, columns and depth, in place of all")
    parser.add_argument("--repeats", type=int, default=20)
    add_json(parser)
    options = parser.parse_args()
    torch = torch_with_gpu()
    backend = grilly.Compute()
    registry = backend.registry
    rows: list[dict] = []
    print(f"{backend.device.name}, {backend.device.driver_version}; torch {torch and torch.__version__}")
    for name in options.types:
        subjects = []
        for variant in registry.manifest.by_operation["linear"]:
            facts = {fact: high for fact, (_, high) in variant.limits.items()} | {"align": variant.align}
            if variant.dtype != name or not any(text in variant.name for text in options.variants):
                continue
            reason = registry._lacks(variant, Request("linear", name, "generic", facts))
            if reason:
                print(f"  not here: {variant.name}: {reason}")
                continue
            subjects.append(Subject(backend, registry, variant))
        good = []
        for subject in subjects:
            wrong = right(subject, dtype_of(name))
            print(f"  {subject.name:34} {'ragged sizes right' if wrong is None else 'WRONG ' + wrong}", flush=True)
            if wrong is None:
                good.append(subject)
            else:
                rows.append({"name": subject.name, "wrong": wrong})
        for shape in [tuple(shape) for shape in options.shape or SHAPES[name]]:
            measure(backend, torch, name, shape, good, options.repeats, rows)
    write(options.json, backend, rows)
    backend.close()
    return int(any("wrong" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
