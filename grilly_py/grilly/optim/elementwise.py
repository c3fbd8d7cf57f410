"""SGD, Adam, AdamW and Lion: rules that take each number of a parameter by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import array_api as xp
from ..compute import Tensor
from ..compute.expressions import native
from .checks import check_number
from .optimizer import Optimizer
from .rule import Given, Group, Rule, kernel_of
from .schedules import Schedule
from .steps import LossScale

Groups = Sequence[Mapping[str, Any]]


def grouped(
    owner: str, make: Callable[..., Rule], rate: float | Schedule, groups: Groups, options: dict[str, Any]
) -> list[Group]:
    """The groups that a user named, and last that of all other parameters.

    Raises TypeError for what is no group, and for options that the optimizer lacks.
    """
    found = []
    for number, given in enumerate(groups):
        if not isinstance(given, Mapping) or "params" not in given:
            raise TypeError(f"{owner}: group {number} is {given!r}; expected a dict with 'params', and options")
        own = {name: value for name, value in given.items() if name not in ("params", "lr")}
        unknown = own.keys() - options.keys()
        if unknown:
            raise TypeError(f"{owner}: group {number} has {sorted(unknown)}; the options are {sorted(options)}")
        found.append(Group(make(owner, **(options | own)), given.get("lr", rate), given["params"]))
    return [*found, Group(make(owner, **options), rate)]


def betas_of(owner: str, betas: Any) -> tuple[float, float]:
    """Two numbers from 0 to below 1."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise TypeError(f"{owner}: betas is {betas!r}; expected two numbers")
    first, second = (check_number(owner, "betas", beta, least=0.0, below=1.0) for beta in betas)
    return first, second


class ElementwiseRule(Rule):
    """A rule whose step is one kernel.

    Attributes
    ----------
    numbers : tuple of float
        Told to the kernel.
    flags : dict
        What makes it another kernel.
    """

    numbers: tuple[float, ...] = ()
    flags: dict[str, Any] = {}

    @staticmethod
    def rule(weight: Any, gradient: Any, held: Any, told: Any, numbers: Any, **flags: Any) -> tuple[Any, ...]:
        """The new weight and what is held; see ``kernel_of``."""
        raise NotImplementedError

    def change(self, given: Given) -> Callable[[], tuple[Tensor, ...]]:
        """One dispatch."""
        count = len(given.values) - given.scaled
        kernel = kernel_of(self.rule, len(self.slots), count, given.narrow, given.scaled, **self.flags)
        held = [given.bucket.state[slot] for slot in self.slots]
        return lambda: given.put(kernel, given.weights, given.gradient, *held, *given.values, *self.numbers)


class _Momentum(ElementwiseRule):
    def __init__(self, owner: str, momentum: float, dampening: float, nesterov: bool, weight_decay: float):
        momentum = check_number(owner, "momentum", momentum, least=0.0)
        self._dampening = check_number(owner, "dampening", dampening)
        decay = check_number(owner, "weight_decay", weight_decay, least=0.0)
        if nesterov and (momentum == 0 or dampening != 0):
            raise ValueError(f"{owner}: nesterov takes a momentum above 0, and no dampening")
        self.slots = ("momentum_buffer",) if momentum else ()
        self.flags = {"nesterov": bool(nesterov), "decays": decay != 0, "dampens": dampening != 0 and momentum != 0}
        self.numbers = (decay, momentum)
        self.told = 1 + self.flags["dampens"]

    def values(self, rate: Any, step: Any) -> list[Any]:
        # The buffer begins as the gradient.
        return [rate, xp.where(step == 0, 1.0, 1.0 - self._dampening)] if self.flags["dampens"] else [rate]

    @staticmethod
    def rule(weight: Any, gradient: Any, held: Any, told: Any, numbers: Any, **flags: Any) -> tuple[Any, ...]:
        decay, momentum = numbers
        if flags["decays"]:
            gradient = gradient + decay * weight
        if not held:
            return (weight - told[0] * gradient,)
        buffer = momentum * held[0] + (gradient * told[1] if flags["dampens"] else gradient)
        return weight - told[0] * (gradient + momentum * buffer if flags["nesterov"] else buffer), buffer


class _Adam(ElementwiseRule):
    slots = ("exp_avg", "exp_avg_sq")
    told = 3

    def __init__(self, owner: str, betas: Any, eps: float, weight_decay: float, decoupled: bool):
        self._betas = betas_of(owner, betas)
        eps = check_number(owner, "eps", eps, least=0.0)
        decay = check_number(owner, "weight_decay", weight_decay, least=0.0)
        new = self._betas[0] <= 0.5  # the mean is nearer to the gradient, from which it is found with less rounding
        self.flags = {"decays": decay != 0, "decoupled": decoupled, "new": new}
        part = self._betas[0] if new else 1 - self._betas[0]
        self.numbers = (part, self._betas[1], 1 - self._betas[1], eps, decay)

    def values(self, rate: Any, step: Any) -> list[Any]:
        # 1 - beta^t, with the logarithm as precise as Python has it: float32 has no 0.999.
        first, second = (
            -xp.expm1((step + 1) * (math.log(beta) if beta else -math.inf)) for beta in self._betas
        )  # fmt: skip
        return [rate, rate / first, 1 / xp.sqrt(second)]

    @staticmethod
    def rule(weight: Any, gradient: Any, held: Any, told: Any, numbers: Any, **flags: Any) -> tuple[Any, ...]:
        rate, size, correction = told
        part, keeps, gains, eps, decay = numbers
        if flags["decays"]:
            if flags["decoupled"]:
                weight = weight * (1 - rate * decay)
            else:
                gradient = gradient + decay * weight
        mean = gradient - part * (gradient - held[0]) if flags["new"] else held[0] + part * (gradient - held[0])
        square = held[1] * keeps + gains * gradient * gradient
        root = native.root(square) * correction + eps
        return weight - size * native.divided(mean, root), mean, square


class _Lion(ElementwiseRule):
    slots = ("exp_avg",)

    def __init__(self, owner: str, betas: Any, weight_decay: float):
        first, second = betas_of(owner, betas)
        decay = check_number(owner, "weight_decay", weight_decay, least=0.0)
        self.flags = {"decays": decay != 0}
        self.numbers = (first, 1 - first, second, 1 - second, decay)

    @staticmethod
    def rule(weight: Any, gradient: Any, held: Any, told: Any, numbers: Any, **flags: Any) -> tuple[Any, ...]:
        (rate,), (mean,) = told, held
        first, gain, second, gains, decay = numbers
        if flags["decays"]:
            weight = weight * (1 - rate * decay)
        return weight - rate * xp.sign(first * mean + gain * gradient), second * mean + gains * gradient


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum, Nesterov's too, as ``torch.optim.SGD``.

    Parameters
    ----------
    lr : float or callable
        The learning rate, or a schedule.
    momentum, dampening, weight_decay : float
        The decay is added to the gradient.
    nesterov : bool
    max_grad_norm : float, optional
        Gradients whose norm, of all together, is larger are scaled down to it.
    loss_scale : LossScale, optional
        Of a loss that goes through ``scale``.
    groups : sequence of dict
        Parameters that differ: "params", a pattern such as ``"*.bias"``, several, or a function of the name; and
        options in place of the optimizer's, "lr" among them. A parameter is the first group's that has it.

    Raises
    ------
    TypeError, ValueError
        For what is no number or out of bounds, and for options that there are not.
    """

    def __init__(
        self, lr: float | Schedule, momentum: float = 0.0, *, dampening: float = 0.0, nesterov: bool = False,
        weight_decay: float = 0.0, max_grad_norm: float | None = None, loss_scale: LossScale | None = None,
        groups: Groups = (),
    ):  # fmt: skip
        options = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(grouped("SGD", _Momentum, lr, groups, options), max_grad_norm, loss_scale)


class Adam(Optimizer):
    """Adam (https://arxiv.org/abs/1412.6980), as ``torch.optim.Adam``: weight decay is added to the gradient.

    Parameters
    ----------
    betas : tuple of float
        How much of the running means of gradients, and of their squares, a step keeps.
    eps, weight_decay : float
    lr, max_grad_norm, loss_scale, groups
        As of ``SGD``, and so are the errors.
    """

    def __init__(
        self, lr: float | Schedule = 1e-3, betas: tuple[float, float] = (0.9, 0.999), *, eps: float = 1e-8,
        weight_decay: float = 0.0, max_grad_norm: float | None = None, loss_scale: LossScale | None = None,
        groups: Groups = (),
    ):  # fmt: skip
        options = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(grouped("Adam", coupled, lr, groups, options), max_grad_norm, loss_scale)


class AdamW(Optimizer):
    """Adam with weight decay of its own (https://arxiv.org/abs/1711.05101), as ``torch.optim.AdamW``.

    Parameters
    ----------
    betas : tuple of float
        How much of the running means of gradients, and of their squares, a step keeps.
    eps, weight_decay : float
        Parameters are multiplied with ``1 - lr * weight_decay``.
    lr, max_grad_norm, loss_scale, groups
        As of ``SGD``, and so are the errors.
    """

    def __init__(
        self, lr: float | Schedule = 1e-3, betas: tuple[float, float] = (0.9, 0.999), *, eps: float = 1e-8,
        weight_decay: float = 0.01, max_grad_norm: float | None = None, loss_scale: LossScale | None = None,
        groups: Groups = (),
    ):  # fmt: skip
        options = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(grouped("AdamW", decoupled, lr, groups, options), max_grad_norm, loss_scale)


class Lion(Optimizer):
    """Lion (https://arxiv.org/abs/2302.06675): the sign of a running mean, and one array of state.

    Parameters
    ----------
    betas : tuple of float
        How much of the running mean there is in what the sign is taken of, and how much a step keeps.
    weight_decay : float
        Parameters are multiplied with ``1 - lr * weight_decay``.
    lr, max_grad_norm, loss_scale, groups
        As of ``SGD``, and so are the errors.
    """

    def __init__(
        self, lr: float | Schedule = 1e-4, betas: tuple[float, float] = (0.9, 0.99), *, weight_decay: float = 0.0,
        max_grad_norm: float | None = None, loss_scale: LossScale | None = None, groups: Groups = (),
    ):  # fmt: skip
        options = {"betas": betas, "weight_decay": weight_decay}
        super().__init__(grouped("Lion", _Lion, lr, groups, options), max_grad_norm, loss_scale)


def coupled(owner: str, **options: Any) -> Rule:
    """Adam's rule."""
    return _Adam(owner, decoupled=False, **options)


def decoupled(owner: str, **options: Any) -> Rule:
    """AdamW's rule."""
    return _Adam(owner, decoupled=True, **options)


__all__ = ["SGD", "Adam", "AdamW", "Groups", "Lion", "coupled", "decoupled", "grouped"]
