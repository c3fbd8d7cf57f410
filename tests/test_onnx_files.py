"""What files of ONNX hold: extents, orders of nodes, names, domains, sparse arrays, uint64, slices at their bounds."""

from __future__ import annotations

import importlib.util
import itertools

import numpy as np
import pytest

import grilly

pytestmark = [pytest.mark.needs("onnx", "ml_dtypes"), pytest.mark.usefixtures("default")]
if importlib.util.find_spec("onnx"):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    import grilly.onnx

x = np.arange(6, dtype=np.float32).reshape(2, 3)
X = {"x": x}


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def proto_of(nodes, given, outputs="y", constants=(), sparse=(), opsets=(("", 18),)):
    """A model of nodes; ``given`` are arrays of inputs, or shapes of float32, by name."""
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        if isinstance(value, np.ndarray) else helper.make_tensor_value_info(name, TensorProto.FLOAT, value)
        for name, value in given.items()
    ]  # fmt: skip
    held = [numpy_helper.from_array(value, name) for name, value in dict(constants).items()]
    results = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs.split()]
    graph = helper.make_graph(nodes, "g", infos, results, held, sparse_initializer=list(sparse))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*each) for each in opsets])


def run(proto, feeds, **options):
    return grilly.onnx.Model(proto).run(feeds, **options)


def test_an_extent_of_less_than_nothing_is_free():
    model = grilly.onnx.Model(proto_of([node("Neg", "x", "y")], {"x": [-1, 3]}))
    assert model.inputs[0].shape == (None, 3)
    for rows in (2, 1):
        np.testing.assert_array_equal(model.run({"x": x[:rows]})["y"], -x[:rows])
    with pytest.raises(ValueError, match=r"input x has shape \(3, 2\); expected \(None, 3\)"):
        model.run({"x": x.T})
    with pytest.raises(ValueError, match=r"x is missing; the model's inputs are x \(float32 \[\?, 3\]\)$"):
        model.run({})
    with pytest.raises(ValueError, match=r"has shape \(2, 3\); expected \(0, 3\)"):  # and nothing is nothing
        run(proto_of([node("Neg", "x", "y")], {"x": [0, 3]}), X)


# -- orders of nodes, and names ---------------------------------------------------------------------------------------


def test_nodes_in_any_order():
    """Those of graphs in nodes too, which may read what comes later outside of them."""
    nodes = [node("Exp", "x", "a"), node("Neg", "a", "b"), node("Mul", "a b", "y")]
    for order in itertools.permutations(nodes):
        proto = proto_of(list(order), X)
        before = proto.SerializeToString()
        np.testing.assert_allclose(run(proto, X)["y"], -np.exp(2 * x), rtol=1e-5)
        assert proto.SerializeToString() == before  # the caller's own
    result = [helper.make_value_info("r", onnx.TypeProto())]
    branch = helper.make_graph([node("Neg", "n", "r"), node("Abs", "later", "n")], "b", [], result)
    nodes = [node("If", "c", "y", then_branch=branch, else_branch=branch), node("Sub", "x one", "later")]
    held = {"one": np.float32([1, 2, 3]), "c": np.array(True)}
    np.testing.assert_array_equal(run(proto_of(nodes, X, constants=held), X)["y"], -np.abs(x - held["one"]))


@pytest.mark.parametrize("nodes, said", [
    ([("Neg", "x", "z"), ("Add", "n x", "y", "p"), ("Abs", "y", "n", "q")],
     "^Add 'p', Abs 'q': each reads what the next one makes, and the last what the first one makes"),
    ([("Add", "y x", "y", "")], "^Add of 'y': each reads"),
    ([("Neg", "x", "y", "p"), ("Abs", "x", "y", "q")], "^Abs 'q': output 'y' is an output of Neg 'p' too"),
    ([("Neg", "x", "x", "p"), ("Abs", "x", "y", "q")], "^Neg 'p': output 'x' is an input too"),
    ([("Neg", "x", "c", "p"), ("Abs", "c", "y", "q")], "^Neg 'p': output 'c' is an initializer too"),
    ([("Neg", "x", "n", "p"), ("Foo", "n", "y", "q")], r"operators that grilly lacks: Foo \(1\)$"),
])  # fmt: skip
def test_orders_and_names_that_cannot_be(nodes, said):
    made = [node(*each[:3], name=(*each, "")[3]) for each in nodes]
    with pytest.raises((grilly.ModelError, grilly.UnsupportedError), match=said):
        grilly.onnx.Model(proto_of(made, X, constants={"c": x}))


def test_names_of_inputs_and_outputs():
    proto = proto_of([node("Neg", "x", "y")], {"x": x, "unused": x}, "y x c y", {"c": x + 1})
    model = grilly.onnx.Backend.prepare(proto)
    found = model.run([x, x])
    for one, other in zip(found, (-x, x, x + 1, -x), strict=True):  # y is named twice
        np.testing.assert_array_equal(one, other)
    proto.graph.input.append(proto.graph.input[0])
    with pytest.raises(grilly.ModelError, match="two inputs are named 'x'"):
        grilly.onnx.Model(proto)


@pytest.mark.parametrize("opsets", [(("ai.onnx", 18), ("", 11)), (("", 11), ("ai.onnx", 18)), (("ai.onnx", 11),)])
def test_the_domain_has_two_names(opsets):
    """In version 11 axes are an attribute, on the host too."""
    nodes = [node("ReduceSum", n, out, axes=[1], domain=domain)
             for n, out, domain in (("x", "y", ""), ("x", "z", "ai.onnx"), ("c", "w", "ai.onnx"))]  # fmt: skip
    for value in run(proto_of(nodes, X, "y z w", {"c": x}, opsets=opsets), X).values():
        np.testing.assert_array_equal(value, [[3], [12]])


def test_a_foreign_domain_is_named():
    proto = proto_of([node("Neg", "x", "y", domain="my.own")], X, opsets=(("", 18), ("my.own", 1)))
    with pytest.raises(grilly.UnsupportedError, match=r"lacks: my\.own\.Neg \(1\)"):
        grilly.onnx.Model(proto)


def test_functions_in_a_file():
    """One in another, with an attribute of its caller's, nodes in another order, and one of another operator set."""
    own, older = [[helper.make_opsetid("", version), helper.make_opsetid("my", 1)] for version in (18, 11)]
    inner = helper.make_function("my", "F", ["a", "b"], ["c"], [node("Neg", "t", "c"), node("Add", "a b", "t")], own)
    outer = helper.make_function("my", "G", ["a"], ["c"], [node("Softmax", "a", "s"),
                                 node("F", "s a", "c", domain="my")], own, ["axis"])  # fmt: skip
    outer.node[0].attribute.add(name="axis", ref_attr_name="axis", type=onnx.AttributeProto.INT)
    old = helper.make_function("my", "H", ["a"], ["c"], [node("ReduceSum", "a", "c", axes=[1])], older)
    proto = proto_of([node("G", "x", "y", domain="my", axis=0), node("H", "x", "z", domain="my")], X, "y z",
                     opsets=(("", 18), ("my", 1)))  # fmt: skip
    proto.functions.extend([inner, outer, old])
    found = run(proto, X)
    softmax = np.exp(x) / np.exp(x).sum(0)
    np.testing.assert_allclose(found["y"], -(softmax + x), rtol=1e-5)
    np.testing.assert_array_equal(found["z"], [[3], [12]])
    del outer.node[:]
    outer.node.append(node("G", "a", "c", domain="my"))
    del proto.functions[:]
    proto.functions.extend([inner, outer, old])
    with pytest.raises(grilly.ModelError, match="functions cannot be put in place of their calls: .*[Cc]ycle"):
        grilly.onnx.Model(proto)


# -- arrays -----------------------------------------------------------------------------------------------------------


def sparse(values, indices, shape, dtype=np.float32):
    row = numpy_helper.from_array(np.array(values, dtype), "c")
    return helper.make_sparse_tensor(row, numpy_helper.from_array(np.array(indices, np.int64), "i"), shape)


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]])
def test_sparse_arrays_are_made_dense(indices):
    wanted = x + np.float32([[0, 5, 0], [0, 0, 7]])
    held = sparse([5, 7], indices, [2, 3])
    proto = proto_of([node("Add", "x c", "y")], X, sparse=[held])
    np.testing.assert_array_equal(run(proto, X)["y"], wanted)
    assert len(proto.graph.sparse_initializer) == 1  # the caller's own
    proto = proto_of([node("Constant", "", "c", sparse_value=held), node("Add", "x c", "y")], X)
    np.testing.assert_array_equal(run(proto, X)["y"], wanted)
    none = sparse([], np.zeros((0,) + np.shape(indices)[1:]), [2, 3])
    np.testing.assert_array_equal(run(proto_of([node("Add", "x c", "y")], X, sparse=[none]), X)["y"], x)


@pytest.mark.parametrize("given, error, said", [
    (([5], [6], [2, 3]), grilly.ModelError, r"initializer 'c' has indices from \[6\] to \[6\], for a shape of \(2"),
    (([5, 5], [[0, 1], [-1, 2]], [2, 3]), grilly.ModelError, r"indices from \[-1, 1\] to \[0, 2\]"),
    (([5], [1, 2], [2, 3]), grilly.ModelError, r"values of shape \(1,\) and int64 indices of shape \(2,\)"),
    (([5], [1], [2**20, 2**20]), grilly.UnsupportedError, "takes 4,398,046,511,104 bytes, and grilly makes dense at"),
])  # fmt: skip
def test_sparse_arrays_that_are_refused(given, error, said):
    with pytest.raises(error, match=said):
        grilly.onnx.Model(proto_of([node("Add", "x c", "y")], X, sparse=[sparse(*given)]))


@pytest.mark.parametrize("length", [True, False])
def test_a_part_of_a_file(tmp_path, length):
    """From an offset on, and as long as the array where no length is told."""
    (tmp_path / "w.bin").write_bytes(bytes(64) + np.float32([5, 6, 7]).tobytes() + bytes(20))
    proto = proto_of([node("Add", "x w", "y")], X)
    held = proto.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=1)
    for key, value in {"location": "w.bin", "offset": "64", **({"length": "12"} if length else {})}.items():
        held.external_data.add(key=key, value=value)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    np.testing.assert_array_equal(run(tmp_path / "m.onnx", X)["y"], x + np.float32([5, 6, 7]))


@pytest.mark.parametrize("kind, numbers", [
    ("FLOAT16", [15360, 16384]), ("BFLOAT16", [16256, 16384]), ("BOOL", [1, 0]), ("INT8", [-3, 4]),
    ("UINT16", [65535, 1]),
])  # fmt: skip
def test_arrays_of_a_dtype_in_the_field_of_another(kind, numbers):
    proto = proto_of([node("Cast", "c", "w", to=TensorProto.FLOAT), node("Add", "x w", "y")], {"x": x[:, :2]})
    proto.graph.initializer.add(name="c", data_type=getattr(TensorProto, kind), dims=[2], int32_data=numbers)
    wanted = [1, 2] if "FLOAT" in kind else numbers
    np.testing.assert_array_equal(run(proto, {"x": x[:, :2]})["y"], x[:, :2] + np.float32(wanted))


@pytest.mark.parametrize("capture", [True, False])
def test_the_host_has_what_is_uint64(capture):
    big, table = np.array([2**64 - 1, 2**63, 5], np.uint64), np.array([7, 2**63 + 1, 9], np.uint64)
    nodes = [
        node("Add", "u c", "sum"), node("Greater", "u c", "more"), node("Where", "b u c", "chosen"),
        node("Cast", "u", "f", to=TensorProto.FLOAT), node("Neg", "f", "n"),
        node("Cast", "i", "from", to=TensorProto.UINT64), node("Cast", "from", "back", to=TensorProto.INT64),
        node("Gather", "c i32", "rows"), node("Cast", "i", "i32", to=TensorProto.INT32),
    ]  # fmt: skip
    feeds = {"u": big, "b": np.array([True, False, True]), "i": np.array([-1, 2, 0])}
    found = run(proto_of(nodes, feeds, "sum more chosen n from back rows u", {"c": table}), feeds, capture=capture)
    wanted = {
        "sum": big + table, "more": big > table, "chosen": np.where(feeds["b"], big, table),
        "n": -big.astype(np.float32), "from": feeds["i"].astype(np.uint64), "back": feeds["i"],
        "rows": table[feeds["i"]], "u": big,
    }  # fmt: skip
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype, name
        np.testing.assert_array_equal(found[name], value, name)


def test_a_model_of_uint64_inputs_has_a_graph_for_each_of_their_values():
    nodes = [node("Cast", "u", "f", to=TensorProto.FLOAT), node("Mul", "x f", "y")]
    feeds = {"x": x, "u": np.array([3], np.uint64)}
    model = grilly.onnx.Model(proto_of(nodes, feeds))
    for number in (3, 5, 3):
        found = model.run({"x": x, "u": np.array([number], np.uint64)})["y"]
        assert model.graph is not None
        np.testing.assert_array_equal(found, number * x)


# -- slices -----------------------------------------------------------------------------------------------------------

LOW, HIGH = -(2**63), 2**63 - 1
#: start, end, step, and the elements of an axis of 3, as ONNX Runtime 1.32 gives them.
SLICES = [
    (-9, LOW, -1, [0]), (-9, HIGH, -1, [0]), (9, LOW, -1, [2, 1, 0]), (LOW, LOW, -2, [0]), (-9, 0, -1, []),
    (-9, -9, -1, [0]), (0, LOW, LOW, [0]), (2, LOW, LOW, [2]), (0, HIGH, HIGH, [0]), (HIGH, HIGH, 1, []),
    (LOW, HIGH, 2, [0, 2]), (-4, -4, -1, [0]), (-3, -4, -1, [0]), (2, -1, -1, []), (2, 2**31 - 1, -1, [2, 1, 0]),
    (-2, 2**31 - 1, 1, [1, 2]), (1, 0, 1, []), (-1, -3, -1, [2, 1]),
]  # fmt: skip


@pytest.mark.parametrize("constant", [False, True])
def test_slices_beyond_the_ends(constant):
    """All in one model, computed and folded; and of an axis without elements."""
    nodes, olds, held = [], [], {"axis": np.array([-1])}
    for place, numbers in enumerate(SLICES):
        names = [f"{word}{place}" for word in ("start", "end", "step")]
        held.update((name, np.array([number])) for name, number in zip(names, numbers[:3], strict=True))
        nodes.append(node("Slice", f"x {names[0]} {names[1]} axis {names[2]}", f"y{place}"))
        if numbers[2] == 1:
            olds.append(node("Slice", "x", f"y{place}", starts=[numbers[0]], ends=[numbers[1]], axes=[1]))
    for group, version in ((nodes, 18), (olds, 9)):
        outputs = " ".join(each.output[0] for each in group)
        for count in (3, 0):
            row = x[:, :count]
            constants = {**(held if version == 18 else {}), **({"x": row} if constant else {})}
            proto = proto_of(group, {} if constant else {"x": ["n", "m"]}, outputs, constants, opsets=(("", version),))
            found = run(proto, {} if constant else {"x": row})
            for name, value in found.items():
                wanted = SLICES[int(name[1:])][3] if count else []
                np.testing.assert_array_equal(value, x[:, wanted], name)


@pytest.mark.parametrize("numbers, said", [
    (([0], [3], [0], [0]), "the step of axis 0 is 0"), (([0, 1], [3, 3], [0, -2], [1, 1]), r"axes \[0, -2\] name one"),
    (([0], [3], [0, 1], [1]), "1 starts, 1 ends, 2 axes and 1 steps"), (([0], [3], [2], [1]), "axis 2 is out of range"),
])  # fmt: skip
def test_slices_that_are_refused(numbers, said):
    held = {name: np.array(value) for name, value in zip("seap", numbers, strict=True)}
    for given in (X, {}):
        proto = proto_of([node("Slice", "x s e a p", "y")], given, constants=held if given else {**held, "x": x})
        with pytest.raises(grilly.ModelError, match=said):
            run(proto, given)
