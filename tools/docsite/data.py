"""Measured figures: the files in docs/benchmarks/data, which `--json` of the benchmarks wrote."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from bars import ROOT

DATA = ROOT / "docs/benchmarks/data"
#: What says where a file was measured; the rest of a device's facts is not kept.
DEVICE = ("name", "architecture", "driver", "driver_version")
#: Keys of a file. `before` are results of an earlier run, for tables that show both; `remark` is a word to the reader.
KEYS = {"command", "date", "versions", "device", "runtime", "remark", "results", "before"}


@dataclasses.dataclass(frozen=True)
class Measured:
    """The figures of one file.

    Parameters
    ----------
    name : str
        The file's, without its ending.
    found : dict
        What stands in it.
    """

    name: str
    found: dict

    @property
    def results(self) -> list[dict]:
        """What was measured, in its order."""
        return self.found["results"]

    @property
    def where(self) -> str:
        """The device, the driver and what was compared with, for a picture's foot."""
        device, versions = self.found["device"], self.found["versions"]
        words = [device["name"], f"driver {device['driver_version']}"]
        words += [f"torch {versions['torch']}"] if "torch" in versions else []
        words += [self.found["remark"]] if "remark" in self.found else []
        return ", ".join(words)

    def all(self, before: bool = False, **facts) -> list[dict]:
        """The results, or those of the run before, that have these facts."""
        some = self.found.get("before", []) if before else self.results
        return [result for result in some if all(result.get(name) == value for name, value in facts.items())]

    def one(self, **facts) -> dict:
        """The first result that has these facts; LookupError where there is none."""
        for result in self.all(**facts):
            return result
        told = ", ".join(f"{name} {value!r}" for name, value in facts.items())
        raise LookupError(f"{self.name} has no result with {told}")

    def maybe(self, before: bool = False, **facts) -> dict:
        """The same, or nothing."""
        return next(iter(self.all(before, **facts)), {})


def read(name: str, folder: Path = DATA) -> Measured:
    """The figures of docs/benchmarks/data/``name``.json.

    ValueError where the file says something that nobody reads, or lacks what all have.
    """
    found = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    odd, lacks = set(found) - KEYS, {"versions", "device", "results"} - set(found)
    odd |= {f"device.{key}" for key in found.get("device", {}) if key not in DEVICE}
    if odd or lacks:
        raise ValueError(f"{name}.json: unknown {sorted(odd)}, lacking {sorted(lacks)}")
    return Measured(name, found)
