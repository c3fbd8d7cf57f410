"""``grilly info``: devices, runtimes, and the variants chosen on one device."""

from __future__ import annotations

import argparse
import os
import sys

from ..compute import devices
from ..errors import GrillyError
from .common import (
    HEAD_DIMS,
    add_device,
    choose,
    chosen_rows,
    device_facts,
    device_lines,
    registry_of,
    runtimes,
    versions,
)
from .output import as_json, facts, heading, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 when a device is there and nothing can run on it."""
    found = devices()
    chosen = choose(args)
    opened = runtimes(chosen)
    variants, failure = [], None
    try:
        runtime, registry = registry_of(chosen, args.runtime)
        variants = chosen_rows(registry.table(HEAD_DIMS))
    except GrillyError as error:
        runtime, failure = None, str(error)
    if args.json:
        print(as_json({
            "versions": versions(),
            "devices": [device_facts(device) for device in found],
            "chosen": chosen.index,
            "runtimes": opened,
            "runtime": runtime,
            "variants": variants,
            "error": failure,
        }))  # fmt: skip
    else:
        _print(found, chosen, opened, runtime, variants)
    if failure:
        print(f"grilly info: {failure}", file=sys.stderr)
    return 1 if failure else 0


def _print(found, chosen, opened, runtime, variants) -> None:
    print(" ".join(f"{name} {version}" for name, version in versions().items()))
    for device in found:
        mark = " (used unless another is asked for)" if device.index == chosen.index else ""
        heading(f"Device {device.index}: {device.name}{mark}")
        facts(device_lines(device))
    heading(f"Runtimes on device {chosen.index}")
    facts({row["name"]: "opens" if row["opens"] else f"does not open: {row['reason']}" for row in opened})
    lacking = {row["name"]: sorted(chosen.features - set(row["features"])) for row in opened if row["opens"]}
    for name, features in lacking.items():
        if features:
            print(f"  {name} does not offer: {', '.join(features)}")
    if runtime is not None:
        heading(f"Kernels on device {chosen.index} through the {runtime} runtime")
        table(
            ("operation", "model", "dtype", "kernel", "head dims"),
            [
                (r["operation"], r["model"], r["dtype"], r["variant"] or f"none: {r['reason']}",
                 " ".join(map(str, r["sizes"])) if r["variant"] else "")
                for r in variants
            ],
        )  # fmt: skip
    own, loaders = ("DEVICE", "CACHE_DIR", "SHADERS"), ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_INSTANCE_LAYERS")
    for name in (*(f"GRILLY_{variable}" for variable in own), *loaders):
        if os.environ.get(name):
            print(f"{name} is set to {os.environ[name]}")
