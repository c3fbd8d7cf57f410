"""The plan of batched matrix products, behind linear layers, attention scores and attention outputs.

``emit_matmul`` rewrites a product until kernels take it (passes.py), and plans its dispatches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...errors import UnsupportedError
from ...registry import Registry
from ..device.cut import parts, placed
from ..device.device import DeviceFacts
from ..device.plan import Planner, fits_binding, strided
from ..device.tensor import Tensor
from .call import ACTIVATIONS, Matmul, Operands
from .factor_layout import rows_of
from .finish import is_offered
from .passes import PASSES, Gate, Stage
from .selection import Kernel, fits_one_dispatch, select
from .split import split, split_words


def emit_matmul(planner: Planner, registry: Registry, matmul: Matmul) -> Tensor | None:
    """Plan a product.

    Returns
    -------
    Tensor
        The split of b, where this plan makes it; otherwise None.

    Raises
    ------
    UnsupportedError
        Where no kernel takes the product, or one row of an operand does not fit a binding.
    """
    made = None
    stages: list[Stage] = [matmul] if matmul.c.size else []
    while stages:
        stage = stages.pop()
        if isinstance(stage, Gate):
            stage.emit(planner, registry)
            continue
        kernel = select(planner.facts, registry, stage)
        rewritten = _rewritten(planner, registry, stage, kernel)
        if stage.epilogue.finish.filling is not None:
            _check_finish(planner.facts, registry, stage, kernel, rewritten)
        if rewritten is not None:
            stages += reversed(rewritten)
            continue
        operands = stage.operands
        if kernel.choice.tile.get("split"):
            operands, split_b = split_factors(planner, registry, stage)
            # Whatever the order of what was split.
            kernel = kernel._replace(transposed=(False, False), whole_eights=(True, True))
            if stage.split_b is None and stage.b.shape == matmul.b.shape:  # not some of its columns
                made = split_b
        _emit_dispatches(planner, stage, kernel, operands)
    return made


def _check_finish(
    facts: DeviceFacts, registry: Registry, matmul: Matmul, kernel: Kernel, rewritten: list[Stage] | None
) -> None:
    """Raise UnsupportedError where an expression behind the product takes a dispatch of its own."""
    if rewritten is not None and len(rewritten) == 1:
        return  # it is asked again
    whole = rewritten is None and fits_one_dispatch(facts, kernel, matmul.operands)
    if not whole or not matmul.epilogue.finish.fits(registry, kernel.choice):
        raise UnsupportedError(f"{kernel.choice}: the expression takes a dispatch of its own")


def _rewritten(planner: Planner, registry: Registry, matmul: Matmul, kernel: Kernel) -> list[Stage] | None:
    """What the first pass that applies makes of a product; None where none does."""
    for rewrite in PASSES:
        stages = rewrite(planner, registry, matmul, kernel)
        if stages is not None:
            return stages
    return None


def split_factors(planner: Planner, registry: Registry, matmul: Matmul) -> tuple[Operands, Tensor]:
    """The operands with the 16-bit parts of a and b, and the split of b's first batch and head."""
    a, split_b = split(planner, registry, matmul.a), matmul.split_b
    if split_b is None:
        split_b = split(planner, registry, matmul.b[:1, :1])
    b = split_b.broadcast_to((*matmul.b.shape[:3], split_words(matmul.depth)))
    return matmul.operands._replace(a=a, b=b), split_b


def _emit_dispatches(planner: Planner, matmul: Matmul, kernel: Kernel, operands: Operands) -> None:
    """Plan the dispatches of a product that its kernel takes: one, or several where it exceeds a limit."""
    if fits_one_dispatch(planner.facts, kernel, operands):
        _dispatch(planner, matmul, kernel, operands, operands.a.shape[1] // operands.b.shape[1], 0)
        return
    for block in _blocks_of_columns(planner.facts, matmul, kernel, operands):
        for heads in _groups_of_heads(block):
            _emit_parts(planner, matmul, kernel, heads)


def _blocks_of_columns(facts: DeviceFacts, matmul: Matmul, kernel: Kernel, operands: Operands) -> Iterator[Operands]:
    """Blocks of columns whose rows of b fit a binding, and whose tiles fit the grid; all of them where b is (K, N)."""
    a, b, c, bias, residual = operands
    cols = c.shape[3]
    step = min(cols, kernel.partition.cols * facts.groups[0]) if matmul.b_is_nk else cols
    if matmul.b_is_nk:
        while step > 1 and not fits_binding(facts, b[:1, :1, :step]):
            step = -(-step // 2)
        if 16 <= step < cols:
            step -= step % 16
    if step == cols:
        yield operands
        return
    for first in range(0, cols, step):
        some = slice(first, first + step)
        yield Operands(
            a, b[:, :, some], c[..., some], None if bias is None else bias[some],
            None if residual is None else residual[..., some],
        )  # fmt: skip


def _groups_of_heads(operands: Operands) -> Iterator[Operands]:
    """Parts in which all heads of a have one head of b, or each its own."""
    a, b, c, bias, residual = operands
    group = a.shape[1] // b.shape[1]
    if group == 1 or b.shape[1] == 1:
        yield operands
        return
    for head in range(b.shape[1]):
        own = slice(head * group, (head + 1) * group)
        yield Operands(
            a[:, own], b[:, head : head + 1], c[:, own], bias, None if residual is None else residual[:, own]
        )


def _emit_parts(planner: Planner, matmul: Matmul, kernel: Kernel, operands: Operands) -> None:
    """Plan dispatches of parts by batches, heads and rows; of ``_groups_of_heads``."""
    a, b, c, bias, residual = operands
    facts, shared = planner.facts, b.shape[1] == 1
    group = a.shape[1] if shared else 1

    def part_of_b(starts, shape):
        first, head = starts[:2]
        return b[first : first + shape[0], slice(None) if shared else slice(head, head + shape[1])]

    def fits(starts, shape):
        return fits_binding(facts, part_of_b(starts, shape))

    axes = ((), (1, 2), (0,))
    for (c_part, a_part, own), starts in parts(facts, (c, a, residual), kernel.groups, axes, fits, kernel.work):
        part = Operands(a_part, part_of_b(starts, c_part.shape), c_part, bias, own)
        _dispatch(planner, matmul, kernel, part, group, starts[2])


def _dispatch(planner: Planner, matmul: Matmul, kernel: Kernel, operands: Operands, group: int, first_row: int) -> None:
    """Plan one dispatch. ``group`` heads of a share one of b; ``first_row`` of the product is the part's first."""
    choice, partition, shape = kernel.choice, kernel.partition, operands.c.shape
    groups = kernel.groups(shape)
    finish = matmul.epilogue.finish
    arrays = {**operands._asdict(), "norm": matmul.prologue.weight, **finish.bindings()}
    if partition.splits > 1:
        tiles = math.prod(groups) // partition.splits
        # Counters are zero before and after every dispatch, and calls of the plan in flight together do not meet in
        # them.
        arrays |= {
            "parts": planner.empty((tiles * partition.splits * partition.rows * partition.cols,)),
            "arrived": planner.constant(np.zeros(tiles, np.int32)),
        }
    push = _push(matmul, kernel, operands, group, first_row)
    planner.dispatch(choice, _constants(matmul, kernel, operands), arrays, push, groups, kernel.work(shape),
                     filling=finish.filling)  # fmt: skip


def _push(matmul: Matmul, kernel: Kernel, operands: Operands, group: int, first_row: int) -> dict:
    """The push constants by name."""
    a, b, c, bias, residual = operands
    turned = matmul.transposed_c
    push = {
        **placed("a", rows_of(a, kernel.transposed[0])), **placed("b", rows_of(b, kernel.transposed[1])),
        **placed("c", rows_of(c, turned)), **strided("bias", bias, ()),
        "rows": c.shape[2], "cols": c.shape[3], "depth": kernel.depth, "group": group,
        "shift": matmul.shift + first_row, "scale": matmul.scale,
    }  # fmt: skip
    if matmul.operation == "linear":
        push |= strided("residual", None) if residual is None else placed("residual", rows_of(residual, turned))
    if "NORM" in kernel.choice.variant.constants:
        weight, _, epsilon, added = matmul.prologue
        push |= strided("norm", weight, ()) | {"norm_eps": epsilon, "norm_added": added}
    if is_offered(kernel.choice):
        push |= matmul.epilogue.finish.push()
    return push


def _constants(matmul: Matmul, kernel: Kernel, operands: Operands) -> dict[str, int]:
    """The values of the specialization constants that the kernel has."""
    partition, shape = kernel.partition, operands.c.shape
    whole = shape[2] % partition.rows == 0 and shape[3] % partition.cols == 0
    known = {
        "HAS_BIAS": int(operands.bias is not None), "WHOLE": int(whole),
        "ACTIVATION": ACTIVATIONS[matmul.epilogue.activation], "HAS_RESIDUAL": int(operands.residual is not None),
        "GATED": int(matmul.epilogue.gated), "EIGHTS": int(kernel.aligned % 8 == 0),
        "NORM": int(matmul.prologue.weight is not None), "TRANSPOSED_A": int(kernel.transposed[0]),
        "TRANSPOSED_B": int(kernel.transposed[1]), "TRANSPOSED_C": int(matmul.transposed_c),
        "ALIGNED_A": int(kernel.whole_eights[0]),
        "ALIGNED_B": int(kernel.whole_eights[1]), "CAUSAL": int(matmul.model == "gpt"), **partition.constants,
        **matmul.epilogue.finish.constants(),
    }  # fmt: skip
    return {name: known[name] for name in kernel.choice.variant.constants}
