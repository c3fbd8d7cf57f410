"""Which tests a run takes: a short one, or a share of those that a short one leaves out.

Of each test a short run takes the fewest cases that show every value of every parameter once: of 3 dtypes x 5 shapes
x 2 runtimes five cases, not thirty. It is what a user runs: tests of grilly's inside (tests/internals), which it does
not even import, are left to the rest, and so are tests with the mark ``long("why")``. The rest is divided into shares
by a hash of the case's name: each run may take another share, and all shares together are everything.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from pathlib import Path


def taken(items: list, rest: str | None = None) -> list:
    """The items of a short run, or of ``rest``, a share such as "2/6" of the others; in their order."""
    short = _short(items)
    if rest is None:
        return [item for item in items if item.nodeid in short]
    share, shares = map(int, rest.split("/"))
    if not 1 <= share <= shares:
        raise ValueError(f"--rest {rest}: expected K/N with K from 1 to N")
    others = (item for item in items if item.nodeid not in short)
    return [item for item in others if zlib.crc32(item.nodeid.encode()) % shares == share - 1]


def every(items: list, step: int, turn: int) -> list:
    """Of each test's cases with each runtime every so many, another for another turn; one at least. In their order."""
    tests = [(item.nodeid.partition("[")[0], "kompute" in item.nodeid) for item in items]
    many, seen, chosen = Counter(tests), Counter(), []
    for test, item in zip(tests, items, strict=True):
        if seen[test] % step == turn % min(step, many[test]):
            chosen.append(item)
        seen[test] += 1
    return chosen


def line(took: int, of: int, rest: str | None) -> str:
    """What the run's summary says of it."""
    if rest is None:
        every = "with every value of each test's parameters; tests/internals, not counted, and long ones are left out"
        return f"{took:,} of {of:,} cases, {every}; tools/test --all runs all"
    return f"share {rest} of the cases that a short run leaves out: {took:,} of {of:,}"


def is_internal(path: Path) -> bool:
    """Whether a file or folder has tests of grilly's inside."""
    return "internals" in path.parts


def _short(items: list) -> set[str]:
    tests = defaultdict(list)
    for item in items:
        if item.get_closest_marker("long") is None and not is_internal(item.path):
            tests[item.nodeid.partition("[")[0]].append(item)
    return {item.nodeid for cases in tests.values() for item in _covering(cases)}


def _covering(cases: list) -> list:
    """Few of a test's cases that together have every value of each parameter.

    Greedy: the case with the most values that none before has; of those with as many, the first. Cases of the vulkan
    runtime come before kompute's, which makes every pipeline anew.
    """
    values = {case.nodeid: _values(case) for case in cases}
    left = sorted(cases, key=lambda case: "kompute" in case.nodeid)
    wanted = set().union(*values.values())
    chosen = [] if wanted else left
    while wanted:
        best = max(left, key=lambda case: len(values[case.nodeid] & wanted))
        chosen.append(best)
        left.remove(best)
        wanted -= values[best.nodeid]
    return chosen


def _values(case) -> set[tuple[int, str]]:
    """Each parameter of a case by its place, with the name of its value.

    Parameters that are given together count as one. pytest keeps the names apart in a private attribute only; joined,
    as in `callspec.id`, they cannot be told apart, since a name may hold the "-" that joins them.
    """
    callspec = getattr(case, "callspec", None)
    return set() if callspec is None else set(enumerate(callspec._idlist))
