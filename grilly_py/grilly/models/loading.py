"""load: a model from its folder."""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from ..compute import Compute, default_backend
from ..compute.attention import foreign
from ..compute.device.arguments import check_precision
from ..compute.device.arrays import Precision
from ..compute.device.callers import callers_level
from ..compute.device.dtypes import FLOATS_TEXT, dtype_of, is_float
from ..errors import ModelError
from .architectures import ARCHITECTURES, Make, class_of
from .checkpoint import FLOATS, Checkpoint
from .config import Config, read_json
from .defaults import Defaults
from .model import Model
from .room import mib, room
from .weights import LISTED, Weights

#: Keyword arguments of transformers' from_pretrained.
_WORDS = {
    "torch_dtype": "dtype",
    **dict.fromkeys(("device", "device_map"), "backend"),
    "attn_implementation": "nothing: attention stores no weights",
    **dict.fromkeys(("low_cpu_mem_usage", "use_safetensors"), "nothing: tensors are read one by one"),
}

Report = Callable[[int, int], None]


def load(
    folder: str | Path, dtype: DTypeLike | None = None, backend: Compute | None = None, *,
    precision: Precision = "highest", progress: Report | bool | None = None, ignore: Iterable[str] = (),
    **unknown: NoReturn,
) -> Model:  # fmt: skip
    """A model from a folder as transformers saves it, with its weights on the device.

    Parameters
    ----------
    folder : str or Path
        With config.json, and model.safetensors or its shards and their index.
    dtype : dtype_like, optional
        float32, float16 or "bfloat16": of the weights and of what is computed with them. By default ``dtype`` of
        config.json (``torch_dtype`` in older files) where that is one of these, else the one of which the weights have
        most bytes.
    backend : grilly.Compute, optional
        The device; by default the default backend.
    precision : str
        What float32 products may be computed from: "highest" or "high", as in ``grilly.functional.linear``. No effect
        on 16-bit types.
    progress : callable or bool, optional
        Called with the bytes of the files read so far and of all; True writes that to standard error. None: True where
        that is a terminal.
    ignore : iterable of str
        Fields of config.json that load does not know, and that do not change what the model computes.

    Returns
    -------
    Model
        Called as in transformers: ``model(input_ids=..., attention_mask=...)``.

    Raises
    ------
    ModelError
        For an architecture that is not there, fields of config.json that are missing, unknown or of values that are
        not computed, and files or tensors that are missing, damaged or of another shape. It lists them, and nothing is
        on the device then. Also for numbers that float16 does not hold.
    TypeError
        For another dtype, a backend that is none, and ``ignore`` that is one text.
    ValueError
        For another precision.
    ImportError
        For bfloat16 without the package ml_dtypes.
    OutOfDeviceMemoryError
        When the device, or its ``memory_limit``, has no room for the weights; it says how much they take.

    Warns
    -----
    UserWarning
        Of tensors that the architecture has no use for, such as the head of another task; as in transformers they are
        not read.
    """
    if unknown:
        raise foreign.unknown("load", unknown, _WORDS)
    return load_as(class_of, folder, dtype, backend, precision=precision, progress=progress, ignore=ignore)


def load_as(
    choose: Callable[[Path, dict[str, Any]], Make], folder: str | Path, dtype: DTypeLike | None = None,
    backend: Compute | None = None, *, precision: Precision = "highest", progress: Report | bool | None = None,
    ignore: Iterable[str] = (), check: Callable[[Model], None] | None = None,
) -> Model:  # fmt: skip
    """As `load`, of what ``choose`` makes of the folder and the fields of its config.json.

    ``check`` gets the model without weights, after all that load compares and before the device has anything: it raises
    for one that the caller has no use for.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError(f"{folder} is no folder; a model is read from its files, and not downloaded")
    if dtype is not None and not _float(dtype):
        raise TypeError(f"load: dtype {dtype}; expected {FLOATS_TEXT}, or None for that of the folder")
    check_precision("load", precision)
    if isinstance(ignore, str):
        raise TypeError(f"load: ignore is {ignore!r}; expected a list of fields, such as [{ignore!r}]")
    if backend is not None and not isinstance(backend, Compute):
        raise TypeError(f"load: backend is {backend!r}; expected a grilly.Compute, or None for the default one")
    fields = read_json(folder / "config.json")
    make = choose(folder, fields)
    checkpoint = Checkpoint(folder)
    config = Config(str(folder / "config.json"), fields, ignore)
    on_paper = Weights(checkpoint, np.dtype(np.float32))
    model = make(config, on_paper)
    config.finish()
    defaults = Defaults(folder, fields)
    unused = on_paper.check()
    if check is not None:
        check(model)
    _tell_unused(folder, model, unused)
    on_paper.dtype = dtype_of(_dtype_of(fields, on_paper) if dtype is None else dtype)
    total = sum(checkpoint.entries[name].nbytes for name in on_paper.asked)
    report = _Progress(folder.name, total, progress)
    backend = default_backend() if backend is None else backend
    weights = Weights(checkpoint, on_paper.dtype, backend, report.add, precision)
    smaller = "" if on_paper.dtype.itemsize == 2 else "float16, bfloat16 or "
    what = f"{folder}: the weights take {mib(on_paper.nbytes)} as {on_paper.dtype}"
    try:
        with room(backend, what, on_paper.nbytes, f"{smaller}a smaller model takes less"):
            model = make(config, weights)
        weights.finish()
    finally:
        report.end()
    for name, value in defaults.tokens.items():
        setattr(model, name, value)
    for name in (
        "repetition_penalty", "temperature", "top_k", "top_p", "max_new_tokens", "max_length", "not_applied",
    ):  # fmt: skip
        setattr(model, name, getattr(defaults, name))
    return model


def _tell_unused(folder: Path, model: Model, names: list[str]) -> None:
    if names:
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        warnings.warn(
            f"{folder}: {type(model).__name__} does not use {', '.join(names[:LISTED])}{more}; that is right for a "
            "head of another task, else config.json is not that of these tensors",
            UserWarning, stacklevel=callers_level(),
        )  # fmt: skip


def _dtype_of(fields: dict[str, Any], weights: Weights) -> str:
    """The dtype of a folder: what config.json says, else the one of which the tensors asked for have most bytes."""
    for name in ("dtype", "torch_dtype"):
        if (said := fields.get(name)) in FLOATS.values():
            return said
    nbytes: Counter[str] = Counter()  # a buffer or a table that was kept in float32 is no reason for twice the memory
    for name in weights.asked:
        entry = weights.checkpoint.entries[name]
        nbytes[FLOATS[entry.kind]] += entry.nbytes
    return max(nbytes, key=nbytes.__getitem__, default="float32")


def _float(dtype: DTypeLike) -> bool:
    try:
        return is_float(dtype_of(dtype))
    except TypeError:  # NumPy does not know it, such as "auto"
        return False


class _Progress:
    """Tells how much of the weights was read."""

    def __init__(self, name: str, total: int, progress: Report | bool | None) -> None:
        self._name, self._done, self._total = name, 0, total
        self._call = progress if callable(progress) else None
        self._terminal = sys.stderr is not None and sys.stderr.isatty()  # None in programs without a console
        self._shown = sys.stderr is not None and (progress is True or (progress is None and self._terminal))
        self._last = time.monotonic()

    def add(self, nbytes: int) -> None:
        """So many bytes more were read."""
        self._done += nbytes
        if self._call is not None:
            self._call(self._done, self._total)
        now = time.monotonic()
        if self._shown and now - self._last >= 0.1:
            self._last = now
            self._write(f"loading {self._name}: {self._done / 2**20:.0f} of {self._total / 2**20:.0f} MiB")

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}" if self._terminal else f"{text}\n" if text else "")
        sys.stderr.flush()

    def end(self) -> None:
        """Clear the line."""
        if self._shown and self._terminal:
            self._write("")


__all__ = ["ARCHITECTURES", "class_of", "load", "load_as"]
