"""load: a model from its folder, or from a GGUF file."""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from ..compute import Compute, default_backend
from ..compute.attention import foreign
from ..compute.attention.cache_types import CacheType, check_cache_type, check_widths
from ..compute.device.arguments import check_precision
from ..compute.device.arrays import Precision
from ..compute.device.callers import callers_level
from ..compute.device.dtypes import FLOATS_TEXT, dtype_of, is_float
from ..errors import ModelError
from .architectures import ARCHITECTURES, Make, class_of
from .checkpoint import FLOATS
from .config import Config, place_of, read_json
from .defaults import Defaults
from .gguf import GGUF, GGUFCheckpoint, fields_of
from .model import Model
from .offload import SPARE, Offload, layer_of, planned
from .quantized import QuantizedCheckpoint, checkpoint_of
from .room import mib, room
from .weights import LISTED, Weights

#: Keyword arguments of transformers' from_pretrained.
_KEYWORDS = {
    "torch_dtype": "dtype",
    **dict.fromkeys(("device", "device_map"), "backend"),
    "attn_implementation": "nothing: attention stores no weights",
    **dict.fromkeys(("low_cpu_mem_usage", "use_safetensors"), "nothing: tensors are read one by one"),
}

Report = Callable[[int, int], None]


def load(
    folder: str | Path, dtype: DTypeLike | None = None, backend: Compute | None = None, *,
    precision: Precision = "highest", progress: Report | bool | None = None, ignore: Iterable[str] = (),
    offload: int | str = 0, cache_dtype: CacheType | None = None, dequantize: bool = False, **unknown: NoReturn,
) -> Model:  # fmt: skip
    """A model from a folder as transformers saves it, or from a GGUF file, with its weights on the device.

    Parameters
    ----------
    folder : str or Path
        With config.json, and model.safetensors or its shards and their index. Or a GGUF file, of parts any one.
    dtype : dtype_like, optional
        float32, float16 or "bfloat16": of the weights and of what is computed with them. By default ``dtype`` of
        config.json (``torch_dtype`` in older files) where that is one of these, else the one of which the weights have
        most bytes, which is float32 where most are quantized. Quantized weights of linear layers and embeddings stay
        quantized on the device.
    backend : grilly.Compute, optional
        The device; by default the default backend.
    precision : str
        What float32 products may be computed from: "highest" or "high", as in ``grilly.functional.linear``. No effect
        on 16-bit types.
    progress : callable or bool, optional
        Called with the bytes of the files read so far and of all; True writes that to standard error. None: True where
        that is a terminal.
    ignore : iterable of str
        Fields of config.json, or keys of a GGUF file without the family's name before them, that load does not know,
        and that do not change what the model computes.
    offload : int or str
        How many of the model's layers, the last ones, keep their matrices in host memory, from where they are sent to
        the device for each call; with "auto" as many as do not fit beside an eighth of the memory, which is left for
        caches and for what calls compute. Such a model computes the same, is not captured, takes no gradients, and is
        called by one thread at a time; ``model.offload`` says what each call sends, and how long that takes.
    cache_dtype : str, optional
        "q8_0" or "q4_0": caches of keys and values take 8.5 or 4.5 bits a number, in blocks of 32 numbers of a head
        with one float16 scale, as llama.cpp's of these names. By default they are of ``dtype``.
    dequantize : bool
        Whether quantized weights become floats of ``dtype`` as they are read.

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
        For another precision, ``offload`` that is neither "auto" nor a whole number from 0 on, another ``cache_dtype``,
        and one for a model that has no cache.
    UnsupportedError
        For a ``cache_dtype`` and a model whose heads are no multiple of 32 elements.
    ImportError
        For bfloat16 without the package ml_dtypes.
    OutOfDeviceMemoryError
        When the device, or its ``memory_limit``, has no room for the weights; it says how much they take.

    Warns
    -----
    UserWarning
        Of tensors that the architecture has no use for, such as the head of another task; as in transformers they are
        not read. With ``offload="auto"`` of layers that stay in host memory, and what this costs.
    """
    if unknown:
        raise foreign.unknown("load", unknown, _KEYWORDS)
    return load_as(
        class_of, folder, dtype, backend, precision=precision, progress=progress, ignore=ignore, offload=offload,
        cache_dtype=cache_dtype, dequantize=dequantize,
    )  # fmt: skip


def load_as(
    choose: Callable[[Path, dict[str, Any]], Make], folder: str | Path, dtype: DTypeLike | None = None,
    backend: Compute | None = None, *, precision: Precision = "highest", progress: Report | bool | None = None,
    ignore: Iterable[str] = (), offload: int | str = 0, check: Callable[[Model], None] | None = None,
    cache_dtype: CacheType | None = None, dequantize: bool = False,
) -> Model:  # fmt: skip
    """As `load`, of what ``choose`` makes of the folder and the fields of its config.json.

    ``check`` gets the model without weights, after all that load compares and before the device has anything: it raises
    for one that the caller has no use for.
    """
    check_precision("load", precision)
    check_cache_type("load", cache_dtype)
    if offload != "auto" and (type(offload) is not int or offload < 0):
        raise ValueError(f"load: offload is {offload!r}; expected a number of layers from 0 on, or 'auto'")
    if backend is not None and not isinstance(backend, Compute):
        raise TypeError(f"load: backend is {backend!r}; expected a grilly.Compute, or None for the default one")
    paper = on_paper(choose, folder, dtype, ignore, check, dequantize)
    if cache_dtype is not None:
        _check_cached(paper.model, cache_dtype)
    entries, asked = paper.weights.checkpoint.entries, paper.weights.asked
    report = _Progress(Path(folder).name, sum(entries[name].nbytes for name in asked), progress)
    backend = default_backend() if backend is None else backend
    model = _read(paper, backend, report, precision, offload)
    model.folder, model.cache_dtype = Path(folder), cache_dtype
    model.eval()
    for name, value in paper.defaults.tokens.items():
        setattr(model, name, value)
    for name in (
        "repetition_penalty", "temperature", "top_k", "top_p", "max_new_tokens", "max_length", "not_applied",
    ):  # fmt: skip
        setattr(model, name, getattr(paper.defaults, name))
    return model


def _check_cached(model: Model, cache_dtype: str) -> None:
    """Refuse a type of caches for a model that has none, or heads that it does not serve."""
    cached = getattr(model, "cached", None)
    if cached is None:
        raise ValueError(f"load: cache_dtype is {cache_dtype!r}, and {type(model).__name__} has no cache")
    check_widths("load", cache_dtype, cached[2])


class Paper(NamedTuple):
    """A model without weights.

    Attributes
    ----------
    make : callable
        Makes it of a configuration and weights.
    config : Config
    weights : Weights
        What it asks for, and the dtype.
    model : Model
    defaults : Defaults
    """

    make: Make
    config: Config
    weights: Weights
    model: Model
    defaults: Defaults

    @property
    def layers(self) -> dict[str, int]:
        """Bytes of the matrices of each layer, which may stay in host memory."""
        sizes: dict[str, int] = {}
        for name in self.weights.asked:
            if name in self.weights.matrices and (layer := layer_of(name)) is not None:
                sizes[layer] = sizes.get(layer, 0) + self.weights.nbytes_of(name)
        return sizes


def on_paper(
    choose: Callable[[Path, dict[str, Any]], Make], folder: str | Path, dtype: DTypeLike | None = None,
    ignore: Iterable[str] = (), check: Callable[[Model], None] | None = None, dequantize: bool = False,
) -> Paper:  # fmt: skip
    """All of `load_as` that needs no device: what is wrong with the files is said here."""
    folder = Path(folder)
    if not folder.is_dir() and not folder.is_file():
        raise ModelError(f"{folder} is no folder and no file; a model is read from its files, and not downloaded")
    if dtype is not None and not _float(dtype):
        raise TypeError(f"load: dtype {dtype}; expected {FLOATS_TEXT}, or None for that of the folder")
    if isinstance(ignore, str):
        raise TypeError(f"load: ignore is {ignore!r}; expected a list of fields, such as [{ignore!r}]")
    gguf = GGUF(folder) if folder.is_file() else None
    fields = read_json(folder / "config.json") if gguf is None else fields_of(gguf, ignore)
    make = choose(folder, fields)
    checkpoint = checkpoint_of(folder, fields, ignore) if gguf is None else GGUFCheckpoint(gguf)
    config = Config(place_of(folder), fields, ignore)
    weights = Weights(checkpoint, np.dtype(np.float32), quantized=not dequantize)
    model = make(config, weights)
    config.finish()
    defaults = Defaults(folder, fields)
    unused = weights.check()
    if check is not None:
        check(model)
    _tell_unused(folder, model, unused)
    weights.dtype = dtype_of(_dtype_of(fields, weights) if dtype is None else dtype)
    if not dequantize and isinstance(checkpoint, QuantizedCheckpoint):
        _tell_floats(folder, weights, checkpoint)
    return Paper(make, config, weights, model, defaults)


def _read(paper: Paper, backend: Compute, report: _Progress, precision: Precision, offload: int | str) -> Model:
    """The model with its weights on the device. After an error none of them are there."""
    plan, home = paper.weights, _offload(paper, backend, offload)
    folder, nbytes = plan.checkpoint.folder, plan.nbytes - (0 if home is None else home.nbytes - home.on_device)
    weights = Weights(plan.checkpoint, plan.dtype, backend, report.add, precision, plan.quantized, home)
    smaller = "" if plan.dtype.itemsize == 2 or plan.kept else "float16, bfloat16 or "
    kept = "quantized, and others " if plan.kept else ""
    beside = "" if home is None else f", beside those of {len(home.layers)} layers in host memory,"
    less = "a smaller model takes less" + ("" if offload == "auto" else ", and offload='auto' keeps layers on the host")
    try:
        with room(backend, f"{folder}: the weights{beside} take {mib(nbytes)} {kept}as {plan.dtype}", nbytes,
                  f"{smaller}{less}"):  # fmt: skip
            model = paper.make(paper.config, weights)
        weights.finish()
        if home is not None:
            home.measure(model, backend)
            model.offload, model.graphs.kept = home, 0
    except BaseException as error:
        weights.give_up()
        _let_go(error)
        raise
    finally:
        report.end()
    if home is not None and offload == "auto":
        warnings.warn(
            f"{folder}: {len(home.layers)} of {home.count} layers stay in host memory; each call sends "
            f"{mib(home.nbytes)}, in {home.seconds:.2g} s", UserWarning, stacklevel=callers_level(),
        )  # fmt: skip
    return model


def _offload(paper: Paper, backend: Compute, offload: int | str) -> Offload | None:
    """The layers that stay in host memory. Raises ValueError where there are to be some, and the model has none."""
    sizes = paper.layers
    if offload not in (0, "auto") and not sizes:
        folder = paper.weights.checkpoint.folder
        raise ValueError(f"load: offload is {offload!r}; {folder} has no layers that can stay")
    most = int((1 - SPARE) * backend.opened.most_memory) - backend.memory().in_use
    return planned(sizes, paper.weights.nbytes, offload, most)


def _let_go(error: BaseException | None) -> None:
    """Empty the frames that an error has passed through: as long as somebody holds it, they would hold arrays."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _tell_unused(folder: Path, model: Model, names: list[str]) -> None:
    if names:
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        warnings.warn(
            f"{folder}: {type(model).__name__} does not use {', '.join(names[:LISTED])}{more}; that is right for a "
            "head of another task, else the configuration is not that of these tensors",
            UserWarning, stacklevel=callers_level(),
        )  # fmt: skip


def _tell_floats(folder: Path, weights: Weights, checkpoint: QuantizedCheckpoint) -> None:
    """Warn of quantized weights that become floats, and of the memory that this takes."""
    names = [name for name in weights.asked if checkpoint.is_quantized(name) and name not in weights.kept]
    if names:
        before, after = (sum(nbytes(name) for name in names) for nbytes in (checkpoint.nbytes, weights.nbytes_of))
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        warnings.warn(
            f"{folder}: kernels do not read the quantized numbers of {', '.join(names[:LISTED])}{more}; they become "
            f"{weights.dtype}, which takes {mib(after)} on the device, and not the {mib(before)} of the files",
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
        nbytes[entry.dtype] += entry.nbytes
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


__all__ = ["ARCHITECTURES", "Paper", "class_of", "load", "load_as", "on_paper"]
