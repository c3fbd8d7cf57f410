"""Batched matrix products: the plan behind linear layers, attention scores and attention outputs."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ...registry import Choice, Registry, Request
from ...registry.shared import names_of
from ..arrays.map import emit
from ..arrays.operations import spec
from ..device.cut import check_trips, parts, placed, strides
from ..device.plan import ALIGN_MOST, Planner, alignment, fits_binding, strided
from ..device.tensor import Tensor
from ..norms.plan import emit_rms_norm
from .deal import choose, columns_first, deal
from .turned import is_turned, laid, orders, rows_of

_MOST = 2**31 - 1
#: Activations that products can end with, by the kernels' number (shaders/include/activations.glsl).
ACTIVATIONS = {name.removeprefix("activation_"): number for name, number in names_of("activations").items()}


class Epilogue(NamedTuple):
    """What is done with sums, their bias added, before they are rounded: ``activation(sum) + residual``.

    Attributes
    ----------
    activation : str
        A name of ACTIVATIONS.
    residual : Tensor or None
        Of the result's shape, four axes, the last contiguous.
    offset : int
        What divides the residual's offset (``Layout.offset``).
    gated : bool
        Columns of b are those of a gate and then as many others: ``activation(gate) * other + residual``.
    """

    activation: str = "none"
    residual: Tensor | None = None
    offset: int = 0
    gated: bool = False


NOTHING = Epilogue()


class Prologue(NamedTuple):
    """What a stands for: its rows divided by the root of their mean square, times a weight.

    Attributes
    ----------
    weight : Tensor or None
        ``(K,)``, contiguous; None where a is as it is.
    offset : int
        What divides the weight's offset (``Layout.offset``).
    epsilon, added : float
        What is added to the mean square, and to the weight.
    """

    weight: Tensor | None = None
    offset: int = 0
    epsilon: float = 0.0
    added: float = 0.0


AS_IT_IS = Prologue()


def product(
    planner: Planner,
    registry: Registry,
    operation: str,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    model: str = "generic",
    columns_are_rows: bool,
    bias: Tensor | None = None,
    scale: float = 1.0,
    shift: int = 0,
    high: bool = False,
    offsets: tuple[int, ...] = (),
    parts_of_b: Tensor | None = None,
    epilogue: Epilogue = NOTHING,
    prologue: Prologue = AS_IT_IS,
) -> Tensor | None:
    """Plan ``c = scale * a b + bias`` with the kernels of ``operation``, and of "linear" what ``epilogue`` says.

    Parameters
    ----------
    a, c : Tensor
        ``(B, H, M, K)`` and ``(B, H, M, N)``, their last axes contiguous.
    b : Tensor
        ``(B, H / g, N, K)`` if ``columns_are_rows``, else ``(B, H / g, K, N)``; the last axis contiguous. Of "linear"
        a and b may have any strides: what the kernel does not take as it lies is copied before.
    shift : int
        For the "gpt" model: row i uses the first ``i + shift + 1`` of K.
    high : bool
        For "linear" in float32: whether a and b may be split into 16-bit parts for matrix units.
    offsets : tuple of int
        What divides the offsets of a and b (``Layout.offset``).
    parts_of_b : Tensor, optional
        ``split`` of b's first batch and head, if it was made before.
    epilogue : Epilogue
        Kernels for few rows do it all. The others leave gates to a second dispatch, which reads both of a gate's
        products in c's dtype.
    prologue : Prologue
        Of "linear". Kernels for few rows do it on their way; before the others comes a dispatch.

    Returns
    -------
    Tensor or None
        The split of b, where this plan makes it.
    """
    if c.size == 0:
        return None
    facts = planner.facts
    batch, heads, rows, depth = a.shape
    cols = c.shape[3]
    paired = 1 + epilogue.gated
    residual, factors = epilogue.residual, prologue.weight
    turned = [operation == "linear" and is_turned(facts, t) for t in (a, b)]
    a_rows, b_rows = map(rows_of, (a, b), turned)
    read = alignment(*offsets, a._offset, b._offset, depth, *strides(a_rows), *strides(b_rows))
    if factors is not None:
        read = alignment(read, prologue.offset, factors._offset)
    aligned = alignment(read, c._offset, cols, *strides(c), rows if turned[0] else 0)
    if residual is not None:
        aligned = alignment(aligned, epilogue.offset, residual._offset, *strides(residual))
    sizes = (("rows", rows), ("cols", paired * cols), ("outputs", paired * c.size))
    asked = (("align", aligned), *((name, min(size, _MOST)) for name, size in sizes))
    if operation == "linear":
        asked = (*asked, ("depth", min(depth, _MOST)), ("depth_align", read), ("high", int(high)),
                 ("turned", bool(turned[1]) + 2 * bool(turned[0])))  # fmt: skip
    request = Request(operation, b.dtype.name, model, asked)
    divisible = columns_are_rows and paired == 1 and factors is None
    choice = choose(registry, request, facts, batch * heads * rows, paired * cols, depth, divisible)
    remedy = "cut them and add the products" if operation == "linear" else "flash_attention2 takes any number"
    check_trips(facts, operation, "columns of the left matrix", depth, choice.keys_per_trip, remedy)
    dealt = deal(choice, facts, rows, paired * cols, depth, b.dtype.itemsize, epilogue.gated)

    own_cols = dealt.cols // paired

    def groups(shape):
        return -(-shape[3] // own_cols), -(-shape[2] // dealt.rows) * shape[1], shape[0] * dealt.splits

    def work(shape):
        return 2.0 * math.prod(shape) * depth * paired

    def fits_one_dispatch():
        return (
            all(t is None or fits_binding(facts, t) for t in (a, b, c, residual)) and work(c.shape) <= 1e11
            and all(n <= m for n, m in zip(groups(c.shape), facts.groups, strict=True))
        )  # fmt: skip

    if operation == "linear":
        orders_a, orders_b = orders(choice)
        was_split = parts_of_b is not None and bool(choice.tile.get("split"))
        as_they_lie = (
            turned[0] in orders_a and (not turned[0] or fits_one_dispatch()), turned[1] in orders_b or was_split
        )  # fmt: skip
        if not all(as_they_lie):
            if not as_they_lie[0]:
                a, offsets = laid(planner, registry, a, offsets[0], False), (ALIGN_MOST, offsets[1])
            if not as_they_lie[1]:
                b, offsets = laid(planner, registry, b, offsets[1], orders_b[0]), (offsets[0], ALIGN_MOST)
            return product(
                planner, registry, operation, a, b, c, columns_are_rows=columns_are_rows, bias=bias, scale=scale,
                high=high, offsets=offsets, parts_of_b=parts_of_b, epilogue=epilogue, prologue=prologue,
            )  # fmt: skip
    if factors is not None and not (dealt.rows <= choice.tile.get("norm", 0) and fits_one_dispatch()):
        a = emit_rms_norm(
            planner, registry, a, factors, prologue.epsilon, prologue.added,
            (offsets[0], a._offset, prologue.offset, factors._offset),
        )  # fmt: skip
        return product(
            planner, registry, operation, a, b, c, columns_are_rows=columns_are_rows, bias=bias, scale=scale, high=high,
            offsets=(ALIGN_MOST, offsets[1]), parts_of_b=parts_of_b, epilogue=epilogue,
        )  # fmt: skip
    if epilogue.gated and not ("GATED" in choice.variant.constants and fits_one_dispatch()):
        both = planner.empty((*c.shape[:3], 2 * cols), c.dtype)
        made = product(
            planner, registry, operation, a, b, both, columns_are_rows=columns_are_rows, bias=bias, high=high,
            offsets=offsets, parts_of_b=parts_of_b,
        )  # fmt: skip
        operands = [both[..., :cols], both[..., cols:], residual]
        offsets = [ALIGN_MOST, ALIGN_MOST, epilogue.offset]
        emit(planner, registry, spec(epilogue.activation, c.dtype), c, operands, offsets)
        return made
    first = columns_first(choice, facts, batch * heads * rows, cols, depth) if divisible else cols
    if first < cols:
        for some in (slice(0, first), slice(first, cols)):
            own = None if residual is None else residual[..., some]
            product(
                planner, registry, operation, a, b[:, :, some], c[..., some], columns_are_rows=True,
                bias=None if bias is None else bias[some], scale=scale, high=high, offsets=offsets,
                epilogue=epilogue._replace(residual=own),
            )  # fmt: skip
        return None
    made = None
    if choice.tile.get("split"):
        a = split(planner, registry, a)
        if parts_of_b is None:
            made = parts_of_b = split(planner, registry, b[:1, :1])
        b = parts_of_b.broadcast_to((*b.shape[:3], split_words(depth)))

    def dispatch(a, b, c, group, first_row, bias, residual):
        push = {
            **placed("a", rows_of(a, turned[0])), **placed("b", rows_of(b, turned[1])), **placed("c", c),
            **strided("bias", bias, ()),
            "rows": c.shape[2], "cols": c.shape[3], "depth": depth, "group": group, "shift": shift + first_row,
            "scale": scale,
        }  # fmt: skip
        if operation == "linear":
            push |= strided("residual", None) if residual is None else placed("residual", residual)
        if "NORM" in choice.variant.constants:
            push |= strided("norm", factors, ()) | {"norm_eps": prologue.epsilon, "norm_added": prologue.added}
        whole = c.shape[2] % dealt.rows == 0 and c.shape[3] % dealt.cols == 0
        known = {
            "HAS_BIAS": int(bias is not None), "WHOLE": int(whole), "ACTIVATION": ACTIVATIONS[epilogue.activation],
            "HAS_RESIDUAL": int(residual is not None), "GATED": int(epilogue.gated), "EIGHTS": int(read % 8 == 0),
            "NORM": int(factors is not None), "TURNED_A": int(turned[0]), "TURNED_B": int(turned[1]),
            "CAUSAL": int(model == "gpt"), **dealt.constants,
        }  # fmt: skip
        constants = {name: known[name] for name in choice.variant.constants}
        arrays = {"a": a, "b": b, "c": c, "bias": bias, "residual": residual, "norm": factors}
        if dealt.splits > 1:
            teams = math.prod(groups(c.shape)) // dealt.splits
            left = teams * dealt.splits * dealt.rows * dealt.cols
            # Counters are zero before and after every dispatch, and calls of the plan in flight together do not meet
            # in them.
            arrays |= {"parts": planner.empty((left,)), "arrived": planner.constant(np.zeros(teams, np.int32))}
        planner.dispatch(choice, constants, arrays, push, groups(c.shape), work(c.shape))

    def cut(a, b, c, bias, residual):
        """Parts of a product whose heads of b are one each for a's (group 1), or one for all."""
        group = a.shape[1] if b.shape[1] == 1 else 1

        def part_of_b(starts, shape):
            first, head = starts[:2]
            whole = slice(None) if b.shape[1] == 1 else slice(head, head + shape[1])
            return b[first : first + shape[0], whole]

        def fits(starts, shape):
            return fits_binding(facts, part_of_b(starts, shape))

        axes = ((), (1, 2), (0,))
        for (c_part, a_part, own), starts in parts(facts, (c, a, residual), groups, axes, fits, work):
            dispatch(a_part, part_of_b(starts, c_part.shape), c_part, group, starts[2], bias, own)

    group = heads // b.shape[1]
    if fits_one_dispatch():
        dispatch(a, b, c, group, 0, bias, residual)
        return made
    step = min(cols, dealt.cols * facts.groups[0]) if columns_are_rows else cols
    if columns_are_rows:  # b's rows are what a block of columns needs: halve them until they fit
        while step > 1 and not fits_binding(facts, b[:1, :1, :step]):
            step = -(-step // 2)
        if 16 <= step < cols:
            step -= step % 16
    for first in range(0, cols, step):
        some = slice(first, first + step)
        b_part = b[:, :, some] if columns_are_rows else b
        c_part = c if step == cols else c[..., some]
        bias_part = None if bias is None else bias[some]
        residual_part = residual if residual is None or step == cols else residual[..., some]
        if group == 1 or b.shape[1] == 1:
            cut(a, b_part, c_part, bias_part, residual_part)
            continue
        for head in range(b.shape[1]):
            own = slice(head * group, (head + 1) * group)
            cut(a[:, own], b_part[:, head : head + 1], c_part[:, own], bias_part,
                None if residual_part is None else residual_part[:, own])  # fmt: skip
    return made


def split_words(depth: int) -> int:
    """32-bit words in a split row of ``depth`` elements: 16 + 16 bits each, in blocks of 32, and the exponent's."""
    return -(-depth // 32) * 32 + 32


def split(planner: Planner, registry: Registry, x: Tensor) -> Tensor:
    """Rows of float32 as two 16-bit parts and an exponent, in a float32 tensor's words (products/linear-split.comp).

    Parameters
    ----------
    x : Tensor
        ``(B, H, M, K)``, the last axis contiguous.

    Returns
    -------
    Tensor
        ``(B, H, M, split_words(K))``.
    """
    depth = x.shape[3]
    result = planner.empty((*x.shape[:3], split_words(depth)), x.dtype)
    choice: Choice = registry.resolve(Request("linear-split", x.dtype.name))

    def groups(shape):
        return min(math.prod(shape[:3]), 65535), 1, 1

    for (to, part), _ in parts(planner.facts, (result, x), groups, ((), (), ())):
        batches, heads, rows = part.shape[:3]
        push = {
            **placed("x", part), **strided("split", to, ()), "batches": batches, "heads": heads, "rows": rows,
            "depth": depth,
        }  # fmt: skip
        planner.dispatch(choice, {}, {"x": part, "split": to}, push, groups(to.shape), 4.0 * part.size)
    return result
