"""``grilly run``: a model of ONNX on arrays from files."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from . import CommandError
from .common import add_device, open_backend
from .files import (
    beside,
    beside_arrays,
    check_destination,
    check_names,
    destination,
    plain,
    read_array,
    read_arrays,
    write_arrays,
)
from .output import shown

if TYPE_CHECKING:
    from ..onnx.graphs import Loaded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="an .onnx file")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=FILE", type=_named,
                        help="a .npy file for an input, once for each; or an .npz file, of which arrays are named as "
                        "inputs are")  # fmt: skip
    parser.add_argument("--output", metavar="FILE", type=destination,
                        help="an .npz file; a .npy file for one output; - for standard output; default: MODEL with "
                        ".npz at its end")  # fmt: skip
    parser.add_argument("--no-capture", action="store_true", help="run node by node instead of as one captured graph")
    parser.add_argument("--seed", type=int, metavar="N", help="of random numbers, where the model draws some")
    add_device(parser)


def _named(text: str) -> str:
    if not _ways(text) and not text.endswith(".npz"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=FILE, or a file that ends with .npz")
    return text


def _ways(text: str) -> list[tuple[str, str]]:
    """A name and a file for each "=" that may be the one between them."""
    places = (place for place, sign in enumerate(text) if sign == "=" and 0 < place < len(text) - 1)
    return [(text[:place], text[place + 1 :]) for place in places]


def run(args: argparse.Namespace) -> int:
    """Write the outputs by name as an .npz file, or the one output as a .npy file."""
    output = args.output or beside(args.model, ".npz")
    check_destination(output)
    try:
        with open_backend(args) as backend:
            from ..onnx import Model
            from ..onnx.graphs import load

            loaded = load(args.model)
            check_names(output, loaded.outputs)
            feeds = _feeds(args.input, loaded)
            model = Model(loaded, backend)
            start = time.perf_counter()
            found = model.run(feeds, capture=not args.no_capture, seed=args.seed)
            seconds = time.perf_counter() - start
    except (ImportError, ValueError, TypeError) as error:
        raise CommandError(str(error)) from error
    written = {name: plain(array) for name, array in found.items()}
    write_arrays(output, written)
    to = beside_arrays(output)
    for name, array in found.items():
        kept = "" if written[name] is array else f", written as {written[name].dtype.name}"
        print(f"{shown(name)}: {array.dtype.name} {array.shape}{kept}", file=to)
    how = f"one graph of {model.graph.dispatches} dispatches" if model.graph else "node by node"
    if model.uncaptured:
        how += f", as it cannot be captured: {model.uncaptured}"
    nodes = f"{model.executed} nodes on the device, {model.folded} folded"
    print(f"{shown(output)}: {seconds:.2f} s with preparation; {nodes}; {how}", file=to)
    return 0


def _feeds(given: list[str], loaded: Loaded) -> Mapping[str, object]:
    """The arrays that ``--input`` names, checked against what the model asks for."""
    from ..onnx.feeds import checked

    kinds = {each.name: each.dtype for each in (*loaded.inputs, *loaded.optional)}
    feeds: dict[str, np.ndarray] = {}
    for text in given:
        name, path = _split(text, kinds)
        if name is None:
            arrays = read_arrays(path)
        else:  # of a name that is no input the file is not asked for
            arrays = {name: read_array(path) if name in kinds else np.empty(0)}
        for each, array in arrays.items():
            if each in feeds:
                raise CommandError(f"--input names an input twice: {each}")
            feeds[each] = _as_asked(each, array, kinds[each]) if each in kinds else array
    return checked(feeds, loaded.inputs, loaded.optional)


def _split(text: str, kinds: Mapping[str, np.dtype]) -> tuple[str | None, str]:
    """The input that an argument names, None for those that an .npz file does, and the file."""
    ways = _ways(text)
    found: list[tuple[str | None, str]] = [way for way in ways if way[0] in kinds]
    if text.endswith(".npz") and (not ways or os.path.exists(text)):
        found.append((None, text))
    if len(found) > 1:
        said = " or ".join(f"the file {path}" + ("" if name is None else f" for {name}") for name, path in found)
        raise CommandError(f"--input {text} may mean {said}; give an .npz file with arrays of the inputs' names, "
                           "without = in its own")  # fmt: skip
    return found[0] if found else ways[0]


def _as_asked(name: str, array: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Numbers of bfloat16, which NumPy's files hold as bits without a dtype, or as float32; anything else as it is."""
    if kind.name != "bfloat16":
        return array
    if array.dtype == np.dtype("V2"):
        return array.view(kind)
    if array.dtype.kind != "f":
        return array
    with np.errstate(over="ignore"):
        found = array.astype(kind)
    other = (found.astype(array.dtype) != array) & ~np.isnan(array)
    if other.any():
        raise CommandError(f"input {name} is bfloat16, which does not hold {array[other].flat[0]!s}; round the "
                           "array before: array.astype(ml_dtypes.bfloat16)")  # fmt: skip
    return found
