"""Self-checks of holes: a few functions that together have every instruction of expressions.

Each is computed by the elementwise kernel and by NumPy, of the same numbers. All but the library's functions of floats
are exact, so results are compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ...registry import Choice, Registry
from ..arrays.map import Work, emit_work
from ..arrays.map_several import emit_several
from ..arrays.promotion import BOOL, FLOAT32, INT64
from ..device.call import run
from ..device.device import Device, DeviceFacts
from ..device.dtypes import dtype_of
from ..device.plan import ALIGN_MOST, Layout, Plan, Planner
from ..device.trial import pin, view_of
from ..expressions import native
from ..expressions.expression import Expression, traced
from ..expressions.scalars import Scalar

_INT32, _UINT32, _INT8, _UINT16, _FLOAT16 = map(dtype_of, ("int32", "uint32", "int8", "uint16", "float16"))
#: Numbers that each function is computed of.
_COUNT = 512
#: What results of the library's functions of floats may differ by, relative to the terms that were added up: four
#: roundings of float32, which all of them keep (docs/arrays.md).
_BOUND = 2.0**-21


def _rounded(x: np.ndarray) -> np.ndarray:
    """float32 numbers as bfloat16 holds them."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


#: grilly's operations on scalars, and NumPy's functions of the same names.
_SCALARS = SimpleNamespace(
    **Scalar.operations, as_bfloat16=lambda x: x.astype("bfloat16").astype(FLOAT32), native_divided=native.divided,
    native_root=native.root, native_exp2=native.power_of_two, native_fused=native.fused,
)  # fmt: skip
_NUMPY = SimpleNamespace(
    abs=np.abs, exp=np.exp, floor=np.floor, hypot=np.hypot, log=np.log, sin=np.sin, sqrt=np.sqrt, tanh=np.tanh,
    where=np.where, relu=lambda x: np.where(x > 0, x, np.float32(0)), as_bfloat16=_rounded, native_divided=np.divide,
    native_root=np.sqrt, native_exp2=np.exp2, native_fused=lambda x, y, z: x * y + z,
)  # fmt: skip


class _Check(NamedTuple):
    """A function of scalars or arrays, the dtypes that it is of, and that which it gives.

    Attributes
    ----------
    function : callable
        Of a namespace of functions, and numbers.
    takes : tuple of numpy.dtype
    gives : numpy.dtype
    is_exact : bool
    """

    function: Callable[..., Any]
    takes: tuple[np.dtype, ...]
    gives: np.dtype
    is_exact: bool = True


def _floats(xp: Any, x: Any, y: Any) -> Any:
    """Products and sums that are rounded one by one, and bits."""
    found = x * y + x - y * y
    return xp.where((x < y) & ~(x == 3.0), -found, xp.relu(found) * 0.5)


def _tests(xp: Any, x: Any, y: Any) -> Any:
    """Truth values: comparisons, and what is made of them."""
    less, equal, positive = x < y, x == y, x > 0
    return ((less | equal) != positive) ^ (xp.where(less, positive, equal) & ~positive) ^ (less == positive)


def _integers(xp: Any, x: Any, y: Any) -> Any:
    """Sums, products and bits that wrap around."""
    places = y & 15
    found = (x + y) * (x - y) ^ (x << places) ^ (~x >> places) ^ (x | y)
    return xp.where(x > y, found, xp.where(x < -y, -found, found + 1))


def _unsigned(xp: Any, x: Any, y: Any) -> Any:
    places = y & 15
    return xp.where(x > y, x >> places, (x << places) - y * x) + (x != y)


def _longs(xp: Any, x: Any, y: Any) -> Any:
    """Integers of 64 bits: all of the library's functions of them."""
    odd = y | 1
    found = (x + y) * (x - y) + (x // odd) - (x % odd) + (x & 15) ** (y & 7)
    return xp.where(x < y, found << (y & 63), found >> (x & 63)) ^ x


def _small(xp: Any, x: Any, y: Any) -> Any:
    """Conversions between integers and floats of all widths."""
    whole = x.astype(_INT32) * y.astype(_INT32) + x.astype(INT64).astype(_INT32)
    half = (x.astype(FLOAT32) * 0.37).astype(_FLOAT16).astype(FLOAT32)
    cut = (half * 3.0).astype(INT64).astype(FLOAT32)
    return half + xp.as_bfloat16(y.astype(_UINT32).astype(FLOAT32)) - cut + whole.astype(FLOAT32)


def _library(xp: Any, x: Any, y: Any) -> Any:
    """Functions of floats."""
    positive = xp.abs(y) + 0.5
    return (
        xp.exp(x * 0.25) + xp.log(positive) + xp.sin(x) + xp.sqrt(positive) + xp.tanh(y) + xp.floor(x) + x / positive
        + xp.hypot(x, y) + xp.native_divided(x, positive) + xp.native_root(positive) + xp.native_exp2(y * 0.0625)
        + xp.native_fused(x, y, positive)
    )  # fmt: skip


CHECKS = {
    "floats": _Check(_floats, (FLOAT32, FLOAT32), FLOAT32),
    "tests": _Check(_tests, (FLOAT32, FLOAT32), BOOL),
    "integers": _Check(_integers, (_INT32, _INT32), _INT32),
    "unsigned integers": _Check(_unsigned, (_UINT32, _UINT32), _UINT32),
    "integers of 64 bits": _Check(_longs, (INT64, INT64), INT64),
    "conversions": _Check(_small, (_INT8, _UINT16), FLOAT32),
    "functions": _Check(_library, (FLOAT32, FLOAT32), FLOAT32, is_exact=False),
}


def check(device: Device, choice: Choice, facts: Mapping[str, int]) -> str | None:
    """Compute each function by a hole of the elementwise kernel; what sets it apart from NumPy, or None."""
    view = pin(view_of(device), choice)
    for name, one in CHECKS.items():
        given = [_numbers(place, dtype) for place, dtype in enumerate(one.takes)]
        found = run(view, plan, (name,), [view.tensor(array) for array in given])[0].numpy()
        off = _difference(one, given, found)
        if off is not None:
            return f"{name}: {off}"
    given = [_numbers(place, FLOAT32) for place in range(2)]
    together = run(view, plan, ("floats", "tests"), [view.tensor(array) for array in given])
    for name, found in zip(("floats", "tests"), together, strict=True):
        off = _difference(CHECKS[name], given, found.numpy())
        if off is not None:
            return f"{name}, in a dispatch of several results: {off}"
    return None


def expression_of(name: str) -> Expression:
    """The expression that a function is."""
    found = _EXPRESSIONS.get(name)
    if found is None:
        one = CHECKS[name]
        found = traced(lambda *scalars: one.function(_SCALARS, *scalars), one.takes, [], None, one.gives)
        _EXPRESSIONS[name] = found
    return found


_EXPRESSIONS: dict[str, Expression] = {}


def plan(names: tuple[str, ...], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatch of one function on arrays of one shape, or of several."""
    planner = Planner(facts, layouts)
    results = [planner.empty(planner.inputs[0].shape, CHECKS[name].gives) for name in names]
    offsets = [ALIGN_MOST] * len(layouts)
    if len(names) == 1:
        emit_work(planner, registry, Work(expression_of(names[0])), results[0], planner.inputs, offsets)
    else:
        expression = Expression(*(expression_of(name).output for name in names))
        emit_several(planner, registry, expression, results, planner.inputs, offsets)
    return planner.plan(*results)


def _numbers(seed: int, dtype: np.dtype) -> np.ndarray:
    """Numbers of a dtype, those at its ends among them; floats have few digits and are not small."""
    rng = np.random.default_rng([seed, dtype.itemsize])
    if dtype == FLOAT32:
        found = rng.standard_normal(_COUNT).astype(dtype) * 4
        found[:6] = [0.0, -0.0, 1.0, -1.0, 3.0, 0.125]
        found[6:64:2] = 3.0  # so that some are equal
        return found
    ends = np.iinfo(dtype)
    found = rng.integers(ends.min, ends.max, _COUNT, dtype, endpoint=True)
    found[:4] = [0, 1, ends.min, ends.max]
    return rng.permutation(found)


def _difference(one: _Check, given: Sequence[np.ndarray], found: np.ndarray) -> str | None:
    """What sets results apart from NumPy's, or None."""
    with np.errstate(all="ignore"):
        if one.is_exact:
            wanted = np.asarray(one.function(_NUMPY, *given)).astype(one.gives)
            wrong = found.view(np.uint8).reshape(_COUNT, -1) != wanted.view(np.uint8).reshape(_COUNT, -1)
            wrong = wrong.any(axis=1)
        else:
            wide = [array.astype(np.float64) for array in given]
            wanted = one.function(_NUMPY, *wide)
            wrong = ~(np.abs(found - wanted) <= _BOUND * (np.abs(wanted) + np.abs(wide[0]) + np.abs(wide[1]) + 16))
    if not wrong.any():
        return None
    place = int(wrong.argmax())
    of = " and ".join(str(array[place]) for array in given)
    return f"{found[place]} of {of}, {wanted[place]} expected, and {int(wrong.sum()) - 1} more of {_COUNT} results"
