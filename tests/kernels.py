"""Running a device with the kernels, the limits and the plans of one's choice."""

import contextlib
import dataclasses

import pytest

from conftest import open_or_skip
from grilly import Compute
from grilly.compute.device import trial
from grilly.compute.device.caches import Caches
from grilly.registry import Registry, Request


def forget(backend):
    """Forget the backend's plans, and all else that it keeps from call to call."""
    backend.opened.caches.forget()


def plans(backend, kept):
    """The entries of one of the backend's caches, in the order in which they were made."""
    return list(backend.opened.caches[kept].values())


def pretend(monkeypatch, backend, **facts):
    """For one test, plan as for a device with these facts, and keep those plans apart."""
    monkeypatch.setattr(backend.opened, "facts", dataclasses.replace(backend.opened.facts, **facts))
    monkeypatch.setattr(backend.opened, "caches", Caches())


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
    request = Request(variant.operation, variant.dtype, facts=facts)
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
