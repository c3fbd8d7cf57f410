"""Quantized tensors on a device, their numbers as floats, and rows of them by ids.

The kernels are shaders/elementwise/pack-blocks.comp and dequantize.comp; products are in matmul/quantized.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..errors import UnsupportedError
from ..quantization import TYPES, QuantizedTensor
from ..quantization.groups import GroupedTensor
from ..quantization.packing import PACKINGS, UNIT, packing_of
from ..registry import Registry, Request
from ..registry.shared import names_of
from .arrays.map import in_order
from .arrays.operations import code
from .arrays.take import picked
from .device.call import run
from .device.device import Device, DeviceFacts
from .device.dtypes import FLOATS_TEXT, dtype_of, is_float
from .device.plan import At, Layout, Plan, Planner, fits_binding, strided
from .device.tensor import Tensor

_SCALES, _TABLES, _STORED = names_of("scales"), names_of("tables"), names_of("stored")
#: Elements that an invocation of the kernel makes.
_EACH = 8
#: Bytes of blocks that are sent at a time.
_AT_ONCE = 2**26


class Rows(NamedTuple):
    """Rows of one type: uint32 ``(N, words)`` each, in the order of ``quantization.packing``."""

    type: str
    low: Tensor
    high: Tensor | None
    scales: Tensor

    @property
    def count(self) -> int:
        """N."""
        return self.low.shape[0]

    @property
    def arrays(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """What kernels bind."""
        return self.low, self.high, self.scales

    @property
    def constants(self) -> dict[str, int]:
        """The specialization constants of quantized.glsl."""
        own = packing_of(self.type)
        return {"LOW": own.low, "HIGH": own.high, "OFFSET": own.offset, "TABLE": _TABLES[f"table_{own.table}"],
                "SCALES": _SCALES[f"scales_{own.scales}"], "GROUP": own.group}  # fmt: skip

    def push(self, unit: int) -> dict[str, object]:
        """The push constants of the arrays: those of ``low`` count so many words, the others one."""
        return {
            **strided("low", self.low, ("row",), unit), **strided("high", self.high, ("row",)),
            **strided("scales", self.scales, ("row",)),
        }  # fmt: skip

    def cut(self, first: int, last: int) -> Rows:
        """Some of the rows."""
        high = None if self.high is None else self.high[first:last]
        return Rows(self.type, self.low[first:last], high, self.scales[first:last])

    def fits(self, facts: DeviceFacts) -> bool:
        """Whether bindings take the arrays."""
        return all(array is None or fits_binding(facts, array) for array in self.arrays)

    def fitting(self, facts: DeviceFacts) -> Iterator[tuple[int, Rows]]:
        """Parts that bindings take, each with its first row. Raises UnsupportedError where not even one row fits."""
        step = self.count
        while step > 1 and not self.cut(0, step).fits(facts):
            step = -(-step // 2)
        if not self.cut(0, step).fits(facts):
            raise UnsupportedError(f"one row of a quantized tensor {self.type} does not fit one binding")
        for first in range(0, self.count, step):
            yield first, self.cut(first, min(first + step, self.count))


class DeviceQuantizedTensor(QuantizedTensor):
    """A quantized tensor on a device, as ``backend.tensor`` makes it. Its bytes are in the order that kernels read.

    Attributes
    ----------
    rows : tuple of Rows
        One for each type, one below the other.
    columns, places : Tensor or None
        int32 ``(K,)``: which column of the matrix each column of ``rows`` is, and where each column of the matrix is;
        None where they are in their order.
    """

    def __init__(
        self, shape: tuple[int, ...], rows: tuple[Rows, ...], columns: Tensor | None = None,
        places: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.shape, self.rows, self.columns, self.places = shape, rows, columns, places
        self.type = ", ".join(dict.fromkeys(part.type for part in rows))

    def __repr__(self) -> str:
        return f"QuantizedTensor(shape={self.shape}, type={self.type!r}, device={self.backend.device.name!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> DeviceQuantizedTensor:
        return self  # nothing writes to it

    def __reduce__(self) -> NoReturn:
        raise TypeError("a quantized tensor on a device cannot be pickled; pickle the one on the host")

    @property
    def data(self) -> NoReturn:  # type: ignore[override]
        """Of tensors on the host only."""
        raise AttributeError("a quantized tensor on a device has no data; the bytes of blocks are those on the host")

    @property
    def device(self) -> Device:
        """The device that has it."""
        return self.rows[0].low._storage.device

    @property
    def backend(self) -> Any:
        """The ``grilly.Compute`` that has it."""
        return self.device.backend

    @property
    def arrays(self) -> tuple[Tensor | None, ...]:
        """Those of all rows, three of each type."""
        return tuple(array for part in self.rows for array in part.arrays)

    @property
    def types(self) -> tuple[str, ...]:
        """The types of ``rows``."""
        return tuple(part.type for part in self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(array.nbytes for array in (*self.arrays, self.columns, self.places) if array is not None)

    def dequantize(self, dtype: Any = np.float32) -> Tensor:  # type: ignore[override]
        """The numbers, a Tensor of the same shape; computed in float32, without waiting.

        Raises TypeError for other dtypes than float32, float16 and bfloat16.
        """
        dtype = dtype_of(dtype)
        if not is_float(dtype):
            raise TypeError(f"QuantizedTensor.dequantize: dtype {dtype}; expected {FLOATS_TEXT}")
        device = self.device
        device.check_open()
        found = self.unsorted(run(device, plan, (self.types, self.shape, dtype), [None, *self.arrays])[0])
        device.runtime.flush()
        return found

    def unsorted(self, rows: Tensor) -> Tensor:
        """Rows of ``rows``, or what was added to them, with columns in the matrix' order."""
        return rows if self.places is None else picked(rows, self.places, rows.ndim - 1)


def is_read(tensor: QuantizedTensor) -> bool:
    """Whether kernels read a tensor's type."""
    return bool(tensor.type) if isinstance(tensor, (GroupedTensor, DeviceQuantizedTensor)) else tensor.type in PACKINGS


def check_quantized(name: str, tensor: QuantizedTensor) -> None:
    """Raise TypeError for a type that kernels do not read."""
    if not is_read(tensor):
        grouped = isinstance(tensor, GroupedTensor)
        plain = f"; give {name}'s dequantize()" if grouped or TYPES[tensor.type].dequantize is not None else ""
        said = "its groups are not of multiples of 32 columns" if grouped else f"the type {tensor.type}"
        raise TypeError(f"{name}: {said}; kernels read {', '.join(PACKINGS)}{plain}")


def packed_nbytes(type: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor on a device: at most 12 % more than those of its blocks, but for a row's last word."""
    return 4 * sum(packing_of(type).words(shape[-1])) * math.prod(shape[:-1])


def placed(device: Device, *tensors: QuantizedTensor, shape: tuple[int, ...] | None = None) -> DeviceQuantizedTensor:
    """Tensors of the host on a device, one below the other.

    Parameters
    ----------
    shape : tuple of int, optional
        Of all; by default that of the one tensor.

    Raises
    ------
    TypeError
        For a type that kernels do not read.
    ValueError
        For a tensor without numbers.
    """
    device.check_open()
    for tensor in tensors:
        check_quantized("tensor", tensor)
        if not tensor.size:
            raise ValueError(f"tensor: the quantized tensor has shape {tensor.shape}; expected one with numbers")
    rows = tuple(_sent(device, group) for group in _alike(tensors))
    order = _columns(tensors)
    both = (None, None) if order is None else (device.tensor(order), device.tensor(np.argsort(order).astype(np.int32)))
    return DeviceQuantizedTensor(tensors[0].shape if shape is None else shape, rows, *both)


def _sent(device: Device, tensors: Sequence[QuantizedTensor]) -> Rows:
    """The rows of tensors of one type, one after the other on the device."""
    type, depth = tensors[0].type, tensors[0].shape[-1]
    count, grouped = sum(tensor.size for tensor in tensors) // depth, isinstance(tensors[0], GroupedTensor)
    own = packing_of(type)
    words = own.words(depth)
    low, high, scales = (device.empty((count, each), np.uint32) if each else None for each in words)
    rows, first = Rows(type, low, high, scales), 0
    for tensor in tensors:
        part = rows.cut(first, first + tensor.size // depth)
        if grouped:
            for array, given in zip(part.arrays, tensor.packed(), strict=True):
                if given is not None:
                    device.fill(array, np.ascontiguousarray(given))
        else:
            _pack(device, part, tensor.data.reshape(part.count, -1))
        first += part.count
    return rows


def _pack(device: Device, rows: Rows, data: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    """Blocks, uint8 ``(N, bytes)``, into rows of the device, some at a time."""
    most = min(_AT_ONCE, device.facts.storage_range)
    step = max(most // data.shape[1], 1)
    step -= step % 2 if step > 1 else 0  # all but the last bytes are whole words
    for start, fitting in rows.fitting(device.facts):
        for first in range(0, fitting.count, step):
            some = np.ascontiguousarray(data[start + first : start + min(first + step, fitting.count)])
            raw = some.reshape(-1)
            raw = np.pad(raw, (0, -raw.size % 4)) if raw.size % 4 else raw  # it copies in any case
            sent = device.tensor(raw.view(np.uint32))
            target = fitting.cut(first, first + len(some))
            run(device, _plan_packing, (rows.type, some.shape[1]), [sent, *target.arrays])
            device.runtime.flush()


def _plan_packing(given: tuple, layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatch that packs blocks. ``given``: the type and a row's bytes. Layouts: of blocks, of rows."""
    type, row_bytes = given
    planner = Planner(facts, layouts)
    blocks, *arrays = planner.inputs
    rows, own, stored = Rows(type, *arrays), PACKINGS[type], TYPES[type]
    units = row_bytes // stored.nbytes * stored.block // UNIT
    at = {name: place for name, (_, place, *_) in (stored.layout.fields or {}).items()}
    choice = registry.resolve(Request("pack-blocks", "float32"))
    names = ("LOW", "HIGH", "OFFSET", "SCALES")
    constants = {
        "BLOCK": stored.block, "BYTES": stored.nbytes, "LOW_AT": at["q"], "LOW_RUN": own.low_run,
        "HIGH_AT": at.get("high", 0), "HIGH_RUN": own.high_run, "SCALE_AT": at.get("d", 0),
        "MINIMUM_AT": at.get("m", at.get("dmin", 0)), "STORED": _STORED[f"stored_{own.stored}"],
        "PARTS_AT": at.get(own.parts, 0), **{name: rows.constants[name] for name in names},
    }  # fmt: skip
    push = {"rows": rows.count, "units": units, "blocks_offset": At(blocks), "row_bytes": row_bytes, **rows.push(1)}
    bound = {"blocks": blocks, "low": rows.low, "high": rows.high, "scales": rows.scales}
    count = rows.count * -(-units // 2)
    planner.dispatch(choice, constants, bound, push, choice.workgroups(count))
    return planner.plan()


def _columns(tensors: Sequence[QuantizedTensor]) -> np.ndarray[Any, np.dtype[np.int32]] | None:
    """The order of columns, which all tensors must have."""
    orders = [tensor.columns if isinstance(tensor, GroupedTensor) else None for tensor in tensors]
    assert all(np.array_equal(order, orders[0]) for order in orders)
    return orders[0]


def _alike(tensors: Sequence[QuantizedTensor]) -> list[list[QuantizedTensor]]:
    """Neighbours of one type together."""
    groups: list[list[QuantizedTensor]] = []
    for tensor in tensors:
        if groups and groups[-1][0].type == tensor.type:
            groups[-1].append(tensor)
        else:
            groups.append([tensor])
    return groups


def rows_of(types: Sequence[str], arrays: Sequence[Tensor | None]) -> list[Rows]:
    """The rows of ``DeviceQuantizedTensor.types`` and ``arrays``."""
    return [Rows(type, *arrays[3 * i : 3 * i + 3]) for i, type in enumerate(types)]


def some_rows(rows: Sequence[Rows], first: int, last: int) -> list[Rows]:
    """Rows from ``first`` to before ``last`` of all."""
    found, start = [], 0
    for part in rows:
        low, high = max(first - start, 0), min(last - start, part.count)
        if low < high:
            found.append(part.cut(low, high))
        start += part.count
    return found


def plan(given: tuple, layouts: Sequence[Layout | None], facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches that make floats of a quantized tensor; or, with ids, of its rows.

    ``given``: types, shape and the result's dtype. Layouts are those of the ids or None, and of the tensor's arrays.
    """
    types, shape, dtype = given
    planner = Planner(facts, layouts)
    ids, *arrays = planner.inputs
    rows, depth = rows_of(types, arrays), shape[-1]
    y = planner.empty(shape if ids is None else (*ids.shape, depth), dtype)
    if not y.size:
        return planner.plan(y)
    if ids is None:
        emit_floats(planner, registry, rows, y.reshape(-1, depth))
    else:
        ids, _ = in_order(planner, registry, ids, layouts[0].offset)
        _emit_indexed(planner, registry, rows, y.reshape(-1, depth), ids.reshape(-1))
    return planner.plan(y)


def emit_floats(planner: Planner, registry: Registry, rows: Sequence[Rows], y: Tensor) -> None:
    """Plan the rows as floats, into a contiguous y ``(N, K)``."""
    first = 0
    for part in rows:
        for start, some in part.fitting(planner.facts):
            target = y[first + start : first + start + some.count]
            step = _fitting(planner.facts, target)
            for begin in range(0, some.count, step):
                own = some.cut(begin, min(begin + step, some.count))
                _dispatch(planner, registry, own, target[begin : begin + own.count], None, 0, own.count)
        first += part.count


def _emit_indexed(planner: Planner, registry: Registry, rows: Sequence[Rows], y: Tensor, ids: Tensor) -> None:
    """Plan the rows that ids name, into a contiguous y ``(tokens, K)``."""
    extent, step = sum(part.count for part in rows), min(_fitting(planner.facts, y), _fitting(planner.facts, ids))
    for token in range(0, len(y), step):
        first = 0
        for part in rows:
            for start, some in part.fitting(planner.facts):
                target = y[token : token + step]
                _dispatch(planner, registry, some, target, ids[token : token + step], first + start, extent)
            first += part.count


def _fitting(facts: DeviceFacts, tensor: Tensor) -> int:
    """How many of the first axis' places a binding and a dispatch take."""
    count = tensor.shape[0]
    while count > 1 and (not fits_binding(facts, tensor[:count]) or tensor[:count].size >= 2**31):
        count = -(-count // 2)
    return count


def _dispatch(
    planner: Planner, registry: Registry, rows: Rows, y: Tensor, ids: Tensor | None, first: int, extent: int
) -> None:  # fmt: skip
    choice = registry.resolve(Request("dequantize", "float32"))
    count = y.size // _EACH
    push = {
        "count": count, "depth": y.shape[1], "ids_offset": At(ids), "y_offset": At(y), "extent": extent, "first": first,
        "rows": rows.count, **rows.push(1),
    }  # fmt: skip
    constants = {
        "TYPE_IDS": 0 if ids is None else code(ids.dtype), "INDEXED": int(ids is not None), "TYPE_Y": code(y.dtype),
        **rows.constants,
    }  # fmt: skip
    bound = {"ids": ids, "low": rows.low, "high": rows.high, "scales": rows.scales, "y": y}
    planner.dispatch(choice, constants, bound, push, choice.workgroups(count), 4.0 * y.size)


__all__ = [
    "DeviceQuantizedTensor", "Rows", "check_quantized", "emit_floats", "is_read", "packed_nbytes", "placed", "plan",
    "rows_of", "some_rows",
]  # fmt: skip
