"""Batches of tokens on the device, in an order that a seed tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, SupportsIndex

import numpy as np

from ..compute import Compute, Tensor
from ..compute.backend import default_backend
from ..compute.device.arrays import NDArray
from ..compute.device.numbers import integer
from .packing import IGNORED, Rows


class Batches(Iterator[dict[str, Tensor]]):
    """Made by `batches`: an iterator, of one epoch after another.

    Attributes
    ----------
    per_epoch : int
        Batches of an epoch.
    place : int
        How many batches were given, over all epochs.
    """

    def __init__(
        self, tokens: NDArray[Any] | Rows, batch_size: int, length: int, shuffle: bool, seed: int, drop_last: bool,
        epochs: int | None, backend: Compute | None,
    ) -> None:  # fmt: skip
        self._tokens, self._size, self._length = tokens, batch_size, length
        self._shuffle, self._seed, self._epochs = shuffle, seed, epochs
        self._backend = backend
        self._count = len(tokens) if isinstance(tokens, Rows) else max(len(tokens) - 1, 0) // length
        self.per_epoch = self._count // batch_size if drop_last else -(-self._count // batch_size)
        self.place = 0
        self._order = -1, np.empty(0, np.int64)  # of an epoch
        self._sent: dict[str, Tensor] | None = None
        self._read: Future[dict[str, NDArray[np.int32]]] | None = None
        self._reader = ThreadPoolExecutor(1, "grilly-batches")

    def __iter__(self) -> Batches:
        return self

    def __len__(self) -> int:
        """Batches that are left. Raises TypeError where epochs have no end."""
        if self._epochs is None:
            raise TypeError("Batches: they have no end, as epochs is None")
        return max(self._epochs * self.per_epoch - self.place, 0)

    @property
    def state(self) -> dict[str, int]:
        """What `batches` goes on from: numbers that JSON takes."""
        epoch, batch = divmod(self.place, self.per_epoch)
        return {"seed": self._seed, "epoch": epoch, "batch": batch, "rows": self._count, "batch_size": self._size}

    def go_to(self, state: Mapping[str, int]) -> None:
        """Go on from a `state`. Raises ValueError for that of other rows, batches or seed, and for what is none."""
        if not isinstance(state, Mapping):
            raise ValueError(f"batches: state is a {type(state).__name__}; expected a mapping, as Batches.state is")
        own = self.state
        for name in ("seed", "rows", "batch_size"):
            if state.get(name) != own[name]:
                raise ValueError(f"batches: the state is of {name} {state.get(name)}, and this is {own[name]}")
        for name in ("epoch", "batch"):
            if not isinstance(state.get(name), int) or state[name] < 0:
                raise ValueError(f"batches: {name} of the state is {state.get(name)!r}; expected at least 0")
        self.place, self._sent, self._read = state["epoch"] * self.per_epoch + state["batch"], None, None

    def __next__(self) -> dict[str, Tensor]:
        sent = self._sent if self._sent is not None else self._taken(self.place)
        if sent is None:
            self._reader.shutdown(wait=False)
            raise StopIteration
        self.place += 1
        # While the device computes with this one, the next one goes there, and the one after that is read.
        self._sent = self._taken(self.place)
        if not self._is_over(self.place + 1):
            self._read = self._reader.submit(self._rows, self.place + 1)
        return sent

    def _is_over(self, place: int) -> bool:
        return self._epochs is not None and place >= self._epochs * self.per_epoch

    def _taken(self, place: int) -> dict[str, Tensor] | None:
        """The batch at a place, on the device; None behind the last one."""
        if self._is_over(place):
            return None
        read, self._read = self._read, None
        rows = self._rows(place) if read is None else read.result()
        backend = default_backend() if self._backend is None else self._backend
        return {name: backend.tensor(array) for name, array in rows.items()}

    def _rows(self, place: int) -> dict[str, NDArray[np.int32]]:
        epoch, batch = divmod(place, self.per_epoch)
        chosen = self._numbers(epoch)[batch * self._size : (batch + 1) * self._size]
        if isinstance(self._tokens, Rows):
            names = ("input_ids", "labels", "position_ids", "segment_ids")
            return {name: getattr(self._tokens, name)[chosen] for name in names}
        both = np.stack([self._tokens[row * self._length : (row + 1) * self._length + 1] for row in chosen])
        both = both.astype(np.int32)
        return {"input_ids": np.ascontiguousarray(both[:, :-1]), "labels": np.ascontiguousarray(both[:, 1:])}

    def _numbers(self, epoch: int) -> NDArray[np.int64]:
        """The rows of an epoch, in its order."""
        known, order = self._order
        if known != epoch:
            order = np.arange(self._count)
            if self._shuffle:
                np.random.default_rng((self._seed, epoch)).shuffle(order)
            self._order = epoch, order
        return order


def batches(
    tokens: NDArray[Any] | Rows, batch_size: SupportsIndex, length: SupportsIndex | None = None, *,
    shuffle: bool = True, seed: SupportsIndex = 0, drop_last: bool = True, epochs: SupportsIndex | None = 1,
    state: Mapping[str, int] | None = None, backend: Compute | None = None,
) -> Batches:  # fmt: skip
    """Batches to train a language model on, each a dict of int32 Tensors ``(batch_size, length)``.

    While the device computes with one batch, the next one is sent there, and the one after that is read.

    Parameters
    ----------
    tokens : numpy.ndarray or Rows
        Integers of one axis, also in a file (``numpy.memmap``): rows are parts of it one behind the other, and what is
        left at the end is not used. Or what `pack` gives.
    batch_size : int
    length : int, optional
        Tokens of a row; of Rows what these have.
    shuffle : bool
        Whether the rows of each epoch come in another order, which follows from the seed and the epoch.
    seed : int
        At least 0.
    drop_last : bool
        Whether an epoch's last batch is left out where it has fewer rows.
    epochs : int, optional
        How often all rows come; None for no end.
    state : mapping, optional
        ``Batches.state`` of an iterator of the same rows: this one goes on with the batch after those it has given.
    backend : grilly.Compute, optional
        The device; by default the default backend.

    Returns
    -------
    Batches
        Of dicts with ``input_ids`` and ``labels``: the token after each, -100 where no loss is taken. Of Rows also
        ``position_ids`` and ``segment_ids``. All but the labels are arguments of a language model.

    Raises
    ------
    ValueError
        For numbers out of range, tokens that do not fill a batch, and a state of other rows, batches or seed, or
        that is none.
    TypeError
        For tokens that are no integers of one axis.

    Examples
    --------
    >>> for batch in grilly.data.batches(np.arange(1000), batch_size=4, length=16):
    ...     labels = batch.pop("labels")
    """
    size, seed = integer("batches", "batch_size", batch_size), integer("batches", "seed", seed)
    count = None if epochs is None else integer("batches", "epochs", epochs)
    if isinstance(tokens, Rows):
        own = tokens.input_ids.shape[1]
        if length is not None and integer("batches", "length", length) != own:
            raise ValueError(f"batches: length is {length}; the rows have {own} tokens")
        tokens_of_row = own
    else:
        if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            what = f"{tokens.dtype} {tokens.shape}" if isinstance(tokens, np.ndarray) else type(tokens).__name__
            raise TypeError(f"batches: tokens are {what}; expected an array of integers of one axis, or Rows")
        if length is None:
            raise ValueError("batches: length is missing, the tokens of a row")
        tokens_of_row = integer("batches", "length", length)
    for name, number, least in (("batch_size", size, 1), ("length", tokens_of_row, 1), ("seed", seed, 0),
                                ("epochs", 1 if count is None else count, 1)):  # fmt: skip
        if number < least:
            raise ValueError(f"batches: {name} is {number}; expected at least {least}")
    found = Batches(tokens, size, tokens_of_row, shuffle, seed, drop_last, count, backend)
    if not found.per_epoch:
        raise ValueError(f"batches: there are {found._count} rows of {tokens_of_row} tokens; a batch has {size}")
    if state is not None:
        found.go_to(state)
    return found


__all__ = ["IGNORED", "Batches", "batches"]
