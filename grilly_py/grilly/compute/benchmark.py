"""Time and memory of attention with and without the score matrix, measured on a device."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from .backend import Compute, default_backend
from .config import FlashConfig, flash_attention
from .device.dtypes import dtype_of
from .naive import naive_attention


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
    lengths: Iterable[int] = (128, 256, 512, 1024), *, batch: int = 1, heads: int = 4, head_dim: int = 64,
    dtype: DTypeLike = np.float32, repeat: int = 3, config: FlashConfig | None = None, backend: Compute | None = None,
    show: bool = True,
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
    backend = default_backend() if backend is None else backend
    device = backend.opened
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
        result = flash_attention(device, q, k, v, config)
        naive, naive_bytes = naive_attention(device, q, k, v, config.scale)
        difference = np.abs(result.output.numpy().astype(np.float32) - naive.numpy().astype(np.float32)).max()
        times = [
            _best(backend, repeat, lambda q=q, k=k, v=v: flash_attention(device, q, k, v, config)),
            _best(backend, repeat, lambda q=q, k=k, v=v: naive_attention(device, q, k, v, config.scale)),
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
