"""Gradients of grilly.functional, by the tape, against PyTorch's autograd in float64."""

import itertools
import math

import numpy as np
import pytest

import grilly
import grilly.functional as F
from backends import default
from cases import SIXTEEN_BITS, epsilon
from grilly.errors import GradientError

torch = pytest.importorskip("torch")
T = torch.nn.functional


#: Element types, and whether arrays are strided.
LAYOUTS = [
    pytest.param(np.float32, False, id="float32"), pytest.param(np.float32, True, id="strided"),
    *(pytest.param(*each.values, False, id=each.id, marks=each.marks) for each in SIXTEEN_BITS),
]  # fmt: skip


def draw(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def laid_out(backend, array, strided):
    """The array on the device; ``strided``: every second element of a larger one, its axes in another order."""
    if not strided or not array.ndim:
        return backend.tensor(array)
    wide = np.zeros((*(2 * extent for extent in array.shape),), array.dtype).T.copy()
    wide[tuple(slice(1, None, 2) for _ in array.shape)] = array.T
    return backend.tensor(wide).transpose()[tuple(slice(1, None, 2) for _ in array.shape)]


def gradients(backend, function, arrays, cotangents, strided=False):
    """Results and gradients of ``function`` of arrays, for the cotangents of its results (None: zeros)."""
    with default(backend):
        given = [laid_out(backend, array, strided) for array in arrays]
        found, pull = grilly.vjp(function, *given)
        results = found if isinstance(found, tuple) else (found,)
        cotangents = tuple(np.zeros(r.shape, r.dtype) if c is None else c.astype(r.dtype)
                           for c, r in zip(cotangents, results, strict=True))  # fmt: skip
        pulled = pull(cotangents if isinstance(found, tuple) else cotangents[0])
    return [result.numpy() for result in results], [gradient.numpy() for gradient in pulled]


def exact(reference, arrays, cotangents):
    """The same by PyTorch, in float64. ``cotangents(results)`` gives the cotangents."""
    given = [torch.tensor(array.astype(np.float64), requires_grad=True) for array in arrays]
    found = reference(*given)
    results = found if isinstance(found, tuple) else (found,)
    weights = cotangents([tuple(result.shape) for result in results])
    total = sum((result * torch.tensor(weight.astype(np.float64))).sum()
                for result, weight in zip(results, weights, strict=True) if weight is not None)  # fmt: skip
    pulled = torch.autograd.grad(total, given, allow_unused=True)
    return (weights, [result.detach().numpy() for result in results],
            [np.zeros(a.shape) if p is None else p.numpy() for a, p in zip(arrays, pulled, strict=True)])  # fmt: skip


def check(backend, function, reference, *arrays, dtype=np.float32, strided=False, only=None, slack=1.0):
    """Results and gradients are PyTorch's, within the rounding of the dtype, in units of the largest of each.

    ``only``: the number of the one result with a cotangent.
    """
    arrays = [array.astype(dtype) for array in arrays]

    def cotangents(shapes):
        drawn = [draw(*shape, seed=17 + n).astype(dtype).astype(np.float32) for n, shape in enumerate(shapes)]
        return [one if only in (None, n) else None for n, one in enumerate(drawn)]

    weights, results, expected = exact(reference, arrays, cotangents)
    gave, found = gradients(backend, function, arrays, weights, strided)
    unit = slack * (256 * epsilon(np.float32) if dtype == np.float32 else 12 * epsilon(dtype))
    for what, (one, right) in zip(
        [*(f"result {n}" for n in range(len(gave))), *(f"gradient {n}" for n in range(len(found)))],
        zip([*gave, *found], [*results, *expected], strict=True), strict=True,
    ):
        assert one.shape == right.shape, what
        size = np.abs(right[np.isfinite(right)]).max(initial=0) + 1e-3
        with np.errstate(invalid="ignore"):  # infinities less infinities
            error = np.abs(np.where(np.isfinite(right), one.astype(np.float64) - right, 0)).max(initial=0)
        assert error <= unit * size and (np.isfinite(one) == np.isfinite(right)).all(), (what, error, size)


def check_captured(backend, function, *arrays):
    """A replay of value_and_grad gives the bits that a call outside a graph gives."""
    both = grilly.value_and_grad(lambda *given: grilly.sum(function(*given)), argnums=tuple(range(len(arrays))))
    with default(backend):
        first = [backend.tensor(array) for array in arrays]
        second = [backend.tensor(2 * array) for array in arrays]
        graph = backend.capture(both, *first)
        for given in (second, first):
            value, found = both(*given)
            again, replayed = graph(*given)
            assert (again.numpy() == value.numpy()).all()
            for one, other in zip(found, replayed, strict=True):
                assert (one.numpy() == other.numpy()).all()


def check_second(backend, function, reference, *arrays, slack=4.0):
    """The gradients of the sum of squares of gradients."""

    def squares(*given):
        found = grilly.grad(lambda *inner: grilly.sum(function(*inner) * weight), tuple(range(len(given))))(*given)
        total = grilly.sum(found[0] * found[0])
        for one in found[1:]:
            total = total + grilly.sum(one * one)
        return total

    def squares_of_torch(*given):
        found = torch.autograd.grad((reference(*given) * weight_of_torch).sum(), given, create_graph=True)
        return sum((one * one).sum() for one in found)

    shape = tuple(reference(*(torch.tensor(array.astype(np.float64)) for array in arrays)).shape)
    host = draw(*shape, seed=5)
    weight, weight_of_torch = backend.tensor(host), torch.tensor(host.astype(np.float64))
    check(backend, squares, squares_of_torch, *arrays, slack=slack)


ACTIVATIONS = {
    None: lambda x: x, "gelu": T.gelu, "gelu_tanh": lambda x: T.gelu(x, approximate="tanh"), "silu": T.silu,
    "relu": T.relu, "sigmoid": torch.sigmoid, "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}  # fmt: skip


def rms_norm(x, weight, eps, axes=(-1,), offset=0.0):
    found = x / torch.sqrt((x * x).mean(axes, keepdim=True) + eps)
    return found if weight is None else found * (weight + offset)


# -- linear layers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, strided", LAYOUTS)
@pytest.mark.parametrize("lead", [(5,), (2, 3), (), (2, 1, 3, 2, 2)], ids=str)
def test_linear(backend, dtype, lead, strided):
    check(backend, F.linear, T.linear, draw(*lead, 7), draw(11, 7), draw(11), dtype=dtype, strided=strided)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_linear_of_many(backend, bias, precision):
    own = (draw(70, 40), draw(33, 40), *([draw(33)] if bias else []))
    check(backend, lambda *a: F.linear(*a, precision=precision), T.linear, *own)


@pytest.mark.parametrize("activation, gated, residual, norm", [
    ("gelu", False, False, False), ("gelu_tanh", True, True, False), ("silu", True, False, True),
    ("relu", False, True, True), ("quick_gelu", False, False, True), ("sigmoid", True, True, True),
    (None, False, True, False), (None, False, False, True), ("silu", False, True, False), ("gelu", True, False, False),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, *SIXTEEN_BITS])
def test_fused_linear(vulkan_backend, activation, gated, residual, norm, dtype):
    columns = 6 if gated else 12
    arrays = [draw(5, 9), draw(12, 9), draw(12)]
    arrays += [draw(5, columns, seed=2)] if residual else []
    arrays += [draw(9, seed=3)] if norm else []

    def split(given):
        rest = list(given[3:])
        return rest.pop(0) if residual else None, rest.pop(0) if norm else None

    def function(*given):
        added, weight = split(given)
        more = {"norm_weight": weight, "norm_eps": 1e-3, "norm_offset": 0.5} if norm else {}
        return F.linear(*given[:3], activation=activation, gated=gated, residual=added, **more)

    def reference(*given):
        added, weight = split(given)
        x = given[0] if weight is None else rms_norm(given[0], weight, 1e-3, offset=0.5)
        y = T.linear(x, *given[1:3])
        if gated:
            y = ACTIVATIONS[activation](y[..., :columns]) * y[..., columns:]
        else:
            y = ACTIVATIONS[activation](y)
        return y if added is None else y + added

    check(vulkan_backend, function, reference, *arrays, dtype=dtype, slack=2)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
def test_quantized_linear(backend, fused, on_device):
    """By x and the bias alone: the weight has no gradient."""
    weight = grilly.quantize(draw(12, 64), "Q8_0")
    plain = torch.tensor(weight.dequantize().astype(np.float64))
    weight = backend.tensor(weight) if on_device else weight
    more = {"activation": "silu", "gated": True} if fused else {}

    def reference(x, b):
        y = T.linear(x, plain, b)
        return T.silu(y[:, :6]) * y[:, 6:] if fused else y

    check(backend, lambda x, b: F.linear(x, weight, b, **more), reference, draw(5, 64), draw(12))


def test_second_derivatives_of_linear(vulkan_backend):
    check_second(vulkan_backend, F.linear, T.linear, draw(4, 5), draw(3, 5), draw(3))
    weight = grilly.quantize(draw(12, 32), "Q8_0")
    plain = torch.tensor(weight.dequantize().astype(np.float64))
    own = vulkan_backend.tensor(weight)
    check_second(vulkan_backend, lambda x: F.linear(x * x, own), lambda x: T.linear(x * x, plain), draw(3, 32))


def test_linear_of_nothing(vulkan_backend):
    check(vulkan_backend, F.linear, T.linear, draw(0, 7), draw(3, 7), draw(3))
    check(vulkan_backend, F.linear, T.linear, draw(4, 0), draw(3, 0), draw(3))


# -- norms, softmaxes --------------------------------------------------------------------------------------------------


NORMS = {
    "layer": (lambda x, w, b: F.layer_norm(x, 10, w, b, 1e-3), lambda x, w, b: T.layer_norm(x, (10,), w, b, 1e-3),
              [(3, 4, 10), (10,), (10,)]),
    "layer-plain": (lambda x: F.layer_norm(x, 10), lambda x: T.layer_norm(x, (10,)), [(3, 4, 10)]),
    "layer-two-axes": (lambda x, w, b: F.layer_norm(x, (4, 7), w, b), lambda x, w, b: T.layer_norm(x, (4, 7), w, b),
                       [(3, 4, 7), (4, 7), (4, 7)]),
    "layer-one-row": (lambda x, w, b: F.layer_norm(x, 9, w, b), lambda x, w, b: T.layer_norm(x, (9,), w, b),
                      [(9,), (9,), (9,)]),
    "layer-bias": (lambda x, b: F.layer_norm(x, 10, None, b), lambda x, b: T.layer_norm(x, (10,), None, b),
                   [(4, 10), (10,)]),
    "rms": (lambda x, w: F.rms_norm(x, 13, w, 1e-3), lambda x, w: rms_norm(x, w, 1e-3), [(3, 5, 13), (13,)]),
    "rms-offset": (lambda x, w: F.rms_norm(x, 12, w, 1e-3, 1.0), lambda x, w: rms_norm(x, w, 1e-3, offset=1.0),
                   [(7, 12), (12,)]),
    "rms-plain": (lambda x: F.rms_norm(x, 12, eps=1e-3), lambda x: rms_norm(x, None, 1e-3), [(7, 12)]),
    "rms-two-axes": (lambda x, w: F.rms_norm(x, (3, 5), w, 1e-3), lambda x, w: rms_norm(x, w, 1e-3, (-2, -1)),
                     [(2, 3, 5), (3, 5)]),
    "group": (lambda x, w, b: F.group_norm(x, 3, w, b), lambda x, w, b: T.group_norm(x, 3, w, b),
              [(2, 6, 5), (6,), (6,)]),
    "group-images": (lambda x, w, b: F.group_norm(x, 2, w, b), lambda x, w, b: T.group_norm(x, 2, w, b),
                     [(2, 4, 3, 5), (4,), (4,)]),
    "group-bias": (lambda x, b: F.group_norm(x, 2, None, b), lambda x, b: T.group_norm(x, 2, None, b),
                   [(2, 4, 7), (4,)]),
    "instance": (lambda x: F.group_norm(x, 4), lambda x: T.instance_norm(x), [(2, 4, 9)]),
    "add-layer": (lambda x, r, w, b: F.add_layer_norm(x, r, 10, w, b),
                  lambda x, r, w, b: (T.layer_norm(x + r, (10,), w, b), x + r), [(4, 10), (4, 10), (10,), (10,)]),
    "add-rms": (lambda x, r, w: F.add_rms_norm(x, r, 10, w, 1e-3),
                lambda x, r, w: (rms_norm(x + r, w, 1e-3), x + r), [(4, 10), (4, 10), (10,)]),
}  # fmt: skip


def drawn(shapes):
    return [draw(*shape, seed=n) for n, shape in enumerate(shapes)]


@pytest.mark.parametrize("dtype, strided", LAYOUTS)
@pytest.mark.parametrize("name", NORMS)
def test_norms(vulkan_backend, name, dtype, strided):
    function, reference, shapes = NORMS[name]
    check(vulkan_backend, function, reference, *drawn(shapes), dtype=dtype, strided=strided, slack=2)


@pytest.mark.parametrize("only", [0, 1])
@pytest.mark.parametrize("name", ["add-layer", "add-rms"])
def test_one_result_of_a_norm_of_a_sum(backend, name, only):
    function, reference, shapes = NORMS[name]
    check(backend, function, reference, *drawn(shapes), only=only)


@pytest.mark.parametrize("name", ["layer", "layer-two-axes", "layer-plain", "rms", "rms-offset", "group", "instance"])
def test_second_derivatives_of_norms(vulkan_backend, name):
    function, reference, shapes = NORMS[name]
    check_second(vulkan_backend, function, reference, *drawn(shapes), slack=16)


SOFTMAXES = {"softmax": (F.softmax, torch.softmax), "log_softmax": (F.log_softmax, torch.log_softmax)}


@pytest.mark.parametrize("dtype, strided", LAYOUTS)
@pytest.mark.parametrize("shape, axis", [((5, 7), -1), ((3, 4, 5), 1), ((9,), 0), ((2, 3, 4, 5), -3)])
@pytest.mark.parametrize("name", SOFTMAXES)
def test_softmaxes(vulkan_backend, name, shape, axis, dtype, strided):
    own, other = SOFTMAXES[name]
    check(vulkan_backend, lambda x: own(x, axis), lambda x: other(x, axis), draw(*shape), dtype=dtype, strided=strided)


@pytest.mark.parametrize("name", SOFTMAXES)
def test_second_derivatives_of_softmaxes(vulkan_backend, name):
    own, other = SOFTMAXES[name]
    check_second(vulkan_backend, lambda x: own(x, 1), lambda x: other(x, 1), draw(3, 4, 5))


# -- losses, embeddings, dropout, rotary positions ---------------------------------------------------------------------


LOSSES = {
    "plain": {}, "sum": {"reduction": "sum", "label_smoothing": 0.1}, "none": {"reduction": "none", "ignore_index": 2},
    "smooth": {"label_smoothing": 0.3, "ignore_index": 1},
}  # fmt: skip


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, *SIXTEEN_BITS])
@pytest.mark.parametrize("shape", [(6, 5), (2, 7, 3), (5,), (2, 4, 2, 3)], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_cross_entropy(vulkan_backend, name, shape, dtype, weighted):
    classes = shape[min(1, len(shape) - 1)]
    target = np.random.default_rng(classes).integers(0, classes, shape[:1] * (len(shape) > 1) + shape[2:])
    weight = np.abs(draw(classes)) + 0.5 if weighted else None
    labels = torch.tensor(target)

    def reference(x):
        own = None if weight is None else torch.tensor(weight.astype(dtype).astype(np.float64))
        return T.cross_entropy(x, labels, own, **LOSSES[name])

    cast = None if weight is None else weight.astype(dtype)
    check(vulkan_backend, lambda x: F.cross_entropy(x, target, cast, **LOSSES[name]), reference, draw(*shape),
          dtype=dtype)  # fmt: skip


def by_hand(x, labels, weight, smoothing, ignored, reduction):
    """Cross entropy with the gradient by the weights, which PyTorch's lacks."""
    logs, counts = torch.log_softmax(x, 1), labels != ignored
    own = torch.where(counts, labels, 0)
    weighs = weight[own] * counts
    loss = -(1 - smoothing) * weighs * logs.gather(1, own[:, None])[:, 0]
    loss = loss - smoothing / x.shape[1] * (logs * weight.reshape(1, -1, *(1,) * (x.ndim - 2))).sum(1) * counts
    return {"none": loss, "sum": loss.sum(), "mean": loss.sum() / weighs.sum()}[reduction]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weights_of_classes(vulkan_backend, reduction, smoothing):
    labels = np.array([[0, 3, 2], [1, 1, 3]])
    options = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": 1}

    def reference(x, weight):
        return by_hand(x, torch.tensor(labels), weight, smoothing, 1, reduction)

    arrays = draw(2, 4, 3), np.abs(draw(4)) + 0.5
    check(vulkan_backend, lambda x, w: F.cross_entropy(x, labels, w, **options), reference, *arrays)


@pytest.mark.parametrize("name", LOSSES)
def test_second_derivatives_of_cross_entropy(vulkan_backend, name):
    labels = np.array([0, 3, 2, 1])
    check_second(
        vulkan_backend, lambda x: F.cross_entropy(x, labels, **LOSSES[name]),
        lambda x: T.cross_entropy(x, torch.tensor(labels), **LOSSES[name]), draw(4, 5),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, *SIXTEEN_BITS])
@pytest.mark.parametrize("padding", [None, 3, -1])
@pytest.mark.parametrize("on_device", [False, True])
def test_embedding(backend, dtype, padding, on_device):
    ids = np.array([[0, 3, 3], [6, 1, 3]], np.int32)
    given = backend.tensor(ids) if on_device else ids

    def reference(weight):
        return T.embedding(torch.tensor(ids.astype(np.int64)), weight, padding_idx=padding)

    check(backend, lambda w: F.embedding(given, w, padding), reference, draw(7, 5), dtype=dtype)


@pytest.mark.parametrize("padding", [None, 3])
def test_second_derivatives_of_embedding(vulkan_backend, padding):
    ids = np.array([0, 3, 3, 1])

    def reference(weight):
        return T.embedding(torch.tensor(ids), weight, padding_idx=padding) ** 3

    check_second(vulkan_backend, lambda w: F.embedding(ids, w, padding) ** 3, reference, draw(5, 3))


def test_rows_of_a_quantized_table_are_constants(vulkan_backend):
    table = vulkan_backend.tensor(grilly.quantize(draw(6, 32), "Q8_0"))
    rows = torch.tensor(table.dequantize().numpy().astype(np.float64))[[1, 5]]
    ids = np.array([1, 5], np.int32)
    check(vulkan_backend, lambda x: x * F.embedding(ids, table), lambda x: x * rows, draw(2, 32))


@pytest.mark.parametrize("seed", [11, np.array(11, np.int64)], ids=["number", "tensor"])
@pytest.mark.parametrize("dtype, strided", LAYOUTS)
def test_dropout(backend, seed, dtype, strided):
    """The gradient drops what was dropped."""
    given = backend.tensor(seed) if isinstance(seed, np.ndarray) else seed
    with default(backend):
        kept = F.dropout(np.ones((5, 7), np.float32), 0.3, seed=11, offset=2) != 0
    factor = torch.tensor(kept / 0.7)
    check(backend, lambda x: F.dropout(x * x, 0.3, seed=given, offset=2), lambda x: x * x * factor, draw(5, 7),
          dtype=dtype, strided=strided)  # fmt: skip


@pytest.mark.parametrize("p, training, factor", [(1.0, True, 0.0), (0.0, True, 1.0), (0.5, False, 1.0)])
def test_dropout_of_all_or_nothing(vulkan_backend, p, training, factor):
    check(vulkan_backend, lambda x: F.dropout(x, p, training) + 0 * x, lambda x: factor * x, draw(4, 3))


def test_dropout_without_a_seed(vulkan_backend):
    """Both draw the same: the value is the sum of what the gradient says was kept."""
    with default(vulkan_backend):
        value, gradient = grilly.value_and_grad(lambda x: grilly.sum(F.dropout(x, 0.5)))(np.ones(100, np.float32))
    assert set(np.unique(gradient.numpy())) == {0.0, 2.0} and value.numpy() == gradient.numpy().sum()


def rotated(x, angles, interleaved, factor):
    """Pairs of the last axis by angles, ``(.., S, P)``."""
    pairs = angles.shape[-1]
    first = x[..., 0 : 2 * pairs : 2] if interleaved else x[..., :pairs]
    second = x[..., 1 : 2 * pairs : 2] if interleaved else x[..., pairs : 2 * pairs]
    cos, sin = factor * torch.cos(angles), factor * torch.sin(angles)
    turned = first * cos - second * sin, second * cos + first * sin
    joined = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat([joined, x[..., 2 * pairs :]], -1)


@pytest.mark.parametrize("options", [
    {}, {"interleaved": True, "offset": 5}, {"reverse": True, "factor": 1.5}, {"positions": True, "interleaved": True},
    {"frequencies": [1.0, 0.25, 0.01], "positions": True, "factor": 0.5},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, *SIXTEEN_BITS])
@pytest.mark.parametrize("on_device", [False, True])
def test_rope(vulkan_backend, options, dtype, on_device):
    options = dict(options)
    positions = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]], np.int32) if options.pop("positions", False) else None
    if positions is not None:
        options["positions"] = vulkan_backend.tensor(positions) if on_device else positions.astype(np.int64)
    rates = np.array(options.get("frequencies", 10000.0 ** (-2 * np.arange(4) / 8)))
    at = options.get("offset", 0) + np.arange(5)[None] if positions is None else positions
    angles = torch.tensor(at[:, None, :, None] * rates * (-1.0 if options.get("reverse") else 1.0))
    check(vulkan_backend, lambda x: F.rope(x, **options),
          lambda x: rotated(x, angles, options.get("interleaved", False), options.get("factor", 1.0)),
          draw(2, 3, 5, 8), dtype=dtype)  # fmt: skip


def test_second_derivatives_of_dropout_and_rope(vulkan_backend):
    with default(vulkan_backend):
        kept = F.dropout(np.ones((5, 8), np.float32), 0.3, seed=11) != 0
    factor = torch.tensor(kept / 0.7)
    angles = torch.tensor(np.arange(5.0)[:, None] * 10000.0 ** (-2 * np.arange(4) / 8))
    check_second(vulkan_backend, lambda x: F.rope(F.dropout(x * x, 0.3, seed=11)) ** 2,
                 lambda x: rotated(x * x * factor, angles, False, 1.0) ** 2, draw(5, 8))  # fmt: skip


# -- convolutions ------------------------------------------------------------------------------------------------------


CONVOLUTIONS = [
    ((2, 3, 9), (4, 3, 3), {}), ((3, 9), (4, 3, 2), {"stride": 2, "padding": 1}),
    ((2, 4, 11), (6, 2, 3), {"groups": 2, "dilation": 2, "padding": "valid"}),
    ((1, 4, 11), (4, 4, 4), {"padding": "same", "dilation": 2}),
    ((2, 3, 6, 7), (5, 3, 3, 2), {}), ((3, 6, 7), (5, 3, 3, 3), {"stride": (2, 1), "padding": (1, 2)}),
    ((2, 4, 7, 7), (4, 1, 3, 3), {"groups": 4, "padding": "same"}),
    ((1, 4, 8, 9), (6, 2, 2, 3), {"groups": 2, "dilation": (2, 1), "stride": 2}),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, *SIXTEEN_BITS])
@pytest.mark.parametrize("shape, kernel, options", CONVOLUTIONS, ids=str)
def test_convolutions(vulkan_backend, shape, kernel, options, dtype):
    own, other = (F.conv1d, T.conv1d) if len(kernel) == 3 else (F.conv2d, T.conv2d)
    check(vulkan_backend, lambda *a: own(*a, **options), lambda *a: other(*a, **options),
          draw(*shape), draw(*kernel), draw(kernel[0]), dtype=dtype, slack=2)  # fmt: skip


@pytest.mark.parametrize("given", ["x", "weight", "bias"])
def test_one_gradient_of_a_convolution(vulkan_backend, given):
    arrays = {"x": draw(2, 3, 6), "weight": draw(4, 3, 3), "bias": draw(4)}
    own = {name: vulkan_backend.tensor(array) for name, array in arrays.items()}
    others = {name: torch.tensor(array.astype(np.float64)) for name, array in arrays.items()}
    check(vulkan_backend, lambda a: F.conv1d(*{**own, given: a}.values()) ** 2,
          lambda a: T.conv1d(*{**others, given: a}.values()) ** 2, arrays[given])  # fmt: skip


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_a_convolution_of_strided_arrays(backend, precision):
    check(backend, lambda x, w: F.conv2d(x, w, padding=1, precision=precision), lambda x, w: T.conv2d(x, w, padding=1),
          draw(2, 3, 5, 6), draw(4, 3, 3, 3), strided=True)  # fmt: skip


# -- attention in steps ------------------------------------------------------------------------------------------------


def for_heads(x, heads):
    return x.repeat_interleave(heads // x.shape[-3], -3) if x.ndim > 2 else x


@pytest.mark.parametrize("dtype", [np.float32, *SIXTEEN_BITS])
@pytest.mark.parametrize("q, k", [((2, 4, 5, 8), (2, 2, 7, 8)), ((3, 5, 8), (1, 7, 8)), ((5, 8), (7, 8))], ids=str)
@pytest.mark.parametrize("scale", [None, 0.5])
def test_scores(vulkan_backend, q, k, scale, dtype):
    factor = 1 / math.sqrt(8) if scale is None else scale
    check(vulkan_backend, lambda q, k: F.attention_scores(q, k, scale=scale),
          lambda q, k: factor * q @ for_heads(k, q.shape[-3] if q.ndim > 2 else 1).mT, draw(*q), draw(*k),
          dtype=dtype)  # fmt: skip


def lower(queries, keys, shift=None):
    """Which keys each query sees."""
    return torch.arange(keys)[None] <= torch.arange(queries)[:, None] + (keys - queries if shift is None else shift)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape, mask", [((2, 3, 5, 6), (2, 1, 5, 6)), ((3, 5, 4), (5, 4)), ((5, 6), (1, 6))], ids=str)
@pytest.mark.parametrize("kind", ["none", "boolean", "added"])
def test_masks(backend, kind, shape, mask, causal):
    """Then softmax, as minus infinity is no number to differentiate."""
    shown = np.random.default_rng(3).random(mask) < 0.7
    shown[..., 0] = True

    def reference(x, *added):
        x = x + added[0] if added else x
        x = torch.where(torch.tensor(shown), x, -torch.inf) if kind == "boolean" else x
        x = torch.where(lower(*x.shape[-2:]), x, -torch.inf) if causal else x
        return torch.nan_to_num(torch.softmax(x, -1))

    def function(x, *added):
        own = added[0] if added else shown if kind == "boolean" else None
        return F.softmax(F.attention_mask(x, mask=own, causal=causal))

    dead = causal and shape[-2] > shape[-1]
    if not dead:  # softmax of nothing is NaN
        check(backend, function, reference, draw(*shape), *([draw(*mask)] if kind == "added" else []))


@pytest.mark.parametrize("architecture", ["generic", "gpt", "t5"])
@pytest.mark.parametrize("dtype", [np.float32, *SIXTEEN_BITS])
@pytest.mark.parametrize("heads", [(4, 2), (3, 3)], ids=str)
def test_outputs(vulkan_backend, architecture, dtype, heads):
    shown = lower(5, 7) if architecture == "gpt" else torch.ones(5, 7, dtype=torch.bool)
    values = draw(2, heads[1], 7, 6).astype(dtype).astype(np.float32)

    def reference(w, v):
        return (w * shown) @ for_heads(v, heads[0])

    def function(w, v):
        return F.attention_output(w, v.astype(dtype, copy=False), architecture=architecture)

    check(vulkan_backend, function, reference, draw(2, heads[0], 5, 7), values, slack=1 if dtype == np.float32 else 300)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("shape, offset", [((2, 3, 5, 9), 2), ((3, 9, 5), 0), ((6, 6), -1)], ids=str)
def test_t5_bias(backend, shape, offset, bidirectional):
    heads = shape[-3] if len(shape) > 2 else 1
    apart = np.arange(shape[-1])[None] - np.arange(shape[-2])[:, None] - offset
    buckets = torch.tensor(grilly.reference.t5_bucket(apart, bidirectional=bidirectional, num_buckets=8,
                                                      max_distance=6).astype(np.int64))  # fmt: skip

    def reference(x, table):
        return x + table[buckets].permute(2, 0, 1).reshape(heads, *shape[-2:])[: shape[-3] if len(shape) > 2 else 1]

    def function(x, table):
        return F.t5_bias(x, table, bidirectional=bidirectional, max_distance=6, offset=offset)

    def squeezed(x, table):
        found = reference(x, table)
        return found if len(shape) > 2 else found[0]

    check(backend, function, squeezed, draw(*shape), draw(8, heads))


def test_dropout_of_weights(backend):
    with default(backend):
        kept = torch.tensor(F.dropout_mask((2, 3, 5, 7), 0.4, 9) / 0.6)
    check(backend, lambda w: F.attention_dropout(w * w, dropout_p=0.4, dropout_seed=9), lambda w: w * w * kept,
          draw(2, 3, 5, 7))  # fmt: skip


def test_attention_in_steps_twice(vulkan_backend):
    """Scores, mask, softmax and output have second derivatives."""

    def function(q, k, v):
        weights = F.softmax(F.attention_mask(F.attention_scores(q, k), causal=True))
        return F.attention_output(weights, v)

    def reference(q, k, v):
        x = torch.where(lower(4, 5), q @ k.mT / math.sqrt(3), -torch.inf)
        return torch.softmax(x, -1) @ v

    check_second(vulkan_backend, function, reference, draw(2, 4, 3), draw(2, 5, 3), draw(2, 5, 2), slack=16)


# -- attention in one kernel -------------------------------------------------------------------------------------------

B, H, Q, K, D = 2, 4, 7, 9, 8


def visible(options, causal, batch=B, queries=Q, keys=K):
    """Which keys are seen, ``(B, 1 or H, Sq, Sk)``, where query 0 stands, and which queries exist."""
    i, j = np.arange(queries)[:, None], np.arange(keys)[None]
    own = np.full(batch, queries) if options.get("seqlens_q") is None else np.array(options["seqlens_q"])
    other = np.full(batch, keys) if options.get("seqlens_k") is None else np.array(options["seqlens_k"])
    shift = (other - own)[:, None, None, None]
    left, right = options.get("window_size") or (None, None)
    right = 0 if causal else right
    seen = np.ones((batch, 1, queries, keys), bool)
    if left is not None:
        seen &= j >= i + shift - left
    if right is not None:
        seen &= j <= i + shift + right
    if options.get("prefix_len") is not None:
        seen |= j < np.array(options["prefix_len"])[:, None, None, None]
    if options.get("segment_ids") is not None:
        a, b = options["segment_ids"]
        seen &= (np.array(a)[:, :, None] == np.array(b)[:, None])[:, None]
    if options.get("block_map") is not None:
        rows, columns = options["block_size"]
        whole = options["block_map"].repeat(rows, 2).repeat(columns, 3)[:, :, :queries, :keys]
        seen = seen & whole
    exists = i < own[:, None, None, None]
    return seen & exists & (j < other[:, None, None, None]), shift, exists


def attended(q, k, v, options, causal=False, scale=None, kept=None, **arrays):
    """Attention and its log-sum-exp by PyTorch; ``arrays``: those of options, and an additive mask."""
    seen, shift, exists = visible(options, causal, q.shape[0], q.shape[2], k.shape[2])
    x = q @ for_heads(k, q.shape[1]).mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    cap = options.get("softcap", 0.0)
    x = cap * torch.tanh(x / cap) if cap else x
    for name in ("attn_bias", "mask"):
        x = x + arrays[name] if name in arrays else x
    apart = torch.tensor(np.arange(k.shape[2])[None] - np.arange(q.shape[2])[:, None] - shift)
    if "alibi_slopes" in arrays:
        x = x - arrays["alibi_slopes"].reshape(-1, q.shape[1], 1, 1) * apart.abs()
    if "t5_table" in arrays:
        buckets = grilly.reference.t5_bucket(apart.numpy(), bidirectional=options.get("t5_bidirectional", True),
                                             num_buckets=8, max_distance=6)  # fmt: skip
        x = x + arrays["t5_table"][torch.tensor(buckets.astype(np.int64))][:, 0].permute(0, 3, 1, 2)
    x = torch.where(torch.tensor(seen), x, -torch.inf)
    sinks = arrays.get("sinks")
    whole = x if sinks is None else torch.cat([x, sinks.reshape(1, -1, 1, 1).expand(*x.shape[:3], 1)], -1)
    most = whole.amax(-1, keepdim=True).detach()
    most = torch.where(torch.isfinite(most), most, 0.0)
    total = torch.exp(whole - most).sum(-1, keepdim=True)
    weights = torch.exp(x - most) / torch.where(total > 0, total, 1.0)
    weights = weights if kept is None else weights * kept
    lse = torch.log(torch.where(total > 0, total, 1.0)) + most
    has_lse = (total > 0) & torch.tensor(exists)
    return weights @ for_heads(v, q.shape[1]), torch.where(has_lse, lse, -torch.inf)[..., 0]


SHAPES = {"attn_bias": (B, 1, Q, K), "mask": (1, H, Q, K), "alibi_slopes": (H,), "t5_table": (8, H), "sinks": (H,)}
SETTINGS = {
    "softcap": {"softcap": 2.5}, "window_size": {"window_size": (4, 1)},
    "segment_ids": {"segment_ids": (np.arange(Q)[None].repeat(B, 0) // 4, np.arange(K)[None].repeat(B, 0) // 5)},
    "prefix_len": {"prefix_len": [2, 3], "window_size": (1, None)},
    "seqlens": {"seqlens_q": [7, 4], "seqlens_k": [8, 9]},
    "block_map": {"block_map": np.random.default_rng(1).random((B, 1, 2, 3)) < 0.6, "block_size": (4, 3)},
    "t5_bidirectional": {"t5_bidirectional": False}, "dropout": {"dropout_p": 0.4, "dropout_seed": 5},
}  # fmt: skip


def attention_case(*, names=(), settings=(), causal=False, kv_heads=H, scale=None, lse=True):
    """function, reference and arrays of a call with these options."""
    options = {}
    for name in settings:
        options.update(SETTINGS[name])
    kept = None
    if "dropout" in settings:
        kept = torch.tensor(F.dropout_mask((B, H, Q, K), 0.4, 5) / 0.6)
    fixed = {"t5_max_distance": 6} if "t5_table" in names else {}

    def function(q, k, v, *more):
        own = dict(zip(names, more, strict=True))
        found = F.flash_attention2(q, k, v, causal=causal, scale=scale, return_lse=lse, **options, **fixed, **own)
        return found

    def reference(q, k, v, *more):
        found = attended(q, k, v, options, causal, scale, kept, **dict(zip(names, more, strict=True)))
        if not lse:
            return found[0]
        return found

    arrays = [draw(B, H, Q, D), draw(B, kv_heads, K, D, seed=1), draw(B, kv_heads, K, 6, seed=2)]
    return function, reference, arrays + [0.5 * draw(*SHAPES[name], seed=3) for name in names]


def check_attention(backend, only=None, dtype=np.float32, strided=False, **case):
    with default(backend):
        function, reference, arrays = attention_case(**case)
    if dtype == np.float32:
        check(backend, function, reference, *arrays, only=only, strided=strided, slack=2)
        return
    names = case.get("names", ())

    def cast(q, k, v, *more):  # the arrays of options are float32
        return function(*(x.astype(dtype) for x in (q, k, v)), *more)

    rounded = [array.astype(dtype).astype(np.float32) for array in arrays[:3]]
    unit = 12 * epsilon(dtype) / (256 * epsilon(np.float32))
    check(backend, cast, reference, *rounded, *arrays[3:], only=only, strided=strided, slack=unit)
    assert len(arrays) == 3 + len(names)


PAIRS = [*itertools.combinations(SHAPES, 2)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("names", [(), *((name,) for name in SHAPES), *PAIRS], ids=str)
def test_arrays_of_attention(vulkan_backend, names, causal):
    check_attention(vulkan_backend, names=names, causal=causal, kv_heads=2 if causal else H)


@pytest.mark.parametrize("name", ["attn_bias", "t5_table", "sinks", "alibi_slopes", "mask"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_options_of_attention_beside_arrays(vulkan_backend, setting, name):
    check_attention(vulkan_backend, names=(name,), settings=(setting,), causal=setting == "prefix_len")


@pytest.mark.parametrize("first, second", [*itertools.combinations([s for s in SETTINGS if s[0] != "t"], 2)])
def test_options_of_attention(vulkan_backend, first, second):
    check_attention(vulkan_backend, settings=(first, second), only=0, scale=0.6)


@pytest.mark.parametrize("lowest", [-np.inf, np.finfo(np.float32).min], ids=["infinity", "lowest"])
@pytest.mark.parametrize("name", ["mask", "attn_bias"])
def test_hidden_keys_and_rows(vulkan_backend, name, lowest):
    """Their gradients are zeros, as their weights are; so are those of a query that sees nothing."""
    added = draw(5, 7)
    added[0, ::2] = added[2, 1] = lowest
    added[3] = -np.inf
    hidden = torch.tensor(added <= -1e30)

    def reference(q, k, v, given):
        x = torch.where(hidden, -torch.inf, q @ k.mT / math.sqrt(8) + given)
        return torch.softmax(torch.where(hidden.all(-1, keepdim=True), 0.0, x), -1) * ~hidden @ v

    plain = np.where(added <= -1e30, 0, added)  # the derivative of torch's where is 0 there
    arrays = [draw(1, 2, n, 8, seed=n) for n in (5, 7, 7)]

    def cotangents(shapes):
        return [draw(*shape, seed=17) for shape in shapes]

    weights, results, expected = exact(reference, [*arrays, plain], cotangents)
    gave, found = gradients(
        vulkan_backend, lambda q, k, v, given: F.flash_attention2(q, k, v, **{name: given}), [*arrays, added], weights
    )
    for one, right in zip([*gave, *found], [*results, *expected], strict=True):
        np.testing.assert_allclose(one, right, rtol=0, atol=2e-5)


def test_options_are_kept_as_they_were(vulkan_backend):
    """Arrays of NumPy's that are written to before gradients are taken."""
    q = [vulkan_backend.tensor(draw(1, 2, 6, 4, seed=n)) for n in range(3)]
    segments, sinks = np.array([[0, 0, 0, 1, 1, 1]]), np.float32([0.5, 1])
    starts = np.array([0, 2, 6])
    packed = [vulkan_backend.tensor(draw(6, 2, 4, seed=n)) for n in range(3)]
    functions = [lambda q, k, v: F.flash_attention2(q, k, v, segment_ids=(segments, segments), sinks=sinks)]
    functions.append(lambda q, k, v: F.flash_attention_varlen(q, k, v, starts, starts, 6, 6, sinks=sinks))
    for function, arrays in zip(functions, (q, packed), strict=True):
        found = []
        for change in (False, True):
            _, pull = grilly.vjp(function, *arrays)
            before = [array.copy() for array in (segments, sinks, starts)]
            if change:
                segments[:], sinks[:], starts[:] = 0, 9, [0, 5, 6]
            found.append([one.numpy() for one in pull(arrays[0])])
            segments[:], sinks[:], starts[:] = before
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("only", [0, 1])
@pytest.mark.parametrize("lse", [False, True])
def test_results_of_attention(backend, only, lse):
    """Gradients by the output alone, and by the log-sum-exp alone."""
    if lse or not only:
        check_attention(backend, names=("sinks",), causal=True, lse=lse, only=only if lse else None)


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
@pytest.mark.parametrize("names", [(), ("attn_bias", "sinks"), ("alibi_slopes",), ("t5_table",)], ids=str)
def test_attention_of_sixteen_bits(vulkan_backend, names, dtype):
    check_attention(vulkan_backend, names=names, causal=True, dtype=dtype, kv_heads=1)


@pytest.mark.parametrize("names", [(), ("attn_bias",)], ids=str)
def test_attention_of_strided_arrays(backend, names):
    check_attention(backend, names=names, strided=True, causal=True)


def test_attention_without_batch(backend):
    def reference(q, k, v):
        return attended(q[None], k[None], v[None], {}, True)[0][0]

    check(backend, lambda q, k, v: F.flash_attention2(q, k, v, causal=True), reference,
          draw(2, 5, 8), draw(2, 7, 8), draw(2, 7, 8))  # fmt: skip


def test_joined_heads(backend):
    def reference(q, k, v):
        q, k, v = (x.reshape(2, -1, heads, 4).transpose(1, 2) for x, heads in ((q, 4), (k, 2), (v, 2)))
        return attended(q, k, v, {}, True)[0].transpose(1, 2).reshape(2, 5, 16)

    check(backend, lambda q, k, v: F.flash_attention3(q, k, v, num_heads=4, num_kv_heads=2, causal=True), reference,
          draw(2, 5, 16), draw(2, 6, 8), draw(2, 6, 8))  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", [5, 8, 3])
@pytest.mark.parametrize("masked", ["no", "boolean", "added"])
def test_scaled_dot_product_attention(vulkan_backend, causal, keys, masked):
    if causal and masked != "no":
        return
    shown = np.random.default_rng(2).random((5, keys)) < 0.7
    shown[:, 0] = True

    def function(q, k, v, *added):
        mask = added[0] if added else shown if masked == "boolean" else None
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)

    def reference(q, k, v, *added):
        mask = added[0] if added else torch.tensor(shown) if masked == "boolean" else None
        return T.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)

    more = [draw(2, 1, 5, keys)] if masked == "added" else []
    check(vulkan_backend, function, reference, draw(2, 3, 5, 8), draw(2, 3, keys, 8), draw(2, 3, keys, 4), *more,
          slack=2)  # fmt: skip


@pytest.mark.parametrize("shapes", [
    ((5, 8), (7, 8), (7, 8)), ((2, 1, 3, 5, 8), (2, 4, 3, 7, 8), (1, 1, 3, 7, 8)), ((2, 3, 5, 8), (7, 8), (7, 8)),
], ids=str)  # fmt: skip
def test_shapes_of_scaled_dot_product_attention(vulkan_backend, shapes):
    check(vulkan_backend, F.scaled_dot_product_attention, T.scaled_dot_product_attention, *drawn(shapes))


@pytest.mark.parametrize("options", [
    {}, {"causal": True, "softcap": 3.0}, {"window_size": (3, 1), "scale": 0.3}, {"sinks": True, "causal": True},
    {"dropout_p": 0.4, "dropout_seed": 3},
], ids=str)  # fmt: skip
def test_packed_sequences(backend, options):
    """Rows after the last sequence have no part in anything."""
    starts_q, starts_k = [0, 3, 3, 8], [0, 5, 7, 13]
    options = dict(options)
    has_sinks = options.pop("sinks", False)
    with default(backend):
        kept = (F.dropout_mask((3, 4, 5, 6), 0.4, 3) / 0.6) if "dropout_p" in options else None

    def function(q, k, v, *sinks):
        return F.flash_attention_varlen(q, k, v, starts_q, starts_k, 5, 6, return_lse=True,
                                        sinks=sinks[0] if sinks else None, **options)  # fmt: skip

    def reference(q, k, v, *sinks):
        parts, sums = [], []
        for n in range(3):
            own = [x[a[n] : a[n + 1]].transpose(0, 1)[None]
                   for x, a in ((q, starts_q), (k, starts_k), (v, starts_k))]  # fmt: skip
            shares = None if kept is None else torch.tensor(kept[n : n + 1, :, : own[0].shape[2], : own[1].shape[2]])
            more = {"sinks": sinks[0]} if sinks else {}
            if own[0].shape[2]:
                o, lse = attended(*own, options, options.get("causal", False), options.get("scale"), shares, **more)
                parts.append(o[0].transpose(0, 1))
                sums.append(lse[0])
        rest = torch.zeros(1, 4, v.shape[-1], dtype=torch.float64)
        return torch.cat([*parts, rest]), torch.cat([*sums, torch.full((4, 1), -torch.inf)], 1)

    arrays = [draw(9, 4, 8), draw(14, 2, 8), draw(14, 2, 6), *([draw(4)] if has_sinks else [])]
    check(backend, function, reference, *arrays, only=0, slack=2)


# -- in another dtype --------------------------------------------------------------------------------------------------


AUTOCAST = {
    "linear": (lambda x, w: F.linear(x, w, activation="silu"), [(5, 6), (4, 6)]),
    "convolution": (lambda x, w: F.conv1d(x, w), [(1, 2, 5), (3, 2, 3)]),
    "attention": (lambda q, k, v: F.flash_attention2(q, k, v, causal=True), [(1, 2, 5, 4)] * 3),
    "slopes": (lambda q, s: F.flash_attention2(q, q, q, alibi_slopes=s), [(1, 2, 5, 4), (2,)]),
    "packed": (lambda q: F.flash_attention_varlen(q, q, q, [0, 2, 5], [0, 2, 5], 3, 3), [(5, 2, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", AUTOCAST)
@pytest.mark.parametrize("backward", [False, True])
def test_autocast(vulkan_backend, name, backward):
    """Gradients of float32 arrays are float32, and near those without; also where the pull runs in the block."""
    function, shapes = AUTOCAST[name]
    arrays = [0.5 * array for array in drawn(shapes)]
    weights = [draw(*function(*map(vulkan_backend.tensor, arrays)).shape, seed=5)]
    with default(vulkan_backend):
        _, right = gradients(vulkan_backend, function, arrays, weights)
        with grilly.autocast("bfloat16"):
            found, pull = grilly.vjp(function, *arrays)
            assert found.dtype.name == "bfloat16"
            pulled = pull(weights[0].astype(found.dtype)) if backward else None
        pulled = pulled or pull(weights[0].astype(found.dtype))
    for one, other in zip(pulled, right, strict=True):
        assert one.dtype == np.float32
        assert np.abs(one.numpy() - other).max() <= 0.1 * np.abs(other).max()


# -- captured ----------------------------------------------------------------------------------------------------------


CAPTURED = {
    "linear": (lambda x, w, b: F.linear(x, w, b, activation="gelu"), [(5, 6), (4, 6), (4,)]),
    "norm": (lambda x, w, b: F.layer_norm(x, 6, w, b) ** 2, [(5, 6), (6,), (6,)]),
    "softmax": (lambda x: F.softmax(x) ** 2, [(5, 6)]),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1) ** 2, [(1, 2, 5, 4), (3, 2, 3, 3)]),
    "loss": (lambda x: F.cross_entropy(x, np.array([1, 0, 3])), [(3, 4)]),
    "embedding": (lambda w: F.embedding(np.array([1, 0, 1]), w) ** 2, [(3, 4)]),
    "rope": (lambda x: F.rope(F.dropout(x, 0.5, seed=3)) ** 2, [(3, 4)]),
    "steps": (lambda q, k: F.softmax(F.attention_mask(F.attention_scores(q, k), causal=True)) ** 2, [(3, 4), (3, 4)]),
    "attention": (lambda q, k, v: F.flash_attention2(q, k, v, causal=True) ** 2, [(1, 2, 5, 4)] * 3),
    "biased": (lambda q, b: F.flash_attention2(q, q, q, attn_bias=b) ** 2, [(1, 2, 5, 4), (5, 5)]),
    "packed": (lambda q: F.flash_attention_varlen(q, q, q, [0, 2, 5], [0, 2, 5], 3, 3) ** 2, [(5, 2, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CAPTURED)
def test_captured(vulkan_backend, name):
    function, shapes = CAPTURED[name]
    check_captured(vulkan_backend, function, *drawn(shapes))


# -- what has no gradient says so --------------------------------------------------------------------------------------


def refused(backend, function, *arrays, match):
    with default(backend), pytest.raises(GradientError, match=match):
        grilly.grad(lambda *given: grilly.sum(function(*given)), tuple(range(len(arrays))))(*arrays)


def test_second_derivatives_that_there_are_not(vulkan_backend):
    """A gradient that is no operation with one raises, and is never zero."""
    q, x, w = draw(1, 2, 5, 4), draw(1, 2, 5), draw(3, 2, 3)

    def twice(function):
        inner = grilly.grad(lambda given: grilly.sum(function(given) ** 2))
        return lambda given: inner(given) ** 2

    refused(vulkan_backend, twice(lambda q: F.flash_attention2(q, q, q)), q, match="attention")
    refused(vulkan_backend, twice(lambda x: F.conv1d(x, w)), x, match="convolution")


def test_a_cache_has_no_gradient(vulkan_backend):
    q, cache = draw(1, 1, 2, 8), draw(1, 6, 2, 8)

    def function(q):
        return F.flash_attention_with_kvcache(q, vulkan_backend.tensor(cache), vulkan_backend.tensor(cache), q, q, [2])

    refused(vulkan_backend, function, q, match="flash_attention_with_kvcache has no gradient")


def test_a_cache_that_a_gradient_depends_on_is_not_written_to(vulkan_backend):
    q = vulkan_backend.tensor(draw(1, 1, 2, 8))

    def function(cache):
        total = grilly.sum(cache * cache)
        F.flash_attention_with_kvcache(q, cache + 0, cache + 0, cache_seqlens=[2])
        return total

    refused(vulkan_backend, function, draw(1, 6, 2, 8), match="flash_attention_with_kvcache has no gradient")

    def other(x, cache):
        read = x * cache
        F.flash_attention_with_kvcache(q, cache, cache, q, q, [2])
        return read

    own = vulkan_backend.tensor(draw(1, 6, 2, 8))
    refused(vulkan_backend, lambda x: other(x, own), draw(1, 6, 2, 8), match="written to in place")


def test_no_gradient_goes_through_a_replay(vulkan_backend):
    """Neither by its arguments nor by what the captured function found."""
    graph = vulkan_backend.capture(lambda x: x * x, vulkan_backend.tensor(draw(3)))
    refused(vulkan_backend, lambda x: x + graph(x), draw(3), match="no gradient goes through a replay")
    refused(vulkan_backend, lambda x: x + graph(draw(3)), draw(3), match="no gradient goes through a replay")


@pytest.mark.needs("onnx")
def test_no_gradient_goes_through_a_model_of_onnx(vulkan_backend):
    helper = pytest.importorskip("onnx").helper
    infos = [helper.make_tensor_value_info(name, 1, [3]) for name in "xy"]
    node = helper.make_node("Relu", ["x"], ["y"])
    model = helper.make_model(helper.make_graph([node], "g", infos[:1], infos[1:]),
                              opset_imports=[helper.make_opsetid("", 22)])  # fmt: skip
    with default(vulkan_backend):
        model = pytest.importorskip("grilly.onnx").Model(model)
    refused(vulkan_backend, lambda x: x * model.run({"x": x})["y"], draw(3), match="onnx.Model.run has no gradient")
    check(vulkan_backend, lambda x: x * model.run({"x": draw(3)})["y"],
          lambda x: x * torch.tensor(np.maximum(draw(3), 0).astype(np.float64)), draw(3))  # fmt: skip


def test_slopes_of_packed_sequences_have_no_gradient(vulkan_backend):
    q = vulkan_backend.tensor(draw(5, 2, 4))

    def function(slopes):
        return F.flash_attention_varlen(q, q, q, [0, 5], [0, 5], 5, 5, alibi_slopes=slopes)

    refused(vulkan_backend, function, draw(2), match="by alibi_slopes")


def test_a_result_on_the_host_has_no_gradient(vulkan_backend):
    q = draw(1, 2, 5, 4)
    refused(vulkan_backend, lambda bias: F.flash_attention2(q, q, q, attn_bias=bias), draw(5, 5), match="NumPy")


def test_what_is_wrong_is_said_as_without_gradients(vulkan_backend):
    with default(vulkan_backend), pytest.raises(ValueError, match=r"linear: residual has shape \(3,\)"):
        grilly.grad(lambda x: F.linear(x, draw(4, 6), residual=draw(3)))(draw(5, 6))
    with default(vulkan_backend), pytest.raises(ValueError, match="alibi_slopes has shape"):
        grilly.grad(lambda s: F.flash_attention2(vulkan_backend.tensor(draw(1, 2, 5, 4)), draw(1, 2, 5, 4),
                                                 draw(1, 2, 5, 4), alibi_slopes=s))(draw(3))  # fmt: skip
