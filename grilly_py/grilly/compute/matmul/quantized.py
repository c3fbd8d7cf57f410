"""Linear layers with quantized weights.

Few rows of x are multiplied by the quantized numbers themselves (shaders/matmul/linear-quantized.comp). For many,
blocks of rows of the weight become floats in memory of the plan's, and a product like any other follows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...errors import UnsupportedError
from ...quantization import QuantizedTensor
from ...quantization.packing import packing_of
from ...registry import Choice, Registry, Request
from ..arrays.map import gathered, in_order, shown, with_rows
from ..arrays.reductions import emit_sums
from ..arrays.take import picked
from ..device.arguments import check_float, four_axes
from ..device.call import call
from ..device.cut import check_trips
from ..device.device import Device, DeviceFacts
from ..device.plan import ALIGN_MOST, At, Layout, Plan, Planner, alignment, fits_binding
from ..device.tensor import Tensor
from ..norms.checks import given as given_arrays
from ..norms.plan import emit_rms_norm
from ..quantized import DeviceQuantizedTensor, Rows, check_quantized, emit_floats, placed, rows_of, some_rows
from .call import ACTIVATIONS, Epilogue, LinearCall, Matmul
from .finish import Finish
from .matmul import emit_matmul
from .passes import Gate

#: Bytes of floats that are made of a weight at a time.
SCRATCH = 2**26
#: Tables whose numbers kernels on matrix units compute.
_ARITHMETIC = ("none", "fp4", "e4m3")


def linear(device: Device, x, weight: QuantizedTensor, bias, residual, norm_weight, static: tuple, check_shapes):
    """A linear layer with a quantized weight.

    Parameters
    ----------
    static : tuple
        Whether float32 may be split, the activation or None, whether it is gated, and ``(epsilon, offset)`` of the norm
        or ``()``.
    check_shapes : callable
        It raises for shapes that do not go together.
    """

    def check(x, bias, residual, norm_weight, *arrays) -> None:
        check_float("linear", input=x, **given_arrays(bias=bias, residual=residual, norm_weight=norm_weight))
        check_quantized("linear: weight", weight)
        check_shapes(x, weight, bias, static[2], residual, norm_weight)

    given = (x, bias, residual, norm_weight)
    on_host = not isinstance(weight, DeviceQuantizedTensor)
    if on_host:
        check(*given)
        weight = placed(device, weight)
    arrays = given
    if weight.columns is not None:
        check(*given)
        x, norm_weight = (_sorted(device, array, weight.columns) for array in (x, norm_weight))
        arrays = (x, bias, residual, norm_weight)
    y = call(device, plan, (weight.types, *static), (*arrays, *weight.arrays), check, floats=4)[0]
    return y.numpy() if on_host and not any(isinstance(array, Tensor) for array in given) else y


def _sorted(device: Device, array, columns: Tensor) -> Tensor | None:
    """An array or None with its last axis in the order of a weight's columns."""
    if array is None:
        return None
    array = array if isinstance(array, Tensor) else device.tensor(array)
    return picked(array, columns, array.ndim - 1)


def plan(given: tuple, layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry) -> Plan:
    """The plan of ``linear``.

    ``given``: the types of the weight's rows, and ``static`` of ``linear``. Layouts are those of x, bias, residual, the
    norm's weight, and the weight's arrays. In captured work a ``Behind`` may follow, and the arrays of what stands
    behind.
    """
    types, high, activation, gated, norm, *behind = given
    planner = Planner(facts, layouts)
    x, bias, residual, factors, *arrays = planner.inputs
    weight = rows_of(types, arrays)
    wide, depth = sum(part.count for part in weight), x.shape[-1]
    y = planner.empty((*x.shape[:-1], wide // (1 + gated)), x.dtype)
    if not y.size:
        return planner.plan(y)
    offsets = [None if layout is None else layout.offset for layout in layouts]
    c = y.reshape(-1, y.shape[-1])
    x, offset = shown(planner, registry, x, (len(c), depth), offsets[0])
    if norm:
        factors, offsets[3] = in_order(planner, registry, factors, offsets[3])
        places = (offset, x._offset, offsets[3], factors._offset)
        x, offset = emit_rms_norm(planner, registry, x, factors, *norm, places), ALIGN_MOST
    if bias is not None:
        bias, _ = in_order(planner, registry, bias, offsets[1])
    if residual is not None:
        residual, offsets[2] = shown(planner, registry, residual, c.shape, offsets[2])
        residual, offsets[2] = with_rows(planner, registry, residual, offsets[2])
    added = None if residual is None else four_axes(residual)
    finish = Finish.of(registry, *behind, arrays[-2:], *c.shape) if behind else Finish()
    epilogue = Epilogue(activation or "none", added, offsets[2] or 0, gated, finish)
    product = Matmul("linear", four_axes(x), None, four_axes(c), offsets=(offset, ALIGN_MOST), bias=bias, high=high,
                     epilogue=epilogue)  # fmt: skip
    _emit(planner, registry, product, weight)
    return planner.plan(y, operation=LinearCall(plan, given, residual=2, norm=3, finishes=True))


def backward(device: Device, grad_output, x, weight: QuantizedTensor, high: bool, check_shapes):
    """The gradients of a linear layer by x and by the bias, with None for that of its quantized weight between them."""

    def check(grad_output, *arrays) -> None:
        check_float("linear_backward", input=x, grad_output=grad_output)
        check_quantized("linear_backward: weight", weight)
        check_shapes(grad_output, x, weight)

    on_host = not isinstance(weight, DeviceQuantizedTensor)
    check(grad_output)
    if on_host:
        weight = placed(device, weight)
    arrays = (grad_output, *weight.arrays)
    dx, db = call(device, plan_backward, (weight.types, high), arrays, check, floats=1, results=2)
    dx = weight.unsorted(dx)
    if on_host and not isinstance(grad_output, Tensor) and not isinstance(x, Tensor):
        dx, db = dx.numpy(), db.numpy()
    return dx, None, db


def plan_backward(given: tuple, layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry) -> Plan:
    """The plan of ``backward``. Layouts are those of the output's gradient and of the weight's arrays."""
    types, high = given
    planner = Planner(facts, layouts)
    g, *arrays = planner.inputs
    weight, cols = rows_of(types, arrays), g.shape[-1]
    depth = packing_of(types[0]).depth(arrays[0].shape[1])
    rows = math.prod(g.shape[:-1])
    dx, db = (planner.empty(shape, g.dtype, zero=not rows) for shape in ((*g.shape[:-1], depth), (cols,)))
    if not rows:
        return planner.plan(dx, db)
    g, offset = shown(planner, registry, g, (rows, cols), layouts[0].offset)
    step = min(_step(facts, depth, g.dtype.itemsize), cols)
    scratch, total = planner.empty((step, depth), g.dtype), None
    for first in range(0, cols, step):
        last = min(first + step, cols)
        floats = scratch[: last - first]
        emit_floats(planner, registry, some_rows(weight, first, last), floats)
        out = dx.reshape(rows, depth) if last == cols else planner.empty((rows, depth), g.dtype)
        epilogue = Epilogue() if total is None else Epilogue(residual=four_axes(total), offset=ALIGN_MOST)
        emit_matmul(planner, registry, Matmul(
            "linear", four_axes(g[:, first:last]), four_axes(floats.transpose()), four_axes(out), high=high,
            offsets=(offset, ALIGN_MOST), epilogue=epilogue,
        ))  # fmt: skip
        total = out
    emit_sums(planner, registry, g.transpose(), db, offset)
    return planner.plan(dx, db)


def _emit(planner: Planner, registry: Registry, product: Matmul, weight: Sequence[Rows]) -> None:
    """Plan a product whose b is the weight."""
    choice = _kernel(planner.facts, registry, product, weight)
    wide, step = sum(part.count for part in weight), _step(planner.facts, product.depth, product.a.dtype.itemsize)
    whole = len(weight) == 1 and weight[0].fits(planner.facts) if choice is not None else wide <= step
    finish = product.epilogue.finish
    if finish.filling is not None and not (whole and (choice is None or finish.fits(registry, choice))):
        raise UnsupportedError("the expression behind a product of a quantized weight takes a dispatch of its own")
    if product.epilogue.gated and not whole:
        x = planner.empty((*product.c.shape[:3], wide), product.c.dtype)
        _emit(planner, registry, product._replace(c=x, epilogue=Epilogue()), weight)
        Gate(x, product.c, product.epilogue).emit(planner, registry)
        return
    if choice is None:
        _emit_floats(planner, registry, product, weight, step)
        return
    a, (offset, _) = product.a, product.offsets
    if a._strides[3] != 1 or alignment(offset, a._offset, a._strides[2] if product.rows > 1 else 0) % 8:
        product = product._replace(a=gathered(planner, registry, a, offset))
    first = 0
    for part in weight:
        for start, rows in part.fitting(planner.facts):
            columns = slice(first + start, first + start + rows.count // product.columns_per_output)
            _dispatch(planner, choice, product, rows, columns)
        first += part.count


def _kernel(facts: DeviceFacts, registry: Registry, product: Matmul, weight: Sequence[Rows]) -> Choice | None:
    """The kernel that reads quantized numbers; None where a product of floats is faster, or arrays exceed bindings."""
    if not all(t is None or fits_binding(facts, t) for t in (product.a, product.c, product.epilogue.residual)):
        return None
    try:
        packings = [packing_of(part.type) for part in weight]
        arithmetic = int(all(packing.table in _ARITHMETIC for packing in packings))
        problem = (("rows", product.rows), ("arithmetic", arithmetic))
        choice = registry.resolve(Request("linear-quantized", product.a.dtype.name, problem=problem))
    except UnsupportedError:
        return None
    remedy = "cut them and add the products"
    check_trips(facts, "linear", "columns of the input", product.depth, choice.keys_per_trip, remedy)
    return choice


def _step(facts: DeviceFacts, depth: int, itemsize: int) -> int:
    """Rows of the weight that become floats at a time."""
    most = min(SCRATCH, facts.workspace, facts.storage_range, facts.largest)
    step = max(most // (depth * itemsize), 1)
    return step if step < 128 else step - step % 64


def _emit_floats(planner: Planner, registry: Registry, product: Matmul, weight: Sequence[Rows], step: int) -> None:
    """Plan products with blocks of the weight's rows as floats of x's dtype."""
    wide = sum(part.count for part in weight)
    step = min(step, wide)
    scratch = planner.empty((step, product.depth), product.a.dtype)
    residual = product.epilogue.residual
    for first in range(0, wide, step):
        some = slice(first, min(first + step, wide))
        floats = scratch[: some.stop - first]
        emit_floats(planner, registry, some_rows(weight, first, some.stop), floats)
        block = product._replace(b=four_axes(floats))
        if step < wide:
            epilogue = product.epilogue._replace(residual=None if residual is None else residual[..., some])
            bias = None if product.bias is None else product.bias[some]
            block = block._replace(c=product.c[..., some], bias=bias, epilogue=epilogue)
        emit_matmul(planner, registry, block)


def _tiles(facts: DeviceFacts, tile: Mapping[str, int], product: Matmul, cols: int) -> tuple[dict[str, int], tuple]:
    """Constants and workgroups of a dispatch for so many columns of the result."""
    rows = min(product.rows, tile["rows"])
    row_blocks = -(-product.rows // rows)
    wanted = -(-cols * row_blocks // (tile["fill"] * facts.units))  # columns of a workgroup that leave none idle
    least = tile.get("least", 1)
    columns = max(min(tile["columns"] // product.columns_per_output, wanted) // least, 1) * least
    blocks = max(min(wanted // columns, tile["blocks"]), -(-cols // (columns * facts.groups[0])), 1)
    constants = {"ROWS": rows, "COLUMNS": columns, "BLOCKS": blocks}
    return constants, (-(-cols // (columns * blocks)), row_blocks, 1)


def _matrix_tiles(
    facts: DeviceFacts, tile: Mapping[str, int], product: Matmul, cols: int
) -> tuple[dict[str, int], tuple]:
    """The same of a kernel on matrix units."""
    x_tiles = -(-min(product.rows, tile["rows"]) // tile["x_tile"])
    row_blocks = -(-product.rows // (x_tiles * tile["x_tile"]))
    tiles = tile["tiles"]
    if not product.epilogue.gated and -(-cols // (tile["columns"] * tiles)) * row_blocks < tile["fill"] * facts.units:
        tiles = 1
    columns = tile["columns"] * tiles // product.columns_per_output
    return {"TILES": tiles, "X_TILES": x_tiles}, (-(-cols // columns), row_blocks, 1)


def _dispatch(planner: Planner, choice: Choice, product: Matmul, weight: Rows, some: slice) -> None:
    """Plan the dispatch of some columns of the result."""
    a, c, bias, residual = product.a, product.c[..., some], product.bias, product.epilogue.residual
    cols = some.stop - some.start
    tiles = _matrix_tiles if "x_tile" in choice.tile else _tiles
    constants, groups = tiles(planner.facts, choice.tile, product, cols)
    if bias is not None and not product.epilogue.gated:
        bias = bias[some]
    residual = None if residual is None else residual[..., some]
    finish = product.epilogue.finish
    push = finish.push() | {
        "a_offset": At(a), "a_row": a._strides[2] if product.rows > 1 else 0, **weight.push(4),
        "c_offset": At(c), "c_row": c._strides[2], "bias_offset": At(bias), "residual_offset": At(residual),
        "residual_row": 0 if residual is None else residual._strides[2], "rows": product.rows, "cols": cols,
        "depth": product.depth,
    }  # fmt: skip
    constants |= {
        "HAS_BIAS": int(bias is not None), "ACTIVATION": ACTIVATIONS[product.epilogue.activation],
        "HAS_RESIDUAL": int(residual is not None),
        "GATED": int(product.epilogue.gated), **weight.constants, **finish.constants(),
    }  # fmt: skip
    arrays = {"a": a, "low": weight.low, "high": weight.high, "scales": weight.scales, "c": c, "bias": bias,
              "residual": residual, **finish.bindings()}  # fmt: skip
    planner.dispatch(choice, constants, arrays, push, groups, 2.0 * product.rows * weight.count * product.depth,
                     filling=finish.filling)  # fmt: skip


__all__ = ["SCRATCH", "linear", "plan"]
