"""Classes of tiles, and attention that passes over hidden tiles, against NumPy."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

import grilly.functional as F
from grilly import reference
from grilly.compute.attention import plan as attention_plan
from grilly.compute.attention import tile_classes as tiles
from grilly.compute.attention.call import NOTHING
from grilly.compute.attention.chunks import Chunk
from grilly.compute.attention.operands import PARAMETERS
from grilly.compute.attention.options import CheckedOptions, Options, prepare
from grilly.compute.attention.parameters import parameters_of, template
from grilly.compute.device.executables import Executable
from grilly.compute.device.plan import Layout, Planner
from grilly.compute.device.tensor import Tensor
from grilly.registry import Request
from kernels import plans, pretend

KERNEL = "flash-attention2"
B, H, S, K = 2, 4, 150, 203
ROWS, KEYS = 32, 16


@pytest.fixture
def always(vulkan_backend, monkeypatch):
    """Classes whatever the call's size; a list of those recorded."""
    pretend(monkeypatch, vulkan_backend, class_work=0.0, class_read=0.0)
    recorded, dispatch = [], vulkan_backend.runtime.dispatch

    def counted(program, *args):
        if program.spec.name.startswith(("attention-tiles.", "attention-mask-lanes.")):
            recorded.append(program)
        return dispatch(program, *args)

    monkeypatch.setattr(vulkan_backend.runtime, "dispatch", counted)
    return recorded


def patches(rng, shape, rows=ROWS, keys=KEYS):
    """A boolean array of ``shape`` whose tiles are all False, all True, or True but for a few."""
    counts = [*shape[:2], *(1 if n == 1 else -(-n // size) for n, size in zip(shape[2:], (rows, keys), strict=True))]
    kind = rng.integers(0, 3, counts)
    for axis, size in ((2, rows), (3, keys)):
        if shape[axis] > 1:
            kind = kind.repeat(size, axis)
    kind = kind[:, :, : shape[2], : shape[3]]
    return np.where(kind == 0, False, np.where(kind == 2, True, rng.random(shape) < 0.99))


# -- the classes -----------------------------------------------------------------------------------------------------


def expected(seen, plain):
    """Classes of pairs that may be attended to, and of pairs that need no test."""
    out = np.zeros((B, H, -(-S // ROWS), -(-K // KEYS)), np.int32)
    for r in range(out.shape[2]):
        for c in range(out.shape[3]):
            part = np.s_[:, :, r * ROWS : (r + 1) * ROWS, c * KEYS : (c + 1) * KEYS]
            out[:, :, r, c] = np.where(seen[part].any((2, 3)), np.where(plain[part].all((2, 3)), 2, 1), 0)
    return out


def recorded(backend, made, checked, mask):
    """The words that the dispatches of classes leave, int32."""
    device, options = backend.opened, checked.summary()
    planner = Planner(device.facts, [Layout.of(mask, device.facts), PARAMETERS])
    found = made.dispatch(planner, device.registry, planner.inputs[1], planner.inputs[0])
    words = parameters_of(
        device, template(options.size, dict(options.parameters), [made.parameters()]), checked.arrays, {}, 0
    )
    (result,) = Executable(device, planner.plan(found)).run((mask, words))
    assert result.nbytes == made.nbytes
    return Tensor(result._storage, result.shape, np.dtype(np.int32)).numpy()


def classes(backend, mask, checked):
    """What the shader makes of them."""
    mask = None if mask is None else backend.tensor(mask).broadcast_to((B, H, S, K))
    q, k = backend.empty((B, H, S, 1)), backend.empty((B, 1, K, 1))
    chunk = Chunk(q, k, k, q, None, mask, 0, False)
    made = tiles._classes(chunk, {"rows": ROWS, "keys": KEYS}, checked.summary())
    return recorded(backend, made, checked, mask).reshape(made.shape)


@pytest.mark.parametrize("kind", ["bool", "additive", "turned", "turned-additive", "unaligned"])
@pytest.mark.parametrize("shape", [(1, 1, S, K), (B, H, S, K), (B, 1, 1, K), (1, H, S, 1)], ids=str)
def test_classes_of_masks(vulkan_backend, shape, kind):
    backend = vulkan_backend
    rng = np.random.default_rng(5)
    seen = patches(rng, shape)
    plain = mask = seen
    if "additive" in kind:
        mask = np.where(seen, 0.0, np.where(rng.random(shape) < 0.5, -np.inf, np.finfo(np.float32).min))
        mask[rng.random(shape) < 0.0005] = 0.5
        mask = mask.astype(np.float32)
        mask[(mask == 0) & (rng.random(shape) < 0.5)] = -0.0
        seen, plain = mask > -1e38, mask == 0
    if "turned" in kind:
        mask = np.ascontiguousarray(mask.swapaxes(2, 3)).swapaxes(2, 3)
    if kind == "unaligned" and shape[3] > 1:
        whole = ~np.pad(mask, ((0, 0), (0, 0), (0, 0), (3, 2)))
        whole[..., 3:-2] = mask
        mask = backend.tensor(whole)[..., 3:-2]
    extras = CheckedOptions(H)
    want = expected(np.broadcast_to(seen, (B, H, S, K)), np.broadcast_to(plain, (B, H, S, K)))
    got = classes(backend, mask, extras)
    np.testing.assert_array_equal(np.broadcast_to(got, want.shape), want)
    assert got.shape[:3] == (shape[0], shape[1], 1 if shape[2] == 1 else want.shape[2])


def masked_chunk(backend, mask, kind, full):
    """A dispatch of (B, H, S, keys) with a boolean mask that lies "aligned", "turned" or "unaligned", and its words."""
    tensor = backend.tensor(mask)
    if kind == "turned":
        tensor = backend.tensor(np.ascontiguousarray(mask.swapaxes(2, 3))).transpose(0, 1, 3, 2)
    elif kind == "unaligned" and mask.shape[3] > 1:
        whole = np.pad(~mask, ((0, 0), (0, 0), (0, 0), (3, 2)))
        whole[..., 3:-2] = mask
        tensor = backend.tensor(whole)[..., 3:-2]
    extras = CheckedOptions(full[1])
    q, k = backend.empty((*full[:3], 1)), backend.empty((full[0], 1, full[3], 1))
    return Chunk(q, k, k, q, None, tensor.broadcast_to(full), 0, False), extras


@pytest.mark.parametrize("kind", ["aligned", "turned", "unaligned"])
@pytest.mark.parametrize("shape", [(1, 1, S, K), (B, H, S, 204), (B, 1, 1, 64), (1, H, S, 1), (B, 1, S, 7)], ids=str)
def test_bits_of_masks(backend, monkeypatch, shape, kind):
    """32 keys to a word behind the classes, for kernels whose tile asks for them; rows past the grid's limit too."""
    keys = K if shape[3] == 1 else shape[3]
    mask = np.random.default_rng(13).random(shape) < 0.5
    chunk, extras = masked_chunk(backend, mask, kind, (B, H, S, keys))
    made = tiles._classes(chunk, {"rows": ROWS, "keys": KEYS, "mask_bits": 1}, extras.summary())
    assert made.bits == shape[:3]
    pretend(monkeypatch, backend, groups=(65535, 40, 65535))
    found = recorded(backend, made, extras, chunk.mask)[made.words :]
    seen = np.broadcast_to(mask, (*shape[:3], keys))
    want = np.packbits(seen, axis=-1, bitorder="little")
    want = np.pad(want, ((0, 0), (0, 0), (0, 0), (0, -want.shape[-1] % 4)))
    np.testing.assert_array_equal(found.view(np.uint8), want.reshape(-1))
    parameters = made.parameters()
    assert parameters["mask_bits"] == made.words and parameters["mask_bits_row"] == (
        -(-keys // 32) if shape[2] > 1 else 0
    )


@pytest.mark.parametrize("size", [(32, 16), (64, 64), (16, 8), (5, 7)], ids=str)
def test_classes_of_block_maps(vulkan_backend, size):
    rng = np.random.default_rng(6)
    blocks = rng.random((B, 1, -(-S // size[0]), -(-K // size[1]))) < 0.5
    extras = prepare("test", Options(block_map=blocks, block_size=size), (B, H, S, K), False)
    seen = np.broadcast_to(blocks.repeat(size[0], 2).repeat(size[1], 3)[:, :, :S, :K], (B, H, S, K))
    got = classes(vulkan_backend, None, extras)
    np.testing.assert_array_equal(np.broadcast_to(got, expected(seen, seen).shape), expected(seen, seen))
    assert got.shape[:2] == (B, 1)


def test_classes_of_segments_and_several_inputs(backend):
    rng = np.random.default_rng(7)
    rows, keys = (np.sort(rng.integers(-3, 4, (B, n))).astype(np.int32) for n in (S, K))
    extras = prepare("test", Options(segment_ids=(rows, keys)), (B, H, S, K), False)
    seen = np.broadcast_to(rows[:, None, :, None] == keys[:, None, None], (B, H, S, K))
    want = expected(seen, seen)
    got = classes(backend, None, extras)
    np.testing.assert_array_equal(np.broadcast_to(got, want.shape), want)
    mask = patches(rng, (1, H, S, K))
    both = np.broadcast_to(classes(backend, mask, extras), want.shape)
    other = expected(np.broadcast_to(mask, (B, H, S, K)), np.broadcast_to(mask, (B, H, S, K)))
    np.testing.assert_array_equal(both, np.where((want == 0) | (other == 0), 0, np.minimum(want, other)))


# -- attention with them -----------------------------------------------------------------------------------------------


def problem(rng, heads=H, kv_heads=2, dim=8):
    return tuple(
        rng.standard_normal((B, h, n, dim)).astype(np.float32) for h, n in ((heads, S), (kv_heads, K), (kv_heads, K))
    )


def segments(rng):
    return tuple(np.sort(rng.integers(0, 3, (B, n))).astype(np.int32) for n in (S, K))


def additive(rng):
    mask = np.where(patches(rng, (1, H, S, K), 64, 32), np.float32(0), np.float32(-np.inf))
    mask[:, :, 64:, 96:128] += np.float32(0.25)
    mask[:, 1] = -np.inf  # a head that sees nothing
    return mask


CALLS = {
    "bool": lambda rng: {"mask": patches(rng, (1, 1, S, K), 64, 32)},
    "dead": lambda rng: {"mask": patches(rng, (B, 1, S, K), 64, 32) & (np.arange(S) < 64)[:, None]},
    "additive-causal": lambda rng: {"mask": additive(rng), "causal": True},
    "keys": lambda rng: {"mask": (np.arange(K) < np.array([[70], [161]]))[:, None, None]},
    "blocks": lambda rng: {"block_map": rng.random((1, H, 3, 7)) < 0.4, "block_size": (64, 32)},
    "small-blocks": lambda rng: {"block_map": rng.random((B, 1, 10, 26)) < 0.2, "block_size": (16, 8)},
    "segments": lambda rng: {"segment_ids": segments(rng), "causal": True},
    "all": lambda rng: {
        "mask": patches(rng, (B, 1, S, K), 64, 32), "block_map": rng.random((1, H, 3, 7)) < 0.7, "block_size": (64, 32),
        "segment_ids": segments(rng), "window_size": (90, -1), "causal": True, "sinks": np.ones(H, np.float32),
        "seqlens_k": np.array([K, 120], np.int32), "dropout_p": 0.2, "dropout_seed": 3,
    },
}  # fmt: skip


def check(q, k, v, options, **also):
    out, lse = also.pop("result")
    want, _, want_lse = reference.naive_attention(q, k, v, dtype=np.float64, return_lse=True, **options)
    np.testing.assert_allclose(out, want, atol=3e-6)
    np.testing.assert_allclose(lse, want_lse, atol=1e-5)


@pytest.mark.parametrize("call", CALLS)
def test_attention_is_the_same_with_classes(vulkan_backend, always, monkeypatch, call):
    rng = np.random.default_rng(8)
    q, k, v = problem(rng)
    options = CALLS[call](rng)

    def attend():
        return vulkan_backend.attention.flash_attention2(q, k, v, return_lse=True, kernel=KERNEL, **options)

    with_classes = attend()
    assert len(always) == 1
    check(q, k, v, options, result=with_classes)
    pretend(monkeypatch, vulkan_backend, class_work=np.inf)
    for one, other in zip(with_classes, attend(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(always) == 1


def test_classes_of_each_of_several_dispatches(vulkan_backend, always, monkeypatch):
    """Keys in parts of 64, which are merged."""
    monkeypatch.setattr(attention_plan, "MAX_KEYS", 64)
    rng = np.random.default_rng(9)
    q, k, v = problem(rng)
    options = {"mask": patches(rng, (B, 1, S, K), 64, 32), "block_map": rng.random((1, H, 3, 7)) < 0.7,
               "block_size": (64, 32)}  # fmt: skip
    result = vulkan_backend.attention.flash_attention2(q, k, v, return_lse=True, kernel=KERNEL, **options)
    assert len(always) == 4
    check(q, k, v, options, result=result)


def test_what_hidden_tiles_hold_is_not_read(vulkan_backend, always):
    rng = np.random.default_rng(10)
    q, k, v = problem(rng)
    mask = np.ones((1, 1, S, K), bool)
    mask[..., 64:128] = False
    clean = vulkan_backend.attention.flash_attention2(q, k, v, mask=mask, kernel=KERNEL)
    k[:, :, 64:128] = np.nan
    v[:, :, 64:128] = np.inf
    np.testing.assert_array_equal(vulkan_backend.attention.flash_attention2(q, k, v, mask=mask, kernel=KERNEL), clean)
    assert len(always) == 2


def test_a_call_like_an_earlier_one_gets_classes_of_its_own(vulkan_backend, always):
    """The plan of a call with a mask alone is kept."""
    rng = np.random.default_rng(12)
    q, k, v = (vulkan_backend.tensor(x) for x in problem(rng))
    for n in range(3):
        options = {"mask": patches(rng, (1, 1, S, K), 64, 32)}
        result = vulkan_backend.attention.flash_attention2(q, k, v, return_lse=True, kernel=KERNEL, **options)
        check(*(x.numpy() for x in (q, k, v)), options, result=[r.numpy() for r in result])
        assert len(always) == n + 1 and len(plans(vulkan_backend, attention_plan.planned)) == 1


# -- when ------------------------------------------------------------------------------------------------------------


def planned(backend, mask, heads, keys=256, kernel=KERNEL):
    """Whether a call of 4096 queries, head dimension 64, gets classes."""
    facts = {"align": 8, "head_dim": 64, "value_dim": 64, "keys": 4096, "rows": 1 << 20, "causal": 0, "high": 0}
    choice = backend.registry.resolve(Request("attention", "float32", problem=tuple(facts.items()), prefer=kernel))
    one = backend.empty(1)
    q, k = (one.broadcast_to((1, heads, n, 64)) for n in (4096, keys))
    mask = None if mask is None else backend.empty(mask, np.bool_).broadcast_to((1, heads, 4096, keys))
    opened, chunk = backend.opened, Chunk(q, k, k, q, None, mask, 0, False)
    return tiles.plan(opened.facts, opened.registry, choice, [chunk], NOTHING, False) is not None


def test_classes_are_made_where_they_pay(vulkan_backend):
    assert planned(vulkan_backend, (1, 1, 4096, 256), 8)
    assert not planned(vulkan_backend, (1, 8, 4096, 256), 8)  # each part of the mask is read once anyway
    assert not planned(vulkan_backend, (1, 1, 4096, 2), 8, keys=2)
    assert not planned(vulkan_backend, None, 8)
    assert not planned(vulkan_backend, (1, 1, 4096, 256), 8, kernel="attention-naive")


def test_another_kernel_is_taken_for_its_classes_where_they_pay(vulkan_backend):
    other, one = (SimpleNamespace(variant=SimpleNamespace(offered=bits)) for bits in (tiles.TILES, 0))
    registry = SimpleNamespace(resolve=lambda request: other, rank=lambda variant: 0)
    mask, request = Layout((1, 1, 4096, 256), (0, 0, 256, 1), np.dtype(bool)), Request("attention", "float32")
    facts = vulkan_backend.opened.facts
    always = dataclasses.replace(facts, class_work=0.0, class_read=0.0)
    read = 4096.0 * 256
    for given, work, wanted in [
        (facts, facts.class_read * read, other), (facts, 0.9 * facts.class_read * read, one), (always, 1.0, other),
        (dataclasses.replace(facts, class_work=np.inf), 1e30, one),
    ]:  # fmt: skip
        assert tiles.rather(mask, given, registry, request, one, work) is wanted


def test_the_default_plan_takes_a_mask(vulkan_backend, always):
    """Whatever kernel the registry chooses."""
    rng = np.random.default_rng(11)
    q, k, v = (vulkan_backend.tensor(x) for x in problem(rng))
    options = CALLS["bool"](rng)
    result = F.flash_attention2(q, k, v, return_lse=True, **options)
    check(*(x.numpy() for x in (q, k, v)), options, result=[r.numpy() for r in result])
