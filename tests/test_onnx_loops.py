"""Graphs in nodes of ONNX that are repeated: Loop and Scan."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import grilly

pytestmark = [pytest.mark.needs("onnx", "ml_dtypes"), pytest.mark.usefixtures("default")]
if importlib.util.find_spec("onnx"):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    import grilly.onnx


def info(name, dtype=1, shape=None):
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(nodes, inputs, outputs, constants):
    results = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, results, held)
    return grilly.onnx.Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


#: What `powers` multiplies by.
W = np.random.default_rng(0).uniform(0, 0.6, (3, 3)).astype(np.float32)


def powers(condition: str) -> grilly.onnx.Model:
    """``h = tanh(h w)`` so many times, or while a condition holds, with all of them and how many there were.

    Each round also makes the host's number of columns one larger, which is how often the sum of h is repeated.
    """
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "w"], ["product"]),  # w is from outside
            helper.make_node("Tanh", ["product"], ["next"]),
            helper.make_node("Add", ["columns", "one"], ["more"]),
            helper.make_node("ReduceSum", ["next"], ["sum"], keepdims=0),
            helper.make_node("Greater", ["sum", "bound"], ["large"]),
            helper.make_node("Identity", ["large" if condition == "device" else "goes"], ["still"]),
            helper.make_node("Identity", ["next"], ["each"]),
            helper.make_node("Add", ["round", "first"], ["number"]),
        ],
        "body", [info("round", 7, []), info("goes", 9, []), info("h"), info("columns", 7, [1])],
        [info("still", 9, []), info("next"), info("more", 7, [1]), info("each"), info("number", 7, [])],
        [numpy_helper.from_array(np.array([1]), "one"), numpy_helper.from_array(np.float32(0.5), "bound")],
    )  # fmt: skip
    nodes = [
        helper.make_node("Loop", ["count", "", "x", "start"], ["last", "width", "all", "numbers"], body=body,
                         name="rounds"),
        helper.make_node("ReduceSum", ["last"], ["whole"], keepdims=1),
        helper.make_node("Expand", ["whole", "width"], ["wide"]),
    ]  # fmt: skip
    inputs = [info("x", 1, [2, 3]), info("count", 7, []), info("first", 7, [])]
    return model_of(nodes, inputs, ["last", "all", "numbers", "wide"], {"w": W, "start": np.array([2])})


def expected(x, w, count, least=None):
    rows, h = [], x.astype(np.float64)
    for _ in range(count):
        h = np.tanh(h @ w.astype(np.float64))
        rows.append(h)
        if least is not None and h.sum() <= least:
            break
    return np.stack(rows)


def test_loops_of_counts_that_inputs_give_are_captured():
    """Each count makes a graph of its own, which has the rounds one after the other; states may stay on the host."""
    model = powers("count")
    x = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
    graphs = set()
    for count, first in ((3, 0), (5, 10), (3, 0)):
        feeds = {"x": x, "count": np.array(count), "first": np.array(first)}
        found, exact = model.run(feeds), expected(x, W, count)
        graphs.add(model.graph)
        np.testing.assert_allclose(found["all"], exact, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(found["last"], found["all"][-1])
        assert found["numbers"].tolist() == list(range(first, first + count))
        assert found["wide"].shape == (1, 2 + count)
        np.testing.assert_allclose(found["wide"], exact[-1].sum(), rtol=1e-5, atol=1e-5)
        again = model.run(feeds, capture=False)
        assert all(np.array_equal(again[name], found[name]) for name in found)
    assert None not in graphs and len(graphs) == 2


def test_a_loop_that_the_device_ends_is_not_captured():
    model = powers("device")
    x = np.abs(np.random.default_rng(1).standard_normal((2, 3))).astype(np.float32)
    exact = expected(x, W, 50, least=0.5)
    found = model.run({"x": x, "count": np.array(50), "first": np.array(0)})
    assert 2 < len(exact) < 50 and found["all"].shape == exact.shape
    np.testing.assert_allclose(found["all"], exact, rtol=0, atol=1e-5)
    assert model.graph is None and model.uncaptured.startswith("Loop 'rounds': ")


def test_a_loop_of_no_rounds_says_what_it_lacks():
    model = powers("count")
    with pytest.raises(grilly.UnsupportedError, match="Loop 'rounds': a loop of no rounds"):
        model.run({"x": np.zeros((2, 3), np.float32), "count": np.array(0), "first": np.array(0)})


def test_scans_along_axes_and_from_their_ends():
    """A running sum of the columns of a, from the last one, and of the rows of b; the sums go to the second axis."""
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["column", "row"], ["product"]),
            helper.make_node("Add", ["sum", "product"], ["next"]),
            helper.make_node("Identity", ["next"], ["each"]),
            helper.make_node("Neg", ["next"], ["other"]),
        ],
        "body", [info("sum"), info("column"), info("row")], [info("next"), info("each"), info("other")],
    )  # fmt: skip
    node = helper.make_node(
        "Scan", ["zero", "a", "b"], ["last", "all", "turned"], body=body, num_scan_inputs=2, scan_input_axes=[-1, 0],
        scan_input_directions=[1, 0], scan_output_axes=[1, 0], scan_output_directions=[0, 1],
    )  # fmt: skip
    model = model_of([node], [info("a", 1, [4, 3]), info("b", 1, [3, 4])], ["last", "all", "turned"],
                     {"zero": np.zeros(4, np.float32)})  # fmt: skip
    a, b = (np.arange(12, dtype=np.float32).reshape(shape) for shape in ((4, 3), (3, 4)))
    found = model.run({"a": a, "b": b})
    exact = np.cumsum(a[:, ::-1].T * b, axis=0)
    assert model.graph is not None
    np.testing.assert_array_equal(found["last"], exact[-1])
    np.testing.assert_array_equal(found["all"], exact.T)
    np.testing.assert_array_equal(found["turned"], -exact[::-1])


def test_scans_before_version_9_are_refused():
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "body", [info("x")], [info("y")])
    node = helper.make_node("Scan", ["", "x"], ["y"], body=graph, num_scan_inputs=1)
    whole = helper.make_graph([node], "g", [info("x", TensorProto.FLOAT, [1, 2])], [info("y")])
    model = grilly.onnx.Model(helper.make_model(whole, opset_imports=[helper.make_opsetid("", 8)]))
    with pytest.raises(grilly.UnsupportedError, match="before operator set 9"):
        model.run({"x": np.zeros((1, 2), np.float32)})


def test_sequences_inside_of_a_model():
    """As older exporters write loops over lists: parts of arrays on the device and the host, joined again."""
    body = helper.make_graph(
        [
            helper.make_node("SequenceAt", ["parts", "round"], ["part"]),
            helper.make_node("Mul", ["part", "part"], ["square"]),
            helper.make_node("SequenceInsert", ["list", "square"], ["longer"]),
            helper.make_node("Identity", ["goes"], ["still"]),
        ],
        "body", [info("round", 7, []), info("goes", 9, []),
                 helper.make_tensor_sequence_value_info("list", 1, None)],
        [info("still", 9, []), helper.make_tensor_sequence_value_info("longer", 1, None)],
    )  # fmt: skip
    double = helper.make_graph(
        [helper.make_node("Add", ["one", "other"], ["sum"])], "double", [info("one"), info("other")], [info("sum")]
    )
    nodes = [
        helper.make_node("SplitToSequence", ["x", "size"], ["parts"], axis=1),
        helper.make_node("SequenceLength", ["parts"], ["count"]),
        helper.make_node("SequenceEmpty", [], ["none"]),
        helper.make_node("Loop", ["count", "", "none"], ["squares"], body=body),
        helper.make_node("SequenceMap", ["squares", "shift"], ["moved"], body=double),
        helper.make_node("SequenceErase", ["moved", "zero"], ["fewer"]),
        helper.make_node("SequenceInsert", ["fewer", "x", "zero"], ["more"]),
        helper.make_node("ConcatFromSequence", ["more"], ["y"], axis=1),
        helper.make_node("SplitToSequence", ["numbers", "sizes"], ["held"]),
        helper.make_node("SequenceAt", ["held", "last"], ["tail"]),
        helper.make_node("SequenceConstruct", ["tail", "tail"], ["twice"]),
        helper.make_node("ConcatFromSequence", ["twice"], ["shape"], axis=0, new_axis=0),
        helper.make_node("Expand", ["shift", "shape"], ["z"]),
        helper.make_node("SplitToSequence", ["x"], ["rows"], keepdims=0),
        helper.make_node("ConcatFromSequence", ["rows"], ["stacked"], axis=-1, new_axis=1),
    ]
    constants = {"size": np.array(3), "zero": np.array(0), "shift": np.float32(0.5), "numbers": np.arange(5),
                 "sizes": np.array([3, 2]), "last": np.array(-1)}  # fmt: skip
    model = model_of(nodes, [info("x", 1, [2, 7])], ["y", "z", "stacked", "count"], constants)
    x = np.random.default_rng(0).standard_normal((2, 7)).astype(np.float32)
    found = model.run({"x": x})
    assert model.graph is not None and found["count"] == 3
    np.testing.assert_array_equal(found["y"], np.concatenate([x, x[:, 3:] * x[:, 3:] + np.float32(0.5)], 1))
    np.testing.assert_array_equal(found["stacked"], x.T)
    assert found["z"].shape == (3, 4, 3, 4) and (found["z"] == 0.5).all()
    again = model.run({"x": x}, capture=False)
    assert all(np.array_equal(again[name], found[name]) for name in found)


def test_sequences_are_no_outputs():
    node = helper.make_node("SequenceConstruct", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [info("x", 1, [2])], [helper.make_tensor_sequence_value_info("y", 1, None)])
    with pytest.raises(grilly.UnsupportedError, match="output y is a sequence_type; grilly gives tensors"):
        grilly.onnx.Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
