"""A model's weights written as the folder has them that it was loaded from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from ..compute.device.arrays import NDArray
from .checkpoint import replaced, write_safetensors
from .config import read_json
from .weights import Stored

#: Endings of files beside the weights that the folder is copied with.
BESIDE = (".json", ".txt", ".model", ".jinja")
#: What may be in a folder, and is of the weights' files.
INDEX = "model.safetensors.index.json"


def tensors_of(parameter: Stored) -> dict[str, NDArray[Any]]:
    """The tensors of files that a parameter is made of."""
    source, array, start, found = parameter.source, parameter.numpy(), 0, {}
    for name, rows, shape in zip(source.names, source.rows, source.shapes, strict=True):
        part = array[start : start + rows]
        start += rows
        if name is not None:
            found[name] = np.array(part.T if source.transposed else part.reshape(shape), order="C")
    return found


def save(model: Any, folder: str | Path) -> None:
    """`Model.save`."""
    folder, home = Path(folder), model.folder
    if home is None or not home.is_dir():
        raise ValueError(f"save: the model was loaded from {home}; expected a folder with config.json")
    tensors: dict[str, NDArray[Any]] = {}
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, Stored):
            raise ValueError(f"save: {name} is no tensor of the folder; merge_and_unload() puts adapters into weights, "
                             "save_adapter writes them alone")  # fmt: skip
        tensors |= tensors_of(parameter)
    folder.mkdir(parents=True, exist_ok=True)
    config = read_json(home / "config.json")
    config.pop("quantization_config", None)  # what is written are floats
    config["dtype" if "dtype" in config else "torch_dtype"] = model.dtype.name
    for file in sorted(home.iterdir()) if folder.resolve() != home.resolve() else ():
        if file.suffix in BESIDE and file.name not in (INDEX, "config.json"):
            shutil.copyfile(file, folder / file.name)
    for old in folder.glob("model-*.safetensors"):
        old.unlink()
    (folder / INDEX).unlink(missing_ok=True)
    write_safetensors(folder / "model.safetensors", tensors)
    with replaced(folder / "config.json") as opened:
        opened.write(json.dumps(config, indent=2).encode() + b"\n")


__all__ = ["save", "tensors_of"]
