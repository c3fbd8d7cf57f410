"""``grilly run``: a model of ONNX on arrays from files."""

from __future__ import annotations

import argparse
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from . import CommandError
from .common import add_device, open_backend


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="an .onnx file")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=FILE", type=_named,
                        help="a .npy file for an input, once for each; or an .npz file, of which arrays are named as "
                        "inputs are")  # fmt: skip
    parser.add_argument("--output", metavar="FILE", help="an .npz file; default: MODEL with .npz at its end")
    parser.add_argument("--no-capture", action="store_true", help="run node by node instead of as one captured graph")
    parser.add_argument("--seed", type=int, metavar="N", help="of random numbers, where the model draws some")
    add_device(parser)


def _named(text: str) -> tuple[str, str]:
    if text.endswith(".npz") and "=" not in text:
        return "", text
    name, _, path = text.partition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=FILE, or a file that ends with .npz")
    return name, path


def run(args: argparse.Namespace) -> int:
    """Write the outputs by name as an .npz file."""
    given = [pair for name, path in args.input for pair in (_arrays(path) if not name else [(name, _array(path))])]
    feeds = dict(given)
    if len(feeds) < len(given):
        raise CommandError("--input names an input twice")
    try:
        with open_backend(args) as backend:
            from ..onnx import Model

            model = Model(args.model, backend)
            start = time.perf_counter()
            found = model.run(feeds, capture=not args.no_capture, seed=args.seed)
            seconds = time.perf_counter() - start
    except (ImportError, ValueError, TypeError) as error:
        raise CommandError(str(error)) from error
    output = Path(args.output or f"{args.model}.npz")
    try:
        with open(output, "wb") as file:
            np.savez(file, **found)  # type: ignore[arg-type]
    except OSError as error:
        raise CommandError(f"{output} cannot be written: {error.strerror}") from error
    for name, array in found.items():
        print(f"{name}: {array.dtype.name} {array.shape}")
    how = f"one graph of {model.graph.dispatches} dispatches" if model.graph else "node by node"
    if model.uncaptured:
        how += f", as it cannot be captured: {model.uncaptured}"
    nodes = f"{model.executed} nodes on the device, {model.folded} folded"
    print(f"{output}: {seconds:.2f} s with preparation; {nodes}; {how}")
    return 0


def _array(path: str) -> np.ndarray:
    found = _loaded(path)
    if not isinstance(found, np.ndarray):
        raise CommandError(f"{path} holds several arrays; expected an .npy file")
    return found


def _arrays(path: str) -> list[tuple[str, np.ndarray]]:
    """The arrays of an .npz file by name."""
    found = _loaded(path)
    if isinstance(found, np.ndarray):
        raise CommandError(f"{path} holds one array without a name; expected an .npz file")
    return list(found.items())


def _loaded(path: str) -> Any:
    try:
        found = np.load(path, allow_pickle=False)
        return found if isinstance(found, np.ndarray) else dict(found)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise CommandError(f"{path} cannot be read: {error}") from error
