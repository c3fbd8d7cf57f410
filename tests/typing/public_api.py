"""A program that uses the names of grilly itself, for type checkers alone: tests/test_typing.py has mypy --strict read
it, with functional_api.py, layers_api.py and models_api.py.

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
from grilly import nn
from grilly.compute.arrays.functions import ElementwiseFunction, Reduction
from grilly.compute.backend import Profile

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]


def _squared(x: grilly.Scalar) -> Any:
    return x.astype(np.float32)


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
        half = grilly.elementwise(lambda x: x / 2)
        assert_type(half, ElementwiseFunction)
        half(tensor, array, 2.0, kind="a")
        assert_type(half.into([tensor, None], tensor, 2.0, kind="a"), tuple[grilly.Tensor, ...])
        assert_type(grilly.reduction(lambda x, y: x * y, "sum", finish=grilly.sqrt), Reduction)
        grilly.reduction(_squared)(array, axis=(0, -1), keepdims=True)
        grilly.elementwise(3)  # type: ignore[arg-type]
        expression: type[grilly.GrillyError] = grilly.ExpressionError
        assert expression
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
    """The functions of the array API standard, but those made of records, which tests/test_typing.py writes down."""
    one: list[Callable[[grilly.Tensor], grilly.Tensor]] = [
        grilly.conj, grilly.positive, grilly.real, grilly.matrix_transpose, grilly.tril, grilly.triu,
        grilly.empty_like, grilly.ones_like, grilly.zeros_like, grilly.flip, grilly.sum, grilly.prod, grilly.mean,
        grilly.var, grilly.std, grilly.max, grilly.min, grilly.any, grilly.all, grilly.argmax, grilly.argmin,
        grilly.count_nonzero, grilly.cumulative_sum, grilly.cumulative_prod, grilly.diff, grilly.asarray,
        grilly.from_dlpack, grilly.expand_dims,
    ]  # fmt: skip
    two: list[Callable[[grilly.Tensor, grilly.Tensor], grilly.Tensor]] = [
        grilly.nextafter, grilly.matmul, grilly.vecdot, grilly.tensordot, grilly.take, grilly.take_along_axis,
        grilly.repeat,
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


def bound(backend: grilly.Compute, q: Floats, half: Halves, double: NDArray[np.float64], tensor: grilly.Tensor) -> None:
    ops = backend.attention
    ops.flash_attention2(q, q, q, softcap=30.0)
    ops.flash_attention2(tensor, tensor, tensor, return_lse=True)
    ops.flash_attention3(half, half, half, num_heads=2)
    ops.flash_attention2_backward(tensor, q, q, q, q, q)
    ops.attention_scores(q, q)
    ops.attention_mask(q, causal=True)
    ops.t5_bias(q, q)
    ops.softmax(tensor)
    ops.attention_output(q, half)

    ops.flash_attention2(q, q, q, soft_cap=30.0)  # type: ignore[call-arg]
    ops.flash_attention2(double, double, double)  # type: ignore[arg-type]
    ops.flash_attention3(q, q, q, heads=2)  # type: ignore[call-arg]
    ops.flash_attention2_backward(q, q, q, q, q, half)  # type: ignore[arg-type]
    ops.softmax(double)  # type: ignore[arg-type]
