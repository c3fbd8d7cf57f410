"""ONNX's own test cases of single operators: each passes, or is on a list with its reason."""

from __future__ import annotations

import collections
import functools
import importlib.util
import re
import warnings

import numpy as np
import pytest

import grilly

pytestmark = [pytest.mark.needs("onnx", "ml_dtypes"), pytest.mark.usefixtures("default")]
if importlib.util.find_spec("onnx"):
    import onnx
    from onnx import TensorProto, numpy_helper

    import grilly.onnx


@functools.cache
def cases() -> dict:
    """ONNX's cases by their names. Making them takes seconds, which processes without these tests save."""
    with warnings.catch_warnings():  # the cases divide by zero while they are made
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return {case.name: case for case in collect_testcases(None)}


def nodes(graph):
    """The nodes of a graph and of the graphs within them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from nodes(inner)


def lacking(model) -> set[str]:
    """The operators of a model that grilly lacks."""
    named = {node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
             for node in nodes(model.graph)}  # fmt: skip
    return named - set(grilly.onnx.OPERATORS)


#: Why a case that has nothing but operators of grilly's is not run: each pattern is looked for in the error's text.
REFUSED = {
    "float64": r"(is float64|double is a dtype), which no Tensor has|^(Cast\w*|EyeLike|Bernoulli): double",
    "strings": r"is object, which no Tensor has|string is a dtype",
    "numbers of 8 bits and less": r"(float[468]\w*|u?int[24]) is a dtype|is (float[468]\w*|u?int[24]), which",
    "sequences and optional values": r"is a (sequence|optional)_type; grilly (takes|gives) tensors",
    "old operator sets": r"of operator set [1-6];|Scan before operator set 9",
}  # fmt: skip
#: Why grilly lacks an operator.
LACKED = {
    "strings": {
        "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer",
        "ai.onnx.ml.LabelEncoder",
    },
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
#: Cases whose expected numbers go by the extent times the scale where ONNX's text has the length of the result. ONNX
#: Runtime 1.32 gives the text's too; test_places_go_by_the_length_of_the_result holds grilly to them.
LENGTHS = ("test_resize_downsample_scales_cubic_align_corners", "test_resize_downsample_scales_linear_align_corners")
#: Cases of random numbers, whose expected ones are those of NumPy's generator: only shapes and dtypes are compared.
RANDOM = ("test_bernoulli", "test_training_dropout")
#: In one part each, so that several processes can share them.
PARTS = 4


def is_random(name: str) -> bool:
    return name.startswith(RANDOM) and "zero_ratio" not in name


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
            if is_random(case.name):
                continue
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
    names = sorted(cases())[part::PARTS]
    for name in names:
        case = cases()[name]
        lacked = lacking(case.model)
        if lacked:
            why = [reason for reason, names in LACKED.items() if names & lacked]
            seen[f"lacked: {why[0] if why else None}"] += 1
            if not lacked <= set().union(*LACKED.values()):
                wrong.append(f"{name}: no reason why grilly lacks one of {', '.join(lacked)}")
            continue
        if name in (*ROUNDED, *TRANSFORMS):
            seen["rounded at other places"] += 1
            continue
        if name in LENGTHS:
            seen["expected against ONNX's text"] += 1
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
            passed = "passed" if model.executed else "passed, folded by the host"
            seen["random numbers" if is_random(name) else passed] += 1
    numbers = {"cases": len(names), **dict(sorted(seen.items())), "unexpected": len(wrong)}
    count(f"ONNX's cases of operators, onnx {onnx.__version__}", numbers)
    assert not wrong, "\n".join(wrong)
    assert seen["passed"] > 250, seen


def attention_cases() -> list[str]:
    return [name for name, case in cases().items() if any(n.op_type == "Attention" for n in case.model.graph.node)]


def test_no_case_of_attention_is_refused_or_folded():
    """All of them run on the device; test_cases_of_onnx has their numbers."""
    names = attention_cases()
    assert len(names) >= 60  # 93 in onnx 1.23
    assert not set(names) & set(ROUNDED)
    for name in names:
        assert not lacking(cases()[name].model)
        kinds = {i.type.tensor_type.elem_type for i in cases()[name].model.graph.input}
        assert not kinds & {TensorProto.DOUBLE, TensorProto.UINT64, TensorProto.STRING}, name


@pytest.mark.parametrize("name", ROUNDED)
def test_float16_attention_in_steps(name):
    """Within three roundings to float16 of weights and of results, each at most 2**-11 of the largest value."""
    if name not in cases():
        pytest.skip("this version of onnx lacks the case")
    case = cases()[name]
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
    if name not in cases():
        pytest.skip("this version of onnx lacks the case")
    case = cases()[name]
    x, *rest = arrays(case.data_sets[0][0])
    found = grilly.onnx.Backend.prepare(case.model).run([x, *rest])[0]
    exact = np.fft.ifft(x[..., 0].astype(np.float64) + 1j * x[..., 1], axis=1)
    assert x.shape[1] == 10 and np.abs(x).max() < 100
    np.testing.assert_allclose(found, np.stack([exact.real, exact.imag], -1), rtol=0, atol=20 * 100 * 2**-23)
