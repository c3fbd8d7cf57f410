"""Shaders of a source checkout: entries from the data files, binaries compiled when they are first used.

The building is tools/shaderbuild of the same checkout; binaries are kept in the cache folder by the hash of all that
they are made from, so that an edited shader is compiled anew and a stale one cannot run.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from ..errors import ShaderError
from .names import HASH_DIGITS

_INSTALL = "a source checkout compiles its shaders; run: pip install -e '.[compile]'"
_BUILD = "grilly_shaderbuild"  # tools/shaderbuild among the loaded modules
_loading = threading.RLock()  # a signal handler may come here in the midst of it


def checkout_of(package: Path) -> Path | None:
    """The checkout that the package lies in, or None: it is installed."""
    root = package.parents[1]
    whole = package == root / "grilly_py/grilly" and (root / "shaders").is_dir()
    return root if whole and (root / "tools/shaderbuild").is_dir() else None


class Checkout:
    """The shaders of one checkout. The cache folder is the one that the environment names when this is made.

    Parameters
    ----------
    root : Path
        Holds ``shaders/``.
    """

    def __init__(self, root: Path):
        self.place = str(root / "shaders")
        self.remedy = "mend its data file"
        with self._named_errors():
            self._builder = _build_tool("builder").Builder(root)
        self._cases: dict[str, object] = {}
        self._recorded: dict[str, dict] = {}

    def entries(self) -> list[dict]:
        """The entries that the data files describe. Raises ShaderError for what is wrong with one, by file and line."""
        cases, errors = self._builder.families()
        if errors:
            raise ShaderError("\n".join(errors))
        self._cases = {case.name: case for case in cases}
        with self._named_errors():
            self._builder.check_python(written=False)
            self._recorded = self._builder.recorded()
            return [self._builder.entry(case, self._recorded) for case in cases]

    def key(self, name: str) -> str:
        """A hash over source, includes, macros, flags, target and compilers of the variant."""
        with self._named_errors():
            return self._builder.job(self._cases[name]).key[:HASH_DIGITS]  # as a wheel has it

    def binary(self, name: str) -> tuple[bytes, str]:
        """The variant's SPIR-V, from the cache or compiled, compared with its data file, and its SHA-256.

        Raises ShaderError with the compiler's own words, or with what to install.
        """
        builder, case = self._builder, self._cases[name]
        with self._named_errors():
            spirv = builder.binary(builder.job(case))
            builder.check_recorded(case, builder.check(case, spirv), self._recorded)
        return spirv, hashlib.sha256(spirv).hexdigest()

    @staticmethod
    @contextlib.contextmanager
    def _named_errors() -> Iterator[None]:
        try:
            yield
        except ImportError as error:  # tomli, on Python 3.10
            raise ShaderError(f"{error}; {_INSTALL}") from error
        except Exception as error:
            if isinstance(error, _build_tool("toolchain").ToolError):
                raise ShaderError(f"{error}; {_INSTALL}") from error
            if isinstance(error, _build_tool("builder").CompileError):
                raise ShaderError(str(error)) from error
            raise


def _build_tool(module: str) -> ModuleType:
    """A module of this checkout's tools/shaderbuild, under a name that no other package has."""
    with _loading:
        if _BUILD not in sys.modules:
            folder = Path(__file__).resolve().parents[3] / "tools/shaderbuild"
            spec = importlib.util.spec_from_file_location(
                _BUILD, folder / "__init__.py", submodule_search_locations=[str(folder)]
            )
            package = importlib.util.module_from_spec(spec)
            sys.modules[_BUILD] = package
            try:
                spec.loader.exec_module(package)
            except BaseException:
                del sys.modules[_BUILD]
                raise
        return importlib.import_module(f"{_BUILD}.{module}")
