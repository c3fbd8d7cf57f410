"""Folders of models with random weights, for examples that no weights can be had for."""

import json
import math

import numpy as np


def write_folder(folder, config, shapes, seed=0):
    """Write config.json and model.safetensors, with a random float32 tensor of each name and shape.

    Vectors named weight are those of normalisations, and 1; other vectors are biases, and 0.
    """
    rng, header, tensors, start = np.random.default_rng(seed), {}, [], 0
    for name, shape in shapes.items():
        if len(shape) == 1:
            tensor = np.full(shape, 1.0 if name.endswith("weight") else 0.0, np.float32)
        else:
            tensor = rng.standard_normal(shape, dtype=np.float32) / np.float32(math.sqrt(math.prod(shape[1:])))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, start + tensor.nbytes]}
        tensors.append(tensor)
        start += tensor.nbytes
    text = json.dumps(header).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(tensor.tobytes() for tensor in tensors)
    return folder
