"""Convolutions and their gradients, against float64."""


import numpy as np
import pytest

import grilly
import grilly.functional as F
from cases import DTYPES, epsilon
from grilly import nn, reference

UNIT = 2.0**-24


def draw(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def close(found, exact, sizes, terms, dtype, roundings=0):
    """Within what sums of so many terms, of magnitudes that add up to ``sizes``, may err by in any order; 16-bit types
    are rounded at the end, and ``roundings`` times before."""
    assert found.shape == exact.shape and found.dtype == dtype
    bound = (terms + 4) * UNIT * sizes
    if found.dtype != np.float32:
        bound = bound + epsilon(dtype) / 2 * (np.abs(exact) + roundings * sizes) + 2.0**-24
    error = np.abs(found.astype(np.float64) - exact)
    assert (error <= bound).all(), (error / np.maximum(bound, 1e-300)).max()


def check(call, gradients, axes, x, w, b, *options, send=lambda a: a, high=False, parts=False):
    """Forward and backward of arrays that ``send`` brings to the device; ``parts``: in several dispatches."""
    twin, back = (reference.conv1d, reference.conv1d_backward) if axes == 1 else (
        reference.conv2d, reference.conv2d_backward)  # fmt: skip
    more = {"precision": "high"} if high else {}
    scale = 16 if high else 1  # two parts of 11 bits each: 2^-20 of the terms
    exact = twin(x, w, b, *options, dtype=np.float64)
    whole = [np.abs(a.astype(np.float64)) for a in (x, w)]
    sizes = twin(*whole, None if b is None else np.abs(b.astype(np.float64)), *options)
    depth = int(np.prod(w.shape[1:]))
    y = call(send(x), send(w), None if b is None else send(b), *options, **more)
    before = int(len(options) > 3 and options[3] > 1 and b is not None)  # with groups the bias comes after a rounding
    close(np.asarray(y), exact, scale * sizes, depth, x.dtype, before)
    grad = draw(*exact.shape, seed=9, dtype=x.dtype)
    exact = back(grad, x, w, *options, dtype=np.float64)
    sizes = back(np.abs(grad.astype(np.float64)), *whole, *options)
    found = gradients(send(grad), send(x), send(w), *options, **more)
    count = grad.size // max(w.shape[0], 1)
    each = zip(found, exact, sizes, (w.size, count, count), (1, int(parts), 0), strict=True)
    for one, right, size, terms, roundings in each:
        close(np.asarray(one), right, scale * size, terms, x.dtype, roundings)
    return y


# (N, C, H, W), O, kernel, (stride, padding, dilation, groups)
CASES = [
    ((2, 3, 9, 11), 5, (3, 3), (1, 1)),
    ((1, 4, 8, 8), 6, (2, 3), ((2, 1), (0, 2), (2, 1), 2)),
    ((2, 6, 5, 7), 6, (3, 3), (1, "same", 2, 6)),
    ((2, 2, 7, 6), 3, (2, 4), (1, "same")),
    ((3, 8, 16, 16), 12, (4, 4), (4,)),
    ((2, 5, 6, 6), 7, (1, 1), (2,)),
    ((1, 1, 1, 1), 1, (1, 1), ()),
    ((2, 3, 5, 5), 2, (5, 5), (3, 4)),
    ((2, 4, 13, 3), 8, (3, 1), ((3, 2), (2, 0), (2, 1), 4)),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_axes(vulkan_backend, dtype):
    for shape, outputs, kernel, options in CASES if dtype == np.float32 else CASES[:4]:
        groups = options[3] if len(options) > 3 else 1
        x, w = draw(*shape, dtype=dtype), draw(outputs, shape[1] // groups, *kernel, seed=1, dtype=dtype)
        check(F.conv2d, F.conv2d_backward, 2, x, w, draw(outputs, seed=2, dtype=dtype), *options,
              send=vulkan_backend.tensor)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_axis(vulkan_backend, dtype):
    """Shapes of speech models' first layers, small, and odd ones."""
    for shape, outputs, kernel, options in (
        ((2, 80, 50), 24, 3, (1, 1)), ((1, 24, 51), 16, 3, (2, 1)), ((3, 5, 17), 4, 5, (3, 2, 2)),
        ((2, 6, 9), 6, 3, (1, "same", 1, 3)), ((4, 7), 3, 2, ()), ((2, 3, 4), 2, 1, (1, "valid")),
    ):  # fmt: skip
        groups = options[3] if len(options) > 3 else 1
        x, w = draw(*shape, dtype=dtype), draw(outputs, shape[-2] // groups, kernel, seed=1, dtype=dtype)
        check(F.conv1d, F.conv1d_backward, 1, x, w, None, *options, send=vulkan_backend.tensor)


def test_both_runtimes_and_arrays(backend):
    x, w, b = draw(2, 3, 9, 11), draw(5, 3, 3, 3), draw(5)
    check(F.conv2d, F.conv2d_backward, 2, x, w, b, 2, 1, send=backend.tensor)
    former = grilly.use(backend)
    found = check(F.conv2d, F.conv2d_backward, 2, x, w, b, 2, 1)
    grilly.use(former)
    assert isinstance(found, np.ndarray)


def test_high_precision(vulkan_backend):
    check(F.conv2d, F.conv2d_backward, 2, draw(2, 8, 12, 12), draw(16, 8, 3, 3), draw(16), 1, 1,
          send=vulkan_backend.tensor, high=True)  # fmt: skip


def test_patches(vulkan_backend):
    """What a vision transformer begins with: the tokens lie as the next layer takes them."""
    x, w, b = draw(2, 3, 32, 48), draw(20, 3, 16, 16), draw(20)
    y = F.conv2d(vulkan_backend.tensor(x), w, b, 16)
    tokens = y.reshape(2, 20, 6).transpose(0, 2, 1)
    assert tokens.is_contiguous
    exact = reference.conv2d(x, w, b, 16, dtype=np.float64).reshape(2, 20, 6).transpose(0, 2, 1)
    np.testing.assert_allclose(tokens.numpy(), exact, rtol=0, atol=1e-4)


def test_a_window_that_does_not_fit(vulkan_backend, monkeypatch):
    monkeypatch.setattr(vulkan_backend, "memory_limit", 200)
    with pytest.raises(grilly.UnsupportedError, match="a window of 72 elements is larger than 50 bytes"):
        F.conv2d(vulkan_backend.tensor(draw(1, 8, 4, 4)), draw(40, 8, 3, 3))


def test_nothing(vulkan_backend):
    w = draw(5, 3, 2, 2)
    assert F.conv2d(np.zeros((0, 3, 4, 4), np.float32), w).shape == (0, 5, 3, 3)
    assert F.conv2d(draw(2, 3, 4, 4), w[:0]).shape == (2, 0, 3, 3)
    dx, dw, db = F.conv2d_backward(np.zeros((0, 5, 3, 3), np.float32), np.zeros((0, 3, 4, 4), np.float32), w)
    assert dx.shape == (0, 3, 4, 4) and not dw.any() and dw.shape == w.shape and db.shape == (5,)


def test_capture(vulkan_backend):
    w, b = (vulkan_backend.tensor(a) for a in (draw(6, 4, 3), draw(6)))

    def step(x):
        y = F.conv1d(x, w, b, 2, 1)
        return y, *F.conv1d_backward(y, x, w, 2, 1)

    graph = vulkan_backend.capture(step, draw(2, 4, 15))
    for seed in (1, 2):
        x = draw(2, 4, 15, seed=seed)
        for found, own in zip(graph(x), step(vulkan_backend.tensor(x)), strict=True):
            np.testing.assert_array_equal(found.numpy(), own.numpy())


# -- layers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, shape", [(nn.Conv1d, (2, 4, 13)), (nn.Conv2d, (2, 4, 7, 9))])
def test_layers(vulkan_backend, kind, shape):
    layer = kind(4, 6, 3, stride=2, padding=1, groups=2, rng=0).to(vulkan_backend).train()
    twin, back = (reference.conv1d, reference.conv1d_backward) if kind is nn.Conv1d else (
        reference.conv2d, reference.conv2d_backward)  # fmt: skip
    x = draw(*shape)
    w, b = layer.weight.numpy(), layer.bias.numpy()
    assert w.shape == (6, 2, *(3,) * (len(shape) - 2)) and list(layer.state_dict()) == ["weight", "bias"]
    assert np.abs(w).max() <= 1 / np.sqrt(w[0].size) and np.abs(w).max() > 0.5 / np.sqrt(w[0].size)
    y = layer(x)
    assert isinstance(y, np.ndarray)
    np.testing.assert_allclose(y, twin(x, w, b, 2, 1, 1, 2, dtype=np.float64), rtol=0, atol=1e-5)
    grad = draw(*y.shape, seed=1)
    dx, dw, db = back(grad, x, w, 2, 1, 1, 2, dtype=np.float64)
    np.testing.assert_allclose(layer.backward(grad), dx, rtol=0, atol=1e-5)
    np.testing.assert_allclose(layer.weight.grad, dw, rtol=0, atol=5e-5)
    np.testing.assert_allclose(layer.bias.grad, db, rtol=0, atol=5e-5)
    tensor = layer(vulkan_backend.tensor(x))
    assert isinstance(tensor, grilly.Tensor) and isinstance(layer.backward(vulkan_backend.tensor(grad)), grilly.Tensor)
    with pytest.raises(RuntimeError, match="backward: no forward"):
        layer.backward(grad)
    two = "(2,)" if kind is nn.Conv1d else "(2, 2)"
    three, one = two.replace("2", "3"), two.replace("2", "1")
    assert f"(4, 6, kernel_size={three}, stride={two}, padding={one}, groups=2)" in repr(layer)
    plain = kind(4, 6, 3, padding="same", bias=False)
    assert list(plain.state_dict()) == ["weight"] and plain(x).shape == (2, 6, *shape[2:])
    assert "padding='same', bias=False" in repr(plain)


# -- what is refused --------------------------------------------------------------------------------------------------

X, W = np.zeros((2, 4, 8, 8), np.float32), np.zeros((6, 4, 3, 3), np.float32)


@pytest.mark.parametrize(
    "error, match, call",
    [
        (TypeError, "conv2d: input is float64", lambda: F.conv2d(X.astype(np.float64), W)),
        (TypeError, "weight is float16 and input is float32", lambda: F.conv2d(X, W.astype(np.float16))),
        (ValueError, r"input has shape \(8, 8\); expected \(N, C, H, W\) or \(C, H, W\)", lambda: F.conv2d(X[0, 0], W)),
        (ValueError, r"weight has shape \(4, 3, 3\); expected \(O, C / groups, kh, kw\)", lambda: F.conv2d(X, W[0])),
        (ValueError, "input has 4 channels .* in 2 groups; expected 8", lambda: F.conv2d(X, W, groups=2)),
        (ValueError, "4 groups do not divide", lambda: F.conv2d(X, W[:, :1], groups=4)),
        (ValueError, r"bias has shape \(4,\); expected \(6,\)", lambda: F.conv2d(X, W, np.zeros(4, np.float32))),
        (ValueError, "stride is 0; expected 1 or more", lambda: F.conv2d(X, W, None, 0)),
        (ValueError, r"stride is 8589934592; expected less than 2\*\*31", lambda: F.conv2d(X, W, None, 2**33)),
        (ValueError, r"stride is \(1, 1, 1\); expected a number or 2", lambda: F.conv2d(X, W, None, (1, 1, 1))),
        (TypeError, "dilation is 0.5; expected an integer", lambda: F.conv2d(X, W, dilation=0.5)),
        (TypeError, "stride is 1.0; expected an integer", lambda: F.conv2d(X, W, None, np.array([1, 1.5]))),
        (ValueError, "padding is 'full'", lambda: F.conv2d(X, W, padding="full")),
        (ValueError, "padding 'same' with stride", lambda: F.conv2d(X, W, None, 2, "same")),
        (ValueError, "padding is -1; expected 0", lambda: F.conv2d(X, W, padding=-1)),
        (ValueError, r"smaller than the kernel's reach \(9, 9\)", lambda: F.conv2d(X, W, dilation=4)),
        (ValueError, "precision is 'low'", lambda: F.conv2d(X, W, precision="low")),
        (ValueError, r"conv1d: input has shape \(2, 4, 8, 8\)", lambda: F.conv1d(X, W)),
        (ValueError, r"grad_output has shape \(2, 4, 8, 8\); expected the output's, \(2, 6, 6, 6\)",
         lambda: F.conv2d_backward(X, X, W)),
        (ValueError, "Conv2d: 4 and 6 channels are not divided by 4", lambda: nn.Conv2d(4, 6, 3, groups=4)),
        (ValueError, "padding_mode is 'reflect'", lambda: nn.Conv1d(4, 6, 3, padding_mode="reflect")),
        (ValueError, "kernel_size is 0", lambda: nn.Conv1d(4, 6, 0)),
        (ValueError, "padding 'same' with stride", lambda: nn.Conv1d(4, 6, 3, 2, "same")),
    ],
)  # fmt: skip
def test_what_is_refused(error, match, call):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize("kind", [list, np.array], ids=["list", "array"])
def test_numbers_of_axes_may_be_lists_and_arrays(default, kind):
    both = kind([2, 1])
    sent = default.tensor(X), default.tensor(W)
    want = F.conv2d(X, W, stride=(2, 1), padding=(2, 1), dilation=(2, 1))
    for _ in range(2):  # the second is found again
        got = F.conv2d(*sent, stride=both, padding=both, dilation=both)
        np.testing.assert_array_equal(got.numpy(), want)


# (N, C, H, W), O, kernel, (stride, padding, dilation, groups): groups of few channels, and few outputs
FEW = [
    ((2, 8, 9, 13), 8, (3, 3), (1, 1, 1, 8)),
    ((1, 7, 9, 13), 7, (5, 3), ((2, 1), (0, 2), (1, 2), 7)),  # no fours of channels
    ((1, 12, 9, 13), 12, (3, 5), ((2, 2), (1, 2), 1, 12)),
    ((1, 6, 6, 7), 12, (3, 3), (1, 1, 1, 6)),  # two outputs a channel
    ((1, 3, 6, 7), 12, (3, 3), (2, 1, 1, 3)),
    ((1, 12, 6, 7), 3, (3, 3), (1, 1, 2, 3)),
    ((1, 8, 6, 7), 8, (3, 3), (1, 1, 1, 2)),
    ((2, 8, 9, 13), 1, (3, 3), (2, 1)),
    ((1, 5, 9, 13), 3, (3, 3), (1, 2, 2)),
    ((1, 4, 1, 50), 4, (1, 31), (1, (0, 15), 1, 4)),  # taps in parts that do not divide them
    ((1, 4, 3, 50), 4, (1, 4), (1, (0, 30), (1, 9), 4)),  # taps far apart
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_groups_of_few_channels_and_few_outputs(vulkan_backend, dtype):
    for number, (shape, outputs, kernel, options) in enumerate(FEW if dtype == np.float32 else FEW[:8:3]):
        groups = options[3] if len(options) > 3 else 1
        x, w = draw(*shape, dtype=dtype), draw(outputs, shape[1] // groups, *kernel, seed=1, dtype=dtype)
        b = draw(outputs, seed=2, dtype=dtype)
        exact = reference.conv2d(x, w, b, *options, dtype=np.float64)
        sizes = reference.conv2d(*(np.abs(a.astype(np.float64)) for a in (x, w, b)), *options)
        tensor = vulkan_backend.tensor(x)
        if number % 2:  # channels last
            tensor = tensor.transpose(0, 2, 3, 1).contiguous().transpose(0, 3, 1, 2)
        close(F.conv2d(tensor, w, b, *options).numpy(), exact, sizes, w[0].size, dtype)


def test_few_channels_of_views_in_one_axis_and_both_runtimes(backend):
    def view(a):
        return a.transpose(0, 2, 1)[1:, 2:, ::2]  # (2, 39, 5)

    x = draw(3, 10, 41)
    for w in (draw(39, 1, 3, seed=1), draw(4, 39, 3, seed=2)):
        groups = 39 // w.shape[1]
        exact = reference.conv1d(view(x), w, None, 1, 1, 1, groups, dtype=np.float64)
        found = F.conv1d(view(backend.tensor(x)), w, None, 1, 1, 1, groups).numpy()
        np.testing.assert_allclose(found, exact, rtol=0, atol=2e-5)
    assert F.conv1d(backend.tensor(x)[:0], draw(10, 1, 3), None, 1, 1, 1, 10).shape == (0, 10, 41)


def test_what_lies_outside_is_not_read_into_a_sum(vulkan_backend):
    """What a window has beyond an image counts as 0, also where the image begins with NaN."""
    x, w = np.ones((1, 4, 5, 9), np.float32), np.ones((4, 1, 3, 3), np.float32)
    x[0, :, 0, 0] = np.nan
    found = F.conv2d(vulkan_backend.tensor(x), w, None, 1, 1, 1, 4).numpy()
    assert np.isnan(found[0, :, :2, :2]).all() and np.isnan(found).sum() == 16
    found = F.conv2d(vulkan_backend.tensor(x), np.ones((2, 4, 3, 3), np.float32), None, 1, 1).numpy()
    assert np.isnan(found[0, :, :2, :2]).all() and np.isnan(found).sum() == 8
