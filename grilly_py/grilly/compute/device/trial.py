"""A view of a device that runs an operation with a chosen variant: for self-checks and measurements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from .device import Device
from .plan import Plan


class _Planned(Exception):
    """Ends a call at the point where its first plan would be prepared."""

    def __init__(self, plan: Plan):
        super().__init__(plan)
        self.plan = plan


def _stop(plan: Plan) -> None:
    raise _Planned(plan)


class _Pin:
    """Stands in for a registry: one operation has one answer, all else is asked of the registry."""

    def __init__(self, registry: Registry):
        self.registry = registry
        self.pinned: Choice | None = None
        #: In ``request_of``: what was asked for, and the answers, or why there was none.
        self.asked: dict[Request, list[Choice] | UnsupportedError] | None = None

    def resolve(self, request: Request) -> Choice:
        if self.asked is None:
            return self._resolve(request)
        try:
            found = self._resolve(request)
        except UnsupportedError as error:
            self.asked[request] = error
            raise
        self.asked[request] = [found]
        return found

    def _resolve(self, request: Request) -> Choice:
        if self.pinned is not None:
            operation = self.pinned.variant.operation
            if operation == request.operation:
                return self.pinned
            others = {
                "attention": ("attention-tiled", "attention-split-kv"),
                "attention-decode": ("attention-split-kv",),
            }
            if request.operation in others.get(operation, ()):
                raise UnsupportedError("the view is to attend with another kernel")
            if (operation, request.operation) == ("attention-backward-dq", "attention-backward-dq-stored"):
                raise UnsupportedError("the view is to find dq with another kernel")
        return self.registry.resolve(request)

    def equals(self, request: Request) -> list[Choice]:
        pinned = self.pinned is not None and self.pinned.variant.operation == request.operation
        found = [self.pinned] if pinned else self.registry.equals(request)
        if self.asked is not None:
            self.asked[request] = found
        return found

    def trusts(self, choice: Choice, facts: Mapping[str, int]) -> bool:
        """A view runs what it is told."""
        return True

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
    """Make attention on the view have classes of tiles (attention/tile_classes.py) however small a call is."""
    view.facts = dataclasses.replace(view.facts, class_work=0.0, class_read=0.0)
    view.caches.forget()
    return view


def request_of(view: Device, call: Callable[[], object]) -> Request | None:
    """The request for the variant that ``call``, which uses the view, would run first; None where it runs none.

    Kernels that the call asks for and then does without are not meant. Where it can do with none, this is the request
    that was refused. The call is ended before it prepares or records anything.
    """
    asked: dict[Request, list[Choice] | UnsupportedError] = {}
    view.registry.asked = asked
    view.planned = _stop
    view.caches.forget()
    try:
        call()
    except _Planned as stop:
        return _first(asked, stop.plan)
    except UnsupportedError as error:
        for request, answer in asked.items():
            if answer is error:
                return request
        raise
    finally:
        view.registry.asked = view.planned = None
    return None


def _first(asked: dict[Request, list[Choice] | UnsupportedError], plan: Plan) -> Request | None:
    """Of what was asked for the first that the plan has; but what does work before that one's work comes before it.

    What was asked for, and then done without, may serve the end of the plan.
    """
    work = {step.choice.variant.name: n for n, step in reversed(list(enumerate(plan.steps))) if step.work}
    chosen = {step.choice.variant.name for step in plan.steps}
    had = [
        (request, choice.variant.name) for request, answer in asked.items() if isinstance(answer, list)
        for choice in answer if choice.variant.name in chosen
    ]  # fmt: skip
    if had and had[0][1] in work:
        return min((pair for pair in had if pair[1] in work), key=lambda pair: work[pair[1]])[0]
    return had[0][0] if had else None
