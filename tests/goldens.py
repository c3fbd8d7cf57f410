"""Reads tests/golden/*.npz, what PyTorch and transformers computed; tests/golden/make_golden.py says how they are laid
out."""

import functools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np


@functools.cache
def cases(name):
    """Every case of one file, by name: ``arguments`` (a dict), ``state`` (a state dict), and each array, or None."""
    with np.load(Path(__file__).parent / "golden" / f"{name}.npz") as file:
        meta = json.loads(str(file["meta"]))
        arrays = {key: file[key] for key in file.files if key != "meta"}
    found = {}
    for case, arguments in meta["cases"].items():
        own = {key.removeprefix(f"{case}/"): value for key, value in arrays.items() if key.startswith(f"{case}/")}
        state = {key.removeprefix("state/"): own.pop(key) for key in list(own) if key.startswith("state/")}
        found[case] = Case(arguments=arguments, state=state, **own)
    return found


class Case(SimpleNamespace):
    """One case; an array that was not stored reads as None."""

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return None
