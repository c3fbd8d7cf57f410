"""The Python of README.md and docs/guide.md runs as printed, and links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

import grilly

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_python_blocks_run(vulkan_backend):
    """One after the other in one namespace, as a reader would paste them; printed lines say what they show."""
    blocks = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(blocks) == 3
    names: dict = {}
    former = grilly.use(vulkan_backend)
    try:
        for number, block in enumerate(blocks, 1):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block, f"README.md, Python block {number}", "exec"), names)
            # What a print() shows is said in its comment.
            said = [line.split("  # ", 1)[1] for line in block.splitlines() if line.lstrip().startswith("print(")]
            shown = printed.getvalue().splitlines()
            assert len(shown) == len(said)
            for line, comment in zip(shown, said, strict=True):
                assert comment.endswith(line), f"README says {comment!r}, and it is {line!r}"
        assert names["output"].shape == (2, 8, 100, 64)
        assert names["weights"].shape == (2, 8, 100, 100)
        assert names["q_rot"].shape == names["k_rot"].shape == (2, 8, 100, 64)
    finally:
        grilly.use(former)
        for value in names.values():
            if isinstance(value, grilly.Compute):
                value.close()


def test_the_guide_runs(vulkan_backend):
    """docs/guide.md's blocks assert what they say, and leave no backend open."""
    blocks = BLOCK.findall((ROOT / "docs/guide.md").read_text(encoding="utf-8"))
    assert len(blocks) >= 5
    names: dict = {}
    former = grilly.use(None)
    try:
        for number, block in enumerate(blocks, 1):
            exec(compile(block, f"docs/guide.md, Python block {number}", "exec"), names)
        with pytest.raises(grilly.ClosedError):
            names["heads"].numpy()
    finally:
        grilly.use(former)


def test_the_page_on_layers_runs(vulkan_backend):
    """docs/layers.md's blocks assert what they say, one after the other."""
    names: dict = {}
    former = grilly.use(vulkan_backend)
    try:
        for number, block in enumerate(BLOCK.findall((ROOT / "docs/layers.md").read_text(encoding="utf-8")), 1):
            exec(compile(block, f"docs/layers.md, Python block {number}", "exec"), names)
    finally:
        grilly.use(former)
    assert names, "the page has no block of Python"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_set_up_commands_exist():
    for name in re.findall(r"^tools/(\w+)$", (ROOT / "README.md").read_text(), re.MULTILINE):
        path = ROOT / "tools" / name
        assert path.stat().st_mode & 0o111, f"README runs tools/{name}, which is not executable"
