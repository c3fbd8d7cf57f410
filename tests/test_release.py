"""What a release consists of beside the wheel, which tools/check_wheel.py builds: version, changelog, containers."""

import re
from pathlib import Path

import pytest

import grilly
from shaderbuild.families import tomllib

pytestmark = pytest.mark.long("of a tool that only the project runs")

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTAINERS = sorted((ROOT / "containers").glob("*.Containerfile"))


def test_the_version_stands_in_one_place():
    assert "version" not in PROJECT["project"] and PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "grilly.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc|\.dev)\d+)?", grilly.__version__)


def test_the_changelog_begins_with_this_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\S+) \((not yet released|\d{4}-\d\d-\d\d)\)$", text, re.M)
    assert versions and versions[0][0] == grilly.__version__
    assert all(when != "not yet released" for _, when in versions[1:])


def test_addresses_are_those_of_the_project():
    """They may be left out, and are then nowhere else."""
    known = {"Homepage", "Documentation", "Repository", "Issues", "Changelog"}
    addresses = PROJECT["project"]["urls"]
    assert set(addresses) <= known and all(address.startswith("https://") for address in addresses.values())


def test_there_is_a_container_for_each_kind_of_driver():
    assert [path.name.split(".")[0] for path in CONTAINERS] == ["llvmpipe", "mesa", "nvidia"]


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.name)
def test_a_containerfile_says_how_to_start_it(path):
    text, page = path.read_text(), (ROOT / "docs/running.md").read_text()
    name = path.name.split(".")[0]
    commands = re.findall(r"^#   (docker .*)$", text, re.M)
    assert [command.split()[1] for command in commands] == ["build", "run"]
    assert f"containers/{path.name}" in commands[0] and commands[1].endswith(f" grilly-{name}")
    for command in commands:
        assert command in page, f"docs/running.md does not say: {command}"


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.name)
def test_a_containerfile_copies_what_is_there(path):
    text = path.read_text().replace("\\\n", " ")
    copied = [name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M) for name in line.split()]
    assert copied and not [name for name in copied if not (ROOT / name).exists()]
    installed = text.rpartition("FROM ")[2]
    assert "libvulkan1" in installed and "nvidia" not in installed.split("ENV")[0]
    assert not re.search(r"(ADD|COPY|RUN).*https?://", text)
