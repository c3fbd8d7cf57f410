"""Attention of PyTorch's tensors under PyTorch's modes: autocast, and derivatives in forward mode."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import grilly
import grilly.functional as F
from grilly import nn

pytestmark = pytest.mark.needs("torch")
if importlib.util.find_spec("torch"):
    import torch

    import grilly.torch as gt


@pytest.fixture
def q(default):
    return torch.randn((1, 2, 5, 8), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "call",
    [
        lambda q: gt.scaled_dot_product_attention(q, q, q), lambda q: gt.attention(q, q, q),
        lambda q: gt.lift(F.softmax)(q),
    ],
    ids=["sdpa", "attention", "lift"],
)  # fmt: skip
def test_there_is_no_forward_mode(q, call):
    """A tangent that is left out would be a derivative of zero."""
    with pytest.raises(NotImplementedError, match=r"forward mode .*reverse mode \(backward, torch.autograd.grad\)"):
        torch.func.jvp(call, (q,), (q,))
    assert call(q).shape == q.shape


@pytest.mark.parametrize("name", ["scaled_dot_product_attention", "attention"])
def test_derivatives_that_there_are_not_are_refused_in_words(q, name):
    call = getattr(gt, name)
    with pytest.raises(NotImplementedError, match=r"a gradient of torch.func .*; use backward or torch.autograd.grad"):
        torch.func.grad(lambda q: call(q, q, q).sum())(q)
    q = q.clone().requires_grad_()
    (first,) = torch.autograd.grad(call(q, q, q).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="no gradients of gradients"):
        torch.autograd.grad(first.sum(), q)
    with pytest.raises(TypeError, match="is on meta, where tensors hold no numbers"):
        call(*3 * [q.detach().to("meta")])


def test_one_call_is_one_call(q):
    with gt.patched() as report:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert str(report) == "1 call by grilly, 0 left to PyTorch"


def test_dtypes_of_pytorch(q):
    """In the place of NumPy's, which have other names for none of ours."""
    layer = nn.Linear(4, 2).to(dtype=torch.float16)
    assert layer.weight.dtype == grilly.zeros((2,), dtype=torch.float16).dtype == np.float16
    assert grilly.asarray(np.ones(2, np.float32)).astype(torch.int32).dtype == np.int32
    assert nn.KVCache(1, 2, 2, 4, dtype=torch.float16).k.dtype == np.float16
    with pytest.raises(TypeError, match="KVCache: dtype is complex64; expected float32"):
        nn.KVCache(1, 2, 2, 4, dtype=torch.complex64)


def test_autocast_is_as_for_pytorchs_own(q):
    mixed = (q, q.bfloat16(), q)
    mask = torch.zeros(5, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = torch.nn.functional.scaled_dot_product_attention(*mixed, attn_mask=mask)
        found = gt.scaled_dot_product_attention(*mixed, attn_mask=mask)
        other = gt.attention(*mixed)
    assert found.dtype == other.dtype == wanted.dtype == torch.bfloat16
    for one in (found, other):
        torch.testing.assert_close(one, wanted, rtol=0.02, atol=0.02)
    with pytest.raises(TypeError, match="one dtype"):
        gt.attention(*mixed)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"key": None}, TypeError, "key is None"), ({"scale": "a"}, TypeError, "scale is 'a'"),
        ({"dropout_p": None}, TypeError, "dropout_p is None"),
    ],
)  # fmt: skip
def test_arguments_of_the_wrong_kind(q, change, error, words):
    with pytest.raises(error, match=words):
        gt.scaled_dot_product_attention(**{"query": q, "key": q, "value": q, **change})


def test_heads_without_columns(q):
    for call in (gt.scaled_dot_product_attention, gt.attention):
        with pytest.raises(ValueError, match="head dimension"):
            call(q[..., :0], q[..., :0], q)


def nested():
    return torch.nested.nested_tensor([torch.randn(2, n, 8) for n in (5, 3)])


def test_nested_tensors(default):
    x = nested()
    for call in (lambda: gt.scaled_dot_product_attention(x, x, x), lambda: gt.functional.softmax(x)):
        with pytest.raises(TypeError, match=r"is nested; .* \(torch.nested.to_padded_tensor\)"):
            call()
    own = torch.nn.functional.scaled_dot_product_attention(x, x, x)
    with gt.patched() as report:
        found = torch.nn.functional.scaled_dot_product_attention(x, x, x)
    assert all(torch.equal(a, b) for a, b in zip(found.unbind(), own.unbind(), strict=True))
    assert report.calls == 0 and dict(report.left) == {"nested tensors": 1}


def test_what_finds_no_room_is_pytorchs(default, monkeypatch):
    x = torch.randn(1, 2, 5, 8)
    monkeypatch.setattr(default, "memory_limit", 1)
    with gt.patched() as report:
        found = torch.nn.functional.scaled_dot_product_attention(x, x, x)
    torch.testing.assert_close(found, torch.nn.functional.scaled_dot_product_attention(x, x, x))
    ((why, count),) = report.left.items()
    assert report.calls == 0 and count == 1 and "free tensors or raise the memory limit" in why


@pytest.mark.parametrize("call", [
    lambda x: gt.functional.softmax(x), lambda x: gt.lift(nn.Softmax(-1))(x), lambda x: gt.to_torch(gt.from_torch(x)),
], ids=["functional", "lift", "copies"])  # fmt: skip
def test_compiled_code_is_interrupted(default, call):
    x = torch.arange(6.0).view(2, 3)
    compiled = torch.compile(lambda x: call(x + 1) * 2, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(x), call(x + 1) * 2)


def test_other_functions_have_no_vmap(default):
    with pytest.raises(NotImplementedError, match=r"softmax: a tensor belongs to a transform of torch.func \(vmap\)"):
        torch.vmap(gt.functional.softmax)(torch.ones(2, 3))
