"""A language model in the style of NumPy, with its cache by hand: python generate_by_hand.py [TOKENS]

The weights are random, so the tokens mean nothing; every part of the model lies open. A step is captured and replayed.
"""

import sys

import numpy as np

import grilly
import grilly.array_api as xp
import grilly.functional as F

VOCABULARY, WIDTH, HEADS, LAYERS, ROOM = 256, 128, 4, 2, 128


def weights(backend, seed=0):
    """Random matrices on the device, and a cache of ``ROOM`` places for each layer."""
    rng = np.random.default_rng(seed)

    def matrix(rows, columns):  # (out, in), as F.linear takes it
        return backend.tensor(rng.standard_normal((rows, columns), dtype=np.float32) / columns**0.5)

    def cache():  # the keys or values of all tokens so far
        return backend.tensor(np.zeros((1, ROOM, HEADS, WIDTH // HEADS), np.float32))

    layers = [
        {"qkv": matrix(3 * WIDTH, WIDTH), "out": matrix(WIDTH, WIDTH), "up": matrix(4 * WIDTH, WIDTH),
         "down": matrix(WIDTH, 4 * WIDTH), "keys": cache(), "values": cache()}
        for _ in range(LAYERS)
    ]  # fmt: skip
    places = backend.tensor(rng.standard_normal((ROOM, WIDTH), dtype=np.float32))
    tokens = matrix(VOCABULARY, WIDTH) * WIDTH**0.5
    return {"tokens": tokens, "places": places, "layers": layers, "head": matrix(VOCABULARY, WIDTH)}


def step(model, ids, place):
    """The likeliest token (1,) after tokens ``ids`` (1, S), of which the first stands at ``place`` (1,)."""
    count = ids.shape[1]
    at = place + np.arange(count, dtype=np.int32)  # (S,): where the new tokens stand
    x = F.embedding(ids, model["tokens"]) + F.embedding(at, model["places"])  # (1, S, WIDTH)
    seen = at.reshape(count, 1) >= np.arange(ROOM, dtype=np.int32)  # (S, ROOM): each sees itself and what was before
    for layer in model["layers"]:
        qkv = F.linear(F.rms_norm(x, WIDTH), layer["qkv"]).reshape(1, count, 3, HEADS, WIDTH // HEADS)
        layer["keys"][:, at], layer["values"][:, at] = qkv[:, :, 1], qkv[:, :, 2]
        q, k, v = (t.transpose(0, 2, 1, 3) for t in (qkv[:, :, 0], layer["keys"], layer["values"]))
        attended = F.flash_attention2(q, k, v, mask=seen).transpose(0, 2, 1, 3).reshape(1, count, WIDTH)
        x = x + F.linear(attended, layer["out"])
        x = x + F.linear(F.gelu(F.linear(F.rms_norm(x, WIDTH), layer["up"])), layer["down"])
    logits = F.linear(F.rms_norm(x[:, -1], WIDTH), model["head"])
    return xp.argmax(logits, axis=-1).astype("int32")


def generate(backend, model, prompt, count):
    """``count`` tokens after a prompt, a list of numbers below ``VOCABULARY``."""
    place = backend.tensor(np.zeros(1, np.int32))
    found = [step(model, backend.tensor(np.array([prompt], np.int32)), place)]  # the whole prompt at once
    place = place + np.int32(len(prompt))
    graph = backend.capture(lambda ids, place: step(model, ids, place), found[-1].reshape(1, 1), place)
    while len(found) < count:  # nothing is waited for: each step takes the token that the one before left on the device
        found.append(graph(found[-1].reshape(1, 1), place))
        place = place + np.int32(1)
    return [int(token.numpy()[0]) for token in found]


if __name__ == "__main__":
    count = int(sys.argv[1]) if sys.argv[1:] else 32
    with grilly.Compute() as backend:
        print(*generate(backend, weights(backend), [1, 2, 3], count))
