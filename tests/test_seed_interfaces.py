"""nn.FlashAttention, FlashConfig with F.flash_attention, F.naive_attention and the benchmark."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np
import pytest

import grilly
import grilly.functional as F
from backends import has_sixteen_bits
from cases import DTYPES, SIXTEEN_BITS, epsilon
from grilly import nn, reference
from kernels import keeps_nothing, pretend, view_of


def draw(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


@pytest.fixture
def device(backend):
    """The fixture's backend, as the default one."""
    former = grilly.use(backend)
    gc.collect()
    backend.synchronize()
    yield backend
    grilly.use(former)


# -- nn.FlashAttention -----------------------------------------------------------------------------------------------


def operands(dtype=np.float32, kv_heads=4):
    return (
        draw(2, 4, 33, 32, dtype=dtype, seed=1),
        draw(2, kv_heads, 47, 32, dtype=dtype, seed=2),
        draw(2, kv_heads, 47, 24, dtype=dtype, seed=3),
    )


def padding():
    mask = np.arange(47) < np.array([[47], [29]])
    mask[0, 5] = False
    return mask


@pytest.mark.parametrize("i, j", [(3, 3), (2, 5), (5, 2), (1, 1), (4, 0)])
def test_get_mask_hides_what_causal_hides(i, j):
    mask = nn.FlashAttention().get_mask(i, j)
    assert mask.shape == (i, j) and mask.dtype == bool
    for row in range(i):
        for key in range(j):
            assert mask[row, key] == (key > row + j - i)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("given", ["nothing", "mask", "bias", "both"])
def test_flash_and_stored_agree(device, given, causal, dtype):
    q, k, v = operands(dtype)
    mask = padding() if given in ("mask", "both") else None
    bias = draw(1, 4, 33, 47) if given in ("bias", "both") else None
    where = None if mask is None else mask[:, None, None]
    exact, _ = reference.naive_attention(q, k, v, mask=where, attn_bias=bias, causal=causal, dtype=np.float64)
    results = []
    for flash in (True, False):
        layer = nn.FlashAttention(causal=causal, flash=flash)
        results.append(layer(q, k, v, mask=mask, attn_bias=bias))
        assert results[-1].shape == (2, 4, 33, 24) and results[-1].dtype == dtype
        error = np.abs(results[-1].astype(np.float64) - exact).max()
        assert error <= 4 * max(epsilon(dtype), 5e-7) * np.abs(v.astype(np.float64)).max()
    alone = layer.flash_attn(q, k, v, mask=mask, attn_bias=bias)
    np.testing.assert_array_equal(alone, results[0])


def test_paths_differ_in_memory(device):
    """flash=False stores the matrices, flash=True does not: else the setting would do nothing."""
    q, k = device.tensor(draw(1, 2, 512, 16)), device.tensor(draw(1, 2, 512, 16, seed=1))
    used = []
    for flash in (True, False):
        nn.FlashAttention(flash=flash)(q, k, k)  # the first call may try kernels on small problems
        before = device.memory(reset_peak=True).in_use
        nn.FlashAttention(flash=flash)(q, k, k)
        used.append(device.memory().peak - before)
    assert used[0] < 4 * q.nbytes < 2 * 4 * 2 * 512 * 512 <= used[1]


@pytest.mark.parametrize("flash", [True, False])
def test_shared_and_grouped_heads_and_tensors(device, flash):
    layer = nn.FlashAttention(flash=flash, causal=True)
    q, k, v = operands(kv_heads=1)
    exact, _ = reference.naive_attention(q, k, v, causal=True, dtype=np.float64)
    np.testing.assert_allclose(layer(q, k, v), exact, rtol=0, atol=2e-6)
    np.testing.assert_allclose(layer(q, k[:, 0], v[:, 0]), exact, rtol=0, atol=2e-6)
    out = layer(device.tensor(q), k, v)
    assert isinstance(out, grilly.Tensor)
    np.testing.assert_allclose(out.numpy(), exact, rtol=0, atol=2e-6)
    q, k, v = operands(kv_heads=2)
    exact, _ = reference.naive_attention(q, k, v, mask=padding()[:, None, None], causal=True, dtype=np.float64)
    np.testing.assert_allclose(layer(q, k, v, mask=device.tensor(padding())), exact, rtol=0, atol=2e-6)


@pytest.mark.parametrize("flash", [True, False])
def test_a_sample_of_padding_is_zeros(device, flash):
    q, k, v = operands()
    mask = padding()
    mask[1] = False
    out = nn.FlashAttention(flash=flash)(q, k, v, mask=mask)
    assert not out[1].any() and out[0].all()


def test_dropout_only_in_training_and_the_same_on_both_paths(device):
    q, k, v = operands()
    results = []
    for flash in (True, False):
        layer = nn.FlashAttention(dropout=0.4, flash=flash)
        assert layer.training
        grilly.manual_seed(7)
        results.append(layer(q, k, v, mask=padding()))
        plain = layer.eval()(q, k, v, mask=padding())
        assert np.abs(plain - results[-1]).max() > 0.1
        exact, _ = reference.naive_attention(q, k, v, mask=padding()[:, None, None], dtype=np.float64)
        np.testing.assert_allclose(plain, exact, rtol=0, atol=2e-6)
    np.testing.assert_allclose(*results, rtol=0, atol=4e-6)
    weights = reference.attention_weights(q.astype(np.float64), k.astype(np.float64), mask=padding()[:, None, None])
    kept = reference.dropout_mask(weights.shape, 0.4, 7, 0)
    np.testing.assert_allclose(results[0], weights * kept / 0.6 @ v, rtol=0, atol=4e-6)


X = np.zeros((2, 4, 5, 8), np.float32)


@pytest.mark.parametrize(
    "arrays, options, error, message",
    [
        ((X[0], X, X), {}, ValueError, "expected .B, H, Sq, D."),
        ((X, X[:, 0], X), {}, ValueError, "expected .B, H, Sq, D."),
        ((X, X, X[:, :2]), {}, ValueError, "k has 4 heads and v has 2"),
        ((X, X, X), {"mask": np.ones((5, 5), bool)}, ValueError, "mask has shape .5, 5.; with two axes"),
        ((X, X, X), {"mask": np.ones((2, 5), np.float32)}, TypeError, "give what is added as attn_bias"),
        ((X, X, X), {"attn_bias": np.ones((5, 5), bool)}, TypeError, "attn_bias is bool"),
        ((X, X, X), {"attn_bias": np.ones((4, 5), np.float32)}, ValueError, "does not broadcast"),
        ((X, X, [1.0]), {}, TypeError, "v is a list"),
    ],
)
@pytest.mark.parametrize("flash", [True, False])
def test_layer_errors(device, flash, arrays, options, error, message):
    with pytest.raises(error, match=message):
        nn.FlashAttention(flash=flash)(*arrays, **options)


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_layer_dropout_range(dropout):
    with pytest.raises(ValueError, match="dropout"):
        nn.FlashAttention(dropout=dropout)


# -- FlashConfig -----------------------------------------------------------------------------------------------------


def labels(backend, call):
    """The shader variants that a call dispatches."""
    names = []
    dispatch = backend.runtime.dispatch
    backend.runtime.dispatch = lambda program, *rest, **more: (
        names.append(program.spec.name), dispatch(program, *rest, **more))[1]  # fmt: skip
    try:
        call()
    finally:
        del backend.runtime.dispatch
    return names


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [16, 64, 80, 200])
def test_config_of_a_head_dimension_is_the_registrys_choice(device, dim, causal):
    config = grilly.FlashConfig.for_head_dim(dim, device, causal=causal)
    assert config.causal == causal and config.scale is None
    tiles = {(v.tile["rows"], v.tile["keys"]) for v in device.registry.manifest.by_operation["attention"]}
    assert (config.block_q, config.block_kv) in tiles
    q = draw(1, 2, 160, dim)
    result = F.flash_attention(q, q, q, config)
    exact, _ = reference.naive_attention(q, q, q, causal=causal, dtype=np.float64)
    np.testing.assert_allclose(result.output, exact, rtol=2e-6, atol=3e-6)
    if causal:
        assert config == grilly.FlashConfig.causal_for_head_dim(dim)


def test_blocks_choose_the_kernel(device):
    """Every tile that serves the call is the one that runs when it is asked for; all agree."""
    q, k, v = draw(1, 4, 70, 64), draw(1, 2, 90, 64, seed=1), draw(1, 2, 90, 64, seed=2)
    exact, _ = reference.naive_attention(q, k, v, scale=0.2, dtype=np.float64)
    with pytest.raises(ValueError, match=r"block_q=7.*there are \(block_q, block_kv\) = \(") as caught:
        F.flash_attention(q, k, v, grilly.FlashConfig(block_q=7))
    text = str(caught.value).split("= ")[-1]
    there = [tuple(map(int, pair.split(", "))) for pair in text.strip("()").split("), (")]
    assert len(there) >= 2
    if device.runtime.name == "kompute":  # the plans are the same, and its pipelines are compiled for each call
        there = there[:2]
    ran = set()
    variants = {v.name: v for v in device.registry.manifest.by_operation["attention"]}
    for rows, keys in there:
        config = grilly.FlashConfig(rows, keys, scale=0.2)
        results = []
        names = labels(device, lambda c=config, r=results: r.append(F.flash_attention(q, k, v, c)))
        assert len(names) == 1 and variants[names[0]].tile == {"rows": rows, "keys": keys}
        np.testing.assert_allclose(results[0].output, exact, rtol=0, atol=3e-6)
        ran.update(names)
    assert len(ran) == len(there)
    one = grilly.FlashConfig(block_kv=there[0][1])
    names = labels(device, lambda: F.flash_attention(q, k, v, one))
    assert variants[names[0]].tile["keys"] == there[0][1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("blocks", [(64, 64), (128, 128), (None, 80)], ids=str)
def test_blocks_are_a_wish(device, blocks, dtype):
    """What other libraries' examples write works on every device, and the result says which blocks were used."""
    q, k = draw(1, 2, 70, 64, dtype=dtype), draw(1, 2, 90, 64, dtype=dtype, seed=1)
    F.flash_attention(q, k, k, grilly.FlashConfig(*blocks))  # the first call may try kernels on small problems
    results = []
    names = labels(device, lambda: results.append(F.flash_attention(q, k, k, grilly.FlashConfig(*blocks))))
    exact, _ = reference.naive_attention(q, k, k, dtype=np.float64)
    assert np.abs(results[0].output.astype(np.float64) - exact).max() <= 4 * max(epsilon(dtype), 1e-6)
    tiles = [(v.tile["rows"], v.tile["keys"]) for v in device.registry.manifest.by_operation["attention"]
             if v.name in names]  # fmt: skip
    assert tiles == [results[0].blocks]
    output, nbytes, saved = results[0]
    assert output is results[0].output and nbytes == results[0].memory_bytes
    assert saved == results[0].memory_saved_percent


def test_blocks_of_the_registrys_choice_are_told(device):
    q, k = draw(1, 2, 300, 64), draw(1, 2, 1, 64)
    config = grilly.FlashConfig.for_head_dim(64, device)
    assert F.flash_attention(q, q, q, config).blocks == (config.block_q, config.block_kv)
    tiles = {(v.tile["rows"], v.tile["keys"]) for v in device.registry.manifest.by_operation["attention"]}
    assert F.flash_attention(q, q, q).blocks in tiles
    assert F.flash_attention(k[:, :, :0], k, k).blocks is None


@pytest.mark.parametrize("queries", [1, 8])
@pytest.mark.parametrize("dim", [1, 6, 63])
def test_kernels_that_a_call_can_do_without_are_not_missed(device, dim, queries):
    """Those for few queries do not take rows of every length."""
    q, k = draw(1, 2, queries, dim), draw(1, 2, 9, dim)
    result = F.flash_attention(q, k, k)
    assert np.array_equal(result.output, F.flash_attention2(q, k, k)) and result.blocks is not None


def test_a_device_without_kernels_for_shares_of_keys(device, monkeypatch):
    """Of many keys other devices' plans ask for them first."""
    if not has_sixteen_bits(device):
        pytest.skip("the device has no float16 storage")
    pretend(monkeypatch, device, architecture="rdna3")
    q, k = draw(1, 1, 512, 64, dtype=np.float16), draw(1, 1, 1024, 64, dtype=np.float16)
    assert F.flash_attention(q, k, k).blocks is not None


def test_blocks_serve_one_query_and_tensors_stay_at_home(device):
    q, k = device.tensor(draw(1, 2, 1, 64)), device.tensor(draw(1, 2, 2000, 64))
    config = grilly.FlashConfig.for_head_dim(64, device)
    out = F.flash_attention(q, k, k, config).output
    assert isinstance(out, grilly.Tensor) and out.backend is device
    again = F.flash_attention2(out, k, k)  # takes it beside tensors of the backend
    assert again.shape == (1, 2, 1, 64)
    plain = F.flash_attention(q, k, k)
    np.testing.assert_allclose(out.numpy(), plain.output.numpy(), rtol=0, atol=2e-6)
    assert keeps_nothing(view_of(device)) and plain.output.backend is device


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_are_those_allocated(device, dtype):
    """Of flash: the output. Of naive: two float32 matrices. Sizes are rounded up to pages."""
    q, k = draw(2, 3, 300, 32, dtype=dtype), draw(2, 3, 400, 32, dtype=dtype, seed=1)
    kept = [device.tensor(a) for a in (q, k)]
    result = F.flash_attention(kept[0], kept[1], kept[1])
    wide = "float16-storage" not in device.runtime.features and dtype != np.float32
    if not wide:  # otherwise there are float32 copies of the inputs too
        assert q.nbytes <= result.memory_bytes <= q.nbytes + 4096
    scores = 4 * 2 * 3 * 300 * 400
    out, nbytes = F.naive_attention(*kept, kept[1])
    assert 2 * scores <= nbytes <= 2 * scores + (5 * 4 * k.size if wide else 2 * 4096)
    np.testing.assert_allclose(result.memory_saved_percent, 100 * (1 - result.memory_bytes / (2 * scores)), rtol=1e-3)
    exact, _ = reference.naive_attention(q, k, k, dtype=np.float64)
    for array in (out, result.output):
        assert isinstance(array, grilly.Tensor)
        assert np.abs(array.numpy().astype(np.float64) - exact).max() <= 4 * max(epsilon(dtype), 5e-7)


def test_saving_where_the_output_is_larger_than_the_scores(device):
    """Few keys: naive attention's peak is the weights with the output."""
    q, k = draw(1, 4, 2048, 64), draw(1, 4, 8, 64)
    result = F.flash_attention(q, k, k)
    _, naive = F.naive_attention(q, k, k)
    assert isinstance(result.output, np.ndarray)
    assert result.memory_saved_percent == pytest.approx(100 * (1 - result.memory_bytes / naive), abs=0.5)
    assert 0 < result.memory_saved_percent < 50


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_blocks_of_sixteen_bits(device, dtype):
    q = draw(1, 2, 70, 64, dtype=dtype)
    config = grilly.FlashConfig.for_head_dim(64, device, dtype=dtype)
    exact, _ = reference.naive_attention(q, q, q, dtype=np.float64)
    F.flash_attention(q, q, q, config)  # the first call may try kernels on small problems
    for array in (q, device.tensor(q)):
        results = []
        names = labels(device, lambda a=array, r=results: r.append(F.flash_attention(a, a, a, config)))
        tiles = [v.tile for v in device.registry.manifest.by_operation["attention"] if v.name in names]
        assert tiles == [{"rows": config.block_q, "keys": config.block_kv}]
        assert results[0].output.dtype == dtype
        output = np.asarray(results[0].output).astype(np.float64)
        assert np.abs(output - exact).max() <= 4 * epsilon(dtype)


def test_nothing_to_attend(device):
    x = np.zeros((1, 2, 0, 16), np.float32)
    y = np.ones((1, 2, 3, 16), np.float32)
    assert F.flash_attention(x, y, y, grilly.FlashConfig(block_q=64)).output.shape == (1, 2, 0, 16)
    assert not F.flash_attention(y, x, x).output.any()


def test_config_is_a_value():
    config = grilly.FlashConfig()
    assert dataclasses.astuple(config) == (None, None, None, False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.block_q = 64
    assert hash(config) == hash(grilly.FlashConfig())
    numbers = grilly.FlashConfig(block_q=np.int64(64), block_kv=np.uint8(32))
    assert numbers == grilly.FlashConfig(64, 32) and type(numbers.block_q) is type(numbers.block_kv) is int


@pytest.mark.parametrize("blocks", [{"block_q": 0}, {"block_kv": -1}, {"block_q": 2.0}, {"block_q": True}])
def test_config_errors(blocks):
    with pytest.raises(ValueError, match="expected a positive integer"):
        grilly.FlashConfig(**blocks)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: F.flash_attention(X, X, X, 64), TypeError, "config is a int"),
        (lambda: F.flash_attention(X, X[:, :3], X[:, :3]), ValueError, "k has 3 heads and q has 4"),
        (lambda: F.naive_attention(X, X[:, :3], X[:, :3]), ValueError, "k has 3 heads and q has 4"),
        (lambda: F.naive_attention(X, X, X, float("nan")), ValueError, "scale is nan"),
        (lambda: F.naive_attention(X, X, X.astype(np.float64)), TypeError, "v is float64"),
        (lambda: grilly.FlashConfig.for_head_dim(577), ValueError, "head_dim is 577"),
        (lambda: grilly.benchmark_flash_attention(config=grilly.FlashConfig(causal=True)), ValueError, "is True"),
        (lambda: grilly.benchmark_flash_attention(repeat=0), ValueError, "repeat is 0"),
    ],
)
def test_errors(device, call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_benchmark(device, capsys):
    rows = grilly.benchmark_flash_attention((64, 128), heads=2, head_dim=32, repeat=2)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2 + len(rows) and device.device.name in printed[0]
    for row, line in zip(rows, printed[2:], strict=True):
        assert line.split()[0] == str(row.length)
        assert row.flash_seconds > 0 and row.naive_seconds > 0 and row.difference < 1e-5
        assert row.flash_bytes >= 4 * 2 * row.length * 32 and row.naive_bytes >= 2 * 4 * 2 * row.length**2
    assert grilly.benchmark_flash_attention((64,), repeat=1, show=False) and not capsys.readouterr().out
