"""AttentionCall: the record of a call. Everything that its plan depends on, and nothing of the arrays' contents."""

from __future__ import annotations

from typing import NamedTuple

from ...registry.shared import value
from ..device.device import DeviceFacts
from ..device.plan import Layout
from ..device.tensor import Tensor

#: Keys in one dispatch at most. Rounding errors of a float32 sum grow with its length; ranges beyond this are summed by
#: themselves and merged, which keeps the error of 200,000 keys at that of NumPy's blocked products for next to no time.
MAX_KEYS = 16_384

NO_MASK, BOOLEAN_MASK, ADDED_MASK = (value("masks", f"MASK_{kind}") for kind in ("NONE", "BOOLEAN", "ADDED"))


class OptionFacts(NamedTuple):
    """What a plan knows of a call's options.

    Attributes
    ----------
    bits : int
        What kernels must offer, of ``names.EXTRAS``.
    right, left : int
        The window, where there is one; ``right`` also moves the causal edge.
    page_steps : tuple of int
        Elements from one page of k and of v to the next; empty unless the keys lie in pages.
    size : int
        Words of arrays before the headers.
    header : tuple of (str, int)
        Words that the headers of all dispatches share.
    contents : bool
        Whether the words depend on arrays' contents, or on numbers that change with every call.
    partial : bool
        Whether the arrays are a block of those of the call that the options are of.
    """

    bits: int = 0
    right: int = 0
    left: int = 0
    page_steps: tuple[int, ...] = ()
    size: int = 0
    header: tuple[tuple[str, int], ...] = ()
    contents: bool = False
    partial: bool = False

    def word(self, name: str) -> int:
        """A word of the header that all dispatches share; 0 where it was not set."""
        return dict(self.header).get(name, 0)

    @property
    def asked(self) -> tuple[tuple[str, int], ...]:
        """Facts of a request: what a kernel must offer, and how much of it, as many options at once take registers."""
        return (("extras", self.bits), ("options", self.bits.bit_count())) if self.bits or self.header else ()


NOTHING = OptionFacts()


class Terms(NamedTuple):
    """What a call asks for, beside its arrays: the fields of an AttentionCall after the layouts."""

    causal: bool
    scale: float
    lse: bool
    kernel: str | None
    high: bool
    shift: int
    options: OptionFacts = NOTHING
    first: tuple[int, int, int, int] = (0, 0, 0, 0)
    packed: int | None = None
    counted: bool = False


class AttentionCall(NamedTuple):
    """One call of attention on four-axis arrays.

    Attributes
    ----------
    q, k, v : Layout
        ``(B, H, Sq, D)``, ``(B, Hk, Sk, D)`` and ``(B, Hk, Sk, Dv)``.
    mask, bias : Layout or None
        Of ``(B, H, Sq, Sk)``, with steps of 0 where they are broadcast.
    causal : bool
        Whether keys to the right of ``i + shift + options.right`` are hidden.
    scale : float
    lse : bool
        Whether the log-sum-exp is a result too.
    kernel : str or None
        The family asked for.
    high : bool
        Whether float32 may be computed from 16-bit parts.
    shift : int
        Query i stands at key ``i + shift``.
    options : OptionFacts
    first : tuple of int
        Batch, head, query and key at which the arrays begin in the call that the options are of.
    packed : int or None
        Where sequences lie one after the other, the rows of their arrays: the results are then ``(rows, H, Dv)`` and
        ``(H, rows)``.
    counted : bool
        Whether k and v may have more keys than there are: how many, up to theirs, is told when the plan is run, and
        the last of them stands where the last of all would.
    """

    q: Layout
    k: Layout
    v: Layout
    mask: Layout | None
    bias: Layout | None
    causal: bool
    scale: float
    lse: bool
    kernel: str | None
    high: bool
    shift: int
    options: OptionFacts = NOTHING
    first: tuple[int, int, int, int] = (0, 0, 0, 0)
    packed: int | None = None
    counted: bool = False

    def whole(self, facts: DeviceFacts) -> bool:
        """Whether every array lies in a storage that fits one binding."""
        given = (self.q, self.k, self.v, self.mask, self.bias)
        return all(layout is None or (layout.nbytes or 0) <= facts.storage_range for layout in given)


def mask_kind(mask: Layout | Tensor | None) -> int:
    """The specialization constant MASK."""
    return NO_MASK if mask is None else BOOLEAN_MASK if mask.dtype.kind == "b" else ADDED_MASK
