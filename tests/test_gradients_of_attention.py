"""Gradients of attention, in steps and in one kernel, by the tape, against PyTorch's autograd in float64."""

import itertools
import math

import numpy as np
import pytest

import grilly
import grilly.functional as F
from autograd import check, check_second, draw, drawn, exact, gradients
from backends import default
from cases import SIXTEEN_BITS, epsilon

torch = pytest.importorskip("torch")
T = torch.nn.functional


# -- attention in steps ------------------------------------------------------------------------------------------------


def for_heads(x, heads):
    return x.repeat_interleave(heads // x.shape[-3], -3) if x.ndim > 2 else x


@pytest.mark.parametrize("dtype", [np.float32, *SIXTEEN_BITS])
@pytest.mark.parametrize("q, k", [((2, 4, 5, 8), (2, 2, 7, 8)), ((3, 5, 8), (1, 7, 8)), ((5, 8), (7, 8))], ids=str)
@pytest.mark.parametrize("scale", [None, 0.5])
def test_scores(vulkan_backend, q, k, scale, dtype):
    factor = 1 / math.sqrt(8) if scale is None else scale
    check(vulkan_backend, lambda q, k: F.attention_scores(q, k, scale=scale),
          lambda q, k: factor * q @ for_heads(k, q.shape[-3] if q.ndim > 2 else 1).mT, draw(*q), draw(*k),
          dtype=dtype)  # fmt: skip


def lower(queries, keys, shift=None):
    """Which keys each query sees."""
    return torch.arange(keys)[None] <= torch.arange(queries)[:, None] + (keys - queries if shift is None else shift)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape, mask", [((2, 3, 5, 6), (2, 1, 5, 6)), ((3, 5, 4), (5, 4)), ((5, 6), (1, 6))], ids=str)
@pytest.mark.parametrize("kind", ["none", "boolean", "added"])
def test_masks(backend, kind, shape, mask, causal):
    """Then softmax, as minus infinity is no number to differentiate."""
    shown = np.random.default_rng(3).random(mask) < 0.7
    shown[..., 0] = True

    def reference(x, *added):
        x = x + added[0] if added else x
        x = torch.where(torch.tensor(shown), x, -torch.inf) if kind == "boolean" else x
        x = torch.where(lower(*x.shape[-2:]), x, -torch.inf) if causal else x
        return torch.nan_to_num(torch.softmax(x, -1))

    def function(x, *added):
        own = added[0] if added else shown if kind == "boolean" else None
        return F.softmax(F.attention_mask(x, mask=own, causal=causal))

    dead = causal and shape[-2] > shape[-1]
    if not dead:  # softmax of nothing is NaN
        check(backend, function, reference, draw(*shape), *([draw(*mask)] if kind == "added" else []))


@pytest.mark.parametrize("architecture", ["generic", "gpt", "t5"])
@pytest.mark.parametrize("dtype", [np.float32, *SIXTEEN_BITS])
@pytest.mark.parametrize("heads", [(4, 2), (3, 3)], ids=str)
def test_outputs(vulkan_backend, architecture, dtype, heads):
    shown = lower(5, 7) if architecture == "gpt" else torch.ones(5, 7, dtype=torch.bool)
    values = draw(2, heads[1], 7, 6).astype(dtype).astype(np.float32)

    def reference(w, v):
        return (w * shown) @ for_heads(v, heads[0])

    def function(w, v):
        return F.attention_output(w, v.astype(dtype, copy=False), architecture=architecture)

    check(vulkan_backend, function, reference, draw(2, heads[0], 5, 7), values, slack=1 if dtype == np.float32 else 300)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("shape, offset", [((2, 3, 5, 9), 2), ((3, 9, 5), 0), ((6, 6), -1)], ids=str)
def test_t5_bias(backend, shape, offset, bidirectional):
    heads = shape[-3] if len(shape) > 2 else 1
    apart = np.arange(shape[-1])[None] - np.arange(shape[-2])[:, None] - offset
    buckets = torch.tensor(grilly.reference.t5_bucket(apart, bidirectional=bidirectional, num_buckets=8,
                                                      max_distance=6).astype(np.int64))  # fmt: skip

    def reference(x, table):
        return x + table[buckets].permute(2, 0, 1).reshape(heads, *shape[-2:])[: shape[-3] if len(shape) > 2 else 1]

    def function(x, table):
        return F.t5_bias(x, table, bidirectional=bidirectional, max_distance=6, offset=offset)

    def squeezed(x, table):
        found = reference(x, table)
        return found if len(shape) > 2 else found[0]

    check(backend, function, squeezed, draw(*shape), draw(8, heads))


def test_dropout_of_weights(backend):
    with default(backend):
        kept = torch.tensor(F.dropout_mask((2, 3, 5, 7), 0.4, 9) / 0.6)
    check(backend, lambda w: F.attention_dropout(w * w, dropout_p=0.4, dropout_seed=9), lambda w: w * w * kept,
          draw(2, 3, 5, 7))  # fmt: skip


def test_attention_in_steps_twice(vulkan_backend):
    """Scores, mask, softmax and output have second derivatives."""

    def function(q, k, v):
        weights = F.softmax(F.attention_mask(F.attention_scores(q, k), causal=True))
        return F.attention_output(weights, v)

    def reference(q, k, v):
        x = torch.where(lower(4, 5), q @ k.mT / math.sqrt(3), -torch.inf)
        return torch.softmax(x, -1) @ v

    check_second(vulkan_backend, function, reference, draw(2, 4, 3), draw(2, 5, 3), draw(2, 5, 2), slack=16)


# -- attention in one kernel -------------------------------------------------------------------------------------------

B, H, Q, K, D = 2, 4, 7, 9, 8


def visible(options, causal, batch=B, queries=Q, keys=K):
    """Which keys are seen, ``(B, 1 or H, Sq, Sk)``, where query 0 stands, and which queries exist."""
    i, j = np.arange(queries)[:, None], np.arange(keys)[None]
    own = np.full(batch, queries) if options.get("seqlens_q") is None else np.array(options["seqlens_q"])
    other = np.full(batch, keys) if options.get("seqlens_k") is None else np.array(options["seqlens_k"])
    shift = (other - own)[:, None, None, None]
    left, right = options.get("window_size") or (None, None)
    right = 0 if causal else right
    seen = np.ones((batch, 1, queries, keys), bool)
    if left is not None:
        seen &= j >= i + shift - left
    if right is not None:
        seen &= j <= i + shift + right
    if options.get("prefix_len") is not None:
        seen |= j < np.array(options["prefix_len"])[:, None, None, None]
    if options.get("segment_ids") is not None:
        a, b = options["segment_ids"]
        seen &= (np.array(a)[:, :, None] == np.array(b)[:, None])[:, None]
    if options.get("block_map") is not None:
        rows, columns = options["block_size"]
        whole = options["block_map"].repeat(rows, 2).repeat(columns, 3)[:, :, :queries, :keys]
        seen = seen & whole
    exists = i < own[:, None, None, None]
    return seen & exists & (j < other[:, None, None, None]), shift, exists


def attended(q, k, v, options, causal=False, scale=None, kept=None, **arrays):
    """Attention and its log-sum-exp by PyTorch; ``arrays``: those of options, and an additive mask."""
    seen, shift, exists = visible(options, causal, q.shape[0], q.shape[2], k.shape[2])
    x = q @ for_heads(k, q.shape[1]).mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    cap = options.get("softcap", 0.0)
    x = cap * torch.tanh(x / cap) if cap else x
    for name in ("attn_bias", "mask"):
        x = x + arrays[name] if name in arrays else x
    apart = torch.tensor(np.arange(k.shape[2])[None] - np.arange(q.shape[2])[:, None] - shift)
    if "alibi_slopes" in arrays:
        x = x - arrays["alibi_slopes"].reshape(-1, q.shape[1], 1, 1) * apart.abs()
    if "t5_table" in arrays:
        buckets = grilly.reference.t5_bucket(apart.numpy(), bidirectional=options.get("t5_bidirectional", True),
                                             num_buckets=8, max_distance=6)  # fmt: skip
        x = x + arrays["t5_table"][torch.tensor(buckets.astype(np.int64))][:, 0].permute(0, 3, 1, 2)
    x = torch.where(torch.tensor(seen), x, -torch.inf)
    sinks = arrays.get("sinks")
    whole = x if sinks is None else torch.cat([x, sinks.reshape(1, -1, 1, 1).expand(*x.shape[:3], 1)], -1)
    most = whole.amax(-1, keepdim=True).detach()
    most = torch.where(torch.isfinite(most), most, 0.0)
    total = torch.exp(whole - most).sum(-1, keepdim=True)
    weights = torch.exp(x - most) / torch.where(total > 0, total, 1.0)
    weights = weights if kept is None else weights * kept
    lse = torch.log(torch.where(total > 0, total, 1.0)) + most
    has_lse = (total > 0) & torch.tensor(exists)
    return weights @ for_heads(v, q.shape[1]), torch.where(has_lse, lse, -torch.inf)[..., 0]


SHAPES = {"attn_bias": (B, 1, Q, K), "mask": (1, H, Q, K), "alibi_slopes": (H,), "t5_table": (8, H), "sinks": (H,)}
SETTINGS = {
    "softcap": {"softcap": 2.5}, "window_size": {"window_size": (4, 1)},
    "segment_ids": {"segment_ids": (np.arange(Q)[None].repeat(B, 0) // 4, np.arange(K)[None].repeat(B, 0) // 5)},
    "prefix_len": {"prefix_len": [2, 3], "window_size": (1, None)},
    "seqlens": {"seqlens_q": [7, 4], "seqlens_k": [8, 9]},
    "block_map": {"block_map": np.random.default_rng(1).random((B, 1, 2, 3)) < 0.6, "block_size": (4, 3)},
    "t5_bidirectional": {"t5_bidirectional": False}, "dropout": {"dropout_p": 0.4, "dropout_seed": 5},
}  # fmt: skip


def attention_case(*, names=(), settings=(), causal=False, kv_heads=H, scale=None, lse=True):
    """function, reference and arrays of a call with these options."""
    options = {}
    for name in settings:
        options.update(SETTINGS[name])
    kept = None
    if "dropout" in settings:
        kept = torch.tensor(F.dropout_mask((B, H, Q, K), 0.4, 5) / 0.6)
    fixed = {"t5_max_distance": 6} if "t5_table" in names else {}

    def function(q, k, v, *more):
        own = dict(zip(names, more, strict=True))
        found = F.flash_attention2(q, k, v, causal=causal, scale=scale, return_lse=lse, **options, **fixed, **own)
        return found

    def reference(q, k, v, *more):
        found = attended(q, k, v, options, causal, scale, kept, **dict(zip(names, more, strict=True)))
        if not lse:
            return found[0]
        return found

    arrays = [draw(B, H, Q, D), draw(B, kv_heads, K, D, seed=1), draw(B, kv_heads, K, 6, seed=2)]
    return function, reference, arrays + [0.5 * draw(*SHAPES[name], seed=3) for name in names]


def check_attention(backend, only=None, dtype=np.float32, strided=False, **case):
    with default(backend):
        function, reference, arrays = attention_case(**case)
    if dtype == np.float32:
        check(backend, function, reference, *arrays, only=only, strided=strided, slack=2)
        return
    names = case.get("names", ())

    def cast(q, k, v, *more):  # the arrays of options are float32
        return function(*(x.astype(dtype) for x in (q, k, v)), *more)

    rounded = [array.astype(dtype).astype(np.float32) for array in arrays[:3]]
    unit = 12 * epsilon(dtype) / (256 * epsilon(np.float32))
    check(backend, cast, reference, *rounded, *arrays[3:], only=only, strided=strided, slack=unit)
    assert len(arrays) == 3 + len(names)


PAIRS = [*itertools.combinations(SHAPES, 2)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("names", [(), *((name,) for name in SHAPES), *PAIRS], ids=str)
def test_arrays_of_attention(vulkan_backend, names, causal):
    check_attention(vulkan_backend, names=names, causal=causal, kv_heads=2 if causal else H)


@pytest.mark.parametrize("name", ["attn_bias", "t5_table", "sinks", "alibi_slopes", "mask"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_options_of_attention_beside_arrays(vulkan_backend, setting, name):
    check_attention(vulkan_backend, names=(name,), settings=(setting,), causal=setting == "prefix_len")


@pytest.mark.parametrize("first, second", [*itertools.combinations([s for s in SETTINGS if s[0] != "t"], 2)])
def test_options_of_attention(vulkan_backend, first, second):
    check_attention(vulkan_backend, settings=(first, second), only=0, scale=0.6)


@pytest.mark.parametrize("lowest", [-np.inf, np.finfo(np.float32).min], ids=["infinity", "lowest"])
@pytest.mark.parametrize("name", ["mask", "attn_bias"])
def test_hidden_keys_and_rows(vulkan_backend, name, lowest):
    """Their gradients are zeros, as their weights are; so are those of a query that sees nothing."""
    added = draw(5, 7)
    added[0, ::2] = added[2, 1] = lowest
    added[3] = -np.inf
    hidden = torch.tensor(added <= -1e30)

    def reference(q, k, v, given):
        x = torch.where(hidden, -torch.inf, q @ k.mT / math.sqrt(8) + given)
        return torch.softmax(torch.where(hidden.all(-1, keepdim=True), 0.0, x), -1) * ~hidden @ v

    plain = np.where(added <= -1e30, 0, added)  # the derivative of torch's where is 0 there
    arrays = [draw(1, 2, n, 8, seed=n) for n in (5, 7, 7)]

    def cotangents(shapes):
        return [draw(*shape, seed=17) for shape in shapes]

    weights, results, expected = exact(reference, [*arrays, plain], cotangents)
    gave, found = gradients(
        vulkan_backend, lambda q, k, v, given: F.flash_attention2(q, k, v, **{name: given}), [*arrays, added], weights
    )
    for one, right in zip([*gave, *found], [*results, *expected], strict=True):
        np.testing.assert_allclose(one, right, rtol=0, atol=2e-5)


def test_options_are_kept_as_they_were(vulkan_backend):
    """Arrays of NumPy's that are written to before gradients are taken."""
    q = [vulkan_backend.tensor(draw(1, 2, 6, 4, seed=n)) for n in range(3)]
    segments, sinks = np.array([[0, 0, 0, 1, 1, 1]]), np.float32([0.5, 1])
    starts = np.array([0, 2, 6])
    packed = [vulkan_backend.tensor(draw(6, 2, 4, seed=n)) for n in range(3)]
    functions = [lambda q, k, v: F.flash_attention2(q, k, v, segment_ids=(segments, segments), sinks=sinks)]
    functions.append(lambda q, k, v: F.flash_attention_varlen(q, k, v, starts, starts, 6, 6, sinks=sinks))
    for function, arrays in zip(functions, (q, packed), strict=True):
        found = []
        for change in (False, True):
            _, pull = grilly.vjp(function, *arrays)
            before = [array.copy() for array in (segments, sinks, starts)]
            if change:
                segments[:], sinks[:], starts[:] = 0, 9, [0, 5, 6]
            found.append([one.numpy() for one in pull(arrays[0])])
            segments[:], sinks[:], starts[:] = before
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("only", [0, 1])
@pytest.mark.parametrize("lse", [False, True])
def test_results_of_attention(backend, only, lse):
    """Gradients by the output alone, and by the log-sum-exp alone."""
    if lse or not only:
        check_attention(backend, names=("sinks",), causal=True, lse=lse, only=only if lse else None)


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
@pytest.mark.parametrize("names", [(), ("attn_bias", "sinks"), ("alibi_slopes",), ("t5_table",)], ids=str)
def test_attention_of_sixteen_bits(vulkan_backend, names, dtype):
    check_attention(vulkan_backend, names=names, causal=True, dtype=dtype, kv_heads=1)


@pytest.mark.parametrize("names", [(), ("attn_bias",)], ids=str)
def test_attention_of_strided_arrays(backend, names):
    check_attention(backend, names=names, strided=True, causal=True)


def test_attention_without_batch(backend):
    def reference(q, k, v):
        return attended(q[None], k[None], v[None], {}, True)[0][0]

    check(backend, lambda q, k, v: F.flash_attention2(q, k, v, causal=True), reference,
          draw(2, 5, 8), draw(2, 7, 8), draw(2, 7, 8))  # fmt: skip


def test_joined_heads(backend):
    def reference(q, k, v):
        q, k, v = (x.reshape(2, -1, heads, 4).transpose(1, 2) for x, heads in ((q, 4), (k, 2), (v, 2)))
        return attended(q, k, v, {}, True)[0].transpose(1, 2).reshape(2, 5, 16)

    check(backend, lambda q, k, v: F.flash_attention3(q, k, v, num_heads=4, num_kv_heads=2, causal=True), reference,
          draw(2, 5, 16), draw(2, 6, 8), draw(2, 6, 8))  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", [5, 8, 3])
@pytest.mark.parametrize("masked", ["no", "boolean", "added"])
def test_scaled_dot_product_attention(vulkan_backend, causal, keys, masked):
    if causal and masked != "no":
        return
    shown = np.random.default_rng(2).random((5, keys)) < 0.7
    shown[:, 0] = True

    def function(q, k, v, *added):
        mask = added[0] if added else shown if masked == "boolean" else None
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)

    def reference(q, k, v, *added):
        mask = added[0] if added else torch.tensor(shown) if masked == "boolean" else None
        return T.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)

    more = [draw(2, 1, 5, keys)] if masked == "added" else []
    check(vulkan_backend, function, reference, draw(2, 3, 5, 8), draw(2, 3, keys, 8), draw(2, 3, keys, 4), *more,
          slack=2)  # fmt: skip


@pytest.mark.parametrize("shapes", [
    ((5, 8), (7, 8), (7, 8)), ((2, 1, 3, 5, 8), (2, 4, 3, 7, 8), (1, 1, 3, 7, 8)), ((2, 3, 5, 8), (7, 8), (7, 8)),
], ids=str)  # fmt: skip
def test_shapes_of_scaled_dot_product_attention(vulkan_backend, shapes):
    check(vulkan_backend, F.scaled_dot_product_attention, T.scaled_dot_product_attention, *drawn(shapes))


@pytest.mark.parametrize("options", [
    {}, {"causal": True, "softcap": 3.0}, {"window_size": (3, 1), "scale": 0.3}, {"sinks": True, "causal": True},
    {"dropout_p": 0.4, "dropout_seed": 3},
], ids=str)  # fmt: skip
def test_packed_sequences(backend, options):
    """Rows after the last sequence have no part in anything."""
    starts_q, starts_k = [0, 3, 3, 8], [0, 5, 7, 13]
    options = dict(options)
    has_sinks = options.pop("sinks", False)
    with default(backend):
        kept = (F.dropout_mask((3, 4, 5, 6), 0.4, 3) / 0.6) if "dropout_p" in options else None

    def function(q, k, v, *sinks):
        return F.flash_attention_varlen(q, k, v, starts_q, starts_k, 5, 6, return_lse=True,
                                        sinks=sinks[0] if sinks else None, **options)  # fmt: skip

    def reference(q, k, v, *sinks):
        parts, sums = [], []
        for n in range(3):
            own = [x[a[n] : a[n + 1]].transpose(0, 1)[None]
                   for x, a in ((q, starts_q), (k, starts_k), (v, starts_k))]  # fmt: skip
            shares = None if kept is None else torch.tensor(kept[n : n + 1, :, : own[0].shape[2], : own[1].shape[2]])
            more = {"sinks": sinks[0]} if sinks else {}
            if own[0].shape[2]:
                o, lse = attended(*own, options, options.get("causal", False), options.get("scale"), shares, **more)
                parts.append(o[0].transpose(0, 1))
                sums.append(lse[0])
        rest = torch.zeros(1, 4, v.shape[-1], dtype=torch.float64)
        return torch.cat([*parts, rest]), torch.cat([*sums, torch.full((4, 1), -torch.inf)], 1)

    arrays = [draw(9, 4, 8), draw(14, 2, 8), draw(14, 2, 6), *([draw(4)] if has_sinks else [])]
    check(backend, function, reference, *arrays, only=0, slack=2)
