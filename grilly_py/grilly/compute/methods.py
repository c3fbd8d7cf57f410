"""``backend.attention``: the attention operations of one backend, bound to it."""

from __future__ import annotations

from .attention import backward
from .attention.forward import flash_attention
from .attention.options import options_of, with_options
from .device.device import Device
from .device.numbers import integer
from .unfused import mask as unfused_mask
from .unfused import output as unfused_output
from .unfused import scores as unfused_scores
from .unfused import softmax as unfused_softmax
from .unfused import t5_bias as unfused_t5_bias

ATTENTION_DOC = """

        With B the batch, H the query heads, N_q queries, N_kv keys and D, D_v the head dimensions, row i of a head is

            output[i] = sum_j softmax_j(scale * q[i] . k[j] + mask[i, j]) v[j]

        (a score is scaled, soft-capped, added to, masked, in this order; then softmax with sinks, then dropout),
        computed tile by tile with the online softmax, so that no N_q x N_kv matrix is ever stored. Sums and
        exponentials are float32 whatever the inputs are; on matrix units the weights of 16-bit inputs are rounded to
        their type before they multiply v, as in the FlashAttention papers' kernels.

        Parameters
        ----------
        q : numpy.ndarray or grilly.Tensor
            ``(B, H, N_q, D)``, ``(H, N_q, D)`` or ``(N_q, D)``; float32, float16 or bfloat16; D from 1 to 256.
        k, v : numpy.ndarray or grilly.Tensor
            ``(B, H_kv, N_kv, D)`` and ``(B, H_kv, N_kv, D_v)``, of q's rank and dtype. H_kv divides H: query
            head h uses key head h // (H / H_kv) (grouped-query attention).
        mask : numpy.ndarray or grilly.Tensor, optional
            Broadcastable to ``(B, H, N_q, N_kv)``. Boolean: True = attend (as in PyTorch's
            scaled_dot_product_attention, the opposite of its MultiheadAttention). Floating: added to the scaled
            scores; minus infinity and the dtype's lowest finite number both mean "never attend".
        attn_bias : numpy.ndarray or grilly.Tensor, optional
            Floating, broadcastable to ``(B, H, N_q, N_kv)``: added to the scaled scores, beside a
            mask if both are given.
        causal : bool
            Query i attends to key j only where ``j <= i + N_kv - N_q``: the mask is aligned to the bottom right, as in
            FlashAttention from 2.1 on. For N_q = 2, N_kv = 4 and for N_q = 4, N_kv = 2::

                1 1 1 0        0 0
                1 1 1 1        0 0
                               1 0
                               1 1
        scale : float, optional
            Multiplies the scores; ``1 / sqrt(D)`` when None.
        return_lse : bool
            Also return the log-sum-exp of each row's scores.
        kernel : str, optional
            Use only this shader family ("flash-attention2", "attention-naive", ...); None lets the registry choose.
        precision : str
            What float32 may be computed from. "highest" (default): float32 products only. "high": from 16 columns on,
            matrix units where the device has them, each number split into two float16 parts with a power of two for
            each tile. What parts cannot hold goes to vector units: scores that might pass 2**20, numbers of v whose
            neighbours in the tile of keys are 2**14 times as large and more, NaN, infinities. On an H200 the root
            mean square error was at most twice NumPy's in float32 for 14 of 16 kinds of input; for two with scores of
            1e4 and more, all of them on vector units, up to 10 times it (docs/benchmarks/float32-matrix.md). One column
            of v beside another of the same four that is 2**16 times as large and more keeps fewer bits. No effect on
            16-bit types, nor where the device lacks matrix units or the heads are wider than its kernels.
        softcap : float
            Above 0: a scaled score s becomes ``softcap * tanh(s / softcap)``, before anything is added to it. From
            2**100 up it leaves all scores as they are.
        alibi_slopes : array, optional
            ``(H,)`` or ``(B, H)`` float32: adds ``-slope * |j - (i + N_kv - N_q)|``.
        t5_table : array, optional
            ``(num_buckets, H)`` float32: adds the entry of the bucket of ``j - (i + N_kv - N_q)``, as ``t5_bias`` does
            but without an N_q x N_kv array; ``t5_bidirectional`` and ``t5_max_distance`` are as there.
        sinks : array, optional
            ``(H,)`` float32: a logit that takes part in each row's softmax and has no value. lse includes it.
        window_size : (left, right), optional
            Only keys with ``-left <= j - (i + N_kv - N_q) <= right``; None or -1 sets no bound. ``causal`` sets
            right to 0.
        prefix_len : array, optional
            ``(B,)`` integers: the first so many keys are seen by every query, whatever causal and window_size say.
        segment_ids : array or tuple of two, optional
            Integers of any type, int32 in a Tensor, ``(B or 1, N_q)`` and ``(B or 1, N_kv)`` (one array where
            N_q = N_kv): a query sees only keys of its own segment.
        seqlens_q, seqlens_k : array, optional
            ``(B,)`` integers: of each sample only the first so many queries and keys exist. Further rows are zeros with
            an lse of minus infinity. N_q and N_kv above are then the sample's own. Tensors are read to the host.
        block_map, block_size : array and (bq, bk), optional
            ``(B or 1, H or 1, ceil(N_q / bq), ceil(N_kv / bk))`` bool: only blocks that are True are attended to.
        dropout_p, dropout_seed, dropout_offset : float, int, int
            Each weight is dropped with probability dropout_p, and the others are divided by ``1 - dropout_p``.
            Which ones depends only on seed (64 bits), offset (32 bits), batch, head, query and key;
            ``F.dropout_mask`` tells.

        Returns
        -------
        output : numpy.ndarray or grilly.Tensor
            ``(B, H, N_q, D_v)`` (less the axes that q lacks), in the dtype of q; a Tensor when an input was one, and
            then without waiting. A row with nothing to attend to is zeros.
        lse : numpy.ndarray or grilly.Tensor
            ``(B, H, N_q)`` float32, natural logarithm; minus infinity for a row with nothing to attend to. Only with
            ``return_lse``.

        Raises
        ------
        TypeError
            For dtypes other than float32, float16 and bfloat16, differing dtypes, or a mask that is neither boolean nor
            floating.
        ValueError
            For shapes that do not go together, a mask that does not broadcast, numbers out of their range, a scale that
            is not finite or beyond 2.3e38, or another precision.
        UnsupportedError
            When no kernel for this device and dtype exists; the message lists each with what it lacks.
        OutOfDeviceMemoryError
            When the device has no room for the arrays.

        References
        ----------
        T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023,
        arXiv:2307.08691, algorithm 1. The split: H. Ootomo and R. Yokota, "Recovering single precision accuracy from
        Tensor Cores while surpassing the FP32 theoretical peak performance", 2022.
"""


class Attention:
    """The attention operations of one ``grilly.Compute``."""

    def __init__(self, device: Device):
        self._device = device

    def flash_attention2(
        self, q, k, v, *, mask=None, causal=False, scale=None, return_lse=False, kernel=None, precision="highest",
        **options,
    ):  # fmt: skip
        return flash_attention(
            "flash_attention2", self._device, q, k, v,
            mask=mask, causal=causal, scale=scale, return_lse=return_lse, kernel=kernel, precision=precision,
            options=options_of("flash_attention2", options),
        )  # fmt: skip

    def flash_attention2_backward(
        self, grad_out, q, k, v, out, lse, *, mask=None, causal=False, scale=None, return_dbias=False,
        return_dsinks=False, return_dt5_table=False, **options,
    ):  # fmt: skip
        return backward.flash_attention_backward(
            self._device, grad_out, q, k, v, out, lse, mask=mask, causal=causal, scale=scale,
            return_dbias=return_dbias, return_dsinks=return_dsinks, return_dt5_table=return_dt5_table,
            options=options_of(backward.NAME, options),
        )  # fmt: skip

    def flash_attention3(
        self,
        q,
        k,
        v,
        *,
        num_heads=None,
        head_dim=None,
        num_kv_heads=None,
        mask=None,
        causal=False,
        scale=None,
        return_lse=False,
        kernel=None,
        precision="highest",
        **options,
    ):
        options = {
            "mask": mask, "causal": causal, "scale": scale, "return_lse": return_lse, "kernel": kernel,
            "precision": precision, "options": options_of("flash_attention3", options),
        }  # fmt: skip
        name = "flash_attention3"
        if num_heads is None or len(getattr(q, "shape", ())) != 3:
            check_heads(name, q, num_heads, head_dim)
            return flash_attention(name, self._device, q, k, v, **options)
        for label, count in (("num_heads", num_heads), ("num_kv_heads", num_kv_heads), ("head_dim", head_dim)):
            if count is not None:
                integer(name, label, count)
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        q, k, v = (
            split_heads(name, label, array, heads, head_dim if label != "v" else None)
            for label, array, heads in (("q", q, num_heads), ("k", k, kv_heads), ("v", v, kv_heads))
        )
        result = flash_attention(name, self._device, q, k, v, **options)
        return (join_heads(result[0]), *result[1:]) if return_lse else join_heads(result)

    def attention_scores(self, q, k, *, scale=None):
        return unfused_scores.attention_scores(self._device, q, k, scale=scale)

    def attention_mask(self, scores, *, mask=None, causal=False):
        return unfused_mask.attention_mask(self._device, scores, mask=mask, causal=causal)

    def t5_bias(self, scores, table, *, bidirectional=True, max_distance=128, offset=0):
        return unfused_t5_bias.t5_bias(
            self._device, scores, table, bidirectional=bidirectional, max_distance=max_distance, offset=offset
        )

    def softmax(self, x):
        return unfused_softmax.softmax(self._device, x)

    def attention_output(self, weights, v, *, architecture="generic"):
        return unfused_output.attention_output(self._device, weights, v, architecture=architecture)


for _method in (Attention.flash_attention2, Attention.flash_attention3, Attention.flash_attention2_backward):
    _method.__signature__ = with_options(_method)
for _step in (
    unfused_scores.attention_scores, unfused_mask.attention_mask, unfused_t5_bias.t5_bias, unfused_softmax.softmax,
    unfused_output.attention_output,
):  # fmt: skip
    getattr(Attention, _step.__name__).__doc__ = _step.__doc__
Attention.flash_attention2_backward.__doc__ = backward.DOC
Attention.flash_attention2.__doc__ = "Exact attention (FlashAttention-2)." + ATTENTION_DOC
Attention.flash_attention3.__doc__ = (
    """Exact attention, also on arrays whose heads are joined (FlashAttention-3's interface).

        The same function as ``flash_attention2``; the registry chooses the fastest kernel the device can run for both.
        With ``num_heads`` (and optionally ``head_dim``, which is then checked, and ``num_kv_heads`` for grouped heads),
        three-axis arrays are read as ``(B, S, num_heads * head_dim)`` and the output has that layout."""
    + ATTENTION_DOC
    + """        J. Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision",
        2024, arXiv:2407.08608.
"""
)


def check_heads(operation: str, q, num_heads, head_dim) -> None:
    """Raise ValueError when four-axis ``q`` disagrees with the stated numbers."""
    shape = tuple(getattr(q, "shape", ()))
    if len(shape) != 4:
        if num_heads is None and head_dim is None:
            return
        raise ValueError(
            f"{operation}: q has shape {shape}; with num_heads give (B, H, S, D) or (B, S, num_heads * head_dim)"
        )
    for name, value, got in (("num_heads", num_heads, shape[1]), ("head_dim", head_dim, shape[3])):
        if value is not None and value != got:
            raise ValueError(f"{operation}: {name} is {value} and q has shape {shape}, where it is {got}")


def split_heads(operation: str, name: str, array, num_heads: int, head_dim: int | None = None):
    """``(B, S, H * D)`` as ``(B, H, S, D)``, a view. Raises ValueError when the last axis does not divide."""
    shape = tuple(getattr(array, "shape", ()))
    if len(shape) != 3:
        raise ValueError(f"{operation}: {name} has shape {shape}; expected (B, S, num_heads * head_dim) like q")
    if num_heads < 1 or shape[2] % num_heads or (head_dim is not None and shape[2] != num_heads * head_dim):
        want = "num_heads" if head_dim is None else f"num_heads * head_dim = {num_heads} * {head_dim}"
        raise ValueError(f"{operation}: {name}'s last axis has {shape[2]} elements, which is no multiple of {want}"
                         if head_dim is None else
                         f"{operation}: {name}'s last axis has {shape[2]} elements; expected {want}")  # fmt: skip
    return array.reshape(shape[0], shape[1], num_heads, shape[2] // num_heads).transpose(0, 2, 1, 3)


def join_heads(array):
    """``(B, H, S, D)`` as ``(B, S, H * D)``; a view where the heads lie side by side in memory."""
    batch, heads, rows, dim = array.shape
    return array.transpose(0, 2, 1, 3).reshape(batch, rows, heads * dim)
