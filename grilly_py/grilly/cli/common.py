"""What several commands do alike: the choice of a device, and describing it."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from .. import __version__
from ..compute import Compute, devices, use
from ..errors import GrillyError
from ..registry import Registry, identify
from ..runtime import RUNTIMES, open_runtime
from ..runtime.interface import DeviceInfo
from . import CommandError
from .output import bytes_text

#: Head dimensions shown as representative.
HEAD_DIMS = (32, 64, 80, 128, 256)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add ``--device`` and ``--runtime``."""
    parser.add_argument(
        "--device", metavar="N|NAME", help="position in `grilly info`, or a part of the name (default: GRILLY_DEVICE, "
        "else the most capable)",
    )  # fmt: skip
    parser.add_argument("--runtime", choices=("auto", *RUNTIMES), default="auto", help="default: %(default)s")


def add_loading(parser: argparse.ArgumentParser) -> None:
    """Add how a model is loaded from a folder: ``--dtype``, ``--dequantize`` and ``--ignore``."""
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help="default: that of the folder")
    parser.add_argument("--dequantize", action="store_true", help="make floats of quantized weights")
    parser.add_argument("--ignore", action="append", default=[], metavar="FIELD",
                        help="a field of config.json that is not known, and that does not change what the model "
                        "computes; may come again")  # fmt: skip


def tell_left_out(args: argparse.Namespace, model, do_sample: bool | None = None, stop_strings=None) -> None:
    """Say what the folder asks for and is not computed: the model's warning has a remedy that only programs have."""
    if left := model.left_out(do_sample, stop_strings):
        print(f"grilly {args.command}: {left}", file=sys.stderr)
        model.not_applied.clear()


def open_backend(args: argparse.Namespace) -> Compute:
    """The device that the arguments name. Raises CommandError where there is no such device, and Compute's others."""
    try:
        return Compute(args.device, args.runtime)
    except ValueError as error:
        raise CommandError(str(error)) from error


@contextlib.contextmanager
def default_device(args: argparse.Namespace) -> Iterator[Compute]:
    """The device that the arguments name, as the default one; what is wrong with what it is given is a CommandError."""
    try:
        with open_backend(args) as backend:
            former = use(backend)
            try:
                yield backend
            finally:
                use(former)
    except (ImportError, ValueError, TypeError) as error:
        raise CommandError(str(error)) from error


def called(file: str) -> str:
    """A file as errors name it."""
    return "standard input" if file == "-" else file


def read_input(file: str) -> bytes:
    """What a file holds, or standard input where it is "-". Raises CommandError where it cannot be read."""
    try:
        if file != "-":
            return Path(file).read_bytes()
        if sys.stdin is None:  # closed by the shell's <&-
            raise CommandError("standard input cannot be read: it is closed")
        return sys.stdin.buffer.read()
    except OSError as error:
        raise CommandError(f"{called(file)} cannot be read: {error.strerror or error}") from error


def choose(args: argparse.Namespace) -> DeviceInfo:
    """The description of the device that the arguments name, without opening it."""
    from ..runtime.probe import select

    try:
        return select(devices(), args.device)
    except ValueError as error:
        raise CommandError(str(error)) from error


def runtimes(device: DeviceInfo, names=tuple(RUNTIMES)) -> list[dict]:
    """Which runtimes open a device: name, ``opens``, the ``features`` offered through it, or the ``reason`` why not."""
    found = []
    for name in names:
        try:
            runtime = open_runtime(device.index, name)
        except GrillyError as error:
            # The error's first line repeats the device; the causes follow it, one for each runtime tried.
            cause = "; ".join(line.strip() for line in str(error).splitlines()[1:]) or str(error)
            found.append({"name": name, "opens": False, "reason": cause.removeprefix(f"{name}: "), "features": []})
            continue
        found.append({"name": name, "opens": True, "reason": None, "features": sorted(runtime.features)})
        runtime.close()
    return found


def registry_of(device: DeviceInfo, runtime: str) -> tuple[str, Registry]:
    """The name of the runtime that opens a device, and the registry of what can run through it."""
    opened = open_runtime(device.index, runtime)
    try:
        return opened.name, Registry(device, opened.features)
    finally:
        opened.close()


def device_facts(device: DeviceInfo) -> dict:
    """A device as JSON can hold it."""
    limits = {name: list(v) if isinstance(v, tuple) else v for name, v in device.limits.items()}
    return {
        "index": device.index,
        "name": device.name,
        "vendor": device.vendor,
        "vendor_id": device.vendor_id,
        "device_id": device.device_id,
        "architecture": identify(device),
        "kind": device.kind,
        "driver": device.driver,
        "driver_version": device.driver_version,
        "vulkan": ".".join(map(str, device.api_version)),
        "subgroup_size": device.subgroup_size,
        "subgroup_sizes": list(device.subgroup_sizes),
        "memory_bytes": device.memory_bytes,
        "unified": device.unified,
        "limits": limits,
        "features": sorted(device.features),
        "cooperative_matrix": [list(shape) for shape in device.properties.get("cooperative_matrix", ())],
    }


def versions() -> dict[str, str]:
    """Versions of grilly and of what it runs on."""
    import numpy

    return {"grilly": __version__, "python": platform.python_version(), "numpy": numpy.__version__}


def measured_on(device: DeviceInfo, runtime: str) -> dict:
    """How a file of measured figures begins: the command, the day, versions, and the device."""
    found = versions()
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["torch"] = importlib.metadata.version("torch")
    return {
        "command": shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "versions": found,
        "device": device_facts(device),
        "runtime": runtime,
    }


def device_lines(device: DeviceInfo) -> dict[str, str]:
    """A device as a person reads it: name of the fact to its text."""
    limits = device.limits
    low, high = device.subgroup_sizes
    memory = "shared with the host" if device.unified else "the device's own"
    lines = {
        "vendor": f"{device.vendor}, {device.kind}",
        "architecture": identify(device),
        "driver": f"{device.driver} {device.driver_version}",
        "Vulkan": ".".join(map(str, device.api_version)),
        "subgroup": f"{device.subgroup_size} invocations"
        + (f"; {low} to {high} can be requested" if low != high else ""),
        "memory": f"{bytes_text(device.memory_bytes)}, {memory}; largest allocation {bytes_text(limits['allocation'])}",
        "limits": f"{bytes_text(limits['storage_range'])} in a binding, {limits['push_bytes']} B of push constants, "
        f"workgroups of {limits['invocations']} invocations with {bytes_text(limits['shared_bytes'])} shared memory",
        "features": ", ".join(sorted(device.features)),
    }
    shapes = device.properties.get("cooperative_matrix", ())
    if shapes:
        texts = {f"{m}x{n}x{k} {a} -> {r}" for m, n, k, a, _, _, r, scope in shapes if scope == "subgroup"}
        lines["matrices"] = ", ".join(sorted(texts)) + " (subgroup scope)"
    return lines


def chosen_rows(table: list[dict]) -> list[dict]:
    """For each operation, model and dtype of ``Registry.table``: the variants chosen and for which dimensions, or the
    best-ranked one's reason where none can run."""
    rows, groups = [], {}
    for row in table:
        groups.setdefault((row["operation"], row["model"], row["dtype"]), []).append(row)
    for (operation, model, dtype), members in groups.items():
        chosen = [row for row in members if row["chosen"]]
        common = {"operation": operation, "model": model, "dtype": dtype}
        for row in chosen:
            rows.append({**common, "variant": row["variant"], "sizes": sizes_of(row), "reason": None})
        if not chosen:
            rows.append({**common, "variant": None, "sizes": [], "reason": members[0]["reason"]})
    return rows


def sizes_of(row: dict) -> list[int]:
    """The dimensions a row of ``Registry.table`` is chosen for; empty where the operation has no dimension limits."""
    return [size for size in row["chosen"] if size]


def readable(text: str) -> str:
    """An argument's type: a text in UTF-8, which a locale's encoding need not be."""
    try:
        return text if text.isascii() else os.fsencode(text).decode()
    except UnicodeError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a text in UTF-8") from None


def numbers(text: str) -> tuple[int, ...]:
    """An argument's type: whole numbers above 0 and below 2**31, separated by commas ("64,128")."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1 or max(found) >= 2**31:
        above = "above 0 and below 2**31" if found and min(found) > 0 else "above 0"
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers {above}, separated by commas")
    return found
