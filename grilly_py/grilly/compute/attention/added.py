"""How kernels read a bias or an additive mask: its dtype, and one, two or four numbers at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ...registry.shared import extras_bits
from ..device.device import DeviceFacts
from ..device.plan import binding
from ..device.tensor import Tensor
from .call import ADDED_MASK, AttentionCall, mask_kind
from .chunks import Chunk
from .operands import FLOAT32

BIAS_HALVES, BIAS_PAIRS, MASK_PAIRS, LATE, FOURS = (
    extras_bits((name,)) for name in ("bias-halves", "bias-pairs", "mask-pairs", "added-late", "added-fours")
)
#: Options whose kernels need keys to lie as they do without fours.
BY_DISTANCE = extras_bits(("alibi", "t5"))


def is_narrow(call: AttentionCall) -> bool:
    """Whether a call's bias has 16 bits."""
    return call.bias is not None and call.bias.dtype != FLOAT32


def widened(call: AttentionCall) -> AttentionCall:
    """The call with such a bias in float32."""
    assert call.bias is not None
    return call._replace(bias=call.bias._replace(dtype=FLOAT32))


def features(choice: Choice, chunks: Sequence[Chunk], facts: DeviceFacts, options: int) -> int:
    """The bits of FEATURES for the bias and the additive mask of a call's dispatches.

    ``options`` are the bits of the call's options. A bias of 16 bits is for kernels that read one
    (`plan.reads_narrow_bias`).
    """
    offered, first, bits = choice.variant.offered, chunks[0], 0
    read: list[tuple[int, list[Tensor | None]]] = []  # the bit for pairs, and the arrays
    if first.bias is not None:
        bits |= offered & LATE
        if first.bias.dtype != FLOAT32:
            bits |= BIAS_HALVES
        read.append((BIAS_PAIRS, [p.bias for p in chunks]))
    if mask_kind(first.mask) == ADDED_MASK:
        read.append((MASK_PAIRS, [p.mask for p in chunks]))
        bits |= offered & LATE
    if read and offered & FOURS and not options & BY_DISTANCE and all(side_by_side(4, a, facts) for _, a in read):
        return bits | FOURS
    for pairs, arrays in read:
        if offered & pairs and side_by_side(2, arrays, facts):
            bits |= pairs
    return bits


def side_by_side(many: int, arrays: Iterable[Tensor | None], facts: DeviceFacts) -> bool:
    """Whether rows are contiguous, and their lengths, strides and offsets are multiples of ``many``."""
    return all(
        array is not None and array._strides[3] == 1 and array.shape[3] % many == 0
        and not any(stride % many for stride in array._strides[:3]) and binding(facts, array)[1] % many == 0
        for array in arrays
    )  # fmt: skip


def rather(call: AttentionCall, registry: Registry, request: Request, choice: Choice, near: int) -> Choice:
    """A kernel that reads an additive mask in pairs, at most ``near`` ranks below the choice; else the choice.

    Without options such a kernel is the slower one, and under such a mask two to four times as fast.
    """
    if choice.variant.offered & MASK_PAIRS or mask_kind(call.mask) != ADDED_MASK:
        return choice
    asked = dict(request.problem)
    asked["extras"] = asked.get("extras", 0) | MASK_PAIRS
    try:
        other = registry.resolve(request._replace(problem=tuple(sorted(asked.items()))))
    except UnsupportedError:
        return choice
    return other if registry.rank(other.variant) >= registry.rank(choice.variant) - near else choice


__all__ = ["BIAS_HALVES", "features", "is_narrow", "rather", "widened"]
