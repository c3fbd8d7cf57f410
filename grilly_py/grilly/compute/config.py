"""Attention with a configuration: which tile, how much memory, and how much the scores would have taken."""

from __future__ import annotations

import dataclasses
import time
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..registry import Choice, Request
from .attention import forward as flash
from .device.dispatch import check_float
from .device.dtypes import dtype_of
from .device.sixteen_bits import lacks_sixteen_bits
from .device.tensor import Tensor
from .device.trial import pin, request_of, view_of
from .unfused.attention import stored_attention

if TYPE_CHECKING:
    from .backend import Compute

NAME = "flash_attention"
#: Query rows, over batch and heads, and keys of a call that fills any device.
_MANY_ROWS, _MANY_KEYS = 1 << 24, 1 << 16


class FlashResult(NamedTuple):
    """What ``F.flash_attention`` returns.

    Attributes
    ----------
    output : numpy.ndarray or grilly.Tensor
        As of ``flash_attention2``.
    memory_bytes : int
        The most device memory that the call had allocated at a time beyond its inputs: output and intermediate results.
    memory_saved_percent : float
        How much less that is than what ``naive_attention`` allocates beyond the same inputs: 100 times
        ``1 - memory_bytes / naive_bytes``. 0 where that allocates nothing.
    """

    output: Any
    memory_bytes: int
    memory_saved_percent: float


@dataclasses.dataclass(frozen=True)
class FlashConfig:
    """How ``F.flash_attention`` is to attend.

    Parameters
    ----------
    block_q, block_kv : int, optional
        Query rows that a workgroup owns and keys that it takes at a time. None leaves the choice of the kernel to the
        registry; a number leaves it those kernels that have it.
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

    def __post_init__(self):
        for name in ("block_q", "block_kv"):
            block = getattr(self, name)
            if block is not None and (isinstance(block, bool) or not isinstance(block, int) or block < 1):
                raise ValueError(f"FlashConfig: {name} is {block!r}; expected a positive integer or None")

    @classmethod
    def for_head_dim(
        cls, head_dim: int, backend: Compute | None = None, *, dtype=np.float32, scale=None, causal: bool = False
    ) -> FlashConfig:
        """The blocks that a device uses for a head dimension, in calls that are large enough to fill it.

        Parameters
        ----------
        head_dim : int
            D, of q, k and v; 1 to 256.
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
        if not 1 <= head_dim <= flash.MAX_DIM:
            raise ValueError(f"FlashConfig: head_dim is {head_dim}; expected 1 to {flash.MAX_DIM}")
        if backend is None:
            from .backend import default_backend

            backend = default_backend()
        array = backend.empty((1, 1, 1, head_dim), dtype)
        request = _request(backend, [array] * 3, "attention-naive", causal=causal)
        tile = backend.registry.resolve(_with(request, rows=_MANY_ROWS)._replace(prefer=None)).tile
        return cls(tile["rows"], tile["keys"], scale, causal)

    @classmethod
    def causal_for_head_dim(cls, head_dim: int, backend: Compute | None = None, *, dtype=np.float32) -> FlashConfig:
        """``for_head_dim`` with ``causal=True``."""
        return cls.for_head_dim(head_dim, backend, dtype=dtype, causal=True)


def flash_attention(backend: Compute, q, k, v, config: FlashConfig | None = None) -> FlashResult:
    """Exact attention by a configuration, with the memory that it took.

    Parameters
    ----------
    q, k, v : numpy.ndarray or grilly.Tensor
        As for ``flash_attention2``.
    config : grilly.FlashConfig, optional
        Blocks, scale and causality; ``FlashConfig()`` when None.

    Returns
    -------
    FlashResult
        ``output`` as of ``flash_attention2``; ``memory_bytes`` as the backend counted it during the call, which counts
        what other threads allocate too; and ``memory_saved_percent``. The count starts anew at the call, as with
        ``backend.memory(reset_peak=True)``.

    Raises
    ------
    TypeError, ValueError
        As ``flash_attention2``; ValueError also where no kernel for the call has the blocks asked for. The message
        lists those that there are.
    UnsupportedError
        When no kernel for this device and dtype exists.
    """
    config = FlashConfig() if config is None else config
    if not isinstance(config, FlashConfig):
        raise TypeError(f"{NAME}: config is a {type(config).__name__}; expected a grilly.FlashConfig")
    tensors, kept = _operands(NAME, backend, q, k, v)
    options = {"scale": config.scale, "causal": config.causal}
    # Choosing first: a kernel's self-check, at its first use, is no part of the call's memory.
    choice = None
    if config.block_q is None and config.block_kv is None:
        request = _request(backend, tensors, None, **options)
        if request is not None:
            backend.registry.resolve(request)
    else:
        request = _request(backend, tensors, "attention-naive", **options)  # by name, so that no keys are split
        if request is not None:
            choice = _with_blocks(backend, request._replace(prefer=None), config)

    def attend():
        if choice is None:
            return flash.flash_attention(NAME, backend, *tensors, **options)
        view = pin(view_of(backend), choice)
        out = flash.flash_attention(NAME, view, *tensors, kernel=choice.variant.family, **options)
        out._storage.backend = backend  # the view goes with this call
        return out

    out, nbytes = _measured(backend, attend)
    naive = _naive_bytes(tensors[0], tensors[1], out)
    saved = 100.0 * (1.0 - nbytes / naive) if naive else 0.0
    return FlashResult(out if kept else out.numpy(), nbytes, saved)


def _request(backend: Compute, tensors: list[Tensor], kernel: str | None, **options) -> Request | None:
    """What a call with these tensors would ask the registry for; None where it has nothing to do."""
    if lacks_sixteen_bits(backend):  # they become float32 first, which asks for copies
        tensors = [backend.empty(tensor.shape) for tensor in tensors]
    view = view_of(backend)
    return request_of(view, lambda: flash.flash_attention(NAME, view, *tensors, kernel=kernel, **options))


def _with(request: Request, **facts: int) -> Request:
    return request._replace(facts=tuple((name, facts.get(name, value)) for name, value in request.facts))


def _with_blocks(backend: Compute, request: Request, config: FlashConfig) -> Choice:
    """The best kernel for the request with the configuration's blocks; ValueError when there is none."""
    wanted, tiles, found = (config.block_q, config.block_kv), set(), {}
    # How many rows and keys a call has says which kernel is fastest, not which is right: any limits on them are met.
    given = dict(request.facts)
    for rows, keys in product((given["rows"], _MANY_ROWS, 1), (given["keys"], _MANY_KEYS)):
        asked = _with(request, rows=rows, keys=keys)
        for variant, reason in backend.registry.explain(asked):
            if reason is None:
                tile = variant.tile["rows"], variant.tile["keys"]
                tiles.add(tile)
                if all(want in (None, have) for want, have in zip(wanted, tile, strict=True)):
                    found.setdefault(variant, asked)
    for variant in sorted(found, key=backend.registry.rank, reverse=True):
        able = backend.registry.candidates(found[variant]._replace(prefer=variant.family))
        choice = next((c for c in able if c.variant is variant), None)  # absent where it failed its self-check
        if choice is not None:
            return choice
    asked_for = ", ".join(f"{n}={w}" for n, w in zip(("block_q", "block_kv"), wanted, strict=True) if w is not None)
    there = ", ".join(f"({rows}, {keys})" for rows, keys in sorted(tiles))
    raise ValueError(f"{NAME}: no kernel for this call has {asked_for}; there are (block_q, block_kv) = {there}")


def naive_attention(backend: Compute, q, k, v, scale=None):
    """Attention on the device with the whole score matrix in memory, and the bytes that this took.

    The unfused path: scores, softmax, output. ``grilly.reference.naive_attention`` is the same in NumPy.

    Parameters
    ----------
    q, k, v : numpy.ndarray or grilly.Tensor
        As for ``flash_attention2``.
    scale : float, optional
        Multiplies the scores; ``1 / sqrt(D)`` when None.

    Returns
    -------
    output : numpy.ndarray or grilly.Tensor
        As of ``flash_attention2``.
    nbytes : int
        The most device memory that the call had allocated at a time beyond its inputs, as the backend counted it (see
        ``flash_attention``): two float32 matrices of Sq x Sk for each head, or one and the output.

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As ``flash_attention2``.
    OutOfDeviceMemoryError
        When the matrices do not fit.
    """
    (q, k, v), kept = _operands("naive_attention", backend, q, k, v)
    flash.check_scale("naive_attention", scale, q.shape[-1])
    out, nbytes = _measured(backend, lambda: stored_attention(backend, q, k, v, scale=scale))
    return (out if kept else out.numpy()), nbytes


def _operands(operation: str, backend: Compute, q, k, v) -> tuple[list[Tensor], bool]:
    """q, k and v on the device, checked, and whether the result is to be a tensor."""
    backend.check_open()
    check_float(operation, q=q, k=k, v=v)
    flash.check_qkv(operation, q, k, v)
    kept = any(isinstance(array, Tensor) for array in (q, k, v))
    return [array if isinstance(array, Tensor) else flash.to_device(backend, array) for array in (q, k, v)], kept


def _measured(backend: Compute, call) -> tuple[Tensor, int]:
    """What the call returns, and the peak of device memory during it beyond what was in use before."""
    before = backend.memory(reset_peak=True).in_use
    out = call()
    return out, backend.memory().peak - before


def _naive_bytes(q: Tensor, k: Tensor, out: Tensor) -> int:
    """What ``naive_attention`` allocates: scores with weights, or weights with the output."""
    scores = 4 * q.size // max(q.shape[-1], 1) * k.shape[-2]
    return scores + max(scores, out.nbytes)


class BenchmarkRow(NamedTuple):
    """One size of ``benchmark_flash_attention``: seconds are the best of the repeats, bytes those beyond the inputs.

    ``difference`` is the largest between the two outputs.
    """

    length: int
    flash_seconds: float
    naive_seconds: float
    flash_bytes: int
    naive_bytes: int
    saved_percent: float
    difference: float


def benchmark_flash_attention(
    lengths=(128, 256, 512, 1024), *, batch=1, heads=4, head_dim=64, dtype=np.float32, repeat=3, config=None,
    backend: Compute | None = None, show=True,
) -> list[BenchmarkRow]:  # fmt: skip
    """Time and memory of ``flash_attention`` and ``naive_attention`` on a device, measured now.

    Parameters
    ----------
    lengths : iterable of int
        Numbers of queries, and as many keys.
    batch, heads, head_dim : int
        Of random normal q, k and v, ``(batch, heads, length, head_dim)``.
    dtype : dtype
        float32, float16 or bfloat16.
    repeat : int
        Timed calls of each, after one that is not.
    config : grilly.FlashConfig, optional
        For ``flash_attention``, not causal: naive_attention is not either. Its scale goes to both.
    backend : grilly.Compute, optional
        The default one when None.
    show : bool
        Whether to print a table.

    Returns
    -------
    list of BenchmarkRow
        One for each length. ``grilly bench`` measures more.

    Raises
    ------
    ValueError
        For a configuration that is causal, or a repeat below 1.
    """
    if backend is None:
        from .backend import default_backend

        backend = default_backend()
    config = FlashConfig() if config is None else config
    if config.causal or repeat < 1:
        raise ValueError(
            f"benchmark_flash_attention: config.causal is {config.causal} and repeat is {repeat}; expected False and 1 "
            "or more"
        )
    rows = []
    for length in lengths:
        rng = np.random.default_rng(length)
        shape = (batch, heads, length, head_dim)
        q, k, v = (backend.tensor(rng.standard_normal(shape, np.float32).astype(dtype_of(dtype))) for _ in range(3))
        result = flash_attention(backend, q, k, v, config)
        naive, naive_bytes = naive_attention(backend, q, k, v, config.scale)
        difference = np.abs(result.output.numpy().astype(np.float32) - naive.numpy().astype(np.float32)).max()
        times = [
            _best(backend, repeat, lambda q=q, k=k, v=v: flash_attention(backend, q, k, v, config)),
            _best(backend, repeat, lambda q=q, k=k, v=v: naive_attention(backend, q, k, v, config.scale)),
        ]
        saved = 100.0 * (1.0 - result.memory_bytes / naive_bytes)
        rows.append(BenchmarkRow(length, *times, result.memory_bytes, naive_bytes, saved, float(difference)))
    if show:
        print(f"Attention on {backend.device.name}: (B, H, S, D) = ({batch}, {heads}, S, {head_dim}), "
              f"{dtype_of(dtype).name}; memory beyond the inputs")  # fmt: skip
        print(f"{'S':>7} {'flash':>10} {'naive':>10} {'flash':>12} {'naive':>12} {'saved':>7} {'differ by':>10}")
        for row in rows:
            print(
                f"{row.length:7d} {row.flash_seconds * 1e3:7.2f} ms {row.naive_seconds * 1e3:7.2f} ms "
                f"{row.flash_bytes / 1024:8.0f} KiB {row.naive_bytes / 1024:8.0f} KiB {row.saved_percent:5.1f} % "
                f"{row.difference:10.1e}"
            )
    return rows


def _best(backend: Compute, repeat: int, call) -> float:
    """Seconds of the fastest of so many calls, from the call until the device is done."""
    times = []
    for _ in range(repeat):
        backend.synchronize()
        start = time.perf_counter()
        kept = call()
        backend.synchronize()
        times.append(time.perf_counter() - start)
        del kept
    return min(times)
