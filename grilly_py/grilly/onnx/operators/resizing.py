"""Images of other sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import array_api as xp
from ...compute import Tensor
from ..table import Call, all_within, operator, wide

_ROUNDED = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5), "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor, "ceil": np.ceil,
}  # fmt: skip


def _places(call: Call, extent: int, count: int, scale: float, roi: tuple[float, float]) -> np.ndarray:
    """Where the elements of a resized axis lie in the axis itself."""
    # In float32, as models hold scales: 1 by a third is 3 then, and in float64 less.
    x, by = np.arange(count, dtype=np.float32), np.float32(scale)
    mode = call.get("coordinate_transformation_mode", "half_pixel") if call.version >= 11 else "asymmetric"
    if mode == "asymmetric":
        return x / by
    if mode == "align_corners":
        return x * (extent - 1) / max(count - 1, 1)
    if mode == "tf_crop_and_resize":
        first, width = roi[0] * (extent - 1), (roi[1] - roi[0]) * (extent - 1)
        # In float64, where the last place does not get beyond the image by rounding. There is no scale in it.
        return x + (first + width / 2) if count == 1 else first + np.arange(count) * width / (count - 1)
    if mode == "tf_half_pixel_for_nn":
        return (x + 0.5) / by
    if mode == "pytorch_half_pixel" and count == 1:
        return x
    shift = extent / 2 * (1 - count / (by * np.float32(extent))) if mode == "half_pixel_symmetric" else 0.0
    if mode not in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"):
        raise call.refuse(f"coordinate_transformation_mode is {mode!r}")
    return shift + (x + 0.5) / by - 0.5


def _weights(call: Call, x: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """The neighbours of each place, and what they count; (places, neighbours) each."""
    scale = min(scale, 1.0) if call.get("antialias", 0) else 1.0
    reach = 1 if call.get("mode") in ("linear", "bilinear") else 2
    base = np.ceil(x) - 1
    first = math.floor(-reach / scale) + 1
    index = base[:, None] + np.arange(first, 2 - first)
    far = np.abs(index - x[:, None]) * scale
    if reach == 1:
        found = np.maximum(1 - far, 0)
    else:  # Keys' cubic convolution
        a = call.get("cubic_coeff_a", -0.75)
        near = ((a + 2) * far - (a + 3)) * far * far + 1
        found = np.where(far <= 1, near, np.where(far < 2, a * (((far - 5) * far + 8) * far - 4), 0))
    return index.astype(np.int64, copy=False), found


def _resized(call: Call, x: Tensor, axis: int, count: int, scale: float, roi: tuple[float, float]) -> Tensor:
    """x with another number of elements along an axis, float32 where they are means."""
    extent = x.shape[axis]
    places = _places(call, extent, count, scale, roi)
    if call.get("mode", "nearest") == "nearest":
        how = call.get("nearest_mode", "round_prefer_floor") if call.version >= 11 else "floor"
        if how not in _ROUNDED:
            raise call.refuse(f"nearest_mode is {how!r}")
        index = np.clip(_ROUNDED[how](places), 0, extent - 1)
        return xp.take(x, index.astype(np.int64, copy=False), axis=axis)
    index, weights = _weights(call, places, scale)
    if call.get("exclude_outside", 0):
        weights = np.where((index >= 0) & (index < extent), weights, 0)
    weights = weights / weights.sum(1, keepdims=True)
    index = np.clip(index, 0, extent - 1)
    found: Any = None
    for tap in range(index.shape[1]):
        if not weights[:, tap].any():
            continue
        weight = weights[:, tap].astype(np.float32).reshape(tuple(-1 if a == axis else 1 for a in range(x.ndim)))
        one = xp.multiply(xp.take(x, index[:, tap], axis=axis), call.tensor(weight))
        found = one if found is None else xp.add(found, one)
    return found


def _sizes(
    call: Call, extents: list[int], scales: np.ndarray | None, sizes: np.ndarray | None
) -> tuple[list[int], list[float]]:
    """The new extents of axes, and by what each grows."""
    if sizes is None or not sizes.size:
        if scales is None or not scales.size:
            raise call.refuse("neither scales nor sizes")
        by = [float(scale) for scale in scales]
        # In float32, as models hold scales: 10 times 0.7 is 7, and in float64 less.
        return [math.floor(np.float32(e) * np.float32(scale)) for e, scale in zip(extents, by, strict=True)], by
    new = [int(size) for size in sizes]
    by = [size / extent if extent else 1.0 for size, extent in zip(new, extents, strict=True)]
    policy = call.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return new, by
    if policy not in ("not_larger", "not_smaller"):
        raise call.refuse(f"keep_aspect_ratio_policy is {policy!r}")
    scale = (min if policy == "not_larger" else max)(by)
    return [math.floor(scale * extent + 0.5) for extent in extents], [scale] * len(extents)


def _mode(call: Call) -> str:
    """How elements are made: of the nearest one, or of neighbours along one axis after the other."""
    mode: str = call.get("mode", "nearest")
    if mode not in ("nearest", "linear", "bilinear", "cubic"):
        raise call.refuse(f"mode is {mode!r}")
    if mode == "nearest" and call.get("antialias", 0):
        raise call.refuse("antialias for nearest elements")
    return mode


def _inside(shape: tuple[int, ...], axis: int, places: np.ndarray) -> np.ndarray:
    """Which places along an axis lie within an image of this shape, to be broadcast to the result's."""
    inside = (places >= 0) & (places <= shape[axis] - 1)
    return inside.reshape([-1 if a == axis else 1 for a in range(len(shape))])


def _as_given(found: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """A result in the image's dtype: means of integers rounded to the nearest, within the dtype's bounds."""
    if dtype.kind in "iu" and found.dtype != dtype:
        bounds = np.iinfo(dtype)
        found = xp.minimum(xp.maximum(xp.round(found), float(bounds.min)), float(bounds.max))
    return found.astype(dtype, copy=False)


@operator("Resize", "Upsample", host=(1, 2, 3))
def resize(
    call: Call, x: Tensor, roi: np.ndarray | None = None, scales: np.ndarray | None = None,
    sizes: np.ndarray | None = None,
) -> Tensor:  # fmt: skip
    """An image of another size: nearest elements, or means of neighbours, one axis after the other."""
    if call.version < 11:  # one input of scales; before version 9 an attribute
        roi, scales = None, np.asarray(call.attributes["scales"]) if roi is None else roi
    mode = _mode(call)
    axes = all_within(call.get("axes", range(x.ndim)), x.ndim)
    new, by = _sizes(call, [x.shape[axis] for axis in axes], scales, sizes)
    cropped = call.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    crop = roi.reshape(2, -1).T if cropped and roi is not None and roi.size else np.tile([0.0, 1.0], (len(axes), 1))
    whole = tuple(dict(zip(axes, new, strict=True)).get(axis, extent) for axis, extent in enumerate(x.shape))
    if 0 in whole:
        return xp.zeros(whole, dtype=x.dtype, device=call.backend)
    found, seen = x if mode == "nearest" else wide(x) if x.dtype.kind not in "iu" else x.astype(np.float32), None
    for axis, count, scale, ends in zip(axes, new, by, crop.tolist(), strict=True):
        extent = x.shape[axis]
        if count == extent and math.isclose(scale, 1) and ends == [0.0, 1.0]:
            continue
        if cropped:
            inside = _inside(x.shape, axis, _places(call, extent, count, scale, tuple(ends)))
            seen = inside if seen is None else seen & inside
        found = _resized(call, found, axis, count, scale, tuple(ends))
    if seen is not None and not seen.all():
        found = xp.where(call.tensor(seen), found, call.get("extrapolation_value", 0.0))
    return _as_given(found, x.dtype)
