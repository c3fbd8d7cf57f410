"""Values of specialization constants with which tools/compile_on_devices.py compiles each variant."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from itertools import combinations, product

import numpy as np

from grilly.compute.arrays import map_several
from grilly.compute.arrays.map import OPERANDS
from grilly.compute.arrays.operations import code
from grilly.compute.arrays.operations import spec as spec_of
from grilly.compute.attention import added, schedule
from grilly.compute.attention.function_gradients import derived
from grilly.compute.attention.functions import Functions, count_words, traced
from grilly.compute.attention.rates import RATES
from grilly.compute.device.device import DeviceFacts
from grilly.compute.device.dtypes import dtype_of
from grilly.compute.device.plan import Slot
from grilly.compute.device.tensor import Tensor
from grilly.compute.expressions import native
from grilly.compute.expressions.elements import loaded, stored, width_of
from grilly.compute.expressions.expression import Expression, Filling, Hole
from grilly.compute.expressions.nodes import Node, element, replaced
from grilly.compute.expressions.reads import indexed
from grilly.compute.expressions.records import OPERATIONS
from grilly.compute.expressions.scalars import Scalar
from grilly.compute.matmul.call import ACTIVATIONS
from grilly.compute.matmul.factor_layout import orders
from grilly.compute.matmul.finish import Finish
from grilly.compute.matmul.tile_schedule import tile_schedule
from grilly.compute.quantized import Rows
from grilly.errors import UnsupportedError
from grilly.registry import Choice, Registry, Request, Variant
from grilly.registry.names import EXTRAS, FUNCTIONS, READINGS
from grilly.registry.shared import extras_bits, names_of, value
from grilly.runtime.interface import DeviceInfo


def _ones(variant: Variant, constants: Iterable[str]) -> dict[str, int]:
    """Constants that are 1: what is divided by, and storing dS, which takes registers, where it is done."""
    names = ("GROUP", "PART", "PARTS", *(["STORES"] if "stored" in variant.tile else []))
    return {name: 1 for name in names if name in constants}


def constant_sets(variant: Variant) -> list[dict[str, int]]:
    """Values for the variant's specialization constants: with every option on and, for attention, plain."""
    plain = dict.fromkeys(variant.constants, 0)
    for constant, fact in (("HEAD_DIM", "head_dim"), ("VALUE_DIM", "value_dim")):
        if constant in plain:
            plain[constant] = variant.limits.get(fact, (1, 128))[1] // variant.align * variant.align
    plain |= _ones(variant, plain)
    if variant.operation == "attention-tiled":
        return [plain | {"MASK": mask, "LSE": 1, "MERGE": 1} for mask in (1, 0)]
    if variant.operation in _ARRAYS:
        return [plain | own for own in _ARRAYS[variant.operation](variant)]
    if variant.operation != "attention":
        return [plain]
    options = {"MASK": 2, "CAUSAL": 1, "LSE": 1, "MERGE": 1, "FEATURES": _late(variant)}
    sets = [plain | {name: value for name, value in options.items() if name in plain}, plain]
    if "VALUES_IN_KEYS" in plain:
        sets += [plain | {"VALUES_IN_KEYS": 1}, plain | {"CAUSAL": 1, "LSE": 1, "FEATURES": extras_bits(EXTRAS)}]
    if variant.family in _EACH_OPTION:
        masked = plain | {"MASK": 1, "CAUSAL": 1, "LSE": 1}
        sets += [plain | {"CAUSAL": 1, "LSE": 1, "FEATURES": extras_bits((name,))} for name in variant.offers]
        sets.append(masked)
        if "tiles" in variant.offers:
            sets.append(masked | {"FEATURES": extras_bits(("tiles",))})
        sets += [plain | {"LSE": 1} | own for own in _together(variant)]
    return sets


def _together(variant: Variant) -> list[dict[str, int]]:
    """Options that meet: two of those that take the most registers, threes in which any two of all are, and all."""
    names, offered = tuple(EXTRAS), set(variant.offers)
    count = len(names)
    # For 13 options no two are twice in these threes.
    steps = ((0, 1, 4), (0, 2, 7))
    threes = [{names[(i + step) % count] for step in three} for three in steps for i in range(count)]
    found = []
    if variant.dtype != "bfloat16":  # which differs in one rounding: all at once tell whether it has room
        pairs = [pair for pair in combinations(_LARGE, 2) if offered.issuperset(pair)]
        found = [{"CAUSAL": 1, "FEATURES": extras_bits(pair)} for pair in pairs]
        found += [
            {"MASK": n % 3, "CAUSAL": n % 2, "FEATURES": extras_bits(three)}
            for n, three in enumerate(threes) if three <= offered
        ]  # fmt: skip
    if offered:
        found += [{"MASK": mask, "CAUSAL": 1, "FEATURES": extras_bits(offered)} for mask in range(3)]
    return found


def together(registry: Registry, few: bool = False) -> Iterator[tuple[Choice, dict[str, int]]]:
    """What the registry gives attention and gradients where options meet, and the values of its constants.

    ``few``: of large calls with wider heads only.
    """
    seen = set()
    for operation, dtype, dim, rows, (mask, names) in product(
        ("attention", "attention-backward-dq", "attention-backward-dkv"), ("float32", "float16"),
        (32, 64, 128, 256, 512)[few:], (1 << 11, 1 << 20)[few:], _MEETING,
    ):  # fmt: skip
        facts = {"align": 8, "head_dim": dim, "value_dim": dim, "causal": 1}
        if operation == "attention":
            facts |= {"high": 0, "keys": 4096, "rows": rows, "ragged": 0, "tall": int(rows > 1 << 16)}
        else:
            names = [name for name in names if name not in ("tiles", "paged")]
        bits = extras_bits(names)
        try:
            choice = registry.resolve(
                Request(operation, dtype, problem=facts | {"extras": bits, "options": len(names)})
            )
        except UnsupportedError:
            continue  # as float16 where there is no 16-bit storage
        asked = {"HEAD_DIM": dim, "VALUE_DIM": dim, "MASK": mask, "CAUSAL": 1, "LSE": 1, "FEATURES": bits}
        constants = dict.fromkeys(choice.variant.constants, 0)
        constants |= {name: number for name, number in asked.items() if name in constants}
        constants |= _ones(choice.variant, constants)
        for reading in _readings(choice.variant, mask, names):
            asked = constants | ({"FEATURES": bits | reading} if reading else {})
            key = (choice.variant.name, *asked.values())
            if key not in seen:
                seen.add(key)
                yield choice, asked


def _readings(variant: Variant, mask: int, names: Iterable[str]) -> list[int]:
    """The ways in which a kernel may read what is added, as bits of FEATURES."""
    if not set(READINGS) - {"added-late"} <= set(variant.offers) or (mask != 2 and "bias" not in names):
        return [0]
    late, pairs = _late(variant), extras_bits(("bias-pairs", "mask-pairs"))
    found = [late, late | pairs]
    fours = extras_bits(("added-fours",))
    if not extras_bits(names) & added.BY_DISTANCE:
        found.append(late | fours)
    halves = extras_bits(("bias-halves",))
    return found + ([halves | way for way in found[1:]] if "bias" in names else [])


def _late(variant: Variant) -> int:
    """The bit that such a call has where the kernel reads what is added late."""
    return extras_bits({"added-late"} & set(variant.offers))


def decode_sets(choice: Choice, size: int, most: int = len(EXTRAS)) -> list[dict[str, int]]:
    """The same for attention-decode, as its plan deals out one row to 64 in subgroups of ``size``.

    With and without options, of which a call has ``most`` at most. Calls with quantized caches have no masks.
    """
    if "together" in choice.tile:
        return _wide_sets(choice)
    sets = []
    quantized = "BITS" in choice.variant.constants
    masked = "masked" not in choice.variant.limits and not quantized
    for dim, rows in ((512, 8), (256, 8), (128, 64), (128, 20), (128, 8), (128, 4), (128, 1), (64, 64), (64, 8)):
        plain = _few_rows(choice, size, dim, rows)
        if plain is None:
            continue
        if quantized:
            plain |= {"BITS": 4 if rows == 4 else 8}
            sets += [plain | {"CAUSAL": 1, "BITS": bits} for bits in (8, 4)]
        if masked:
            sets += [plain | {"MASK": 2, "CAUSAL": 1}, plain | {"CAUSAL": 1}]
        sets.append(plain)
        if (dim, rows) in ((128, 8), (64, 8)):
            mask = {"MASK": 2} if masked else {}
            sets += [plain | mask | {"FEATURES": extras_bits(names)} for names in _at_once(choice.variant.offers, most)]
    return sets


def _wide_sets(choice: Choice) -> list[dict[str, int]]:
    """Of flash-decode-wide: its widest heads, with values of their own and in the keys, and with every option."""
    widths = (choice.variant.limits[name][1] for name in ("head_dim", "value_dim"))
    plain = dict.fromkeys(choice.variant.constants, 0) | dict(zip(("HEAD_DIM", "VALUE_DIM"), widths, strict=True))
    plain |= {"ROWS": choice.tile["rows"], "LSE": 1}
    options = {"MASK": 2, "CAUSAL": 1, "FEATURES": extras_bits(choice.variant.offers)}
    return [plain, plain | {"VALUES_IN_KEYS": 1}, plain | options, plain | options | {"VALUES_IN_KEYS": 1}]


def _few_rows(choice: Choice, size: int, dim: int, rows: int) -> dict[str, int] | None:
    """The constants of attention-decode for so many columns and rows, without options; None where it takes no such."""
    if dim > choice.variant.limits["head_dim"][1] or (rows > 8 and "fragment" not in choice.tile):
        return None
    tiling = schedule.split_rows(choice, size, 64, 8, rows, 8192, (dim, dim), RATES["gpu"].decode.split)
    plain = dict.fromkeys(choice.variant.constants, 0) | {
        "HEAD_DIM": dim, "VALUE_DIM": dim, "ROWS": tiling.rows, "LANES": tiling.lanes, "UNROLL": tiling.unroll,
        "SUBGROUP": size, "THREADS": choice.threads, "STAGES": choice.tile["stages"],
    }  # fmt: skip
    return {name: value for name, value in plain.items() if name in choice.variant.constants}


def _at_once(offers: tuple[str, ...], most: int) -> list[tuple[str, ...]]:
    """All options at once, or as many as a call has at most, so that each is among some."""
    if not offers or not most:
        return []
    return [tuple(offers[n : n + most]) for n in range(0, len(offers), most)]


def linear_sets(choice: Choice, info: DeviceInfo) -> list[dict[str, int]]:
    """The same for linear, as its plan deals out as many rows as a workgroup has: many columns, and few, whose depth is
    divided; and many with all that an epilogue may have. The last two also with rows that the kernel normalises, the
    first and last also with factors that are transposed."""
    sets = []
    facts = DeviceFacts.of(info, "vulkan", info.features)
    named = choice.variant.constants
    itemsize = 4 if choice.variant.dtype == "float32" else 2
    most, normed = choice.tile["rows"], choice.tile.get("norm", 0)
    asked = [(most, 8192, 0, 0, 0), (most, 64, 0, 0, 0), (most, 8192, 1, 0, 0)]
    asked += [(normed, 64, 0, 1, 0), (normed, 8192, 1, 1, 0)] if normed else []
    turns = True in orders(choice)[0] and choice.variant.limits.get("transposed") != (0, 0)
    asked += [(most, 8192, 0, 0, 1), (most, 8192, 1, 0, 1)] if turns else []
    for rows, cols, full, norm, transposed in asked:
        tiling = tile_schedule(choice, facts, rows, cols, 4096, itemsize, bool(full) and "GATED" in named)
        ends = {"ACTIVATION": ACTIVATIONS["gelu"] if full else 0, "HAS_RESIDUAL": full, "GATED": full, "NORM": norm}
        ends |= {"TRANSPOSED_A": transposed, "TRANSPOSED_B": transposed}
        known = dict.fromkeys(named, 1) | ends | dict(tiling.constants) | Finish().constants()
        known = {name: known[name] for name in named}
        if known not in sets:
            sets.append(known)
    return sets


#: Quantized types of which each has another width, scales or table.
_TYPES = (
    "Q8_0", "Q4_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4", "NVFP4", "INT8:128", "UINT4:128",
    "UINT8_BF16:64", "NF4:64", "F8_E4M3:128",
)  # fmt: skip

#: Options whose words take the most registers, of those that a map of blocks and dropout are not beside.
_LARGE = ("bias", "t5", "lengths", "tiles", "paged")

#: Kinds of masks, and options that meet in one call.
_MEETING = (
    (1, ()),
    (1, ("dropout",)),
    (0, ("t5", "segments", "lengths")),
    (2, ("window", "soft-cap", "bias")),
    (1, tuple(EXTRAS)),
)
#: Families that are compiled with each of their options as well, and with many at once.
_EACH_OPTION = ("flash-attention-narrow",)

# What follows is of operations whose constants say what is computed: what takes the most registers. With zeros alone
# drivers would compile next to nothing, or a workgroup of no invocations, at which some of them stop the process.

_FLOAT32, _FLOAT16, _INT64, _UINT32 = (value("elements", name) for name in ("FLOAT32", "FLOAT16", "INT64", "UINT32"))
_FLAT, _STRIDED, _RUNS, _BROADCAST, _ALONE = (
    value("forms", name) for name in ("FLAT", "STRIDED", "RUNS", "BROADCAST", "ALONE")
)
FLOAT32, FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)
_DTYPES = [np.dtype(name) for name in ("float32", "float16", "int64", "uint32", "int8", "bool")]
_LONG, _TERMS = value("kinds", "LONG"), value("accumulation", "TERMS")


def elementwise(registry: Registry) -> Iterator[tuple[str, dict[str, int], Filling]]:
    """Names, constants and fillings of the elementwise kernel: copies, and every operation on dtypes that differ."""
    own = {f"BITS_{operand}": 16 for operand in "ABCDY"} | {f"FORM_{operand}": 0 for operand in "BCD"}
    own |= {"FORM_A": _STRIDED, "INDEX": 0, "AXES": 4, "DEEP": 0, "EACH": 8, "WHOLE": 0}
    copied = Filling(registry, Hole("value", Expression(element(0)), OPERANDS))
    yield "copy", own, copied
    yield "copy", own | {"DEEP": 1}, copied
    yield "gather", own | {"FORM_B": _STRIDED, "BITS_B": 64, "INDEX": 1 + value("elements", "INT64")}, copied
    for name, operation in OPERATIONS.items():
        taken = inspect.signature(operation.function).parameters  # activations take another array, to multiply with
        operands = len(taken.keys() - operation.numbers.keys())
        told = tuple(range(operands, operands + len(operation.numbers)))
        for dtype in _DTYPES:
            try:
                spec = spec_of(name, dtype, None, told)
            except TypeError:
                continue
            if spec.dtype != dtype:
                continue
            expression = spec.expression((dtype,) * operands, spec.gives)
            forms = {f"FORM_{operand}": _RUNS if n < operands else 0 for n, operand in enumerate("ABCD")}
            bits = {f"BITS_{operand}": width_of(dtype) for operand in "ABCD"} | {"BITS_Y": width_of(spec.gives)}
            each = 8 if dtype.itemsize == 2 and spec.gives.itemsize <= 2 else 4
            constants = {**forms, **bits, "INDEX": 0, "AXES": 4, "DEEP": 0, "EACH": each, "WHOLE": 0}
            yield f"{name} {dtype.name}", constants, Filling(registry, Hole("value", expression, OPERANDS))


def several_results(registry: Registry) -> Iterator[tuple[str, dict[str, int], Filling]]:
    """Names, constants and fillings of the elementwise kernel of several results, of as many arrays as it takes.

    Flat ones, with two that are one element; strided ones; and longs, of which some lie in runs.
    """
    names = "ABCDEFGH"
    own = {"RESULTS": map_several.RESULTS, "SECOND": 0b10101010, "AXES": 4, "REPEATS": 1, "WHOLE": 0}

    def asked(dtype: np.dtype, forms: list[int], *operations: tuple[str, int]) -> tuple[dict[str, int], Filling]:
        arrays = [element(number) for number in range(len(names))]
        outputs: list[Node] = []
        for name, operands in operations:
            read = [*outputs[-1:], *arrays[2 * len(outputs) :]][:operands]
            outputs.append(_computed(dtype, name, *read))
        constants = own | {f"FORM_{name}": form for name, form in zip(names, forms, strict=True)}
        constants |= {f"BITS_{name}": width_of(dtype) for name in names + "WXYZ"}
        return constants, Filling(registry, Hole("values", Expression(*outputs), len(names)))

    flat = [_FLAT] * 6 + [_ALONE] * 2
    activated = ("add", 2), ("gelu", 1), ("pow", 2), ("tanh", 1)
    constants, filling = asked(np.dtype("float32"), flat, *activated)
    yield "float32", constants | {"REPEATS": 2}, filling
    yield "float16", *asked(np.dtype("float16"), [_STRIDED] * 8, *activated)
    whole = ("add", 2), ("floor_divide", 2), ("multiply", 2), ("maximum", 2)
    yield "int64", *asked(np.dtype("int64"), [_RUNS, _BROADCAST] * 4, *whole)
    # A step of AdamW, of a gradient and parameters of 16 bits.
    weight, gradient, mean, square, rate, size, correction, factor = (
        Scalar(FLOAT32, loaded(FLOAT16 if number == 1 else FLOAT32, element(number))) for number in range(len(names))
    )
    gradient = gradient * factor
    mean, square = mean + 0.1 * (gradient - mean), square * 0.999 + 0.001 * gradient * gradient
    step = native.divided(mean, native.root(square) * correction + 1e-8)
    weight = weight * (1 - rate * 0.01) - size * step
    outputs = [stored(dtype, one.node) for one, dtype in
               ((weight, FLOAT32), (mean, FLOAT32), (square, FLOAT32), (weight, FLOAT16))]  # fmt: skip
    forms = {f"FORM_{name}": _FLAT if number < 4 else _ALONE for number, name in enumerate(names)}
    bits = dict.fromkeys((f"BITS_{name}" for name in names + "WXYZ"), 32) | {"BITS_B": 16, "BITS_Z": 16}
    hole = Hole("values", Expression(*outputs), len(names))
    yield "adamw", own | forms | bits | {"REPEATS": 2}, Filling(registry, hole)


def _norms(variant: Variant) -> list[dict[str, int]]:
    tile = variant.tile
    rows = {"LANES": tile["lanes"], "QUADS": 1, "HELD": tile["held"], "THREADS": variant.threads, "WEIGHT": 1}
    rows |= {"LATE": tile["late"]} if "late" in tile else {}
    columns = rows | {"LANES": max(variant.threads // tile["rows"], 1), "COLUMNS": 1, "QUADS": 0, "LONG": 1}
    asked = [("LAYER_NORM", {"BIAS": 1}), ("SOFTMAX", {})]
    if variant.limits.get("gradient") != (0, 0):
        asked += [("LAYER_NORM_BACKWARD", {"CHANNELS": 1, "TERMS": 1}), ("RMS_NORM_BACKWARD", {"TERMS": 1})]
        asked += [("LOG_SOFTMAX_BACKWARD", {})]
    has_columns = "COLUMNS" in variant.constants and variant.limits.get("columns") != (0, 0)
    forms = (rows, columns) if has_columns else (rows,)
    found = [own | {"OPERATION": value("norms", name), **more} for own in forms for name, more in asked]
    found += [own | {"OPERATION": value("norms", "LAYER_NORM"), "ADDS": 1, "BIAS": 1} for own in forms]
    return [{name: own[name] for name in own if name in variant.constants} for own in found]


def norms_with_expressions(registry: Registry, choice: Choice) -> Iterator[tuple[str, dict[str, int], Filling]]:
    """Names, constants and fillings of norms between expressions, on rows as the norm's own variant has them."""
    dtype = dtype_of(choice.variant.dtype)
    x, r, p = (element(number) for number in range(3))
    scaled = _computed(dtype, "add", _computed(dtype, "multiply", x, r), p)
    asked = [
        ("LAYER_NORM", {"WEIGHT": 1, "BIAS": 1}, _computed(dtype, "add", x, r), _computed(dtype, "gelu", element(0))),
        ("RMS_NORM", {"WEIGHT": 1, "ADDS": 1}, _computed(dtype, "add", x, r),
         _computed(dtype, "multiply", _computed(dtype, "silu", element(3)), element(0))),  # of p and the result
        ("SOFTMAX", {}, scaled, element(0)),
    ]  # fmt: skip
    for columns in (0, 1):
        facts = {"gradient": 0, "columns": columns, "align": 1 if columns else 4, "cols": 1024}
        norm = registry.resolve(Request("norm-rows", dtype.name, problem=facts))
        subgroups = ["subgroup-basic" in one.variant.requires for one in (norm, choice)]
        if norm.threads != choice.threads or subgroups[0] != subgroups[1]:
            continue
        own = dict.fromkeys(choice.variant.constants, 0)
        own |= {"HELD": norm.tile["held"], "THREADS": norm.threads, "COLUMNS": columns, "LONG": columns, "LATE": 1}
        lanes = max(norm.threads // norm.tile["rows"], 1) if columns else norm.tile["lanes"]
        own |= {"QUADS": 1 - columns, "LANES": lanes}
        for name in "XRP":
            own |= {f"BITS_{name}": width_of(dtype), f"FORM_{name}": _STRIDED if columns else _RUNS}
        for name, more, before, after in asked:
            holes = [Hole("before", Expression(before), 3, ()), Hole("after", Expression(after), 4, ())]
            constants = own | more | {"OPERATION": value("norms", name), "AFTER": int(after.name != "element")}
            yield f"{name} {columns}", constants, Filling(registry, *holes[: 1 + constants["AFTER"]])


def expressions_behind(
    registry: Registry, choice: Choice, sets: list[dict[str, int]]
) -> Iterator[tuple[str, dict[str, int], Filling]]:
    """Names, constants and fillings of products and convolutions with an expression behind them, of those given."""
    dtype = FLOAT32 if choice.variant.operation == "convolution" else dtype_of(choice.variant.dtype)
    y, r, p = (element(number) for number in range(3))
    made = _computed(dtype, "gelu", _computed(dtype, "multiply", _computed(dtype, "add", y, r), p))
    width = width_of(dtype)
    finish = {"FINISHED": 1, "FORM_R": _FLAT, "FORM_P": _RUNS, "BITS_R": width, "BITS_P": width}
    if choice.variant.operation == "linear-quantized":
        own = Rows(_TYPES[0], None, None, None).constants
        sets = [constants for constants in sets if own.items() <= constants.items()]
    for constants in sets:
        yield "behind", constants | finish, Filling(registry, Hole("finish", Expression(made), 3, tuple(range(4))))


def reductions_of_expressions(registry: Registry, choice: Choice) -> Iterator[tuple[str, dict[str, int], Filling]]:
    """Names, constants and fillings of reductions of expressions: of floats in parts, and of integers by columns."""
    whole = dict.fromkeys(choice.variant.constants, 0)
    floats = whole | {"TYPE_X": _FLOAT32, "ARRAYS": 3, "OUTER": 2, "AXES": 2, "LANES": 256, "TOGETHER": 1}
    floats |= {f"BITS_{name}": 32 for name in "ABCY" if f"BITS_{name}" in whole}
    longs = whole | {"OPERATION": 2, "TYPE_X": _INT64, "KIND": _LONG, "ARRAYS": 1, "LANES": 8, "COLUMNS": 1}
    longs |= {f"BITS_{name}": 16 for name in "ABCY" if f"BITS_{name}" in whole}
    for name, constants, dtype in (("gelu", floats, np.dtype("float32")), ("add", longs, np.dtype("int16"))):
        made = spec_of(name, dtype).expression((dtype,) * (2 if name == "add" else 1), dtype)
        holes = Hole("element", made, 3), Hole("result", Expression(element(0)), 2)
        yield name, constants, Filling(registry, *holes)


def scans_with_expressions(registry: Registry, choice: Choice) -> Iterator[tuple[str, dict[str, int], Filling]]:
    """Names, constants and fillings of scans between expressions: of floats in runs, and of integers with strides."""
    for name, kind, form in (("float32", 0, _RUNS), ("float16", 0, _RUNS), ("int64", _LONG, _STRIDED)):
        dtype = dtype_of(name)
        x, r, p, y = (element(number) for number in (0, 1, 2, 0))
        before = _computed(dtype, "multiply", _computed(dtype, "add", x, r), p)
        behind = _computed(dtype, "subtract", _computed(dtype, "abs", y), element(3))
        own = {"TYPE_X": code(dtype), "TYPE_Y": code(dtype), "KIND": kind, "WHOLE": int(form == _RUNS)}
        own |= {f"BITS_{array}": width_of(dtype) for array in "XRPY"} | {f"FORM_{array}": form for array in "XRP"}
        for operation in ("SUM", "PRODUCT"):
            constants = dict.fromkeys(choice.variant.constants, 0) | own | {"EACH": 8 if dtype.itemsize == 2 else 4}
            holes = Hole("before", Expression(before), 3, ()), Hole("behind", Expression(behind), 4, ())
            constants |= {"OPERATION": value("reductions", operation)}
            yield f"{operation.lower()} of {name}", constants, Filling(registry, *holes)


def expressions_by_index(registry: Registry, choice: Choice) -> Iterator[tuple[str, dict[str, int], Filling]]:
    """Names, constants and fillings of what writes, or adds up, by an index what expressions make."""
    for name in ("float32", "float16", "int64"):
        dtype = dtype_of(name)
        made = _computed(dtype, "subtract", _computed(dtype, "multiply", element(0), element(1)), element(0))
        own = {"INDEX": _INT64, "BITS_X": width_of(dtype), "BITS_R": width_of(dtype)}
        own |= {"BITS": width_of(dtype), "TYPE_X": code(dtype), "TYPE": code(dtype), "STAGE": _TERMS}
        constants = {constant: own.get(constant, 0) for constant in choice.variant.constants}
        yield name, constants, Filling(registry, Hole("element", Expression(made), 2))


def calls_functions(variant: Variant) -> bool:
    """Whether a kernel of attention has holes for users' functions; some only read what others have made with them."""
    return "positions" in variant.offers


def score_functions(registry: Registry, choice: Choice, size: int) -> Iterator[tuple[str, dict[str, int], Filling]]:
    """Names, constants and fillings of users' functions in attention: alone, with each other, and with all options.

    ``size``: of subgroups, where the choice states none.
    """
    table = Tensor(Slot(0, 4096), (8, 128), np.dtype("float32"))
    documents = Tensor(Slot(1, 4096), (4, 128), np.dtype("int64"))

    def decay(score: Scalar, batch: Scalar, head: Scalar, query: Scalar, key: Scalar) -> Scalar:
        score = Scalar.operations["tanh"](score * 0.05) * 20.0
        return score + indexed(table, (head, query - key)) * (query - key)

    def same(batch: Scalar, head: Scalar, query: Scalar, key: Scalar) -> Scalar:
        return (query >= key) & (indexed(documents, (batch, query)) == indexed(documents, (batch, key)))

    mask = traced("attention", "mask_mod", same).own
    if choice.variant.operation == "attention-function-blocks":
        yield "mask", {"ROWS": 64, "KEYS": 64}, Functions(mask=mask).filling(registry)
        return
    own = constant_sets(choice.variant)[:2][-1]  # plain
    own |= {name: 1 for name in ("CAUSAL", "LSE", "READS") if name in own}
    functions = Functions(traced("attention", "score_mod", decay).own, mask.behind(count_words("attention", (table,))))
    if choice.variant.operation.startswith("attention-backward"):
        made = derived(decay)
        functions = functions._replace(score=made.own, derived=True)
        if "READS" in own:
            functions = functions._replace(read=made.reads[0].own)
    quickly = choice.variant.unproven
    alone = functions._replace(mask=None).filling(registry, quickly)
    both = functions.filling(registry, quickly)
    bits = extras_bits(FUNCTIONS)
    if choice.variant.operation in ("attention-decode", "attention-decode-quantized"):
        quantized = "BITS" in choice.variant.constants
        for dim, rows in ((512, 8), (256, 8), (128, 64), (128, 8), (128, 1), (64, 64), (64, 8)):
            plain = _few_rows(choice, choice.subgroup_size or size, dim, rows)
            if plain is None:
                continue
            own, cache = plain | {"CAUSAL": 1, "LSE": 1}, extras_bits(("lengths", "paged"))
            if quantized:
                offered = own | {"FEATURES": bits | extras_bits(("lengths",))}
                yield from ((f"both {dim} {rows}", offered | {"BITS": levels}, both) for levels in (8, 4))
                continue
            yield f"score {dim} {rows}", own | {"FEATURES": extras_bits(("score-function",))}, alone
            yield f"both {dim} {rows}", own | {"FEATURES": bits}, both
            yield f"cache {dim} {rows}", own | {"FEATURES": bits | cache}, both
            more = bits | cache | extras_bits(("bias", "soft-cap", "sinks"))
            if more.bit_count() <= choice.variant.limits.get("options", (0, 32))[1]:
                yield f"many {dim} {rows}", own | {"MASK": 2, "FEATURES": more}, both
        return
    yield "score", own | {"FEATURES": extras_bits(("score-function",))}, alone
    yield "both", own | {"FEATURES": bits}, both
    if "tiles" in choice.variant.offers:
        yield "tiles", own | {"FEATURES": bits | extras_bits(("tiles",))}, both
    if choice.variant.limits.get("options", (0, 5))[1] >= 5:
        yield "many", own | {"MASK": 1, "FEATURES": bits | extras_bits(("bias", "lengths", "sinks"))}, both
    if choice.variant.unproven:
        yield "all", own | {"MASK": 2, "FEATURES": extras_bits(choice.variant.offers)}, both


def _computed(dtype: np.dtype, name: str, *operands: Node) -> Node:
    """The bits of an elementwise operation's result, of those of operands."""
    expression = spec_of(name, dtype).expression((dtype,) * len(operands), dtype)
    return replaced([expression.output], lambda leaf: operands[leaf.value])[0]


def _reduced(variant: Variant) -> list[dict[str, int]]:
    lanes = {"LANES": variant.threads} if "LANES" in variant.constants else {}
    floats = {"TYPE_X": _FLOAT16, "EACH": 8, "RUNS": 1, "AXES": 1, **lanes}
    return [
        {"OPERATION": 0, **floats, "LAST": 1, "TOGETHER": 1, "TYPE_Y": _FLOAT16}, {"OPERATION": 6, **floats},
        {"OPERATION": 8, **floats, "RUNS": 0, "AXES": 2, **({} if lanes else {"EACH": 1})},
        {"OPERATION": 1, "TYPE_X": _INT64, "KIND": _LONG, "EACH": 4, "AXES": 1, "RUNS": 1, "LAST": 1, **lanes},
    ]  # fmt: skip


def _sorts(variant: Variant) -> list[dict[str, int]]:
    found = {"OPERATION": 6, "LENGTH": variant.tile["block"], "PUTS": 2}  # places of 64 bits
    longs = {"TYPE_X": _INT64, "KIND": _LONG}
    return [found | own | {"MODE": mode} for own in ({"TYPE_X": _FLOAT16}, longs) for mode in range(3)]


def _losses(variant: Variant) -> list[dict[str, int]]:
    own = {"TYPE_X": _FLOAT16, "TYPE_T": _INT64, "WEIGHTED": 1, "SMOOTHED": 1, "EACH": 8}
    if "LANES" in variant.constants:
        return [own | {"LANES": variant.tile["lanes"], "RUNS": runs} for runs in (0, 1)]
    return [own | {"FLAT": 1, "ROWS": rows} for rows in (0, 1)]


def _convolutions(variant: Variant) -> list[dict[str, int]]:
    numbers = names_of("convolution")
    near = {"HAS_BIAS": 1, "QUADS": 1, "TAPS": 3, "NEAR": 1, "STRIDE": 1, "DILATION": 1, "KERNEL_W": 3, "HALVES": 1,
            "RUN": numbers["run_few"], "WIDE": 1, "PARTS": 1, "TYPE": _FLOAT32, "TYPE_Y": _FLOAT32}  # fmt: skip
    own = {name.upper(): variant.tile[name] for name in ("run", "wide", "parts")}
    shared = near | own | {"FORM": numbers["shared"]}
    long = shared | {"TAPS": min(variant.tile["taps"], 7), "KERNEL_W": 7, "RUN": numbers["run_few"]}
    far = shared | {"TAPS": 1, "NEAR": 0}
    planar = [one | {"PLANAR": 1} for one in (shared, long)] if "planar" in variant.tile else []
    deep = [near | {"FORM": numbers["depthwise"], "TYPE": kind, "TYPE_Y": kind} for kind in (_FLOAT32, _FLOAT16)]
    return [shared, long, far, *planar, *deep, near | {"FORM": numbers["apart"], "QUADS": 0, "TAPS": 1, "NEAR": 0}]


def _quantized(variant: Variant) -> list[dict[str, int]]:
    """Each type that differs, as many rows as a workgroup has, with all that an epilogue may have and without."""
    own = [Rows(name, None, None, None).constants for name in _TYPES]
    if variant.operation == "dequantize":
        kinds = ({"TYPE_IDS": _INT64, "INDEXED": 1, "TYPE_Y": kind} for kind in (_FLOAT32, _FLOAT16))
        return [kind | one for kind in kinds for one in own]
    tile = variant.tile
    if "x_tile" in tile:
        arithmetic = [one for one in own if one["TABLE"] not in (1, 3)]
        ends = [{}, {"HAS_BIAS": 1, "GATED": 1, "ACTIVATION": ACTIVATIONS["gelu"], "HAS_RESIDUAL": 1}]
        sizes = [{"TILES": tile["tiles"], "X_TILES": n} for n in (1, tile["rows"] // tile["x_tile"])]
        return [some | end | one for some in sizes for end in ends for one in arithmetic]
    rows = [{"ROWS": rows, "BLOCKS": tile["blocks"]} for rows in dict.fromkeys((1, tile["rows"]))]
    ends = [{"COLUMNS": tile["columns"]}, {"COLUMNS": max(tile["columns"] // 2, 1), "HAS_BIAS": 1, "GATED": 1,
            "ACTIVATION": ACTIVATIONS["gelu"], "HAS_RESIDUAL": 1}]  # fmt: skip
    return [some | end | one for some in rows for end in ends for one in own]


_ARRAYS = {
    "attention-mask-lanes": lambda variant: [{"ROWS": 64, "KEYS": 64}],
    "attention-tiles": lambda variant: [{"MASK": 2, "ROWS": 64, "KEYS": 64, "LANES": 32}],
    "cache-quantize": lambda variant: [
        {"ROTARY": rotary, "LENGTHS": 1, "ADVANCE": 1, "WIDTH": 128, "VALUE_WIDTH": 128, "PAIRS": 64, "KEY_HEADS": 8,
         "HEADS": 32, "BITS": bits} for rotary, bits in ((1, 8), (2, 4))
    ],
    "cache-step": lambda variant: [
        {
            "ROTARY": 1,
            "LENGTHS": 1,
            "PAGE_KEYS": 256,
            "ADVANCE": 1,
            "WIDTH": 128,
            "PAIRS": 64,
            "KEY_HEADS": 8,
            "HEADS": 32,
        }
    ],
    "convolution": _convolutions,
    "convolution-matrix": lambda variant: [
        {"HAS_BIAS": 1, "PLANAR": planar, "PLACES": 180, "TAPS": 9, "STRIDE": 1} for planar in (0, 1)
    ],
    "cross-entropy": _losses,
    "cross-entropy-backward": _losses,
    "dequantize": _quantized,
    "attention-dropout": lambda variant: [{"SEED": words} for words in (0, 3)],
    "dropout": lambda variant: [{"TYPE": _FLOAT16}, {"TYPE": _FLOAT16, "SEED": _UINT32, "DRAWN": 1}],
    "embedding": lambda variant: [{"TYPE_IDS": _INT64, "WORDS": 4}],
    "embedding-backward": lambda variant: [
        {"TYPE_IDS": _INT64, "TYPE_G": _FLOAT16, "QUADS": quads} for quads in (1, 0)
    ],
    "fold": lambda variant: [{"TYPE": _FLOAT16, "TYPE_Y": _FLOAT16, "QUADS": quads} for quads in (1, 0)],
    "linear-quantized": _quantized,
    "norm-rows": _norms,
    "scatter": lambda variant: [{"BITS": 16, "INDEX": _INT64}],
    "random": lambda variant: [
        *({"DRAW": draw, "TYPE_Y": _FLOAT16} for draw in (0, 1)),
        {"DRAW": 2, "TYPE_Y": _INT64, "SEED": _INT64},
        {"DRAW": 1, "TYPE_Y": _FLOAT16, "SEED": _UINT32, "DRAWN": 1},
    ],
    "reduce": _reduced,
    "reduce-columns": _reduced,
    "scan": lambda variant: [
        {"TYPE_X": _FLOAT16, "EACH": 8, "RUNS": 1, "TYPE_Y": _FLOAT16},
        {"TYPE_X": _INT64, "KIND": _LONG, "EACH": 4},
    ],
    "sort": _sorts,
    "transpose": lambda variant: [{"BITS": bits} for bits in (8, 16, 32, 64)],
    "unfold": lambda variant: [{"TYPE": _FLOAT16, "TRANSPOSED": transposed} for transposed in (0, 1)],
}
