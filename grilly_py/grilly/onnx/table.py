"""The table of operators, and what an operator's function is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..compute import Compute, Tensor
from ..errors import UnsupportedError

#: What operators take that compute on the host too.
Value = Tensor | np.ndarray


class Call(NamedTuple):
    """What a node says beside its inputs.

    Attributes
    ----------
    name : str
        The operator.
    attributes : dict
        Attributes as Python values; tensors as NumPy arrays.
    version : int
        Of the operator set that the model names: what some attributes mean depends on it.
    wanted : tuple of bool
        Which outputs the graph has a name for.
    backend : Compute
        The device.
    branches : mapping
        For operators with graphs in them: runs a graph of inputs, and returns its outputs. Inputs of such operators
        are taken from where they are.
    source : callable
        For random numbers: a seed and an offset, others at each call in a run.
    once : callable
        Takes inputs, a key and a function, and returns what the function gives, which is told whether the inputs are
        constants: then it is made once, and kept with the model.
    """

    name: str
    attributes: dict[str, Any]
    version: int
    wanted: tuple[bool, ...]
    backend: Compute
    branches: Mapping[str, Callable[..., tuple[Any, ...]]]
    source: Callable[[], tuple[int | Tensor, int]]
    once: Callable[[Sequence[Tensor | None], Any, Callable[[bool], Any]], Any]

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or what it is where the node has none."""
        return self.attributes.get(name, default)

    def wants(self, number: int) -> bool:
        """Whether the graph names this output."""
        return number < len(self.wanted) and self.wanted[number]

    def tensor(self, value: np.ndarray | Tensor) -> Tensor:
        """The value on the device."""
        return self.backend.tensor(value)

    def axes(self, given: np.ndarray | None, name: str = "axes") -> tuple[int, ...] | None:
        """Axes by an input, in newer versions, or by an attribute, in older ones."""
        found = self.get(name) if given is None else given.reshape(-1).tolist()
        return None if found is None else tuple(int(axis) for axis in found)

    def refuse(self, why: str) -> UnsupportedError:
        """The error of an operator that cannot do what the node asks."""
        return UnsupportedError(why)


def within(index: int, count: int, said: str = "axis") -> int:
    """An axis, or another place, of so many; from the beginning where it counts from the end.

    Raises
    ------
    ValueError
        For one beyond the last or before the first.
    """
    if not -count <= index < count:
        room = f"expected one from {-count} to {count - 1}" if count else "there is none"
        raise ValueError(f"{said} {index} is out of range; {room}")
    return index + count if index < 0 else index


def all_within(axes: Iterable[int], count: int) -> tuple[int, ...]:
    """Several axes of so many, each by its number from the beginning. Raises ValueError, also for one named twice."""
    given = tuple(axes)
    found = tuple(within(int(axis), count) for axis in given)
    if len(set(found)) < len(found):
        raise ValueError(f"axes {list(given)} name one of {count} twice")
    return found


def around(pads: Sequence[int], axes: Sequence[int], count: int) -> tuple[list[int], list[int]]:
    """What is padded before and after each of so many axes, by the pads before some of them and then those after.

    Raises
    ------
    ValueError
        For another number of pads.
    """
    if len(pads) != 2 * len(axes):
        raise ValueError(f"pads has {len(pads)} numbers; expected two for each of {len(axes)} axes")
    before, after = [0] * count, [0] * count
    for place, axis in enumerate(axes):
        before[axis], after[axis] = int(pads[place]), int(pads[place + len(axes)])
    return before, after


def cut(shape: Sequence[int], before: Sequence[int], after: Sequence[int]) -> tuple[slice, ...]:
    """An index of what negative pads before and after each axis leave of an array.

    Raises
    ------
    ValueError
        For pads that cut off more than there is.
    """
    index = []
    for axis, extent in enumerate(shape):
        first, last = max(-before[axis], 0), extent - max(-after[axis], 0)
        if first > last:
            raise ValueError(f"pads {before[axis]} and {after[axis]} cut off more than the {extent} of axis {axis}")
        index.append(slice(first, last))
    return tuple(index)


#: Ends that stand for that of the axis, in the direction of the step.
_TO_THE_END = (2**31 - 1, 2**63 - 1)


def sliced(
    shape: Sequence[int], starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> tuple[slice, ...]:  # fmt: skip
    """The index of ONNX's Slice: steps back begin at the first element where the start lies before it, as in ONNX's
    text and ONNX Runtime; NumPy's slices are empty then.

    Raises
    ------
    ValueError
        For other numbers of ends, axes or steps than of starts, a step of 0, and axes out of range or named twice.
    """
    over = all_within(range(len(starts)) if axes is None else axes, len(shape))
    by = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(over) == len(by):
        raise ValueError(f"{len(starts)} starts, {len(ends)} ends, {len(over)} axes and {len(by)} steps; expected as "
                         "many of each")  # fmt: skip
    index = [slice(None)] * len(shape)
    for axis, start, end, step in zip(over, starts, ends, by, strict=True):
        extent = shape[axis]
        if not step:
            raise ValueError(f"the step of axis {axis} is 0; expected another number")
        step = min(max(step, -extent), extent) or step  # the same elements, and few enough bits for devices
        first, least, most = start + extent * (start < 0), *((0, extent) if step > 0 else (-1, extent - 1))
        if end in _TO_THE_END:
            last = most if step > 0 else least
        else:
            last = min(max(end + extent * (end < 0), least), most)
        first = min(max(first, 0), most)
        index[axis] = slice(first, last if last >= 0 else None, step) if extent else slice(0, 0)
    return tuple(index)


def integral(dtype: np.dtype[Any], exponent: np.ndarray) -> np.ndarray:
    """A floating exponent of integers as integers of their dtype, where it is integral and none is negative.

    Powers of integers are exact then, where their dtype holds them. Others stay as they are.
    """
    if dtype.kind not in "iu" or exponent.dtype.kind in "iub":
        return exponent
    y = exponent.astype(np.float64)
    # Beyond 63 only powers of 0, 1 and -1 are held, and int8 must hold the exponent too.
    return exponent.astype(dtype) if ((y >= 0) & (y <= 63) & (y == np.floor(y))).all() else exponent


class Operator(NamedTuple):
    """An operator of ONNX.

    Attributes
    ----------
    function : callable
        Takes a Call and the inputs (None for those left out), and returns a tensor or a tuple of them.
    host : frozenset of int
        Inputs that are read by the host, because shapes depend on them.
    either : frozenset of int
        Inputs that are taken from where they are. All others are on the device.
    folds : bool
        Whether a node whose arrays are all on the host is computed by ONNX's own functions. Operators of sequences,
        which are lists, take and give arrays from where they are.
    known : bool
        Whether ONNX has such a function. Without one arrays on the host go to the device.
    numbers : bool
        Whether single floating elements beside a tensor may be given as Python's numbers, which kernels do not read
        from memory.
    """

    function: Callable[..., Any]
    host: frozenset[int]
    either: frozenset[int]
    folds: bool
    known: bool
    numbers: bool

    def is_number(self, value: Any, inputs: Sequence[Any]) -> bool:
        """Whether an array of the host is given as a number: the result keeps its dtype and shape."""
        if not self.numbers or not isinstance(value, np.ndarray) or value.size != 1 or value.dtype.kind != "f":
            return False
        tensor = next((each for each in inputs[:2] if isinstance(each, Tensor)), None)
        return tensor is not None and tensor.dtype == value.dtype and tensor.ndim >= value.ndim


#: Operators by name, those of other domains than ONNX's own with the domain before it.
OPERATORS: dict[str, Operator] = {}


def operator(
    *names: str, host: Sequence[int] = (), either: Sequence[int] = (), folds: bool = True, known: bool = True,
    numbers: bool = False,
) -> Callable[[Any], Any]:  # fmt: skip
    """Enter a function under the names of operators; the options are fields of Operator."""

    def enter(function: Any) -> Any:
        for name in names:
            if name in OPERATORS:
                raise ValueError(f"{name} is entered twice")
            OPERATORS[name] = Operator(function, frozenset(host), frozenset(either), folds, known, numbers)
        return function

    return enter


def is_floating(tensor: Tensor) -> bool:
    """Whether elements are float32, float16 or bfloat16."""
    return tensor.dtype.name in ("float32", "float16", "bfloat16")


def wide(tensor: Tensor) -> Tensor:
    """16-bit floating numbers as float32, so that several steps round once."""
    return tensor.astype(np.float32) if tensor.dtype.name in ("float16", "bfloat16") else tensor
