#!/usr/bin/env python3
"""Times training steps as a program gets them, beside torch on its GPU in the same run; prints a table.

    python tools/bench_training.py --folder /dev/shm/models --torch --json figures.json

Models have random weights (tools/random_models.py). A step is forward, backward and AdamW, of all weights or of
adapters (LoRA of rank 16 on all linear layers but the head), in bfloat16 with float32 masters, without dropout; it is
captured, and timed by replays one after the other with one wait at the end. Torch runs transformers' model of the same
folder under autocast, not compiled. The first loss of both is compared. --tiny makes all models small, to try the
script. A measurement that fails says why, and the next goes on.
"""

from __future__ import annotations

import argparse
import functools
import gc
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np

import grilly
import random_models
from bench_calls import torch_with_gpu
from bench_shapes import chain
from grilly import functional as F
from grilly import models, nn, optim
from measured import add_json, write

#: A first loss of ours and of torch's may differ by this much: both compute in bfloat16.
LOSSES_APART = 0.05


def loss_of(model, ids, labels):
    logits = model(input_ids=ids).logits
    rows = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), reduction="none")
    return grilly.mean(rows.astype("float32"))


def tokens_of(config: dict, batch: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Random tokens and those that follow them; int64."""
    drawn = np.random.default_rng(0).integers(0, config["vocab_size"], (batch, length + 1))
    return np.ascontiguousarray(drawn[:, :-1]), np.ascontiguousarray(drawn[:, 1:])


def of_grilly(backend, folder: Path, ids, labels, rank: int, checkpoints: bool, seconds: float) -> dict:
    """Seconds of a step, the host's seconds of it, peak bytes and the first loss, of a captured step."""
    model = models.load(folder, "bfloat16", backend=backend).train()
    if rank:
        grilly.lora(model, rank=rank, alpha=rank, targets="all-linear", rng=0)
    if checkpoints:
        model.checkpoint_layers()
    optimizer = optim.AdamW(1e-5)
    optimizer.init(model, [name for name, part in model.named_parameters() if part.requires_grad])
    of = grilly.value_and_grad(loss_of)

    def step(ids, labels):
        loss, grads = of(model, ids, labels)
        optimizer.update(model, grads)
        return loss

    given = [backend.tensor(ids.astype(np.int32)), backend.tensor(labels.astype(np.int32))]
    begun = time.perf_counter()
    first = float(step(*given))
    graph = backend.capture(step, *given)
    before = time.perf_counter() - begun
    loss = float(graph(*given))
    backend.memory(reset_peak=True)
    taken = chain(lambda: graph(*given), backend.synchronize, seconds)
    begun = time.perf_counter()
    last = graph(*given)
    host = time.perf_counter() - begun
    last = float(last)
    if not last < first:
        raise RuntimeError(f"the loss does not fall: {first}, {loss}, {last}")
    return {
        "seconds": taken, "host": host, "peak": backend.memory().peak, "loss": first,
        "dispatches": graph.dispatches, "before": before,
    }  # fmt: skip


def of_torch(torch, folder: Path, ids, labels, rank: int, checkpoints: bool, seconds: float) -> dict:
    """The same of transformers' model under autocast; adapters by peft."""
    import transformers

    dtype = torch.bfloat16 if rank else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").cuda()
    model.train()
    if checkpoints:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    if rank:
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear"))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-5, fused=True)
    given = [torch.from_numpy(a).cuda() for a in (ids, labels)]

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(input_ids=given[0], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), given[1].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    first = float(step())
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    taken = chain(step, torch.cuda.synchronize, seconds)
    return {"seconds": taken, "peak": torch.cuda.max_memory_allocated(), "loss": first}


class Arrays(nn.Module):
    """A module of nothing but parameters of one size."""

    def __init__(self, count: int, each: int):
        super().__init__()
        for number in range(count):
            setattr(self, f"p{number}", nn.Parameter(np.zeros(each, np.float32)))


def updates(backend, flat, seconds: float) -> list[dict]:
    """AdamW of 200 parameters of the gradients' dtype: gradients that lie side by side and not, captured and not."""
    each, lines = flat.size // 200, []
    beside = {f"p{i}": flat[i * each : (i + 1) * each] for i in range(200)}
    apart = {name: grilly.asarray(part, copy=True) for name, part in beside.items()}
    model, optimizer = Arrays(200, each).to(dtype=flat.dtype), optim.AdamW(1e-3)
    optimizer.init(model)
    for what, grads in (("side by side", beside), ("apart", apart)):
        step = functools.partial(optimizer.update, model, grads)
        for how, timed in (("captured", backend.capture(step)), ("not captured", step)):
            taken = chain(timed, backend.synchronize, seconds)
            what_of = f"AdamW, {flat.dtype.name}, gradients {what}, {how}"
            lines.append({"what": what_of, "by": "grilly", "seconds": taken, "rate": 28 * flat.size / taken})
    return lines


def adamw(backend, torch, count: int, seconds: float) -> list[dict]:
    """AdamW of so many parameters in 200 arrays, in place; 28 bytes are read and written for each.

    Of float32, and of bfloat16 with float32 masters, which take as many bytes.
    """
    each, lines = count // 200 // 16 * 16, []
    flat = backend.tensor(np.random.default_rng(0).standard_normal(each * 200, dtype=np.float32))
    for dtype in ("float32", "bfloat16"):
        lines += updates(backend, flat.astype(dtype), seconds)
        gc.collect()
    if torch is not None:
        theirs = [torch.zeros(each, device="cuda", requires_grad=True) for _ in range(200)]
        for one in theirs:
            one.grad = torch.randn(each, device="cuda")
        fused = torch.optim.AdamW(theirs, 1e-3, fused=True)
        taken = chain(fused.step, torch.cuda.synchronize, seconds)
        lines.append({"what": "AdamW, float32", "by": "torch, fused", "seconds": taken, "rate": 28 * flat.size / taken})
    for line in lines:
        print(f"{line['what']:58} {line['by']:12} {line['seconds'] * 1e3:9.3f} ms {line['rate'] / 1e12:6.2f} TB/s")
    return lines


#: Fields of configurations that say how much is dropped.
DROPOUTS = ("attn_pdrop", "resid_pdrop", "embd_pdrop")
#: Model, batch, length, rank of adapters (0: all weights), layers computed again.
STEPS = [
    ("gpt2", 16, 1024, 0, False),
    ("gpt2", 4, 1024, 0, False),
    ("llama-1b", 4, 1024, 16, False),
    ("llama-1b", 4, 1024, 16, True),
    ("llama-8b", 1, 1024, 16, False),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the models are, or are written")
    parser.add_argument("--models", nargs="+", default=["gpt2", "llama-1b"], help="gpt2, llama-1b, llama-8b")
    parser.add_argument("--parameters", type=int, default=201_000_000, help="of AdamW alone; 0 leaves it out")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each figure")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--torch", action="store_true", help="time torch too")
    add_json(parser)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    torch = torch_with_gpu() if options.torch else None
    backend = grilly.Compute()
    grilly.use(backend)
    print(f"{backend.device.name}, {backend.device.driver} {backend.device.driver_version}")
    lines: list[dict] = []
    if options.parameters:
        lines += adamw(backend, torch, options.parameters if not options.tiny else 20_000, options.seconds / 3)
    failed = False
    for name, batch, length, rank, checkpoints in STEPS:
        if name not in options.models:
            continue
        config = random_models.MODELS[name][options.tiny] | dict.fromkeys(DROPOUTS, 0.0)
        where = random_models.write(folder / f"{name}{'-tiny' * options.tiny}", config)
        batch, length = (2, 32) if options.tiny else (batch, length)
        ids, labels = tokens_of(config, batch, length)
        what = f"{name} {batch} x {length}{f', LoRA {rank}' if rank else ''}{', checkpoints' if checkpoints else ''}"
        found = {}
        for by, run in (("grilly", lambda *a: of_grilly(backend, *a)), ("torch", lambda *a: of_torch(torch, *a))):
            if by == "torch" and torch is None:
                continue
            try:
                line = run(where, ids, labels, rank, checkpoints, options.seconds)
            except Exception as error:
                failed = True
                traceback.print_exc()
                lines.append({"what": what, "by": by, "failed": str(error)})
                continue
            finally:
                gc.collect()
                if torch is not None:
                    torch.cuda.empty_cache()
            found[by] = line
            line["rate"] = batch * length / line["seconds"]
            more = ""
            if "host" in line:
                more = f"  host {line['host'] * 1e3:.2f} ms, {line['dispatches']} dispatches, "
                more += f"first {line['before']:.1f} s"
            print(f"{what:34} {by:8} {line['seconds'] * 1e3:9.2f} ms {line['rate']:10,.0f} tokens/s "
                  f"peak {line['peak'] / 2**30:6.2f} GiB  loss {line['loss']:.3f}{more}", flush=True)  # fmt: skip
            lines.append({"what": what, "by": by, **line})
            write(options.json, backend, lines)
        if len(found) == 2 and not abs(found["grilly"]["loss"] - found["torch"]["loss"]) < LOSSES_APART:
            failed = True
            print(f"WRONG: the losses of {what} differ")
    write(options.json, backend, lines)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
