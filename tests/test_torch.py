"""grilly.torch: the operators, PyTorch's function by its rules, gradients, compilation, and the patch."""

import contextvars
import importlib.util
import math
import re
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import grilly
from grilly import reference

pytestmark = pytest.mark.needs("torch")
if importlib.util.find_spec("torch"):
    import torch
    import torch.nn.functional as tF

    import grilly.torch

    own = grilly.torch.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def chosen(vulkan_backend):
    former = grilly.use(vulkan_backend)
    torch.manual_seed(0)
    yield vulkan_backend
    grilly.use(former)


def exact(q, k, v, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """The sum itself in float64, with every weight stored; PyTorch's kernels are not asked, some of which err."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        added = attn_mask.dtype != torch.bool
        scores = scores + attn_mask if added else scores.masked_fill(~attn_mask, -math.inf)
    nothing = torch.isneginf(scores).all(-1, keepdim=True)
    return torch.where(nothing, 0, torch.softmax(torch.where(nothing, 0, scores), -1)) @ v


def leaves(*shapes, dtype=None):
    return [torch.randn(shape).to(dtype or torch.float32).requires_grad_() for shape in shapes]


def wide(value):
    if not torch.is_tensor(value) or not value.is_floating_point():
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


def compare(tensors, options, ours=None, bound=3e-6):
    """Output and gradients against float64, each to ``bound`` of its largest number or of 1."""
    twins, more = [wide(t) for t in tensors], {name: wide(value) for name, value in options.items()}
    out, want = (ours or own)(*tensors, **options), exact(*twins, **more)
    assert out.shape == want.shape and out.dtype == tensors[0].dtype
    grad = torch.randn_like(out)
    asked = [(t, w) for t, w in zip((*tensors, *options.values()), (*twins, *more.values()), strict=True)
             if torch.is_tensor(t) and t.requires_grad]  # fmt: skip
    found = torch.autograd.grad(out, [t for t, _ in asked], grad)
    wanted = torch.autograd.grad(want, [w for _, w in asked], grad.double())
    for one, two in zip((out, *found), (want, *wanted), strict=True):
        assert one.shape == two.shape
        if one.numel():
            assert (one - two).abs().max() <= bound * max(1.0, two.abs().max())


SHAPES = {
    "two axes": ((5, 16), (7, 16), (7, 8), {}),
    "three axes": ((3, 5, 16), (3, 7, 16), (3, 7, 8), {}),
    "five axes": ((2, 3, 4, 5, 16), (2, 3, 4, 7, 16), (2, 3, 4, 7, 8), {}),
    "broadcast batch": ((2, 6, 5, 16), (1, 7, 16), (1, 7, 8), {}),
    "broadcast all ways": ((2, 3, 4, 5, 16), (4, 7, 16), (3, 1, 7, 8), {}),
    "grouped heads": ((2, 6, 5, 16), (2, 2, 7, 16), (2, 2, 7, 8), {"enable_gqa": True}),
    "causal, more keys": ((1, 2, 5, 16), (1, 2, 9, 16), (1, 2, 9, 16), {"is_causal": True}),
    "causal, less keys": ((1, 2, 9, 16), (1, 2, 5, 16), (1, 2, 5, 16), {"is_causal": True}),
    "scale": ((1, 2, 5, 16), (1, 2, 5, 16), (1, 2, 5, 16), {"scale": 0.7, "is_causal": True}),
    "no batch": ((0, 2, 4, 16), (0, 2, 3, 16), (0, 2, 3, 16), {}),
    "no keys": ((2, 2, 4, 16), (2, 2, 0, 16), (2, 2, 0, 16), {}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    *shapes, options = SHAPES[name]
    compare(leaves(*shapes), options)


MASKS = {
    "boolean": lambda: torch.rand(2, 1, 5, 7) > 0.4,
    "of matrices": lambda: torch.rand(5, 7) > 0.4,
    "added": lambda: torch.randn(1, 2, 5, 7),
    "added, with a gradient": lambda: torch.randn(2, 1, 5, 7).requires_grad_(),
    "added and broadcast, with a gradient": lambda: torch.randn(2, 1, 7).requires_grad_(),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    compare(leaves((2, 2, 5, 16), (2, 2, 7, 16), (2, 2, 7, 8)), {"attn_mask": MASKS[name]()})


@pytest.mark.parametrize("heads", [(), (5,)])
def test_masks_of_few_axes_are_as_pytorch_says(heads):
    """Of matrices, and of heads: not of samples, of which there are as many, and nothing is asked."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare(leaves((5, 5, 5, 16), (5, 5, 7, 16), (5, 5, 7, 8)), {"attn_mask": torch.rand(*heads, 5, 7) > 0.4})


@pytest.mark.parametrize("corner", ["causal_upper_left", "causal_lower_right"])
def test_causal_biases_are_read_as_pytorch_does(corner):
    """Their memory holds nothing: PyTorch's function finds out what they are by its own name."""
    q, k = torch.randn(1, 2, 5, 16), torch.randn(1, 2, 7, 16)
    bias = getattr(torch.nn.attention.bias, corner)(5, 7)
    want = tF.scaled_dot_product_attention(q, k, k, attn_mask=bias)
    mask = torch.ones(5, 7, dtype=torch.bool).tril(2 if corner == "causal_lower_right" else 0)
    torch.testing.assert_close(want, tF.scaled_dot_product_attention(q, k, k, attn_mask=mask))
    torch.testing.assert_close(own(q, k, k, attn_mask=bias), want, rtol=0, atol=3e-6)
    torch.testing.assert_close(grilly.torch.attention(q, k, k, mask=bias), want, rtol=0, atol=3e-6)
    with grilly.torch.patched() as report:
        found = tF.scaled_dot_product_attention(q, k, k, attn_mask=bias)
        double = tF.scaled_dot_product_attention(q.double(), k.double(), k.double(), attn_mask=bias)
    assert report.calls == 1 and report.left == {"torch.float64": 1}
    torch.testing.assert_close(found, want, rtol=0, atol=3e-6)
    torch.testing.assert_close(double.float(), want, rtol=0, atol=3e-6)


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("number", [-3.4028234663852886e38, -1e20, -1e9, -1e4, -math.inf])
def test_rows_of_low_numbers(number, differentiable):
    """Rows with nothing but a number that hides: alike, moved up, or nothing at all; forward and backward."""
    mask = torch.randn(2, 1, 5, 7)
    mask[:, :, 1, :] = number
    mask[:, :, 2, 4:] = number
    mask[:, :, 3, 2:] = -math.inf
    mask[:, :, 3, :2] = number
    compare(leaves(*[(2, 2, 5, 16), (2, 2, 7, 16), (2, 2, 7, 8)]), {"attn_mask": mask.requires_grad_(differentiable)})


@pytest.mark.parametrize("number", [1e20, 1e9, 1e4, -1e9, -1e20])
def test_gradients_beside_large_numbers(number):
    """The same for a row it changes nothing; where float32 has no room for scores beside it all keys are alike."""
    q, k, v = leaves(*[(1, 2, 5, 16), (1, 2, 7, 16), (1, 2, 7, 8)])
    mask = torch.full((5, 7), number, requires_grad=True)
    grad = torch.randn(1, 2, 5, 8)
    found = torch.autograd.grad((own(q, k, v, attn_mask=mask) * grad).sum(), (q, k, v))
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    scores = wide[0] @ wide[1].mT / 4
    weights = scores.softmax(-1) if abs(number) < 1e15 else torch.full((1, 2, 5, 7), 1 / 7).double()
    if abs(number) < 1e15:
        wanted = torch.autograd.grad((weights @ wide[2] * grad).sum(), wide)
    else:
        wanted = [None, None, weights.mT @ grad.double()]
    for one, other in zip(found, wanted, strict=True):
        if other is not None:
            torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype, bound", [("float16", 4 * 2.0**-10), ("bfloat16", 4 * 2.0**-7)])
def test_sixteen_bits(dtype, bound):
    tensors = leaves((1, 2, 9, 16), (1, 2, 9, 16), (1, 2, 9, 16), dtype=getattr(torch, dtype))
    compare(tensors, {"is_causal": True}, bound=bound)


def test_dropout_follows_pytorchs_generator():
    q, k, v = leaves(*[(1, 2, 6, 16)] * 3)
    torch.manual_seed(3)
    one = own(q, k, v, dropout_p=0.4)
    two = own(q, k, v, dropout_p=0.4)
    torch.manual_seed(3)
    assert torch.equal(own(q, k, v, dropout_p=0.4), one) and not torch.equal(one, two)
    grad = torch.randn_like(one)
    (dv,) = torch.autograd.grad(one, v, grad)  # the output is linear in v, by the weights that were kept
    torch.testing.assert_close((dv * v).sum(), (one * grad).sum(), rtol=1e-4, atol=1e-4)
    gone = own(q, k, v, dropout_p=1.0)
    assert not gone.any() and not torch.autograd.grad(gone.sum(), q)[0].any()
    (bias,) = leaves((6, 6))
    gone = own(q, k, v, bias, dropout_p=1.0)
    assert not gone.any() and not torch.autograd.grad(gone.sum(), bias)[0].any()
    kept = grilly.functional.dropout_mask((1, 2, 6, 6), 0.4, 5)
    seeded = grilly.torch.attention(q, k, torch.eye(6).expand(1, 2, 6, 6), dropout_p=0.4, dropout_seed=5)
    np.testing.assert_array_equal(seeded.detach().numpy() != 0, kept)


OPTIONS = {
    "bent": dict(window_size=(2, 1), softcap=1.5, alibi_slopes=[0.5, 0.25]),
    "sizes": dict(seqlens_q=[5, 3], seqlens_k=[7, 4], prefix_len=[2, 0], causal=True),
    "places": lambda: dict(
        segment_ids=(torch.tensor([[0, 0, 1, 1, 2]]), torch.tensor([[0, 0, 0, 1, 1, 2, 2]])),
        block_map=torch.tensor([[True, False], [False, True], [True, True]]), block_size=(2, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_options_are_the_arrays_functions(chosen, name):
    """Output, log-sum-exp and gradients are those of the function on arrays, which other tests hold to float64."""
    options = OPTIONS[name]() if callable(OPTIONS[name]) else OPTIONS[name]
    q, k, v = leaves((2, 2, 5, 16), (2, 2, 7, 16), (2, 2, 7, 8))
    out, lse = grilly.torch.attention(q, k, v, return_lse=True, **options)
    given = {n: x.numpy() if torch.is_tensor(x) else x for n, x in options.items()}
    if name == "places":
        given["segment_ids"] = tuple(x.numpy() for x in options["segment_ids"])
    arrays = [x.detach().numpy() for x in (q, k, v)]
    attend = chosen.attention
    want, want_lse = attend.flash_attention2(*arrays, return_lse=True, **given)
    np.testing.assert_array_equal(out.detach().numpy(), want)
    np.testing.assert_array_equal(lse.detach().numpy(), want_lse)
    grad = torch.randn_like(out)
    wanted = attend.flash_attention2_backward(grad.numpy(), *arrays, want, want_lse, **given)
    for one, two in zip(torch.autograd.grad(out, (q, k, v), grad, retain_graph=True), wanted, strict=True):
        np.testing.assert_array_equal(one.numpy(), two)
    finite = torch.isfinite(lse)
    grad_lse = torch.randn_like(lse) * finite
    both = torch.where(finite, lse, 0)
    wanted = attend.flash_attention2_backward(grad.numpy(), *arrays, want, want_lse, grad_lse=grad_lse.numpy(), **given)
    found = torch.autograd.grad((out, both), (q, k, v), (grad, grad_lse), retain_graph=True)
    for one, two in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one.numpy(), two)
    wanted = attend.flash_attention2_backward(
        np.zeros_like(want), *arrays, want, want_lse, grad_lse=grad_lse.numpy(), **given
    )
    for one, two in zip(torch.autograd.grad(both, (q, k, v), grad_lse, allow_unused=True), wanted, strict=True):
        np.testing.assert_array_equal(one.numpy(), two)


def test_a_loss_of_the_log_sum_exp():
    """Such as a z-loss: the gradient through it is added to the output's."""
    q, k, v = leaves((2, 2, 5, 16), (2, 2, 7, 16), (2, 2, 7, 8))
    out, lse = grilly.torch.attention(q, k, v, return_lse=True)
    found = torch.autograd.grad(out.sum() + (lse**2).sum(), (q, k, v))
    twins = [wide(x) for x in (q, k, v)]
    scores = twins[0] @ twins[1].transpose(-1, -2) / 4
    want = (torch.softmax(scores, -1) @ twins[2]).sum() + (torch.logsumexp(scores, -1) ** 2).sum()
    for one, two in zip(found, torch.autograd.grad(want, twins), strict=True):
        torch.testing.assert_close(one.double(), two, rtol=0, atol=1e-5)


def test_gradients_of_bias_sinks_and_table():
    q, k, v = leaves((2, 2, 5, 16), (2, 2, 7, 16), (2, 2, 7, 8))
    bias, sinks, table = leaves((1, 2, 5, 7), (2,), (8, 2))
    sinks = sinks.detach().bfloat16().requires_grad_()
    out = grilly.torch.attention(q, k, v, attn_bias=bias, sinks=sinks, t5_table=table, t5_max_distance=16)
    grad = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v, bias, sinks, table), grad)
    twins = [wide(x) for x in (q, k, v, bias, sinks, table)]
    a, b, c, d, e, f = twins
    away = torch.arange(7) - (torch.arange(5)[:, None] + 2)
    buckets = torch.from_numpy(np.asarray(reference.t5_bucket(away.numpy(), True, 8, 16)))
    scores = a @ b.transpose(-1, -2) / 4 + d + f[buckets.long()].permute(2, 0, 1)
    scores = torch.cat([scores, e[:, None, None].expand(2, 2, 5, 1)], -1)
    want = torch.softmax(scores, -1)[..., :-1] @ c
    torch.testing.assert_close(out.double(), want, rtol=0, atol=3e-6)
    for one, two in zip(found, torch.autograd.grad(want, twins, grad.double()), strict=True):
        bound = 2.0**-7 if one.dtype == torch.bfloat16 else 3e-6
        assert (one - two).abs().max() <= bound * max(1.0, two.abs().max())


@pytest.mark.parametrize("by", ["eager", "aot_eager"])
def test_compiled_it_stays_one_node(by):
    q, k, v = leaves(*[(2, 2, 5, 16)] * 3)
    graphs = []

    def seen(graph, examples):
        graphs.append(graph)
        return torch._dynamo.lookup_backend(by)(graph, examples)

    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v: own(q, k, v, is_causal=True), backend=seen, fullgraph=True)
    out = compiled(q, k, v)
    torch.testing.assert_close(out, own(q, k, v, is_causal=True), rtol=0, atol=0)
    (graph,) = graphs
    called = [node.target for node in graph.graph.nodes if node.op not in ("placeholder", "output")]
    assert [str(target) for target in called if "getitem" not in str(target)] == ["grilly.attention.default"]
    grad = torch.randn_like(out)
    for one, two in zip(
        torch.autograd.grad(out, (q, k, v), grad),
        torch.autograd.grad(own(q, k, v, is_causal=True), (q, k, v), grad), strict=True,
    ):  # fmt: skip
        assert torch.equal(one, two)


def test_gradients_that_are_not_found_are_refused():
    q, k, v = leaves(*[(1, 2, 5, 16)] * 3)
    (slopes,) = leaves((2,))
    with pytest.raises(RuntimeError, match="alibi_slopes requires grad"):
        grilly.torch.attention(q, k, v, alibi_slopes=slopes)
    with pytest.raises(RuntimeError, match="mask requires grad.*attn_bias"):
        grilly.torch.attention(q, k, v, mask=torch.zeros(5, 5, requires_grad=True))
    with torch.no_grad():
        grilly.torch.attention(q, k, v, alibi_slopes=slopes)
    with pytest.raises(RuntimeError, match="requires grad"):
        grilly.torch.lift(grilly.functional.softmax)(q)
    with pytest.raises(RuntimeError, match="requires grad"):
        grilly.torch.from_torch(q)
    (dq,) = torch.autograd.grad(own(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="no gradients of gradients"):
        dq.sum().backward()


@pytest.mark.parametrize(
    "change, error, words",
    [
        (dict(query=np.zeros((2, 2), np.float32)), TypeError, "query is a ndarray; expected a torch.Tensor"),
        (dict(query="double"), TypeError, "torch.float64; expected torch.float32"),
        (dict(key="half"), TypeError, "key is torch.float16 and query is torch.float32"),
        (dict(query="meta"), TypeError, "query is on meta, where tensors hold no numbers"),
        (dict(query="sparse"), TypeError, "sparse_coo; expected a dense tensor"),
        (dict(attn_mask=[[1]]), TypeError, "attn_mask is a list"),
        (dict(attn_mask="integers"), TypeError, "attn_mask is torch.int64"),
        (dict(dropout_p=1.5), ValueError, "dropout_p is 1.5"),
        (dict(attn_mask="ones", is_causal=True), ValueError, "attn_mask is given and is_causal"),
        (dict(attn_mask="row"), ValueError, "expected two axes or more"),
        (dict(key="wide"), ValueError, "key has 9 elements"),
        (dict(key="heads", value="heads"), ValueError, "set enable_gqa=True"),
    ],
)  # fmt: skip
def test_mistakes(change, error, words):
    made = {
        "double": lambda: torch.zeros(1, 4, 5, 8).double(), "half": lambda: torch.zeros(1, 4, 5, 8).half(),
        "meta": lambda: torch.zeros(1, 4, 5, 8, device="meta"), "sparse": lambda: torch.zeros(1, 4, 5, 8).to_sparse(),
        "integers": lambda: torch.ones(5, 5, dtype=torch.int64), "ones": lambda: torch.ones(5, 5, dtype=torch.bool),
        "row": lambda: torch.zeros(5), "wide": lambda: torch.zeros(1, 4, 5, 9),
        "heads": lambda: torch.zeros(1, 2, 5, 8),
    }  # fmt: skip
    given = dict.fromkeys(("query", "key", "value"), torch.zeros(1, 4, 5, 8))
    given.update({name: made[value]() if isinstance(value, str) else value for name, value in change.items()})
    with pytest.raises(error, match=words):
        own(**given)


def test_lift_and_copies(chosen):
    x = torch.randn(3, 8)
    layer = grilly.nn.Linear(8, 2, rng=0).to(chosen)
    torch.testing.assert_close(grilly.torch.lift(layer)(x), torch.from_numpy(layer(x.numpy())), rtol=0, atol=0)
    narrow = grilly.torch.lift(chosen.attention.softmax)(x.bfloat16())
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), torch.softmax(x.bfloat16().float(), -1), rtol=2.0**-7, atol=0)
    found = grilly.torch.lift(grilly.linalg.vector_norm)(x, axis=1)  # which gives a Tensor
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, x.norm(dim=1))
    mine = grilly.torch.lift(grilly.exp)(chosen.tensor(x.numpy()))
    assert isinstance(mine, grilly.Tensor), "nothing of PyTorch's came in"
    in_dicts = grilly.torch.lift(lambda given: {"twice": [given["x"] * 2]})({"x": x})
    assert torch.equal(in_dicts["twice"][0], x * 2)
    with pytest.raises(RuntimeError, match="requires grad"):
        grilly.torch.lift(lambda given: given["x"])({"x": x.clone().requires_grad_()})
    result = grilly.torch.lift(grilly.functional.flash_attention)(*[x[None, None]] * 3)
    assert isinstance(result.output, torch.Tensor)
    for tensor in (x, x.half(), x.bfloat16(), x > 0, x.T):
        there = grilly.torch.from_torch(tensor, chosen)
        assert isinstance(there, grilly.Tensor) and torch.equal(grilly.torch.to_torch(there), tensor)


def test_direct_calls_say_where_to_go(chosen):
    x = torch.randn(1, 1, 3, 8)
    with pytest.raises(TypeError, match="q is a torch.Tensor; .*grilly.torch.attention"):
        chosen.attention.flash_attention2(x, x, x)
    with pytest.raises(TypeError, match="an operand is a torch.Tensor"):
        grilly.add(chosen.tensor(x.numpy()), x)
    with pytest.raises(TypeError, match="grilly.torch.from_torch"):
        chosen.tensor(x.bfloat16())
    assert torch.equal(torch.from_dlpack(grilly.from_dlpack(x.bfloat16())).cpu(), x.bfloat16())
    assert torch.equal(torch.from_dlpack(grilly.from_dlpack(x)).cpu(), x)


@pytest.mark.parametrize("name", grilly.functional.__all__)
def test_functional_has_every_function(name):
    function, own = getattr(grilly.torch.functional, name), getattr(grilly.functional, name)
    assert function is getattr(grilly.torch.functional, name) and function.__name__ == name
    assert function.__doc__ == own.__doc__ or function is grilly.torch.scaled_dot_product_attention
    assert name in dir(grilly.torch.functional)


def test_functional_has_attention_with_gradients(chosen):
    assert grilly.torch.functional.scaled_dot_product_attention is grilly.torch.scaled_dot_product_attention
    q = torch.randn(1, 1, 3, 8, requires_grad=True)
    grilly.torch.functional.scaled_dot_product_attention(q, q, q).sum().backward()
    assert q.grad is not None


def test_functional_takes_and_gives_tensors(chosen):
    x, w = torch.randn(3, 8), torch.randn(5, 8)
    torch.testing.assert_close(grilly.torch.functional.softmax(x), tF.softmax(x, -1))
    torch.testing.assert_close(grilly.torch.functional.linear(x, w), tF.linear(x, w))
    q, k, v = (torch.randn(1, 2, n, 16) for n in (3, 5, 5))
    torch.testing.assert_close(
        grilly.torch.functional.flash_attention2(q, k, v), tF.scaled_dot_product_attention(q, k, v), rtol=0, atol=3e-6
    )
    with pytest.raises(RuntimeError, match="requires grad"):
        grilly.torch.functional.gelu(x.requires_grad_())
    with pytest.raises(AttributeError, match="no attribute 'cosh'"):
        grilly.torch.functional.cosh  # noqa: B018


# -- patched -----------------------------------------------------------------------------------------------------------


def test_a_block_that_ends_in_another_context():
    """As that of a generator does which another task closes."""
    own_function = tF.scaled_dot_product_attention
    block = grilly.torch.patched()
    contextvars.copy_context().run(block.__enter__)
    assert tF.scaled_dot_product_attention is not own_function
    contextvars.copy_context().run(block.__exit__, None, None, None)
    assert tF.scaled_dot_product_attention is own_function


def test_the_patch_counts_and_leaves():
    q, k, v = leaves(*[(1, 2, 5, 16)] * 3)
    before = tF.scaled_dot_product_attention
    layer, x = torch.nn.MultiheadAttention(16, 2, batch_first=True), torch.randn(2, 5, 16)
    want = layer(x, x, x, need_weights=False)[0]
    with grilly.torch.patched() as report:
        torch.testing.assert_close(layer(x, x, x, need_weights=False)[0], want, rtol=0, atol=3e-6)
        tF.scaled_dot_product_attention(q, k, v, enable_gqa=True).sum().backward()
        assert report.calls == 2 and not report.left
        double = tF.scaled_dot_product_attention(q.double(), k.double(), v.double())
        assert double.dtype == torch.float64 and report.left == {"torch.float64": 1}
        torch.vmap(tF.scaled_dot_product_attention)(q, k, v)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert tF.scaled_dot_product_attention(q, k, v).dtype == torch.bfloat16
        with pytest.raises(RuntimeError):
            tF.scaled_dot_product_attention(q, k[..., :3], v)
        compiled = torch.compile(lambda *a: tF.scaled_dot_product_attention(*a), backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(q, k, v), own(q, k, v), rtol=0, atol=3e-6)
    assert tF.scaled_dot_product_attention is before
    assert report.calls == 2 and sum(report.left.values()) == 4
    text = repr(report)
    for words in ("2 calls by grilly, 4 left to PyTorch", "torch.func", "autocast", "key has 3 elements"):
        assert words in text
    assert q.grad is not None


def test_the_patch_nests_and_goes_with_exceptions():
    q, k, v = leaves(*[(1, 2, 5, 16)] * 3)
    before = tF.scaled_dot_product_attention
    with grilly.torch.patched() as outer:
        with pytest.raises(KeyError), grilly.torch.patched() as inner:
            tF.scaled_dot_product_attention(q, k, v)
            raise KeyError
        tF.scaled_dot_product_attention(q, k, v)
    assert (inner.calls, outer.calls) == (1, 2)
    assert tF.scaled_dot_product_attention is before


def test_the_patch_is_its_threads_own():
    q, k, v = leaves(*[(1, 2, 5, 16)] * 3)
    before, executable, done = tF.scaled_dot_product_attention, threading.Event(), threading.Event()
    other = []

    def elsewhere():
        tF.scaled_dot_product_attention(q, k, v)  # PyTorch's, although the block is open
        with grilly.torch.patched() as report:
            executable.set()
            assert done.wait(60)
            tF.scaled_dot_product_attention(q, k, v)
        other.append(report.calls)

    thread = threading.Thread(target=elsewhere)
    with grilly.torch.patched() as report:
        thread.start()
        assert executable.wait(60)
    assert report.calls == 0 and tF.scaled_dot_product_attention is not before, "the other block is still open"
    done.set()
    thread.join()
    assert other == [1] and tF.scaled_dot_product_attention is before


def test_anothers_patch_within_is_not_undone():
    q, k, v = leaves(*[(1, 2, 5, 16)] * 3)
    before = tF.scaled_dot_product_attention
    try:
        with grilly.torch.patched():
            ours = tF.scaled_dot_product_attention
            tF.scaled_dot_product_attention = theirs = lambda *a, **b: ours(*a, **b)
        assert tF.scaled_dot_product_attention is theirs
        torch.testing.assert_close(theirs(q, k, v), before(q, k, v), rtol=0, atol=0)
    finally:
        tF.scaled_dot_product_attention = before


@pytest.mark.parametrize("level", [-1e15, -2e15, 2e15, -3e16, -7.3e22, -1e30, -1e38, 1e38])
@pytest.mark.parametrize("queries", [1, 20])
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_rows_in_which_scores_are_lost_beside_the_mask(level, queries, needs_gradient):
    """Their largest keys share the weight, also where float32 has steps of millions between its numbers."""
    q, k, v = leaves((1, 2, queries, 8), (1, 2, 33, 8), (1, 2, 33, 8))
    mask = torch.full((queries, 33), level)
    mask[:, 3::4] -= abs(level) / 8
    mask[queries // 2 + 1 :] = 0
    mask.requires_grad_(needs_gradient)
    grad = torch.randn(1, 2, queries, 8)
    shared = torch.where((mask == mask.amax(-1, keepdim=True)) & (mask != 0), 0.0, -math.inf).detach()
    plain = (mask == 0).all(-1, keepdim=True)
    scores = q @ k.transpose(-1, -2) / math.sqrt(8)
    # Scores of lost rows count for nothing but still pass gradients on, as in a sum of float32.
    weights = torch.softmax(torch.where(plain, scores, scores - scores.detach() + shared), -1)
    inputs = (q, k, v, mask) if needs_gradient else (q, k, v)
    want = torch.autograd.grad(weights @ v, (q, k, v), grad)
    out = own(q, k, v, mask)
    torch.testing.assert_close(out, weights @ v, rtol=1e-5, atol=1e-5)
    got = torch.autograd.grad(out, inputs, grad)
    for one, other in zip(got, want, strict=False):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert all(array.isfinite().all() for array in got)


# -- the page ----------------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[1] / "docs" / "pytorch.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_blocks_of_the_page_run_alone(number, capsys):
    block = BLOCKS[number]
    exec(compile(block, f"docs/pytorch.md, block {number}", "exec"), {})
    said = capsys.readouterr().out
    if "report" in block:
        assert said == "1 call by grilly, 1 left to PyTorch\n  1 x torch.float64\n"
    assert said
