"""``grilly quantize``: a GGUF file from a model's folder."""

from __future__ import annotations

import argparse
import os
import sys
import time

from . import CommandError
from .files import check_destination, destination
from .output import bytes_text, shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    from ..models.gguf.mixes import MIXES

    parser.add_argument("folder", metavar="FOLDER", help="config.json, safetensors and tokenizer.json of a model")
    parser.add_argument("file", metavar="FILE", type=destination, help="the file to write, such as model.gguf")
    parser.add_argument("--type", choices=tuple(MIXES), default="Q4_K_M",
                        help="of most matrices; with _M some have 6 bits (default: %(default)s)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Write the file; how far that is is told on stderr where that is a terminal."""
    from ..models import write_gguf

    if args.file == "-":
        raise CommandError("FILE must be a file: what is written first is known last")
    check_destination(args.file)
    start, terminal = time.perf_counter(), sys.stderr.isatty()

    def progress(done: int, count: int) -> None:
        if terminal:
            print(f"\r{done} of {count} tensors", end="" if done < count else "\n", file=sys.stderr, flush=True)

    write_gguf(args.folder, args.file, args.type, progress=progress)
    size = bytes_text(os.path.getsize(args.file))
    print(f"{shown(args.file)}: {size} as {args.type}, after {time.perf_counter() - start:.1f} s")
    return 0
