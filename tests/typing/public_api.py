"""A program that uses every public name, for type checkers alone: tests/test_typing.py has mypy --strict read it.

``assert_type`` says what a call gives. A line with ``# type: ignore[...]`` is an error that must be found: where it is
not, mypy says that the comment is unused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import grilly
import grilly.functional as F
from grilly import models, nn
from grilly.compute import Profile

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]
Mixed = NDArray[Any] | grilly.Tensor


def package(array: Floats) -> None:
    assert_type(grilly.__version__, str)
    for info in grilly.devices():
        assert_type(info.name, str)
    try:
        backend = grilly.Compute(0, runtime="vulkan", memory_limit=1 << 30, progress=True)
    except grilly.NoDeviceError as error:
        base: grilly.GrillyError = error
        raise base from None
    with backend:
        former = grilly.use(backend)
        assert_type(former, grilly.Compute | None)
        tensor = backend.tensor(array)
        assert_type(tensor, grilly.Tensor)
        assert_type(tensor.numpy(), NDArray[Any])
        assert_type(tensor.shape, tuple[int, ...])
        assert_type(tensor.reshape(2, -1).transpose(1, 0).T[None, ..., 0, 1:], grilly.Tensor)
        assert_type(tensor.astype("bfloat16").contiguous(), grilly.Tensor)
        assert_type(np.asarray(tensor), NDArray[Any])
        assert_type(backend.empty((2, 3), np.float16), grilly.Tensor)
        assert_type(backend.host_empty(3), Floats)
        graph = backend.capture(lambda x: (F.softmax(tensor), 1), array)
        assert_type(graph, grilly.Graph[tuple[grilly.Tensor, int]])
        assert_type(graph(array, copy=False), tuple[grilly.Tensor, int])
        assert_type(graph.memory + graph.dispatches + graph.submissions, int)
        with backend.profile("row") as profile:
            backend.synchronize()
        assert_type(profile, Profile)
        assert_type(profile.seconds, float)
        assert_type(backend.memory(reset_peak=True).peak, int)
    assert_type(grilly.pinned.empty((2, 3)), Floats)
    assert_type(grilly.pinned.empty(3, np.int32), NDArray[np.int32])
    assert_type(grilly.pinned.empty((2, 3), "float16"), NDArray[Any])
    assert_type(grilly.pinned.asarray([1.0, 2.0]), NDArray[Any])
    grilly.manual_seed(3)
    failures = (grilly.CaptureError, grilly.ClosedError, grilly.DeviceLostError, grilly.OutOfDeviceMemoryError,
                grilly.ShaderError, grilly.UnsupportedError, grilly.SelfCheckWarning)  # fmt: skip
    assert all(issubclass(failure, Exception) for failure in failures)
    checked: NDArray[Any] = grilly.reference.linear(array, array)
    checked = grilly.reference.gated("silu", array, grilly.reference.activation("gelu", array, dtype=np.float64))
    checked = grilly.reference.activation_backward("gelu_tanh", checked, array)
    assert checked.size
    assert grilly.functional is F and grilly.nn is nn and grilly.integrations.__name__

    grilly.Compute(devise=0)  # type: ignore[call-arg]
    print(grilly.no_such_name)  # type: ignore[attr-defined]
    tensor(array)  # type: ignore[operator]
    tensor.nump()  # type: ignore[attr-defined]
    with backend.profile("rows"):  # type: ignore[arg-type]
        pass
    wrong: int = grilly.pinned.empty(3)  # type: ignore[assignment]
    assert wrong



def arrays(x: grilly.Tensor, n: Floats) -> None:
    """The functions of the array API standard."""
    one: list[Callable[[grilly.Tensor], grilly.Tensor]] = [
        grilly.abs, grilly.acos, grilly.acosh, grilly.asin, grilly.asinh, grilly.atan, grilly.atanh,
        grilly.bitwise_invert, grilly.ceil, grilly.conj, grilly.cos, grilly.cosh, grilly.erf, grilly.exp, grilly.expm1,
        grilly.floor, grilly.isfinite, grilly.isinf, grilly.isnan, grilly.log, grilly.log10, grilly.log1p, grilly.log2,
        grilly.logical_not, grilly.negative, grilly.positive, grilly.real, grilly.reciprocal, grilly.round,
        grilly.sign, grilly.signbit, grilly.sin, grilly.sinh, grilly.sqrt, grilly.square, grilly.tan, grilly.tanh,
        grilly.trunc, grilly.matrix_transpose, grilly.tril, grilly.triu, grilly.empty_like, grilly.ones_like,
        grilly.zeros_like, grilly.flip, grilly.sum, grilly.prod, grilly.mean, grilly.var, grilly.std, grilly.max,
        grilly.min, grilly.any, grilly.all, grilly.argmax, grilly.argmin, grilly.count_nonzero, grilly.cumulative_sum,
        grilly.cumulative_prod, grilly.diff, grilly.asarray, grilly.from_dlpack, grilly.expand_dims,
    ]  # fmt: skip
    two: list[Callable[[grilly.Tensor, grilly.Tensor], grilly.Tensor]] = [
        grilly.add, grilly.atan2, grilly.bitwise_and, grilly.bitwise_left_shift, grilly.bitwise_or,
        grilly.bitwise_right_shift, grilly.bitwise_xor, grilly.copysign, grilly.divide, grilly.equal,
        grilly.floor_divide, grilly.greater, grilly.greater_equal, grilly.hypot, grilly.less, grilly.less_equal,
        grilly.logaddexp, grilly.logical_and, grilly.logical_or, grilly.logical_xor, grilly.maximum, grilly.minimum,
        grilly.multiply, grilly.nextafter, grilly.not_equal, grilly.pow, grilly.remainder, grilly.subtract,
        grilly.matmul, grilly.vecdot, grilly.tensordot, grilly.take, grilly.take_along_axis, grilly.repeat,
    ]  # fmt: skip
    assert len(one) + len(two)
    assert_type(x + 1 - n * x / 2, grilly.Tensor)
    assert_type(grilly.linalg.cross(x, x, axis=0), grilly.Tensor)
    assert_type(grilly.linalg.diagonal(x, offset=1), grilly.Tensor)
    assert_type(grilly.linalg.trace(x), grilly.Tensor)
    assert_type(grilly.linalg.outer(x, x), grilly.Tensor)
    assert_type(grilly.linalg.vector_norm(x, axis=(0, 1), ord=1), grilly.Tensor)
    assert_type(grilly.linalg.matrix_norm(x, ord="fro", keepdims=True), grilly.Tensor)
    assert_type(grilly.linalg.matrix_power(x, 3), grilly.Tensor)
    assert_type(grilly.linalg.vecdot(grilly.linalg.matmul(x, x), x), grilly.Tensor)
    assert_type(grilly.linalg.tensordot(grilly.linalg.matrix_transpose(x), x, axes=1), grilly.Tensor)
    grilly.linalg.matrix_norm(x, ord="nuc")  # type: ignore[arg-type]
    assert_type(grilly.clip(x, 0, 1), grilly.Tensor)
    assert_type(grilly.where(x > 0, x, 0.0), grilly.Tensor)
    assert_type(grilly.astype(x, grilly.float16), grilly.Tensor)
    assert_type(grilly.can_cast(grilly.int8, grilly.int16), bool)
    assert_type(grilly.isdtype(grilly.int32, "integral"), bool)
    assert_type(grilly.finfo(grilly.float32).bits, int)
    assert grilly.result_type(x, grilly.int64) and grilly.iinfo(grilly.uint8)
    assert_type(grilly.zeros((2, 3), dtype=grilly.uint16), grilly.Tensor)
    assert_type(grilly.ones(3, dtype=grilly.uint32), grilly.Tensor)
    assert_type(grilly.empty((2, 3)), grilly.Tensor)
    assert_type(grilly.full((2,), grilly.pi), grilly.Tensor)
    assert_type(grilly.full_like(x, grilly.e), grilly.Tensor)
    assert_type(grilly.arange(0, 10, 2), grilly.Tensor)
    assert_type(grilly.linspace(0.0, 1.0, 5), grilly.Tensor)
    assert_type(grilly.eye(3), grilly.Tensor)
    assert_type(grilly.meshgrid(x, x, indexing="ij"), list[grilly.Tensor])
    assert_type(grilly.broadcast_to(x, (4, 3)), grilly.Tensor)
    assert_type(grilly.broadcast_arrays(x, x), list[grilly.Tensor])
    assert_type(grilly.concat([x, x], axis=0), grilly.Tensor)
    assert_type(grilly.stack([x, x]), grilly.Tensor)
    assert_type(grilly.unstack(x), tuple[grilly.Tensor, ...])
    assert_type(grilly.split(x, 2), list[grilly.Tensor])
    assert_type(grilly.squeeze(x, 0), grilly.Tensor)
    assert_type(grilly.reshape(x, (-1,)), grilly.Tensor)
    assert_type(grilly.permute_dims(x, (1, 0)), grilly.Tensor)
    assert_type(grilly.moveaxis(x, 0, 1), grilly.Tensor)
    assert_type(grilly.roll(x, 1, axis=0), grilly.Tensor)
    assert_type(grilly.tile(x, (2, 1)), grilly.Tensor)
    assert_type(grilly.nonzero(x), tuple[grilly.Tensor, ...])
    assert_type(grilly.sort(x, axis=0, descending=True), grilly.Tensor)
    assert_type(grilly.argsort(x, axis=0), grilly.Tensor)
    assert_type(grilly.topk(x, 5, largest=False), tuple[grilly.Tensor, grilly.Tensor])
    assert_type(grilly.searchsorted(x, x, side="right", sorter=x), grilly.Tensor)
    assert_type(grilly.isin(x, x, invert=True), grilly.Tensor)
    assert_type(grilly.unique_values(x), grilly.Tensor)
    assert_type(grilly.unique_all(x).counts, grilly.Tensor)
    assert_type(grilly.unique_counts(x).values, grilly.Tensor)
    assert_type(grilly.unique_inverse(x).inverse_indices, grilly.Tensor)
    assert_type(grilly.random.normal((2, 3), mean=1.0, std=0.5, dtype=grilly.float16, seed=1, offset=2), grilly.Tensor)
    assert_type(grilly.random.uniform(5, low=-1.0, high=1.0), grilly.Tensor)
    assert_type(grilly.random.integers(0, 10, (5,), dtype=grilly.int32), grilly.Tensor)
    grilly.random.manual_seed(0)
    grilly.random.normal((2, 3), scale=2.0)  # type: ignore[call-arg]
    assert x[grilly.newaxis].shape and grilly.inf > 0 and grilly.nan != 0 and grilly.bool
    assert grilly.__array_api_version__ and grilly.__array_namespace_info__()

    grilly.sum(x, axes=0)  # type: ignore[arg-type]
    grilly.stack(x, x)  # type: ignore[arg-type]
    grilly.roll(x)  # type: ignore[call-arg]
    grilly.topk(x)  # type: ignore[call-arg]


def later(tensor: grilly.Tensor) -> None:
    download = tensor.download()
    assert_type(download.numpy(), NDArray[Any])
    assert_type(download.shape, tuple[int, ...])
    download.numpy(3)  # type: ignore[call-arg]


def configured(array: Floats, tensor: grilly.Tensor) -> None:
    config = grilly.FlashConfig(block_q=64, block_kv=64, scale=0.5, causal=True)
    config = grilly.FlashConfig.for_head_dim(64, dtype=np.float16, causal=True)
    result = F.flash_attention(array, array, array, config)
    assert_type(result, grilly.FlashResult)
    assert_type(result.blocks, tuple[int, int] | None)
    assert_type(result.memory_bytes, int)
    assert_type(F.naive_attention(array, array, array, scale=0.5), tuple[Floats, int])
    assert_type(F.naive_attention(tensor, tensor, tensor), tuple[grilly.Tensor, int])
    (row,) = grilly.benchmark_flash_attention([128], heads=2, show=False, config=config)
    assert_type(row.flash_seconds, float)

    grilly.FlashConfig(block=64)  # type: ignore[call-arg]
    F.flash_attention(array, array, array, causal=True)  # type: ignore[call-arg]
    F.naive_attention(array, array, array, causal=True)  # type: ignore[call-overload]
    grilly.benchmark_flash_attention([128], head=2)  # type: ignore[call-arg]


def attention(q: Floats, half: Halves, double: NDArray[np.float64], tensor: grilly.Tensor, mask: NDArray[np.bool_],
              some: Mixed, whole: NDArray[np.int64], lse: bool) -> None:  # fmt: skip
    assert_type(F.flash_attention2(q, q, q), Floats)
    assert_type(F.flash_attention2(half, half, half, causal=True), Halves)
    assert_type(F.flash_attention2(tensor, tensor, tensor, mask=mask), grilly.Tensor)
    assert_type(F.flash_attention2(tensor, q, q), grilly.Tensor)
    assert_type(F.flash_attention2(q, tensor, q), Mixed | tuple[Mixed, Mixed])
    assert_type(F.flash_attention2(half, half, half, return_lse=True), tuple[Halves, Floats])
    assert_type(F.flash_attention2(tensor, tensor, tensor, return_lse=True), tuple[grilly.Tensor, grilly.Tensor])
    assert_type(F.flash_attention2(q, q, q, return_lse=lse), Mixed | tuple[Mixed, Mixed])
    F.flash_attention2(some, some, some)
    F.flash_attention2(
        q, q, q, mask=mask, attn_bias=double, causal=True, scale=0.5, kernel="flash-attention2", precision="high",
        alibi_slopes=[0.5, 0.25], t5_table=tensor, t5_bidirectional=False, t5_max_distance=64, softcap=30.0,
        sinks=double, window_size=(64, None), prefix_len=[1], segment_ids=(whole, whole), seqlens_q=whole,
        seqlens_k=tensor, block_map=mask, block_size=(64, 64), dropout_p=0.1, dropout_seed=whole[0], dropout_offset=1,
    )  # fmt: skip
    assert_type(F.flash_attention3(q, q, q, num_heads=4, head_dim=16, num_kv_heads=2, softcap=1.0), Floats)
    assert_type(F.flash_attention3(tensor, tensor, tensor, return_lse=True), tuple[grilly.Tensor, grilly.Tensor])
    assert_type(F.flash_attention2_backward(q, q, q, q, q, q, sinks=q, return_dsinks=True), tuple[NDArray[Any], ...])
    dq, dk, dv = F.flash_attention2_backward(tensor, tensor, tensor, tensor, tensor, tensor, causal=True)
    assert_type(dq, grilly.Tensor)

    F.flash_attention2(q, q, q, casual=True)  # type: ignore[call-overload]
    F.flash_attention2(q, q, q, causal="yes")  # type: ignore[call-overload]
    F.flash_attention2(q, q, q, precision="higher")  # type: ignore[call-overload]
    F.flash_attention2(q, q, q, num_heads=4)  # type: ignore[call-overload]
    F.flash_attention2(double, double, double)  # type: ignore[type-var]
    F.flash_attention2(q, q, double)  # type: ignore[type-var]
    F.flash_attention2(q, q, q, mask=whole)  # type: ignore[arg-type]
    F.flash_attention2(q, q, q, seqlens_k=double)  # type: ignore[arg-type]
    F.flash_attention2(q, q, q).numpy()  # type: ignore[attr-defined]
    F.flash_attention2(tensor, tensor, tensor).sum()  # type: ignore[attr-defined]
    print(F.flash_attention2(q, q, q, return_lse=True).shape)  # type: ignore[attr-defined]
    F.flash_attention3(q, q, q, heads=4)  # type: ignore[call-overload]
    F.flash_attention2_backward(q, q, q, q, q, q, return_dmask=True)  # type: ignore[call-overload]
    F.flash_attention2_backward(q, q, q, q, q)  # type: ignore[call-overload]


def interfaces(q: Floats, tensor: grilly.Tensor, mask: NDArray[np.bool_], starts: NDArray[np.int32]) -> None:
    assert_type(F.scaled_dot_product_attention(q, q, q, mask, 0.1, False, scale=0.5, enable_gqa=True), Floats)
    assert_type(F.scaled_dot_product_attention(tensor, tensor, tensor, is_causal=True), grilly.Tensor)
    assert_type(F.flash_attention_varlen(q, q, q, starts, starts, 7, starts.max(), window_size=(3, 0)), Floats)
    assert_type(
        F.flash_attention_varlen(tensor, tensor, tensor, [0, 3], [0, 3], 3, 3, return_lse=True, dropout_p=0.5),
        tuple[grilly.Tensor, grilly.Tensor],
    )
    assert_type(
        F.flash_attention_varlen_backward(q, q, q, q, q, q, starts, starts, 7, 7, sinks=q, return_dsinks=True),
        tuple[NDArray[Any], ...],
    )
    assert_type(F.flash_attention_with_kvcache(q, q, q, q, q, cache_seqlens=3, causal=True, rotary=(q, q)), Floats)
    assert_type(F.flash_attention_with_kvcache(q, tensor, tensor, q, q, starts), grilly.Tensor)
    assert_type(
        F.flash_attention_with_kvcache(tensor, tensor, tensor, page_table=starts, return_lse=True),
        tuple[grilly.Tensor, grilly.Tensor],
    )

    F.scaled_dot_product_attention(q, q, q, causal=True)  # type: ignore[call-overload]
    F.flash_attention_varlen(q, q, q, starts, starts, 7, 7, mask=mask)  # type: ignore[call-overload]
    F.flash_attention_varlen(q, q, q, q, starts, 7, 7)  # type: ignore[arg-type]
    F.flash_attention_varlen_backward(q, q, q, q, q, q, starts, starts, 7, 7, kernel="")  # type: ignore[call-overload]
    F.flash_attention_with_kvcache(q, q, q, dropout_p=0.5)  # type: ignore[call-overload]
    F.relu(q, inplace=True)  # type: ignore[arg-type]
    F.softmax(q, axis=1)  # type: ignore[call-overload]


def steps(q: Floats, half: Halves, tensor: grilly.Tensor, mask: NDArray[np.bool_]) -> None:
    assert_type(F.attention_scores(half, half, scale=1.0), Floats)
    assert_type(F.attention_scores(tensor, tensor), grilly.Tensor)
    assert_type(F.attention_mask(q, mask=mask, causal=True), Floats)
    assert_type(F.attention_mask(q, mask=tensor), Floats | grilly.Tensor)
    assert_type(F.t5_bias(q, q, bidirectional=False, max_distance=64, offset=3), Floats)
    assert_type(F.softmax(half), Halves)
    assert_type(F.softmax(tensor), grilly.Tensor)
    assert_type(F.softmax(q, 1), Floats)
    assert_type(F.log_softmax(half, dim=0), Halves)
    assert_type(F.softmax_backward(half, half, dim=0), Halves)
    assert_type(F.log_softmax_backward(tensor, tensor), grilly.Tensor)
    assert_type(F.attention_output(q, half, architecture="gpt"), Halves)
    assert_type(F.attention_dropout(q, dropout_p=0.5, dropout_seed=1), Floats)
    assert_type(F.dropout_mask((1, 2, 3, 4), 0.5, 1), NDArray[np.bool_])
    assert_type(F.linear(half, half, half, precision="high"), Halves)
    assert_type(F.linear(input=q, weight=tensor), grilly.Tensor)
    assert_type(F.linear(half, half, activation="silu", gated=True, residual=half), Halves)
    assert_type(F.linear(tensor, q, residual=q, activation="gelu_tanh"), grilly.Tensor)
    assert_type(F.linear_backward(grad_output=q, input=q, weight=q), tuple[Floats, Floats, Floats])
    assert_type(F.gelu(half, approximate="tanh"), Halves)
    assert_type(F.silu(F.relu(F.sigmoid(F.tanh(F.quick_gelu(q))))), Floats)
    for backward in (F.relu_backward, F.sigmoid_backward, F.tanh_backward, F.silu_backward, F.quick_gelu_backward):
        assert_type(backward(tensor, tensor), grilly.Tensor)
    assert_type(F.gelu_backward(half, half, approximate="tanh"), Halves)
    assert_type(F.glu(tensor, dim=0), grilly.Tensor)
    assert_type(F.glu_backward(tensor, tensor, dim=0), grilly.Tensor)
    assert_type(F.swiglu(q, F.geglu(q, q, approximate="tanh")), Floats)
    assert_type(F.swiglu_backward(q, q, q), tuple[Floats, Floats])
    assert_type(F.geglu_backward(tensor, tensor, tensor, approximate="none"), tuple[grilly.Tensor, grilly.Tensor])
    assert_type(F.rope(q, base=1e6, offset=3, interleaved=True, reverse=True, factor=1.2), Floats)
    assert_type(F.dropout(half, 0.1, seed=1, offset=2), Halves)
    assert_type(F.dropout(tensor, 0.1, False, seed=tensor), grilly.Tensor)
    assert_type(F.embedding([1, 2], half, padding_idx=0), Halves)
    assert_type(F.embedding(tensor, half), grilly.Tensor)
    assert_type(F.embedding([1, 2], tensor), grilly.Tensor)
    assert_type(F.embedding_backward(half, [1, 2], 5), Halves)
    assert_type(F.embedding_backward(tensor, tensor, 5, -1), grilly.Tensor)
    assert_type(F.cross_entropy(half, [1, 2], half, reduction="sum", label_smoothing=0.1), Halves)
    assert_type(F.cross_entropy(tensor, tensor, ignore_index=0), grilly.Tensor)
    assert_type(F.cross_entropy_backward(half, half, [1, 2]), Halves)
    assert_type(F.cross_entropy_backward(q, tensor, tensor), grilly.Tensor)
    assert_type(F.conv1d(half, half, half, 2, "same", dilation=1, groups=1, precision="high"), Halves)
    assert_type(F.conv1d(tensor, q), grilly.Tensor)
    assert_type(F.conv1d_backward(half, half, half, 2, 1), tuple[Halves, Halves, Halves])
    assert_type(F.conv2d(half, half, stride=(2, 1), padding=(0, 1)), Halves)
    assert_type(F.conv2d_backward(tensor, q, q), tuple[grilly.Tensor, grilly.Tensor, grilly.Tensor])
    assert_type(F.rope(tensor, frequencies=[1.0, 0.1], positions=np.arange(3)), grilly.Tensor)

    F.attention_scores(q, q, causal=True)  # type: ignore[call-overload]
    F.attention_mask(half)  # type: ignore[arg-type]
    F.t5_bias(q, q, buckets=32)  # type: ignore[call-overload]
    F.softmax(mask)  # type: ignore[type-var]
    F.softmax(q, axis=0)  # type: ignore[call-overload]
    F.log_softmax(q, axis=0)  # type: ignore[call-overload]
    F.softmax_backward(q)  # type: ignore[call-overload]
    F.log_softmax_backward(q)  # type: ignore[call-overload]
    F.attention_output(q, half, architecture="llama")  # type: ignore[call-overload]
    F.attention_dropout(q, p=0.5, dropout_seed=1)  # type: ignore[call-overload]
    F.dropout_mask((1, 2, 3, 4), 0.5)  # type: ignore[call-arg]
    F.linear(q, q, precision="low")  # type: ignore[call-overload]
    F.linear(q, q, activation="swish")  # type: ignore[call-overload]
    F.linear_backward(q, q)  # type: ignore[call-overload]
    F.dropout(q, dropout_p=0.5)  # type: ignore[call-overload]
    F.cross_entropy(q, [1], reduction="max")  # type: ignore[call-overload]
    F.cross_entropy_backward(q, q)  # type: ignore[call-overload]
    F.conv1d(q, q, padding="full")  # type: ignore[call-overload]
    F.conv1d_backward(q, q)  # type: ignore[call-overload]
    F.conv2d(q, q, strides=2)  # type: ignore[call-overload]
    F.conv2d_backward(q, q)  # type: ignore[call-overload]
    F.embedding(q, q)  # type: ignore[arg-type]
    F.embedding_backward(q, [1])  # type: ignore[call-overload]
    F.gelu(q, approximate="erf")  # type: ignore[arg-type]
    F.gelu_backward(q, q, "tanh")  # type: ignore[call-arg]
    F.relu(mask)  # type: ignore[type-var]
    F.relu_backward(mask, mask)  # type: ignore[type-var]
    F.sigmoid(mask)  # type: ignore[type-var]
    F.sigmoid_backward(q)  # type: ignore[call-arg]
    F.tanh(mask)  # type: ignore[type-var]
    F.tanh_backward(q)  # type: ignore[call-arg]
    F.silu(mask)  # type: ignore[type-var]
    F.silu_backward(q)  # type: ignore[call-arg]
    F.quick_gelu(mask)  # type: ignore[type-var]
    F.quick_gelu_backward(q)  # type: ignore[call-arg]
    F.glu(q, dim=0.5)  # type: ignore[arg-type]
    F.glu_backward(q)  # type: ignore[call-arg]
    F.swiglu(q)  # type: ignore[call-arg]
    F.swiglu_backward(q, q)  # type: ignore[call-arg]
    F.geglu(q, q, approximate="erf")  # type: ignore[arg-type]
    F.geglu_backward(q, q)  # type: ignore[call-arg]
    F.rope(q, theta=1e6)  # type: ignore[call-overload]


def norms(q: Floats, half: Halves, tensor: grilly.Tensor) -> None:
    assert_type(F.layer_norm(half, 64, half, half, 1e-6), Halves)
    assert_type(F.layer_norm(tensor, (3, 64), q), grilly.Tensor)
    assert_type(F.rms_norm(q, [64], weight=q, weight_offset=1.0), Floats)
    assert_type(F.group_norm(q, 4, q, q), Floats)
    assert_type(F.add_layer_norm(half, half, 64), tuple[Halves, Halves])
    assert_type(F.add_rms_norm(tensor, tensor, 64, tensor, eps=1e-6), tuple[grilly.Tensor, grilly.Tensor])
    assert_type(F.layer_norm_backward(q, q, 64, q), tuple[Floats, Floats | None, Floats | None])
    assert_type(F.rms_norm_backward(tensor, tensor, 64), tuple[grilly.Tensor, grilly.Tensor | None])
    assert_type(F.group_norm_backward(q, q, 4), tuple[Floats, Floats | None, Floats | None])
    layer = nn.LayerNorm((3, 64), eps=1e-6, bias=False)
    assert_type(layer(half), Halves)
    assert_type(layer.backward(tensor), grilly.Tensor)
    assert_type(nn.RMSNorm(64, weight_offset=1.0)(tensor), grilly.Tensor)
    assert_type(nn.GroupNorm(4, 64, affine=False)(q), Floats)
    assert_type(nn.Softmax(1)(q), Floats)
    assert_type(nn.LogSoftmax(dim=-1)(half), Halves)

    F.layer_norm(q)  # type: ignore[call-overload]
    F.rms_norm(q, 64, bias=q)  # type: ignore[call-overload]
    F.group_norm(q)  # type: ignore[call-overload]
    F.add_layer_norm(q, 64)  # type: ignore[call-overload]
    F.add_rms_norm(q, q, 64, q, q)  # type: ignore[call-overload]
    F.layer_norm_backward(q, q)  # type: ignore[call-overload]
    F.rms_norm_backward(q, q)  # type: ignore[call-overload]
    F.group_norm_backward(q, q)  # type: ignore[call-overload]
    nn.LayerNorm()  # type: ignore[call-arg]
    nn.RMSNorm(64, bias=True)  # type: ignore[call-arg]
    nn.GroupNorm(4)  # type: ignore[call-arg]
    nn.Softmax(axis=1)  # type: ignore[call-arg]


def bound(backend: grilly.Compute, q: Floats, half: Halves, double: NDArray[np.float64], tensor: grilly.Tensor) -> None:
    ops = backend.attention
    assert_type(ops.flash_attention2(q, q, q, softcap=30.0), Floats)
    assert_type(ops.flash_attention2(tensor, tensor, tensor, return_lse=True), tuple[grilly.Tensor, grilly.Tensor])
    assert_type(ops.flash_attention3(half, half, half, num_heads=2), Halves)
    assert_type(ops.flash_attention2_backward(tensor, q, q, q, q, q), tuple[grilly.Tensor, ...])
    assert_type(ops.attention_scores(q, q), Floats)
    assert_type(ops.attention_mask(q, causal=True), Floats)
    assert_type(ops.t5_bias(q, q), Floats)
    assert_type(ops.softmax(tensor), grilly.Tensor)
    assert_type(ops.attention_output(q, half), Halves)

    ops.flash_attention2(q, q, q, soft_cap=30.0)  # type: ignore[call-overload]
    ops.flash_attention2(double, double, double)  # type: ignore[type-var]
    ops.flash_attention3(q, q, q, heads=2)  # type: ignore[call-overload]
    ops.flash_attention2_backward(q, q, q, q, q, half)  # type: ignore[arg-type]
    ops.softmax(q).numpy()  # type: ignore[attr-defined]


class Block(nn.Module):
    """A model of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, architecture="gpt", precision="high", rng=0)
        self.inner = nn.ModuleList([nn.Linear(64, 64, bias=False), nn.FlashAttention2(64, 4, causal=True)])
        self.gain = nn.Parameter(np.ones(64, np.float32))

    def forward(self, x: Floats) -> Floats:
        return self.attention(x, need_weights=False)[0]


def layers(q: Floats, half: Halves, tensor: grilly.Tensor, mask: NDArray[np.bool_]) -> None:
    block = Block().train().to(dtype=np.float32).eval()
    assert_type(block, Block)
    assert_type(block.load_state_dict(block.state_dict(), strict=False), nn.LoadResult)
    for parameter in block.parameters():
        assert_type(parameter, nn.Parameter)
        assert_type(parameter.grad, Floats | None)
    gelu = nn.GELU(approximate="tanh")
    assert_type(gelu(half), Halves)
    for layer in (nn.GLU(dim=1), nn.ReLU(), nn.Sigmoid(), nn.SiLU(), nn.Tanh()):
        assert_type(layer(tensor), grilly.Tensor)
    assert_type(nn.GLU(dim=1).backward(q), Floats)
    encoder = nn.TransformerEncoderLayer(64, 4, 128, 0.0, "gelu", norm_first=True, precision="high", rng=0)
    assert_type(encoder(half, mask=mask), Halves)
    assert_type(encoder(tensor, causal=True), grilly.Tensor)
    assert_type(encoder.backward(tensor), grilly.Tensor)
    decoder = nn.TransformerDecoderLayer(64, 4, 128, bias=False)
    assert_type(decoder(q, q, memory_mask=mask, causal=True), Floats)
    assert_type(decoder.backward(q), tuple[Floats, Floats])
    nn.TransformerEncoderLayer(64, 4, batch_first=True)  # type: ignore[call-arg]
    encoder(q, src_mask=mask)  # type: ignore[call-overload]
    decoder(q)  # type: ignore[call-overload]
    linear = nn.Linear(64, 64, precision="high", rng=np.random.default_rng(0))
    assert_type(linear(half), Halves)
    assert_type(linear(tensor), grilly.Tensor)
    assert_type(linear.forward(q), Floats)
    assert_type(linear.backward(q), Floats)
    attend = nn.MultiheadAttention(64, 4, kdim=32, vdim=32)
    assert_type(attend(q, q, q, mask=mask, causal=True), tuple[Floats, Floats | None])
    assert_type(attend(tensor, mask=mask, average_attn_weights=True), tuple[grilly.Tensor, grilly.Tensor | None])
    assert_type(attend.backward(tensor), tuple[grilly.Tensor | None, ...])
    assert_type(nn.FlashAttention2(64, 4)(q, q, q, mask=mask), Floats)
    assert_type(nn.FlashAttention3(64, 4, scale=1.0)(tensor, tensor, tensor), grilly.Tensor)
    assert_type(nn.FlashAttention2(64, 4).backward(q), tuple[Floats, Floats, Floats])
    plain = nn.FlashAttention(causal=True, dropout=0.1, flash=False)
    assert_type(plain(q, q, q, attn_bias=q), Floats)
    assert_type(plain.flash_attn(tensor, tensor, tensor, mask), grilly.Tensor)
    assert_type(plain.get_mask(3, 4), NDArray[np.bool_])
    turn = nn.RoPE(64, base=1e6, scaling={"type": "ntk", "factor": 2})
    assert_type(turn(q, offset=3), Floats)
    assert_type(turn(tensor, tensor, positions=[0, 1]), tuple[grilly.Tensor, grilly.Tensor])
    cache = nn.KVCache(2, 512, 4, 16, dtype="bfloat16")
    assert_type(cache.attend(q, q, q, softcap=30.0), grilly.Tensor)
    assert_type(cache.attend(tensor, tensor, tensor, return_lse=True), tuple[grilly.Tensor, grilly.Tensor])
    assert_type(attend.make_cache(2, 512), nn.KVCache)
    attend.fill_cache(attend.make_cache(2, 512), q, lengths=[3, 5])
    attend(q, need_weights=False, position_bias=attend)
    cache.truncate(3)
    cache.reorder([1, 0])
    assert_type(cache.positions(2), grilly.Tensor)
    assert_type(cache.attend(q, q, q, rotary=turn), grilly.Tensor)
    assert_type(cache.attend(q, q, q, rotary=(q, q), rotary_interleaved=True), grilly.Tensor)
    assert_type(cache.attend(q, return_lse=True), tuple[grilly.Tensor, grilly.Tensor])
    cache.fill(q, tensor, lengths=[3, 4])
    assert_type(len(cache), int)
    cache.lengths = [3, 4]

    assert_type(nn.Dropout(0.1)(half), Halves)
    assert_type(nn.Dropout()(tensor), grilly.Tensor)
    loss = nn.CrossEntropyLoss(half, ignore_index=0, reduction="none", label_smoothing=0.1)
    assert_type(loss(half, [1, 2]), Halves)
    assert_type(loss(tensor, tensor), grilly.Tensor)
    loss.backward(2.0)
    image = nn.Conv2d(3, 8, (3, 5), padding="same", groups=1, bias=False, padding_mode="zeros", rng=0)
    assert_type(image(half), Halves)
    assert_type(nn.Conv1d(3, 8, 3, stride=2, precision="high")(tensor), grilly.Tensor)
    assert_type(image.backward(q), Floats)
    table = nn.Embedding(30, 8, padding_idx=0, rng=0)
    assert_type(table(tensor), grilly.Tensor)
    table([1, 2]).sum()
    table.backward(q)
    row = nn.Sequential(linear, nn.Identity(), nn.Sequential({"drop": nn.Dropout()}))
    assert_type(row[1:], nn.Sequential)
    assert_type(row[0], nn.Module)
    assert_type(row.append(linear).extend([linear]), nn.Sequential)
    assert_type(nn.ModuleList([linear]).insert(0, linear), nn.ModuleList)
    for module in row:
        assert_type(module, nn.Module)

    nn.CrossEntropyLoss(reduction="max")  # type: ignore[arg-type]
    nn.Conv1d(3, 8, 3, padding="full")  # type: ignore[arg-type]
    nn.Conv2d(3, 8)  # type: ignore[call-arg]
    image(mask)  # type: ignore[type-var]
    nn.Embedding(30)  # type: ignore[call-arg]
    table(q)  # type: ignore[arg-type]
    nn.Sequential(q)  # type: ignore[arg-type]
    nn.Dropout(probability=0.1)  # type: ignore[call-arg]
    nn.Dropout()(mask)  # type: ignore[type-var]
    nn.GELU(approximate="erf")  # type: ignore[arg-type]
    nn.Linear(64, 64, biases=False)  # type: ignore[call-arg]
    nn.Linear(64, 64, precision="low")  # type: ignore[arg-type]
    linear(q, q)  # type: ignore[call-overload]
    linear(mask)  # type: ignore[type-var]
    linear(q).numpy()  # type: ignore[attr-defined]
    nn.MultiheadAttention(64, 4, dropout=0.1)  # type: ignore[call-arg]
    attend(q, attn_mask=mask)  # type: ignore[call-overload]
    nn.FlashAttention2(64, 4)(q, q)  # type: ignore[call-overload]
    nn.FlashAttention3(64, 4, heads=4)  # type: ignore[call-arg]
    plain(q, q, q, bias=q)  # type: ignore[call-overload]
    nn.RoPE(64, theta=1e6)  # type: ignore[call-arg]
    turn(q, start=3)  # type: ignore[call-overload]
    cache.attend(q, q, q, soft_cap=30.0)  # type: ignore[call-overload]
    nn.KVCache(2, 512, 4, 16, device=0)  # type: ignore[call-arg]
    nn.ModuleList([q])  # type: ignore[list-item]
    nn.Module().train("yes")  # type: ignore[arg-type]


def whole_models(mask: NDArray[np.int64], cache: models.Cache) -> None:
    def report(done: int, total: int) -> None: ...

    try:
        model = models.load("folder", "float16", grilly.Compute(), progress=report, ignore=["field"])
        model = models.load("folder", "float32", precision="high")
    except grilly.ModelError as error:
        wrong: ValueError = error
        raise wrong from None
    assert_type(model, models.Model)
    assert_type(model.dtype, np.dtype[Any])
    output: models.Output = model(input_ids=mask, attention_mask=mask)
    assert_type(output["logits"], Any)
    assert "logits" in output and list(output)
    assert_type(models.ARCHITECTURES, dict[str, str])
    tokenizer = models.Tokenizer("folder", longest=8)
    ids, kept = tokenizer.encode(["text"])
    assert_type(ids, NDArray[np.int64])
    assert_type(tokenizer.decode(ids[0]), str)
    said = tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], add_generation_prompt=True)
    assert_type(said, str)
    assert_type(tokenizer.has_chat_template, bool)
    ids, kept = tokenizer.encode([said], add_special_tokens=False)
    tokenizer.apply_chat_template("Hello")  # type: ignore[arg-type]
    encoder = models.SentenceEncoder.load("folder", progress=True)
    assert_type(encoder.encode("text", batch_size=2), Floats)
    assert_type(cache.max_len, int)
    samples, rate = models.read_sound("speech.flac", 16000)
    assert_type(rate, int)
    assert_type(models.log_mel(samples, 128, n_samples=480000), Floats)
    transcriber = models.Transcriber.load("folder", "float16", progress=False)
    assert_type(transcriber.transcribe(samples, rate, language="en", task="translate", max_new_tokens=9), str)
    for part in transcriber.stream(samples, rate):
        assert_type(part, str)
    assert_type(transcriber.detect_language(samples), str)
    transcriber.transcribe(samples)  # type: ignore[call-arg]
    models.log_mel(samples, bands=80)  # type: ignore[call-arg]
    models.read_sound(3)  # type: ignore[arg-type]
    models.load(3)  # type: ignore[arg-type]
    models.load("folder", precision="low")  # type: ignore[arg-type]
    models.Tokenizer()  # type: ignore[call-arg]
