"""An expression behind a product or a convolution, in the same dispatch: shaders/include/finish.glsl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...errors import UnsupportedError
from ...registry import Choice, Registry
from ...registry.shared import names_of
from ..device.plan import At
from ..device.tensor import Tensor, contiguous_strides, reshaped
from ..expressions.body import VERSION
from ..expressions.cutting import Most, has_calls
from ..expressions.elements import width_of
from ..expressions.expression import Expression, Filling, Hole

_FORMS = names_of("forms")
_NAMES = ("r", "p")
_WORDS = 4
#: What an expression has at most. Numbers of 16 bits are read and rounded in one instruction or in some ten.
MOST = Most(len(_NAMES), _WORDS, 160, halves=10)


class Behind(NamedTuple):
    """What stands behind a product, as a part of a plan's key.

    Attributes
    ----------
    expression : Expression
        The bits that are stored, of the result's, which are element 0, and of elements of the arrays, 1 and 2.
    words : tuple of int
        The expression's.
    """

    expression: Expression
    words: tuple[int, ...]


class Finish(NamedTuple):
    """What stands behind a product, for its dispatch; by default nothing.

    Attributes
    ----------
    filling : Filling or None
        The code of the hole.
    arrays : tuple of Tensor
        Of the result's shape, which has two axes, rows and columns; at most two.
    words : tuple of int
    length : int
        Of the expression (``MOST.length_of``).
    calls : bool
        Whether it calls library functions (``has_calls``).
    """

    filling: Filling | None = None
    arrays: tuple[Tensor, ...] = ()
    words: tuple[int, ...] = ()
    length: int = 0
    calls: bool = False

    @classmethod
    def of(
        cls, registry: Registry, behind: Behind, arrays: Sequence[Tensor | None], rows: int, columns: int
    ) -> Finish:
        """The arrays as views with two axes. Raises UnsupportedError where there is no such view."""
        views = []
        for array in arrays:
            if array is None:
                continue
            strides = reshaped(array.shape, array._strides, (rows, columns))
            view = None if strides is None else array._view((rows, columns), strides)
            if view is None or _form_of(view) is None:
                raise UnsupportedError("an array behind a product that does not lie as its result")
            views.append(view)
        hole = Hole("finish", behind.expression, 1 + len(_NAMES), tuple(range(_WORDS)))
        outputs = [behind.expression.output]
        return cls(Filling(registry, hole), tuple(views), behind.words, MOST.length_of(outputs), has_calls(outputs))

    def constants(self) -> dict[str, int]:
        """The values of specialization constants."""
        known: dict = {"FINISHED": int(self.filling is not None)}
        for name, array in self.bindings().items():
            known[f"FORM_{name.upper()}"] = _FORMS["absent"] if array is None else _form_of(array)
            known[f"BITS_{name.upper()}"] = 32 if array is None else width_of(array.dtype)
        return known

    def push(self) -> dict[str, object]:
        """The push constants by name."""
        push: dict[str, object] = {f"{name}_offset": At(array) for name, array in self.bindings().items()}
        told = (*self.words, *[0] * (_WORDS - len(self.words)))
        return push | {f"n_{place}": value for place, value in enumerate(told)}

    def bindings(self) -> dict[str, Tensor | None]:
        """The arrays by the names of their bindings."""
        missing = [None] * (len(_NAMES) - len(self.arrays))
        return dict(zip(_NAMES, (*self.arrays, *missing), strict=True))

    def fits(self, registry: Registry, choice: Choice) -> bool:
        """Whether a kernel has the hole, which passes its self-check, and the expression is not too long for it.

        Its ``tile`` may say how long it may be, as ``finish``.

        Large blocks on matrix units call no library functions (``finish_calls``, in shaders/include/sets.toml).
        """
        tile = choice.tile
        if not is_offered(choice) or self.calls and choice.variant.unproven and tile["rows"] >= tile["finish_calls"]:
            return False
        if self.length > tile.get("finish", MOST.nodes):
            return False
        return registry.trusts(choice, {"holes": VERSION})


def _form_of(array: Tensor) -> int | None:
    """How an array ``(rows, columns)`` lies beside a contiguous result; None in another way."""
    own = [(stride, usual) for stride, usual, extent in
           zip(array._strides, contiguous_strides(array.shape), array.shape, strict=True) if extent > 1]  # fmt: skip
    if not any(stride for stride, _ in own):
        return _FORMS["alone"]
    if all(stride == usual for stride, usual in own):
        return _FORMS["flat"]
    return _FORMS["runs"] if array._strides[0] == 0 and array._strides[1] == 1 else None


def is_offered(choice: Choice) -> bool:
    """Whether a kernel has the hole."""
    return "FINISHED" in choice.variant.constants
