"""What NumPy asks of a tensor that is given to its functions: operators are the tensor's, arithmetic is refused.

NumPy would make an array of the tensor, which waits and copies, and nothing would show it.
"""

from __future__ import annotations

from typing import Any

#: Operators by NumPy's ufunc: on a tensor at the left, and at the right.
_OPERATORS = {
    "add": ("__add__", "__radd__"),
    "subtract": ("__sub__", "__rsub__"),
    "multiply": ("__mul__", "__rmul__"),
    "divide": ("__truediv__", "__rtruediv__"),
    "true_divide": ("__truediv__", "__rtruediv__"),  # NumPy 1's name of it
    "floor_divide": ("__floordiv__", "__rfloordiv__"),
    "remainder": ("__mod__", "__rmod__"),
    "power": ("__pow__", "__rpow__"),
    "matmul": ("__matmul__", "__rmatmul__"),
    "bitwise_and": ("__and__", "__rand__"),
    "bitwise_or": ("__or__", "__ror__"),
    "bitwise_xor": ("__xor__", "__rxor__"),
    "left_shift": ("__lshift__", "__rlshift__"),
    "right_shift": ("__rshift__", "__rrshift__"),
    "less": ("__lt__", "__gt__"),
    "less_equal": ("__le__", "__ge__"),
    "greater": ("__gt__", "__lt__"),
    "greater_equal": ("__ge__", "__le__"),
    "equal": ("__eq__", "__eq__"),
    "not_equal": ("__ne__", "__ne__"),
}
#: The standard's names, where NumPy's are others.
_STANDARD = {
    "absolute": "abs", "power": "pow", "true_divide": "divide", "conjugate": "conj", "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift", "amax": "max", "amin": "min",
    "average": "mean", "dot": "matmul", "inner": "vecdot", "cumsum": "cumulative_sum", "cumprod": "cumulative_prod",
    **{f"arc{name}": f"a{name}" for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh", "tan2")},
}  # fmt: skip
#: NumPy's functions that compute and are no ufuncs. Others look at shapes, move elements, compare or write files.
_COMPUTE = frozenset((
    "amax", "amin", "argmax", "argmin", "argsort", "average", "clip", "convolve", "corrcoef", "correlate",
    "cov", "cross", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "det", "diff", "dot", "eig",
    "eigh", "einsum", "gradient", "inner", "interp", "inv", "kron", "lstsq", "matrix_norm", "matrix_power",
    "max", "mean", "median", "min", "nanmax", "nanmean", "nanmin", "nanstd", "nansum", "nanvar", "norm",
    "outer", "percentile", "prod", "ptp", "quantile", "round", "solve", "sort", "std", "sum", "svd",
    "tensordot", "trace", "trapezoid", "var", "vdot", "vecdot", "vector_norm",
))  # fmt: skip


class NumPyFunctions:
    """NumPy's protocols for objects that its functions are given."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        operator = _OPERATORS.get(ufunc.__name__)
        if operator is not None and method == "__call__" and not options and len(inputs) == 2:
            left, right = inputs
            if isinstance(left, NumPyFunctions):
                return getattr(left, operator[0])(right)
            return getattr(right, operator[1])(left)
        raise self._refused(ufunc.__name__)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        name = function.__name__
        if name in _COMPUTE:
            raise self._refused(name)
        return function._implementation(*args, **kwargs)

    def _refused(self, name: str) -> TypeError:
        standard = _STANDARD.get(name, name)
        ours = self.__array_namespace__()  # type: ignore[attr-defined]
        for module, label in ((ours, "grilly"), (ours.linalg, "grilly.linalg")):
            if hasattr(module, standard):
                return TypeError(
                    f"numpy.{name}: a grilly.Tensor is not downloaded unseen; give {label}.{standard}(...), which "
                    "computes on the device, or t.numpy()"
                )
        return TypeError(f"numpy.{name}: a grilly.Tensor is not downloaded unseen; give t.numpy()")


__all__ = ["NumPyFunctions"]
