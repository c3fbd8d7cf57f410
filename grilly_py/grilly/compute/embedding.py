"""Embeddings: rows of a table by integer ids, and the sums of gradients that come back to them.

The kernels are shaders/elementwise/embedding.comp and embedding-backward.comp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..errors import UnsupportedError
from ..registry import Registry, Request
from .arrays.map import Gather, emit, halves
from .arrays.operations import code, spec
from .arrays.promotion import FLOAT32, kind_of
from .device.arguments import check_backend, check_float, finish, to_device
from .device.caches import Kept
from .device.device import Device, DeviceFacts
from .device.numbers import integer
from .device.plan import At, Layout, Plan, Planner, fits_binding
from .device.record import Ready, again, run
from .device.tensor import Tensor

NAME = "embedding"
#: Plans of embeddings.
PLANS: Kept[tuple, Ready] = Kept("plans of embedding", 256)
#: Plans of their gradients.
GRADIENTS: Kept[tuple, Ready] = Kept("plans of embedding_backward", 256)
_NONE = 2**32 - 1


def embedding(device: Device, ids, weight, padding_idx=None):
    """``grilly.functional.embedding`` on a device; documented there."""
    device.check_open()
    if type(ids) is type(weight) is Tensor and padding_idx is None:
        done = again(device, PLANS, (), (ids, weight))  # like an earlier call, which passed the checks
        if done is not None:
            device.runtime.flush()
            return done[0]
    dtype = check_float(NAME, weight=weight)
    if len(weight.shape) != 2:
        raise ValueError(f"{NAME}: weight has shape {tuple(weight.shape)}; expected (num_embeddings, embedding_dim)")
    check_padding(NAME, padding_idx, weight.shape[0])
    ids = checked(NAME, ids, weight.shape[0])
    check_backend(NAME, device, ids, weight)
    shape = (*ids.shape, weight.shape[1])
    if 0 in shape:
        return finish(device, device.empty(shape, dtype), ids, weight)
    tensors = (device.tensor(ids).contiguous(), to_device(device, weight))
    (found,) = run(device, PLANS, plan, (), tensors)
    return finish(device, found, ids, weight)


def embedding_backward(device: Device, grad_output, ids, num_embeddings, padding_idx=None):
    """``grilly.functional.embedding_backward`` on a device; documented there."""
    name = "embedding_backward"
    device.check_open()
    dtype = check_float(name, grad_output=grad_output)
    rows = integer(name, "num_embeddings", num_embeddings)
    if rows < 0:
        raise ValueError(f"{name}: num_embeddings is {rows}; expected no negative number")
    skipped = check_padding(name, padding_idx, rows)
    ids = checked(name, ids, rows)
    check_backend(name, device, ids, grad_output)
    shape = tuple(grad_output.shape)
    if not shape or shape[:-1] != tuple(ids.shape):
        raise ValueError(
            f"{name}: grad_output has shape {shape} and input {tuple(ids.shape)}; expected one more axis"
        )
    if not rows or not shape[-1]:
        return finish(device, device.empty((rows, shape[-1]), dtype), ids, grad_output)
    if not math.prod(shape):
        return finish(device, device.tensor(np.zeros((rows, shape[-1]), dtype)), ids, grad_output)
    tensors = (device.tensor(ids).contiguous(), to_device(device, grad_output).contiguous())
    (found,) = run(device, GRADIENTS, plan_backward, (rows, _NONE if skipped is None else skipped), tensors)
    return finish(device, found, ids, grad_output)


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
    """The dispatches of ``embedding``: ids in C order, and a weight of contiguous rows."""
    planner = Planner(facts, layouts)
    ids, weight = planner.inputs
    extent, columns = weight.shape
    result = planner.empty((*ids.shape, columns), weight.dtype)
    size = weight.dtype.itemsize
    row = weight._steps[0] if extent > 1 else columns
    aligned = math.gcd(columns, row, layouts[1].offset, weight._offset) * size
    flat, rows = ids.reshape(-1), result.reshape(-1, columns)
    if aligned % 4:  # rows that begin in the middle of a word
        data = weight._view(rows.shape, (0, weight._steps[1]))
        places = flat._view(rows.shape, (flat._steps[0], 0))
        offsets = [layouts[1].offset, layouts[0].offset, None]
        emit(planner, registry, Gather(spec("gather", weight.dtype), row, extent), rows, [data, places, None], offsets)
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
            groups = -(-count // threads)
            sizes = (min(groups, stripe), -(-groups // stripe), 1)
            planner.dispatch(choice, constants, {"ids": some, "weight": part, "y": to}, words, sizes, float(to.size))
    return planner.plan(result)


def _fitting(facts: DeviceFacts, tensor: Tensor) -> int:
    """How many of the first axis' places a binding takes."""
    count = tensor.shape[0]
    while count and not fits_binding(facts, tensor[:count]):
        count //= 2
    return count


def plan_backward(
    given: tuple[int, int], layouts: Sequence[Layout], facts: DeviceFacts, registry: Registry
) -> Plan:
    """The dispatches of ``embedding_backward`` on ids and gradients in C order; ``given``: rows, the one skipped."""
    extent, skipped = given
    planner = Planner(facts, layouts)
    ids, g = planner.inputs
    columns = g.shape[-1]
    flat, g = ids.reshape(-1), g.reshape(-1, columns)
    sums = planner.empty((extent, columns), FLOAT32)
    choice = registry.resolve(Request("embedding-backward", "float32"))
    quads = columns % 4 == 0 and math.gcd(layouts[1].offset, g._offset) % 4 == 0
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
    emit(planner, registry, spec("copy", FLOAT32, g.dtype), result, [sums, None, None], [4, None, None])
    return planner.plan(result)
