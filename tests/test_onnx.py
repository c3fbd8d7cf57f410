"""grilly.onnx: ONNX's own test cases of single operators, and whole models as graphs."""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import io
import math
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import grilly
from grilly.cli import main

pytestmark = pytest.mark.needs("onnx", "ml_dtypes")
if importlib.util.find_spec("onnx"):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    import grilly.onnx
    from grilly.onnx.graphs import lacking

    with warnings.catch_warnings():  # the cases divide by zero while they are made
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        CASES = {case.name: case for case in collect_testcases(None)}
else:
    CASES = {}

PAGE = Path(__file__).parents[1] / "docs" / "onnx.md"
#: Why a case that has nothing but operators of grilly's is not run: each pattern is looked for in the error's text.
REFUSED = {
    "float64": r"(is float64|double is a dtype), which no Tensor has|^Cast\w*: double|^EyeLike: double",
    "uint64": r"is uint64, which no Tensor has",
    "strings": r"is object, which no Tensor has|string is a dtype",
    "numbers of 8 bits and less": r"(float[468]\w*|u?int[24]) is a dtype|is (float[468]\w*|u?int[24]), which",
    "sequences and optional values": r"is a (sequence|optional)_type; grilly (takes|gives) tensors",
    "dropout while training": r"training_mode drops",
    "old operator sets": r"of operator set [1-6];|Scan before operator set 9",
}  # fmt: skip
#: Why grilly lacks an operator.
LACKED = {
    "strings": {
        "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer",
        "ai.onnx.ml.LabelEncoder",
    },
    "random numbers": {"Bernoulli", "RandomUniformLike"},
    "training": {f"ai.onnx.preview.training.{name}" for name in ("Adagrad", "Adam", "Momentum")},
    "pictures in files": {"ImageDecoder"},
    "trees and features": {f"ai.onnx.ml.{name}" for name in ("ArrayFeatureExtractor", "Binarizer", "TreeEnsemble")},
    "bits read as another dtype": {"BitCast"},
    "determinants": {"Det"},
}  # fmt: skip
#: Cases whose expected numbers ONNX rounds to float16 after each step of the softmax and of sums. grilly rounds at
#: other places; test_float16_attention_in_steps holds it to float64 instead.
ROUNDED = ("test_attention_4d_causal_fp16_expanded",)
#: Cases whose expected numbers are those of a float32 transform, with more beside zeros than their tolerance has;
#: test_transforms_of_onnx holds grilly to float64.
TRANSFORMS = ("test_dft_inverse", "test_dft_inverse_opset19")
#: In one part each, so that several processes can share them.
PARTS = 4


@pytest.fixture(autouse=True)
def chosen(vulkan_backend):
    former = grilly.use(vulkan_backend)
    yield
    grilly.use(former)


def arrays(values) -> list[np.ndarray]:
    return [numpy_helper.to_array(value) if isinstance(value, TensorProto) else value for value in values]


def check(case) -> grilly.onnx.Model:
    """Run a case; its outputs are what ONNX expects, within ONNX's tolerances (two units of bfloat16)."""
    prepared = grilly.onnx.Backend.prepare(case.model)
    for inputs, expected in case.data_sets:
        found = prepared.run(arrays(inputs))
        wanted = arrays(expected)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert one.shape == other.shape and one.dtype == other.dtype
            rtol = case.rtol
            if one.dtype.name == "bfloat16":
                one, other, rtol = one.astype(np.float32), other.astype(np.float32), max(rtol, 2**-6)
            np.testing.assert_allclose(one, other, rtol=rtol, atol=case.atol)
    return prepared.model


def reason(error: Exception) -> str | None:
    return next((name for name, pattern in REFUSED.items() if re.search(pattern, str(error))), None)


@pytest.mark.parametrize("part", range(PARTS))
def test_cases_of_onnx(part, count):
    """Every case of operators that grilly has passes, or is refused for a reason of the list. Attention has none."""
    if tuple(map(int, onnx.__version__.split(".")[:2])) < (1, 22):
        pytest.skip("before onnx 1.22 Attention capped scores after the mask, and LpNormalization divided 0 by 0")
    seen: collections.Counter[str] = collections.Counter()
    wrong = []
    for name in sorted(CASES)[part::PARTS]:
        case = CASES[name]
        lacked = set(lacking(case.model))
        if lacked:
            why = [reason for reason, names in LACKED.items() if names & lacked]
            seen[f"lacked: {why[0] if why else None}"] += 1
            if not lacked <= set().union(*LACKED.values()):
                wrong.append(f"{name}: no reason why grilly lacks one of {', '.join(lacked)}")
            continue
        if name in (*ROUNDED, *TRANSFORMS):
            seen["rounded at other places"] += 1
            continue
        try:
            model = check(case)
        except grilly.UnsupportedError as error:
            why = reason(error)
            seen[f"refused: {why}"] += 1
            if why is None or any(node.op_type == "Attention" for node in case.model.graph.node):
                wrong.append(f"{name}: {error}")
        except (AssertionError, grilly.GrillyError, ValueError, TypeError) as error:
            wrong.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
        else:
            seen["passed" if model.executed else "passed, folded by the host"] += 1
    numbers = {"cases": len(sorted(CASES)[part::PARTS]), **dict(sorted(seen.items())), "unexpected": len(wrong)}
    count(f"ONNX's cases of operators, onnx {onnx.__version__}", numbers)
    assert not wrong, "\n".join(wrong)
    assert seen["passed"] > 250, seen


def attention_cases() -> list[str]:
    return [name for name, case in CASES.items() if any(n.op_type == "Attention" for n in case.model.graph.node)]


def test_no_case_of_attention_is_refused_or_folded():
    """All of them run on the device; test_cases_of_onnx has their numbers."""
    names = attention_cases()
    assert len(names) >= 60  # 93 in onnx 1.23
    assert not set(names) & set(ROUNDED)
    for name in names:
        assert not lacking(CASES[name].model)
        kinds = {i.type.tensor_type.elem_type for i in CASES[name].model.graph.input}
        assert not kinds & {TensorProto.DOUBLE, TensorProto.UINT64, TensorProto.STRING}, name


@pytest.mark.parametrize("name", ROUNDED)
def test_float16_attention_in_steps(name):
    """Within three roundings to float16 of weights and of results, each at most 2**-11 of the largest value."""
    if name not in CASES:
        pytest.skip("this version of onnx lacks the case")
    case = CASES[name]
    q, k, v = arrays(case.data_sets[0][0])[:3]
    found = grilly.onnx.Backend.prepare(case.model).run([q, k, v])[0]
    wide = [x.astype(np.float64) for x in (q, k, v)]
    scores = wide[0] @ wide[1].swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    rows, keys = scores.shape[-2:]
    scores = np.where(np.tri(rows, keys, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    exact = weights / weights.sum(-1, keepdims=True) @ wide[2]
    largest = max(1.0, np.abs(scores[np.isfinite(scores)]).max())
    assert np.abs(found - exact).max() <= 2**-11 * (3 + 4 * largest) * np.abs(wide[2]).max()


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_onnx(name):
    """Means of ten products of numbers below 100 with float32's cosines."""
    case = CASES[name]
    x, *rest = arrays(case.data_sets[0][0])
    found = grilly.onnx.Backend.prepare(case.model).run([x, *rest])[0]
    exact = np.fft.ifft(x[..., 0].astype(np.float64) + 1j * x[..., 1], axis=1)
    assert x.shape[1] == 10 and np.abs(x).max() < 100
    np.testing.assert_allclose(found, np.stack([exact.real, exact.imag], -1), rtol=0, atol=20 * 100 * 2**-23)


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]), ("ij,jk", [(3, 4), (4, 5)]),
        ("b i d , b j d -> b i j", [(2, 3, 4), (2, 5, 4)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]), ("bnth,rh->bntr", [(2, 3, 4, 5), (6, 5)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]), ("i...,i...", [(3, 2), (3, 2)]), ("iij->j", [(3, 3, 4)]),
        ("ij,ij->", [(3, 4), (3, 4)]), ("i,j->ij", [(3,), (4,)]), ("ij,j,jk->ik", [(3, 4), (4,), (4, 5)]),
        ("ij,kl->ik", [(3, 4), (5, 6)]), ("ii", [(4, 4)]), ("i...->...", [(3, 2, 4)]),
        ("ab,cb,dc->da", [(2, 3), (4, 3), (5, 4)]),
    ],
)  # fmt: skip
def test_einsum(equation, shapes):
    """Against float64: each product of n terms is a sum in float32."""
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    node = helper.make_node("Einsum", [f"x{n}" for n in range(len(given))], ["y"], equation=equation)
    (found,) = grilly.onnx.Backend.run_node(node, given)
    exact = np.einsum(equation, *(x.astype(np.float64) for x in given))
    assert found.shape == exact.shape
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


def test_einsum_says_what_does_not_fit():
    node = helper.make_node("Einsum", ["x"], ["y"], equation="ijk->i")
    with pytest.raises(grilly.UnsupportedError, match="'ijk' for an array of 2 axes"):
        grilly.onnx.Backend.run_node(node, [np.zeros((2, 3), np.float32)])


@pytest.mark.parametrize("how", ["add", "mul", "max", "min"])
def test_scattering_where_places_repeat(how):
    """Against float64; a place has up to 300 updates, merged as a tree of 9 steps. Captured, and the same each time."""
    merge = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[how]
    rng = np.random.default_rng(0)
    x, updates = (rng.uniform(0.5, 1.5, (rows, 8)).astype(np.float32) for rows in (50, 333))
    rows = np.where(rng.random(333) < 0.9, -7, rng.integers(-50, 50, 333))
    columns = rng.integers(-8, 8, (40, 6))
    for kind, index, given, places, options in (
        ("ScatterND", rows[:, None], updates, (rows,), {}),
        ("ScatterElements", columns, updates[:40, :6], (np.indices((40, 6))[0], columns), {"axis": 1}),
    ):
        types = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.FLOAT)
        graph = helper.make_graph(
            [helper.make_node(kind, ["x", "index", "updates"], ["y"], reduction=how, **options)], "g",
            [helper.make_tensor_value_info(name, dtype, each.shape)
             for name, dtype, each in zip(("x", "index", "updates"), types, (x, index, given), strict=True)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)],
        )  # fmt: skip
        model = grilly.onnx.Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
        exact = x.astype(np.float64)
        merge.at(exact, places, given.astype(np.float64))
        found = [model.run({"x": x, "index": index, "updates": given})["y"] for _ in range(2)]
        assert model.graph is not None and np.array_equal(*found)
        np.testing.assert_allclose(found[0], exact, rtol=3e-6 if how == "add" else 2e-5 if how == "mul" else 0, atol=0)


def test_quantized_products_are_exact():
    """A layer as quantized models have it, against integers: zeros of rows and columns, and sums beyond 2**24."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (5, 700), np.uint8), rng.integers(-128, 128, (700, 6), np.int8)
    zero_a, zero_b = rng.integers(0, 256, 5, np.uint8), rng.integers(-128, 128, 6, np.int8)
    node = helper.make_node("MatMulInteger", ["a", "b", "za", "zb"], ["y"])
    (found,) = grilly.onnx.Backend.run_node(node, [a, b, zero_a, zero_b])
    wide = [x.astype(np.int64) for x in (a, b, zero_a, zero_b)]
    np.testing.assert_array_equal(found, (wide[0] - wide[2][:, None]) @ (wide[1] - wide[3]))
    scales = [np.array(x, np.float32) for x in (0.5, 0.25, 512.0)]
    zeros = [np.array(zero_a[0]), np.array(zero_b[0]), np.array(3, np.int8)]
    names = ["a", "sa", "za", "b", "sb", "zb", "s", "z"]
    node = helper.make_node("QLinearMatMul", names, ["y"])
    given = [a, scales[0], zeros[0], b, scales[1], zeros[1], scales[2], zeros[2]]
    (found,) = grilly.onnx.Backend.run_node(node, given)
    exact = (wide[0] - int(zeros[0])) @ (wide[1] - int(zeros[1])) / 4096  # scales of powers of 2: nothing is rounded
    assert np.abs(exact).max() < 2**24
    np.testing.assert_array_equal(found, np.clip(np.rint(exact) + 3, -128, 127))


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
        assert model.graph is None and (model.executed, model.folded) == (11, 1)  # Concat; Shape is of the host's own
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


def test_run_writes_what_the_model_gives(tmp_path, capsys):
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


def test_the_page_runs(tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    onnx.save(decoder(), tmp_path / "decoder.onnx")
    monkeypatch.chdir(tmp_path)
    for number, block in enumerate(blocks, 1):
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block, f"docs/onnx.md, block {number}", "exec"), {})


def test_the_page_lists_every_operator():
    text = PAGE.read_text(encoding="utf-8").split("## Operators", 1)[1]
    listed = set(re.findall(r"\b[A-Z]\w+\b", "".join(re.findall(r"^\|.*\|$", text, re.MULTILINE))))
    assert {name.rpartition(".")[2] for name in grilly.onnx.OPERATORS} - listed == set()
