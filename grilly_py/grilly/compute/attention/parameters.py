"""The parameter buffer of a call's options: arrays first, then one block of parameters for each dispatch.

shaders/attention/extras.glsl reads them by the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...registry.shared import PARAMETER_NAMES
from ..arrays.assign import assign
from ..device.caches import DeviceCache
from ..device.device import Device
from ..device.executables import sent
from ..device.tensor import Tensor
from .option_checks import INT32

_PLACE = {name: place for place, name in enumerate(PARAMETER_NAMES)}
#: Parameter buffers that calls may use again, by their bytes: those of at most so many bytes.
PARAMETERS: DeviceCache[bytes, Tensor] = DeviceCache("parameters of options", 64)
_CACHED_BYTES = 1 << 18


def as_parameter(value: int | float) -> int:
    """A number as a parameter of the block: a float as the 32 bits of a float32."""
    if isinstance(value, float):
        value = int(np.float32(value).view(np.uint32))
    return value & 0xFFFFFFFF


def laid_out(size: int, array: Any) -> tuple[int, int]:
    """The word at which an array begins behind so many words, and where it ends: 64-bit elements begin at even ones."""
    width = array.dtype.itemsize
    place = size + size % 2 if width == 8 else size
    return place, place - (-array.size * width // 4)


def template(size: int, shared: Mapping[str, int], blocks: Sequence[Mapping[str, int]]) -> np.ndarray:
    """The blocks of parameters after ``size`` zeros for the call's arrays, uint32."""
    parameters = np.zeros(size + len(PARAMETER_NAMES) * len(blocks), np.uint32)
    for place, block in zip(places(size, len(blocks)), blocks, strict=True):
        for name, value in {**shared, **block}.items():
            parameters[place + _PLACE[name]] = value & 0xFFFFFFFF
    return parameters


def places(size: int, blocks: int) -> list[int]:
    """The words at which the blocks begin."""
    return [size + number * len(PARAMETER_NAMES) for number in range(blocks)]


def parameters_of(
    device: Device, parameters: np.ndarray, arrays: Sequence[tuple[int, object]], live: Mapping[str, int], size: int,
    keep: bool = True, seed: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The parameter buffer of a call, ``(n,)`` int32.

    Parameters
    ----------
    parameters : numpy.ndarray
        The plan's template, uint32.
    arrays : sequence of (int, array)
        The call's arrays, NumPy's of 32-bit elements, and the words at which they begin.
    live : mapping
        Parameters of the blocks that change with every call.
    size : int
        Words of the arrays: the blocks begin there.
    keep : bool
        Whether calls with the same contents share the buffer; it must not be written then.
    seed : Tensor or None
        The words seed_low, seed_high and dropout_offset of the blocks, or the first two; in place of ``live``'s.
    """
    parameters = parameters.copy()
    loose = []
    for place, array in arrays:
        if isinstance(array, Tensor):
            loose.append((place, array))
        elif array.size:
            parameters[place : place + array.size] = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
    for name, value in live.items():
        parameters[size + _PLACE[name] :: len(PARAMETER_NAMES)] = value & 0xFFFFFFFF
    if loose or seed is not None or not keep or parameters.nbytes > _CACHED_BYTES:
        with device.runtime.aside():  # what a replay changes of it, it writes before it reads
            made = _sent(device, parameters)
        for place, tensor in loose:
            each = tensor.dtype.itemsize
            target = Tensor(made._storage, tensor.shape, tensor.dtype, offset=4 * place // each)
            assign(device, target, tensor)
        if seed is not None:
            words = len(PARAMETER_NAMES)
            blocks, at = (parameters.size - size) // words, size + _PLACE["seed_low"]
            assign(device, Tensor(made._storage, (blocks, seed.size), seed.dtype, (words, 1), at), seed)
        return made
    key = parameters.tobytes()
    kept = device.caches[PARAMETERS]
    found = kept.get(key)
    if found is None:
        with device.runtime.aside():
            found = kept.keep(key, _sent(device, parameters))
    return found


def _sent(device: Device, parameters: np.ndarray) -> Tensor:
    return Tensor(sent(device, parameters), parameters.shape, INT32)
