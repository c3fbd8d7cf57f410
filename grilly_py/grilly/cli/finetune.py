"""``grilly finetune``: train a language model on texts or chats, by adapters or as a whole."""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import math
import sys
from pathlib import Path

from . import CommandError
from .common import add_device, add_loading, default_device


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", metavar="FOLDER", help="config.json, safetensors and tokenizer.json of a model")
    parser.add_argument("data", metavar="DATA.jsonl",
                        help='a line each: {"text": "..."}, or {"messages": [...]}, of which the assistant\'s are '
                        "learned")  # fmt: skip
    parser.add_argument("--output", required=True, metavar="FOLDER", help="where the result and checkpoints go")
    parser.add_argument("--steps", type=int, required=True, metavar="N", help="how many to train")
    parser.add_argument("--lora", type=int, metavar="RANK", help="train adapters of this rank (default: all weights)")
    parser.add_argument("--alpha", type=float, metavar="X", help="of the adapters (default: twice the rank)")
    parser.add_argument("--target", action="append", metavar="NAME",
                        help="layers with adapters, as q_proj; may come again (default: all linear ones)")  # fmt: skip
    parser.add_argument("--dropout", type=float, default=0.0, metavar="P", help="of the adapters' input")
    parser.add_argument("--length", type=int, default=512, metavar="N", help="tokens of a row (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=4, metavar="N", help="rows of a step (default: %(default)s)")
    parser.add_argument("--accumulate", type=int, default=1, metavar="N",
                        help="batches of a step, one after the other (default: %(default)s)")  # fmt: skip
    parser.add_argument("--lr", type=float, metavar="X",
                        help="the highest learning rate (default: 2e-4 of adapters, 2e-5 of all weights)")  # fmt: skip
    parser.add_argument("--warmup", type=int, metavar="N",
                        help="steps until it is reached (default: a tenth, at most 100)")  # fmt: skip
    parser.add_argument("--weight-decay", type=float, default=0.0, metavar="X", help="default: %(default)s")
    parser.add_argument("--checkpoint-layers", action="store_true",
                        help="compute layers again for gradients: less memory, a third more time")  # fmt: skip
    parser.add_argument("--save-every", type=int, default=200, metavar="N",
                        help="steps between checkpoints (default: %(default)s)")  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="go on from the output's checkpoint")
    parser.add_argument("--seed", type=int, default=0, metavar="N",
                        help="of the rows' order, the adapters and what is dropped (default: %(default)s)")  # fmt: skip
    add_loading(parser)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    """Train, and write the adapter or the model, the losses and their picture."""
    _check(args)
    with default_device(args) as backend:
        from ..data import batches
        from ..models import Tokenizer
        from ..models.loading import class_of, load_as
        from ..models.lora import lora
        from ..optim import AdamW, LossScale, warmup_cosine
        from .training import Training

        rows = _rows(args, Tokenizer(args.folder))
        model = load_as(
            class_of, args.folder, args.dtype, backend, ignore=args.ignore, dequantize=args.dequantize,
            check=lambda m: _check_model(args, m, rows),
        )
        model.train().checkpoint_layers(args.checkpoint_layers)
        if args.lora is not None:
            alpha = 2.0 * args.lora if args.alpha is None else args.alpha
            lora(model, args.lora, alpha, args.target or "all-linear", args.dropout, rng=args.seed)
        elif not all(parameter.requires_grad for parameter in model.parameters()):
            raise CommandError(f"{args.folder}: quantized weights are not trained; give --lora, or --dequantize")
        rate = args.lr if args.lr is not None else 2e-5 if args.lora is None else 2e-4
        warmup = min(args.steps // 10, 100) if args.warmup is None else args.warmup
        optimizer = AdamW(warmup_cosine(rate, warmup, args.steps), weight_decay=args.weight_decay, max_grad_norm=1.0,
                          loss_scale=LossScale() if model.dtype.name == "float16" else None)  # fmt: skip
        training = Training(
            model, optimizer, batches(rows, args.batch_size, seed=args.seed, epochs=None, backend=backend),
            _facts(args), Path(args.output), args.seed, args.accumulate,
        )  # fmt: skip
        if args.resume:
            training.resume()
        training.begin()
        _begun(model, rows, len(training.losses), args.steps)
        tokens = rows.filled * args.batch_size * args.accumulate * rows.input_ids.shape[1]
        whole = training.run(args.steps, args.save_every, tokens)
        return _finished(args, model, training.losses) if whole else _interrupted(args, len(training.losses))


def _begun(model, rows, done: int, steps: int) -> None:
    """Say what is trained, on what."""
    sizes = [(math.prod(one.shape), one.requires_grad) for one in model.parameters()]
    trained = sum(size for size, is_trained in sizes if is_trained)
    print(f"grilly finetune: {trained:,} of {sum(size for size, _ in sizes):,} parameters, {len(rows)} rows of "
          f"{rows.input_ids.shape[1]} tokens, {model.backend.device.name}"
          + (f"; {done} of {steps} steps are done" if done else ""), file=sys.stderr)  # fmt: skip


def _check(args: argparse.Namespace) -> None:
    """Refuse numbers out of range, and an output that has something else."""
    least = {"steps": 1, "length": 2, "batch_size": 1, "accumulate": 1, "save_every": 1, "lora": 1, "warmup": 0,
             "seed": 0, "lr": 0, "weight_decay": 0}  # fmt: skip
    for name, bound in least.items():
        number = getattr(args, name)
        if number is not None and not number >= bound:
            raise CommandError(f"--{name.replace('_', '-')} is {number}; expected at least {bound}")
    if args.seed >= 2**32:
        raise CommandError(f"--seed is {args.seed}; expected below 2**32")
    if args.warmup is not None and args.warmup >= args.steps:
        raise CommandError(f"--warmup is {args.warmup}; expected fewer than the {args.steps} steps")
    said = [f"--{name}" for name in ("alpha", "target", "dropout") if getattr(args, name)]
    if args.lora is None and said:
        raise CommandError(f"{said[0]} is of adapters; add --lora RANK")
    if not args.output:
        raise CommandError("--output: expected a folder; the name is empty")
    output = Path(args.output)
    if output.exists() and not output.is_dir():
        raise CommandError(f"{output} is no folder")
    if not args.resume and output.is_dir() and any(output.iterdir()):
        raise CommandError(f"{output} is not empty; give another folder, or --resume to go on from its checkpoint")


def _rows(args: argparse.Namespace, tokenizer):
    """The data's samples, packed."""
    from ..data import pack, read_jsonl

    samples = read_jsonl(args.data, tokenizer)
    beyond = sum(len(sample.tokens) > args.length + 1 for sample in samples if sample.learned is not None)
    if beyond:
        print(f"grilly finetune: {beyond} chats have more than {args.length} tokens, and their ends are cut off; "
              "--length takes more", file=sys.stderr)  # fmt: skip
    rows = pack(samples, args.length)
    if len(rows) < args.batch_size:
        rows_of = f"{len(rows)} row{'s' * (len(rows) != 1)} of {args.length} tokens"
        raise CommandError(f"{args.data} fills {rows_of}, fewer than --batch-size {args.batch_size}; a smaller "
                           "--length or --batch-size takes it")  # fmt: skip
    return rows


def _check_model(args: argparse.Namespace, model, rows) -> None:
    """Refuse a model that continues no texts, before its weights are read."""
    from ..models.decoder import Decoder

    if not isinstance(model, Decoder) or not model.has_head:
        raise CommandError(f"{args.folder}: {type(model).__name__} is no language model")
    if model.positions is not None and args.length > model.positions:
        raise CommandError(f"--length is {args.length}; the model has {model.positions} positions")
    if rows.input_ids.max() >= model.rows:
        raise CommandError(f"{args.folder}: the tokenizer has token {rows.input_ids.max()}, and the model {model.rows} "
                           "tokens; it is another model's")  # fmt: skip


def _facts(args: argparse.Namespace) -> dict:
    """What must be the same for a training to go on."""
    names = ("steps", "lora", "alpha", "target", "dropout", "length", "batch_size", "accumulate", "lr", "warmup",
             "weight_decay", "seed", "dtype")  # fmt: skip
    return {name: getattr(args, name) for name in names}


def _finished(args: argparse.Namespace, model, losses: list[float]) -> int:
    """Write what was trained, the losses and their picture."""
    output = Path(args.output)
    if args.lora is None:
        model.save(output)
    else:
        model.save_adapter(output)
    drawn = _write_losses(output, losses)
    count = max(len(losses) // 10, 1)
    ended = sum(losses[-count:]) / count
    what = "the model" if args.lora is None else "adapter_config.json and adapter_model.safetensors"
    last = f"in the last {count}" if count > 1 else "at the end"
    print(f"{len(losses)} steps: loss {losses[0]:.4f} at first, {ended:.4f} {last}; {output} has {what}, {drawn}")
    return 0


def _write_losses(output: Path, losses: list[float]) -> str:
    """Write loss.csv, and loss.png where that can be drawn; what was written, in words."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("step", "loss"), *enumerate(losses, 1)])
    (output / "loss.csv").write_text(text.getvalue(), encoding="utf-8")
    if importlib.util.find_spec("matplotlib") is None:
        return "loss.csv (a picture needs matplotlib: pip install 'grilly-vulkan[bench]')"
    from .plot import draw_losses

    draw_losses(str(output / "loss.png"), losses)
    return "loss.csv and loss.png"


def _interrupted(args: argparse.Namespace, steps: int) -> int:
    print(f"grilly finetune: interrupted after {steps} of {args.steps} steps; the same command with --resume goes on",
          file=sys.stderr)  # fmt: skip
    return 130
