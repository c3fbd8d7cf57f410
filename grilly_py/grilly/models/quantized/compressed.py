"""compressed-tensors, as llm-compressor writes it: integers of 4 and 8 bits, E4M3, MXFP4.

Packed: ``weight_packed`` ``(N, K bits / 32)`` int32, numbers with half of their range added; ``weight_shape``;
``weight_scale`` ``(N, groups)``; ``weight_zero_point`` ``(N bits / 32, groups)``, words along the rows. Otherwise
``weight`` ``(N, K)`` of int8 or E4M3. What the format says of activations is not applied.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from ...quantization.groups import GroupedTensor, Grouping, Parts
from ..config import Config
from . import floats8, mxfp4
from .stored import SCALES, UNSIGNED, Stored, Tensors, dtype_of_scales, unpacked, words_of_bytes

FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "float-quantized", "mxfp4-pack-quantized")
_STRATEGIES = ("tensor", "channel", "group", "block")
_NUMBERS = ("actorder", "dynamic", "observer", "observer_kwargs", "scale_dtype", "zp_dtype")


class Scheme(NamedTuple):
    """What a group of layers has: a format, bits, columns of a group (0: all), and rows and columns of blocks."""

    format: str
    targets: list[str]
    bits: int
    group: int
    blocks: list[int] | None


def find(tensors: Tensors, config: Config) -> dict[str, Stored]:
    """The matrices of a folder."""
    whole = config.text("format", (*FORMATS, "mixed-precision"))
    config.only(kv_cache_scheme=None, transform_config=({}, None),
                quantization_status=("compressed", "frozen"), run_compressed=True, dequantize=False)  # fmt: skip
    config.unused("ignore", "global_compression_ratio", "version", "use_optimized_inference")
    sparse = config.inner("sparsity_config")
    if sparse is not None and sparse.fields:
        sparse.text("format", ["dense"])
        sparse.unused(*sparse.fields)  # nothing is left out of dense tensors
    groups = config.inner("config_groups")
    if groups is None or not groups.fields:
        raise config.error("config_groups", "an object of groups")
    schemes = [_scheme(groups, name, whole) for name in groups.fields]
    found = {}
    for stem in _layers(tensors):
        scheme = _of_layer(stem, schemes)
        if scheme is None:
            raise config.error("config_groups", f"a group with {stem} among its targets")
        found[f"{stem}.weight"] = _matrix(tensors, stem, scheme)
    return found


def _layers(tensors: Tensors) -> list[str]:
    entries = tensors.checkpoint.entries
    plain = [stem for stem in tensors.before(".weight") if entries[f"{stem}.weight"].kind in ("I8", "F8_E4M3")]
    return [*tensors.before(".weight_packed"), *plain]


def _scheme(groups: Config, name: str, whole: str) -> Scheme:
    group = groups.inner(name)
    if group is None:
        raise groups.error(name, "an object")
    group.unused("input_activations", "output_activations")  # activations are not rounded here
    targets = group.list("targets")
    if not targets or not all(isinstance(one, str) for one in targets):
        raise group.error("targets", "a list of texts")
    form = group.text("format", FORMATS, None if whole == "mixed-precision" else whole)
    weights = group.inner("weights")
    if form is None or weights is None:
        raise group.error("weights" if form else "format", "an object" if form else "one of " + ", ".join(FORMATS))
    bits, floats = weights.integer("num_bits"), form in ("float-quantized", "mxfp4-pack-quantized")
    expected = {"pack-quantized": (4, 8), "mxfp4-pack-quantized": (4,)}.get(form, (8,))
    if bits not in expected:
        raise weights.error("num_bits", " or ".join(map(str, expected)))
    weights.only(type="float" if floats else "int", dynamic=False)
    strategy = weights.text("strategy", _STRATEGIES)
    weights.flag("symmetric", True)
    weights.unused(*_NUMBERS)
    size = weights.integer("group_size", None, least=-1)
    if strategy == "group" and (size is None or size < 1):
        raise weights.error("group_size", "a whole number above 0")
    blocks = weights.list("block_structure", None)
    if strategy == "block" and not (
        floats and blocks and len(blocks) == 2 and all(type(one) is int and one > 0 for one in blocks)
    ):
        raise weights.error("block_structure", "two whole numbers above 0, of floats")
    return Scheme(form, targets, bits, size if strategy == "group" else 0, blocks if strategy == "block" else None)


def _of_layer(stem: str, schemes: list[Scheme]) -> Scheme | None:
    """The scheme that names a layer, else that of all linear layers."""
    for scheme in schemes:
        if any(_matches(target, stem) for target in scheme.targets):
            return scheme
    return next((scheme for scheme in schemes if "Linear" in scheme.targets), None)


def _matches(target: str, stem: str) -> bool:
    if not target.startswith("re:"):
        return target == stem
    try:
        return re.match(target.removeprefix("re:"), stem) is not None
    except re.error:
        return False


def _matrix(tensors: Tensors, stem: str, scheme: Scheme) -> Stored:
    name = f"{stem}.weight"
    tensors.drop(*(f"{stem}.{side}_{part}" for side in ("input", "output") for part in ("scale", "zero_point")))
    if scheme.format == "float-quantized":
        if scheme.group:
            raise tensors.error(name, "scales of the matrix, of rows or of blocks, as weights of 8 bits have them")
        return floats8.matrix(tensors, stem, scheme.blocks, "compressed-tensors, float-quantized")
    if scheme.format == "mxfp4-pack-quantized":
        found = tensors.take(f"{name}_packed", ["U8"], (None, None))
        rows, depth = found.shape[0], 2 * found.shape[1]
        if depth % 32:
            raise tensors.error(f"{name}_packed", "a number of columns that 16 divides")
        return mxfp4.stored(tensors, f"{name}_packed", f"{name}_scale", (rows, depth), "compressed-tensors, MXFP4")
    return _integers(tensors, name, scheme)


def _integers(tensors: Tensors, name: str, scheme: Scheme) -> Stored:
    """A matrix of integers, packed or not."""
    packed, bits = scheme.format == "pack-quantized", scheme.bits
    each, half = 32 // bits, 2 ** (bits - 1)
    if packed:
        rows, depth = _shape(tensors, f"{name}_shape")
        found = tensors.take(f"{name}_packed", ["I32"], (rows, -(-depth // each)))
    else:
        found = tensors.take(name, ["I8"], (None, None))
        rows, depth = found.shape
    size = scheme.group or depth
    groups = -(-depth // size)
    shapes: list[tuple[int, ...]] = [(rows, groups)] if scheme.group else [(), (1,), (1, 1), (rows,), (rows, 1)]
    scale = tensors.take(f"{name}_scale", SCALES, *shapes)
    index = _index(tensors, f"{name}_g_idx", depth, groups)
    zeros = _zeros(tensors, name, scheme, shapes, (rows, groups))

    def read() -> Parts:
        if packed:
            words = tensors.words(f"{name}_packed")
        else:
            words = words_of_bytes(tensors.array(name)) ^ np.uint32(0x80808080)  # half of the range added
        scales = tensors.scales(f"{name}_scale")
        return Parts(words, np.broadcast_to(scales.reshape(-1, groups), (rows, groups)), zeros)

    kind = f"INT{bits}" if zeros is None else UNSIGNED.get((bits, scale.kind), "")
    table = np.arange(-half, half, dtype=np.float32) if zeros is None else None
    tensor = GroupedTensor((rows, depth), bits, kind, Grouping(size, index), read, table)
    names = (found_name for part in ("", "_packed", "_scale", "_zero_point", "_g_idx") if (found_name := name + part))
    return Stored(found.file, f"compressed-tensors, {scheme.format}", (rows, depth), tensors.nbytes(*names),
                  dtype_of_scales(scale), tensor.type, lambda: tensor, tensor.columns)  # fmt: skip


def _shape(tensors: Tensors, name: str) -> tuple[int, int]:
    tensors.take(name, ["I64", "I32"], (2,))
    rows, depth = (int(one) for one in tensors.array(name))
    if not (0 < rows < 2**31 and 0 < depth < 2**31):
        raise tensors.wrong(name, f"is [{rows}, {depth}]; expected two numbers above 0")
    return rows, depth


def _index(tensors: Tensors, name: str, depth: int, groups: int) -> Any:
    """The group of each column, where the files say it."""
    if not tensors.has(name):
        return None
    tensors.take(name, ["I32"], (depth,))
    index = tensors.array(name)
    if (index == -1).all():  # of a layer that has them in their order
        return None
    if index.min() < 0 or index.max() >= groups:
        raise tensors.wrong(name, f"goes from {index.min()} to {index.max()}; expected 0 to {groups - 1}")
    return index


def _zeros(tensors: Tensors, name: str, scheme: Scheme, shapes: list[tuple[int, ...]], shape: tuple[int, int]) -> Any:
    """The levels that stand for 0, uint8 ``(N, groups)``; None where that is half of the range everywhere."""
    full, bits = f"{name}_zero_point", scheme.bits
    if not tensors.has(full):
        return None
    rows, groups = shape
    if scheme.format == "pack-quantized" and tensors.checkpoint.entries[full].kind == "I32":
        tensors.take(full, ["I32"], (-(-rows * bits // 32), groups))
        found = np.ascontiguousarray(unpacked(np.ascontiguousarray(tensors.words(full).T), bits).T)[:rows]
    else:
        tensors.take(full, ["I8"], *shapes)
        found = tensors.array(full).view(np.uint8) + np.uint8(2 ** (bits - 1))
        if found.max() >= 2**bits:
            raise tensors.wrong(full, f"has numbers beyond {bits} bits")
        found = np.ascontiguousarray(np.broadcast_to(found.reshape(-1, groups), shape))
    return None if (found == 2 ** (bits - 1)).all() else found


__all__ = ["find"]
