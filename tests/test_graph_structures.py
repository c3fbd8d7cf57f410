"""What arguments and results of captured functions may be besides arrays, and what is refused."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections import OrderedDict, defaultdict, deque, namedtuple

import numpy as np
import pytest

import grilly
from graphs import default, equal, random
from grilly import nn


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


class Slotted:
    __slots__ = "value"

    def __init__(self, value):
        self.value = value


class Hidden:
    __slots__ = ("__value",)

    def __init__(self, value):
        self.__value = value


class Listed(list):
    def __init__(self, first, second):
        super().__init__((first, second))


@dataclasses.dataclass
class Holder:
    value: object


class Colour(enum.Enum):
    RED = 1


Pair = namedtuple("Pair", "a b")


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hold, said",
    [
        (lambda t: deque([t]), "deque"),
        (lambda t: {"x": {t}}, "set"),
        (lambda t: frozenset([t]), "frozenset"),
        (lambda t: {1: t}.values(), "dict_values"),
        (lambda t: lambda: t, "function"),
        (lambda t: functools.partial(max, t), "partial"),
        (lambda t: Holder(t).__eq__, "method"),
        (lambda t: Holder([deque([Holder(t)])]), "Holder"),
        (Slotted, "Slotted"),
        (Hidden, "Hidden"),
        (lambda t: Listed(t, 1), "Listed"),
        (lambda t: Holder(n + t for n in range(2)), "Holder"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_results_in_other_objects_are_refused(backend, hold, said):
    """The next replay would write over them."""
    with pytest.raises(grilly.CaptureError, match=f"returns a (builtin_)?{said}, and the next replay would write over"):
        backend.capture(lambda x: hold(x * 2), random(3))


@pytest.mark.parametrize("make", [lambda t: (t * n for n in range(2)), lambda t: iter([t]), lambda t: map(abs, [t])])
def test_results_that_are_iterators_are_refused(backend, make):
    with pytest.raises(grilly.CaptureError, match="which would go on outside of the capture"):
        backend.capture(lambda x: make(x * 2), random(3))


def test_other_results_are_given_back(backend):
    weight = backend.tensor(random(3))
    others = [None, True, 2.5, 1j, "x", b"x", Colour.RED, np.dtype("f4"), np.float32(2), random(2), {1, 2}, Holder(3),
              deque([weight]), np.array([None, weight], object)]  # fmt: skip
    graph = backend.capture(lambda x: (x * 2, others, abs), random(3))
    _, found, function = graph(random(3))
    assert all(one is other for one, other in zip(found, others, strict=True)) and function is abs


def test_structures_of_results_stay_what_they_are(backend):
    def call(x):
        ordered = OrderedDict(b=x * 2, a=1)
        ordered.move_to_end("b")
        grouped = defaultdict(list, z=[x + 1, Pair(x - 1, 2)])
        return ordered, grouped, Pair(ordered, (x,))

    x = random(3)
    graph = backend.capture(call, x)
    first = graph(x)
    kept = first[0]["b"].numpy()
    ordered, grouped, pair = graph(2 * x)
    assert type(ordered) is OrderedDict and list(ordered) == ["a", "b"] and type(pair.a) is OrderedDict
    assert type(grouped) is defaultdict and grouped["new"] == [] and type(grouped["z"][1]) is Pair
    wanted = [backend.tensor(each) for each in (4 * x, 2 * x + 1, 2 * x - 1)]
    equal((ordered["b"], grouped["z"][0], grouped["z"][1].a), wanted)
    np.testing.assert_array_equal(first[0]["b"].numpy(), kept)
    assert "new" not in first[1]


# -- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", ["Tensor", "array"])
@pytest.mark.parametrize("make", [Holder, Slotted, Hidden, lambda t: deque([t]), lambda t: Holder([Holder(t)])])
def test_arguments_that_hold_arrays_are_refused(backend, make, held):
    """They would be the capture's for ever."""
    x = random(3)
    made = make(backend.tensor(x) if held == "Tensor" else x)
    with pytest.raises(TypeError, match=r"argument 1\['k'\] is a \w+ that holds arrays; give them in tuples"):
        backend.capture(lambda x, given: x * 2, x, {"k": made})


def test_arguments_that_look_after_their_arrays(backend):
    cache, layer = nn.KVCache(1, 8, 2, 16), nn.Linear(4, 3).eval()

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.scale = layer, backend.tensor(random(3))

        def forward(self, x):
            return self.layer(x) * self.scale

    scaled = Scaled()
    given = cache, scaled, Holder(backend), {"f": functools.partial(max, layer.weight.numpy()), "colour": Colour.RED}
    token, x = random(1, 1, 2, 16), random(2, 4)

    def call(token, x, cache, layer, *others):
        return cache.attend(token, token, token), layer(x)

    graph = backend.capture(call, token, x, *given)
    for count in (1, 2):
        equal(graph(token, x, *given)[1], scaled(backend.tensor(x)))
        assert len(cache) == count


def test_arguments_in_classes_of_dicts_and_lists(backend):
    graph = backend.capture(lambda given: given["x"] * given["y"][1], OrderedDict(x=random(3), y=Listed(1, random(3))))
    equal(graph({"x": random(3, seed=1), "y": Listed(1, random(3))}), backend.tensor(random(3, seed=1)) * random(3))


@pytest.mark.parametrize("one, other", [(0.0, -0.0), (0j, complex(-0.0, 0)), (np.float32(0), np.float32(-0.0))])
def test_the_sign_of_zero_counts(backend, one, other):
    graph = backend.capture(lambda x, scale: x * 2, random(3), one)
    graph(random(3), type(one)(one))
    with pytest.raises(ValueError, match="argument 1 is"):
        graph(random(3), other)


@pytest.mark.needs("ml_dtypes")
def test_the_sign_of_zero_counts_in_bfloat16(backend):
    import ml_dtypes

    graph = backend.capture(lambda x, scale: x * 2, random(3), ml_dtypes.bfloat16(0))
    graph(random(3), ml_dtypes.bfloat16(0))
    with pytest.raises(ValueError, match="argument 1 is"):
        graph(random(3), ml_dtypes.bfloat16(-0.0))


def test_nan_is_nan(backend):
    nan = float("nan")
    for one, other in ((nan, -nan), (complex(nan, 1), complex(-nan, 1)), (np.float16(nan), np.float16(nan))):
        equal(backend.capture(lambda x, scale: x * 2, random(3), one)(random(3), other), backend.tensor(2 * random(3)))


def test_arguments_by_name_are_refused(backend):
    graph = backend.capture(lambda a: a * 2, random(3))
    with pytest.raises(TypeError, match="given by position, as in the capture; got 'a' by name"):
        graph(a=random(3))
