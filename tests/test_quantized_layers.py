"""Quantized tensors on a device: their numbers, linear layers and embeddings, and what is refused."""

import copy
import pickle

import numpy as np
import pytest

import grilly
import grilly.functional as F
from cases import BFLOAT16, DTYPES, epsilon
from grilly import nn
from grilly.quantization import TYPES

#: Types that kernels read.
READ = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
        "NVFP4")  # fmt: skip


def quantized(name, rows, depth, seed=0):
    """Rows of a type; random bytes with small scales where grilly does not write it."""
    rng, one = np.random.default_rng([seed, rows, depth]), TYPES[name]
    if one.quantize is not None:
        return grilly.quantize(rng.standard_normal((rows, depth)).astype(np.float32) / 16, name)
    blocks = np.zeros(rows * depth // one.block, one.layout)
    blocks.view(np.uint8)[:] = rng.integers(0, 256, blocks.nbytes)
    shape = blocks["d"].shape
    blocks["d"] = rng.integers(0, 60, shape) if name == "NVFP4" else rng.standard_normal(shape) / 2**12
    return grilly.QuantizedTensor(blocks.view(np.uint8), (rows, depth), name)


def drawn(*shape, dtype=np.float32, seed=1):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def sizes_of(name, packed):
    """What of each number ``|scale level| + |minimum|`` is at most: minima are whole numbers times a dmin."""
    one, numbers = TYPES[name], np.abs(packed.dequantize(np.float64))
    blocks = packed.data.reshape(-1).view(one.layout)
    field, most = {"Q4_1": ("m", 1), "Q5_1": ("m", 1), "Q2_K": ("dmin", 15), "Q4_K": ("dmin", 63),
                   "Q5_K": ("dmin", 63)}.get(name, (None, 0))  # fmt: skip
    if field is None:
        return numbers
    minima = np.abs(blocks[field].astype(np.float64)) * most
    return numbers + 2 * np.repeat(minima, one.block).reshape(numbers.shape)


def assert_product(found, x, name, packed, dtype=None):
    """Float32 sums of the exact numbers of the weight; ``dtype``: the weight was rounded to it."""
    weight, x64 = packed.dequantize(np.float64), x.astype(np.float64)
    exact, size = x64 @ weight.T, np.abs(x64) @ sizes_of(name, packed).T
    bound = (x.shape[-1] + 4) * 2.0**-24 * size + 1e-30
    if dtype is not None:
        bound += epsilon(dtype) * (np.abs(x64) @ np.abs(weight).T)
    if x.dtype != np.float32:
        bound += epsilon(x.dtype) * np.abs(exact) + (2.0**-24 if x.dtype == np.float16 else 0)
    assert found.dtype == x.dtype and (np.abs(found.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize("name", READ)
def test_numbers_and_bytes_on_the_device(backend, name):
    packed = quantized(name, 37, 768)
    placed = backend.tensor(packed)
    assert isinstance(placed, grilly.QuantizedTensor) and (placed.shape, placed.type) == (packed.shape, name)
    assert (placed.ndim, placed.size, len(placed)) == (2, 37 * 768, 37) and placed.backend is backend
    assert packed.nbytes <= placed.nbytes <= 1.12 * packed.nbytes
    np.testing.assert_array_equal(placed.dequantize().numpy(), packed.dequantize())
    for dtype in (np.float16, *([BFLOAT16] if BFLOAT16 else [])):
        np.testing.assert_array_equal(placed.dequantize(dtype).numpy(), packed.dequantize().astype(dtype))
    assert "device=" in repr(placed) and backend.tensor(placed) is placed


@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "Q8_0", "MXFP4"])
def test_rows_of_odd_blocks_and_more_axes(vulkan_backend, name):
    packed = quantized(name, 15, 96)
    whole = grilly.QuantizedTensor(packed.data, (3, 5, 96), name)
    placed = vulkan_backend.tensor(whole)
    np.testing.assert_array_equal(placed.dequantize().numpy(), whole.dequantize())


def test_the_least_and_largest_scales(vulkan_backend):
    """Denormal scales, infinite ones and those that are no numbers; of MXFP4 numbers below 2**-123 may be 0."""
    for name in ("Q4_0", "Q4_1", "Q6_K", "MXFP4", "NVFP4"):
        one = TYPES[name]
        raw = np.random.default_rng(3).integers(0, 256, (50, 3 * one.nbytes), np.uint8)
        packed = grilly.QuantizedTensor(raw, (50, 3 * one.block), name)
        found, wanted = vulkan_backend.tensor(packed).dequantize().numpy(), packed.dequantize()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2.0**-122 if name == "MXFP4" else 0)


@pytest.mark.parametrize("name", READ)
def test_linear_layers(vulkan_backend, name):
    """Few rows and many, of odd numbers of columns."""
    packed = quantized(name, 45, 512)
    weight = vulkan_backend.tensor(packed)
    for rows in (1, 2, 3, 7, 33):
        x = drawn(rows, 512)
        assert_product(F.linear(vulkan_backend.tensor(x), weight).numpy(), x, name, packed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "Q5_0", "IQ4_NL"])
def test_dtypes_and_runtimes(backend, name, dtype):
    """Of 16 bits the weight is rounded to x's dtype where there are many rows."""
    packed = quantized(name, 70, 256)
    weight = backend.tensor(packed)
    for rows in (1, 40):
        x = drawn(rows, 256, dtype=dtype)
        found = F.linear(backend.tensor(x), weight).numpy()
        assert_product(found, x, name, packed, None if rows == 1 or dtype == np.float32 else dtype)


@pytest.mark.parametrize("rows", [1, 3, 24])
@pytest.mark.parametrize("name", ["Q4_0", "Q4_K"])
def test_what_layers_begin_and_end_with(vulkan_backend, name, rows):
    packed = quantized(name, 54, 256)
    weight, plain = vulkan_backend.tensor(packed), packed.dequantize()
    x, bias, norm = drawn(2, rows, 256), drawn(54), drawn(256, seed=2)
    own = vulkan_backend.tensor(x)
    for gated in (False, True):
        given = {"activation": "silu", "gated": gated, "residual": drawn(2, rows, 27 if gated else 54),
                 "norm_weight": norm, "norm_eps": 1e-5}  # fmt: skip
        found, wanted = (F.linear(own, one, bias, **given).numpy() for one in (weight, plain))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_views_of_x(vulkan_backend):
    packed = quantized("Q5_1", 40, 64)
    weight, plain = vulkan_backend.tensor(packed), packed.dequantize().astype(np.float64)
    x = drawn(4, 6, 131)
    for view in (lambda a: a[:, :, 3:67], lambda a: a[1, :2, 4:68], lambda a: a[0, :, 1:129:2], lambda a: a[:1, 0, :64],
                 lambda a: a.transpose(1, 0, 2)[:3, :, 8:72], lambda a: a[0, 0, :64]):  # fmt: skip
        found = F.linear(view(vulkan_backend.tensor(x)), weight).numpy()
        np.testing.assert_allclose(found, view(x) @ plain.T, rtol=1e-4, atol=1e-5)
    assert F.linear(vulkan_backend.tensor(x[:0, 0, :64]), weight).shape == (0, 40)


def test_embeddings(backend):
    for name in ("Q8_0", "Q6_K", "NVFP4"):
        packed = quantized(name, 29, 256)
        table, ids = backend.tensor(packed), np.random.default_rng(4).integers(0, 29, (3, 5))
        found = F.embedding(ids, table)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found.numpy(), packed.dequantize()[ids])
        np.testing.assert_array_equal(F.embedding(backend.tensor(ids.astype(np.int32)), table).numpy(), found.numpy())
    outside = F.embedding(backend.tensor(np.array([-1, -99, 29, 2**40])), table).numpy()
    np.testing.assert_array_equal(outside, packed.dequantize()[[28, 0, 28, 28]])


def test_tensors_of_the_host(vulkan_backend):
    packed, x = quantized("Q4_1", 8, 64), drawn(2, 64)
    found = F.linear(x, packed)
    assert isinstance(found, np.ndarray)
    assert_product(found, x, "Q4_1", packed)
    assert isinstance(F.embedding([1, 2], packed), np.ndarray)


def test_gradients(vulkan_backend):
    """By x and by the bias; the weight has none."""
    packed, x, grad = quantized("Q4_K", 70, 256), drawn(2, 9, 256), drawn(2, 9, 70)
    weight = vulkan_backend.tensor(packed)
    dx, dweight, dbias = F.linear_backward(vulkan_backend.tensor(grad), x, weight)
    assert dweight is None
    wanted = F.linear_backward(grad, x, packed.dequantize())
    np.testing.assert_allclose(dx.numpy(), wanted[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dbias.numpy(), wanted[2], rtol=1e-5, atol=1e-5)
    layer = nn.Linear(256, 70).train()
    layer.weight.data = weight
    layer(vulkan_backend.tensor(x))
    np.testing.assert_array_equal(layer.backward(vulkan_backend.tensor(grad)).numpy(), dx.numpy())
    assert layer.weight.grad is None and layer.bias.grad is not None
    with pytest.raises(TypeError, match="add_grad: a quantized weight has no gradient"):
        layer.weight.add_grad(np.zeros((70, 256), np.float32))
    assert copy.deepcopy(layer).weight.data is weight
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(layer)).weight.numpy(), packed.dequantize())


def test_captured_calls(vulkan_backend):
    packed, x = quantized("Q8_0", 24, 96), vulkan_backend.tensor(drawn(1, 96))
    weight = vulkan_backend.tensor(packed)
    graph = vulkan_backend.capture(lambda x: F.linear(x, weight, activation="relu"), x)
    np.testing.assert_array_equal(graph(x).numpy(), F.linear(x, weight, activation="relu").numpy())


def test_what_is_refused(vulkan_backend):
    packed = quantized("Q4_0", 6, 64)
    weight, x = vulkan_backend.tensor(packed), drawn(2, 64)
    with pytest.raises(ValueError, match="linear: input has shape"):
        F.linear(x[:, :32], weight)
    with pytest.raises(ValueError, match="linear: bias has shape"):
        F.linear(x, packed, x[0])
    with pytest.raises(TypeError, match="linear: input is float64"):
        F.linear(x.astype(np.float64), weight)
    with pytest.raises(TypeError, match="Q8_K; kernels read Q8_0, .*"):
        F.linear(drawn(1, 256), grilly.QuantizedTensor(np.zeros(292, np.uint8), (1, 256), "Q8_K"))
    with pytest.raises(TypeError, match="F16; kernels read .*; give tensor's dequantize"):
        vulkan_backend.tensor(grilly.quantize(x, "F16"))
    with pytest.raises(ValueError, match="expected one with numbers"):
        vulkan_backend.tensor(grilly.quantize(x[:0], "Q4_0"))
    with pytest.raises(IndexError, match="embedding: input has the id 6"):
        F.embedding([6], weight)
    with pytest.raises(TypeError, match="dequantize: dtype int32"):
        weight.dequantize("int32")
    with pytest.raises(AttributeError, match="has no data"):
        weight.data  # noqa: B018
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(weight)
    with pytest.raises(TypeError, match="a quantized tensor on the host"):
        nn.Parameter(packed)
    with grilly.Compute(runtime="vulkan") as other, pytest.raises(ValueError, match="another backend"):
        other.tensor(weight)
