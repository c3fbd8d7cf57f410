"""Windows as a matrix, and back (shaders/convolution): the dispatches, as parts of plans."""

from __future__ import annotations

from ...registry import Registry, Request
from ..arrays.map import halves
from ..arrays.operations import code
from ..device.cut import check_trips
from ..device.plan import At, Planner
from ..device.tensor import Tensor
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
    """Write rows of the windows of x ``(N, C, H, W)`` from ``first`` on: ``(rows, C * places)``, or transposed."""
    choice = registry.resolve(Request("unfold", "float32"))
    rows, columns = result.shape[::-1] if transposed else result.shape
    steps = dict(zip(("batch", "channel", "h", "w"), x._steps, strict=True))
    words = {
        "count": result.size, "rows": rows, "columns": columns, "first_row": first, **_words(window, *x.shape[2:]),
        "x_offset": At(x), **{f"x_{name}": step for name, step in steps.items()}, "y_offset": At(result),
    }  # fmt: skip
    constants = {"TYPE": code(x.dtype), "TRANSPOSED": int(transposed)}
    groups, stripe = -(-result.size // (4 * choice.threads)), choice.tile["stripe"]
    sizes = (min(groups, stripe), -(-groups // stripe), 1)
    planner.dispatch(choice, constants, {"x": x, "y": result}, words, sizes, 8.0 * result.size)


def fold(
    planner: Planner, registry: Registry, window: Window, x: Tensor, steps: tuple[int, int], result: Tensor
) -> None:
    """Add up the windows ``x``, whose rows and columns are ``steps`` apart, to ``result`` ``(N, C, H, W)``, contiguous.

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
        "x_offset": At(x), "x_row": steps[0], "x_column": steps[1], "y_offset": At(result),
    }  # fmt: skip
    constants = {
        "TYPE": code(x.dtype), "TYPE_Y": code(result.dtype), "QUADS": int(result._offset % 4 == 0),
        "HALVES": halves(registry),
    }  # fmt: skip
    groups, stripe = -(-result.size // (4 * choice.threads)), choice.tile["stripe"]
    sizes = (min(groups, stripe), -(-groups // stripe), 1)
    planner.dispatch(choice, constants, {"x": x, "y": result}, words, sizes, 4.0 * window.places * result.size)
