"""Translate by T5: python translate.py [FOLDER "translate English to German: The house is small."]

FOLDER holds a T5ForConditionalGeneration as transformers saves it, with tokenizer.json. Without one, a small model with
random weights and a tokenizer of a few words are made, whose answers mean nothing. Run first:
pip install "grilly-vulkan[models]"
"""

import sys
import tempfile
from pathlib import Path

import tokenizers
from random_folder import write_folder

from grilly import models

WIDTH, INNER, HEADS, DIM = 64, 128, 4, 16
WORDS = "<pad> </s> <unk> translate English to German : the house is small das Haus ist klein and old und alt".split()


def random_t5(folder):
    """A T5 with two layers on each side, and its tokenizer."""
    config = {
        "architectures": ["T5ForConditionalGeneration"], "d_model": WIDTH, "d_kv": DIM, "d_ff": INNER, "num_layers": 2,
        "num_heads": HEADS, "vocab_size": len(WORDS), "feed_forward_proj": "relu", "layer_norm_epsilon": 1e-6,
        "relative_attention_num_buckets": 32, "is_encoder_decoder": True, "tie_word_embeddings": True,
        "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    attention = {"q": [HEADS * DIM, WIDTH], "k": [HEADS * DIM, WIDTH], "v": [HEADS * DIM, WIDTH],
                 "o": [WIDTH, HEADS * DIM]}  # fmt: skip
    linears = {"wi": [INNER, WIDTH], "wo": [WIDTH, INNER]}
    encoder = {"SelfAttention": attention, "DenseReluDense": linears}
    decoder = {"SelfAttention": attention, "EncDecAttention": attention, "DenseReluDense": linears}
    shapes = {"shared.weight": [len(WORDS), WIDTH]}
    for side, parts in (("encoder", encoder), ("decoder", decoder)):
        shapes[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = [32, HEADS]
        shapes[f"{side}.final_layer_norm.weight"] = [WIDTH]
        for block in range(2):
            for layer, (part, matrices) in enumerate(parts.items()):
                below = f"{side}.block.{block}.layer.{layer}"
                shapes[f"{below}.layer_norm.weight"] = [WIDTH]
                shapes |= {f"{below}.{part}.{name}.weight": shape for name, shape in matrices.items()}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(WORDS[:2])
    made.post_processor = tokenizers.processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    made.save(str(write_folder(folder, config, shapes, seed=1) / "tokenizer.json"))
    return folder


def translate(folder, texts, count=12):
    """The answers to texts, which say what is to be done with them."""
    model, tokenizer = models.load(folder), models.Tokenizer(folder)
    ids, mask = tokenizer.encode(texts)
    answers = model.generate(ids, mask, max_new_tokens=count)
    return [tokenizer.decode(row) for row in answers]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        folder = sys.argv[1] if sys.argv[1:] else random_t5(Path(scratch))
        texts = sys.argv[2:] or ["translate English to German: the house is small", "the house is old"]
        for text, answer in zip(texts, translate(folder, texts), strict=True):
            print(f"{text}\n    {answer}")
