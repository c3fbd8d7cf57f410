"""The reference's gradients against central finite differences in float64, and against PyTorch where there is one."""

import numpy as np
import pytest

from grilly import reference as ref
from test_reference import data

B, H, HK, SQ, SK, D = 2, 4, 2, 6, 9, 5


def cases():
    """Options by name."""
    rng = np.random.default_rng(1)
    mask = rng.random((B, 1, SQ, SK)) < 0.7
    mask[:, :, 2] = False
    additive = np.where(rng.random((SQ, SK)) < 0.3, -np.inf, rng.standard_normal((SQ, SK))).astype(np.float32)
    sinks, table = rng.standard_normal(H), rng.standard_normal((8, H))
    lengths = {"seqlens_q": [6, 3], "seqlens_k": [7, 9]}
    dropout = {"dropout_p": 0.3, "dropout_seed": 7, "dropout_offset": 2}
    segments = rng.integers(0, 2, (B, SQ)), rng.integers(0, 2, (B, SK))
    blocks = {"block_map": rng.random((1, H, 2, 3)) < 0.6, "block_size": (4, 3)}
    return {
        "plain": {},
        "scale": {"scale": -0.7},
        "causal": {"causal": True},
        "mask": {"mask": mask},
        "additive-mask": {"mask": additive},
        "bias": {"attn_bias": rng.standard_normal((B, H, SQ, SK))},
        "bias-of-heads": {"attn_bias": rng.standard_normal((H, 1, SK)), "mask": mask},
        "bias-of-rows": {"attn_bias": rng.standard_normal((SQ, 1))},
        "bias-2d": {"attn_bias": rng.standard_normal((SQ, SK)), "softcap": 0.9},
        "alibi": {"alibi_slopes": rng.random((B, H))},
        "t5": {"t5_table": table},
        "t5-one-way-lengths": {"t5_table": table, "t5_bidirectional": False, **lengths},
        "softcap": {"softcap": 0.7, "scale": 1.0},
        "sinks": {"sinks": sinks, "mask": mask},
        "sinks-lengths": {"sinks": sinks, **lengths, "causal": True},
        "window": {"window_size": (2, 1)},
        "prefix": {"prefix_len": [4, 0], "causal": True},
        "segments": {"segment_ids": segments},
        "lengths": lengths,
        "blocks": blocks,
        "dropout": dropout,
        "all": {
            "causal": True, "mask": mask, "attn_bias": rng.standard_normal((H, 1, SK)),
            "sinks": sinks, "t5_table": table,
            "softcap": 1.1, "window_size": (5, 0), "prefix_len": [4, 0], "alibi_slopes": rng.random(H), **lengths,
            **dropout, **blocks,
        },
    }  # fmt: skip


CASES = cases()


def differences(loss, array, step=1e-5):
    """Central finite differences of ``loss()`` with respect to an array that it reads."""
    out = np.zeros(array.shape)
    for place in np.ndindex(array.shape):
        was = array[place]
        array[place] = was + step
        above = loss()
        array[place] = was - step
        out[place] = (above - loss()) / (2 * step)
        array[place] = was
    return out


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_finite_differences(name):
    rng = np.random.default_rng(0)
    q, k, v = data(rng, B, H, HK, SQ, SK, D)
    grad_out = rng.standard_normal((B, H, SQ, 3))
    options = {key: np.array(value) if key in ("attn_bias", "sinks", "t5_table") else value
               for key, value in CASES[name].items()}  # fmt: skip

    def loss():
        return float((ref.naive_attention(q, k, v, **options)[0] * grad_out).sum())

    got = ref.attention_backward(grad_out, q, k, v, **options)
    arrays = {"dq": q, "dk": k, "dv": v}
    for field, option in (("dbias", "attn_bias"), ("dsinks", "sinks"), ("dt5_table", "t5_table")):
        if option in options:
            arrays[field] = options[option]
        else:
            assert getattr(got, field) is None
    for field, array in arrays.items():
        gradient = getattr(got, field)
        assert gradient.shape == array.shape and gradient.dtype == np.float64
        assert gradient.any(), f"{field} is all zeros, which compares nothing"
        np.testing.assert_allclose(gradient, differences(loss, array), rtol=1e-6, atol=1e-8, err_msg=field)


@pytest.mark.parametrize("name", ["mask", "additive-mask", "causal", "window", "segments", "lengths", "blocks"])
def test_what_is_hidden_never_reaches_a_gradient(name):
    """Keys no query sees, and rows that see nothing, may hold anything: their gradients are zeros."""
    rng = np.random.default_rng(0)
    q, k, v = data(rng, B, H, HK, SQ, SK, D)
    grad_out = rng.standard_normal((B, H, SQ, 3))
    options = {"causal": {"causal": True, "window_size": (2, 0)}}.get(name) or dict(CASES[name])
    mask = np.ones((B, H, SQ, SK), bool)
    mask[:, :, :, 4], mask[:, :, 3] = False, False
    if name == "additive-mask":
        options["mask"] = options["mask"] + np.where(mask[0, 0], 0, -np.inf).astype(np.float32)
    else:
        options["mask"] = mask & options.get("mask", True)
    clean = ref.attention_backward(grad_out, q, k, v, **options)
    for array, place in ((k, 4), (v, 4), (q, 3), (grad_out, 3)):
        array[:, :, place] = np.nan
    got = ref.attention_backward(grad_out, q, k, v, **options)
    assert (got.dq[:, :, 3] == 0).all() and (got.dk[:, :, 4] == 0).all() and (got.dv[:, :, 4] == 0).all()
    for a, b in zip(got[:3], clean[:3], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_ranks_and_precision():
    rng = np.random.default_rng(0)
    q, k, v = (a[0, 0].astype(np.float32) for a in data(rng, 1, 1, 1, SQ, SK, D))
    grad_out = rng.standard_normal((SQ, 3)).astype(np.float32)
    got = ref.attention_backward(grad_out, q, k, v, causal=True)
    exact = ref.attention_backward(grad_out, q, k, v, causal=True, dtype=np.float64)
    for a, b, like in zip(got, exact, (q, k, v), strict=False):
        assert a.shape == like.shape and a.dtype == np.float32 and b.dtype == np.float64
        assert 0 < np.abs(a - b).max() < 1e-5
    with pytest.raises(ValueError, match="grad_out"):
        ref.attention_backward(grad_out[1:], q, k, v)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("causal", [False, True])
def test_against_live_torch(causal):
    torch = pytest.importorskip("torch", reason="torch is not installed; finite differences are checked anyway")
    rng = np.random.default_rng(0)
    q, k, v = data(rng, B, H, H, 9, 9, D)
    grad_out = rng.standard_normal((B, H, 9, 3))
    leaves = [torch.from_numpy(a).requires_grad_() for a in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
    out.backward(torch.from_numpy(grad_out))
    got = ref.attention_backward(grad_out, q, k, v, causal=causal)
    for a, leaf in zip(got[:3], leaves, strict=True):
        np.testing.assert_allclose(a, leaf.grad.numpy(), atol=1e-12)
