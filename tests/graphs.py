"""What tests of captured graphs share."""

from __future__ import annotations

import contextlib

import numpy as np

import grilly
import grilly.functional as F


@contextlib.contextmanager
def default(backend):
    """Inside, the backend is the default one."""
    former = grilly.use(backend)
    try:
        yield backend
    finally:
        grilly.use(former)


def random(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def equal(found, wanted):
    """The same bits, in the same structure."""
    found, wanted = ([r] if isinstance(r, grilly.Tensor) else list(r) for r in (found, wanted))
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def bits(tensor):
    """The bytes, of NaN always the same."""
    array = np.atleast_1d(tensor.numpy())
    if tensor.dtype.kind == "f" or tensor.dtype.name == "bfloat16":
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return np.ascontiguousarray(array).view(np.uint8)


def check(backend, function, *arguments, dispatches=None):
    """Capture, and hold replays against calls, bit for bit. Returns the graph."""
    wanted = function(*arguments)
    graph = backend.capture(function, *arguments)
    if dispatches is not None:
        assert graph.dispatches == dispatches
    for _ in range(2):
        found = graph(*arguments)
        pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
        for one, other in pairs:
            assert one.dtype == other.dtype and one.shape == other.shape
            np.testing.assert_array_equal(bits(one), bits(other))
    return graph


def random_program(draw, unary, binary, others, fewest_axes):
    """A random program of elementwise operations and ``others(x, axis)``, and the arrays that it takes."""
    shape = tuple(int(n) for n in draw.choice([1, 3, 4, 8, 12, 17], draw.integers(fewest_axes, 4)))
    arrays = [draw.standard_normal(shape).astype(np.float32)]
    for _ in range(2):
        own = tuple(1 if draw.random() < 0.2 else extent for extent in shape)[draw.integers(0, 2) :]
        arrays.append(draw.standard_normal(own).astype(np.float32))
    steps = [tuple(int(n) for n in draw.integers(0, 60, 4)) for _ in range(draw.integers(3, 9))]

    def program(*arguments):
        values = [arguments[0]]
        for kind, i, j, choice in steps:
            x = values[-1 - i % min(2, len(values))]
            if kind < 20:
                found = unary[choice % len(unary)](x)
            elif kind < 40:
                found = binary[choice % len(binary)](x, [*arguments, *values][j % (3 + len(values))])
            else:
                found = others[choice % len(others)](x, j % len(shape))
            values.append(found)
        return values[-1], values[len(values) // 2]

    return program, arrays


def layer(backend, dtype="float32"):
    """A block of a transformer as a function of Tensors, with weights of its own."""
    weights = [backend.tensor(random(64, 64, seed=n) / 8).astype(dtype) for n in range(4)]

    def call(x, mask):
        q, k, v = (F.rope(F.linear(x, w).reshape(2, 9, 4, 16).transpose(0, 2, 1, 3)) for w in weights[:3])
        out, lse = F.flash_attention2(q, k, v, mask=mask, return_lse=True)
        return F.linear(out.transpose(0, 2, 1, 3).reshape(2, 9, 64), weights[3]), lse

    return call
