"""``grilly embed``: vectors of the lines of a file, by an encoder of sentences."""

from __future__ import annotations

import argparse
import codecs
import io
import time

from . import CommandError
from .common import add_device, add_loading, called, default_device, read_input
from .files import beside, beside_arrays, check_destination, destination, write_array
from .output import shown

#: How texts of other encodings begin, the longer marks first.
MARKS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16",
         codecs.BOM_UTF16_BE: "UTF-16"}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", metavar="FOLDER",
                        help="config.json, safetensors and tokenizer.json of an encoder, or a GGUF file")  # fmt: skip
    parser.add_argument("file", metavar="FILE", help="a text in UTF-8, of which each line is a sentence; - for stdin")
    parser.add_argument("--output", metavar="FILE", type=destination,
                        help="a .npy file; - for standard output; default: FILE with .npy at its end")  # fmt: skip
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
    output = args.output or beside(args.file, ".npy")
    check_destination(output)
    with default_device(args) as backend:
        from ..models import SentenceEncoder

        encoder = SentenceEncoder.load(
            args.folder, args.dtype, backend, ignore=args.ignore, dequantize=args.dequantize
        )
        start = time.perf_counter()
        vectors = encoder.encode(lines, args.batch_size)
        seconds = time.perf_counter() - start
    write_array(output, vectors)
    said = f"{len(lines)} vectors of {vectors.shape[1]}; {len(lines) / seconds:.1f} lines a second"
    print(f"{shown(output)}: {said}", file=beside_arrays(output))
    return 0


def _text(file: str) -> str:
    """What a file or standard input holds: UTF-8, which a locale's encoding need not be."""
    data = read_input(file)
    try:
        # Some editors begin a file with a mark of its encoding.
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read()
    except UnicodeDecodeError as error:
        known = next((name for mark, name in MARKS.items() if data.startswith(mark)), None)
        found = "" if known is None else f"; it begins as {known} does: iconv --from-code {known} --to-code UTF-8"
        raise CommandError(f"{called(file)} cannot be read: {error}; expected UTF-8{found}") from error
