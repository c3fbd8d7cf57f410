"""What is wrong with models of ONNX and with what they are given is said, by name, and before any work where it can."""

from __future__ import annotations

import copy
import importlib.util
import pickle

import numpy as np
import pytest

import grilly

pytestmark = [pytest.mark.needs("onnx", "ml_dtypes"), pytest.mark.usefixtures("default")]
if importlib.util.find_spec("onnx"):
    import onnx
    from onnx import helper, numpy_helper

    import grilly.onnx


def proto_of(nodes, given, outputs=("y",), constants=(), version=22):
    """A model of nodes; ``constants`` are the names of arrays that are no inputs."""
    infos = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
             for name, value in given.items() if name not in constants]  # fmt: skip
    held = [numpy_helper.from_array(given[name], name) for name in constants]
    graph = helper.make_graph(nodes, "g", infos, [helper.make_value_info(name, onnx.TypeProto()) for name in outputs],
                              held)  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])


def run(kind, given, outputs=1, version=22, constants=(), **attributes):
    """What one node gives, with and without a graph; ``_`` is an input that is left out."""
    names = [f"y{n}" for n in range(outputs)]
    node = helper.make_node(kind, ["" if name == "_" else name for name in given], names, name="it", **attributes)
    given = {name: value for name, value in given.items() if name != "_"}
    model = grilly.onnx.Model(proto_of([node], given, names, constants, version))
    feeds = {name: value for name, value in given.items() if name not in constants}
    found, again = (list(model.run(feeds, capture=capture).values()) for capture in (True, False))
    for one, other in zip(found, again, strict=True):
        np.testing.assert_array_equal(one, other)
    return found


x = np.arange(6, dtype=np.float32).reshape(2, 3)
integers = np.arange(6).reshape(2, 3)


# -- at load ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "inputs", "said"), [
    ("Concat", ["x", "x"], "^Concat 'it': the node lacks axis"), ("Cast", ["x"], "^Cast 'it': the node lacks to"),
    ("MaxPool", ["x"], "^MaxPool 'it': the node lacks kernel_shape"), ("Einsum", ["x"], "lacks equation"),
    ("Scan", ["x"], "lacks body, num_scan_inputs, which .* as attributes"),
    ("If", ["x"], "lacks else_branch, then_branch"), ("Add", ["x"], "has 1 inputs; Add takes at least 2"),
])  # fmt: skip
def test_attributes_and_inputs_that_are_missing(kind, inputs, said, vulkan_backend):
    before = vulkan_backend.memory().in_use
    with pytest.raises(grilly.ModelError, match=said):
        grilly.onnx.Model(proto_of([helper.make_node(kind, inputs, ["y"], name="it")], {"x": x}))
    assert vulkan_backend.memory().in_use == before


def test_names_that_nobody_makes():
    neg, add = helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Add", ["n", "q"], ["y"], name="sum")
    with pytest.raises(grilly.ModelError, match="^Add 'sum': input 'q' is undefined: no node makes it, and it is no"):
        grilly.onnx.Model(proto_of([neg, add], {"x": x}))
    with pytest.raises(grilly.ModelError, match="^output 'z' of the model is undefined"):
        grilly.onnx.Model(proto_of([neg], {"x": x}, ["n", "z"]))
    branches = [
        helper.make_graph([helper.make_node("Neg", [name], ["r"])], "b", [],
                          [helper.make_value_info(out, onnx.TypeProto())])
        for name, out in (("x", "r"), ("x", "gone"), ("later", "r"))
    ]  # fmt: skip
    for other, said in ((1, "^output 'gone' of else_branch of If 'which' is undefined"),
                        (2, "^If 'which', Neg of 'later': each reads what the next one makes")):  # fmt: skip
        nodes = [
            helper.make_node("If", ["c"], ["y"], "which", then_branch=branches[0], else_branch=branches[other]),
            helper.make_node("Neg", ["y"], ["later"]),
        ]
        with pytest.raises(grilly.ModelError, match=said):
            grilly.onnx.Model(proto_of(nodes, {"x": x, "c": np.array(True)}))


def test_outputs_that_an_operator_does_not_give():
    nodes = [helper.make_node("BatchNormalization", ["x", *["w"] * 4], ["b", "m", "v"]),
             helper.make_node("Neg", ["m"], ["y"])]  # fmt: skip
    model = grilly.onnx.Model(proto_of(nodes, {"x": x, "w": np.ones(3, np.float32)}, version=15))
    with pytest.raises(grilly.UnsupportedError, match="^Neg: 'm' is an output that grilly's operator does not give"):
        model.run({"x": x, "w": np.ones(3, np.float32)})


def test_external_data_that_is_not_there(tmp_path):
    w = np.arange(64, dtype=np.float32)
    add = helper.make_node("Add", ["x", "w"], ["y"])
    proto = proto_of([add], {"x": w, "w": w}, constants=("w",))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    whole = (tmp_path / "m.bin").read_bytes()
    assert grilly.onnx.Model(tmp_path / "m.onnx").run({"x": w})["y"].tolist() == (2 * w).tolist()
    said = "^initializer 'w' cannot be read from its file 'm.bin' in .*: is the file there, and whole"
    (tmp_path / "m.bin").write_bytes(whole[:100])
    with pytest.raises(grilly.ModelError, match=said):
        grilly.onnx.Model(tmp_path / "m.onnx")
    (tmp_path / "m.bin").unlink()
    with pytest.raises(grilly.ModelError, match=said):
        grilly.onnx.Model(tmp_path / "m.onnx")
    with pytest.raises(grilly.ModelError, match="in the working folder, as the model is given without its path"):
        grilly.onnx.Model(onnx.load(tmp_path / "m.onnx", load_external_data=False))
    proto = proto_of([add], {"x": w, "w": w}, constants=("w",))  # onnx.save moved the other's data away
    proto.graph.initializer[0].raw_data = b"1234567"
    with pytest.raises(grilly.ModelError, match="^initializer 'w' is damaged"):
        grilly.onnx.Model(proto)
    held = helper.make_node("Constant", [], ["w"], "c", value=proto.graph.initializer[0])
    with pytest.raises(grilly.ModelError, match="^Constant 'c': attribute 'value' is damaged"):
        grilly.onnx.Model(proto_of([held, add], {"x": w}))


# -- axes -------------------------------------------------------------------------------------------------------------


def axis(kind, *given, **more):
    """A case of an operator with an attribute ``axis`` of each value that is wrong."""
    return [pytest.param(kind, dict(zip("abcd", given, strict=False)), {"axis": value, **more}, id=f"{kind} {value}")
            for value in (given[0].ndim, -given[0].ndim - 1)]  # fmt: skip


index, row, stack = np.zeros((2, 3), np.int64), x[0] + 1, np.zeros((2, 4, 1), np.float32)
AXES = [
    *axis("ArgMax", x), *axis("ArgMax", integers), *axis("Gather", x, np.array([0])), *axis("GatherElements", x, index),
    *axis("ScatterElements", x, index, x), *axis("LayerNormalization", x, row),
    *axis("RMSNormalization", x, row, version=23), *axis("Softmax", x, version=11), *axis("Softmax", x),
    *axis("LogSoftmax", x, version=11), *axis("Hardmax", x), *axis("QuantizeLinear", x, row),
    *axis("DequantizeLinear", x.astype(np.int8), row), *axis("Split", x, np.array([1, 1]), outputs=2),
    *axis("TensorScatter", np.stack([x, x]), np.stack([x, x]), version=24), *axis("Concat", x, x),
    *axis("TopK", x, index[0, :1], outputs=2),
    *(pytest.param(kind, given, options, id=f"{kind} {number}") for number, (kind, given, options) in enumerate([
        ("Flatten", {"x": x}, {"axis": 3}), ("Flatten", {"x": x}, {"axis": -3}),
        ("OneHot", {"x": index, "d": np.array(4), "v": row[:2]}, {"axis": 3}),
        ("OneHot", {"x": index, "d": np.array(4), "v": row[:2]}, {"axis": -4}),
        ("ReduceSum", {"x": x, "a": np.array([2])}, {}), ("ReduceMax", {"x": x}, {"axes": [-3], "version": 11}),
        ("CumSum", {"x": x, "a": np.array(2)}, {}), ("CumSum", {"x": x, "a": np.array(-3)}, {}),
        ("Pad", {"x": x, "p": np.array([1, 1]), "_": None, "a": np.array([2])}, {}),
        ("Pad", {"x": integers, "p": np.array([1, 1]), "_": None, "a": np.array([-3])}, {}),
        ("Unsqueeze", {"x": x, "a": np.array([3])}, {}), ("Unsqueeze", {"x": x, "a": np.array([-4])}, {}),
        ("Squeeze", {"x": x, "a": np.array([2])}, {}), ("Unsqueeze", {"x": x}, {"axes": [3], "version": 11}),
        ("Slice", {"x": x, "s": np.array([0]), "e": np.array([1]), "a": np.array([2])}, {}),
        ("CenterCropPad", {"x": x, "s": np.array([4])}, {"axes": [2]}),
        ("ReverseSequence", {"x": x, "l": np.array([1, 1])}, {"batch_axis": 2, "time_axis": 1}),
        ("Resize", {"x": x, "_": None, "s": np.array([2], np.float32)}, {"axes": [2]}),
        ("DFT", {"x": stack, "_": None, "a": np.array(3)}, {"version": 20}),
    ])),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "given", "options"), AXES)
def test_axes_that_are_out_of_range(kind, given, options):
    """On the device, and where the host computes what is made of constants. They wrapped around."""
    for constants in ((), tuple(name for name in given if name != "_")):
        with pytest.raises(grilly.ModelError, match=f"^{kind} 'it'"):
            run(kind, given, constants=constants, **options)


def test_axes_say_what_is_expected():
    with pytest.raises(grilly.ModelError, match="axis 2 is out of range; expected one from -2 to 1$"):
        run("ArgMax", {"x": x}, axis=2)
    with pytest.raises(grilly.ModelError, match="axis 0 is out of range; there is none$"):
        run("ArgMax", {"x": x[0, 0]})
    for constants in ((), ("x", "a")):
        for dtype in (np.float32, np.int64):
            with pytest.raises(grilly.ModelError, match=r"axes \[0, 0\] name one of 4 twice"):
                run("Unsqueeze", {"x": x.astype(dtype), "a": np.array([0, 0])}, constants=constants)
    with pytest.raises(grilly.ModelError, match="place 2 is out of range"):
        parts = [helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
                 helper.make_node("SequenceErase", ["s", "two"], ["t"]),
                 helper.make_node("SequenceLength", ["t"], ["y"])]  # fmt: skip
        grilly.onnx.Model(proto_of(parts, {"x": x, "two": np.array(2)}, constants=("two",))).run({"x": x})


# -- at run -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_ranges_of_no_step(dtype):
    ends = {name: np.array(value, dtype) for name, value in (("a", 0), ("b", 3), ("c", 0))}
    for constants in ((), tuple(ends)):
        with pytest.raises(grilly.ModelError, match="^Range 'it': delta is 0"):
            run("Range", ends, constants=constants)
    ends["c"] = np.array(2, dtype)
    assert run("Range", ends)[0].tolist() == [0, 2]


@pytest.mark.parametrize("mode", ["constant", "wrap"])
def test_pads_that_cut_off_more_than_there_is(mode):
    for pads in ([0, 0, 0, -4], [0, -2, 0, -2]):
        with pytest.raises(grilly.ModelError, match="^Pad 'it': .*cut off more than the 3 of axis 1"):
            run("Pad", {"x": x, "pads": np.array(pads)}, mode=mode)


@pytest.mark.parametrize("sizes", [[1, 1], [1, 4], [4, -1], [3]])
def test_parts_that_are_not_the_whole(sizes):
    for values in (x, integers):
        for constants in ((), ("x", "sizes")):
            with pytest.raises(grilly.ModelError, match="^Split 'it': .*parts"):
                run("Split", {"x": values, "sizes": np.array(sizes)}, 2, constants=constants, axis=1)
    nodes = [helper.make_node("SplitToSequence", ["x", "sizes"], ["s"], axis=1),
             helper.make_node("SequenceLength", ["s"], ["y"])]  # fmt: skip
    model = grilly.onnx.Model(proto_of(nodes, {"x": x, "sizes": np.array(sizes)}))
    if sum(sizes) != 3 or min(sizes) < 0:
        with pytest.raises(grilly.ModelError, match="^SplitToSequence: parts of"):
            model.run({"x": x, "sizes": np.array(sizes)})


class Other:
    """An array of another package, as messages see it."""

    dtype, shape = np.dtype(np.float32), (2, 3)


@pytest.mark.parametrize(("value", "said"), [
    ([1.0, 2.0], "a list"), (1.0, "a float"), (None, "None"), (Other(), r"a \S+\.Other"),
])  # fmt: skip
def test_inputs_that_are_no_arrays(value, said):
    proto = proto_of([helper.make_node("Neg", ["x"], ["y"])], {"x": x})
    message = f"^input x is {said}; expected a NumPy array or a grilly.Tensor$"
    with pytest.raises(TypeError, match=message):
        grilly.onnx.Model(proto).run({"x": value})
    with pytest.raises(TypeError, match=message):
        grilly.onnx.Backend.run_model(proto, [value])


def test_feeds_that_are_no_mapping():
    model = grilly.onnx.Model(proto_of([helper.make_node("Neg", ["x"], ["y"])], {"x": x}))
    for value, said in ((None, "None"), ([x], "a list"), (x, "a numpy.ndarray")):
        with pytest.raises(TypeError, match=f"^feeds is {said}; expected a mapping from names of inputs to arrays$"):
            model.run(value)


@pytest.mark.parametrize("order", "<>")
def test_arrays_of_either_byte_order(order):
    values = x.astype(f"{order}f4")
    nodes = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Reshape", ["n", "shape"], ["y"])]
    shape = np.array([3, 2], f"{order}i8")
    proto = proto_of(nodes, {"x": x, "shape": shape.astype(np.int64)})
    assert np.array_equal(grilly.onnx.Model(proto).run({"x": values, "shape": shape})["y"], -x.reshape(3, 2))
    assert np.array_equal(grilly.onnx.Backend.run_node(nodes[0], [values])[0], -x)


def test_nodes_that_are_given_other_inputs_than_they_have():
    node = helper.make_node("Add", ["x", "y"], ["z"])
    with pytest.raises(ValueError, match="^1 inputs are given; the node's are x, y$"):
        grilly.onnx.Backend.run_node(node, [x])
    with pytest.raises(TypeError, match="^inputs is NoneType; expected a list"):
        grilly.onnx.Backend.run_node(node, None)


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize("value", [0, 3])
def test_what_is_not_zero_of_a_single_number(dtype, value):
    """As ONNX says: no rows, as there are no axes, and a column for what is not zero."""
    for constants in ((), ("x",)):
        (found,) = run("NonZero", {"x": np.array(value, dtype)}, constants=constants)
        assert found.shape == (0, value != 0) and found.dtype == np.int64


@pytest.mark.parametrize(("dtype", "base", "exponent"), [
    (np.int64, [3, -2, 1, 0], 39), (np.int64, [-10, 7, 2], 18), (np.int32, [46340, -46340], 2), (np.int64, [5, -7], 0),
    (np.int8, [5, -5], 3), (np.int32, [-1, 1], 63),
])  # fmt: skip
def test_whole_exponents_of_integers_are_exact(dtype, base, exponent):
    """float32 has 24 bits and float64 53; an exponent that is a constant needs neither."""
    exact = [value**exponent for value in base]
    for constants in (("e",), ("x", "e")):
        for each in (np.float32(exponent), np.float32([exponent])):
            (found,) = run("Pow", {"x": np.array(base, dtype), "e": np.asarray(each)}, constants=constants)
            assert found.dtype == dtype and found.tolist() == exact
    (found,) = run("Pow", {"x": np.array([4, 9]), "e": np.asarray(np.float32(0.5))}, constants=("e",))
    assert found.tolist() == [2, 3]
    (found,) = run("Pow", {"x": np.array([1, 2]), "e": np.asarray(np.float32(-1))}, constants=("e",))
    assert found.tolist() == [1, 0]


def test_outputs_are_the_callers_own():
    """Constants, inputs of the host and views of them may be changed; the next run does not see it."""
    nodes = [helper.make_node("Identity", ["held"], ["a"]), helper.make_node("Identity", ["n"], ["b"]),
             helper.make_node("Expand", ["x", "n"], ["c"]),
             helper.make_node("Unsqueeze", ["held", "n1"], ["d"])]  # fmt: skip
    given = {"held": integers, "x": x[:1, :1], "n": np.array([2, 3]), "n1": np.array([0])}
    names = ("a", "b", "c", "d", "held")
    model = grilly.onnx.Model(proto_of(nodes, given, names, ("held", "n1")))
    feeds = {"x": given["x"], "n": given["n"]}
    for capture in (True, True, False, False):
        found = model.run(feeds, capture=capture)
        for name, exact in zip(names, (integers, [2, 3], np.zeros((2, 3)), integers[None], integers), strict=True):
            assert np.array_equal(found[name], exact), (name, capture)
            assert found[name].flags.writeable
            found[name][...] = 77
    assert given["n"].tolist() == [2, 3]


def test_what_onnx_runtime_has_leads_to_what_there_is():
    x = np.ones((2, 3), np.float32)
    model = grilly.onnx.Model(proto_of([helper.make_node("Softmax", ["x"], ["y"])], {"x": x}))
    for call in (lambda: model.run(None, {"x": x}), lambda: model(x)):
        with pytest.raises(TypeError, match=r'model.run\(\{"input": array\}\) gives all outputs by name'):
            call()
    with pytest.raises(AttributeError, match="no attribute 'get_inputs'; it has inputs$"):
        model.get_inputs()
    with pytest.raises(AttributeError, match="no attribute 'anything'$"):
        model.anything  # noqa: B018
    for way in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="weights and graphs on an open device.*make another of the file"):
            way(model)


@pytest.mark.parametrize("axis", [0, -1])
def test_indices_into_a_table_are_checked(axis):
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    extent = table.shape[axis]
    fine = np.array([0, extent - 1, -extent])
    (found,) = run("Gather", {"table": table, "ids": fine}, constants=["table"], axis=axis)
    np.testing.assert_array_equal(found, np.take(table, fine, axis))
    for wrong in (extent, -extent - 1):
        with pytest.raises(ValueError, match=rf"input ids has the index {wrong}; expected -{extent} to {extent - 1}"):
            run("Gather", {"table": table, "ids": np.array([0, wrong])}, constants=["table"], axis=axis)


def test_an_extent_that_is_kept_and_not_there():
    with pytest.raises(grilly.ModelError, match=r"'it': the shape \[2, 0, 3\] keeps an extent, .*length 0"):
        run("Reshape", {"x": np.zeros(0, np.float32), "shape": np.array([2, 0, 3])}, constants=["shape"])


def test_indices_are_checked_by_the_table_that_is_given():
    """Not by its default, which may have more rows, or fewer."""
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    node = helper.make_node("Gather", ["t", "i"], ["y"])
    infos = [helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, ("a", 2)),
             helper.make_tensor_value_info("i", onnx.TensorProto.INT64, (2,))]  # fmt: skip
    graph = helper.make_graph([node], "g", infos, [helper.make_value_info("y", onnx.TypeProto())],
                              [numpy_helper.from_array(table, "t")])  # fmt: skip
    model = grilly.onnx.Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]))
    large, small = np.arange(10, dtype=np.float32).reshape(5, 2), np.ones((2, 2), np.float32)
    np.testing.assert_array_equal(model.run({"t": large, "i": np.array([4, -5])})["y"], large[[4, -5]])
    for feeds, said in (({"t": small, "i": np.array([2, 0])}, "index 2; expected -2 to 1"),
                        ({"i": np.array([0, 3])}, "index 3; expected -3 to 2")):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            model.run(feeds)
