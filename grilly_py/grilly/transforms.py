"""Gradients of functions: value_and_grad, grad, vjp, stop_gradient, checkpoint."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .compute import Compute, Tensor
from .compute.arrays.creation import full
from .compute.backend import backend_of
from .compute.device.dtypes import is_float
from .compute.device.tape import taped
from .compute.gradients import pulled
from .compute.gradients.alias import aliased, constant
from .compute.gradients.checkpoint import checkpointed
from .compute.structures import leaves, rebuilt, tensors
from .errors import GradientError
from .nn.module import Module
from .nn.tapes import captures, changed, versions


def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:  # fmt: skip
    """A function that gives a function's value and its gradients.

    Parameters
    ----------
    function : callable
        Gives a Tensor of one element, such as a loss; with ``has_aux`` a tuple of that and anything else.
    argnums : int or sequence of int
        The arguments by which gradients are taken: Tensors, NumPy arrays, floats, modules, and tuples, lists and dicts
        of these.
    has_aux : bool

    Returns
    -------
    callable
        Takes what ``function`` takes, and gives ``(value, gradients)``. NumPy arrays among the arguments become Tensors
        before the function is called. The gradients have the structure of the argument, or are a tuple of such where
        ``argnums`` is a sequence. In place of a module stands a dict: by the names of its state dict the gradients of
        the parameters whose ``requires_grad`` is true. All are Tensors, of the dtypes of what they are gradients of,
        and zeros where the value does not depend on it; nothing is waited for.

    Raises
    ------
    TypeError
        For an argument of another kind, and a value that is no floating Tensor. By the function that is returned.
    ValueError
        For an argument number that there is not, and a value of several elements.
    GradientError
        For an operation without a gradient, and a Tensor that the gradients depend on and that is written to in place.

    Examples
    --------
    >>> loss, gradient = grilly.value_and_grad(lambda x: grilly.sum(x * x))(np.float32([1, 2]))
    >>> gradient.numpy()
    array([2., 4.], dtype=float32)
    """
    several = not isinstance(argnums, int)
    numbers = tuple(argnums) if isinstance(argnums, Sequence) else (argnums,)

    @functools.wraps(function)
    def transformed(*arguments: Any, **named: Any) -> tuple[Any, Any]:
        own = _Arguments("value_and_grad", arguments, named, numbers)
        with taped(own.wanted) as tape:
            found = function(*own.arguments, **own.named)
        value, *rest = found if has_aux else (found,)
        _check_value(value)
        gradients = pulled(tape.entries, [value], [_ones(value)], own.wanted)
        parts = own.shaped(gradients)
        return (value, *rest) if has_aux else value, tuple(parts) if several else parts[0]

    return transformed


def grad(function: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """As ``value_and_grad``, without the value."""
    both = value_and_grad(function, argnums)

    @functools.wraps(function)
    def transformed(*arguments: Any, **named: Any) -> Any:
        return both(*arguments, **named)[1]

    return transformed


def vjp(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Callable[[Any], tuple]]:
    """What a function gives of arguments, and a function from a cotangent to gradients.

    Parameters
    ----------
    function : callable
        Gives a Tensor, or a tuple, list or dict of them.
    *arguments
        As the arguments by which ``value_and_grad`` takes gradients.

    Returns
    -------
    (results, pull)
        ``pull(cotangent)`` takes a Tensor or array for each result, in the results' structure, and gives a tuple with
        the gradients for each argument. It may be called several times; what it needs is kept as long as it is.

    Raises
    ------
    TypeError, ValueError, GradientError
        As ``value_and_grad``; of ``pull`` for a cotangent of another structure, shape or kind, and where a Tensor that
        the gradients depend on was written to in place since.
    """
    own = _Arguments("vjp", arguments, {}, range(len(arguments)))
    with taped(own.wanted) as tape:
        found = function(*own.arguments)
    results = tensors(found)
    if not results or len(results) != sum(1 for _ in leaves(found)):
        raise TypeError("vjp: the function gives what is no Tensor; expected Tensors, or tuples, lists, dicts of them")
    entries = list(tape.entries)
    read, capture = versions(entries), captures(results)

    def pull(cotangent: Any) -> tuple:
        given = [leaf for _, leaf in leaves(cotangent)]
        if len(given) != len(results):
            raise ValueError(f"pull: {len(given)} cotangents; expected {len(results)}, one for each result")
        replayed = capture and captures(results) != capture  # its replays write what gradients are of then
        if not replayed and changed(read):
            raise GradientError(
                "pull: a tensor that the gradients depend on was written to in place since vjp; call vjp again, or "
                "compute a new tensor: x = x + y"
            )
        backend = results[0].backend
        own_tensors = [_cotangent(backend, one, result) for one, result in zip(given, results, strict=True)]
        return tuple(own.shaped(pulled(entries, results, own_tensors, own.wanted, keep=True)))

    return found, pull


def _cotangent(backend: Compute, given: Any, result: Tensor) -> Tensor:
    if not isinstance(given, (Tensor, np.ndarray, np.generic)):
        raise TypeError(f"pull: a cotangent is a {type(given).__name__}; expected a Tensor or an array")
    if tuple(given.shape) != result.shape:
        raise ValueError(f"pull: a cotangent has shape {tuple(given.shape)}; expected the result's, {result.shape}")
    return backend.tensor(given)


def stop_gradient(x: Any) -> Any:
    """The same values, as constants: nothing is differentiated through them.

    Parameters
    ----------
    x : Tensor, or tuple, list or dict of them
        Other leaves stay as they are.

    Returns
    -------
    The same structure; Tensors over the same memory.
    """
    return rebuilt(x, lambda leaf: constant(leaf) if isinstance(leaf, Tensor) else leaf)


def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that keeps nothing of its inside for gradients, but computes it again when they are asked for.

    So activations take less memory, for the time of one more forward. What is drawn inside, as by dropout, is drawn
    alike again.

    Parameters
    ----------
    function : callable
        Also a module. It gives Tensors, or tuples, lists and dicts of them, and does the same when it is called again.

    Returns
    -------
    callable
        With the same arguments and results.
    """

    def wrapped(*arguments: Any, **named: Any) -> Any:
        return checkpointed(function, arguments, named)

    return wrapped


class _Arguments:
    """The arguments of a function whose gradients are taken.

    Attributes
    ----------
    arguments : tuple
    named : dict
        What the function is called with.
    wanted : list of Tensor
        By which gradients are taken.
    """

    def __init__(self, name: str, arguments: tuple, named: dict[str, Any], numbers: Sequence[int]):
        places = {number + len(arguments) if number < 0 else number for number in numbers}
        if len(places) < len(numbers) or not places <= set(range(len(arguments))):
            raise ValueError(f"{name}: argnums is {tuple(numbers)}; the function is given {len(arguments)} arguments")
        self._name = name
        self._backend = _backend(name, (*arguments, *named.values()))
        self._numbers = [number + len(arguments) if number < 0 else number for number in numbers]
        self.wanted: list[Tensor] = []
        self._modules: dict[int, dict[str, int]] = {}
        self.arguments = tuple(
            self._taken(argument, f"argument {place}") if place in places else rebuilt(argument, self._sent)
            for place, argument in enumerate(arguments)
        )
        self.named = {key: rebuilt(value, self._sent) for key, value in named.items()}

    def _sent(self, leaf: Any) -> Any:
        return self._backend.tensor(leaf) if isinstance(leaf, np.ndarray) else leaf

    def _taken(self, argument: Any, where: str) -> Any:
        """An argument with what gradients are taken by."""
        return rebuilt(argument, lambda leaf: self._leaf(leaf, where))

    def _leaf(self, leaf: Any, where: str) -> Any:
        if isinstance(leaf, Module):
            names = self._modules[id(leaf)] = {}
            for name, parameter in leaf.named_parameters():
                if parameter.requires_grad:
                    names[name] = len(self.wanted)
                    self.wanted.append(parameter.on(self._backend))
            return leaf
        if isinstance(leaf, float):
            leaf = np.float32(leaf)
        if not isinstance(leaf, (Tensor, np.ndarray, np.generic)):
            raise TypeError(f"{self._name}: {where} is or has a {type(leaf).__name__}; gradients are taken by arrays, "
                            "floats and modules")  # fmt: skip
        if not is_float(leaf.dtype):
            raise TypeError(f"{self._name}: {where} is or has an array of {leaf.dtype}; expected a floating one")
        self.wanted.append(aliased(self._backend.tensor(leaf)))
        return self.wanted[-1]

    def shaped(self, gradients: Sequence[Tensor | None]) -> list[Any]:
        """Gradients of ``wanted`` in the structure of the arguments that they are of, in the order of the numbers."""
        whole = [_zeros(tensor) if gradient is None else gradient
                 for tensor, gradient in zip(self.wanted, gradients, strict=True)]  # fmt: skip
        place = {id(tensor): number for number, tensor in enumerate(self.wanted)}

        def of(leaf: Any) -> Any:
            if isinstance(leaf, Module):
                return {name: whole[number] for name, number in self._modules[id(leaf)].items()}
            return whole[place[id(leaf)]]

        return [rebuilt(self.arguments[number], of) for number in self._numbers]


def _backend(name: str, values: tuple) -> Compute:
    """The backend of arguments: of their Tensors, or else of a module, or the default one."""
    found = [leaf for _, leaf in leaves(values)]
    if not any(isinstance(leaf, Tensor) for leaf in found):
        for leaf in found:
            chosen = leaf._chosen_backend() if isinstance(leaf, Module) else None
            if chosen is not None:
                return chosen
    return backend_of(name, *found)


def _check_value(value: Any) -> None:
    if not isinstance(value, Tensor) or not is_float(value.dtype):
        kind = f"a Tensor of {value.dtype}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise TypeError(f"value_and_grad: the function gives {kind}; expected a floating Tensor, computed of Tensors")
    if value.size != 1:
        raise ValueError(f"value_and_grad: the function gives a Tensor of shape {value.shape}; expected one element, "
                         "as its mean() or sum()")  # fmt: skip


def _ones(tensor: Tensor) -> Tensor:
    return full(tensor._storage.device, tensor.shape, 1.0, tensor.dtype)


def _zeros(tensor: Tensor) -> Tensor:
    return full(tensor._storage.device, tensor.shape, 0.0, tensor.dtype)


__all__ = ["checkpoint", "grad", "stop_gradient", "value_and_grad", "vjp"]
