"""A view of a backend that runs an operation with a chosen variant: for self-checks and measurements."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import UnsupportedError
from .kept import Kept

if TYPE_CHECKING:
    from ..registry import Choice, Registry, Request
    from .backend import Compute


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
            if request.operation == "attention-tiled" and operation == "attention":
                raise UnsupportedError("the view is to attend with another kernel")
        return self.registry.resolve(request)

    def __getattr__(self, name):
        return getattr(self.registry, name)


def view_of(backend: Compute) -> Compute:
    """A second view of an open backend, for ``pin`` and ``request_of``.

    It shares device, memory and the order of work with ``backend`` and keeps plans of its own. It is not to be closed.
    """
    view = copy.copy(backend)
    view.registry = _Pin(backend.registry)
    view.plans = Kept(backend.plans.most)
    view.attention = type(backend.attention)(view)
    return view


def pin(view: Compute, choice: Choice | None) -> Compute:
    """Make the view run the variant's operation with it, however the registry would decide; None ends that."""
    view.registry.pinned = choice
    view.plans.clear()
    return view


def request_of(view: Compute, call: Callable[[], object]) -> Request | None:
    """The first request for a variant that ``call``, which uses the view, makes; it is ended there. None for none."""
    view.registry.asking = True
    try:
        call()
    except _Asked as asked:
        return asked.request
    finally:
        view.registry.asking = False
    return None
