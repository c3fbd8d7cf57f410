"""``grilly shaders``: which compiled kernel serves what on a device, and why each other one does not."""

from __future__ import annotations

import argparse
import sys
import warnings

from ..compute import devices
from ..errors import GrillyError, SelfCheckWarning
from ..registry import Registry, Request
from ..registry.names import DTYPES, SIXTEEN_BITS
from ..registry.resolve import TABLE_COUNTS
from . import CommandError
from .common import HEAD_DIMS, add_device, choose, numbers, registry_of, sizes_of
from .output import as_json, bytes_text, heading, table
from .tune import winners_table

#: Said of a variant that uses matrix units and was not run on this driver yet.
UNCHECKED = "not checked yet: used once its self-check passes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_device(parser)
    parser.add_argument("--all", action="store_true", help="every device, not one")
    parser.add_argument("--operation", metavar="NAME", help="only this operation (attention, softmax, ...)")
    parser.add_argument("--dtype", choices=DTYPES, help="only this element type")
    parser.add_argument(
        "--dims",
        type=numbers,
        default=HEAD_DIMS,
        metavar="D,...",
        help="dimensions to choose for (default: " + ",".join(map(str, HEAD_DIMS)) + ")",
    )
    parser.add_argument("--explain", action="store_true", help="for each dimension, every kernel in order of rank")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the table of one device or of all; 1 when a device could not be opened."""
    failures, report = [], []
    for device in devices() if args.all else [choose(args)]:
        try:
            runtime, registry = registry_of(device, args.runtime)
        except GrillyError as error:
            if not args.all:
                raise
            failures.append(f"device {device.index}: {error}")
            continue
        operations = registry.manifest.by_operation
        if args.operation is not None and args.operation not in operations:
            raise CommandError(f"no operation is called {args.operation!r}; there are {', '.join(sorted(operations))}")
        rows = [
            r for r in registry.table(args.dims)
            if args.operation in (None, r["operation"]) and args.dtype in (None, r["dtype"])
        ]  # fmt: skip
        converted = [dtype for dtype in SIXTEEN_BITS if args.dtype in (None, dtype) and lacks_storage(registry)]
        if args.json:
            report.append({
                "device": device.index, "name": device.name, "architecture": registry.architecture,
                "runtime": runtime, "converted_to_float32": converted,
                "variants": [{**row, "used": bool(row["chosen"]), "chosen": sizes_of(row)} for row in rows],
            })  # fmt: skip
            continue
        heading(f"Device {device.index}: {device.name} ({registry.architecture}), {runtime} runtime")
        if args.explain:
            _explain(registry, args.operation, args.dtype, args.dims)
        else:
            _print(rows)
            if registry.winners.entries:
                print("\nMeasured by grilly tune; these go before ranks:")
                winners_table(registry)
            for dtype in converted:
                print(f"\n{dtype} arrays are converted to float32 on this device: no 16-bit storage")
    if args.json:
        print(as_json(report))
    for failure in failures:
        print(f"grilly shaders: {failure}", file=sys.stderr)
    return 1 if failures else 0


def lacks_storage(registry: Registry) -> bool:
    """Whether operations convert 16-bit arrays because the device's kernels cannot read them."""
    return "float16-storage" not in registry.features


def grouped(rows: list[dict]) -> list[dict]:
    """The rows with those joined that say the same of several models, dtypes, or cases of a variant.

    Each result has ``operation``, ``models``, ``dtypes``, ``kernel``, ``rank``, ``dims`` and ``reason``.
    """
    cases: dict[tuple, list[str]] = {}
    for row in rows:
        family_variant = ".".join(row["variant"].split(".")[:2])
        reason = row["reason"] or (UNCHECKED if row["unchecked"] else "")
        if reason.endswith(" ranks higher"):
            reason = ".".join(reason.split(" ")[0].split(".")[:2]) + " ranks higher"
        name = row["variant"] if row["chosen"] else family_variant
        key = (row["operation"], row["model"], row["dtype"], name, row["rank"], row["chosen"], reason)
        cases.setdefault(key, []).append(row["variant"])
    joined: dict[tuple, tuple[list[str], list[str]]] = {}
    for (operation, model, dtype, name, rank, chosen, reason), labels in cases.items():
        kernel = labels[0] if len(labels) == 1 else f"{name}.* ({len(labels)})"
        key = (operation, kernel, rank, chosen, reason)
        models, dtypes = joined.setdefault(key, ([], []))
        models.extend({model} - set(models))
        dtypes.extend({dtype} - set(dtypes))
    return [
        {"operation": operation, "models": models, "dtypes": dtypes, "kernel": kernel, "rank": rank,
         "dims": (" ".join(str(size) for size in chosen if size) or "all") if chosen else "", "reason": reason}
        for (operation, kernel, rank, chosen, reason), (models, dtypes) in joined.items()
    ]  # fmt: skip


def _print(rows: list[dict]) -> None:
    shown = grouped(rows)
    for operation in dict.fromkeys(row["operation"] for row in shown):
        print(f"\n{operation}:")
        table(
            ("kernel", "dtype", "model", "rank", "dims", "why not"),
            [
                (r["kernel"], " ".join(r["dtypes"]), " ".join(r["models"]), r["rank"], r["dims"], r["reason"])
                for r in shown
                if r["operation"] == operation
            ],
            right=("rank",),
        )


def _explain(registry: Registry, operation: str | None, only: str | None, dims: tuple[int, ...]) -> None:
    """For each operation, model, dtype and dimension: the variants by rank, and which of them is used."""
    for name, variants in sorted(registry.manifest.by_operation.items()):
        if operation not in (None, name):
            continue
        facts = sorted({fact for variant in variants for fact in variant.limits})
        counts = {fact: count for fact, count in TABLE_COUNTS.items() if fact in facts}
        swept = [fact for fact in facts if fact not in counts]
        for model, dtype in sorted({(model, v.dtype) for v in variants for model in v.models}):
            if only not in (None, dtype):
                continue
            for size in dims if swept else (0,):
                sized = {**dict.fromkeys(swept, size), **counts}
                request = Request(name, dtype, model, {**sized, "align": size & -size or 2**20})
                found = [(v, why) for v, why in registry.explain(request) if v.dtype == dtype and model in v.models]
                found.sort(key=lambda pair: -registry.rank(pair[0]))
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", SelfCheckWarning)  # the table says so
                        best = registry.resolve(request)
                except GrillyError:
                    best = None
                heading(", ".join([name, model, dtype, *(f"{fact} {value:,}" for fact, value in sized.items())]))
                if dtype in SIXTEEN_BITS and lacks_storage(registry):
                    print(f"{dtype} arrays are converted to float32 on this device: no 16-bit storage")
                table(
                    ("kernel", "rank", "tile", "threads", "shared", "verdict"),
                    [
                        (v.label, registry.rank(v), " ".join(f"{k} {n}" for k, n in v.tile.items()), v.threads,
                         bytes_text(v.shared_bytes), _verdict(registry, request, v, why, best))
                        for v, why in found
                    ],
                    right=("rank", "threads", "shared"),
                )  # fmt: skip


def _verdict(registry: Registry, request: Request, variant, reason: str | None, best) -> str:
    if reason is not None:
        return reason
    measured = best is not None and best.variant.name == registry.measured(request)
    if best is not None and best.variant is variant:
        parts = [f"with subgroups of {best.subgroup_size}"] if best.subgroup_size else []
        parts += ["measured by grilly tune"] if measured else []
        parts += [UNCHECKED] if registry.unchecked(variant, dict(request.problem)) else []
        return ", ".join(["used", *parts])
    return f"can run; {best.variant.label} {'was measured faster' if measured else 'ranks higher'}"
