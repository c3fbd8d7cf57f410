"""Adafactor and Muon: rules of whole parameters, those of one shape together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .. import array_api as xp
from ..compute import Compute, Tensor
from ..compute.arrays.functions import elementwise, reduction
from ..compute.device.dtypes import dtype_of, is_float
from ..compute.expressions import native
from .checks import check_number
from .elementwise import Groups, grouped
from .flat import Layout
from .optimizer import Optimizer
from .rule import FLOAT32, Given, Group, Names, Rule, kernel_of
from .schedules import Schedule
from .steps import LossScale

_EPSILON = float(np.finfo(np.float32).eps)


@elementwise
def _scaled(gradient: Any, *factor: Any) -> Any:
    """A gradient in float32, times the factor where there is one."""
    gradient = gradient.astype("float32")
    return gradient * factor[0] if factor else gradient


@elementwise
def _lerp(old: Any, new: Any, part: Any) -> Any:
    return old + part * (new - old)


@elementwise
def _lerp_square(old: Any, gradient: Any, part: Any) -> Any:
    return old + part * (gradient * gradient - old)


@elementwise
def _by_rows_and_columns(gradient: Any, row: Any, column: Any, mean: Any, eps: Any) -> Any:
    square = native.divided(row * column, xp.maximum(mean, eps))
    return native.divided(gradient, native.root(xp.maximum(square, eps * eps)))


@elementwise
def _by_elements(gradient: Any, square: Any, eps: Any) -> Any:
    return native.divided(gradient, native.root(xp.maximum(square, eps * eps)))


@elementwise
def _with_size(update: Any, weights: Any, own: Any, rho: Any, least: Any, most: Any) -> Any:
    """An update times its size, of the root mean squares of weights and of itself."""
    return update * (xp.maximum(weights, least) * rho / xp.maximum(own / most, 1.0))


@elementwise
def _kept(old: Any, new: Any, *factor: Any) -> Any:
    """What becomes of a statistic: it stays where the step is left out."""
    return xp.where(xp.isnan(factor[0]), old, new) if factor else new


_mean_square = reduction(lambda x: x * x, "mean")
_root_mean_square = reduction(lambda x: x * x, "mean", finish=xp.sqrt)
_norm = reduction(lambda x: x * x, "sum", finish=xp.sqrt)


def _changed(layout: Layout, parts: Sequence[Tensor], backend: Compute) -> Tensor:
    """A flat array of stacks."""
    flat = backend.empty(layout.size, FLOAT32)
    for (_, places), part in zip(layout.stacks(), parts, strict=True):
        if part.size:
            layout.stack(flat, places)[...] = part
    return flat


def _moved(weight: Any, update: Any, held: Any, told: Any, numbers: Any, *, decays: bool) -> tuple[Any, ...]:
    (rate, *_), (decay,) = told, numbers
    return ((weight * (1 - rate * decay) if decays else weight) - update,)


class _Adafactor(Rule):
    told = 3

    def __init__(self, owner: str, beta2_decay: float, eps: Any, d: float, weight_decay: float):
        self._power = check_number(owner, "beta2_decay", beta2_decay)
        if self._power > 0:
            raise ValueError(f"{owner}: beta2_decay is {beta2_decay}; expected a number up to 0")
        if not isinstance(eps, (tuple, list)) or len(eps) != 2:
            raise TypeError(f"{owner}: eps is {eps!r}; expected two, the first a number or None")
        self._eps = _EPSILON if eps[0] is None else check_number(owner, "eps", eps[0], least=0.0)
        self._least = check_number(owner, "eps", eps[1], least=0.0)
        self._most = check_number(owner, "d", d, least=0.0, above=True)
        self._decay = check_number(owner, "weight_decay", weight_decay, least=0.0)

    def values(self, rate: Any, step: Any) -> list[Any]:
        return [rate, (step + 1) ** self._power, xp.minimum(rate, 1 / xp.sqrt(step + 1))]

    def new_state(self, backend: Compute, layout: Layout) -> dict[str, Tensor]:
        found = {}
        for number, (shape, places) in enumerate(layout.stacks()):
            rows, columns = (*shape[:-1], 1), (*shape[:-2], 1, *shape[-1:])
            extents = {"row": rows, "column": columns} if len(shape) > 1 else {"square": shape}
            for name, own in extents.items():
                found[f"{name}.{number}"] = xp.zeros((len(places), *own), device=backend)
        return found

    def named_state(self, layout: Layout, state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        for number, (_, places) in enumerate(layout.stacks()):
            for name in ("row", "column", "square"):
                if f"{name}.{number}" in state:
                    for place, own in enumerate(places):
                        yield f"{name}.{own.name}", state[f"{name}.{number}"][place]

    def change(self, given: Given) -> Callable[[], tuple[Tensor, ...]]:
        layout, state = given.bucket.layout, given.bucket.state
        factor = given.values[-1:] if given.scaled else []
        _, part, rho = given.values[:3]
        parts, kept = [], []
        for number, (shape, places) in enumerate(layout.stacks()):
            if math.prod(shape) == 0:
                parts.append(layout.stack(given.weights, places))
                continue
            gradient = _scaled(layout.stack(given.gradient, places), *factor)
            if len(shape) > 1:
                row, column = state[f"row.{number}"], state[f"column.{number}"]
                rows = _lerp(row, _mean_square(gradient, axis=-1, keepdims=True), part)
                columns = _lerp(column, _mean_square(gradient, axis=-2, keepdims=True), part)
                mean = xp.mean(rows, axis=-2, keepdims=True)
                update = _by_rows_and_columns(gradient, rows, columns, mean, self._eps)
                kept += [(row, rows), (column, columns)]
            else:
                square = state[f"square.{number}"]
                squares = _lerp_square(square, gradient, part)
                update = _by_elements(gradient, squares, self._eps)
                kept.append((square, squares))
            sizes = [
                _root_mean_square(each.reshape(len(places), -1), axis=-1).reshape(len(places), *(1,) * len(shape))
                for each in (layout.stack(given.weights, places), update)
            ]
            parts.append(_with_size(update, *sizes, rho, self._least, self._most))
        update = _changed(layout, parts, given.weights.backend)
        # The update is ready: the factor tells only whether the step is left out.
        kernel = kernel_of(_moved, 0, 1, given.narrow, given.scaled, ready=True, decays=self._decay != 0)

        def put() -> tuple[Tensor, ...]:
            for old, new in kept:
                _kept.into([old], old, new, *factor)
            return given.put(kernel, given.weights, update, given.values[0], *factor, self._decay)

        return put


#: By the names that PyTorch has: how a matrix' shape changes the learning rate.
_RATIOS: dict[str, Callable[[int, int], float]] = {
    "original": lambda rows, columns: math.sqrt(max(1, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
    "spectral_unclamped": lambda rows, columns: math.sqrt(rows / columns),
}


@elementwise
def _mixed(x: Any, y: Any, a: Any, b: Any) -> Any:
    return a * x + b * y


@elementwise
def _divided(x: Any, norm: Any, least: Any, *, narrow: Any) -> Any:
    return (x / xp.maximum(norm, least)).astype(narrow)


def _averaged(gradient: Any, buffer: Any, momentum: Any, *, nesterov: bool) -> tuple[Any, Any]:
    """The running mean, and what is made orthogonal."""
    buffer = buffer + (1 - momentum) * (gradient - buffer)
    return buffer, gradient + momentum * (buffer - gradient) if nesterov else buffer


@elementwise
def _direction(gradient: Any, buffer: Any, *rest: Any, nesterov: bool) -> Any:
    momentum, factor = rest[-1], rest[:-1]
    gradient = gradient.astype("float32")
    return _averaged(gradient * factor[0] if factor else gradient, buffer, momentum, nesterov=nesterov)[1]


def _orthogonal(weight: Any, gradient: Any, held: Any, told: Any, numbers: Any, *, decays: bool) -> tuple[Any, ...]:
    (buffer, update), (rate,), (momentum, decay) = held, told, numbers
    weight = weight * (1 - rate * decay) if decays else weight
    return weight - rate * update, _averaged(gradient, buffer, momentum, nesterov=False)[0]


class _Muon(Rule):
    slots = ("momentum_buffer",)

    def __init__(
        self, owner: str, momentum: float, nesterov: bool, weight_decay: float, ns_steps: int,
        ns_coefficients: Sequence[float], eps: float, adjust_lr: str, ns_dtype: Any,
    ):  # fmt: skip
        self._momentum = check_number(owner, "momentum", momentum, least=0.0, below=1.0)
        self._decay = check_number(owner, "weight_decay", weight_decay, least=0.0)
        self._eps = check_number(owner, "eps", eps, least=0.0)
        self._nesterov = bool(nesterov)
        if isinstance(ns_steps, bool) or not isinstance(ns_steps, int) or not 0 < ns_steps < 100:
            raise ValueError(f"{owner}: ns_steps is {ns_steps!r}; expected a number of steps from 1 to 99")
        if len(ns_coefficients) != 3:
            raise ValueError(f"{owner}: ns_coefficients are {ns_coefficients!r}; expected three numbers")
        self._coefficients = [check_number(owner, "ns_coefficients", each) for each in ns_coefficients]
        if adjust_lr not in _RATIOS:
            raise ValueError(f"{owner}: adjust_lr is {adjust_lr!r}; expected one of {', '.join(map(repr, _RATIOS))}")
        self._ratio, self._steps, self._narrow = _RATIOS[adjust_lr], ns_steps, dtype_of(ns_dtype)
        if not is_float(self._narrow):
            raise TypeError(f"{owner}: ns_dtype is {self._narrow}; expected float32, float16 or bfloat16")

    def takes(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == 2

    def change(self, given: Given) -> Callable[[], tuple[Tensor, ...]]:
        layout, (buffer,) = given.bucket.layout, (given.bucket.state[slot] for slot in self.slots)
        factor = given.values[-1:] if given.scaled else []
        direction = _direction(given.gradient, buffer, *factor, self._momentum, nesterov=self._nesterov)
        parts = [
            self._orthogonalized(layout.stack(direction, places), self._ratio(*shape))
            if math.prod(shape) else layout.stack(direction, places)
            for shape, places in layout.stacks()
        ]  # fmt: skip
        update = _changed(layout, parts, given.weights.backend)
        kernel = kernel_of(_orthogonal, 2, 1, given.narrow, given.scaled, decays=self._decay != 0)
        arguments = given.weights, given.gradient, buffer, update, *given.values, self._momentum, self._decay
        return lambda: given.put(kernel, *arguments)

    def _orthogonalized(self, x: Tensor, ratio: float) -> Tensor:
        """Matrices with their singular values brought near 1 by Newton and Schulz' iteration, times a number."""
        a, b, c = self._coefficients
        tall = x.shape[1] > x.shape[2]
        x = x.swapaxes(1, 2) if tall else x
        x = _divided(x, _norm(x, axis=(1, 2), keepdims=True), self._eps, narrow=self._narrow.name)
        for _ in range(self._steps):
            gram = xp.matmul(x, x.swapaxes(1, 2))
            gram = _mixed(gram, xp.matmul(gram, gram), b, c)
            x = _mixed(x, xp.matmul(gram, x), a, 1.0)
        x = xp.astype(x, FLOAT32) * ratio
        return x.swapaxes(1, 2) if tall else x


class Adafactor(Optimizer):
    """Adafactor (https://arxiv.org/abs/1804.04235), as ``torch.optim.Adafactor``: it keeps matrices' rows and columns.

    Parameters of one shape are updated together, each with a size of its own.

    Parameters
    ----------
    lr : float or callable
        The largest relative size of a step, or a schedule.
    beta2_decay : float
        Of the running means of squares a step takes in ``step ** beta2_decay``.
    eps : tuple
        The least root of a mean square (None: float32's epsilon), and the least size of a parameter.
    d : float
        The largest root mean square of an update.
    weight_decay : float
        Parameters are multiplied with ``1 - lr * weight_decay``.
    max_grad_norm, loss_scale, groups
        As of ``SGD``, and so are the errors.
    """

    def __init__(
        self, lr: float | Schedule = 0.01, *, beta2_decay: float = -0.8, eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0, weight_decay: float = 0.0, max_grad_norm: float | None = None,
        loss_scale: LossScale | None = None, groups: Groups = (),
    ):  # fmt: skip
        options = {"beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay}
        super().__init__(grouped("Adafactor", _Adafactor, lr, groups, options), max_grad_norm, loss_scale)


class Muon(Optimizer):
    """Muon (https://kellerjordan.github.io/posts/muon/), as ``torch.optim.Muon``: steps of matrices are orthogonal.

    Parameters
    ----------
    momentum, weight_decay : float
        Parameters are multiplied with ``1 - lr * weight_decay``.
    nesterov : bool
    ns_steps, ns_coefficients, eps, ns_dtype
        Of the iteration that makes a direction orthogonal: steps, coefficients, the least norm, and the dtype in which
        it is computed. PyTorch computes it in bfloat16, which has fewer digits than float16.
    adjust_lr : str
        How the learning rate depends on a matrix' shape: "original", "match_rms_adamw" or "spectral_unclamped".
    params : str, sequence of str or callable, optional
        The names of its parameters, as of groups; by default all with two axes.
    other : Optimizer, optional
        What updates all others: its learning rate, options and groups are taken, its state is not.
    lr, max_grad_norm, loss_scale
        As of ``SGD``, and so are the errors.
    """

    def __init__(
        self, lr: float | Schedule = 1e-3, *, momentum: float = 0.95, nesterov: bool = True, weight_decay: float = 0.1,
        ns_steps: int = 5, ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315), eps: float = 1e-7,
        ns_dtype: Any = "float16", adjust_lr: str = "original", params: Names | None = None,
        other: Optimizer | None = None, max_grad_norm: float | None = None, loss_scale: LossScale | None = None,
    ):  # fmt: skip
        if other is not None and not isinstance(other, Optimizer):
            raise TypeError(f"Muon: other is a {type(other).__name__}; expected an optimizer")
        rule = _Muon("Muon", momentum, nesterov, weight_decay, ns_steps, ns_coefficients, eps, adjust_lr, ns_dtype)
        groups = [Group(rule, lr, params), *(other._groups if other is not None else ())]
        super().__init__(groups, max_grad_norm, loss_scale)


__all__ = ["Adafactor", "Muon"]
