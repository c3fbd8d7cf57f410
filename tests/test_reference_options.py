"""Every option of the NumPy reference against a definition written out by hand, one query and key at a time."""

import numpy as np
import pytest

from grilly import reference as ref
from test_reference import by_hand, data


@pytest.fixture
def rng():
    return np.random.default_rng(0)


B, H, HK, SQ, SK, D = 2, 4, 2, 7, 11, 5


def option_arrays(rng, sq=SQ, sk=SK):
    """Each option by name as (keyword arguments, a function of b, h, i, j that adds, a function that shows)."""
    bias, slopes = rng.standard_normal((B, 1, sq, sk)), rng.random((B, H))
    table, q_ids, k_ids = rng.standard_normal((8, H)), rng.integers(0, 3, (B, sq)), rng.integers(0, 3, (B, sk))
    blocks = rng.random((B, H, -(-sq // 3), -(-sk // 2))) < 0.5

    def d(i, j):
        return j - (i + sk - sq)

    def none(*_):
        return 0.0

    def always(*_):
        return True

    bucket = ref.t5_bucket(np.arange(-50, 51), True, 8, 20)
    return {
        "attn_bias": ({"attn_bias": bias}, lambda b, h, i, j: bias[b, 0, i, j], always),
        "alibi": ({"alibi_slopes": slopes[0]}, lambda b, h, i, j: -slopes[0, h] * abs(d(i, j)), always),
        "alibi-batch": ({"alibi_slopes": slopes}, lambda b, h, i, j: -slopes[b, h] * abs(d(i, j)), always),
        "t5": (
            {"t5_table": table, "t5_max_distance": 20},
            lambda b, h, i, j: table[bucket[50 + d(i, j)], h],
            always,
        ),
        "t5-one-way": (
            {"t5_table": table, "t5_bidirectional": False},
            lambda b, h, i, j: table[ref.t5_bucket(d(i, j), False, 8, 128), h],
            always,
        ),
        "window": ({"window_size": (2, 1)}, none, lambda b, h, i, j: -2 <= d(i, j) <= 1),
        "window-left": ({"window_size": (3, -1)}, none, lambda b, h, i, j: d(i, j) >= -3),
        "window-right": ({"window_size": (None, 0)}, none, lambda b, h, i, j: d(i, j) <= 0),
        "causal-window": (
            {"window_size": (2, 5), "causal": True},
            none,
            lambda b, h, i, j: -2 <= d(i, j) <= 0,
        ),
        "prefix": (
            {"prefix_len": [3, 0], "causal": True},
            none,
            lambda b, h, i, j: d(i, j) <= 0 or j < [3, 0][b],
        ),
        "segments": ({"segment_ids": (q_ids, k_ids)}, none, lambda b, h, i, j: q_ids[b, i] == k_ids[b, j]),
        "blocks": (
            {"block_map": blocks, "block_size": (3, 2)},
            none,
            lambda b, h, i, j: bool(blocks[b, h, i // 3, j // 2]),
        ),
    }


def every_way(q, k, v, scale=None, mask=None, causal=False, **options):
    """(output, lse) of the naive and of the tiled attention."""
    naive = ref.naive_attention(q, k, v, scale, mask, causal, return_lse=True, **options)
    flash = ref.flash_attention(q, k, v, scale, mask, causal, return_lse=True, block_q=3, block_k=4, **options)
    return (naive[0], naive[2]), flash


def assert_by_hand(results, q, k, v, bias, visible):
    for b in range(B):
        for h in range(H):
            want, lse = by_hand(q[b, h], k[b, h // 2], v[b, h // 2], D**-0.5, visible[b, h], bias[b, h])
            for out, out_lse in results:
                np.testing.assert_allclose(out[b, h], want, rtol=1e-11, atol=1e-12)
                np.testing.assert_allclose(out_lse[b, h], lse, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("sq, sk", [(SQ, SK), (SK, SQ)])
@pytest.mark.parametrize("name", option_arrays(np.random.default_rng(0)))
def test_an_option_equals_its_definition(rng, name, sq, sk):
    q, k, v = data(rng, B, H, HK, sq, sk, D)
    options, add, show = option_arrays(rng, sq, sk)[name]
    places = list(np.ndindex(B, H, sq, sk))
    bias = np.array([add(*place) for place in places]).reshape(B, H, sq, sk)
    visible = np.array([show(*place) for place in places]).reshape(B, H, sq, sk)
    assert (bias != 0).any() or not visible.all()
    assert_by_hand(every_way(q, k, v, **options), q, k, v, bias, visible)


def test_options_work_together(rng):
    """Every option that adds and every one that hides at once, beside a mask."""
    q, k, v = data(rng, B, H, HK, SQ, SK, D)
    mask = rng.random((B, H, SQ, SK)) < 0.9
    all_options, bias, visible = {"mask": mask}, np.zeros((B, H, SQ, SK)), mask.copy()
    table = option_arrays(rng)
    for name in ("attn_bias", "alibi-batch", "t5", "window-left", "segments", "blocks"):
        options, add, show = table[name]
        all_options |= options
        for place in np.ndindex(bias.shape):
            bias[place] += add(*place)
            visible[place] &= show(*place)
    assert 0 < visible.sum() < visible.size
    assert_by_hand(every_way(q, k, v, **all_options), q, k, v, bias, visible)


@pytest.mark.parametrize("causal", [False, True])
def test_softcap_comes_before_the_biases(rng, causal):
    q, k, v = data(rng, B, H, HK, SQ, SK, D)
    bias = rng.standard_normal((B, H, SQ, SK))
    raw = 4 * q @ np.repeat(k, 2, 1).swapaxes(-1, -2)
    results = every_way(q, k, v, 4.0, causal=causal, softcap=1.5, attn_bias=bias)
    visible = np.broadcast_to(np.arange(SK) <= np.arange(SQ)[:, None] + (SK - SQ if causal else SK), raw.shape)
    assert_by_hand(results, 0 * q, k, v, 1.5 * np.tanh(raw / 1.5) + bias, visible)
    for got, want in zip(every_way(q, k, v, softcap=1e6)[0], every_way(q, k, v)[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9)


def test_a_sink_is_a_key_without_value(rng):
    q, k, v = data(rng, B, H, HK, SQ, SK, D)
    mask, sinks = rng.random((SQ, SK)) < 0.6, rng.standard_normal(H)
    mask[3] = False
    more_k, more_v = (np.concatenate([a, np.zeros((B, HK, 1, a.shape[-1]))], 2) for a in (k, v))
    bias = np.zeros((H, SQ, SK + 1))
    bias[..., -1] = sinks[:, None]
    want = every_way(q, more_k, more_v, mask=np.pad(mask, ((0, 0), (0, 1)), constant_values=True), attn_bias=bias)[0]
    for out, lse in every_way(q, k, v, mask=mask, sinks=sinks):
        np.testing.assert_allclose(out, want[0], atol=1e-12)
        np.testing.assert_allclose(lse, want[1], atol=1e-12)
        assert (out[:, :, 3] == 0).all()
        np.testing.assert_allclose(lse[:, :, 3], np.tile(sinks, (B, 1)), rtol=1e-12)
    weights = ref.attention_weights(q, k, mask=mask, sinks=sinks)
    np.testing.assert_allclose(weights.sum(-1), 1 - np.exp(sinks[:, None] - want[1]), atol=1e-12)
    without = every_way(q, k, v, mask=mask)[0]
    for out, lse in every_way(q, k, v, mask=mask, sinks=np.full(H, -np.inf)):
        np.testing.assert_allclose(out, without[0], atol=1e-12)
        np.testing.assert_allclose(lse, without[1], atol=1e-12)


def test_lengths_are_those_of_shorter_arrays(rng):
    """Each sample as if it were cut to its lengths: windows, ALiBi and T5 too start from its own end."""
    q, k, v = data(rng, 4, H, HK, SQ, SK, D)
    rows, keys, sinks = [7, 4, 0, 5], [11, 3, 6, 0], rng.standard_normal(H)
    options = {"causal": True, "window_size": (4, 0), "alibi_slopes": rng.random(H), "sinks": sinks}
    options |= {"t5_table": rng.standard_normal((8, H)), "dropout_p": 0.3, "dropout_seed": 5}
    alone = {name: value for name, value in options.items() if not name.startswith("dropout")}
    q[1, :, 4:], k[1, :, 3:], v[1, :, 3:] = np.nan, np.nan, np.inf
    for out, lse in every_way(q, k, v, **alone, seqlens_q=rows, seqlens_k=np.array(keys)):
        for b in range(4):
            sq, sk = rows[b], keys[b]
            want = ref.naive_attention(q[b, :, :sq], k[b, :, :sk], v[b, :, :sk], **alone, return_lse=True)
            np.testing.assert_allclose(out[b, :, :sq], want[0], atol=1e-12)
            np.testing.assert_allclose(lse[b, :, :sq], want[2], atol=1e-12)
            assert (out[b, :, sq:] == 0).all() and (lse[b, :, sq:] == -np.inf).all()
    starts = [np.concatenate([[0], np.cumsum(n)]) for n in (rows, keys)]
    packed = [
        np.concatenate([a[b, :, : n[b]].swapaxes(0, 1) for b in range(4)]) for a, n in ((q, rows), (k, keys), (v, keys))
    ]
    got, got_lse = ref.attention_varlen(*packed, *starts, return_lse=True, **options)
    want, _, want_lse = ref.naive_attention(q, k, v, **options, seqlens_q=rows, seqlens_k=keys, return_lse=True)
    assert got.shape == (16, H, 3) and got_lse.shape == (H, 16)
    for b in range(4):
        part = slice(starts[0][b], starts[0][b + 1])
        np.testing.assert_allclose(got[part], want[b, :, : rows[b]].swapaxes(0, 1), atol=1e-12)
        np.testing.assert_allclose(got_lse[:, part], want_lse[b, :, : rows[b]], atol=1e-12)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["window", "prefix", "segments", "blocks"])
def test_what_an_option_hides_never_reaches_the_result(rng, name, poison):
    q, k, v = data(rng, B, H, HK, SQ, SK, D)
    options, _, show = option_arrays(rng)[name]
    clean = every_way(q, k, v, **options)
    checked = 0
    for j in range(SK):
        k2, v2 = k.copy(), v.copy()
        k2[:, :, j] = v2[:, :, j] = poison
        rows = np.array([not show(*place, j) for place in np.ndindex(B, H, SQ)]).reshape(B, H, SQ)
        for got, want in zip(every_way(q, k2, v2, **options), clean, strict=True):
            np.testing.assert_allclose(got[0][rows], want[0][rows], atol=1e-12)
            np.testing.assert_allclose(got[1][rows], want[1][rows], atol=1e-12)
        checked += rows.sum()
    assert checked


@pytest.mark.parametrize(
    "counter, key, want",
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, want):
    """The vectors published with Random123."""
    assert tuple(ref.philox(counter, key)) == want
    assert (ref.philox([[counter], [counter]], key) == want).all()


def test_dropout_mask_is_philox_word_by_word():
    shape, seed, offset = (2, 3, 5, 19), 0x123456789ABCDEF0, 2**32 + 77
    mask = ref.dropout_mask(shape, 0.3, seed, offset)
    assert mask.shape == shape and mask.dtype == bool
    for b, h, i, j in np.ndindex(shape):
        words = [int(word) for word in ref.philox((j // 16, i, h + 3 * b, 77), (0x9ABCDEF0, 0x12345678))]
        upper, lower = (words[(j // 4 + after) % 4] >> 8 * (j % 4) & 0xFF for after in (0, 1))
        assert mask[b, h, i, j] == (upper << 8 | lower < int(0.7 * 2**16))
    assert ref.dropout_mask(shape, 0.0).all()
    large = ref.dropout_mask((4, 4, 128, 128), 0.25, 1)
    assert abs(large.mean() - 0.75) < 4 * (0.25 * 0.75 / large.size) ** 0.5
    # Of keys four or twelve apart one's number has a byte of the other's: little of it is left in the decisions.
    for apart in (1, 2, 3, 4, 5, 8, 12, 16):
        pairs = np.corrcoef(large[..., :-apart].ravel(), large[..., apart:].ravel())[0, 1]
        assert abs(pairs) < 1 / 256 + 4 / large.size**0.5
    for other in (ref.dropout_mask((4, 4, 128, 128), 0.25, 2), ref.dropout_mask((4, 4, 128, 128), 0.25, 1, 1)):
        assert abs((large == other).mean() - 0.625) < 0.01
    with pytest.raises(ValueError, match="below 1"):
        ref.dropout_mask(shape, 1.0)


def test_dropout_scales_the_kept_weights_after_the_softmax(rng):
    q, k, v = data(rng, B, H, HK, SQ, SK, D)
    factor = ref.dropout_mask((B, H, SQ, SK), 0.4, 9, 3) / 0.6
    weights = ref.attention_weights(q, k, causal=True)
    options = {"causal": True, "dropout_p": 0.4, "dropout_seed": 9, "dropout_offset": 3}
    want = (weights * factor) @ np.repeat(v, 2, 1)
    lse = every_way(q, k, v, causal=True)[0][1]
    for out, out_lse in every_way(q, k, v, **options):
        np.testing.assert_allclose(out, want, atol=1e-12)
        np.testing.assert_allclose(out_lse, lse, atol=1e-12)
    np.testing.assert_allclose(ref.attention_weights(q, k, **options), weights * factor, atol=1e-12)


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"attn_bias": np.ones((3, SK))}, ValueError, "broadcast"),
        ({"alibi_slopes": np.ones(3)}, ValueError, "alibi_slopes"),
        ({"t5_table": np.ones((8, 3))}, ValueError, "t5_table"),
        ({"softcap": -1.0}, ValueError, "softcap"),
        ({"sinks": np.ones(2)}, ValueError, "sinks"),
        ({"prefix_len": [1, 12]}, ValueError, "from 1 to 12"),
        ({"seqlens_q": [1, 2, 3]}, ValueError, "seqlens_q"),
        ({"segment_ids": np.ones((B, SK))}, ValueError, "segment_ids"),
        ({"block_map": np.ones((3, 6), bool)}, ValueError, "block_size"),
        ({"block_map": np.ones((2, 6), bool), "block_size": (3, 2)}, ValueError, "block_map"),
        ({"dropout_p": 1.0}, ValueError, "dropout_p"),
        ({"alibi": np.ones(H)}, TypeError, "alibi"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_options_without_meaning(rng, options, error, words):
    q, k, v = data(rng, B, H, HK, SQ, SK, D)
    for attend in (ref.naive_attention, ref.flash_attention):
        with pytest.raises(error, match=words):
            attend(q, k, v, **options)


def test_packed_input_that_does_not_fit():
    q = np.ones((5, 2, 4))
    for starts, error in (([0, 4], ValueError), ([1, 5], ValueError), ([0, 3, 2, 5], ValueError), ([0, 5], TypeError)):
        with pytest.raises(error):
            ref.attention_varlen(q, q, q, starts, [0, 5], **({"prefix_len": [1]} if error is TypeError else {}))
    with pytest.raises(ValueError, match="total_q"):
        ref.attention_varlen(q[None], q, q, [0, 5], [0, 5])
