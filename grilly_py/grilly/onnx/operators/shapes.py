"""Shapes, and arrays made of nothing but them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import array_api as xp
from ...compute import Tensor
from ..table import Call, Value, all_within, around, cut, operator, sliced, within
from .elementwise import dtype_of


@operator("Shape", either=(0,))
def shape(call: Call, x: Tensor | np.ndarray) -> np.ndarray:
    """The extents from one axis up to another."""
    return np.asarray(x.shape[slice(call.get("start", 0), call.get("end"))], np.int64)


@operator("Size", either=(0,))
def size(call: Call, x: Tensor | np.ndarray) -> np.ndarray:
    """The number of elements."""
    return np.asarray(math.prod(x.shape), np.int64)


@operator("Reshape", host=(1,))
def reshape(call: Call, x: Tensor, given: np.ndarray | None = None) -> Tensor:
    """Another shape: 0 keeps an extent, -1 is what is left."""
    asked = [int(e) for e in (call.get("shape") if given is None else given.tolist())]
    if not call.get("allowzero", 0):
        if any(e == 0 for e in asked[x.ndim :]):
            raise ValueError(f"the shape {asked} keeps an extent, by 0, that the array of shape {x.shape} has not: is "
                             "an input of length 0?")  # fmt: skip
        asked = [x.shape[a] if e == 0 else e for a, e in enumerate(asked)]
    if -1 in asked:
        known = -math.prod(asked)
        asked[asked.index(-1)] = x.size // known if known else 0
    return x.reshape(tuple(asked))


@operator("Flatten", folds=False)
def flatten(call: Call, x: Value) -> Value:
    """Two axes: those before an axis as one, and the others."""
    axis = int(call.get("axis", 1))
    axis = x.ndim if axis == x.ndim else within(axis, x.ndim)  # all axes may come before
    return x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@operator("Transpose")
def transpose(call: Call, x: Tensor) -> Tensor:
    """The axes in another order, by default the reverse one."""
    return xp.permute_dims(x, tuple(call.get("perm", range(x.ndim)[::-1])))


@operator("Squeeze", host=(1,))
def squeeze(call: Call, x: Tensor, axes: np.ndarray | None = None) -> Tensor:
    """Without axes of extent 1: those named, or all."""
    named = call.axes(axes)
    named = tuple(a for a, extent in enumerate(x.shape) if extent == 1) if named is None else named
    return xp.squeeze(x, all_within(named, x.ndim)) if named else x


@operator("Unsqueeze", host=(1,), folds=False)
def unsqueeze(call: Call, x: Value, axes: np.ndarray | None = None) -> Value:
    """With axes of extent 1 at places of the result."""
    named = call.axes(axes) or ()
    places = all_within(named, x.ndim + len(named))
    extents = iter(x.shape)
    return x.reshape(tuple(1 if a in places else next(extents) for a in range(x.ndim + len(named))))


@operator("Expand", host=(1,))
def expand(call: Call, x: Tensor, given: np.ndarray) -> Tensor:
    """Repeated along axes of extent 1; a view."""
    return x.broadcast_to(np.broadcast_shapes(x.shape, tuple(given.tolist())))


@operator("Tile", host=(1,))
def tile(call: Call, x: Tensor, repeats: np.ndarray) -> Tensor:
    """Repeated along each axis."""
    return xp.tile(x, tuple(repeats.tolist()))


@operator("Concat")
def concat(call: Call, *given: Tensor) -> Tensor:
    """One after the other along an axis."""
    return xp.concat(given, axis=int(call.attributes["axis"]))


def check_parts(sizes: Sequence[int], extent: int, axis: int) -> None:
    """Raise ValueError where parts of an axis are not all of it."""
    if min(sizes, default=0) < 0 or sum(sizes) != extent:
        raise ValueError(f"parts of {list(sizes)} along axis {axis}, which has {extent} elements; expected sizes from "
                         "0 on that add up to them")  # fmt: skip


@operator("Split", host=(1,), folds=False)
def split(call: Call, x: Value, sizes: np.ndarray | None = None) -> Any:
    """Parts along an axis, of sizes that are given or as equal as can be; views."""
    axis = within(int(call.get("axis", 0)), x.ndim)
    named = call.axes(sizes, "split")
    if named is None:
        step = -(-x.shape[axis] // len(call.wanted))
        named = tuple(min(step, max(x.shape[axis] - step * n, 0)) for n in range(len(call.wanted)))
    elif len(named) != len(call.wanted):
        raise ValueError(f"{len(named)} sizes of parts for {len(call.wanted)} outputs")
    check_parts(named, x.shape[axis], axis)
    found, begin = [], 0
    for part in named:
        found.append(x[(slice(None),) * axis + (slice(begin, begin + part),)])
        begin += part
    return tuple(found)


@operator("Slice", host=(1, 2, 3, 4))
def slices(
    call: Call, x: Tensor, starts: np.ndarray | None = None, ends: np.ndarray | None = None,
    axes: np.ndarray | None = None, steps: np.ndarray | None = None,
) -> Tensor:  # fmt: skip
    """Parts of axes."""
    first, last = call.axes(starts, "starts") or (), call.axes(ends, "ends") or ()
    return x[sliced(x.shape, first, last, call.axes(axes), call.axes(steps, "steps"))]


def _cut(x: Tensor, before: Sequence[int], after: Sequence[int]) -> tuple[Tensor, list[int], list[int]]:
    """x without the elements that negative pads cut off, and the pads that are left."""
    return x[cut(x.shape, before, after)], [max(b, 0) for b in before], [max(a, 0) for a in after]


def padded(call: Call, x: Tensor, before: Sequence[int], after: Sequence[int], value: Any) -> Tensor:
    """x with a number around it; where what is asked for is negative elements are cut off."""
    x, before, after = _cut(x, before, after)
    if not any(before) and not any(after):
        return x
    whole = tuple(b + e + a for b, a, e in zip(before, after, x.shape, strict=True))
    found = xp.full(whole, value, dtype=x.dtype, device=call.backend)
    if x.size:
        found[tuple(slice(b, b + e) for b, e in zip(before, x.shape, strict=True))] = x
    return found


@operator("Pad", host=(1, 2, 3))
def pad(
    call: Call, x: Tensor, pads: np.ndarray | None = None, value: np.ndarray | None = None,
    axes: np.ndarray | None = None,
) -> Tensor:  # fmt: skip
    """More elements before and after axes: a number, the last element, or a mirrored or repeated array."""
    named = call.axes(axes)
    over = range(x.ndim) if named is None else all_within(named, x.ndim)
    before, after = around(call.axes(pads, "pads") or (), over, x.ndim)
    mode = call.get("mode", "constant")
    if mode == "constant":
        return padded(call, x, before, after, call.get("value", 0) if value is None else value.item())
    if mode not in ("edge", "reflect", "wrap"):
        raise call.refuse(f"mode is {mode!r}")
    x, before, after = _cut(x, before, after)  # first, as ONNX Runtime does: what wraps around is what is left
    for axis, extent in enumerate(x.shape):
        if before[axis] or after[axis]:
            x = xp.take(x, np.pad(np.arange(extent), (before[axis], after[axis]), mode), axis=axis)
    return x


@operator("CenterCropPad", host=(1,))
def center(call: Call, x: Tensor, shape: np.ndarray) -> Tensor:
    """The middle of axes, or zeros on both sides of them; of an odd number one more behind."""
    named = call.axes(None)
    before, after = [0] * x.ndim, [0] * x.ndim
    for axis, extent in zip(range(x.ndim) if named is None else all_within(named, x.ndim), shape.tolist(), strict=True):
        more = extent - x.shape[axis]
        before[axis] = more // 2 if more >= 0 else -(-more // 2)
        after[axis] = more - before[axis]
    return padded(call, x, before, after, 0)


@operator("Trilu", host=(1,))
def triangle(call: Call, x: Tensor, k: np.ndarray | None = None) -> Tensor:
    """Zeros below, or above, a diagonal of matrices."""
    return (xp.triu if call.get("upper", 1) else xp.tril)(x, k=0 if k is None else int(k.item()))


@operator("Constant", folds=False)
def constant(call: Call) -> np.ndarray:
    """The array that the node holds; on the host until something on the device needs it."""
    for name, kind in (("value_float", np.float32), ("value_floats", np.float32), ("value_int", np.int64),
                       ("value_ints", np.int64)):  # fmt: skip
        if name in call.attributes:
            return np.asarray(call.attributes[name], kind)
    found = call.get("value", call.get("sparse_value"))  # both are arrays by now
    if found is None:
        raise call.refuse(f"a value of {', '.join(call.attributes)}")
    return found


@operator("ConstantOfShape", host=(0,))
def constant_of_shape(call: Call, given: np.ndarray) -> Tensor:
    """An array of one number; float32 zeros where none is named."""
    value = call.get("value", np.zeros(1, np.float32))
    return xp.full(tuple(given.tolist()), value.item(), dtype=value.dtype, device=call.backend)


@operator("Range", host=(0, 1, 2), folds=False)
def numbers(call: Call, start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """A row of numbers; on the host, as its length is a shape."""
    if not delta.item():
        raise ValueError("delta is 0; expected another step from start to limit")
    count = max(math.ceil((limit.item() - start.item()) / delta.item()), 0)
    return (start.item() + np.arange(count) * delta.item()).astype(start.dtype)


@operator("EyeLike", either=(0,))
def eye_like(call: Call, x: Tensor | np.ndarray) -> Tensor:
    """Ones on a diagonal of a matrix of x's shape."""
    dtype = dtype_of(call, call.get("dtype")) if call.get("dtype") else x.dtype
    rows, columns = x.shape
    return xp.eye(rows, columns, k=int(call.get("k", 0)), dtype=dtype, device=call.backend)


@operator("DepthToSpace")
def depth_to_space(call: Call, x: Tensor) -> Tensor:
    """Channels moved to blocks of an image."""
    n, c, h, w = x.shape
    b = int(call.attributes["blocksize"])
    if call.get("mode", "DCR") == "DCR":
        x = xp.permute_dims(x.reshape((n, b, b, c // (b * b), h, w)), (0, 3, 4, 1, 5, 2))
    else:
        x = xp.permute_dims(x.reshape((n, c // (b * b), b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return x.reshape((n, c // (b * b), h * b, w * b))


@operator("SpaceToDepth")
def space_to_depth(call: Call, x: Tensor) -> Tensor:
    """Blocks of an image moved to channels."""
    n, c, h, w = x.shape
    b = int(call.attributes["blocksize"])
    if call.get("mode", "DCR") == "DCR":
        axes = (0, 3, 5, 1, 2, 4)
    else:
        axes = (0, 1, 3, 5, 2, 4)
    return xp.permute_dims(x.reshape((n, c, h // b, b, w // b, b)), axes).reshape((n, c * b * b, h // b, w // b))
