"""Gradients of layers: against finite differences in float64, and in training loops."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
from grilly import nn

RNG = np.random.default_rng(0)
#: Random directions in which each gradient is compared.
DIRECTIONS = {"vulkan": 4, "kompute": 1}  # kp takes ten times as long for a small call, and the kernels are the same


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture
def default(backend):
    """Functions and modules run on the backend."""
    former = grilly.use(backend)
    yield backend
    grilly.use(former)


def assert_gradient(loss, array, found, what):
    """Directional derivatives of ``loss`` at ``array``, by central differences of a float32 function.

    Each loss rounds, so the step is large and the loss nearly quadratic over it; the bound is what that leaves.
    """
    found = np.asarray(found, np.float64)
    assert found.shape == array.shape, what
    runtime = grilly.asarray(np.zeros(1, np.float32)).backend.runtime.name
    for _ in range(DIRECTIONS[runtime]):
        way = RNG.standard_normal(array.shape)
        way /= np.linalg.norm(way)
        step = 0.02
        values = [loss((array + n * step * way).astype(np.float32)) for n in (-2, -1, 1, 2)]
        slope = (8 * (values[2] - values[1]) - (values[3] - values[0])) / (12 * step)
        assert abs(slope - (found * way).sum()) <= 2e-3 * (1 + np.linalg.norm(found)), what


def check_module(module, arrays, grad_shape, run=None, inputs=None):
    """Every gradient of ``sum(G module(*arrays))`` against finite differences."""
    weights = RNG.standard_normal(grad_shape)

    def output(*given):
        result = module(*given) if run is None else run(*given)
        return result[0] if isinstance(result, tuple) else result

    def loss(*given):
        return float((output(*given).astype(np.float64) * weights).sum())

    module.train()
    module.zero_grad()
    output(*arrays)
    found = module.backward(weights.astype(np.float32))
    found = found if isinstance(found, tuple) else (found,)
    grads = {name: p.grad for name, p in module.named_parameters()}
    for n, gradient in enumerate(found):
        if gradient is None:
            continue
        assert_gradient(lambda a, n=n: loss(*arrays[:n], a, *arrays[n + 1 :]), arrays[n], gradient, f"input {n}")
    for name, parameter in module.named_parameters():
        value = parameter.numpy()

        def with_value(a, parameter=parameter):
            parameter.data = a
            return loss(*arrays)

        assert_gradient(with_value, value, grads[name], name)
        parameter.data = value


@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7), (7,)])
def test_linear(default, shape):
    module = nn.Linear(7, 4, rng=1)
    check_module(module, (normal(*shape),), (*shape[:-1], 4))
    check_module(nn.Linear(7, 4, bias=False, rng=1), (normal(*shape),), (*shape[:-1], 4))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope(default, interleaved):
    module = nn.RoPE(8, interleaved=interleaved)
    check_module(module, (normal(2, 3, 5, 10),), (2, 3, 5, 10), lambda x: module(x, offset=3))
    positions = np.array([4, 0, 9, 2, 7])
    check_module(module, (normal(2, 5, 8),), (2, 5, 8), lambda x: module(x, positions=positions))


def test_rope_of_two(default):
    module = nn.RoPE(8).train()
    q, k = normal(1, 2, 5, 8), normal(1, 1, 5, 8)
    turned = module(q, k)
    back = module.backward(turned)  # a turn back undoes the turn
    for array, other in zip(back, (q, k), strict=True):
        np.testing.assert_allclose(array, other, atol=2e-6)


@pytest.mark.parametrize("kind", [nn.FlashAttention2, nn.FlashAttention3])
@pytest.mark.parametrize("layout", ["joined", "split", "single"])
def test_flash_attention(default, kind, layout):
    module = kind(12, 3, causal=True)
    if layout == "joined":
        arrays = normal(2, 6, 12), normal(2, 8, 4), normal(2, 8, 5)
        shape = (2, 6, 15)
    elif layout == "split":
        arrays = normal(2, 3, 6, 4), normal(2, 1, 8, 4), normal(2, 1, 8, 5)
        shape = (2, 3, 6, 5)
    else:
        arrays = normal(6, 12), normal(8, 12), normal(8, 12)
        shape = (6, 12)
    check_module(module, arrays, shape)


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("shared", [False, True])
def test_flash_attention_of_split_heads(default, flash, shared):
    """With a mask, a bias whose gradient is found too, one key head for all or three axes, and dropout."""
    module = nn.FlashAttention(causal=True, dropout=0.3, flash=flash)
    keys = (2, 8, 4) if shared else (2, 2, 8, 4)
    arrays = normal(2, 4, 6, 4), normal(*keys), normal(*keys), normal(1, 4, 6, 8)
    mask = RNG.random((2, 8)) < 0.8

    def run(q, k, v, bias):
        grilly.manual_seed(5)  # the same weights are dropped at every call
        return module(q, k, v, mask=mask, attn_bias=bias)

    check_module(module, arrays, (2, 4, 6, 4), run)
    module(*arrays[:3])
    assert len(module.backward(normal(2, 4, 6, 4))) == 3
    with pytest.raises(RuntimeError, match="train"):
        module.backward(normal(2, 4, 6, 4))
    with pytest.raises(ValueError, match="grad_output has shape"):
        module(*arrays[:3])
        module.backward(normal(2, 4, 6, 5))


@pytest.mark.parametrize("options", [
    {}, {"bias": False}, {"causal": True}, {"architecture": "gpt"}, {"kdim": 5, "vdim": 7},
    {"architecture": "t5", "head_dim": 3}, {"architecture": "t5", "bidirectional": False},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("need_weights", [False, True])
def test_multihead(default, options, need_weights):
    module = nn.MultiheadAttention(12, 3, rng=3, **options)
    keys = 6 if options.get("architecture") == "t5" else 8
    arrays = normal(2, 6, 12), normal(2, keys, module.kdim), normal(2, keys, module.vdim)
    mask = RNG.random((6, keys)) < 0.8
    check_module(module, arrays, (2, 6, 12), lambda *a: module(*a, mask=mask, need_weights=need_weights))


@pytest.mark.parametrize("architecture", ["generic", "t5"])
@pytest.mark.parametrize("count", [1, 2])
def test_inputs_that_are_left_out(default, architecture, count):
    """Their gradients are part of what stands for them."""
    module = nn.MultiheadAttention(12, 3, architecture=architecture, rng=3)
    arrays = [normal(2, 6, 12) for _ in range(count)]
    check_module(module, arrays, (2, 6, 12))
    module(*arrays)
    found = module.backward(normal(2, 6, 12))
    assert [array is None for array in found] == [n >= count for n in range(3)]


def test_position_bias_has_a_gradient(default):
    module = nn.MultiheadAttention(12, 3, architecture="t5", relative_attention_bias=False, rng=3).train()
    x, bias, weights = normal(2, 6, 12), normal(1, 3, 6, 6), normal(2, 6, 12)
    module(x, position_bias=bias)
    module.backward(weights)

    def loss(b):
        return float((module(x, position_bias=b)[0].astype(np.float64) * weights).sum())

    found = module.position_bias_grad
    assert_gradient(loss, bias, found, "position_bias")


def test_tensors_and_single_rows(default):
    module = nn.MultiheadAttention(12, 3, rng=3).train()
    x, grad = normal(6, 12), normal(6, 12)
    module(x)
    want = module.backward(grad)[0]
    module(default.tensor(x))
    got = module.backward(default.tensor(grad))[0]
    assert isinstance(got, grilly.Tensor) and want.shape == (6, 12)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)


def test_what_is_kept(default):
    """Nothing before train(); one forward after it; nothing after eval()."""
    module, x = nn.Linear(3, 2, rng=0), normal(4, 3)
    module(x)
    with pytest.raises(RuntimeError, match="train"):
        module.backward(normal(4, 2))
    module.train()
    module(x)
    module.backward(normal(4, 2))
    with pytest.raises(RuntimeError, match="forward"):
        module.backward(normal(4, 2))
    module(x)
    module.eval()
    with pytest.raises(RuntimeError, match="train"):
        module.backward(normal(4, 2))


def test_gradients_add_up(default):
    module, x, grad = nn.Linear(3, 2, rng=0).train(), normal(4, 3), normal(4, 2)
    module(x)
    module.backward(grad)
    once = module.weight.grad
    module(x)
    module.backward(grad)
    np.testing.assert_allclose(module.weight.grad, 2 * once, rtol=1e-6)
    module.zero_grad()
    assert module.weight.grad is None and module.bias.grad is None


class Block(nn.Module):
    """Attention with rotary positions between two projections, all by hand."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.inner = nn.Linear(width, 3 * width, rng=5)
        self.rope = nn.RoPE(width // heads)
        self.attend = nn.FlashAttention2(width, heads, causal=True)
        self.outer = nn.Linear(width, width, rng=6)

    def _split(self, a):
        return np.ascontiguousarray(a.reshape(*a.shape[:2], self.heads, -1).transpose(0, 2, 1, 3))

    def _join(self, a):
        return a.transpose(0, 2, 1, 3).reshape(a.shape[0], a.shape[2], -1)

    def forward(self, x):
        q, k, v = (self._split(a) for a in np.split(self.inner(x), 3, -1))
        return x + self.outer(self._join(self.attend(*self.rope(q, k), v)))

    def backward(self, grad_output):
        dq, dk, dv = self.attend.backward(self._split(self.outer.backward(grad_output)))
        grads = [self._join(a) for a in (*self.rope.backward((dq, dk)), dv)]
        return grad_output + self.inner.backward(np.concatenate(grads, -1))


def test_a_block_trains(default):
    """Every gradient is right, and following them makes the loss a tenth of what it was."""
    block = Block(16, 2)
    x = normal(2, 9, 16)
    check_module(block, (x,), (2, 9, 16))
    target = np.roll(x, 1, axis=1)  # each position is to say what stood before it
    target[:, 0] = 0
    block.train()
    losses = []
    state = {name: [0.0, 0.0] for name, _ in block.named_parameters()}
    for step in range(1, 121):
        y = block(x)
        losses.append(float(((y - target) ** 2).mean()))
        block.zero_grad()
        block.backward(2 * (y - target) / y.size)
        for name, p in block.named_parameters():  # Adam (Kingma and Ba 2015)
            moments = state[name]
            moments[0] = 0.9 * moments[0] + 0.1 * p.grad
            moments[1] = 0.99 * moments[1] + 0.01 * p.grad**2
            rate = 0.02 * np.sqrt(1 - 0.99**step) / (1 - 0.9**step)
            p.data = (p.numpy() - rate * moments[0] / (np.sqrt(moments[1]) + 1e-8)).astype(np.float32)
    assert losses[-1] < losses[0] / 10, losses[::20]
