"""Module and Parameter: layers with weights and gradients, in PyTorch's terms, without an automatic graph."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ..compute import Compute, Tensor
from ..compute.backend import backend_of
from ..compute.device.arguments import no_array
from ..compute.device.arrays import Array, NDArray
from ..compute.device.device import UNDER_WAY, Stale, under_way
from ..compute.device.dtypes import FLOATS_TEXT, dtype_of, is_float
from ..errors import CaptureError
from .changes import changed
from .foreign import refuse, refuse_places
from .parameter import Parameter
from .states import LoadResult, check_range, to_numpy


def _as_it_is(value: Any) -> Any:
    """The value, with copies of arrays of NumPy's, of lists and of mappings, also of those in one another."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return [_as_it_is(each) for each in value]
    if isinstance(value, dict):
        return {name: _as_it_is(each) for name, each in value.items()}
    return value


def _tensors(values: Any) -> Iterator[Tensor]:
    """Tensors among values, and in tuples and mappings of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())


def _captures(tensors: Collection[Tensor]) -> list[Stale]:
    """The captures under way, by what is noted of them, on the tensors' devices; without tensors on any."""
    if not tensors:
        return under_way()
    found = (tensor.backend.opened.captured.stale for tensor in tensors)
    return [stale for stale in dict.fromkeys(found) if stale is not None]


ModuleT = TypeVar("ModuleT", bound="Module")


#: Why a graph is no longer what its function would do.
_OTHER_PARTS = "a parameter or module in a module was replaced, added or taken out since the capture"


class Like(NamedTuple):
    """What is known of an array without it; a dtype of None may be any floating one."""

    shape: tuple[int, ...]
    dtype: np.dtype | None

    @classmethod
    def of(cls, array: Array) -> Like:
        """What is known of this array."""
        return cls(tuple(array.shape), dtype_of(array.dtype))


class _Record(NamedTuple):
    """What ``forward`` has kept for ``backward``."""

    what: dict[str, Any]
    gave: tuple[Like, ...]  #: its results, which their gradients are like
    parts: tuple[tuple[Module, _Record | None], ...]  #: what the modules in it have kept of the same forward
    versions: list[tuple[Any, int]]
    captures: list[Stale]  #: in which it ran
    before: _Record | None  #: of a captured one: the last that was not, which outlives the capture


def shapes(owner: str, **arrays: object) -> list[tuple[int, ...]]:
    """The shapes of the named arrays. Raises TypeError for what is no array."""
    for name, array in arrays.items():
        if not isinstance(array, (np.ndarray, Tensor)):
            raise no_array(owner, name, array)
    return [tuple(array.shape) for array in arrays.values()]


class Module:
    """Base class of layers. Assigning a `Parameter` or a Module to an attribute registers it under that name.

    A layer takes NumPy arrays or Tensors and gives back what it was given: Tensors stay on the device and nothing is
    waited for; NumPy arrays are sent once, all steps run on the device, and the result is fetched. The work runs on
    the inputs' backend, on the one chosen with `to`, or on the default one (``grilly.use``).

    Gradients: after ``train()``, ``forward`` keeps on the device what ``backward`` needs, until the next one of either.
    ``backward(grad_output)`` then returns the gradients of the inputs and adds those of the parameters to their
    ``grad``. A program calls it on its layers in reverse order::

        model.train()
        y = model(x)
        model.zero_grad()
        grad_x = model.backward(grad_y)
        for p in model.parameters():
            p.data = (p.data - rate * p.grad).astype(p.dtype)

    A new module keeps nothing although ``training`` is True, and ``eval()`` forgets what is kept.

    ``copy.deepcopy`` and ``pickle`` work at any time: parameters, gradients and settings are copied, not what is kept
    for ``backward``. A copy has the module's backend; what was pickled has none, and its Tensors come back as arrays.
    """

    # A slot, so that what graphs note of a module is neither copied nor one of its settings.
    __slots__ = ("_graphs", "__dict__", "__weakref__")

    #: Other libraries' keywords beside those in foreign.py, with what to give instead: of modules of a floor above.
    _foreign: ClassVar[Mapping[str, str]] = {}
    _graphs: weakref.WeakSet[Stale]
    _parameters: dict[str, Parameter]
    _modules: dict[str, Module]

    if not TYPE_CHECKING:  # type checkers have the signatures of __init__

        def __new__(cls, *args, **kwargs):
            """A new layer, or TypeError for another library's keyword with the word for it here."""
            if kwargs:
                refuse(cls, cls.__init__, kwargs)
            return super().__new__(cls)

    def __init__(self) -> None:
        object.__setattr__(self, "_parameters", {})
        object.__setattr__(self, "_modules", {})
        self.training = True
        self._backend: Compute | None = None
        self._keeps = False
        self._kept: _Record | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the layer computes; subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def backward(self, grad_output: Any) -> Any:
        """The gradients of the inputs of the last ``forward``, given its output's; subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} has no backward()")

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters, at any depth."""
        for parameter in self.parameters():
            parameter.grad = None

    def _keep(self, *gave: Like, parts: bool = False, **what: Any) -> None:
        """Keep what ``backward`` will need, after ``train()``; arrays of NumPy's as they are now.

        Weights and settings among it: what they are by then may be another forward's. ``gave`` are the results, and
        with ``parts`` the modules in this one, whose ``backward`` it will call, have what they keep now by then.
        """
        if self._keeps:
            kept = _as_it_is(what)
            tensors = list(_tensors(kept.values()))
            versions = [(tensor._storage, tensor._storage.version) for tensor in tensors]
            captures, before = _captures(tensors), None
            if captures and self._kept is not None:
                before = self._kept.before if self._kept.captures else self._kept
            inside = tuple((part, part._kept) for part in self._modules.values()) if parts else ()
            self._kept = _Record(kept, gave, inside, versions, captures, before)

    def _take(self, grads: tuple[Any, ...] | None = None) -> dict[str, Any]:
        """What the last ``forward`` kept, no longer kept, for the gradients of its results.

        Raises RuntimeError where it kept nothing, and where a Tensor was written to since; CaptureError where it ran
        in another capture; ValueError or TypeError where the gradients are others', and then it stays kept.
        """
        if self._kept is not None and self._kept.gave and grads is not None:
            self._check_grads(grads, self._kept.gave)
        found, self._kept = self._kept, None
        if found is not None and found.captures:
            here = found.captures == _captures(list(_tensors(found.what.values())))
            if here:
                self._kept = found.before
            elif found.before is not None:
                found = found.before
        name = type(self).__name__
        if found is None:
            raise RuntimeError(
                f"{name}.backward: no forward() was kept; call train(), then forward() before each backward(). A layer "
                "that runs twice keeps the last: outside nn.Sequential each place needs a layer of its own"
            )
        if found.captures and not here:
            raise CaptureError(
                f"{name}.backward: forward() was captured, and a graph uses the memory of what it kept again; call "
                "forward() and backward() both in the captured function or both outside"
            )
        if any(storage.version != version for storage, version in found.versions):
            raise RuntimeError(
                f"{name}.backward: a Tensor that forward() was given, gave or had as a weight was changed in place "
                "since, so that the gradient would be another's; change a copy, or after backward()"
            )
        for part, record in found.parts:
            part._kept = record
        return found.what

    def _check_grads(self, grads: tuple[Any, ...], gave: tuple[Like, ...]) -> None:
        """Raise TypeError for what is no array, ValueError for gradients that are not of the results' shapes."""
        name = f"{type(self).__name__}.backward"
        if len(grads) != len(gave):
            raise ValueError(f"{name}: {len(grads)} gradients; expected {len(gave)}, one for each result")
        for grad, like in zip(grads, gave, strict=True):
            if not isinstance(grad, (np.ndarray, Tensor)):
                raise no_array(name, "grad_output", grad)
            if tuple(grad.shape) != like.shape:
                raise ValueError(
                    f"{name}: grad_output has shape {tuple(grad.shape)}; expected the output's, {like.shape}"
                )
            dtype = dtype_of(grad.dtype)
            if not is_float(dtype) or like.dtype not in (None, dtype):
                raise TypeError(f"{name}: grad_output is {dtype}; expected {like.dtype or FLOATS_TEXT}")

    # -- copies ----------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        # What is kept for backward() lies on a device and belongs to one forward(); a backend is an open device.
        return {**self.__dict__, "_kept": None, "_backend": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        # Of pickle alone: copies keep Tensors.
        make, arguments, state, *rest = super().__reduce_ex__(protocol)
        state = {name: value.numpy() if isinstance(value, Tensor) else value for name, value in state.items()}
        return (make, arguments, state, *rest)

    def _open_backend(self) -> Compute | None:
        """The module's backend, for copies; none where it was closed, as for what was pickled."""
        return None if self._backend is None or self._backend._closed else self._backend

    def __copy__(self: ModuleT) -> ModuleT:
        new = object.__new__(type(self))
        new.__setstate__(self.__getstate__())
        object.__setattr__(new, "_backend", self._open_backend())
        return new

    def __deepcopy__(self: ModuleT, memo: dict[int, Any]) -> ModuleT:
        new = memo[id(self)] = object.__new__(type(self))
        new.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        object.__setattr__(new, "_backend", self._open_backend())
        return new

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if UNDER_WAY:
            self._note()
        try:
            return self.forward(*args, **kwargs)
        except TypeError:
            refuse(type(self), self.forward, kwargs)
            refuse_places(type(self), self.forward, len(args))
            raise

    # -- attributes ------------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__}: call super().__init__() before setting attributes")
        if isinstance(value, (Parameter, Module)):
            own: Any = self._parameters if isinstance(value, Parameter) else self._modules
            before = self._part(name)
            for home in (self.__dict__, self._parameters, self._modules):
                if home is not own:
                    home.pop(name, None)
            own[name] = value  # in the place of the one before, as Sequential goes by it
            if before is not value:
                self._replaced(before)
            changed()
            return
        if name in self._parameters and value is not None:
            raise TypeError(f"{type(self).__name__}: {name} is a parameter; assign nn.Parameter(array), or None")
        if name in self._modules and value is not None:
            raise TypeError(f"{type(self).__name__}: {name} is a module; assign another nn.Module, or None")
        before = self._part(name)
        self._parameters.pop(name, None)
        self._modules.pop(name, None)
        object.__setattr__(self, name, value)
        if before is not None:
            self._replaced(before)
        changed()

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._parameters, *self._modules})

    def __getattr__(self, name: str) -> Any:
        for home in ("_parameters", "_modules"):
            if name in self.__dict__.get(home, ()):
                return self.__dict__[home][name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _part(self, name: str) -> Parameter | Module | None:
        return self._parameters[name] if name in self._parameters else self._modules.get(name)

    def __delattr__(self, name: str) -> None:
        for home in (self._parameters, self._modules):
            if name in home:
                self._replaced(home.pop(name))
                changed()
                return
        object.__delattr__(self, name)
        changed()

    # -- graphs ----------------------------------------------------------------------------------------------------

    def _note(self) -> None:
        """Have this thread's captures under way told when this module gets other parts.

        And when those directly in it do: a layer may use the weights of its parts without calling them.
        """
        for stale in under_way():
            for module in (self, *self._modules.values()):
                if getattr(module, "_graphs", None) is None:
                    object.__setattr__(module, "_graphs", weakref.WeakSet())
                module._graphs.add(stale)
                for parameter in module._parameters.values():
                    parameter._graphs.add(stale)

    def _replaced(self, *before: Parameter | Module | None) -> None:
        """Tell graphs that used this module that it has other parts, and those that used the ones before."""
        for stale in getattr(self, "_graphs", None) or ():
            stale.why = _OTHER_PARTS
        for part in before:
            for parameter in part.parameters() if isinstance(part, Module) else () if part is None else (part,):
                parameter._left(_OTHER_PARTS)

    # -- walking ---------------------------------------------------------------------------------------------------

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly inside this one, with their names."""
        yield from self._modules.items()

    def children(self) -> Iterator[Module]:
        """The modules directly inside this one."""
        yield from self._modules.values()

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all inside it, at any depth, with dotted names; one that is shared comes once."""
        seen: set[int] = set()
        stack = [(prefix, self)]
        while stack:
            name, module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield name, module
            inner = [(f"{name}.{child}" if name else child, m) for child, m in module._modules.items()]
            stack.extend(reversed(inner))

    def modules(self) -> Iterator[Module]:
        """This module and all inside it, at any depth."""
        for _, module in self.named_modules():
            yield module

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """All parameters, at any depth, with dotted names; one that is shared comes once."""
        seen: set[int] = set()
        for path, parameter in self._entries(prefix):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield path, parameter

    def parameters(self) -> Iterator[Parameter]:
        """All parameters, at any depth."""
        for _, parameter in self.named_parameters():
            yield parameter

    def _entries(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Every name a parameter has, as in a state dict; a shared one comes once for each."""
        start = f"{prefix}." if prefix else ""
        for name, parameter in self._parameters.items():
            yield start + name, parameter
        for name, module in self._modules.items():
            yield from module._entries(start + name)

    # -- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All parameters by dotted name, as NumPy arrays (read-only where the module shares them)."""
        return {name: parameter.numpy() for name, parameter in self._entries()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> LoadResult:
        """Replace the parameters by those of a state dict, cast to the parameters' dtypes.

        Parameters
        ----------
        state : mapping
            Arrays by dotted name: NumPy arrays, Tensors, or PyTorch's tensors.
        strict : bool
            Whether names that are missing or unexpected are an error.

        Returns
        -------
        LoadResult
            The names passed over; empty lists when ``strict``.

        Raises
        ------
        ValueError
            For missing or unexpected names when ``strict``, and for shapes that differ; all of them are listed, and
            the module is left as it was.
        TypeError
            If state is no mapping, or an entry not a floating array.
        OverflowError
            For finite numbers that a parameter's dtype does not hold; the module is left as it was.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"load_state_dict: state is a {type(state).__name__}; expected names with arrays")
        own = dict(self._entries())
        missing = [name for name in own if name not in state]
        unexpected = [name for name in state if name not in own]
        arrays, problems = {}, []
        for name, parameter in own.items():
            if name in state:
                arrays[name] = to_numpy(name, state[name])
                if arrays[name].shape != parameter.shape:
                    problems.append(f"{name} has shape {arrays[name].shape}, expected {parameter.shape}")
        if strict:
            problems = [
                *(f"missing: {name}" for name in missing),
                *(f"unexpected: {name}" for name in unexpected),
                *problems,
            ]
        if problems:
            raise ValueError(f"load_state_dict: the state does not fit {type(self).__name__}: " + "; ".join(problems))
        check_range("load_state_dict", arrays, {name: own[name].dtype for name in arrays})
        for name, array in arrays.items():
            own[name].data = array.astype(own[name].dtype)
        return LoadResult(missing, unexpected)

    def train(self: ModuleT, mode: bool = True) -> ModuleT:
        """Set ``training`` here and in all modules inside, and whether ``forward`` keeps what ``backward`` needs.

        Returns the module.
        """
        for module in self.modules():
            module.training = module._keeps = bool(mode)
            module._kept = None
        return self

    def eval(self: ModuleT) -> ModuleT:
        """The same as ``train(False)``."""
        return self.train(False)

    def to(self: ModuleT, backend: Compute | None = None, dtype: DTypeLike | None = None) -> ModuleT:
        """Choose the backend that NumPy inputs are computed on, and the parameters' dtype. Returns the module.

        Parameters
        ----------
        backend : grilly.Compute, optional
            For this module and all inside it. None leaves it as it is. Parameters are copied there at first use.
        dtype : dtype, optional
            float32, float16 or bfloat16: casts the parameters; the inputs must then have that dtype.

        Raises
        ------
        TypeError
            For anything else.
        OverflowError
            For finite numbers in a parameter that the dtype does not hold; the module is left as it was.
        """
        if backend is not None and not isinstance(backend, Compute):
            raise TypeError(
                f"to: expected a grilly.Compute, got {type(backend).__name__}; for a dtype use to(dtype=...)"
            )
        if dtype is not None:
            dtype = dtype_of(dtype)
            if not is_float(dtype):
                raise TypeError(f"to: dtype {dtype}; expected {FLOATS_TEXT}")
            own = {name: parameter.data for name, parameter in self.named_parameters()}
            check_range("to", own, dict.fromkeys(own, dtype))
            for parameter in self.parameters():
                parameter._put(parameter.data.astype(dtype, copy=False))
        if backend is not None:
            for module in self.modules():
                module._backend = backend
        return self

    # -- the device ------------------------------------------------------------------------------------------------

    def _send(self, *arrays: Array, mask: Array | None = None) -> tuple[Compute, list[Tensor], bool]:
        """The backend to run on, the arrays as its Tensors (one that comes twice is sent once), and whether the
        result is to be a Tensor. A mask only takes part in the choice of the backend."""
        if UNDER_WAY:
            self._note()  # forward() may be called by that name
        keep = any(isinstance(array, Tensor) for array in (*arrays, mask))
        backend = backend_of(type(self).__name__, *arrays, mask) if keep or self._backend is None else self._backend
        sent: dict[int, Tensor] = {}
        for array in arrays:
            if id(array) not in sent:
                sent[id(array)] = backend.tensor(array)
        return backend, [sent[id(array)] for array in arrays], keep

    # -- text ------------------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What stands between the parentheses of the repr."""
        return ""

    def __repr__(self) -> str:
        lines = [self.extra_repr()] if self.extra_repr() else []
        for name, module in self._modules.items():
            lines.append(f"({name}): " + repr(module).replace("\n", "\n  "))
        if not self._modules:
            return f"{type(self).__name__}({', '.join(lines)})"
        return f"{type(self).__name__}(\n  " + "\n  ".join(lines) + "\n)"
