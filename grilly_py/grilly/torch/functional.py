"""``grilly.functional`` on PyTorch's tensors: each function by its name, lifted (``grilly.torch.lift``).

``scaled_dot_product_attention`` is the one with gradients, ``grilly.torch.scaled_dot_product_attention``. The others
refuse tensors that require grad, as `lift` says. ``grilly.torch.attention`` has gradients and all options of attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import functional as _functional
from .lift import lift as _lift
from .sdpa import scaled_dot_product_attention as scaled_dot_product_attention  # in place of the lifted one

__all__ = list(_functional.__all__)


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = _lift(getattr(_functional, name))
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
