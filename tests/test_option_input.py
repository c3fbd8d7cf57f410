"""What attention takes beside q, k and v: arrays of any type mean the same forward and backward, numbers that do not
fit are refused, and none is cut to 32 bits unseen."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import grilly
from grilly import functional as F
from grilly import nn, reference

RNG = np.random.default_rng(7)
B, H, S, D = 2, 2, 6, 8
Q, K, V, G = RNG.standard_normal((4, B, H, S, D), dtype=np.float32)
FAR = 2**32

FLOAT_OPTIONS = {
    "sinks": (H,),
    "alibi_slopes": (H,),
    "t5_table": (8, H),
    "attn_bias": (H, S, S),
}
AS = {
    "float16": lambda a: a.astype(np.float16),
    "bfloat16": lambda a: a.astype(ml_dtypes.bfloat16),
    "float64": lambda a: a.astype(np.float64),
    "list": lambda a: a.tolist(),
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "big-endian": lambda a: a.astype(">f4"),
}
GRADIENT_OF = {"sinks": "return_dsinks", "t5_table": "return_dt5_table", "attn_bias": "return_dbias"}


def both_ways(backend, **options):
    """The output, and all gradients that there are."""
    asked = {flag: True for name, flag in GRADIENT_OF.items() if name in options}
    out, lse = backend.attention.flash_attention2(Q, K, V, return_lse=True, **options)
    return [out, *backend.attention.flash_attention2_backward(G, Q, K, V, out, lse, **options, **asked)]


@pytest.mark.parametrize(
    "name, kind",
    # A bias is an array of the machine's byte order, as a mask is.
    [(n, k) for n in FLOAT_OPTIONS for k in AS if n != "attn_bias" or k not in ("list", "big-endian")],
)
def test_a_float_option_of_any_type(backend, name, kind):
    """The same values in float32 give the same bits, forward and backward."""
    given = AS[kind]((np.arange(np.prod(FLOAT_OPTIONS[name])) % 7 / 4 - 0.5).reshape(FLOAT_OPTIONS[name]))
    plain = np.asarray(given).astype(np.float32)
    for one, other in zip(both_ways(backend, **{name: given}), both_ways(backend, **{name: plain}), strict=True):
        assert np.array_equal(one, other)


def test_sinks_gradient_of_16_bits_is_right(backend):
    sinks = np.array([1.0, -0.5], np.float16)
    exact = reference.attention_backward(G, Q, K, V, sinks=sinks.astype(np.float64), dtype=np.float64)
    dsinks = both_ways(backend, sinks=sinks)[4]
    assert np.abs(dsinks - exact.dsinks).max() < 1e-5


@pytest.mark.parametrize("name", FLOAT_OPTIONS)
def test_a_tensor_of_16_bits_is_refused_both_ways(backend, name):
    """Or, for a bias, taken both ways."""
    given = backend.tensor(np.full(FLOAT_OPTIONS[name], 0.5, np.float16))
    out = np.zeros_like(Q)
    calls = (
        lambda: backend.attention.flash_attention2(Q, K, V, **{name: given}),
        lambda: backend.attention.flash_attention2_backward(G, Q, K, V, out, out[..., 0].copy(), **{name: given}),
    )
    if name == "attn_bias":
        same = both_ways(backend, attn_bias=np.full(FLOAT_OPTIONS[name], 0.5, np.float32))
        assert all(np.array_equal(a, b) for a, b in zip(both_ways(backend, attn_bias=given), same, strict=True))
        return
    for call in calls:
        with pytest.raises(TypeError, match=f"{name} is a Tensor of float16"):
            call()


def test_packed_sinks_of_16_bits(by_default):
    q, k, v, g = (np.ascontiguousarray(a[0].swapaxes(0, 1)) for a in (Q, K, V, G))
    starts = [0, 2, S]

    def gradient(sinks):
        out, lse = F.flash_attention_varlen(q, k, v, starts, starts, S, S, sinks=sinks, return_lse=True)
        grads = F.flash_attention_varlen_backward(
            g, q, k, v, out, lse, starts, starts, S, S, sinks=sinks, return_dsinks=True
        )
        return grads[3]

    exact = gradient(np.array([1.0, -0.5], np.float32))
    for sinks in (np.array([1.0, -0.5], np.float16), [1.0, -0.5], np.array([1.0, -0.5])):
        assert np.array_equal(gradient(sinks), exact)


# -- integers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [FAR, -FAR, 2**40, np.uint64(2**63)])
def test_segments_that_differ_beyond_32_bits(backend, far):
    ids = np.array([[7, 7, 7, 1, 1, 1]], np.int64 if not isinstance(far, np.uint64) else np.uint64)
    ids[:, 1:3] += far
    near = np.array([[7, 8, 8, 1, 1, 1]], np.int32)
    given = ids if isinstance(far, np.uint64) else ids.tolist()
    out = backend.attention.flash_attention2(Q, K, V, segment_ids=given)
    assert np.array_equal(out, backend.attention.flash_attention2(Q, K, V, segment_ids=near))
    exact = reference.naive_attention(Q, K, V, segment_ids=ids, dtype=np.float64)[0]
    assert np.abs(out - exact).max() < 1e-5


def test_segments_of_two_types(backend):
    """uint64 beside int64, which NumPy would compare as float64: 2**63 + 1 and 2**63 are two documents."""
    rows = np.array([[2**63, 2**63 + 1, 5, 5, 5, 5]], np.uint64)
    keys = np.array([[5, 5, -1, -1, 2**62, 2**62]], np.int64)
    out = backend.attention.flash_attention2(Q, K, V, segment_ids=(rows, keys))
    near = (np.array([[1, 2, 5, 5, 5, 5]]), np.array([[5, 5, 7, 7, 8, 8]]))
    assert np.array_equal(out, backend.attention.flash_attention2(Q, K, V, segment_ids=near))


def test_segments_beside_a_tensor(backend):
    near = np.array([[1, 1, 1, 2, 2, 2]], np.int32)
    with pytest.raises(ValueError, match="fit int32"):
        backend.attention.flash_attention2(Q, K, V, segment_ids=(backend.tensor(near), near + np.int64(FAR)))


def test_a_list_of_two_rows_is_one_array(backend):
    """With two samples a list of two lists is an array of two rows, and not queries' and keys' ids."""
    ids = [[1, 1, 1, 2, 2, 2], [1, 2, 2, 2, 2, 2]]
    out = backend.attention.flash_attention2(Q, K, V, segment_ids=ids)
    assert np.array_equal(out, backend.attention.flash_attention2(Q, K, V, segment_ids=np.array(ids)))


TOO_FAR = {
    "seqlens_k": [FAR + 2, 3],
    "seqlens_q": [2, FAR],
    "prefix_len": [2, FAR + 1],
}


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@pytest.mark.parametrize("name", TOO_FAR)
def test_lengths_beyond_32_bits(backend, name, dtype):
    with pytest.raises(ValueError, match=name):
        backend.attention.flash_attention2(Q, K, V, causal=True, **{name: np.array(TOO_FAR[name], dtype)})
    with pytest.raises(ValueError, match=name):
        backend.attention.flash_attention2(Q, K, V, causal=True, **{name: np.array([-1, 0], np.int8)})


@pytest.mark.parametrize("name", ["seqlens_q", "seqlens_k"])
@pytest.mark.parametrize("numbers", [[S + 1, 2], [-1, 2]])
def test_lengths_in_a_tensor_are_checked(backend, name, numbers):
    given = backend.tensor(np.array(numbers, np.int32))
    with pytest.raises(ValueError, match=f"{name} goes from"):
        backend.attention.flash_attention2(Q, K, V, **{name: given})


def test_small_unsigned_lengths_are_taken(backend):
    exact = reference.naive_attention(Q, K, V, seqlens_k=np.array([2, 6]), dtype=np.float64)[0]
    for dtype in (np.uint8, np.uint64, np.int64):
        out = backend.attention.flash_attention2(Q, K, V, seqlens_k=np.array([2, 6], dtype))
        assert np.abs(out - exact).max() < 1e-5


def test_block_sizes_beyond_32_bits(backend):
    """A block larger than the scores is one block, whatever its size."""
    out = backend.attention.flash_attention2(
        Q, K, V, block_map=np.ones((1, 1, 1, 1), bool), block_size=(FAR + 2, FAR + 3)
    )
    assert np.array_equal(out, backend.attention.flash_attention2(Q, K, V, kernel="attention-naive")) or (
        np.abs(out - backend.attention.flash_attention2(Q, K, V)).max() < 1e-6
    )


def test_integers_of_caches_and_packed_sequences(by_default):
    cache = np.ones((B, S, H, D), np.float32)
    for lengths in (FAR + 2, 2**70, -1, np.array([FAR + 2, 1]), np.array([2**64 - 1, 1], np.uint64)):
        with pytest.raises(ValueError, match="cache_seqlens"):
            F.flash_attention_with_kvcache(cache, cache, cache, cache_seqlens=lengths)
    for lengths in (2.0, True, "2", np.array([1.0, 2.0])):
        with pytest.raises(TypeError, match="cache_seqlens"):
            F.flash_attention_with_kvcache(cache, cache, cache, cache_seqlens=lengths)
    pages = np.array([[FAR], [0]])
    with pytest.raises(ValueError, match="page_table"):
        F.flash_attention_with_kvcache(cache, cache, cache, cache_seqlens=2, page_table=pages)
    packed = np.ones((S, H, D), np.float32)
    for starts in ([0, FAR + S], np.array([0, 2**64 - 2, S], np.uint64)):
        with pytest.raises(ValueError, match="cu_seqlens_q"):
            F.flash_attention_varlen(packed, packed, packed, starts, starts, S, S)
    with pytest.raises(TypeError, match="max_seqlen_q"):
        F.flash_attention_varlen(packed, packed, packed, [0, S], [0, S], 6.0, S)
    far = (np.arange(S) + FAR, np.arange(S, dtype=np.uint64) - 1, np.arange(S) - 1)
    for options in ({"offset": FAR}, *({"positions": positions} for positions in far)):
        with pytest.raises(ValueError, match="rope"):
            F.rope(Q, **options)


def test_packed_reference_reads_unsigned_starts():
    packed = np.ones((S, H, D), np.float32)
    with pytest.raises(ValueError, match="rise"):
        reference.attention_varlen(packed, packed, packed, np.array([0, 4, 2, S], np.uint64), np.array([0, 1, 2, S]))


# -- numbers ---------------------------------------------------------------------------------------------------------

REFUSED = [
    ({"scale": 1e39}, ValueError, "scale"),
    ({"scale": -1e39}, ValueError, "scale"),
    ({"scale": 3e38}, ValueError, "scale"),
    ({"scale": 10**400}, ValueError, "scale"),
    ({"scale": "1"}, TypeError, "scale"),
    ({"scale": 1j}, TypeError, "scale"),
    ({"softcap": float("inf")}, ValueError, "softcap"),
    ({"softcap": float("nan")}, ValueError, "softcap"),
    ({"softcap": -1.0}, ValueError, "softcap"),
    ({"softcap": None}, TypeError, "softcap"),
    ({"window_size": (1.0, 2)}, TypeError, "window_size"),
    ({"window_size": (True, 2)}, TypeError, "window_size"),
    ({"window_size": 3}, TypeError, "window_size"),
    ({"window_size": (-2, 2)}, ValueError, "window_size"),
    ({"dropout_p": 1.0}, ValueError, "dropout_p"),
    ({"dropout_p": -0.1}, ValueError, "dropout_p"),
    ({"dropout_p": float("nan")}, ValueError, "dropout_p"),
    ({"dropout_p": "0.5"}, TypeError, "dropout_p"),
    ({"dropout_p": 0.5, "dropout_seed": 2**64}, ValueError, "dropout_seed"),
    ({"dropout_p": 0.5, "dropout_seed": 1.0}, TypeError, "dropout_seed"),
    ({"dropout_p": 0.5, "dropout_offset": -1}, ValueError, "dropout_offset"),
    ({"block_map": np.ones((1, 1, 3, 3), bool), "block_size": (2.0, 2)}, ValueError, "block_size"),
    ({"block_map": np.ones((1, 1, 3, 3), bool), "block_size": 2}, ValueError, "block_size"),
    ({"sinks": [1.0, [2.0]]}, ValueError, "sinks"),
    ({"sinks": ["a", "b"]}, TypeError, "sinks"),
    ({"t5_table": [[0.0, 0.0]] * 8, "t5_max_distance": 9.5}, TypeError, "t5_max_distance"),
    ({"segment_ids": [[1, 1], [1]]}, ValueError, "segment_ids"),
    ({"segment_ids": [[1.0] * S]}, TypeError, "segment_ids"),
    ({"seqlens_k": [1.5, 2]}, TypeError, "seqlens_k"),
    ({"seqlens_k": [True, False]}, TypeError, "seqlens_k"),
]  # fmt: skip


@pytest.mark.parametrize("options, error, word", REFUSED, ids=[str(list(r[0].items())[-1]) for r in REFUSED])
def test_numbers_that_are_refused(backend, monkeypatch, options, error, word):
    def no_work(*arguments, **options):
        raise AssertionError("device work was recorded")

    for name in ("dispatch", "write"):
        monkeypatch.setattr(backend.runtime, name, no_work)
    out = np.zeros_like(Q)
    for call in (
        lambda: backend.attention.flash_attention2(Q, K, V, **options),
        lambda: backend.attention.flash_attention2_backward(G, Q, K, V, out, out[..., 0].copy(), **options),
    ):
        with pytest.raises(error, match=word) as caught:
            call()
        assert str(caught.value).startswith("flash_attention2")


@pytest.mark.parametrize("cap", [1e39, 1e300, 1e38, 3e30, 1e-20, 1e-38, 1e-50, 5e-324])
def test_soft_caps_beyond_float32(backend, cap):
    """A cap that no score comes near leaves them alone; one that is nearly nothing makes all of them nearly nothing."""
    found = both_ways(backend, softcap=cap)
    out, *grads = both_ways(backend) if cap > 1 else (np.broadcast_to(V.mean(2, keepdims=True), Q.shape),)
    assert np.abs(found[0] - out).max() < 1e-6
    for one, other in zip(found[1:], grads, strict=False):
        assert np.abs(one - other).max() < 1e-5
    assert all(np.isfinite(a).all() for a in found)


@pytest.mark.parametrize("cap", [1e39, 1e-50])
def test_soft_caps_of_the_reference(cap):
    exact = reference.naive_attention(Q, K, V, softcap=cap, dtype=np.float64)[0]
    assert np.abs(reference.naive_attention(Q, K, V, softcap=cap)[0] - exact).max() < 1e-5
    with pytest.raises(ValueError, match="softcap"):
        reference.naive_attention(Q, K, V, softcap=float("inf"))


@pytest.mark.parametrize("scale", [1e-50, 1e-300, 0.0])
def test_scales_of_next_to_nothing(backend, scale):
    out = backend.attention.flash_attention2(Q, K, V, scale=scale)
    assert np.abs(out - V.mean(2, keepdims=True)).max() < 1e-6


def test_shapes_that_are_taken(backend):
    for shape in (3, (2, 0), [2, 3], np.int64(4), (), np.array([2, 1])):
        assert backend.empty(shape).shape == backend.host_empty(shape).shape == np.empty(shape).shape


@pytest.mark.parametrize("options", [{"base": 0}, {"base": -1.0}, {"base": float("inf")}, {"base": float("nan")},
                                     {"base": 1e-320}, {"offset": -1}])  # fmt: skip
def test_numbers_of_rope(by_default, options):
    with pytest.raises(ValueError, match="rope"):
        F.rope(np.ones((4, 256), np.float32), **options)
    for wrong in ({"base": "x"}, {"base": None}, {"offset": 1.5}):
        with pytest.raises(TypeError, match="rope"):
            F.rope(Q, **wrong)


def test_tensors_of_another_backend_among_options(backend):
    with grilly.Compute(runtime=backend.runtime.name) as other:
        ids = other.tensor(np.zeros((1, S), np.int32))
        slopes = other.tensor(np.zeros(H, np.float32))
        for options in ({"alibi_slopes": slopes}, {"segment_ids": ids}, {"segment_ids": (ids, ids)}):
            with pytest.raises(ValueError, match="another backend"):
                backend.attention.flash_attention2(Q, K, V, **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.FlashAttention2(512.0, 8), lambda: nn.FlashAttention3(512, 8.0), lambda: nn.FlashAttention2(8, True),
        lambda: nn.MultiheadAttention(64.0, 8), lambda: nn.MultiheadAttention(64, 8, kdim=8.5),
        lambda: nn.MultiheadAttention(64, 8, head_dim=8.0), lambda: nn.Linear(2.0, 3), lambda: nn.RoPE(8.0),
        lambda: nn.RoPE(8, base="x"), lambda: nn.FlashAttention(dropout="x"),
    ],
)  # fmt: skip
def test_numbers_of_layers(make):
    with pytest.raises(TypeError, match="expected an integer|expected a number"):
        make()
    for refused in (lambda: nn.FlashAttention2(8, 0), lambda: nn.FlashAttention2(0, 1), lambda: nn.Linear(0, 1),
                    lambda: nn.RoPE(0), lambda: nn.RoPE(8, base=float("inf"))):  # fmt: skip
        with pytest.raises(ValueError):
            refused()


def test_numbers_of_joined_heads(backend):
    x = np.ones((2, 5, 32), np.float32)
    for options in ({"num_heads": 4.0}, {"num_heads": 4, "num_kv_heads": 2.0}, {"num_heads": 4, "head_dim": 8.0}):
        with pytest.raises(TypeError, match="expected an integer"):
            backend.attention.flash_attention3(x, x, x, **options)
