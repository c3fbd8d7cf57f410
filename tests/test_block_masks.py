"""Block masks: which blocks of scores a mask function hides, and attention that passes over them."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
import grilly.functional as F
from grilly import reference

RNG = np.random.default_rng(0)
DOCUMENTS = np.sort(RNG.integers(0, 5, (2, 150)), 1).astype(np.int64)
FIRST = np.int32([0, 40, 97])


def classes_of(mask, rows, columns):
    """The classes of blocks of a boolean mask, (B, H, N_q, N_kv)."""
    queries, keys = mask.shape[2:]
    made = np.zeros((*mask.shape[:2], -(-queries // rows), -(-keys // columns)), np.uint8)
    for i in range(made.shape[2]):
        for j in range(made.shape[3]):
            block = mask[:, :, i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            made[:, :, i, j] = block.any((2, 3)).astype(np.uint8) + block.all((2, 3))
    return made


def causal(**_):
    return lambda b, h, q, k: q >= k


def window(**_):
    return lambda b, h, q, k: (q >= k) & (q - k < 30)


def documents(documents, **_):
    return lambda b, h, q, k: documents[b, q] == documents[b, k]


def by_head(first, **_):
    return lambda b, h, q, k: k >= first[h]


def nothing(**_):
    return lambda b, h, q, k: q < 0


CASES = [(causal, None, None), (window, None, None), (documents, 2, None), (by_head, None, 3), (by_head, 2, 3),
         (nothing, None, None)]  # fmt: skip


@pytest.mark.parametrize(("make", "batch", "heads"), CASES, ids=lambda one: getattr(one, "__name__", str(one)))
@pytest.mark.parametrize("size", [(150, 131, (64, 64)), (33, 150, (16, 32)), (1, 7, (64, 64))], ids=str)
def test_classes(default, make, batch, heads, size):
    queries, keys, block = size
    arrays = {"documents": DOCUMENTS, "first": FIRST}
    tensors = {name: grilly.asarray(array) for name, array in arrays.items()}
    made = grilly.block_mask(make(**tensors), batch, heads, queries, keys, block_size=block)
    places = np.ix_(*(np.arange(n or 1) for n in (batch, heads, queries, keys)))
    mask = np.broadcast_to(make(**arrays)(*places), (batch or 1, heads or 1, queries, keys))
    want = classes_of(mask, *block)
    assert (made.classes.numpy() == want).all()
    assert made.sparsity == (want == 0).mean() and made.shape == mask.shape and made.block_size == block


def test_attention_passes_over_empty_tiles(vulkan_backend):
    q, k, v = (RNG.standard_normal((1, 4, 1050, 64), dtype=np.float32) for _ in range(3))
    places = np.arange(1050)
    mask = (places[:, None] >= places) & (places[:, None] - places < 30)
    exact = reference.naive_attention(q, k, v, mask=mask, dtype=np.float64)[0]
    previous = grilly.use(vulkan_backend)
    try:
        blocks = grilly.block_mask(window(), None, None, 1050, 1050)
    finally:
        grilly.use(previous)
    for hidden in (np.nan, 1.0):
        k[:, :, 960:], v[:, :, 960:] = hidden, hidden  # only rows from 960 on see them
        with vulkan_backend.profile() as profile:
            out = vulkan_backend.attention.flash_attention2(q, k, v, mask_mod=blocks, kernel="flash-attention2")
        assert "attention-tiles.lanes-classes" in "".join(timing.label for timing in profile.timings)
        np.testing.assert_allclose(out[:, :, :960], exact[:, :, :960], atol=4e-6)


def test_beside_other_options(default):
    """Of calls that are too small for classes of tiles; of documents that differ from sample to sample."""
    q, k, v = (RNG.standard_normal((2, 3, 150, 16), dtype=np.float32) for _ in range(3))
    tensor = grilly.asarray(DOCUMENTS)
    blocks = grilly.block_mask(documents(tensor), 2, None, 150, 150)
    mask = documents(DOCUMENTS)(*np.ix_(range(2), range(3), range(150), range(150)))
    table = grilly.asarray(np.float32([1, -1, 0.5]))
    for kernel in (None, "flash-attention2"):
        out = F.flash_attention2(q, k, v, mask_mod=blocks, score_mod=lambda s, b, h, i, j: s * table[h], causal=True,
                                 kernel=kernel)  # fmt: skip
        for head, factor in enumerate((1, -1, 0.5)):
            exact = reference.naive_attention(
                *(a[:, head : head + 1] for a in (q, k, v)), mask=mask[:, :1], causal=True, scale=0.25 * factor,
                dtype=np.float64,
            )[0]  # fmt: skip
            np.testing.assert_allclose(out[:, head : head + 1], exact, atol=4e-6)


def test_captured(default):
    q, k, v = (grilly.asarray(RNG.standard_normal((1, 2, 70, 16), dtype=np.float32)) for _ in range(3))
    documents = grilly.asarray(np.zeros((1, 70), np.int32))

    def step(q, k, v):
        blocks = grilly.block_mask(lambda b, h, i, j: documents[b, i] == documents[b, j], 1, None, 70, 70)
        return F.flash_attention2(q, k, v, mask_mod=blocks)

    graph = default.capture(step, q, k, v)
    for ids in (np.zeros((1, 70), np.int32), np.repeat(np.int32([[1, 5]]), 35, 1)):
        documents[...] = ids
        mask = (ids[:, :, None] == ids[:, None])[:, None]
        exact = reference.naive_attention(*(a.numpy() for a in (q, k, v)), mask=mask, dtype=np.float64)[0]
        np.testing.assert_allclose(graph(q, k, v).numpy(), exact, atol=4e-6)


def test_gradients(default):
    q, k, v = (grilly.asarray(RNG.standard_normal((1, 2, 70, 16), dtype=np.float32)) for _ in range(3))
    blocks = grilly.block_mask(window(), None, None, 70, 70)
    places = np.arange(70)
    mask = (places[:, None] >= places) & (places[:, None] - places < 30)
    one, other = (
        grilly.grad(lambda *a, o=options: grilly.sum(F.flash_attention2(*a, **o) ** 2), (0, 1, 2))(q, k, v)
        for options in ({"mask_mod": blocks}, {"mask": mask})
    )
    for mine, its in zip(one, other, strict=True):
        np.testing.assert_allclose(mine.numpy(), its.numpy(), atol=2e-5)


def test_what_is_refused(default):
    q, k, v = (RNG.standard_normal((2, 3, 20, 8), dtype=np.float32) for _ in range(3))
    blocks = grilly.block_mask(causal(), None, 2, 20, 20)
    with pytest.raises(ValueError, match=r"block mask of shape \(1, 2, 20, 20\); expected .* of \(2, 3, 20, 20\)"):
        F.flash_attention2(q, k, v, mask_mod=blocks)
    with pytest.raises(ValueError, match="block_map is given beside a block mask"):
        F.flash_attention2(
            q, k, v, mask_mod=grilly.block_mask(causal(), None, None, 20, 20), block_map=np.ones((1, 1, 1, 1), bool),
            block_size=(20, 20),
        )  # fmt: skip
    for arguments, error, said in [
        ((causal(), None, None, 0, 5), ValueError, "expected positive numbers"),
        ((causal(), None, None, 5.0, 5), TypeError, "queries"),
        ((lambda q, k: q, None, None, 5, 5), TypeError, r"called with \(batch, head, query, key\)"),
        ((lambda b, h, q, k: q - k, None, None, 5, 5), grilly.ExpressionError, "gives a bool"),
    ]:
        with pytest.raises(error, match="block_mask.*" + said):
            grilly.block_mask(*arguments)
    with pytest.raises(ValueError, match="block_size is 64"):
        grilly.block_mask(causal(), None, None, 5, 5, block_size=64)
