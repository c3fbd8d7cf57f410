"""Rotary position embedding."""

from __future__ import annotations

import math

import numpy as np

from ..registry import Registry, Request
from .arrays.map import with_rows
from .device.arguments import check_float
from .device.caches import DeviceCache
from .device.call import call
from .device.cut import parts, placed, strides
from .device.device import Device, DeviceFacts
from .device.numbers import integer, number
from .device.plan import At, Live, Plan, Planner, output_like, strided
from .device.tensor import Tensor

_MOST = 2**31 - 1
#: Tables of cosines and sines.
TABLES: DeviceCache[tuple, tuple[Tensor, Tensor]] = DeviceCache("rotary tables", 4)


def rope(
    device: Device,
    x,
    *,
    frequencies=None,
    base: float = 10000.0,
    offset: int = 0,
    positions=None,
    interleaved: bool = False,
    reverse: bool = False,
    factor: float = 1.0,
):
    """``grilly.functional.rope`` on a device; documented there."""
    table = None
    if frequencies is not None:
        frequencies, base = np.asarray(frequencies, np.float64), 0.0
        table = frequencies.tobytes()
    base = base if base.__class__ is float else number("rope", "base", base)
    factor = factor if factor.__class__ is float else number("rope", "factor", factor)
    offset = offset if offset.__class__ is int else integer("rope", "offset", offset)
    rows = x.shape[-2] if len(getattr(x, "shape", ())) > 1 else 0
    if not 0 <= offset <= _MOST - rows:
        raise ValueError(f"rope: offset is {offset}; expected 0 to {_MOST} less the {rows} rows")

    def check(x, positions) -> tuple:
        check_float("rope", x=x)
        if len(x.shape) not in (2, 3, 4):
            raise ValueError(f"rope: x has shape {tuple(x.shape)}; expected (B, H, S, D), (B, S, D) or (S, D)")
        _checked_frequencies(frequencies, base, x.shape[-1])
        if not math.isfinite(factor):
            raise ValueError(f"rope: factor is {factor}; it must be finite")
        return x, None if positions is None else _checked_positions(positions, tuple(x.shape))

    static = (base, table, bool(interleaved), bool(reverse), factor)
    (y,) = call(device, plan, static, (x, positions), check, (offset,), floats=1)
    return y if x.__class__ is Tensor or y.__class__ is not Tensor else y.numpy()  # positions may be a Tensor alone


def plan(given: tuple, layouts, facts: DeviceFacts, registry: Registry) -> Plan:
    """The dispatches of ``rope``. ``Live`` word 0: the offset."""
    base, frequencies, interleaved, reverse, factor = given
    planner = Planner(facts, layouts)
    x, positions = planner.inputs
    if not x.size:
        return planner.plan(planner.empty(x.shape, x.dtype))
    rank, (x, _) = x.ndim, with_rows(planner, registry, x, layouts[0].offset)
    four = x[None, None] if rank == 2 else x[:, None] if rank == 3 else x
    batch, heads, rows, width = four.shape
    turns = _checked_frequencies(None, base, width) if frequencies is None else np.frombuffer(frequencies)
    words = planner.constant(_words(-turns if reverse else turns))
    y = output_like(planner, four, width)
    place = positions
    if place is not None:
        # An axis for the heads, and one that stands for the row's elements.
        place = (place[:, None, :, None] if place.ndim == 2 else place[None, None, :, None]).broadcast_to(
            (batch, heads, rows, 1)
        )
    choice = registry.resolve(Request("rope", x.dtype.name))
    constants = {"INTERLEAVED": int(interleaved), "POSITIONS": int(place is not None)}
    row_block, items = choice.tile["rows"], choice.tile["items"]

    def groups(part):
        return -(-(width - len(turns)) // items), -(-part[2] // row_block), part[0] * part[1]

    for (to, part, at), starts in parts(facts, (y, four, place), groups, ((), (2,), (0, 1))):
        own = (0, 0) if at is None else (strides(at)[0], strides(at)[2])
        push = {
            **placed("x", part), **placed("y", to), "positions_offset": At(at), "positions_batch": own[0],
            "positions_row": own[1], **strided("frequencies", words, (), unit=2), "offset": Live(0, starts[2]),
            "rows": to.shape[2], "pairs": len(turns), "width": width, "heads": to.shape[1], "factor": factor,
        }  # fmt: skip
        arrays = {"x": part, "frequencies": words, "positions": at, "y": to}
        planner.dispatch(choice, constants, arrays, push, groups(to.shape))
    return planner.plan(y[0, 0] if rank == 2 else y[:, 0] if rank == 3 else y)


def rotary_tables(device: Device, frequencies: np.ndarray, factor: float, rows: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of so many positions, float32 ``(rows, P)`` on the device, times ``factor``.

    The layers of a model share them.
    """
    key = (frequencies.tobytes(), factor, rows)
    found = device.caches[TABLES].get(key)
    if found is None:
        angles = np.arange(rows, dtype=np.float64)[:, None] * frequencies
        with device.runtime.aside():
            pair = tuple(device.tensor((factor * turn(angles)).astype(np.float32)) for turn in (np.cos, np.sin))
        found = device.caches[TABLES].keep(key, pair)
    return found


def _checked_frequencies(frequencies, base: float, width: int) -> np.ndarray:
    if frequencies is None:
        if width % 2 or not width:
            raise ValueError(f"rope: rows have {width} elements; without frequencies the number must be even")
        base = number("rope", "base", base)
        if not (base > 0 and math.isfinite(base)):
            raise ValueError(f"rope: base is {base}; it must be positive and finite")
        with np.errstate(over="ignore"):
            frequencies = base ** (-np.arange(0, width, 2, dtype=np.float64) / width)
        if not np.isfinite(frequencies).all():
            raise ValueError(f"rope: base is {base}; frequencies of so small a base are not finite; the usual is 10000")
        return frequencies
    frequencies = np.asarray(frequencies, np.float64)
    if frequencies.ndim != 1 or not 1 <= len(frequencies) <= width // 2:
        raise ValueError(
            f"rope: frequencies have shape {frequencies.shape} and rows {width} elements; "
            f"expected (P,) with P from 1 to {width // 2}"
        )
    if not (np.isfinite(frequencies) & (frequencies >= 0)).all():
        raise ValueError("rope: frequencies must be finite and not negative")
    return frequencies


def _checked_positions(positions, shape):
    """The positions as an int32 array, or the tensor; their shape checked."""
    if not isinstance(positions, Tensor):
        positions = np.asarray(positions)
    if positions.dtype.kind not in "iu" or (isinstance(positions, Tensor) and positions.dtype != np.int32):
        raise TypeError(f"rope: positions are {positions.dtype}; expected integers (int32 in a Tensor)")
    wanted = [(shape[-2],)] + ([(shape[0], shape[-2])] if len(shape) > 2 else [])
    given = tuple(positions.shape)
    if given not in wanted:
        # Those of (B, S, H, D), whose heads lie where rows are?
        heads_last = len(shape) == 4 and given in (shape[1:2], shape[:2])
        raise ValueError(
            f"rope: positions have shape {given} and x has {shape}; expected "
            + " or ".join(map(str, wanted))
            + "; rows are the last axis but one: turn (B, S, H, D) into (B, H, S, D)" * heads_last
        )
    if isinstance(positions, Tensor):
        return positions
    if positions.size and not 0 <= int(positions.min()) <= int(positions.max()) <= _MOST:
        raise ValueError(f"rope: positions run from {positions.min()} to {positions.max()}; expected 0 to {_MOST}")
    return positions.astype(np.int32)


def _words(frequencies: np.ndarray) -> np.ndarray:
    """The frequencies as fractions of a turn times 2^64, two words each."""
    fractions = [int(math.ldexp(math.fmod(f / (2 * math.pi), 1.0), 64)) % 2**64 for f in frequencies.tolist()]
    return np.array(fractions, "<u8").view("<i4")
