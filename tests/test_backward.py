"""The gradients of attention against the float64 reference: every option, layouts, cuts, what hidden places hold."""

from __future__ import annotations

import functools
import os

import numpy as np
import pytest

import features
import grilly
import grilly.functional as F
from cases import CASES, DTYPES, Case, assert_as_accurate, epsilon, make_arrays
from features import CELLS, Cell
from gradients import chosen_kernels, recomputed
from grilly import reference
from kernels import smaller

WANTED = {"attn_bias": "dbias", "sinks": "dsinks", "t5_table": "dt5_table"}


def check(backend, grad, arrays, clean, options, what, layout=lambda a: a):
    """Run the gradients of one call on the device and judge every result."""
    q, k, v = clean
    dtype = q.dtype
    out, _, lse = reference.naive_attention(*clean, dtype=np.float64, return_lse=True, **options)
    out, lse = out.astype(dtype), lse.astype(np.float32)
    wanted = [name for name in WANTED if options.get(name) is not None]
    with chosen_kernels(backend) as chosen:
        got = backend.attention.flash_attention2_backward(
            *(backend.tensor(layout(a)) for a in (grad, *arrays, out)), lse,
            return_dbias="attn_bias" in wanted, return_dsinks="sinks" in wanted, return_dt5_table="t5_table" in wanted,
            **options,
        )  # fmt: skip
    sixteen = any(choice.variant.unproven for choice in chosen)
    exact = reference.attention_backward(
        *(a.astype(np.float64) for a in (grad, *clean)), dtype=np.float64, **options
    )
    plain = recomputed(grad, *clean, out, lse, options, sixteen)
    for name, result in zip(["dq", "dk", "dv", *(WANTED[w] for w in wanted)], got, strict=True):
        want = getattr(exact, name)
        its, terms = plain[name]
        kind = dtype if name in ("dq", "dk", "dv") else np.float32
        # What 16-bit outputs are rounded to is in delta, and so in every term.
        magnitude = max(float(terms.max(initial=0)), 1e-30)
        if q.shape[2] == 1 and dtype == np.float32:
            # A weight is exp of a score less the log-sum-exp, both rounded at their own size (up to 16 here), which the
            # sum over rows averages where there is more than one.
            magnitude *= 16
        assert_as_accurate(
            result.numpy(), want, its.reshape(want.shape).astype(kind), f"{what} {name}", magnitude
        )


def gradient(case, dtype, seed=7):
    """A random gradient of a case's output."""
    shape = (case.batch, case.heads, case.queries, case.dim if case.value_dim is None else case.value_dim)
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


SMALL = [c for c in CASES if not c.name.startswith("dim-") or c.dim in (1, 32, 64, 129, 256)]


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_shapes_and_masks(backend, case):
    q, k, v, mask = make_arrays(case)
    options = {"mask": mask, "causal": case.causal, "scale": case.scale}
    check(backend, gradient(case, np.float32), (q, k, v), (q, k, v), options, case.name)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize(
    "case", [c for c in SMALL if c.name in "prime dim-7 dim-256 bool-dead-rows causal-grouped-odd".split()], ids=str
)
def test_sixteen_bits(backend, case, dtype):
    q, k, v, mask = make_arrays(case, dtype)
    options = {"mask": mask, "causal": case.causal, "scale": case.scale}
    check(backend, gradient(case, dtype), (q, k, v), (q, k, v), options, case.name)


@functools.cache
def known(cell):
    call = features.make(cell)
    shape = (*call.q.shape[:-1], call.v.shape[-1])
    grad = np.random.default_rng(3).standard_normal(shape).astype(call.q.dtype)
    return call, grad


def few() -> list[Cell]:
    """Cells of float32: every variant of an option alone, and combinations in which every two variants meet, chosen so
    that few kernels must be compiled. With GRILLY_FULL_FEATURES=1 all pairs at all widths, and some of 16 bits."""
    if os.environ.get("GRILLY_FULL_FEATURES", "0") in ("", "0"):
        alone = [dict(zip(features.AXES, variants, strict=True)) for variants in features.singles()]
        combined = [each for kernel in features.short_combined() for each in kernel]
        chosen = [each | {"width": (64, 64)} for each in alone + combined]
        return list(dict.fromkeys(Cell("float32", tuple(each[axis] for axis in features.AXES)) for each in chosen))
    return [
        cell for n, cell in enumerate(CELLS)
        if cell.dtype == "float32" or (n % 8 == 0 and len(cell.features) > 2)
        or (cell.dtype == "float16" and n % 4 == 0)
    ]  # fmt: skip


FEW = few()


@pytest.mark.parametrize("cell", FEW, ids=str)
def test_every_option(vulkan_backend, cell):
    """Each alone and every two together; hidden places hold NaN or infinities in some."""
    call, grad = known(cell)
    arrays = (call.q, call.k, call.v)

    def layout(a):
        return a if cell["layout"] is None else np.ascontiguousarray(a.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)

    check(vulkan_backend, grad, arrays, call.clean, call.options, str(cell), layout)


# -- matrix units -----------------------------------------------------------------------------------------------------


# -- plans and layouts ------------------------------------------------------------------------------------------------


def run(backend, case, layout="bhsd", dtype=np.float32, lse_gradient=False, **more):
    """The gradients of a case as arrays, in one layout of all arrays."""
    q, k, v, mask = make_arrays(case, dtype)
    grad = gradient(case, dtype)
    options = {"mask": mask, "causal": case.causal, "scale": case.scale, **more}
    forward = {name: value for name, value in options.items() if not name.startswith("return")}
    out, _, lse = reference.naive_attention(q, k, v, dtype=np.float64, return_lse=True, **forward)

    def lay(a):
        if layout == "bshd":
            return np.ascontiguousarray(a.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
        if layout == "sliced":
            return np.repeat(np.repeat(a, 2, axis=2), 2, axis=0)[::2, :, ::2]
        if layout == "last-strided":
            return np.repeat(a, 2, axis=3)[..., ::2]
        return a

    arrays = (lay(a) for a in (grad, q, k, v, out.astype(dtype)))
    if lse_gradient:
        options["grad_lse"] = lse_gradients(case)
    return backend.attention.flash_attention2_backward(*arrays, lse.astype(np.float32), **options)


def lse_gradients(case):
    return np.random.default_rng(11).standard_normal((case.batch, case.heads, case.queries)).astype(np.float32)


PLANS = [
    Case("plain", batch=3, heads=4, kv_heads=2, queries=50, keys=61, dim=16),
    Case("odd", batch=2, heads=3, kv_heads=1, queries=50, keys=61, dim=7),
    Case("mask", batch=2, heads=2, queries=50, keys=61, dim=16, mask="bool-full"),
    Case("causal", batch=2, heads=2, queries=61, keys=50, dim=16, causal=True),
]


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("storage_range", [4096, 2048])
@pytest.mark.parametrize("case", PLANS, ids=str)
@pytest.mark.parametrize("lse_gradient", [False, True])
def test_bindings_smaller_than_the_arrays(backend, case, storage_range, layout, lse_gradient):
    if "descriptor-offsets" not in backend.runtime.features:
        pytest.skip(f"the {backend.runtime.name} runtime binds whole buffers only")
    want = run(backend, case, layout, lse_gradient=lse_gradient)
    with smaller(backend, storage_range=storage_range) as dispatches:
        got = run(backend, case, layout, lse_gradient=lse_gradient)
    assert len(dispatches) > 3
    for array, other in zip(got, want, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("groups", [(65535, 3, 65535), (65535, 65535, 2)])
def test_more_heads_and_batches_than_groups(backend, groups):
    case = PLANS[0]
    want = run(backend, case)
    with smaller(backend, groups=groups):
        got = run(backend, case)
    for array, other in zip(got, want, strict=True):
        assert (array == other).all()


@pytest.mark.parametrize("layout", ["bshd", "sliced", "last-strided"])
def test_layouts(backend, layout):
    for array, other in zip(run(backend, PLANS[0], layout), run(backend, PLANS[0]), strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rank", [2, 3])
def test_fewer_axes(backend, rank):
    case = Case("axes", heads=3, queries=17, keys=23, dim=16)
    q, k, v, _ = make_arrays(case)
    full = run(backend, case)
    out, _, lse = reference.naive_attention(q, k, v, dtype=np.float64, return_lse=True)
    place = (0,) * (4 - rank)
    arrays = (a[place] for a in (gradient(case, np.float32), q, k, v, out.astype(np.float32), lse.astype(np.float32)))
    for array, other in zip(backend.attention.flash_attention2_backward(*arrays), full, strict=True):
        assert array.shape == other[place].shape and (array == other[place]).all()


#: With all dtypes where nothing else is asked for; a program of each that has options takes long to compile.
SUMMED = [
    *(pytest.param({}, *dtype.values, id=f"plain-{dtype.id}") for dtype in DTYPES),
    pytest.param({"softcap": 2.0}, np.float16, id="softcap-float16"),
    pytest.param({"window_size": (9, 3)}, np.float32, id="window-float32"),
    pytest.param({"dropout_p": 0.3, "dropout_seed": 5}, np.float32, id="dropout-float32"),
    pytest.param({
        "attn_bias": np.random.default_rng(3).standard_normal((1, 4, 1, 61)).astype(np.float32), "return_dbias": True,
        "sinks": np.arange(4, dtype=np.float32), "return_dsinks": True,
    }, np.float32, id="bias-sinks-float32"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "dtype"), SUMMED)
def test_gradients_of_the_log_sum_exp(backend, dtype, options):
    """Added to those of the output: what is differentiated may use both, as a z-loss does."""
    case = Case("sums", batch=2, heads=4, kv_heads=2, queries=50, keys=61, dim=16, causal=True)
    q, k, v, _ = make_arrays(case, dtype)
    grad, grad_lse = gradient(case, dtype), lse_gradients(case)
    forward = {name: value for name, value in options.items() if not name.startswith("return")}
    got = run(backend, case, dtype=dtype, lse_gradient=True, **options)
    exact = reference.attention_backward(
        grad, q, k, v, causal=True, dtype=np.float64, grad_lse=grad_lse, **forward
    )
    without = reference.attention_backward(grad, q, k, v, causal=True, dtype=np.float64, **forward)
    assert np.abs(exact.dq - without.dq).max() > 0.1, "the case shows nothing otherwise"
    wanted = [each for each in exact if each is not None]
    assert len(got) == len(wanted)
    for array, other in zip(got, wanted, strict=True):
        bound = 3e-6 if dtype == np.float32 else 4 * epsilon(np.dtype(dtype))
        assert np.abs(array.astype(np.float64) - other).max() <= bound * max(1.0, np.abs(other).max())
    tensors = [backend.tensor(a) for a in (grad, q, k, v)]
    out, lse = F.flash_attention2(*tensors[1:], causal=True, return_lse=True, **forward)
    both = np.stack([grad_lse, grad_lse], axis=-1)
    twice = [
        F.flash_attention2_backward(*tensors, out, lse, causal=True, grad_lse=sums, **options)
        for sums in (backend.tensor(grad_lse), backend.tensor(both)[..., 1], grad_lse)
    ]
    for others in twice[1:]:
        for one, two in zip(twice[0], others, strict=True):
            np.testing.assert_array_equal(one.numpy(), two.numpy())


def test_repeats_are_equal_to_the_bit(backend):
    case = Case("repeat", heads=4, kv_heads=1, queries=150, keys=150, causal=True)
    first, second = run(backend, case), run(backend, case)
    assert all((a == b).all() for a, b in zip(first, second, strict=True))


def test_empty_arrays(backend):
    full, lse = np.ones((2, 3, 5, 8), np.float32), np.zeros((2, 3, 5), np.float32)
    back = backend.attention.flash_attention2_backward
    dq, dk, dv = back(full, full, full[:, :, :0], full[:, :, :0], full, lse)
    assert dq.shape == full.shape and (dq == 0).all() and dk.shape == dv.shape == (2, 3, 0, 8)
    dq, dk, dv = back(full[:, :, :0], full[:, :, :0], full, full, full[:, :, :0], lse[:, :, :0])
    assert dq.size == 0 and (dk == 0).all() and (dv == 0).all()


def test_tensors_stay_on_the_device(backend):
    case = Case("tensors", queries=20, keys=30, dim=16)
    q, k, v, _ = make_arrays(case)
    tensors = [backend.tensor(a) for a in (q, k, v)]
    out, lse = F.flash_attention2(*tensors, return_lse=True)
    got = F.flash_attention2_backward(backend.tensor(gradient(case, np.float32)), *tensors, out, lse)
    assert all(isinstance(tensor, grilly.Tensor) for tensor in got)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"grad_out": np.ones((1, 2, 5, 8), np.float32)}, ValueError, "grad_out has shape"),
        ({"out": np.ones((1, 2, 6, 8), np.float16)}, TypeError, "out is float16"),
        ({"lse": np.ones((1, 2, 6), np.float64)}, TypeError, "lse is float64"),
        ({"lse": np.ones((1, 2, 5), np.float32)}, ValueError, "lse has shape"),
        ({"grad_lse": np.ones((1, 2, 5), np.float32)}, ValueError, "grad_lse has shape"),
        ({"grad_lse": np.ones((1, 2, 6), np.float16)}, TypeError, "grad_lse is float16"),
        ({"grad_lse": [1.0]}, TypeError, "grad_lse is list"),
        ({"k": np.ones((1, 3, 7, 8), np.float32)}, ValueError, "heads"),
        ({"scale": np.inf}, ValueError, "scale"),
        ({"mask": np.ones((4, 7), bool)}, ValueError, "does not broadcast"),
        ({"return_dbias": True}, ValueError, "attn_bias"),
        ({"return_dsinks": True}, ValueError, "sinks"),
        ({"return_dt5_table": True}, ValueError, "t5_table"),
        ({"dropout_p": 1.0}, ValueError, "dropout_p"),
        ({"no_such": 1}, TypeError, "no_such"),
    ],
)
def test_errors_come_before_work(backend, change, error, words):
    rows = {name: np.ones((1, 2, 6, 8), np.float32) for name in ("grad_out", "q", "out")}
    call = {**rows, "k": np.ones((1, 2, 7, 8), np.float32), "v": np.ones((1, 2, 7, 8), np.float32),
            "lse": np.ones((1, 2, 6), np.float32), **change}  # fmt: skip
    arrays = [call.pop(name) for name in ("grad_out", "q", "k", "v", "out", "lse")]
    with smaller(backend) as dispatches, pytest.raises(error, match=words):
        backend.attention.flash_attention2_backward(*arrays, **call)
    assert not dispatches
