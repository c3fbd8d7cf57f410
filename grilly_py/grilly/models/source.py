"""Parameters that know where files have them."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import nn


class Source(NamedTuple):
    """Where files have a parameter.

    Attributes
    ----------
    names : tuple of (str or None)
        Of the tensors that it is made of, one below the other; None for zeros that the files do not have.
    rows : tuple of int
        Of each.
    shapes : tuple of tuple of int
        As the files have them.
    transposed : bool
        Whether the files have its one tensor with the axes the other way round.
    body : str
        The part of the model that files of the bare model leave out of the names; empty outside of it.
    """

    names: tuple[str | None, ...]
    rows: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    transposed: bool
    body: str


class Stored(nn.Parameter):
    """A parameter of a folder's files, with its `Source`."""

    __slots__ = ("source",)

    def __init__(self, data: Any, source: Source) -> None:
        super().__init__(data)
        self.source = source

    def __getstate__(self) -> Any:
        return super().__getstate__(), self.source

    def __setstate__(self, state: Any) -> None:
        state, self.source = state
        super().__setstate__(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Stored:
        new: Any = super().__deepcopy__(memo)
        new.source = self.source
        return new  # type: ignore[no-any-return]


__all__ = ["Source", "Stored"]
