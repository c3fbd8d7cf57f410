"""``grilly transcribe``: the text of a sound, by Whisper from a folder, as it comes."""

from __future__ import annotations

import argparse
import sys
import time

from . import CommandError
from .common import add_device, add_loading, called, default_device, read_input, tell_left_out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", metavar="FOLDER", help="Whisper: config.json, generation_config.json, "
                        "preprocessor_config.json, safetensors and tokenizer.json")  # fmt: skip
    parser.add_argument("file", metavar="FILE", help="speech: WAV, FLAC, OGG, MP3 or another format of "
                        "libsndfile (without the package soundfile: WAV); - for stdin")  # fmt: skip
    parser.add_argument("--language", metavar="CODE",
                        help="what is spoken, such as en (default: the folder's, or what is heard)")  # fmt: skip
    parser.add_argument("--task", metavar="TASK",
                        help="transcribe, or translate into English (default: the folder's or transcribe)")  # fmt: skip
    parser.add_argument("--max-new-tokens", type=int, metavar="N",
                        help="of each piece of 30 s (default: as many as the model has room for)")  # fmt: skip
    add_loading(parser)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    """Print the text as it comes, and on stderr how long it took."""
    with default_device(args) as backend:
        from ..models import Transcriber
        from ..models.sounds import decode

        samples, rate = decode(read_input(args.file), called(args.file))
        if not samples.size:
            raise CommandError(f"{called(args.file)} has no samples")
        transcriber = Transcriber.load(
            args.folder, args.dtype, backend, ignore=args.ignore, dequantize=args.dequantize
        )
        tell_left_out(args, transcriber.model)
        return _print(args, transcriber, samples, rate)


def _print(args: argparse.Namespace, transcriber, samples, rate: int) -> int:
    options = {} if args.max_new_tokens is None else {"max_new_tokens": args.max_new_tokens}
    start, begun = time.perf_counter(), False
    stream = transcriber.stream(samples, rate, language=args.language, task=args.task, **options)
    try:
        for part in stream:
            part = part if begun else part.lstrip()  # words begin with a space
            begun = begun or bool(part)
            print(part, end="", flush=True)
    finally:  # what is said of an interrupt stands on a line of its own
        print()
    print(f"{len(samples) / rate:.1f} s of sound in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return 0
