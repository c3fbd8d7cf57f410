"""precision="high" on many kinds of input: float32 attention errs at most twice as much as plain float32.

Two kinds have bounds of their own, see LUCK. Each test runs on every kernel of 16-bit parts that the device has, and on
whatever serves a call that allows such kernels.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import grilly.functional as F
from cases import Case
from grilly import nn, reference
from grilly.compute.methods import Attention
from kernels import only_or_skip, request_of, shipped, view_of

VARIANTS = [
    variant for variant in shipped("attention")
    if variant.dtype == "float32" and "high" in variant.limits
]  # fmt: skip
ROUNDING = 2.0**-23
#: The narrowest heads computed from 16-bit parts.
SPLIT_DIM = 16


@pytest.fixture(params=[None, *VARIANTS], ids=lambda variant: variant.label if variant else "default")
def attend(request, backend):
    """A function of q, k, v and options, and the head dimension to use."""
    variant, options = request.param, {"precision": "high"}
    dim = SPLIT_DIM
    if variant is not None:
        dim = variant.limits["head_dim"][1]
        facts = {"align": 4, "head_dim": dim, "value_dim": dim, "rows": 1, "high": 1, "causal": 0}
        backend = only_or_skip(backend, variant, **facts)
        options["kernel"] = "flash-attention3"

    def call(q, k, v, **more):
        return backend.attention.flash_attention2(
            *(backend.tensor(a) for a in (q, k, v)), **options, **more
        ).numpy()  # fmt: skip

    call.dim = dim
    return call


def powers(rng, most, *shape):
    return (2.0 ** rng.uniform(-most, most, shape)).astype(np.float32)


def lognormal(rng, sigma, *shape):
    return np.exp(sigma * rng.standard_normal(shape)).astype(np.float32)


HIDDEN = 3  # of so many keys, the first one
FAMILIES = {
    "normal": lambda rng, q, k, v: (q, k, v),
    "all-by-10": lambda rng, q, k, v: (q * 10, k * 10, v * 10),
    "queries-by-100": lambda rng, q, k, v: (q * 100, k, v),
    "all-by-100": lambda rng, q, k, v: (q * 100, k * 100, v * 100),
    "all-by-10000": lambda rng, q, k, v: (q * 10000, k * 10000, v * 10000),
    "keys-plus-1000": lambda rng, q, k, v: (q, k + 1000, v),
    "values-plus-1000": lambda rng, q, k, v: (q, k, v + 1000),
    "rows-of-all-sizes": lambda rng, q, k, v: (
        q * powers(rng, 20, *q.shape[:3], 1), k * powers(rng, 20, *k.shape[:3], 1), v
    ),
    "rows-up-to-1": lambda rng, q, k, v: (
        q * powers(rng, 10, *q.shape[:3], 1) / 1024, k * powers(rng, 10, *k.shape[:3], 1) / 1024, v
    ),
    "lognormal-rows": lambda rng, q, k, v: (
        q * lognormal(rng, 5, *q.shape[:3], 1), k * lognormal(rng, 5, *k.shape[:3], 1), v
    ),
    "lognormal-elements": lambda rng, q, k, v: (
        q, k * lognormal(rng, 2, *k.shape) / 10, v * lognormal(rng, 5, *v.shape)
    ),
    "outlier-column-of-keys": lambda rng, q, k, v: (q, k * np.where(np.arange(k.shape[3]) == 1, 100, 1), v),
    "rows-of-values": lambda rng, q, k, v: (q, k, v * powers(rng, 30, *v.shape[:3], 1)),
    "columns-of-values-8": lambda rng, q, k, v: (q, k, v * powers(rng, 8, 1, 1, 1, v.shape[3])),
    # In fours, as columns lie in memory: see the documentation of precision.
    "columns-of-values-30": lambda rng, q, k, v: (
        q, k, v * np.repeat(powers(rng, 30, 1, 1, 1, v.shape[3] // 4), 4, axis=3)
    ),
    "sink": lambda rng, q, k, v: (
        q + 1, np.where(np.arange(k.shape[2])[:, None] == 0, 1, k),
        v * np.where(np.arange(v.shape[2]) == 0, 1e-3, 1)[:, None],
    ),
}  # fmt: skip


# A few rows make the error of a whole column.
FEW_ROWS = ("rows-of-all-sizes", "lognormal-rows", "lognormal-elements", "all-by-100")
# Times plain float32's error. Float32 numbers of 1e4 are 1e-3 apart, so one row of hundreds, with two nearly equal
# scores, makes nearly all of the error, and the ratio is that of two roundings. Workgroups with such scores compute on
# vector units (flash-split.glsl), so matrix units have no part in it: measured on an H200 12.7 and 2.36 (all-by-100
# with 96 columns, lognormal-rows with 64), by the vector kernels of llvmpipe 10.2 and 2.27, by NumPy with the columns
# of q and k reversed up to 2.2 and 6.2. A score lost altogether, or NaN, is far beyond these bounds.
LUCK = {"all-by-100": 15, "lognormal-rows": 3}


def arrays(family, dim, heads=6, queries=150, keys=203):
    rng = np.random.default_rng([dim, *family.encode()])
    case = Case(family, heads=heads, queries=queries, keys=keys, dim=dim)
    q, k, v = (
        rng.standard_normal((1, heads, rows, dim)).astype(np.float32) for rows in (queries, keys, keys)
    )  # fmt: skip
    return case, *(np.ascontiguousarray(a, np.float32) for a in FAMILIES[family](rng, q, k, v))


def judge(out, q, k, v, mask=None, causal=False, scale=None, columns=True, times=2):
    """At most ``times`` plain float32's root mean square error, in all and in each column of v, and one rounding.

    Not by ``columns`` where a few rows make a column's error: one rounding in one row then decides it.
    """
    options = {"mask": mask, "causal": causal, "scale": scale}
    exact = reference.naive_attention(q, k, v, dtype=np.float64, **options)[0]
    plain = reference.naive_attention(q, k, v, **options)[0]
    magnitude = reference.naive_attention(q, k, np.abs(v), dtype=np.float64, **options)[0]
    assert np.isfinite(out).all()
    mine, its = np.abs(out - exact), np.abs(plain - exact)
    for axes in (None, (0, 1, 2)) if columns else (None,):
        mean = [np.sqrt((a.astype(np.float64) ** 2).mean(axes)) for a in (mine, its, magnitude)]
        assert (mean[0] <= times * mean[1] + ROUNDING * mean[2]).all(), (axes, np.max(mean[0] / (mean[1] + 1e-300)))
    # The largest of thousands is as uncertain as what it is compared with: twice as much again.
    assert mine.max() <= 2 * times * its.max() + 2 * ROUNDING * magnitude.max(), (mine.max(), its.max())


@pytest.mark.parametrize("family", FAMILIES)
def test_family(attend, family):
    _, q, k, v = arrays(family, attend.dim)
    judge(attend(q, k, v), q, k, v, columns=family not in FEW_ROWS, times=LUCK.get(family, 2))


@pytest.mark.parametrize("family", ["normal", "all-by-10", "rows-of-values"])
def test_family_causal_and_masked(attend, family):
    case, q, k, v = arrays(family, attend.dim)
    judge(attend(q, k, v, causal=True), q, k, v, causal=True)
    rng = np.random.default_rng(1)
    for mask in (rng.random((case.queries, case.keys)) < 0.5,
                 rng.standard_normal((case.queries, case.keys)).astype(np.float32)):  # fmt: skip
        judge(attend(q, k, v, mask=mask), q, k, v, mask=mask)


@pytest.mark.parametrize("power", [10, 17, 20, 25, 40, 100])
@pytest.mark.parametrize("which", ["k", "v"])
def test_size_of_hidden_keys(attend, which, power):
    """What a mask hides takes no bits from its neighbours, however large."""
    case, q, k, v = arrays("normal", attend.dim)
    mask = np.broadcast_to(np.arange(case.keys) % HIDDEN != 0, (case.queries, case.keys))
    for a in {"k": [k], "v": [v]}[which]:
        a[:, :, ::HIDDEN] *= np.float32(2.0**power)
    judge(attend(q, k, v, mask=mask), q, k, v, mask=mask)


@pytest.mark.parametrize("bias", [-1e6, -1e7, -3e7, -1e8, -1e9, 1e8])
def test_large_additions_to_whole_rows(attend, bias):
    """Maxima whose neighbouring numbers are further apart than the weights' exponents."""
    case, q, k, v = arrays("normal", attend.dim)
    mask = np.where(np.arange(case.queries)[:, None] % 2, np.float32(bias), np.float32(0))
    mask = np.ascontiguousarray(np.broadcast_to(mask, (case.queries, case.keys)))
    judge(attend(q, k, v, mask=mask), q, k, v, mask=mask)


def test_long_keys(attend):
    _, q, k, v = arrays("normal", attend.dim, heads=1, queries=64, keys=4099)
    judge(attend(q, k, v), q, k, v)


@pytest.mark.parametrize("dim", [1, 3, 7, 15, 16, 17, 20, 33, 64, 127, 128])
def test_head_dimensions(backend, dim):
    for family in ("normal", "queries-by-100"):
        _, q, k, v = arrays(family, dim, heads=2)
        tensors = [backend.tensor(a) for a in (q, k, v)]
        # Of 300 rows with large scores a few make a column's error.
        judge(F.flash_attention2(*tensors, precision="high").numpy(), q, k, v, columns=family == "normal")


# -- the defaults ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["flash_attention2", "flash_attention3"])
def test_attention_is_highest_by_default(backend, name):
    assert inspect.signature(getattr(Attention, name)).parameters["precision"].default == "highest"
    view = view_of(backend)

    def asked(dim, **options):
        tensors = [view.tensor(np.ones((1, 2, 70, dim), np.float32)) for _ in range(3)]
        call = getattr(view.attention, name)
        return dict(request_of(view, lambda: call(*tensors, kernel="flash-attention2", **options)).problem)["high"]

    assert asked(SPLIT_DIM) == asked(SPLIT_DIM, precision="highest") == 0
    assert asked(SPLIT_DIM, precision="high") == 1
    assert asked(SPLIT_DIM - 4, precision="high") == 0


def test_layers_have_the_operations_defaults(backend, monkeypatch):
    assert nn.FlashAttention2(32, 2).precision == nn.FlashAttention3(32, 2).precision == "highest"
    assert nn.Linear(4, 4).precision == "highest"
    layer = nn.MultiheadAttention(32, 2)
    assert layer.precision is None and layer.out_proj.precision == "highest"
    asked = []
    for name in ("flash_attention2", "linear"):
        own = getattr(F, name)

        def spy(*args, own=own, name=name, **options):
            asked.append((name, options.get("precision")))
            return own(*args, **options)

        monkeypatch.setattr(F, name, spy)
    x = np.random.default_rng(0).standard_normal((1, 9, 32)).astype(np.float32)
    layer(x, x, x, need_weights=False)
    assert asked == [("linear", None), ("flash_attention2", None), ("linear", "highest")]
