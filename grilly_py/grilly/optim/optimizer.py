"""Optimizer: parameters in flat arrays, what stays between steps, and one step of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np

from ..compute import Compute, Tensor
from ..compute.backend import backend_of
from ..compute.device.arrays import NDArray
from ..compute.device.together import together
from ..errors import CaptureError, ExpressionError
from ..nn.module import Module
from ..nn.parameter import Parameter
from .checks import check_number
from .clipping import square_of
from .flat import Layout
from .parameters import array_of, floats_of, parameters_of, unique_names
from .rule import FLOAT32, Bucket, Given, Group
from .steps import NUMBERS, LossScale, counter, step_numbers


class Optimizer:
    """What updates parameters by their gradients: the base of ``grilly.optim``'s optimizers.

    The parameters of a group and dtype, and what is kept of them, lie in flat arrays on the device, of which the
    module's parameters become views: a step is some dispatches, however many parameters there are. The learning rate
    and the number of steps are on the device too, so that a captured step is replayed as it is.

    A step that raises, an interrupt among the causes, leaves parameters and state as they were: what it writes to is
    recorded at once, when all else has been computed. (With kompute, which runs each dispatch by itself, an error
    between two leaves the first done.)
    """

    def __init__(self, groups: Sequence[Group], max_grad_norm: float | None, loss_scale: LossScale | None):
        name = type(self).__name__
        if max_grad_norm is not None:
            max_grad_norm = check_number(name, "max_grad_norm", max_grad_norm, least=0.0, above=True)
        if loss_scale is not None and not isinstance(loss_scale, LossScale):
            raise TypeError(f"{name}: loss_scale is a {type(loss_scale).__name__}; expected a grilly.optim.LossScale")
        self._groups, self._limit, self._loss_scale = list(groups), max_grad_norm, loss_scale
        self._buckets: list[Bucket] = []
        self._backend: Compute | None = None
        self._numbers = [step_numbers(group, max_grad_norm, loss_scale is not None) for group in self._groups]
        self._count = counter(loss_scale, self._measures)

    @property
    def _measures(self) -> bool:
        """Whether the gradients' norm is needed."""
        return self._limit is not None or self._loss_scale is not None

    # -- what there is to update -----------------------------------------------------------------------------------

    def init(self, model: Module | Mapping[str, Any], names: Sequence[str] | None = None) -> None:
        """Make what is kept between steps, and lay the parameters side by side; the first ``update`` does it otherwise.

        Parameters
        ----------
        model : grilly.nn.Module or mapping of str to array
        names : sequence of str, optional
            Of the parameters that are updated; all by default, and in the first ``update`` those that have gradients.

        Raises
        ------
        ValueError
            For names that there are not, and parameters that the optimizer does not take.
        TypeError
            For a quantized parameter.
        CaptureError
            In a captured function.
        """
        owner = type(self).__name__
        params = parameters_of(owner, model)
        names = list(unique_names(params)) if names is None else list(names)
        arrays = {name: array_of(owner, params, name) for name in names}
        if not arrays:
            raise ValueError(f"{owner}: there are no parameters")
        shared = [name for name in names if name not in set(unique_names({name: params[name] for name in names}))]
        if shared:
            raise ValueError(f"{owner}: {shared} are parameters that come under another name too; give each one name")
        if isinstance(model, Module) and model._backend is not None:
            backend = model._backend
        else:
            backend = backend_of(owner, *arrays.values())
        self._start(backend)
        sorts: dict[tuple[int, str], dict[str, tuple[int, ...]]] = {}
        for name, array in arrays.items():
            shape = tuple(array.shape)
            fitting = (n for n, group in enumerate(self._groups) if group.has(name) and group.rule.takes(shape))
            number = next(fitting, None)
            if number is None:
                raise ValueError(f"{owner}: {name} of shape {shape} is no parameter for it, nor for one of its groups")
            sorts.setdefault((number, np.dtype(array.dtype).name), {})[name] = tuple(array.shape)
        most = backend.opened.facts.storage_range // 4
        buckets = []
        for (number, _), shapes in sorts.items():
            dtype = np.dtype(arrays[next(iter(shapes))].dtype)
            for layout in Layout.several(shapes, dtype, most):
                rule = self._groups[number].rule
                buckets.append(Bucket(layout, number, rule, backend, isinstance(model, Module)))
        for bucket in buckets:
            self._adopt(bucket, params)
        backend.runtime.flush()
        self._buckets = buckets

    def _start(self, backend: Compute) -> None:
        """Make what counts steps."""
        if self._backend is not None and not self._backend._closed:
            if backend is not self._backend:
                raise ValueError(f"{type(self).__name__}: the arrays are on another backend than the optimizer's state")
            return
        if backend.runtime.capturing:
            raise CaptureError(f"{type(self).__name__}: call init(model) before the capture: what it makes is to stay")
        self._rates = backend.tensor(np.array([group.rate for group in self._groups], np.float32))
        self._places = backend.tensor(np.arange(NUMBERS, dtype=np.int32))
        self._done, self._left_out, self._good = (backend.tensor(np.zeros(1, np.int32)) for _ in range(3))
        self._scale = backend.tensor(np.array([self._loss_scale.initial if self._loss_scale else 1.0], np.float32))
        self._backend = backend

    def _adopt(self, bucket: Bucket, params: Mapping[str, Any]) -> None:
        """Bring parameters that are not the bucket's own to their places."""
        changed = {}
        for place in bucket.layout.places:
            own = params[place.name]
            data = own.data if isinstance(own, Parameter) else own
            if data is bucket.given.get(place.name):
                continue
            if tuple(data.shape) != place.shape or data.dtype != bucket.layout.dtype:
                raise ValueError(
                    f"{type(self).__name__}: {place.name} is {data.dtype} of shape {tuple(data.shape)}, and was "
                    f"{bucket.layout.dtype} of {place.shape}; make another optimizer for it"
                )
            changed[place.name] = data
        if not changed:
            return
        backend = self._backend
        assert backend is not None
        if backend.runtime.capturing:
            raise CaptureError(
                f"{type(self).__name__}: parameters were replaced ({', '.join(list(changed)[:3])}...); call init or "
                "update outside of the capture first"
            )
        if bucket.master is not None:
            bucket.layout.fill(bucket.master, changed, changed)
        if bucket.weights is None:
            bucket.given.update(changed)
            return
        bucket.layout.fill(bucket.weights, changed, changed)
        views = bucket.layout.views(bucket.weights)
        for name in changed:
            params[name].data = bucket.given[name] = views[name]

    # -- a step ----------------------------------------------------------------------------------------------------

    @overload
    def update(self, model: Module, grads: Mapping[str, Any]) -> None: ...
    @overload
    def update(self, model: Mapping[str, Any], grads: Mapping[str, Any]) -> dict[str, Any]: ...
    def update(self, model: Module | Mapping[str, Any], grads: Mapping[str, Any]) -> dict[str, Any] | None:
        """One step: parameters by their gradients.

        Parameters
        ----------
        model : grilly.nn.Module or mapping of str to array
            Of a module the parameters are replaced. Arrays by names stay as they are, and new ones are returned.
        grads : mapping of str to array
            Gradients by the names of the state dict, of any floating dtype, always of the same parameters. They are
            read where they lie if they lie as the parameters do, in one flat array; else they are copied.

        Returns
        -------
        dict of str to array, or None
            Where ``model`` is no module: new Tensors, and as they were given those that are not updated.

        Raises
        ------
        ValueError
            For names that are missing or too many, shapes that differ, arrays of different backends, and parameters
            that have another dtype or shape by now.
        TypeError
            For gradients that are no floating arrays, and for quantized parameters.
        CaptureError
            In a captured function before ``init``, and where parameters were replaced since.
        """
        owner = type(self).__name__
        params = parameters_of(owner, model)
        self._check(params, grads)
        if not self._buckets:
            self.init(model, list(grads))
        backend, into = self._backend, self._buckets[0].weights is not None
        assert backend is not None
        backend.check_open()
        if into != isinstance(model, Module):
            raise TypeError(f"{owner}: it was begun with {'a module' if into else 'arrays by names'}")
        gradients = [bucket.layout.gathered(backend, grads) for bucket in self._buckets]
        work = []
        values = self._step_numbers(gradients)
        for bucket, gradient in zip(self._buckets, gradients, strict=True):
            if into or bucket.master is not None:
                self._adopt(bucket, params)
            weights = bucket.weights if bucket.master is None else bucket.master
            if weights is None:
                weights = bucket.layout.gathered(backend, params, FLOAT32)
            told = values[bucket.group]
            places = [*range(bucket.rule.told), *([NUMBERS - 1] if self._measures else [])]
            numbers = [told[place : place + 1] for place in places]
            work.append(bucket.rule.change(Given(bucket, weights, gradient, numbers, self._measures, into)))
        with together(backend.opened):
            made = [each() for each in work]
            self._counted(values[0])
        if into:
            return None
        found: dict[str, Tensor] = {}
        for bucket, new in zip(self._buckets, made, strict=True):
            views = bucket.layout.views(new[0])
            bucket.given.update(views)
            found |= views
        return {name: found[name] for name in params if name in found} | {
            name: value for name, value in params.items() if name not in found
        }

    def _check(self, params: Mapping[str, Any], grads: Any) -> None:
        """Raise what is wrong with gradients."""
        owner = type(self).__name__
        if not isinstance(grads, Mapping):
            raise TypeError(f"{owner}: grads is a {type(grads).__name__}; expected names with arrays")
        known = {place.name: place for bucket in self._buckets for place in bucket.layout.places}
        missing, unknown = [n for n in known if n not in grads], [n for n in grads if known and n not in known]
        if missing or unknown:
            raise ValueError(
                f"{owner}: gradients are missing: {missing[:5]}, and unexpected: {unknown[:5]}; expected those of the "
                "parameters that init, or the first update, was given"
            )
        tensors = [grad for grad in grads.values() if isinstance(grad, Tensor)]
        if any(tensor.backend is not tensors[0].backend for tensor in tensors):
            raise ValueError(f"{owner}: the gradients belong to different backends")
        if tensors and self._backend is not None and tensors[0].backend is not self._backend:
            raise ValueError(f"{owner}: the gradients are on another backend than the optimizer's state")
        for name, grad in grads.items():
            shape = tuple(array_of(owner, params, name).shape)
            floats_of(owner, f"the gradient of {name}", grad)
            if tuple(grad.shape) != shape:
                raise ValueError(f"{owner}: the gradient of {name} has shape {tuple(grad.shape)}; expected {shape}")

    def _step_numbers(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Numbers of the step, for each group."""
        arguments = [self._places, self._done]
        if self._measures:
            squares = None
            for bucket, gradient in zip(self._buckets, gradients, strict=True):
                for part in bucket.layout.filled(gradient):
                    square = square_of(part)
                    squares = square if squares is None else squares + square
            assert squares is not None
            arguments.append(squares.reshape(1))
            if self._loss_scale is not None:
                arguments.append(self._scale)
        try:
            return [
                function(*arguments, self._rates[number : number + 1])
                for number, function in enumerate(self._numbers)
            ]  # fmt: skip
        except ExpressionError as error:
            raise ExpressionError(f"{type(self).__name__}: lr is a schedule that makes no kernel: {error}") from error

    def _counted(self, values: Tensor) -> None:
        """Count the step."""
        if self._loss_scale is not None:
            places: tuple[Tensor, ...] = self._done, self._left_out, self._good, self._scale
        else:
            places = (self._done, self._left_out) if self._measures else (self._done,)
        more = (values[NUMBERS - 1 :],) if self._measures else ()
        self._count.into(places, *places, *more)

    # -- what can be asked and set ---------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Steps that were done, without those that were left out. Waits for the device."""
        return 0 if self._backend is None else int(self._done.numpy()[0])

    @property
    def skipped(self) -> int:
        """Steps that were left out, as their gradients were not finite. Waits for the device."""
        return 0 if self._backend is None else int(self._left_out.numpy()[0])

    @property
    def loss_scale(self) -> float:
        """The factor that losses are multiplied with. Waits for the device."""
        if self._backend is None:
            return self._loss_scale.initial if self._loss_scale else 1.0
        return float(self._scale.numpy()[0])

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the factor, of whose gradients ``update`` takes it out again.

        Raises
        ------
        ValueError
            For an optimizer without ``loss_scale``.
        """
        if self._loss_scale is None:
            raise ValueError(f"{type(self).__name__}: no loss_scale was given")
        self._start(loss.backend)
        return loss * self._scale.reshape(()).astype(loss.dtype)

    @property
    def lr(self) -> float | list[float]:
        """The learning rate of the next step, of several groups one each. It can be set where it is a number.

        Raises
        ------
        TypeError
            When it is set, for an optimizer with a schedule, and for what is no number.
        ValueError
            For one that is not finite or is below 0.
        """
        rates = [group.rate for group in self._groups] if self._backend is None else self._rates.numpy().tolist()
        steps = self.steps
        found = [
            rate if group.schedule is None else float(group.schedule(steps))
            for rate, group in zip(rates, self._groups, strict=True)
        ]
        return found[0] if len(found) == 1 else found

    @lr.setter
    def lr(self, value: float | Sequence[float]) -> None:
        owner = type(self).__name__
        values = list(value) if isinstance(value, (list, tuple)) else [value] * len(self._groups)
        if len(values) != len(self._groups):
            raise ValueError(f"{owner}: {len(values)} learning rates for {len(self._groups)} groups")
        if any(group.schedule is not None for group in self._groups):
            raise TypeError(f"{owner}: the learning rate is a schedule's")
        checked = [check_number(owner, "lr", each, least=0.0) for each in values]
        for group, each in zip(self._groups, checked, strict=True):
            group.rate = each
        if self._backend is not None:
            self._rates[...] = np.array(checked, np.float32)

    # -- state -----------------------------------------------------------------------------------------------------

    def _counters(self) -> dict[str, Tensor]:
        return {
            "step": self._done, "skipped": self._left_out, "good_steps": self._good, "loss_scale": self._scale,
            "lr": self._rates,
        }  # fmt: skip

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All that stays between steps, as NumPy arrays by names: what ``safetensors.numpy.save_file`` takes.

        The parameters themselves are the module's. Waits for the device.

        Raises
        ------
        ValueError
            Before ``init`` and the first ``update``.
        """
        own = self._named_state("state_dict")
        return {name: np.array(tensor.numpy(), order="C") for name, tensor in own.items()}

    def _named_state(self, function: str) -> dict[str, Tensor]:
        if not self._buckets:
            raise ValueError(f"{type(self).__name__}.{function}: there is no state yet; call init(model) first")
        found = self._counters()
        for bucket in self._buckets:
            found.update(bucket.named_state())
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state dict, with the bits that it has; after ``init``.

        Raises
        ------
        ValueError
            Before ``init``, for names that are missing or too many, and shapes that differ: nothing has changed then.
        TypeError
            For arrays of another dtype.
        """
        owner = f"{type(self).__name__}.load_state_dict"
        own = self._named_state("load_state_dict")
        if not isinstance(state, Mapping):
            raise TypeError(f"{owner}: state is a {type(state).__name__}; expected names with arrays")
        missing, unknown = [name for name in own if name not in state], [name for name in state if name not in own]
        if missing or unknown:
            raise ValueError(f"{owner}: missing are {missing[:5]}, unexpected {unknown[:5]}")
        arrays = {name: state[name] if isinstance(state[name], Tensor) else np.asarray(state[name]) for name in own}
        for name, array in arrays.items():
            if tuple(array.shape) != own[name].shape:
                raise ValueError(f"{owner}: {name} has shape {tuple(array.shape)}; expected {own[name].shape}")
            if array.dtype != own[name].dtype:
                raise TypeError(f"{owner}: {name} is {array.dtype}; expected {own[name].dtype}")
        assert self._backend is not None
        sent = {name: self._backend.tensor(array) for name, array in arrays.items() if own[name].size}
        with together(self._backend.opened):
            for name, tensor in sent.items():
                own[name][...] = tensor


__all__ = ["Optimizer"]
