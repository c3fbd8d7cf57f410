"""grilly.torch.flex_attention, beside PyTorch's own in float64; and its gradients."""

from __future__ import annotations

import importlib.util
import math
import warnings

import pytest

import grilly

pytestmark = pytest.mark.needs("torch")
if importlib.util.find_spec("torch"):
    import torch
    from torch.nn.attention.flex_attention import BlockMask, and_masks, create_block_mask, flex_attention, or_masks

    import grilly.torch

    own = grilly.torch.flex_attention
    GENERATOR = torch.Generator().manual_seed(0)
    SLOPES = torch.tensor([0.1, 0.2, 0.3, 0.4])
    DOCUMENTS = torch.randint(0, 3, (2, 90), generator=GENERATOR)
    TABLE = torch.randn(4, 161, generator=GENERATOR)


@pytest.fixture(autouse=True)
def chosen(vulkan_backend):
    former = grilly.use(vulkan_backend)
    yield vulkan_backend
    grilly.use(former)


def alibi(score, b, h, q, k):
    return score - SLOPES[h] * (q - k).abs()


def soft_cap(score, b, h, q, k):
    return 2 * torch.tanh(score / 2)


def relative(score, b, h, q, k):
    return score + TABLE[h, torch.clamp(q - k, -80, max=80) + 80].to(score.dtype)


def hiding(score, b, h, q, k):
    return torch.where(q >= k, score, -float("inf"))


def many_operations(score, b, h, q, k):
    near = torch.exp(-(torch.sub(q, k).float() / 16) ** 2)
    far = score.clamp(min=-1) + k // 7 - SLOPES[0]
    return torch.where(torch.logical_or(b == 0, h % 2 == 1), score * near.sqrt(), far)


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return (q - k < 20) & ~(k > q)


def documents(b, h, q, k):
    return DOCUMENTS[b, q] == DOCUMENTS[b, k]


def tensors(queries=70, keys=90, dim=16, dtype=None, heads=(4, 2)):
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, heads[0], queries, dim), (2, heads[1], keys, dim), (2, heads[1], keys, dim))
    return [torch.randn(shape, generator=generator).to(dtype or torch.float32) for shape in shapes]


def pytorch(*arrays, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would rather be compiled
        return flex_attention(*(array.double() for array in arrays), **options)


def block_mask(mask_mod, queries=70, keys=90, batch=None, heads=None, size=32):
    return create_block_mask(mask_mod, batch, heads, queries, keys, device="cpu", BLOCK_SIZE=size)


FUNCTIONS = ["alibi", "soft_cap", "relative", "hiding", "many_operations"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_score_functions(name):
    arrays, function = tensors(), globals()[name]
    out, lse = own(*arrays, score_mod=function, enable_gqa=True, return_lse=True)
    want, want_lse = pytorch(*arrays, score_mod=function, enable_gqa=True, return_lse=True)
    torch.testing.assert_close(out.double(), want, atol=3e-6, rtol=0)
    torch.testing.assert_close(lse.double(), want_lse, atol=3e-6, rtol=0)


MASKS = {
    "causal": lambda: block_mask(causal),
    "window": lambda: block_mask(window, size=128),
    "documents": lambda: block_mask(and_masks(causal, documents), batch=2),
    "either": lambda: block_mask(or_masks(window, documents), batch=2, heads=4),
    "nothing": lambda: block_mask(lambda b, h, q, k: (q > 40) & (k < 0)),
}


@pytest.mark.parametrize("name", MASKS)
def test_block_masks(name):
    arrays, mask = tensors(), MASKS[name]()
    out, lse = own(*arrays, block_mask=mask, scale=0.4, enable_gqa=True, return_lse=True)
    want, want_lse = pytorch(*arrays, block_mask=mask, scale=0.4, enable_gqa=True, return_lse=True)
    torch.testing.assert_close(out.double(), want, atol=3e-6, rtol=0)
    torch.testing.assert_close(lse.double(), want_lse, atol=3e-6, rtol=0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits(dtype):
    arrays = tensors(33, 90, 24, getattr(torch, dtype), (4, 4))
    mask = block_mask(causal, 33, 90)
    out = own(*arrays, score_mod=alibi, block_mask=mask)
    want = pytorch(*arrays, score_mod=alibi, block_mask=mask)
    assert out.dtype == arrays[0].dtype
    torch.testing.assert_close(out.double(), want, atol=5e-3 if dtype == "float16" else 4e-2, rtol=0)


def test_keys_of_one_sample():
    q, k, v = tensors()
    found = own(q, k[:1], v[:1], block_mask=block_mask(causal, batch=2), enable_gqa=True)
    want = pytorch(q, k[:1], v[:1], block_mask=block_mask(causal, batch=2), enable_gqa=True)
    torch.testing.assert_close(found.double(), want, atol=3e-6, rtol=0)


def test_a_block_mask_without_a_function():
    """Its blocks alone hide."""
    q, k, v = tensors()
    blocks = torch.tensor([[[1, 2]]]).int(), torch.tensor([[[[1, 0], [0, 1]]]]).int()
    mask = BlockMask.from_kv_blocks(*blocks, BLOCK_SIZE=64, seq_lengths=(70, 90))
    out = own(q, k, v, block_mask=mask, enable_gqa=True)
    want = own(q, k, v, lambda s, b, h, i, j: torch.where((i >= 64) | (j >= 64), s, -math.inf), enable_gqa=True)
    torch.testing.assert_close(out, want, atol=3e-6, rtol=0)


def test_newer_request_for_the_log_sum_exp():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    if not hasattr(flex, "AuxRequest"):
        pytest.skip("this PyTorch has no AuxRequest")
    arrays = tensors()
    out, lse = own(*arrays, alibi, enable_gqa=True, return_lse=True)
    found, aux = own(*arrays, alibi, enable_gqa=True, return_aux=flex.AuxRequest(lse=True))
    assert (found == out).all() and (aux.lse == lse).all() and aux.max_scores is None
    found, aux = own(*arrays, alibi, enable_gqa=True, return_aux=flex.AuxRequest())
    assert (found == out).all() and aux.lse is None
    with pytest.raises(ValueError, match="return_lse and return_aux are given"):
        own(*arrays, enable_gqa=True, return_lse=True, return_aux=flex.AuxRequest(lse=True))
    with pytest.raises(grilly.UnsupportedError, match="max_scores"):
        own(*arrays, enable_gqa=True, return_aux=flex.AuxRequest(max_scores=True))


def test_one_query_at_its_position():
    """As PyTorch's decoding does it: a block mask of one query, whose function adds where it stands."""
    q, k, v = tensors(1, 90)

    def at(offset):
        return lambda b, h, q, k: causal(b, h, q + offset, k) & (k > 3)

    mask = block_mask(at(torch.tensor(60)), 1, 90)
    out = own(q, k, v, block_mask=mask, enable_gqa=True)
    torch.testing.assert_close(
        out.double(), pytorch(q, k, v, block_mask=mask, enable_gqa=True), atol=3e-6, rtol=0
    )


def test_gradients():
    slopes = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64, requires_grad=True)
    inputs = [array.requires_grad_() for array in tensors()]

    def score(s, b, h, q, k):
        return 3 * torch.tanh((s - slopes[h] * (q - k).abs()) / 3)

    def whole(q, k, v):
        k, v = (array.repeat_interleave(2, 1).double() for array in (k, v))
        places = torch.meshgrid(*(torch.arange(n) for n in (2, 4, 70, 90)), indexing="ij")
        scores = score(q.double() @ k.mT / 4, *places).masked_fill(~window(*places), -math.inf)
        return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)

    factors = torch.randn(2, 4, 70, 16), torch.randn(2, 4, 70)
    out, lse = own(*inputs, score_mod=score, block_mask=block_mask(window), enable_gqa=True, return_lse=True)
    found = torch.autograd.grad((out, lse), (*inputs, slopes), factors)
    want = torch.autograd.grad(whole(*inputs), (*inputs, slopes), [factor.double() for factor in factors])
    for one, other in zip(found, want, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one.double(), other.double(), atol=2e-5 * float(other.abs().max()), rtol=0)


def fails(score_mod=None, error=grilly.ExpressionError, said="", **options):
    q, k, v = tensors(5, 7)
    with pytest.raises(error, match=said):
        own(q, k, v, score_mod, enable_gqa=True, **options)


def test_what_is_refused():
    fails(lambda s, b, h, q, k: torch.linalg.norm(s), said="calls torch's linalg_norm on a scalar")
    fails(lambda s, b, h, q, k: torch.cumsum(s, 0), said="calls torch's cumsum on a scalar")
    fails(lambda s, b, h, q, k: s if q > k else -s, said="grilly.where")
    fails(lambda s, b, h, q, k: q >= k, said="returns a bool")
    fails(lambda s, q, k: s, error=TypeError, said="does not take them")
    fails(lambda s, b, h, q, k: s + TABLE[h], said="read by 2 indices, not 1")
    fails(block_mask=block_mask(causal), error=ValueError, said=r"block mask of shape \(1, 1, 70, 90\)")
    fails(block_mask=causal, error=TypeError, said="block_mask is a function; expected a BlockMask")
    q, k, v = tensors(5, 7)
    with pytest.raises(ValueError, match="query has 4 heads and key 2; give enable_gqa=True"):
        own(q, k, v)
    with pytest.raises(ValueError, match="axes; expected 4 of each"):
        own(q[0], k[0], v[0])
    with pytest.raises(TypeError, match="grilly.torch.flex_attention, which has score_mod"):
        grilly.torch.attention(q, k, v, score_mod=alibi)
