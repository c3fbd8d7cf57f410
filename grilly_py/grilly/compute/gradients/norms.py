"""Gradients of norms and softmaxes. The gradients of these are noted as elementwise operations and sums."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...errors import GradientError
from ..arrays.elementwise import binary, cast, unary
from ..arrays.promotion import FLOAT32
from ..arrays.reductions import moment, sum_of
from ..device.call import IN_PARTS, on_device
from ..device.device import Device
from ..device.tape import Entry
from ..device.tensor import Tensor
from ..norms import backward, softmax
from ..norms.plan import NormTerms, plan
from .records import gradient_of


def _read(static: tuple, needs: tuple[bool, ...]) -> tuple[tuple[int, ...], bool]:
    """Of norms x and the weight, and where x is the sum of two arrays, that result; of softmaxes the result."""
    if static[0].operation not in ("LAYER_NORM", "RMS_NORM"):
        return (), True
    is_sum = len(static) > 2 and static[2]
    return (2,) if is_sum else (0, 2), is_sum


@gradient_of(plan, reads=_read)
def _rows(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    terms = entry.static[0]
    if terms.operation in ("LAYER_NORM", "RMS_NORM"):
        return _norm(entry, terms, gradients)
    (gradient,), (y,) = gradients, entry.results
    device, axis = gradient._storage.device, terms.axis
    if terms.operation == "LOG_SOFTMAX":
        return (softmax.log_softmax_backward(device, gradient, y, axis),)
    if terms.operation in ("SOFTMAX", "ATTENTION_SOFTMAX"):
        return (softmax.softmax_backward(device, gradient, y, axis),)
    raise GradientError(f"there is no gradient of {terms.operation}")


def _norm(entry: Entry, terms: NormTerms, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    x, _, weight, _ = entry.arrays
    gradient, of_sum = gradients if len(gradients) > 1 else (gradients[0], None)
    if len(entry.results) > 1:  # what was normed is the sum of two arrays
        x = entry.results[1]
    if gradient is None:
        return of_sum, of_sum
    device, dbias = gradient._storage.device, None
    if terms.groups:
        dx, dweight, *_ = backward.group_norm_backward(device, gradient, x, terms.groups, weight, terms.epsilon)
        axes = tuple(axis for axis in range(gradient.ndim) if axis != 1)
    elif terms.operation == "RMS_NORM":
        dx, dweight = backward.rms_norm_backward(device, gradient, x, entry.static[1], weight, terms.epsilon,
                                                 terms.added)  # fmt: skip
    else:
        dx, dweight, *_ = backward.layer_norm_backward(device, gradient, x, entry.static[1], weight, terms.epsilon)
        axes = tuple(range(terms.kept))
    if entry.needs[3]:
        dbias = sum_of("sum", gradient, axes) if axes else gradient
    if of_sum is not None:
        dx = binary("add", dx, of_sum)
    return dx, dx, dweight, dbias


def _softmax_gradient(device: Device, static: tuple, arrays: Sequence) -> list[Tensor] | None:
    """The gradient of a softmax, or of its logarithm, from the result y."""
    (terms, *_), (y, gradient, *_) = static, arrays
    if not terms.operation.endswith("_BACKWARD"):
        return None
    y, gradient = (cast(on_device(device, array), FLOAT32) for array in (y, gradient))
    if terms.operation == "LOG_SOFTMAX_BACKWARD":
        whole = sum_of("sum", gradient, terms.axis, None, True)
        found = binary("subtract", gradient, binary("multiply", unary("exp", y), whole))
    else:
        whole = sum_of("sum", binary("multiply", gradient, y), terms.axis, None, True)
        found = binary("multiply", y, binary("subtract", gradient, whole))
    return [cast(found, arrays[0].dtype)]


def _norm_gradients(device: Device, static: tuple, arrays: Sequence) -> list[Tensor]:
    """The gradients of a norm by x, weight and bias, as ``backward.plan_gradients`` gives them."""
    terms, axes, biased, _ = static
    x, gradient, weight = (None if a is None else cast(on_device(device, a), FLOAT32) for a in arrays[:3])
    lead = (x.shape[0], terms.groups) if terms.groups else x.shape[: terms.kept]
    flat = (*lead, x.size // max(math.prod(lead), 1))
    each = gradient
    if weight is not None:
        of_channels = weight.reshape(-1, *(1,) * (x.ndim - 2)) if terms.groups else weight
        each = gradient * (of_channels + terms.added)
    each, rows = each.reshape(flat), x.reshape(flat)
    is_layer = terms.operation == "LAYER_NORM_BACKWARD"
    if is_layer:
        rows = rows - moment("mean", rows, -1, True)
    inverse = 1.0 / unary("sqrt", moment("mean", rows * rows, -1, True) + terms.epsilon)
    normed = rows * inverse
    inner = each - normed * moment("mean", each * normed, -1, True)
    if is_layer:
        inner = inner - moment("mean", each, -1, True)
    found = [(inner * inverse).reshape(x.shape)]
    if weight is not None:
        products = (gradient * normed.reshape(x.shape), gradient) if biased else (gradient * normed.reshape(x.shape),)
        found += [sum_of("sum", product, axes) if axes else product for product in products]
    return [cast(one, arrays[0].dtype) for one in found]


IN_PARTS[plan] = _softmax_gradient
IN_PARTS[backward.plan_gradients] = _norm_gradients
