"""The passes that rewrite a product until its kernel takes it, one by one and together. Needs no device."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from grilly.compute.device.device import DeviceFacts
from grilly.compute.device.plan import ALIGN_MOST, Layout, Planner
from grilly.compute.matmul.call import Epilogue, Matmul, Prologue
from grilly.compute.matmul.matmul import emit_matmul, split_factors
from grilly.compute.matmul.passes import Gate, copy_operands, cut_columns, gate_after, normalize_before
from grilly.compute.matmul.selection import Kernel, select
from grilly.compute.matmul.split import split_words
from grilly.compute.matmul.tile_schedule import TileSchedule
from grilly.registry import Registry, default_manifest
from grilly.runtime.interface import DeviceInfo

INFO = DeviceInfo(
    index=0, name="none", vendor="none", vendor_id=0, device_id=0, kind="discrete", driver="none", driver_version="1",
    api_version=(1, 3, 0), subgroup_size=32, subgroup_sizes=(32, 32), architecture="none",
    limits={"storage_range": 1 << 27, "offset_alignment": 16, "push_bytes": 256, "shared_bytes": 49152,
            "invocations": 1024, "groups": (65535, 65535, 65535), "allocation": 1 << 32, "bindings": 16,
            "subgroups": 32},
    features=frozenset({"subgroup-basic", "subgroup-arithmetic", "subgroup-shuffle", "float16-storage",
                        "descriptor-offsets"}),
    memory_bytes=1 << 34, unified=False,
)  # fmt: skip
FACTS = DeviceFacts.of(INFO, "none", INFO.features)
FEW_GROUPS = dataclasses.replace(FACTS, groups=(1, 1, 1))


@pytest.fixture(scope="module")
def registry():
    return Registry(INFO, INFO.features)


@pytest.fixture(scope="module")
def with_matrix_units():
    """A registry that has kernels for split float32."""
    variants = [v for v in default_manifest().by_operation["linear"] if v.variant == "split16-m64"]
    return Registry(INFO, INFO.features.union(*(v.requires for v in variants)), default_manifest())


def product(facts=FACTS, rows=8, cols=32, depth=16, transposed=(), gated=False, **terms):
    """A planner and a product of its inputs ``(1, 1, M, K)`` and ``(1, 1, N, K)``; ``transposed`` names factors."""
    wide = 2 * cols if gated else cols

    def layout(name, *shape):
        steps = (0, 0, 1, shape[0]) if name in transposed else (0, 0, shape[1], 1)
        return Layout((1, 1, *shape), steps, np.dtype(np.float32), ALIGN_MOST)

    planner = Planner(facts, [layout("a", rows, depth), layout("b", wide, depth), layout("residual", rows, cols),
                              Layout((wide,), (1,), np.dtype(np.float32)), Layout((depth,), (1,), np.dtype(np.float32)),
                              layout("split", wide, split_words(depth))])  # fmt: skip
    a, b, residual, bias, weight, split_b = planner.inputs
    inputs = {"residual": residual, "bias": bias, "weight": weight, "split": split_b}
    terms = {name: value(inputs) if callable(value) else value for name, value in terms.items()}
    matmul = Matmul("linear", a, b, planner.empty((1, 1, rows, cols)), offsets=(ALIGN_MOST, 4), **terms)
    return planner, matmul


def norm(inputs):
    return Prologue(inputs["weight"], ALIGN_MOST, 1e-6, 1.0)


def gate(inputs):
    return Epilogue("silu", inputs["residual"], ALIGN_MOST, gated=True)


def kernel(matmul, rows=8, cols=32, constants=(), orders=(False, False), **tile):
    """A kernel with tiles of ``rows`` by ``cols`` that has these specialization constants."""
    choice = SimpleNamespace(tile={"rows": rows, "cols": cols, **tile}, variant=SimpleNamespace(constants=constants))
    each = matmul.columns_per_output
    return Kernel(choice, TileSchedule(rows, cols, 1, {}), orders, 4, (True, True), matmul.depth, each)


def operations(planner):
    return [step.choice.variant.operation for step in planner.plan().steps]


# -- copy_operands ---------------------------------------------------------------------------------------------------


def test_factors_that_the_kernel_takes_are_not_copied(registry):
    for transposed in ((False, False), (True, False), (False, True), (True, True)):
        planner, matmul = product()
        taken = [name for name, turned in zip(("TRANSPOSED_A", "TRANSPOSED_B"), transposed, strict=True) if turned]
        assert copy_operands(planner, registry, matmul, kernel(matmul, 8, 32, taken, transposed)) is None
        assert not operations(planner)


@pytest.mark.parametrize(("a", "b"), [(True, False), (False, True), (True, True), (None, False), (False, None)])
def test_factors_in_another_order_are_copied(registry, a, b):
    planner, matmul = product(transposed=[name for name, turned in (("a", a), ("b", b)) if turned])
    (made,) = copy_operands(planner, registry, matmul, kernel(matmul, orders=(a, b)))
    for name, order, offset, known in zip("ab", (a, b), made.offsets, matmul.offsets, strict=True):
        copied, before, after = order is not False, getattr(matmul, name), getattr(made, name)
        assert (after is not before) == copied and after.shape == before.shape
        assert after._strides[3] == 1 and offset == (ALIGN_MOST if copied else known)
    assert len(operations(planner)) == (a is not False) + (b is not False)
    assert made._replace(a=matmul.a, b=matmul.b, offsets=matmul.offsets) == matmul


def test_a_kernel_for_transposed_weights_gets_one(registry):
    planner, matmul = product()
    (made,) = copy_operands(planner, registry, matmul, kernel(matmul, transposed=1))
    assert made.a is matmul.a and made.b._strides[2:] == (1, 32)


def test_a_transposed_a_is_copied_where_the_product_must_be_cut(registry):
    for facts, copied in ((FACTS, False), (FEW_GROUPS, True)):
        planner, matmul = product(facts, rows=16, transposed=["a"])
        made = copy_operands(planner, registry, matmul, kernel(matmul, 8, 32, ("TRANSPOSED_A",), (True, False)))
        assert (made is not None) == copied
    assert made[0].a._strides[2:] == (16, 1)


def test_a_weight_whose_split_is_kept_is_not_copied(registry):
    planner, matmul = product(transposed=["b"], split_b=lambda inputs: inputs["split"])
    assert copy_operands(planner, registry, matmul, kernel(matmul, orders=(False, True), split=1)) is None
    assert copy_operands(planner, registry, matmul, kernel(matmul, orders=(False, True))) is not None


def test_repeated_batches_are_copied_once(registry):
    planner, matmul = product(transposed=["b"])
    shape = (3, 2, *matmul.b.shape[2:])
    matmul = matmul._replace(b=matmul.b.broadcast_to(shape))
    (made,) = copy_operands(planner, registry, matmul, kernel(matmul, orders=(False, True)))
    assert made.b.shape == shape and made.b._strides == (0, 0, 16, 1)
    assert made.b._storage.nbytes == 4 * 32 * 16


# -- normalize_before ------------------------------------------------------------------------------------------------


def test_a_norm_in_the_kernel_stays(registry):
    planner, matmul = product(prologue=norm)
    assert normalize_before(planner, registry, matmul, kernel(matmul, rows=2, norm=4)) is None
    planner, matmul = product()
    assert normalize_before(planner, registry, matmul, kernel(matmul)) is None
    assert not operations(planner)


@pytest.mark.parametrize(("facts", "most"), [(FACTS, 0), (FACTS, 4), (FEW_GROUPS, 8)])
def test_a_norm_that_the_kernel_does_not_take_comes_before(registry, facts, most):
    planner, matmul = product(facts, rows=16, prologue=norm)
    (made,) = normalize_before(planner, registry, matmul, kernel(matmul, rows=8, norm=most))
    assert operations(planner) == ["norm-rows"]
    step = planner.plan().steps[0]
    assert step.push_constants()["w_add"] == 1.0 and step.push_constants()["epsilon"] == pytest.approx(1e-6)
    assert made.a.shape == matmul.a.shape and made.a._storage is not matmul.a._storage
    assert made.prologue.weight is None and made.offsets == (ALIGN_MOST, 4)
    assert made._replace(a=matmul.a, prologue=matmul.prologue, offsets=matmul.offsets) == matmul


# -- gate_after ------------------------------------------------------------------------------------------------------


def test_a_gate_in_the_kernel_stays(registry):
    planner, matmul = product(gated=True, epilogue=gate)
    assert gate_after(planner, registry, matmul, kernel(matmul, constants=("GATED",))) is None
    planner, matmul = product(epilogue=Epilogue("silu"))
    assert gate_after(planner, registry, matmul, kernel(matmul)) is None


@pytest.mark.parametrize(("facts", "constants"), [(FACTS, ()), (FEW_GROUPS, ("GATED",))])
def test_a_gate_that_the_kernel_does_not_take_comes_after(registry, facts, constants):
    planner, matmul = product(facts, rows=16, gated=True, epilogue=gate)
    made, after = gate_after(planner, registry, matmul, kernel(matmul, constants=constants))
    assert made.c.shape == (1, 1, 16, 64) and made.epilogue == Epilogue()
    assert made._replace(c=matmul.c, epilogue=matmul.epilogue) == matmul
    assert after == Gate(made.c, matmul.c, matmul.epilogue) and not operations(planner)
    after.emit(planner, registry)
    (step,) = planner.plan().steps
    slots = [place and place[0] for place in step.bindings]
    assert matmul.c._storage.number in slots and made.c._storage.number in slots and 2 in slots, "the residual"


# -- cut_columns -----------------------------------------------------------------------------------------------------

ROUNDS = {"rows": 128, "cols": 192, "throughput": 1215, "start": 600, "rest": 350}


def large(**terms):
    facts = dataclasses.replace(FACTS, units=132)
    return product(facts, rows=4096, cols=11008, depth=4096, **terms)


def test_columns_of_an_incomplete_round_are_a_product_of_their_own(registry):
    planner, matmul = large(bias=lambda inputs: inputs["bias"],
                            epilogue=lambda inputs: Epilogue("gelu", inputs["residual"], ALIGN_MOST))  # fmt: skip
    chunks = cut_columns(planner, registry, matmul, kernel(matmul, **ROUNDS))
    first = 0
    for chunk, cols in zip(chunks, (10944, 64), strict=True):
        assert chunk.a is matmul.a and chunk.epilogue.activation == "gelu"
        residual = chunk.epilogue.residual
        assert (chunk.b.shape[2], chunk.c.shape[3], chunk.bias.shape[0], residual.shape[3]) == (cols,) * 4
        assert (chunk.b._offset, chunk.c._offset, chunk.bias._offset) == (4096 * first, first, first)
        assert residual._offset == first
        first += cols
    assert not operations(planner)


def test_columns_stay_together(registry):
    planner, matmul = large()
    assert cut_columns(planner, registry, matmul, kernel(matmul, rows=128, cols=192)) is None
    for options in ({"prologue": norm}, {"gated": True, "epilogue": gate}, {"b_is_nk": False}):
        planner, matmul = large(**options)
        assert cut_columns(planner, registry, matmul, kernel(matmul, **ROUNDS)) is None


# -- split float32 ---------------------------------------------------------------------------------------------------


def test_factors_are_split(registry):
    planner, matmul = product()
    operands, split_b = split_factors(planner, registry, matmul)
    assert operands.a.shape == (1, 1, 8, split_words(16)) and operands.b.shape == (1, 1, 32, split_words(16))
    assert operations(planner) == ["linear-split"] * 2 and split_b._storage is operands.b._storage
    assert operands.c is matmul.c


def test_a_kept_split_is_used(registry):
    planner, matmul = product(split_b=lambda inputs: inputs["split"])
    operands, split_b = split_factors(planner, registry, matmul)
    assert operations(planner) == ["linear-split"] and split_b is matmul.split_b
    assert operands.b._storage is matmul.split_b._storage


@pytest.mark.parametrize("order", [(), ("b",)])
def test_plans_with_a_kept_split_read_its_rows(with_matrix_units, order):
    planner, matmul = product(rows=256, cols=512, depth=256, transposed=order, high=True)
    made = emit_matmul(planner, with_matrix_units, matmul)
    assert made.shape == (1, 1, 512, split_words(256))
    first = planner.plan().steps[-1]
    planner, matmul = product(
        rows=256, cols=512, depth=256, transposed=order, high=True, split_b=lambda inputs: inputs["split"]
    )
    assert emit_matmul(planner, with_matrix_units, matmul) is None
    split, step = planner.plan().steps
    assert split.choice.variant.operation == "linear-split" and "split" in step.choice.tile
    assert step.push_constants()["b_row"] == split_words(256) and step.push_constants() == first.push_constants()
    assert step.constants == first.constants


# -- all passes ------------------------------------------------------------------------------------------------------


def test_passes_follow_each_other(registry):
    planner, matmul = product(rows=256, transposed=["a"], gated=True, prologue=norm, epilogue=gate)
    assert emit_matmul(planner, registry, matmul) is None
    *before, linear, after = planner.plan().steps
    assert [s.choice.variant.operation for s in before][-1] == "norm-rows"
    assert linear.choice.variant.operation == "linear" and linear.push_constants()["cols"] == 64
    assert after.choice.variant.operation != "linear"
    assert after.bindings[[place is not None and place[0] == 6 for place in after.bindings].index(True)][0] == 6


def test_nothing_to_compute_is_no_dispatch(registry):
    planner, matmul = product(rows=0)
    assert emit_matmul(planner, registry, matmul) is None and not operations(planner)


@pytest.mark.parametrize("limits", [
    {"storage_range": 1 << 14}, {"groups": (1, 65535, 65535)}, {"groups": (65535, 1, 65535)},
    {"groups": (65535, 65535, 1)}, {"groups": (1, 65535, 1), "work_limit": 1e5},
])  # fmt: skip
def test_parts_do_the_whole_work(registry, limits):
    """Each element of c is computed by one dispatch."""
    facts = dataclasses.replace(FACTS, **limits)
    rows, cols, depth, batch, heads, kv_heads = 40, 300, 24, 2, 4, 2
    shapes = ((batch, heads, rows, depth), (batch, kv_heads, cols, depth), (batch, heads, rows, cols))
    layouts = []
    for shape in shapes:
        steps = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(4))
        layouts.append(Layout(shape, steps, np.dtype(np.float32), 0, 4 * int(np.prod(shape))))
    planner = Planner(facts, layouts)
    a, b, c = planner.inputs
    matmul = Matmul("attention-scores", a, b, c)
    emit_matmul(planner, registry, matmul)
    steps = planner.plan().steps
    tile = select(facts, registry, matmul).partition
    assert len(steps) > 1 and all(step.work <= facts.work_limit for step in steps)
    times = np.zeros(c.size, int)
    for step in steps:
        words, (_, y, z) = step.push_constants(), step.groups
        inner = y // -(-words["rows"] // tile.rows)
        assert all(n <= most for n, most in zip(step.groups, facts.groups, strict=True))
        places = dict(zip(step.choice.variant.bindings, step.bindings, strict=True))
        first = {name: places[name][1] // 4 + words[f"{name}_offset"] for name in "abc"}
        of_batch, of_head, of_row, of_col = np.unravel_index(first["c"], shapes[2])
        assert np.unravel_index(first["a"], shapes[0]) == (of_batch, of_head, of_row, 0)
        assert np.unravel_index(first["b"], shapes[1]) == (of_batch, of_head // 2, of_col, 0)
        assert of_col % 16 == 0
        assert all((of_head + h) // 2 == of_head // 2 + h // words["group"] for h in range(inner))
        at = np.array(first["c"])
        for name, extent in (("c_batch", z), ("c_head", inner), ("c_row", words["rows"]), (None, words["cols"])):
            at = at[..., None] + np.arange(extent) * (words[name] if name else 1)
        np.add.at(times, at.ravel(), 1)
    assert (times == 1).all()
    assert sum(step.work for step in steps) == pytest.approx(2.0 * c.size * depth)
