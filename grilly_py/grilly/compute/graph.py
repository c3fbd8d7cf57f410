"""Graphs: a function's work on the device, captured once and replayed without the function."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from ..errors import CaptureError, GradientError, GrillyError
from ..runtime.interface import REENTERED, Buffer, Capture, Recording
from .arrays.convert import fill
from .arrays.fusion import fuse
from .arrays.moves import skip_copies
from .device.arguments import no_array
from .device.device import UNDER_WAY, Device, Stale
from .device.dtypes import dtype_of, is_storable, plain
from .device.other_arrays import called, refuse_hidden
from .device.tape import OPEN
from .device.tensor import Storage, Tensor
from .device.together import held_back
from .matmul.fusion import fuse_linear
from .norms.fusion import fuse_norms
from .random import drawn_in_replays
from .structures import alike, common, held_by, leaves, rebuilt

Returned = TypeVar("Returned")
#: From so many bytes on a kernel copies arguments and results: an H200's driver copies 0.4 TB/s, a kernel 2.0.
LARGE = 2**22
_ALIGNMENT = 64  # bytes: of results in a copy of what several of them span
_WORDS = dtype_of("float32")


class _Given(NamedTuple):
    """What an argument must be: an array of a shape and a dtype, with the tensor it goes to; or else a value."""

    name: str
    tensor: Tensor | None
    value: Any


class _Result(NamedTuple):
    """A tensor of the graph's own among the results, and the bytes that its elements span."""

    tensor: Tensor
    start: int
    nbytes: int


class _Span(NamedTuple):
    """Bytes of one storage that a replay copies at once: those of a result, or of several that nearly fill them.

    Attributes
    ----------
    whole : Tensor
        The result, or flat all that the results span.
    start, nbytes : int
    results : tuple of (int, Tensor, int)
        The results: number, where the graph has it, and the element of the span at which it begins.
    """

    whole: Tensor
    start: int
    nbytes: int
    results: tuple[tuple[int, Tensor, int], ...]

    @classmethod
    def of(cls, own: Sequence[_Result]) -> list[_Span]:
        """Spans of all results. Views of one array share the memory of its copy, as they share that of the array."""
        found, sharing = [], dict[tuple[Storage, int], list[int]]()
        for number, each in enumerate(own):
            key = (each.tensor._storage, each.tensor.dtype.itemsize if each.nbytes else -number)
            sharing.setdefault(key, []).append(number)
        for (storage, size), numbers in sharing.items():
            start = min(own[number].start for number in numbers) // _ALIGNMENT * _ALIGNMENT
            nbytes = max(own[number].start + own[number].nbytes for number in numbers) - start
            if len(numbers) > 1 and 2 * sum(own[number].nbytes for number in numbers) >= nbytes:
                whole = Tensor(storage, (nbytes // size,), own[numbers[0]].tensor.dtype, (1,), start // size)
                views = ((number, own[number].tensor) for number in numbers)
                parts = tuple((number, view, view._offset - start // size) for number, view in views)
                found.append(cls(whole, start, nbytes, parts))
            else:
                found += [cls(*own[number], ((number, own[number].tensor, 0),)) for number in numbers]
        return found


class Graph(Generic[Returned]):
    """Captured work, made by ``Compute.capture``.

    The graph holds its memory until it goes. Threads may replay it: each replay, with its arguments and results, is one
    step in the order of the device's work.

    Attributes
    ----------
    memory : int
        Bytes of device memory that the graph holds: arguments, results, what lies between, and what the host wrote.
        Tensors that were there before are not counted.
    dispatches : int
        Dispatches in a replay.
    submissions : int
        Submissions in a replay: long work is cut, so that no system takes the device for hung.
    """

    def __init__(
        self,
        device: Device,
        arguments: tuple[Any, ...],
        given: list[_Given],
        recording: Recording,
        results: Any,
        own: list[_Result],
        grown: dict[Any, int],
        kept: dict[Storage, int],
        written: Iterable[Storage],
        stale: Stale,
    ):
        self._device = device
        self._arguments = rebuilt(arguments, lambda leaf: None)
        self._given = given
        self._recording = recording
        self._results = results
        self._own, self._spans = [each.tensor for each in own], _Span.of(own)
        self._grown = tuple(grown.items())
        self._kept = tuple(kept.items())
        # Whose contents each replay changes: its own results, and what the function found.
        self._written = tuple(map(weakref.ref, {*written, *(each.tensor._storage for each in own)}))
        self._stale = stale
        self._into = {each.tensor._storage.buffer for each in given if each.tensor is not None}
        self._by_kernel = device.runtime.device.kind != "cpu"
        self._flat = not any(isinstance(argument, (tuple, list, dict)) for argument in arguments)
        self.memory = recording.nbytes
        self.dispatches = recording.dispatches
        self.submissions = recording.submissions

    def __repr__(self) -> str:
        return f"grilly.Graph({self.dispatches} dispatches, {self.memory:,} bytes)"

    def __reduce__(self) -> Any:
        raise TypeError(
            "a grilly.Graph is recorded work of an open device, and can be neither copied nor pickled; capture the "
            "function again"
        )

    def __call__(self, *arguments: Any, copy: bool = True, **named: Any) -> Returned:
        """Replay: copy the arguments in, run the recorded work, and give the results, without waiting.

        Parameters
        ----------
        *arguments
            Arrays like those of the capture, Tensors or NumPy arrays as one likes. They may be changed after the call.
            All are given by position, as in the capture.
        copy : bool
            False gives the Tensors in which the graph itself has its results, without a copy. The next replay writes
            over them.

        Returns
        -------
        What the function returned, with other Tensors. Those that were views of one array may share memory again.

        Raises
        ------
        TypeError
            For arguments by name.
        ValueError
            For another number, structure, shape, dtype or value of arguments than in the capture, for a Tensor of
            another backend, and for tokens that do not fit in a cache; nothing has run then.
        CaptureError
            In a captured function; when a parameter of a module that the function used got other data
            (``load_state_dict``, ``data =``); when a module that it called got another parameter or module, or lost
            one; and when a weight was written to that ``precision="high"`` had split before the capture. Capture again
            then.
        GradientError
            Where gradients are taken: none goes through a replay.
        ClosedError
            After the backend was closed.
        OutOfDeviceMemoryError
            When the device has no room for the results.
        """
        device = self._device
        device.check_open()
        if OPEN.tapes:
            raise GradientError("graph: no gradient goes through a replay, nor to what the function found; call the "
                                "captured function itself, or take the gradients in what is captured. What is a "
                                "constant there can be replayed before")  # fmt: skip
        if named:
            names = ", ".join(map(repr, named))
            raise TypeError(f"graph: arguments are given by position, as in the capture; got {names} by name")
        if self._flat and len(arguments) == len(self._given):
            values = arguments
        else:
            values = tuple(alike(self._arguments, arguments))
        sources, before = [], []
        for given, value in zip(self._given, values, strict=True):
            if given.tensor is not None:
                source = _source(device, given, given.tensor, value)
                if value.__class__ is Tensor and source[1] in self._into:  # given out by copy=False
                    if source[1] is source[0]:
                        continue  # it is there
                    # Another argument may be copied there first.
                    value = value.astype(value.dtype)
                    source = _source(device, given, given.tensor, value)
                if value.__class__ is Tensor and self._by_kernel and _is_large(value):
                    before.append((value, given.tensor))
                elif source[3]:
                    sources.append(source)
            elif not _same(given.value, value):
                raise ValueError(f"graph: {given.name} is {value!r}; expected {given.value!r}, as in the capture")
        self._check_fresh()
        found, wanted, behind = [*self._own], [], []
        if copy:
            for whole, start, nbytes, results in self._spans:
                storage = Storage(device, nbytes)
                for number, own, first in results:
                    found[number] = Tensor(storage, own.shape, own.dtype, own._strides, first)
                if self._by_kernel and _is_large(whole):
                    behind.append((whole, Tensor(storage, whole.shape, whole.dtype, whole._strides)))
                elif nbytes:
                    wanted.append((whole._storage.buffer, start, storage.buffer, nbytes))
        copies = _copies(device, before, behind) if self._by_kernel else ()
        self._count_writes()  # before and after the replay, as Executable.run does
        if self._grown:
            self._replay_counted(sources, wanted, copies)
        else:
            device.runtime.replay(self._recording, sources, wanted, *copies)
        self._count_writes()
        results = self._results
        given: Any = found[results.number] if results.__class__ is _Place else rebuilt(results, _from(found))
        returned: Returned = given
        return returned

    def _replay_counted(self, sources: list[tuple], wanted: list[tuple], copies: Sequence[list[tuple]]) -> None:
        """Replay, and count what replays advance."""
        device = self._device
        if device.home.growing._is_owned():
            raise GrillyError(REENTERED)
        with device.home.growing:  # what one thread has begun another must not count on
            for counted, growth in self._grown:
                first = counted.begin(growth)
                if first is not None:
                    sources.append(first)
            device.runtime.replay(self._recording, sources, wanted, *copies)
            for counted, growth in self._grown:
                counted.end(growth)

    def _check_fresh(self) -> None:
        """Raise CaptureError where the function would do other work by now."""
        if self._stale.why is not None:
            raise CaptureError(f"graph: {self._stale.why}; capture again")
        for storage, version in self._kept:
            if storage.version != version:
                raise CaptureError(
                    'graph: a weight that precision="high" had split before the capture was written to since; capture '
                    "again"
                )

    def _count_writes(self) -> None:
        for there in self._written:
            storage = there()
            if storage is not None:
                storage.version += 1


def _from(found: list[Tensor]) -> Callable[[Any], Any]:
    """What is returned for a leaf of the results' structure."""
    return lambda leaf: found[leaf.number] if leaf.__class__ is _Place else leaf


class _Place:
    """Where a tensor of the graph's own belongs among the results; a leaf of their structure."""

    __slots__ = ("number",)

    def __init__(self, number: int):
        self.number = number


def capture(device: Device, function: Callable[..., Returned], arguments: tuple[Any, ...]) -> Graph[Returned]:
    """``Compute.capture``, which has the documentation."""
    device.check_open()
    runtime = device.runtime
    arguments = common(arguments)
    names = list(leaves(arguments))
    _check_arguments(device, names)
    captured = runtime.capture()
    device.captured.grown, device.captured.kept = grown, kept = {}, {}
    device.captured.parameters, device.captured.parts = {}, {}  # of a capture whose end was interrupted
    device.captured.written, device.captured.filled = written, filled = weakref.WeakSet(), weakref.WeakSet()
    device.captured.stale = stale = Stale()
    device.captured.work = captured
    try:
        UNDER_WAY.append(stale)
        captured.active = True
        given = [
            _Given(name, device.empty(value.shape, value.dtype), None)
            if isinstance(value, (np.ndarray, Tensor))
            else _Given(name, None, value)
            for name, value in names
        ]
        inside = iter(given)
        with drawn_in_replays(device.home):
            returned = function(*rebuilt(arguments, lambda leaf: _inside(next(inside))))
    finally:
        captured.active = False
        device.captured.grown, device.captured.parameters = {}, {}
        device.captured.parts, device.captured.kept = {}, {}
        device.captured.written, device.captured.filled = weakref.WeakSet(), None
        device.captured.stale = device.captured.work = None
        if stale in UNDER_WAY:
            UNDER_WAY.remove(stale)
    arrays = [each for each in given if each.tensor is not None]
    changes = captured.written([each.tensor._storage.buffer for each in arrays])
    for each, changed in zip(arrays, changes, strict=True):
        if changed:
            raise CaptureError(
                f"capture: the function writes to {each.name}, of which a graph would have a copy; let it find the "
                "tensor instead of taking it as an argument"
            )
    own: list[_Result] = []

    def place(leaf):
        if not isinstance(leaf, Tensor):
            if isinstance(leaf, (Iterator, AsyncIterator, Coroutine)):
                raise CaptureError(
                    f"capture: the function returns a {type(leaf).__name__}, which would go on outside of the capture; "
                    "return tensors, or tuples, lists and dicts of them"
                )
            held = held_by(leaf, everywhere=True)
            if any(isinstance(part, Tensor) and captured.owns(part._storage.buffer) for part in held):
                raise CaptureError(
                    f"capture: the function returns a {type(leaf).__name__}, and the next replay would write over the "
                    "tensors in it; return tensors, or tuples, lists and dicts of them"
                )
            return leaf
        if leaf._storage.device is not device.home:
            return leaf
        if not captured.owns(leaf._storage.buffer):
            return leaf
        leaf._storage.written_by_replays()
        own.append(_span(leaf))
        return _Place(len(own) - 1)

    results = rebuilt(returned, place)
    captured.restore([storage.buffer for storage in filled])  # others may write to what somebody still has
    _fuse(device, captured)
    return Graph(device, arguments, given, runtime.record(captured), results, own, grown, kept, written, stale)


def _check_arguments(device: Device, names: list[tuple[str, Any]]) -> None:
    """Raise TypeError and ValueError for arguments that a graph cannot be given."""
    for name, value in names:
        if isinstance(value, (np.ndarray, Tensor)):
            refuse_hidden(f"capture: {name}", value)
            if not is_storable(value.dtype):
                raise TypeError(f"capture: {name} is {value.dtype}, which cannot live on the device; cast it")
            if isinstance(value, Tensor) and value._storage.device is not device.home:
                raise ValueError(f"capture: {name} belongs to another backend; move it with backend.tensor(...)")
        elif hasattr(value, "__dlpack__") or hasattr(value, "__array__") and not isinstance(value, np.generic):
            raise no_array("capture", name, value)
        elif any(isinstance(each, (np.ndarray, Tensor)) or hasattr(type(each), "__dlpack__")
                 for each in held_by(value)):  # fmt: skip
            raise TypeError(
                f"capture: {name} is a {type(value).__name__} that holds arrays; give them in tuples, lists or dicts"
            )


def _fuse(device: Device, captured: Capture) -> None:
    """Make fewer dispatches of captured work: products first, which take few operations and store the most."""
    fuse_linear(device, captured)
    fuse_norms(device, captured)
    fuse(device, captured)
    skip_copies(device, captured)


def _inside(given: _Given):
    return given.value if given.tensor is None else given.tensor


def _span(tensor: Tensor) -> _Result:
    """The bytes that a tensor's elements span."""
    last = sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor._strides, strict=True))
    size = tensor.dtype.itemsize
    return _Result(tensor, tensor._offset * size, (last + 1) * size if tensor.size else 0)


def _source(device: Device, given: _Given, target: Tensor, value) -> tuple[Buffer, np.ndarray | Buffer, int, int]:
    """An argument as Runtime.replay takes it."""
    array = value.__class__ is Tensor
    if not array:
        if not isinstance(value, np.ndarray):
            raise ValueError(
                f"graph: {given.name} is a {called(value)}; expected a grilly.Tensor or a numpy.ndarray, "
                f"{_said(target)}"
            )
        refuse_hidden(f"graph: {given.name}", value)
        if not value.dtype.isnative:
            value = value.astype(dtype_of(value.dtype))
    if value.shape != target.shape or value.dtype != target.dtype:
        raise ValueError(f"graph: {given.name} is {_said(value)}; expected {_said(target)}, as in the capture")
    if not array:
        return target._storage.buffer, plain(value), 0, value.nbytes
    if value._storage.device is not device.home:
        raise ValueError(f"graph: {given.name} belongs to another backend; move it with backend.tensor(...)")
    value = value.contiguous()
    return target._storage.buffer, value._storage.buffer, value._offset * value.dtype.itemsize, value.nbytes


def _is_large(tensor: Tensor) -> bool:
    """Whether a kernel copies it faster than the driver's command does, and as whole words."""
    return tensor.nbytes >= LARGE and tensor.is_contiguous and not (tensor.nbytes | _start(tensor)) % 4


def _start(tensor: Tensor) -> int:
    return tensor._offset * tensor.dtype.itemsize


def _copies(device: Device, *several: Sequence[tuple[Tensor, Tensor]]) -> list[list[tuple]]:
    """The dispatches that copy the first of each pair to the second, of each sequence of pairs."""
    found: list[list[tuple]] = []
    for pairs in several:
        found.append([])
        if pairs:
            with held_back(device) as found[-1]:
                for source, target in pairs:
                    views = (Tensor(t._storage, (t.nbytes // 4,), _WORDS, (1,), _start(t) // 4)
                             for t in (target, source))  # fmt: skip
                    fill(*views)
    return found


def _said(array) -> str:
    return f"{array.dtype.name} {tuple(array.shape)}"


def _same(expected, value) -> bool:
    """Whether an argument that is no array is what it was."""
    if expected is value:
        return True
    if isinstance(expected, float) and isinstance(value, float) and expected != expected and value != value:
        return True
    if type(expected) is not type(value):
        return False
    if isinstance(expected, np.generic) and expected.dtype.name == "bfloat16":  # no inexact number to NumPy
        expected, value = float(expected), float(value)
    if isinstance(expected, (float, complex, np.inexact)):
        return _same_number(expected.real, value.real) and _same_number(expected.imag, value.imag)
    return bool(expected == value)


def _same_number(one, other) -> bool:
    """Whether floats are equal, and so are the signs of zeros; all NaN are one."""
    return bool(one == other and np.signbit(one) == np.signbit(other) or one != one and other != other)


__all__ = ["Graph", "capture"]
