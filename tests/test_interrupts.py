"""A sample of interrupts at random points (tools/interrupts.py); tools/lanes.sh makes thousands more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from children import environment
from conftest import open_or_skip
from toolbox import TOOLS, tool

TOOL = TOOLS / "interrupts.py"
pytestmark = [
    pytest.mark.skipif(not TOOL.exists(), reason="tools/interrupts.py is not in an installed package"),
    pytest.mark.long("of a tool that only the project runs"),
]


def interrupt(runtime: str, kind: str, *work: str, seconds: int = 4, seed: int = 0) -> str:
    import grilly

    open_or_skip(runtime, lambda: grilly.Compute(runtime=runtime)).close()
    command = [sys.executable, str(TOOL), "--runtime", runtime, "--kind", kind, "--work", *work, "--seed", str(seed)]
    command += ["--seconds", str(seconds), "--jobs", "1"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("kind", ["point", "signal", "inside"])
@pytest.mark.parametrize(
    "work", [("attention", "transfers"), ("finalizers", "close"), ("large",), ("pipelines",)], ids="-".join
)
def test_nothing_is_lost(kind, work):
    interrupt("vulkan", kind, *work)


@pytest.mark.parametrize("kind", ["point", "signal"])
def test_nothing_is_lost_with_kompute(kind):
    interrupt("kompute", kind, "transfers", seconds=5)


# -- the tool ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def interrupts():
    return tool("interrupts")


def test_the_same_points_every_time(interrupts):
    """The points are those of the folder alone, behind calls and at the beginnings of loops."""
    def work():
        total = 0
        for n in range(5):
            total += abs(n)
        return total

    here = interrupts.Points(str(Path(__file__).parent))
    count = here.count(work)
    assert count == here.count(work) >= 10
    assert interrupts.Points("/nowhere").count(work) == 0

    def stop():
        raise KeyboardInterrupt

    for at in range(1, count + 1):
        with pytest.raises(KeyboardInterrupt):
            here.run(work, at, stop)
        assert here.happened
    assert here.run(work, count + 1, stop) == 10 and not here.happened
