"""Convolutions of one and two axes."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import UnsupportedError
from ...registry import Registry
from ..arrays.map import emit, in_order
from ..arrays.operations import spec
from ..device.arguments import check_backend, four_axes
from ..device.call import call
from ..device.device import Device, DeviceFacts
from ..device.plan import Layout, Plan, Planner, fits_binding
from ..device.tensor import Tensor, reshaped
from ..matmul.call import Epilogue, LinearCall, Matmul
from ..matmul.finish import Finish
from ..matmul.matmul import emit_matmul
from ..matmul.split_weights import find, keep
from .checks import Window, checked, plain
from .direct import emit_direct, serves
from .unfold import MOST, unfold


def convolution(
    device: Device, name: str, axes: int, x, weight, bias=None, *, stride=1, padding=0, dilation=1, groups=1,
    precision="highest",
):  # fmt: skip
    """``grilly.functional.conv1d`` and ``conv2d`` (``axes`` 1 and 2) on a device; documented there."""
    sizes = tuple(plain(value) for value in (stride, padding, dilation))

    def check(x, weight, bias, parts) -> None:
        checked(name, axes, x, weight, bias, *sizes, groups, precision)
        check_backend(name, device, x, weight, bias)

    parts = find(weight) if precision == "high" and groups == 1 and isinstance(weight, Tensor) else None
    static = (axes, *sizes, groups, precision, room(device))
    y, *made = call(device, plan, static, (x, weight, bias, parts), check, floats=3)
    if made and isinstance(weight, Tensor):
        keep(device, weight, made[0])
    return y


def four(x: Tensor, axes: int) -> Tensor:
    """An array as a view ``(N, C, H, W)``. It may lack N, and with one axis it lacks H; these are then 1."""
    x = x if x.ndim == axes + 2 else x._selected(None)
    return x if axes == 2 else x._selected((slice(None), slice(None), None))


def room(device: Device) -> int:
    """The most bytes that a matrix of windows may take."""
    limit = device.facts.storage_range
    return limit if device.memory_limit is None else min(limit, device.memory_limit // 4)


def plan(given: tuple, layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry) -> Plan:
    """The plan of a convolution. Results: the output and, where the plan splits the weight, its split.

    Parameters
    ----------
    given : tuple
        Axes, stride, padding, dilation, groups and precision of a call that passed the checks, and the most bytes that
        a matrix of windows may take (``room``). In captured work a ``Behind`` may follow.
    layouts : sequence of Layout or None
        The input, the weight, the bias and the weight's split, where one is kept; then the arrays of what stands
        behind.
    """
    axes, stride, padding, dilation, groups, precision, most, *behind = given
    options = (stride, padding, dilation, groups, precision)
    planner = Planner(facts, layouts)
    image, weight, bias, parts, *others = planner.inputs
    window, groups, high = checked(f"conv{axes}d", axes, image, weight, bias, *options)
    x = four(image, axes)
    batch, channels = x.shape[:2]
    outputs = weight.shape[0]
    result = planner.empty((batch, *window.out, outputs), x.dtype)
    if not result.size:
        return planner.plan(_as_asked(result, axes, image.ndim))
    weight, w_offset = in_order(planner, registry, weight, layouts[1].offset)
    if bias is not None:
        bias, b_offset = in_order(planner, registry, bias, layouts[2].offset)
    table = weight.reshape(outputs, -1)
    depth = table.shape[1]
    rows = result.reshape(-1, outputs)
    finish = Finish.of(registry, *behind, others, *rows.shape) if behind else Finish()
    noted = LinearCall(plan, given, finishes=True)
    if serves(planner, registry, window, x, groups, outputs):
        kernels = weight if axes == 2 else weight._selected((slice(None), slice(None), None))
        offsets = (layouts[0].offset, w_offset)
        emit_direct(planner, registry, window, x, kernels, bias, groups, result, offsets, finish)
        return planner.plan(_as_asked(result, axes, image.ndim), operation=noted)
    b = table.reshape(1, groups, outputs // groups, depth)
    made = None
    own = bias if groups == 1 else None
    if finish.filling is not None and groups > 1:
        raise UnsupportedError("nothing stands behind products of several groups")

    def multiply(a: Tensor, c: Tensor, offset: int) -> None:
        """Multiply windows ``(rows, groups * depth)`` by the weight; c is ``(rows, outputs)``."""
        nonlocal parts, made
        a = four_axes(a.reshape(a.shape[0], groups, depth).transpose(1, 0, 2))
        c = four_axes(c.reshape(c.shape[0], groups, outputs // groups).transpose(1, 0, 2))
        offsets = (offset, w_offset)
        matmul = Matmul("linear", a, b, c, bias=own, high=high and groups == 1, offsets=offsets, split_b=parts,
                        epilogue=Epilogue(finish=finish))  # fmt: skip
        found = emit_matmul(planner, registry, matmul)
        if found is not None:
            parts = made = found

    direct = as_rows(x, window) if groups == 1 else None
    if direct is not None:
        multiply(direct, rows, layouts[0].offset)
    else:
        wide = channels * window.places
        todo = list(blocks(facts, x, window.outputs, wide, most))
        if finish.filling is not None and len(todo) > 1:
            raise UnsupportedError("nothing stands behind a product in parts")
        scratch = planner.empty((max(count for _, _, count, _ in todo), wide), x.dtype)  # one for all parts
        for block, first, count, start in todo:
            unfold(planner, registry, window, block, first, scratch[:count])
            multiply(scratch[:count], rows[start : start + count], 16)
    if bias is not None and own is None:
        operands = [rows, bias.broadcast_to(rows.shape)]
        emit(planner, registry, spec("add", x.dtype), rows, operands, [4, b_offset])
    return planner.plan(_as_asked(result, axes, image.ndim), made, operation=noted)


def _as_asked(result: Tensor, axes: int, ndim: int) -> Tensor:
    """A result ``(N, h, w, O)`` as a view with the input's axes in the input's order."""
    y = result.transpose(0, 3, 1, 2)
    y = y if axes == 2 else y._selected((slice(None), slice(None), 0))
    return y if ndim == axes + 2 else y._selected(0)


def as_rows(x: Tensor, window: Window) -> Tensor | None:
    """x as its own matrix of windows: a view, for 1 x 1 kernels without padding. None where there is none."""
    if window.kernel != (1, 1) or window.padding != (0, 0) or x.shape[1] > 1 and x._strides[1] != 1:
        return None
    shape = (x.shape[0], *window.out, x.shape[1])
    strides = (x._strides[0], x._strides[2] * window.stride[0], x._strides[3] * window.stride[1], 1)
    target = (shape[0] * window.outputs, shape[3])
    found = reshaped(shape, strides, target)
    return None if found is None else x._view(target, (found[0], 1))


def blocks(facts: DeviceFacts, x: Tensor, outputs: int, columns: int, most: int, longest: int = MOST):
    """Cut the matrix of windows of x into blocks of rows.

    Parameters
    ----------
    x : Tensor
        ``(N, C, H, W)``.
    outputs, columns : int
        Rows of the matrix for each sample, and elements of a row.
    most : int
        The most bytes of a block.
    longest : int
        The most rows of a block.

    Yields
    ------
    samples, first, count, start
        Samples of x that fit a binding; the block's first row among their windows, and its rows; its first row in the
        whole matrix.

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
