"""``grilly bench``: flash attention against naive attention, NumPy and PyTorch over sequence lengths."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util

from ..registry.names import DTYPES
from . import CommandError
from .common import add_device, measured_on, numbers, open_backend
from .files import destination
from .output import Progress, bytes_text, check_writable, heading, table, time_text, write_json

LENGTHS = (256, 512, 1024, 2048, 4096)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_device(parser)
    parser.add_argument("--lengths", type=numbers, default=LENGTHS, metavar="S,...",
                        help="sequence lengths (default: " + ",".join(map(str, LENGTHS)) + ")")  # fmt: skip
    for name, default in (("batch", 1), ("heads", 8), ("dim", 64)):
        parser.add_argument(f"--{name}", type=_count, default=default, metavar="N", help="default: %(default)s")
    parser.add_argument("--causal", action="store_true", help="each query sees the keys up to its own position")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="default: %(default)s")
    parser.add_argument("--repeat", type=_count, default=20, metavar="N",
                        help="timed calls of each method at each length, at most (default: %(default)s)")  # fmt: skip
    parser.add_argument("--max-seconds", type=float, default=10.0, metavar="T",
                        help="time for a method at a length; a method whose next length would take longer for one call "
                        "is left out from there on (default: %(default)s)")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", type=destination,
                        help="write the results as JSON; - prints them in place of the table")  # fmt: skip
    parser.add_argument("--plot", metavar="FILE.png", help="draw time and memory (needs matplotlib)")


def _count(text: str) -> int:
    found = numbers(text)
    if len(found) != 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected one whole number above 0")
    return found[0]


def run(args: argparse.Namespace) -> int:
    """Measure and print; 1 when a result was wrong or could not be computed."""
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        raise CommandError("--plot needs matplotlib; install it with: pip install 'grilly-vulkan[bench]'")
    if args.dim > 256:
        raise CommandError(f"--dim {args.dim}: head dimensions go from 1 to 256")
    if args.batch * args.heads * args.dim * max(args.lengths) ** 2 >= 2**60:
        raise CommandError("--batch, --heads and --lengths are too large to be measured")
    if args.json and args.json != "-":
        check_writable(args.json)
    if args.plot:
        from .plot import written

        args.plot = written(args.plot)
    from .measure import Problem, device_methods, naive_limits, numpy_method, torch_methods

    progress = Progress()
    with open_backend(args) as backend:
        methods = [*device_methods(backend), numpy_method(), *torch_methods()]
        problems = [Problem(args.batch, args.heads, n, args.dim, args.causal, args.dtype) for n in sorted(args.lengths)]
        try:
            results = _sweep(methods, problems, args.repeat, args.max_seconds, progress, backend.device)
        finally:
            progress.done()
        limits = naive_limits(problems[0], backend.device)
        report = {
            **measured_on(backend.device, backend.runtime.name),
            "problem": {key: value for key, value in dataclasses.asdict(problems[0]).items() if key != "length"},
            "limits": limits,
            "results": [result.as_dict() for result in results],
        }
    if args.json != "-":
        _print(report, results)
    if args.json:
        write_json(args.json, report)
    if args.plot:
        from .plot import draw

        draw(args.plot, report)
        if args.json != "-":
            print(f"\nDrawn in {args.plot}")
    return 1 if any(result.failed for result in results) else 0


def _sweep(methods, problems, repeat, max_seconds, progress, device) -> list:
    from .measure import HOST_BYTES, Check, Result, measure, naive_bytes

    results, last = [], {}
    for problem in problems:
        progress.say(f"length {problem.length}: computing the float64 result to check against")
        arrays = problem.arrays()
        check = Check(problem, *arrays)
        at_length = []
        for method in methods:
            progress.say(f"length {problem.length}: {method.name}")
            expected = _expected(last.get(method.name), problem)
            naive = method.name.startswith("naive on")
            if naive and naive_bytes(problem) > device.memory_bytes:
                result = Result(method.name, problem.length, skipped="does not fit the device's memory")
            elif method.name == "naive in NumPy" and problem.score_bytes() > HOST_BYTES:
                skipped = f"its scores take {bytes_text(problem.score_bytes())}"
                result = Result(method.name, problem.length, skipped=skipped)
            elif expected is not None and expected > max_seconds:
                result = Result(method.name, problem.length, skipped=f"one call would take about {expected:.0f} s")
            else:
                result = measure(method, problem, arrays, check, repeat, max_seconds)
            if result.times:
                last[method.name] = (problem, min(result.times))
            if naive and result.device_bytes is None:
                result.device_bytes, result.computed_bytes = naive_bytes(problem), True
            at_length.append(result)
        naive_use = next(r.device_bytes for r in at_length if r.method.startswith("naive on"))
        for result in at_length:
            if result.method == "flash" and result.device_bytes is not None:
                result.saved_percent = 100.0 * (1 - result.device_bytes / naive_use)
        results += at_length
    return results


def _expected(last, problem) -> float | None:
    """Seconds that a call should take, from the method's last measured length."""
    return None if last is None else last[1] * problem.flops / last[0].flops


def _print(report: dict, results: list) -> None:
    device, problem, limits = report["device"], report["problem"], report["limits"]
    heading(f"Attention on {device['name']}")
    driver = f"{device['driver']} {device['driver_version']}"
    print(f"{device['architecture']}, driver {driver}, {report['runtime']} runtime")
    print(", ".join(f"{name} {version}" for name, version in report["versions"].items()))
    print(f"(B, H, S, D) = ({problem['batch']}, {problem['heads']}, S, {problem['dim']}), {problem['dtype']}"
          + (", causal" if problem["causal"] else ""))  # fmt: skip
    rows, former = [], None
    for r in results:
        memory = bytes_text(r.device_bytes)
        rows.append((
            "" if r.length == former else r.length,
            r.method,
            time_text(r.quantile(0.5)),
            f"{time_text(r.quantile(0.1))} .. {time_text(r.quantile(0.9))}" if r.times else "",
            "" if r.gflops is None else f"{r.gflops:.3g}" if r.gflops < 100 else f"{r.gflops:.0f}",
            time_text(r.device_seconds) or "",
            "" if memory is None else memory + (" *" if r.computed_bytes else ""),
            "" if r.saved_percent is None else f"{r.saved_percent:.1f} %",
            "" if r.error is None else f"{r.error:.1e}",
            "FAILED" if r.failed else f"left out: {r.skipped}" if r.skipped else "",
        ))  # fmt: skip
        former = r.length
    columns = ("S", "method", "median", "p10 .. p90", "GFLOP/s", "on device", "memory", "saved", "error", "note")
    shown = len(columns) if any(row[-1] for row in rows) else -1  # no column of notes without notes
    table(
        columns[:shown],
        [row[:shown] for row in rows],
        right=("S", "median", "GFLOP/s", "on device", "memory", "saved", "error"),
    )
    for method, reason in dict.fromkeys((r.method, r.failed) for r in results if r.failed):
        print(f"FAILED, {method}: {reason}")
    print("median, p10 .. p90: from the call to the finished result; on device: kernels alone, by the device's clock")
    print("memory: peak of device memory with inputs and output; saved: against naive; error: largest, against float64")
    if any(r.computed_bytes for r in results):
        print("*: computed (inputs, scores and weights), not run")
    memory, binding = bytes_text(limits["memory_bytes"]), bytes_text(device["limits"]["storage_range"])
    print(
        f"\nNaive attention no longer fits the device from S = {limits['naive_memory']:,} on: the inputs and two "
        f"float32\nmatrices, scores and weights, then exceed its {memory} (computed). One matrix exceeds the largest\n"
        f"allocation from S = {limits['naive_allocation']:,} on, and one head's scores exceed a binding ({binding})\n"
        f"from S = {limits['naive_one_head_binding']:,} on. Flash attention fits up to "
        f"S = {limits['flash_memory'] - 1:,}."
    )
