"""Every Python block of README and of the pages of docs/ runs when it is pasted alone, and links lead somewhere.

Blocks that need files, weights or optional packages are run by the tests of these: `ELSEWHERE`.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import children
from standalone import BLOCK

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Those that a newcomer reads first: each block in a process of its own.
START = ["README.md", "docs/index.md", "docs/start.md", "docs/numpy.md", "docs/dask.md"]
#: Each block with names of its own, in one process, which compiles each kernel once.
LONG = [
    "docs/guide.md", "docs/layers.md", "docs/arrays.md", "docs/functions.md", "docs/optimizers.md",
    "docs/score-functions.md", "docs/training.md",
]  # fmt: skip
#: Run elsewhere, and by which file: beside weights, files or packages that they need.
ELSEWHERE = {
    "docs/models.md": "test_models_texts.py", "docs/onnx.md": "test_onnx.py", "docs/pytorch.md": "test_torch.py",
    "docs/gguf.md": "test_gguf_writing.py", "docs/transformers.md": "test_transformers.py",
    "docs/finetuning.md": "test_cli_finetune.py",
    "docs/adding-a-shader.md": "test_adding_a_shader.py", "docs/adding-an-operation.md": "test_adding_an_operation.py",
    "docs/adding-an-option.md": "test_adding_an_option.py",
}  # fmt: skip


def ran(device: int, *arguments: str) -> list[dict]:
    """What tests/standalone.py found, with this device as the default one."""
    environment = children.environment(GRILLY_DEVICE=str(device))
    environment.pop("GRILLY_MEMORY_LIMIT", None)
    done = subprocess.run([sys.executable, "tests/standalone.py", *arguments], cwd=ROOT, env=environment,
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def problems(found: dict) -> list[str]:
    """What is wrong with a block that ran: how it ended, and where it prints other than its comments say."""
    where = f"{found['page']}, block {found['number']}"
    if found["failed"]:
        return [f"{where}: {found['failed']}"]
    lines = [line for line in found["block"].splitlines() if line.lstrip().startswith("print(")]
    said = [line.rpartition("  # ")[2] for line in lines if "  # " in line]
    if said and len(said) == len(lines) and said != found["printed"].splitlines():
        return [f"{where}: the comments say {said}, and it printed {found['printed']!r}"]
    return []


@pytest.mark.parametrize("page", START)
def test_blocks_of_a_start_page_run_alone(vulkan_backend, page):
    if page == "docs/dask.md" and importlib.util.find_spec("dask") is None:
        pytest.skip("dask is not installed")
    found = ran(vulkan_backend.device.index, page)
    assert len(found) == len(BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))) > 0
    assert not [line for block in found for line in problems(block)]


def test_blocks_of_long_pages_run_with_names_of_their_own(vulkan_backend):
    found = ran(vulkan_backend.device.index, "--together", *LONG)
    assert len(found) == sum(len(BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))) for page in LONG) > 20
    assert not [line for block in found for line in problems(block)]


def test_what_fails_is_seen(vulkan_backend, tmp_path):
    """A name of an earlier block, a wrong comment, a process that ends by itself, an optional module."""
    page = tmp_path / "page.md"
    blocks = ["x = 1", "print(x)", "print(2)  # 3", "import os; os._exit(3)", "import grilly; grilly.dask"]
    blocks.append("print(4)  # 4")
    page.write_text("".join(f"```python\n{block}\n```\n" for block in blocks))
    found = [problems(block) for block in ran(vulkan_backend.device.index, str(page))]
    assert [len(each) for each in found] == [0, 1, 1, 1, 1, 0]
    assert "NameError" in found[1][0] and "['3']" in found[2][0] and "status" in found[3][0]
    assert "AttributeError" in found[4][0]


def test_every_page_with_python_is_run():
    having = {str(page.relative_to(ROOT)) for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))}
    assert having == {*START, *LONG, *ELSEWHERE}
    assert all((ROOT / "tests" / name).exists() for name in ELSEWHERE.values())


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_the_tree_of_compute_names_every_file_once():
    """docs/architecture.md; a name with a folder before it is only mentioned."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named, folder = [], ""
    for line in re.search(r"^```\ncompute/\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[1].splitlines():
        if line[2] != " ":
            folder = re.match(r"  (\w+/)?", line)[1] or ""
        named += [folder + name for name in re.findall(r"(?<![\w/])\w+\.py", line)]
    compute = ROOT / "grilly_py/grilly/compute"
    there = [path.relative_to(compute).as_posix() for path in compute.rglob("*.py") if path.name != "__init__.py"]
    assert sorted(named) == sorted(there)


def test_readme_is_short_and_begins_with_speed_and_an_example():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    first = text.split("\n## ")[0]
    assert re.search(r"!\[[^\]]+\]\(docs/pictures/speed\.svg\)", first) and BLOCK.search(first)


def test_set_up_commands_exist():
    named = re.findall(r"^tools/(\w+)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert named == ["demo", "test"]
    for name in named:
        assert (ROOT / "tools" / name).stat().st_mode & 0o111, f"README runs tools/{name}, which is not executable"
