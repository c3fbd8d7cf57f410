"""Adds the compiled shaders to the wheel; all else is in pyproject.toml."""

import os
import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
# The times in the wheel, unless the builder asks for others: the same sources give the same bytes.
os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")  # 1980-01-01, the first day of a zip file's calendar


class BuildWithShaders(build_py):
    """Copies the modules, and unless the install is editable compiles and packs every shader.

    GRILLY_WHEEL_WITHOUT, a feature such as cooperative-matrix, leaves out the shaders that need it: for a quick test.
    """

    def run(self):
        folder = Path(self.build_lib)
        if not self.editable_mode:
            shutil.rmtree(folder, ignore_errors=True)  # an earlier build may have left what is no longer there
        super().run()
        if self.editable_mode:
            return
        sys.path.insert(0, str(ROOT / "tools"))
        from shaderbuild.builder import Builder
        from shaderbuild.everything import build, pack_all

        builder, jobs = Builder(ROOT), os.cpu_count() or 1
        without = frozenset(filter(None, [os.environ.get("GRILLY_WHEEL_WITHOUT")]))
        built = build(builder, jobs, check=True, without=without)
        if built.problems:
            raise SystemExit("\n".join(built.problems))
        pack_all(builder, built, folder / "grilly/spirv", jobs, wheel=True)
        for path in folder.rglob("*"):  # modes are in the wheel too, and a checkout's depend on the user's mask
            path.chmod(0o755 if path.is_dir() else 0o644)


setup(cmdclass={"build_py": BuildWithShaders})
