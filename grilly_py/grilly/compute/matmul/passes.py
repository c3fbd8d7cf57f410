"""Rewrites of a product that its kernel does not take as it is.

A pass is ``rewrite(planner, registry, matmul, kernel)``. It returns None where it has nothing to do; otherwise what the
product becomes, in order, after it has planned the dispatches that come before. A kernel is selected for each product
anew, and the passes are tried again, until none has anything to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...registry import Registry
from ..arrays.map import emit
from ..arrays.operations import spec
from ..device.cut import TILE
from ..device.plan import ALIGN_MOST, Planner
from ..device.tensor import Tensor
from ..norms.plan import emit_rms_norm
from .call import Epilogue, Matmul, Prologue
from .factor_layout import orders, with_layout
from .selection import Kernel, fits_one_dispatch, select
from .tile_schedule import columns_first


class Gate(NamedTuple):
    """A dispatch after a product: ``c = activation(x[..., :N]) * x[..., N:] + residual``.

    Attributes
    ----------
    x : Tensor
        ``(B, H, M, 2 N)``, contiguous, in memory of the plan's.
    c : Tensor
        ``(B, H, M, N)``.
    epilogue : Epilogue
        The activation and the residual.
    """

    x: Tensor
    c: Tensor
    epilogue: Epilogue

    def emit(self, planner: Planner, registry: Registry) -> None:
        """Plan the dispatch."""
        cols = self.c.shape[3]
        operands = [self.x[..., :cols], self.x[..., cols:], self.epilogue.residual]
        activation = spec(self.epilogue.activation, self.c.dtype)
        emit(planner, registry, activation, self.c, operands, [ALIGN_MOST, ALIGN_MOST, self.epilogue.offset])


Stage = Matmul | Gate

#: A product of at most so many columns and at least so many rows is computed transposed, where a kernel can. On an H200
#: up to 32 columns take 0.5 to 0.75 of the time; 64 columns, 0.9 to 1.8.
_FEW_COLUMNS, _MANY_ROWS = 32, 512


def copy_operands(planner: Planner, registry: Registry, matmul: Matmul, kernel: Kernel) -> list[Stage] | None:
    """Copy a and b where they lie in an order that the kernel does not take.

    So is a transposed a of few rows where the product must be cut: along its rows, whose parts would not be aligned.
    """
    if matmul.operation != "linear":
        return None
    a, b, (offset_a, offset_b) = matmul.a, matmul.b, matmul.offsets
    transposed_a, transposed_b = kernel.transposed
    orders_a, orders_b = orders(kernel.choice)
    takes_a = transposed_a in orders_a
    if takes_a and transposed_a and matmul.rows <= 2 * TILE:  # else cuts along its rows keep the alignment
        takes_a = fits_one_dispatch(planner.facts, kernel, matmul.operands)
    takes_b = transposed_b in orders_b or (matmul.split_b is not None and bool(kernel.choice.tile.get("split")))
    if takes_a and takes_b:
        return None
    if not takes_a:
        a, offset_a = with_layout(planner, registry, a, offset_a, False), ALIGN_MOST
    if not takes_b:
        b, offset_b = with_layout(planner, registry, b, offset_b, orders_b[0]), ALIGN_MOST
    return [matmul._replace(a=a, b=b, offsets=(offset_a, offset_b))]


def transpose_product(planner: Planner, registry: Registry, matmul: Matmul, kernel: Kernel) -> list[Stage] | None:
    """Compute ``c^T = b a^T`` where c has few columns and many rows: a kernel for few rows reads each factor once."""
    if not matmul.b_is_nk or matmul.transposed_c or matmul.epilogue.gated or matmul.prologue.weight is not None:
        return None
    if matmul.cols > _FEW_COLUMNS or matmul.rows < _MANY_ROWS or matmul.rows < matmul.all_rows:
        return None
    mark = planner.mark()
    a, b, (offset_a, offset_b), residual = matmul.a, matmul.b, matmul.offsets, matmul.epilogue.residual
    if kernel.transposed[1]:
        b, offset_b = with_layout(planner, registry, b, offset_b, False), ALIGN_MOST
    residual = None if residual is None else residual.swapaxes(2, 3)
    turned = matmul._replace(
        a=b, b=a, c=matmul.c.swapaxes(2, 3), offsets=(offset_b, offset_a), transposed_c=True,
        epilogue=matmul.epilogue._replace(residual=residual),
    )  # fmt: skip
    other = select(planner.facts, registry, turned)
    taken = "TRANSPOSED_C" in other.choice.variant.constants
    if taken and fits_one_dispatch(planner.facts, other, turned.operands):
        return [turned]
    planner.back(mark)
    return None


def normalize_before(planner: Planner, registry: Registry, matmul: Matmul, kernel: Kernel) -> list[Stage] | None:
    """Apply the RMS norm in a dispatch before, unless the kernel does it for the rows that a workgroup has."""
    weight, offset, epsilon, added = matmul.prologue
    if weight is None:
        return None
    takes_norm = kernel.partition.rows <= kernel.choice.tile.get("norm", 0)
    takes_norm = takes_norm and kernel.partition.constants.get("TRIPS", 1) == 1  # else x is not held
    if takes_norm and fits_one_dispatch(planner.facts, kernel, matmul.operands):
        return None
    offsets = (matmul.offsets[0], matmul.a._offset, offset, weight._offset)
    a = emit_rms_norm(planner, registry, matmul.a, weight, epsilon, added, offsets)
    return [matmul._replace(a=a, offsets=(ALIGN_MOST, matmul.offsets[1]), prologue=Prologue())]


def gate_after(planner: Planner, registry: Registry, matmul: Matmul, kernel: Kernel) -> list[Stage] | None:
    """Apply a gated epilogue in a dispatch after, which reads the product in c's dtype, unless the kernel does it."""
    if not matmul.epilogue.gated:
        return None
    if "GATED" in kernel.choice.variant.constants and fits_one_dispatch(planner.facts, kernel, matmul.operands):
        return None
    x = planner.empty((*matmul.c.shape[:3], matmul.cols), matmul.c.dtype)
    return [matmul._replace(c=x, epilogue=Epilogue()), Gate(x, matmul.c, matmul.epilogue)]


def cut_columns(planner: Planner, registry: Registry, matmul: Matmul, kernel: Kernel) -> list[Stage] | None:
    """Make the columns of a last, incomplete round of tiles a product of their own (``columns_first``)."""
    cols = matmul.c.shape[3]
    if not matmul.may_cut_columns:
        return None
    first = columns_first(kernel.choice, planner.facts, matmul.all_rows, cols, matmul.depth)
    if first >= cols:
        return None
    return [columns(matmul, slice(0, first)), columns(matmul, slice(first, cols))]


def columns(matmul: Matmul, some: slice) -> Matmul:
    """The product's ``some`` columns; b is (N, K)."""
    bias, residual = matmul.bias, matmul.epilogue.residual
    return matmul._replace(
        b=matmul.b[:, :, some], c=matmul.c[..., some], bias=None if bias is None else bias[some], split_b=None,
        epilogue=matmul.epilogue._replace(residual=None if residual is None else residual[..., some]),
    )  # fmt: skip


#: In the order in which they are tried.
PASSES: tuple[Callable[[Planner, Registry, Matmul, Kernel], list[Stage] | None], ...] = (
    transpose_product, copy_operands, normalize_before, gate_after, cut_columns,
)  # fmt: skip
