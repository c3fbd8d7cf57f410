"""Rules, groups of parameters, and what a rule makes a step of."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from .. import array_api as xp
from ..compute import Compute, Tensor
from ..compute.arrays.functions import ElementwiseFunction, elementwise
from .checks import check_number
from .flat import Layout
from .schedules import Schedule

FLOAT32 = np.dtype(np.float32)
#: Parameters whose names a pattern is like, one of several is like, or of which a function says so.
Names: TypeAlias = "str | Sequence[str] | Callable[[str], bool]"


class Rule:
    """What an optimizer does with arrays of a group.

    Attributes
    ----------
    slots : tuple of str
        Names of what it keeps of each parameter: float32, of the parameter's shape.
    told : int
        How many numbers the kernels of a step read.
    """

    slots: tuple[str, ...] = ()
    told: int = 1

    def values(self, rate: Any, step: Any) -> list[Any]:
        """These numbers, of the learning rate and the steps that were done; all of them scalars of a function."""
        return [rate]

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether parameters of the shape may be in a group of this rule."""
        return True

    def new_state(self, backend: Compute, layout: Layout) -> dict[str, Tensor]:
        """What is kept between steps, for arrays of a layout."""
        return {slot: layout.new(backend, FLOAT32) for slot in self.slots}

    def named_state(self, layout: Layout, state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The parts of what is kept, as a state dict calls them."""
        for slot in self.slots:
            for name, view in layout.views(state[slot]).items():
                yield f"{slot}.{name}", view

    def change(self, given: Given) -> Callable[[], tuple[Tensor, ...]]:
        """Compute a step as far as that writes to nothing there was; the function returned puts the rest in place.

        It returns the arrays that are new, the parameters first.
        """
        raise NotImplementedError


class Group:
    """Parameters that are updated alike."""

    def __init__(self, rule: Rule, rate: float | Schedule, names: Names | None = None):
        self.rule, self.names = rule, names
        self.schedule = rate if callable(rate) else None
        self.rate = 1.0 if callable(rate) else check_number("optimizer", "lr", rate, least=0.0)

    def has(self, name: str) -> bool:
        """Whether the group is of parameters with the name."""
        if self.names is None or callable(self.names):
            return self.names is None or bool(self.names(name))
        patterns = (self.names,) if isinstance(self.names, str) else self.names
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


class Bucket:
    """Some parameters of one group and dtype, in flat arrays.

    Attributes
    ----------
    weights : Tensor or None
        The parameters of a module.
    master : Tensor or None
        Of parameters of 16 bits: float32.
    state : dict of str to Tensor
        What the rule keeps.
    given : dict of str to Tensor
        The parameters as they were put or given last.
    """

    def __init__(self, layout: Layout, group: int, rule: Rule, backend: Compute, owns: bool):
        self.layout, self.group, self.rule = layout, group, rule
        self.weights = layout.new(backend, layout.dtype) if owns else None
        self.master = None if layout.dtype == FLOAT32 else layout.new(backend, FLOAT32)
        self.state = rule.new_state(backend, layout)
        self.given: dict[str, Tensor] = {}

    def named_state(self) -> Iterator[tuple[str, Tensor]]:
        """All that stays between steps but the parameters, by its names in a state dict."""
        yield from self.rule.named_state(self.layout, self.state)
        if self.master is not None:
            for name, view in self.layout.views(self.master).items():
                yield f"master.{name}", view


@dataclasses.dataclass
class Given:
    """What a rule makes a step of.

    Attributes
    ----------
    bucket : Bucket
    weights : Tensor
        Flat, float32: what is updated.
    gradient : Tensor
        Flat, of any floating dtype.
    values : list of Tensor
        One element each.
    scaled : bool
        Whether the last of the values is what the gradient is to be multiplied with; NaN where nothing may change.
    into : bool
        Whether the parameters are replaced; else they are new.
    """

    bucket: Bucket
    weights: Tensor
    gradient: Tensor
    values: list[Tensor]
    scaled: bool
    into: bool

    @property
    def narrow(self) -> np.dtype | None:
        """The parameters' dtype where that is not float32."""
        return None if self.bucket.master is None else self.bucket.layout.dtype

    def put(self, kernel: ElementwiseFunction, *arguments: Any) -> tuple[Tensor, ...]:
        """Run a kernel whose results are the weights, what the rule's slots are, and the parameters of 16 bits."""
        bucket = self.bucket
        weights = self.weights if self.into or bucket.master is not None else None
        results = [weights, *(bucket.state[slot] for slot in bucket.rule.slots)]
        if bucket.master is not None:
            results.append(bucket.weights if self.into else None)
        if all(result is None for result in results):
            found = kernel(*arguments)
            return found if isinstance(found, tuple) else (found,)
        return kernel.into(results, *arguments)


@functools.lru_cache(maxsize=256)
def kernel_of(rule: Callable[..., tuple[Any, ...]], arrays: int, values: int, narrow: np.dtype | None, scaled: bool,
              ready: bool = False, **flags: Any) -> ElementwiseFunction:  # fmt: skip
    """The kernel of a rule: of weights, a gradient, further arrays, values and numbers.

    ``rule(weight, gradient, arrays, values, numbers, **flags)`` gives the new weight and what the first arrays become.
    ``ready``: the gradient is not to be multiplied with the factor.
    """

    def step(weight: Any, gradient: Any, *rest: Any) -> tuple[Any, ...]:
        held, told, numbers = rest[:arrays], rest[arrays : arrays + values], rest[arrays + values + scaled :]
        gradient = gradient.astype("float32")
        if scaled:
            factor = rest[arrays + values]
            gradient = gradient if ready else gradient * factor
        found = rule(weight, gradient, held, told, numbers, **flags)
        if scaled:
            skips = xp.isnan(factor)
            found = tuple(xp.where(skips, old, new) for old, new in zip((weight, *held), found, strict=False))
        return found if narrow is None else (*found, found[0].astype(narrow))

    return elementwise(step)


__all__ = ["FLOAT32", "Bucket", "Given", "Group", "Names", "Rule", "kernel_of"]
