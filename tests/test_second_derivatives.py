"""Gradients of gradients: against PyTorch's in float64, and of every function that has a first one."""

import inspect
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest

import grilly
import grilly.functional as F
from autograd import check, check_second, draw
from backends import default
from grilly.errors import GradientError

torch = pytest.importorskip("torch")
T = torch.nn.functional

GUIDE = Path(__file__).parents[1] / "docs" / "training.md"


# -- against PyTorch ---------------------------------------------------------------------------------------------------


def torch_quick_gelu(x):
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS = {
    "relu": (F.relu, T.relu), "sigmoid": (F.sigmoid, torch.sigmoid), "tanh": (F.tanh, torch.tanh),
    "silu": (F.silu, T.silu), "quick_gelu": (F.quick_gelu, torch_quick_gelu), "gelu": (F.gelu, T.gelu),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), lambda x: T.gelu(x, approximate="tanh")),
    "hardtanh": (lambda x: F.hardtanh(x, -0.5, 1.5), lambda x: T.hardtanh(x, -0.5, 1.5)), "relu6": (F.relu6, T.relu6),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), lambda x: T.leaky_relu(x, 0.2)),
    # PyTorch's own have no gradient of their gradient.
    "hardsigmoid": (F.hardsigmoid, lambda x: torch.clip(x / 6 + 0.5, 0, 1) + 0 * x * x),
    "hardswish": (F.hardswish, lambda x: torch.where(x <= -3, 0.0, torch.where(x >= 3, x, x * (x + 3) / 6))),
    "hardshrink": (F.hardshrink, T.hardshrink), "softshrink": (F.softshrink, T.softshrink),
    "elu": (lambda x: F.elu(x, 0.7), lambda x: T.elu(x, 0.7)), "selu": (F.selu, T.selu),
    "celu": (lambda x: F.celu(x, 0.6), lambda x: T.celu(x, 0.6)),
    "softplus": (lambda x: F.softplus(x, 1.5, 4.0), lambda x: T.softplus(x, 1.5, 4.0)),
    "logsigmoid": (F.logsigmoid, T.logsigmoid), "softsign": (F.softsign, T.softsign),
    "mish": (F.mish, lambda x: x * torch.tanh(T.softplus(x))),  # PyTorch's gives NaN far from zero
    "tanhshrink": (F.tanhshrink, T.tanhshrink),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(vulkan_backend, name):
    check_second(vulkan_backend, *ACTIVATIONS[name], 2.5 * draw(5, 13))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_far_from_zero(vulkan_backend, name):
    """Where exponentials overflow and vanish, and at infinities, nothing becomes NaN."""
    function, reference = ACTIVATIONS[name]
    x = np.float32([-1e30, -1e3, -150, -90, -25, 25, 90, 150, 1e3, 1e30])

    def bent(function):
        return lambda x: function(x) * 2.0

    check_second(vulkan_backend, bent(function), bent(reference), x)
    with default(vulkan_backend):
        inner = grilly.grad(lambda x: grilly.sum(function(x)))
        found = grilly.grad(lambda x: grilly.sum(inner(x)))(np.float32([-np.inf, np.inf]))
    assert (found.numpy() == 0).all()


GATED = {
    "glu": (F.glu, T.glu, 1), "swiglu": (F.swiglu, lambda x, y: T.silu(x) * y, 2),
    "geglu": (F.geglu, lambda x, y: T.gelu(x) * y, 2),
    "linear": (lambda x, w: F.linear(x, w, activation="silu", gated=True),
               lambda x, w: T.silu((x @ w.T)[:, :4]) * (x @ w.T)[:, 4:], 2),
}  # fmt: skip


@pytest.mark.parametrize("name", GATED)
def test_gated(vulkan_backend, name):
    function, reference, count = GATED[name]
    check_second(vulkan_backend, function, reference, *(draw(8, 8, seed=n) for n in range(count)), slack=8)


@pytest.mark.parametrize("name", ["sigmoid", "gelu", "mish", "elu"])
def test_three_times(vulkan_backend, name):
    """Gradients of gradients have gradients too."""

    def third(grad, total):
        def of(function):
            def once(x):
                return total(function(x))

            def twice(x):
                return total(grad(once)(x) ** 2)

            return lambda x: grad(twice)(x)

        return of

    def grad_of_torch(function):
        return lambda x: torch.autograd.grad(function(x), x, create_graph=True)[0]

    function, reference = ACTIVATIONS[name]
    check(vulkan_backend, third(grilly.grad, grilly.sum)(function), third(grad_of_torch, torch.sum)(reference),
          draw(3, 7), slack=4)  # fmt: skip


def test_both_factors_are_one_array(vulkan_backend):
    """A gradient of an activation that is given x twice."""
    check_second(vulkan_backend, lambda x: F.silu_backward(x, x) + F.swiglu(x, x),
                 lambda x: x * torch.sigmoid(x) * (1 + x * torch.sigmoid(-x)) + T.silu(x) * x, draw(4, 9))  # fmt: skip


#: Options of a convolution: axes, and what conv1d and conv2d take. "depthwise" has as many groups as channels.
SETTINGS = {
    "axes": (1, 2), "stride": (1, 2), "padding": (0, 1, "same"), "dilation": (1, 2), "groups": (1, 2, "depthwise"),
    "bias": (True, False), "batch": (2, None), "fixed": (None, "x", "weight"),
}  # fmt: skip


def pairwise(settings):
    """Cases in which each pair of values of two options is somewhere."""
    names = list(settings)
    missing = {
        ((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in settings[a] for y in settings[b]
    }
    found = []
    every = sorted(itertools.product(*settings.values()), key=repr)
    pairs = {case: {*itertools.combinations(zip(names, case, strict=True), 2)} for case in every}
    while missing:
        counts = [len(pairs[case] & missing) for case in every]
        best = every[counts.index(max(counts))]
        missing -= pairs[best]
        found.append(dict(zip(names, best, strict=True)))
    return found


@pytest.mark.parametrize("case", pairwise(SETTINGS), ids=lambda case: "-".join(map(str, case.values())))
def test_convolutions(vulkan_backend, case):
    axes, groups = case["axes"], 4 if case["groups"] == "depthwise" else case["groups"]
    padding = "valid" if case["padding"] == "same" and case["stride"] > 1 else case["padding"]
    options = {"stride": case["stride"], "padding": padding, "dilation": case["dilation"], "groups": groups}
    lead = () if case["batch"] is None else (case["batch"],)
    arrays = [draw(*lead, 4, *(7, 6)[:axes]), draw(8, 4 // groups, *(3, 2)[:axes], seed=1)]
    arrays += [draw(8, seed=2)] if case["bias"] else []
    at = {None: None, "x": 0, "weight": 1}[case["fixed"]]
    own, other = (F.conv1d, T.conv1d) if axes == 1 else (F.conv2d, T.conv2d)
    constant = None if at is None else torch.tensor(arrays.pop(at).astype(np.float64))

    def full(given, device):
        if constant is None:
            return given
        one = constant.numpy().astype(np.float32) if device else constant
        return (*given[:at], one, *given[at:])

    # squared, so that there is a second derivative by the bias, and where one factor is a constant
    check_second(vulkan_backend, lambda *given: own(*full(given, True), **options) ** 2,
                 lambda *given: other(*full(given, False), **options) ** 2, *arrays, slack=16)  # fmt: skip


#: Options of attention beside which there are gradients of gradients.
ATTENTION = ["causal", "mask", "boolean", "attn_bias", "softcap", "score_mod", "mask_mod", "scale", "grouped", "lse"]


def attention_of_torch(q, k, v, added, names):
    k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], 1) for one in (k, v))
    x = q @ k.mT * (0.7 if "scale" in names else 1 / math.sqrt(q.shape[-1]))
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
    if "score_mod" in names:
        x = x + 0.1 * x * x
    if "softcap" in names:
        x = 1.5 * torch.tanh(x / 1.5)
    for one in added:
        x = x + one
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if "causal" in names:
        seen = seen & (j <= i + k.shape[2] - q.shape[2])
    if "boolean" in names:
        seen = seen & torch.tensor(hidden(q.shape[2], k.shape[2]))
    if "mask_mod" in names:
        seen = seen & ((i + j) % 3 != 0)
    x = torch.where(seen, x, -torch.inf)
    out = torch.softmax(x, -1) @ v
    return out + torch.logsumexp(x, -1)[..., None] if "lse" in names else out


def hidden(queries, keys):
    shown = np.random.default_rng(3).random((queries, keys)) < 0.7
    shown[:, [0, 1]] = True
    return shown


@pytest.mark.parametrize("names", [(), *((n,) for n in ATTENTION), *itertools.combinations(ATTENTION, 2)], ids=str)
def test_attention(vulkan_backend, names):
    if {"mask", "boolean"} <= {*names}:
        pytest.skip("a call has one mask")
    if {"score_mod", "softcap"} <= {*names}:
        pytest.skip("score_mod takes the place of softcap")
    queries, keys, options = 5, 7, {}
    arrays = [draw(2, 4, queries, 8), draw(2, 2 if "grouped" in names else 4, keys, 8, seed=1)]
    arrays.append(draw(*arrays[1].shape[:3], 6, seed=2))
    added = [name for name in ("mask", "attn_bias") if name in names]
    arrays += [draw(queries, keys, seed=3) for _ in added]
    plain = {"causal": True, "softcap": 1.5, "scale": 0.7, "score_mod": lambda x, b, h, i, j: x + 0.1 * x**2,
             "mask_mod": lambda b, h, i, j: (i + j) % 3 != 0}  # fmt: skip
    options = {name: plain[name] for name in names if name in plain}
    if "boolean" in names:
        options["mask"] = vulkan_backend.tensor(hidden(queries, keys))

    def function(q, k, v, *more):
        found, lse = F.flash_attention2(q, k, v, return_lse=True, **options, **dict(zip(added, more, strict=True)))
        return found + lse[..., None] if "lse" in names else found

    check_second(vulkan_backend, function, lambda q, k, v, *more: attention_of_torch(q, k, v, more, names), *arrays,
                 slack=16)  # fmt: skip


# -- every function ----------------------------------------------------------------------------------------------------


def uniform(*shape, seed=0, low=0.203, high=0.795):
    """Numbers that are far enough from each other for differences, and from 0.3, 0.5 and 0.6."""
    numbers = np.random.default_rng([seed, *shape]).permutation(np.linspace(low, high, math.prod(shape)))
    return numbers.reshape(shape).astype(np.float32)


def taken(function):
    """How many arguments a call has to give."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    given = inspect.signature(function).parameters.values()
    return sum(each.default is each.empty and each.kind not in kinds for each in given)


IDS, ENDS = np.array([0, 3, 3, 1]), np.array([0, 2, 5])
X, W, Q = uniform(4, 6), uniform(6, 6, seed=1), uniform(1, 2, 5, 4)
PACKED = uniform(5, 2, 4)


def of_activation(function):
    return (function, [X])


def of_gradient(function):
    return (function, [uniform(4, 6, seed=2), X])


def packed(q):
    return F.flash_attention_varlen(q, q, q, ENDS, ENDS, 3, 3)


def packed_backward(q):
    out, lse = F.flash_attention_varlen(PACKED, PACKED, PACKED, ENDS, ENDS, 3, 3, return_lse=True)
    return F.flash_attention_varlen_backward(q, PACKED, PACKED, PACKED, out, lse, ENDS, ENDS, 3, 3)[0]


def attention_backward(q):
    out, lse = F.flash_attention2(Q, Q, Q, return_lse=True)
    return F.flash_attention2_backward(q, Q, Q, Q, out, lse)[0]


#: Of functional, what is no activation of one array: how it is called, and with which arrays.
FUNCTIONS = {
    "add_layer_norm": (lambda x, w: F.add_layer_norm(x, x * x, 6, w, w)[0], [X, uniform(6)]),
    "add_rms_norm": (lambda x, w: F.add_rms_norm(x, x * x, 6, w)[0], [X, uniform(6)]),
    "attention_dropout": (lambda x: F.attention_dropout(x * x, dropout_p=0.3, dropout_seed=3), [X]),
    "attention_mask": (lambda x: F.attention_mask(x, causal=True)[..., :1] ** 2, [X]),
    "attention_output": (F.attention_output, [uniform(2, 4, 5), uniform(2, 5, 3)]),
    "attention_scores": (F.attention_scores, [uniform(2, 4, 3), uniform(2, 5, 3)]),
    "cascade_attention": (lambda q, k: F.cascade_attention(q, k, k, q, q), [uniform(2, 2, 3, 4), uniform(2, 5, 4)]),
    "conv1d": (F.conv1d, [uniform(2, 3, 6), uniform(4, 3, 3), uniform(4)]),
    "conv1d_backward": (lambda g, x, w: F.conv1d_backward(g, x, w)[1],
                        [uniform(2, 4, 4), uniform(2, 3, 6), uniform(4, 3, 3)]),
    "conv2d": (F.conv2d, [uniform(1, 2, 4, 5), uniform(3, 2, 2, 3)]),
    "conv2d_backward": (lambda g, x, w: F.conv2d_backward(g, x, w)[0],
                        [uniform(1, 3, 3, 3), uniform(1, 2, 4, 5), uniform(3, 2, 2, 3)]),
    "cross_entropy": (lambda x: F.cross_entropy(x, IDS, label_smoothing=0.1), [X]),
    "cross_entropy_backward": (lambda x: F.cross_entropy_backward(np.float32(0.7), x, IDS), [X]),
    "dropout": (lambda x: F.dropout(x * x, 0.3, seed=3), [X]),
    "embedding": (lambda w: F.embedding(IDS, w) ** 2, [X]),
    "embedding_backward": (lambda g: F.embedding_backward(g, IDS, 5) ** 2, [X]),
    "flash_attention": (lambda q: F.flash_attention(q, q, q).output, [uniform(1, 2, 5, 4)]),
    "flash_attention2": (lambda q: F.flash_attention2(q, q, q), [uniform(1, 2, 5, 4)]),
    "flash_attention3": (lambda q: F.flash_attention3(q, q, q), [uniform(1, 2, 5, 4)]),
    "geglu": (F.geglu, [X, uniform(4, 6, seed=1)]),
    "geglu_backward": (lambda g, x: F.geglu_backward(g, x, x * x)[0], [uniform(4, 6, seed=1), X]),
    "gelu": of_activation(F.gelu), "gelu_backward": of_gradient(F.gelu_backward), "glu": of_activation(F.glu),
    "glu_backward": (F.glu_backward, [uniform(4, 3, seed=2), X]),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w), [uniform(2, 4, 3), uniform(4)]),
    "group_norm_backward": (lambda g, x: F.group_norm_backward(g, x, 2)[0],
                            [uniform(2, 4, 3), uniform(2, 4, 3, seed=1)]),
    "layer_norm": (lambda x, w: F.layer_norm(x, 6, w), [X, uniform(6)]),
    "layer_norm_backward": (lambda g, x, w: F.layer_norm_backward(g, x, 6, w)[0], [X, X[::-1].copy(), uniform(6)]),
    "linear": (lambda x, w: F.linear(x, w, activation="gelu", residual=x), [X, W]),
    "linear_backward": (lambda g, x, w: F.linear_backward(g, x, w)[1], [X, X[::-1].copy(), W]),
    "log_softmax": of_activation(F.log_softmax),
    "log_softmax_backward": (lambda g, x: F.log_softmax_backward(g, F.log_softmax(x)), [uniform(4, 6, seed=2), X]),
    "merge_attention": (lambda x, y: F.merge_attention(x, x[..., 0], y, y[..., 1])[0],
                        [uniform(1, 2, 5, 4), uniform(1, 2, 5, 4, seed=1)]),
    "naive_attention": (lambda q: F.naive_attention(q, q, q)[0], [uniform(1, 2, 5, 4)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, 6, w), [X, uniform(6)]),
    "rms_norm_backward": (lambda g, x, w: F.rms_norm_backward(g, x, 6, w)[0], [X, X[::-1].copy(), uniform(6)]),
    "rope": (lambda x: F.rope(x) ** 2, [uniform(3, 4)]),
    "scaled_dot_product_attention": (lambda q: F.scaled_dot_product_attention(q, q, q), [uniform(1, 2, 5, 4)]),
    "softmax": of_activation(F.softmax),
    "softmax_backward": (lambda g, x: F.softmax_backward(g, F.softmax(x)), [uniform(4, 6, seed=2), X]),
    "swiglu": (F.swiglu, [X, uniform(4, 6, seed=1)]),
    "swiglu_backward": (lambda g, x: F.swiglu_backward(g, x, x * x)[1], [uniform(4, 6, seed=1), X]),
    "t5_bias": (lambda x, w: F.t5_bias(x, w) ** 2, [uniform(2, 4, 4), uniform(8, 2)]),
}  # fmt: skip
#: What has a gradient, and none of it.
ONCE = {
    "flash_attention2_backward": (attention_backward, [uniform(1, 2, 5, 4)]),
    "flash_attention_varlen": (packed, [PACKED]),
    "flash_attention_varlen_backward": (packed_backward, [PACKED]),
}
#: What has no gradient at all.
NEVER = {"dropout_mask", "flash_attention_with_kvcache"}
#: Of grilly and grilly.linalg, what is not called with one or two arrays alone.
ARRAYS = {
    "astype": (lambda x: grilly.astype(x, np.float16).astype(np.float32), [X]),
    "broadcast_to": (lambda x: grilly.broadcast_to(x, (3, 4, 6)) ** 2, [X]),
    "checkpoint": (grilly.checkpoint(lambda x: grilly.exp(x)), [X]),
    "cumulative_prod": (lambda x: grilly.cumulative_prod(x, axis=1), [X]),
    "cumulative_sum": (lambda x: grilly.cumulative_sum(x, axis=1) ** 2, [X]),
    "clip": (lambda x: grilly.clip(x, 0.3, 0.6) ** 2, [X]),
    "concat": (lambda x, y: grilly.concat([x * x, y]), [X, W]),
    "elementwise": (grilly.elementwise(lambda x, y: grilly.exp(x) * y), [X, X]),
    "expand_dims": (lambda x: grilly.expand_dims(x) ** 2, [X]), "flip": (lambda x: grilly.flip(x) ** 2, [X]),
    "matmul": (grilly.matmul, [X, W]), "meshgrid": (lambda x: grilly.meshgrid(x, x * x)[0] ** 2, [uniform(3)]),
    "moveaxis": (lambda x: grilly.moveaxis(x, 0, 1) ** 2, [X]),
    "permute_dims": (lambda x: grilly.permute_dims(x, (1, 0)) ** 2, [X]),
    "reduction": (grilly.reduction(lambda x, y: x * x * y, "sum", finish=grilly.sqrt), [X, X]),
    "repeat": (lambda x: grilly.repeat(x, 2) ** 2, [X]), "reshape": (lambda x: grilly.reshape(x, (-1,)) ** 2, [X]),
    "roll": (lambda x: grilly.roll(x, 2) ** 2, [X]), "split": (lambda x: grilly.split(x, 2)[0] ** 2, [X]),
    "squeeze": (lambda x: grilly.squeeze(x[:1], axis=0) ** 2, [X]),
    "stack": (lambda x: grilly.stack([x, x * x]), [X]), "take": (lambda x: grilly.take(x, IDS, axis=0) ** 2, [X]),
    "take_along_axis": (lambda x: grilly.take_along_axis(x, IDS[None], axis=1) ** 2, [X]),
    "tensordot": (lambda x, y: grilly.tensordot(x, y, axes=1), [X, W]),
    "tile": (lambda x: grilly.tile(x, (2, 1)) ** 2, [X]), "topk": (lambda x: grilly.topk(x, 2)[0] ** 2, [X]),
    "unstack": (lambda x: grilly.unstack(x)[1] ** 2, [X]),
    "vecdot": (lambda x: grilly.vecdot(x, x * x), [X]), "where": (lambda x: grilly.where(x > 0.5, x * x, x), [X]),
    "linalg.cross": (lambda x: grilly.linalg.cross(x[:, :3], x[:, 3:]), [X]),
    "linalg.matmul": (grilly.linalg.matmul, [X, W]),
    "linalg.matrix_power": (lambda x: grilly.linalg.matrix_power(x, 3), [W]),
    "linalg.outer": (grilly.linalg.outer, [uniform(3), uniform(4)]),
    "linalg.tensordot": (lambda x, y: grilly.linalg.tensordot(x, y, axes=1), [X, W]),
    "linalg.vecdot": (lambda x: grilly.linalg.vecdot(x, x * x), [X]),
}  # fmt: skip
#: Of grilly: what gives no gradient by its nature, or is no function of arrays.
OTHERS = set(
    "__array_namespace_info__ arange argmax argmin argsort asarray autocast benchmark_flash_attention bitwise_and "
    "bitwise_invert bitwise_left_shift "
    "bitwise_or bitwise_right_shift bitwise_xor block_mask broadcast_arrays can_cast count_nonzero devices empty "
    "empty_like equal eye finfo from_dlpack full full_like grad greater greater_equal iinfo isdtype isfinite isin "
    "isinf isnan less less_equal linspace logical_and logical_not logical_or logical_xor lora manual_seed nextafter "
    "nonzero not_equal ones ones_like quantize result_type searchsorted signbit stop_gradient unique_all unique_counts "
    "unique_inverse unique_values use value_and_grad vjp zeros zeros_like".split()
)
#: Of what is called with one array or two: where it is taken, if not from 0.2 to 0.8.
RANGES = {"acosh": (1.2, 2.0), "pow": (0.4, 1.5)}


def named():
    """All functions by name, as users reach them, with how they are called."""
    for name in F.__all__:
        function = getattr(F, name)
        if name not in {*FUNCTIONS, *ONCE, *NEVER}:
            arrays = taken(function)
            assert arrays == 1 + name.endswith("_backward"), f"say in {__file__} how {name} is called"
            yield name, (of_gradient if arrays == 2 else of_activation)(function)
    yield from FUNCTIONS.items()
    for prefix, home in (("", grilly), ("linalg.", grilly.linalg)):
        for name in home.__all__:
            function, low_high = getattr(home, name), RANGES.get(name, (0.203, 0.795))
            if prefix + name in ARRAYS:
                yield prefix + name, ARRAYS[prefix + name]
            elif inspect.isfunction(function) and name not in OTHERS:
                count = taken(function)
                arrays = [uniform(5, 5, seed=n, low=low_high[0], high=low_high[1]) for n in range(count)]
                yield prefix + name, (lambda *given, function=function: function(*given) ** 2, arrays)
    yield from ((name, case) for name, case in ARRAYS.items() if name in ("checkpoint", "elementwise", "reduction"))


CASES = dict(named())


@pytest.mark.parametrize("name", CASES)
def test_every_function(vulkan_backend, name):
    """The second derivative along a direction is what differences of the first one are."""
    function, arrays = CASES[name]
    along, across = ([np.clip(draw(*array.shape, seed=seed + n), -1, 1) for n, array in enumerate(arrays)]
                     for seed in (20, 40))  # fmt: skip
    numbers = tuple(range(len(arrays)))
    with default(vulkan_backend):
        weight = vulkan_backend.tensor(draw(*function(*map(vulkan_backend.tensor, arrays)).shape, seed=9))

        def slope(*given):
            found = grilly.grad(lambda *inner: grilly.sum(function(*inner) * weight), numbers)(*given)
            return sum(grilly.sum(one * other) for one, other in zip(found, along, strict=True))

        step = 2.0**-8
        ends = [float(slope(*(a + sign * step * d for a, d in zip(arrays, across, strict=True)))) for sign in (1, -1)]
        found = grilly.grad(slope, numbers)(*arrays)
        got = sum(float((one.numpy().astype(np.float64) * d).sum()) for one, d in zip(found, across, strict=True))
        size = sum(float(np.abs(one.numpy() * d).sum()) for one, d in zip(found, across, strict=True))
    expected = (ends[0] - ends[1]) / (2 * step)
    assert abs(got - expected) <= 0.02 * size + 0.02, (got, expected)


@pytest.mark.parametrize("name", ONCE)
def test_what_has_a_first_gradient_alone(vulkan_backend, name):
    """It says so, and what to call in its place."""
    function, arrays = ONCE[name]
    with default(vulkan_backend), pytest.raises(GradientError, match="attention in steps"):
        inner = grilly.grad(lambda x: grilly.sum(function(x) ** 2)) if not name.endswith("_backward") else function
        grilly.grad(lambda x: grilly.sum(inner(x) ** 2))(*arrays)


@pytest.mark.parametrize("by", ["sinks", "score_mod", "grad_lse"])
@pytest.mark.parametrize("packs", [False, True])
def test_gradients_have_none_by_what_stands_beside_their_arrays(vulkan_backend, packs, by):
    """Of the calls for gradients: it is refused, not left out."""
    x = vulkan_backend.tensor(PACKED if packs else PACKED.swapaxes(0, 1)[None])
    forward, backward, places = F.flash_attention2, F.flash_attention2_backward, ()
    if packs:
        forward, backward = F.flash_attention_varlen, F.flash_attention_varlen_backward
        places = (ENDS, ENDS, 3, 3)
    out, lse = forward(x, x, x, *places, return_lse=True)

    def function(given):
        options = {by: given}
        if by == "score_mod":
            options = {by: lambda s, b, h, q, k: s * given[h]}
        return grilly.sum(backward(x, x, x, x, out, lse, *places, **options)[0] ** 2)

    array = np.zeros(lse.shape, np.float32) if by == "grad_lse" else np.float32([0.5, 2])
    with default(vulkan_backend), pytest.raises(GradientError, match="attention in steps"):
        grilly.grad(function)(array)


def test_the_guide_names_them():
    text = GUIDE.read_text(encoding="utf-8")
    there = text[text.index("There is no gradient of the gradient of"):].split("\n\n")[0]
    assert set(re.findall(r"`functional\.(\w+)`", there)) == set(ONCE)


def test_the_guide_names_the_options_of_attention():
    text = GUIDE.read_text(encoding="utf-8")
    there = " ".join(text[text.index("Gradients of gradients"):].split("\n\n")[0].split())
    assert all(f"`{name}`" in there for name in ("mask", "attn_bias", "softcap", "score_mod", "mask_mod", "causal"))


@pytest.mark.parametrize("options", [
    {"window_size": (2, 0)}, {"dropout_p": 0.5, "dropout_seed": 1}, {"sinks": np.float32([0.1, 0.2])},
    {"alibi_slopes": np.float32([0.1, 0.2])},
], ids=str)  # fmt: skip
def test_options_that_have_a_first_gradient_alone(vulkan_backend, options):
    """A gradient through the log-sum-exp as well: it is never left out."""
    for result in (0, 1):
        def function(q, result=result):
            return grilly.sum(F.flash_attention2(q, q, q, return_lse=True, **options)[result] ** 2)

        with default(vulkan_backend), pytest.raises(GradientError, match="attention in steps"):
            grilly.grad(lambda q: grilly.sum(grilly.grad(function)(q) ** 2))(Q)

    def by_lse(c):
        _, pull = grilly.vjp(lambda q: F.flash_attention2(q, q, q, return_lse=True, **options)[1], Q)
        return grilly.sum(pull(c)[0])

    with default(vulkan_backend), pytest.raises(GradientError, match="attention"):
        grilly.grad(by_lse)(Q[..., 0].copy())
