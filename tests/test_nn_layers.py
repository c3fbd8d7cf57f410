"""Layers on a device, against the NumPy reference and what PyTorch and transformers computed (tests/golden)."""

import numpy as np
import pytest

import goldens
import grilly
from grilly import nn
from grilly import reference as ref


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def draw(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def close(got, want, tolerance=2e-5):
    assert isinstance(got, np.ndarray) and got.dtype == np.float32
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------------------------------------------ flash attention


@pytest.mark.parametrize("layer", [nn.FlashAttention2, nn.FlashAttention3])
@pytest.mark.parametrize("causal", [False, True])
def test_flash_layouts(backend, rng, layer, causal):
    fa = layer(embed_dim=24, num_heads=3, causal=causal).to(backend)
    query, key, value = draw(rng, 2, 5, 24), draw(rng, 2, 9, 24), draw(rng, 2, 9, 24)
    mask = rng.random((2, 1, 5, 9)) < 0.7
    heads = [x.reshape(2, -1, 3, 8).transpose(0, 2, 1, 3) for x in (query, key, value)]
    want = ref.flash_attention(*heads, mask=mask, causal=causal, dtype=np.float64)
    close(fa(*heads, mask=mask), want)
    joined = want.transpose(0, 2, 1, 3).reshape(2, 5, 24)
    close(fa(query, key, value, mask=mask), joined)
    close(fa(query[1], key[1], value[1], mask=mask[1]), joined[1])


def test_flash_grouped_heads_and_wide_values(backend, rng):
    fa = nn.FlashAttention2(24, 6, scale=0.3).to(backend)
    query, key, value = draw(rng, 2, 5, 24), draw(rng, 2, 7, 8), draw(rng, 2, 7, 10)
    heads = [x.reshape(2, -1, h, x.shape[-1] // h).transpose(0, 2, 1, 3) for x, h in ((query, 6), (key, 2), (value, 2))]
    want = ref.flash_attention(*heads, scale=0.3, dtype=np.float64).transpose(0, 2, 1, 3).reshape(2, 5, 30)
    close(fa(query, key, value), want)


def test_tensors_stay_on_the_device(backend, rng):
    x = draw(rng, 2, 5, 24)
    for layer in (nn.FlashAttention2(24, 3), nn.Linear(24, 7, rng=0), nn.RoPE(24), nn.MultiheadAttention(24, 3, rng=0)):
        arguments = (x, x, x) if isinstance(layer, nn.FlashAttention2) else (x,)
        want = layer.to(backend)(*arguments)
        sent = backend.tensor(x)
        got = layer(*(sent for _ in arguments))
        for g, w in zip(*((y if isinstance(y, tuple) else (y,)) for y in (got, want)), strict=True):
            assert isinstance(g, grilly.Tensor) and g.backend is backend
            np.testing.assert_array_equal(g.numpy(), w)


def test_bad_calls(backend, rng):
    x = draw(rng, 2, 5, 24)
    fa, mha = nn.FlashAttention2(24, 3).to(backend), nn.MultiheadAttention(24, 3).to(backend)
    with pytest.raises(ValueError, match="last axis must be 24"):
        fa(x[..., :20], x, x)
    with pytest.raises(ValueError, match=r"expected all \(B, S, 24\)"):
        fa(x, x[0], x)
    with pytest.raises(ValueError, match=r"expected \(B, 3, S, 8\)"):
        fa(x[:, None], x[:, None], x[:, None])
    with pytest.raises(ValueError, match="as many value heads"):
        fa(x, x[..., :16], x[..., :9])
    with pytest.raises(ValueError, match="key has shape"):
        mha(x, x[..., :20])
    with pytest.raises(ValueError, match="B must be equal"):
        mha(x, x[:1])
    with pytest.raises(ValueError, match="Sk must be equal"):
        mha(x, x, x[:, :3])
    with pytest.raises(ValueError, match='for architecture="t5"'):
        mha(x, position_offset=1)
    with pytest.raises(ValueError, match="always causal"):
        nn.MultiheadAttention(24, 3, architecture="gpt")(x, causal=False)
    with pytest.raises(ValueError, match="last axis must have 24"):
        nn.Linear(24, 3)(x[..., :5])
    with pytest.raises(TypeError, match="query is a list"):
        fa(x.tolist(), x, x)
    with pytest.raises(TypeError, match="float64.*astype"):
        nn.Linear(24, 3).to(backend)(x.astype(np.float64))


# --------------------------------------------------------------------------------------------------- linear, parameters


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(13,), (1, 13), (2, 7, 13), (2, 3, 5, 13)])
def test_linear(backend, rng, bias, shape):
    layer = nn.Linear(13, 17, bias=bias, rng=0).to(backend)
    x = draw(rng, *shape)
    close(layer(x), ref.linear(x, layer.weight, layer.bias if bias else None, dtype=np.float64), 1e-5)


def test_parameters_are_sent_once_and_again_when_loaded(backend, rng):
    layer = nn.Linear(4, 4, rng=0).to(backend)
    x = draw(rng, 3, 4)
    before = layer(x)
    assert layer.weight.on(backend) is layer.weight.on(backend)
    layer.load_state_dict({name: 2 * array for name, array in layer.state_dict().items()})
    close(layer(x), 2 * before)
    layer.weight = nn.Parameter(backend.tensor(np.eye(4, dtype=np.float32)))
    layer.bias = None
    np.testing.assert_array_equal(layer(x), x)
    assert (layer.state_dict()["weight"] == np.eye(4)).all()


# ----------------------------------------------------------------------------------------------------------------- RoPE


@pytest.mark.parametrize("name", goldens.cases("rope"))
def test_rope_equals_transformers(backend, name):
    case = goldens.cases("rope")[name]
    arguments = dict(case.arguments)
    offset = arguments.pop("offset")
    rope = nn.RoPE(**arguments).to(backend)
    q, k = rope(case.x, case.x[:, :1], offset=offset)
    close(q, case.output)
    close(k, case.output[:, :1])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("scaling", [None, *({"type": kind, "factor": 2.5} for kind in ("linear", "ntk", "dynamic"))])
def test_rope_equals_the_reference(backend, rng, interleaved, scaling):
    rope = nn.RoPE(10, max_seq_len=7, base=500.0, interleaved=interleaved, scaling=scaling).to(backend)
    options = {"dim": 10, "max_seq_len": 7, "base": 500.0, "interleaved": interleaved, "scaling": scaling}
    for x in (draw(rng, 2, 3, 11, 10), draw(rng, 3, 11, 10), draw(rng, 2, 3, 11, 14)):
        close(rope(x, offset=4), ref.rope(x, offset=4, dtype=np.float64, **options))
    x, positions = draw(rng, 2, 3, 5, 10), rng.integers(0, 40, (2, 5))
    close(rope(x, positions=positions), ref.rope(x, positions=positions, dtype=np.float64, **options))
    close(rope(x, positions=positions[0]), ref.rope(x, positions=positions[0], dtype=np.float64, **options))


def test_rope_far_out(backend, rng):
    """Angles of thousands of radians keep their accuracy."""
    x = draw(rng, 1, 2, 3, 64)
    close(nn.RoPE(64).to(backend)(x, offset=100_000), ref.rope(x, offset=100_000, dtype=np.float64))


def test_rope_bad_positions(backend, rng):
    rope, x = nn.RoPE(8).to(backend), draw(rng, 1, 1, 4, 8)
    with pytest.raises(ValueError, match="expected 0 to"):
        rope(x, offset=-1)
    with pytest.raises(ValueError, match="expected 0 to"):
        rope(x, positions=np.array([0, 1, -2, 3]))
    with pytest.raises(ValueError):
        rope(x, positions=np.arange(3))
    with pytest.raises(TypeError):
        rope(x, positions=np.arange(4.0))
    with pytest.raises(ValueError, match="RoPE: got shape"):
        rope(x[..., :6])
