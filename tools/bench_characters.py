#!/usr/bin/env python3
"""Times a training step of the model of letters beside the same arithmetic written by hand in NumPy.

    python tools/bench_characters.py --seconds 5 --json figures.json

The model is that of docs/examples/characters.py: two blocks of 64 columns on 16 rows of 48 letters, float32, with AdamW
and a norm of gradients. grilly's step is captured and replayed; both get a new batch each step, and the loss is not
waited for. The first losses and all gradients of both are compared. `cpu` is the processor's time of a step, of all
threads together, which other programs hardly change.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs" / "examples"))
from characters import BATCH, HEADS, LAYERS, LENGTH, WIDTH, Letters, loss_of  # noqa: E402

import grilly  # noqa: E402
from grilly import optim  # noqa: E402
from measured import add_json, write  # noqa: E402

Arrays = dict[str, np.ndarray]
LETTERS, RATE, EPSILON, MOST = 96, 3e-3, 1e-6, 1.0
#: Gradients of both may differ by this much, in units of the largest of each array.
APART = 1e-4


# -- the step in NumPy -------------------------------------------------------------------------------------------------


def erf(x: np.ndarray) -> np.ndarray:
    """The error function to 1.5e-7 (Abramowitz and Stegun, 7.1.26); NumPy has none."""
    size = np.abs(x)
    t = 1 / (1 + 0.3275911 * size)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.copysign(1 - series * np.exp(-size * size), x)


def rms_norm(x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, Callable]:
    inverse = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(EPSILON))
    normed = x * inverse

    def pull(g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        own = g * weight
        dx = (own - normed * (own * normed).mean(-1, keepdims=True)) * inverse
        return dx, (g * normed).sum(0)

    return normed * weight, pull


def rotations() -> tuple[np.ndarray, np.ndarray]:
    columns = WIDTH // HEADS
    angles = np.arange(LENGTH)[:, None] * 10000.0 ** (-2 * np.arange(columns // 2) / columns)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


COS, SIN = rotations()
HIDDEN = np.triu(np.ones((LENGTH, LENGTH), bool), 1)


def rotated(x: np.ndarray, sin: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * COS - b * sin, b * COS + a * sin], -1)


def attention(qkv: np.ndarray) -> tuple[np.ndarray, Callable]:
    """Of (rows, 3 WIDTH); causal, with rotary positions."""
    q, k, v = qkv.reshape(BATCH, LENGTH, 3, HEADS, -1).transpose(2, 0, 3, 1, 4)
    q, k = rotated(q, SIN), rotated(k, SIN)
    scale = np.float32(1 / math.sqrt(q.shape[-1]))
    scores = q @ k.swapaxes(-1, -2) * scale
    scores[..., HIDDEN] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = (weights @ v).transpose(0, 2, 1, 3).reshape(-1, WIDTH)

    def pull(g: np.ndarray) -> np.ndarray:
        g = g.reshape(BATCH, LENGTH, HEADS, -1).transpose(0, 2, 1, 3)
        dv, by_weights = weights.swapaxes(-1, -2) @ g, g @ v.swapaxes(-1, -2)
        by_scores = weights * (by_weights - (by_weights * weights).sum(-1, keepdims=True)) * scale
        dq, dk = rotated(by_scores @ k, -SIN), rotated(by_scores.swapaxes(-1, -2) @ q, -SIN)
        return np.stack([dq, dk, dv]).transpose(1, 3, 0, 2, 4).reshape(-1, 3 * WIDTH)

    return out, pull


def gelu(x: np.ndarray) -> tuple[np.ndarray, Callable]:
    normal = 0.5 + 0.5 * erf(x * np.float32(math.sqrt(0.5)))
    density = np.float32(1 / math.sqrt(2 * math.pi))
    return x * normal, lambda g: g * (normal + x * (np.exp(-0.5 * x * x) * density))


def loss_and_gradients(p: Arrays, ids: np.ndarray, labels: np.ndarray) -> tuple[float, Arrays]:
    grads: Arrays = {}
    pulls: list[Callable] = []

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        weight = p[f"{name}.weight"]

        def pull(g: np.ndarray) -> np.ndarray:
            grads[f"{name}.weight"], grads[f"{name}.bias"] = g.T @ x, g.sum(0)
            return g @ weight

        pulls.append(pull)
        return x @ weight.T + p[f"{name}.bias"]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        y, own = rms_norm(x, p[f"{name}.weight"])

        def pull(g: np.ndarray) -> np.ndarray:
            dx, grads[f"{name}.weight"] = own(g)
            return dx

        pulls.append(pull)
        return y

    def through(pair: tuple[np.ndarray, Callable]) -> np.ndarray:
        pulls.append(pair[1])
        return pair[0]

    rows, sections = ids.reshape(-1), []
    x = p["table.weight"][rows]
    for number in range(LAYERS):
        name = f"blocks.{number}"
        for parts in ("attention", "wide"):
            begin = len(pulls)
            if parts == "attention":
                y = linear(f"{name}.qkv", norm(f"{name}.attention_norm", x))
                x = x + linear(f"{name}.output", through(attention(y)))
            else:
                y = linear(f"{name}.widen", norm(f"{name}.norm", x))
                x = x + linear(f"{name}.narrow", through(gelu(y)))
            sections.append(pulls[begin:])
    begin = len(pulls)
    logits = linear("head", norm("norm", x))
    top, wanted = logits.max(-1, keepdims=True), labels.reshape(-1)
    shares = np.exp(logits - top)
    total = shares.sum(-1, keepdims=True)
    places = np.arange(len(wanted))
    loss = float((np.log(total) + top - logits[places, wanted][:, None]).mean())
    g = shares / total
    g[places, wanted] -= 1
    g /= len(wanted)
    for pull in reversed(pulls[begin:]):
        g = pull(g)
    for section in reversed(sections):
        own = g
        for pull in reversed(section):
            own = pull(own)
        g = g + own
    table = np.zeros_like(p["table.weight"])
    np.add.at(table, rows, g)
    grads["table.weight"] = table
    return loss, grads


class AdamW:
    """In place, as torch.optim.AdamW, after the gradients' norm is scaled down to MOST."""

    def __init__(self, p: Arrays):
        self.state = {name: (np.zeros_like(one), np.zeros_like(one)) for name, one in p.items()}
        self.steps = 0

    def update(self, p: Arrays, grads: Arrays) -> None:
        norm = math.sqrt(sum(float(np.vdot(g, g)) for g in grads.values()))
        factor = np.float32(min(MOST / (norm + 1e-6), 1.0))
        self.steps += 1
        size, root = RATE / (1 - 0.9**self.steps), math.sqrt(1 - 0.999**self.steps)
        for name, weight in p.items():
            g, (mean, square) = grads[name] * factor, self.state[name]
            weight *= 1 - RATE * 0.01
            mean += 0.1 * (g - mean)
            square *= 0.999
            square += 0.001 * g * g
            weight -= size * mean / (np.sqrt(square) / root + 1e-8)


# -- both --------------------------------------------------------------------------------------------------------------


def timed(step: Callable, wait: Callable, batches: list, seconds: float) -> dict:
    """The least seconds of ten steps one after the other, each step's, and the processor's."""
    found, begun = [], time.perf_counter()
    while time.perf_counter() - begun < seconds or len(found) < 3:
        start, own = time.perf_counter(), time.process_time()
        for number in range(10):
            step(*batches[number % len(batches)])
        wait()
        found.append(((time.perf_counter() - start) / 10, (time.process_time() - own) / 10))
    return {"seconds": min(one for one, _ in found), "cpu": min(one for _, one in found)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each of both")
    add_json(parser)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    batches = [tuple(rng.integers(0, LETTERS, (2, BATCH, LENGTH)).astype(np.int32)) for _ in range(8)]
    with grilly.Compute() as backend:
        grilly.use(backend)
        model = Letters(LETTERS)
        p = {name: np.array(one.data) for name, one in model.named_parameters()}
        loss, grads = loss_and_gradients(p, *batches[0])
        named = {"input_ids": batches[0][0], "labels": batches[0][1]}
        value, found = grilly.value_and_grad(loss_of)(model, named)
        worst = max(float(np.abs(found[name].numpy() - g).max() / np.abs(g).max()) for name, g in grads.items())
        if worst > APART or abs(float(value) - loss) > 1e-5:
            print(f"WRONG: losses {loss} and {float(value)}, gradients apart by {worst}")
            return 1
        optimizer = optim.AdamW(RATE, weight_decay=0.01, max_grad_norm=MOST)
        optimizer.init(model)

        def step(ids, labels):
            loss, grads = grilly.value_and_grad(loss_of)(model, {"input_ids": ids, "labels": labels})
            optimizer.update(model, grads)
            return loss

        step(*map(backend.tensor, batches[0]))
        graph = backend.capture(step, *map(backend.tensor, batches[0]))
        own = timed(graph, backend.synchronize, batches, options.seconds)
        by_hand = AdamW(p)

        def step_by_hand(ids, labels):
            by_hand.update(p, loss_and_gradients(p, ids, labels)[1])

        other = timed(step_by_hand, lambda: None, batches, options.seconds)
        lines = [{"by": "grilly", **own, "dispatches": graph.dispatches}, {"by": "NumPy", **other}]
        for line in lines:
            print(f"{line['by']:8} {line['seconds'] * 1e3:8.2f} ms, processor {line['cpu'] * 1e3:8.2f} ms")
        print(f"grilly takes {own['seconds'] / other['seconds']:.2f} times NumPy's time, "
              f"{own['cpu'] / other['cpu']:.2f} times the processor's; {graph.dispatches} dispatches")  # fmt: skip
        write(options.json, backend, lines)
        grilly.use(None)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
