"""``grilly info``: devices, runtimes, and the variants chosen on one device; or what a model's files have and need."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Container
from pathlib import Path

import numpy as np

from ..compute import devices
from ..compute.attention.cache_types import CACHE_TYPES, cache_nbytes
from ..compute.backend import memory_limit_of
from ..compute.device.device import HEAP_SHARE
from ..compute.quantized import packed_nbytes
from ..errors import GrillyError, ModelError, NoDeviceError
from ..quantization.packing import PACKINGS, UNIT
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
from .output import as_json, bytes_text, facts, heading, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", metavar="FILE", nargs="?",
                        help="a GGUF file or a model's folder: list what it has, and say what a device needs, and "
                        "whether it fits; not devices")  # fmt: skip
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help="of the model: as in load")
    parser.add_argument("--dequantize", action="store_true", help="of the model: as in load, floats")
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 when a device is there and nothing can run on it."""
    if args.file is not None:
        return _describe(args)
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


def _describe(args: argparse.Namespace) -> int:
    """Print what a model's files have, and what a device needs."""
    folder = os.path.isdir(args.file)
    keys, tensors = _of_folder(args.file) if folder else _of_file(args.file)
    needs, refused = _needs(args)
    kept = () if args.dequantize else PACKINGS
    nbytes = needs["weights"] if needs else sum(_on_device(one["type"], one["shape"], kept) for one in tensors)
    if args.json:
        print(as_json({"keys": keys, "tensors": tensors, "device_nbytes": nbytes, "needs": needs, "refused": refused}))
        return 0
    heading(f"{'Fields' if folder else 'Keys'} of {args.file}")
    facts({_shown(key): _short(value) for key, value in keys.items()} or {"none": ""})
    size = bytes_text(sum(one["nbytes"] for one in tensors))
    heading(f"Tensors: {len(tensors)}, {size}; {bytes_text(nbytes)} on a device, beside caches and workspace")
    rows = [(_shown(one["name"]), one["type"], " x ".join(map(str, one["shape"])), bytes_text(one["nbytes"]))
            for one in tensors]  # fmt: skip
    table(("name", "type", "shape", "size"), rows, right=("size",))
    heading("What a device needs")
    facts(_needs_text(needs) if needs else {"not loaded": refused})
    return 0


def _of_file(file: str) -> tuple[dict, list[dict]]:
    """The keys and tensors of a GGUF file."""
    from ..models import GGUF

    gguf = GGUF(file)
    keys = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in gguf.keys.items()}
    return keys, [{"name": name, "type": one.type, "shape": list(one.shape), "nbytes": one.nbytes}
                  for name, one in gguf.tensors.items()]  # fmt: skip


def _of_folder(folder: str) -> tuple[dict, list[dict]]:
    """The fields of config.json, and the tensors, of a folder."""
    from ..models.checkpoint import Checkpoint
    from ..models.config import read_json

    fields = read_json(Path(folder) / "config.json")
    return fields, [{"name": name, "type": one.kind, "shape": list(one.shape), "nbytes": one.nbytes}
                    for name, one in Checkpoint(Path(folder)).entries.items()]  # fmt: skip


def _needs(args: argparse.Namespace) -> tuple[dict | None, str | None]:
    """What a device needs for a model, in bytes; or why load refuses it."""
    from ..models.decoder import Decoder
    from ..models.loading import class_of, on_paper
    from ..models.offload import SPARE, planned

    try:
        paper = on_paper(class_of, args.file, args.dtype, dequantize=args.dequantize)
    except ModelError as error:
        return None, str(error)
    found = {"model": type(paper.model).__name__, "dtype": str(paper.weights.dtype), "weights": paper.weights.nbytes,
             "quantized": len(paper.weights.kept), "layers": len(paper.layers)}  # fmt: skip
    if isinstance(paper.model, Decoder):
        layers, heads, dim = paper.model.cached
        kinds = {"": paper.weights.dtype} | {f"_{name}": name for name in CACHE_TYPES if dim % UNIT == 0}
        found |= {
            f"cache_of_a_token{name}": 2 * layers * cache_nbytes(kind, 1, 1024, heads, dim) // 1024
            for name, kind in kinds.items()
        }
    try:
        device = choose(args)
    except NoDeviceError:
        return found, None
    limit = memory_limit_of(None)
    most = int(HEAP_SHARE * device.memory_bytes) if limit is None else limit
    own = planned(paper.layers, paper.weights.nbytes, "auto", int((1 - SPARE) * most))
    found |= {"device": device.name, "memory": most, "fits": own is None and paper.weights.nbytes <= most}
    if own is not None:
        rest = paper.weights.nbytes - own.nbytes + own.on_device
        found["offload"] = {"layers": len(own.layers), "nbytes": own.nbytes, "weights": rest, "fits": rest <= most}
    return found, None


def _needs_text(needs: dict) -> dict[str, str]:
    """The same as a person reads it."""
    kept = f", {needs['quantized']} tensors quantized" if needs["quantized"] else ""
    lines = {"model": f"{needs['model']}, computed in {needs['dtype']}{kept}", "weights": bytes_text(needs["weights"])}
    token = needs.get("cache_of_a_token")
    if token:
        lines["cache"] = f"{bytes_text(token)} a token, {bytes_text(4096 * token)} for 4,096"
        less = [f"{bytes_text(4096 * needs[key])} as {name}" for name in CACHE_TYPES
                if (key := f"cache_of_a_token_{name}") in needs]  # fmt: skip
        lines["cache"] += f"; {', '.join(less)}" if less else ""
    if "memory" not in needs:
        return {**lines, "device": "none is here"}
    lines["device"] = f"{needs['device']}: {bytes_text(needs['memory'])} for tensors"
    if "offload" not in needs:
        left = needs["memory"] - needs["weights"]
        room = f", and {left // token:,} tokens" if token else ""
        return {**lines, "fits": f"yes, with {bytes_text(left)} left{room}"}
    own = needs["offload"]
    said = (f"no; load(..., offload='auto') keeps {own['layers']} of {needs['layers']} layers in host memory and sends "
            f"{bytes_text(own['nbytes'])} for each call")  # fmt: skip
    return {**lines, "fits": said if own["fits"] else "no, nor with all layers in host memory (offload)"}


def _on_device(type: str, shape: tuple[int, ...], kept: Container[str]) -> int:
    """Bytes of a tensor that is loaded without a dtype: matrices of kept types stay quantized, others become floats."""
    if type in kept and len(shape) == 2:
        return packed_nbytes(type, shape)
    return math.prod(shape) * (2 if type in ("F16", "BF16") else 4)


def _shown(name: str) -> str:
    """A name, without signs that a terminal would obey."""
    return name if name.isprintable() else repr(name)


def _short(value: object) -> str:
    """A value in one line."""
    if isinstance(value, (list, np.ndarray)):
        some = value[:3].tolist() if isinstance(value, np.ndarray) else value[:3]
        first = ", ".join(f"{one!r:.40}" for one in some)
        return f"{len(value)}: {first}{', ...' if len(value) > 3 else ''}"
    return f"{value!r:.200}" if isinstance(value, str) else str(value)


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
