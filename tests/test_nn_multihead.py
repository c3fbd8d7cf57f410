"""MultiheadAttention on a device, against PyTorch's and transformers' recorded results and the NumPy reference."""

import numpy as np
import pytest

import goldens
from cases import SIXTEEN_BITS, epsilon
from grilly import nn
from grilly import reference as ref


@pytest.fixture
def rng():
    return np.random.default_rng(2)


def draw(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def close(got, want, tolerance=2e-5):
    assert got.dtype == np.float32 and np.isfinite(got).all()
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", goldens.cases("mha"))
def test_equals_torch_and_loads_its_state(backend, name):
    case = goldens.cases("mha")[name]
    mha = nn.MultiheadAttention(**case.arguments["module"]).to(backend)
    mha.load_state_dict(case.state)
    assert set(mha.state_dict()) == set(case.state)
    options = {"mask": case.mask, "causal": case.arguments["causal"]}
    output, weights = mha(case.query, case.key, case.value, **options)
    close(output, case.output)
    close(weights, case.weights)
    output, average = mha(case.query, case.key, case.value, average_attn_weights=True, **options)
    close(output, case.output)
    close(average, case.average)
    output, none = mha(case.query, case.key, case.value, need_weights=False, **options)
    close(output, case.output)
    assert none is None


@pytest.mark.parametrize("name", [n for n in goldens.cases("t5") if not n.startswith("buckets")])
def test_t5_equals_transformers_and_loads_its_state(backend, name):
    case = goldens.cases("t5")[name]
    mha = nn.MultiheadAttention(bias=False, architecture="t5", **case.arguments).to(backend)
    mha.load_state_dict(case.state)
    assert set(mha.state_dict()) == set(case.state)
    output, weights = mha(case.query, case.key, mask=case.mask)
    close(output, case.output)
    assert weights.shape == (
        len(case.query),
        3,
        case.query.shape[1],
        (case.query if case.key is None else case.key).shape[1],
    )
    if case.weights is not None:
        close(weights, case.weights)
    close(mha(case.query, case.key, mask=case.mask, need_weights=False)[0], case.output)


@pytest.mark.parametrize("name", ["encoder", "decoder_masked"])
def test_t5_takes_the_bias_of_another_layer(backend, name):
    case = goldens.cases("t5")[name]
    arguments = {**case.arguments, "relative_attention_bias": False}
    mha = nn.MultiheadAttention(bias=False, architecture="t5", **arguments).to(backend)
    mha.load_state_dict({name: x for name, x in case.state.items() if "relative" not in name})
    close(mha(case.query, mask=case.mask, position_bias=case.bias)[0], case.output)
    assert np.abs(mha(case.query, mask=case.mask)[0] - case.output).max() > 1e-2


def test_an_additive_causal_mask(backend, rng):
    S = 11
    query = key = value = draw(rng, 2, S, 512)
    mha = nn.MultiheadAttention(embed_dim=512, num_heads=8, rng=0).to(backend)
    mask = np.triu(np.full((S, S), -1e9, dtype=np.float32), k=1)
    output, weights = mha(query, key, value, mask=mask)
    assert output.shape == (2, S, 512) and weights.shape == (2, 8, S, S)
    close(weights.sum(-1), np.ones((2, 8, S)), 1e-5)
    assert (weights[..., np.triu(np.ones((S, S), bool), 1)] == 0).all()
    state = mha.state_dict()
    want, _ = ref.multihead(
        query, key, value, 8, (*np.split(state["in_proj_weight"], 3), state["out_proj.weight"]),
        causal=True, dtype=np.float64,
    )  # fmt: skip
    close(output, want)


@pytest.mark.parametrize("need_weights", [False, True])
def test_gpt_with_cached_keys_equals_the_whole_sequence(backend, rng, need_weights):
    mha = nn.MultiheadAttention(24, 3, architecture="gpt", rng=0).to(backend)
    x = draw(rng, 2, 9, 24)
    whole, _ = mha(x, need_weights=need_weights)
    last, weights = mha(x[:, 6:], x, x, need_weights=need_weights)
    close(last, whole[:, 6:], 1e-5)
    generic = nn.MultiheadAttention(24, 3, causal=True).to(backend)
    generic.load_state_dict(mha.state_dict())
    close(whole, generic(x, need_weights=need_weights)[0], 1e-5)
    if need_weights:
        assert (weights[..., np.arange(9) > np.arange(3)[:, None] + 6] == 0).all()


def test_a_query_never_sees_a_later_token(backend, rng):
    x = draw(rng, 1, 7, 24)
    changed = x.copy()
    changed[:, 4:] = 100
    for options in ({"architecture": "gpt"}, {"causal": True}, {"architecture": "t5", "causal": True}):
        mha = nn.MultiheadAttention(24, 3, rng=0, **options).to(backend)
        np.testing.assert_array_equal(mha(x)[0][:, :4], mha(changed)[0][:, :4])


@pytest.mark.parametrize("architecture", ["generic", "gpt", "t5"])
@pytest.mark.parametrize("need_weights", [False, True])
def test_a_query_with_nothing_to_attend_to_gives_the_bias(backend, rng, architecture, need_weights):
    mha = nn.MultiheadAttention(24, 3, architecture=architecture, rng=0).to(backend)
    last = mha.o if architecture == "t5" else mha.out_proj
    last.bias = nn.Parameter(draw(rng, 24))
    mask = np.ones((1, 1, 5, 5), bool)
    mask[..., 2, :] = False
    output, weights = mha(draw(rng, 1, 5, 24), mask=mask, need_weights=need_weights)
    np.testing.assert_array_equal(output[0, 2], last.bias.numpy())
    if need_weights:
        assert (weights[:, :, 2] == 0).all() and np.isfinite(weights).all()


@pytest.mark.parametrize("architecture", ["generic", "gpt", "t5"])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_sixteen_bits(backend, rng, architecture, need_weights, dtype):
    mha = nn.MultiheadAttention(32, 4, architecture=architecture, rng=0).to(backend, dtype)
    x = draw(rng, 2, 9, 32).astype(dtype)
    step = epsilon(dtype)
    exact = nn.MultiheadAttention(32, 4, architecture=architecture).to(backend)
    exact.load_state_dict(mha.state_dict())
    output, weights = mha(x, need_weights=need_weights)
    want, want_weights = exact(x.astype(np.float32))
    assert output.dtype == dtype
    np.testing.assert_allclose(output.astype(np.float32), want, rtol=4 * step, atol=4 * step)
    if need_weights:
        assert weights.dtype == np.float32
        np.testing.assert_allclose(weights, want_weights, rtol=10 * step, atol=2 * step)


def test_without_a_batch(backend, rng):
    mha = nn.MultiheadAttention(24, 3, kdim=10, vdim=6, rng=0).to(backend)
    query, key, value = draw(rng, 1, 5, 24), draw(rng, 1, 7, 10), draw(rng, 1, 7, 6)
    for options in ({}, {"average_attn_weights": True}):
        output, weights = mha(query, key, value, **options)
        single, single_weights = mha(query[0], key[0], value[0], **options)
        np.testing.assert_array_equal(single, output[0])
        np.testing.assert_array_equal(single_weights, weights[0])
    assert mha(query[0], key[0], value[0], need_weights=False)[0].shape == (5, 24)


@pytest.mark.needs("torch")
def test_against_live_torch(backend, rng):
    torch = pytest.importorskip("torch", reason="torch is not installed; the recorded results are used instead")
    source = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    mha = nn.MultiheadAttention(32, 4).to(backend)
    mha.load_state_dict(source.state_dict())
    query, key = draw(rng, 3, 17, 32), draw(rng, 3, 29, 32)
    attend = rng.random((3, 29)) < 0.6
    attend[:, 0] = True
    with torch.no_grad():
        want, weights = source(
            *map(torch.from_numpy, (query, key, key)), key_padding_mask=torch.from_numpy(~attend),
            average_attn_weights=False,
        )  # fmt: skip
    output, got = mha(query, key, key, mask=attend[:, None, None])
    close(output, want.numpy())
    close(got, weights.numpy())
