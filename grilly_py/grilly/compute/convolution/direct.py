"""Convolutions without a matrix of windows (shaders/convolution/direct.comp), as parts of plans."""

from __future__ import annotations

from ...registry import Registry, Request
from ...registry.shared import names_of
from ..arrays.map import emit, halves
from ..arrays.operations import code, spec
from ..arrays.promotion import FLOAT32
from ..arrays.put import emit_put
from ..device.plan import ALIGN_MOST, At, Planner, alignment, fits_binding
from ..device.tensor import Tensor
from .checks import Window
from .unfold import MOST

#: Outputs of a group up to which this is faster than products, where these read x as it is.
_FEW = 8
_APART = 2  # outputs of a group whose quads have several groups
_WORK = 1e11  # floating-point operations of a dispatch


def form_of(groups: int, own: int, per: int) -> str:
    """Which kernel serves groups of ``own`` channels and ``per`` outputs."""
    if own == per == 1:
        return "depthwise"
    return "shared" if groups == 1 or per % 4 == 0 else "apart"


def serves(planner: Planner, registry: Registry, window: Window, x: Tensor, groups: int, outputs: int) -> bool:
    """Whether a convolution of x ``(N, C, H, W)`` is to be done so: its groups have few outputs, and a sample fits."""
    facts = planner.facts
    own, per = x.shape[1] // groups, outputs // groups
    form = form_of(groups, own, per)
    choice = registry.resolve(Request("convolution", "float32"))
    few = _APART if form == "apart" else _FEW if window.places == 1 else choice.tile["few"]
    if own > 1 and per > few or own == 1 and per > choice.tile["few"]:
        return False
    terms = window.places * own
    sample = 4 * outputs * window.outputs
    return (
        terms * (1 + outputs // 4 * 4) < MOST and terms <= facts.loop_trips * choice.keys_per_trip
        and 2.0 * terms * outputs * window.outputs <= _WORK
        and sample <= min(facts.storage_range, 4 * MOST) and fits_binding(facts, x[:1])
    )  # fmt: skip


def table_of(planner: Planner, registry: Registry, weight: Tensor, offset: int) -> Tensor:
    """Weights ``(O, own, kh, kw)`` as the kernel takes them: float32, ``(kh kw own, O)`` with rows of whole fours."""
    outputs = weight.shape[0]
    rows = weight.size // outputs
    turned = weight.transpose(2, 3, 1, 0)
    table = planner.empty(turned.shape, FLOAT32)
    emit(planner, registry, spec("copy", weight.dtype, FLOAT32), table, [turned, None, None], [offset, None, None])
    if outputs % 4 == 0:
        return table.reshape(rows, outputs)
    padded = planner.empty((rows, -(-outputs // 4) * 4), FLOAT32)
    emit_put(planner, registry, table.reshape(rows, outputs), padded[:, :outputs])
    return padded


def emit_direct(
    planner: Planner, registry: Registry, window: Window, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int,
    result: Tensor, offsets: tuple[int, int],
) -> None:  # fmt: skip
    """Write the convolution of x ``(N, C, H, W)`` to ``result`` ``(N, h, w, O)``, contiguous.

    Parameters
    ----------
    weight : Tensor
        ``(O, C / groups, kh, kw)``.
    bias : Tensor or None
        ``(O,)``, contiguous.
    offsets : tuple of int
        What divides the offsets of x and the weight (``Layout.offset``).
    """
    outputs, own = weight.shape[:2]
    per = outputs // groups
    form = form_of(groups, own, per)
    table = table_of(planner, registry, weight, offsets[1])
    offset = offsets[0]
    fours = own % 4 == 0 if form == "shared" else form == "depthwise" and outputs % 4 == 0
    lies = x.shape[1] == 1 or x._steps[1] == 1
    if fours and not (lies and alignment(offset, x._offset, *_steps(x)) % 4 == 0):
        last = x.transpose(0, 2, 3, 1)
        copied = planner.empty(last.shape, x.dtype)
        emit(planner, registry, spec("copy", x.dtype), copied, [last, None, None], [offset, None, None])
        x = copied.transpose(0, 3, 1, 2)
    target = result
    if outputs % 4 and result.dtype != FLOAT32:
        target = planner.empty(result.shape, FLOAT32)
    work = 2.0 * window.places * own * target.size
    step = target.shape[0]
    facts = planner.facts
    while step > 1 and (
        step > facts.groups[2] or not fits_binding(facts, x[:step]) or not fits_binding(facts, target[:step])
        or step * target[0].size >= MOST or work * step / target.shape[0] > _WORK
    ):  # fmt: skip
        step = -(-step // 2)
    for first in range(0, target.shape[0], step):
        some = slice(first, first + step)
        _dispatch(planner, registry, window, x[some], table, bias, form, fours, (own, per), target[some])
    if target is not result:
        emit(planner, registry, spec("copy", FLOAT32, result.dtype), result, [target, None, None],
             [ALIGN_MOST, None, None])  # fmt: skip


def _steps(x: Tensor) -> tuple[int, ...]:
    """The strides that count, but for channels'."""
    return tuple(0 if x.shape[axis] == 1 else x._steps[axis] for axis in (0, 2, 3))


def _dispatch(
    planner: Planner, registry: Registry, window: Window, x: Tensor, table: Tensor, bias: Tensor | None, form: str,
    fours: bool, sizes: tuple[int, int], result: Tensor,
) -> None:  # fmt: skip
    choice = registry.resolve(Request("convolution", "float32"))
    numbers = names_of("convolution")
    run, outputs = numbers["run"], result.shape[3]
    quads, blocks = table.shape[1] // 4, -(-window.out[1] // run)
    count = blocks * quads * window.out[0]
    taps, stride, dilation = -(-window.kernel[1] // -(-window.kernel[1] // numbers["taps_most"])), 1, 1
    near = (run - 1) * window.stride[1] + (taps - 1) * window.dilation[1] < numbers["held"]
    if form != "depthwise":
        taps, near = 1, False
    elif near:
        stride, dilation = window.stride[1], window.dilation[1]
    split = form == "shared" and fours and sizes[0] >= choice.tile.get("split", 2**32)
    words: dict = {
        "count": count, "line": blocks * quads, "quads": quads, "outputs": outputs, "own": sizes[0], "per": sizes[1],
        "out_h": window.out[0], "out_w": window.out[1], "kernel_h": window.kernel[0], "height": x.shape[2],
        "width": x.shape[3], "x_offset": At(x), "t_offset": At(table), "b_offset": At(bias), "y_offset": At(result),
    }  # fmt: skip
    for name in ("stride", "padding", "dilation"):
        both = getattr(window, name)
        words |= {f"{name}_h": both[0] % 2**32, f"{name}_w": both[1] % 2**32}
    words |= {f"x_{name}": step % 2**32 for name, step in zip(("batch", "channel", "h", "w"), x._steps, strict=True)}
    constants = {
        "TYPE": code(x.dtype), "TYPE_Y": code(result.dtype), "FORM": numbers[form], "QUADS": int(fours),
        "HAS_BIAS": int(bias is not None), "TAPS": taps, "NEAR": int(near), "STRIDE": stride, "DILATION": dilation,
        "KERNEL_W": window.kernel[1], "SPLIT": int(split), "HALVES": halves(registry),
    }  # fmt: skip
    each = choice.threads // run if split else choice.threads
    groups, stripe = -(-count // each), choice.tile["stripe"]
    arrays = {"x": x, "t": table, "b": bias, "y": result}
    planner.dispatch(choice, constants, arrays, words, (min(groups, stripe), -(-groups // stripe), result.shape[0]),
                     2.0 * window.places * sizes[0] * result.size)  # fmt: skip
