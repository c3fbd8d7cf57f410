"""grilly.onnx: whole models as graphs, the command, and the page."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import re
from pathlib import Path

import numpy as np
import pytest

import grilly
from grilly.cli import main

pytestmark = [pytest.mark.needs("onnx", "ml_dtypes"), pytest.mark.usefixtures("default")]
if importlib.util.find_spec("onnx"):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    import grilly.onnx

PAGE = Path(__file__).parents[1] / "docs" / "onnx.md"


# -- whole models -----------------------------------------------------------------------------------------------------


def weights(name, *shape, seed=0):
    values = np.random.default_rng(seed + sum(map(ord, name))).standard_normal(shape).astype(np.float32)
    return numpy_helper.from_array(values / np.float32(np.sqrt(shape[-1])), name)


def decoder(version=23, width=16, heads=4, words=32, extra=()) -> onnx.ModelProto:
    """A layer of a decoder with free batch and length: shapes of reshapes are computed from the input's."""
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["x"]),
        helper.make_node("RMSNormalization", ["x", "norm"], ["n"], epsilon=1e-6),
        *(helper.make_node("MatMul", ["n", f"w{p}"], [p]) for p in "qkv"),
        helper.make_node("Attention", ["q", "k", "v"], ["a"], q_num_heads=heads, kv_num_heads=heads, is_causal=1),
        helper.make_node("Shape", ["ids"], ["shape"]),
        helper.make_node("Concat", ["shape", "minus"], ["whole"], axis=0),
        helper.make_node("Reshape", ["a", "whole"], ["b"]),
        helper.make_node("Add", ["x", "b"], ["y"]),
        helper.make_node("Gelu", ["y"], ["g"]),
        helper.make_node("Transpose", ["words"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["g", "turned"], ["logits"]),
        *extra,
    ]
    graph = helper.make_graph(
        nodes, "decoder",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", words])],
        [weights("words", words, width), weights("norm", width), *(weights(f"w{p}", width, width) for p in "qkv"),
         numpy_helper.from_array(np.array([-1]), "minus")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])


def expected(model: onnx.ModelProto, ids: np.ndarray) -> np.ndarray:
    """The decoder in float64."""
    held = {each.name: numpy_helper.to_array(each).astype(np.float64) for each in model.graph.initializer}
    x = held["words"][ids]
    n = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * held["norm"]
    q, k, v = (np.moveaxis((n @ held[f"w{p}"]).reshape(*ids.shape, 4, -1), 2, 1) for p in "qkv")
    a = grilly.reference.flash_attention(q, k, v, causal=True)
    y = x + np.moveaxis(a, 1, 2).reshape(x.shape)
    error = np.vectorize(math.erf)
    return 0.5 * y * (1 + error(y / np.sqrt(2))) @ held["words"].T


def test_a_model_is_captured_once_for_each_shape():
    proto = decoder()
    model = grilly.onnx.Model(proto)
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 32, (2, 5))
    graphs = []
    for each in (ids, ids[::-1].copy(), ids[:1, :3], ids):
        found = model.run({"ids": each})["logits"]
        graphs.append(model.graph)
        np.testing.assert_allclose(found, expected(proto, each), rtol=0, atol=1e-5)
        assert np.array_equal(found, model.run({"ids": each}, capture=False)["logits"])
        assert model.graph is None and (model.executed, model.folded) == (10, 2)  # Transpose, once; Concat
    assert graphs[0] is graphs[1] is graphs[3] is not graphs[2]


def test_constants_and_outputs_of_every_kind_outlast_their_graph():
    """Outputs may be inputs, constants, views and shapes; runs with and without a graph do not disturb each other."""
    nodes = [
        helper.make_node("Add", ["ids", "shift"], ["moved"]),
        helper.make_node("Identity", ["ids"], ["same"]),
        helper.make_node("Identity", ["held"], ["kept"]),
        helper.make_node("Unsqueeze", ["moved", "zero"], ["more"]),
        helper.make_node("Expand", ["more", "wide"], ["wider"]),
        helper.make_node("Shape", ["wider"], ["extents"]),
    ]
    names = ("moved", "same", "kept", "wider", "extents")
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 3])],
        [helper.make_value_info(name, onnx.TypeProto()) for name in names],
        [numpy_helper.from_array(np.array(value), name) for name, value in
         {"shift": [5, 6, 7], "zero": [0], "wide": [4, 1, 1]}.items()] + [weights("held", 2, 2)],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model = grilly.onnx.Model(proto)
    for rows, capture in ((2, True), (2, False), (1, True), (2, True), (5, False), (1, True)):
        ids = np.arange(3 * rows).reshape(rows, 3)
        found = model.run({"ids": ids}, capture=capture)
        moved = ids + [5, 6, 7]
        held = numpy_helper.to_array(proto.graph.initializer[3])
        wanted = (moved, ids, held, np.broadcast_to(moved, (4, rows, 3)), [4, rows, 3])
        assert list(found) == list(names)
        for name, value in zip(names, wanted, strict=True):
            assert np.array_equal(found[name], value), (name, rows, capture)


def chooser(condition: str, extra=()) -> onnx.ModelProto:
    """A model with one branch in another, whose branches read names outside of them and have constants of their own."""
    def branch(name, nodes, output, constants=()):
        value = helper.make_value_info(output, onnx.TypeProto())
        held = [numpy_helper.from_array(np.array(each), key) for key, each in constants]
        return helper.make_graph(nodes, name, [], [value], held)

    inner = [
        branch("wide", [helper.make_node("Reshape", ["moved", "shape"], ["r0"])], "r0"),
        branch("narrow", [helper.make_node("Identity", ["moved"], ["r1"])], "r1"),
    ]
    outer = [
        branch("more", [
            helper.make_node("Mul", ["moved", "two"], ["doubled"]),
            helper.make_node("If", ["is_wide"], ["chosen"], then_branch=inner[0], else_branch=inner[1]),
            helper.make_node("ReduceSum", ["chosen"], ["total"], keepdims=0),
            helper.make_node("Add", ["doubled", "total"], ["a0"]),
        ], "a0", [("two", np.float32(2))]),
        branch("less", [helper.make_node("Neg", ["x"], ["a1"]), *extra], "a1"),
    ]  # fmt: skip
    nodes = [
        helper.make_node("Relu", ["x"], ["moved"]),
        helper.make_node("If", [condition], ["y"], then_branch=outer[0], else_branch=outer[1]),
        helper.make_node("Sub", ["y", "one"], ["z"]),
    ]
    if condition != "flag":
        nodes.insert(1, helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0))
        nodes.insert(2, helper.make_node("Greater", ["sum", "one"], [condition]))
    bits = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("flag", "is_wide")]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]), *bits,
                     helper.make_tensor_value_info("shape", TensorProto.INT64, [1])],
        [helper.make_value_info("z", onnx.TypeProto())], [numpy_helper.from_array(np.array(1, np.float32), "one")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_branches_that_inputs_choose_are_captured_each():
    """As decoders that were exported with and without a cache in one file."""
    model = grilly.onnx.Model(chooser("flag"))
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    moved = np.maximum(x, 0)
    graphs = set()
    for flag, is_wide in ((True, True), (False, True), (True, False), (True, True)):
        feeds = {"x": x, "flag": np.array(flag), "is_wide": np.array(is_wide), "shape": np.array([12])}
        found = model.run(feeds)["z"]
        exact = 2 * moved + moved.sum() - 1 if flag else -x - 1
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)
        assert np.array_equal(found, model.run(feeds, capture=False)["z"])
        model.run(feeds)
        graphs.add(model.graph)
    assert None not in graphs and len(graphs) == 3


def test_a_branch_that_the_device_chooses_is_not_captured():
    model = grilly.onnx.Model(chooser("many"))
    feeds = {"flag": np.array(True), "is_wide": np.array(True), "shape": np.array([4])}
    for x in (np.ones((1, 4), np.float32), -np.ones((1, 4), np.float32)):
        found = model.run({"x": x, **feeds})["z"]
        assert found.tolist() == ([[5.0] * 4] if x[0, 0] > 0 else [[0.0] * 4])
        assert model.graph is None and "If" in model.uncaptured


def test_operators_in_branches_are_named_too():
    with pytest.raises(grilly.UnsupportedError, match=r"lacks: Det \(1\)$"):
        grilly.onnx.Model(chooser("flag", extra=[helper.make_node("Det", ["x"], ["h"])]))


def test_what_depends_on_the_device_is_not_captured_and_says_so():
    """After the capture that failed the model runs node by node, with all of its constants."""
    nodes = [
        helper.make_node("Add", ["x", "shift"], ["moved"]),
        helper.make_node("NonZero", ["moved"], ["places"], name="where"),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.INT64, [4])],
        [helper.make_tensor_value_info("places", TensorProto.INT64, [1, "n"])],
        [numpy_helper.from_array(np.array([0, 1, 0, -1]), "shift")],
    )  # fmt: skip
    model = grilly.onnx.Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    for _ in range(2):
        assert model.run({"x": np.array([0, 2, 0, 1])})["places"].tolist() == [[1]]
        assert model.graph is None and "NonZero 'where'" in model.uncaptured


def test_shapes_made_of_single_numbers_stay_on_the_host():
    """A side is the root of a count, as exported positions of images have it: single numbers have powers there."""
    single = {"count": np.array(16, np.float32), "half": np.array(0.5, np.float32), "axis": np.array([0])}
    nodes = [
        *(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))
          for name, value in single.items()),
        helper.make_node("Pow", ["count", "half"], ["root"]),
        helper.make_node("Cast", ["root"], ["side"], to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["side", "axis"], ["sides"]),
        helper.make_node("Concat", ["sides", "sides"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]  # fmt: skip
    x = np.arange(16, dtype=np.float32)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
    model = grilly.onnx.Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    np.testing.assert_array_equal(model.run({"x": x})["y"], x.reshape(4, 4))
    assert model.graph is not None, model.uncaptured


def test_operators_are_named_before_anything_is_on_the_device(vulkan_backend):
    extra = [helper.make_node("Det", ["x"], ["s"]), helper.make_node("Mine", ["x"], ["m"], domain="here"),
             helper.make_node("Det", ["x"], ["t"])]  # fmt: skip
    proto = decoder(extra=extra)
    before = vulkan_backend.memory().in_use
    with pytest.raises(grilly.UnsupportedError, match=r"lacks: Det \(2\), here.Mine \(1\)$"):
        grilly.onnx.Model(proto)
    assert vulkan_backend.memory().in_use == before
    assert not grilly.onnx.Backend.is_compatible(proto)
    assert grilly.onnx.Backend.is_compatible(decoder())


@pytest.mark.parametrize(
    ("feeds", "error", "said"),
    [
        ({}, ValueError, "ids is missing; the model's inputs are ids"),
        ({"ids": np.zeros((1, 1), np.int64), "x": np.zeros(1)}, ValueError, "x is no input"),
        ({"ids": np.zeros((1, 1), np.int32)}, TypeError, "input ids is int32; expected int64"),
        ({"ids": np.zeros(1, np.int64)}, ValueError, r"shape \(1,\); expected \('batch', 'length'\)"),
    ],
    ids=["missing", "unknown", "dtype", "shape"],
)
def test_wrong_inputs(feeds, error, said):
    with pytest.raises(error, match=said):
        grilly.onnx.Model(decoder()).run(feeds)


def test_a_node_that_fails_is_named():
    proto = decoder()
    proto.graph.node[3].name = "values"
    proto.graph.initializer[2].CopyFrom(weights("wq", 8, 16))
    with pytest.raises(grilly.ModelError, match="^MatMul"):
        grilly.onnx.Model(proto).run({"ids": np.zeros((1, 2), np.int64)})


def test_one_node():
    node = helper.make_node("Softmax", ["x"], ["y"])
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    (found,) = grilly.onnx.Backend.run_node(node, [x])
    exact = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(found, exact / exact.sum(-1, keepdims=True), rtol=1e-5)
    assert grilly.onnx.Backend.supports_device("CPU") and not grilly.onnx.Backend.supports_device("CUDA")


def test_indices_on_the_host_beyond_what_onnx_folds():
    """GatherElements of constants with more than 32 elements, and indices from the end."""
    data, index = np.arange(120).reshape(2, 60), np.array([[59, -1, 3], [0, -60, 1]])
    graph = helper.make_graph(
        [helper.make_node("GatherElements", ["data", "index"], ["y"], axis=1)], "g", [],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [2, 3])],
        [numpy_helper.from_array(data, "data"), numpy_helper.from_array(index, "index")],
    )  # fmt: skip
    found = grilly.onnx.Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])).run({})["y"]
    assert found.tolist() == [[59, 59, 3], [60, 60, 61]]


# -- grilly run -------------------------------------------------------------------------------------------------------


def test_run_writes_what_the_model_gives(tmp_path, monkeypatch, capsys):
    proto, ids = decoder(), np.random.default_rng(2).integers(0, 32, (2, 6))
    onnx.save(decoder(), tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    np.save(tmp_path / "ids.npy", ids)
    arguments = ["run", str(tmp_path / "m.onnx"), "--runtime", "vulkan", "--input", f"ids={tmp_path / 'ids.npy'}"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "logits: float32 (2, 6, 32)" in said and re.search(r"one graph of \d+ dispatches", said)
    with np.load(tmp_path / "m.onnx.npz") as found:
        np.testing.assert_allclose(found["logits"], expected(proto, ids), rtol=0, atol=1e-5)
    assert main([*arguments, "--no-capture", "--output", str(tmp_path / "o.npz")]) == 0
    assert "node by node" in capsys.readouterr().out
    np.savez(tmp_path / "in.npz", ids=ids)
    with np.load(tmp_path / "o.npz") as first:
        assert main([*arguments[:-1], str(tmp_path / "in.npz"), "--output", str(tmp_path / "p.npz")]) == 0
        with np.load(tmp_path / "p.npz") as found:
            np.testing.assert_allclose(found["logits"], first["logits"], rtol=0, atol=1e-6)
    assert main([*arguments, "--input", str(tmp_path / "in.npz")]) == 1
    assert "names an input twice" in capsys.readouterr().err
    np.save(tmp_path / "one.npy", ids)
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 and no more")
    monkeypatch.chdir(tmp_path)
    for given, why in (
        ("one.npz", "one array without a name"), ("bad.npz", "cannot be read"), ("no.npz", "cannot be read"),
        ("ids=in.npz", "in.npz holds several arrays"),
    ):  # fmt: skip
        assert main([*arguments[:-1], given]) == 1
        assert why in capsys.readouterr().err


def test_run_says_what_is_wrong(tmp_path, capsys):
    onnx.save(decoder(extra=[helper.make_node("Det", ["x"], ["s"])]), tmp_path / "m.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"nothing of the kind")
    for arguments, message in (
        (["m.onnx"], "operators that grilly lacks: Det (1)"),
        (["bad.onnx"], "ONNX"),
        (["none.onnx"], "cannot be read"),
    ):
        assert main(["run", str(tmp_path / arguments[0]), "--runtime", "vulkan"]) == 1
        assert message in capsys.readouterr().err


# -- docs/onnx.md -----------------------------------------------------------------------------------------------------


def test_each_block_of_the_page_runs_alone(tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for number, block in enumerate(blocks, 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block, f"docs/onnx.md, block {number}", "exec"), {})


def test_the_page_lists_every_operator():
    text = PAGE.read_text(encoding="utf-8").split("## Operators", 1)[1]
    listed = set(re.findall(r"\b[A-Z]\w+\b", "".join(re.findall(r"^\|.*\|$", text, re.MULTILINE))))
    assert {name.rpartition(".")[2] for name in grilly.onnx.OPERATORS} - listed == set()
