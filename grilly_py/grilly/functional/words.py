"""Keyword arguments of other libraries, for what has another name in functions that are not attention's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ..compute.attention.foreign import unknown

_Function = TypeVar("_Function", bound=Callable[..., Any])
_INPLACE = {"inplace": "nothing: results are new arrays"}
_AXIS = {"axis": "dim", "dtype": "nothing: the result has input's dtype, and sums are float32; cast input before"}
_MEAN = dict.fromkeys(("size_average", "reduce"), "reduction")
_WORDS: dict[str, dict[str, str]] = {
    "relu": _INPLACE,
    "silu": _INPLACE,
    "dropout": {**_INPLACE, "dropout_p": "p"},
    "softmax": _AXIS,
    "log_softmax": _AXIS,
    "glu": {"axis": "dim"},
    "cross_entropy": _MEAN,
    "rope": {
        **dict.fromkeys(("theta", "rope_theta"), "base"),
        **dict.fromkeys(("position_ids", "input_pos"), "positions"),
        **dict.fromkeys(("cos", "sin", "freqs_cis"), "frequencies, (P,): cosines and sines are made of them"),
        "rotary_interleaved": "interleaved",
        "seqlen_offsets": "offset",
        "unsqueeze_dim": "nothing: rows are the last axis but one, (B, H, S, D)",
    },
}


def leads(function: _Function) -> _Function:
    """The function, whose error for a keyword of another library's says what to give instead."""
    name, words = function.__name__, _WORDS[function.__name__]

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError:
            known = [option for option in options if option in words]
            if known:
                raise unknown(name, known, words) from None
            raise

    return call  # type: ignore[return-value]


__all__ = ["leads"]
