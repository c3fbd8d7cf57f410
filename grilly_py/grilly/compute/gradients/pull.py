"""From a tape to gradients: the calls from the last to the first."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import GradientError
from ..device.dtypes import is_float
from ..device.tape import Entry
from ..device.tensor import Outline, Tensor
from .adjoints import Adjoints
from .records import GRADIENTS


def pulled(
    entries: list[Entry], results: Sequence[Tensor], gradients: Sequence[Tensor], wanted: Sequence[Tensor],
    keep: bool = False,
) -> list[Tensor | None]:  # fmt: skip
    """Gradients of tensors, from those of results.

    Parameters
    ----------
    entries : list of Entry
        Of a tape. They are taken from the list one by one, so that their memory is free, unless ``keep``.
    results, gradients : sequence of Tensor
        Tensors, and their gradients of the same shapes.
    wanted : sequence of Tensor

    Returns
    -------
    list of Tensor or None
        For each wanted tensor; None where the results do not depend on it.

    Raises
    ------
    GradientError
        For an operation that has no gradient.
    """
    adjoints = Adjoints()
    for result, gradient in zip(results, gradients, strict=True):
        adjoints.add(result, gradient)
    asked = {Outline.of(tensor._storage) for tensor in wanted}
    todo = list(entries) if keep else entries
    while todo:
        entry = todo.pop()
        found = [None if result is None or not is_float(result.dtype) else adjoints.of(result)
                 for result in entry.results]  # fmt: skip
        if all(gradient is None for gradient in found):
            continue
        for result in entry.results:
            if result is not None and Outline.of(result._storage) not in asked:
                adjoints.forget(result)
        for array, needs, gradient in zip(entry.arrays, entry.needs, _pull_of(entry, found), strict=False):
            if needs and gradient is not None:
                adjoints.add(array, gradient)
    return [adjoints.of(tensor) for tensor in wanted]


def _pull_of(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    operation = entry.operation
    pull = GRADIENTS.get(operation) or GRADIENTS.get(type(operation))
    if pull is None:
        room = getattr(operation, "__module__", type(operation).__module__)
        name = room.partition(".compute.")[2].replace(".", ": ").replace("_", " ")  # as "attention: backward plan"
        raise GradientError(f"there is no gradient of this operation ({name}): use grilly.stop_gradient, or others")
    found: Sequence[Tensor | None] = pull(entry, gradients)
    return found


__all__ = ["pulled"]
