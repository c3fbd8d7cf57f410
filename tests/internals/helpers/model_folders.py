"""Folders of small models with random weights, the same ones that tests/golden/make_models.py gave to transformers."""

import importlib
import json
import math

import numpy as np


def drawn(tensors, seed, embeddings=1.0):
    """Weights of the named shapes, by the seed, in the order of their names.

    RandomState's streams are fixed for all versions of NumPy. Sizes are such that states stay near 1; ``embeddings`` is
    the size of the table of tokens.
    """
    random = np.random.RandomState(seed)
    found = {}
    for name in sorted(tensors):
        shape = tuple(tensors[name])
        values = (random.random_sample(shape) * 2 - 1) * math.sqrt(3)
        if any(part in name for part in ("embed_tokens", "shared")):
            values *= embeddings
        elif len(shape) > 1 and not any(part in name for part in ("embed", "wte", "wpe", "attention_bias")):
            values *= 1.5 / math.sqrt(math.prod(shape[1:]))
        elif len(shape) == 1:
            values = 0.2 * values + (1 if name.endswith("weight") else 0)
        found[name] = values.astype(np.float32)
    return found


KINDS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}


def write_safetensors(file, tensors):
    """A safetensors file of floating arrays."""
    header, start = {}, 0
    for name, array in tensors.items():
        place = [start, start + array.nbytes]
        header[name] = {"dtype": KINDS[array.dtype.name], "shape": list(array.shape), "data_offsets": place}
        start += array.nbytes
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in tensors.values()))


def write_folder(folder, arguments):
    """config.json and model.safetensors of a golden case. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(arguments["config"]))
    weights = drawn(arguments["tensors"], arguments["seed"], arguments["embeddings"])
    write_safetensors(folder / "model.safetensors", weights)
    return folder


def write_tokenizer(folder, text, **told):
    """A tokenizer.json of this text, and a tokenizer_config.json by which it is taken as it is."""
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "TokenizersBackend", **told}))


def change(folder, **fields):
    """Write other fields into config.json; ``...`` takes one out."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | fields
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))


def on_paper(folder):
    """The model as it is compared with the files, without weights."""
    from grilly.models import weights
    from grilly.models.config import Config
    from grilly.models.loading import class_of

    fields = json.loads((folder / "config.json").read_text())
    make, checkpoint = class_of(folder, fields), weights.Checkpoint(folder)
    return make(Config("config.json", fields), weights.Weights(checkpoint, np.dtype("float32")))


def refused(folder, *parts, **options):
    """The error's text, which has every one of these parts."""
    import pytest  # not where make_models.py draws weights

    from grilly import ModelError, models

    with pytest.raises(ModelError) as caught:
        models.load(folder, **options)
    text = str(caught.value)
    for part in parts:
        assert part in text, text
    return text


def unmade(name: str):
    """A model of this class without weights: what it is called with is looked at before them."""
    from grilly import nn

    module = {"LlamaLM": "llama", "ViT": "vit", "Whisper": "whisper"}[name]
    kind = getattr(importlib.import_module(f"grilly.models.{module}"), name)
    found = kind.__new__(kind)
    nn.Module.__init__(found)
    return found
