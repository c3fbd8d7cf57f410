"""AttentionCall: the record of a call. It has all that the plan depends on: layouts and terms, no contents."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...registry.shared import value
from ..device.device import DeviceFacts
from ..device.plan import Layout
from ..device.tensor import Tensor
from .functions import Functions

#: Keys in one dispatch at most. Rounding errors of a float32 sum grow with its length; ranges beyond this are summed by
#: themselves and merged, which keeps the error of 200,000 keys at that of NumPy's blocked products for next to no time.
MAX_KEYS = 16_384

NO_MASK, BOOLEAN_MASK, ADDED_MASK = (value("masks", f"MASK_{kind}") for kind in ("NONE", "BOOLEAN", "ADDED"))


class OptionSummary(NamedTuple):
    """The options of a call for a plan: numbers, no arrays.

    Attributes
    ----------
    bits : int
        What kernels must offer, of ``names.EXTRAS``.
    right, left : int
        The window, where there is one; ``right`` also moves the causal edge.
    page_strides : tuple of int
        Elements from one page of k and of v to the next; empty unless the keys lie in pages.
    size : int
        Words of arrays before the blocks.
    parameters : tuple of (str, int)
        Words that the blocks of all dispatches share.
    contents : bool
        Whether the parameters depend on arrays, or on numbers that change with every call.
    partial : bool
        Whether the arrays are a block of a larger call, and the options are of that call.
    functions : Functions
        Score and mask function.
    """

    bits: int = 0
    right: int = 0
    left: int = 0
    page_strides: tuple[int, ...] = ()
    size: int = 0
    parameters: tuple[tuple[str, int], ...] = ()
    contents: bool = False
    partial: bool = False
    functions: Functions = Functions()

    def parameter(self, name: str) -> int:
        """A parameter that all dispatches share; 0 where it was not set."""
        return dict(self.parameters).get(name, 0)

    @property
    def asked(self) -> tuple[tuple[str, int], ...]:
        """Facts of a request: the options' bits, and their number, as many options at once take registers."""
        return (("extras", self.bits), ("options", self.bits.bit_count())) if self.bits or self.parameters else ()


NOTHING = OptionSummary()


class AttentionTerms(NamedTuple):
    """The fields of an AttentionCall after the layouts."""

    causal: bool
    scale: float
    lse: bool
    kernel: str | None
    high: bool
    shift: int
    options: OptionSummary = NOTHING
    first: tuple[int, int, int, int] = (0, 0, 0, 0)
    packed: int | None = None
    counted: bool = False
    bits: int = 0
    values_in_keys: bool = False


class AttentionCall(NamedTuple):
    """One call of attention on four-axis arrays.

    Attributes
    ----------
    q, k, v : Layout
        ``(B, H, Sq, D)``, ``(B, Hk, Sk, D)`` and ``(B, Hk, Sk, Dv)``.
    mask, bias : Layout or None
        Of ``(B, H, Sq, Sk)``, with strides of 0 where they are broadcast.
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
    options : OptionSummary
    first : tuple of int
        Batch, head, query and key of the whole call at which the arrays begin.
    packed : int or None
        Of packed sequences, the rows of their arrays: the results are then ``(rows, H, Dv)`` and ``(H, rows)``.
    counted : bool
        Whether the number of valid keys is a runtime argument of the plan, at most Sk. ``shift`` then counts from the
        last valid key: query i stands at key ``i + shift + valid - Sk``.
    bits : int
        Of a level of quantized k and v, which are views of caches (cache_types.py); 0 for floats.
    values_in_keys : bool
        Whether v is the first columns of k, in the same memory. Kernels may then read them once.
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
    options: OptionSummary = NOTHING
    first: tuple[int, int, int, int] = (0, 0, 0, 0)
    packed: int | None = None
    counted: bool = False
    bits: int = 0
    values_in_keys: bool = False

    def whole(self, facts: DeviceFacts) -> bool:
        """Whether every array lies in a storage that fits one binding."""
        given = (self.q, self.k, self.v, self.mask, self.bias)
        return all(layout is None or (layout.nbytes or 0) <= facts.storage_range for layout in given)


def values_in_keys(k, v) -> bool:
    """Whether v is the first columns of k: Tensors, or NumPy arrays, that begin at one address and have equal strides.

    DeepSeek's latent attention (MLA) in its absorbed form has such values.
    """
    if k.__class__ is Tensor and v.__class__ is Tensor:
        at, strides = (k._storage is v._storage and k._offset == v._offset), k._strides == v._strides
    elif isinstance(k, np.ndarray) and isinstance(v, np.ndarray):
        at, strides = k.ctypes.data == v.ctypes.data, k.strides == v.strides
    else:
        return False
    return at and strides and k.dtype == v.dtype and k.shape[:-1] == v.shape[:-1] and v.shape[-1] <= k.shape[-1]


def mask_kind(mask: Layout | Tensor | None) -> int:
    """The specialization constant MASK."""
    return NO_MASK if mask is None else BOOLEAN_MASK if mask.dtype.kind == "b" else ADDED_MASK
