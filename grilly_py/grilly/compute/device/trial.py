"""A view of a device that runs an operation with a chosen variant: for self-checks and measurements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from .device import Device


class _Asked(Exception):
    """Ends a call at the point where a variant would be chosen."""

    def __init__(self, request: Request):
        super().__init__(request)
        self.request = request


class _Pin:
    """Stands in for a registry: one operation has one answer, all else is asked of the registry."""

    def __init__(self, registry: Registry):
        self.registry = registry
        self.pinned: Choice | None = None
        self.asking = False

    def resolve(self, request: Request) -> Choice:
        if self.asking:
            raise _Asked(request)
        if self.pinned is not None:
            operation = self.pinned.variant.operation
            if operation == request.operation:
                return self.pinned
            if request.operation in ("attention-tiled", "attention-shares") and operation == "attention":
                raise UnsupportedError("the view is to attend with another kernel")
            if (operation, request.operation) == ("attention-backward-dq", "attention-backward-dq-stored"):
                raise UnsupportedError("the view is to find dq with another kernel")
        return self.registry.resolve(request)

    def equals(self, request: Request) -> list[Choice]:
        if self.pinned is not None and self.pinned.variant.operation == request.operation:
            return [self.pinned]
        return self.registry.equals(request)

    def __getattr__(self, name):
        return getattr(self.registry, name)


def view_of(device: Device) -> Device:
    """A second view of an open device, for ``pin`` and ``request_of``.

    It shares memory and the order of work with ``device``, to which the tensors that it makes belong, and keeps plans
    of its own. It is not to be closed.
    """
    return device.view(_Pin(device.registry))


def pin(view: Device, choice: Choice | None) -> Device:
    """Make the view run the variant's operation with it, however the registry would decide; None ends that."""
    view.registry.pinned = choice
    view.caches.forget()
    return view


def with_classes(view: Device) -> Device:
    """Make attention on the view have classes of tiles (attention/classes.py) however small a call is."""
    view.facts = dataclasses.replace(view.facts, class_work=0.0, class_read=0.0)
    view.caches.forget()
    return view


def request_of(view: Device, call: Callable[[], object]) -> Request | None:
    """The first request for a variant that ``call``, which uses the view, makes; it is ended there. None for none."""
    view.registry.asking = True
    view.caches.forget()
    try:
        call()
    except _Asked as asked:
        return asked.request
    finally:
        view.registry.asking = False
    return None
