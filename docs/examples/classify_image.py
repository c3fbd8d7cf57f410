"""Say what is in a picture, by a Vision Transformer: python classify_image.py [FOLDER]

FOLDER holds a ViTForImageClassification as transformers saves it. Without one, a small model with random weights is
made, whose answers mean nothing. The picture is drawn here.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from random_folder import write_folder

from grilly import models

WIDTH, INNER, LABELS = 64, 128, ("circle", "square", "stripes")


def picture(size):
    """A red disc on a ground that grows lighter downwards: uint8 (size, size, 3)."""
    y, x = np.mgrid[:size, :size] / size
    image = np.stack([0.2 + 0.5 * y] * 3, axis=-1)
    image[(x - 0.5) ** 2 + (y - 0.45) ** 2 < 0.09] = (0.9, 0.1, 0.1)
    return (255 * image).astype(np.uint8)


def pixel_values(image):
    """What ViT reads: (1, 3, size, size), from -1 to 1."""
    return (image.transpose(2, 0, 1)[None] / 127.5 - 1).astype(np.float32)


def random_vit(folder):
    """A ViT of two layers for pictures of 32 x 32."""
    config = {
        "architectures": ["ViTForImageClassification"], "hidden_size": WIDTH, "intermediate_size": INNER,
        "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
        "image_size": 32, "patch_size": 8, "num_channels": 3, "qkv_bias": True,
        "id2label": {str(i): label for i, label in enumerate(LABELS)},
    }  # fmt: skip
    patches = "vit.embeddings.patch_embeddings.projection"
    shapes = {"vit.embeddings.cls_token": [1, 1, WIDTH], "vit.embeddings.position_embeddings": [1, 17, WIDTH],
              f"{patches}.weight": [WIDTH, 3, 8, 8], f"{patches}.bias": [WIDTH],
              "vit.layernorm.weight": [WIDTH], "vit.layernorm.bias": [WIDTH],
              "classifier.weight": [len(LABELS), WIDTH], "classifier.bias": [len(LABELS)]}  # fmt: skip
    linears = {"intermediate.dense": [INNER, WIDTH], "output.dense": [WIDTH, INNER]}
    for name in ("attention.query", "attention.key", "attention.value", "output.dense"):
        linears[f"attention.{name}"] = [WIDTH, WIDTH]
    for layer in range(2):
        below = f"vit.encoder.layer.{layer}"
        for name in ("layernorm_before", "layernorm_after"):
            shapes |= {f"{below}.{name}.weight": [WIDTH], f"{below}.{name}.bias": [WIDTH]}
        for name, shape in linears.items():
            shapes |= {f"{below}.{name}.weight": shape, f"{below}.{name}.bias": shape[:1]}
    return write_folder(folder, config, shapes)


def classify(folder, count=3):
    """The likeliest labels and their probabilities."""
    config, model = json.loads((Path(folder) / "config.json").read_text()), models.load(folder)
    logits = model(pixel_values=pixel_values(picture(config["image_size"]))).logits[0].astype(np.float64)
    odds = np.exp(logits - logits.max())
    return [(config["id2label"][str(i)], odds[i] / odds.sum()) for i in np.argsort(-odds)[:count]]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for label, probability in classify(sys.argv[1] if sys.argv[1:] else random_vit(Path(scratch))):
            print(f"{probability:6.1%}  {label}")
