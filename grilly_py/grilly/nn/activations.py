"""Activations as layers."""

from __future__ import annotations

from .. import functional as F
from ..compute import Tensor
from ..compute.arrays.activations import gelu_of
from ..compute.device.arrays import FloatArray
from ..compute.device.numbers import integer
from ..functional.from_records import numbers_of
from ..functional.gelu_activation import Approximate
from .unary import Unary


class _Activation(Unary):
    """An activation takes what its function takes, NumPy's scalars among it."""

    #: The name of its function, that of the class in lower case; and those of its attributes that the function takes.
    _name = ""
    _settings: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not cls._name:
            cls._name = cls.__name__.lower()

    def _checked(self, **numbers: float) -> tuple[float, ...]:
        """The numbers that the function takes. Raises as it does."""
        self._settings = tuple(numbers)
        return tuple(numbers_of(type(self).__name__, self._name, numbers).values())

    def _check(self, input: FloatArray) -> None:
        pass

    def _run(self, x: Tensor) -> Tensor:
        settings = {name: getattr(self, name) for name in self._settings}
        return getattr(F, self._name)(x, **settings)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self._settings)


class GELU(_Activation):
    """``grilly.functional.gelu`` as a layer.

    Parameters
    ----------
    approximate : str
        "none", or "tanh" for the approximation by the hyperbolic tangent.

    Raises
    ------
    ValueError
        For another ``approximate``.
    """

    _settings = ("approximate",)

    def __init__(self, approximate: Approximate = "none") -> None:
        super().__init__()
        gelu_of("GELU", approximate)
        self.approximate: Approximate = approximate


class CELU(_Activation):
    """``grilly.functional.celu`` as a layer."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        (self.alpha,) = self._checked(alpha=alpha)


class ELU(_Activation):
    """``grilly.functional.elu`` as a layer."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        (self.alpha,) = self._checked(alpha=alpha)


class Hardshrink(_Activation):
    """``grilly.functional.hardshrink`` as a layer."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        (self.lambd,) = self._checked(lambd=lambd)


class Hardsigmoid(_Activation):
    """``grilly.functional.hardsigmoid`` as a layer."""


class Hardswish(_Activation):
    """``grilly.functional.hardswish`` as a layer."""


class Hardtanh(_Activation):
    """``grilly.functional.hardtanh`` as a layer."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        super().__init__()
        self.min_val, self.max_val = self._checked(min_val=min_val, max_val=max_val)


class LeakyReLU(_Activation):
    """``grilly.functional.leaky_relu`` as a layer."""

    _name = "leaky_relu"

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        (self.negative_slope,) = self._checked(negative_slope=negative_slope)


class LogSigmoid(_Activation):
    """``grilly.functional.logsigmoid`` as a layer."""


class Mish(_Activation):
    """``grilly.functional.mish`` as a layer."""


class ReLU(_Activation):
    """``grilly.functional.relu`` as a layer."""


class ReLU6(_Activation):
    """``grilly.functional.relu6`` as a layer."""


class SELU(_Activation):
    """``grilly.functional.selu`` as a layer."""


class SiLU(_Activation):
    """``grilly.functional.silu`` as a layer."""


class Sigmoid(_Activation):
    """``grilly.functional.sigmoid`` as a layer."""


class Softplus(_Activation):
    """``grilly.functional.softplus`` as a layer."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = self._checked(beta=beta, threshold=threshold)


class Softshrink(_Activation):
    """``grilly.functional.softshrink`` as a layer."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        (self.lambd,) = self._checked(lambd=lambd)


class Softsign(_Activation):
    """``grilly.functional.softsign`` as a layer."""


class Tanh(_Activation):
    """``grilly.functional.tanh`` as a layer."""


class Tanhshrink(_Activation):
    """``grilly.functional.tanhshrink`` as a layer."""


class GLU(_Activation):
    """``grilly.functional.glu`` as a layer: half of the input, times the sigmoid of the other half.

    Parameters
    ----------
    dim : int
        The axis that is halved.
    """

    _settings = ("dim",)

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = integer("GLU", "dim", dim)
