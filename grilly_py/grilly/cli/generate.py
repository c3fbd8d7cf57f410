"""``grilly generate``: a model's continuation of a text, or its answer to one, as it comes."""

from __future__ import annotations

import argparse
import sys
import time

from . import CommandError
from .common import add_device, add_loading, default_device, readable, tell_left_out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", metavar="FOLDER",
                        help="config.json, safetensors and tokenizer.json of a model, or a GGUF file")  # fmt: skip
    parser.add_argument("prompt", metavar="PROMPT", type=readable,
                        help="the text to continue, or for T5 the one to answer")  # fmt: skip
    parser.add_argument("--chat", action=argparse.BooleanOptionalAction,
                        help="the prompt is a message of a user, put into the folder's chat template "
                        "(default: where it has one)")  # fmt: skip
    parser.add_argument("--system", metavar="TEXT", type=readable, help="what a chat is told before the prompt")
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="default: %(default)s")
    parser.add_argument("--temperature", type=float, metavar="T",
                        help="draw tokens, with logits divided by T (default: the likeliest)")  # fmt: skip
    parser.add_argument("--top-k", type=int, metavar="K", 
                        help="draw among the K likeliest, 0 for all (default: the folder's, else 50)")  # fmt: skip
    parser.add_argument("--top-p", type=float, metavar="P",
                        help="draw among the likeliest that together have probability P "
                        "(default: the folder's, else 1)")  # fmt: skip
    parser.add_argument("--repetition-penalty", type=float, metavar="X",
                        help="divide logits of tokens that the text has by X (default: the folder's)")  # fmt: skip
    parser.add_argument("--stop", action="append", metavar="TEXT", type=readable,
                        help="end where the text has this; may come again")  # fmt: skip
    parser.add_argument("--seed", type=int, metavar="N", help="of the sampling")
    parser.add_argument("--offload", type=_layers, default=0, metavar="N",
                        help="keep the matrices of N layers in host memory, or auto: of as many as do not fit "
                        "(default: %(default)s)")  # fmt: skip
    parser.add_argument("--cache-dtype", choices=("q8_0", "q4_0"),
                        help="keep keys and values of earlier tokens in 8.5 or 4.5 bits a number "
                        "(default: as the model computes)")  # fmt: skip
    add_loading(parser)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    """Print the text as it comes, and on stderr how fast it came."""
    _drawing(args)
    with default_device(args) as backend:
        from ..models import Tokenizer
        from ..models.loading import class_of, load_as

        tokenizer = Tokenizer(args.folder)
        ids, mask = _prompt(args, tokenizer)
        model = load_as(
            class_of, args.folder, args.dtype, backend, ignore=args.ignore, offload=args.offload,
            check=lambda m: _check(args, m), cache_dtype=args.cache_dtype, dequantize=args.dequantize,
        )  # fmt: skip
        tell_left_out(args, model, args.temperature is not None, args.stop)  # --help says what is drawn
        return _print(args, model, tokenizer, ids, mask)


def _layers(text: str) -> int | str:
    """What --offload is given."""
    if text == "auto":
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of layers, and not auto")
    return int(text)


def _check(args: argparse.Namespace, model) -> None:
    """Refuse a model that continues no texts, before its weights are read."""
    from ..models.generation import Generates
    from ..models.whisper import WhisperStates

    if isinstance(model, WhisperStates):
        raise CommandError(f"{args.folder}: Whisper writes down sounds; run: grilly transcribe {args.folder} FILE")
    if not isinstance(model, Generates) or not model.has_head:
        raise CommandError(f"{args.folder}: {type(model).__name__} writes no texts")


def _drawing(args: argparse.Namespace) -> None:
    """Refuse what would have no effect, or another one than is meant."""
    if args.temperature == 0:
        raise CommandError("--temperature must be above 0; leave it out for the likeliest tokens")
    said = [f"--{name.replace('_', '-')}" for name in ("top_k", "top_p", "seed") if getattr(args, name) is not None]
    if args.temperature is None and said:
        from ..models.sampling import for_sampling

        raise CommandError(f"{for_sampling(said)}; add --temperature 1 to draw")


def _prompt(args: argparse.Namespace, tokenizer):
    """The tokens of the prompt, and their mask."""
    if args.system is not None and args.chat is False:
        raise CommandError("--system is for chats; leave out --no-chat")
    if tokenizer.has_chat_template if args.chat is None else args.chat:
        system = [] if args.system is None else [{"role": "system", "content": args.system}]
        said = [*system, {"role": "user", "content": args.prompt}]
        text = tokenizer.apply_chat_template(said, add_generation_prompt=True)
        return tokenizer.encode([text], add_special_tokens=False)
    if args.system is not None:
        raise CommandError(f"--system is for chats, and {args.folder} has no chat template")
    return tokenizer.encode([args.prompt])


def _print(args: argparse.Namespace, model, tokenizer, ids, mask) -> int:
    from ..models.written import Written

    start = time.perf_counter()
    written, count, first = Written(tokenizer), 0, start
    stream = model.stream(
        ids, mask, max_new_tokens=args.max_new_tokens, do_sample=args.temperature is not None,
        temperature=args.temperature, top_k=args.top_k, top_p=args.top_p,
        repetition_penalty=args.repetition_penalty, seed=args.seed, stop_strings=args.stop, tokenizer=tokenizer,
    )  # fmt: skip
    try:
        for found in stream:
            count += 1
            first = time.perf_counter() if count == 1 else first
            print(written.add(int(found[0])), end="", flush=True)
        print(written.rest(), end="")
    finally:  # what is said of an interrupt stands on a line of its own
        print()
    end = time.perf_counter()
    rate = f", then {(count - 1) / (end - first):.1f} a second" if count > 1 else ""
    print(f"{count} tokens: the first after {first - start:.2f} s{rate}", file=sys.stderr)
    return 0
