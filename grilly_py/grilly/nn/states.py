"""State dicts: what their entries may be, and what loading one gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .. import array_api as xp
from ..compute import Tensor
from ..compute.device.arrays import NDArray
from ..compute.device.dtypes import is_float


class LoadResult(NamedTuple):
    """What ``load_state_dict(strict=False)`` passed over: names the state dict lacked, and names it had too many."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def to_numpy(name: str, value: Any) -> NDArray[Any]:
    """An entry of a state dict as an array; PyTorch's tensors are recognised by their methods, without PyTorch."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if "bfloat16" in str(value.dtype):  # which PyTorch does not give to NumPy
            value = value.float()
        try:
            value = value.numpy()
        except TypeError as error:  # numbers of 8 bits, which NumPy lacks
            raise TypeError(f"load_state_dict: {name} is {value.dtype}: {error}; give {name}.float()") from error
    way = f"; give grilly.from_dlpack({name}), which takes what it exports by DLPack"
    way = way if hasattr(value, "__dlpack__") and not isinstance(value, (np.ndarray, Tensor)) else ""
    try:
        array = np.asarray(value)
    except TypeError as error:  # CuPy's, which go to the host only when asked to
        raise TypeError(f"load_state_dict: {name} is no array for NumPy: {error}{way}") from error
    if array.dtype.kind != "f" and not is_float(array.dtype):
        raise TypeError(f"load_state_dict: {name} is {array.dtype}; expected a floating array{way}")
    return array


#: The largest numbers of floating dtypes.
_MOST = {"float16": 65504.0, "bfloat16": 255 * 2.0**120, "float32": (2 - 2.0**-23) * 2.0**127}


def check_range(function: str, values: Mapping[str, Any], dtypes: Mapping[str, np.dtype[Any]]) -> None:
    """Raise OverflowError where a cast would make finite numbers infinite."""
    beyond: dict[str, list[str]] = {}
    for name, value in values.items():
        dtype = dtypes[name]
        if _MOST[dtype.name] >= _MOST.get(value.dtype.name, np.inf):
            continue
        with np.errstate(over="ignore"):
            cast = value.astype(dtype)
        names: Any = xp if isinstance(value, Tensor) else np
        if names.any(names.isinf(cast) & ~names.isinf(value)):
            beyond.setdefault(dtype.name, []).append(name)
    if beyond:
        which = "; ".join(
            f"{', '.join(found)}: numbers past {_MOST[dtype]:.6g}, which {dtype} does not hold"
            for dtype, found in beyond.items()
        )
        raise OverflowError(f"{function}: {which}; the module is left as it was")
