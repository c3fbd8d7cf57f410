"""The folder of a SentenceEncoder, as sentence-transformers writes it: how texts begin, and what follows the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .. import functional as F
from .. import nn
from ..compute import Compute, Tensor
from ..errors import ModelError
from .checkpoint import Checkpoint
from .config import Config, read_json
from .gguf import GGUF, pooling_of
from .layers import Linear
from .weights import Weights

#: How one vector is made of a text's tokens, and the field that says so in older files.
POOLING = {
    "cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
}  # fmt: skip
#: By which the file of limits is called, the usual one first: older versions had one for each family.
NAMED = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
#: What the usual Transformer step reads, and takes of the model.
MODALITY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
#: What a Dense step's activation_function may end with.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x, "Tanh": F.tanh, "ReLU": F.relu, "GELU": F.gelu, "Sigmoid": F.sigmoid, "SiLU": F.silu,
}  # fmt: skip


class Dense(nn.Module):
    """A layer on vectors, and its activation.

    Raises
    ------
    ModelError
        For fields of its config.json that are missing, unknown or of other values.
    """

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__()
        config.only(use_residual=False, module_input_name="sentence_embedding",
                    module_output_name=(None, "sentence_embedding"))  # fmt: skip
        self.inputs, self.outputs = config.integer("in_features"), config.integer("out_features")
        name = config.fields.get("activation_function", "Tanh")
        last = name.rsplit(".", 1)[-1] if isinstance(name, str) else None
        if last not in ACTIVATIONS:
            raise config.error("activation_function", f"one that ends with {', '.join(ACTIVATIONS)}")
        config.unused("activation_function")
        self.activation = ACTIVATIONS[last]
        self.linear = Linear(weights, "linear", self.inputs, self.outputs, config.flag("bias", True))

    def forward(self, x: Tensor) -> Tensor:
        """``(B, in_features)`` to ``(B, out_features)``."""
        return self.activation(self.linear(x))


@dataclass
class Steps:
    """What makes one vector of a text's tokens.

    Attributes
    ----------
    pooling : str
        One of `POOLING`.
    normalized : bool
        Whether vectors are scaled to length 1.
    pools_prompts : bool
        Whether a prompt's tokens are among those that are pooled.
    dense : list of (Config, Checkpoint)
        Of each layer between the two its config.json and its tensors.
    """

    pooling: str = "mean"
    normalized: bool = True
    pools_prompts: bool = True
    dense: list[tuple[Config, Checkpoint]] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path, ignored: Iterable[str] = ()) -> Steps:
        """What modules.json says; without it the mean, scaled. Raises ModelError for other steps, and for fields of
        their files that are not known; ``ignored``: those that the user vouches for. A GGUF file says the pooling."""
        if folder.is_file():
            return cls(pooling_of(GGUF(folder)))
        file = folder / "modules.json"
        if not file.is_file():
            return cls()
        try:
            steps = [(step["type"].rsplit(".", 1)[-1], step["path"]) for step in json.loads(file.read_text("utf-8"))]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{file} is no list of steps with type and path ({error!r})") from None
        names = [name for name, _ in steps]
        last = names[-1:] == ["Normalize"]
        between = names[2 : len(names) - last]
        if names[:1] == ["Transformer"] and steps[0][1] not in ("", "."):
            raise ModelError(
                f"{file}: the Transformer's path is {steps[0][1]!r}; expected '': move the files of that folder beside "
                "modules.json, and set the path to ''"
            )
        if names[:2] != ["Transformer", "Pooling"] or set(between) - {"Dense"}:
            raise ModelError(
                f"{file}: the steps are {names}; expected Transformer, Pooling and perhaps Dense, and perhaps Normalize"
            )
        where = folder / steps[1][1] / "config.json"
        config = Config(str(where), read_json(where), ignored)
        config.unused("word_embedding_dimension", "embedding_dimension")
        pools_prompts = config.flag("include_prompt", True)
        chosen = [name for name, told in POOLING.items() if config.flag(told, False)]
        config.only(pooling_mode_weightedmean_tokens=False, pooling_mode_lasttoken=False)
        if "pooling_mode" in config:
            chosen.append(config.text("pooling_mode", POOLING))
        config.finish()
        if len(chosen) != 1:
            raise ModelError(f"{where}: pooling is {chosen}; expected one of {', '.join(POOLING.values())}")
        dense = [
            (Config(str(at / "config.json"), read_json(at / "config.json"), ignored), Checkpoint(at))
            for at in (folder / path for name, path in steps if name == "Dense")
        ]
        return cls(chosen[0], last, pools_prompts, dense)

    def layers(self, width: int, backend: Compute | None = None) -> list[Dense]:
        """Those of `dense`, of float32, after a model of this width; without a backend only compared with their files.

        Raises ModelError.
        """
        found = []
        for config, checkpoint in self.dense:
            weights = Weights(checkpoint, np.dtype(np.float32), backend)
            layer = Dense(config, weights)
            config.finish()
            if layer.inputs != width:
                raise config.error("in_features", str(width))
            found.append(layer)
            width = layer.outputs
            if backend is None:
                weights.check()
        return found


def limits(folder: Path, ignored: Iterable[str] = ()) -> tuple[int | None, bool]:
    """How many tokens a text may have, and whether it is put in lower case. Raises ModelError, as `Steps.of`."""
    file = next((file for file in (folder / f"sentence_{name}_config.json" for name in NAMED) if file.is_file()), None)
    if file is None:
        return None, False
    config = Config(str(file), read_json(file), ignored)
    config.only(transformer_task="feature-extraction", module_output_name="token_embeddings", modality_config=MODALITY,
                processing_kwargs={}, model_args={}, tokenizer_args={}, config_args={})  # fmt: skip
    config.only(**dict.fromkeys(("query_length", "document_length", "query_expansion", "tokenizer_name_or_path"), None))
    config.unused("unpad_inputs")
    found = config.integer("max_seq_length", None), config.flag("do_lower_case", False)
    config.finish()
    return found


def prompts(folder: Path, pooled: bool) -> tuple[dict[str, str], str | None]:
    """What texts may be begun with, by name, and the name of the default; ``pooled``: whether with their tokens."""
    file = folder / "config_sentence_transformers.json"
    fields = read_json(file) if file.is_file() else {}
    config = Config(str(file), fields)
    config.only(model_type="SentenceTransformer")
    if "truncate_dim" in config:
        raise config.error("truncate_dim", "none: vectors[:, :n] has the first n elements")
    named, default = fields.get("prompts") or {}, fields.get("default_prompt_name")
    if not isinstance(named, dict) or not all(isinstance(prompt, str) for prompt in named.values()):
        raise ModelError(f"{file}: prompts is {named!r}; expected names, each with a text")
    if default is not None and default not in named:
        raise ModelError(f"{file}: default_prompt_name is {default!r}; prompts has {', '.join(named) or 'none'}")
    if not pooled and any(named.values()):
        raise ModelError(f"{folder}: include_prompt of the pooling is false, and {file.name} has prompts; vectors "
                         "without a prompt's tokens are not computed")  # fmt: skip
    return named, default


__all__ = ["POOLING", "Dense", "Steps", "limits", "prompts"]
