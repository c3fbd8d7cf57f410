"""What NumPy asks of a tensor that is given to its functions: operators are the tensor's, arithmetic is refused.

NumPy would make an array of the tensor, which waits and copies, and nothing would show it. Methods that arrays have
elsewhere, and tensors not, are named with what to write here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

#: Operators by NumPy's ufunc: on a tensor at the left, and at the right.
_OPERATORS = {
    "add": ("__add__", "__radd__"),
    "subtract": ("__sub__", "__rsub__"),
    "multiply": ("__mul__", "__rmul__"),
    "divide": ("__truediv__", "__rtruediv__"),
    "true_divide": ("__truediv__", "__rtruediv__"),  # NumPy 1's name of it
    "floor_divide": ("__floordiv__", "__rfloordiv__"),
    "remainder": ("__mod__", "__rmod__"),
    "divmod": ("__divmod__", "__rdivmod__"),
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
_COMPARISONS = frozenset(("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"))
#: The standard's names, where NumPy's are others.
_STANDARD = {
    "absolute": "abs", "power": "pow", "true_divide": "divide", "conjugate": "conj", "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift", "amax": "max", "amin": "min",
    "around": "round", "fix": "trunc", "unique": "unique_values", "flatnonzero": "nonzero", "argwhere": "nonzero",
    "norm": "vector_norm", "average": "mean", "dot": "matmul",
    "inner": "vecdot", "cumsum": "cumulative_sum", "cumprod": "cumulative_prod",
    **{f"arc{name}": f"a{name}" for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh", "tan2")},
}  # fmt: skip
#: What a ufunc's methods are there.
_REDUCED = {
    ("add", "reduce"): "sum", ("multiply", "reduce"): "prod", ("maximum", "reduce"): "max",
    ("minimum", "reduce"): "min",
    ("logical_and", "reduce"): "all", ("logical_or", "reduce"): "any", ("add", "accumulate"): "cumulative_sum",
    ("multiply", "accumulate"): "cumulative_prod", ("multiply", "outer"): "outer",
}  # fmt: skip
#: NumPy's functions, beside ufuncs, that look at shapes, move elements, compare or write them. All others compute.
_HOST = frozenset((
    "allclose", "append", "array2string", "array_equal", "array_equiv", "array_repr", "array_split", "array_str",
    "astype", "atleast_1d", "atleast_2d", "atleast_3d", "block", "broadcast_arrays", "broadcast_to", "can_cast",
    "choose", "column_stack", "common_type", "compress", "concatenate", "copy", "copyto", "delete", "diag", "diagflat",
    "diagonal", "dsplit", "dstack", "empty_like", "expand_dims", "extract", "flip", "fliplr", "flipud", "full_like",
    "hsplit", "hstack", "imag", "insert", "isclose", "iscomplexobj", "isrealobj", "ix_", "matrix_transpose",
    "may_share_memory", "meshgrid", "min_scalar_type", "moveaxis", "ndim", "ones_like", "pad", "ravel", "real",
    "repeat", "reshape", "resize", "result_type", "roll", "rollaxis", "rot90", "row_stack", "save", "savetxt", "savez",
    "savez_compressed", "select", "shape", "shares_memory", "size", "split", "squeeze", "stack", "swapaxes", "take",
    "take_along_axis", "tile", "transpose", "tril", "triu", "unstack", "vsplit", "vstack", "where", "zeros_like",
))  # fmt: skip
#: Those of them that ask for no elements, so that nothing waits.
_LOOKING = frozenset(("common_type", "iscomplexobj", "isrealobj", "ndim", "shape", "size"))
#: Where those that write to an array are given it: the place of the argument, and its name.
_WRITTEN = {
    "choose": (2, "out"), "compress": (3, "out"), "concatenate": (2, "out"), "copyto": (0, "dst"), "stack": (2, "out"),
    "take": (3, "out"),
}  # fmt: skip

#: Methods of NumPy's arrays and PyTorch's tensors that are no function of the standard: what to write here.
_METHODS = {
    "detach": "t itself: tensors record no gradients", "cpu": "t.numpy()",
    "to": "t.astype(dtype), or backend.tensor(t) for another device", "float": 't.astype("float32")',
    "half": 't.astype("float16")', "bfloat16": 't.astype("bfloat16")', "permute": "t.transpose(...)",
    "unsqueeze": "t[:, None], or grilly.expand_dims(t)", "dim": "t.ndim",
    **dict.fromkeys(("clone", "copy"), "t.astype(t.dtype), which copies"),
    **dict.fromkeys(("flatten", "ravel"), "t.reshape(-1)"), "view": "t.reshape(shape)", "numel": "t.size",
    "fill_": "t[:] = value", "dot": "grilly.matmul(t, other)",
}  # fmt: skip


def _on_host(name: str, value: Any) -> Any:
    """An argument with arrays for tensors, those in lists and tuples too."""
    if isinstance(value, NumPyFunctions):
        return value._read(f"numpy.{name}")  # type: ignore[attr-defined]
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple)(_on_host(name, one) for one in value)
    return value


class NumPyFunctions:
    """NumPy's protocols for tensors among its arguments."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        operator = _OPERATORS.get(ufunc.__name__)
        if operator is not None and method == "__call__" and not options and len(inputs) == 2:
            left, right = inputs
            if isinstance(left, NumPyFunctions):
                return getattr(left, operator[0])(right)
            if ufunc.__name__ in _COMPARISONS and getattr(left, "shape", None) == () and left.dtype == float:
                left = left.item()  # NumPy makes an array of a number that it compares
            return getattr(right, operator[1])(left)
        if method == "__call__":
            raise self._refused(ufunc.__name__)
        raise self._refused(f"{ufunc.__name__}.{method}", _REDUCED.get((ufunc.__name__, method)))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        name = function.__name__
        if name not in _HOST:
            raise self._refused(name)
        if name in _LOOKING:
            return function._implementation(*args, **kwargs)
        if name in _WRITTEN:
            place, word = _WRITTEN[name]
            if isinstance(kwargs.get(word, args[place] if len(args) > place else None), NumPyFunctions):
                raise TypeError(f"numpy.{name}: NumPy cannot write to a grilly.Tensor; give t[...] = values")
        # Otherwise some functions would work with the tensor's own methods, and give Tensors.
        args, kwargs = _on_host(name, args), {word: _on_host(name, value) for word, value in kwargs.items()}
        return function._implementation(*args, **kwargs)

    if not TYPE_CHECKING:  # type checkers are to know that there is no such attribute

        def __getattr__(self, name: str) -> Any:
            way = _METHODS.get(name)
            if way is None and not name.startswith("_"):
                standard = _STANDARD.get(name, name)
                way = f"grilly.{standard}(t)" if hasattr(self.__array_namespace__(), standard) else None
            hint = f"; here give {way}" if way else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def _refused(self, name: str, standard: str | None = None) -> TypeError:
        standard = standard or _STANDARD.get(name, name)
        ours = self.__array_namespace__()  # type: ignore[attr-defined]
        for module, label in ((ours, "grilly"), (ours.linalg, "grilly.linalg")):
            if hasattr(module, standard):
                return TypeError(
                    f"numpy.{name}: a grilly.Tensor is not downloaded unseen; give {label}.{standard}(...), which "
                    "computes on the device, or t.numpy()"
                )
        return TypeError(f"numpy.{name}: a grilly.Tensor is not downloaded unseen; give t.numpy()")


__all__ = ["NumPyFunctions"]
