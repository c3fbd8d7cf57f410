"""docs/running.md, "What is promised": each sentence names its tests, and they exist."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
NAMED = re.compile(r"<!--(.*?)-->", re.S)


def promises() -> list[str]:
    text = (TESTS.parent / "docs/running.md").read_text()
    section = text.split("\n## What is promised\n", 1)[1].split("\n## ", 1)[0]
    return re.split(r"^- ", section, flags=re.M)[1:]


def test_every_promise_names_its_tests():
    """At the end of each item, in a comment: file::function, of files in this folder and in internals/."""
    found = promises()
    assert len(found) > 15
    for promise in found:
        named = " ".join(NAMED.findall(promise)).split()
        assert named, f"no test is named: {promise}"
        for one in named:
            file, name = one.split("::")
            tree = ast.parse(next(TESTS.rglob(file)).read_text())
            assert any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body), one


def test_there_are_promises_of_each_kind():
    text = (TESTS.parent / "docs/running.md").read_text()
    for heading in ("Threads", "Fork and spawn", "Interrupts", "Faults", "Limits"):
        assert f"**{heading}**" in text
