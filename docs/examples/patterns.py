"""Show which tokens look at which: python patterns.py [FILE.png]

Six options of attention on the same random queries and keys. The values are the unit matrix, so each output is a row of
weights.
"""

import sys

import numpy as np
from png import enlarged, heat, side_by_side, write_png

import grilly.functional as F

LENGTH, WIDTH = 48, 32
DOCUMENTS = (np.arange(LENGTH) // 16)[None].astype(np.int32)
PATTERNS = {
    "everything": {},
    "causal": {"causal": True},
    "a window of 8": {"causal": True, "window_size": (7, 0)},
    "a prefix of 12": {"causal": True, "prefix_len": [12]},
    "ALiBi": {"causal": True, "alibi_slopes": np.array([0.25], np.float32)},
    "three documents": {"causal": True, "segment_ids": DOCUMENTS},
}


def weights(**options):
    """The weights (LENGTH, LENGTH) of attention with these options; each row sums to 1."""
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 1, 1, LENGTH, WIDTH), dtype=np.float32)
    unit = np.eye(LENGTH, dtype=np.float32)[None, None]
    return F.flash_attention2(q, k, unit, **options)[0, 0]


if __name__ == "__main__":
    found = {name: weights(**options) for name, options in PATTERNS.items()}
    for name, each in found.items():
        print(f"{name:16} {np.count_nonzero(each):5} of {each.size} pairs")
    if sys.argv[1:]:
        # Square roots show small weights too.
        shown = [enlarged(heat(np.sqrt(each / each.max(axis=1, keepdims=True))), 3) for each in found.values()]
        rows = [side_by_side(shown[start : start + 3], 12) for start in (0, 3)]
        white = np.full((12, rows[0].shape[1], 3), 255, np.uint8)
        write_png(sys.argv[1], np.concatenate([rows[0], white, rows[1]]))
