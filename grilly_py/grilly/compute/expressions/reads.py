"""Tensors that a function reads by indices: ``x[head, query - key]`` with scalars, in a function that has memory.

Tensors lie in C order in one memory of 32-bit words. Words that a call is told say where: of each tensor where it
begins, then how long each axis is.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ExpressionError
from ..arrays.promotion import INT32, kind_of
from ..device.tensor import Tensor
from .elements import loaded, width_of
from .nodes import Node, constant, make, read, retyped, word
from .scalars import TRACING, Scalar, line

#: What a function reads at most: tensors, and the words that say where they are.
TENSORS, WORDS = 8, 32


def has_scalar(index: Any) -> bool:
    """Whether an index is a scalar of a function, or has one."""
    return any(item.__class__ is Scalar for item in (index if index.__class__ is tuple else (index,)))


def indexed(tensor: Tensor, index: Any) -> Scalar:
    """``tensor[index]`` in a function, by an index with scalars: what the trace reads by (``element_at``).

    Raises ExpressionError where the function reads no memory.
    """
    if TRACING.reads is None:
        raise ExpressionError(
            f"{line()}: the function reads a tensor by a scalar's value, which score_mod and mask_mod of attention do; "
            "here grilly.take, before the call, brings the elements to their places"
        )
    return TRACING.reads(tensor, index)


def element_at(tensor: Tensor, index: Any) -> Scalar:
    """``tensor[index]`` in a function that has memory; negative indices count from the end.

    Integers are checked. A scalar that is out of bounds stands for the nearest element, as indices on the device do.

    Raises
    ------
    ExpressionError
        Where the function reads more than there may be, or the index is none of an element.
    IndexError
        For an integer that is out of bounds.
    """
    first, place = place_of(tensor, index)
    return Scalar(tensor.dtype, loaded(tensor.dtype, _bits(tensor.dtype, word(first, "int"), place)))


def place_of(tensor: Tensor, index: Any) -> tuple[int, Node]:
    """Of ``tensor[index]`` in a function: the word that says where the tensor begins, and the element's place in it.

    Raises as ``element_at``.
    """
    items = index if isinstance(index, tuple) else (index,)
    if len(items) != tensor.ndim:
        raise ExpressionError(
            f"{line()}: an element of a tensor of shape {tensor.shape} is read by {tensor.ndim} indices, not "
            f"{len(items)}"
        )
    first = _first_word(TRACING.place_of(tensor), tensor)
    place: Node = constant(0, "int")
    for axis, item in enumerate(items):
        extent = word(first + 1 + axis, "int")
        within = _within(tensor, axis, item, extent)
        place = within if axis == 0 else make("iadd", make("imul", place, extent), within)
    return first, place


def tensor_words(tensors: Sequence[Tensor], places: Sequence[int]) -> np.ndarray:
    """The words of tensors that lie at some places."""
    found: list[int] = []
    for tensor, place in zip(tensors, places, strict=True):
        found += [place, *tensor.shape]
    return np.array(found + [0] * (WORDS - len(found)), np.int32)


def _first_word(place: int, tensor: Tensor) -> int:
    """The number of the word that says where the tensor of this place begins."""
    before = sum(1 + one.ndim for one in TRACING.tensors[:place])
    if place >= TENSORS or before + 1 + tensor.ndim > WORDS:
        raise ExpressionError(
            f"{line()}: the function reads more than {TENSORS} tensors, or tensors of more than {WORDS - TENSORS} axes "
            "together; join some of them"
        )
    if tensor.size == 0:
        raise IndexError(f"{line()}: the function reads a tensor of shape {tensor.shape}, which has no element")
    return before


def _within(tensor: Tensor, axis: int, item: Any, extent: Node) -> Node:
    if isinstance(item, Scalar):
        if kind_of(item.dtype) not in ("signed", "unsigned"):
            raise ExpressionError(
                f"{line()}: an index of a tensor is {item.dtype.name}; expected an integer; convert it with "
                ".astype(grilly.int32)"
            )
        number, zero = item.cast(INT32).node, constant(0, "int")
        last = make("isub", extent, constant(1, "int"))
        from_start = make("select", make("less", number, zero), make("iadd", number, extent), number)
        not_beyond = make("select", make("greater", from_start, last), last, from_start)
        return make("select", make("less", not_beyond, zero), zero, not_beyond)
    try:
        number = operator.index(item)
    except TypeError:
        raise ExpressionError(
            f"{line()}: an index of a tensor is a {type(item).__name__}; expected a scalar or an integer for each axis"
        ) from None
    if not -tensor.shape[axis] <= number < tensor.shape[axis]:
        raise IndexError(
            f"{line()}: index {number} is out of bounds for axis {axis} of a tensor of shape {tensor.shape}"
        )
    return constant(number, "int") if number >= 0 else make("iadd", extent, constant(number, "int"))


def _bits(dtype: np.dtype, start: Node, place: Node) -> Node:
    """The bits of an element at a place of a tensor that begins at a word."""
    width = width_of(dtype)
    zero = constant(0, "uint")

    def at(number: Node) -> Node:
        return read(retyped(make("iadd", start, number), "uint"))

    if width == 64:
        twice = make("shift_left", place, constant(1, "uint"))
        return make("pair", at(twice), at(make("or", twice, constant(1, "int"))))
    if width == 32:
        return make("pair", at(place), zero)
    shift = {16: 1, 8: 2}[width]  # of the number of elements in a word
    part = make("and", retyped(place, "uint"), constant((1 << shift) - 1, "uint"))
    found = make("shift_right", at(make("shift_right", place, constant(shift, "uint"))),
                 make("shift_left", part, constant(5 - shift, "uint")))  # fmt: skip
    return make("pair", make("and", found, constant((1 << width) - 1, "uint")), zero)


__all__ = ["TENSORS", "WORDS", "element_at", "has_scalar", "indexed", "place_of", "tensor_words"]
