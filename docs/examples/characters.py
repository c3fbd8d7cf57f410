"""A model of letters, trained from nothing: python characters.py [STEPS [CURVE.png [TEXT.txt]]]

It reads the pages of this documentation, or a text of yours, says how well it tells the next letter, writes some text
of its own, and draws the loss of each step. A step, all of it, is captured once and replayed.
"""

import math
import sys
from pathlib import Path

import numpy as np
from png import write_png

import grilly
from grilly import data, nn, optim
from grilly import functional as F

WIDTH, HEADS, LAYERS, LENGTH, BATCH = 64, 4, 2, 48, 16


def pages():
    """The text of the pages beside the examples."""
    found = sorted(Path(__file__).resolve().parents[1].glob("*.md"))
    return "\n".join(file.read_text(encoding="utf-8") for file in found)


class Block(nn.Module):
    """Attention to the letters before, and two linear layers."""

    def __init__(self, rng):
        super().__init__()
        self.attention_norm, self.norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.output = nn.Linear(WIDTH, 3 * WIDTH, rng=rng), nn.Linear(WIDTH, WIDTH, rng=rng)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH, rng=rng), nn.Linear(4 * WIDTH, WIDTH, rng=rng)

    def forward(self, x):
        batch, length, _ = x.shape
        qkv = self.qkv(self.attention_norm(x)).reshape(batch, length, 3, HEADS, -1)
        q, k, v = (qkv[:, :, part].transpose(0, 2, 1, 3) for part in range(3))
        attended = F.flash_attention2(F.rope(q), F.rope(k), v, causal=True).transpose(0, 2, 1, 3)
        x = x + self.output(attended.reshape(batch, length, WIDTH))
        return x + self.narrow(F.gelu(self.widen(self.norm(x))))


class Letters(nn.Module):
    """Logits of the letter that comes after each."""

    def __init__(self, count, seed=0):
        super().__init__()
        rng = np.random.default_rng(seed)
        self.table = nn.Embedding(count, WIDTH, rng=rng)
        self.blocks = nn.ModuleList(Block(rng) for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, count, rng=rng)

    def forward(self, ids):
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(model, batch):
    """In nats for each letter."""
    logits = model(batch["input_ids"])
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch["labels"].reshape(-1))


def train(model, tokens, steps, rate=3e-3):
    """The loss of each step."""
    optimizer = optim.AdamW(optim.warmup_cosine(rate, steps // 10, steps), max_grad_norm=1.0)
    batches = data.batches(tokens, BATCH, LENGTH, epochs=None)

    def step(batch):
        loss, gradients = grilly.value_and_grad(loss_of)(model, batch)
        optimizer.update(model, gradients)
        return loss

    losses = [step(next(batches))]  # as it is, which makes the optimizer's state
    graph = losses[0].backend.capture(step, next(batches))
    losses += [graph(next(batches)) for _ in range(steps - 1)]
    return [float(loss) for loss in losses]


def write(model, letters, text, count, seed=0):
    """A text with so many letters more, drawn one by one."""
    rng, ids = np.random.default_rng(seed), [letters.index(letter) for letter in text.rjust(LENGTH)]
    for _ in range(count):
        logits = model(np.array([ids[-LENGTH:]], np.int32))[0, -1].astype(np.float64)
        shares = np.exp((logits - logits.max()) / 0.7)
        ids.append(int(rng.choice(len(letters), p=shares / shares.sum())))
    return "".join(letters[number] for number in ids).lstrip()


def curve(losses, top, height=160, width=480):
    """The losses as a picture, from 0 at the bottom to ``top``."""
    image = np.full((height, width), 255, np.uint8)
    image[-1], image[:, 0] = 120, 120
    heights = np.interp(np.linspace(0, len(losses) - 1, width + 1), np.arange(len(losses)), losses) / top
    rows = np.clip((height - 1) * (1 - heights), 0, height - 1).round().astype(int)
    for column, (one, other) in enumerate(zip(rows[:-1], rows[1:], strict=True)):
        image[min(one, other) : max(one, other) + 1, column] = 40
    return image


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    text = Path(sys.argv[3]).read_text(encoding="utf-8") if len(sys.argv) > 3 else pages()
    letters = sorted(set(text))
    tokens = np.searchsorted(letters, list(text)).astype(np.uint16)
    model = Letters(len(letters))
    losses = train(model, tokens, steps)
    print(f"{len(text)} letters, {len(letters)} different ones: a guess has a loss of {math.log(len(letters)):.2f}")
    print(f"after {steps} steps {np.mean(losses[-10:]):.2f}, from {losses[0]:.2f}")
    print(write(model, letters, "The ", 80))
    if len(sys.argv) > 2:
        write_png(sys.argv[2], curve(losses, losses[0]))
