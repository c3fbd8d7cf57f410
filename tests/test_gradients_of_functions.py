"""Gradients of grilly.functional, by the tape, against PyTorch's autograd in float64."""

import numpy as np
import pytest

import grilly
import grilly.functional as F
from autograd import LAYOUTS, check, check_captured, check_second, draw, drawn, gradients
from backends import default
from cases import SIXTEEN_BITS
from grilly.errors import GradientError

torch = pytest.importorskip("torch")
T = torch.nn.functional


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
