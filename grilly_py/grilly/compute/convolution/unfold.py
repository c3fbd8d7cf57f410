"""The matrix of windows (im2col), and its sum (col2im): shaders/convolution; parts of plans."""

from __future__ import annotations

from ...registry import Registry, Request
from ..arrays.operations import code
from ..device.cut import check_trips
from ..device.plan import At, Planner
from ..device.tensor import Tensor
from ..expressions.expression import halves
from .checks import Window

#: Elements of a dispatch at most.
MOST = 2**30


def _words(window: Window, height: int, width: int) -> dict:
    words = {"height": height, "width": width}
    for name in ("out", "kernel", "stride", "padding", "dilation"):
        both = getattr(window, name)
        words |= {f"{name}_h": both[0], f"{name}_w": both[1]}
    return words


def unfold(
    planner: Planner, registry: Registry, window: Window, x: Tensor, first: int, result: Tensor,
    transposed: bool = False,
) -> None:  # fmt: skip
    """Write rows of x's matrix of windows, from row ``first`` on, to ``result``: ``(rows, C * places)``, or transposed.

    x is ``(N, C, H, W)``; a row is a window, in the order of samples, rows and columns of the output.
    """
    choice = registry.resolve(Request("unfold", "float32"))
    rows, columns = result.shape[::-1] if transposed else result.shape
    strides = dict(zip(("batch", "channel", "h", "w"), x._strides, strict=True))
    words = {
        "count": result.size, "rows": rows, "columns": columns, "first_row": first, **_words(window, *x.shape[2:]),
        "x_offset": At(x), **{f"x_{name}": stride for name, stride in strides.items()}, "y_offset": At(result),
    }  # fmt: skip
    constants = {"TYPE": code(x.dtype), "TRANSPOSED": int(transposed)}
    sizes = choice.workgroups(result.size, 4 * choice.threads)
    planner.dispatch(choice, constants, {"x": x, "y": result}, words, sizes, 8.0 * result.size)


def fold(
    planner: Planner, registry: Registry, window: Window, x: Tensor, strides: tuple[int, int], result: Tensor
) -> None:
    """Add the windows of a matrix up to images, ``result`` ``(N, C, H, W)``, contiguous.

    ``strides`` are the strides of x, the matrix: of its rows, which are windows, and its columns.

    Raises
    ------
    UnsupportedError
        For a kernel of more places than the driver's loops reach over.
    """
    choice = registry.resolve(Request("fold", "float32"))
    check_trips(planner.facts, "the gradient of a convolution", "places of the kernel", window.places,
                choice.keys_per_trip, "use a smaller one")  # fmt: skip
    words = {
        "count": result.size, "channels": result.shape[1], **_words(window, *result.shape[2:]),
        "x_offset": At(x), "x_row": strides[0], "x_column": strides[1], "y_offset": At(result),
    }  # fmt: skip
    constants = {
        "TYPE": code(x.dtype), "TYPE_Y": code(result.dtype), "QUADS": int(result._offset % 4 == 0),
        "HALVES": halves(registry),
    }  # fmt: skip
    sizes = choice.workgroups(result.size, 4 * choice.threads)
    planner.dispatch(choice, constants, {"x": x, "y": result}, words, sizes, 4.0 * window.places * result.size)
