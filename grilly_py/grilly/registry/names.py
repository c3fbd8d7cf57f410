"""The names that shader families, devices and the registry share. Imports nothing, as the build tool reads it."""

from __future__ import annotations

#: The file that lists a wheel's shaders, JSON compressed by gzip: half a megabyte of it is 90 KB.
MANIFEST = "manifest.json.gz"

#: Version of its layout; a package refuses a manifest of another version.
MANIFEST_SCHEMA = 6

#: Digits of the hashes in it: 128 bits, as whole ones would be two thirds of the file.
HASH_DIGITS = 32

#: Element types a binary may be compiled for.
DTYPES = ("float32", "float16", "bfloat16")

#: Element types whose binaries read and write 16-bit words, and so need the feature float16-storage.
SIXTEEN_BITS = ("float16", "bfloat16")

#: Shapes (M, N, K) of the cooperative matrices that variants are written for, with 16-bit factors and float32 sums.
MATRIX_SHAPES = ("16x16x16", "16x8x16", "8x16x16", "8x8x16", "8x8x8")

#: Feature names a variant may require, as listed in docs/runtime.md.
FEATURES = (
    "subgroup-basic",
    "subgroup-vote",
    "subgroup-arithmetic",
    "subgroup-shuffle",
    "subgroup-shuffle-relative",
    "subgroup-size-control",
    "float16-storage",
    "float16-arithmetic",
    "int8-storage",
    "cooperative-matrix",
    *(f"matrix-{dtype}-{shape}" for dtype in ("float16", "bfloat16") for shape in MATRIX_SHAPES),
    "workgroup-matrix-float16",
    "int64-arithmetic",
    "descriptor-offsets",
    "texel-buffers",
    "timestamps",
    "nvidia-compiler",
)

#: What an attention kernel may offer beyond masks and causality, and how error messages call it. Each is a bit of the
#: specialization constant FEATURES: shaders/attention/extras.glsl.
EXTRAS = {
    "window": "a sliding window",
    "soft-cap": "a logit soft-cap",
    "bias": "an additive bias",
    "alibi": "ALiBi slopes",
    "t5": "T5's relative position bias",
    "sinks": "attention sinks",
    "prefix": "visible prefixes",
    "segments": "segment ids",
    "lengths": "sequences of their own lengths",
    "blocks": "a map of blocks",
    "dropout": "dropout",
    "tiles": "classes of tiles",
    "paged": "paged keys and values",
}
#: How a kernel may read what is added to scores, where its plan says so: bits of the same constant. No call asks for
#: them (compute/attention/added.py).
READINGS = {
    "bias-halves": "biases of 16 bits",
    "bias-pairs": "biases read in pairs",
    "mask-pairs": "additive masks read in pairs",
    "added-late": "biases and additive masks read after the products",
    "added-fours": "biases and additive masks read in fours",
}
#: Which rows of a call a dispatch does, another bit that no call asks for (compute/attention/tile_classes.py).
APART = {"mixed-apart": "rows that additive masks mix in a dispatch of their own"}
#: What calls users' functions: bits of the same constant (compute/attention/functions.py).
FUNCTIONS = {
    "score-function": "a score function (score_mod)",
    "mask-function": "a mask function (mask_mod)",
    "positions": "functions of positions in a cache",
}
#: All that a variant may offer.
OFFERS = EXTRAS | READINGS | APART | FUNCTIONS

#: Every architecture ``identify`` can answer. A bare vendor name stands for a device of that vendor that is not known.
ARCHITECTURES = (
    "nvidia",
    "nvidia-kepler",
    "nvidia-maxwell",
    "nvidia-pascal",
    "nvidia-volta",
    "nvidia-turing",
    "nvidia-ampere",
    "nvidia-ada",
    "nvidia-hopper",
    "nvidia-blackwell",
    "amd",
    "amd-gcn",
    "amd-rdna",
    "amd-rdna1",
    "amd-rdna2",
    "amd-rdna3",
    "amd-rdna4",
    "amd-cdna",
    "intel",
    "intel-gen",
    "intel-xe",
    "intel-xe2",
    "apple",
    "qualcomm-adreno",
    "qualcomm-adreno6",
    "qualcomm-adreno65",
    "qualcomm-adreno66",
    "arm-mali",
    "llvmpipe",
    "generic",
)


def matrix_features(dtype: str, shape: str) -> list[str]:
    """The features that a kernel for cooperative matrices of ``dtype`` factors and this shape needs."""
    arithmetic = ["float16-arithmetic"] if dtype == "float16" else []
    return ["cooperative-matrix", *arithmetic, f"matrix-{dtype}-{shape}"]


def serves(patterns: tuple[str, ...], architecture: str) -> bool:
    """Whether a variant with these ``architectures`` is for ``architecture``.

    Patterns are as in ``matches``. Those that begin with "!" shut out; where there are others, one of them must match.
    """
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    if any(matches(pattern[1:], architecture) for pattern in patterns if pattern.startswith("!")):
        return False
    return not wanted or any(matches(pattern, architecture) for pattern in wanted)


def matches(pattern: str, architecture: str) -> bool:
    """Whether ``pattern`` is ``architecture`` or a prefix of it that ends before a "-" or before a generation number.

    "nvidia" matches "nvidia-hopper", "amd-rdna" matches "amd-rdna3", and "amd-rdna1" would not match "amd-rdna10".
    """
    if not pattern or not architecture.startswith(pattern):
        return False
    rest = architecture[len(pattern) :]
    return not rest or rest[0] == "-" or (rest[0].isdigit() and not pattern[-1].isdigit())
