"""Plans of operations on arrays and rows, and numbers that these share with their kernels."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import grilly
import grilly.functional as F
from cases import DTYPES
from equal import same
from grilly import reference
from grilly.compute import embedding as module
from grilly.compute.arrays import convert, draws, operations, promotion, reductions, sorting, transpose
from grilly.compute.arrays.map import ABSENT, ALONE, BROADCAST, FLAT, RUNS, STRIDED, replaceable
from grilly.compute.arrays.map import plan as map_plan
from grilly.compute.convolution import backward, forward
from grilly.compute.device import executables
from grilly.compute.device.device import DeviceFacts
from grilly.compute.device.plan import Layout
from grilly.compute.device.tensor import Storage
from grilly.compute.norms import plan as norm_plan
from grilly.compute.random import drawn
from grilly.registry import Registry
from kernels import chosen_as_on, plans, pretend
from shaderbuild.shared_constants import shared_constants
from test_arrays import RNG, ROOM
from test_convolution import check
from test_convolution import draw as convolution_draw
from test_embedding import draw, ids_of
from test_norms import draw as rows_of
from test_random import SHADER
from test_tensor import ARRAY
from threads import in_time


def test_numbers_of_operations_are_the_kernels():
    words = shared_constants([ROOM / "words.glsl"])
    assert {name.lower(): number for name, number in words["elements"].items()} == promotion.CODES
    assert words["kinds"] == {"FLOATING": promotion.FLOATING, "INTEGER": promotion.INTEGER, "LONG": promotion.LONG}
    forms = shared_constants([ROOM / "places.glsl"])["forms"]
    own = {"ABSENT": ABSENT, "FLAT": FLAT, "STRIDED": STRIDED, "RUNS": RUNS, "BROADCAST": BROADCAST, "ALONE": ALONE}
    assert forms == own
    names = {"PRODUCT": "prod", "MAXIMUM": "max", "MINIMUM": "min", "FIRST_MAXIMUM": "argmax",
             "FIRST_MINIMUM": "argmin"}  # fmt: skip
    states = shared_constants([ROOM / "states.glsl"])["reductions"]
    assert states.pop("STATES") == reductions.STATES
    assert {names.get(name, name.lower()): number for name, number in states.items()} == reductions.NUMBERS


def test_promotion():
    def dtype(*names):
        return promotion.promoted(*(np.dtype(name) for name in names)).name

    assert dtype("int8", "int32") == "int32" and dtype("uint8", "int8") == "int16"
    assert dtype("float16", "float32") == "float32" and dtype("int64", "float16") == "float16"
    assert dtype("bool", "uint8") == "uint8" and dtype("uint32", "int32") == "int64"
    with_scalar = promotion.with_scalar
    assert with_scalar(np.dtype("int8"), int).name == "int8" and with_scalar(np.dtype("int8"), float).name == "float32"
    assert with_scalar(np.dtype("float16"), float).name == "float16" and with_scalar(np.dtype("bool"), int) == np.int64
    for refused in (lambda: dtype("float64", "int8"), lambda: with_scalar(np.dtype("int8"), complex)):
        with pytest.raises(TypeError):
            refused()


def planned(name, *layouts, registry, **facts):
    known = {"storage_range": 2**30, "alignment": 16, "windows": True, "groups": (65535,) * 3, "work_limit": 1e30}
    opened = DeviceFacts("none", "vulkan", "generic", **{**known, **facts}, units=8, subgroup_size=32)
    asked = operations.spec(name, layouts[0].dtype)
    return map_plan((asked,), layouts, opened, registry)


def laid(shape, steps, dtype=np.float32, offset=16, nbytes=None):
    return Layout(tuple(shape), tuple(steps), np.dtype(dtype), offset, nbytes)


@pytest.fixture
def registry(vulkan_backend):
    return Registry(vulkan_backend.device, vulkan_backend.runtime.features)


def test_layouts_are_recognised(registry):
    flat, row = laid((64, 32), (32, 1)), laid((32,), (1,))
    (step,) = planned("add", flat, flat, registry=registry).steps
    assert (constants(step)["FORM_A"], constants(step)["FORM_B"]) == (FLAT, FLAT) and step.push_constants()[
        "count"
    ] == 2048
    (step,) = planned("add", flat, row, registry=registry).steps
    assert (constants(step)["FORM_B"], constants(step)["AXES"]) == (RUNS, 2)
    (step,) = planned("add", flat, laid((64, 1), (1, 1)), registry=registry).steps
    assert constants(step)["FORM_B"] == BROADCAST
    (step,) = planned("add", laid((64, 33), (33, 1)), laid((33,), (1,)), registry=registry).steps
    assert constants(step)["FORM_B"] == STRIDED, "runs would cross rows"
    odd = laid((64, 32), (32, 1), offset=1)
    assert constants(planned("add", odd, flat, registry=registry).steps[0])["FORM_A"] == STRIDED, "quads begin at fours"
    deep = laid((2,) * 6, (1, 2, 4, 8, 16, 32))
    (step,) = planned("copy", deep, registry=registry).steps
    assert constants(step)["DEEP"] == 1
    (step,) = planned("add", deep, deep, registry=registry).steps
    assert (constants(step)["FORM_A"], constants(step)["FORM_B"]) == (FLAT, FLAT), "the result lies as they do"
    assert len(planned("add", deep, laid((2,) * 6, (2, 1, 8, 4, 32, 16)), registry=registry).steps) == 2, "one copy"
    images, row = laid((2, 8, 3, 5), (120, 1, 40, 8)), laid((8, 1, 1), (1, 1, 1))
    (step,) = planned("add", images, row, registry=registry).steps
    assert (constants(step)["FORM_A"], constants(step)["FORM_B"]) == (FLAT, RUNS), "channels last"


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_transposed_copies_by_tiles(vulkan_backend, monkeypatch, dtype):
    monkeypatch.setattr(transpose, "CACHED", ())
    for shape, order, tiles in [
        ((70, 130), (1, 0), True), ((3, 66, 50), (0, 2, 1), True), ((3, 66, 50), (2, 1, 0), False),
        ((2, 34, 3, 98), (3, 0, 1, 2), True), ((34, 2, 3, 98), (3, 1, 2, 0), True), ((17, 33), (1, 0), True),
    ]:  # fmt: skip
        x = RNG.standard_normal(shape).astype(dtype)
        y, want = vulkan_backend.tensor(x).transpose(order), x.transpose(order)
        found = transpose.axes_of(vulkan_backend.opened.facts, y, 16)
        assert (found is not None) == (tiles and (dtype == "float32" or shape != (17, 33))), "16 bits go by twos"
        same(y.contiguous(), want)
        same(y + y.contiguous(), want + want)
        same(y[1:].contiguous(), want[1:])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_many_axes_are_copied_by_one_dispatch(vulkan_backend, monkeypatch, dtype):
    pretend(monkeypatch, vulkan_backend)
    x = RNG.integers(0, 2**32, (4, 3, 2, 5, 2, 6), np.uint32).view(dtype)  # NaN of every kind keep their bits
    order = (2, 0, 4, 1, 5, 3)
    found = vulkan_backend.tensor(x).transpose(order).contiguous()
    assert found.numpy().tobytes() == x.transpose(order).tobytes()
    made = plans(vulkan_backend, convert.plan)
    assert [len(executable.plan.steps) for executable in made] == [1]


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int64"])
def test_in_place(vulkan_backend, dtype):
    x = np.arange(60).reshape(5, 12).astype(dtype)
    t = vulkan_backend.tensor(x)
    view = t[1:4, 3:]
    t += 1
    x += np.asarray(1, dtype)
    view *= 2
    x[1:4, 3:] *= np.asarray(2, dtype)
    t[:2] -= t[:2]
    x[:2] -= x[:2]
    same(t, x)
    t[1:] += t[:-1]  # memory that is read and written
    x[1:] += x[:-1].copy()
    same(t, x)
    assert not replaceable(t[1:], (t[:-1], None, None)) and replaceable(t, (t, None, None))


def test_numbers_of_the_sort():
    found = shared_constants([ROOM / "sort.comp"])["sorting"]
    assert found == {name: getattr(sorting, name) for name in found} and len(found) == 6


def test_numbers_of_the_draws():
    found = shared_constants([SHADER])["draws"]
    assert found == {name: getattr(draws, name) for name in found} and len(found) == 3


def test_a_signal_handler_may_draw_in_the_midst_of_it():
    device, seen = SimpleNamespace(home="a device"), []

    def handler(frame, event, argument):  # Python calls it for no line of its own
        if frame.f_code is not drawn.__code__:
            return None
        if event == "line":
            seen.append(drawn(device))
        return handler

    def work():
        sys.settrace(handler)
        try:
            seen.append(drawn(device))
        finally:
            sys.settrace(None)

    in_time(work)
    assert len(seen) > 3 and len(set(seen)) == len(seen)


def test_tables_larger_than_a_binding(vulkan_backend, monkeypatch):
    """By a device that says its bindings are small: rows and tokens go in several dispatches."""
    weight, ids, grad = draw(300, 16), ids_of(300, 50), draw(50, 16)
    expected = F.embedding(ids, weight), F.embedding_backward(grad, ids, 300)
    pretend(monkeypatch, vulkan_backend, storage_range=4096)
    tensors = [vulkan_backend.tensor(a) for a in (weight, ids, grad)]
    np.testing.assert_array_equal(F.embedding(tensors[1], tensors[0]).numpy(), expected[0])
    odd = weight[:, :15].astype(np.float16)  # rows begin in the middle of words
    np.testing.assert_array_equal(F.embedding(tensors[1], vulkan_backend.tensor(odd)).numpy(), odd[ids])
    found = F.embedding_backward(tensors[2], tensors[1], 300).numpy()
    np.testing.assert_array_equal(found, expected[1])
    assert [len(executable.plan.steps) >= 5 for executable in plans(vulkan_backend, module.plan_backward)] == [True]


def test_views_without_a_batch_and_channels_last(vulkan_backend):
    x, w = convolution_draw(3, 20, 24), convolution_draw(4, 3, 3, 3)
    tensor = vulkan_backend.tensor(x)
    for view in (lambda a: a, lambda a: a[:, 1::2, 3:], lambda a: a.transpose(0, 2, 1)):
        exact = reference.conv2d(view(x), w, None, 1, 1, dtype=np.float64)
        np.testing.assert_allclose(F.conv2d(view(tensor), w, None, 1, 1).numpy(), exact, rtol=0, atol=1e-5)
    last = vulkan_backend.tensor(convolution_draw(2, 30, 16)).transpose(0, 2, 1)  # as the layer before leaves it
    weight = convolution_draw(40, 16, 3, seed=1)
    exact = reference.conv1d(last.numpy(), weight, None, 2, 1, dtype=np.float64)
    y = F.conv1d(last, weight, None, 2, 1)
    np.testing.assert_allclose(y.numpy(), exact, rtol=0, atol=2e-5)
    assert y.transpose(0, 2, 1).is_contiguous
    single = F.conv1d(last, weight[:, :, :1])
    (executable,) = [r for r in plans(vulkan_backend, forward.plan) if r.plan.results[0].shape == (2, 40, 30)]
    assert len(executable.plan.steps) == 1  # windows of one element are the array itself
    exact = reference.conv1d(last.numpy(), weight[:, :, :1], dtype=np.float64)
    np.testing.assert_allclose(single.numpy(), exact, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("groups", [1, 2])
def test_windows_in_parts(vulkan_backend, monkeypatch, dtype, groups):
    """As where a matrix of windows is larger than a binding or a quarter of the memory limit."""
    x, w = convolution_draw(3, 4, 9, 7, dtype=dtype), convolution_draw(70, 4 // groups, 3, 3, seed=1, dtype=dtype)
    options = (1, 1, 1, groups)
    sample = 9 * 7 * 4 * 9 * x.itemsize
    for most in (2 * sample, sample // 2 + 64):  # samples with all channels; channels of one sample
        with monkeypatch.context() as patch:
            pretend(patch, vulkan_backend)
            patch.setattr(vulkan_backend, "memory_limit", 4 * most)
            check(F.conv2d, F.conv2d_backward, 2, x, w, None, *options, send=vulkan_backend.tensor, parts=True)
            for kept in (forward.plan, backward.plan_inputs, backward.plan_weights):
                (executable,) = plans(vulkan_backend, kept)
                assert len(executable.plan.steps) >= 4, kept
                results = {one.slot - executable.plan.inputs for one in executable.plan.results}
                windows = [s for n, s in enumerate(executable.plan.slots) if isinstance(s, int) and n not in results]
                assert max(windows[: 1 if dtype == np.float32 else None]) <= max(most, 2 * x.nbytes)
    with monkeypatch.context() as patch:
        pretend(patch, vulkan_backend, storage_range=2400)
        check(F.conv2d, F.conv2d_backward, 2, x, w, None, *options, send=vulkan_backend.tensor, parts=True)


def test_the_same_bits_again_by_the_same_plan(vulkan_backend, monkeypatch):
    pretend(monkeypatch, vulkan_backend)
    shapes = (2, 3, 9, 9), (4, 3, 3, 3), (2, 4, 9, 9)
    x, w, grad = (vulkan_backend.tensor(convolution_draw(*shape)) for shape in shapes)

    def step():
        return [F.conv2d(x, w, None, 1, 1), *F.conv2d_backward(grad, x, w, 1, 1)]

    first = [one.numpy() for one in step()]
    made = [plans(vulkan_backend, kept) for kept in (forward.plan, backward.plan_inputs, backward.plan_weights)]
    for one, right in zip(step(), first, strict=True):
        np.testing.assert_array_equal(one.numpy(), right)
    assert made == [plans(vulkan_backend, kept) for kept in (forward.plan, backward.plan_inputs, backward.plan_weights)]
    assert [len(own) for own in made] == [1, 1, 1]


def test_a_download_does_not_wait_for_what_comes_after(vulkan_backend, monkeypatch):
    tensor = vulkan_backend.tensor(ARRAY)
    stream = vulkan_backend.runtime._parts.stream
    waited, transfers = [], vulkan_backend.runtime._transfers
    wait = transfers._wait
    found = tensor.download()
    after = stream.serial
    (tensor + 1).download()
    vulkan_backend.runtime.flush()
    monkeypatch.setattr(transfers, "_wait", lambda serial: (waited.append(serial), wait(serial)))
    found.numpy()
    assert waited and max(waited) < after < stream.serial


def constants(step):
    return dict(step.constants)


def test_large_arrays_are_cut(registry):
    large = laid((1001, 7, 300), (2100, 300, 1), offset=0, nbytes=4 * 1001 * 2100)
    plan = planned("add", large, large, registry=registry, storage_range=2**20)
    assert len(plan.steps) > 8 and sum(step.push_constants()["count"] for step in plan.steps) == 1001 * 2100
    assert all(binding is None or binding[2] <= 2**20 for step in plan.steps for binding in step.bindings)


def test_little_is_read_for_a_sparse_view(backend, monkeypatch):
    array = np.arange(2048 * 257, dtype=np.float32).reshape(2048, 257)
    tensor, runtime, seen = backend.tensor(array), backend.runtime, []
    read = runtime.read

    def counted(buffer, out, offset=0):
        seen.append(out.nbytes)
        return read(buffer, out, offset)

    monkeypatch.setattr(runtime, "read", counted)
    np.testing.assert_array_equal(tensor[:, 3].numpy(), array[:, 3])
    np.testing.assert_array_equal(tensor[1:100, 3].numpy(), array[1:100, 3])
    assert seen == [4 * 2048, 4 * (98 * 257 + 1)], "of little memory all"

    def refuse(tensor, dtype):
        raise grilly.UnsupportedError("no kernel")

    monkeypatch.setattr(backend.opened, "convert", refuse)
    np.testing.assert_array_equal(tensor[:, 3].numpy(), array[:, 3])


# -- rows: one dispatch for what goes together, and no element left ---------------------------------------------------


def test_float16_written_as_the_device_rounds_it(vulkan_backend, monkeypatch):
    """As NVIDIA's compiler is asked to. Other devices may round to a neighbour of the nearest number."""
    monkeypatch.setattr(norm_plan, "halves", lambda registry: 1)
    with chosen_as_on(vulkan_backend, "generic"):
        for cols in (20, 64, 1000, 4096):
            x = rows_of(9, cols).astype(np.float16)
            found = F.softmax(vulkan_backend.tensor(x)).numpy()
            exact = reference.softmax(x.astype(np.float64))
            assert (np.abs(found - exact) <= 1.01 * np.spacing(exact.astype(np.float16)).astype(np.float64)).all()
        made = plans(vulkan_backend, norm_plan.plan)
    assert {dict(step.constants)["HALVES"] for executable in made for step in executable.plan.steps} == {1}


def test_arrays_beyond_a_binding_are_cut(vulkan_backend, monkeypatch):
    x, weight = rows_of(1, 8, 4000).astype(np.float32), rows_of(8, seed=1).astype(np.float32)
    rows = rows_of(40, 1000).astype(np.float32)
    x, weight, rows = (vulkan_backend.tensor(a) for a in (x, weight, rows))

    def call():
        return F.group_norm(x, 4, weight, weight), F.layer_norm(rows, 1000), *F.add_rms_norm(rows, rows, 1000)

    whole = [a.numpy() for a in call()]
    pretend(monkeypatch, vulkan_backend, storage_range=60_000)
    cut = call()
    assert all(len(executable.plan.steps) > 1 for executable in plans(vulkan_backend, norm_plan.plan))
    for found, expected in zip(cut, whole, strict=True):
        np.testing.assert_array_equal(found.numpy(), expected)
    with pytest.raises(grilly.UnsupportedError, match="one row of 40,000 elements does not fit one binding"):
        F.layer_norm(rows.reshape(40_000), 40_000)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [77, 1028])
def test_the_sum_and_its_norm_have_the_bits_of_two_calls(vulkan_backend, dtype, cols):
    x, y = (vulkan_backend.tensor(rows_of(7, cols, seed=n).astype(dtype)) for n in (0, 1))
    weight = vulkan_backend.tensor(rows_of(cols, seed=2).astype(dtype))
    total = x + y
    for found, alone in (
        (F.add_layer_norm(x, y, cols, weight, weight), F.layer_norm(total, cols, weight, weight)),
        (F.add_rms_norm(x, y, cols, weight, 1e-6, 1.0), F.rms_norm(total, cols, weight, 1e-6, 1.0)),
    ):
        np.testing.assert_array_equal(found[1].numpy(), total.numpy())
        np.testing.assert_array_equal(found[0].numpy(), alone.numpy())
    made = plans(vulkan_backend, norm_plan.plan)[-4:]
    assert [len(executable.plan.steps) for executable in made] == [1] * 4, "one dispatch each"


def test_no_element_is_left_as_it_was(vulkan_backend, monkeypatch):
    """Memory of results holds NaN before: each element is written, and nothing depends on what was there."""
    expected = []
    for poisoned in (False, True):
        if poisoned:
            monkeypatch.setattr(executables, "Storage", _poisoned)
        for cols in (20, 65, 1028):
            x = vulkan_backend.tensor(rows_of(5, cols).astype(np.float16))
            w = vulkan_backend.tensor(rows_of(cols, seed=1).astype(np.float16))
            found = [*F.add_layer_norm(x, x, cols, w), F.softmax(x, 0), *F.layer_norm_backward(x, x, cols, w)]
            expected.append([np.asarray(a) for a in found])
    half = len(expected) // 2
    for clean, dirty in zip(expected[:half], expected[half:], strict=True):
        for a, b in zip(clean, dirty, strict=True):
            np.testing.assert_array_equal(a, b)
            assert np.isfinite(a).all()


def _poisoned(device, nbytes, idle=False):
    storage = Storage(device, nbytes, idle)
    device.runtime.write(storage.buffer, np.full(storage.nbytes, 255, np.uint8))
    return storage


def test_calls_alike_share_a_plan(vulkan_backend):
    w = vulkan_backend.tensor(np.ones(80, np.float32))
    tensors = [vulkan_backend.tensor(rows_of(6, 80).astype(np.float32)) for _ in range(3)]
    F.layer_norm(tensors[0], 80, w), F.softmax(tensors[0]), F.add_rms_norm(tensors[0], tensors[1], 80)
    before = len(plans(vulkan_backend, norm_plan.plan))
    for x in tensors:
        F.layer_norm(x, 80, w), F.layer_norm(x, (80,), w), F.softmax(x), F.softmax(x, 1), F.add_rms_norm(x, w + x, 80)
    assert len(plans(vulkan_backend, norm_plan.plan)) == before
    F.layer_norm(tensors[0], 80, w, eps=1e-6), F.softmax(tensors[0], 0)
    assert len(plans(vulkan_backend, norm_plan.plan)) == before + 2
