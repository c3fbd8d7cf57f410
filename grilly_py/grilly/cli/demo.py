"""``grilly demo``: sentence embeddings by all-MiniLM-L6-v2 on the device."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable

import numpy as np

from ..compute import Compute, Profile, use
from . import CommandError
from .common import add_device, open_backend, readable, versions
from .files import destination
from .output import Progress, check_writable, heading, table, time_text, write_json

#: Three pairs that mean nearly the same in other words, and two sentences that fit none.
SENTENCES = (
    "A man is playing a guitar on stage.",
    "Someone performs music on a string instrument.",
    "The stock market fell sharply on Monday.",
    "Share prices dropped a lot at the start of the week.",
    "My cat sleeps on the windowsill all day.",
    "The kitten naps beside the window.",
    "Preheat the oven to two hundred degrees.",
    "The spacecraft entered orbit around Mars.",
)
#: How far the device may be from NumPy, in the embeddings' elements (vectors of length 1).
TOLERANCE = 1e-4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("sentences", nargs="*", default=SENTENCES, metavar="SENTENCE", type=readable,
                        help="what to compare (default: eight examples)")  # fmt: skip
    add_device(parser)
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="timed runs (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", type=destination,
                        help="write the result as JSON; - prints it in place of the table")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Embed, compare with NumPy, print; 1 when the two differ by more than 1e-4."""
    if args.repeat < 1:
        raise CommandError("--repeat must be at least 1")
    if args.json and args.json != "-":
        check_writable(args.json)
    progress = Progress()
    try:
        report = _measure(args, progress)
    except ImportError as error:  # what MiniLM needs; its message says what to install
        raise CommandError(str(error)) from error
    finally:
        progress.done()
    if args.json != "-":
        _print(report)
    if args.json:
        write_json(args.json, report)
    if report["largest_difference"] <= TOLERANCE:
        return 0
    print(f"grilly demo: the device differs from NumPy by {report['largest_difference']:.1e}", file=sys.stderr)
    return 1


def _measure(args: argparse.Namespace, progress: Progress) -> dict:
    with open_backend(args) as backend:
        former = use(backend)
        try:
            from ..integrations.minilm import MiniLM

            progress.say("reading the model")
            model = MiniLM()
            sentences = list(args.sentences)
            progress.say("embedding on the device")
            start = time.perf_counter()
            on_device = model.encode(sentences)
            first = time.perf_counter() - start
            progress.say("embedding in NumPy")
            in_numpy = model.encode_numpy(sentences)
            progress.say("timing")
            report = {
                "device": backend.device.name,
                "architecture": backend.device.architecture,
                "driver": f"{backend.device.driver} {backend.device.driver_version}",
                "runtime": backend.runtime.name,
                "versions": versions(),
                "sentences": sentences,
                "similarity": (on_device @ on_device.T).tolist(),
                "largest_difference": float(np.abs(on_device - in_numpy).max()),
                "first_seconds": first,
                "device_seconds": _best(lambda: model.encode(sentences), args.repeat),
                "numpy_seconds": _best(lambda: model.encode_numpy(sentences), args.repeat),
                "dispatches": None,
                "kernel_seconds": None,
            }
            if "timestamps" in backend.runtime.features:
                profile = min((_profiled(backend, model, sentences) for _ in range(args.repeat)), key=_seconds)
                report["dispatches"] = len(profile.timings)
                report["kernel_seconds"] = profile.seconds
                report["kernels"] = _by_kernel(profile.timings)
        finally:
            use(former)
    return report


def _best(call: Callable[[], object], repeat: int) -> float:
    """Seconds of the fastest of ``repeat`` calls."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _profiled(backend: Compute, model, sentences: list[str]) -> Profile:
    with backend.profile() as profile:
        model.encode(sentences)
    return profile


def _seconds(profile: Profile) -> float:
    return profile.seconds


def _by_kernel(timings) -> dict[str, dict]:
    """Number of dispatches and seconds of each kernel, the slowest first."""
    found: dict[str, dict] = {}
    for timing in timings:
        entry = found.setdefault(timing.label, {"dispatches": 0, "seconds": 0.0})
        entry["dispatches"] += 1
        entry["seconds"] += timing.seconds
    return dict(sorted(found.items(), key=lambda item: -item[1]["seconds"]))


def _print(report: dict) -> None:
    heading("all-MiniLM-L6-v2, wholly on the device")
    print(f"device  {report['device']}")
    print(f"        {report['architecture']}, driver {report['driver']}, {report['runtime']} runtime")
    heading("How alike the sentences are (1 = the same)")
    similarity = np.array(report["similarity"])
    count = len(similarity)
    numbers = [str(i + 1) for i in range(count)]
    room = shutil.get_terminal_size((120, 24)).columns - 7 * count - 6
    beside = room >= 24  # else the sentences stand above the table
    if not beside:
        print("\n".join(f"{number:>2}  {text}" for number, text in zip(numbers, report["sentences"], strict=True)))
    others = similarity - 2 * np.eye(count)
    rows, styles = [], {}
    for i, sentence in enumerate(report["sentences"]):
        short = sentence if len(sentence) <= room else sentence[: room - 3] + "..."
        rows.append([numbers[i], *([short] if beside else []), *(f"{value:.2f}" for value in similarity[i])])
        for j, value in enumerate(similarity[i]):
            if j == others[i].argmax():
                styles[i, j + 1 + beside] = "bold green" if value >= 0.2 else ""
            elif i == j or value < 0.2:
                styles[i, j + 1 + beside] = "dim"
    table(("", *(["sentence"] if beside else []), *numbers), rows, right=("", *numbers), styles=styles)
    heading("Checked and timed")
    difference = report["largest_difference"]
    verdict = "within" if difference <= TOLERANCE else "MORE THAN"
    print(f"largest difference from NumPy alone  {difference:.1e} ({verdict} {TOLERANCE:.0e})")
    print(f"on the device                        {time_text(report['device_seconds'])} for {count} sentences, "
          f"the fastest of several (first, with pipelines made: {time_text(report['first_seconds'])})")  # fmt: skip
    if report["dispatches"] is not None:
        print(f"  of which kernels                   {time_text(report['kernel_seconds'])} "
              f"in {report['dispatches']} dispatches")  # fmt: skip
        for label, entry in report["kernels"].items():
            print(f"    {time_text(entry['seconds']):>10}  {entry['dispatches']:3} x {label}")
    print(f"NumPy alone                          {time_text(report['numpy_seconds'])}")
