"""The operators of tensors, by the array API standard. What they do is the device's ``arrays`` (compute/arrays)."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

import numpy as np

from ...errors import CaptureError
from .numpy_functions import NumPyFunctions
from .other_arrays import refuse_operand

T = TypeVar("T", bound="Operators")


class ArrayOperations(Protocol):
    """What the operators of tensors ask of compute/arrays."""

    def unary(self, name: str, x: Any) -> Any:
        """An elementwise operation on one tensor."""

    def binary(self, name: str, x: Any, y: Any) -> Any:
        """An elementwise operation on two operands, one of them a tensor."""

    def in_place(self, name: str, x: Any, y: Any) -> Any:
        """The same, its result in x."""

    def matmul(self, x: Any, y: Any) -> Any:
        """The product of matrices."""

    def selected(self, x: Any, index: Any) -> Any:
        """``x[index]`` for every index."""

    def assigned(self, x: Any, index: Any, value: Any) -> None:
        """``x[index] = value``."""


_NUMBERS = (int, float, bool)


def _takes(value: object) -> bool:
    """Whether an operator knows what to do with the other operand; it is left to that operand otherwise."""
    return value.__class__ in _NUMBERS or isinstance(value, (Operators, np.ndarray, np.generic, int, float))


def _item_at(tensor: Any, index: tuple[Any, ...]) -> bool | int | float:
    """``tensor.item(*index)``. Raises IndexError for a place that there is not."""
    places = tuple(operator.index(place) for place in index)
    if len(places) == 1 and tensor.ndim != 1:  # its place in C order
        (place,) = places
        if not -tensor.size <= place < tensor.size:
            raise IndexError(f"item: index {place} is out of bounds for the {tensor.size} elements of {tensor!r}")
        places = tuple(int(one) for one in np.unravel_index(place % tensor.size, tensor.shape))
    if len(places) != tensor.ndim:
        raise ValueError(f"item: {len(places)} indices for shape {tensor.shape}; expected one, or one for each axis")
    return tensor[places].item()  # type: ignore[no-any-return]


class Operators(NumPyFunctions):
    """The operators of Tensor. Operands are tensors, NumPy arrays (which go to the device) and Python numbers.

    Results are new tensors on the device, without waiting. ``bool``, ``int``, ``float``, ``item``, ``tolist``,
    and iteration over one axis wait where they need values.
    """

    __slots__ = ()
    # Tensors compare by element; in sets and dictionaries they stand for themselves.
    __hash__ = object.__hash__

    def _arrays(self) -> ArrayOperations:
        return self._storage.device.arrays  # type: ignore[attr-defined, no-any-return]

    def _binary(self, name: str, other: object) -> Any:
        if other.__class__ is not self.__class__ and not _takes(other):
            refuse_operand(name, other)
            return NotImplemented
        return self._storage.device.arrays.binary(name, self, other)  # type: ignore[attr-defined]

    def _reflected(self, name: str, other: object) -> Any:
        if other.__class__ is not self.__class__ and not _takes(other):
            refuse_operand(name, other)
            return NotImplemented
        return self._storage.device.arrays.binary(name, other, self)  # type: ignore[attr-defined]

    def _in_place(self, name: str, other: object) -> Any:
        if other.__class__ is not self.__class__ and not _takes(other):
            refuse_operand(name, other)
            return NotImplemented
        return self._storage.device.arrays.in_place(name, self, other)  # type: ignore[attr-defined]

    def __add__(self: T, other: Any) -> T:
        return self._binary("add", other)

    def __radd__(self: T, other: Any) -> T:
        return self._reflected("add", other)

    def __iadd__(self: T, other: Any) -> T:
        return self._in_place("add", other)

    def __sub__(self: T, other: Any) -> T:
        return self._binary("subtract", other)

    def __rsub__(self: T, other: Any) -> T:
        return self._reflected("subtract", other)

    def __isub__(self: T, other: Any) -> T:
        return self._in_place("subtract", other)

    def __mul__(self: T, other: Any) -> T:
        return self._binary("multiply", other)

    def __rmul__(self: T, other: Any) -> T:
        return self._reflected("multiply", other)

    def __imul__(self: T, other: Any) -> T:
        return self._in_place("multiply", other)

    def __truediv__(self: T, other: Any) -> T:
        return self._binary("divide", other)

    def __rtruediv__(self: T, other: Any) -> T:
        return self._reflected("divide", other)

    def __itruediv__(self: T, other: Any) -> T:
        return self._in_place("divide", other)

    def __floordiv__(self: T, other: Any) -> T:
        return self._binary("floor_divide", other)

    def __rfloordiv__(self: T, other: Any) -> T:
        return self._reflected("floor_divide", other)

    def __ifloordiv__(self: T, other: Any) -> T:
        return self._in_place("floor_divide", other)

    def __mod__(self: T, other: Any) -> T:
        return self._binary("remainder", other)

    def __rmod__(self: T, other: Any) -> T:
        return self._reflected("remainder", other)

    def __imod__(self: T, other: Any) -> T:
        return self._in_place("remainder", other)

    def __divmod__(self: T, other: Any) -> tuple[T, T]:
        return self // other, self % other

    def __rdivmod__(self: T, other: Any) -> tuple[T, T]:
        return other // self, other % self

    def __pow__(self: T, other: Any) -> T:
        return self._binary("pow", other)

    def __rpow__(self: T, other: Any) -> T:
        return self._reflected("pow", other)

    def __ipow__(self: T, other: Any) -> T:
        return self._in_place("pow", other)

    def __and__(self: T, other: Any) -> T:
        return self._binary("bitwise_and", other)

    def __rand__(self: T, other: Any) -> T:
        return self._reflected("bitwise_and", other)

    def __iand__(self: T, other: Any) -> T:
        return self._in_place("bitwise_and", other)

    def __or__(self: T, other: Any) -> T:
        return self._binary("bitwise_or", other)

    def __ror__(self: T, other: Any) -> T:
        return self._reflected("bitwise_or", other)

    def __ior__(self: T, other: Any) -> T:
        return self._in_place("bitwise_or", other)

    def __xor__(self: T, other: Any) -> T:
        return self._binary("bitwise_xor", other)

    def __rxor__(self: T, other: Any) -> T:
        return self._reflected("bitwise_xor", other)

    def __ixor__(self: T, other: Any) -> T:
        return self._in_place("bitwise_xor", other)

    def __lshift__(self: T, other: Any) -> T:
        return self._binary("bitwise_left_shift", other)

    def __rlshift__(self: T, other: Any) -> T:
        return self._reflected("bitwise_left_shift", other)

    def __ilshift__(self: T, other: Any) -> T:
        return self._in_place("bitwise_left_shift", other)

    def __rshift__(self: T, other: Any) -> T:
        return self._binary("bitwise_right_shift", other)

    def __rrshift__(self: T, other: Any) -> T:
        return self._reflected("bitwise_right_shift", other)

    def __irshift__(self: T, other: Any) -> T:
        return self._in_place("bitwise_right_shift", other)

    def __lt__(self: T, other: Any) -> T:
        return self._binary("less", other)

    def __le__(self: T, other: Any) -> T:
        return self._binary("less_equal", other)

    def __gt__(self: T, other: Any) -> T:
        return self._binary("greater", other)

    def __ge__(self: T, other: Any) -> T:
        return self._binary("greater_equal", other)

    def __eq__(self: T, other: Any) -> T:  # type: ignore[override]
        return self._binary("equal", other)

    def __ne__(self: T, other: Any) -> T:  # type: ignore[override]
        return self._binary("not_equal", other)

    def __neg__(self: T) -> T:
        return self._arrays().unary("negative", self)

    def __round__(self: T, ndigits: Any = None) -> T:
        """To integers in the same dtype, halves to even ones: only without digits, or with none of them."""
        if ndigits not in (None, 0):
            raise TypeError(f"round: ndigits is {ndigits!r}; a tensor is rounded to integers alone")
        return self._arrays().unary("round", self)

    def __abs__(self: T) -> T:
        return self._arrays().unary("abs", self)

    def __invert__(self: T) -> T:
        return self._arrays().unary("bitwise_invert", self)

    def __pos__(self: T) -> T:
        own: Any = self
        return own.astype(own.dtype)  # type: ignore[no-any-return]

    def __matmul__(self: T, other: Any) -> T:
        if not _takes(other):
            refuse_operand("matmul", other)
            return NotImplemented
        return self._arrays().matmul(self, other)

    def __rmatmul__(self: T, other: Any) -> T:
        if not _takes(other):
            refuse_operand("matmul", other)
            return NotImplemented
        return self._arrays().matmul(other, self)

    def __imatmul__(self: T, other: Any) -> T:
        own: Any = self
        product = self._arrays().matmul(self, other)
        if product.shape != own.shape or product.dtype != own.dtype:
            raise ValueError(f"matmul: the product is {product.dtype} {product.shape}, which does not replace {own!r}")
        self._arrays().assigned(own, ..., product)
        return own

    # -- values ----------------------------------------------------------------------------------------------------

    def item(self, *index: Any) -> bool | int | float:
        """One element as a Python number; waits for it.

        Without an index that of a tensor of one element: ValueError for more, or none. With one, as in NumPy, its place
        in C order, or along each axis, as numbers or one tuple of them.
        """
        own: Any = self
        if index:
            return _item_at(own, index[0] if len(index) == 1 and isinstance(index[0], tuple) else index)
        if own.size != 1:
            raise ValueError(f"item: the tensor has shape {own.shape}; expected one element, or an index")
        return self._element("item()")

    def _element(self, what: str) -> bool | int | float:
        value = self._read(what).reshape(())
        return (value.astype(np.float32) if value.dtype.isbuiltin == 2 else value).item()  # type: ignore[no-any-return]

    def _read(self, what: str) -> Any:
        """``numpy()``, whose error in a captured function says what asked for it."""
        own: Any = self
        try:
            return own.numpy()
        except CaptureError as error:
            raise CaptureError(f"{what} reads a tensor: {error}") from None

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers; waits for them."""
        return self._read("tolist()").tolist()

    def __bool__(self) -> bool:
        own: Any = self
        if own.size != 1:
            raise ValueError("the truth of a tensor with other than one element is ambiguous; use grilly.any or all")
        try:
            return bool(self._element("bool() (if, while, and, or, not)"))
        except CaptureError as error:
            raise CaptureError(f"{error}; grilly.where chooses on the device") from None

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __format__(self, spec: str) -> str:
        """As NumPy: the number's own format in a tensor without axes, which waits; others take no format."""
        own: Any = self
        return format(self.item(), spec) if spec and not own.ndim else super().__format__(spec)

    def __index__(self) -> int:
        own: Any = self
        # One with axes is an array of indices to NumPy, also where it holds one element.
        if own.dtype.kind not in "iu" or own.ndim:
            raise TypeError(f"only a tensor of one integer, without axes, can be an index, not {own!r}; give t.item()")
        return int(self._element("a number as an index"))

    def __iter__(self: T) -> Iterator[T]:
        own: Any = self
        if not own.ndim:
            raise TypeError("iteration over a tensor without axes")
        return (own[i] for i in range(own.shape[0]))

    def __contains__(self, value: object) -> bool:
        found = self._binary("equal", value)
        return found is not NotImplemented and bool(found._read("in").any())

    # -- the standard's attributes ---------------------------------------------------------------------------------

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The module ``grilly``. Raises ValueError for a version of the standard other than 2022.12 to 2024.12."""
        if api_version not in (None, "2022.12", "2023.12", "2024.12"):
            raise ValueError(f"__array_namespace__: version {api_version!r} of the array API is not known here")
        return importlib.import_module(__name__.partition(".")[0])

    @property
    def device(self) -> Any:
        """The ``grilly.Compute`` that holds the tensor."""
        return self._storage.device.backend  # type: ignore[attr-defined]

    def to_device(self: T, device: Any, /, *, stream: None = None) -> T:
        """The tensor on another ``grilly.Compute``: a copy by way of the host, or itself where it is there already.

        None is the default one, as in ``__array_namespace_info__().devices()``. Raises TypeError for no backend.
        """
        if stream is not None:
            raise ValueError("to_device: there are no streams; expected None")
        space = importlib.import_module(__name__.partition(".")[0] + ".array_api.operands")
        return space.device_at(device).tensor(self)  # type: ignore[no-any-return]

    @property
    def mT(self: T) -> T:
        """The tensor with its last two axes exchanged, a view. Raises ValueError for fewer than two axes."""
        own: Any = self
        if own.ndim < 2:
            raise ValueError(f"mT: the tensor has {own.ndim} axes; expected at least two")
        return own.swapaxes(-1, -2)
