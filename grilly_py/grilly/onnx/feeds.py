"""What a model is given, checked against what it asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..compute import Tensor
from .graphs import Input, Node


def checked(
    feeds: Mapping[str, np.ndarray | Tensor], inputs: tuple[Input, ...], optional: tuple[Input, ...]
) -> dict[str, np.ndarray | Tensor]:
    """The arrays by name, in the order of the inputs, in this machine's byte order.

    Raises
    ------
    ValueError
        For inputs that are missing, unknown, or of another shape.
    TypeError
        For what is no mapping, for what is no array, and for inputs of another dtype.
    """
    if not isinstance(feeds, Mapping):
        raise TypeError(f"feeds is {_kind(feeds)}; expected a mapping from names of inputs to arrays")
    named = {each.name: each for each in (*inputs, *optional)}
    wrong = [*(f"{each.name} is missing" for each in inputs if each.name not in feeds),
             *(f"{name} is no input" for name in feeds if name not in named)]  # fmt: skip
    if wrong:
        more = f", and {len(optional)} that have defaults (Model.optional)" if optional else ""
        known = ", ".join(map(_asked, inputs)) or "none"
        raise ValueError(f"{'; '.join(wrong)}; the model's inputs are {known}{more}")
    return {name: _checked(each, feeds[name]) for name, each in named.items() if name in feeds}


def _asked(each: Input) -> str:
    """What messages call an input: name, dtype and shape, with names or ? where it is free."""
    if each.shape is None:
        return f"{each.name} ({each.dtype.name} of any shape)"
    extents = ", ".join("?" if extent is None else str(extent) for extent in each.shape)
    return f"{each.name} ({each.dtype.name} [{extents}])"


def _checked(asked: Input, value: Any) -> np.ndarray | Tensor:
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, (np.ndarray, Tensor)):
        raise TypeError(f"input {asked.name} is {_kind(value)}; expected a NumPy array or a grilly.Tensor")
    if isinstance(value, np.ndarray) and not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    if value.dtype != asked.dtype:
        raise TypeError(f"input {asked.name} is {value.dtype.name}; expected {asked.dtype.name}")
    if asked.shape is not None and (
        len(asked.shape) != len(value.shape)
        or any(isinstance(e, int) and e != f for e, f in zip(asked.shape, value.shape, strict=True))
    ):
        raise ValueError(f"input {asked.name} has shape {tuple(value.shape)}; expected {asked.shape}")
    return value


def lookups(nodes: Iterable[Node], constants: Mapping[str, Any]) -> list[tuple[str, str, int, int]]:
    """Which names are directly indices into constants: name, the constant's, the axis, and how many places that has.

    ``constants`` are NumPy arrays and Tensors.
    """
    found = []
    for node in nodes:
        table = constants.get(node.inputs[0]) if node.name == "Gather" else None
        axis = int(node.attributes.get("axis", 0))
        if table is not None and -table.ndim <= axis < table.ndim:
            found.append((node.inputs[1], node.inputs[0], axis, table.shape[axis]))
    return found


def check_indices(given: Mapping[str, np.ndarray | Tensor], into: Iterable[tuple[str, str, int, int]]) -> None:
    """Raise ValueError for indices of the host that are out of bounds; the device takes the nearest place for them.

    ``into`` is what `lookups` found; a table that is given takes the place of the constant.
    """
    for name, table, axis, extent in into:
        value, own = given.get(name), given.get(table)
        extent = extent if own is None else own.shape[axis]
        if isinstance(value, np.ndarray) and value.size and not (-extent <= value.min() and value.max() < extent):
            wrong = value.min() if value.min() < -extent else value.max()
            raise ValueError(f"input {name} has the index {wrong}; expected {-extent} to {extent - 1}, by the table "
                             "that it is an index into")  # fmt: skip


def _kind(value: Any) -> str:
    """What messages call a value that is no array; with its package, as other packages have Tensors too."""
    if value is None:
        return "None"
    kind = type(value)
    return f"a {kind.__name__}" if kind.__module__ == "builtins" else f"a {kind.__module__}.{kind.__name__}"
