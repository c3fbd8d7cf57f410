"""Module: layers with weights and gradients, in PyTorch's terms."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ..compute import Compute, Tensor
from ..compute.backend import backend_of
from ..compute.device.arguments import no_array
from ..compute.device.arrays import Array, NDArray
from ..compute.device.device import UNDER_WAY
from ..compute.device.dtypes import FLOATS_TEXT, dtype_of, is_float
from ..quantization import QuantizedTensor
from .backward import Differentiable
from .foreign import refuse, refuse_places
from .parameter import Parameter
from .states import LoadResult, check_range, to_numpy
from .tapes import INSIDE

ModuleT = TypeVar("ModuleT", bound="Module")


def shapes(owner: str, **arrays: object) -> list[tuple[int, ...]]:
    """The shapes of the named arrays. Raises TypeError for what is no array."""
    for name, array in arrays.items():
        if not isinstance(array, (np.ndarray, Tensor)):
            raise no_array(owner, name, array)
    return [tuple(array.shape) for array in arrays.values()]


class Module(Differentiable):
    """Base class of layers. Assigning a `Parameter` or a Module to an attribute registers it under that name.

    A layer takes NumPy arrays or Tensors and gives back what it was given: Tensors stay on the device and nothing is
    waited for; NumPy arrays are sent once, all steps run on the device, and the result is fetched. The work runs on
    the inputs' backend, on the one chosen with `to`, or on the default one (``grilly.use``).

    Gradients: after ``train()``, a call of the module keeps on the device what ``backward`` needs, until the next call
    or ``backward``. ``backward(grad_output)`` then returns the gradients of the inputs and adds those of the parameters
    to their ``grad``::

        model.train()
        y = model(x)
        model.zero_grad()
        grad_x = model.backward(grad_y)
        for p in model.parameters():
            p.data = (p.data - rate * p.grad).astype(p.dtype)

    A class needs no ``backward``: what its ``forward`` does with Tensors is noted, and its gradients follow from there.
    So that they do, NumPy arrays of floats come to ``forward`` as Tensors then, and go out as arrays. A class that
    defines ``backward`` has it called; the modules in it keep what theirs need then, each of its own calls.
    ``grilly.value_and_grad`` takes gradients without any of this.

    A new module keeps nothing although ``training`` is True, and ``eval()`` forgets what is kept.

    ``copy.deepcopy`` and ``pickle`` work at any time: parameters, gradients and settings are copied, not what is kept
    for ``backward``. A copy has the module's backend; what was pickled has none, and its Tensors come back as arrays.
    """

    #: Other libraries' keywords beside those in foreign.py, with what to give instead: of modules of a floor above.
    _foreign: ClassVar[Mapping[str, str]] = {}
    _modules: dict[str, Module]

    if not TYPE_CHECKING:  # type checkers have the signatures of __init__

        def __new__(cls, *args, **kwargs):
            """A new layer, or TypeError for another library's keyword with the word for it here."""
            if kwargs:
                refuse(cls, cls.__init__, kwargs)
            return super().__new__(cls)

    def __init__(self) -> None:
        super().__init__()
        self.training = True
        self._backend: Compute | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the layer computes; subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters, at any depth."""
        for parameter in self.parameters():
            parameter.grad = None

    def requires_grad_(self: ModuleT, requires_grad: bool = True) -> ModuleT:
        """Set ``requires_grad`` of all parameters, at any depth; quantized ones stay without. Returns the module."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad and not isinstance(parameter.data, QuantizedTensor)
        return self

    # -- gradients -------------------------------------------------------------------------------------------------

    @classmethod
    def _has_own_backward(cls) -> bool:
        return cls.backward is not Module.backward

    @classmethod
    def _extends(cls) -> bool:
        """Whether a ``backward`` of its own may call that of a layer which it is made of."""
        order = cls.__mro__
        first = next(place for place, base in enumerate(order) if "backward" in vars(base))
        return any("forward" in vars(base) for base in order[first + 1 : order.index(Module)])

    def backward(self, grad_output: Any = None) -> Any:
        """The gradients of the inputs of the last call, given that of its result; adds those of the parameters.

        Parameters
        ----------
        grad_output : numpy.ndarray or grilly.Tensor
            Of the result's shape and dtype; a tuple of such for several results.

        Returns
        -------
        numpy.ndarray, grilly.Tensor or None
            The gradient of the one floating array among the arguments, a tuple for several of them, None where there is
            none. Tensors where grad_output is one.

        Raises
        ------
        RuntimeError
            Where nothing was kept, and where a Tensor that gradients are computed of was written to since.
        CaptureError
            Where the module ran in a captured function, and this is not called in the same one.
        ValueError, TypeError
            If grad_output is not of the result's shape, or no floating array. What was kept stays kept.
        GradientError
            Where an operation has no gradient.
        """
        return self._gradients(grad_output)

    # -- copies ----------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        # What is kept for backward() lies on a device and belongs to one forward(); a backend is an open device.
        return {**self.__dict__, "_saved": None, "_backend": None}

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
            if self._keeps or INSIDE.on_device:
                return self._forward(args, kwargs)
            return self.forward(*args, **kwargs)
        except TypeError:
            refuse(type(self), self.forward, kwargs)
            refuse_places(type(self), self.forward, len(args))
            raise

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
            module.training = bool(mode)
            module._save(None)
        self._keep(bool(mode))
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
        keep = self._stays(*arrays, mask)
        some = any(isinstance(array, Tensor) for array in (*arrays, mask))
        backend = backend_of(type(self).__name__, *arrays, mask) if some or self._backend is None else self._backend
        sent: dict[int, Tensor] = {}
        for array in arrays:
            if id(array) not in sent:
                sent[id(array)] = backend.tensor(array)
        return backend, [sent[id(array)] for array in arrays], keep

    def _chosen_backend(self) -> Compute | None:
        """The first backend that was chosen for it or for a module in it (``to``)."""
        return next((module._backend for module in self.modules() if module._backend is not None), None)

    @staticmethod
    def _stays(*arrays: Any) -> bool:
        """Whether results stay Tensors: where an array is one, and within a module whose forward is on a tape."""
        return INSIDE.on_device or any(isinstance(array, Tensor) for array in arrays)

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
