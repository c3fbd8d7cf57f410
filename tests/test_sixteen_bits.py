"""float16 and bfloat16: conversions, devices without 16-bit storage, masks, layers, and bfloat16 without ml_dtypes."""

import builtins

import numpy as np
import pytest

import grilly
import grilly.functional as F
from backends import on
from cases import BFLOAT16, SIXTEEN_BITS, Case, assert_as_accurate, expected, make_arrays, needs_bfloat16
from grilly import nn, reference
from kernels import without_sixteen_bits


@pytest.fixture(scope="module")
def narrow(vulkan_backend):
    """A backend on the device of ``vulkan_backend`` that offers everything but 16-bit storage."""
    with without_sixteen_bits() as backend:
        yield backend


@pytest.fixture(params=["own", "narrow"])
def either(request, backend):
    """The device as it is, and as if it had no 16-bit storage."""
    return request.getfixturevalue("narrow") if request.param == "narrow" else backend


def same(a, b):
    np.testing.assert_array_equal(np.asarray(a).astype(np.float32), np.asarray(b).astype(np.float32))


# -- conversions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_every_number_widens_exactly(either, dtype):
    numbers = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    same(either.tensor(numbers).astype(np.float32).numpy(), numbers)


@needs_bfloat16
@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_narrowing_rounds_to_nearest_even(either, dtype):
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 1 << 32, 100_001, dtype=np.uint32).view(np.float32)  # NaN and infinities among them
    halves = np.arange(0x7F80, dtype=np.uint32) << 16 | 0x8000  # halfway between two bfloat16
    floats = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    halfway = (floats.view(np.uint32) | 0x1000).view(np.float32)  # between two float16
    edges = np.array([65519.9, 65520, 2.0**-25, 2.0**-24, 3e-8, 6.1e-5, 0.0, -0.0, np.inf], np.float32)
    for values in (numbers, halves.view(np.float32), halfway, edges, -edges):
        with np.errstate(all="ignore"):
            want = values.astype(dtype)
        same(either.tensor(values).astype(dtype).numpy(), want)


@needs_bfloat16
def test_between_the_two(either):
    values = np.random.default_rng(1).standard_normal((3, 5, 7)).astype(np.float32) * 100
    half, brain = values.astype(np.float16), values.astype(BFLOAT16)
    same(either.tensor(half).astype("bfloat16").numpy(), half.astype(BFLOAT16))
    same(either.tensor(brain).astype(np.float16).numpy(), brain.astype(np.float16))


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_views(either, dtype):
    array = np.random.default_rng(2).standard_normal((3, 5, 7)).astype(dtype)
    tensor = either.tensor(array)
    assert tensor.dtype == dtype and tensor.numpy().dtype == dtype
    for view in (lambda a: a.transpose(2, 0, 1), lambda a: a[1:, ::2, 1:6], lambda a: a[0, :, None], lambda a: a[:, 1]):
        same(view(tensor).numpy(), view(array))
        same(view(tensor).contiguous().numpy(), view(array))
    same(either.tensor(array.transpose(1, 2, 0)).numpy(), array.transpose(1, 2, 0))


def test_views_of_more_axes(narrow):
    array = np.random.default_rng(3).standard_normal((2, 2, 2, 2, 3)).astype(np.float16)
    same(narrow.tensor(array).transpose(4, 3, 2, 1, 0).contiguous().numpy(), array.transpose(4, 3, 2, 1, 0))


# -- operations without 16-bit storage --------------------------------------------------------------------------------


@pytest.mark.parametrize("send", [False, True], ids=["arrays", "tensors"])
@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_attention_is_converted(narrow, dtype, send):
    case = Case("converted", batch=2, heads=4, kv_heads=2, queries=33, keys=65, dim=40, causal=True)
    q, k, v, _ = make_arrays(case, dtype)
    exact, exact_lse, plain, plain_lse = expected(case, q, k, v, None)
    given = [narrow.tensor(a) for a in (q, k, v)] if send else (q, k, v)
    out, lse = narrow.attention.flash_attention2(*given, causal=True, return_lse=True)
    assert isinstance(out, grilly.Tensor) == send
    assert_as_accurate(np.asarray(out), exact, plain)
    assert_as_accurate(np.asarray(lse), exact_lse, plain_lse)


@pytest.mark.parametrize("send", [False, True], ids=["arrays", "tensors"])
@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_layers_are_converted(narrow, dtype, send):
    rng = np.random.default_rng(3)
    x, weight, bias = (rng.standard_normal(shape).astype(dtype) for shape in ((5, 30), (7, 30), (7,)))
    given = [narrow.tensor(a) for a in (x, weight, bias)] if send else (x, weight, bias)
    y = on(narrow, F.linear)(*given)
    assert isinstance(y, grilly.Tensor) == send and y.dtype == dtype
    wide = [a.astype(np.float32) for a in (x, weight, bias)]
    same(y, on(narrow, F.linear)(*wide).astype(dtype))
    same(on(narrow, F.rope)(given[0]), on(narrow, F.rope)(wide[0]).astype(dtype))
    same(narrow.attention.softmax(given[0]), narrow.attention.softmax(wide[0]).astype(dtype))
    scores = narrow.attention.attention_scores(given[0], given[1])
    assert scores.dtype == np.float32
    same(scores, narrow.attention.attention_scores(wide[0], wide[1]))
    weights = np.asarray(narrow.attention.softmax(np.asarray(scores)))
    out = narrow.attention.attention_output(weights, given[1])
    assert out.dtype == dtype
    same(out, narrow.attention.attention_output(weights, wide[1]).astype(dtype))


def test_differing_dtypes_are_refused_not_converted(narrow):
    q = np.zeros((1, 1, 4, 8), np.float16)
    with pytest.raises(TypeError, match="same dtype"):
        narrow.attention.flash_attention2(q, q.astype(np.float32), q)


# -- what is particular to bfloat16 -----------------------------------------------------------------------------------


@needs_bfloat16
def test_functions_take_bfloat16(vulkan_backend):
    former = grilly.use(vulkan_backend)
    try:
        q, k, v, _ = make_arrays(Case("f", queries=9, keys=11, dim=16), BFLOAT16)
        mask = np.where(np.random.default_rng(4).random((9, 11)) < 0.5, 0, np.finfo(np.float32).min).astype(BFLOAT16)
        mask[2] = -np.inf
        options = {"mask": mask}
        out = F.flash_attention2(q, k, v, **options)
        exact = reference.naive_attention(q, k, v, dtype=np.float64, **options)[0]
        plain = reference.naive_attention(q, k, v, **options)[0]
        assert plain.dtype == np.float32 and not np.asarray(out[:, :, 2]).any()
        assert_as_accurate(out, exact, plain.astype(BFLOAT16))
    finally:
        grilly.use(former)


@needs_bfloat16
def test_scores_beyond_half_precision(backend):
    """Inputs and scores past 65504, which float16 does not hold."""
    case = Case("large", queries=37, keys=41, dim=64, heads=2)
    q, k, v, _ = make_arrays(case, BFLOAT16)
    q, v = q * BFLOAT16(1000), v * BFLOAT16(1e6)
    assert q.dtype == BFLOAT16
    exact, _, plain, _ = expected(case, q, k, v, None)
    assert_as_accurate(backend.attention.flash_attention2(q, k, v), exact, plain)


@needs_bfloat16
def test_modules_take_bfloat16(vulkan_backend):
    layer = nn.Linear(6, 4, rng=0).to(vulkan_backend, "bfloat16")
    assert {p.dtype for p in layer.parameters()} == {np.dtype(BFLOAT16)}
    state = layer.state_dict()
    other = nn.Linear(6, 4, rng=1).to(vulkan_backend, BFLOAT16)
    other.load_state_dict(state)
    x = np.random.default_rng(5).standard_normal((3, 6)).astype(BFLOAT16)
    y = other(x)
    assert y.dtype == BFLOAT16
    same(y, layer(x))


def test_bfloat16_without_ml_dtypes_says_what_to_install(vulkan_backend, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **options):
        if name == "ml_dtypes":
            raise ModuleNotFoundError("No module named 'ml_dtypes'")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'grilly-vulkan\[bfloat16\]'"):
        vulkan_backend.empty((2, 2), "bfloat16")
