"""The Python array API standard (2024.12) on the device: the functions that ``grilly`` has under its own name.

Operands are tensors; a NumPy array goes to the device first, to that of the tensors beside it or to the default one.
Results are tensors, without waiting. docs/arrays.md says what of the standard is left out, and which errors the
elementary functions have.
"""

import math

from . import elementwise as _elementwise
from .creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from .data_types import (
    astype,
    bool,
    can_cast,
    finfo,
    float16,
    float32,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    isdtype,
    result_type,
    uint8,
    uint16,
    uint32,
)
from .elements import clip, conj, nextafter, positive, real
from .elementwise import *  # noqa: F403  whatever has a record
from .indexing import take, take_along_axis
from .inspection import __array_namespace_info__
from .linear_algebra import matmul, matrix_transpose, tensordot, vecdot
from .manipulation import (
    broadcast_arrays,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    moveaxis,
    permute_dims,
    repeat,
    reshape,
    roll,
    split,
    squeeze,
    stack,
    tile,
    unstack,
)
from .searching import argmax, argmin, count_nonzero, nonzero, searchsorted, where
from .sets import isin, unique_all, unique_counts, unique_inverse, unique_values
from .sorting import argsort, sort, topk
from .statistical import cumulative_prod, cumulative_sum, max, mean, min, prod, std, sum, var
from .utility import all, any, diff

__array_api_version__ = "2024.12"

e = math.e
inf = math.inf
nan = math.nan
newaxis = None
pi = math.pi

__all__ = [
    *(name for name in vars(_elementwise) if not name.startswith("_")),
    "__array_api_version__", "__array_namespace_info__", "all", "any", "arange", "argmax", "argmin", "argsort",
    "asarray", "astype", "bool", "broadcast_arrays", "broadcast_to", "can_cast", "clip", "concat", "conj",
    "count_nonzero", "cumulative_prod", "cumulative_sum", "diff", "e", "empty", "empty_like", "expand_dims", "eye",
    "finfo", "flip", "float16", "float32", "from_dlpack", "full", "full_like", "iinfo", "inf", "int16", "int32",
    "int64", "int8", "isdtype", "isin", "linspace", "matmul", "matrix_transpose", "max", "mean", "meshgrid", "min",
    "moveaxis", "nan", "newaxis", "nextafter", "nonzero", "ones", "ones_like", "permute_dims", "pi", "positive",
    "prod", "real", "repeat", "reshape", "result_type", "roll", "searchsorted", "sort", "split", "squeeze", "stack",
    "std", "sum", "take", "take_along_axis", "tensordot", "tile", "topk", "tril", "triu", "uint16", "uint32",
    "uint8", "unique_all", "unique_counts", "unique_inverse", "unique_values", "unstack", "var", "vecdot", "where",
    "zeros", "zeros_like",
]  # fmt: skip
