"""Operators of ONNX on images and volumes: convolutions, resizing, samples and boxes, against float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import grilly
from test_onnx_operators import model_of, normal, run

pytestmark = [pytest.mark.needs("onnx", "ml_dtypes"), pytest.mark.usefixtures("default")]


def transposed(x, w, stride, dilation, groups):
    """Each element adds its kernel, in float64; nothing is cut off."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    kernel, own = w.shape[2:], w.shape[0] // groups
    whole = [s * (e - 1) + d * (k - 1) + 1 for s, e, d, k in zip(stride, x.shape[2:], dilation, kernel, strict=True)]
    y = np.zeros((x.shape[0], w.shape[1] * groups, *whole))
    for group, place in itertools.product(range(groups), np.ndindex(*x.shape[2:])):
        rows = slice(group * own, (group + 1) * own)
        part = np.einsum("ni,io...->no...", x[(slice(None), rows, *place)], w[rows])
        at = [slice(p * s, p * s + d * (k - 1) + 1, d)
              for p, s, d, k in zip(place, stride, dilation, kernel, strict=True)]  # fmt: skip
        y[(slice(None), slice(group * w.shape[1], (group + 1) * w.shape[1]), *at)] += part
    return y


@pytest.mark.parametrize(
    ("x", "w", "stride", "dilation", "groups", "pads", "more", "dtype"),
    [
        ((2, 6, 5, 4), (6, 2, 3, 2), (2, 3), (1, 1), 3, (1, 0, 1, 0), (0, 0), "float32"),
        ((1, 4, 7, 5), (4, 3, 4, 4), (2, 2), (1, 2), 1, (1, 2, 0, 1), (1, 0), "float32"),
        ((2, 4, 9), (4, 3, 16), (8,), (1,), 1, (4, 4), (0,), "float32"),
        ((1, 2, 3, 4, 2), (2, 2, 2, 3, 2), (2, 1, 2), (1, 2, 1), 2, (0, 1, 0, 1, 1, 0), (1, 0, 0), "float32"),
        ((1, 8, 6, 6), (8, 4, 2, 2), (2, 2), (1, 1), 1, (0, 0, 0, 0), (0, 0), "float16"),
    ],
    ids=["groups", "uneven", "vocoder", "volume", "half"],
)
def test_transposed_convolutions(x, w, stride, dilation, groups, pads, more, dtype):
    """Sums of at most 96 products of numbers about 1; float16 is rounded once."""
    x, w, bias = normal(*x).astype(dtype), normal(*w, seed=1).astype(dtype), normal(w[1] * groups, seed=2).astype(dtype)
    count = len(stride)
    exact = transposed(x, w, stride, dilation, groups)
    exact = np.pad(exact, [(0, 0), (0, 0), *((0, m) for m in more)])
    cut = (slice(None), slice(None), *(
        slice(b, e - a) for b, a, e in zip(pads[:count], pads[count:], exact.shape[2:], strict=True)
    ))  # fmt: skip
    exact = exact[cut] + bias.astype(np.float64).reshape(-1, *(1,) * count)
    (found,) = run("ConvTranspose", {"x": x, "w": w, "b": bias}, strides=stride, dilations=dilation, group=groups,
                   pads=pads, output_padding=more)  # fmt: skip
    assert found.shape == exact.shape and found.dtype == x.dtype
    unit = 2.0**-10 if dtype == "float16" else 0
    assert (np.abs(found - exact) <= 96 * 2.0**-20 + unit * np.abs(exact)).all()


@pytest.mark.parametrize("stride, dilation, groups, pads", [
    ((2, 3, 3), (1, 1, 1), 1, (0,) * 6), ((1, 2, 1), (2, 1, 1), 2, (2, 1, 0, 2, 1, 0)),
    ((2, 1, 1), (1, 1, 2), 1, (1, 0, 2, 0, 1, 1)),
], ids=["video", "groups", "uneven"])  # fmt: skip
def test_convolutions_of_volumes(stride, dilation, groups, pads):
    """As models of video begin. Sums of at most 72 products of numbers about 1."""
    x, w, bias = normal(2, 4, 6, 9, 9), normal(6, 4 // groups, 2, 3, 3, seed=1), normal(6, seed=2)
    wide = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(pads[:3], pads[3:], strict=True)])
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, w.shape[2:], strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(wide, reach, (2, 3, 4))
    windows = windows[(slice(None), slice(None), *(slice(None, None, s) for s in (*stride, *dilation)))]
    parts = [np.split(each, groups, axis) for each, axis in ((windows, 1), (w.astype(np.float64), 0))]
    exact = np.concatenate([np.einsum("ncdhwijk,ocijk->nodhw", *part) for part in zip(*parts, strict=True)], 1)
    (found,) = run("Conv", {"x": x, "w": w, "b": bias}, strides=stride, dilations=dilation, group=groups, pads=pads)
    np.testing.assert_allclose(found, exact + bias[:, None, None, None], rtol=0, atol=72 * 2.0**-20)
    with pytest.raises(grilly.UnsupportedError, match="x has 1 layers with its pads; the kernel needs 2"):
        model_of("Conv", {"x": x[:, :4, :1], "w": w[:, : 4 // groups]}, group=groups).run({"x": x[:, :4, :1], "w": w})


def test_resized_embeddings_of_positions():
    """As vision transformers have them: cubic, channels last behind, from 14 x 14 to 21 x 17."""
    x = normal(1, 8, 14, 14)
    far = lambda n, m: (np.arange(m) + 0.5) * n / m - 0.5  # noqa: E731
    exact = x.astype(np.float64)
    for axis, count in ((2, 21), (3, 17)):
        places = far(14, count)
        table = np.zeros((count, 14))
        for row, place in enumerate(places):
            for k in range(int(np.floor(place)) - 1, int(np.floor(place)) + 3):
                d = abs(k - place)
                weight = 1.25 * d**3 - 2.25 * d**2 + 1 if d <= 1 else -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
                table[row, min(max(k, 0), 13)] += weight
        exact = np.moveaxis(np.tensordot(table, exact, (1, axis)), 0, axis)
    given = {"x": x, "_roi": x, "_scales": x, "sizes": np.array([1, 8, 21, 17])}
    (found,) = run("Resize", given, mode="cubic")
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5)


def test_resized_integers_are_rounded_within_their_bounds():
    x = np.array([[0, 255, 255, 0]], np.uint8)
    given = {"x": x, "_roi": x, "_scales": x, "sizes": np.array([1, 12])}
    (found,) = run("Resize", given, mode="cubic")
    wide = run("Resize", {**given, "x": x.astype(np.float32)}, mode="cubic")[0]
    assert found.dtype == np.uint8 and wide.max() > 255 and wide.min() < 0
    np.testing.assert_array_equal(found, np.clip(np.rint(wide), 0, 255))


def test_scales_are_captured_unless_the_device_computes_them():
    given = {"x": normal(1, 1, 2, 2), "_roi": normal(1), "scales": np.array([1, 1, 2, 3], np.float32)}
    held = model_of("Resize", given, constants=["scales"])
    assert held.run({"x": given["x"]})["y0"].shape == (1, 1, 4, 6) and held.graph is not None
    model = model_of("Resize", given)
    feeds = {"x": given["x"], "scales": given["scales"]}
    assert model.run(feeds)["y0"].shape == (1, 1, 4, 6)
    assert model.graph is None and model.uncaptured.startswith("Resize 'it':")


@pytest.mark.parametrize("extent, scale, places", [
    (10, 0.7, [0, 1, 2, 4, 5, 7, 8]), (9, 1 / 3, [0, 3, 6]),
])  # fmt: skip
def test_scales_are_numbers_of_float32(extent, scale, places):
    """As torch and ONNX Runtime have them: 10 times 0.7 is 7, and 1 by a third is 3. In float64 both are less."""
    x = np.arange(extent, dtype=np.float32)
    given = {"x": x, "_roi": x, "scales": np.array([scale], np.float32)}
    how = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    (found,) = run("Resize", given, captured=False, **how)
    assert found.tolist() == places


@pytest.mark.parametrize("where, scale, places", [
    ("align_corners", 1.3, [0, 0.75, 1.5, 2.25, 3, 3.75, 4.5, 5.25, 6]), ("align_corners", 0.2, [0]),
    ("tf_crop_and_resize", 0.2, [3]), ("pytorch_half_pixel", 0.2, [0]), ("pytorch_half_pixel", 1 / 7, [0]),
])  # fmt: skip
def test_places_go_by_the_length_of_the_result(where, scale, places):
    """And not by 7 times the scale, where that is no whole number. One element alone has a place of its own."""
    x = np.arange(7, dtype=np.float32)
    given = {"x": x, "roi": np.array([0.25, 0.75], np.float32), "scales": np.array([scale], np.float32)}
    mode = "linear" if len(places) > 1 else "cubic"  # which is not the same before the first element as at it
    (found,) = run("Resize", given, captured=False, mode=mode, coordinate_transformation_mode=where)
    np.testing.assert_allclose(found, places, rtol=0, atol=1e-6)


def test_what_lies_beyond_an_image_is_chosen_and_not_multiplied():
    """Infinity at the edge does not make NaN of the zeros beside it, and each sample reads its own image."""
    x = np.stack([np.full((1, 2, 2), np.inf), np.ones((1, 2, 2))]).astype(np.float32)
    grid = np.full((2, 1, 2, 2), 3.0, np.float32)
    grid[:, 0, 1] = 0.0
    (found,) = run("GridSample", {"x": x, "grid": grid})
    assert found.reshape(2, 2).tolist() == [[0.0, np.inf], [0.0, 1.0]]


def test_borders_of_cubic_samples_are_of_each_neighbour():
    """Half an element beyond an end three neighbours are the last element, as in torch and ONNX Runtime."""
    x = np.array([[[[1, 2, 4, 8]]]], np.float32)
    grid = np.array([[[[-4 / 3, 0], [4 / 3, 0]]]], np.float32)  # -0.5 and 3.5
    model = model_of("GridSample", {"x": x, "grid": grid}, mode="cubic", padding_mode="border", align_corners=1)
    found = model.run({"x": x, "grid": grid}, capture=False)["y0"]  # a graph of 16 neighbours takes long to compile
    exact = [1.09375 * 1 - 0.09375 * 2, 1.09375 * 8 - 0.09375 * 4]
    np.testing.assert_allclose(found.reshape(-1), exact, rtol=0, atol=1e-5)


def test_boxes_that_overlap_go():
    """Against boxes one by one, in float64; no two have one score."""
    rng = np.random.default_rng(0)
    corner = rng.random((2, 40, 2)) * 8
    boxes = np.concatenate([corner, corner + 1 + rng.random((2, 40, 2)) * 3], -1).astype(np.float32)
    scores = rng.permutation(240).reshape(2, 3, 40).astype(np.float32) / 240
    exact = []
    for n, kind in itertools.product(range(2), range(3)):
        kept = []
        for one in sorted(range(40), key=lambda box: -scores[n, kind, box]):
            box = boxes[n, one].astype(np.float64)
            for other in (boxes[n, k].astype(np.float64) for k in kept):
                shared = np.prod(np.maximum(np.minimum(box[2:], other[2:]) - np.maximum(box[:2], other[:2]), 0))
                areas = np.prod(box[2:] - box[:2]) + np.prod(other[2:] - other[:2])
                if shared / (areas - shared) > 0.1:
                    break
            else:
                if scores[n, kind, one] > 0.5 and len(kept) < 9:
                    kept.append(one)
                    exact.append((n, kind, one))
    given = {"boxes": boxes, "scores": scores, "most": np.array([9]), "overlap": np.array([0.1], np.float32),
             "least": np.array([0.5], np.float32)}  # fmt: skip
    (found,) = run("NonMaxSuppression", given, captured=False)
    assert found.tolist() == [list(row) for row in exact] and 10 < len(exact) < 54


def test_quantized_convolutions_are_exact():
    """Groups, scales and zeros of channels, pads of one side: against integers, where nothing is rounded."""
    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 256, (2, 4, 7, 6), np.uint8), rng.integers(-128, 128, (6, 2, 3, 2), np.int8)
    zero_x, zero_w = np.array(131, np.uint8), rng.integers(-9, 9, 6, np.int8)
    bias = rng.integers(-1000, 1000, 6, np.int32)
    wide = np.pad(x.astype(np.int64) - 131, [(0, 0), (0, 0), (1, 0), (1, 1)])
    own = w.astype(np.int64) - zero_w[:, None, None, None]
    exact = np.zeros((2, 6, 3, 7), np.int64)
    for o, i, j in np.ndindex(6, 3, 7):
        first = o // 3 * 2
        exact[:, o, i, j] = (wide[:, first : first + 2, 2 * i : 2 * i + 3, j : j + 2] * own[o]).sum((1, 2, 3))
    options = dict(strides=[2, 1], pads=[1, 1, 0, 1], group=2)
    (found,) = run("ConvInteger", {"x": x, "w": w, "zx": zero_x, "zw": zero_w}, version=10, **options)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, exact)
    scales = np.array([0.5, 2, 1, 0.25, 1, 4], np.float32)
    given = {"x": x, "sx": np.float32(0.5).reshape(()), "zx": zero_x, "w": w, "sw": scales, "zw": zero_w,
             "s": np.float32(256).reshape(()), "z": np.array(3, np.int8), "b": bias}  # fmt: skip
    (found,) = run("QLinearConv", given, version=10, **options)
    whole = (exact + bias[:, None, None]) * scales[:, None, None] / 512
    np.testing.assert_array_equal(found, np.clip(np.rint(whole) + 3, -128, 127))
