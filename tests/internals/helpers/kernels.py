"""Running a device with the kernels, the limits and the plans of one's choice."""

import contextlib
import dataclasses

import pytest

from conftest import open_or_skip
from grilly import Compute
from grilly.compute.device import trial
from grilly.compute.device.caches import Caches
from grilly.compute.device.plan import Planner
from grilly.errors import UnsupportedError
from grilly.registry import Registry, Request, default_manifest
from grilly.registry.names import EXTRAS


def forget(backend):
    """Forget the backend's plans, and all else that it keeps from call to call."""
    backend.opened.caches.forget()


def shipped(operation, *families):
    """The variants that serve an operation, of all families or of some."""
    found = default_manifest().by_operation[operation]
    return [variant for variant in found if not families or variant.family in families]


def chosen(backend):
    """The choices that the backend has made of its kernels: each has a ``variant``, a ``tile`` and ``threads``."""
    return list(backend.registry._choices.values())


def labels(backend):
    """Labels of the kernels that the backend has chosen."""
    return {choice.variant.label for choice in chosen(backend)}


def lacks(registry, variant, dtype, **facts):
    """What the registry's device lacks for the variant to serve a request in a dtype with these facts; None if nothing.

    A self-check that failed is not looked at.
    """
    return registry._lacks(variant, Request(variant.operation, dtype, "generic", facts))


def request(operation, dtype, family=None, **facts):
    """What a registry is asked: for a kernel of an operation, of one family or of any, that serves these facts."""
    return Request(operation, dtype, problem=facts, prefer=family)


def need(backend, operation, dtype, family=None, **facts):
    """The choice of a kernel for such a request, or a skip that says what the device lacks."""
    try:
        return backend.registry.resolve(request(operation, dtype, family, **facts))
    except UnsupportedError as error:
        pytest.skip(str(error).splitlines()[0])


def dispatched(monkeypatch):
    """A list of the families of kernels: each dispatch that is planned from now on is added to it."""
    seen, dispatch = [], Planner.dispatch

    def note(planner, choice, *rest, **more):
        seen.append(choice.variant.family)
        return dispatch(planner, choice, *rest, **more)

    monkeypatch.setattr(Planner, "dispatch", note)
    return seen


def of_one_storage(*tensors):
    """Whether all tensors are views of the same memory."""
    return len({id(tensor._storage) for tensor in tensors}) == 1


def keeps_nothing(backend):
    """Whether the backend keeps no plan, nor anything else from call to call."""
    return not backend.opened.caches


def option_words(name):
    """What errors call an option of kernels, such as "dropout" or "soft-cap"."""
    return EXTRAS[name]


def plans(backend, kept):
    """The entries of one of the backend's caches, each once, in the order in which they were made."""
    return list(dict.fromkeys(backend.opened.caches[kept].values()))


def pretend(monkeypatch, backend, **facts):
    """For one test, plan as for a device with these facts, and keep those plans apart."""
    monkeypatch.setattr(backend.opened, "facts", dataclasses.replace(backend.opened.facts, **facts))
    monkeypatch.setattr(backend.opened, "caches", Caches())


def with_shaders(monkeypatch, backend, manifest, **facts):
    """For one test, give the device the shaders of a manifest, with numbers of 16 bits; it is skipped where the device
    has none. Returns the registry; ``facts`` as of ``pretend``."""
    features = backend.runtime.features
    if not {"float16-storage", "float16-arithmetic"} <= features:
        pytest.skip("the device has no 16-bit numbers")
    registry = Registry(backend.device, features, manifest)
    monkeypatch.setattr(backend.opened, "registry", registry)
    pretend(monkeypatch, backend, **facts)
    return registry


@contextlib.contextmanager
def smaller(backend, **limits):
    """The backend as if its device had smaller limits; counts the dispatches."""
    opened = backend.opened
    facts, throughputs, kept = opened.facts, opened.throughputs, opened.caches
    opened.throughputs = limits.pop("throughputs", {})
    opened.facts, opened.caches = dataclasses.replace(facts, **limits), Caches()
    count = []
    original = backend.runtime.dispatch

    def counted(*arguments, **options):
        count.append(arguments)
        return original(*arguments, **options)

    backend.runtime.dispatch = counted
    try:
        yield count
    finally:
        del backend.runtime.dispatch
        opened.facts, opened.throughputs, opened.caches = facts, throughputs, kept


def view_of(backend):
    """A second view of a backend, for ``pin`` and ``request_of``."""
    return Compute.over(trial.view_of(backend.opened))


def pin(view, choice):
    """Make the view run the variant's operation with it."""
    trial.pin(view.opened, choice)
    return view


def only(backend, variant):
    """A view of the backend that runs the variant's operation with it."""
    return pin(view_of(backend), backend.registry.choice(variant))


def only_or_skip(backend, variant, **facts):
    """The same, or a skip that says why the variant cannot serve a request with these facts here."""
    request = Request(variant.operation, variant.dtype, problem=facts)
    reason = {v.name: why for v, why in backend.registry.explain(request)}[variant.name]
    if reason is not None:
        pytest.skip(f"{variant.name}: {reason}")
    return only(backend, variant)


@contextlib.contextmanager
def without_sixteen_bits():
    """A backend that offers everything but 16-bit storage."""
    with open_or_skip("vulkan", lambda: Compute(runtime="vulkan")) as backend:
        backend.runtime.features = frozenset(backend.runtime.features) - {"float16-storage"}
        backend.opened.registry = Registry(backend.device, backend.runtime.features)
        backend.opened.sixteen_bits = False
        yield backend


def with_classes(view):
    """Make attention on the view have classes of tiles however small a call is."""
    trial.with_classes(view.opened)
    return view


def request_of(view, call):
    """The request for the variant that ``call``, which uses the view, would run first."""
    return trial.request_of(view.opened, call)


@contextlib.contextmanager
def chosen_as_on(backend, architecture):
    """Inside, ``backend`` chooses shaders as on ``architecture`` (None: as on its own device)."""
    opened = backend.opened
    own, kept = opened.registry, opened.caches
    if architecture is not None:
        opened.registry, opened.caches = Registry(backend.device, backend.runtime.features), Caches()
        opened.registry.architecture = architecture
    try:
        yield backend
    finally:
        opened.registry, opened.caches = own, kept


@contextlib.contextmanager
def retiled(backend, family, threads=None, **tile):
    """Inside, the plans find other numbers in the data file of a family than it holds."""
    registry, asked = backend.registry, []

    def choice(variant):
        chosen = type(registry).choice(registry, variant)
        if variant.family == family:
            chosen.tile = {**chosen.tile, **tile}
            chosen.threads = threads or chosen.threads
            asked.append(variant)
        return chosen

    registry.choice = choice
    try:
        registry._choices.clear()
        forget(backend)
        yield
        assert asked, f"nothing asked for {family}"
    finally:
        del registry.choice
        registry._choices.clear()
        forget(backend)
