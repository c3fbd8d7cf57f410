"""``grilly embed``: vectors of the lines of a file, by an encoder of sentences."""

from __future__ import annotations

import argparse
import io
import time
from pathlib import Path

import numpy as np

from . import CommandError
from .common import add_device, add_loading, called, default_device, read_input
from .output import check_writable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", metavar="FOLDER", help="config.json, safetensors and tokenizer.json of an encoder")
    parser.add_argument("file", metavar="FILE", help="a text in UTF-8, of which each line is a sentence; - for stdin")
    parser.add_argument("--output", metavar="FILE", help="default: FILE with .npy at its end")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="default: %(default)s")
    add_loading(parser)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    """Write float32 (lines, width) as a .npy file."""
    text = _text(args.file)
    # Not splitlines, to which a page break or a separator of Unicode's ends a line too: rows are those of other tools.
    lines = text.removesuffix("\n").split("\n")
    if not text:
        raise CommandError(f"{called(args.file)} has no lines")
    if args.file == "-" and args.output is None:
        raise CommandError("--output must say where the vectors of standard input go")
    output = Path(args.output or f"{args.file}.npy")
    check_writable(str(output))
    with default_device(args) as backend:
        from ..models import SentenceEncoder

        encoder = SentenceEncoder.load(args.folder, args.dtype, backend, ignore=args.ignore)
        start = time.perf_counter()
        vectors = encoder.encode(lines, args.batch_size)
        seconds = time.perf_counter() - start
    try:
        with open(output, "wb") as file:
            np.save(file, vectors)
    except OSError as error:
        raise CommandError(f"{output} cannot be written: {error.strerror}") from error
    print(f"{output}: {len(lines)} vectors of {vectors.shape[1]}; {len(lines) / seconds:.1f} lines a second")
    return 0


def _text(file: str) -> str:
    """What a file or standard input holds: UTF-8, which a locale's encoding need not be."""
    try:
        # Some editors begin a file with a mark of its encoding.
        return io.TextIOWrapper(io.BytesIO(read_input(file)), encoding="utf-8-sig").read()
    except UnicodeDecodeError as error:
        raise CommandError(f"{called(file)} cannot be read: {error}") from error
