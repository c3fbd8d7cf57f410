"""dS in memory: the kernel for dk and dv stores it, and dq is one product in place of three.

dS has a number of 16 bits for each query and key. It takes at most ``DeviceFacts.workspace`` bytes, for all heads or
for some at a time; both products of some heads then come before those of the next. Where it does not fit, the kernel
for dq does without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ..device.device import DeviceFacts
from ..device.plan import Plan
from ..device.tensor import Tensor
from .backward_chunks import Chunk
from .chunks import cut_up

OPERATION = "attention-backward-dq-stored"


def stored_dq(registry: Registry, request: Request, dkv: Choice) -> Choice | None:
    """The kernel for dq that reads the dS of ``dkv``, or None. ``request`` is that for dq."""
    if "stored" not in dkv.tile:
        return None
    try:
        choice = registry.resolve(request._replace(operation=OPERATION))
    except UnsupportedError:
        return None
    return choice if choice.tile["stored"] == dkv.tile["stored"] else None


def storing(registry: Registry, request: Request, product: Choice) -> tuple[Choice, Choice | None]:
    """A kernel for dk and dv that stores dS for ``product``, and ``product``; without one, any kernel and None.

    Calls may get another kernel: the self-check of the product runs before the first call.
    """
    able = [
        variant for variant, reason in registry.explain(request)
        if reason is None and variant.tile.get("stored") == product.tile["stored"]
    ]  # fmt: skip
    if not able:
        return registry.resolve(request), None
    return registry.choice(max(able, key=registry.rank)), product


def nbytes(chunk: Chunk, choice: Choice) -> int:
    """Bytes of dS of a chunk: of whole tiles of both kernels."""
    batch, heads, queries, _ = chunk.views["q"].shape
    whole = choice.tile["stored"]
    rows, keys = (-(-count // whole) * whole for count in (queries, chunk.views["k"].shape[2]))
    return 2 * batch * heads * rows * keys


def stored_chunks(
    facts: DeviceFacts, chunks: Sequence[Chunk], dkv: Choice, queries: int, keys: int
) -> list[Chunk] | None:
    """The dispatches for dk and dv with dS in memory; None where dS does not pay or does not fit.

    ``chunks`` are the dispatches without dS, for all ``queries`` and ``keys``. Memory holds the dS of two dispatches at
    once, or of the only one. Dispatches too small for the device do not pay.
    """
    if any(p.accumulate or (p.views["q"].shape[2], p.views["k"].shape[2]) != (queries, keys) for p in chunks):
        return None
    if len(chunks) == 1 and nbytes(chunks[0], dkv) <= min(facts.workspace, facts.storage_range):
        return list(chunks)
    most = min(facts.workspace // 2, facts.storage_range)

    def place(chunk: Chunk) -> tuple[str, int] | None:
        batch, kv_heads = chunk.views["k"].shape[:2]
        if nbytes(chunk, dkv) <= most or (batch == 1 and kv_heads == 1):
            return None
        return ("batch", batch // 2) if batch > 1 else ("head", kv_heads // 2)

    found = [stored_chunk for chunk in chunks for stored_chunk in cut_up(chunk, place)]
    tiles = -(-keys // dkv.tile["rows"])
    for stored_chunk in found:
        batch, kv_heads = stored_chunk.views["k"].shape[:2]
        if nbytes(stored_chunk, dkv) > most or tiles * batch * kv_heads < 2 * facts.units:
            return None
    return found


def for_dq(stored_chunk: Chunk, dq: Tensor) -> Chunk:
    """The dispatch for a stored chunk's rows of ``dq``, the (B, H, Sq, D) of the whole call."""
    batch, heads = stored_chunk.views["q"].shape[:2]
    at = (
        slice(stored_chunk.first[0], stored_chunk.first[0] + batch),
        slice(stored_chunk.first[1], stored_chunk.first[1] + heads),
    )
    views = {name: view for name, view in stored_chunk.views.items() if name not in ("dk", "dv")}
    return Chunk({**views, "dq": dq[at]}, stored_chunk.shift, first=stored_chunk.first)


def flops(chunk: Chunk) -> float:
    """Floating-point operations of the product with dS."""
    batch, heads, queries, dim = chunk.views["q"].shape
    return 2.0 * batch * heads * queries * chunk.views["k"].shape[2] * dim


def stores(plan: Plan) -> bool:
    """Whether a plan of gradients keeps dS in memory."""
    return any(step.choice.variant.operation == OPERATION for step in plan.steps)


def without(facts: DeviceFacts) -> DeviceFacts:
    """The facts of the device, with no memory for dS."""
    return dataclasses.replace(facts, workspace=0)


def with_room(facts: DeviceFacts) -> DeviceFacts:
    """The facts of the device, with as much memory for dS as a buffer can have."""
    return dataclasses.replace(facts, workspace=facts.storage_range)
