"""The gradients of attention against the float64 reference: every option, layouts, cuts, what hidden places hold."""

from __future__ import annotations

import contextlib
import functools
import os

import numpy as np
import pytest

import features
import grilly
import grilly.functional as F
from cases import CASES, DTYPES, Case, assert_as_accurate, make_arrays
from features import CELLS, Cell
from grilly import reference
from grilly.compute.attention import backward, backward_plan, backward_sums
from grilly.compute.attention.options import Options
from grilly.compute.device import record
from grilly.compute.device.dtypes import epsilon
from grilly.errors import OutOfDeviceMemoryError
from grilly.reference import attention as internals
from grilly.reference import sums
from grilly.registry import Request
from kernels import forget, pretend
from test_plan import smaller

WANTED = {"attn_bias": "dbias", "sinks": "dsinks", "t5_table": "dt5_table"}


def recomputed(grad, q, k, v, out, lse, options, sixteen=False):
    """The formulas of the kernels in float32 NumPy, and the largest sum of absolute terms behind each result.

    The weights come from the log-sum-exp and delta from the output, as in Dao 2023, algorithm 2: where a row sees one
    key its dS is a rounding error then, and not zero. With ``sixteen``, weights and dS are rounded to the arrays' type
    before they multiply, as matrix units take them.
    """
    dtype = q.dtype if sixteen else np.float32
    grad, q, k, v, out = (a.astype(np.float32) for a in (grad, q, k, v, out))
    options = dict(options)
    scale, mask, causal = (options.pop(name, None) for name in ("scale", "mask", "causal"))
    p = internals.problem(q, k, v, scale, mask, bool(causal), np.float32, options)
    grad, out = (a.reshape(*p.q.shape[:-1], v.shape[-1]) for a in (grad, out))
    capped = internals.products(p, *p.all)
    scores = capped.copy()
    internals.finish_scores(p, scores, *p.all)
    seen = scores != -np.inf
    lse = lse.reshape(*scores.shape[:-1], 1)
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.where(seen, sums.exp(scores - lse), 0).astype(np.float32)
        d_weights = reference.matmul(grad, p.v.swapaxes(-1, -2))
        terms = reference.matmul(np.abs(grad), np.abs(p.v).swapaxes(-1, -2))
        factor = p.rules.dropout_factor(*p.all, p.q.dtype)
        factor = np.float32(1) if factor is None else factor
        d_weights, terms = (np.where(seen, a * factor, 0) for a in (d_weights, terms))
        delta = (grad * out).sum(-1, keepdims=True)
        deltas = np.abs(grad * out).sum(-1, keepdims=True)
        d_scores = np.where(seen, weights * (d_weights - delta), 0)
        terms = np.where(seen, weights * (terms + deltas), 0)
        d_products = d_scores.copy()
        most = terms * np.float32(abs(p.scale))
        if p.rules.softcap:
            d_products *= 1 - np.square(capped / np.float32(p.rules.softcap))
        d_products = np.where(seen, d_products, 0).astype(dtype).astype(np.float32) * np.float32(p.scale)
        dropped = (weights * factor).astype(dtype).astype(np.float32)
    product = reference.matmul
    results = {
        "dq": (product(d_products, p.k), product(most, np.abs(p.k))),
        "dk": (product(d_products.swapaxes(-1, -2), p.q).sum(2), product(most.swapaxes(-1, -2), np.abs(p.q)).sum(2)),
        "dv": (
            product(dropped.swapaxes(-1, -2), grad).sum(2),
            product(dropped.swapaxes(-1, -2), np.abs(grad)).sum(2),
        ),
    }
    from grilly.reference.backward import _of_table, _summed_to

    if p.rules.bias is not None:
        results["dbias"] = tuple(_summed_to(a, p.rules.bias.shape) for a in (d_scores, terms))
    if p.rules.table is not None:
        where = p.rules.buckets(*p.all), p.rules.table.shape
        results["dt5_table"] = tuple(_of_table(a, *where) for a in (d_scores, terms))
    if p.rules.sinks is not None:
        with np.errstate(over="ignore"):
            share = np.where(lse == -np.inf, 0, sums.exp(p.rules.sinks.astype(np.float32) - lse[..., 0])[..., None])
        results["dsinks"] = tuple((share * a).sum((0, 3, 4)).reshape(-1) for a in (-delta, deltas))
    return results


@contextlib.contextmanager
def chosen_kernels(backend):
    """Gathers the choices of the kernels for dq, and for dk and dv."""
    original, chosen = backward.plan, []

    def noted(*arguments):
        made = original(*arguments)
        own = {s.choice.variant: s.choice for s in made.plan.steps}
        chosen.extend(c for v, c in own.items() if v.operation.startswith("attention-backward-d"))
        return made

    forget(backend)
    backward.plan = noted
    try:
        yield chosen
    finally:
        backward.plan = original


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


def left_out(registry, item):
    """What is of matrix units alone, where the device has none that a kernel is for."""
    if item.function not in (test_matrix_units, test_packed_sequences_on_matrix_units, test_no_room_for_ds):
        return None
    dim = item.callspec.params.get("dim", 16)
    facts = {"align": 8, "causal": 0, "extras": 0, "options": 0, "head_dim": dim, "value_dim": 8}
    for operation in ("attention-backward-dq", "attention-backward-dkv", "attention-backward-dq-stored"):
        found = registry.explain(Request(operation, "float16", facts=facts))
        if all(reason for variant, reason in found if variant.unproven):
            return f"{operation} on matrix units: the device has none that a kernel is for"
    return None


@contextlib.contextmanager
def on_matrix_units(backend, **facts):
    """Matrix variants go first, and pass their self-check; skips, saying why, where the device has none."""
    hidden = []
    for name in ("dq", "dkv", "dq-stored"):
        operation = f"attention-backward-{name}"
        request = Request(operation, "float16", facts={"align": 8, "causal": 0, "extras": 0, "options": 0, **facts})
        explained = [(v, reason) for v, reason in backend.registry.explain(request) if v.unproven]
        if all(reason for _, reason in explained):
            pytest.skip(f"{explained[0][0].name}: {explained[0][1]}")
        hidden.append(operation)
    rank = backend.registry.rank
    backend.registry.rank = lambda v: rank(v) + (1000 if v.operation in hidden and v.unproven else 0)
    backend.registry._choices.clear()
    forget(backend)
    try:
        for operation in hidden:  # else a self-check that fails would have vector units do the work
            assert backend.registry.resolve(request._replace(operation=operation)).variant.unproven
        yield
    finally:
        del backend.registry.rank
        backend.registry._choices.clear()
        forget(backend)


@pytest.mark.parametrize(("dim", "workspace"), [(16, "none"), (16, "shares"), (48, "whole")])
@pytest.mark.parametrize("options", [
    {}, {"causal": True}, {"mask": "bool"}, {"window_size": (9, 4), "softcap": 3.0},
    {"dropout_p": 0.4, "dropout_seed": 3},
    {"alibi_slopes": np.float32([0.1, 0.2, 0.3, 0.4]), "seqlens_k": np.int32([40, 61]), "causal": True},
    {"prefix_len": np.int32([20, 3]), "causal": True, "seqlens_q": np.int32([50, 31])}, {"window_size": (3, -1)},
], ids=lambda options: "-".join(options) or "plain")  # fmt: skip
def test_matrix_units(vulkan_backend, monkeypatch, options, dim, workspace):
    """The kernels on matrix units, with dS in memory and without; what hidden keys hold does not matter."""
    backend, options = vulkan_backend, {"scale": None, **options}
    facts = (("align", 8), ("causal", 0), ("extras", 0), ("head_dim", dim), ("options", 0), ("value_dim", 8))
    product = Request("attention-backward-dq-stored", "float16", facts=facts)
    able = [v for v, reason in backend.registry.explain(product) if reason is None]
    if not able:
        pytest.skip("attention-backward-dq-stored: the device has none that a kernel is for")
    # Of two shares at a time, each a key head with its two query heads, or a sample where that is a single workgroup.
    stored = able[0].tile["stored"]
    share = 2 * (2 if stored < 61 else 4) * max(stored, 64) ** 2
    pretend(monkeypatch, backend, workspace={"none": 0, "whole": 2**28, "shares": 2 * share}[workspace], units=1)
    case = Case("matrix", batch=2, heads=4, kv_heads=2, queries=50, keys=61, dim=dim, value_dim=8)
    q, k, v, _ = make_arrays(case, np.float16)
    if options.get("mask") == "bool":
        options["mask"] = np.random.default_rng(4).random((2, 1, 50, 61)) < 0.8
        options["mask"][:, :, :, 7] = False
    with on_matrix_units(backend, head_dim=dim, value_dim=8):
        with chosen_kernels(backend) as chosen:
            check(backend, gradient(case, np.float16), (q, k, v), (q, k, v), options, "matrix")
        products = [choice for choice in chosen if choice.variant.operation == product.operation]
        assert bool(products) == (workspace != "none")
        if "mask" in options:
            dirty = [a.copy() for a in (k, v)]
            for array, poison in zip(dirty, (np.nan, np.inf), strict=True):
                array[:, :, 7] = poison
            check(backend, gradient(case, np.float16), (q, *dirty), (q, k, v), options, "hidden")


def test_gradients_of_many_batches_are_added_in_parts(vulkan_backend, monkeypatch):
    """What a T5 table and sinks get from all batches is more than some drivers' loops can go through."""
    rng = np.random.default_rng(5)
    q, k, v, grad = rng.standard_normal((4, 3, 2, 37, 8)).astype(np.float32)
    more = {"t5_table": rng.standard_normal((8, 2)).astype(np.float32), "sinks": np.float32([0.5, -0.5])}
    out, lse = F.flash_attention2(q, k, v, return_lse=True, **more)

    def sums():
        return F.flash_attention2_backward(
            grad, q, k, v, out, lse, **more, return_dt5_table=True, return_dsinks=True
        )[3:]  # fmt: skip

    whole = sums()
    forget(vulkan_backend)
    monkeypatch.setattr(backward_sums, "_SHARE", 64)
    parts = sums()
    for one, other in zip(whole, parts, strict=True):
        assert one.shape == other.shape and np.abs(one).max() > 0.1
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5 * np.abs(one).max())


def test_more_diagonals_than_a_loop_has_trips(vulkan_backend):
    """Mesa's CPU driver ends loops silently after 65,535 trips: 64 diagonals are one."""
    device, batch, keys = vulkan_backend.opened, 4400, 1000
    table = np.zeros((4, 1), np.float32)
    checked = backward.prepare(backward.NAME, Options(t5_table=table), (batch, 1, 1, keys), False)
    terms = backward.BackwardTerms(checked.causal, 1.0, keys - 1 + checked.right, checked.facts())
    ones, no = (device.tensor(np.full((batch, 1, 1, 1), x, np.float32)) for x in (1, 0))
    tall = [device.tensor(np.full((batch, 1, keys, 1), x, np.float32)) for x in (0, 1)]
    stats = device.tensor(np.zeros((batch, 1, 1, 4), np.float32))  # of which every dS is 1
    tensors = [ones, *tall, ones, no, no.reshape(batch, 1, 1), None, None]
    found = backward_sums.t5_gradient(device, tensors, stats, terms, checked, table.shape)
    assert found.numpy().sum() == batch * keys


@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_on_matrix_units(vulkan_backend, monkeypatch, causal):
    """Sequences of several lengths one after the other, with dS in memory: each as it is alone."""
    backend, starts = vulkan_backend, np.int32([0, 17, 17, 90, 101])
    pretend(monkeypatch, backend, units=1)
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal((101, heads, 16)).astype(np.float16) for heads in (4, 4, 2, 2)]
    grad, q, k, v = (backend.tensor(a) for a in arrays)
    call = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": 73, "max_seqlen_k": 73, "causal": causal}
    out, lse = F.flash_attention_varlen(q, k, v, **call, return_lse=True)
    with on_matrix_units(backend, head_dim=16, value_dim=16), chosen_kernels(backend) as chosen:
        got = F.flash_attention_varlen_backward(grad, q, k, v, out, lse, **call)
        for low, high in ((0, 17), (17, 90), (90, 101)):
            alone = [a[low:high].swapaxes(0, 1)[None] for a in (grad, q, k, v, out)]
            wanted = F.flash_attention2_backward(*alone, lse[:, low:high][None], causal=causal)
            for a, b in zip(got, wanted, strict=True):
                a, b = (x.numpy().astype(np.float32) for x in (a[low:high].swapaxes(0, 1)[None], b))
                np.testing.assert_allclose(a, b, rtol=4e-3, atol=4e-3 * np.abs(b).max())
    assert {c.variant.operation for c in chosen} == {"attention-backward-dkv", "attention-backward-dq-stored"}


@pytest.mark.parametrize("repeated", [False, True])
def test_no_room_for_ds(vulkan_backend, monkeypatch, repeated):
    """Where memory is too short for dS, at the first call or at a later one, dq is found without."""
    backend = vulkan_backend
    case = Case("room", heads=2, queries=50, keys=61, dim=16, value_dim=16)
    q, k, v, _ = make_arrays(case, np.float16)
    out, lse = F.flash_attention2(*(tensors := [backend.tensor(a) for a in (q, k, v)]), return_lse=True)
    grad = backend.tensor(gradient(case, np.float16))
    made = record.Storage

    def short(device, nbytes, **more):
        if nbytes > 2 * 64 * 61:  # more than any result
            raise OutOfDeviceMemoryError("none left")
        return made(device, nbytes, **more)

    with on_matrix_units(backend, head_dim=16, value_dim=16), chosen_kernels(backend) as chosen:
        results = []
        for _ in range(3):
            if repeated == bool(results):
                monkeypatch.setattr(record, "Storage", short)
            results.append(F.flash_attention2_backward(grad, *tensors, out, lse))
        operations = [choice.variant.operation for choice in chosen]
        assert operations[:2] == ["attention-backward-dkv", "attention-backward-dq-stored"]
        assert set(operations[2:]) == {"attention-backward-dkv", "attention-backward-dq"}
    for one in results[1:]:
        for a, b in zip(one, results[0], strict=True):
            np.testing.assert_allclose(a.numpy().astype(np.float32), b.numpy().astype(np.float32), atol=4e-3)


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


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_walks_are_cut_and_added(backend, monkeypatch, dtype):
    """More keys and queries than one dispatch may walk: sums of several, rounded once, with options and a bias."""
    monkeypatch.setattr(backward_plan, "MAX_KEYS", 24)
    case = Case("walks", batch=2, heads=4, kv_heads=2, queries=50, keys=61, dim=16, causal=True)
    q, k, v, _ = make_arrays(case, dtype)
    rng = np.random.default_rng(2)
    options = {
        "causal": True, "attn_bias": rng.standard_normal((4, 50, 61)).astype(np.float32),
        "alibi_slopes": np.linspace(0.1, 0.5, 4, dtype=np.float32), "dropout_p": 0.3, "dropout_seed": 5,
        "segment_ids": (rng.integers(0, 2, (2, 50)).astype(np.int32), rng.integers(0, 2, (2, 61)).astype(np.int32)),
        "scale": None,
    }  # fmt: skip
    with smaller(backend) as dispatches:
        check(backend, gradient(case, dtype), (q, k, v), (q, k, v), options, "walks")
    assert len(dispatches) > 8


def test_members_of_a_group_are_cut(backend, monkeypatch):
    """More query heads to a key head than one dispatch may walk rows."""
    monkeypatch.setattr(backward_plan, "MAX_KEYS", 2)
    pretend(monkeypatch, backend)
    case = Case("members", heads=10, kv_heads=2, queries=3, keys=5, dim=4)
    q, k, v, _ = make_arrays(case)
    check(backend, gradient(case, np.float32), (q, k, v), (q, k, v), {"scale": None}, "members")


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
