"""What is left out of a run (`leftout`): the same in every process, and said in a few lines."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import grilly
import leftout
from children import environment
from conftest import open_or_skip
from kernels import request, shipped

pytestmark = pytest.mark.long("of a tool that only the project runs")

TESTS = Path(__file__).parent


def summary(*options: str) -> list[str]:
    """The summary's lines of a run of one test, of a file most of whose tests need a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    command += [str(TESTS / "internals/test_matrix_tiles.py"), "-k", "test_kernels_for_tiles_are_used"]
    done = subprocess.run(
        command, cwd=TESTS.parent, env=environment(PYTEST_ADDOPTS=""), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ passed", done.stdout, re.M), done.stdout
    lines = done.stdout.splitlines()
    found = [n for n, line in enumerate(lines) if "left out:" in line]
    return [line for line in lines[found[0] + 1 :] if " x " in line] if found else []


def test_the_summary_says_why():
    """In one process and in several."""
    open_or_skip("vulkan", lambda: grilly.Compute(runtime="vulkan")).close()
    alone = summary()
    assert len(alone) <= 10
    tiled = [v for v in shipped("attention-tiled")]
    assert bool(alone) == any(leftout.lacks("vulkan", v.name) or leftout.lacks("kompute", v.name) for v in tiled)
    assert summary("-n", "2") == alone


@pytest.mark.parametrize("operation", ["attention", "attention-tiled"])
def test_what_is_left_out_cannot_run(vulkan_backend, operation):
    """No request gets a kernel that is left out, whatever its facts; what is kept can serve one."""
    registry = vulkan_backend.registry
    for variant in shipped(operation):
        why = leftout.lacks("vulkan", variant.name)
        facts = {fact: high for fact, (_, high) in variant.limits.items()} | {"align": variant.align}
        found = dict((v.name, r) for v, r in registry.explain(request(operation, variant.dtype, **facts)))
        assert (found[variant.name] is None) == (why is None), f"{variant.name}: {found[variant.name]}, {why}"


def test_a_required_runtime_is_not_left_out(monkeypatch):
    class Item:
        fixturenames = ["backend"]
        iter_markers = staticmethod(lambda name: [])
        callspec = type("Spec", (), {"params": {"backend": "kompute"}})
        module = None

    monkeypatch.setattr(leftout, "registry_of", lambda runtime: "the kompute runtime cannot be opened here: no kp")
    monkeypatch.setattr(leftout, "REQUIRED", [])
    assert leftout.reason(Item) == "the kompute runtime cannot be opened here: no kp"
    monkeypatch.setattr(leftout, "REQUIRED", ["kompute"])
    assert leftout.reason(Item) is None


def test_a_module_may_leave_out_its_own(monkeypatch):
    class Module:
        @staticmethod
        def left_out(registry, item):
            n = item.callspec.params["n"]
            return f"{registry[0]} {n}" if n > 1 else None

    items = [
        type("Item", (), {
            "fixturenames": ["vulkan_backend"], "module": Module, "callspec": type("S", (), {"params": {"n": n}}),
            "iter_markers": staticmethod(lambda name: []),
        })
        for n in (1, 2, 2)
    ]  # fmt: skip
    monkeypatch.setattr(leftout, "registry_of", lambda runtime: [runtime])
    kept, out, why = leftout.sort_out(items)
    assert (kept, out, why) == (items[:1], items[1:], Counter({"vulkan 2": 2}))
    assert leftout.lines(why) == ["2 x vulkan 2"]


def test_a_package_that_is_missing():
    class Item:
        fixturenames = []

        @staticmethod
        def iter_markers(name):
            return [pytest.mark.needs("numpy", "no_such_package").mark]

    assert leftout.reason(Item) == "no_such_package is not installed"
