"""float16 and bfloat16 arrays on devices without 16-bit storage: computed as float32, and rounded once at the end."""

from __future__ import annotations

import functools
import inspect

import numpy as np

from .dtypes import is_sixteen_bits
from .tensor import Tensor

_FLOAT32 = np.dtype(np.float32)


def widens(*names: str, narrow: bool = True, every: bool = False):
    """Make an operation take 16-bit arrays on every device.

    Where the device has no 16-bit storage, the arguments called ``names`` become float32, by the host where they are
    NumPy arrays and by the device where they are Tensors; the operation runs in float32, and its result (of several,
    the first) is rounded to the arguments' dtype. Arguments of differing dtypes are left for the operation to refuse.

    Parameters
    ----------
    names : str
        Of the arguments that must have one dtype. The operation also has an argument ``device``.
    narrow : bool
        False where the result is float32 whatever the arguments are.
    every : bool
        Whether all results are rounded, and not only the first; those that are None stay.
    """

    def wrap(operation):
        signature = inspect.signature(operation)
        at = list(signature.parameters).index("device")

        @functools.wraps(operation)
        def call(*args, **options):
            device = args[at]
            if device.sixteen_bits:
                return operation(*args, **options)
            bound = signature.bind(*args, **options)
            arrays = {name: bound.arguments[name] for name in names if bound.arguments.get(name) is not None}
            dtypes = {getattr(array, "dtype", None) for array in arrays.values()}
            dtype = dtypes.pop()
            if dtypes or not isinstance(dtype, np.dtype) or not is_sixteen_bits(dtype):
                return operation(*args, **options)
            device.check_open()
            bound.arguments.update((name, array.astype(_FLOAT32, copy=False)) for name, array in arrays.items())
            result = operation(*bound.args, **bound.kwargs)
            if not narrow:
                return result
            first, *others = result if isinstance(result, tuple) else (result,)
            with np.errstate(over="ignore"):
                first = first.astype(dtype, copy=False)
                if every:
                    others = [None if other is None else other.astype(dtype, copy=False) for other in others]
            if isinstance(first, Tensor):
                device.runtime.flush()
            return (first, *others) if isinstance(result, tuple) else first

        return call

    return wrap
