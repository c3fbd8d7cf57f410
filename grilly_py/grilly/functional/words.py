"""Keyword arguments of other libraries, for what has another name in functions that are not attention's.

Such a function ends with ``**unknown: NoReturn``: type checkers refuse what would go there, and a call pays for no more
than an empty dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..compute.attention.foreign import unknown

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
        **dict.fromkeys(("cos", "sin", "freqs_cis", "freqs"), "frequencies, (P,): cosines and sines are made of them"),
        **dict.fromkeys(("rotary_interleaved", "traditional", "interleave"), "interleaved"),
        "seqlen_offsets": "offset",
        "unsqueeze_dim": "nothing: rows are the last axis but one, (B, H, S, D)",
    },
}


def no_keyword(name: str, given: Iterable[str]) -> TypeError:
    """The error for keyword arguments that a function does not have, with what to give instead where it is known."""
    return unknown(name, given, _WORDS[name])


__all__ = ["no_keyword"]
