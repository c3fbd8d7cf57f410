"""Operators of ONNX: what its own cases leave out, against float64."""

from __future__ import annotations

import importlib.util
import itertools

import numpy as np
import pytest

import grilly
from grilly import reference

pytestmark = [pytest.mark.needs("onnx", "ml_dtypes"), pytest.mark.usefixtures("default")]
if importlib.util.find_spec("onnx"):
    from onnx import TensorProto, helper, numpy_helper

    import grilly.onnx


def model_of(kind: str, given: dict[str, np.ndarray], outputs: int = 1, version: int = 22, constants=(), **attributes):
    """A model of one node; names that begin with ``_`` stand for inputs that are left out."""
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items() if not name.startswith("_") and name not in constants
    ]  # fmt: skip
    results = [f"y{n}" for n in range(outputs)]
    names = ["" if name.startswith("_") else name for name in given]
    graph = helper.make_graph(
        [helper.make_node(kind, names, results, name="it", **attributes)], "g", infos,
        [helper.make_value_info(name, helper.make_tensor_type_proto(1, None)) for name in results],
        [numpy_helper.from_array(given[name], name) for name in constants],
    )  # fmt: skip
    return grilly.onnx.Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)]))


def run(kind: str, given: dict[str, np.ndarray], outputs: int = 1, captured: bool = True, **attributes):
    """What a node gives, captured as a graph or not, and the same both ways."""
    model = model_of(kind, given, outputs, **attributes)
    feeds = {name: value for name, value in given.items() if not name.startswith("_")}
    found = list(model.run(feeds).values())
    assert (model.graph is not None) == captured, model.uncaptured
    for one, other in zip(found, model.run(feeds, capture=False).values(), strict=True):
        np.testing.assert_array_equal(one, other)
    return found


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


# -- products and indices --------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("depth", [1024, 1025, 100_003])
def test_products_of_bytes_at_their_ends_are_exact(depth):
    """All terms as large as they are, so that sums pass what float32 and int32 hold."""
    for ends in ((0, 127, 255, -128), (255, 127, 0, -128), (255, -128, 0, 0)):
        a, b = np.full((2, depth), ends[0], np.uint8), np.full((depth, 3), ends[1], np.int8)
        zeros = np.array(ends[2], np.uint8), np.array(ends[3], b.dtype)
        node = helper.make_node("MatMulInteger", ["a", "b", "za", "zb"], ["y"])
        (found,) = grilly.onnx.Backend.run_node(node, [a, b, *zeros])
        exact = depth * (ends[0] - ends[2]) * (ends[1] - ends[3])
        assert (found == np.array(exact, np.int64).astype(np.int32)).all() and found.dtype == np.int32


def test_integer_convolutions_of_many_channels_are_exact():
    """Channels in parts, whose sums float32 holds; groups and kernels that are not cut so."""
    rng = np.random.default_rng(1)
    for shape, outputs, kernel, groups in (
        ((1, 100, 5, 6), 40, (3, 3), 1), ((1, 6, 5, 6), 6, (3, 3), 6), ((2, 80, 5, 6), 4, (3, 3), 2),
        ((1, 2, 20, 21), 3, (17, 17), 1),
    ):  # fmt: skip
        x = rng.integers(250, 256, shape, np.uint8)
        w = rng.integers(250, 256, (outputs, shape[1] // groups, *kernel), np.uint8)
        (found,) = run("ConvInteger", {"x": x, "w": w}, version=10, group=groups)
        exact = reference.conv2d(x.astype(np.float64), w.astype(np.float64), groups=groups, dtype=np.float64)
        np.testing.assert_array_equal(found, exact)


def test_integer_weights_that_are_constants():
    """Made once, and cut into parts by the weights' own values: many small ones, and some as large as can be."""
    rng = np.random.default_rng(2)
    weight = np.where(np.arange(3000)[:, None] < 700, 127, rng.integers(-3, 4, (3000, 5))).astype(np.int8)
    kernels = np.where(np.arange(90)[:, None, None] < 40, -128, rng.integers(-9, 9, (7, 90, 3, 3))).astype(np.int8)
    a, x = (rng.integers(250, 256, shape, np.uint8) for shape in ((4, 3000), (1, 90, 6, 7)))
    zero = np.array(3, np.uint8)
    nodes = [helper.make_node("MatMulInteger", ["a", "b", "", "z"], ["y"]),
             helper.make_node("ConvInteger", ["x", "w", "za"], ["c"])]  # fmt: skip
    constants = {"b": weight, "z": np.array(-1, np.int8), "w": kernels, "za": zero}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, TensorProto.UINT8, v.shape) for n, v in (("a", a), ("x", x))],
        [helper.make_tensor_value_info(n, TensorProto.INT32, None) for n in "yc"],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = grilly.onnx.Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    for _ in range(3):
        found = model.run({"a": a, "x": x})
        np.testing.assert_array_equal(found["y"], a.astype(np.int64) @ (weight.astype(np.int64) + 1))
        exact = reference.conv2d(x - zero.astype(np.float64), kernels.astype(np.float64), dtype=np.float64)
        np.testing.assert_array_equal(found["c"], exact)
    assert model.graph is not None


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_single_numbers_beside_tensors(dtype):
    """Constants of one element, before and behind a tensor, of more axes than it has, and not a number."""
    x = np.random.default_rng(3).standard_normal((3, 5)).astype(dtype)
    one, column = np.array(0.1, dtype), np.array([[[0.3]]], dtype)
    for kind, function in (("Sub", np.subtract), ("Div", np.divide), ("Less", np.less), ("Add", np.add)):
        for given in ((x, one), (one, x), (x, column), (np.array([np.nan], dtype), x)):
            names = ["x" if value is x else "c" for value in given]
            constant = next(value for value in given if value is not x)
            graph = helper.make_graph(
                [helper.make_node(kind, names, ["y"])], "g",
                [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
                [helper.make_tensor_value_info("y", TensorProto.BOOL if kind == "Less" else
                                               helper.np_dtype_to_tensor_dtype(x.dtype), None)],
                [numpy_helper.from_array(constant, "c")],
            )  # fmt: skip
            model = grilly.onnx.Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
            found, want = model.run({"x": x})["y"], function(*given)
            assert found.dtype == want.dtype
            np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("how", ["add", "max", "min"])
def test_scattering_of_any_dtype_and_axes(how, dtype):
    rng = np.random.default_rng(2)
    merge = {"add": np.add, "max": np.maximum, "min": np.minimum}[how]
    for shape, many, axis in (((3, 4, 5), (2, 9, 5), 1), ((700,), (3000,), 0)):
        x, updates = (rng.integers(0, 100, size).astype(dtype) for size in (shape, many))
        index = rng.integers(-shape[axis], shape[axis], many)
        places = list(np.indices(many))
        places[axis] = index % shape[axis]
        exact = x.copy()
        merge.at(exact, tuple(places), updates)
        given = {"x": x, "index": index, "updates": updates}
        (found,) = run("ScatterElements", given, version=18, axis=axis, reduction=how)
        np.testing.assert_array_equal(found, exact)


def test_sums_of_scattered_numbers_of_any_size():
    """Each place has its own scale; what is not finite stays where it is, and the order counts for nothing."""
    rng = np.random.default_rng(3)
    index = rng.integers(0, 50, 4000)
    updates = normal(4000) * (10.0 ** (index % 7 * 10 - 30)).astype(np.float32)
    x = np.zeros(52, np.float32)
    x[51] = -0.0
    for place, value in ((7, np.inf), (8, -np.inf), (9, np.nan)):
        updates[np.flatnonzero(index == place)[0]] = value
    updates[np.flatnonzero(index == 10)[:2]] = np.inf, -np.inf
    exact, sizes = np.zeros(52), np.zeros(52)
    with np.errstate(invalid="ignore"):
        np.add.at(exact, index, updates.astype(np.float64))
        np.add.at(sizes, index, np.abs(updates.astype(np.float64)))
    (found,) = run("ScatterElements", {"x": x, "i": index, "u": updates}, version=18, reduction="add")
    order = rng.permutation(4000)
    (other,) = run("ScatterElements", {"x": x, "i": index[order], "u": updates[order]}, version=18, reduction="add")
    np.testing.assert_array_equal(found, other)
    whole = np.isfinite(exact)
    np.testing.assert_array_equal(found[~whole], exact[~whole].astype(np.float32))
    assert (np.abs(found[whole] - exact[whole]) <= 2.0**-24 * np.abs(exact[whole]) + 2.0**-30 * sizes[whole]).all()
    assert np.signbit(found[51])


# -- recurrent networks -----------------------------------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def recurrent(kind, x, w, r, b, h, c, p, lengths, clip, reset_last):
    """Both directions of a network in float64, sample by sample, each only as far as it goes."""
    steps, batch, _ = x.shape
    size = r.shape[2]
    y, last, cells = np.zeros((steps, 2, batch, size)), np.zeros((2, batch, size)), np.zeros((2, batch, size))
    for way, n in itertools.product(range(2), range(batch)):
        state, cell = h[way, n], c[way, n]
        places = range(lengths[n])
        for t in reversed(places) if way else places:
            given, inner = w[way] @ x[t, n] + b[way, : len(w[way])], r[way] @ state + b[way, len(w[way]) :]
            both = np.clip(given + inner, -clip, clip)
            if kind == "RNN":
                state = np.tanh(both)
            elif kind == "GRU":
                z, reset = sigmoid(both[:size]), sigmoid(both[size : 2 * size])
                tail = slice(2 * size, None)
                if reset_last:
                    late = reset * inner[tail]
                else:
                    late = r[way][tail] @ (reset * state) + b[way, len(w[way]) :][tail]
                state = (1 - z) * np.tanh(np.clip(given[tail] + late, -clip, clip)) + z * state
            else:
                i, o, f, new = (given + inner).reshape(4, size)
                pi, po, pf = p[way].reshape(3, size)
                i, f = (sigmoid(np.clip(g + e * cell, -clip, clip)) for g, e in ((i, pi), (f, pf)))
                cell = f * cell + i * np.tanh(np.clip(new, -clip, clip))
                state = sigmoid(np.clip(o + po * cell, -clip, clip)) * np.tanh(cell)
            y[t, way, n] = state
        last[way, n], cells[way, n] = state, cell
    return y, last, cells


@pytest.mark.parametrize(("kind", "reset_last"), [("RNN", 0), ("GRU", 0), ("GRU", 1), ("LSTM", 0)])
@pytest.mark.parametrize("layout", [0, 1])
def test_recurrent_networks_of_both_directions(kind, reset_last, layout):
    """With lengths, first states, biases, peepholes and a clip: float32 of states below 1 over 5 tokens."""
    steps, batch, inputs, size, gates = 5, 3, 4, 6, {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    lengths = np.array([5, 2, 3], np.int32)
    given = {
        "x": normal(steps, batch, inputs), "w": normal(2, gates * size, inputs), "r": normal(2, gates * size, size),
        "b": normal(2, 2 * gates * size), "lengths": lengths, "h": normal(2, batch, size),
    }  # fmt: skip
    if kind == "LSTM":
        given |= {"c": normal(2, batch, size, seed=1), "p": normal(2, 3 * size)}
    wide = {name: value.astype(np.float64) for name, value in given.items()}
    wide.setdefault("c", np.zeros_like(wide["h"]))
    exact = recurrent(
        kind, wide["x"], wide["w"], wide["r"], wide["b"], wide["h"], wide["c"], wide.get("p"), lengths, 1.5, reset_last
    )[: 3 if kind == "LSTM" else 2]
    if layout:
        given |= {name: given[name].swapaxes(0, 1).copy() for name in ("x", "h", "c") if name in given}
        exact = (exact[0].transpose(2, 0, 1, 3), *(each.swapaxes(0, 1) for each in exact[1:]))
    options = {"linear_before_reset": 1} if reset_last else {}
    options |= {"hidden_size": size, "direction": "bidirectional", "layout": layout, "clip": 1.5}
    found = run(kind, given, len(exact), **options)
    for one, other in zip(found, exact, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)


def test_activations_of_networks_are_named():
    given = {"x": normal(2, 1, 3), "w": normal(1, 4, 3), "r": normal(1, 4, 4)}
    (found,) = run("RNN", given, activations=["Affine"], activation_alpha=[0.5], activation_beta=[0.25], hidden_size=4)
    x, w, r = (value.astype(np.float64) for value in given.values())
    first = 0.5 * (x[0] @ w[0].T) + 0.25
    np.testing.assert_allclose(found[1, 0], 0.5 * (x[1] @ w[0].T + first @ r[0].T) + 0.25, rtol=0, atol=1e-5)
    with pytest.raises(grilly.UnsupportedError, match="RNN 'it': activation is 'Cosine'"):
        model_of("RNN", given, activations=["Cosine"], hidden_size=4).run(given)


# -- reductions and shapes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, large", [(np.int32, 2**31 - 1), (np.int64, 2**61 - 1)])
def test_means_of_integers_are_exact(dtype, large):
    """Cut off towards zero, as Div does. Above 2**24 float32 has not all of them."""
    x = np.array([[large, large, large], [-3, -4, 0], [-1, -1, 0], [5, 3, 0], [-2, -4, 0]], dtype)
    for constants, feeds in (([], {"x": x}), (["x"], {})):  # on the device, and on the host
        model = model_of("ReduceMean", {"x": x}, constants=constants, version=17, axes=[1], keepdims=0)
        found = model.run(feeds, capture=False)["y0"]
        assert found.dtype == dtype and found.tolist() == [large, -2, 0, 2, -2]


@pytest.mark.parametrize("mode, first, last", [
    ("edge", [2, 3, 4, 4, 4], [0, 0, 0, 1, 2]), ("reflect", [2, 3, 4, 3, 2], [2, 1, 0, 1, 2]),
    ("wrap", [2, 3, 4, 2, 3], [1, 2, 0, 1, 2]),
])  # fmt: skip
def test_negative_pads_cut_off_before_others_add(mode, first, last):
    """As ONNX Runtime does: what is repeated is what was left."""
    x = np.arange(5, dtype=np.float32)
    for pads, wanted in (([-2, 2], first), ([2, -2], last), ([-1, -2], [1, 2])):
        given = {"x": x, "pads": np.array(pads)}
        assert run("Pad", given, mode=mode)[0].tolist() == wanted
        assert model_of("Pad", given, constants=list(given), mode=mode).run({})["y0"].tolist() == wanted


@pytest.mark.parametrize("held", [False, True])
def test_pads_of_too_few_axes(held):
    given = {"x": normal(2, 3), "pads": np.array([1, 1])}
    model = model_of("Pad", given, constants=list(given) if held else ["pads"])
    with pytest.raises(ValueError, match="pads has 2 numbers; expected two for each of 2 axes"):
        model.run({} if held else {"x": given["x"]})


# -- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [15, 16])
@pytest.mark.parametrize("kind", ["real", "complex", "inverse", "half", "half back"])
def test_fourier_transforms(kind, length):
    """Against float64, of 15 or 16 numbers cut off or filled up from 14 or 18."""
    for given in (14, 18):
        x = normal(3, given, 1 if kind in ("real", "half") else 2)
        options = {"onesided": int(kind.startswith("half")), "inverse": int(kind in ("inverse", "half back"))}
        whole = x[..., 0].astype(np.complex128) + (1j * x[..., 1] if x.shape[2] == 2 else 0)
        if kind == "half back":
            exact = np.fft.irfft(whole, length)[..., None]
        else:
            exact = (np.fft.ifft if kind == "inverse" else np.fft.fft)(whole, length)
            exact = exact[:, : length // 2 + 1] if kind == "half" else exact
            exact = np.stack([exact.real, exact.imag], -1)
        (found,) = run("DFT", {"x": x, "length": np.array(length)}, axis=1, version=17, **options)
        assert found.shape == exact.shape
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5)


def test_short_time_spectra():
    signal, window = normal(2, 100, 1), np.hanning(24).astype(np.float32)
    given = {"signal": signal, "step": np.array(10), "window": window}
    (found,) = run("STFT", given, version=17)
    frames = np.stack([signal[:, 10 * n : 10 * n + 24, 0].astype(np.float64) * window for n in range(8)], 1)
    exact = np.fft.rfft(frames)
    np.testing.assert_allclose(found, np.stack([exact.real, exact.imag], -1), rtol=0, atol=1e-5)


def test_transforms_that_are_too_long_are_refused():
    given = {"x": np.zeros((1, 8192, 1), np.float32)}
    with pytest.raises(grilly.UnsupportedError, match="DFT 'it': a transform of 8192 numbers"):
        model_of("DFT", given, version=17).run(given)


# -- edges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_the_remainder_of_the_lowest_integer(dtype):
    low = np.iinfo(dtype).min
    x, y = np.array([low, low, 7, -7, 7, low], dtype), np.array([3, low, low, 3, -3, -1], dtype)
    (found,) = run("Mod", {"x": x, "y": y}, fmod=1)
    np.testing.assert_array_equal(found, np.fmod(x, y))


def test_empty_rows_and_pictures():
    assert run("Hardmax", {"x": np.zeros((2, 0), np.float32)})[0].shape == (2, 0)
    given = {"x": np.zeros((0, 1, 3, 3), np.float32), "_r": None, "_s": None, "sizes": np.array([0, 1, 5, 5])}
    assert model_of("Resize", given, constants=("sizes",)).run({"x": given["x"]})["y0"].shape == (0, 1, 5, 5)


@pytest.mark.parametrize("dtypes", [(np.float16, np.float32), (np.float32, np.float16)])
def test_present_keys_and_values_keep_their_dtypes(dtypes):
    q, k, v = normal(1, 1, 2, 8).astype(dtypes[0]), normal(1, 1, 3, 8).astype(dtypes[0]), normal(1, 1, 3, 4)
    v = v.astype(dtypes[1])
    _, keys, values = run("Attention", {"q": q, "k": k, "v": v}, 3, version=24)
    np.testing.assert_array_equal(keys, k)
    np.testing.assert_array_equal(values, v)
    assert (keys.dtype, values.dtype) == dtypes


# -- norms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e30, 1.0, 1e-30])
def test_norms_of_any_size(scale):
    """Where squares are beyond float32 and the result is not."""
    x = (scale * normal(2, 3, 4, 5)).astype(np.float32)
    wide, axes, ones, zeros = x.astype(np.float64), (0, 2, 3), np.ones(3, np.float32), np.zeros(3, np.float32)
    mean, deviation = wide.mean(axes, keepdims=True), wide.std(axes, keepdims=True)

    def near(found, exact):
        np.testing.assert_allclose(found, exact, rtol=0, atol=2e-6 * np.abs(exact).max())

    near(run("ReduceL2", {"x": x})[0], np.sqrt(np.square(wide).sum(keepdims=True)))
    for order in (1, 2):
        size = np.linalg.norm(wide, order, axis=1, keepdims=True)
        near(run("LpNormalization", {"x": x}, axis=1, p=order)[0], wide / size)
    if scale >= 1:
        near(run("MeanVarianceNormalization", {"x": x})[0], (wide - mean) / (deviation + 1e-9))
    inverse = 1 / np.sqrt(np.square(wide).mean(-1, keepdims=True))
    found = run("LayerNormalization", {"x": x, "scale": np.ones(5, np.float32)}, 3, epsilon=0.0)
    near(found[2], 1 / wide.std(-1, keepdims=True))
    near(run("RMSNormalization", {"x": x, "scale": np.ones(5, np.float32)}, version=23, epsilon=0.0)[0], wide * inverse)
    given = {"x": x, "scale": ones, "bias": zeros, "mean": zeros, "variance": ones}
    near(run("BatchNormalization", given, 3, training_mode=1, epsilon=0.0)[0], (wide - mean) / deviation)
    near(run("LRN", {"x": x}, size=3, alpha=3.0, bias=0.0, beta=0.5)[0], wide / np.sqrt(
        sum(np.pad(np.square(wide), ((0, 0), (1, 1), (0, 0), (0, 0)))[:, shift : shift + 3] for shift in range(3))
    ))  # fmt: skip
