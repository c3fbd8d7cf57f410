#!/usr/bin/env python3
"""Builds the wheel twice, from the checkout and from the source archive, and uses it in empty environments.

    python tools/check_wheel.py [--python 3.12 ...]
    python tools/check_wheel.py --quick             one build, without the shaders for matrix units, and this Python

Fails unless both wheels are the same bytes, are tagged py3-none-any, carry what they must and no more, say what
pyproject.toml says, and take at most 10 MB, packed and unpacked; and unless attention on the device is right in an
environment of each Python, far from the checkout and without a compiler. A Python that is not on this machine is
named as not run; the status is then still 0.
"""

from __future__ import annotations

import argparse
import email
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from shaderbuild.builder import Builder
from shaderbuild.families import tomllib

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
LARGEST = 10_000_000  # bytes
#: What most large shaders need: three quarters of the compiler's time.
MATRIX_UNITS = "cooperative-matrix"
USE = """\
import sys, time
import numpy as np
import grilly
import grilly.functional as F
assert grilly.__file__.startswith(sys.prefix), grilly.__file__
q, k, v = np.random.default_rng(0).standard_normal((3, 2, 4, 77, 40), dtype=np.float32)
start = time.perf_counter()
out = F.flash_attention2(q, k, v, causal=True)
seconds = time.perf_counter() - start
scores = (q.astype(np.float64) @ k.swapaxes(-1, -2)) / np.sqrt(40)
weights = np.exp(scores - scores.max(-1, keepdims=True)) * np.tri(77)
wanted = weights / weights.sum(-1, keepdims=True) @ v
assert np.abs(out - wanted).max() < 1e-5, np.abs(out - wanted).max()
from grilly.registry import default_manifest
shaders = default_manifest()
slowest = 0.0
for variant in shaders.variants:
    start = time.perf_counter()
    shaders.binary(variant)
    slowest = max(slowest, time.perf_counter() - start)
print(f"{len(shaders.variants)} binaries, the slowest opened in {1e3 * slowest:.0f} ms; "
      f"a first call took {1e3 * seconds:.0f} ms")
"""


def run(*command, **options) -> str:
    """The command's output; exits with it where the command fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"check_wheel: {' '.join(map(str, command))} failed\n{done.stdout}{done.stderr}")
    return done.stdout


def built(folder: Path, quick: bool) -> Path:
    """The wheel, made twice and compared; or ``quick``, once and without the shaders for matrix units."""
    wheels = []
    if quick:
        lean = os.environ | {"GRILLY_WHEEL_WITHOUT": MATRIX_UNITS}
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT, cwd=folder, env=lean)
        return next(folder.glob("*.whl"))
    run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, ROOT, cwd=folder)
    (archive,) = folder.glob("*.tar.gz")
    for source, name in ((ROOT, "checkout"), (archive, "archive")):
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder / name, source, cwd=folder)
        wheels += (folder / name).glob("*.whl")
    first, second = wheels
    assert first.name == second.name and first.name.endswith("-py3-none-any.whl"), [wheel.name for wheel in wheels]
    if first.read_bytes() != second.read_bytes():
        sys.exit(f"check_wheel: two builds differ in {', '.join(differing(first, second)) or 'their order or modes'}")
    return first


def differing(first: Path, second: Path) -> list[str]:
    """Names of the files that are not the same in both wheels."""
    with zipfile.ZipFile(first) as a, zipfile.ZipFile(second) as b:
        names = {*a.namelist(), *b.namelist()}
        there = names & set(a.namelist()) & set(b.namelist())
        return sorted(names - there | {name for name in there if a.read(name) != b.read(name)})


def checked(wheel: Path, quick: bool) -> str:
    """A sentence about the wheel's contents and sizes; exits where they are not as they must be."""
    with zipfile.ZipFile(wheel) as archive:
        names, unpacked = archive.namelist(), sum(info.file_size for info in archive.infolist())
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
        manifest = json.loads(gzip.decompress(archive.read("grilly/spirv/manifest.json.gz")))
    cases = Builder(ROOT).families()[0]
    odd = {case.family for case in cases if not quick or MATRIX_UNITS not in case.settings["requires"]}
    odd ^= manifest["families"].keys()
    if odd:
        sys.exit(f"check_wheel: families that the manifest lacks, or has too many: {sorted(odd)}")
    shaders = {f"grilly/spirv/{family['archive']}" for family in manifest["families"].values()}
    shaders |= {"grilly/spirv/manifest.json.gz"}
    package = ROOT / "grilly_py"
    modules = {path.relative_to(package).as_posix() for path in package.glob("grilly/**/*.py")}
    others = {name for name in names if ".dist-info/" not in name}
    wanted = shaders | modules | {"grilly/py.typed"}
    if others != wanted:
        sys.exit(f"check_wheel: missing or not wanted: {sorted(others ^ wanted)}")
    check_metadata(metadata, wheel)
    for size, what in ((wheel.stat().st_size, "the wheel"), (unpacked, "the installed package")):
        if size > LARGEST:
            sys.exit(f"check_wheel: {what} has {size:,} bytes, {LARGEST:,} are allowed")
    builds = "without the shaders for matrix units" if quick else "two builds the same"
    return f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {unpacked / 1e6:.1f} MB installed, {builds}"


def check_metadata(metadata: str, wheel: Path) -> None:
    """Exits unless the wheel's metadata are those of pyproject.toml, with README.md as the description."""
    said = email.message_from_string(metadata)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {
        "Name": [project["name"]],
        "Version": [wheel.name.split("-")[1]],
        "Requires-Python": [project["requires-python"]],
        "License-Expression": [project["license"]],
        "Classifier": project["classifiers"],
        "Provides-Extra": list(project["optional-dependencies"]),
        "Project-URL": [f"{name}, {address}" for name, address in project["urls"].items()],
    }
    for key, values in wanted.items():
        if sorted(said.get_all(key, [])) != sorted(values):
            sys.exit(f"check_wheel: {key} is {said.get_all(key)}, and should be {values}")
    if said.get_payload().strip() != (ROOT / "README.md").read_text(encoding="utf-8").strip():
        sys.exit("check_wheel: the description is not README.md")


def interpreter(version: str) -> str | None:
    """A Python of this version that works: in PATH, or one that a version manager keeps."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *sorted(kept.glob(f"{version}.*/bin/python"))]
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        done = subprocess.run([str(candidate), "-c", code], capture_output=True, text=True)
        if done.stdout.strip() == version:
            return str(candidate)
    return None


def used(python: str, wheel: Path, folder: Path) -> str:
    """What a small program says that uses the wheel in a new environment, without a compiler or a cache."""
    run(python, "-m", "venv", folder / "venv")
    inside = folder / "venv/bin/python"
    run(inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel, cwd=folder)
    environment = {name: value for name, value in os.environ.items() if name.startswith(("VK_", "LD_", "LANG"))}
    environment |= {"PATH": "/nonexistent", "HOME": str(folder)}
    return run(inside, "-I", "-c", USE, cwd=folder, env=environment).strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", metavar="VERSION", help=f"default: {', '.join(PYTHONS)}")
    parser.add_argument("--quick", action="store_true", help="one build, without the shaders for matrix units")
    options = parser.parse_args()
    pythons = options.python or ([".".join(map(str, sys.version_info[:2]))] if options.quick else PYTHONS)
    start, missing = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = built(folder, options.quick)
        print(f"{checked(wheel, options.quick)} ({time.perf_counter() - start:.0f} s)", flush=True)
        for version in pythons:
            python = interpreter(version)
            if python is None:
                missing.append(version)
                continue
            (folder / version).mkdir()
            print(f"Python {version}: {used(python, wheel, folder / version)}", flush=True)
            shutil.rmtree(folder / version)
    if missing:
        print(f"*** NOT RUN: the wheel with Python {', '.join(missing)}\n*** Reason: not on this machine")
    return 0


if __name__ == "__main__":
    sys.exit(main())
