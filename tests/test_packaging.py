"""What is distributed, and under which name. tools/check_wheel.py builds and uses the wheel itself."""

import re
import subprocess
from pathlib import Path

import pytest

from shaderbuild.families import tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# "pip install 'grilly[x]'" or "grilly[x]": what a reader would install. A name in Python is no such hint.
HINT = re.compile(r"(?:pip3? install|Needs the extra)[^\n`]*?[ \t'\"`]+(grilly[a-z-]*)(?=[\s'\"`\[=<>,;:)]|$)")
EXTRA = re.compile(r"\b(grilly[a-z-]*)\\?\[([a-z0-9]+(?:,[a-z0-9]+)*)\\?\]")


def texts():
    """Every text of the checkout that a person reads or a program prints, by its path."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("this is no git checkout")
    for name in tracked.stdout.split("\0"):
        path = ROOT / name
        if name and path != Path(__file__) and path.is_file() and path.suffix not in (".png", ".spv", ".npz", ".json"):
            yield name, path.read_text(encoding="utf-8")


def test_hints_name_this_distribution_and_its_extras():
    found, wrong = 0, []
    extras = PROJECT["optional-dependencies"]
    for name, text in texts():
        for hint in HINT.finditer(text):
            found += 1
            if hint.group(1) != PROJECT["name"]:
                wrong.append(f"{name}: {hint.group(0)!r} installs {hint.group(1)}, and this is {PROJECT['name']}")
        for hint in EXTRA.finditer(text):
            found += 1
            if hint.group(1) != PROJECT["name"]:
                wrong.append(f"{name}: {hint.group(0)!r} is of {hint.group(1)}, and this is {PROJECT['name']}")
            wrong += [f"{name}: there is no extra {extra}" for extra in hint.group(2).split(",") if extra not in extras]
    assert found > 10, "the patterns find no hints"
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("run: pip install grilly[bfloat16]", "grilly"),
        ("pip install 'grilly-vulkan[dask]'", "grilly-vulkan"),
        ("pip install --no-deps grilly", "grilly"),
        ("`pip install grilly`", "grilly"),
        ("pip install -U grilly-vulkan==1.0", "grilly-vulkan"),
    ],
)
def test_the_patterns_see_a_hint(text, name):
    assert HINT.search(text).group(1) == name


def test_the_name_is_not_another_projects():
    assert PROJECT["name"] == "grilly-vulkan"


def test_git_carries_no_compiled_shader_of_the_package():
    tracked = subprocess.run(["git", "ls-files", "grilly_py", "shaders"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("this is no git checkout")
    assert not [name for name in tracked.stdout.splitlines() if name.endswith((".spv", ".xz")) or "/spirv/" in name]
    ignored = subprocess.run(["git", "check-ignore", "-q", "grilly_py/grilly/spirv/manifest.json"], cwd=ROOT)
    assert ignored.returncode == 0
