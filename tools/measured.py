"""What every benchmark writes with --json: where and when it ran, with which versions, and its results, one to a line.

`grilly bench --json` begins in the same way. docs/contributing.md says how such a file becomes tables and pictures.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import numpy as np

from grilly.cli.common import measured_on


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare --json."""
    parser.add_argument("--json", metavar="FILE", help="write what was measured, with the device, versions and date")


def spread_of(seconds: list[float]) -> dict[str, float]:
    """The median of times, with the 10th and the 90th percentile, as results have them."""
    cuts = statistics.quantiles(seconds, n=10)
    return {"seconds": statistics.median(seconds), "p10": cuts[0], "p90": cuts[-1]}


def write(path: str | None, backend, results: list[dict]) -> None:
    """Write the file, where one was asked for. ``backend`` is what ran, or what `measured_on` said of it elsewhere."""
    if path:
        where = backend if isinstance(backend, dict) else measured_on(backend.device, backend.runtime.name)
        Path(path).write_text(text({**where, "results": results}), encoding="utf-8")


def text(found: dict) -> str:
    """JSON in which each result is a line, so that a comparison of two files shows which results changed."""
    parts = []
    for name, value in found.items():
        written = json.dumps(value, default=_plain, ensure_ascii=False)
        if isinstance(value, list) and value:
            lines = (json.dumps(one, default=_plain, ensure_ascii=False) for one in value)
            written = "[\n  " + ",\n  ".join(lines) + "\n ]"
        parts.append(f" {json.dumps(name)}: {written}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _plain(value):
    """Numbers and arrays of NumPy."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")
