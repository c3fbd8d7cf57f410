"""Attention with a configuration: which tile, how much memory, and how much the scores would have taken."""

from __future__ import annotations

import dataclasses
import operator
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ..registry import Choice, Request
from .attention import foreign, forward
from .attention.checks import MAX_VALUE_DIM
from .backend import Compute, default_backend
from .device.arrays import FloatArray
from .device.device import Device
from .device.tensor import Tensor
from .device.trial import pin, request_of, view_of
from .naive import measured, naive_bytes, operands

NAME = "flash_attention"
#: Query rows, over batch and heads, and keys of a call that fills any device.
_MANY_ROWS, _MANY_KEYS = 1 << 24, 1 << 16


class _Result(NamedTuple):
    output: Any
    memory_bytes: int
    memory_saved_percent: float


class FlashResult(_Result):
    """What ``F.flash_attention`` returns: the first three attributes as a tuple, and the blocks beside it.

    Attributes
    ----------
    output : numpy.ndarray or grilly.Tensor
        As of ``flash_attention2``.
    memory_bytes : int
        The most device memory that the call had allocated at a time beyond its inputs: output and intermediate results.
    memory_saved_percent : float
        How much less that is than what ``naive_attention`` allocates beyond the same inputs: 100 times
        ``1 - memory_bytes / naive_bytes``. 0 where that allocates nothing.
    blocks : (int, int) or None
        ``block_q`` and ``block_kv`` of the kernel that was used. None where there was nothing to do, and where no
        blocks were asked for and few queries had the keys dealt out over the whole device instead.
    """

    blocks: tuple[int, int] | None

    def __new__(
        cls, output: Any, memory_bytes: int, memory_saved_percent: float, blocks: tuple[int, int] | None = None
    ) -> FlashResult:
        result = super().__new__(cls, output, memory_bytes, memory_saved_percent)
        result.blocks = blocks
        return result


@dataclasses.dataclass(frozen=True)
class FlashConfig:
    """How ``F.flash_attention`` is to attend.

    Parameters
    ----------
    block_q, block_kv : int, optional
        Query rows that a workgroup owns and keys that it takes at a time: a wish. None leaves the choice of the kernel
        to the registry. A number leaves it those kernels that have it, where the device has one of them for the call,
        and otherwise all. ``FlashResult.blocks`` says what was used.
    scale : float, optional
        Multiplies the scores; ``1 / sqrt(D)`` when None.
    causal : bool
        Whether query i attends only to keys ``j <= i + Sk - Sq``.

    Raises
    ------
    ValueError
        If a block is not a positive integer.
    """

    block_q: int | None = None
    block_kv: int | None = None
    scale: float | None = None
    causal: bool = False

    if not TYPE_CHECKING:  # type checkers have the signature of __init__

        def __new__(cls, *args, **kwargs):
            foreign.refuse("FlashConfig", kwargs, foreign.STEP_KEYWORDS["FlashConfig"])
            return super().__new__(cls)

    def __post_init__(self) -> None:
        for name in ("block_q", "block_kv"):
            given = block = getattr(self, name)
            if given is None:
                continue
            try:
                block = 0 if isinstance(given, bool) else operator.index(given)
            except TypeError:
                block = 0
            if block < 1:
                raise ValueError(f"FlashConfig: {name} is {given!r}; expected a positive integer or None")
            object.__setattr__(self, name, block)  # Python's integer, also where NumPy's was given

    @classmethod
    def for_head_dim(
        cls, head_dim: int, backend: Compute | None = None, *, dtype: DTypeLike = np.float32,
        scale: float | None = None, causal: bool = False,
    ) -> FlashConfig:  # fmt: skip
        """The blocks that a device uses for a head dimension, in calls that are large enough to fill it.

        Parameters
        ----------
        head_dim : int
            D, of q, k and v; 1 to 512.
        backend : grilly.Compute, optional
            The device; the default backend when None.
        dtype : dtype
            float32, float16 or bfloat16.
        scale : float, optional
        causal : bool
            As of the class; a device may have another kernel for causal calls.

        Raises
        ------
        ValueError
            For a head dimension outside the range.
        UnsupportedError
            When the device has no kernel for it.
        """
        if not 1 <= head_dim <= MAX_VALUE_DIM:
            raise ValueError(f"FlashConfig: head_dim is {head_dim}; expected 1 to {MAX_VALUE_DIM}")
        device = (default_backend() if backend is None else backend).opened
        array = device.empty((1, 1, 1, head_dim), dtype)
        request = _request(device, [array] * 3, "attention-naive", causal=causal)
        tile = device.registry.resolve(_with(request, rows=_MANY_ROWS)._replace(prefer=None)).tile
        return cls(tile["rows"], tile["keys"], scale, causal)

    @classmethod
    def causal_for_head_dim(
        cls, head_dim: int, backend: Compute | None = None, *, dtype: DTypeLike = np.float32
    ) -> FlashConfig:
        """``for_head_dim`` with ``causal=True``."""
        return cls.for_head_dim(head_dim, backend, dtype=dtype, causal=True)


def flash_attention(
    device: Device, q: FloatArray, k: FloatArray, v: FloatArray, config: FlashConfig | None = None
) -> FlashResult:
    """``grilly.functional.flash_attention`` on a device; documented there."""
    config = FlashConfig() if config is None else config
    if not isinstance(config, FlashConfig):
        raise TypeError(f"{NAME}: config is a {type(config).__name__}; expected a grilly.FlashConfig")
    tensors, kept = operands(NAME, device, q, k, v)
    options = {"scale": config.scale, "causal": config.causal}
    # Choosing first: a kernel's self-check, at its first use, is no part of the call's memory.
    choice = blocks = None
    wished = config.block_q is not None or config.block_kv is not None
    request = _request(device, tensors, "attention-naive" if wished else None, **options)  # by name: no keys are split
    if request is not None:
        if wished:
            choice = _with_blocks(device, request._replace(prefer=None), config)
        used = choice or device.registry.resolve(request)
        if request.operation == "attention":
            blocks = used.tile["rows"], used.tile["keys"]

    def attend():
        if choice is None:
            return forward.flash_attention(NAME, device, *tensors, **options)
        view = pin(view_of(device), choice)
        return forward.flash_attention(NAME, view, *tensors, kernel=choice.variant.family, **options)

    out, nbytes = measured(device, attend)
    naive = naive_bytes(tensors[0], tensors[1], out)
    saved = 100.0 * (1.0 - nbytes / naive) if naive else 0.0
    return FlashResult(out if kept else out.numpy(), nbytes, saved, blocks)


def _request(device: Device, tensors: list[Tensor], kernel: str | None, **options) -> Request | None:
    """What a call with these tensors would ask the registry for; None where it has nothing to do."""
    if not device.sixteen_bits:  # they become float32 first, which asks for copies
        tensors = [device.empty(tensor.shape) for tensor in tensors]
    view = view_of(device)
    return request_of(view, lambda: forward.flash_attention(NAME, view, *tensors, kernel=kernel, **options))


def _with(request: Request, **facts: int) -> Request:
    return request._replace(problem=tuple((name, facts.get(name, value)) for name, value in request.problem))


def _with_blocks(device: Device, request: Request, config: FlashConfig) -> Choice:
    """The best kernel for the request with the configuration's blocks, or where the device has none the best of all.

    Raises ValueError for blocks that no kernel has, whatever the device.
    """
    wanted, tiles, found = (config.block_q, config.block_kv), set(), {}
    # How many rows and keys a call has says which kernel is fastest, not which is right: any limits on them are met.
    given = dict(request.problem)
    for rows, keys in product((given["rows"], _MANY_ROWS, 1), (given["keys"], _MANY_KEYS)):
        asked = _with(request, rows=rows, keys=keys)
        for variant, reason in device.registry.explain(asked):
            if reason is None:
                tiles.add((variant.tile["rows"], variant.tile["keys"]))
                if _has(wanted, variant.tile):
                    found.setdefault(variant, asked)
    for variant in sorted(found, key=device.registry.rank, reverse=True):
        able = device.registry.candidates(found[variant]._replace(prefer=variant.family))
        choice = next((c for c in able if c.variant is variant), None)  # absent where it failed its self-check
        if choice is not None:
            return choice
    manifest = device.registry.manifest.by_operation[request.operation]
    if any(_has(wanted, variant.tile) for variant in manifest):
        return device.registry.resolve(request)
    asked_for = ", ".join(f"{n}={w}" for n, w in zip(("block_q", "block_kv"), wanted, strict=True) if w is not None)
    there = ", ".join(f"({rows}, {keys})" for rows, keys in sorted(tiles))
    raise ValueError(f"{NAME}: no kernel has {asked_for}; for this call there are (block_q, block_kv) = {there}")


def _has(wanted: tuple[int | None, int | None], tile) -> bool:
    """Whether a kernel's tile has the blocks, those that are not None."""
    return all(want in (None, have) for want, have in zip(wanted, (tile["rows"], tile["keys"]), strict=True))
