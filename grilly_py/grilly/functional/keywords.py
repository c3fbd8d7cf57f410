"""Keyword arguments of other libraries, for what has another name in functions that are not attention's.

Such a function ends with ``**unknown: NoReturn``: type checkers refuse what would go there, and a call pays for no more
than an empty dictionary. Where an argument that must be given has another name elsewhere, Python misses it first: there
`named` looks after the call.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..compute.attention.foreign import named, unknown

_INPLACE = {"inplace": "nothing: results are new arrays"}
_AXIS = {"axis": "dim", "dtype": "nothing: the result has input's dtype, and sums are float32; cast input before"}
_EPS = dict.fromkeys(("epsilon", "variance_epsilon", "rms_norm_eps", "layer_norm_eps"), "eps")
_SCALING = "nn.RoPE, which has scaling, or the frequencies and the factor of grilly.reference.rope_scaling"
_ROTATED = "nn.RoPE, which has dim, the elements of a row that are rotated; or frequencies, (P,), for 2 P of them"
_MEAN = dict.fromkeys(("size_average", "reduce"), "reduction")
_KEYWORDS: dict[str, dict[str, str]] = {
    **dict.fromkeys(("relu", "relu6", "silu", "mish", "elu", "selu", "celu", "leaky_relu", "hardtanh", "hardsigmoid",
                     "hardswish"), _INPLACE),  # fmt: skip
    "dropout": {**_INPLACE, "dropout_p": "p"},
    "softmax": _AXIS,
    "log_softmax": _AXIS,
    "glu": {"axis": "dim"},
    "cross_entropy": {**_MEAN, "labels": "target", "logits": "input"},
    "layer_norm": _EPS,
    "rms_norm": _EPS,
    "embedding": {
        **dict.fromkeys(("max_norm", "norm_type"), "nothing: rows are not scaled; give a table whose rows are"),
        **dict.fromkeys(("sparse", "scale_grad_by_freq"), "nothing: the gradient is a whole table, summed"),
    },
    "rope": {
        **dict.fromkeys(("theta", "rope_theta"), "base"),
        **dict.fromkeys(("position_ids", "input_pos"), "positions"),
        **dict.fromkeys(("cos", "sin", "freqs_cis", "freqs"), "frequencies, (P,): cosines and sines are made of them"),
        **dict.fromkeys(("rotary_interleaved", "traditional", "interleave"), "interleaved"),
        **dict.fromkeys(("seqlen_offset", "seqlen_offsets"), "offset"),
        **dict.fromkeys(("scaling", "rope_scaling", "rope_parameters"), _SCALING),
        **dict.fromkeys(("dim", "rotary_dim"), _ROTATED),
        "unsqueeze_dim": "nothing: rows are the last axis but one, (B, H, S, D)",
    },
}


def no_keyword(name: str, given: Iterable[str]) -> TypeError:
    """The error for keyword arguments that a function does not have, with what to give instead where it is known."""
    return unknown(name, given, _KEYWORDS.get(name, {}))


def keywords_of(name: str) -> dict[str, str]:
    """What to give instead of other libraries' keywords, of a function."""
    return _KEYWORDS[name]


__all__ = ["named", "no_keyword", "keywords_of"]
