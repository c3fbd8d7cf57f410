"""Einstein's sums."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ... import array_api as xp
from ...compute import Tensor
from ..table import Call, operator, wide

Labels = tuple[str, ...]


def _labels(call: Call, term: str, rank: int) -> Labels:
    """A letter for each axis of an operand; axes that the dots stand for are numbered from their last one."""
    before, dots, after = term.partition("...")
    free = rank - len(before) - len(after)
    if free < 0 or (free and not dots):
        raise call.refuse(f"the equation's {term!r} for an array of {rank} axes")
    return (*before, *(f".{free - n}" for n in range(free)), *after)


def _terms(call: Call, ranks: Iterable[int]) -> tuple[list[Labels], Labels]:
    """The labels of each operand and of the result."""
    left, arrow, right = call.attributes["equation"].replace(" ", "").partition("->")
    found = [_labels(call, term, rank) for term, rank in zip(left.split(","), ranks, strict=True)]
    letters = [label for labels in found for label in labels if label[0] != "."]
    dots = sorted({label for labels in found for label in labels if label[0] == "."}, key=lambda x: -int(x[1:]))
    if not arrow:
        return found, (*dots, *sorted(label for label in set(letters) if letters.count(label) == 1))
    before, has_dots, after = right.partition("...")
    return found, (*before, *(dots if has_dots else ()), *after)


def _diagonals(x: Tensor, labels: Labels) -> tuple[Tensor, Labels]:
    """Axes of one label as one axis: the elements where their indices are equal."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            others = [axis for axis in range(x.ndim) if axis not in (first, second)]
            extent = x.shape[first]
            rows = xp.permute_dims(x, (*others, first, second))
            x = rows.reshape((*rows.shape[:-2], extent * extent))[..., :: extent + 1]
            labels = (*(labels[axis] for axis in others), label)
    return x, labels


def _only(x: Tensor, labels: Labels, needed: Iterable[str]) -> tuple[Tensor, Labels]:
    """Summed over the axes that nothing else needs."""
    kept = set(needed)
    gone = tuple(axis for axis, label in enumerate(labels) if label not in kept)
    if not gone:
        return x, labels
    return xp.sum(x, axis=gone), tuple(label for label in labels if label in kept)


def _product(x: Tensor, of_x: Labels, y: Tensor, of_y: Labels, needed: set[str]) -> tuple[Tensor, Labels]:
    """The product of two operands, summed over what they share and nothing else needs: a stack of matrix products."""
    x, of_x = _only(x, of_x, {*needed, *of_y})
    y, of_y = _only(y, of_y, {*needed, *of_x})
    extents: dict[str, int] = {}
    for labels, array in ((of_x, x), (of_y, y)):
        for label, extent in zip(labels, array.shape, strict=True):
            extents[label] = extent if extents.get(label, 1) == 1 else extents[label]
    stack = [label for label in of_x if label in of_y and label in needed]
    over = [label for label in of_x if label in of_y and label not in needed]
    rows, columns = ([label for label in one if label not in other] for one, other in ((of_x, of_y), (of_y, of_x)))

    def matrices(array: Tensor, labels: Labels, *groups: list[str]) -> Tensor:
        order = [label for group in groups for label in group]
        array = xp.permute_dims(array, tuple(labels.index(label) for label in order))
        array = array.broadcast_to(tuple(extents[label] for label in order))
        return array.reshape(tuple(math.prod(extents[label] for label in group) for group in groups))

    found = xp.matmul(matrices(x, of_x, stack, rows, over), matrices(y, of_y, stack, over, columns))
    labels = (*stack, *rows, *columns)
    return found.reshape(tuple(extents[label] for label in labels)), labels


@operator("Einsum")
def einsum(call: Call, *given: Tensor) -> Tensor:
    """Products of operands' elements summed over the axes that the result lacks, pair by pair from the left."""
    labels, result = _terms(call, (x.ndim for x in given))
    operands = [_diagonals(wide(x), of) for x, of in zip(given, labels, strict=True)]
    found, of = operands[0]
    for place, (x, of_x) in enumerate(operands[1:], 2):
        needed = {*result, *(label for _, later in operands[place:] for label in later)}
        found, of = _product(found, of, x, of_x, needed)
    found, of = _only(found, of, result)
    return xp.permute_dims(found, tuple(of.index(label) for label in result)).astype(given[0].dtype, copy=False)
