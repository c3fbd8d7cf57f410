"""Elements added to, or put into extremes, at indices along an axis: shaders/arrays/accumulate.comp."""

from __future__ import annotations

from collections.abc import Sequence

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

_AXES = 4
_MOST = 2**30  # terms, and elements with three words each that fit a binding


def accumulates(how: str, x: Tensor, index: Tensor, terms: Tensor, axis: int) -> bool:
    """Whether ``accumulated`` takes these: "add", and "max" and "min" of up to 32 bits, where all fit bindings."""
    facts = x._storage.device.facts
    if how not in ("add", "max", "min") or how != "add" and x.dtype == INT64 or kind_of(x.dtype) == "bool":
        return False
    fit = all(fits_binding(facts, one) for one in (x, index, terms))
    fit = fit and 12 * x.size <= facts.storage_range and max(x.size, terms.size) <= _MOST
    return fit and len(_walked(x, index, terms, axis)[0]) <= _AXES


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


def _walked(x: Tensor, index: Tensor, terms: Tensor, axis: int) -> tuple[list[int], list[list[int]]]:
    """Extents, and strides of the index, the terms and x, C order and the axis left out."""
    strides = list(contiguous_strides(x.shape))
    strides[axis] = 0
    return fewest_axes(terms.shape, [index._strides, terms._strides, tuple(strides)])


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
    extents, strides = _walked(x, index, terms, axis)
    extents = [1] * (_AXES - len(extents)) + extents
    strides = [[0] * (_AXES - len(stride)) + stride for stride in strides]
    words: dict = {
        "x_offset": At(x), "index_offset": At(index), "terms_offset": At(terms), "y_offset": At(result),
        "stride": contiguous_strides(x.shape)[axis], "extent": x.shape[axis], "share": terms.size.bit_length(),
    }  # fmt: skip
    words |= {f"e_{number}": extent for number, extent in enumerate(extents)}
    for name, stride in zip("ita", strides, strict=True):
        words |= {f"{name}_{number}": value % 2**32 for number, value in enumerate(stride)}
    arrays = {"x": x, "index": index, "terms": terms, "state": state, "y": result}
    counts = (("nothing", -(-state.size // numbers["cleared"])), ("scales", terms.size), ("terms", terms.size),
              ("result", x.size))  # fmt: skip
    for stage, count in counts:
        if stage == "scales" and not (floating and how == "add"):
            continue
        constants = {"TYPE_X": code(x.dtype), "TYPE": code(terms.dtype), "INDEX": code(index.dtype),
                     "REDUCTION": numbers[how], "STAGE": numbers[stage]}  # fmt: skip
        size = state.size if stage == "nothing" else x.size
        planner.dispatch(choice, constants, arrays, words | {"count": count, "size": size},
                         choice.workgroups(count), count)  # fmt: skip
    if wide == x.dtype:
        return planner.plan(result)
    narrow = planner.empty(x.shape, x.dtype)
    emit(planner, registry, spec("copy", wide, x.dtype), narrow, [result], [ALIGN_MOST])
    return planner.plan(narrow)
