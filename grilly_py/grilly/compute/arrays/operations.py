"""The elementwise operations by name: their numbers, which dtypes they take, in which they compute, which they give."""

from __future__ import annotations

import functools

import numpy as np

from .promotion import BOOL, CODES, FLOAT32, INTEGER, LONG, kind_of, number_kind

#: Operations as kernels number them (shaders/arrays/operations.glsl).
NUMBERS = {
    name: number
    for number, name in enumerate(
        "copy where clip gather add subtract multiply divide floor_divide remainder pow maximum minimum negative abs "
        "sign square reciprocal bitwise_and bitwise_or bitwise_xor bitwise_invert bitwise_left_shift "
        "bitwise_right_shift equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor "
        "logical_not isnan isinf isfinite signbit floor ceil trunc round sqrt exp expm1 log log1p log2 log10 sin cos "
        "tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf hypot logaddexp copysign nextafter "
        "relu sigmoid silu quick_gelu gelu_tanh gelu relu_slope sigmoid_slope silu_slope quick_gelu_slope "
        "gelu_tanh_slope gelu_slope tanh_slope".split()
    )
}
#: Those that give truth values.
TESTS = frozenset(list(NUMBERS)[NUMBERS["equal"] : NUMBERS["signbit"] + 1])
#: Those that take integers and truth values.
BITWISE = frozenset(list(NUMBERS)[NUMBERS["bitwise_and"] : NUMBERS["bitwise_invert"] + 1])
SHIFTS = frozenset(("bitwise_left_shift", "bitwise_right_shift"))
#: Those that take any dtype.
ANY = frozenset((
    "copy", "where", "gather", "equal", "not_equal", "logical_and", "logical_or", "logical_xor", "logical_not",
    "less", "less_equal", "greater", "greater_equal", "maximum", "minimum", "clip", "isnan", "isinf", "isfinite",
))  # fmt: skip
#: Those that compute in floating types; integers become float32.
FLOATS = frozenset(("divide", "reciprocal", *list(NUMBERS)[NUMBERS["sqrt"] :]))
#: Those of the kernel that has the elementary functions.
FUNCTIONS = frozenset(("pow", *list(NUMBERS)[NUMBERS["sqrt"] : NUMBERS["copysign"]]))
#: Activations, times a second operand, plus a third; and their slopes, times a second and a third.
ACTIVATIONS = frozenset(list(NUMBERS)[NUMBERS["relu"] :])
#: Those that give integers back as they are.
ROUNDING = frozenset(("floor", "ceil", "trunc", "round"))
_LONG_ONLY = frozenset(("floor_divide", "remainder", "pow"))


class Spec:
    """All that a kernel is told of an operation: equal only to itself, so that it is a quick key.

    Attributes
    ----------
    number, kind, result : int
        The operation; the kind of number it computes with, and that which comes out.
    dtype, gives : numpy.dtype
        What operands are promoted to, and the result's.
    scalars : tuple of int
        The positions of operands that are Python numbers.
    """

    __slots__ = ("name", "number", "kind", "result", "dtype", "gives", "scalars")

    def __init__(self, name: str, dtype: np.dtype, gives: np.dtype, kind: int, scalars: tuple[int, ...]):
        self.name = name
        self.number = NUMBERS[name]
        self.kind = kind
        self.result = INTEGER if name in TESTS else kind
        self.dtype = dtype
        self.gives = gives
        self.scalars = scalars


@functools.lru_cache(maxsize=4096)
def spec(name: str, dtype: np.dtype, gives: np.dtype | None = None, scalars: tuple[int, ...] = ()) -> Spec:
    """The operation on operands that promote to a dtype.

    Parameters
    ----------
    gives : numpy.dtype, optional
        Of a copy: the dtype to convert to.

    Raises
    ------
    TypeError
        Where the operation does not take the dtype.
    """
    kind = kind_of(dtype)
    if name in FLOATS:
        if kind != "floating":
            if kind == "bool":
                raise TypeError(f"{name}: operands are bool; expected numbers; cast with .astype(grilly.float32)")
            dtype = FLOAT32
    elif name in BITWISE or name in SHIFTS:
        if kind == "floating" or kind == "bool" and name in SHIFTS:
            raise TypeError(f"{name}: operands are {dtype.name}; expected integers" + " or bool" * (name in BITWISE))
        if name == "bitwise_invert" and kind == "bool":
            name = "logical_not"
    elif name not in ANY and kind == "bool":
        raise TypeError(f"{name}: operands are bool; expected numbers; cast them, or use logical functions")
    if name in ROUNDING and kind != "floating":
        name = "copy"
    held = number_kind(dtype)
    if held == INTEGER and name in _LONG_ONLY:
        held = LONG
    if gives is None:
        gives = BOOL if name in TESTS else dtype
    return Spec(name, dtype, gives, held, scalars)


def code(dtype: np.dtype) -> int:
    """A dtype's number in kernels."""
    return CODES[dtype.name]
