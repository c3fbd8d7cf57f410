"""What captured functions are given and return: structures of leaves, and what objects hold."""

from __future__ import annotations

import copy
import enum
import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, MappingView
from typing import Any

import numpy as np

from ..runtime.interface import Runtime
from .device.device import Device
from .device.tensor import Tensor


def leaves(value, name: str = "") -> Iterator[tuple[str, Any]]:
    """What tuples, lists and dicts hold, with names for messages."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{name}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for number, part in enumerate(value):
            yield from leaves(part, f"{name}[{number}]" if name else f"argument {number}")
    else:
        yield name, value


def tensors(value) -> list[Tensor]:
    """The Tensors that tuples, lists and dicts hold."""
    return [leaf for _, leaf in leaves(value) if isinstance(leaf, Tensor)]


#: What is made anew with other leaves; of tuples also those with names. Results in other kinds are leaves.
_STRUCTURES = (dict, OrderedDict, defaultdict, list, tuple)


def rebuilt(value, change: Callable):
    """The same structure with other leaves."""
    kind = type(value)
    if kind is dict:
        return {key: rebuilt(part, change) for key, part in value.items()}
    if kind is list or kind is tuple:
        return kind([rebuilt(part, change) for part in value])
    if kind in _STRUCTURES:  # with the order or the default that it has
        made = copy.copy(value)
        for key, part in value.items():
            made[key] = rebuilt(part, change)
        return made
    if _has_names(value):
        return kind._make([rebuilt(part, change) for part in value])
    return change(value)


def changed_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """As ``rebuilt``, also of others' classes; a part in which no leaf becomes another stays the object that it is."""
    if isinstance(value, dict):
        made: Any = {key: changed_leaves(part, change) for key, part in value.items()}
        return made if any(made[key] is not value[key] for key in value) else value
    if isinstance(value, (tuple, list)):
        parts = [changed_leaves(part, change) for part in value]
        if all(part is own for part, own in zip(parts, value, strict=True)):
            return value
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    return change(value)


def _has_names(value) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields") and hasattr(value, "_make")


def common(value):
    """Arguments with structures that can be made anew: classes of others' are dicts, lists and tuples."""
    if isinstance(value, dict):
        return rebuilt(value if type(value) in _STRUCTURES else dict(value), common)
    if isinstance(value, (tuple, list)):
        known = type(value) in _STRUCTURES or _has_names(value)
        return rebuilt(value if known else tuple(value) if isinstance(value, tuple) else list(value), common)
    return value


#: What holds no arrays, or none that are anybody's result.
_CLOSED = (
    bool, int, float, complex, str, bytes, type(None), enum.Enum, np.dtype, np.generic, type, types.ModuleType, Device,
    Runtime,
)  # fmt: skip
_PACKAGE = __name__.partition(".")[0]


def held_by(value, everywhere: bool = False) -> Iterator[Any]:
    """An object and all that it holds, at whatever depth.

    Layers, caches and backends count as one thing, whose arrays they look after; with ``everywhere`` what they hold
    counts too, and what functions close over.
    """
    todo, seen = [value], {}
    while todo:
        part = todo.pop()
        if isinstance(part, _CLOSED) or id(part) in seen:
            continue
        seen[id(part)] = part  # kept, so that no other object gets its number
        yield part
        if isinstance(part, Tensor) or not everywhere and _is_ours(part):
            continue
        todo += _parts(part)
        if everywhere:
            todo += _closed_over(part)


def _is_ours(value) -> bool:
    return any(str(kind.__module__).partition(".")[0] == _PACKAGE for kind in type(value).__mro__)


def _parts(value) -> list:
    """What an object's attributes and elements are."""
    found: list[Any] = []
    if isinstance(value, (dict, types.MappingProxyType)):
        found += value.values()
    elif isinstance(value, (tuple, list, set, frozenset, deque, MappingView)):
        found += value
    elif isinstance(value, np.ndarray):
        found += value.ravel().tolist() if value.dtype.hasobject else ()
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        found += attributes.values()
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            hidden = name.startswith("__") and not name.endswith("__")
            found.append(getattr(value, f"_{kind.__name__.lstrip('_')}{name}" if hidden else name, None))
    return found


def _closed_over(value) -> list:
    """What a function or a generator has of its surroundings."""
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.FunctionType):
        return [*(value.__closure__ or ()), value.__defaults__, value.__kwdefaults__]
    if isinstance(value, types.CellType):
        try:
            return [value.cell_contents]
        except ValueError:  # of a name that has no value
            return []
    if isinstance(value, types.GeneratorType) and value.gi_frame is not None:
        return [*value.gi_frame.f_locals.values()]
    return []


def alike(example: tuple, arguments: tuple) -> list:
    """The leaves of arguments that have the example's structure. Raises ValueError."""
    if len(arguments) != len(example):
        raise ValueError(f"graph: {len(arguments)} arguments are given; expected {len(example)}, as in the capture")
    expected, found = list(leaves(example)), list(leaves(arguments))
    names = [name for name, _ in expected]
    if names != [name for name, _ in found]:
        odd = next((name for name, _ in found if name not in names), None)
        lacks = next((name for name in names if name not in [other for other, _ in found]), None)
        raise ValueError(f"graph: the arguments lie otherwise than in the capture: {odd or lacks or 'their order'}")
    return [value for _, value in found]


__all__ = ["alike", "changed_leaves", "common", "held_by", "leaves", "rebuilt", "tensors"]
