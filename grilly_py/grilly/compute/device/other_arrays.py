"""Arrays of other libraries: their names in errors, and the way to make them tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Names of classes that several libraries have.
_SHARED_NAMES = ("Tensor", "ndarray")


def called(given: Any) -> str:
    """The name of an object's class; with its library where several have a class of that name."""
    kind = type(given)
    library = kind.__module__.split(".")[0]
    return f"{library}.{kind.__name__}" if kind.__name__ in _SHARED_NAMES and library != "numpy" else kind.__name__


def is_torch(given: Any) -> bool:
    """Whether an object is of PyTorch's (a tensor, a dtype), told without importing it."""
    return type(given).__module__.split(".")[0] == "torch"


def is_parameter(given: Any) -> bool:
    """Whether an object is a module's parameter. NumPy's array of it would have no gradients."""
    return hasattr(given, "grad_on")


def way_to_tensor(given: Any) -> str | None:
    """What makes a tensor of an object that holds numbers; None for others."""
    if is_parameter(given):
        return "parameter.on(backend)"
    if hasattr(given, "__dlpack__"):
        return "grilly.torch.from_torch" if is_torch(given) else "grilly.from_dlpack"
    return "grilly.asarray" if isinstance(given, (list, tuple, range)) or _is_for_numpy(given) else None


def _is_for_numpy(given: Any) -> bool:
    """Whether NumPy makes an array of an object that DLPack does not know."""
    return hasattr(given, "__array__") or hasattr(given, "__array_interface__")


def refuse_hidden(operation: str, array: Any) -> None:
    """Raise TypeError for a masked array of NumPy's: its hidden elements would count."""
    if array.__class__ is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{operation}: a masked array hides elements, which a tensor cannot; give array.filled(value), and its "
            "mask beside it"
        )


def no_operand(operation: str, given: Any) -> TypeError:
    """The error for an operand of another library, with the way to make it a tensor."""
    way = way_to_tensor(given)
    return TypeError(
        f"{operation}: an operand is a {called(given)}; expected a tensor or an array"
        + (f"; {way} makes a grilly.Tensor of it" if way else "")
    )


def refuse_operand(operation: str, given: Any) -> None:
    """Raise TypeError for an operand that holds numbers and that Python would call unequal, or not say what to do with.

    Others are left to Python: that operand may know what to do with a tensor, as one that compares by a method of its
    own and is known to NumPy alone (pandas, xarray).
    """
    way = way_to_tensor(given)
    if way == "grilly.asarray" and _is_for_numpy(given) and type(given).__eq__ is not object.__eq__:
        return
    if way:
        raise TypeError(f"{operation}: an operand is a {called(given)}; {way} makes a grilly.Tensor of it")


__all__ = ["called", "is_parameter", "is_torch", "no_operand", "refuse_operand", "way_to_tensor"]
