"""The words that kernels read of a call's options: arrays first, then one header for each dispatch.

shaders/attention/extras.glsl reads them by the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...registry.shared import HEADER
from ..device.caches import Kept
from ..device.copy import copy_into
from ..device.device import Device
from ..device.record import sent
from ..device.tensor import Storage, Tensor

_PLACE = {name: place for place, name in enumerate(HEADER)}
#: Words that calls may use again, by their bytes: those of at most so many bytes.
WORDS: Kept[bytes, Storage] = Kept("words of options", 64)
_KEPT_BYTES = 1 << 18


def as_word(value: int | float) -> int:
    """A number as a word of the header: a float as the 32 bits of a float32."""
    if isinstance(value, float):
        value = int(np.float32(value).view(np.uint32))
    return value & 0xFFFFFFFF


def template(size: int, shared: Mapping[str, int], headers: Sequence[Mapping[str, int]]) -> np.ndarray:
    """The words of a call but for its arrays, which take the first ``size``: the headers, uint32."""
    words = np.zeros(size + len(HEADER) * len(headers), np.uint32)
    for place, header in zip(places(size, len(headers)), headers, strict=True):
        for name, value in {**shared, **header}.items():
            words[place + _PLACE[name]] = value & 0xFFFFFFFF
    return words


def places(size: int, headers: int) -> list[int]:
    """The words at which the headers begin."""
    return [size + number * len(HEADER) for number in range(headers)]


def words_of(
    device: Device, words: np.ndarray, arrays: Sequence[tuple[int, object]], live: Mapping[str, int], size: int,
    keep: bool = True,
) -> Storage:  # fmt: skip
    """The words on the device: a template with a call's arrays, and the headers' words that change with every call.

    ``keep`` says that they may be those of another call, and are not to be changed.
    """
    words = words.copy()
    loose = []
    for place, array in arrays:
        if isinstance(array, Tensor):
            loose.append((place, array))
        elif array.size:
            words[place : place + array.size] = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
    for name, value in live.items():
        words[size + _PLACE[name] :: len(HEADER)] = value & 0xFFFFFFFF
    if loose or not keep or words.nbytes > _KEPT_BYTES:
        with device.runtime.aside():  # what a replay changes of it, it writes before it reads
            storage = sent(device, words)
        for place, tensor in loose:
            copy_into(tensor, Tensor(storage, tensor.shape, tensor.dtype, offset=place))
        return storage
    key = words.tobytes()
    kept = device.caches[WORDS]
    found = kept.get(key)
    if found is None:
        with device.runtime.aside():
            found = kept.keep(key, sent(device, words))
    return found
