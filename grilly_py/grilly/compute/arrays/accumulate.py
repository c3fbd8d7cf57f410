"""Elements added to, or put into extremes, at indices along an axis: shaders/arrays/accumulate.comp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...registry import Registry, Request
from ...registry.shared import names_of
from ..device.call import call
from ..device.device import DeviceFacts
from ..device.plan import ALIGN_MOST, At, Layout, Plan, Planner, fits_binding
from ..device.tensor import Tensor, contiguous_strides
from .axes import fewest_axes
from .map import emit
from .operations import code, spec
from .promotion import FLOAT32, INT32, INT64, kind_of
from .scatter import AXES, Before, words_of_axes

_MOST = 2**30  # terms, and elements with three words each that fit a binding


class Accumulation(NamedTuple):
    """A dispatch of a plan that reads the terms of an accumulation.

    Attributes
    ----------
    arrays : tuple of Tensor
        The terms, over the plan's slots, and the index: of one shape.
    result : Tensor
        The state.
    places : tuple of int
        The strides of x along the axes of the terms, that of the axis which is counted left out.
    constants, words : dict
        Of the dispatch; of the words those that depend on no layout.
    """

    arrays: tuple[Tensor, Tensor]
    result: Tensor
    places: tuple[int, ...]
    constants: dict[str, int]
    words: dict[str, int]


def accumulates(how: str, x: Tensor, index: Tensor, terms: Tensor, axis: int) -> bool:
    """Whether ``accumulated`` takes these: "add", and "max" and "min" of up to 32 bits, where all fit bindings."""
    facts = x._storage.device.facts
    if how not in ("add", "max", "min") or how != "add" and x.dtype == INT64 or kind_of(x.dtype) == "bool":
        return False
    fit = all(fits_binding(facts, one) for one in (x, index, terms))
    fit = fit and 12 * x.size <= facts.storage_range and max(x.size, terms.size) <= _MOST
    return fit and len(_walked(x, index, terms, axis)[0]) <= AXES


def accumulated(how: str, x: Tensor, index: Tensor, terms: Tensor, axis: int) -> Tensor:
    """A copy of x to which terms are added, or in which they are extremes, by an index; for what ``accumulates`` takes.

    Parameters
    ----------
    how : str
        "add": the sum of all terms of a place is rounded once, and then added. "max" or "min": NaN where one is NaN.
    x : Tensor
    index : Tensor
        Integers; counts the places of x along ``axis``, negative ones from the end. Terms of others are left out.
    terms : Tensor
        Of x's dtype and the index's shape, which is not larger than x's but along ``axis``.

    Returns
    -------
    Tensor
        The same to the bit in each run.
    """
    return call(x._storage.device, plan, (how, axis), (x.contiguous(), index, terms))[0]


def _places(x: Tensor, axis: int) -> tuple[int, ...]:
    """The strides of x in C order, the axis left out."""
    return tuple(0 if place == axis else stride for place, stride in enumerate(contiguous_strides(x.shape)))


def _walked(x: Tensor, index: Tensor, terms: Tensor, axis: int) -> tuple[list[int], list[list[int]]]:
    """Extents, and strides of the index, the terms and x, C order and the axis left out."""
    return fewest_axes(terms.shape, [index._strides, terms._strides, _places(x, axis)])


def plan(given: tuple[str, int], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of an accumulation."""
    how, axis = given
    numbers = names_of("accumulation")
    planner = Planner(facts, layouts)
    x, index, terms = planner.inputs
    floating = kind_of(x.dtype) == "floating"
    wide = FLOAT32 if floating else INT64 if x.dtype == INT64 else INT32
    result = planner.empty(x.shape, wide)
    state = planner.empty(((3 if how == "add" else 1) * x.size,), INT32)
    choice = registry.resolve(Request("accumulate", "float32"))
    walked = words_of_axes(*_walked(x, index, terms, axis), "ita")
    walked |= {"x_offset": At(x), "index_offset": At(index), "terms_offset": At(terms)}
    own = {"stride": contiguous_strides(x.shape)[axis], "extent": x.shape[axis], "share": terms.size.bit_length()}
    read = {"index": index, "terms": terms, "state": state}
    stages = (("nothing", -(-state.size // numbers["cleared"]), {"state": state}), ("scales", terms.size, read),
              ("terms", terms.size, read), ("result", x.size, {"x": x, "state": state, "y": result}))  # fmt: skip
    for stage, count, arrays in stages:
        if stage == "scales" and not (floating and how == "add"):
            continue
        constants = {"TYPE_X": code(x.dtype), "TYPE": code(terms.dtype), "INDEX": code(index.dtype),
                     "REDUCTION": numbers[how], "STAGE": numbers[stage]}  # fmt: skip
        words = own | {"count": count, "size": state.size if stage == "nothing" else x.size}
        operation = None
        if arrays is read:
            operation = Accumulation((terms, index), state, _places(x, axis), constants, words)
        planner.dispatch(choice, constants, arrays, words | walked, choice.workgroups(count), count,
                         operation=operation)  # fmt: skip
    if wide == x.dtype:
        return planner.plan(result)
    narrow = planner.empty(x.shape, x.dtype)
    emit(planner, registry, spec("copy", wide, x.dtype), narrow, [result], [ALIGN_MOST])
    return planner.plan(narrow)


def emit_accumulated(
    planner: Planner, registry: Registry, operation: Accumulation, before: Before, index: Tensor, state: Tensor,
    places: Sequence[int],
) -> bool:  # fmt: skip
    """Plan the dispatch with an expression that makes the terms; False where it cannot be one.

    The expression's arrays and the index have one shape, along whose axes ``places`` are as in ``Accumulation``.
    """
    terms, *others = before.arrays
    views = (index, terms, *others)
    extents, strides = fewest_axes(terms.shape, [index._strides, terms._strides, places, *(r._strides for r in others)])
    if len(extents) > AXES or not all(fits_binding(planner.facts, view) for view in (*views, state)):
        return False
    choice = registry.resolve(Request("accumulate-holes", "float32"))
    words = operation.words | before.push() | words_of_axes(extents, strides, "itar")
    words |= {"x_offset": 0, "index_offset": At(index), "terms_offset": At(terms)}
    arrays = {"index": index, "terms": terms, "state": state} | before.bindings()
    planner.dispatch(choice, operation.constants | before.constants(), arrays, words,
                     choice.workgroups(terms.size), terms.size, filling=before.filling(registry))  # fmt: skip
    return True
