"""Convolutions to few outputs on matrix units (shaders/convolution/direct-matrix.comp), as parts of plans."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ..arrays.scatter import emit_scatter
from ..device.device import DeviceFacts
from ..device.plan import At, Planner, alignment, fits_binding
from ..device.tensor import Tensor
from ..matmul.finish import Finish
from .checks import Window

_EIGHT = 8  # 16-bit elements of a word of 16 bytes
_WORK = 1e11  # floating-point operations of a dispatch
_USED = 0.5  # of the places that workgroups compute, at least, where this is faster than other kernels


def choice_for(
    registry: Registry, facts: DeviceFacts, window: Window, x: Tensor, groups: int, outputs: int
) -> Choice | None:
    """The kernel for a convolution of x ``(N, C, H, W)``, or None where there is none or another is faster."""
    if groups > 1 or window.places == 1 or x.dtype.itemsize != 2:
        return None
    try:
        choice = registry.resolve(Request("convolution-matrix", x.dtype.name))
    except UnsupportedError:
        return None
    tile = choice.tile
    able = x.shape[1] and x.shape[1] % tile["step"] == 0 and fits_binding(facts, x[:1])
    room = _words(tile, window) <= tile["words"]
    down, across = _tiles(tile, window)
    used = window.outputs / (down * tile["rows"] * across * tile["columns"])
    fast = tile["least"] <= outputs <= tile["most"] and used >= _USED and x.shape[0] * down * across >= facts.units
    return choice if able and room and fast else None


def _tiles(tile: Mapping[str, int], window: Window) -> tuple[int, int]:
    """Workgroups along the height and the width of the output."""
    return -(-window.out[0] // tile["rows"]), -(-window.out[1] // tile["columns"])


def _patch(tile: Mapping[str, int], window: Window) -> tuple[int, int]:
    """Rows and columns of the image that a workgroup reads."""
    rows, columns = (
        (many - 1) * stride + (taps - 1) * dilation + 1
        for many, stride, taps, dilation in zip(
            (tile["rows"], tile["columns"]), window.stride, window.kernel, window.dilation, strict=True
        )
    )
    return rows, columns


def _words(tile: Mapping[str, int], window: Window) -> int:
    """16-byte words that a workgroup has in shared memory of the image and of the weights."""
    rows, columns = _patch(tile, window)
    return (rows * columns + window.places * tile["outputs"]) * (tile["step"] // _EIGHT + 1)


def _table(planner: Planner, registry: Registry, weight: Tensor, tile: Mapping[str, int]) -> Tensor:
    """Weights ``(O, C, kh, kw)``, contiguous, in matrices of some outputs and channels, as the kernel takes them."""
    outputs, channels, *taps = weight.shape
    columns, step = tile["outputs"], tile["step"]
    table = planner.empty((-(-outputs // columns), *taps, channels // step, columns, step), weight.dtype)
    for number, first in enumerate(range(0, outputs, columns)):
        some = weight[first : first + columns]
        turned = some.reshape(some.shape[0], channels // step, step, *taps).transpose(3, 4, 1, 0, 2)
        emit_scatter(planner, registry, turned, table[number][..., : some.shape[0], :])
    return table


def emit_matrix(
    planner: Planner, registry: Registry, choice: Choice, window: Window, x: Tensor, weight: Tensor,
    bias: Tensor | None, result: Tensor, offset: int, finish: Finish,
) -> None:  # fmt: skip
    """Write the convolution of x ``(N, C, H, W)`` to ``result``, with a kernel that ``choice_for`` gave.

    The arguments are those of ``emit_direct``; ``offset`` is what divides the offset of x.
    """
    facts, tile, outputs = planner.facts, choice.tile, result.shape[3]
    table = _table(planner, registry, weight, tile)
    rows, columns = _patch(tile, window)
    steps = (0 if x.shape[axis] == 1 else x._strides[axis] for axis in (0, 2, 3))
    lies = x._strides[1] == 1 and alignment(offset, x._offset, *steps) % _EIGHT == 0
    constants = {
        "HAS_BIAS": int(bias is not None), "PLANAR": int(not lies), "PLACES": rows * columns, "TAPS": window.places,
        "STRIDE": window.stride[1], **finish.constants(),
    }  # fmt: skip
    words: dict = finish.push() | {
        "out_h": window.out[0], "out_w": window.out[1], "height": x.shape[2], "width": x.shape[3],
        "kernel_h": window.kernel[0], "kernel_w": window.kernel[1], "stride_h": window.stride[0],
        "own": x.shape[1], "outputs": outputs, "patch_w": columns, "t_offset": At(table), "b_offset": At(bias),
    }  # fmt: skip
    for name in ("padding", "dilation"):
        both = getattr(window, name)
        words |= {f"{name}_h": both[0] % 2**32, f"{name}_w": both[1] % 2**32}
    words |= {f"x_{name}": step % 2**32 for name, step in zip(("batch", "channel", "h", "w"), x._strides, strict=True)}
    down, across = _tiles(tile, window)
    step, work = x.shape[0], 2.0 * window.places * x.shape[1] * result[0].size
    while step > 1 and (
        step > facts.groups[2] or step * work > _WORK or not fits_binding(facts, x[:step])
        or not fits_binding(facts, result[:step])
    ):  # fmt: skip
        step = -(-step // 2)
    if finish.filling is not None and step < x.shape[0]:
        raise UnsupportedError("nothing stands behind a convolution in several dispatches")
    for first in range(0, x.shape[0], step):
        own, y = x[first : first + step], result[first : first + step]
        arrays = {"x": own, "t": table, "b": bias, "y": y, **finish.bindings()}
        planner.dispatch(choice, constants, arrays, words | {"x_offset": At(own), "y_offset": At(y)},
                         (-(-outputs // tile["outputs"]) * across, down, own.shape[0]),
                         work * own.shape[0], filling=finish.filling)  # fmt: skip
