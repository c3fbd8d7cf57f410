"""What is remembered of a device between runs: verdicts of self-checks, and the winners of `grilly tune`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping

from ..runtime.folders import DeviceFile
from ..runtime.interface import DeviceInfo
from .manifest import Variant

#: 0: no self-checks, failures known are ignored too. always: checked again by each backend. Else: checked once.
CHECK_VARIABLE = "GRILLY_SELF_CHECK"
#: The operation of the functions that expressions call, whose verdict is that of all holes.
HOLES = "expressions"
#: Facts for which a driver makes another program of the same binary: those that become specialization constants, and
#: the version of how holes are written.
COMPILED_FOR = ("head_dim", "value_dim", "holes")


def check_mode() -> str:
    """How variants are self-checked: "off", "always" or "once"."""
    return {"0": "off", "always": "always"}.get(os.environ.get(CHECK_VARIABLE, ""), "once")


class Verdicts:
    """Which variants passed their self-check on a device: in memory, and in the cache folder's ``verdicts``.

    A verdict belongs to device, driver (both by DeviceFile), binary (by ``key_of``, all that it is made from), subgroup
    size and COMPILED_FACTS.
    """

    def __init__(self, device: DeviceInfo, key_of: Callable[[Variant], str]):
        self._key_of = key_of
        self._file = DeviceFile(device, "verdicts", 1, {"variant": str, "failure": str})
        self._stored: dict[str, dict] | None = None
        self._here: dict[str, str] = {}

    def _key(self, variant, subgroup_size: int | None, facts: Mapping[str, int]) -> str:
        sizes = " ".join(f"{name}={facts[name]}" for name in COMPILED_FOR if name in facts)
        return f"{self._key_of(variant)} subgroup={subgroup_size or 'any'} {sizes}".strip()

    def find(self, variant, subgroup_size: int | None, facts: Mapping[str, int]) -> str | None:
        """The reason for which it failed, "" where it passed, None where it was not checked."""
        key = self._key(variant, subgroup_size, facts)
        if key not in self._here and check_mode() == "once":
            if self._stored is None:
                self._stored = self._file.read()
            if key in self._stored:
                self._here[key] = self._stored[key]["failure"]
        return self._here.get(key)

    def keep(self, variant, subgroup_size: int | None, facts: Mapping[str, int], failure: str) -> None:
        """Remember a verdict. A cache folder that cannot be written is no error: the next process checks again."""
        key = self._key(variant, subgroup_size, facts)
        self._here[key] = failure
        with contextlib.suppress(OSError):
            self._file.update({key: {"variant": variant.name, "failure": failure}})


def bucket(facts: Mapping[str, int]) -> dict[str, int]:
    """The sizes for which one measurement stands: dimensions as they are, counts rounded up to powers of two.

    ``align`` is left out: a winner that cannot serve an alignment is passed over there.
    """
    return {
        name: value if name in COMPILED_FOR or value < 1 else 1 << (value - 1).bit_length()
        for name, value in sorted(facts.items())
        if name != "align"
    }


class Winners:
    """The fastest variants as measured on a device, by operation, dtype, model and sizes; in the folder ``tuned``.

    An entry holds ``variant``, ``shaders`` (the version of the shaders it was measured among), ``seconds``, ``shape``
    (what was measured, for people), ``day`` and the request's ``operation``, ``dtype``, ``model`` and ``facts``.
    """

    def __init__(self, device: DeviceInfo):
        text = dict.fromkeys(("variant", "shaders", "operation", "dtype", "model", "shape", "day"), str)
        self._file = DeviceFile(device, "tuned", 1, {**text, "seconds": (int, float), "facts": dict})
        self._entries: dict[str, dict] | None = None

    @property
    def path(self):
        """The file; None for a device that reports no identity."""
        return self._file.path

    @property
    def entries(self) -> dict[str, dict]:
        """All entries, by a text that names operation, dtype, model and sizes."""
        if self._entries is None:
            self._entries = self._file.read()
        return self._entries

    @staticmethod
    def _key(request) -> str:
        # Whatever else a request may come to depend on belongs to the key, but for the family a caller insists on.
        rest = [str(value) for name, value in zip(request._fields, request, strict=True)
                if name not in ("problem", "prefer")]  # fmt: skip
        return " ".join([*rest, *(f"{name}={value}" for name, value in bucket(dict(request.problem)).items())])

    def find(self, request, shaders: str) -> str | None:
        """Name of the variant that won for requests like this one among these shaders; None where none was measured."""
        entry = self.entries.get(self._key(request)) if self.entries else None
        return entry["variant"] if entry is not None and entry["shaders"] == shaders else None

    def keep(self, request, shaders: str, variant, seconds: float, shape: str) -> None:
        """Remember a winner. Raises OSError where the cache folder cannot be written."""
        entry = {
            "variant": variant.name, "shaders": shaders, "seconds": seconds, "shape": shape,
            "day": time.strftime("%Y-%m-%d"), "operation": request.operation, "dtype": request.dtype,
            "model": request.model, "facts": bucket(dict(request.problem)),
        }  # fmt: skip
        entries, key = self.entries, self._key(request)
        self._file.update({key: entry})  # first: where it fails, choices that were made stand, and nobody is told
        entries[key] = entry

    def reset(self) -> bool:
        """Forget all of this device and driver; False where there was nothing. Raises OSError."""
        found = self._file.remove()
        self._entries = {}
        return found
