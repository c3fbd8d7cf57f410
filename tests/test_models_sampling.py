"""Drawing tokens: probabilities against their definition, and against what transformers makes of the same logits."""

import importlib.util

import numpy as np
import pytest

from grilly.models.sampling import Sampler

_MISSING = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}


@pytest.mark.parametrize("options, wanted", [
    ({}, [0.1, 0.5, 0.25, 0.15]),
    ({"top_k": 2}, [0, 2 / 3, 1 / 3, 0]),
    ({"top_p": 0.7}, [0, 2 / 3, 1 / 3, 0]),
    ({"top_p": 0.8}, [0, 0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9]),
    ({"top_k": 3, "top_p": 0.8}, [0, 2 / 3, 1 / 3, 0]),  # top_p is of what top_k leaves
    ({"temperature": 0.5}, np.array([0.1, 0.5, 0.25, 0.15]) ** 2 / 0.345),
    ({"repetition_penalty": 2.0}, np.array([0.1, 0.5, 0.0625, 0.15]) / 0.8125),  # the logit of token 2 is below 0
])  # fmt: skip
def test_drawn_tokens_have_their_probabilities(vulkan_backend, options, wanted):
    count = 4000
    logits = np.log(np.tile(np.array([[0.1, 0.5, 0.25, 0.15]], np.float32), (count, 1)))
    sampler = Sampler(True, seed=0, **OFF | options)
    seen = sampler.seen(vulkan_backend, [np.array([2])] * count, 4)
    tokens = sampler(vulkan_backend.tensor(logits), vulkan_backend.tensor(sampler.draws(count)), seen).numpy()
    found = np.bincount(tokens, minlength=4) / count
    assert np.abs(found - wanted).max() < 5 * np.sqrt(0.25 / count)
    assert (found[np.array(wanted) == 0] == 0).all()
    ends = vulkan_backend.tensor(np.repeat(np.array([[0], [1 - 2**-24]], np.float32), count // 2, axis=0))
    allowed = np.flatnonzero(wanted)
    assert np.isin(sampler(vulkan_backend.tensor(logits), ends, seen).numpy(), allowed).all()


def theirs(logits: np.ndarray, seen: np.ndarray, options: dict) -> np.ndarray:
    """Probabilities by transformers' processors, in the order in which its `generate` applies them."""
    import torch
    from transformers import generation

    processors = []
    if "repetition_penalty" in options:
        processors.append(generation.RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]))
    for name, kind in (("temperature", "Temperature"), ("top_k", "TopK"), ("top_p", "TopP")):
        if name in options:
            processors.append(getattr(generation, f"{kind}LogitsWarper")(options[name]))
    scores = torch.tensor(logits)
    for processor in processors:
        scores = processor(torch.tensor(seen), scores)
    return torch.softmax(scores.double(), dim=-1).numpy()


@pytest.mark.skipif(bool(_MISSING), reason=f"not installed: {', '.join(_MISSING)}")
@pytest.mark.parametrize("options", [
    {}, {"temperature": 0.6}, {"temperature": 3.0}, {"top_k": 5}, {"top_k": 1}, {"top_k": 500}, {"top_p": 0.5},
    {"top_p": 0.05}, {"repetition_penalty": 1.3}, {"repetition_penalty": 0.7},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2},
    {"temperature": 2.0, "top_k": 7, "top_p": 0.6},
], ids=str)  # fmt: skip
def test_probabilities_are_those_of_transformers(vulkan_backend, options):
    rng = np.random.default_rng(5)
    count, rows = 4096, 61
    for logits in rng.normal(0, 3, (3, rows)).astype(np.float32):
        seen = rng.integers(0, rows, (1, 12))
        wanted = theirs(logits[None], seen, options)[0]
        sampler = Sampler(True, seed=0, **OFF | options)
        # Draws at even distances: a token comes up for each that falls into its share.
        draws = ((np.arange(count) + 0.5) / count).astype(np.float32)[:, None]
        had = sampler.seen(vulkan_backend, [seen[0]] * count, rows)
        tokens = sampler(vulkan_backend.tensor(np.tile(logits, (count, 1))), vulkan_backend.tensor(draws), had).numpy()
        found = np.bincount(tokens, minlength=rows)
        assert np.abs(found - count * wanted).max() <= 1.5
        assert (found[wanted == 0] == 0).all()
