"""The gradient of each operation, by its plan function, or by the class of the object that it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from ..device.tape import READS, Entry, Reads
from ..device.tensor import Tensor

#: ``pull(entry, gradients)`` gives, for each array of the entry, what the gradients of its results make of it: a tensor
#: of the array's shape, or None. A gradient of a result is None where nothing depends on it.
Pull = Callable[[Entry, Sequence[Tensor | None]], Sequence[Tensor | None]]

GRADIENTS: dict[Any, Pull] = {}


def gradient_of(*operations: Any, reads: Reads | Collection[int] | None = None) -> Callable[[Pull], Pull]:
    """Enter a function as the gradient of operations: plan functions, or classes.

    Memory that it does not read is free sooner. ``reads``: the numbers of the arrays that it reads, where it reads no
    results; or as READS (device/tape.py) has it; None for all.
    """

    def enter(pull: Pull) -> Pull:
        if reads is not None:
            READS.update(dict.fromkeys(operations, reads if callable(reads) else lambda static, needs: (reads, False)))
        GRADIENTS.update(dict.fromkeys(operations, pull))
        return pull

    return enter


def the_other(static: Any, needs: tuple[bool, ...]) -> tuple[Collection[int], bool]:
    """What the gradients of a product read: of two arrays the one, where a gradient of the other is wanted."""
    return [1 - number for number in range(2) if needs[number]], False


__all__ = ["GRADIENTS", "Pull", "gradient_of", "the_other"]
