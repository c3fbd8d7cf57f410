"""Cross entropy and its gradient, against float64."""

import math

import ml_dtypes
import numpy as np
import pytest

import grilly
import grilly.functional as F
from cases import DTYPES, epsilon
from grilly import nn, reference
from kernels import chosen_as_on, pretend

UNIT = 2.0**-24


def draw(*shape, seed=0, dtype=np.float32, scale=3.0):
    return (scale * np.random.default_rng([seed, *shape]).standard_normal(shape)).astype(dtype)


def targets(classes, *shape, ignored=None):
    rng = np.random.default_rng([classes, *shape])
    found = rng.integers(0, classes, shape)
    return found if ignored is None else np.where(rng.random(shape) < 0.3, ignored, found)


def check_loss(found, x, target, **options):
    """Sums of a row are compensated and each step rounds once or twice: 40 units of what the loss is made of."""
    exact = reference.cross_entropy(x, target, **options, dtype=np.float64)
    assert found.shape == exact.shape and found.dtype == x.dtype
    span = 2 * np.abs(x.astype(np.float64)).max(initial=0) + math.log(max(x.shape[min(x.ndim - 1, 1)], 2))
    weight = options.get("weight")
    size = span * (1 if weight is None else max(np.abs(weight.astype(np.float64)).max(), 1))
    size = size * (target.size if options.get("reduction") == "sum" else 1)
    bound = 40 * UNIT * size + (0 if x.dtype == np.float32 else epsilon(x.dtype) / 2 * np.abs(exact))
    assert (np.abs(found.astype(np.float64) - exact) <= bound).all(), np.abs(found - exact).max()


def check_gradient(found, grad, x, target, **options):
    exact = reference.cross_entropy_backward(grad, x, target, **options, dtype=np.float64)
    assert found.shape == x.shape and found.dtype == x.dtype
    # p errs by some units, g and the weights by one each; p - 1 by units of 1.
    weight = options.get("weight")
    most = 1 if weight is None else np.abs(weight.astype(np.float64)).max()
    if options.get("reduction", "mean") == "mean":
        ignored = options.get("ignore_index", -100)
        own = np.ones(x.shape[min(x.ndim - 1, 1)]) if weight is None else weight.astype(np.float64)
        most = most / own[np.where(target == ignored, 0, target)][target != ignored].sum()
    bound = 40 * UNIT * most * np.abs(np.asarray(grad, np.float64)).max(initial=0)
    bound += 0 if x.dtype == np.float32 else epsilon(x.dtype) / 2 * np.abs(exact) + 2.0**-24
    assert (np.abs(found.astype(np.float64) - exact) <= bound).all(), np.abs(found - exact).max()


SHAPES = [(7,), (5, 1), (6, 3), (9, 100), (3, 1037), (2, 5, 3), (2, 19, 3, 5), (1, 600, 2)]
OPTIONS = [{}, {"reduction": "sum", "label_smoothing": 0.1}, {"reduction": "none", "weighted": True, "ignored": 2},
           {"weighted": True, "label_smoothing": 0.3, "ignored": -100}]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_losses_and_gradients(vulkan_backend, dtype, options):
    for shape in SHAPES:
        own = dict(options)
        classes = shape[min(len(shape) - 1, 1)]
        x = draw(*shape, dtype=dtype)
        ignored = own.pop("ignored", None)
        target = targets(classes, *(shape[:1] * (len(shape) > 1) + shape[2:]), ignored=ignored)
        if ignored is not None:
            own["ignore_index"] = ignored
            target.flat[:1] = (ignored + 1) % classes if classes > 1 else 0  # some row counts
        if own.pop("weighted", False):
            own["weight"] = np.abs(draw(classes, seed=5, dtype=dtype, scale=1.0)) + dtype(0.5)
        tensor = vulkan_backend.tensor(x)
        check_loss(F.cross_entropy(tensor, vulkan_backend.tensor(target), **own).numpy(), x, target, **own)
        grad = draw(*target.shape, seed=3, dtype=dtype) if own.get("reduction") == "none" else np.asarray(1.5, dtype)
        found = F.cross_entropy_backward(vulkan_backend.tensor(grad), tensor, target, **own).numpy()
        check_gradient(found, grad, x, target, **own)


def test_both_runtimes_arrays_and_views(backend):
    x, target = draw(12, 30), targets(30, 12)
    found = F.cross_entropy(backend.tensor(x), target)
    check_loss(found.numpy(), x, target)
    array = F.cross_entropy(x, target)
    assert isinstance(array, np.ndarray) and array.shape == ()
    tensor = backend.tensor(x)
    for view in (lambda a: a.T, lambda a: a[:, 3:26], lambda a: a[1::2, :]):
        own = np.ascontiguousarray(view(x))
        goal = targets(own.shape[1], own.shape[0]).astype(np.int32)
        check_loss(F.cross_entropy(view(tensor), goal, reduction="none").numpy(), own, goal, reduction="none")
        grad = np.float32(2)
        found = F.cross_entropy_backward(backend.tensor(grad), view(tensor), goal).numpy()
        check_gradient(found, grad, own, goal)


def test_large_logits_cancel_before_they_are_rounded(vulkan_backend):
    x = draw(4, 50) + np.float32(1e5)
    exact = reference.cross_entropy(x, [1, 2, 3, 4], reduction="none", dtype=np.float64)
    found = F.cross_entropy(x, [1, 2, 3, 4], reduction="none")
    assert (np.abs(found - exact) <= 40 * UNIT * 30).all()
    exact = reference.cross_entropy(x, [1, 2, 3, 4], label_smoothing=0.5, dtype=np.float64)
    assert abs(F.cross_entropy(x, [1, 2, 3, 4], label_smoothing=0.5) - exact) <= 40 * UNIT * 30


def test_logits_that_are_not_finite(vulkan_backend):
    x = draw(5, 20)
    x[0, 3], x[1, 4], x[2, 5], x[3, 6] = -np.inf, np.nan, np.inf, -np.inf
    found = F.cross_entropy(x, [1, 1, 1, 6, 1], reduction="none")
    x[3, 6] = 0
    assert np.isfinite(found[[0, 4]]).all() and np.isnan(found[[1, 2]]).all() and found[3] == np.inf
    check_loss(found[[0, 4]], np.where(np.isinf(x), -1e4, x)[[0, 4]].astype(np.float32), np.array([1, 1]),
               reduction="none")  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_as_low_as_numbers_go(vulkan_backend, dtype):
    """What a mask of the type's lowest number leaves of a row of which it hides every class."""
    x = np.full((2, 4), ml_dtypes.finfo(dtype).min, dtype)
    check_loss(F.cross_entropy(x, [1, 3], reduction="none"), np.zeros_like(x), np.array([1, 3]), reduction="none")
    grad = np.ones(2, dtype)
    check_gradient(
        F.cross_entropy_backward(grad, x, [1, 3], reduction="none"), grad, np.zeros_like(x), np.array([1, 3]),
        reduction="none",
    )  # fmt: skip


def test_a_class_on_the_device_that_is_none_makes_nan(vulkan_backend):
    x = draw(3, 4)
    for wrong in (4, -1, 2**40):
        target = vulkan_backend.tensor(np.array([0, wrong, 3]))
        found = F.cross_entropy(x, target, reduction="none").numpy()
        assert np.isnan(found[1]) and np.isfinite(found[[0, 2]]).all()
        grad = F.cross_entropy_backward(np.ones(3, np.float32), x, target, reduction="none").numpy()
        assert np.isnan(grad[1]).all() and np.isfinite(grad[[0, 2]]).all()


def test_rows_that_do_not_count(vulkan_backend):
    x = draw(2, 4)
    assert np.isnan(F.cross_entropy(x, [-100, -100]))
    assert F.cross_entropy(x, [7, 7], ignore_index=7, reduction="sum") == 0
    assert not F.cross_entropy_backward(np.ones(2, np.float32), x, [-100, -100], reduction="none").any()
    empty = np.zeros((0, 4), np.float32)
    assert np.isnan(F.cross_entropy(empty, [])) and F.cross_entropy(empty, [], reduction="sum") == 0
    assert F.cross_entropy(empty, [], reduction="none").shape == (0,)
    assert F.cross_entropy_backward(np.float32(1), empty, []).shape == (0, 4)


@pytest.mark.parametrize("classes", [9, 100, 1037, 5003])  # one invocation a row, 16, and all of a workgroup
def test_rows_shared_by_invocations(vulkan_backend, classes):
    """As GPUs do it, also on a processor."""
    x, target = draw(11, classes), targets(classes, 11)
    with chosen_as_on(vulkan_backend, "generic"):
        for options in ({}, {"label_smoothing": 0.2, "weight": np.linspace(0.5, 2, classes, dtype=np.float32)}):
            found = F.cross_entropy(vulkan_backend.tensor(x), target, reduction="none", **options).numpy()
            check_loss(found, x, target, reduction="none", **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_begin_anywhere(vulkan_backend, dtype):
    """They are read 16 bytes at once; what lies beside them is NaN."""
    for first, classes in ((1, 7), (3, 100), (5, 523), (8, 1029)):
        whole = np.full((6, first + classes + 2), np.nan, dtype)
        whole[:, first : first + classes] = x = draw(6, classes, dtype=dtype)
        target = targets(classes, 6)
        with chosen_as_on(vulkan_backend, "generic"):
            rows = vulkan_backend.tensor(whole)[:, first : first + classes]
            check_loss(F.cross_entropy(rows, target, reduction="none").numpy(), x, target, reduction="none")
            grad = draw(6, seed=2, dtype=dtype)
            found = F.cross_entropy_backward(vulkan_backend.tensor(grad), rows, target, reduction="none").numpy()
            check_gradient(found, grad, x, target, reduction="none")


def test_a_gradient_reads_the_logits_once(vulkan_backend):
    """The rows' maxima and sums are those that the loss has found."""
    x, target = vulkan_backend.tensor(draw(9, 100)), vulkan_backend.tensor(targets(100, 9))
    of = grilly.grad(lambda x: F.cross_entropy(x, target))
    of(x)
    with vulkan_backend.profile() as profile:
        found = of(x).numpy()
    assert sum(timing.label.startswith("cross-entropy.") for timing in profile.timings) == 1
    check_gradient(found, np.float32(1), x.numpy(), target.numpy())


def test_logits_larger_than_a_binding(vulkan_backend, monkeypatch):
    x, target = draw(31, 9, 7), targets(9, 31, 7)
    flat, goals = draw(61, 37), targets(37, 61)
    pretend(monkeypatch, vulkan_backend, storage_range=4800)
    for logits, goal in ((x, target), (flat, goals)):
        tensor = vulkan_backend.tensor(logits)
        check_loss(F.cross_entropy(tensor, goal, reduction="none").numpy(), logits, goal, reduction="none")
        grad = np.float32(1)
        found = F.cross_entropy_backward(vulkan_backend.tensor(grad), tensor, goal).numpy()
        check_gradient(found, grad, logits, goal)


def test_capture(vulkan_backend):
    def step(x, target):
        return F.cross_entropy(x, target), F.cross_entropy_backward(grad, x, target)

    grad = vulkan_backend.tensor(np.float32(1))
    graph = vulkan_backend.capture(step, draw(8, 33), targets(33, 8))
    for seed in (1, 2):
        x, target = draw(8, 33, seed=seed), (targets(33, 8) + seed) % 33
        wanted = step(vulkan_backend.tensor(x), vulkan_backend.tensor(target))
        for found, own in zip(graph(x, target), wanted, strict=True):
            np.testing.assert_array_equal(found.numpy(), own.numpy())


def test_the_layer(vulkan_backend):
    weight = np.linspace(0.5, 2, 10, dtype=np.float32)
    layer = nn.CrossEntropyLoss(weight, label_smoothing=0.1).to(vulkan_backend).train()
    x, target = draw(6, 10), targets(10, 6)
    loss = layer(x, target)
    check_loss(loss, x, target, weight=weight, label_smoothing=0.1)
    found = layer.backward()
    assert isinstance(found, np.ndarray)
    check_gradient(found, 1.0, x, target, weight=weight, label_smoothing=0.1)
    assert isinstance(layer(vulkan_backend.tensor(x), target), grilly.Tensor)
    assert isinstance(layer.backward(), grilly.Tensor)
    layer(vulkan_backend.tensor(x), target)
    assert isinstance(layer.backward(np.asarray(1, np.float32)), np.ndarray)
    assert isinstance(layer(x, vulkan_backend.tensor(target)), grilly.Tensor)
    assert not layer.state_dict() and "label_smoothing=0.1" in repr(layer)
    rows = nn.CrossEntropyLoss(reduction="none").to(vulkan_backend).train()
    rows(x, target)
    check_gradient(rows.backward(2.0), np.full(6, 2.0), x, target, reduction="none")


def test_what_is_refused(vulkan_backend):
    x = draw(3, 4)
    for error, match, call in (
        (TypeError, "target is float32; expected class indices", lambda: F.cross_entropy(x, x)),
        (TypeError, "target is float32; expected class", lambda: F.cross_entropy(x, vulkan_backend.tensor(x))),
        (TypeError, "input is float64", lambda: F.cross_entropy(np.zeros((3, 4)), [0, 1, 2])),
        (TypeError, "weight is float16 and input is float32",
         lambda: F.cross_entropy(x, [0, 1, 2], np.ones(4, np.float16))),
        (ValueError, r"target has shape \(2,\) and input \(3, 4\); expected \(3,\)",
         lambda: F.cross_entropy(x, [0, 1])),
        (ValueError, r"weight has shape \(3,\); expected \(4,\)", lambda: F.cross_entropy(x, [0, 1, 2], x[0, :3])),
        (IndexError, "target has the class 4; expected 0 to 3, or ignore_index", lambda: F.cross_entropy(x, [0, 4, 2])),
        (ValueError, "reduction is 'max'", lambda: F.cross_entropy(x, [0, 1, 2], reduction="max")),
        (ValueError, "ignore_index is 18446744073709551616; expected a number of int64",
         lambda: F.cross_entropy(x, [0, 1, 2], ignore_index=2**64)),
        (ValueError, "label_smoothing is 1.5", lambda: F.cross_entropy(x, [0, 1, 2], label_smoothing=1.5)),
        (ValueError, "no axes", lambda: F.cross_entropy(np.zeros((), np.float32), 0)),
        (ValueError, "no classes", lambda: F.cross_entropy(np.zeros((3, 0), np.float32), [0, 0, 0])),
        (ValueError, r"grad_output has shape \(3,\); expected the loss's, \(\)",
         lambda: F.cross_entropy_backward(x[:, 0], x, [0, 1, 2])),
        (ValueError, "CrossEntropyLoss: reduction", lambda: nn.CrossEntropyLoss(reduction="avg")),
    ):  # fmt: skip
        with pytest.raises(error, match=match):
            call()
