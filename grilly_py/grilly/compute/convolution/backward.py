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
from ..device.arguments import check_backend, finish, four_axes
from ..device.caches import Kept
from ..device.device import Device, DeviceFacts
from ..device.plan import Layout, Plan, Planner, fits_binding
from ..device.record import Ready, run
from ..device.tensor import Tensor
from ..products.matmul import product
from .checks import Asked, checked
from .forward import blocks, four, room, sent
from .unfold import MOST, fold, unfold

#: Plans of the gradients by inputs.
INPUTS: Kept[tuple, Ready] = Kept("plans of convolutions' gradients by inputs", 256)
#: Plans of the gradients by weights.
WEIGHTS: Kept[tuple, Ready] = Kept("plans of convolutions' gradients by weights", 256)
_LONGEST = 2**16  # places of the output whose products are added up in one dispatch


def convolution_backward(
    device: Device, name: str, axes: int, grad_output, x, weight, *, stride=1, padding=0, dilation=1, groups=1,
    precision="highest",
):  # fmt: skip
    """``grilly.functional.conv1d_backward`` and ``conv2d_backward`` on a device; documented there."""
    device.check_open()
    asked = checked(name, axes, x, weight, None, stride, padding, dilation, groups, precision, grad_output=grad_output)
    check_backend(name, device, grad_output, x, weight)
    shape, outputs, dtype = tuple(x.shape), weight.shape[0], np.dtype(x.dtype)
    gives = (*shape[: -axes - 1], outputs, *asked.window.out[2 - axes :])
    if tuple(grad_output.shape) != gives:
        raise ValueError(f"{name}: grad_output has shape {tuple(grad_output.shape)}; expected the output's, {gives}")
    if 0 in (*gives, *shape):
        found = tuple(device.tensor(np.zeros(size, dtype)) for size in (shape, tuple(weight.shape), (outputs,)))
        return tuple(finish(device, one, grad_output, x, weight) for one in found)
    if dtype != FLOAT32 and not device.sixteen_bits:
        arrays = [sent(device, array).astype(np.float32, copy=False) for array in (grad_output, x, weight)]
        found = convolution_backward(device, name, axes, *arrays, stride=stride, padding=padding, dilation=dilation,
                                     groups=groups, precision=precision)  # fmt: skip
        return tuple(finish(device, one.astype(dtype, copy=False), grad_output, x, weight) for one in found)
    g, images = four(sent(device, grad_output), axes), four(sent(device, x), axes)
    rows = g.transpose(0, 2, 3, 1).contiguous().reshape(-1, outputs)
    columns = g.transpose(1, 0, 2, 3).contiguous().reshape(outputs, -1)
    depth = weight.shape[1] * asked.window.places
    table = sent(device, weight).reshape(groups, outputs // groups, depth).transpose(0, 2, 1).contiguous()
    (dx,) = run(device, INPUTS, plan_inputs, (asked, room(device), images.shape), (rows, table))
    (parts,) = run(device, WEIGHTS, plan_weights, (asked, room(device)), (images, columns))
    dweight = _added(device, parts)
    dbias = reduced("sum", columns, 1, False, dtype)
    found = (dx.reshape(shape), dweight.reshape(tuple(weight.shape)), dbias)
    return tuple(finish(device, one, grad_output, x, weight) for one in found)


def _added(device: Device, parts: Tensor) -> Tensor:
    """The sum of parts (n, ...)."""
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
    """The dispatches of the gradient by inputs.

    It is given the output's gradient (N H W, O) and the weights (groups, C / groups * places, O / groups). Gradients of
    windows are a matrix, which is added up. Where windows overlap it lies transposed, so that neighbours in an image
    read neighbours.
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
        todo = [(target._view(part.shape, part._steps, part._offset), *rest) for part, *rest in todo]
    scratch = planner.empty((max(part.shape[0] * part.shape[1] for part, *_ in todo) * window.outputs * places,),
                            rows.dtype)  # one for all parts
    for part, sample, group, channel in todo:
        several = part.shape[1] // own or 1  # groups
        count, depth = part.shape[0] * window.outputs, min(part.shape[1], own) * places
        some = rows[sample * window.outputs : sample * window.outputs + count]
        g = four_axes(some.reshape(count, groups, outputs).transpose(1, 0, 2)[group : group + several])
        w = four_axes(table[group : group + several, channel * places : channel * places + depth])
        if transposed:
            windows = scratch[: several * depth * count].reshape(several, depth, count)
            a, b, c, steps = w, g, four_axes(windows), (1, count)
        else:
            windows = scratch[: several * depth * count].reshape(count, several, depth)
            a, b, c, steps = g, w, four_axes(windows.transpose(1, 0, 2)), (several * depth, 1)
        product(
            planner, registry, "linear", a, b, c, columns_are_rows=True, high=high and groups == 1, offsets=offsets
        )
        fold(planner, registry, window, windows, steps, part)
    if target is not result:
        emit(planner, registry, spec("copy", FLOAT32, rows.dtype), result, [target, None, None], [4, None, None])
    return planner.plan(result)


def _parts(facts: DeviceFacts, result: Tensor, each: int, groups: int, most: int):
    """Parts of the gradient ``(N, C, H, W)``, with the first sample, group and channel in it of each.

    A part is samples with all channels, or channels of one group of one sample. The windows, ``each`` elements a
    channel, fit ``most`` bytes.
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


def plan_weights(
    given: tuple[Asked, int], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry
) -> Plan:
    """The dispatches of the gradient by weights, of images and the output's gradient (O, N H W).

    The result is parts, (n, groups, O / groups, C / groups * places), that are still to be added up.
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
        product(
            planner, registry, "linear", four_axes(a), four_axes(windows.reshape(groups, depth, count)),
            result[number : number + 1], columns_are_rows=True, high=high and groups == 1,
            offsets=(layouts[1].offset, 16),
        )  # fmt: skip
    return planner.plan(result)
