"""Attention of few queries over many keys: the keys are split over the device, and the last workgroup joins the splits.

The plan of the families flash-decode and flash-decode-matrix, used by flash.py: when it pays, how rows, invocations and
keys are dealt out, and the prepared call.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING

import numpy as np

from ...errors import UnsupportedError
from ...registry import Request
from ...registry.names import extras_bits
from ...runtime.interface import work_limit
from ..device.dispatch import program_of
from ..device.tensor import Storage, Tensor
from .prepared import MAX_KEYS, Prepared, descriptor, mask_kind

if TYPE_CHECKING:
    from ...registry import Choice
    from ...runtime.interface import DeviceInfo, Program
    from ..backend import Compute
    from .options import Extras

_WINDOW, _PREFIX = extras_bits(("window",)), extras_bits(("prefix",))
FAMILY = "flash-decode"
MATRIX_FAMILY = "flash-decode-matrix"
FAMILIES = (FAMILY, MATRIX_FAMILY)
# Fewer keys than this are no work for a device, whoever does them.
FEWEST_KEYS = 512
# What a workgroup does before its first key and after its last, in keys: decides between numbers of splits that are
# otherwise equally good.
START_KEYS = 256
# Rounds of workgroups after which it no longer matters that the last fills only a part of the device.
ROUNDS = 4
# Queries up to which reading the keys again for every few rows costs less than a tile of 64 or 128 rows that are mostly
# padding; by bytes of an element, as 16-bit tiles may have matrix units. docs/benchmarks/decode.md has the estimate.
FEW_QUERIES = {2: 6, 4: 16}
# Multiprocessors where the device does not tell.
UNITS = {"cpu": 8, "integrated": 12}


def units_of(device: DeviceInfo) -> int:
    """The device's multiprocessors, or a guess."""
    for name in ("sm_count", "compute_units", "shader_cores"):
        count = device.properties.get(name)
        if count:
            return int(count)
    return UNITS.get(device.kind, 48)


def pays(device: DeviceInfo, itemsize: int, batch: int, heads: int, queries: int, keys: int) -> bool:
    """Whether splitting the keys is faster than the kernels that walk all keys of a tile of queries."""
    if keys < FEWEST_KEYS:
        return False
    if device.architecture == "llvmpipe":  # a processor is filled by less: docs/benchmarks/decode.md
        return queries == 1
    few = FEW_QUERIES[itemsize]
    return queries <= few or batch * heads * queries <= 2 * few * units_of(device)  # else tiles would fill the device


@dataclasses.dataclass(frozen=True)
class Deal:
    """How a call is dealt out: rows of a workgroup and passes over the keys, invocations that share a key's row, keys
    an invocation has in flight, splits of the keys, and whether keys are loaded ahead (the shader's STAGES)."""

    rows: int
    passes: int
    lanes: int
    unroll: int
    splits: int
    stages: int


def deal(
    choice: Choice, size: int, units: int, batch: int, kv_heads: int, rows: int, keys: int, dims: tuple[int, int]
) -> Deal:
    """How to deal out ``rows`` query rows a key head to subgroups of ``size``; ``dims`` are q's and v's."""
    tile = choice.tile
    if "trip" in tile:  # the matrix kernel: subgroups deal with a trip's keys in one way only
        passes = -(-rows // tile["rows"])
        return _share(choice, units, batch * kv_heads, rows, passes, keys, tile["trip"] * (choice.threads // size))
    wide = 4 if choice.variant.dtype == "float32" else 8
    words = max(dims) // wide  # of 16 bytes, in the longer row
    lanes = 1
    while lanes < size and lanes * max(tile["columns"] // wide, 1) < words:
        lanes *= 2
    held = -(-words // lanes)  # words that an invocation holds
    most = max(min(tile["rows"], tile["values"] // (held * wide)), 1)
    unroll = max(tile["words"] // held, 1)
    step = size // lanes * unroll * (choice.threads // size)
    dealt = _share(choice, units, batch * kv_heads, rows, -(-rows // most), keys, step, lanes, unroll)
    if dealt.rows > 1 and batch * kv_heads * dealt.passes * dealt.splits < tile.get("spread", 0) * units:
        # The device is far from full: reading the keys once more, out of the cache, costs less than waiting.
        passes = -(-rows // (dealt.rows // 2))
        dealt = _share(choice, units, batch * kv_heads, rows, passes, keys, step, lanes, unroll)
    return dealt


def _share(choice, units, heads, rows, passes, keys, step, lanes=1, unroll=1) -> Deal:
    """The deal for ``heads`` key heads of all batches; ``step`` keys are a trip of a workgroup.

    The device runs ``resident`` workgroups for each unit in a round, or in a whole number of them, and a round that
    fills only a part of the device costs as much as a full one.
    """
    tile = choice.tile
    teams, at_once = heads * passes, max(tile["resident"] * units, 1)
    fewest = max(-(-keys // MAX_KEYS), 1)
    most = max(min(-(-keys // tile["keys"]), -(-ROUNDS * at_once // teams)), fewest)

    def share(splits: int) -> int:
        return -(-max(keys, 1) // (splits * step)) * step  # whole trips of a workgroup

    best = min(range(fewest, most + 1), key=lambda n: -(-teams * n // at_once) * (share(n) + START_KEYS))
    stages = tile["stages"] if share(best) >= tile.get("ahead", 0) * step else 1
    return Deal(-(-rows // passes), passes, lanes, unroll, max(-(-keys // share(best)), 1), stages)


@dataclasses.dataclass(frozen=True)
class Ready(Prepared):
    """A call prepared.

    ``arrived`` is zero before and after every dispatch. Calls of the plan that are in flight together do not meet in
    it: the runtime orders dispatches that write the same buffer.
    """

    program: Program
    parts_bytes: int
    arrived: Tensor

    def run(
        self, backend: Compute, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lse: bool,
        words: Storage | None = None, place: int = 0, bias: Tensor | None = None,
    ):  # fmt: skip
        """Record the dispatch; returns o and, if asked for, lse. ``place`` is that of the header in ``words``."""
        o, sums = self.results(backend, q, lse)
        parts = Storage(backend, self.parts_bytes)
        bindings = [descriptor(tensor) for tensor in (q, k, v, mask, o, sums)]
        push, spec = self.push(q, k, v, mask), self.program.spec
        if spec.push_bytes > len(push):  # a kernel that offers extras
            push += struct.pack("=I", place)
            bindings += [None if words is None else (words.buffer, 0, words.nbytes), descriptor(bias)]
        bindings += [(parts.buffer, 0, parts.nbytes), descriptor(self.arrived)]
        backend.runtime.dispatch(self.program, bindings, push, self.groups, self.work)
        return o, sums


def plan(
    backend: Compute,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    lse: bool,
    aligned: int,
    family: str | None,
    whole: bool,
    shift: int,
    extras: Extras | None = None,
) -> Ready | None:
    """The call prepared; None where it does not pay or cannot be done.

    ``o`` stands for the outputs that are to come. ``aligned`` divides all offsets, strides and dimensions, ``whole``
    says that every storage fits a binding. Query i stands at key i + ``shift``. Raises UnsupportedError instead of
    returning None when ``family`` is named.
    """
    forced = family is not None
    batch, heads, queries, head_dim = q.shape
    kv_heads, keys, value_dim = k.shape[1], k.shape[2], v.shape[3]
    bits = right = 0
    walked = keys  # that a row of queries sees
    if extras is not None:
        bits, right = extras.bits, extras.right
        if causal and bits & _WINDOW and not bits & _PREFIX:
            walked = min(keys, extras.left + right + queries)
    if not forced and (not whole or not pays(backend.device, q.dtype.itemsize, batch, heads, queries, walked)):
        return None
    causal = causal and (queries > 1 or shift + right < keys - 1)
    masked = mask is not None or causal
    facts = (
        ("align", aligned), ("head_dim", head_dim), ("value_dim", value_dim), ("masked", int(masked)),
        *((("extras", bits),) if bits else ()),
    )  # fmt: skip
    try:
        choice = backend.registry.resolve(Request("attention-decode", q.dtype.name, facts=facts, prefer=family))
    except UnsupportedError:
        if forced:
            raise
        return None
    size = choice.subgroup_size or backend.device.subgroup_sizes[0]
    group = heads // kv_heads
    units = units_of(backend.device)
    dealt = deal(choice, size, units, batch, kv_heads, group * queries, walked, (head_dim, value_dim))
    teams = batch * kv_heads * dealt.passes
    parts_bytes = 4 * teams * dealt.splits * dealt.rows * (value_dim + 4)
    groups = (dealt.splits * dealt.passes, kv_heads, batch)
    work = 2.0 * batch * heads * queries * walked * (head_dim + value_dim)
    limits = backend.device.limits
    for true, problem in (
        (not whole or max(parts_bytes, o._storage.nbytes) > limits["storage_range"], "an array is beyond a binding"),
        (any(n > most for n, most in zip(groups, limits["groups"], strict=True)),
         f"{groups} workgroups are beyond the device's limits"),
        (work > work_limit(backend.device), "one submission would take too long"),
    ):  # fmt: skip
        if true:
            if forced:
                raise UnsupportedError(f"{family}: {problem}; leave the kernel to the registry (kernel=None)")
            return None
    constants = {
        "HEAD_DIM": head_dim, "VALUE_DIM": value_dim, "CAUSAL": int(causal), "LSE": int(lse), "MERGE": 0,
        "MASK": mask_kind(mask), "FEATURES": bits,
        "ROWS": dealt.rows, "LANES": dealt.lanes, "UNROLL": dealt.unroll, "SUBGROUP": size,
        "THREADS": choice.threads, "STAGES": dealt.stages,
    }  # fmt: skip
    constants = {name: value for name, value in constants.items() if name in choice.variant.constants}
    return Ready(
        (q._steps[:3], k._steps[:3], v._steps[:3], o._steps[:3]),
        (0, heads * queries, queries, queries, keys, group, shift + right, scale),
        groups,
        work,
        o.shape,
        o._steps,
        o._storage.nbytes,
        o.shape[:3],
        program_of(backend, choice, constants),
        parts_bytes,
        backend.tensor(np.zeros(teams, np.int32)),
    )
