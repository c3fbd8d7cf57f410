"""Gradients by the tape, held against PyTorch's in float64."""

import numpy as np
import pytest

import grilly
from backends import default
from cases import SIXTEEN_BITS, epsilon

torch = pytest.importorskip("torch")

#: Element types, and whether arrays are strided.
LAYOUTS = [
    pytest.param(np.float32, False, id="float32"), pytest.param(np.float32, True, id="strided"),
    *(pytest.param(*each.values, False, id=each.id, marks=each.marks) for each in SIXTEEN_BITS),
]  # fmt: skip


def draw(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def laid_out(backend, array, strided):
    """The array on the device; ``strided``: every second element of a larger one, its axes in another order."""
    if not strided or not array.ndim:
        return backend.tensor(array)
    wide = np.zeros((*(2 * extent for extent in array.shape),), array.dtype).T.copy()
    wide[tuple(slice(1, None, 2) for _ in array.shape)] = array.T
    return backend.tensor(wide).transpose()[tuple(slice(1, None, 2) for _ in array.shape)]


def gradients(backend, function, arrays, cotangents, strided=False):
    """Results and gradients of ``function`` of arrays, for the cotangents of its results (None: zeros)."""
    with default(backend):
        given = [laid_out(backend, array, strided) for array in arrays]
        found, pull = grilly.vjp(function, *given)
        results = found if isinstance(found, tuple) else (found,)
        cotangents = tuple(np.zeros(r.shape, r.dtype) if c is None else c.astype(r.dtype)
                           for c, r in zip(cotangents, results, strict=True))  # fmt: skip
        pulled = pull(cotangents if isinstance(found, tuple) else cotangents[0])
    return [result.numpy() for result in results], [gradient.numpy() for gradient in pulled]


def exact(reference, arrays, cotangents):
    """The same by PyTorch, in float64. ``cotangents(results)`` gives the cotangents."""
    given = [torch.tensor(array.astype(np.float64), requires_grad=True) for array in arrays]
    found = reference(*given)
    results = found if isinstance(found, tuple) else (found,)
    weights = cotangents([tuple(result.shape) for result in results])
    total = sum((result * torch.tensor(weight.astype(np.float64))).sum()
                for result, weight in zip(results, weights, strict=True) if weight is not None)  # fmt: skip
    pulled = torch.autograd.grad(total, given, allow_unused=True)
    return (weights, [result.detach().numpy() for result in results],
            [np.zeros(a.shape) if p is None else p.numpy() for a, p in zip(arrays, pulled, strict=True)])  # fmt: skip


def check(backend, function, reference, *arrays, dtype=np.float32, strided=False, only=None, slack=1.0):
    """Results and gradients are PyTorch's, within the rounding of the dtype, in units of the largest of each.

    ``only``: the number of the one result with a cotangent.
    """
    arrays = [array.astype(dtype) for array in arrays]

    def cotangents(shapes):
        drawn = [draw(*shape, seed=17 + n).astype(dtype).astype(np.float32) for n, shape in enumerate(shapes)]
        return [one if only in (None, n) else None for n, one in enumerate(drawn)]

    weights, results, expected = exact(reference, arrays, cotangents)
    gave, found = gradients(backend, function, arrays, weights, strided)
    unit = slack * (256 * epsilon(np.float32) if dtype == np.float32 else 12 * epsilon(dtype))
    for what, (one, right) in zip(
        [*(f"result {n}" for n in range(len(gave))), *(f"gradient {n}" for n in range(len(found)))],
        zip([*gave, *found], [*results, *expected], strict=True), strict=True,
    ):
        assert one.shape == right.shape, what
        size = np.abs(right[np.isfinite(right)]).max(initial=0) + 1e-3
        with np.errstate(invalid="ignore"):  # infinities less infinities
            error = np.abs(np.where(np.isfinite(right), one.astype(np.float64) - right, 0)).max(initial=0)
        assert error <= unit * size and (np.isfinite(one) == np.isfinite(right)).all(), (what, error, size)


def check_captured(backend, function, *arrays):
    """A replay of value_and_grad gives the bits that a call outside a graph gives."""
    both = grilly.value_and_grad(lambda *given: grilly.sum(function(*given)), argnums=tuple(range(len(arrays))))
    with default(backend):
        first = [backend.tensor(array) for array in arrays]
        second = [backend.tensor(2 * array) for array in arrays]
        graph = backend.capture(both, *first)
        for given in (second, first):
            value, found = both(*given)
            again, replayed = graph(*given)
            assert (again.numpy() == value.numpy()).all()
            for one, other in zip(found, replayed, strict=True):
                assert (one.numpy() == other.numpy()).all()


def check_second(backend, function, reference, *arrays, slack=4.0):
    """The gradients of the sum of squares of gradients."""

    def squares(*given):
        found = grilly.grad(lambda *inner: grilly.sum(function(*inner) * weight), tuple(range(len(given))))(*given)
        total = grilly.sum(found[0] * found[0])
        for one in found[1:]:
            total = total + grilly.sum(one * one)
        return total

    def squares_of_torch(*given):
        found = torch.autograd.grad((reference(*given) * weight_of_torch).sum(), given, create_graph=True)
        return sum((one * one).sum() for one in found)

    shape = tuple(reference(*(torch.tensor(array.astype(np.float64)) for array in arrays)).shape)
    host = draw(*shape, seed=5)
    weight, weight_of_torch = backend.tensor(host), torch.tensor(host.astype(np.float64))
    check(backend, squares, squares_of_torch, *arrays, slack=slack)


def drawn(shapes):
    return [draw(*shape, seed=n) for n, shape in enumerate(shapes)]
