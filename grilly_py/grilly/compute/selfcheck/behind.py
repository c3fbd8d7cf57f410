"""Self-checks of expressions behind products and convolutions, before a kernel's first one.

What an expression makes of a kernel's results is compared, bit for bit, with what it makes of them in a dispatch of its
own, which was checked before (expressions.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...quantization.tensor import quantize
from ...registry import Choice, Registry
from ..arrays.elementwise import cast
from ..arrays.map import Work, emit_work
from ..arrays.promotion import FLOAT32
from ..convolution.forward import plan as convolution
from ..convolution.forward import room
from ..device.call import run
from ..device.device import Device, DeviceFacts
from ..device.dtypes import dtype_of
from ..device.plan import ALIGN_MOST, Layout, Plan, Planner
from ..device.tensor import Tensor
from ..device.trial import pin, view_of
from ..expressions.expression import Expression, traced
from ..expressions.scalars import Scalar
from ..matmul.finish import MOST, Behind
from ..matmul.linear import plan as linear
from ..matmul.quantized import plan as quantized
from ..quantized import placed


class Problem(NamedTuple):
    """A product or a convolution: its plan, what that is given, and the columns of its result."""

    plan: Callable
    static: tuple
    arrays: tuple[Tensor | None, ...]
    cols: int


def _numbers(device: Device, dtype: np.dtype, *shape: int) -> Tensor:
    return cast(device.tensor(np.random.default_rng(shape).standard_normal(shape).astype(np.float32)), dtype)


def _linear(device: Device, choice: Choice, dtype: np.dtype) -> Problem:
    """A block, and some rows and columns of others."""
    tile, most = choice.tile, choice.variant.limits.get("rows", (1, 2**31))[1]
    rows, cols, depth = min(tile["rows"] + 3, most), tile["cols"] + 8, 64
    x, weight = _numbers(device, dtype, rows, depth), _numbers(device, dtype, cols, depth)
    return Problem(linear, (False, None, False, ()), (x, weight, None, None, None, None), cols)


def _quantized(device: Device, choice: Choice, dtype: np.dtype) -> Problem:
    weight = placed(device, quantize(np.random.default_rng(0).standard_normal((24, 256), dtype=np.float32), "Q4_0"))
    x = _numbers(device, dtype, 3, 256)
    return Problem(quantized, (weight.types, False, None, False, ()), (x, None, None, None, *weight.arrays), 24)


def _convolution(device: Device, choice: Choice, dtype: np.dtype) -> Problem:
    """Of images whose channels are last."""
    tile, (height, width, channels) = choice.tile, (9, 7, 8)
    if choice.variant.operation == "convolution-matrix":
        height, width, channels = 2 * tile["rows"] - 1, 2 * tile["columns"] - 3, tile["step"]
    x, weight = _numbers(device, dtype, 2, height, width, channels), _numbers(device, dtype, 8, channels, 3, 3)
    static = (2, (1, 1), (1, 1), (1, 1), 1, "highest", room(device))
    return Problem(convolution, static, (x.transpose(0, 3, 1, 2), weight, None, None), 8)


PROBLEMS = {
    "linear": _linear, "linear-quantized": _quantized, "convolution": _convolution, "convolution-matrix": _convolution,
}  # fmt: skip


def _long(y: Scalar, r: Scalar, p: Scalar) -> Scalar:
    where, relu = Scalar.operations["where"], Scalar.operations["relu"]
    return where(y < r, y * p - r, relu(y - r) * 0.5)


def _short(y: Scalar, r: Scalar, p: Scalar) -> Scalar:
    """For kernels that take no long ones."""
    return y + r


def view_for(device: Device, choice: Choice) -> Device:
    """A view of the device that computes with a kernel."""
    view = pin(view_of(device), choice)
    view.facts = replace(view.facts, units=1)  # small problems are left to other kernels by large devices
    return view


def problem_of(view: Device, choice: Choice) -> Problem:
    """The problem that a kernel is checked with."""
    return PROBLEMS[choice.variant.operation](view, choice, dtype_of(choice.variant.dtype))


def check(device: Device, choice: Choice, facts: Mapping[str, int]) -> str | None:
    """Compute an expression behind a kernel's results, and apart from them."""
    view, dtype = view_for(device, choice), dtype_of(choice.variant.dtype)
    problem, expression = problem_of(view, choice), expression_of(choice, dtype)
    y = _rows(run(view, problem.plan, problem.static, problem.arrays)[0], problem.cols)
    r, p = others(view, dtype, *y.shape)
    found = run(view, problem.plan, (*problem.static, Behind(expression, ())), (*problem.arrays, r, p))[0]
    wanted = run(view, apart, (expression,), (y, r, p))[0]
    got, expected = (cast(_rows(each, problem.cols), FLOAT32).numpy() for each in (found, wanted))
    wrong = got.view(np.uint32) != expected.view(np.uint32)
    if not wrong.any():
        return None
    return (
        f"an expression behind it: {got[wrong][0]}, {expected[wrong][0]} expected, and {int(wrong.sum()) - 1} more of "
        f"{wrong.size} results"
    )


def expression_of(choice: Choice, dtype: np.dtype) -> Expression:
    """The expression that a kernel is checked with, of its result and two arrays."""
    long = _traced(_long, dtype)
    is_taken = MOST.length_of([long.output]) <= choice.tile.get("finish", MOST.nodes)
    return long if is_taken else _traced(_short, dtype)


def _traced(function: Callable[..., Scalar], dtype: np.dtype) -> Expression:
    key = function, dtype.name
    if key not in _EXPRESSIONS:
        _EXPRESSIONS[key] = traced(function, (dtype,) * 3, [], None, dtype)
    return _EXPRESSIONS[key]


_EXPRESSIONS: dict[tuple[Callable, str], Expression] = {}


def others(device: Device, dtype: np.dtype, rows: int, cols: int) -> tuple[Tensor, Tensor]:
    """The two arrays: as the result, and with an element for each column."""
    return _numbers(device, dtype, rows, cols), _numbers(device, dtype, cols).broadcast_to((rows, cols))


def _rows(y: Tensor, cols: int) -> Tensor:
    """A result with two axes, in the order in which it lies."""
    return (y.transpose(0, 2, 3, 1) if y.ndim == 4 else y).reshape(-1, cols)


def apart(given: tuple[Expression], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The plan of the expression in a dispatch of its own."""
    planner = Planner(facts, layouts)
    result = planner.empty(layouts[0].shape, layouts[0].dtype)
    emit_work(planner, registry, Work(given[0]), result, planner.inputs, [ALIGN_MOST] * len(layouts))
    return planner.plan(result)
