"""Modules made of modules: Sequential, ModuleList; and Identity, which stands where nothing is to be done."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, SupportsIndex, TypeVar, overload

import numpy as np

from ..compute import Tensor
from ..compute.backend import backend_of
from ..compute.device.device import UNDER_WAY
from ..compute.device.dtypes import is_float
from .changes import changed
from .module import Module

RowT = TypeVar("RowT", bound="_Row")


class _Row(Module):
    """Modules in a row, under names of their own: their numbers, but where a subclass takes others."""

    def _named(self, name: str, module: Module) -> None:
        """Register a module at the end. Raises TypeError for what is none."""
        if not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__}: expected an nn.Module, got {type(module).__name__}")
        if name in self._modules:
            raise ValueError(f"{type(self).__name__}: a module is called {name!r} already")
        setattr(self, name, module)

    def _renumber(self, modules: Iterable[Module]) -> None:
        modules = list(modules)
        for module in modules:
            if not isinstance(module, Module):
                raise TypeError(f"{type(self).__name__}: expected an nn.Module, got {type(module).__name__}")
        gone = [module for module in self._modules.values() if not any(module is each for each in modules)]
        self._modules.clear()
        for number, module in enumerate(modules):
            setattr(self, str(number), module)
        self._replaced(*gone)
        changed()

    def _place(self, index: SupportsIndex) -> int:
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"{type(self).__name__}: index {place} is out of bounds for {len(self)} modules")
        return place % len(self)

    def append(self: RowT, module: Module) -> RowT:
        """Add a module at the end. Returns the container. Raises TypeError for what is no module."""
        number = len(self)
        while str(number) in self._modules:  # a slice of a Sequential keeps its names
            number += 1
        self._named(str(number), module)
        return self

    def extend(self: RowT, modules: Iterable[Module]) -> RowT:
        """Add modules at the end. Returns the container. Raises TypeError for what is no module."""
        for module in list(modules):
            self.append(module)
        return self

    def __iadd__(self: RowT, modules: Iterable[Module]) -> RowT:
        return self.extend(modules)

    def __add__(self: RowT, modules: Iterable[Module]) -> RowT:
        return self[:].extend(modules)

    def insert(self: RowT, index: SupportsIndex, module: Module) -> RowT:
        """Put a module before the one at an index; all are numbered anew. Returns the container."""
        modules = list(self)
        modules.insert(operator.index(index), module)
        self._renumber(modules)
        return self

    def pop(self, index: SupportsIndex = -1) -> Module:
        """Take a module out, and number the others anew. Raises IndexError where there is none."""
        modules = list(self)
        found = modules.pop(self._place(index))
        self._renumber(modules)
        return found

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        if UNDER_WAY:
            self._note()  # a list is not called
        return iter(self._modules.values())

    @overload
    def __getitem__(self: RowT, index: slice) -> RowT: ...
    @overload
    def __getitem__(self, index: SupportsIndex) -> Module: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Module:
        if UNDER_WAY:
            self._note()
        if isinstance(index, slice):
            return self._some(list(self._modules)[index])
        return list(self._modules.values())[self._place(index)]

    def _some(self: RowT, names: list[str]) -> RowT:
        """A container of the modules of these names."""
        return type(self)(self._modules[name] for name in names)  # type: ignore[call-arg]

    def __setitem__(self, index: SupportsIndex, module: Module) -> None:
        name = list(self._modules)[self._place(index)]
        if not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__}: expected an nn.Module, got {type(module).__name__}")
        setattr(self, name, module)  # in its place

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        modules = list(self)
        del modules[index if isinstance(index, slice) else self._place(index)]
        self._renumber(modules)

    def __contains__(self, module: object) -> bool:
        return any(own is module for own in self)


class ModuleList(_Row):
    """Modules in a list, registered under their numbers. It computes nothing by itself.

    It can be indexed, sliced (a new list of the same modules), iterated and changed like a list.

    Parameters
    ----------
    modules : iterable of Module

    Raises
    ------
    TypeError
        For what is no module.
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)


class Sequential(_Row):
    """Modules one after the other: each gets what the one before it gave.

    It can be indexed, sliced (a new Sequential of the same modules, under the same names), iterated and changed like a
    list. A module may stand at several places, and is trained by all of them. A NumPy array of floats is sent once and
    its result fetched once; between them all stays on the device. An array of integers goes to the first module as it
    is.

    Parameters
    ----------
    *modules : Module, or one mapping of names to modules
        Modules are registered under their numbers, or the names given.

    Raises
    ------
    TypeError
        For what is no module.
    ValueError
        For a name that is empty, has a dot, or is an attribute of Sequential.
    """

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                if not isinstance(name, str) or not name or "." in name or hasattr(self, name):
                    raise ValueError(
                        f"Sequential: {name!r} names no module; expected a word without dots that is no attribute"
                    )
                self._named(name, module)
        else:
            self.extend(modules)  # type: ignore[arg-type]

    _inputs = ("input",)

    def _some(self, names: list[str]) -> Sequential:
        return type(self)({name: self._modules[name] for name in names})

    def forward(self, input: Any) -> Any:
        """What the last module makes of it; the input itself where there is no module."""
        own = isinstance(input, np.ndarray) and not self._stays()
        value = input
        backend = None
        for module in tuple(self):
            if own and isinstance(value, np.ndarray) and is_float(value.dtype):
                backend = backend or self._backend or backend_of("Sequential")
                value = backend.tensor(value)
            value = module(value)
        return value.numpy() if own and isinstance(value, Tensor) else value


class Identity(Module):
    """Gives back what it is given. Arguments of its construction are taken and ignored, as in PyTorch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        """The input."""
        return input

    def backward(self, grad_output: Any = None) -> Any:
        """The gradient of the input: the output's. Nothing needs to be kept for it."""
        return grad_output
