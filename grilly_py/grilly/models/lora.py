"""Adapters of a model: added, merged into its weights and taken out again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .. import nn
from ..compute.attention import foreign
from ..compute.device.numbers import integer, number
from ..quantization import QuantizedTensor
from .adapters import Adapter, Adapters, drawn
from .layers import Linear
from .weights import Source, Stored

#: The word for all linear layers but the head that gives logits of tokens.
ALL = "all-linear"
#: Heads that give logits of tokens.
HEADS = ("lm_head", "proj_out", "vocab_projector")
#: What PEFT's LoraConfig calls them.
_KEYWORDS = {
    "r": "rank", "lora_alpha": "alpha", "target_modules": "targets", "lora_dropout": "dropout",
    "use_rslora": "rslora", "modules_to_save": "trained",
    "bias": "nothing: biases stay as they are; parameters that train too: requires_grad = True",
    "task_type": "nothing: it follows from the model",
}  # fmt: skip

ModelT = TypeVar("ModelT", bound=nn.Module)


class Place(NamedTuple):
    """Where an adapter may be: the name in transformers' model, and in files where that is another one; the layer, its
    first output and how many."""

    path: str
    older: str
    layer: Linear
    start: int
    rows: int

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    def is_meant(self, targets: Sequence[str]) -> bool:
        """Whether the layer is one of those that have these names."""
        return matches(self.path, targets) or matches(self.older, targets)


def places(model: nn.Module) -> Iterator[Place]:
    """All linear layers of a model, by the tensors that its files have for them."""
    headed, renamed = has_head(model), getattr(model, "renamed", {})
    for module in model.modules():
        if not isinstance(module, Linear):
            continue
        start = 0
        for name, rows in zip(source_of(module).names, source_of(module).rows, strict=True):
            assert name is not None
            path = named_by(source_of(module), name, headed).removesuffix(".weight")
            newer = path
            for old, new in renamed.items():
                newer = newer.replace(old, new)
            yield Place(newer, path, module, start, rows)
            start += rows


def source_of(layer: nn.Module) -> Source:
    """Where the files have a layer's weight."""
    weight = layer.weight
    assert isinstance(weight, Stored)
    return weight.source


def has_head(model: nn.Module) -> bool:
    """Whether transformers' model has the bare one as a part, whose name then begins those of its parameters."""
    stored = [parameter for parameter in model.parameters() if isinstance(parameter, Stored)]
    return getattr(model, "has_head", False) or any(not parameter.source.body for parameter in stored)


def named_by(source: Source, name: str, headed: bool) -> str:
    """What transformers' model calls a tensor of the files."""
    bare = name.removeprefix(source.body)
    return source.body + bare if headed else bare


def matches(path: str, targets: Sequence[str]) -> bool:
    """Whether a layer is one of those that are meant: by the end of its path, or all of them."""
    if list(targets) == [ALL]:
        return path.rpartition(".")[2] not in HEADS
    return any(path == target or path.endswith(f".{target}") for target in targets)


def lora(
    model: ModelT, rank: int = 16, alpha: float = 32.0, targets: Sequence[str] | str = ALL, dropout: float = 0.0, *,
    rslora: bool = False, trained: Sequence[str] = (), rng: int | np.random.Generator | None = None, **unknown: Any,
) -> ModelT:  # fmt: skip
    """Adds low-rank adapters to linear layers of a model, and freezes all else.

    A layer then computes ``W x + b + (alpha / rank) B (A dropout(x))``, and A and B alone have gradients. B begins as
    zeros, so the model gives what it gave before. Weights may be quantized.

    Parameters
    ----------
    model : grilly.models.Model
        It is changed.
    rank : int
        Rows of A and columns of B.
    alpha : float
    targets : str or sequence of str
        Names of layers as transformers and PEFT have them: "q_proj", or longer ends of the path such as
        "layers.0.self_attn.q_proj". By default "all-linear", which is all but the head that gives logits of tokens.
    dropout : float
        From 0 on, below 1: the share of the adapters' input that is dropped in training.
    rslora : bool
        Whether the factor is ``alpha / sqrt(rank)`` (rank-stabilized LoRA).
    trained : sequence of str
        Names of layers whose own parameters are trained too, such as "classifier".
    rng : int or numpy.random.Generator, optional
        Where A comes from: evenly spread in plus or minus ``1 / sqrt(inputs)``.

    Returns
    -------
    Model
        The same.

    Raises
    ------
    ValueError
        For numbers out of range, names that no layer has (it lists those that there are), and a model with adapters.
    TypeError
        For what is no model of grilly.models, and other types.

    References
    ----------
    E. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv:2106.09685. D. Kalajdzievski, "A Rank
    Stabilization Scaling Factor for Fine-Tuning with LoRA", arXiv:2312.03732.
    """
    if unknown:
        raise foreign.unknown("lora", unknown, _KEYWORDS)
    rank, alpha, dropout = integer("lora", "rank", rank), number("lora", "alpha", alpha), check_dropout(dropout)
    if rank < 1:
        raise ValueError(f"lora: rank is {rank}; expected at least 1")
    found = _places(model)
    chosen = chosen_by(found, [targets] if isinstance(targets, str) else list(targets))
    rng = np.random.default_rng(rng)
    put(model, {
        place.path: _new(place, rank, alpha, rslora, rng) for place in chosen
    }, dropout, trained)  # fmt: skip
    return model


def check_dropout(dropout: float) -> float:
    """A probability below 1. Raises TypeError and ValueError."""
    dropout = number("lora", "dropout", dropout)
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"lora: dropout is {dropout}; expected at least 0 and below 1")
    return dropout


def _places(model: Any) -> list[Place]:
    """Raises TypeError for what has none, ValueError for a model with adapters."""
    found = list(places(model)) if isinstance(model, nn.Module) else []
    if not found:
        raise TypeError(f"lora: a {type(model).__name__} has no linear layers from files; expected a model of "
                        "grilly.models")  # fmt: skip
    if any(place.layer.adapters is not None for place in found):
        raise ValueError("lora: the model has adapters already; merge_and_unload() or unload() takes them out")
    return found


def chosen_by(found: Sequence[Place], targets: Sequence[str]) -> list[Place]:
    """The layers that are meant. Raises ValueError for a name that none has."""
    for target in targets:
        if not any(place.is_meant([target]) for place in found):
            names = ", ".join(sorted({place.name for place in found}))
            raise ValueError(f"lora: no linear layer is called {target!r}; the model has {names}; or {ALL!r}")
    return [place for place in found if place.is_meant(targets)]


def _new(place: Place, rank: int, alpha: float, rslora: bool, rng: np.random.Generator) -> Adapter:
    inputs = place.layer.weight.shape[1]
    return Adapter(drawn(rng, rank, inputs), np.zeros((place.rows, rank), np.float32), alpha, rslora)


def put(model: Any, adapters: Mapping[str, Adapter], dropout: float, trained: Sequence[str]) -> None:
    """Give layers adapters by their paths, and freeze all else but the layers ``trained``."""
    kept = trained_parameters(model, trained)
    for parameter in model.parameters():
        parameter.requires_grad = False
    for parameter in kept.values():
        parameter.requires_grad = True
    by_layer: dict[int, list[Place]] = {}
    for place in places(model):
        if place.path in adapters:
            by_layer.setdefault(id(place.layer), []).append(place)
    for own in by_layer.values():
        layer = own[0].layer
        for place in own:
            adapter = adapters[place.path]
            for parameter in (adapter.lora_A, adapter.lora_B):
                moved = model.backend.tensor(parameter.data).astype(model.dtype, copy=False)
                parameter._put(moved)
        starts = {place.name: place.start for place in own}
        made = {place.name: adapters[place.path] for place in own}
        layer.adapters = Adapters(made, starts, layer.weight.shape[0], dropout, layer.precision).train(layer.training)


def trained_parameters(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Parameter]:
    """Parameters of layers by the ends of their paths, each by its name in transformers' model.

    Raises ValueError for a name that no layer has, and for layers whose tensors are joined with others'.
    """
    headed, found, unknown = has_head(model), {}, set(names)
    for parameter in model.parameters():
        if not isinstance(parameter, Stored):
            continue
        paths = [named_by(parameter.source, name, headed) for name in parameter.source.names if name is not None]
        for path in paths:
            meant = [name for name in names if matches(path.rpartition(".")[0], [name])]
            if meant and len(paths) > 1:
                raise ValueError(f"lora: {meant[0]!r} is computed together with other layers, and cannot be trained "
                                 "alone; give it an adapter")  # fmt: skip
            if meant:
                found[path] = parameter
                unknown -= set(meant)
    if unknown:
        raise ValueError(f"lora: no layer is called {sorted(unknown)[0]!r}")
    return found


def adapted(model: nn.Module) -> list[tuple[Linear, Adapters]]:
    """The layers with adapters."""
    return [(module, module.adapters) for module in model.modules()
            if isinstance(module, Linear) and module.adapters is not None]  # fmt: skip


def merge(model: nn.Module, keep: bool) -> None:
    """Put adapters into the weights; with ``keep`` the weights without them stay on the device.

    Raises ValueError where there are none, and for quantized weights; nothing is changed then.
    """
    found = _adapted(model, "merge_adapter")
    if any(isinstance(layer.weight.data, QuantizedTensor) for layer, _ in found):
        raise ValueError("merge_adapter: a quantized weight takes no adapter; load the model with dequantize=True, and "
                         "the adapter with load_adapter")  # fmt: skip
    for layer, adapters in found:
        if adapters.unmerged is None:
            before = layer.weight.data
            layer.weight.data = adapters.merged_into(before)
            adapters.unmerged = before if keep else None
        if not keep:
            layer.adapters = None


def unmerge(model: nn.Module) -> None:
    """Give layers the weights that they had before `merge`, bit for bit. Raises ValueError without adapters."""
    for layer, adapters in _adapted(model, "unmerge_adapter"):
        if adapters.unmerged is not None:
            layer.weight.data, adapters.unmerged = adapters.unmerged, None


def unload(model: nn.Module) -> None:
    """Take the adapters away. Raises ValueError where there are none."""
    unmerge(model)
    for layer, _ in adapted(model):
        layer.adapters = None


def _adapted(model: nn.Module, name: str) -> list[tuple[Linear, Adapters]]:
    found = adapted(model)
    if not found:
        raise ValueError(f"{name}: the model has no adapters; grilly.lora adds them, load_adapter reads them")
    return found


__all__ = ["lora"]
