"""Scaling of rotary frequencies by transformers' names: the papers' formulas, pair by pair, in Python's floats."""

from __future__ import annotations

import math

import numpy as np
import pytest

import grilly
from cases import assert_as_accurate
from graphs import default, equal, random
from grilly import nn, reference

DIM, BASE, ROOM = 16, 500.0, 24
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
SHORT, LONG = [1.0 + n / 8 for n in range(8)], [2.0 + n for n in range(8)]
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 16}


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


def plain():
    return [BASE ** (-2 * n / DIM) for n in range(DIM // 2)]


def yarn(beta_fast=32.0, beta_slow=1.0, truncate=True):
    """Peng et al., section 3.2: by how often a pair turns within the trained length."""
    def pair(turns):
        return DIM * math.log(64 / (turns * 2 * math.pi)) / (2 * math.log(BASE))

    low, high = pair(beta_fast), pair(beta_slow)
    low, high = (math.floor(low), math.ceil(high)) if truncate else (low, high)
    low, high = max(low, 0), min(high, DIM - 1)
    found = []
    for n, w in enumerate(plain()):
        gamma = 1 - min(max((n - low) / (high - low), 0), 1)  # 1: as it is
        found.append((1 - gamma) * w / 4 + gamma * w)
    return found


def llama3():
    found = []
    for w in plain():
        wavelength = 2 * math.pi / w
        if wavelength < 64 / 4:
            found.append(w)
        elif wavelength > 64 / 1:
            found.append(w / 8)
        else:
            smooth = (64 / wavelength - 1) / (4 - 1)
            found.append((1 - smooth) * w / 8 + smooth * w)
    return found


def grown(length, trained=16, factor=2.0):
    base = BASE * (factor * length / trained - (factor - 1)) ** (DIM / (DIM - 2))
    return [base ** (-2 * n / DIM) for n in range(DIM // 2)]


def log_scale(weight=1.0):
    return 0.1 * weight * math.log(4.0) + 1


CASES = {
    "default": ({"rope_type": "default"}, 90, plain(), 1.0),
    "default, theta": ({"rope_type": "default", "rope_theta": BASE}, 90, plain(), 1.0),
    "linear": ({"rope_type": "linear", "factor": 2.5}, 90, [w / 2.5 for w in plain()], 1.0),
    "dynamic, short": ({"rope_type": "dynamic", "factor": 2.0}, 16, plain(), 1.0),
    "dynamic": ({"type": "dynamic", "factor": 2.0}, 40, grown(40), 1.0),
    "dynamic, trained": ({"rope_type": "dynamic", "factor": 3.0, "original_max_position_embeddings": 20}, 40,
                         grown(40, 20, 3.0), 1.0),
    "yarn": (YARN, 0, yarn(), log_scale()),
    "yarn, ends": ({**YARN, "beta_fast": 4, "beta_slow": 0.5, "truncate": False}, 0, yarn(4, 0.5, False), log_scale()),
    "yarn, scale": ({**YARN, "attention_factor": 1.25}, 0, yarn(), 1.25),
    "yarn, mscale": ({**YARN, "mscale": 0.7, "mscale_all_dim": 1.4}, 0, yarn(), log_scale(0.7) / log_scale(1.4)),
    "longrope, short": (LONGROPE, 16, [w / f for w, f in zip(plain(), SHORT, strict=True)], 1.0),
    "longrope": ({**LONGROPE, "factor": 8.0}, 17, [w / f for w, f in zip(plain(), LONG, strict=True)],
                 math.sqrt(1 + math.log(8) / math.log(16))),
    "llama3": (LLAMA3, 0, llama3(), 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_formulas(name):
    scaling, length, wanted, scale = CASES[name]
    base = 10000.0 if "rope_theta" in scaling else BASE
    found, factor = reference.rope_scaling(DIM, base, scaling, length, max_seq_len=16)
    np.testing.assert_allclose(found, wanted, rtol=1e-14)
    assert math.isclose(factor, scale, rel_tol=1e-15)
    if name in ("yarn", "llama3"):  # all three kinds of pairs are there
        kept = np.isclose(found, plain())
        divided = np.isclose(found * scaling["factor"], plain())
        assert kept.any() and divided.any() and not (kept | divided).all()


@pytest.mark.parametrize(
    "scaling, said",
    [
        ({"rope_type": "su", "factor": 2.0}, "expected one type, of 'default', 'linear'"),
        ({"factor": 2.0}, "expected one type"),
        ({"rope_type": "linear", "type": "dynamic", "factor": 2.0}, "expected one type"),
        ({**LLAMA3, "beta_fast": 32}, "of type 'llama3' has 'beta_fast', which it does not know"),
        ({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}, r"give dim=int\(head_dim \* 0.5\)"),
        ({"full_attention": LLAMA3, "sliding_attention": LLAMA3}, r"scaling=rope_parameters\['full_attention'\]"),
        ({"rope_type": "yarn", "factor": 2.0, "mscale_all": 1.0}, "has 'mscale_all'"),
        ({"rope_type": "llama3", "factor": 2.0}, "of type 'llama3' lacks 'high_freq_factor'"),
        ({"rope_type": "yarn"}, "lacks 'factor'"),
        ({**LLAMA3, "low_freq_factor": 4.0}, "not below high_freq_factor"),
        ({"rope_type": "linear", "factor": 0.5}, "factor of scaling is 0.5; expected 1 or more"),
        ({"rope_type": "linear", "factor": [2.0]}, "expected a number"),
        ({**YARN, "beta_slow": 0}, "beta_slow of scaling is 0; expected more than 0"),
        ({**LONGROPE, "short_factor": 2.0}, "expected a list"),
        ({**LONGROPE, "short_factor": [1.0, 2.0]}, r"have shape \(2,\); expected \(8,\)"),
    ],
)
def test_what_is_not_understood(scaling, said):
    with pytest.raises(ValueError, match=said):
        nn.RoPE(DIM, scaling=scaling)


@pytest.mark.parametrize("scaling", [
    {"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "longrope", "short_factor": [1.0] * (DIM // 2), "long_factor": [2.0] * (DIM // 2), "factor": 2.0},
])  # fmt: skip
def test_no_length_of_training_is_assumed(scaling):
    name = scaling["rope_type"]
    for function in (lambda **more: nn.RoPE(DIM, **more), lambda **more: reference.rope_scaling(DIM, **more)):
        with pytest.raises(ValueError, match=f"type '{name}' follows the length .*; give max_seq_len .*'original_max"):
            function(scaling=scaling)
        function(scaling=scaling, max_seq_len=512)
        function(scaling={**scaling, "original_max_position_embeddings": 512})
    unknown = {**scaling, "original_max_position_embeddings": 512}
    if name == "longrope":
        del unknown["factor"]
        with pytest.raises(ValueError, match="'longrope' has no 'factor'; give max_seq_len"):
            nn.RoPE(DIM, scaling=unknown)
        nn.RoPE(DIM, scaling={**unknown, "attention_factor": 1.5})


@pytest.mark.parametrize("scaling", [2.0, "yarn"])
def test_scaling_is_a_dict(scaling):
    with pytest.raises(TypeError, match=f"rope: scaling is {scaling!r}; expected a dict"):
        nn.RoPE(DIM, scaling=scaling)


def test_a_part_that_is_the_whole():
    """Phi3Config of transformers 5 has it."""
    whole = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0}
    found, factor = reference.rope_scaling(DIM, scaling=whole)
    np.testing.assert_array_equal(found, reference.rope_scaling(DIM, 500.0)[0])
    assert factor == 1.0 and nn.RoPE(DIM, scaling=whole).scaling == whole


def test_one_base():
    with pytest.raises(ValueError, match=r"base is 500.0 and scaling's rope_theta 10.0"):
        nn.RoPE(DIM, base=500.0, scaling={"rope_type": "default", "rope_theta": 10.0})


@pytest.mark.parametrize("scaling", [YARN, LLAMA3, LONGROPE], ids=lambda s: s["rope_type"])
def test_the_layer(backend, scaling):
    """At positions where the scale and every pair count, forward and backward."""
    rope = nn.RoPE(DIM, max_seq_len=64, base=BASE, scaling=scaling).train()
    x, options = random(2, 3, 21, DIM + 4), {"base": BASE, "scaling": scaling, "max_seq_len": 64, "dim": DIM}
    exact = reference.rope(x, offset=70, dtype=np.float64, **options)
    single = reference.rope(x, offset=70, **options)
    assert_as_accurate(rope(x, offset=70), exact, single, magnitude=2 * np.abs(x).max())
    grad = random(*x.shape, seed=1)
    np.testing.assert_allclose((rope.backward(grad) * x).sum(), (grad * exact).sum(), rtol=1e-4)


# -- on the way into a cache ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("captured", [False, True], ids=["calls", "graph"])
@pytest.mark.parametrize("rope", [
    {}, {"interleaved": True}, {"dim": 8}, {"scaling": YARN, "base": BASE}, {"scaling": LLAMA3, "base": BASE},
    {"scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_seq_len": ROOM},
], ids=str)  # fmt: skip
def test_a_cache_turns_as_the_layer_does(backend, rope, captured):
    """Token by token through the cache, against the layer and attention over the whole."""
    turn = nn.RoPE(**{"dim": DIM, **rope})
    q, k, v = (random(2, ROOM, heads, DIM, seed=n) for n, heads in enumerate((4, 2, 2)))
    turned = [backend.tensor(a) for a in turn(q.swapaxes(1, 2), k.swapaxes(1, 2))]
    want = grilly.functional.flash_attention2(*turned, backend.tensor(v.swapaxes(1, 2)), causal=True).numpy()
    cache = nn.KVCache(2, ROOM, 2, DIM)

    def step(*one):
        return cache.attend(*one, rotary=turn)

    if captured:
        step = backend.capture(step, *(a[:, :1] for a in (q, k, v)))
    found = [step(*(backend.tensor(a[:, n : n + 1]) for a in (q, k, v))).numpy() for n in range(ROOM)]
    np.testing.assert_allclose(np.concatenate(found, 1), want.swapaxes(1, 2), rtol=1e-5, atol=3e-6)
    np.testing.assert_allclose(cache.k.numpy().swapaxes(1, 2), turned[1].numpy(), rtol=0, atol=1e-6)


def test_angles_that_depend_on_the_length(backend):
    """transformers turns a key by the angles of its own time, which a graph cannot."""
    turn = nn.RoPE(DIM, max_seq_len=4, scaling={"rope_type": "dynamic", "factor": 2.0})
    cache, (q, k, v) = nn.KVCache(1, 8, 2, DIM), (random(1, 8, 2, DIM, seed=n) for n in range(3))
    for n in range(8):
        cache.attend(*(a[:, n : n + 1] for a in (q, k, v)), rotary=turn)
        row = turn(k[:, n : n + 1].swapaxes(1, 2), offset=n)[0, :, 0]
        np.testing.assert_allclose(cache.k.numpy()[0, n], row, rtol=0, atol=1e-6)
    with pytest.raises(grilly.CaptureError, match="depend on the length past 4 tokens"):
        backend.capture(lambda *one: cache.attend(*one, rotary=turn), *(a[:, :1] for a in (q, k, v)))


def test_one_convention(backend):
    """Tables by hand turn as RoPE does by default, and a RoPE brings its own."""
    tables = nn.RoPE(DIM).tables(backend, ROOM)
    given = [backend.tensor(random(1, 3, 2, DIM, seed=n)) for n in range(3)]
    caches = [nn.KVCache(1, ROOM, 2, DIM) for _ in range(3)]
    first = caches[0].attend(*given, rotary=nn.RoPE(DIM))
    equal(first, caches[1].attend(*given, rotary=tables))
    other = caches[2].attend(*given, rotary=tables, rotary_interleaved=True)
    assert np.abs(other.numpy() - first.numpy()).max() > 0.01
    with pytest.raises(ValueError, match="beside a RoPE"):
        caches[0].attend(*given, rotary=nn.RoPE(DIM), rotary_interleaved=True)
    with pytest.raises(ValueError, match="P from 1 to 8"):
        caches[0].attend(*given, rotary=nn.RoPE(2 * DIM))
    assert len(caches[0]) == 3
