"""The direct kernel of convolutions (shaders/convolution/direct.comp), without a matrix of windows: parts of plans."""

from __future__ import annotations

from typing import NamedTuple

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ...registry.shared import names_of
from ..arrays.map import emit
from ..arrays.operations import code, spec
from ..arrays.promotion import FLOAT32
from ..device.device import DeviceFacts
from ..device.plan import ALIGN_MOST, At, Planner, alignment, fits_binding
from ..device.tensor import Tensor
from ..expressions.expression import halves
from ..matmul.finish import Finish
from .checks import Window
from .matrix import choice_for, emit_matrix
from .unfold import MOST

#: Outputs of a group up to which this is faster than products, where these read x as it is.
_FEW = 8
_APART = 2  # outputs of a group whose quads have several groups
_FULL = 384  # invocations that keep a multiprocessor busy
_WORK = 1e11  # floating-point operations of a dispatch


def form_of(groups: int, own: int, per: int) -> str:
    """The kernel's form for groups of ``own`` channels and ``per`` outputs."""
    if own == per == 1:
        return "depthwise"
    return "shared" if groups == 1 or per % 4 == 0 else "apart"


def serves(planner: Planner, registry: Registry, window: Window, x: Tensor, groups: int, outputs: int) -> bool:
    """Whether the direct kernel is for a convolution of x ``(N, C, H, W)``: few outputs a group, and a sample fits."""
    facts = planner.facts
    own, per = x.shape[1] // groups, outputs // groups
    sample, terms = 4 * outputs * window.outputs, window.places * own
    if sample > min(facts.storage_range, 4 * MOST) or terms * (1 + outputs // 4 * 4) >= MOST:
        return False
    if choice_for(registry, facts, window, x, groups, outputs) is not None:
        return True
    form = form_of(groups, own, per)
    choice = registry.resolve(Request("convolution", "float32"))
    few = _APART if form == "apart" else _FEW if window.places == 1 else choice.tile["few"]
    if own > 1 and per > few or own == 1 and per > choice.tile["few"]:
        return False
    work = 2.0 * terms * outputs * window.outputs
    return terms <= facts.loop_trips * choice.keys_per_trip and work <= _WORK and fits_binding(facts, x[:1])


class _Kernel(NamedTuple):
    """How the kernel reads a convolution.

    Attributes
    ----------
    form : str
        ``form_of`` its groups.
    fours : bool
        Whether channels are read in fours.
    planar : bool
        Whether x is read one channel at a time; its last two axes, and those of the window and the kernel, are then
        swapped, so that invocations that are neighbours read neighbours.
    own, per : int
        Channels and outputs of a group.
    """

    form: str
    fours: bool
    planar: bool
    own: int
    per: int

    @property
    def shares(self) -> bool:
        """Whether an invocation may have several fours of outputs, and a part of the channels."""
        return self.form == "shared" and self.fours


def table_of(planner: Planner, registry: Registry, weight: Tensor, offset: int, kernel: _Kernel) -> Tensor:
    """Weights ``(O, own, kh, kw)``, contiguous, as the kernel takes them: float32, outputs of whole fours."""
    outputs, own, *taps = weight.shape
    fours = -(-outputs // 4)
    if outputs % 4:
        padded = planner.empty((4 * fours, own, *taps), FLOAT32)
        copied = spec("copy", weight.dtype, FLOAT32)
        emit(planner, registry, copied, padded[:outputs], [weight], [offset])
        weight, offset = padded, ALIGN_MOST
    places = (3, 2) if kernel.planar else (2, 3)
    transposed = weight.transpose(*places, 1, 0)
    if kernel.shares:
        places = (5, 4) if kernel.planar else (4, 5)
        transposed = weight.reshape(fours, 4, own // 4, 4, *taps).transpose(*places, 3, 0, 2, 1)
    table = planner.empty(transposed.shape, FLOAT32)
    emit(planner, registry, spec("copy", weight.dtype, FLOAT32), table, [transposed], [offset])
    return table.reshape(-1, 4 * fours)


def emit_direct(
    planner: Planner, registry: Registry, window: Window, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int,
    result: Tensor, offsets: tuple[int, int], finish: Finish,
) -> None:  # fmt: skip
    """Plan the convolution of x ``(N, C, H, W)``; it writes ``result``, contiguous ``(N, h, w, O)``.

    Raises UnsupportedError where ``finish`` does not stand behind it in the same dispatch.

    Parameters
    ----------
    weight : Tensor
        ``(O, C / groups, kh, kw)``, contiguous.
    bias : Tensor or None
        ``(O,)``, contiguous.
    offsets : tuple of int
        What divides the offsets of x and the weight (``Layout.offset``).
    """
    outputs, own = weight.shape[:2]
    choice = choice_for(registry, planner.facts, window, x, groups, outputs)
    used = registry.resolve(Request("convolution", "float32")) if choice is None else choice
    if finish.filling is not None and not finish.fits(registry, used):
        raise UnsupportedError(f"{used}: the expression takes a dispatch of its own")
    if choice is not None:
        emit_matrix(planner, registry, choice, window, x, weight, bias, result, offsets[0], finish)
        return
    kernel, copied = _kernel(registry, x, groups, outputs, offsets[0])
    table = table_of(planner, registry, weight, offsets[1], kernel)
    if copied:
        last = x.transpose(0, 2, 3, 1)
        copy = planner.empty(last.shape, x.dtype)
        emit(planner, registry, spec("copy", x.dtype), copy, [last], [offsets[0]])
        x = copy.transpose(0, 3, 1, 2)
    target = result
    if outputs % 4 and result.dtype != FLOAT32:
        target = planner.empty(result.shape, FLOAT32)
    y = target
    if kernel.planar:
        x, y, window = x.transpose(0, 1, 3, 2), y.transpose(0, 2, 1, 3), Window(*(both[::-1] for both in window))
    work = 2.0 * window.places * own * target.size
    step = target.shape[0]
    facts = planner.facts
    while step > 1 and (
        step > facts.groups[2] or not fits_binding(facts, x[:step]) or not fits_binding(facts, target[:step])
        or step * target[0].size >= MOST or work * step / target.shape[0] > _WORK
    ):  # fmt: skip
        step = -(-step // 2)
    if finish.filling is not None and (target is not result or step < target.shape[0]):
        raise UnsupportedError("nothing stands behind a convolution in several dispatches")
    for first in range(0, target.shape[0], step):
        some = slice(first, first + step)
        _dispatch(planner, registry, window, x[some], table, bias, kernel, y[some], finish)
    if target is not result:
        emit(planner, registry, spec("copy", FLOAT32, result.dtype), result, [target], [ALIGN_MOST])


def _kernel(registry: Registry, x: Tensor, groups: int, outputs: int, offset: int) -> tuple[_Kernel, bool]:
    """How the kernel reads x, and whether that is a copy with the channels last."""
    own, per = x.shape[1] // groups, outputs // groups
    form = form_of(groups, own, per)
    fours = own % 4 == 0 if form == "shared" else form == "depthwise" and outputs % 4 == 0
    steps = (0 if x.shape[axis] == 1 else x._strides[axis] for axis in (0, 2, 3))
    lies = (x.shape[1] == 1 or x._strides[1] == 1) and alignment(offset, x._offset, *steps) % 4 == 0
    tile = registry.resolve(Request("convolution", "float32")).tile
    planar = form == "shared" and fours and not lies and "planar" in tile and x._strides[3] == 1
    return _Kernel(form, fours, planar, own, per), fours and not lies and not planar


def _run(choice: Choice, facts: DeviceFacts, window: Window, invocations: int) -> int:
    """How many neighbours an invocation computes: more of them read a weight once, where enough invocations are left.

    ``invocations`` are those of one neighbour each.
    """
    few, many = names_of("convolution")["run_few"], choice.tile["run"]
    if -(-window.out[1] // many) * many > -(-window.out[1] // few) * few or invocations < many * _FULL * facts.units:
        return few
    return many


def _taps(choice: Choice, window: Window, run: int, kernel: _Kernel) -> tuple[int, bool]:
    """How many taps of a row of the kernel are taken together, and whether what they read is held."""
    numbers = names_of("convolution")
    taps = -(-window.kernel[1] // -(-window.kernel[1] // choice.tile["taps"]))
    reach = (run - 1) * window.stride[1] + (taps - 1) * window.dilation[1]
    if kernel.form == "depthwise":
        return taps, reach < numbers["held"]
    near = kernel.shares and reach < numbers["held_of_all"]
    return taps if near else 1, near


def _dispatch(
    planner: Planner, registry: Registry, window: Window, x: Tensor, table: Tensor, bias: Tensor | None,
    kernel: _Kernel, y: Tensor, finish: Finish,
) -> None:  # fmt: skip
    choice = registry.resolve(Request("convolution", "float32"))
    numbers = names_of("convolution")
    outputs, quads = y.shape[3], table.shape[1] // 4
    run, parts, wide = numbers["run_few"], 1, 1
    if kernel.shares:
        if quads > 1 and (kernel.per == outputs or kernel.per % 8 == 0):
            wide = choice.tile["wide"]
        while 2 * parts <= choice.tile["parts"] and 8 * parts <= kernel.own:
            parts *= 2
        run = _run(choice, planner.facts, window, y.size // outputs * -(-quads // wide) * parts)
    units, blocks = -(-quads // wide), -(-window.out[1] // run)
    line = blocks * units
    count = line * window.out[0]
    taps, near = _taps(choice, window, run, kernel)
    words: dict = {
        "line": line, "units": units, "outputs": outputs, "own": kernel.own, "per": kernel.per,
        "out_h": window.out[0], "out_w": window.out[1], "kernel_h": window.kernel[0],
        "height": x.shape[2], "width": x.shape[3], "x_offset": At(x), "t_offset": At(table), "b_offset": At(bias),
        "y_offset": At(y), "y_h": y._strides[1], "y_w": y._strides[2],
    }  # fmt: skip
    for name in ("stride", "padding", "dilation"):
        both = getattr(window, name)
        words |= {f"{name}_h": both[0] % 2**32, f"{name}_w": both[1] % 2**32}
    words |= {
        f"x_{name}": stride % 2**32 for name, stride in zip(("batch", "channel", "h", "w"), x._strides, strict=True)
    }
    constants = {
        "TYPE": code(x.dtype), "TYPE_Y": code(y.dtype), "FORM": numbers[kernel.form], "QUADS": int(kernel.fours),
        "HAS_BIAS": int(bias is not None), "TAPS": taps, "NEAR": int(near),
        "STRIDE": window.stride[1] if near else 1, "DILATION": window.dilation[1] if near else 1,
        "KERNEL_W": window.kernel[1], "PARTS": parts, "HALVES": halves(registry), "WIDE": wide,
        "PLANAR": int(kernel.planar), "RUN": run, **finish.constants(),
    }  # fmt: skip
    words |= finish.push()
    groups, stripe = -(-count // (choice.threads // parts)), choice.tile["stripe"]
    arrays = {"x": x, "t": table, "b": bias, "y": y, **finish.bindings()}
    planner.dispatch(choice, constants, arrays, words, (min(groups, stripe), -(-groups // stripe), y.shape[0]),
                     2.0 * window.places * kernel.own * y.size,
                     filling=finish.filling)  # fmt: skip
