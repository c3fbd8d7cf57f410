"""Gradients of the operations on arrays, against PyTorch's in float64."""

import numpy as np
import pytest

import grilly

torch = pytest.importorskip("torch")


def drawn(shape, low=-2.0, high=2.0, dtype=np.float32, seed=0):
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape).astype(dtype)


def compared(function, reference, arrays, wanted=None, tolerance=1e-5):
    """Check the gradients of a function of arrays, for a cotangent that is drawn."""
    out, pull = grilly.vjp(function, *arrays)
    exact = [torch.tensor(np.asarray(a, np.float64), requires_grad=True) for a in arrays]
    expected = reference(*exact)
    assert tuple(expected.shape) == out.shape
    np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=tolerance, atol=tolerance * 10)
    cotangent = drawn(out.shape, dtype=out.dtype, seed=9)
    expected.backward(torch.tensor(np.asarray(cotangent, np.float64)))
    for number, (found, one) in enumerate(zip(pull(cotangent), exact, strict=True)):
        if wanted is not None and number not in wanted:
            continue
        known = np.zeros(one.shape) if one.grad is None else one.grad.numpy()
        assert found.dtype == arrays[number].dtype and found.shape == arrays[number].shape
        scale = np.abs(known).max(initial=1.0)
        np.testing.assert_allclose(np.asarray(found.numpy(), np.float64), known, rtol=tolerance, atol=tolerance * scale)


# Of each elementwise operation of one operand: PyTorch's, and where it is taken.
UNARY = {
    "abs": (torch.abs, -2, 2), "acos": (torch.acos, -0.9, 0.9), "acosh": (torch.acosh, 1.1, 3),
    "asin": (torch.asin, -0.9, 0.9), "asinh": (torch.asinh, -2, 2), "atan": (torch.atan, -2, 2),
    "atanh": (torch.atanh, -0.9, 0.9), "ceil": (torch.ceil, -2, 2), "cos": (torch.cos, -4, 4),
    "cosh": (torch.cosh, -2, 2), "erf": (torch.erf, -2, 2), "exp": (torch.exp, -2, 2), "expm1": (torch.expm1, -2, 2),
    "floor": (torch.floor, -2, 2), "log": (torch.log, 0.1, 3), "log10": (torch.log10, 0.1, 3),
    "log1p": (torch.log1p, -0.9, 2), "log2": (torch.log2, 0.1, 3), "negative": (torch.negative, -2, 2),
    "reciprocal": (torch.reciprocal, 0.2, 2), "round": (torch.round, -2, 2), "sign": (torch.sign, -2, 2),
    "sin": (torch.sin, -4, 4), "sinh": (torch.sinh, -2, 2), "sqrt": (torch.sqrt, 0.1, 3),
    "square": (torch.square, -2, 2), "tan": (torch.tan, -1, 1), "tanh": (torch.tanh, -2, 2),
    "trunc": (torch.trunc, -2, 2),
}  # fmt: skip
BINARY = {
    "add": (torch.add, -2, 2), "subtract": (torch.subtract, -2, 2), "multiply": (torch.multiply, -2, 2),
    "divide": (torch.divide, 0.5, 2), "pow": (torch.pow, 0.2, 2), "maximum": (torch.maximum, -2, 2),
    "minimum": (torch.minimum, -2, 2), "atan2": (torch.atan2, 0.2, 2), "hypot": (torch.hypot, 0.2, 2),
    "logaddexp": (torch.logaddexp, -2, 2), "copysign": (torch.copysign, -2, 2),
    "remainder": (lambda x, y: x - y * torch.floor(x / y), 0.5, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_array(default, name):
    reference, low, high = UNARY[name]
    compared(getattr(grilly, name), reference, [drawn((3, 7), low, high)])


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_arrays(default, name):
    reference, low, high = BINARY[name]
    wanted = (0,) if name == "copysign" else None
    compared(getattr(grilly, name), reference, [drawn((3, 1, 7), low, high), drawn((5, 1), low, high, seed=1)], wanted)
    compared(lambda x: getattr(grilly, name)(x, 1.5), lambda x: reference(x, torch.tensor(1.5).double()),
             [drawn((7,), low, high)])  # fmt: skip
    if name != "copysign":
        compared(lambda y: getattr(grilly, name)(1.5, y), lambda y: reference(torch.tensor(1.5).double(), y),
                 [drawn((7,), low, high)])  # fmt: skip


def test_ties_are_shared(default):
    x = np.float32([1, 2, 3])
    compared(grilly.maximum, torch.maximum, [x, np.float32([1, 0, 4])])
    compared(grilly.max, torch.amax, [np.float32([1, 3, 3])])


def test_choices(default):
    chosen, x, y = np.array([True, False, True]), drawn((4, 3)), drawn((3,))
    own, exact = grilly.asarray(chosen), torch.tensor(chosen)
    compared(lambda x, y: grilly.where(own, x, y), lambda x, y: torch.where(exact, x, y), [x, y])
    compared(lambda x: grilly.where(x > 0, x, 0.5), lambda x: torch.where(x > 0, x, 0.5), [x])
    compared(lambda x: grilly.clip(x, -0.5, 1.0), lambda x: torch.clip(x, -0.5, 1.0), [x])


def _norm(x):
    return torch.linalg.vector_norm(x, dim=1)


REDUCTIONS = {
    "sum": (lambda x: grilly.sum(x, axis=(0, 2)), lambda x: x.sum((0, 2))),
    "all": (grilly.sum, torch.sum),
    "keepdims": (lambda x: grilly.mean(x, axis=1, keepdims=True), lambda x: x.mean(1, True)),
    "prod": (lambda x: grilly.prod(x, axis=1), lambda x: x.prod(1)),
    "max": (lambda x: grilly.max(x, axis=-1), lambda x: x.amax(-1)),
    "min": (lambda x: grilly.min(x, axis=0), lambda x: x.amin(0)),
    "var": (lambda x: grilly.var(x, axis=1, correction=1), lambda x: x.var(1)),
    "std": (lambda x: grilly.std(x, axis=(0, 1)), lambda x: x.std((0, 1), correction=0)),
    "vector_norm": (lambda x: grilly.linalg.vector_norm(x, axis=1), _norm),
    "cumulative_sum": (lambda x: grilly.cumulative_sum(x, axis=1), lambda x: x.cumsum(1)),
    "cumulative_prod": (lambda x: grilly.cumulative_prod(x, axis=2), lambda x: x.cumprod(2)),
    "from zero": (lambda x: grilly.cumulative_sum(x, axis=1, include_initial=True)[:, 1:], lambda x: x.cumsum(1)),
    "diff": (lambda x: grilly.diff(x, axis=1), lambda x: x.diff(dim=1)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_and_scans(default, name):
    compared(*REDUCTIONS[name], [drawn((3, 5, 4))])


def test_products_with_zeros(default):
    x = drawn((3, 6))
    x[0, 2], x[1, 1], x[1, 4] = 0, 0, 0
    compared(lambda x: grilly.prod(x, axis=1), lambda x: x.prod(1), [x])
    compared(lambda x: grilly.cumulative_prod(x, axis=1), lambda x: x.cumprod(1), [x])


INDEX = np.array([4, 0, 4, 2])
WIDE = np.array([[0, 1, 1], [4, 4, 0]])
SHAPES = {
    "slices": (lambda x: x[1:, ::2], lambda x: x[1:, ::2]),
    "backwards": (lambda x: x[::-1, 3:0:-1], lambda x: x.flip(0)[:, 1:4].flip(1)),
    "one": (lambda x: x[1], lambda x: x[1]),
    "overlapping": (lambda x: x[:2] * x[1:], lambda x: x[:2] * x[1:]),
    "all parts": (lambda x: x[..., :1] * x[..., 1:2] + x[..., 2:].transpose(1, 0, 2).reshape(3, 10)[:, None, :1],
                  lambda x: x[..., :1] * x[..., 1:2] + x[..., 2:].permute(1, 0, 2).reshape(3, 10)[:, None, :1]),
    "heads": (lambda x: x[..., :2].reshape(3, 5, 2, 1).transpose(0, 2, 1, 3) * x[..., 2:].reshape(3, 2, 5, 1),
              lambda x: x[..., :2].reshape(3, 5, 2, 1).permute(0, 2, 1, 3) * x[..., 2:].reshape(3, 2, 5, 1)),
    "parts but one": (lambda x: x[:, :2] * x[:, 3:], lambda x: x[:, :2] * x[:, 3:]),
    "parts and the whole": (lambda x: x[:, :1] * x + x[:, 1:2], lambda x: x[:, :1] * x + x[:, 1:2]),
    "transposed": (lambda x: x.transpose(2, 0, 1) * 2.0, lambda x: x.permute(2, 0, 1) * 2.0),
    "its transpose too": (lambda x: x[:, :3, 0] @ x[:, :3, 0].T, lambda x: x[:, :3, 0] @ x[:, :3, 0].T),
    "reshaped": (lambda x: x.reshape(15, 4) * x.reshape(60, 1)[:15],
                 lambda x: x.reshape(15, 4) * x.reshape(60, 1)[:15]),
    "reshaped copy": (lambda x: x.transpose(1, 0, 2).reshape(5, 12), lambda x: x.permute(1, 0, 2).reshape(5, 12)),
    "broadcast": (lambda x: grilly.broadcast_to(x[:, :1], (2, 3, 6, 4)) * 1.0, lambda x: x[:, :1].expand(2, 3, 6, 4)),
    "concat": (lambda x: grilly.concat([x, x[:, 1:3], x], axis=1), lambda x: torch.cat([x, x[:, 1:3], x], 1)),
    "stack": (lambda x: grilly.stack([x, x * 2.0], axis=1), lambda x: torch.stack([x, x * 2], 1)),
    "flip": (lambda x: grilly.flip(x, axis=1), lambda x: x.flip(1)),
    "roll": (lambda x: grilly.roll(x, (2, -1), (1, 2)), lambda x: x.roll((2, -1), (1, 2))),
    "tile": (lambda x: grilly.tile(x, (2, 1, 3)), lambda x: x.tile(2, 1, 3)),
    "repeat": (lambda x: grilly.repeat(x, 3, axis=1), lambda x: x.repeat_interleave(3, 1)),
    "tril": (lambda x: grilly.tril(x, k=-1), lambda x: x.tril(-1)),
    "triu": (grilly.triu, torch.triu),
    "diagonal": (grilly.linalg.diagonal, lambda x: x.diagonal(dim1=-2, dim2=-1)),
    "take": (lambda x: grilly.take(x, INDEX, axis=1), lambda x: x[:, INDEX]),
    "a device's index": (lambda x: x[:, grilly.asarray(INDEX)], lambda x: x[:, INDEX]),
    "arrays": (lambda x: x[WIDE[0], :, WIDE[0]], lambda x: x[WIDE[0], :, WIDE[0]]),
    "a mask": (lambda x: x[np.array([True, False, True])], lambda x: x[torch.tensor([True, False, True])]),
    "take_along_axis": (lambda x: grilly.take_along_axis(x, INDEX.reshape(1, 4, 1), axis=1),
                        lambda x: torch.take_along_dim(x, torch.tensor(INDEX.reshape(1, 4, 1)), 1)),
    "sort": (lambda x: grilly.sort(x, axis=1, descending=True), lambda x: x.sort(1, descending=True).values),
    "topk": (lambda x: grilly.topk(x, 2, axis=1)[0], lambda x: x.topk(2, 1).values),
    "astype": (lambda x: x.astype(np.float32, copy=True) * 2.0, lambda x: x * 2),
    "squeeze": (lambda x: grilly.squeeze(x[:, :1], axis=1), lambda x: x[:, :1].squeeze(1)),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_views_copies_and_indices(default, name):
    compared(*SHAPES[name], [drawn((3, 5, 4))])


@pytest.mark.parametrize(
    "x, y",
    [((3, 5), (5, 4)), ((5,), (5, 4)), ((3, 5), (5,)), ((5,), (5,)), ((2, 1, 3, 5), (7, 5, 4)), ((5,), (7, 5, 4))],
)
def test_products(default, x, y):
    compared(grilly.matmul, torch.matmul, [drawn(x), drawn(y, seed=1)])


def test_products_of_tensors(default):
    compared(lambda x, y: grilly.tensordot(x, y, axes=2), lambda x, y: torch.tensordot(x, y, 2),
             [drawn((3, 5, 4)), drawn((5, 4, 2))])  # fmt: skip
    compared(grilly.vecdot, torch.linalg.vecdot, [drawn((3, 5)), drawn((3, 5), seed=1)])
    compared(grilly.linalg.outer, torch.outer, [drawn((3,)), drawn((4,))])


@pytest.mark.parametrize("dtype", [np.float16, grilly.bfloat16], ids=str)
def test_sixteen_bits(by_default, dtype):
    arrays = [drawn((4, 6), 0.5, 1.5, dtype), drawn((6,), 0.5, 1.5, dtype)]
    compared(lambda x, y: grilly.sum(grilly.exp(x) * y / (x + y), axis=0), lambda x, y: (x.exp() * y / (x + y)).sum(0),
             arrays, tolerance=0.03)  # fmt: skip


def test_functions_of_users(by_default):
    weight = grilly.asarray(drawn((7,), seed=3))

    @grilly.elementwise
    def both(x, y, scale):
        z = grilly.tanh(x * scale) * y
        return grilly.where(z > 0, z, z * 0.1), z + weight * x

    exact = torch.tensor(weight.numpy()).double()

    def reference(x, y):
        z = torch.tanh(x * 1.5) * y
        return torch.where(z > 0, z, z * 0.1) * (z + exact * x)

    compared(lambda x, y: (lambda pair: pair[0] * pair[1])(both(x, y, 1.5)), reference, [drawn((3, 7)), drawn((3, 1))])
    squares = grilly.reduction(lambda x, y: (x - y) ** 2, "mean", finish=grilly.sqrt)
    compared(lambda x, y: squares(x, y, axis=1), lambda x, y: ((x - y) ** 2).mean(1).sqrt(),
             [drawn((3, 7)), drawn((7,))])  # fmt: skip


def test_a_function_reads_a_tensor_outside(default):
    @grilly.elementwise
    def scaled(x):
        return grilly.exp(x) * outside

    def loss(weight, x):
        nonlocal outside
        outside = weight
        return grilly.sum(scaled(x))

    outside = None
    weight, x = drawn((4,)), drawn((3, 4))
    gradient = grilly.grad(loss)(weight, x)
    np.testing.assert_allclose(gradient.numpy(), np.exp(x).sum(0), rtol=1e-5)


def test_gradients_of_gradients(by_default):
    def slope(x, y):
        return grilly.grad(lambda x: grilly.sum(grilly.sin(x @ y) * grilly.exp(-x[:, :4] ** 2)))(x)

    def reference(x, y):
        inside = (torch.sin(x @ y) * torch.exp(-(x[:, :4] ** 2))).sum()
        return torch.autograd.grad(inside, x, create_graph=True)[0]

    compared(slope, reference, [drawn((3, 5)), drawn((5, 4))])


def test_structures_and_values(default):
    def loss(parts, x):
        return grilly.sum(parts["w"] * x) + parts["b"][0] * 3.0, {"seen": x}

    parts = {"w": np.float32([1, 2]), "b": [0.5]}
    value, gradients = grilly.value_and_grad(loss, has_aux=True)(parts, np.float32([3, 4]))
    assert value[0].item() == 12.5 and value[1]["seen"].shape == (2,)
    np.testing.assert_array_equal(gradients["w"].numpy(), [3, 4])
    assert gradients["b"][0].item() == 3.0
    first, second = grilly.grad(lambda x, y: grilly.sum(x * y), (1, 0))(np.float32([1, 2]), np.float32([3, 4]))
    np.testing.assert_array_equal((first.numpy(), second.numpy()), [[1, 2], [3, 4]])
    same = grilly.asarray(np.float32([1, 2]))
    np.testing.assert_array_equal(grilly.grad(lambda x, y: grilly.sum(x * y))(same, same).numpy(), [1, 2])


def test_constants(default):
    x = np.float32([1, 2, 3])
    found = grilly.grad(lambda x: grilly.sum(x * grilly.stop_gradient(x)))(x)
    np.testing.assert_array_equal(found.numpy(), x)
    np.testing.assert_array_equal(grilly.grad(lambda x, y: grilly.sum(y * 1.0))(x, x).numpy(), [0, 0, 0])


def test_checkpoints(default):
    weight = grilly.asarray(drawn((5, 4)))
    calls = []

    @grilly.checkpoint
    def block(x):
        calls.append(x)
        return {"y": grilly.where(grilly.random.uniform((3, 4)) > 0.5, grilly.tanh(x @ weight), 0.0)}

    def loss(x, again):
        grilly.manual_seed(4)
        inside = block if again else block.__closure__[0].cell_contents
        return grilly.sum(inside(x * 2.0)["y"] ** 2)

    x = drawn((3, 5))
    kept, made = (grilly.grad(lambda x, again=again: loss(x, again))(x).numpy() for again in (False, True))
    np.testing.assert_allclose(made, kept, rtol=1e-6)
    assert len(calls) == 3


def test_arguments_that_are_broadcast(default):
    """Each element has a gradient of its own; and that of what was broadcast is the sum, also through a checkpoint."""
    x, weights = grilly.asarray(drawn((4,))), drawn((3, 4), seed=1)
    own = grilly.grad(lambda y: grilly.sum(y * y * weights))(grilly.broadcast_to(x, (3, 4)))
    np.testing.assert_allclose(own.numpy(), 2 * x.numpy() * weights, rtol=1e-5)
    square = grilly.checkpoint(lambda y: y * y)
    found = grilly.grad(lambda x: grilly.sum(square(grilly.broadcast_to(x, (3, 4)))))(x)
    np.testing.assert_allclose(found.numpy(), 6 * x.numpy(), rtol=1e-5)


def test_captured(default):
    def step(x, w):
        return grilly.value_and_grad(lambda w: grilly.mean(grilly.tanh(x @ w) ** 2))(w)

    x, w = drawn((6, 5)), drawn((5, 4))
    graph = default.capture(step, x, w)
    for seed in range(2):
        w = drawn((5, 4), seed=seed)
        for found, expected in zip(graph(x, w), step(default.tensor(x), w), strict=True):
            np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6, atol=1e-7)


def test_writing_in_place_is_refused(default):
    def assigned(x):
        y = x * 2.0
        y[0] = 1.0
        return grilly.sum(y)

    def added(x):
        x += 1.0
        return grilly.sum(x)

    def lost(x):
        y = grilly.zeros((3,))
        y[:] = x
        return grilly.sum(y)

    for function in (assigned, added, lost):
        with pytest.raises(grilly.GradientError, match="in place"):
            grilly.grad(function)(np.float32([1, 2, 3]))


def test_writing_in_place_before_gradients_are_pulled_is_refused(default):
    x, factor, other = (default.tensor(np.float32([1, 2, 3])) for _ in range(3))
    _, pull = grilly.vjp(lambda x: x * factor, x)
    other += 1.0
    x += 1.0  # of which the gradient is a constant
    np.testing.assert_array_equal(pull(np.float32([1, 1, 1]))[0].numpy(), [1, 2, 3])
    factor[1] = 0.0
    with pytest.raises(grilly.GradientError, match="written to in place since"):
        pull(np.float32([1, 1, 1]))


def test_wrong_arguments(default):
    x = np.float32([1, 2])
    with pytest.raises(TypeError, match="int64"):
        grilly.grad(lambda x: grilly.sum(x))(np.array([1, 2]))
    with pytest.raises(TypeError, match="str"):
        grilly.grad(lambda x: x)("x")
    with pytest.raises(TypeError, match="ndarray"):
        grilly.grad(lambda x: x.numpy())(x)
    with pytest.raises(TypeError, match="int64"):
        grilly.grad(lambda x: grilly.argmax(x))(x)
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        grilly.grad(lambda x: x * 2.0)(x)
    with pytest.raises(ValueError, match="argnums"):
        grilly.grad(lambda x: x, 1)(x)
    with pytest.raises(ValueError, match="cotangent"):
        grilly.vjp(lambda x: x * 2.0, x)[1](np.float32([1]))
