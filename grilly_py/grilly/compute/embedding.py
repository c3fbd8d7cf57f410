"""Embeddings: rows of a table by integer ids, and the sums of gradients that come back to them.

The kernels are shaders/elementwise/embedding.comp and embedding-backward.comp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..errors import UnsupportedError
from ..quantization import QuantizedTensor
from ..registry import Registry, Request
from .arrays.map import Gather, emit, in_order, with_rows
from .arrays.operations import code, spec
from .arrays.promotion import FLOAT32, kind_of
from .arrays.scatter import Counted
from .device.arguments import check_backend, check_float
from .device.call import call
from .device.device import Device, DeviceFacts
from .device.numbers import integer
from .device.plan import At, Elementwise, Layout, Plan, Planner, fits_binding
from .device.tensor import Tensor
from .expressions.expression import halves
from .quantized import DeviceQuantizedTensor, check_quantized, placed
from .quantized import plan as plan_quantized

NAME = "embedding"
NONE = 2**32 - 1


def embedding(device: Device, ids, weight, padding_idx=None):
    """``grilly.functional.embedding`` on a device; documented there."""
    if padding_idx is not None:
        padding_idx = integer(NAME, "padding_idx", padding_idx)

    if isinstance(weight, QuantizedTensor):
        return _quantized(device, ids, weight, padding_idx)

    def check(ids, weight) -> tuple:
        check_float(NAME, weight=weight)
        if len(weight.shape) != 2:
            shape = tuple(weight.shape)
            raise ValueError(f"{NAME}: weight has shape {shape}; expected (num_embeddings, embedding_dim)")
        check_padding(NAME, padding_idx, weight.shape[0])
        ids = checked(NAME, ids, weight.shape[0])
        check_backend(NAME, device, ids, weight)
        return ids, weight

    return call(device, plan, (padding_idx,), (ids, weight), check)[0]


def _quantized(device: Device, ids, weight: QuantizedTensor, padding_idx):
    """Rows of a quantized table, as float32."""

    def check(ids, *arrays) -> tuple:
        check_quantized(f"{NAME}: weight", weight)
        if len(weight.shape) != 2:
            raise ValueError(f"{NAME}: weight has shape {weight.shape}; expected (num_embeddings, embedding_dim)")
        check_padding(NAME, padding_idx, weight.shape[0])
        return checked(NAME, ids, weight.shape[0]), *arrays

    on_host = not isinstance(weight, DeviceQuantizedTensor)
    if on_host:
        check(ids)
        weight = placed(device, weight)
    y = call(device, plan_quantized, (weight.types, weight.shape, FLOAT32), (ids, *weight.arrays), check)[0]
    y = weight.unsorted(y)
    return y.numpy() if on_host and not isinstance(ids, Tensor) else y


def embedding_backward(device: Device, grad_output, ids, num_embeddings, padding_idx=None):
    """``grilly.functional.embedding_backward`` on a device; documented there."""
    name = "embedding_backward"
    rows = integer(name, "num_embeddings", num_embeddings)
    if rows < 0:
        raise ValueError(f"{name}: num_embeddings is {rows}; expected no negative number")
    skipped = check_padding(name, padding_idx, rows)

    def check(ids, grad_output) -> tuple:
        check_float(name, grad_output=grad_output)
        ids = checked(name, ids, rows)
        check_backend(name, device, ids, grad_output)
        shape = tuple(grad_output.shape)
        if not shape or shape[:-1] != tuple(ids.shape):
            raise ValueError(
                f"{name}: grad_output has shape {shape} and input {tuple(ids.shape)}; expected one more axis"
            )
        return ids, grad_output

    return call(device, plan_backward, (rows, NONE if skipped is None else skipped), (ids, grad_output), check)[0]


def check_padding(name: str, padding_idx, rows: int) -> int | None:
    """The row of ``padding_idx``, counted from the start. Raises TypeError, and ValueError for what is none."""
    if padding_idx is None:
        return None
    place = integer(name, "padding_idx", padding_idx)
    if not -rows <= place < rows:
        raise ValueError(f"{name}: padding_idx is {place}; expected a row of {rows}")
    return place % rows


def checked(name: str, ids, rows: int):
    """Ids as a tensor, or as an array of which each names a row.

    Raises
    ------
    TypeError
        For what are no integers.
    IndexError
        For an id in NumPy that names no row, and for any id where there are no rows.
    """
    no_rows = f"{name}: input has ids, and there are no rows"
    if isinstance(ids, Tensor):
        if kind_of(ids.dtype) not in ("signed", "unsigned"):
            raise TypeError(f"{name}: input is {ids.dtype}; expected integers")
        if ids.size and not rows:
            raise IndexError(no_rows)
        return ids
    ids = np.asarray(ids)
    if ids.dtype.kind not in "iu" and ids.size:
        raise TypeError(f"{name}: input is {ids.dtype}; expected integers")
    if ids.size:
        if not rows:
            raise IndexError(no_rows)
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= rows:
            raise IndexError(f"{name}: input has the id {low if low < 0 else high}; expected 0 to {rows - 1}")
    return ids.astype(np.int64) if ids.dtype.kind not in "iu" or ids.dtype.name == "uint64" else ids


def plan(given: tuple, layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``embedding``."""
    planner = Planner(facts, layouts)
    ids, weight = planner.inputs
    extent, columns = weight.shape
    result = planner.empty((*ids.shape, columns), weight.dtype)
    if not result.size:
        return planner.plan(result)
    ids, ids_offset = in_order(planner, registry, ids, layouts[0].offset)
    weight, weight_offset = with_rows(planner, registry, weight, layouts[1].offset)
    size = weight.dtype.itemsize
    row = weight._strides[0] if extent > 1 else columns
    aligned = math.gcd(columns, row, weight_offset, weight._offset) * size
    flat, rows = ids.reshape(-1), result.reshape(-1, columns)
    data = weight._view(rows.shape, (0, weight._strides[1]))
    places = flat._view(rows.shape, (flat._strides[0], 0))
    if aligned % 4:  # rows that begin in the middle of a word
        offsets = [weight_offset, ids_offset, None]
        emit(planner, registry, Gather(spec("copy", weight.dtype), row, extent), rows, [data, places, None], offsets)
        return planner.plan(result)
    choice = registry.resolve(Request("embedding", "float32"))
    stripe, threads = choice.tile["stripe"], choice.threads
    unit = 4 if aligned % 16 == 0 else 1
    each = 4 * unit // size  # elements of a unit
    constants = {"TYPE_IDS": code(ids.dtype), "WORDS": unit}
    share = _fitting(facts, weight)
    most = min(_fitting(facts, rows), _fitting(facts, flat), threads * stripe * facts.groups[1] // (columns // each))
    if not share or not most:
        raise UnsupportedError(f"{NAME}: one row of {columns} elements does not fit one binding")
    operation = None
    if flat.size <= most and extent <= share:
        expression = spec("copy", weight.dtype).expression((weight.dtype,), weight.dtype)
        operation = Elementwise(expression, (data, places), rows, Counted(row, extent, True))
    for token in range(0, flat.size, most):
        some, to = flat[token : token + most], rows[token : token + most]
        for first in range(0, extent, share):
            part = weight[first : first + share]
            count = to.size // each
            words = {
                "count": count, "units": columns // each, "ids_offset": At(some), "w_offset": At(part, each),
                "w_row": row // each, "y_offset": At(to, each), "extent": extent, "first": first,
                "rows": part.shape[0],
            }  # fmt: skip
            sizes = choice.workgroups(count)
            planner.dispatch(choice, constants, {"weight": part, "ids": some, "y": to}, words, sizes, float(to.size),
                             operation=operation)  # fmt: skip
    return planner.plan(result)


def _fitting(facts: DeviceFacts, tensor: Tensor) -> int:
    """How many of the first axis' places a binding takes."""
    count = tensor.shape[0]
    while count and not fits_binding(facts, tensor[:count]):
        count //= 2
    return count


def plan_backward(given: tuple[int, int], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``embedding_backward``; ``given``: rows, the one skipped."""
    extent, skipped = given
    planner = Planner(facts, layouts)
    ids, g = planner.inputs
    columns = g.shape[-1]
    if not g.size or not extent:
        return planner.plan(planner.empty((extent, columns), g.dtype, zero=True))
    ids, _ = in_order(planner, registry, ids, layouts[0].offset)
    g, offset = in_order(planner, registry, g, layouts[1].offset)
    flat, g = ids.reshape(-1), g.reshape(-1, columns)
    sums = planner.empty((extent, columns), FLOAT32)
    choice = registry.resolve(Request("embedding-backward", "float32"))
    quads = columns % 4 == 0 and math.gcd(offset, g._offset) % 4 == 0
    trips = facts.loop_trips * choice.keys_per_trip
    most = min(_fitting(facts, g), _fitting(facts, flat), int(trips) if trips < flat.size else flat.size)
    part_of_rows = _fitting(facts, sums)
    if not most or not part_of_rows:
        raise UnsupportedError(f"{NAME}_backward: one row of {columns} elements does not fit one binding")
    # All ids are read once for each share of the rows: as few shares as fill the device.
    share = min(max(-(-extent // (choice.tile["fill"] * facts.units)), 1), choice.tile["chunk"])
    share = max(share, -(-extent // facts.groups[0]))
    for token in range(0, flat.size, most):
        some, own = flat[token : token + most], g[token : token + most]
        constants = {
            "TYPE_IDS": code(ids.dtype), "TYPE_G": code(g.dtype), "QUADS": int(quads), "FRESH": int(token == 0),
            "HALVES": halves(registry),
        }  # fmt: skip
        for first in range(0, extent, part_of_rows):
            part = sums[first : first + part_of_rows]
            words = {
                "tokens": some.size, "columns": columns, "ids_offset": At(some), "g_offset": At(own),
                "y_offset": At(part), "extent": extent, "first": first, "rows": part.shape[0], "share": share,
                "skipped": skipped,
            }  # fmt: skip
            groups = (-(-part.shape[0] // share), -(-columns // choice.tile["columns"]), 1)
            work = float(own.size + groups[0] * groups[1] * some.size)
            planner.dispatch(choice, constants, {"ids": some, "g": own, "y": part}, words, groups, work)
    if g.dtype == FLOAT32:
        return planner.plan(sums)
    result = planner.empty(sums.shape, g.dtype)
    emit(planner, registry, spec("copy", FLOAT32, g.dtype), result, [sums], [4])
    return planner.plan(result)
