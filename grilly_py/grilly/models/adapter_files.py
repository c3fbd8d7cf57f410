"""Adapters in files, as the package peft writes and reads them: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import nn
from ..errors import ModelError
from ..quantization import QuantizedTensor
from .adapters import Adapter
from .checkpoint import Checkpoint, replaced, write_safetensors
from .config import Config, read_json
from .lora import Place, adapted, chosen_by, named_by, places, put, source_of, trained_parameters
from .weights import Stored

CONFIG, STEM = "adapter_config.json", "adapter_model"
#: How names of tensors begin, and how those of A and B end.
BEFORE, ENDS = "base_model.model.", {"lora_A": ".lora_A.weight", "lora_B": ".lora_B.weight"}
#: Fields that change what is computed, at other values than these.
ONLY: dict[str, Any] = {
    "bias": "none", "use_dora": False, "lora_bias": False, "layer_replication": None, "use_qalora": False,
    "trainable_token_indices": None, "alora_invocation_tokens": None, "arrow_config": None, "use_bdlora": None,
    "velora_config": None, "monteclora_config": None,
    # Others change the model's own weights before they are trained.
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"),
}  # fmt: skip


def save(model: Any, folder: str | Path) -> None:
    """`Model.save_adapter`."""
    folder = Path(folder)
    found = {place.path: (place, part) for place in places(model) for part in _at(place)}
    if not found:
        raise ValueError("save_adapter: the model has no adapters; grilly.lora adds them")
    tensors = {}
    for path, (_, part) in found.items():
        for name, end in ENDS.items():
            tensors[f"{BEFORE}{path}{end}"] = getattr(part, name).numpy()
    trained = _trained(model)
    tensors |= {BEFORE + path: parameter.numpy() for path, parameter in trained.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / f"{STEM}.safetensors", tensors)
    text = json.dumps(_config(model, found, sorted({path.rpartition(".")[0] for path in trained})), indent=2)
    with replaced(folder / CONFIG) as file:
        file.write(text.encode() + b"\n")


def _at(place: Place) -> list[Adapter]:
    """The adapter at a place, if there is one."""
    held = place.layer.adapters
    return [] if held is None else [part for name, part in held.named_adapters() if name == place.name]


def _trained(model: nn.Module) -> dict[str, Stored]:
    """Parameters of the model itself that are trained, by their names in transformers' model."""
    from_files = [one for one in model.parameters() if isinstance(one, Stored) and one.requires_grad]
    paths = {named_by(one.source, name, True): one for one in from_files for name in one.source.names[:1] if name}
    layers = sorted({path.rpartition(".")[0] for path in paths})
    return trained_parameters(model, layers)  # type: ignore[return-value]


def _config(model: Any, found: Mapping[str, tuple[Place, Adapter]], trained: list[str]) -> dict[str, Any]:
    parts = [part for _, part in found.values()]
    ranks, alphas = ([getattr(part, name) for part in parts] for name in ("rank", "alpha"))
    rank, alpha = max(set(ranks), key=ranks.count), max(set(alphas), key=alphas.count)
    names = sorted({place.name for place, _ in found.values()})
    exact = len(chosen_by(list(places(model)), names)) == len(found)
    headed = getattr(model, "has_head", False)
    task = ("SEQ_2_SEQ_LM" if hasattr(model, "encode") else "CAUSAL_LM") if headed else None
    layers = [place.layer for place, _ in found.values()]
    return {
        "peft_type": "LORA", "task_type": task,
        "base_model_name_or_path": None if model.folder is None else str(model.folder),
        "r": rank, "lora_alpha": alpha, "use_rslora": parts[0].rslora,
        "lora_dropout": layers[0].adapters.dropout if layers[0].adapters is not None else 0.0,
        "target_modules": names if exact else sorted(found), "modules_to_save": trained or None,
        "rank_pattern": {path: part.rank for path, (_, part) in found.items() if part.rank != rank},
        "alpha_pattern": {path: part.alpha for path, (_, part) in found.items() if part.alpha != alpha},
        "fan_in_fan_out": any(source_of(layer).transposed for layer in layers), "bias": "none",
        "inference_mode": True, "init_lora_weights": True, "use_dora": False,
    }  # fmt: skip


def load(model: Any, folder: str | Path) -> None:
    """`Model.load_adapter`."""
    folder = Path(folder)
    config = Config(str(folder / CONFIG), read_json(folder / CONFIG))
    config.only(peft_type="LORA", **ONLY)
    checkpoint = Checkpoint(folder, STEM)
    if adapted(model):
        raise ValueError("load_adapter: the model has adapters already; merge_and_unload() or unload() takes them out")
    named = {bare: place for place in places(model) for bare in _bare(place)}
    bodies = {source_of(place.layer).body for place in named.values()}
    pairs, others, problems = dict[str, dict[str, str]](), list[str](), list[str]()
    for tensor in checkpoint.entries:
        path = tensor.removeprefix(BEFORE)
        kind = next((kind for kind, end in ENDS.items() if path.endswith(end)), None)
        if kind is None:
            others.append(tensor)
            continue
        path = path.removesuffix(ENDS[kind])
        bare = next((path.removeprefix(body) for body in bodies if body and path.startswith(body)), path)
        if bare in named:
            pairs.setdefault(bare, {})[kind] = tensor
        else:
            problems.append(f"{tensor}: the model has no linear layer {path}")
    adapters = {}
    for bare, pair in pairs.items():
        problems += _problems(checkpoint, named[bare], pair)
        if not problems:
            alpha = _alpha(config, named[bare].path)
            a, b = (checkpoint.floats(pair[kind]) for kind in ENDS)
            adapters[named[bare].path] = Adapter(a, b, alpha, config.flag("use_rslora", False))
    trained = {} if problems else _own(model, checkpoint, others, problems)
    if problems or not adapters:
        raise ModelError(f"{folder}: the adapter does not go with {type(model).__name__}:\n"
                         + "\n".join(f"  {line}" for line in problems or ["it has no tensors of LoRA"]))  # fmt: skip
    put(model, adapters, config.number("lora_dropout", 0.0, least=0.0), [path.rpartition(".")[0] for path in trained])
    for path, (parameter, array) in trained.items():
        assert path
        parameter.data = model.backend.tensor(array).astype(parameter.dtype, copy=False)


def _bare(place: Place) -> set[str]:
    """A layer's paths without the name of the part that bare models lack."""
    return {path.removeprefix(source_of(place.layer).body) for path in (place.path, place.older)}


def _problems(checkpoint: Checkpoint, place: Place, pair: dict[str, str]) -> list[str]:
    """What is wrong with the two matrices of a layer."""
    if len(pair) < 2:
        return [f"{next(iter(pair.values()))}: the other one of lora_A and lora_B is missing"]
    a, b = (checkpoint.entries[pair[kind]] for kind in ENDS)
    inputs = place.layer.weight.shape[1]
    rank = a.shape[0] if a.shape else 0
    if a.dtype is None or b.dtype is None or a.shape != (rank, inputs) or b.shape != (place.rows, rank) or not rank:
        return [f"{place.path}: lora_A is {a.kind} {list(a.shape)} and lora_B {b.kind} {list(b.shape)}; expected "
                f"floats [rank, {inputs}] and [{place.rows}, rank]"]  # fmt: skip
    return []


def _alpha(config: Config, path: str) -> float:
    """That of a layer: ``lora_alpha``, or what ``alpha_pattern`` says of its path."""
    alpha: float = config.number("lora_alpha", 8.0)
    patterns = config.inner("alpha_pattern")
    for pattern in patterns.fields if patterns is not None else ():
        if re.match(rf"(.*\.)?({pattern})$", path):
            alpha = patterns.number(pattern)  # type: ignore[union-attr]
    return alpha


def _own(
    model: Any, checkpoint: Checkpoint, tensors: list[str], problems: list[str]
) -> dict[str, tuple[nn.Parameter, np.ndarray[Any, Any]]]:
    """Parameters of the model itself that the adapter's files have, by their names, with what they become."""
    found = {}
    for tensor in tensors:
        path = tensor.removeprefix(BEFORE)
        try:
            parameter = trained_parameters(model, [path.rpartition(".")[0]]).get(path)
        except ValueError:
            parameter = None
        if parameter is None or isinstance(parameter.data, QuantizedTensor):
            problems.append(f"{tensor}: the model has no such parameter")
        elif parameter.shape != checkpoint.entries[tensor].shape or checkpoint.entries[tensor].dtype is None:
            entry = checkpoint.entries[tensor]
            problems.append(f"{tensor} is {entry.kind} {list(entry.shape)}; expected floats {list(parameter.shape)}")
        else:
            found[path] = parameter, checkpoint.floats(tensor)
    return found
