"""The gradients of convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import UnsupportedError
from ...registry import Registry
from ..arrays.elementwise import binary
from ..arrays.map import emit
from ..arrays.operations import spec
from ..arrays.promotion import FLOAT32
from ..arrays.reductions import reduced
from ..device.arguments import check_backend, four_axes
from ..device.call import call, on_device, run
from ..device.device import Device, DeviceFacts
from ..device.plan import ALIGN_MOST, Layout, Plan, Planner, fits_binding
from ..device.tensor import Tensor
from ..matmul.call import Matmul
from ..matmul.matmul import emit_matmul
from .checks import Asked, checked, plain
from .forward import blocks, four, room
from .unfold import MOST, fold, unfold

_LONGEST = 2**16  # places of the output whose products are added up in one dispatch


def convolution_backward(
    device: Device, name: str, axes: int, grad_output, x, weight, *, stride=1, padding=0, dilation=1, groups=1,
    precision="highest", needs: Sequence[bool] = (True, True, True),
):  # fmt: skip
    """``grilly.functional.conv1d_backward`` and ``conv2d_backward`` on a device; documented there.

    ``needs``: which gradients are wanted; None stands for the others.
    """

    def record(grad_output, x, weight):
        asked = checked(name, axes, x, weight, None, stride, padding, dilation, groups, precision,
                        grad_output=grad_output)  # fmt: skip
        check_backend(name, device, grad_output, x, weight)
        shape, gives = tuple(x.shape), (*x.shape[: -axes - 1], weight.shape[0], *asked.window.out[2 - axes :])
        if tuple(grad_output.shape) != gives:
            raise ValueError(
                f"{name}: grad_output has shape {tuple(grad_output.shape)}; expected the output's, {gives}"
            )
        if 0 in (*gives, *shape):
            sizes = (shape, tuple(weight.shape), weight.shape[:1])
            return [device.tensor(np.zeros(size, x.dtype)) for size in sizes], None
        sent = (on_device(device, one) for one in (grad_output, x, weight))
        return _gradients(device, asked, axes, *sent, needs), None

    static = (axes, *map(plain, (stride, padding, dilation)), groups, precision, tuple(needs))
    return tuple(call(device, plan_weights, static, (grad_output, x, weight), record=record, floats=3, results=3))


def _gradients(
    device: Device, asked: Asked, axes: int, grad_output: Tensor, x: Tensor, weight: Tensor, needs: Sequence[bool]
) -> list[Tensor | None]:
    """Record the gradients of x, weight and bias of a checked convolution, of those that are wanted."""
    g, images = four(grad_output, axes), four(x, axes)
    outputs, groups, depth = weight.shape[0], asked.groups, weight.shape[1] * asked.window.places
    columns = g.transpose(1, 0, 2, 3).contiguous().reshape(outputs, -1) if any(needs[1:]) else None
    dx = dweight = dbias = None
    if needs[0]:
        rows = g.transpose(0, 2, 3, 1).contiguous().reshape(-1, outputs)
        table = weight.reshape(groups, outputs // groups, depth).transpose(0, 2, 1).contiguous()
        dx = run(device, plan_inputs, (asked, room(device), images.shape), (rows, table))[0].reshape(x.shape)
    if needs[1]:
        (parts,) = run(device, plan_weights, (asked, room(device)), (images, columns))
        dweight = _added(device, parts).reshape(weight.shape)
    if needs[2]:
        dbias = reduced("sum", columns, 1, False, x.dtype)
    return [dx, dweight, dbias]


def _added(device: Device, parts: Tensor) -> Tensor:
    """The sum of parts ``(n, ...)`` over the first axis."""
    if parts.shape[0] == 1:
        return parts._selected(0)
    if parts._storage.nbytes <= device.facts.storage_range:
        return reduced("sum", parts, 0, False, parts.dtype)
    found = parts._selected(0)  # a row of a reduction is to fit a binding
    for number in range(1, parts.shape[0]):
        found = binary("add", found, parts._selected(number))
    return found


def plan_inputs(
    given: tuple[Asked, int, tuple[int, ...]], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry
) -> Plan:
    """The plan of the gradient by the input: a product gives the gradients of the windows, and ``fold`` adds them up.

    Where windows overlap their matrix is transposed, so that neighbours in an image read neighbours in memory.

    Parameters
    ----------
    given : tuple
        The checked convolution, the most bytes that a matrix of windows may take, and the input's shape (N, C, H, W).
    layouts : sequence of Layout
        The output's gradient ``(N h w, O)``, and the weight ``(groups, C / groups * places, O / groups)``.
    """
    (window, groups, high), most, shape = given
    planner = Planner(facts, layouts)
    rows, table = planner.inputs
    batch, channels = shape[:2]
    own, outputs = channels // groups, rows.shape[1] // groups
    result = planner.empty(shape, rows.dtype)
    transposed = window.stride[1] < window.kernel[1]
    places, size = window.places, rows.dtype.itemsize
    offsets = (layouts[1].offset, layouts[0].offset) if transposed else (layouts[0].offset, layouts[1].offset)
    todo = list(_parts(facts, result, window.outputs * places, groups, most))
    target = result
    if size == 2 and any(part._offset % 4 for part, *_ in todo):  # they would share words
        target = planner.empty(shape, FLOAT32)
        todo = [(target._view(part.shape, part._strides, part._offset), *rest) for part, *rest in todo]
    scratch = planner.empty(
        (max(part.shape[0] * part.shape[1] for part, *_ in todo) * window.outputs * places,), rows.dtype
    )  # one for all parts
    for part, sample, group, channel in todo:
        several = part.shape[1] // own or 1  # groups
        count, depth = part.shape[0] * window.outputs, min(part.shape[1], own) * places
        some = rows[sample * window.outputs : sample * window.outputs + count]
        g = four_axes(some.reshape(count, groups, outputs).transpose(1, 0, 2)[group : group + several])
        w = four_axes(table[group : group + several, channel * places : channel * places + depth])
        if transposed:
            windows = scratch[: several * depth * count].reshape(several, depth, count)
            a, b, c, strides = w, g, four_axes(windows), (1, count)
        else:
            windows = scratch[: several * depth * count].reshape(count, several, depth)
            a, b, c, strides = g, w, four_axes(windows.transpose(1, 0, 2)), (several * depth, 1)
        emit_matmul(planner, registry, Matmul("linear", a, b, c, high=high and groups == 1, offsets=offsets))
        fold(planner, registry, window, windows, strides, part)
    if target is not result:
        emit(planner, registry, spec("copy", FLOAT32, rows.dtype), result, [target], [4])
    return planner.plan(result)


def _parts(facts: DeviceFacts, result: Tensor, each: int, groups: int, most: int):
    """Cut the gradient ``(N, C, H, W)`` into parts whose windows, ``each`` elements for a channel, fit ``most`` bytes.

    A part is samples with all channels, or channels of one group of one sample.

    Yields
    ------
    part, sample, group, channel
        A view of the gradient, its first sample, its first group, and its first channel in that group.

    Raises
    ------
    UnsupportedError
        Where the windows of one channel do not fit.
    """
    batch, channels, height, width = result.shape
    own, size = channels // groups, result.dtype.itemsize
    limit = min(most // (each * size), MOST // each)  # channels

    def fits(part: Tensor) -> bool:
        return part.size <= MOST and fits_binding(facts, part)

    step = min(limit // channels, batch)
    while step > 1 and not fits(result[:step]):
        step //= 2
    if step and fits(result[:step]):
        for sample in range(0, batch, step):
            yield result[sample : sample + step], sample, 0, 0
        return
    step = min(limit, own)
    while step > 1 and not fits(result[:1, :step]):
        step //= 2
    if not step or not fits(result[:1, :step]):
        raise UnsupportedError(f"the gradient of a convolution: the windows of one channel of {height} x {width} are "
                               f"larger than {most:,} bytes: the memory limit's quarter, or a binding")  # fmt: skip
    for sample in range(batch):
        for channel in range(0, channels, own):
            for first in range(0, own, step):
                last = channel + min(first + step, own)
                yield result[sample : sample + 1, channel + first : last], sample, channel // own, first


def plan_weights(given: tuple[Asked, int], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The plan of the gradient by the weight: products of the output's gradient and the windows.

    The result is ``(n, groups, O / groups, C / groups * places)``, whose n parts are still to be added up.

    Parameters
    ----------
    given : tuple
        The checked convolution, and the most bytes that a matrix of windows may take.
    layouts : sequence of Layout
        The input ``(N, C, H, W)``, and the output's gradient ``(O, N h w)``.
    """
    (window, groups, high), most = given
    planner = Planner(facts, layouts)
    x, columns = planner.inputs
    outputs, depth = columns.shape[0], x.shape[1] // groups * window.places
    todo = list(blocks(facts, x, window.outputs, groups * depth, most, _LONGEST))
    result = planner.empty((len(todo), groups, outputs // groups, depth), x.dtype)
    longest = max(count for _, _, count, _ in todo)
    scratch = planner.empty((groups * depth * longest,), x.dtype)  # one for all parts
    for number, (block, first, count, start) in enumerate(todo):
        windows = scratch[: groups * depth * count].reshape(groups * depth, count)
        unfold(planner, registry, window, block, first, windows, transposed=True)
        a = columns.reshape(groups, outputs // groups, -1)[:, :, start : start + count]
        b, c = windows.reshape(groups, depth, count), result[number : number + 1]
        offsets = (layouts[1].offset, ALIGN_MOST)
        matmul = Matmul("linear", four_axes(a), four_axes(b), c, high=high and groups == 1, offsets=offsets)
        emit_matmul(planner, registry, matmul)
    return planner.plan(result)
