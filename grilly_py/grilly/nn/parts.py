"""Parts: the parameters and modules of a module, which are its attributes; graphs are told when one is replaced."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from ..compute.device.device import Stale, under_way
from .changes import changed
from .parameter import Parameter

#: Why a graph is no longer what its function would do.
_OTHER_PARTS = "a parameter or module in a module was replaced, added or taken out since the capture"


class Parts:
    """What has parameters, and others of its kind, as attributes: a module, without what it computes."""

    # A slot, so that what graphs note of a module is neither copied nor one of its settings.
    __slots__ = ("_graphs", "__dict__", "__weakref__")

    _graphs: weakref.WeakSet[Stale]
    _parameters: dict[str, Parameter]
    _modules: dict[str, Any]

    def __init__(self) -> None:
        object.__setattr__(self, "_parameters", {})
        object.__setattr__(self, "_modules", {})

    def __setattr__(self, name: str, value: Any) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__}: call super().__init__() before setting attributes")
        if isinstance(value, (Parameter, Parts)):
            own: Any = self._parameters if isinstance(value, Parameter) else self._modules
            before = self._part(name)
            for home in (self.__dict__, self._parameters, self._modules):
                if home is not own:
                    home.pop(name, None)
            own[name] = value  # in the place of the one before, as Sequential goes by it
            if before is not value:
                self._replaced(before)
            changed()
            return
        if name in self._parameters and value is not None:
            raise TypeError(f"{type(self).__name__}: {name} is a parameter; assign nn.Parameter(array), or None")
        if name in self._modules and value is not None:
            raise TypeError(f"{type(self).__name__}: {name} is a module; assign another nn.Module, or None")
        before = self._part(name)
        self._parameters.pop(name, None)
        self._modules.pop(name, None)
        object.__setattr__(self, name, value)
        if before is not None:
            self._replaced(before)
        changed()

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._parameters, *self._modules})

    def __getattr__(self, name: str) -> Any:
        for home in ("_parameters", "_modules"):
            if name in self.__dict__.get(home, ()):
                return self.__dict__[home][name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _part(self, name: str) -> Parameter | Parts | None:
        return self._parameters[name] if name in self._parameters else self._modules.get(name)

    def __delattr__(self, name: str) -> None:
        for home in (self._parameters, self._modules):
            if name in home:
                self._replaced(home.pop(name))
                changed()
                return
        object.__delattr__(self, name)
        changed()

    def _entries(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Every name a parameter has, as in a state dict; a shared one comes once for each."""
        start = f"{prefix}." if prefix else ""
        for name, parameter in self._parameters.items():
            yield start + name, parameter
        for name, module in self._modules.items():
            yield from module._entries(start + name)

    # -- graphs --------------------------------------------------------------------------------------------------------

    def _note(self) -> None:
        """Have this thread's captures under way told when this module gets other parts.

        And when those directly in it do: a layer may use the weights of its parts without calling them.
        """
        for stale in under_way():
            for module in (self, *self._modules.values()):
                if getattr(module, "_graphs", None) is None:
                    object.__setattr__(module, "_graphs", weakref.WeakSet())
                module._graphs.add(stale)
                for parameter in module._parameters.values():
                    parameter._graphs.add(stale)

    def _replaced(self, *before: Parameter | Parts | None) -> None:
        """Tell graphs that used this module that it has other parts, and those that used the ones before."""
        for stale in getattr(self, "_graphs", None) or ():
            stale.why = _OTHER_PARTS
        for part in before:
            if isinstance(part, Parts):
                for _, parameter in part._entries():
                    parameter._left(_OTHER_PARTS)
            elif part is not None:
                part._left(_OTHER_PARTS)
