"""dS in memory: the kernel for dk and dv stores it, and dq is one product in place of three.

dS has a number of 16 bits for each query and key. It is kept where a share of the device's memory holds it
(``DeviceFacts.workspace``), for all heads or for some at a time, whose two products then take turns with those of the
next ones. Where it does not fit, dq is found as without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...errors import UnsupportedError
from ...registry import Choice, Registry, Request
from ..device.device import DeviceFacts
from ..device.plan import Plan
from ..device.tensor import Tensor
from .backward_pieces import Piece
from .pieces import cut_up

OPERATION = "attention-backward-dq-stored"


def stored_dq(registry: Registry, request: Request, dkv: Choice) -> Choice | None:
    """The kernel for dq that reads what ``dkv`` stores; None where there is none. ``request`` is that for dq."""
    if "stored" not in dkv.tile:
        return None
    try:
        choice = registry.resolve(request._replace(operation=OPERATION))
    except UnsupportedError:
        return None
    return choice if choice.tile["stored"] == dkv.tile["stored"] else None


def storing(registry: Registry, request: Request, product: Choice) -> tuple[Choice, Choice | None]:
    """A kernel for dk and dv, which ``request`` asks for, and ``product`` where it stores what that reads.

    It need not be the one that calls get: a check of the product comes before anybody asked for it.
    """
    able = [
        variant for variant, reason in registry.explain(request)
        if reason is None and variant.tile.get("stored") == product.tile["stored"]
    ]  # fmt: skip
    if not able:
        return registry.resolve(request), None
    return registry.choice(max(able, key=registry.rank)), product


def nbytes(piece: Piece, choice: Choice) -> int:
    """Bytes of dS of a piece: of whole tiles of both kernels."""
    batch, heads, queries, _ = piece.views["q"].shape
    whole = choice.tile["stored"]
    rows, keys = (-(-count // whole) * whole for count in (queries, piece.views["k"].shape[2]))
    return 2 * batch * heads * rows * keys


def shares(
    facts: DeviceFacts, pieces: Sequence[Piece], dkv: Choice, queries: int, keys: int
) -> list[Piece] | None:
    """The dispatches for dk and dv whose dS is stored at a time; None where dS is not to be stored.

    ``pieces`` are the dispatches that do it without, for all ``queries`` and ``keys``. Two shares' dS are in memory at
    once, or that of the only one. Shares that would leave the device partly idle are not worth it.
    """
    if any(p.accumulate or (p.views["q"].shape[2], p.views["k"].shape[2]) != (queries, keys) for p in pieces):
        return None
    if len(pieces) == 1 and nbytes(pieces[0], dkv) <= min(facts.workspace, facts.storage_range):
        return list(pieces)
    most = min(facts.workspace // 2, facts.storage_range)

    def place(piece: Piece) -> tuple[str, int] | None:
        batch, kv_heads = piece.views["k"].shape[:2]
        if nbytes(piece, dkv) <= most or (batch == 1 and kv_heads == 1):
            return None
        return ("batch", batch // 2) if batch > 1 else ("head", kv_heads // 2)

    found = [share for piece in pieces for share in cut_up(piece, place)]
    tiles = -(-keys // dkv.tile["rows"])
    for share in found:
        batch, kv_heads = share.views["k"].shape[:2]
        if nbytes(share, dkv) > most or tiles * batch * kv_heads < 2 * facts.units:
            return None
    return found


def for_dq(share: Piece, dq: Tensor) -> Piece:
    """The dispatch that finds the rows of ``dq``, (B, H, Sq, D) of the whole call, that belong to a share."""
    batch, heads = share.views["q"].shape[:2]
    at = (slice(share.first[0], share.first[0] + batch), slice(share.first[1], share.first[1] + heads))
    views = {name: view for name, view in share.views.items() if name not in ("dk", "dv")}
    return Piece({**views, "dq": dq[at]}, share.shift, first=share.first)


def flops(piece: Piece) -> float:
    """Floating-point operations of the product with dS."""
    batch, heads, queries, dim = piece.views["q"].shape
    return 2.0 * batch * heads * queries * piece.views["k"].shape[2] * dim


def stores(plan: Plan) -> bool:
    """Whether a plan of gradients keeps dS in memory."""
    return any(step.choice.variant.operation == OPERATION for step in plan.steps)


def without(facts: DeviceFacts) -> DeviceFacts:
    """The facts of the device, with no memory for dS."""
    return dataclasses.replace(facts, workspace=0)


def with_room(facts: DeviceFacts) -> DeviceFacts:
    """The facts of the device, with as much memory for dS as a buffer can have."""
    return dataclasses.replace(facts, workspace=facts.storage_range)
