"""Operators of com.microsoft against ONNX Runtime: tests/golden/fused.npz has what it computed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import grilly
from fused_cases import Case, cases, model

pytestmark = [pytest.mark.needs("onnx", "ml_dtypes"), pytest.mark.usefixtures("default")]
if importlib.util.find_spec("onnx"):
    import grilly.onnx

CASES = cases()
GOLDEN = np.load(Path(__file__).parent / "golden" / "fused.npz")


def ran(case: Case, capture: bool = True) -> dict[str, np.ndarray]:
    proto, feeds = model(case)
    return grilly.onnx.Model(proto).run(feeds, capture=capture)


@pytest.mark.parametrize("label", CASES)
def test_a_node_agrees_with_onnx_runtime(label):
    case = CASES[label]
    found = ran(case)
    wanted = {key.partition("/")[2]: GOLDEN[key] for key in GOLDEN.files if key.startswith(f"{label}/")}
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].shape == value.shape and found[name].dtype == value.dtype, name
        before = (slice(None),) if name != "y0" else ()
        # Neither rows of padding nor what lies behind a text in a cache are anybody's.
        parts = [(text, *before, slice(count)) for text, count in enumerate(case.rows)] or [...]
        for part in parts:
            one, other = (each[part].astype(np.float64) for each in (found[name], value))
            # Integers may lie one apart, where a number lies between them but for its last bit.
            # So may the states of networks, which are quantized on the way: ONNX Runtime's functions are approximate.
            atol = (2e-3 if "lstm" in label else 2e-5) if value.dtype.kind == "f" else 1
            np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=name)
            if value.dtype.kind != "f":
                assert np.count_nonzero(one != other) <= value.size // 20, name


@pytest.mark.parametrize(
    "label",
    ["skip-norm-all", "embed", "attention-past", "heads-mask", "groups-ragged", "bits-4-40-zeros", "q-gemm", "q-embed"],
)
def test_constants_and_runs_without_a_graph_give_the_same(label):
    case = CASES[label]
    proto, feeds = model(case)
    wanted = ran(case, capture=False)
    from onnx import numpy_helper

    kept = next(iter(feeds))
    proto.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in feeds.items() if n != kept)
    inputs = [each for each in proto.graph.input if each.name == kept]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    built = grilly.onnx.Model(proto)
    for capture in (True, False, True):
        found = built.run({kept: feeds[kept]}, capture=capture)
        assert all(np.array_equal(found[name], value) for name, value in wanted.items())


@pytest.mark.parametrize("bits", [2, 8])
def test_an_order_of_columns_and_zeros(bits):
    """By the formula, ``(b - zero) scale``: ONNX Runtime lacks these."""
    random = np.random.default_rng(bits)
    order, x = random.permutation(np.arange(48) // 16)[:40], random.standard_normal((3, 40)).astype(np.float32)
    numbers, zeros = random.integers(0, 2**bits, (7, 48)), random.integers(0, 2**bits, (7, 4))
    scales = random.random((7, 3)).astype(np.float32)

    def packed(values):
        each = values.reshape(7, -1, 8 // bits) << np.arange(0, 8, bits)
        return each.sum(-1).astype(np.uint8)

    weight = (numbers[:, :40] - zeros[:, order]) * scales[:, order].astype(np.float64)
    inputs = x, packed(numbers).reshape(7, 3, -1), scales, packed(zeros[:, : 3 + (bits == 2)]), order.astype(np.int32)
    found = ran(Case("MatMulNBits", inputs, (True,), {"K": 40, "N": 7, "bits": bits, "block_size": 16}))["y0"]
    np.testing.assert_allclose(found, x @ weight.T, rtol=0, atol=1e-6 * np.abs(weight).sum(1).max())


def test_packed_heads_are_those_apart():
    q, k, v = (np.random.default_rng(i).standard_normal((2, 5, 4, 16)).astype(np.float32) for i in range(3))
    flat = [each.reshape(2, 5, 64) for each in (q, k, v)]
    wanted = ran(Case("MultiHeadAttention", tuple(flat), (True,), {"num_heads": 4}))["y0"]
    for inputs in ((np.stack([q, k, v], axis=3),), (flat[0], np.stack([k, v], axis=3))):
        found = ran(Case("MultiHeadAttention", inputs, (True,), {"num_heads": 4}))["y0"]
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", ["float16"])
@pytest.mark.parametrize(
    "label", ["bias-gelu", "quick-gelu", "skip-rms", "skip-norm-all", "attention", "groups-ragged"]
)
def test_half_precision(label, dtype):
    case = CASES[label]
    inputs = tuple(
        each.astype(dtype) if each is not None and each.dtype == np.float32 else each for each in case.inputs
    )
    found = ran(case._replace(inputs=inputs))
    for name, value in found.items():
        wanted = GOLDEN[f"{label}/{name}"]
        assert value.dtype == np.dtype(dtype)
        assert np.abs(value - wanted).max() <= 4e-3 * np.abs(wanted).max(), name


@pytest.mark.parametrize("label, changes, why", [
    ("attention", {"do_rotary": 1}, "Attention: do_rotary is given"),
    ("attention", {"num_heads": 5}, r"num_heads is 5; an input of shape \(2, 5, 64\) cannot have so many heads"),
    ("bits-4-32", {"bits": 3}, "MatMulNBits: bits is 3; grilly has 2, 4 and 8"),
    ("rotary", {"scale": 2.0}, "RotaryEmbedding: scale is given"),
    ("groups-step", {"do_rotary": 1, "num_heads": 3}, "num_heads is 3"),
    ("conv-relu", {"activation": "Gelu"}, "FusedConv: activation is 'Gelu'; grilly has Relu, .* and Clip"),
    ("q-attention", {"do_rotary": 1}, "QAttention: do_rotary is given"),
])  # fmt: skip
def test_what_is_refused(label, changes, why):
    case = CASES[label]
    with pytest.raises(grilly.UnsupportedError, match=why):
        ran(case._replace(attributes={**case.attributes, **changes}))


def test_lengths_and_masks_that_do_not_fit_are_refused():
    case = CASES["groups-step"]
    inputs = list(case.inputs)
    inputs[5] = np.array([8, 6], np.int32)
    with pytest.raises(grilly.UnsupportedError, match=r"\[9, 7\] keys of 7, 1 of them new, with 6 of before"):
        ran(case._replace(inputs=tuple(inputs)))
    case = CASES["attention-past"]
    with pytest.raises(grilly.UnsupportedError, match="Attention: past_sequence_length is given"):
        ran(case._replace(inputs=(*case.inputs, None, np.array([3], np.int32))))
    case = CASES["attention-mask"]
    inputs = (*case.inputs[:3], np.ones((2, 4), np.int32))
    with pytest.raises(grilly.UnsupportedError, match=r"mask of shape \(2, 4\) for 2 texts of 5 queries and 5 keys"):
        ran(case._replace(inputs=inputs))


def test_the_page_lists_them():
    text = (Path(__file__).parents[1] / "docs" / "onnx.md").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("| of com.microsoft |"))
    listed = set(re.findall(r"\b[A-Z]\w+\b", line))
    assert listed == {name.rpartition(".")[2] for name in grilly.onnx.OPERATORS if name.startswith("com.microsoft.")}


def test_a_packed_matrix_goes_to_the_device_once():
    """As other weights do: graphs of other shapes share it."""
    proto, feeds = model(CASES["bits-4-32"])
    from onnx import numpy_helper

    proto.graph.initializer.extend(numpy_helper.from_array(feeds[name], name) for name in ("x1", "x2"))
    del proto.graph.input[1:]
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    built = grilly.onnx.Model(proto)
    given = grilly.onnx.Model(model(CASES["bits-4-32"])[0])  # a graph has what it is given in its own memory
    given.run(feeds)
    for batch in (1, 2):
        found = built.run({"x0": feeds["x0"][:batch]})["y0"]
        assert built.graph.memory + feeds["x1"].nbytes <= given.graph.memory
        np.testing.assert_allclose(found, GOLDEN["bits-4-32/y0"][:batch], rtol=0, atol=2e-5)


def decoder():
    """A layer as ONNX Runtime's tools write decoders: lengths are counted from the mask, keys and values go out."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(5)
    held = {"words": random.standard_normal((20, 64)), "w": random.standard_normal((64, 128)) / 8, "norm": np.ones(64)}
    angles = np.outer(np.arange(16), 10000.0 ** (-np.arange(8) / 8))
    held |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["x"]),
        helper.make_node("SimplifiedLayerNormalization", ["x", "norm"], ["n"], epsilon=1e-6),
        helper.make_node("MatMul", ["n", "w"], ["qkv"]),
        helper.make_node("ReduceSum", ["mask", "one"], ["counts"], keepdims=0),
        helper.make_node("Sub", ["counts", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["last32"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["extents"]),
        helper.make_node("Gather", ["extents", "one"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["whole32"], to=TensorProto.INT32),
        helper.make_node("GroupQueryAttention", ["qkv", "", "", "pk", "pv", "last32", "whole32", "cos", "sin"],
                         ["a", "k", "v"], domain="com.microsoft", num_heads=4, kv_num_heads=2, do_rotary=1),
        helper.make_node("SkipSimplifiedLayerNormalization", ["x", "a", "norm"], ["y"], domain="com.microsoft"),
    ]  # fmt: skip
    kinds = {"ids": TensorProto.INT64, "mask": TensorProto.INT64, "pk": TensorProto.FLOAT, "pv": TensorProto.FLOAT}
    shapes = {"ids": ["b", "s"], "mask": ["b", "t"], "pk": ["b", 2, "p", 16], "pv": ["b", 2, "p", 16]}
    graph = helper.make_graph(
        nodes, "decoder", [helper.make_tensor_value_info(name, kinds[name], shapes[name]) for name in kinds],
        [helper.make_empty_tensor_value_info(name) for name in ("y", "k", "v")],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in held.items()]
        + [numpy_helper.from_array(np.array([1]), "one")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("capture", [True, False])
def test_a_decoder_goes_on_with_its_cache(capture):
    built = grilly.onnx.Model(decoder())
    ids, none = np.random.default_rng(6).integers(0, 20, (2, 7)), np.zeros((2, 2, 0, 16), np.float32)
    whole = built.run({"ids": ids, "mask": np.ones((2, 7), np.int64), "pk": none, "pv": none}, capture=capture)
    # The second text is two tokens shorter: padded in the prompt, and a step behind from then on.
    mask = np.array([[1] * 4, [1, 1, 0, 0]])
    found = built.run({"ids": ids[:, :4], "mask": mask, "pk": none, "pv": none}, capture=capture)
    assert (built.graph is None) is not capture
    np.testing.assert_allclose(found["y"][0], whole["y"][0, :4], rtol=0, atol=1e-5)
    for step in range(3):
        mask = np.concatenate([mask, np.ones((2, 1), np.int64)], axis=1)
        new = np.array([[ids[0, 4 + step]], [ids[1, 2 + step]]])
        found = built.run({"ids": new, "mask": mask, "pk": found["k"], "pv": found["v"]}, capture=capture)
        assert found["k"].shape == (2, 2, 5 + step, 16)
        np.testing.assert_allclose(found["y"][0, 0], whole["y"][0, 4 + step], rtol=0, atol=1e-5)
        np.testing.assert_allclose(found["y"][1, 0], whole["y"][1, 2 + step], rtol=0, atol=1e-5)
