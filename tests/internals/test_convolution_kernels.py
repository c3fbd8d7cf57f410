"""Kernels of convolutions one by one, and which is chosen; against float64."""

import dataclasses

import numpy as np
import pytest

import grilly.functional as F
from cases import DTYPES
from grilly import reference
from grilly.compute.convolution import forward
from grilly.compute.convolution.checks import checked
from grilly.compute.convolution.matrix import choice_for
from kernels import only, only_or_skip, pin, view_of
from test_convolution import close, draw


def on(view, x, w, b, *options):
    """The convolution of two axes on a view of a backend, to which its tensors do not belong."""
    named = dict(zip(("stride", "padding", "dilation", "groups"), options, strict=False))
    return forward.convolution(view.opened, "conv2d", 2, x, w, b, **named).numpy()


#: (N, C, H, W), O, kernel, (stride, padding, dilation, groups): by turns with channels last and first.
SHARED = [
    ((2, 64, 9, 13), 8, (3, 3), (1, 1)),
    ((1, 20, 7, 9), 1, (3, 3), (2, 1)),
    ((1, 48, 7, 7), 12, (3, 3), (1, 1, 1, 3)),
    ((2, 32, 16, 8), 12, (3, 7), (1, (0, 3), (1, 2))),
    ((1, 8, 6, 24), 5, (2, 9), (1, (0, 1))),
]


@pytest.mark.parametrize("variant", ["runs", "long-runs"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_channels_shared_out(vulkan_backend, dtype, variant):
    """The kernels of GPUs, on any device: groups of many channels, channels last and first, and images whose last
    elements fill half a word of 16 bytes."""
    (found,) = (v for v in vulkan_backend.registry.manifest.by_operation["convolution"] if v.variant == variant)
    own = only(vulkan_backend, found)
    own.opened.facts = dataclasses.replace(own.opened.facts, units=0)  # few invocations are enough
    for number, (shape, outputs, kernel, options) in enumerate(SHARED if dtype == np.float32 else SHARED[:1]):
        groups = options[3] if len(options) > 3 else 1
        x, w = draw(*shape, dtype=dtype), draw(outputs, shape[1] // groups, *kernel, seed=1, dtype=dtype)
        b = draw(outputs, seed=2, dtype=dtype)
        whole = [np.abs(a.astype(np.float64)) for a in (x, w, b)]
        exact, sizes = (reference.conv2d(*a, *options, dtype=np.float64) for a in ((x, w, b), whole))
        tensor = own.tensor(x)
        if number % 2 == (dtype != np.float32):
            tensor = tensor.transpose(0, 2, 3, 1).contiguous().transpose(0, 3, 1, 2)
        with vulkan_backend.profile() as profile:
            y = on(own, tensor, own.tensor(w), own.tensor(b), *options)
        assert any(found.label in timing.label for timing in profile.timings)
        close(y, exact, sizes, w[0].size, dtype)


#: (N, C, H, W), O, kernel, (stride, padding, dilation)
ON_MATRICES = [
    ((2, 48, 15, 29), 12, (3, 3), (1, 1)),
    ((1, 16, 31, 33), 32, (2, 3), ((2, 1), (0, 2), (1, 2))),
    ((3, 64, 24, 47), 5, (1, 5), (1, (0, 2))),
    ((1, 32, 40, 64), 17, (5, 2), ((1, 2), 2)),
]


def on_matrix_units(backend, name):
    """Each kernel on matrix units of a dtype, a view that runs it where rows are few, and the dtype as NumPy has it."""
    variants = [v for v in backend.registry.manifest.by_operation["convolution-matrix"] if v.dtype == name]
    dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)
    for variant in variants:
        view = only_or_skip(backend, variant)
        view.opened.facts = dataclasses.replace(view.opened.facts, units=1)
        yield variant, view, dtype


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_on_matrix_units(vulkan_backend, name):
    """Images with channels last, first, and in a view that begins anywhere; and that the kernel is what ran."""
    for variant, own, dtype in on_matrix_units(vulkan_backend, name):
        for shape, outputs, kernel, options in ON_MATRICES:
            x, w = draw(*shape, dtype=dtype), draw(outputs, shape[1], *kernel, seed=1, dtype=dtype)
            b = draw(outputs, seed=2, dtype=dtype)
            exact = reference.conv2d(x, w, b, *options, dtype=np.float64)
            sizes = reference.conv2d(*(np.abs(a.astype(np.float64)) for a in (x, w, b)), *options)
            first = own.tensor(x)
            last = first.transpose(0, 2, 3, 1).contiguous().transpose(0, 3, 1, 2)
            view = own.tensor(np.concatenate([x[..., :1], x], axis=3))[..., 1:]
            with vulkan_backend.profile() as profile:
                found = [on(own, one, own.tensor(w), own.tensor(b), *options) for one in (first, last, view)]
            assert sum(variant.label in timing.label for timing in profile.timings) == 3
            for one in found:
                close(one, exact, 4 * sizes, w[0].size, dtype)  # matrix units may cut sums


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_expressions_behind_matrix_units(vulkan_backend, name):
    """In captured work they are a part of the dispatch, with the bits of calls."""
    for _, own, dtype in on_matrix_units(vulkan_backend, name):
        for shape, outputs, kernel, options in ON_MATRICES:
            named = dict(zip(("stride", "padding", "dilation"), options, strict=False))

            def made(x, w, v, c, own=own, named=named):
                return [forward.convolution(own.opened, "conv2d", 2, x, one, **named) for one in (w, v)]

            def behind(*arrays, made=made):
                y, r = made(*arrays)
                return F.relu(y * arrays[3] + r)

            w, v = (draw(outputs, shape[1], *kernel, seed=seed, dtype=dtype) for seed in (1, 2))
            arrays = [own.tensor(a) for a in (draw(*shape, dtype=dtype), w, v, draw(outputs, 1, 1, dtype=dtype))]
            graph, wanted = own.capture(behind, *arrays), behind(*arrays).numpy()
            assert graph.dispatches == own.capture(made, *arrays).dispatches
            for _ in range(2):
                assert graph(*arrays).numpy().tobytes() == wanted.tobytes()


def test_what_is_left_to_other_kernels(vulkan_backend):
    """Of a convolution that would leave matrix units idle, or most of what they compute unused."""
    (variant,) = (
        v for v in vulkan_backend.registry.manifest.by_operation["convolution-matrix"] if v.name.endswith(".float16")
    )
    view = pin(view_of(vulkan_backend), vulkan_backend.registry.choice(variant)).opened
    facts = dataclasses.replace(view.facts, units=100)

    def chosen(shape, outputs, kernel=(3, 3), groups=1, dtype=np.float16):
        x = view.tensor(np.zeros(shape, dtype))
        weight = np.zeros((outputs, shape[1] // groups, *kernel), dtype)
        window = checked("conv2d", 2, x, weight, None, 1, (kernel[0] // 2, kernel[1] // 2), 1, groups, "highest").window
        return choice_for(view.registry, facts, window, x, groups, outputs) is not None

    assert chosen((16, 16, 56, 56), 16) and chosen((16, 32, 28, 28), 8)
    assert not chosen((16, 16, 56, 56), 4) and not chosen((16, 16, 56, 56), 64)  # too few outputs, and too many
    assert not chosen((16, 16, 56, 56), 16, (1, 1)) and not chosen((16, 32, 56, 56), 16, groups=2)
    assert not chosen((16, 24, 56, 56), 16) and not chosen((16, 16, 56, 56), 16, dtype=np.float32)
    assert not chosen((2, 16, 56, 56), 16)  # workgroups for half of the device
    assert not chosen((256, 16, 7, 7), 16)  # most columns would be outside
    assert not chosen((16, 16, 56, 56), 16, (15, 15))  # no room in shared memory
