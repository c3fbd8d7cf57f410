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


def layer(backend, dtype="float32"):
    """A block of a transformer as a function of Tensors, with weights of its own."""
    weights = [backend.tensor(random(64, 64, seed=n) / 8).astype(dtype) for n in range(4)]

    def call(x, mask):
        q, k, v = (F.rope(F.linear(x, w).reshape(2, 9, 4, 16).transpose(0, 2, 1, 3)) for w in weights[:3])
        out, lse = F.flash_attention2(q, k, v, mask=mask, return_lse=True)
        return F.linear(out.transpose(0, 2, 1, 3).reshape(2, 9, 64), weights[3]), lse

    return call
