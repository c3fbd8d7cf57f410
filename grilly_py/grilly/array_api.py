"""The Python array API standard (2024.12) on the device: the functions that ``grilly`` has under its own name.

Operands are tensors; a NumPy array goes to the device first, to that of the tensors beside it or to the default one.
Results are tensors, without waiting. docs/arrays.md says what of the standard is left out, and which errors the
elementary functions have.
"""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .compute.arrays import creation as _creation
from .compute.arrays import elementwise as _elementwise
from .compute.arrays import indexing as _indexing
from .compute.arrays import products as _products
from .compute.arrays import reductions as _reductions
from .compute.arrays import shapes as _shapes
from .compute.arrays.promotion import CODES, FLOAT32, INT64, kind_of, promoted, with_scalar
from .compute.backend import Compute, default_backend, device_of
from .compute.device.device import Device
from .compute.device.dtypes import dtype_of
from .compute.device.tensor import Tensor

__array_api_version__ = "2024.12"

e = math.e
inf = math.inf
nan = math.nan
newaxis = None
pi = math.pi

# The standard's `bool` is below the functions, whose annotations mean Python's.
int8 = np.dtype(np.int8)
int16 = np.dtype(np.int16)
int32 = np.dtype(np.int32)
int64 = np.dtype(np.int64)
uint8 = np.dtype(np.uint8)
uint16 = np.dtype(np.uint16)
uint32 = np.dtype(np.uint32)
float16 = np.dtype(np.float16)
float32 = np.dtype(np.float32)

Scalar = builtins.bool | int | float
Operand = Tensor | np.ndarray | np.generic | builtins.bool | int | float
Axes = int | tuple[int, ...] | None


def _tensor(name: str, x: Any) -> Tensor:
    """An array as a tensor. Raises TypeError for what is none."""
    if x.__class__ is Tensor:
        return x  # type: ignore[no-any-return]
    if isinstance(x, (np.ndarray, np.generic)):
        return default_backend().tensor(x)
    raise TypeError(f"{name}: x is a {type(x).__name__}; expected a tensor or an array")


def _binary(name: str, x1: Any, x2: Any) -> Tensor:
    if x1.__class__ is not Tensor and x2.__class__ is not Tensor:
        if not isinstance(x1, (np.ndarray, np.generic)) and isinstance(x2, (np.ndarray, np.generic)):
            x2 = _tensor(name, x2)
        else:
            x1 = _tensor(name, x1)
    return _elementwise.binary(name, x1, x2)


def _on(device: Compute | None) -> Device:
    return default_backend().opened if device is None else device.opened


# -- elementwise -------------------------------------------------------------------------------------------------------


def abs(x: Tensor | np.ndarray, /) -> Tensor:
    """The magnitude of each element."""
    return _elementwise.unary("abs", _tensor("abs", x))


def acos(x: Tensor | np.ndarray, /) -> Tensor:
    """The arc cosine, in radians; NaN outside -1 to 1."""
    return _elementwise.unary("acos", _tensor("acos", x))


def acosh(x: Tensor | np.ndarray, /) -> Tensor:
    """The inverse hyperbolic cosine; NaN below 1."""
    return _elementwise.unary("acosh", _tensor("acosh", x))


def asin(x: Tensor | np.ndarray, /) -> Tensor:
    """The arc sine, in radians; NaN outside -1 to 1."""
    return _elementwise.unary("asin", _tensor("asin", x))


def asinh(x: Tensor | np.ndarray, /) -> Tensor:
    """The inverse hyperbolic sine."""
    return _elementwise.unary("asinh", _tensor("asinh", x))


def atan(x: Tensor | np.ndarray, /) -> Tensor:
    """The arc tangent, in radians."""
    return _elementwise.unary("atan", _tensor("atan", x))


def atanh(x: Tensor | np.ndarray, /) -> Tensor:
    """The inverse hyperbolic tangent; NaN outside -1 to 1."""
    return _elementwise.unary("atanh", _tensor("atanh", x))


def bitwise_invert(x: Tensor | np.ndarray, /) -> Tensor:
    """Each bit of integers inverted; not of bool."""
    return _elementwise.unary("bitwise_invert", _tensor("bitwise_invert", x))


def ceil(x: Tensor | np.ndarray, /) -> Tensor:
    """The least whole number not below each element."""
    return _elementwise.unary("ceil", _tensor("ceil", x))


def cos(x: Tensor | np.ndarray, /) -> Tensor:
    """The cosine of radians."""
    return _elementwise.unary("cos", _tensor("cos", x))


def cosh(x: Tensor | np.ndarray, /) -> Tensor:
    """The hyperbolic cosine."""
    return _elementwise.unary("cosh", _tensor("cosh", x))


def erf(x: Tensor | np.ndarray, /) -> Tensor:
    """The error function."""
    return _elementwise.unary("erf", _tensor("erf", x))


def exp(x: Tensor | np.ndarray, /) -> Tensor:
    """e to the power of each element."""
    return _elementwise.unary("exp", _tensor("exp", x))


def expm1(x: Tensor | np.ndarray, /) -> Tensor:
    """exp(x) - 1, exact near 0."""
    return _elementwise.unary("expm1", _tensor("expm1", x))


def floor(x: Tensor | np.ndarray, /) -> Tensor:
    """The greatest whole number not above each element."""
    return _elementwise.unary("floor", _tensor("floor", x))


def isfinite(x: Tensor | np.ndarray, /) -> Tensor:
    """Whether each element is neither infinite nor NaN."""
    return _elementwise.unary("isfinite", _tensor("isfinite", x))


def isinf(x: Tensor | np.ndarray, /) -> Tensor:
    """Whether each element is infinite."""
    return _elementwise.unary("isinf", _tensor("isinf", x))


def isnan(x: Tensor | np.ndarray, /) -> Tensor:
    """Whether each element is NaN."""
    return _elementwise.unary("isnan", _tensor("isnan", x))


def log(x: Tensor | np.ndarray, /) -> Tensor:
    """The natural logarithm; NaN below 0."""
    return _elementwise.unary("log", _tensor("log", x))


def log10(x: Tensor | np.ndarray, /) -> Tensor:
    """The logarithm to base 10."""
    return _elementwise.unary("log10", _tensor("log10", x))


def log1p(x: Tensor | np.ndarray, /) -> Tensor:
    """log(1 + x), exact near 0."""
    return _elementwise.unary("log1p", _tensor("log1p", x))


def log2(x: Tensor | np.ndarray, /) -> Tensor:
    """The logarithm to base 2."""
    return _elementwise.unary("log2", _tensor("log2", x))


def logical_not(x: Tensor | np.ndarray, /) -> Tensor:
    """Whether each element is zero."""
    return _elementwise.unary("logical_not", _tensor("logical_not", x))


def negative(x: Tensor | np.ndarray, /) -> Tensor:
    """Each element with the other sign; integers wrap."""
    return _elementwise.unary("negative", _tensor("negative", x))


def reciprocal(x: Tensor | np.ndarray, /) -> Tensor:
    """1 / x."""
    return _elementwise.unary("reciprocal", _tensor("reciprocal", x))


def round(x: Tensor | np.ndarray, /) -> Tensor:
    """The nearest whole number, ties to even."""
    return _elementwise.unary("round", _tensor("round", x))


def sign(x: Tensor | np.ndarray, /) -> Tensor:
    """-1, 0 or 1; NaN for NaN."""
    return _elementwise.unary("sign", _tensor("sign", x))


def signbit(x: Tensor | np.ndarray, /) -> Tensor:
    """Whether each element has the sign of negative numbers, -0.0 included."""
    return _elementwise.unary("signbit", _tensor("signbit", x))


def sin(x: Tensor | np.ndarray, /) -> Tensor:
    """The sine of radians."""
    return _elementwise.unary("sin", _tensor("sin", x))


def sinh(x: Tensor | np.ndarray, /) -> Tensor:
    """The hyperbolic sine."""
    return _elementwise.unary("sinh", _tensor("sinh", x))


def sqrt(x: Tensor | np.ndarray, /) -> Tensor:
    """The square root, correctly rounded; NaN below 0."""
    return _elementwise.unary("sqrt", _tensor("sqrt", x))


def square(x: Tensor | np.ndarray, /) -> Tensor:
    """x * x."""
    return _elementwise.unary("square", _tensor("square", x))


def tan(x: Tensor | np.ndarray, /) -> Tensor:
    """The tangent of radians."""
    return _elementwise.unary("tan", _tensor("tan", x))


def tanh(x: Tensor | np.ndarray, /) -> Tensor:
    """The hyperbolic tangent."""
    return _elementwise.unary("tanh", _tensor("tanh", x))


def trunc(x: Tensor | np.ndarray, /) -> Tensor:
    """Each element without its fraction."""
    return _elementwise.unary("trunc", _tensor("trunc", x))


def add(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 + x2."""
    return _binary("add", x1, x2)


def atan2(x1: Operand, x2: Operand, /) -> Tensor:
    """The angle of the point (x2, x1), from -pi to pi."""
    return _binary("atan2", x1, x2)


def bitwise_and(x1: Operand, x2: Operand, /) -> Tensor:
    """The bits of integers that both have; and of bool."""
    return _binary("bitwise_and", x1, x2)


def bitwise_left_shift(x1: Operand, x2: Operand, /) -> Tensor:
    """Integers moved left by x2 bits, which is not negative."""
    return _binary("bitwise_left_shift", x1, x2)


def bitwise_or(x1: Operand, x2: Operand, /) -> Tensor:
    """The bits of integers that either has; or of bool."""
    return _binary("bitwise_or", x1, x2)


def bitwise_right_shift(x1: Operand, x2: Operand, /) -> Tensor:
    """Integers moved right by x2 bits, with the sign; x2 is not negative."""
    return _binary("bitwise_right_shift", x1, x2)


def bitwise_xor(x1: Operand, x2: Operand, /) -> Tensor:
    """The bits of integers that one has and not the other; of bool, too."""
    return _binary("bitwise_xor", x1, x2)


def copysign(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 with the sign of x2."""
    return _binary("copysign", x1, x2)


def divide(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 / x2, correctly rounded; of integers in float32."""
    return _binary("divide", x1, x2)


def equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 is x2."""
    return _binary("equal", x1, x2)


def floor_divide(x1: Operand, x2: Operand, /) -> Tensor:
    """The greatest whole number not above x1 / x2; 0 for integers divided by 0."""
    return _binary("floor_divide", x1, x2)


def greater(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 is above x2."""
    return _binary("greater", x1, x2)


def greater_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 is not below x2."""
    return _binary("greater_equal", x1, x2)


def hypot(x1: Operand, x2: Operand, /) -> Tensor:
    """sqrt(x1^2 + x2^2), without overflow on the way."""
    return _binary("hypot", x1, x2)


def less(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 is below x2."""
    return _binary("less", x1, x2)


def less_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 is not above x2."""
    return _binary("less_equal", x1, x2)


def logaddexp(x1: Operand, x2: Operand, /) -> Tensor:
    """log(exp(x1) + exp(x2))."""
    return _binary("logaddexp", x1, x2)


def logical_and(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether neither is zero."""
    return _binary("logical_and", x1, x2)


def logical_or(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether not both are zero."""
    return _binary("logical_or", x1, x2)


def logical_xor(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether one is zero and the other is not."""
    return _binary("logical_xor", x1, x2)


def maximum(x1: Operand, x2: Operand, /) -> Tensor:
    """The larger one; NaN where one is NaN."""
    return _binary("maximum", x1, x2)


def minimum(x1: Operand, x2: Operand, /) -> Tensor:
    """The smaller one; NaN where one is NaN."""
    return _binary("minimum", x1, x2)


def multiply(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 * x2; integers wrap."""
    return _binary("multiply", x1, x2)


def nextafter(x1: Operand, x2: Operand, /) -> Tensor:
    """The number next to x1 on the way to x2."""
    return _binary("nextafter", x1, x2)


def not_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether x1 is not x2."""
    return _binary("not_equal", x1, x2)


def pow(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 to the power of x2; integers wrap, and give 0 for a negative power."""
    return _binary("pow", x1, x2)


def remainder(x1: Operand, x2: Operand, /) -> Tensor:
    """What floor_divide leaves, of x2's sign; 0 for integers divided by 0."""
    return _binary("remainder", x1, x2)


def subtract(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 - x2."""
    return _binary("subtract", x1, x2)


def positive(x: Tensor | np.ndarray, /) -> Tensor:
    """Each element as it is, in a new tensor. Raises TypeError for bool."""
    own = _tensor("positive", x)
    if kind_of(own.dtype) == "bool":
        raise TypeError("positive: x is bool; expected numbers")
    return _elementwise.cast(own, own.dtype, copy=True)


def real(x: Tensor | np.ndarray, /) -> Tensor:
    """The real part: x, which has no other."""
    return _tensor("real", x)


def conj(x: Tensor | np.ndarray, /) -> Tensor:
    """The complex conjugate: x, which is real."""
    return _tensor("conj", x)


def clip(x: Tensor | np.ndarray, /, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """Elements below ``min`` and above ``max`` replaced by these, in x's dtype.

    Raises TypeError for a bound that x's dtype does not hold.
    """
    return _elementwise.clip(_tensor("clip", x), min, max)


def where(condition: Tensor | np.ndarray, x1: Operand, x2: Operand, /) -> Tensor:
    """Elements of x1 where ``condition`` is true, else of x2; all three broadcast."""
    if condition.__class__ is not Tensor:
        condition = device_of("where", x1, x2).tensor(condition)
    return _elementwise.where(_tensor("where", condition), x1, x2)


# -- dtypes ------------------------------------------------------------------------------------------------------------


def astype(x: Tensor, dtype: Any, /, *, copy: builtins.bool = True, device: Compute | None = None) -> Tensor:
    """The elements as another dtype, as ``Tensor.astype``; a new tensor unless ``copy`` is False and x has it."""
    found = x if device is None else x.to_device(device)
    return found if copy and found is not x and found.dtype == dtype_of(dtype) else found.astype(dtype, copy=copy)


@functools.lru_cache(maxsize=256)
def _casts(source: np.dtype, to: np.dtype) -> builtins.bool:
    return promoted(source, to) == to and (kind_of(source) == kind_of(to) or {kind_of(source), kind_of(to)} <= {
        "signed", "unsigned"
    })  # fmt: skip


def can_cast(from_: Any, to: Any, /) -> builtins.bool:
    """Whether type promotion leads from a dtype, or a tensor's, to another."""
    return _casts(from_.dtype if isinstance(from_, Tensor) else dtype_of(from_), dtype_of(to))


def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    """The dtype to which arrays, dtypes and Python numbers promote. Raises TypeError where there is none."""
    if not arrays_and_dtypes:
        raise ValueError("result_type: nothing was given")
    numbers = [one for one in arrays_and_dtypes if isinstance(one, (builtins.bool, int, float))]
    found: np.dtype | None = None
    for one in arrays_and_dtypes:
        if not isinstance(one, (builtins.bool, int, float)):
            dtype = one.dtype if hasattr(one, "dtype") else dtype_of(one)
            found = dtype if found is None else promoted(found, dtype)
    if found is None:
        raise ValueError("result_type: expected an array or a dtype beside numbers")
    for number in numbers:
        found = with_scalar(found, type(number))  # type: ignore[arg-type]
    return found


def isdtype(dtype: Any, kind: Any) -> builtins.bool:
    """Whether a dtype is another, of a kind ("bool", "signed integer", "unsigned integer", "integral", "real floating",
    "complex floating", "numeric"), or one of a tuple of these. Raises ValueError for an unknown kind."""
    if isinstance(kind, tuple):
        return builtins.any(isdtype(dtype, one) for one in kind)
    dtype = dtype_of(dtype)
    if not isinstance(kind, str) or kind in CODES and kind != "bool":
        return dtype == dtype_of(kind)
    kinds = {
        "bool": {"bool"}, "signed integer": {"signed"}, "unsigned integer": {"unsigned"},
        "integral": {"signed", "unsigned"}, "real floating": {"floating"}, "complex floating": set(),
        "numeric": {"signed", "unsigned", "floating"},
    }  # fmt: skip
    if kind not in kinds:
        raise ValueError(f"isdtype: kind is {kind!r}; expected one of {', '.join(kinds)}")
    return dtype.name in CODES and kind_of(dtype) in kinds[kind]


class FloatInfo(NamedTuple):
    """The limits of a floating dtype, as ``finfo`` gives them."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype


def finfo(type: Any, /) -> FloatInfo:
    """The limits of a floating dtype."""
    dtype = type.dtype if hasattr(type, "dtype") and not isinstance(type, np.dtype) else dtype_of(type)
    if dtype.name == "bfloat16":
        import ml_dtypes

        info = ml_dtypes.finfo(dtype)
    else:
        info = np.finfo(dtype)
    numbers = (float(one) for one in (info.eps, info.max, info.min, info.smallest_normal))
    return FloatInfo(int(info.bits), *numbers, dtype)


def iinfo(type: Any, /) -> np.iinfo:
    """The limits of an integer dtype: ``bits``, ``max``, ``min``, ``dtype``."""
    return np.iinfo(type.dtype if hasattr(type, "dtype") and not isinstance(type, np.dtype) else dtype_of(type))


# -- new tensors -------------------------------------------------------------------------------------------------------


def asarray(
    obj: Any, /, *, dtype: Any = None, device: Compute | None = None, copy: builtins.bool | None = None
) -> Tensor:
    """A tensor of an array, a tensor, a number, or nested lists of them; Python floats become float32, integers int64.

    Raises
    ------
    TypeError
        For other objects, and arrays of a dtype that no tensor has.
    ValueError
        Where ``copy`` is False and a copy is needed.
    OverflowError
        For integers that the dtype does not hold.
    """
    if device is None and isinstance(obj, Tensor):
        return _creation.asarray(obj.backend.opened, obj, dtype, copy)
    return _creation.asarray(_on(device), obj, dtype, copy)


def from_dlpack(x: Any, /, *, device: Compute | None = None, copy: builtins.bool | None = None) -> Tensor:
    """A tensor of what another library's array on the host holds, by DLPack: a copy. A tensor stays what it is.

    Raises ValueError where ``copy`` is False, and BufferError for what NumPy cannot take by DLPack: bfloat16 (of
    PyTorch: ``grilly.torch.from_torch``), and memory that is not the host's.
    """
    if isinstance(x, Tensor) and not copy and device in (None, x.backend):
        return x
    if copy is False:
        raise ValueError("from_dlpack: host memory needs a copy to be on the device")
    try:
        array = np.from_dlpack(x)
    except (BufferError, RuntimeError) as error:
        raise BufferError(
            f"from_dlpack: NumPy cannot take a {type(x).__module__}.{type(x).__name__}: {error}; bfloat16 of PyTorch "
            "goes by grilly.torch.from_torch, memory of another device by a copy on the host"
        ) from error
    return _on(device).tensor(array)


def empty(shape: int | tuple[int, ...], *, dtype: Any = None, device: Compute | None = None) -> Tensor:
    """A tensor whose contents are undefined, float32 unless told otherwise. (NumPy arrays over memory that the device
    reads directly: ``grilly.pinned.empty``.)"""
    return _on(device).empty(shape, FLOAT32 if dtype is None else dtype)


def full(
    shape: int | tuple[int, ...], fill_value: Scalar, *, dtype: Any = None, device: Compute | None = None
) -> Tensor:
    """A tensor of one value; of a Python number's own dtype (bool, int64, float32) unless told otherwise."""
    return _creation.full(_on(device), shape, fill_value, dtype)


def zeros(shape: int | tuple[int, ...], *, dtype: Any = None, device: Compute | None = None) -> Tensor:
    """Zeros, float32 unless told otherwise."""
    return _creation.full(_on(device), shape, 0, FLOAT32 if dtype is None else dtype)


def ones(shape: int | tuple[int, ...], *, dtype: Any = None, device: Compute | None = None) -> Tensor:
    """Ones, float32 unless told otherwise."""
    return _creation.full(_on(device), shape, 1, FLOAT32 if dtype is None else dtype)


def empty_like(x: Tensor, /, *, dtype: Any = None, device: Compute | None = None) -> Tensor:
    """A tensor of x's shape, and of its dtype unless told otherwise, whose contents are undefined."""
    return empty(x.shape, dtype=x.dtype if dtype is None else dtype, device=device or x.backend)


def full_like(x: Tensor, /, fill_value: Scalar, *, dtype: Any = None, device: Compute | None = None) -> Tensor:
    """A tensor of x's shape, and of its dtype unless told otherwise, of one value."""
    return full(x.shape, fill_value, dtype=x.dtype if dtype is None else dtype, device=device or x.backend)


def zeros_like(x: Tensor, /, *, dtype: Any = None, device: Compute | None = None) -> Tensor:
    """Zeros of x's shape, and of its dtype unless told otherwise."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Tensor, /, *, dtype: Any = None, device: Compute | None = None) -> Tensor:
    """Ones of x's shape, and of its dtype unless told otherwise."""
    return full_like(x, 1, dtype=dtype, device=device)


def arange(
    start: int | float, /, stop: int | float | None = None, step: int | float = 1, *, dtype: Any = None,
    device: Compute | None = None,
) -> Tensor:  # fmt: skip
    """Numbers from ``start`` (0 where it stands alone) up to, but not, ``stop``; int64 where all are integers, else
    float32."""
    return _creation.arange(_on(device), start, stop, step, dtype)


def linspace(
    start: int | float, stop: int | float, /, num: int, *, dtype: Any = None, device: Compute | None = None,
    endpoint: builtins.bool = True,
) -> Tensor:  # fmt: skip
    """``num`` numbers from ``start`` to ``stop`` at equal distances, float32 unless told otherwise."""
    return _creation.linspace(_on(device), start, stop, num, dtype, endpoint)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Compute | None = None
) -> Tensor:
    """Ones on the diagonal ``k``, zeros elsewhere; float32 unless told otherwise."""
    return _creation.eye(_on(device), n_rows, n_cols, k, dtype)


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """x with zeros above the diagonal ``k`` of its last two axes."""
    return _shapes.triangle("tril", x, k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """x with zeros below the diagonal ``k`` of its last two axes."""
    return _shapes.triangle("triu", x, k)


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Tensors of coordinates, of every combination of elements of one-axis tensors; ``indexing`` is "xy" or "ij"."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing is {indexing!r}; expected 'xy' or 'ij'")
    order = list(range(len(arrays)))
    if indexing == "xy" and len(arrays) > 1:
        order[:2] = [1, 0]
    shape = tuple(arrays[n].shape[0] for n in order)
    return [x.reshape(tuple(-1 if order[a] == n else 1 for a in range(len(order)))).broadcast_to(shape)
            for n, x in enumerate(arrays)]  # fmt: skip


# -- layout ------------------------------------------------------------------------------------------------------------


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """A view of x repeated to a shape."""
    return x.broadcast_to(shape)


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Views of tensors repeated to their common shape. Raises ValueError where there is none."""
    shape = _elementwise.check_broadcast("broadcast_arrays", *arrays)
    return [x.broadcast_to(shape) for x in arrays]


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Tensors one after the other along an axis; None: all flat."""
    return _shapes.concat(arrays, axis)


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Tensors of one shape side by side along a new axis."""
    return _shapes.stack(arrays, axis)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Views of x at every place of an axis."""
    place = _shapes.axis_of("unstack", axis, x.ndim)
    return tuple(x.view((slice(None),) * place + (n,)) for n in range(x.shape[place]))


def expand_dims(x: Tensor, /, *, axis: int = 0) -> Tensor:
    """x with a new axis of extent 1; a view. Raises IndexError for a place that there is not."""
    return _shapes.expand_dims(x, axis)


def squeeze(x: Tensor, /, axis: int | tuple[int, ...]) -> Tensor:
    """x without axes of extent 1; a view. Raises ValueError where one has another extent."""
    return _shapes.squeeze(x, axis)


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: builtins.bool | None = None) -> Tensor:
    """The same elements under another shape, a view where that is possible, or a copy where ``copy`` is True.

    Raises ValueError for another number of elements, and where ``copy`` is False and a view is not possible.
    """
    found = x.reshape(shape)
    if copy is False and found._storage is not x._storage:
        raise ValueError(f"reshape: {x.shape} with strides {x.strides} needs a copy to be {tuple(shape)}")
    return found.astype(found.dtype, copy=True) if copy and found._storage is x._storage else found


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """x with its axes in another order; a view."""
    if len(axes) != x.ndim:
        raise ValueError(f"permute_dims: {len(axes)} axes for a tensor of {x.ndim}")
    return x.transpose(axes) if axes else x


def moveaxis(x: Tensor, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Tensor:
    """x with axes moved to other places; a view."""
    own = [_reductions.axes_of("moveaxis", x, axes) for axes in (source, destination)]
    if len(own[0]) != len(own[1]):
        raise ValueError(f"moveaxis: {len(own[0])} axes and {len(own[1])} places")
    return _indexing.moved(x, *own)


def matrix_transpose(x: Tensor, /) -> Tensor:
    """x with its last two axes exchanged; a view."""
    return x.mT


def flip(x: Tensor, /, *, axis: Axes = None) -> Tensor:
    """A copy of x with axes (None: all) in reverse order."""
    return _shapes.flip(x, _reductions.axes_of("flip", x, axis))


def roll(x: Tensor, /, shift: int | tuple[int, ...], *, axis: Axes = None) -> Tensor:
    """x with its elements moved along axes, those at the end to the beginning; without axes, in C order."""
    return _shapes.roll(x, shift, axis)


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """Each element, or place along an axis, ``repeats`` times; an array has a number for each, which the host waits
    for."""
    if not isinstance(repeats, Tensor):
        return _shapes.repeat(x, repeats, axis)
    own = x.reshape(-1) if axis is None else x
    place = _shapes.axis_of("repeat", 0 if axis is None else axis, own.ndim)
    times = np.broadcast_to(repeats.numpy(), (own.shape[place],))
    return _indexing.take(own, np.repeat(np.arange(own.shape[place]), times), place)


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """x laid side by side, so many times along each axis."""
    return _shapes.tile(x, repetitions)


# -- indices -----------------------------------------------------------------------------------------------------------


def take(x: Tensor, indices: Any, /, *, axis: int | None = None) -> Tensor:
    """Elements of x along an axis, which becomes the axes of ``indices``. Indices on the host are checked."""
    return _indexing.take(x, indices, axis)


def take_along_axis(x: Tensor, indices: Any, /, *, axis: int = -1) -> Tensor:
    """For each element of ``indices``, of x's number of axes, that element of x along the axis."""
    return _indexing.take_along_axis(x, indices, axis)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The places of elements that are not zero, an int64 tensor for each axis. The host counts them, and waits."""
    return _indexing.nonzero(x)


# -- reductions --------------------------------------------------------------------------------------------------------


def sum(x: Tensor, /, *, axis: Axes = None, dtype: Any = None, keepdims: builtins.bool = False) -> Tensor:
    """The sum over axes (None: all): of floating types in their own dtype, of integers and bool in int64.

    Sums of floating types are float32 with what rounding lost beside them, and do not depend on the device.
    """
    return _reductions.sum_of("sum", _tensor("sum", x), axis, dtype, keepdims)


def prod(x: Tensor, /, *, axis: Axes = None, dtype: Any = None, keepdims: builtins.bool = False) -> Tensor:
    """The product over axes (None: all), of dtypes as ``sum``."""
    return _reductions.sum_of("prod", _tensor("prod", x), axis, dtype, keepdims)


def mean(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """The mean over axes (None: all); of integers in float32."""
    return _reductions.moment("mean", _tensor("mean", x), axis, keepdims)


def var(x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: builtins.bool = False) -> Tensor:
    """The mean squared difference from the mean over axes; the number of elements less ``correction`` divides."""
    return _reductions.moment("var", _tensor("var", x), axis, keepdims, correction)


def std(x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: builtins.bool = False) -> Tensor:
    """The square root of ``var``."""
    return _reductions.moment("std", _tensor("std", x), axis, keepdims, correction)


def max(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """The largest element over axes (None: all), NaN where there is one. Raises ValueError for no elements."""
    return _reductions.extreme("max", _tensor("max", x), axis, keepdims)


def min(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """The smallest element over axes (None: all), NaN where there is one. Raises ValueError for no elements."""
    return _reductions.extreme("min", _tensor("min", x), axis, keepdims)


def any(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """Whether an element over axes (None: all) is not zero."""
    return _reductions.truth("any", _tensor("any", x), axis, keepdims)


def all(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """Whether no element over axes (None: all) is zero."""
    return _reductions.truth("all", _tensor("all", x), axis, keepdims)


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: builtins.bool = False) -> Tensor:
    """The first place, int64, of the largest element, or of NaN, along an axis or in C order."""
    return _reductions.place("argmax", _tensor("argmax", x), axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: builtins.bool = False) -> Tensor:
    """The first place, int64, of the smallest element, or of NaN, along an axis or in C order."""
    return _reductions.place("argmin", _tensor("argmin", x), axis, keepdims)


def count_nonzero(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """How many elements over axes (None: all) are not zero, int64."""
    return sum(not_equal(x, False if kind_of(x.dtype) == "bool" else 0), axis=axis, keepdims=keepdims)


def cumulative_sum(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: builtins.bool = False
) -> Tensor:
    """Sums of the elements so far along an axis, of dtypes as ``sum``; ``include_initial`` begins with 0."""
    return _reductions.running("sum", x, axis, dtype, include_initial)


def cumulative_prod(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: builtins.bool = False
) -> Tensor:
    """Products of the elements so far along an axis, of dtypes as ``sum``; ``include_initial`` begins with 1."""
    return _reductions.running("prod", x, axis, dtype, include_initial)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """The differences of neighbours along an axis, taken ``n`` times."""
    place = _shapes.axis_of("diff", axis, x.ndim)
    parts = [one for one in (prepend, x, append) if one is not None]
    found = concat(parts, axis=place) if len(parts) > 1 else x
    lead = (slice(None),) * place
    for _ in range(n):
        found = subtract(found.view((*lead, slice(1, None))), found.view((*lead, slice(0, -1))))
    return found


# -- products ----------------------------------------------------------------------------------------------------------


def matmul(x1: Tensor | np.ndarray, x2: Tensor | np.ndarray, /) -> Tensor:
    """The product of ``(..., M, K)`` and ``(..., K, N)``, leading axes broadcast; of vectors as in NumPy."""
    return _products.matmul(*(_tensor("matmul", x) for x in (x1, x2)))


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The sums of products along an axis, which both have counted from the end."""
    if not (-builtins.min(x1.ndim, x2.ndim) <= axis < 0):
        raise ValueError(f"vecdot: axis {axis}; expected a negative one that both have")
    if x1.shape[axis] != x2.shape[axis]:
        raise ValueError(f"vecdot: axis {axis} has {x1.shape[axis]} and {x2.shape[axis]} elements")
    product = multiply(x1, x2)
    return sum(product, axis=axis, dtype=product.dtype)


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """The sums of products over axes: the last of x1 with as many first ones of x2, or pairs that are named."""
    if isinstance(axes, int):
        first, second = tuple(range(x1.ndim - axes, x1.ndim)), tuple(range(axes))
    else:
        first = _reductions.axes_of("tensordot", x1, tuple(axes[0]))
        second = _reductions.axes_of("tensordot", x2, tuple(axes[1]))
    shared = [x1.shape[a] for a in first]
    if shared != [x2.shape[a] for a in second]:
        raise ValueError(f"tensordot: axes {first} of {x1.shape} and {second} of {x2.shape} differ")
    left = [a for a in range(x1.ndim) if a not in first]
    right = [a for a in range(x2.ndim) if a not in second]
    shape = (*(x1.shape[a] for a in left), *(x2.shape[a] for a in right))
    many = math.prod(shared)
    rows = permute_dims(x1, (*left, *first)).reshape((math.prod(x1.shape[a] for a in left), many))
    columns = permute_dims(x2, (*second, *right)).reshape((many, math.prod(x2.shape[a] for a in right)))
    return matmul(rows, columns).reshape(shape)


# -- inspection --------------------------------------------------------------------------------------------------------


class _Info:
    """What the standard's inspection says of this namespace."""

    def capabilities(self) -> dict[str, Any]:
        """Boolean masks and shapes that depend on contents are supported; axes are not limited."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> None:
        """None: the backend that is opened at first use."""

    def default_dtypes(self, *, device: Compute | None = None) -> dict[str, np.dtype]:
        """float32 and int64."""
        return {"real floating": FLOAT32, "integral": INT64, "indexing": INT64}

    def dtypes(self, *, device: Compute | None = None, kind: Any = None) -> dict[str, np.dtype]:
        """The standard's dtypes that tensors may have."""
        names = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float32")
        return {name: np.dtype(name) for name in names if kind is None or isdtype(np.dtype(name), kind)}

    def devices(self) -> list[None]:
        """The default one."""
        return [None]


def __array_namespace_info__() -> _Info:
    """The standard's inspection: capabilities, devices and dtypes."""
    return _Info()


bool = np.dtype(np.bool_)

__all__ = [
    "__array_api_version__", "__array_namespace_info__", "abs", "acos", "acosh", "add", "all", "any", "arange",
    "argmax", "argmin", "asarray", "asin", "asinh", "astype", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "bool",
    "broadcast_arrays", "broadcast_to", "can_cast", "ceil", "clip", "concat", "conj", "copysign", "cos", "cosh",
    "count_nonzero", "cumulative_prod", "cumulative_sum", "diff", "divide", "e", "empty", "empty_like", "equal",
    "erf", "exp", "expand_dims", "expm1", "eye", "finfo", "flip", "float16", "float32", "floor", "floor_divide",
    "from_dlpack", "full", "full_like", "greater", "greater_equal", "hypot", "iinfo", "inf", "int16", "int32",
    "int64", "int8", "isdtype", "isfinite", "isinf", "isnan", "less", "less_equal", "linspace", "log", "log10",
    "log1p", "log2", "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor", "matmul",
    "matrix_transpose", "max", "maximum", "mean", "meshgrid", "min", "minimum", "moveaxis", "multiply", "nan",
    "negative", "newaxis", "nextafter", "nonzero", "not_equal", "ones", "ones_like", "permute_dims", "pi",
    "positive", "pow", "prod", "real", "reciprocal", "remainder", "repeat", "reshape", "result_type", "roll",
    "round", "sign", "signbit", "sin", "sinh", "sqrt", "square", "squeeze", "stack", "std", "subtract", "sum",
    "take", "take_along_axis", "tan", "tanh", "tensordot", "tile", "tril", "triu", "trunc", "uint16", "uint32",
    "uint8", "unstack", "var", "vecdot", "where", "zeros", "zeros_like",
]  # fmt: skip
