"""Which kernel computes a product, and its tiles."""

from __future__ import annotations

import math
from typing import NamedTuple

from ...registry import Choice, Registry, Request
from ..device.cut import check_trips, strides
from ..device.device import DeviceFacts
from ..device.plan import alignment, fits_binding
from ..device.tensor import Tensor
from .call import Matmul, Operands
from .factor_layout import is_transposed, rows_of
from .tile_schedule import TileSchedule, choose, tile_schedule

_MOST = 2**31 - 1
#: Floating-point operations of a product that is never cut.
_MOST_WORK = 1e11


class Kernel(NamedTuple):
    """The kernel of one product.

    Attributes
    ----------
    choice : Choice
    partition : TileSchedule
        Rows and columns of b that a workgroup has.
    transposed : (bool or None, bool or None)
        ``is_transposed`` of a and b.
    aligned : int
        The power of two that divides where rows of a and b begin, in elements.
    whole_eights : (bool, bool)
        Whether rows of a, and of b, begin and end at multiples of 8; of a transposed one columns.
    depth : int
        K.
    columns_per_output : int
    """

    choice: Choice
    partition: TileSchedule
    transposed: tuple[bool | None, bool | None]
    aligned: int
    whole_eights: tuple[bool, bool]
    depth: int
    columns_per_output: int

    def groups(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Workgroups for a part of c of this shape."""
        rows, cols, splits, _ = self.partition
        own_cols = cols // self.columns_per_output
        return -(-shape[3] // own_cols), -(-shape[2] // rows) * shape[1], shape[0] * splits

    def work(self, shape: tuple[int, ...]) -> float:
        """Floating-point operations of a part of c of this shape."""
        return 2.0 * math.prod(shape) * self.depth * self.columns_per_output


def select(facts: DeviceFacts, registry: Registry, matmul: Matmul) -> Kernel:
    """The registry's kernel for a product. Raises UnsupportedError where there is none, or its loops are too short."""
    linear = matmul.operation == "linear"
    transposed = (is_transposed(facts, matmul.a), is_transposed(facts, matmul.b)) if linear else (False, False)
    read, aligned = _alignments(matmul, transposed)
    request = _request(matmul, transposed, read, aligned)
    choice = choose(registry, request, facts, matmul.all_rows, matmul.cols, matmul.depth, matmul.may_cut_columns)
    remedy = "cut them and add the products" if linear else "flash_attention2 takes any number"
    check_trips(facts, matmul.operation, "columns of the left matrix", matmul.depth, choice.keys_per_trip, remedy)
    partition = tile_schedule(
        choice, facts, matmul.rows, matmul.cols, matmul.depth, matmul.b.dtype.itemsize, matmul.epilogue.gated
    )
    factors = zip((matmul.a, matmul.b), transposed, matmul.offsets, strict=True)
    eights = tuple(_whole_eights(*factor) for factor in factors)
    return Kernel(choice, partition, transposed, read, eights, matmul.depth, matmul.columns_per_output)


def _whole_eights(factor: Tensor, transposed: bool | None, offset: int) -> bool:
    rows = rows_of(factor, bool(transposed))
    return alignment(offset, factor._offset, rows.shape[3], *strides(rows)) % 8 == 0


def _alignments(matmul: Matmul, transposed: tuple[bool | None, bool | None]) -> tuple[int, int]:
    """The powers of two that divide where rows begin, in elements: those of a and b, and those of all operands."""
    a, b, c, residual = matmul.a, matmul.b, matmul.c, matmul.epilogue.residual
    steps = (step for factor, order in zip((a, b), transposed, strict=True) for step in strides(rows_of(factor, order)))
    read = alignment(*matmul.offsets, a._offset, b._offset, matmul.depth, *steps)
    if matmul.prologue.weight is not None:
        read = alignment(read, matmul.prologue.offset, matmul.prologue.weight._offset)
    aligned = alignment(read, c._offset, c.shape[3], *strides(c), matmul.rows if transposed[0] else 0)
    if residual is not None:
        aligned = alignment(aligned, matmul.epilogue.offset, residual._offset, *strides(residual))
    return read, aligned


def _request(matmul: Matmul, transposed: tuple[bool | None, bool | None], read: int, aligned: int) -> Request:
    outputs = matmul.columns_per_output * matmul.c.size
    sizes = (("rows", matmul.rows), ("cols", matmul.cols), ("outputs", outputs))
    asked: tuple = (("align", aligned), *((name, min(size, _MOST)) for name, size in sizes))
    if matmul.operation == "linear":
        asked = (
            *asked, ("depth", min(matmul.depth, _MOST)), ("depth_align", read), ("high", int(matmul.high)),
            ("transposed", bool(transposed[1]) + 2 * bool(transposed[0])),
        )  # fmt: skip
    return Request(matmul.operation, matmul.b.dtype.name, matmul.model, asked)


def fits_one_dispatch(facts: DeviceFacts, kernel: Kernel, operands: Operands) -> bool:
    """Whether one dispatch can compute a product: its bindings, its work and its workgroups are within limits."""
    shape = operands.c.shape
    bound = (operands.a, operands.b, operands.c, operands.residual)
    return (
        all(t is None or fits_binding(facts, t) for t in bound) and kernel.work(shape) <= _MOST_WORK
        and all(n <= most for n, most in zip(kernel.groups(shape), facts.groups, strict=True))
    )  # fmt: skip
