"""Module: layers with weights and gradients, in PyTorch's terms."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ..compute import Compute, Tensor
from ..compute.arrays.creation import full
from ..compute.backend import backend_of
from ..compute.device.arguments import no_array
from ..compute.device.arrays import Array, NDArray
from ..compute.device.device import UNDER_WAY, Stale, under_way
from ..compute.device.dtypes import FLOATS_TEXT, dtype_of, is_float
from ..compute.device.tape import OPEN, Entry, noted_on, taped
from ..compute.gradients import pulled
from ..compute.gradients.alias import aliased, constant
from ..compute.gradients.records import gradient_of
from ..compute.structures import changed_leaves, leaves, tensors
from ..errors import CaptureError
from ..quantization import QuantizedTensor
from .changes import changed
from .foreign import refuse, refuse_places
from .parameter import Parameter
from .states import LoadResult, check_range, to_numpy
from .tapes import INSIDE, KeepsNothing, KeptForward, captures, inside, is_input, versions


def _on_host(leaf: Any) -> Any:
    return leaf.numpy() if isinstance(leaf, Tensor) else leaf


ModuleT = TypeVar("ModuleT", bound="Module")


#: Why a graph is no longer what its function would do.
_OTHER_PARTS = "a parameter or module in a module was replaced, added or taken out since the capture"


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
        self._saved: KeptForward | None = None

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

    #: The arguments of forward by which ``backward`` gives gradients, in its order; None: all floating arrays.
    _inputs: ClassVar[tuple[str, ...] | None] = None

    #: Whether gradients are taken by functions alone (``grilly.value_and_grad``): it and what is in it keep nothing.
    _by_functions: ClassVar[bool] = False

    @classmethod
    def _has_own_backward(cls) -> bool:
        return cls.backward is not Module.backward

    @classmethod
    def _extends(cls) -> bool:
        """Whether a ``backward`` of its own may call that of a layer which it is made of."""
        order = cls.__mro__
        first = next(place for place, base in enumerate(order) if "backward" in vars(base))
        return any("forward" in vars(base) for base in order[first + 1 : order.index(Module)])

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``forward``, with what ``backward`` will need kept after ``train()``."""
        own = self._has_own_backward()
        if own and INSIDE.on_device:
            return self._as_one(args, kwargs)
        if not self._keeps or INSIDE.forward is None and OPEN.tapes:  # gradients are taken by others
            return self.forward(*args, **kwargs)
        if INSIDE.forward == "whole":
            return self.forward(*args, **kwargs)
        if own and not self._extends():
            with inside("parts", False):
                return self.forward(*args, **kwargs)
        return self._recorded(args, kwargs, "parts" if own else "whole")

    def _recorded(self, args: tuple[Any, ...], kwargs: dict[str, Any], how: Literal["whole", "parts"]) -> Any:
        """``forward`` on a tape of its own."""
        given = [leaf for _, leaf in leaves([args, kwargs])]
        arrays = [leaf for leaf in given if isinstance(leaf, Tensor)]
        host, before = not arrays, self._saved
        chosen = self._chosen_backend() if host else None
        backend = backend_of(type(self).__name__, *arrays) if chosen is None else chosen
        under = captures(arrays) if arrays else under_way()
        if under and before is not None:
            before = before.before if before.captures else before
        else:
            before = None
        if any(isinstance(leaf, KeepsNothing) for leaf in given):
            return self.forward(*args, **kwargs)
        inputs: dict[Any, Tensor] = {}
        sent: dict[int, Tensor] = {}  # one that comes twice is sent once

        def taken(name: Any, value: Any) -> Any:
            if not is_input(value):
                return value
            if id(value) not in sent:
                sent[id(value)] = backend.tensor(value)
            inputs[name] = aliased(sent[id(value)])
            return inputs[name]

        args, kwargs = self._given(args, kwargs, taken)
        modules = (self, *(leaf for leaf in given if isinstance(leaf, Module)))
        own = dict.fromkeys(p for module in modules for p in module.parameters() if p.requires_grad)
        weights = [(parameter, parameter.on(backend)) for parameter in own]
        host = host and not INSIDE.on_device
        with taped([*inputs.values(), *(tensor for _, tensor in weights)]) as tape, inside(how, True):
            found = self.forward(*args, **kwargs)
        results = [one for one in tensors(self._differentiable(found)) if is_float(one.dtype)]
        entries = tape.entries
        self._save(KeptForward(entries, inputs, results, weights, host, versions(entries), under, before))
        return changed_leaves(found, _on_host) if host else found

    def _given(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], taken: Callable[[Any, Any], Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, inputs among them as ``taken(name, input)`` gives them."""
        if self._inputs is None:
            number = itertools.count()
            return changed_leaves((args, kwargs), lambda leaf: taken(next(number), leaf))  # type: ignore[no-any-return]
        first = [taken(name, value) for name, value in zip(self._inputs, args, strict=False)]
        named = {name: taken(name, value) if name in self._inputs else value for name, value in kwargs.items()}
        return (*first, *args[len(first) :]), named

    def _differentiable(self, found: Any) -> Any:
        """What of a forward's results has a gradient."""
        return found

    def _as_one(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``forward`` within another module's, as an operation whose gradient is this module's own ``backward``."""
        tapes = OPEN.tapes
        with noted_on(()), inside(None, False):
            found = self._forward(args, kwargs)
        given = [leaf for _, leaf in leaves([args, kwargs]) if is_input(leaf)]
        host = not tensors(found)
        backend = backend_of(type(self).__name__, *tensors([given, found]))
        taken = {leaf._storage for leaf in given if isinstance(leaf, Tensor)}

        def result(leaf: Any) -> Any:
            if not is_input(leaf):
                return leaf
            own = backend.tensor(leaf)
            return constant(own) if own._storage in taken else own  # another array than the argument, for the tapes

        found = changed_leaves(found, result)
        weights = [parameter.on(backend) for parameter in self.parameters() if parameter.requires_grad]
        operation = _OwnBackward(self, [(module, module._saved) for module in self.modules()], len(given), host)
        for tape in tapes:
            tape.enter(operation, (), [*given, *weights], (), [one for one in tensors(found) if is_float(one.dtype)])
        return found

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
        kept = self._kept()
        grads = self._grads(grad_output, kept)
        self._check_grads(grads, kept.results)
        kept = self._take(kept)
        backend = kept.results[0].backend
        inputs, weights = list(kept.inputs.values()), [tensor for _, tensor in kept.parameters]
        sent = [backend.tensor(grad) for grad in grads]
        found = pulled(kept.entries, kept.results, sent, [*inputs, *weights])
        for (parameter, _), gradient in zip(kept.parameters, found[len(inputs) :], strict=True):
            if gradient is not None:
                parameter._add(gradient)
        whole = [full(x._storage.device, x.shape, 0.0, x.dtype) if one is None else one
                 for x, one in zip(inputs, found, strict=False)]  # fmt: skip
        given = [leaf for _, leaf in leaves([grad_output]) if isinstance(leaf, (np.ndarray, Tensor))]
        stays = any(isinstance(grad, Tensor) for grad in given) or not given and not kept.host
        named = dict(zip(kept.inputs, whole, strict=True))
        return self._returned({name: one if stays else one.numpy() for name, one in named.items()})

    def _returned(self, gradients: dict[Any, Array]) -> Any:
        """What ``backward`` gives, of the gradients of inputs by their names."""
        found = tuple(gradients.values())
        return found if len(found) > 1 else found[0] if found else None

    def _grads(self, grad_output: Any, kept: KeptForward) -> tuple[Any, ...]:
        """The gradients of the results."""
        if isinstance(grad_output, (tuple, list)) and len(kept.results) > 1:
            return tuple(grad_output)
        return (grad_output,)

    def _save(self, kept: KeptForward | None) -> None:
        object.__setattr__(self, "_saved", kept)  # no change of the module

    def _kept(self) -> KeptForward:
        """What the last forward kept, if it is of use here. Raises RuntimeError and CaptureError."""
        name, found = type(self).__name__, self._saved
        if found is not None and found.captures and not self._is_of_here(found) and found.before is not None:
            found = found.before
        if self._by_functions:
            raise RuntimeError(f"{name}.backward: a model keeps nothing; take gradients with grilly.value_and_grad")
        if found is None or not found.results:
            raise RuntimeError(
                f"{name}.backward: no forward() was kept, or it gave no Tensor; call train(), then the module before "
                "each backward(). A layer that runs twice keeps the last: outside a common module each place needs a "
                "layer of its own"
            )
        if found.captures and not self._is_of_here(found):
            self._save(None)
            raise CaptureError(
                f"{name}.backward: forward() was captured, and a graph uses the memory of what it kept again; call "
                "forward() and backward() both in the captured function or both outside"
            )
        return found

    def _is_of_here(self, kept: KeptForward) -> bool:
        return kept.captures == captures(kept.results)

    def _take(self, kept: KeptForward) -> KeptForward:
        """The same, no longer kept. Raises RuntimeError where a Tensor was written to since."""
        self._save(kept.before)
        if kept.is_changed:
            raise RuntimeError(
                f"{type(self).__name__}.backward: a Tensor that forward() was given, gave or had as a weight was "
                "changed in place since, so that the gradient would be another's; change a copy, or after backward()"
            )
        return kept

    def _check_grads(self, grads: tuple[Any, ...], results: list[Tensor]) -> None:
        """Raise TypeError for what is no array, ValueError for gradients that are not of the results' shapes."""
        name = f"{type(self).__name__}.backward"
        if len(grads) != len(results):
            raise ValueError(f"{name}: {len(grads)} gradients; expected {len(results)}, one for each result")
        for grad, result in zip(grads, results, strict=True):
            if not isinstance(grad, (np.ndarray, Tensor)):
                raise no_array(name, "grad_output", grad)
            if tuple(grad.shape) != result.shape:
                raise ValueError(
                    f"{name}: grad_output has shape {tuple(grad.shape)}; expected the output's, {result.shape}"
                )
            if not is_float(dtype_of(grad.dtype)):
                raise TypeError(f"{name}: grad_output is {grad.dtype}; expected {FLOATS_TEXT}")

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
            module.training = bool(mode)
            module._save(None)
        self._keep(bool(mode))
        return self

    def _keep(self, keeps: bool) -> None:
        """Set whether this module and those in it keep what ``backward`` needs."""
        object.__setattr__(self, "_keeps", keeps and not self._by_functions)
        for module in self._modules.values():
            module._keep(self._keeps)

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


@dataclasses.dataclass(eq=False)
class _OwnBackward:
    """The operation that a module with a ``backward`` of its own is within another module's forward.

    Attributes
    ----------
    module : Module
    saved : list of (Module, KeptForward or None)
        What the modules in it have kept of this forward.
    inputs : int
        The floating arrays among its arguments.
    host : bool
        Whether it gave NumPy's arrays.
    """

    module: Module
    saved: list[tuple[Module, KeptForward | None]]
    inputs: int
    host: bool


@gradient_of(_OwnBackward)
def _by_its_own(entry: Entry, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    own, module = entry.operation, entry.operation.module
    for part, kept in own.saved:
        part._save(kept)
    whole = [full(result._storage.device, result.shape, 0.0, result.dtype) if one is None else one
             for result, one in zip(entry.results, gradients, strict=True)]  # fmt: skip
    given = [one.numpy() if own.host else one for one in whole]
    found = module.backward(given[0] if len(given) == 1 else tuple(given))
    parts = list(found) if isinstance(found, (tuple, list)) else [found]
    if own.inputs and len(parts) < own.inputs:
        raise ValueError(f"{type(module).__name__}.backward gave {len(parts)} gradients; expected {own.inputs}, one "
                         "for each floating array that forward() is given")  # fmt: skip
    backend = entry.results[0].backend
    return [None if one is None else backend.tensor(one) for one in parts[: own.inputs]]
