#!/usr/bin/env python3
"""Trains small models from the same weights on the same batches with grilly and with torch, and compares the losses.

    python tools/loss_curves.py                 GPT-2 and BERT, 200 steps each; prints the table of docs/training.md
    python tools/loss_curves.py --model gpt2 --steps 50 --json losses.json

A step is forward, backward and AdamW in float32, without dropout; torch runs transformers' model on the CPU. Both are
held against torch in float64. How far float32 may be from that is what torch's own runs show: each adds up the same
terms in another order, as the rows of every batch are permuted or another number of threads computes. So a step's
spread is the largest distance of these runs from float64 up to this step. grilly's runs, of which one calls each step
and one replays it, should be about within it. The table shows distances, each the largest up to its step.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "grilly_py"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import grilly  # noqa: E402
from grilly import functional as F  # noqa: E402
from grilly import models, optim  # noqa: E402
from measured import add_json, write  # noqa: E402

VOCABULARY, LENGTH, BATCH = 32, 32, 8
RATE, DECAY = 1e-3, 0.01
#: Orders of the rows of a batch in torch's runs, beside the given one.
ORDERS = 5
#: Steps of the table.
SHOWN = (1, 10, 50, 100, 200)
#: Distances from float64 below this share of the loss are what one rounding of it is.
ROUNDING = 2.0**-24


def gpt2() -> Any:
    """A language model of four layers."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=64, n_layer=4, n_head=4, attn_pdrop=0.0, embd_pdrop=0.0,
        resid_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def bert() -> Any:
    """An encoder of four layers that tells what stands at masked places."""
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, max_position_embeddings=LENGTH, hidden_size=64, num_hidden_layers=4,
        num_attention_heads=4, intermediate_size=256, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


transformers.utils.logging.disable_progress_bar()
MODELS: dict[str, Callable[[], Any]] = {"gpt2": gpt2, "bert": bert}
#: The token that hides others from BERT.
HIDDEN = 1


def batches(name: str, steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Inputs and labels of steps, int64 (BATCH, LENGTH); -100 where nothing is asked.

    Tokens follow those before by a table of chances, so that there is something to learn.
    """
    rng = np.random.default_rng(0)
    following = rng.integers(2, VOCABULARY, (VOCABULARY, 3))
    for _ in range(steps):
        rows = np.empty((BATCH, LENGTH + 1), np.int64)
        rows[:, 0] = rng.integers(2, VOCABULARY, BATCH)
        for place in range(LENGTH):
            rows[:, place + 1] = following[rows[:, place], rng.choice(3, BATCH, p=(0.7, 0.2, 0.1))]
        if name == "gpt2":
            yield rows[:, :-1], rows[:, 1:]
        else:
            asked = rng.random((BATCH, LENGTH)) < 0.25
            yield np.where(asked, HIDDEN, rows[:, :-1]), np.where(asked, rows[:, :-1], -100)


def of_torch(
    folder: Path, name: str, steps: int, order: int = 0, threads: int = 1, dtype: str = "float32"
) -> np.ndarray:
    """The losses before each step; of ``order`` 0 with the rows as they are given."""
    torch.set_num_threads(threads)
    kind = type(MODELS[name]())
    model = kind.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa").train()
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=DECAY)
    rng, losses = np.random.default_rng(order), []
    for ids, labels in batches(name, steps):
        places = rng.permutation(BATCH) if order else np.arange(BATCH)
        logits = model(input_ids=torch.from_numpy(ids[places])).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(labels[places]).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def of_grilly(
    backend: grilly.Compute, folder: Path, name: str, steps: int, captured: bool, decay: float = DECAY
) -> np.ndarray:
    """The losses before each step."""
    model = models.load(folder, "float32", backend=backend).train()
    optimizer = optim.AdamW(RATE, weight_decay=decay)
    optimizer.init(model)

    def loss_of(model, ids, labels):
        logits = model(input_ids=ids)[0]
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1))

    def step(ids, labels):
        loss, gradients = grilly.value_and_grad(loss_of)(model, ids, labels)
        optimizer.update(model, gradients)
        return loss

    run: Callable = step
    losses = []
    for given in batches(name, steps):
        ids, labels = map(backend.tensor, given)
        if captured and run is step:
            run = backend.capture(step, ids, labels)
        losses.append(run(ids, labels))
    return np.array([float(loss) for loss in losses])


def farthest(runs: list[np.ndarray], exact: np.ndarray) -> np.ndarray:
    """The largest distance of runs from float64 up to each step, and one rounding of the loss at least."""
    return np.maximum.accumulate(np.maximum(np.max(np.abs(np.array(runs) - exact), axis=0), ROUNDING * exact))


def compared(backend: grilly.Compute, name: str, steps: int) -> dict[str, Any]:
    """The losses of all runs of a model, and the largest shares of torch's spread that grilly's runs take."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        MODELS[name]().save_pretrained(folder)
        place = Path(folder)
        exact = of_torch(place, name, steps, dtype="float64")
        theirs = [of_torch(place, name, steps, order) for order in range(ORDERS + 1)]
        theirs.append(of_torch(place, name, steps, threads=2))
        ours = {way: of_grilly(backend, place, name, steps, way == "replayed") for way in ("called", "replayed")}
    spread = farthest(theirs, exact)
    shares = {way: float((np.abs(run - exact) / spread).max()) for way, run in ours.items()}
    return {"name": name, "exact": exact, "torch": theirs, "grilly": ours, "shares": shares}


def table(found: list[dict[str, Any]]) -> str:
    """The table of docs/training.md."""
    lines = ["| model | step | loss | PyTorch, at most | grilly, at most |", "|---|---|---|---|---|"]
    for one in found:
        exact, name = one["exact"], one["name"]
        far = [farthest(runs, exact) for runs in (one["torch"], list(one["grilly"].values()))]
        for step in SHOWN:
            if step <= len(exact):
                theirs, ours = (f"{distance[step - 1]:.1e}".replace("e-0", "e-") for distance in far)
                lines.append(f"| {name} | {step} | {exact[step - 1]:.4f} | {theirs} | {ours} |")
                name = ""
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS, help="may come again (default: all)")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="default: %(default)s")
    add_json(parser)
    args = parser.parse_args()
    with grilly.Compute() as backend:
        found = [compared(backend, name, args.steps) for name in args.model or MODELS]
        print(table(found))
        for one in found:
            print(f"{one['name']}: of the spread of PyTorch's runs, grilly's take at most "
                  + ", ".join(f"{share:.2f} ({way})" for way, share in one["shares"].items()))  # fmt: skip
        write(args.json, backend, found)


if __name__ == "__main__":
    main()
