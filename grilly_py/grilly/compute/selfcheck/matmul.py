"""Self-checks of products with a layer's weight."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...registry import Choice
from ..device.device import Device
from ..device.dtypes import dtype_of
from ..device.trial import pin, view_of
from ..matmul.factor_layout import orders
from ..matmul.linear import linear
from .comparing import difference, product_bound, proven


def check(device: Device, choice: Choice, facts: Mapping[str, int]) -> str | None:
    """Products at sizes of whole blocks and at odd ones, with and without a bias, and where it takes them of factors
    that are transposed."""
    variant, dtype = choice.variant, dtype_of(choice.variant.dtype)
    align, tile = variant.align, variant.tile
    step = max(align, variant.limits.get("depth_align", (1, 1))[0])  # of the depth
    odd_cols = align if align > 1 else 3
    block_rows, block_cols = 2 * tile["rows"], 2 * tile["cols"]
    odd = (block_rows + 5, block_cols + odd_cols, 193 // step * step)
    problems = [odd, (block_rows, block_cols, 256)]  # whole blocks may be another program
    if "fill" in tile:  # and so may a depth that subgroups and workgroups divide
        problems.append((tile["rows"] - 1, 16 + odd_cols, 4201 // step * step))
    if "panel" in tile:  # and chunks of code for many panels, for fewer and for one
        problems.append((tile["rows"], tile["cols"], tile["panels"] * tile["panel"]))
    either = all(True in own for own in orders(choice))
    for (rows, cols, depth), transposed in [*((sizes, False) for sizes in problems), *[(problems[1], True)] * either]:
        facts = {"align": align, "rows": rows, "cols": cols, "outputs": rows * cols, "high": 0, "transposed": 0}
        trusted = pin(view_of(device), proven(device, "linear", variant.dtype, facts))
        tested = pin(view_of(device), choice)
        rng = np.random.default_rng([rows, cols])
        x, weight, bias = (rng.standard_normal(shape).astype(dtype) for shape in ((rows, depth), (cols, depth), cols))
        bias = bias if (rows, cols, depth) == odd else None
        given = [device.tensor(np.ascontiguousarray(a.T)).T for a in (x, weight)] if transposed else (x, weight)
        got, expected = linear(tested, *given, bias), linear(trusted, x, weight, bias)
        got = got.numpy() if transposed else got
        magnitude = np.abs(x.astype(np.float64)) @ np.abs(weight.astype(np.float64)).T
        magnitude += 0 if bias is None else np.abs(bias.astype(np.float64))
        bound = product_bound(expected.astype(np.float64), magnitude, variant.dtype)
        off = difference(got, expected, bound, variant.dtype)
        if off is not None:
            return f"linear, {rows} x {cols} x {depth}{', transposed' * transposed}: {off}"
    return None
