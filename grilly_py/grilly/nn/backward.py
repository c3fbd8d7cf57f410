"""What modules do for gradients: forward() on a tape, and what backward() makes of it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from ..compute import Tensor
from ..compute.arrays.creation import full
from ..compute.backend import backend_of
from ..compute.device.arguments import no_array
from ..compute.device.arrays import Array
from ..compute.device.device import under_way
from ..compute.device.dtypes import FLOATS_TEXT, dtype_of, is_float
from ..compute.device.tape import OPEN, Entry, noted_on, taped
from ..compute.gradients import pulled
from ..compute.gradients.alias import aliased, constant
from ..compute.gradients.records import gradient_of
from ..compute.structures import changed_leaves, leaves, tensors
from ..errors import CaptureError
from .parts import Parts
from .tapes import INSIDE, KeepsNothing, KeptForward, captures, inside, is_input, versions


def _on_host(leaf: Any) -> Any:
    return leaf.numpy() if isinstance(leaf, Tensor) else leaf


class Differentiable(Parts):
    """What a module does for its gradients. `Module` has what it calls: ``forward``, ``backward``, ``parameters``."""

    #: The arguments of forward by which ``backward`` gives gradients, in its order; None: all floating arrays.
    _inputs: ClassVar[tuple[str, ...] | None] = None

    #: Whether gradients are taken by functions alone (``grilly.value_and_grad``): it and what is in it keep nothing.
    _by_functions: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._keeps = False
        self._saved: KeptForward | None = None

    # -- forward -------------------------------------------------------------------------------------------------------

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
        modules = (self, *(leaf for leaf in given if isinstance(leaf, Differentiable)))
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

    # -- backward ------------------------------------------------------------------------------------------------------

    def _gradients(self, grad_output: Any) -> Any:
        """What ``backward`` gives; the gradients of the parameters are added to theirs."""
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

    def _keep(self, keeps: bool) -> None:
        """Set whether this module and those in it keep what ``backward`` needs."""
        object.__setattr__(self, "_keeps", keeps and not self._by_functions)
        for module in self._modules.values():
            module._keep(self._keeps)


@dataclasses.dataclass(eq=False)
class _OwnBackward:
    """The operation that a module with a ``backward`` of its own is within another module's forward.

    Attributes
    ----------
    module : Differentiable
    saved : list of (Differentiable, KeptForward or None)
        What the modules in it have kept of this forward.
    inputs : int
        The floating arrays among its arguments.
    host : bool
        Whether it gave NumPy's arrays.
    """

    module: Differentiable
    saved: list[tuple[Differentiable, KeptForward | None]]
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
