"""What grilly's operations compute, in NumPy: the executable specification that every kernel is tested against.

Nothing here touches a device, and nothing else of grilly is imported. The functions compute in their inputs' dtype, or
in ``dtype`` where it is given; tests compare kernels with ``dtype=np.float64``. What float32 errs by depends on the
machine's BLAS, but inside `portable`.

Letters: B batch, H query heads, Hk key heads (Hk divides H), Sq and Sk numbers of queries and keys, D the width of q
and k, Dv the width of v. Arrays are ``(S, D)``, ``(H, S, D)`` or ``(B, H, S, D)``; q, k and v have the same rank.

The rules every attention here and on the device follows:

- scores are ``scale * q k^T``, then what the options say is added, then ``mask`` is applied, then the softmax is
  taken; `Options` has the options and the whole order;
- ``scale`` is ``1 / sqrt(D)`` unless given;
- a boolean ``mask`` attends where it is True, a floating one is added; in a floating mask minus infinity, anything
  below -3.0e38 and the lowest finite number of the mask's own dtype (-65504 in float16) all mean "never attend";
- ``causal=True`` is aligned to the bottom right: query i sees key j when ``j <= i + Sk - Sq``. With X for "sees"::

        Sq = 2, Sk = 4        Sq = 4, Sk = 2
        X X X .               . .
        X X X X               . .
                              X .
                              X X

- a query with nothing to attend to gives zeros, and minus infinity for its log-sum-exp;
- what a masked key or value holds, NaN and infinity included, never reaches the result.
"""

from .activations import activation, activation_backward, gated
from .attention import RunningState, attention_weights, flash_attention, merge, naive_attention
from .backward import Gradients, attention_backward
from .convolution import conv1d, conv1d_backward, conv2d, conv2d_backward
from .layers import linear, multihead, rope, rope_frequencies
from .losses import cross_entropy, cross_entropy_backward
from .modules import dropout, embedding, embedding_backward
from .norms import (
    group_norm,
    group_norm_backward,
    layer_norm,
    layer_norm_backward,
    log_softmax,
    log_softmax_backward,
    rms_norm,
    rms_norm_backward,
    softmax,
    softmax_backward,
)
from .options import NEVER, Options, never_attend
from .packed import attention_varlen, attention_varlen_backward
from .philox import dropout_mask, philox
from .random import random_integers, random_normal, random_uniform
from .rotary_scaling import rope_scaling
from .sums import matmul, portable
from .t5 import t5_bias, t5_bucket

__all__ = [
    "Gradients",
    "NEVER",
    "Options",
    "RunningState",
    "activation",
    "activation_backward",
    "attention_backward",
    "attention_varlen",
    "attention_varlen_backward",
    "attention_weights",
    "conv1d",
    "conv1d_backward",
    "conv2d",
    "conv2d_backward",
    "cross_entropy",
    "cross_entropy_backward",
    "dropout",
    "dropout_mask",
    "embedding",
    "embedding_backward",
    "flash_attention",
    "gated",
    "group_norm",
    "group_norm_backward",
    "layer_norm",
    "layer_norm_backward",
    "linear",
    "log_softmax",
    "log_softmax_backward",
    "matmul",
    "merge",
    "multihead",
    "naive_attention",
    "never_attend",
    "philox",
    "portable",
    "random_integers",
    "random_normal",
    "random_uniform",
    "rms_norm",
    "rms_norm_backward",
    "rope",
    "rope_frequencies",
    "rope_scaling",
    "softmax",
    "softmax_backward",
    "t5_bias",
    "t5_bucket",
]
