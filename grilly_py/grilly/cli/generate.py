"""``grilly generate``: a model's continuation of a text, or its answer to one, as it comes."""

from __future__ import annotations

import argparse
import sys
import time

from ..compute import use
from . import CommandError
from .common import add_device, open_backend


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", metavar="FOLDER", help="config.json, safetensors and tokenizer.json of a model")
    parser.add_argument("prompt", metavar="PROMPT", help="the text to continue, or for T5 the one to answer")
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="default: %(default)s")
    parser.add_argument("--temperature", type=float, metavar="T",
                        help="draw tokens, with logits divided by T (default: the likeliest)")  # fmt: skip
    parser.add_argument("--top-k", type=int, default=50, metavar="K", help="draw among the K likeliest")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P",
                        help="draw among the likeliest that together have probability P")  # fmt: skip
    parser.add_argument("--repetition-penalty", type=float, default=1.0, metavar="X",
                        help="divide logits of tokens that the text has by X")  # fmt: skip
    parser.add_argument("--stop", action="append", metavar="TEXT", help="end where the text has this; may come again")
    parser.add_argument("--seed", type=int, metavar="N", help="of the drawing")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help="default: that of the weights")
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    """Print the text as it comes, and on stderr how fast it came."""
    try:
        from ..models import Tokenizer, load
        from ..models.generation import Generates

        with open_backend(args) as backend:
            former = use(backend)
            try:
                tokenizer = Tokenizer(args.folder)
                model = load(args.folder, args.dtype, backend)
                if not isinstance(model, Generates):
                    raise CommandError(f"{args.folder}: {type(model).__name__} writes no texts")
                return _print(args, model, tokenizer)
            finally:
                use(former)
    except (ImportError, ValueError, TypeError) as error:
        raise CommandError(str(error)) from error


def _print(args: argparse.Namespace, model, tokenizer) -> int:
    ids, mask = tokenizer.encode([args.prompt])
    start = time.perf_counter()
    tokens: list[int] = []
    shown, first = "", start
    stream = model.stream(
        ids, mask, max_new_tokens=args.max_new_tokens, do_sample=args.temperature is not None,
        temperature=args.temperature or 1.0, top_k=args.top_k, top_p=args.top_p,
        repetition_penalty=args.repetition_penalty, seed=args.seed, stop_strings=args.stop, tokenizer=tokenizer,
    )  # fmt: skip
    for found in stream:
        tokens.append(int(found[0]))
        first = time.perf_counter() if len(tokens) == 1 else first
        text = tokenizer.decode(tokens)
        if text.startswith(shown) and not text.endswith("\ufffd"):  # which stands for a part of a character
            print(text[len(shown) :], end="", flush=True)
            shown = text
    text = tokenizer.decode(tokens)
    print(text[len(shown) :] if text.startswith(shown) else "\n" + text)
    end = time.perf_counter()
    rate = f", then {(len(tokens) - 1) / (end - first):.1f} a second" if len(tokens) > 1 else ""
    print(f"{len(tokens)} tokens: the first after {first - start:.2f} s{rate}", file=sys.stderr)
    return 0
