"""Block masks: which blocks of scores a mask function hides, made on the device once and used by many calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import numpy as np

from ...registry import Registry, Request
from ..arrays.elementwise import cast
from ..backend import device_of
from ..device.call import run
from ..device.device import Device, DeviceFacts
from ..device.numbers import integer
from ..device.plan import Layout, Plan, Planner
from ..device.tensor import Tensor
from ..expressions.reads import tensor_words
from .functions import BlockMask, FunctionExpression, Functions, count_words, traced
from .parameters import laid_out, parameters_of

NAME = "block_mask"
#: Queries and keys of a block: small enough that a window hides most blocks, and multiples of most kernels' tiles.
BLOCK = (64, 64)
#: Floating-point operations that a pair counts for, against a submission's limit.
_PAIR = 32.0
_MOST_PAIRS = 1 << 20  # of a block


def block_mask(
    mask_mod: Callable[..., Any], batch: SupportsIndex | None, heads: SupportsIndex | None, queries: SupportsIndex,
    keys: SupportsIndex, *, block_size: Sequence[SupportsIndex] = BLOCK,
) -> BlockMask:  # fmt: skip
    """Find which blocks of scores a mask function hides, for attention to pass over.

    Parameters
    ----------
    mask_mod : callable
        ``mask_mod(batch, head, query, key)``, a function of scalars that gives whether the query sees the key, as
        attention takes it. The contents of Tensors that it reads are those of now; when they change, the mask is to be
        made anew.
    batch, heads : int or None
        None where the function does not depend on them: the mask is then for any number.
    queries, keys : int
        N_q and N_kv of the calls.
    block_size : (int, int)
        Queries and keys of a block, with a product of at most 1,048,576.

    Returns
    -------
    BlockMask
        To be given as ``mask_mod`` of ``flash_attention2``.

    Raises
    ------
    TypeError
        For what is no function of four arguments, and numbers that are no integers.
    ValueError
        For sizes that are not positive, and more blocks than one dispatch takes.
    ExpressionError
        For a function that cannot become a part of a kernel.

    Examples
    --------
    >>> blocks = grilly.block_mask(lambda b, h, query, key: query >= key, None, None, 1024, 1024)
    >>> out = F.flash_attention2(q, k, v, mask_mod=blocks)
    """
    shape = tuple(
        1 if given is None and place < 2 else integer(NAME, name, given)
        for place, (name, given) in enumerate(zip(("batch", "heads", "queries", "keys"), (batch, heads, queries, keys),
                                                  strict=True))
    )  # fmt: skip
    sizes = tuple(block_size) if isinstance(block_size, (tuple, list)) else ()
    if len(sizes) != 2:
        raise ValueError(f"{NAME}: block_size is {block_size!r}; expected (queries, keys) of a block")
    block = tuple(integer(NAME, "block_size", size) for size in sizes)
    if min(*shape, *block) < 1 or block[0] * block[1] > _MOST_PAIRS:
        raise ValueError(
            f"{NAME}: a mask of shape {shape} in blocks of {block}; expected positive numbers, and blocks of at most "
            f"{_MOST_PAIRS:,} pairs"
        )
    own = traced(NAME, "mask_mod", mask_mod)
    device = device_of(NAME, *own.tensors)
    count_words(NAME, own.tensors)
    extra, words = _memory(device, own.tensors)
    (classes,) = run(device, plan, (own.own, shape, block, words), (extra,))
    found = BlockMask(mask_mod, shape, block, cast(classes, np.uint8))
    device.runtime.flush()
    return found


def _memory(device: Device, tensors: Sequence[Tensor]) -> tuple[Tensor, int]:
    """Tensors in one memory, and where in it the words are that say where."""
    arrays: list[tuple[int, Any]] = []
    size = 0
    for tensor in tensors:
        place, size = laid_out(size, tensor)
        arrays.append((place, tensor))
    words = tensor_words(tensors, [place for place, _ in arrays])
    arrays.append((size, words))
    return parameters_of(device, np.zeros(size + words.size, np.uint32), arrays, {}, size, keep=False), size


def plan(
    given: tuple[FunctionExpression, tuple[int, ...], tuple[int, ...], int], layouts: Sequence[Layout],
    facts: DeviceFacts, registry: Registry,
) -> Plan:  # fmt: skip
    """The dispatches that make the classes of a mask function's blocks."""
    own, (batch, heads, queries, keys), (rows, columns), words = given
    planner = Planner(facts, layouts)
    choice = registry.resolve(Request("attention-function-blocks", "float32"))
    counts = (batch, heads, -(-queries // rows), -(-keys // columns))
    most = facts.groups
    if counts[3] > most[0] or batch * heads > most[2]:
        raise ValueError(
            f"{NAME}: {counts[3]} blocks of keys and {batch * heads} heads are beyond the device's {most[0]} and "
            f"{most[2]} workgroups; take larger blocks"
        )
    classes = planner.empty(counts, np.int32)
    filling = Functions(mask=own).filling(registry)
    work = _PAIR * batch * heads * rows * keys  # of a row of blocks
    together = int(max(min(facts.work_limit / work, most[1], counts[2]), 1))
    for first in range(0, counts[2], together):
        count = min(together, counts[2] - first)
        push = {
            "words": words, "queries": queries, "keys": keys, "heads": heads, "row_blocks": counts[2],
            "key_blocks": counts[3], "first_row_block": first,
        }  # fmt: skip
        planner.dispatch(
            choice, {"ROWS": rows, "KEYS": columns}, {"extra": planner.inputs[0], "classes": classes}, push,
            (counts[3], count, batch * heads), work * count, filling=filling,
        )  # fmt: skip
    return planner.plan(classes)


__all__ = ["BLOCK", "block_mask", "plan"]
