"""Activations."""

from __future__ import annotations

from collections.abc import Callable

from ... import array_api as xp
from ... import functional as F
from ...compute import Tensor
from ...compute.arrays.activations import apply
from ...compute.backend import device_of
from ...compute.expressions.records import OPERATIONS, Operation
from ..table import OPERATORS, Call, is_floating, operator, wide, within


def _of_record(record: Operation) -> Callable[[Call, Tensor], Tensor]:
    """An activation in one dispatch, with the numbers that the node has."""
    defaults = [*record.numbers.values()]

    def function(call: Call, x: Tensor) -> Tensor:
        numbers = [float(call.get(name, value)) for name, value in record.attributes.items()]
        told = [*numbers, *defaults[len(numbers) :]]
        return apply(device_of(record.name, x), record.name, record.name, told, x=x)  # type: ignore[no-any-return]

    return function


def _enter_all() -> None:
    """The activations of the records that are no functions of the array API."""
    for record in OPERATIONS.values():
        if record.onnx and not hasattr(xp, record.name):
            operator(record.onnx)(_of_record(record))


_enter_all()


@operator("Relu")
def relu(call: Call, x: Tensor) -> Tensor:
    """``max(x, 0)``."""
    return F.relu(x) if is_floating(x) else xp.maximum(x, 0)


@operator("Gelu")
def gelu(call: Call, x: Tensor) -> Tensor:
    """The Gaussian error linear unit."""
    return F.gelu(x, approximate=call.get("approximate", "none"))


@operator("SwiGLU")
def swiglu(call: Call, gate: Tensor, up: Tensor) -> Tensor:
    """``gate sigmoid(alpha gate) up``."""
    if call.get("alpha", 1.0) == 1:
        return F.swiglu(gate, up)
    return xp.multiply(OPERATORS["Swish"].function(call, wide(gate)), wide(up)).astype(gate.dtype, copy=False)


@operator("PRelu")
def parametric_relu(call: Call, x: Tensor, slope: Tensor) -> Tensor:
    """``slope x`` below 0."""
    return xp.where(xp.less(x, 0), xp.multiply(x, slope), x)


def _by_rows(call: Call, x: Tensor, function: Callable[..., Tensor]) -> Tensor:
    """A softmax along an axis; before version 13 of rows that begin at the axis."""
    if call.version >= 13:
        return function(x, call.get("axis", -1))
    axis = within(int(call.get("axis", 1)), x.ndim) if x.ndim else 0
    rows = 1
    for extent in x.shape[:axis]:
        rows *= extent
    return function(x.reshape((rows, x.size // max(rows, 1))), 1).reshape(x.shape)


@operator("Softmax")
def softmax(call: Call, x: Tensor) -> Tensor:
    """``exp(x) / sum(exp(x))``."""
    return _by_rows(call, x, F.softmax)


@operator("LogSoftmax")
def log_softmax(call: Call, x: Tensor) -> Tensor:
    """The logarithm of the softmax."""
    return _by_rows(call, x, F.log_softmax)


@operator("Hardmax")
def hardmax(call: Call, x: Tensor) -> Tensor:
    """1 at the first of the largest elements, else 0."""

    def of_rows(rows: Tensor, axis: int) -> Tensor:
        axis = within(int(axis), rows.ndim)
        if not rows.size:
            return rows
        places = xp.arange(rows.shape[axis], device=call.backend)
        places = places.reshape(tuple(-1 if a == axis else 1 for a in range(rows.ndim)))
        return xp.equal(places, xp.argmax(rows, axis=axis, keepdims=True)).astype(rows.dtype, copy=False)

    return _by_rows(call, x, of_rows)


_shrink = _of_record(OPERATIONS["onnx_shrink"])


@operator("Shrink")
def shrink(call: Call, x: Tensor) -> Tensor:
    """``x`` moved towards 0 by ``bias`` where it is farther away than ``lambd``, else 0; of integers as of float32."""
    y = x if is_floating(x) else x.astype("float32", copy=False)
    return _shrink(call, y).astype(x.dtype, copy=False)
