"""Guides that say how to add something: their blocks, put into a copy of the checkout.

A block is `path`: followed by fenced text. Fenced as "diff" it changes a file that is there, otherwise it is a new one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^`([^`\n]+)`:\n\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LISTED = re.compile(r"^- `([^`\n]+)`", re.MULTILINE)


class Guide:
    """A guide in docs/.

    Attributes
    ----------
    blocks : list of (str, str, str)
        Path, language and text, in the guide's order.
    """

    def __init__(self, name: str):
        self.text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        self.blocks = _BLOCK.findall(self.text)

    @property
    def touched(self) -> set[str]:
        """The files that the blocks make or change."""
        return {path for path, _, _ in self.blocks}

    @property
    def listed(self) -> list[str]:
        """The files that the guide's last section lists."""
        return _LISTED.findall(self.text.rpartition("\n## ")[2])

    def apply(self, copy: Path) -> None:
        """Do what the guide says in a copy of the checkout."""
        for path, language, text in self.blocks:
            if language == "diff":
                file = copy / path
                file.write_text(patched(path, file.read_text(encoding="utf-8"), text), encoding="utf-8")
            else:
                assert not (ROOT / path).exists(), f"the guide adds {path}, and the checkout has it already"
                (copy / path).write_text(text, encoding="utf-8")


def patched(name: str, text: str, diff: str) -> str:
    """``text`` after the hunks of a diff, which lines of "@@" part. What a hunk changes must be there exactly once."""
    for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE):
        lines = [line or " " for line in hunk.splitlines()]
        assert lines and all(line[0] in " +-" for line in lines), f"{name}: no hunk of a diff:\n{hunk}"
        assert any(line[0] != " " for line in lines), f"{name}: a hunk that changes nothing:\n{hunk}"
        old, new = ("".join(line[1:] + "\n" for line in lines if line[0] in f" {mark}") for mark in "-+")
        found = f"\n{text}".count(f"\n{old}")
        assert found == 1, f"{name} has this {found} times, and the guide changes it:\n{old}"
        text = f"\n{text}".replace(f"\n{old}", f"\n{new}")[1:]
    return text


def bare_copy(target: Path, shaders: tuple[str, ...]) -> None:
    """A copy of the checkout in an empty folder, with these files and folders of shaders/ only, and all includes: they
    state facts that the package has."""
    skip = shutil.ignore_patterns("__pycache__")
    for folder in ("docs", "grilly_py", "tests", "tools"):
        shutil.copytree(ROOT / folder, target / folder, ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", target)
    for source in (ROOT / "shaders").rglob("*.glsl"):
        copy = target / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)
    for name in shaders:
        source, copy = ROOT / "shaders" / name, target / "shaders" / name
        if source.is_dir():
            shutil.copytree(source, copy, ignore=skip, dirs_exist_ok=True)
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)


def run(copy: Path, *command: str) -> subprocess.CompletedProcess:
    """Python in the copy, which sees the copy's package and no packed shaders."""
    environment = {**os.environ, "PYTHONPATH": str(copy / "grilly_py")}
    environment.pop("GRILLY_SHADERS", None)
    return subprocess.run(
        [sys.executable, *command], cwd=copy, env=environment, capture_output=True, text=True, timeout=300
    )


def passed(copy: Path, *arguments: str) -> int:
    """How many tests pytest passed in the copy; an assertion where one failed or none ran."""
    done = run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(re.search(r"(\d+) passed", done.stdout)[1])


def assert_style(copy: Path, guide: Guide) -> None:
    """What the guide wrote passes the style's checks, where they are installed."""
    done = run(copy, "-m", "ruff", "check", "--no-cache", *(name for name in guide.touched if name.endswith(".py")))
    assert done.returncode == 0 or "No module named ruff" in done.stderr, done.stdout


def assert_lists_what_it_touches(guide: Guide, most: int) -> None:
    """Its list of files is that of its blocks, and outside of shaders and tests there are at most so many."""
    assert len(set(guide.listed)) == len(guide.listed)
    assert set(guide.listed) == guide.touched
    assert len([name for name in guide.touched if not name.startswith(("shaders/", "tests/"))]) <= most
