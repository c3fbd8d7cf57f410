"""Convolutions of one and two axes."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import UnsupportedError
from ...registry import Registry
from ..arrays.map import emit
from ..arrays.operations import spec
from ..device.arguments import check_backend, finish, four_axes
from ..device.caches import Kept
from ..device.device import Device, DeviceFacts
from ..device.plan import Layout, Plan, Planner, fits_binding
from ..device.record import Ready, again, run
from ..device.sixteen_bits import widens
from ..device.tensor import Tensor, reshaped
from ..products.kept import find, keep
from ..products.matmul import product
from .checks import Window, checked, plain
from .direct import emit_direct, serves
from .unfold import MOST, unfold

#: Plans of convolutions.
PLANS: Kept[tuple, Ready] = Kept("plans of convolutions", 256)


@widens("x", "weight", "bias")
def convolution(
    device: Device, name: str, axes: int, x, weight, bias=None, *, stride=1, padding=0, dilation=1, groups=1,
    precision="highest",
):  # fmt: skip
    """``grilly.functional.conv1d`` and ``conv2d`` (``axes`` 1 and 2) on a device; documented there."""
    device.check_open()
    sizes = tuple(plain(value) for value in (stride, padding, dilation))
    given = (axes, *sizes, groups, precision, room(device))
    high = precision == "high" and groups == 1
    if type(x) is type(weight) is Tensor and (bias is None or type(bias) is Tensor):
        # Like an earlier call, which passed the checks?
        tensors = (x, weight, bias, find(weight)) if high else (x, weight, bias)
        done = again(device, PLANS, given, tensors)
        if done is not None:
            if len(done) > 1:
                keep(device, weight, done[1])
            device.runtime.flush()
            return done[0]
    asked = checked(name, axes, x, weight, bias, *sizes, groups, precision)
    check_backend(name, device, x, weight, bias)
    gives = (*x.shape[: -axes - 1], weight.shape[0], *asked.window.out[2 - axes :])
    if 0 in gives:
        return finish(device, device.empty(gives, x.dtype), x, weight, bias)
    table, own = sent(device, weight).contiguous(), None if bias is None else sent(device, bias).contiguous()
    tensors = (sent(device, x), table, own, find(table)) if high else (sent(device, x), table, own)
    y, *made = run(device, PLANS, plan, given, tensors)
    for parts in made:
        keep(device, table, parts)
    return finish(device, y, x, weight, bias)


def sent(device: Device, array) -> Tensor:
    """The array as a tensor."""
    return array if isinstance(array, Tensor) else device.borrow(array)


def four(x: Tensor, axes: int) -> Tensor:
    """``(N, C, H, W)`` of an array with ``axes`` of H and W, with or without N."""
    x = x if x.ndim == axes + 2 else x._selected(None)
    return x if axes == 2 else x._selected((slice(None), slice(None), None))


def room(device: Device) -> int:
    """Bytes that a matrix of windows may take."""
    limit = device.facts.storage_range
    return limit if device.memory_limit is None else min(limit, device.memory_limit // 4)


def plan(given: tuple, layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of a convolution of any array with a weight in C order.

    ``given`` are the axes, stride, padding, dilation, groups and precision of a call that passed the checks, and the
    bytes that windows may take. A fourth layout is that of a weight that was split before. Where the plan splits it,
    that is its second result.
    """
    axes, *options, most = given
    planner = Planner(facts, layouts)
    image, weight, bias, *kept = planner.inputs
    window, groups, high = checked(f"conv{axes}d", axes, image, weight, bias, *options)
    x = four(image, axes)
    table = weight.reshape(weight.shape[0], -1)
    batch, channels = x.shape[:2]
    outputs, depth = table.shape
    result = planner.empty((batch, *window.out, outputs), x.dtype)
    if serves(planner, registry, window, x, groups, outputs):
        kernels = weight if axes == 2 else weight._selected((slice(None), slice(None), None))
        emit_direct(planner, registry, window, x, kernels, bias, groups, result, (layouts[0].offset, layouts[1].offset))
        return planner.plan(_as_asked(result, axes, image.ndim))
    rows = result.reshape(-1, outputs)
    b = table.reshape(1, groups, outputs // groups, depth)
    parts = kept[0] if kept else None
    made = None
    own = bias if groups == 1 else None

    def multiply(a: Tensor, c: Tensor, offset: int) -> None:
        """Products of rows (rows, groups * depth) to rows of the result."""
        nonlocal parts, made
        a = four_axes(a.reshape(a.shape[0], groups, depth).transpose(1, 0, 2))
        c = four_axes(c.reshape(c.shape[0], groups, outputs // groups).transpose(1, 0, 2))
        found = product(
            planner, registry, "linear", a, b, c, columns_are_rows=True, bias=own, high=high and groups == 1,
            offsets=(offset, layouts[1].offset), parts_of_b=parts,
        )  # fmt: skip
        if found is not None:
            parts = made = found

    direct = as_rows(x, window) if groups == 1 else None
    if direct is not None:
        multiply(direct, rows, layouts[0].offset)
    else:
        wide = channels * window.places
        todo = list(blocks(facts, x, window.outputs, wide, most))
        scratch = planner.empty((max(count for _, _, count, _ in todo), wide), x.dtype)  # one for all parts
        for block, first, count, start in todo:
            unfold(planner, registry, window, block, first, scratch[:count])
            multiply(scratch[:count], rows[start : start + count], 16)
    if bias is not None and own is None:
        operands = [rows, bias.broadcast_to(rows.shape), None]
        emit(planner, registry, spec("add", x.dtype), rows, operands, [4, layouts[2].offset, None])
    return planner.plan(_as_asked(result, axes, image.ndim), made)


def _as_asked(result: Tensor, axes: int, ndim: int) -> Tensor:
    """``(N, h, w, O)`` as a view in the order and with the axes that the input has."""
    y = result.transpose(0, 3, 1, 2)
    y = y if axes == 2 else y._selected((slice(None), slice(None), 0))
    return y if ndim == axes + 2 else y._selected(0)


def as_rows(x: Tensor, window: Window) -> Tensor | None:
    """x as the matrix of its own windows, where these are single elements and lie so; else None."""
    if window.kernel != (1, 1) or window.padding != (0, 0) or x.shape[1] > 1 and x._steps[1] != 1:
        return None
    shape = (x.shape[0], *window.out, x.shape[1])
    steps = (x._steps[0], x._steps[2] * window.stride[0], x._steps[3] * window.stride[1], 1)
    target = (shape[0] * window.outputs, shape[3])
    found = reshaped(shape, steps, target)
    return None if found is None else x._view(target, (found[0], 1))


def blocks(facts: DeviceFacts, x: Tensor, outputs: int, columns: int, most: int, longest: int = MOST):
    """Rows of windows in parts: samples of x that fit a binding, the first row there, how many, and the first of all.

    Raises
    ------
    UnsupportedError
        Where one sample, or one row, is too large.
    """
    batch = x.shape[0]
    step = batch
    while step > 1 and not fits_binding(facts, x[:step]):
        step = -(-step // 2)
    if not fits_binding(facts, x[:step]):
        raise UnsupportedError(f"a convolution: one sample of shape {x.shape[1:]} does not fit one binding of "
                               f"{facts.storage_range:,} bytes")  # fmt: skip
    count = min(most // (columns * x.dtype.itemsize), MOST // columns, longest)
    if not count:
        raise UnsupportedError(f"a convolution: a window of {columns} elements is larger than {most:,} bytes: the "
                               "memory limit's quarter, or a binding")  # fmt: skip
    for sample in range(0, batch, step):
        block = x[sample : sample + step]
        rows = block.shape[0] * outputs
        each = -(-rows // -(-rows // count))  # parts of about one size, so that they share a pipeline
        for first in range(0, rows, each):
            yield block, first, min(each, rows - first), sample * outputs + first
