"""As public_api.py, for what needs Dask."""

from __future__ import annotations

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

from grilly import dask


def chunks(q: da.Array, small: NDArray[np.float32], double: NDArray[np.float64]) -> None:
    assert_type(dask.flash_attention(q, q, small, causal=True, softcap=30.0), da.Array)
    assert_type(dask.flash_attention(q, q, q, mask=q, return_lse=True), tuple[da.Array, da.Array])
    assert_type(dask.join((small, small), (small, small))[0], NDArray[np.float32])
    dask.worker_backend().synchronize()

    dask.flash_attention(q, q, q, casual=True)  # type: ignore[call-overload]
    dask.flash_attention(double, q, q)  # type: ignore[arg-type]
