"""What a run went through of other projects' lists, added up over all processes for the run's summary.

A test takes the fixture ``count`` and calls ``count("torch 2.15.0", {"operators": 2})``, once for each part of a list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

PROPERTY = "counted"


def note(record_property, name: str, numbers: Mapping[str, int]) -> None:
    """Keep numbers with the report of a test."""
    record_property(PROPERTY, [name, dict(numbers)])


def lines(reports: Iterable) -> list[str]:
    """What the summary says: a line for each list."""
    found: dict[str, Counter[str]] = {}
    for report in reports:
        for key, value in getattr(report, "user_properties", ()):
            if key == PROPERTY and report.when == "call":
                found.setdefault(value[0], Counter()).update(value[1])
    return [f"{name}: {', '.join(f'{n:,} {what}' for what, n in found[name].items())}" for name in sorted(found)]
