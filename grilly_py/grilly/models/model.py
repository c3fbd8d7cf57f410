"""Model: what all models share: how they are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .. import nn
from ..compute import Compute, Tensor
from ..compute.attention.cache_types import CacheType
from ..compute.backend import default_backend
from ..compute.device.arrays import NDArray
from . import adapter_files, lora, saving
from .cache import Cache
from .config import Config
from .graphs import Graphs
from .keywords import CALLS
from .layers import Layers
from .offload import Offload, Offloaded
from .room import mib, room
from .sampling import PLAIN
from .weights import Weights


def on_host(name: str, array: Any) -> NDArray[Any]:
    """What came as a list, an array or a Tensor. Raises ValueError, by its name, for rows of different lengths."""
    try:
        return np.asarray(array.numpy() if isinstance(array, Tensor) else array)
    except ValueError:
        raise ValueError(f"{name} has rows of different lengths, which make no array; shorter texts are padded, and an "
                         "attention_mask says where") from None  # fmt: skip


def check_padding(name: str, mask: NDArray[Any]) -> None:
    """Raise TypeError for a mask of padding that is not of numbers, ValueError for other numbers than 0 and 1."""
    if mask.dtype.kind not in "biuf":
        raise TypeError(f"{name} is of {mask.dtype}; expected 1 for tokens and 0 for padding")
    if mask.dtype.kind != "b" and not ((mask == 0) | (mask == 1)).all():
        raise ValueError(f"{name} has other numbers than 1, for tokens, and 0, for padding; one that is added to "
                         "scores is (mask == 0) here")  # fmt: skip


class Model(nn.Module):
    """Base of models. A subclass's constructor reads the configuration and asks for the weights.

    What reads whole texts, pictures and sounds is captured when it is called for the third time with arrays of the same
    shapes, and replayed from then on; see ``graphs``.

    Attributes
    ----------
    backend : grilly.Compute
        Where the weights are, and where the model computes.
    dtype : numpy.dtype
        Of the weights and of what is computed with them.
    precision : str
        Of float32 products: "highest" or "high".
    cache_dtype : str or None
        "q8_0" or "q4_0": of keys and values of earlier tokens (``grilly.nn.KVCache``). None: ``dtype``.
    eos_token_id, pad_token_id, decoder_start_token_id : int, list of int or None
        What the folder says of generation.
    suppress_tokens, begin_suppress_tokens : list of int or None
        Tokens that are never generated, or not as the first one.
    repetition_penalty : float
        Of ``generate`` where it is given none.
    temperature, top_k, top_p : float, int, float
        Of ``generate`` with ``do_sample`` where it is given none.
    max_new_tokens, max_length : int or None
        Of ``generate`` where it is not told how many tokens to add: new ones, or those of prompts too.
    not_applied : dict of str to object
        What the folder asks of generation that is not done, such as ``num_beams``, or not unless the call says so, such
        as ``do_sample``. ``generate`` warns of it;
        ``model.not_applied.clear()`` says that it is not wanted.
    graphs : Graphs
        What was captured: ``graphs.memory`` bytes. ``graphs.clear()`` gives them back, ``graphs.kept = 0`` captures
        nothing from then on.
    offload : Offload or None
        The layers whose matrices stay in host memory, as ``load(..., offload=...)`` was told.
    folder : Path or None
        Where the model was loaded from.
    """

    _by_functions = True

    _foreign = CALLS
    #: What transformers calls parts whose names in files are older ones, for adapters.
    renamed: ClassVar[Mapping[str, str]] = {}
    backend: Compute

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__()
        if weights.backend is not None:
            self.backend = self._backend = weights.backend
        self.dtype, self.precision = weights.dtype, weights.precision
        self.cache_dtype: CacheType | None = None
        self.eos_token_id: Any = None
        self.pad_token_id: Any = None
        self.decoder_start_token_id: Any = None
        self.suppress_tokens: Any = None
        self.begin_suppress_tokens: Any = None
        self.repetition_penalty = 1.0
        self.temperature, self.top_k, self.top_p = PLAIN["temperature"], PLAIN["top_k"], PLAIN["top_p"]
        self.max_new_tokens: int | None = None
        self.max_length: int | None = None
        self.not_applied: dict[str, Any] = {}
        self.graphs = Graphs()
        self.offload: Offload | None = None
        self.folder: Path | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "backend"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What was pickled goes to the default backend, weights and all; copies stay on theirs."""
        super().__setstate__(state)
        weights = list(self.parameters())
        for parameter in weights:
            if not isinstance(parameter.data, Tensor):
                parameter.data = default_backend().tensor(parameter.data)
        self.backend = self._backend = weights[0].data.backend

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Refused (TypeError): a model is loaded where and as it is to compute, by ``load(folder, dtype, backend)``."""
        raise TypeError(f"{type(self).__name__}.to: load the folder again, with the dtype and backend that are wanted")

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Refused (TypeError): weights come from a folder, and some are joined on the way."""
        raise TypeError(f"{type(self).__name__}.load_state_dict: weights come from a folder, by grilly.models.load")

    def train(self, mode: bool = True) -> Any:
        """Set whether what the configuration drops is dropped. Returns the model, which begins without.

        Gradients are those of `grilly.value_and_grad`, in either state.
        """
        for module in self.modules():
            module.training = bool(mode)
        return self

    def checkpoint_layers(self, on: bool = True) -> Any:
        """Set whether layers keep nothing of their inside for gradients. Returns the model.

        A layer's input is kept, and the rest computed again when gradients are taken, as by `grilly.checkpoint`: that
        is less memory for the time of one more forward.
        """
        for module in self.modules():
            if isinstance(module, Layers):
                module.checkpointed = bool(on)
        return self

    def save(self, folder: str | Path) -> None:
        """Write the weights with the configuration and the tokenizer of the folder that the model was loaded from.

        The names, shapes and joints of tensors are those of that folder, the dtype is the model's. Raises ValueError
        for a model from a GGUF file and one with adapters, and OSError where files cannot be written.
        """
        saving.save(self, folder)

    # -- adapters --------------------------------------------------------------------------------------------------

    def save_adapter(self, folder: str | Path) -> None:
        """Write adapter_config.json and adapter_model.safetensors, which the package peft reads.

        Raises ValueError for a model without adapters, and OSError where the files cannot be written.
        """
        adapter_files.save(self, folder)

    def load_adapter(self, folder: str | Path) -> None:
        """Add the adapters of a folder, as `save_adapter` or the package peft wrote it; all else is frozen.

        Raises ModelError for files that are missing or damaged, tensors that do not go with the model, and kinds of
        adapters that are not computed; ValueError for a model that has adapters.
        """
        adapter_files.load(self, folder)

    def merge_adapter(self) -> None:
        """Put the adapters into the weights, so that they cost no time; `unmerge_adapter` takes them out bit for bit.

        The weights without them stay on the device. While they are merged they have no gradients. Raises ValueError
        without adapters, and for quantized weights.
        """
        lora.merge(self, keep=True)

    def unmerge_adapter(self) -> None:
        """Give back the weights as they were before `merge_adapter`. Raises ValueError without adapters."""
        lora.unmerge(self)

    def merge_and_unload(self) -> None:
        """Put the adapters into the weights for good. Raises as `merge_adapter`."""
        lora.merge(self, keep=False)

    def unload(self) -> None:
        """Take the adapters away. Raises ValueError where there are none."""
        lora.unload(self)

    # -- calls -----------------------------------------------------------------------------------------------------

    def _beside(self, what: str, cache: Cache) -> AbstractContextManager[None]:
        """Inside, what is computed takes memory beside the weights and a cache: the error says how much they have."""
        said = f"{type(self).__name__}: there is no room for {what}{self._held}, and the cache, {mib(cache.nbytes)}"
        return room(self.backend, said, 0, "fewer texts, shorter ones, fewer new tokens or 16 bits take less")

    @property
    def _held(self) -> str:
        """What the model itself has on the device, for messages."""
        weights, graphs = 0 if self.offload is None else self.offload.on_device, self.graphs.memory
        weights += sum(one.data.nbytes for one in self.parameters() if not isinstance(one, Offloaded))
        return f" beside the weights, {mib(weights)}" + (f", captured calls, {mib(graphs)}" if graphs else "")

    def _replayed(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's result, by a graph where there is one."""
        return self.graphs.run(self, self.backend, function, *arguments)

    def _ids(self, name: str, ids: Any, rows: int) -> tuple[Tensor, bool]:
        """Numbers of rows of a table, ``(B, S)``, on the device, and whether they came from the host.

        Raises TypeError and ValueError for what are no such numbers; those in Tensors are not read.
        """
        ids, host = self._numbers(name, ids, rows)
        return self._sent(ids), host

    def _numbers(self, name: str, ids: Any, rows: int) -> tuple[Any, bool]:
        """As `_ids`, but numbers of the host stay there, as an int32 array."""
        model = type(self).__name__
        if isinstance(ids, Tensor):
            if ids.ndim != 2 or ids.dtype.kind not in "iu":
                raise ValueError(f"{model}: {name} is {ids.dtype} {ids.shape}; expected integers (B, S)")
            if not ids.size:
                raise ValueError(f"{model}: {name} has shape {ids.shape}; expected (B, S), neither of them 0")
            return ids, False
        ids = on_host(f"{model}: {name}", ids)
        if ids.dtype.kind not in "iu":
            raise TypeError(f"{model}: {name} is of {ids.dtype}; expected integers")
        if ids.ndim != 2 or not ids.size:
            raise ValueError(f"{model}: {name} has shape {ids.shape}; expected (B, S), neither of them 0")
        if ids.min() < 0 or ids.max() >= rows:
            raise ValueError(f"{model}: {name} go from {ids.min()} to {ids.max()}; expected 0 to {rows - 1}")
        return ids.astype(np.int32), True

    def _of_tokens(self, name: str, numbers: Any, rows: int, shape: tuple[int, ...]) -> Any:
        """A number for each token of ``(B, S)``, or None: as `_numbers`, of that shape or of one text for all.

        Raises TypeError and ValueError as that, and ValueError for another shape.
        """
        if numbers is None:
            return None
        numbers = self._numbers(name, numbers, rows)[0]
        if tuple(numbers.shape) not in (shape, (1, shape[1])):
            raise ValueError(f"{type(self).__name__}: {name} has shape {tuple(numbers.shape)}; expected {shape}, as "
                             f"input_ids, or {(1, shape[1])}")  # fmt: skip
        return numbers

    def _sent(self, array: Any) -> Tensor:
        """An array on the device, of the dtype that it has."""
        return array if isinstance(array, Tensor) else self.backend.tensor(array)

    def _mask(self, mask: Any, batch: int, keys: int) -> Tensor | None:
        """An attention mask ``(B, S)``, 1 for tokens and 0 for padding, as attention takes it; None for none.

        Raises ValueError for another shape and for numbers other than these, TypeError for what are no numbers. Those
        in Tensors are not read.
        """
        if mask is None:
            return None
        name = f"{type(self).__name__}: an attention mask"
        mask = mask if isinstance(mask, Tensor) else on_host(name, mask)
        if tuple(mask.shape) != (batch, keys):
            raise ValueError(f"{name} is {mask.shape}; expected {(batch, keys)}")
        if isinstance(mask, Tensor):
            return (mask != 0).reshape(batch, 1, 1, keys)
        check_padding(name, mask)
        mask = mask != 0
        return None if mask.all() else self.backend.tensor(mask.reshape(batch, 1, 1, keys))

    def _floats(self, name: str, array: Any, shape: tuple[int | None, ...]) -> tuple[Any, bool]:
        """Numbers such as pixels, an array or Tensor of the model's dtype, and whether they came from the host.

        Raises ValueError for another shape; None stands for any extent but 0.
        """
        array = array if isinstance(array, Tensor) else on_host(f"{type(self).__name__}: {name}", array)
        found = tuple(array.shape)
        if len(found) != len(shape) or not all(e == f or (e is None and f) for e, f in zip(shape, found, strict=True)):
            expected = ", ".join("any but 0" if extent is None else str(extent) for extent in shape)
            raise ValueError(f"{type(self).__name__}: {name} has shape {found}; expected ({expected})")
        if isinstance(array, Tensor):
            return array.astype(self.dtype, copy=False), False
        return array.astype(self.dtype, copy=False), True
