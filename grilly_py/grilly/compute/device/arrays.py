"""Types for annotations: NumPy arrays and Tensors, as users give and get them.

NumPy's stubs have no bfloat16. To type checkers an array of it is ``NDArray[Any]``, which is taken everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from .tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack
elif sys.version_info >= (3, 11):
    from typing import Unpack
else:

    class Unpack:
        """What Python 3.10 lacks, for ``typing.get_type_hints``: ``Unpack[Keywords]`` is ``Keywords``."""

        def __class_getitem__(cls, keywords):
            return keywords


#: Elements of q, k, v and the like: all arrays of a call have the same.
FloatT = TypeVar("FloatT", np.float32, np.float16)

#: Anything that an operation may return.
Array: TypeAlias = NDArray[Any] | Tensor
FloatArray: TypeAlias = NDArray[np.float32] | NDArray[np.float16] | Tensor
#: Of an operation that gives what it takes.
ArrayT = TypeVar("ArrayT", bound=FloatArray)
Float32Array: TypeAlias = NDArray[np.float32] | Tensor
#: Added to scores: also float64, which becomes float32.
BiasArray: TypeAlias = NDArray[np.floating[Any]] | Tensor
BoolArray: TypeAlias = NDArray[np.bool_] | Tensor
#: True = attend, or added to scores.
HostMask: TypeAlias = NDArray[np.bool_] | NDArray[np.floating[Any]]
MaskArray: TypeAlias = HostMask | Tensor
#: Numbers of an option, also in lists.
HostFloats: TypeAlias = NDArray[np.floating[Any]] | Sequence[float] | Sequence[Sequence[float]]
FloatsLike: TypeAlias = HostFloats | Tensor
HostIntegers: TypeAlias = NDArray[np.integer[Any]] | Sequence[int] | Sequence[Sequence[int]]
IntegersLike: TypeAlias = HostIntegers | Tensor
#: One number or a shape.
Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
#: What float32 may be computed from.
Precision: TypeAlias = Literal["highest", "high"]
#: Models' own ways of attention.
Architecture: TypeAlias = Literal["generic", "gpt", "t5"]

__all__ = [
    "Architecture", "Array", "ArrayT", "BiasArray", "BoolArray", "Float32Array", "FloatArray", "FloatT", "FloatsLike",
    "HostFloats", "HostIntegers", "HostMask", "IntegersLike", "MaskArray", "NDArray", "Precision", "Shape", "Unpack",
]  # fmt: skip
