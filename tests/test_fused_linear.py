"""Linear layers of a graph with operations before and behind them: the dispatches and the bits of one call."""

from __future__ import annotations

import numpy as np
import pytest

import grilly
import grilly.functional as F
from graphs import bits, default, equal, random

HALVES = ["float32", "float16", pytest.param("bfloat16", marks=pytest.mark.needs("ml_dtypes"))]
K, N = 64, 48


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


def halves(h):
    n = h.shape[-1] // 2
    return h[..., :n], h[..., n:]


def gated(h):
    gate, up = halves(h)
    return F.silu(gate) * up


#: What is captured, of x, weight, bias and residual; and the options of the one call that it is.
PROGRAMS = {
    "activation": (lambda x, w, b, r: F.gelu(F.linear(x, w, b)), {"activation": "gelu"}),
    "residual": (lambda x, w, b, r: r + F.linear(x, w, b), {"residual": True}),
    "both": (lambda x, w, b, r: F.relu(F.linear(x, w, b)) + r, {"activation": "relu", "residual": True}),
    "swiglu": (lambda x, w, b, r: F.swiglu(*halves(F.linear(x, w, b))), {"activation": "silu", "gated": True}),
    "gated": (lambda x, w, b, r: gated(F.linear(x, w, b)), {"activation": "silu", "gated": True}),
    "all": (lambda x, w, b, r: gated(F.linear(x, w, b)) + r[..., : N // 2],
            {"activation": "silu", "gated": True, "residual": True}),
}  # fmt: skip


def check(backend, program, called, *arguments, dispatches=None):
    """Capture both, and hold one against the other, bit for bit. Returns the dispatches."""
    graph, one = (backend.capture(function, *arguments) for function in (program, called))
    assert graph.dispatches == (one.dispatches if dispatches is None else dispatches)
    for _ in range(2):
        np.testing.assert_array_equal(bits(graph(*arguments)), bits(one(*arguments)))
    return graph.dispatches


def arrays(backend, shape, dtype, depth=K, cols=N):
    x, w, b, r = (random(*size, seed=seed) for seed, size in
                  enumerate(((*shape, depth), (cols, depth), (cols,), (*shape, cols))))  # fmt: skip
    return [backend.tensor(array).astype(dtype) for array in (x, w / 8, b, r)]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", [(1,), (2, 3), (33,)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_stands_behind_becomes_a_part(backend, name, shape, dtype):
    program, options = PROGRAMS[name]
    x, w, b, r = arrays(backend, shape, dtype)

    def called(x, w, b, r):
        cols = N // 2 if "gated" in options else N
        own = options | ({"residual": r[..., :cols]} if "residual" in options else {})
        return F.linear(x, w, b, **own)

    alone = check(backend, program, called, x, w, b, r)
    apart = {"activation": 2, "residual": 2, "both": 3, "swiglu": 2, "gated": 3, "all": 4}[name]
    assert alone < apart or name == "swiglu" and alone == apart


@pytest.mark.parametrize("dtype", HALVES)
def test_results_lie_as_near_as_those_of_the_calls(backend, dtype):
    x, w, b, r = arrays(backend, (5,), dtype)
    exact = [array.numpy().astype(np.float64) for array in (x, w, b, r)]
    wanted = np.maximum(exact[0] @ exact[1].T + exact[2], 0) + exact[3]
    program = PROGRAMS["both"][0]
    found = backend.capture(program, x, w, b, r)(x, w, b, r).numpy().astype(np.float64)
    called = program(x, w, b, r).numpy().astype(np.float64)
    assert np.abs(found - wanted).max() <= np.abs(called - wanted).max()
    if dtype == "float32":
        np.testing.assert_array_equal(found, called)


def test_a_norm_that_the_kernel_does(backend):
    """Rows beyond llvmpipe's own kernel: matmul/linear-rows.comp norms one or two of them."""
    depth = 65544
    x, w, _, _ = arrays(backend, (2,), "float32", depth, 3)
    g = backend.tensor(random(depth, seed=4))

    def called(x, w, g):
        return F.linear(x, w, norm_weight=g, norm_eps=1e-5)

    check(backend, lambda x, w, g: F.linear(F.rms_norm(x, (depth,), g, 1e-5), w), called, x, w, g, dispatches=1)
    check(backend, lambda x, w, g: F.relu(F.linear(F.rms_norm(x, (depth,), g, 1e-5), w)),
          lambda x, w, g: F.relu(called(x, w, g)), x, w, g, dispatches=1)

    def used_twice(x, w, g):
        normed = F.rms_norm(x, (depth,), g, 1e-5)
        return F.linear(normed, w), normed * 2.0

    assert backend.capture(used_twice, x, w, g).dispatches == 3
    assert backend.capture(lambda x, w, g: F.linear(F.layer_norm(x, (depth,), g), w), x, w, g).dispatches == 2
    added = backend.capture(lambda x, w, g: (h := F.rms_norm(x, (depth,), g)) @ w.T + h[..., :3], x, w, g)
    assert added.dispatches == 3


def test_a_norm_that_the_kernel_does_not_do_stays(backend):
    x, w, b, _ = arrays(backend, (9,), "float32")
    g = backend.tensor(random(K, seed=4))
    graph = backend.capture(lambda x: F.relu(F.linear(F.rms_norm(x * 2.0, (K,), g), w, b)), x)
    assert graph.dispatches == 2  # the factor goes into the norm


def test_quantized_weights(backend):
    x, w, b, r = arrays(backend, (2,), "float16")
    w = backend.tensor(grilly.quantize(random(N, K, seed=1) / 8, "Q8_0"))
    for name in ("both", "swiglu"):
        program, options = PROGRAMS[name]
        own = {**options, **({"residual": r} if "residual" in options else {})}
        check(backend, lambda x, program=program: program(x, w, b, r),
              lambda x, own=own: F.linear(x, w, b, **own), x, dispatches=1)  # fmt: skip


def test_strides_and_broadcasts(backend):
    x, w, b, r = arrays(backend, (4, 6), "float16")
    row = r[0, 0]
    check(backend, lambda x, r: F.linear(x[:, ::2], w, b) + r[:, 1::2],
          lambda x, r: F.linear(x[:, ::2], w, b, residual=r[:, 1::2]), x, r, dispatches=1)  # fmt: skip
    stays(backend, lambda x: F.linear(x, w, b) + r[0], x, dispatches=[2])  # whose rows have no one stride
    check(backend, lambda x: F.linear(x, w) + row, lambda x: F.linear(x, w, residual=row.broadcast_to(r.shape)), x)
    check(backend, lambda x: F.linear(x, w).reshape(24, N) + r.reshape(24, N),
          lambda x: F.linear(x.reshape(24, K), w, residual=r.reshape(24, N)), x, dispatches=1)  # fmt: skip
    turned = backend.tensor(random(N, 24)).astype("float16").T
    apart = backend.capture(lambda x: F.linear(x, w).reshape(24, N) + turned, x)
    assert apart.dispatches == 2


def test_a_chain_of_layers(backend):
    """As a model has it: each product takes what belongs to it."""
    x, w, b, r = arrays(backend, (1, 3), "float16", K, K)
    wide = backend.tensor(random(2 * K, K, seed=9) / 8).astype("float16")

    def natural(x):
        for _ in range(2):
            x = x + F.linear(F.gelu(F.linear(x, w, b)), w)
            x = x + F.linear(gated(F.linear(x, wide)), w)
        return x

    def handed(x):
        for _ in range(2):
            x = F.linear(F.linear(x, w, b, activation="gelu"), w, residual=x)
            x = F.linear(F.linear(x, wide, activation="silu", gated=True), w, residual=x)
        return x

    check(backend, natural, handed, x)


def stays(backend, program, *arguments, dispatches):
    """A replay has the bits of the calls, whether an expression stands in the kernel or not."""
    graph = backend.capture(program, *arguments)
    assert graph.dispatches in dispatches
    wanted, found = program(*arguments), graph(*arguments)
    for one, other in zip(found if isinstance(found, tuple) else (found,),
                          wanted if isinstance(wanted, tuple) else (wanted,), strict=True):  # fmt: skip
        np.testing.assert_array_equal(bits(one), bits(other))


def test_what_somebody_needs_is_stored(backend):
    x, w, b, r = arrays(backend, (5,), "float16")

    def returned(x):
        y = F.linear(x, w, b)
        return y, F.relu(y)

    def read_twice(x):
        y = F.linear(x, w, b)
        return F.relu(y), y * 2.0

    stays(backend, returned, x, dispatches=[2])
    stays(backend, read_twice, x, dispatches=[3])
    kept = []
    stays(backend, lambda x: F.relu(kept.append(F.linear(x, w, b)) or kept[-1]), x, dispatches=[2])


def test_what_a_call_cannot_end_with_stays(backend):
    x, w, b, r = arrays(backend, (5,), "float16")
    wide = r.astype("float32")
    stays(backend, lambda x: (lambda y: y + y)(F.linear(x, w, b)), x, dispatches=[1, 2])
    stays(backend, lambda x: F.softplus(F.linear(x, w, b)), x, dispatches=[1, 2])
    stays(backend, lambda x: F.linear(x, w, b) - r, x, dispatches=[1, 2])
    stays(backend, lambda x: F.linear(x, w, b) + wide, x, dispatches=[2])  # rounds to float16 before
    stays(backend, lambda x: F.linear(x, w, b) * 0.5, x, dispatches=[1, 2])
    stays(backend, lambda x: F.glu(F.linear(x, w, b)), x, dispatches=[2])  # the gate is the second half
    stays(backend, lambda x: F.swiglu(*halves(F.linear(x, w, b))[::-1]), x, dispatches=[2])
    one = backend.capture(lambda x: F.gelu(F.linear(x, w, b) + r), x)
    np.testing.assert_array_equal(bits(one(x)), bits(F.gelu(F.linear(x, w, b, residual=r))))
    assert one.dispatches in (1, 2)
    several = backend.capture(lambda x: F.relu(F.gelu(F.linear(x, w, b))), x)
    np.testing.assert_array_equal(bits(several(x)), bits(F.relu(F.linear(x, w, b, activation="gelu"))))


def test_what_is_written_between(backend):
    weight, state = (backend.tensor(random(8, 8, seed=seed)) for seed in (1, 2))
    first, second = weight.numpy(), state.numpy()

    def overwritten(x):
        y = F.linear(x, weight)
        weight[...] = x
        return F.relu(y)

    def residual(x):
        y = F.linear(x, weight)
        state[...] = x
        return y + state

    for step in (overwritten, residual):
        x = [backend.tensor(random(8, 8, seed=seed)) for seed in (3, 4, 5)]
        weight[...], state[...] = first, second
        wanted = [step(each) for each in x]
        weight[...], state[...] = first, second
        graph = backend.capture(step, x[0])
        for each, found in zip(x, wanted, strict=True):
            equal(graph(each), found)


def test_in_place(backend):
    """A sum that goes into the memory of one of its terms."""
    w, h = backend.tensor(random(8, 8, seed=1) / 4), backend.tensor(random(8, 8, seed=2))
    first = h.numpy()

    def step(x):
        y = F.linear(x, w)
        h[...] = h + y
        return F.relu(h)

    x = backend.tensor(random(8, 8, seed=3))
    wanted = [step(x) for _ in range(3)]
    h[...] = first
    graph = backend.capture(step, x)
    for each in wanted:
        equal(graph(x), each)


def test_numbers_at_the_edges(backend):
    edges = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 3e38, 1e30], np.float32)
    x, w = backend.tensor(np.stack([edges, edges[::-1]])), backend.tensor(np.eye(8, dtype=np.float32))
    for program, options in (PROGRAMS["activation"], PROGRAMS["residual"]):
        own = options | ({"residual": x} if "residual" in options else {})
        check(backend, lambda x, program=program: program(x, w, None, x),
              lambda x, own=own: F.linear(x, w, **own), x, dispatches=1)  # fmt: skip


def test_empty_arrays(backend):
    for shape in ((0, 8), (3, 0)):
        x, w = backend.tensor(np.zeros(shape, np.float32)), backend.tensor(np.zeros((4, shape[1]), np.float32))
        found = backend.capture(lambda x, w=w: F.relu(F.linear(x, w) + 1.0), x)(x)
        np.testing.assert_array_equal(found.numpy(), np.ones((shape[0], 4), np.float32))


def test_high_precision(backend):
    x, w, b, r = arrays(backend, (3,), "float32")
    check(backend, lambda x: F.relu(F.linear(x, w, b, precision="high")) + r,
          lambda x: F.linear(x, w, b, precision="high", activation="relu", residual=r), x)  # fmt: skip
