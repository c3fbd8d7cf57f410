#!/usr/bin/env python3
"""Runs docs/examples and keeps what they show in docs/pictures: python tools/docsite/gallery.py

Needs a device, and for the search MiniLM's weights (docs/examples/sentence_search.py says how to get them). Run it
after an example was changed, and look at the pictures.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from bars import PICTURES, ROOT, Chart

EXAMPLES = ROOT / "docs/examples"


def searched() -> Chart:
    """The cosines between a question and six sentences."""
    names = runpy.run_path(str(EXAMPLES / "sentence_search.py"))
    encoder = names["models"].SentenceEncoder.load(names["minilm"].model_path())
    question = "how do I bake bread?"
    found = names["search"](encoder, question, names["SENTENCES"], count=6)
    return Chart(f'"{question}"', "cosine between the question and each sentence", "all-MiniLM-L6-v2", ("cosine",),
                 [(sentence, [round(float(cosine), 2)]) for sentence, cosine in found])  # fmt: skip


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    os.chdir(EXAMPLES)
    sys.path.insert(0, str(EXAMPLES))
    for name in ("denoise", "patterns"):
        sys.argv[1:] = [str(PICTURES / f"{name}.png")]
        runpy.run_path(f"{name}.py", run_name="__main__")
    sys.argv[1:] = ["600", str(PICTURES / "letters.png")]
    runpy.run_path("characters.py", run_name="__main__")
    from png import enlarged, write_png

    disc = runpy.run_path("classify_image.py")["picture"](32)
    write_png(PICTURES / "disc.png", enlarged(disc, 4))
    (PICTURES / "search.svg").write_text(searched().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
