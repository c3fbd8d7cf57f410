"""Elements added to, or put into extremes, at indices along an axis: shaders/arrays/accumulate.comp."""

from __future__ import annotations

from collections.abc import Sequence

from ...registry import Registry, Request
from ...registry.shared import names_of
from ..device.caches import Kept
from ..device.device import Device, DeviceFacts
from ..device.plan import ALIGN_MOST, At, Layout, Plan, Planner, fits_binding
from ..device.record import Ready, run
from ..device.tensor import Tensor, contiguous_strides
from .axes import fewest_axes
from .map import emit
from .operations import code, spec
from .promotion import FLOAT32, INT32, INT64, kind_of

#: Plans of accumulations.
PLANS: Kept[tuple, Ready] = Kept("plans of accumulations", 256)
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
    device: Device = x._storage.device
    (found,) = run(device, PLANS, plan, (how, axis), (x.contiguous(), index, terms))
    device.runtime.flush()
    return found


def _walked(x: Tensor, index: Tensor, terms: Tensor, axis: int) -> tuple[list[int], list[list[int]]]:
    """Extents, and strides of the index, the terms and x, C order and the axis left out."""
    steps = list(contiguous_strides(x.shape))
    steps[axis] = 0
    return fewest_axes(terms.shape, [index._steps, terms._steps, tuple(steps)])


def plan(
    given: tuple[str, int], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry
) -> Plan:
    """The dispatches of an accumulation."""
    how, axis = given
    numbers = names_of("accumulation")
    planner = Planner(facts, layouts)
    x, index, terms = planner.inputs
    floating = kind_of(x.dtype) == "floating"
    wide = FLOAT32 if floating else INT64 if x.dtype == INT64 else INT32
    result = planner.empty(x.shape, wide)
    state = planner.empty((3 * x.size,), INT32, zero=True)
    choice = registry.resolve(Request("accumulate", "float32"))
    extents, steps = _walked(x, index, terms, axis)
    extents = [1] * (_AXES - len(extents)) + extents
    steps = [[0] * (_AXES - len(step)) + step for step in steps]
    words: dict = {
        "size": x.size, "x_offset": At(x), "index_offset": At(index), "terms_offset": At(terms), "y_offset": At(result),
        "step": contiguous_strides(x.shape)[axis], "extent": x.shape[axis], "share": terms.size.bit_length(),
    }  # fmt: skip
    words |= {f"e_{number}": extent for number, extent in enumerate(extents)}
    for name, step in zip("ita", steps, strict=True):
        words |= {f"{name}_{number}": value % 2**32 for number, value in enumerate(step)}
    arrays = {"x": x, "index": index, "terms": terms, "state": state, "y": result}
    for stage in ("scales", "terms", "result"):
        if stage == "scales" and not (floating and how == "add"):
            continue
        count = x.size if stage == "result" else terms.size
        groups, stripe = -(-count // choice.threads), choice.tile["stripe"]
        constants = {"TYPE_X": code(x.dtype), "TYPE": code(terms.dtype), "INDEX": code(index.dtype),
                     "REDUCTION": numbers[how], "STAGE": numbers[stage]}  # fmt: skip
        planner.dispatch(choice, constants, arrays, words | {"count": count},
                         (min(groups, stripe), -(-groups // stripe), 1), count)  # fmt: skip
    if wide == x.dtype:
        return planner.plan(result)
    narrow = planner.empty(x.shape, x.dtype)
    emit(planner, registry, spec("copy", wide, x.dtype), narrow, [result, None, None], [ALIGN_MOST, None, None])
    return planner.plan(narrow)
