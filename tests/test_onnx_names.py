"""Names in models of ONNX: graphs in nodes that use one name twice, and inputs that have defaults."""

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


def graph_of(nodes, inputs, outputs, constants=(), name="g"):
    held = [numpy_helper.from_array(np.asarray(value), key) for key, value in dict(constants).items()]
    return helper.make_graph(
        nodes, name, inputs, [helper.make_value_info(each, onnx.TypeProto()) for each in outputs], held
    )


def proto_of(*args):
    return helper.make_model(graph_of(*args), opset_imports=[helper.make_opsetid("", 17)])


node = helper.make_node if importlib.util.find_spec("onnx") else None


def siblings() -> onnx.ModelProto:
    """Branches beside each other that own the same names, of other dtypes, shapes and places than each other's.

    ``w`` is a row in one branch and a shape in the other, ``t`` a floating array or an integer one, and a graph in a
    branch reads the branch's ``w`` once, and owns one itself once.
    """
    inner = [
        graph_of([node("Mul", ["x", "w"], ["t"])], [], ["t"]),
        graph_of([node("Sub", ["x", "w"], ["t"])], [], ["t"], {"w": np.float32([5, 6, 7, 8])}),
    ]
    one = graph_of(
        [node("If", ["second"], ["t"], then_branch=inner[0], else_branch=inner[1]), node("Add", ["t", "w"], ["r"])],
        [], ["r"], {"w": np.float32([1, 2, 3, 4])},
    )  # fmt: skip
    other = graph_of(
        [
            node("Add", ["w", "c"], ["t"]), node("Reshape", ["x", "t"], ["flat"]), node("Reshape", ["flat", "w"], ["r"])
        ],
        [], ["r"], {"w": np.array([2, 4]), "c": np.array([2, -2])},
    )  # fmt: skip
    return proto_of(
        [node("If", ["first"], ["r"], name="which", then_branch=one, else_branch=other), node("Neg", ["r"], ["y"])],
        [info("x", 1, [2, 4]), info("first", TensorProto.BOOL, []), info("second", TensorProto.BOOL, [])], ["y"],
    )  # fmt: skip


def test_branches_that_use_one_name_have_values_of_their_own():
    proto = siblings()
    before = proto.SerializeToString()
    model = grilly.onnx.Model(proto)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    w, own = np.float32([1, 2, 3, 4]), np.float32([5, 6, 7, 8])
    for first, second, exact in (
        (True, True, x * w + w), (True, False, x - own + w), (False, False, x), (True, True, x * w + w),
    ):  # fmt: skip
        feeds = {"x": x, "first": np.array(first), "second": np.array(second)}
        for capture in (True, False):
            assert np.array_equal(model.run(feeds, capture=capture)["y"], -exact), (first, second, capture)
    assert proto.SerializeToString() == before  # the caller's model stays as it is


def test_loops_beside_each_other_use_the_same_names():
    """Two bodies with states, constants and results of the same names, of which one decides a shape."""
    def body(nodes, held, *types):
        graph = graph_of(nodes, [info("i", 7, []), info("go", 9, []), *types], ["go2", "next"], held)
        return graph

    same = node("Identity", ["go"], ["go2"])
    grows = body([same, node("Add", ["h", "step"], ["next"])], {"step": np.array([2])}, info("h", 7, [1]))
    halves = body([same, node("Mul", ["h", "step"], ["next"])], {"step": np.float32([0.5, 0.25, 2])}, info("h"))
    nodes = [
        node("Loop", ["times", "", "start"], ["width"], body=grows, name="a"),
        node("Loop", ["times", "", "x"], ["less"], body=halves, name="b"),
        node("Concat", ["width", "three"], ["shape"], axis=0),
        node("Expand", ["less", "shape"], ["y"]),
    ]
    held = {"start": np.array([1]), "times": np.array(3), "three": np.array([3])}
    model = grilly.onnx.Model(proto_of(nodes, [info("x", 1, [1, 3])], ["y", "width"], held))
    x = np.float32([[8, 64, 1]])
    for capture in (True, False):
        found = model.run({"x": x}, capture=capture)
        assert found["width"].tolist() == [7]
        assert np.array_equal(found["y"], np.broadcast_to(np.float32([1, 1, 8]), (7, 3)))
        assert (model.graph is not None) == capture


def test_a_branch_sees_an_outer_name_until_it_owns_it():
    """The second node's ``h`` is the branch's own, the first one's that of the graph around it."""
    inside = graph_of([node("Mul", ["h", "two"], ["h2"]), node("Neg", ["h2"], ["h"]), node("Add", ["h", "h2"], ["r"])],
                      [], ["r"])  # fmt: skip
    outside = graph_of([node("Identity", ["h"], ["r"])], [], ["r"])
    nodes = [node("Relu", ["x"], ["h"]), node("If", ["c"], ["s"], then_branch=inside, else_branch=outside),
             node("Add", ["s", "h"], ["y"])]  # fmt: skip
    model = grilly.onnx.Model(proto_of(nodes, [info("x", 1, [2]), info("c", 9, [])], ["y"], {"two": np.float32(2)}))
    x = np.float32([3, -1])
    assert model.run({"x": x, "c": np.array(True)})["y"].tolist() == [3, 0]
    assert model.run({"x": x, "c": np.array(False)})["y"].tolist() == [6, 0]


# -- inputs that have defaults ----------------------------------------------------------------------------------------


def test_an_input_with_a_default_may_be_given():
    """A weight on the device, a number and a shape on the host: with and without a graph, in any order."""
    nodes = [
        node("MatMul", ["x", "w"], ["p"]), node("Mul", ["p", "scale"], ["q"]), node("Reshape", ["q", "shape"], ["y"]),
        node("Gather", ["x", "column"], ["z"], axis=1),
    ]  # fmt: skip
    w, scale, shape = np.float32([[1, 2], [3, 4]]), np.float32(2), np.array([4])
    inputs = [info("x", 1, [2, 2]), info("w", 1, [2, 2]), info("scale", 1, []), info("shape", 7, ["n"]),
              info("column", 7, [])]  # fmt: skip
    held = {"w": w, "scale": scale, "shape": shape, "column": np.array(0)}
    model = grilly.onnx.Model(proto_of(nodes, inputs, ["y", "z"], held))
    assert [each.name for each in model.inputs] == ["x"]
    assert [each.name for each in model.optional] == ["w", "scale", "shape", "column"]
    x = np.float32([[1, -1], [2, 0]])
    choices = ({}, {"w": w * 3}, {"scale": np.float32(5).reshape(())}, {"shape": np.array([2, 2])},
               {"column": np.array(1)},
               {"w": -w, "shape": np.array([1, 4]), "scale": np.array(1, np.float32)})  # fmt: skip
    graphs = set()
    for capture in (False, True, True, False):
        for given in (*choices, *choices[::-1]):
            found = model.run({"x": x, **given}, capture=capture)
            whole = {**held, **given}
            exact = (x @ whole["w"] * whole["scale"]).reshape(whole["shape"])
            assert np.array_equal(found["y"], exact), (given, capture)
            assert np.array_equal(found["z"], x[:, whole["column"]])
            if capture:
                assert model.graph is not None
                graphs.add(model.graph)
    assert len(graphs) == len(choices)


def test_what_has_a_default_is_checked_too():
    inputs = [info("x", 1, [2]), info("w", 1, [2])]
    model = grilly.onnx.Model(proto_of([node("Add", ["x", "w"], ["y"])], inputs, ["y"], {"w": np.float32([1, 2])}))
    x = np.zeros(2, np.float32)
    with pytest.raises(ValueError, match=r"v is no input; .* are x \(float32 \[2\]\), and 1 that have defaults"):
        model.run({"x": x, "v": x})
    with pytest.raises(ValueError, match=r"input w has shape \(3,\); expected \(2,\)"):
        model.run({"x": x, "w": np.zeros(3, np.float32)})
    with pytest.raises(ValueError, match="x is missing"):
        model.run({"w": x})
    prepared = grilly.onnx.Backend.prepare(proto_of(
        [node("Add", ["x", "w"], ["y"])], inputs, ["y"], {"w": np.float32([1, 2])}
    ))  # fmt: skip
    assert prepared.run([x])[0].tolist() == [1, 2] and prepared.run({"x": x, "w": x})[0].tolist() == [0, 0]
