#!/usr/bin/env python3
"""Runs a checkout of data-apis/array-api-tests on grilly.

    python tools/array_api_suite.py FOLDER [pytest's options]

FOLDER is at the commit COMMIT, with its submodule; it needs ndindex, pytest-json-report and hypothesis. The suite
supposes complex dtypes in two places, so a changed copy of it is run. What is left out, and why, is in SKIPS.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

COMMIT = "55fcc60179efa2680ddd6cd926ddf17b83530e2b"
#: dtypes that no tensor has: kernels make integers of 64 bits of two words, with a sign, and few GPUs have float64.
DTYPES = "uint64,float64,complex64,complex128"
#: Of the suite's file of helpers: what supposes complex dtypes, and what stands there instead.
CHANGES = {
    "complex_dtypes], key=lambda x: x[1]\n)": "complex_dtypes], key=lambda x: x[1], default=(None,)\n)",
    '{"complex64": xp.float32, "complex128": xp.float64}': "{}",
}
#: Tests that are not run: a part of their names, and the reason.
SKIPS = {
    "test_signatures.py": "it makes tables of all dtypes, float64 and complex among them, when it is read",
    "test_linalg.py": "linalg is there in part, without decompositions: tests/test_linalg.py",
    "test_fft.py": "the extension fft is left out",
    "[elementwise-imag]": "there are no complex dtypes",
    "[linalg-": "linalg is there in part, without decompositions",
    "[fft-": "the extension fft is left out",
    "(x_i.is_integer()) -> x_i": "it draws whole float64 numbers, which float32 need not hold",
    "real(x": "special cases of complex numbers",
    "imag(x": "special cases of complex numbers",
    "floor_divide(isfinite(x1_i) and x1_i > 0 and x2_i is -infinity)": "-1, as Python and NumPy have it",
    "floor_divide(isfinite(x1_i) and x1_i < 0 and x2_i is +infinity)": "-1, as Python and NumPy have it",
    "floordiv__(isfinite(x1_i) and x1_i > 0 and x2_i is -infinity)": "-1, as Python and NumPy have it",
    "floordiv__(isfinite(x1_i) and x1_i < 0 and x2_i is +infinity)": "-1, as Python and NumPy have it",
}
#: A plugin of pytest that skips them.
PLUGIN = """
import pytest

SKIPS = @


def pytest_collection_modifyitems(items):
    for item in items:
        for name, why in SKIPS.items():
            if name in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=why))
"""


def prepared(suite: Path, folder: Path) -> Path:
    """A copy of the suite in which complex dtypes may be missing. Raises SystemExit where it is another version."""
    copied = folder / "suite"
    shutil.copytree(suite, copied, ignore=shutil.ignore_patterns(".git"))
    helpers = copied / "array_api_tests" / "dtype_helpers.py"
    text = helpers.read_text()
    for old, new in CHANGES.items():
        if old not in text:
            raise SystemExit(f"{helpers.name} has no {old!r}: check out commit {COMMIT}")
        text = text.replace(old, new)
    helpers.write_text(text)
    return copied


def main(arguments: list[str]) -> int:
    """Run it; returns pytest's exit status."""
    if not arguments:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        copied = prepared(Path(arguments[0]).resolve(), Path(folder))
        (Path(folder) / "left_out.py").write_text(PLUGIN.replace("@", repr(SKIPS)))
        files = [f"--ignore=array_api_tests/{name}" for name in SKIPS if name.endswith(".py")]
        environment = {
            **os.environ, "ARRAY_API_TESTS_MODULE": "grilly", "ARRAY_API_TESTS_VERSION": "2024.12",
            "ARRAY_API_TESTS_SKIP_DTYPES": DTYPES,
        }  # fmt: skip
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "pytest", "array_api_tests", *files, "-p", "left_out", "--disable-deadline",
                   "-q", *arguments[1:]]  # fmt: skip
        return subprocess.run(command, cwd=copied, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
