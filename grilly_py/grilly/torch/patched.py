"""``grilly.torch.patched``: PyTorch's own attention function, done by grilly inside a with statement."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import OutOfDeviceMemoryError, UnsupportedError
from ..runtime.lifetime import hold_over_fork
from .arrays import FLOATS, plain_mask
from .sdpa import scaled_dot_product_attention

#: Widest heads that kernels take.
_MOST = 256


class Patched:
    """What became of the calls of ``torch.nn.functional.scaled_dot_product_attention`` in a ``patched()`` block.

    Attributes
    ----------
    calls : int
        Calls that grilly did.
    left : collections.Counter
        Calls that were left to PyTorch, by reason.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.left: collections.Counter[str] = collections.Counter()

    def __repr__(self) -> str:
        text = f"{self.calls} call{'s' * (self.calls != 1)} by grilly, {sum(self.left.values())} left to PyTorch"
        return text + "".join(f"\n  {count} x {reason}" for reason, count in self.left.most_common())


_reports: contextvars.ContextVar[tuple[Patched, ...]] = contextvars.ContextVar("grilly.torch.patched", default=())
_lock = threading.Lock()  # of what follows, and of reports, which threads may share
hold_over_fork(_lock)
_blocks = 0
_ours: Callable[..., torch.Tensor] | None = None
_own: Callable[..., torch.Tensor] | None = None


@contextlib.contextmanager
def patched() -> Iterator[Patched]:
    """Let grilly do ``torch.nn.functional.scaled_dot_product_attention`` inside a ``with`` block.

    What grilly can do, it does as ``grilly.torch.scaled_dot_product_attention``: tensors of float32, float16 and
    bfloat16, of the CPU or of the backend's GPU. Everything else is left to PyTorch, and the block's object says how
    often and why::

        with grilly.torch.patched() as report:
            model(x)
        print(report)

    It holds for the thread (the context of ``contextvars``) that enters the block; other threads keep PyTorch's. Blocks
    may be inside one another: each counts what is called within it. The function is put back when the last block of all
    threads ends, also by an exception.

    Yields
    ------
    Patched
        Counts and reasons.

    Notes
    -----
    Modules that never call the function are not reached: ``torch.nn.TransformerEncoderLayer`` has a fused operator of
    its own for inference. While PyTorch compiles, its own function is traced: compiled code calls
    ``grilly.torch.scaled_dot_product_attention`` by name.
    """
    report = Patched()
    _install()
    _reports.set((*_reports.get(), report))
    try:
        yield report
    finally:
        # Which may be in another context, as where a generator is closed by another task: a token would not do there.
        _reports.set(tuple(each for each in _reports.get() if each is not report))
        _remove()


def _install() -> None:
    global _blocks, _ours, _own
    with _lock:
        _blocks += 1
        if _blocks == 1:
            _own = torch.nn.functional.scaled_dot_product_attention
            _ours = _replacement(_own)
            torch.nn.functional.scaled_dot_product_attention = _ours


def _remove() -> None:
    global _blocks
    with _lock:
        _blocks -= 1
        # Another's replacement, put there within the block, stays; it calls ours, which then calls PyTorch's.
        if _blocks == 0 and torch.nn.functional.scaled_dot_product_attention is _ours:
            torch.nn.functional.scaled_dot_product_attention = _own  # type: ignore[assignment]


def _replacement(own: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(own)
    def attend(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: Any = 0.0, is_causal: Any = False,
        scale: Any = None, enable_gqa: Any = False,
    ) -> torch.Tensor:  # fmt: skip
        # PyTorch's own takes the last two by keyword only.
        # A CausalBias knows PyTorch's function by its name, which is this function's now.
        args = (query, key, value, plain_mask(attn_mask, query), dropout_p, is_causal)
        more = {"scale": scale, "enable_gqa": enable_gqa}
        if torch.compiler.is_compiling():
            return own(*args, **more)
        reports = _reports.get()
        if not reports:
            return own(*args, **more)
        reason = _why_not(*args[:4])
        if reason is None:
            try:
                out = scaled_dot_product_attention(*args, **more)
            except (TypeError, ValueError, UnsupportedError, OutOfDeviceMemoryError) as error:
                reason = str(error)  # PyTorch does it, or says in its own words what is wrong
            else:
                with _lock:
                    for report in reports:
                        report.calls += 1
                return out
        with _lock:
            for report in reports:
                report.left[reason] += 1
        return own(*args, **more)

    return attend


def _why_not(query: Any, key: Any, value: Any, attn_mask: Any) -> str | None:
    """Why grilly cannot do a call, as far as the tensors' kinds tell; None where they do not."""
    for tensor in (query, key, value, attn_mask):
        if tensor is None:
            continue
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return f"a {type(tensor).__name__} in place of a plain tensor"
        if tensor.device.type not in ("cpu", "cuda"):
            return f"tensors on {tensor.device.type}"
        if tensor.device != query.device:
            return "tensors on different devices"
        if tensor.is_nested:
            return "nested tensors"
        if tensor.layout != torch.strided:
            return f"tensors that are {tensor.layout}"
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return "a transform of torch.func"
        if torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None:
            return "forward-mode differentiation"
    if query.dtype not in FLOATS:
        return f"{query.dtype}"
    if key.dtype != query.dtype or value.dtype != query.dtype:
        return "differing dtypes"
    kind = query.device.type
    if torch.is_autocast_enabled(kind) and query.dtype != torch.get_autocast_dtype(kind):
        return "autocast to another dtype"
    if max(query.shape[-1:], default=0) > _MOST or max(value.shape[-1:], default=0) > _MOST:
        return f"heads wider than {_MOST}"
    return None
