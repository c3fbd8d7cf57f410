"""Options of attention for calls that are made block by block: streamed through the device, or as tasks of Dask."""

from __future__ import annotations

import numpy as np

RNG = np.random.default_rng(7)
OPTIONS = {
    "bias": {"attn_bias": RNG.standard_normal((3, 1, 307)).astype(np.float32)},
    "bias and mask": {
        "attn_bias": RNG.standard_normal((113, 307)).astype(np.float16), "mask": RNG.random((2, 1, 1, 307)) < 0.5,
    },
    "alibi": {"alibi_slopes": np.array([0.01, 0.1, 0.5], np.float32), "causal": True},
    "t5": {"t5_table": RNG.standard_normal((32, 3)).astype(np.float32)},
    "softcap": {"softcap": 2.0, "causal": True},
    "sinks": {"sinks": np.array([0.0, 3.0, -2.0], np.float32)},
    "sinks, hidden": {"sinks": np.array([0.0, 3.0, -2.0], np.float32), "mask": np.zeros((113, 307), bool)},
    "sinks, causal": {"sinks": np.array([0.0, 3.0, -2.0], np.float32), "causal": True, "keys": 53},
    "window": {"window_size": (40, 10)},
    "window, left": {"window_size": (17, None), "causal": True},
    "window and sinks": {"window_size": (17, 0), "sinks": np.array([0.0, 3.0, -2.0], np.float32)},
    "prefix": {"prefix_len": np.array([150, 20]), "causal": True},
    "segments": {"segment_ids": (np.arange(113)[None] // 40, np.arange(307)[None] // 100)},
    "lengths": {"seqlens_q": np.array([113, 50]), "seqlens_k": np.array([200, 307]), "causal": True},
    "blocks": {"block_map": RNG.random((1, 3, 8, 10)) < 0.4, "block_size": (16, 32)},
    "dropout": {"dropout_p": 0.3, "dropout_seed": 5, "dropout_offset": 2},
}  # fmt: skip
