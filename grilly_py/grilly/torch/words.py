"""Other libraries' keywords: what errors say to give instead, by the names of functions that take PyTorch's tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping

_OURS = {
    "flash_attention2": "grilly.torch.attention",
    "scaled_dot_product_attention": "grilly.torch.scaled_dot_product_attention",
}


def in_torch(words: Mapping[str, str]) -> dict[str, str]:
    """The words of a function of ``grilly.functional`` for its like on PyTorch's tensors."""

    def named(found: re.Match[str]) -> str:
        return _OURS.get(found[1], f"grilly.torch.functional.{found[1]}")

    return {name: re.sub(r"\bF\.(\w+)", named, word) for name, word in words.items()}
