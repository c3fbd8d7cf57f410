"""grilly.onnx: what is made of constants alone is computed once, and its sources are freed."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import grilly

pytestmark = [pytest.mark.needs("onnx", "ml_dtypes"), pytest.mark.usefixtures("default")]
if importlib.util.find_spec("onnx"):
    import onnx
    from onnx import helper, numpy_helper

    import grilly.onnx

ROWS, COLUMNS = 67, 130
RNG = np.random.default_rng(7)
PACKED = RNG.integers(-128, 128, (ROWS, COLUMNS)).astype(np.int8)
SCALE = RNG.uniform(0.001, 0.01, COLUMNS).astype(np.float32)
FLOATS = PACKED * SCALE
X = RNG.standard_normal((3, ROWS)).astype(np.float32)


def info(name, kind=1, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(nodes, constants, inputs=(), outputs=("y",), functions=(), optional=()):
    """A model whose input x is float32; ``optional`` are constants that are inputs too."""
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    given = [info("x"), *inputs, *(info(name, each.data_type, list(each.dims)) for name in optional
                                   for each in held if each.name == name)]  # fmt: skip
    graph = helper.make_graph(nodes, "g", given, [helper.make_value_info(o, onnx.TypeProto()) for o in outputs], held)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("here", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions))


#: Nodes that make the matrix w of constants.
WAYS = {
    "cast": ([("Cast", ["q"], ["f"], {"to": 1}), ("Mul", ["f", "s"], ["w"], {})], {"q": PACKED, "s": SCALE}),
    "dequantize": ([("DequantizeLinear", ["q", "s"], ["w"], {"axis": 1})], {"q": PACKED, "s": SCALE}),
    "transpose": ([("Transpose", ["t"], ["w"], {})], {"t": FLOATS.T.copy()}),
    "parts": ([("Split", ["b"], ["w", "rest"], {"axis": 1, "num_outputs": 2})],
              {"b": np.concatenate([FLOATS, FLOATS], axis=1)}),
    "float64": ([("Mul", ["d", "e"], ["m"], {}), ("Cast", ["m"], ["w"], {"to": 1})],
                {"d": PACKED.astype(np.float64), "e": SCALE.astype(np.float64)}),
    "node": ([("Constant", [], ["c"], {"value": FLOATS}), ("Neg", ["c"], ["n"], {}), ("Neg", ["n"], ["w"], {})], {}),
}  # fmt: skip


def nodes_of(way):
    nodes, constants = WAYS[way]
    made = []
    for name, inputs, outputs, attributes in nodes:
        attributes = {key: numpy_helper.from_array(each) if isinstance(each, np.ndarray) else each
                      for key, each in attributes.items()}  # fmt: skip
        made.append(helper.make_node(name, inputs, outputs, **attributes))
    return made, constants


@pytest.mark.parametrize("way", WAYS)
def test_what_is_made_of_constants_is_computed_once_and_takes_no_more_than_its_result(way, vulkan_backend):
    nodes, constants = nodes_of(way)
    used = vulkan_backend.memory().in_use
    proto = model_of([*nodes, helper.make_node("MatMul", ["x", "w"], ["y"])], constants)
    model = grilly.onnx.Model(proto, vulkan_backend)
    assert vulkan_backend.memory().in_use - used <= FLOATS.nbytes + 256
    assert model.run({"x": X}, capture=False)["y"].shape == (3, COLUMNS)
    assert model.executed == 1 and model.folded == sum(bool(node.input) for node in nodes)
    found = model.run({"x": X})["y"]
    np.testing.assert_allclose(found, X.astype(np.float64) @ FLOATS, rtol=0, atol=1e-5)
    plain = grilly.onnx.Model(model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": FLOATS}), vulkan_backend)
    plain.run({"x": X})
    assert (model.graph.dispatches, model.graph.memory) == (plain.graph.dispatches, plain.graph.memory)


def test_what_others_read_stays():
    """A table of words that is also the matrix of the outputs is on the device once."""
    backend = grilly.Compute(runtime="vulkan")
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]), helper.make_node("Transpose", ["table"], ["turned"]),
        helper.make_node("Add", ["rows", "x"], ["sum"]), helper.make_node("MatMul", ["sum", "turned"], ["y"]),
    ]  # fmt: skip
    model = grilly.onnx.Model(model_of(nodes, {"table": FLOATS}, [info("ids", 7)]), backend)
    assert backend.memory().in_use <= FLOATS.nbytes + 256
    ids, x = np.array([66, 0, 5]), RNG.standard_normal((3, COLUMNS)).astype(np.float32)
    found = model.run({"x": x, "ids": ids})["y"]
    np.testing.assert_allclose(found, (FLOATS[ids].astype(np.float64) + x) @ FLOATS.T, rtol=0, atol=1e-4)
    backend.close()


def test_constants_stay_packed_where_memory_is_short():
    """Numbers are the same; they are unpacked at each run."""
    nodes, constants = nodes_of("cast")
    proto = model_of([*nodes, helper.make_node("MatMul", ["x", "w"], ["y"])], constants)
    backend = grilly.Compute(runtime="vulkan", memory_limit=FLOATS.nbytes)
    model = grilly.onnx.Model(proto, backend)
    assert backend.memory().in_use < FLOATS.nbytes
    found = model.run({"x": X})["y"]
    np.testing.assert_allclose(found, X.astype(np.float64) @ FLOATS, rtol=0, atol=1e-5)
    assert model.folded + model.executed == 3 and model.graph.dispatches > 1
    backend.close()


def test_graphs_in_nodes_and_functions_have_constants_too():
    """w is made in both branches, in the body of a loop and in a function, each of names of its own."""
    def graph(name, suffix, output, nodes, inputs=(), results=()):
        w = [helper.make_node("Cast", [f"q{suffix}"], [f"f{suffix}"], to=1),
             helper.make_node("Mul", [f"f{suffix}", "s"], [f"w{suffix}"])]  # fmt: skip
        held = [numpy_helper.from_array(PACKED, f"q{suffix}")]
        return helper.make_graph([*w, *nodes], name, list(inputs), [*results, info(output)], held)

    then = graph("then", 1, "p1", [helper.make_node("MatMul", ["x", "w1"], ["p1"])])
    other = graph("other", 2, "p2", [helper.make_node("MatMul", ["x", "w2"], ["m2"]),
                                     helper.make_node("Neg", ["m2"], ["p2"])])  # fmt: skip
    body = graph(
        "body", 3, "each",
        [helper.make_node("ReduceSum", ["w3", "axes"], ["row"], keepdims=0),
         helper.make_node("Add", ["state", "row"], ["next"]), helper.make_node("Identity", ["goes"], ["still"]),
         helper.make_node("Identity", ["next"], ["each"])],
        [info("round", 7, []), info("goes", 9, []), info("state")], [info("still", 9, []), info("next")],
    )  # fmt: skip
    own = [helper.make_node("Neg", ["a"], ["b"]), helper.make_node("Transpose", ["b"], ["c"])]
    function = helper.make_function("here", "turned", ["a"], ["c"], own, [helper.make_opsetid("", 21)])
    nodes = [
        helper.make_node("If", ["flag"], ["p"], then_branch=then, else_branch=other),
        helper.make_node("Loop", ["three", "", "p"], ["last", "all"], body=body),
        helper.make_node("turned", ["q_t"], ["t"], domain="here"),
        helper.make_node("Add", ["last", "t"], ["y"]),
    ]
    turned = RNG.standard_normal((COLUMNS, 3)).astype(np.float32)
    constants = {"s": SCALE, "axes": np.array([0]), "three": np.array(3), "q_t": turned}
    model = grilly.onnx.Model(model_of(nodes, constants, [info("flag", 9, [])], ("y", "all"), [function]))
    for flag, sign in ((True, 1), (False, -1)):
        found = model.run({"x": X, "flag": np.array(flag)})
        exact = sign * (X.astype(np.float64) @ FLOATS) + 3 * FLOATS.sum(0, dtype=np.float64)
        np.testing.assert_allclose(found["y"], exact - turned.T, rtol=0, atol=1e-4)
        np.testing.assert_allclose(found["all"][-1], exact, rtol=0, atol=1e-4)
        assert model.graph is not None
        # Product, negation, choice, three rounds of Add and Identity, loop, last sum; the host does Identity of "goes".
        assert (model.executed, model.folded) == (10 + (not flag), 9 + 3)


def test_a_constant_that_the_caller_gives_is_none():
    """What is made of it is computed at each run then; other choices keep what they have."""
    nodes, constants = nodes_of("cast")
    nodes += [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Neg", ["bias"], ["less"]),
              helper.make_node("Sub", ["m", "less"], ["y"])]  # fmt: skip
    bias = RNG.standard_normal(COLUMNS).astype(np.float32)
    backend = grilly.Compute(runtime="vulkan")
    proto = model_of(nodes, {**constants, "bias": bias}, optional=("s", "bias"))
    model = grilly.onnx.Model(proto, backend)
    assert [each.name for each in model.optional] == ["s", "bias"]
    graphs = set()
    product = X.astype(np.float64) @ PACKED
    for scale, add in ((SCALE, bias), (SCALE, 2 * bias), (2 * SCALE, bias), (3 * SCALE, 4 * bias), (SCALE, bias)):
        own = {"s": scale} if scale is not SCALE else {}
        own |= {"bias": add} if add is not bias else {}
        found = model.run({"x": X, **own})["y"]
        np.testing.assert_allclose(found, product * scale + add, rtol=0, atol=1e-4)
        assert np.array_equal(found, model.run({"x": X, **own}, capture=False)["y"])
        assert model.folded + model.executed == 5
        assert model.executed == 2 + ("s" in own) + ("bias" in own)
        model.run({"x": X, **own})
        graphs.add(model.graph)
    assert len(graphs) == 4
    backend.close()


def test_a_node_of_constants_that_fails_is_named():
    nodes = [helper.make_node("Concat", ["q", "s"], ["w"], name="both", axis=7), helper.make_node("Neg", ["w"], ["y"])]
    model = grilly.onnx.Model(model_of(nodes, {"q": FLOATS, "s": FLOATS}))
    with pytest.raises(grilly.ModelError, match="^Concat 'both'"):
        model.run({"x": X})


def test_indices_into_a_table_that_is_made_of_constants_are_checked():
    nodes, constants = nodes_of("dequantize")
    nodes += [helper.make_node("Gather", ["w", "ids"], ["rows"]), helper.make_node("Mul", ["rows", "x"], ["y"])]
    model = grilly.onnx.Model(model_of(nodes, constants, [info("ids", 7)]))
    with pytest.raises(ValueError, match=f"input ids has the index {ROWS}"):
        model.run({"x": np.float32(2), "ids": np.array([ROWS])})
    found = model.run({"x": np.float32(2), "ids": np.array([-1, 3])})["y"]
    np.testing.assert_array_equal(found, 2 * FLOATS[[-1, 3]])
