"""The NumPy reference against what PyTorch and transformers computed; needs neither, and no device."""

import numpy as np
import pytest

import goldens
from grilly import reference as ref


def close(got, want, tolerance=1e-6):
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", goldens.cases("sdpa"))
def test_attention_equals_torch(name):
    case = goldens.cases("sdpa")[name]
    options = {"mask": case.mask, "dtype": np.float64, **case.arguments}
    close(ref.naive_attention(case.q, case.k, case.v, **options)[0], case.output)
    close(ref.flash_attention(case.q, case.k, case.v, **options, block_q=3, block_k=2), case.output)


@pytest.mark.parametrize("name", goldens.cases("mha"))
def test_multihead_equals_torch(name):
    case = goldens.cases("mha")[name]
    state, heads = case.state, case.arguments["module"]["num_heads"]
    projections = (
        np.split(state["in_proj_weight"], 3)
        if "in_proj_weight" in state
        else [state[f"{x}_proj_weight"] for x in "qkv"]
    )
    weights = (*projections, state["out_proj.weight"])
    biases = (*np.split(state["in_proj_bias"], 3), state["out_proj.bias"]) if "in_proj_bias" in state else None
    key, value = (case.query if x is None else x for x in (case.key, case.value))
    output, attention = ref.multihead(
        case.query, key, value, heads, weights, biases,
        mask=case.mask, causal=case.arguments["causal"], dtype=np.float64,
    )  # fmt: skip
    close(output, case.output)
    close(attention, case.weights)
    close(attention.mean(axis=1), case.average)


@pytest.mark.parametrize("name", [n for n in goldens.cases("t5") if not n.startswith("buckets")])
def test_t5_equals_transformers(name):
    case = goldens.cases("t5")[name]
    key = case.query if case.key is None else case.key
    queries, keys = case.query.shape[1], key.shape[1]
    bias = None
    if case.arguments["relative_attention_bias"]:
        table = case.state["relative_attention_bias.weight"]
        bidirectional = case.arguments["bidirectional"]
        bias = ref.t5_bias(table, queries, keys, bidirectional, offset=0 if bidirectional else keys - queries)
        if case.bias is not None:
            np.testing.assert_array_equal(bias, case.bias[0])
    output, attention = ref.multihead(
        case.query, key, key, case.arguments["num_heads"], [case.state[f"{x}.weight"] for x in "qkvo"],
        scale=1.0, bias=bias, mask=case.mask, dtype=np.float64,
    )  # fmt: skip
    close(output, case.output)
    if case.weights is not None:
        close(attention, case.weights)


@pytest.mark.parametrize("name", ["buckets_both", "buckets_one"])
def test_t5_buckets_equal_transformers(name):
    case = goldens.cases("t5")[name]
    np.testing.assert_array_equal(ref.t5_bucket(case.distances, **case.arguments), case.buckets)


@pytest.mark.parametrize("name", goldens.cases("rope"))
def test_rope_equals_transformers(name):
    case = goldens.cases("rope")[name]
    close(ref.rope(case.x, **case.arguments), case.output, 1e-5)  # transformers' angles are float32
    assert np.abs(case.output - case.x).max() > 0.1
