"""Boxes of detectors: which of them remain, and what is in them."""

from __future__ import annotations

import numpy as np

from ... import array_api as xp
from ...compute import Tensor
from ..table import Call, operator, wide
from .sampling import linear_taps, sampled


def _overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of a box with others, of corners in order; 0 where an area is none."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=1)
    own, areas = np.prod(box[2:] - box[:2]), np.prod(others[:, 2:] - others[:, :2], axis=1)
    union = own + areas - shared
    return np.where((own > 0) & (areas > 0) & (union > 0), shared / np.where(union > 0, union, 1), 0)


@operator("NonMaxSuppression", host=(0, 1, 2, 3, 4))
def remaining_boxes(
    call: Call, boxes: np.ndarray, scores: np.ndarray, most: np.ndarray | None = None,
    overlap: np.ndarray | None = None, least: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """(sample, class, box) of boxes by their score, without those that overlap a better one; done by the host.

    How many there are decides the shape.
    """
    count = 0 if most is None or not most.size else int(most.item())
    bound = 0.0 if overlap is None or not overlap.size else float(overlap.item())
    corners = boxes.astype(np.float64)
    if call.get("center_point_box", 0):
        middle, half = corners[..., :2], corners[..., 2:] / 2
        corners = np.concatenate([middle - half, middle + half], axis=-1)
    else:  # two corners in any order
        low, high = np.minimum(corners[..., :2], corners[..., 2:]), np.maximum(corners[..., :2], corners[..., 2:])
        corners = np.concatenate([low, high], axis=-1)
    found: list[tuple[int, int, int]] = []
    for sample, row in enumerate(scores):
        for kind, each in enumerate(row):
            left = np.argsort(-each, kind="stable")
            if least is not None and least.size:
                left = left[each[left] > least.item()]
            kept = 0
            while left.size and kept < count:
                found.append((sample, kind, int(left[0])))
                kept += 1
                left = left[1:][_overlaps(corners[sample, left[0]], corners[sample, left[1:]]) <= bound]
    return np.asarray(found, np.int64).reshape(-1, 3)


@operator("RoiAlign")
def aligned_regions(call: Call, x: Tensor, regions: Tensor, images: Tensor) -> Tensor:
    """Boxes ``(x1, y1, x2, y2)`` of images, each divided into bins, and the mean or extreme of samples in each bin."""
    default = "half_pixel" if call.version >= 16 else "output_half_pixel"
    moved = call.get("coordinate_transformation_mode", default) == "half_pixel"
    bins, samples = [int(call.get(f"output_{side}", 1)) for side in ("height", "width")], call.get("sampling_ratio", 0)
    mode = call.get("mode", "avg")
    if samples < 1:
        raise call.refuse("sampling_ratio 0, by which each box has a number of samples of its own")
    if mode not in ("avg", "max"):
        raise call.refuse(f"mode is {mode!r}")
    count, channels = regions.shape[0], x.shape[1]
    if 0 in (count, *x.shape):
        return xp.zeros((count, channels, *bins), dtype=x.dtype, device=call.backend)
    scaled = xp.subtract(xp.multiply(wide(regions), call.get("spatial_scale", 1.0)), 0.5 if moved else 0.0)
    taps = []
    for axis, extent in enumerate(x.shape[2:]):
        first, last = scaled[:, 1 - axis, None], scaled[:, 3 - axis, None]
        length = xp.subtract(last, first)
        length = length if moved else xp.maximum(length, 1.0)
        shares = ((np.arange(bins[axis] * samples) + 0.5) / (bins[axis] * samples)).astype(np.float32, copy=False)
        places = xp.add(first, xp.multiply(length, call.tensor(shares)))
        places = places.reshape((count, -1, 1) if axis == 0 else (count, 1, -1))
        inside = xp.logical_and(xp.greater_equal(places, -1.0), xp.less_equal(places, float(extent)))
        places = xp.minimum(xp.maximum(places, 0.0), extent - 1.0)
        taps.append([tap._replace(inside=inside) for tap in linear_taps(places, extent, True)])
    # Of extremes ONNX takes each of the four neighbours' share, and not their sum.
    found = sampled(
        wide(x), taps, images.astype(np.int32, copy=False).reshape((-1, 1, 1)), xp.add if mode == "avg" else xp.maximum
    )
    found = found.reshape((count, bins[0], samples, bins[1], samples, channels))
    found = (xp.mean if mode == "avg" else xp.max)(found, axis=(2, 4))
    return xp.permute_dims(found, (0, 3, 1, 2)).astype(x.dtype, copy=False)
