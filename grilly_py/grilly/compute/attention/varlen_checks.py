"""Checks of the arguments of attention over packed sequences, and of its gradients."""

from __future__ import annotations

import dataclasses

import numpy as np

from ...errors import UnsupportedError
from ..device.arguments import check_float
from ..device.device import Device
from ..device.numbers import integer
from ..device.tensor import Tensor
from . import option_checks
from .checks import check_dims, check_grouped, check_scale
from .options import CheckedOptions, Options, prepare


@dataclasses.dataclass(frozen=True)
class Packed:
    """The checked arguments of a call."""

    batch: int
    longest: tuple[int, int]  # queries and keys of the longest sequences
    covered: tuple[int, int]  # rows of q and of k that belong to a sequence
    scale: float
    checked: CheckedOptions


def check_arrays(name: str, q, k, v) -> None:
    """Raise TypeError and ValueError unless these are arrays of one floating dtype with three axes."""
    check_float(name, q=q, k=k, v=v)
    for label, array in (("q", q), ("k", k), ("v", v)):
        if len(array.shape) != 3:
            raise ValueError(f"{name}: {label} has shape {tuple(array.shape)}; expected three axes, (total, H, D)")


def check_packed(name: str, q, k, v, starts: tuple, longest: tuple, causal: bool, scale, options: Options) -> Packed:
    """Check the common arguments of attention and its gradients. Raises TypeError and ValueError."""
    check_arrays(name, q, k, v)
    total, heads, dim = q.shape
    if tuple(k.shape[:2]) != tuple(v.shape[:2]):
        raise ValueError(f"{name}: k has shape {tuple(k.shape)} and v has {tuple(v.shape)}; keys and heads must agree")
    check_dims(name, ("q", "k", "v"), dim, k.shape[2], v.shape[2])
    check_grouped(name, "k", v.shape[1], heads)
    scale = check_scale(name, scale, dim)
    sequences = sequences_of(name, starts, longest, (total, k.shape[0]))
    samples = sequences.samples
    batch = len(samples)
    checked = prepare(name, options, (batch, heads, *sequences.longest), causal) or CheckedOptions(heads, causal)
    checked.offer("lengths")
    checked.put_as("samples", samples)
    checked.set(packed=1)
    return Packed(batch, sequences.longest, sequences.covered, scale, checked)


@dataclasses.dataclass(frozen=True)
class Sequences:
    """The places of sequences: ``samples`` (B, 4) int32, first row, rows, first key and keys; others as of Packed."""

    samples: np.ndarray
    longest: tuple[int, int]
    covered: tuple[int, int]


def sequences_of(name: str, starts: tuple, longest: tuple, totals: tuple[int, int]) -> Sequences:
    """The sequences of ``cu_seqlens_`` and ``max_seqlen_``; ``totals`` are the rows of q and of k."""
    starts_q, lengths_q, longest_q = found = _check_starts(name, "q", starts[0], longest[0], totals[0])
    if starts[0] is not starts[1] or longest[0] != longest[1] or totals[0] != totals[1]:  # else self-attention
        found = _check_starts(name, "k", starts[1], longest[1], totals[1])
    starts_k, lengths_k, longest_k = found
    if len(starts_q) != len(starts_k):
        raise ValueError(
            f"{name}: cu_seqlens_q has {len(starts_q)} numbers and cu_seqlens_k {len(starts_k)}; give both B + 1"
        )
    samples = np.empty((len(lengths_q), 4), np.int32)
    for column, numbers in enumerate((starts_q[:-1], lengths_q, starts_k[:-1], lengths_k)):
        samples[:, column] = numbers
    return Sequences(samples, (longest_q, longest_k), (int(starts_q[-1]), int(starts_k[-1])))


def check_bindings(name: str, device: Device, arrays: dict[str, Tensor], made: dict[str, int] | None = None) -> None:
    """Raise UnsupportedError unless each array, and each result of ``made`` bytes, fits a binding: nothing is cut."""
    limit = device.facts.storage_range
    for label, nbytes in ({label: a._storage.nbytes for label, a in arrays.items()} | (made or {})).items():
        if nbytes > limit:
            raise UnsupportedError(
                f"{name}: {label} lies in {nbytes:,} bytes, and one binding of {device.facts.name} "
                f"takes {limit:,}; give fewer sequences at a time"
            )


def _check_starts(call: str, side: str, starts, longest, total: int) -> tuple[np.ndarray, np.ndarray, int]:
    """``cu_seqlens_`` of q or k as a checked int64 array, the sequences' lengths, and the longest of them."""
    name = f"cu_seqlens_{side}"
    starts = option_checks.integers(call, name, starts)
    starts = starts.numpy() if isinstance(starts, Tensor) else starts
    if starts.ndim != 1 or not len(starts):
        raise ValueError(f"{call}: {name} has shape {starts.shape}; expected (B + 1,)")
    starts = starts.astype(np.int64)
    lengths = starts[1:] - starts[:-1]
    least, most = (int(lengths.min()), int(lengths.max())) if len(lengths) else (0, 0)
    if starts[0] != 0 or least < 0 or starts[-1] > total:
        raise ValueError(
            f"{call}: {name} goes from {starts[0]} to {starts[-1]}{' and falls' if least < 0 else ''}; "
            f"expected to begin with 0 and to rise to at most {total}, the rows of {side}"
        )
    longest = integer(call, f"max_seqlen_{side}", longest)
    if longest < most:
        raise ValueError(f"{call}: max_seqlen_{side} is {longest}; the longest sequence has {most}")
    return starts, lengths, most
