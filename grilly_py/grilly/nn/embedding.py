"""Embedding: rows of a table of weights by integer ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np

from .. import functional as F
from ..compute import Tensor
from ..compute.device.arrays import FloatArray, IntegersLike
from ..compute.device.numbers import integer
from ..compute.embedding import check_padding, checked
from .module import Module
from .parameter import Parameter


class Embedding(Module):
    """A row of ``weight`` for each id.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
        Rows of the table and their width, at least 1.
    padding_idx : int, optional
        A row that begins as zeros and has no gradient; below 0 it counts from the end.
    rng : int or numpy.random.Generator, optional
        Where the first weights come from: normal, of variance 1, as in PyTorch.

    Attributes
    ----------
    weight : Parameter
        ``(num_embeddings, embedding_dim)``.

    Raises
    ------
    ValueError
        If a size is below 1, or padding_idx is no row.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *,
        rng: int | np.random.Generator | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        for name, size in (("num_embeddings", num_embeddings), ("embedding_dim", embedding_dim)):
            if integer("Embedding", name, size) < 1:
                raise ValueError(f"Embedding: {name} is {size}; it must be at least 1")
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = check_padding("Embedding", padding_idx, num_embeddings)
        weight = np.random.default_rng(rng).standard_normal((num_embeddings, embedding_dim), dtype=np.float32)
        if self.padding_idx is not None:
            weight[self.padding_idx] = 0
        self.weight = Parameter(weight)

    _inputs = ()

    @overload
    def forward(self, input: Tensor) -> Tensor: ...
    @overload
    def forward(self, input: IntegersLike) -> Any: ...
    def forward(self, input: IntegersLike) -> Any:
        """Ids of any shape to ``(*input.shape, embedding_dim)``: a Tensor for a Tensor, an array for an array.

        Raises
        ------
        TypeError
            For ids that are no integers.
        IndexError
            For an id in NumPy that is no row.
        """
        ids = checked("Embedding", input, self.num_embeddings)
        backend, (sent,), keep = self._send(ids)
        y = F.embedding(sent, self.weight.on(backend), self.padding_idx)
        return y if keep else y.numpy()

    if TYPE_CHECKING:  # calling a layer is forward: its arguments and results are known to type checkers
        __call__ = forward

        def backward(self, grad_output: FloatArray) -> None: ...

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
