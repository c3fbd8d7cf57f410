"""Random numbers in models of ONNX: the seed of a run, of a node, and none."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import grilly
from grilly.reference import random_normal, random_uniform

pytestmark = [pytest.mark.needs("onnx", "ml_dtypes"), pytest.mark.usefixtures("default")]
if importlib.util.find_spec("onnx"):
    from onnx import TensorProto, helper, numpy_helper

    import grilly.onnx


def model_of(nodes, inputs, outputs, constants=()):
    infos = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    held = [numpy_helper.from_array(value, name) for name, value in dict(constants).items()]
    graph = helper.make_graph(nodes, "g", infos, results, held)
    return grilly.onnx.Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))


@pytest.fixture
def noise():
    """As a voice adds noise: four arrays, one of them of a node with a seed."""
    node = helper.make_node
    nodes = [
        node("RandomNormalLike", ["x"], ["like"], mean=1.0, scale=2.0), node("Add", ["x", "like"], ["y"]),
        node("RandomUniform", [], ["flat"], shape=[5], low=2.0, high=3.0),
        node("RandomNormal", [], ["own"], shape=[5], seed=1.5), node("RandomNormal", [], ["other"], shape=[5]),
    ]  # fmt: skip
    return model_of(nodes, [("x", TensorProto.FLOAT, ["n"])], ["y", "flat", "own", "other"])


x = np.zeros(5, np.float32)


@pytest.mark.parametrize("seed", [7, 2**63 + 5])
@pytest.mark.parametrize("capture", [True, False])
def test_a_seed_says_which_numbers(noise, seed, capture):
    """Each node draws others, by the offset; both times, whether captured, replayed or not."""
    for _ in range(2):
        found = noise.run({"x": x}, seed=seed, capture=capture)
        assert (noise.graph is not None) == capture
        np.testing.assert_allclose(found["y"], random_normal(5, mean=1, std=2, seed=seed, offset=0), atol=1e-5)
        np.testing.assert_allclose(found["flat"], random_uniform(5, low=2, high=3, seed=seed, offset=1), atol=1e-6)
        np.testing.assert_allclose(found["other"], random_normal(5, seed=seed, offset=2), atol=1e-5)


def test_without_a_seed_each_run_draws_anew(noise):
    """Replays too, in the sequence of manual_seed; but a node with a seed of its own does not."""
    runs = {}
    for begin in (3, 4, 3):
        grilly.manual_seed(begin)
        runs.setdefault(begin, []).extend(noise.run({"x": x}) for _ in range(2))
        assert noise.graph is not None
    first, second, third, fourth = runs[3]
    for name in ("y", "flat", "other"):
        assert len({each[name].tobytes() for each in (first, second, *runs[4])}) == 4, name
        assert np.array_equal(first[name], third[name]) and np.array_equal(second[name], fourth[name])
    assert len({each["own"].tobytes() for each in (first, second, *runs[4])}) == 1


def test_rounds_of_a_loop_draw_differently():
    """By the run's seed and by the node's own."""
    node = helper.make_node
    values = [helper.make_empty_tensor_value_info(name) for name in ("on", "a", "b")]
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("RandomNormal", [], ["a"], shape=[4]),
         node("RandomNormal", [], ["b"], shape=[4], seed=2.0)],
        "body", [helper.make_tensor_value_info("i", TensorProto.INT64, []),
                 helper.make_tensor_value_info("go", TensorProto.BOOL, [])], values,
    )  # fmt: skip
    held = {"count": np.array(3), "yes": np.array(True)}
    model = model_of([node("Loop", ["count", "yes"], ["a3", "b3"], body=body)], [], ["a3", "b3"], held)
    one, other = model.run({}, seed=1), model.run({}, seed=2)
    for name in ("a3", "b3"):
        assert one[name].shape == (3, 4) and len({row.tobytes() for row in one[name]}) == 3
    assert not np.array_equal(one["a3"], other["a3"]) and np.array_equal(one["b3"], other["b3"])


def test_draws_by_probabilities():
    """Bernoulli, Multinomial and Dropout, each within five standard deviations; and what cannot be drawn is not."""
    node, count = helper.make_node, 2000
    nodes = [
        node("Bernoulli", ["p"], ["ones"], dtype=TensorProto.BOOL),
        node("Multinomial", ["logits"], ["places"], sample_size=count, dtype=TensorProto.INT64),
        node("Dropout", ["p", "ratio", "training"], ["kept", "mask"]),
    ]  # fmt: skip
    inputs = [("p", TensorProto.FLOAT, [3, count]), ("logits", TensorProto.FLOAT, [2, 5])]
    held = {"ratio": np.array(0.25, np.float32), "training": np.array(True)}
    model = model_of(nodes, inputs, ["ones", "places", "kept", "mask"], held)
    p = np.repeat(np.float32([[0], [0.3], [1]]), count, axis=1)
    shares = np.array([[0.1, 0, 0.2, 0.7, 0], [0, 0, 0, 0, 1]])
    with np.errstate(divide="ignore"):
        found = model.run({"p": p, "logits": np.log(shares).astype(np.float32) + 3}, seed=5)
    assert model.graph is not None and found["ones"].dtype == np.bool_ and found["places"].dtype == np.int64
    drawn = np.stack([np.bincount(row, minlength=5) for row in found["places"]])
    for counts, of in ((found["ones"].sum(1), p[:, 0]), (drawn, shares), (found["mask"].sum(1), np.full(3, 0.75))):
        assert (np.abs(counts - count * of) <= 5 * np.sqrt(count * of * (1 - of))).all()
    np.testing.assert_allclose(found["kept"], np.where(found["mask"], p / 0.75, 0), rtol=1e-6)


@pytest.mark.parametrize("seed, error, said", [
    (-1, ValueError, r"Model\.run: seed is -1; expected 0 to 2\*\*64 - 1"),
    (1.5, TypeError, r"Model\.run: seed is 1\.5"),
])  # fmt: skip
def test_seeds_that_are_refused(noise, seed, error, said):
    with pytest.raises(error, match=said):
        noise.run({"x": x}, seed=seed)


@pytest.mark.parametrize("attributes, said", [
    ({"scale": -1.0}, "^RandomNormalLike 'it': normal: std is -1"), ({"dtype": 11}, "'it': double is a dtype"),
    ({}, "'it': normal: dtype int64; expected a floating one"),
])  # fmt: skip
def test_what_cannot_be_drawn(attributes, said):
    node = helper.make_node("RandomNormalLike", ["x"], ["y"], name="it", **attributes)
    model = model_of([node], [("x", TensorProto.INT64, [3])], ["y"])
    with pytest.raises((grilly.ModelError, grilly.UnsupportedError), match=said):
        model.run({"x": np.arange(3)})
