"""Values of specialization constants with which tools/compile_on_devices.py compiles each variant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, product

from grilly.compute.arrays.operations import NUMBERS
from grilly.compute.attention import added, decode
from grilly.compute.device.device import DeviceFacts
from grilly.compute.products.deal import deal
from grilly.compute.products.matmul import ACTIVATIONS
from grilly.compute.products.turned import orders
from grilly.errors import UnsupportedError
from grilly.registry import Choice, Registry, Request, Variant
from grilly.registry.names import EXTRAS, READINGS
from grilly.registry.shared import extras_bits, value
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
        (32, 64, 128, 256)[few:], (1 << 11, 1 << 20)[few:], _MEETING,
    ):  # fmt: skip
        facts = {"align": 8, "head_dim": dim, "value_dim": dim, "causal": 1}
        if operation == "attention":
            facts |= {"high": 0, "keys": 4096, "rows": rows, "ragged": 0, "tall": int(rows > 1 << 16)}
        else:
            names = [name for name in names if name not in ("tiles", "paged")]
        bits = extras_bits(names)
        try:
            choice = registry.resolve(Request(operation, dtype, facts=facts | {"extras": bits, "options": len(names)}))
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

    With and without options, of which a call has ``most`` at most.
    """
    sets = []
    limit = choice.variant.limits["head_dim"][1]
    masked = "masked" not in choice.variant.limits
    for dim, rows in ((256, 8), (128, 64), (128, 20), (128, 8), (128, 4), (128, 1), (64, 64), (64, 8)):
        if dim > limit or (rows > 8 and "fragment" not in choice.tile):
            continue
        dealt = decode.deal(choice, size, 64, 1, 8, rows, 8192, (dim, dim))
        plain = dict.fromkeys(choice.variant.constants, 0) | {
            "HEAD_DIM": dim, "VALUE_DIM": dim, "ROWS": dealt.rows, "LANES": dealt.lanes, "UNROLL": dealt.unroll,
            "SUBGROUP": size, "THREADS": choice.threads, "STAGES": choice.tile["stages"],
        }  # fmt: skip
        plain = {name: value for name, value in plain.items() if name in choice.variant.constants}
        if masked:
            sets += [plain | {"MASK": 2, "CAUSAL": 1}, plain | {"CAUSAL": 1}]
        sets.append(plain)
        if (dim, rows) in ((128, 8), (64, 8)):
            mask = {"MASK": 2} if masked else {}
            sets += [plain | mask | {"FEATURES": extras_bits(names)} for names in _at_once(choice.variant.offers, most)]
    return sets


def _at_once(offers: tuple[str, ...], most: int) -> list[tuple[str, ...]]:
    """All options at once, or as many as a call has at most, so that each is among some."""
    if not offers or not most:
        return []
    return [tuple(offers[n : n + most]) for n in range(0, len(offers), most)]


def linear_sets(choice: Choice, info: DeviceInfo) -> list[dict[str, int]]:
    """The same for linear, as its plan deals out as many rows as a workgroup has: many columns, and few, whose depth is
    divided; and many with all that an epilogue may have. The last two also with rows that the kernel normalises, the
    first and last also with factors that are turned."""
    sets = []
    facts = DeviceFacts.of(info, "vulkan", info.features)
    named = choice.variant.constants
    itemsize = 4 if choice.variant.dtype == "float32" else 2
    most, normed = choice.tile["rows"], choice.tile.get("norm", 0)
    asked = [(most, 8192, 0, 0, 0), (most, 64, 0, 0, 0), (most, 8192, 1, 0, 0)]
    asked += [(normed, 64, 0, 1, 0), (normed, 8192, 1, 1, 0)] if normed else []
    turns = True in orders(choice)[0] and choice.variant.limits.get("turned") != (0, 0)
    asked += [(most, 8192, 0, 0, 1), (most, 8192, 1, 0, 1)] if turns else []
    for rows, cols, full, norm, turned in asked:
        dealt = deal(choice, facts, rows, cols, 4096, itemsize, bool(full) and "GATED" in named)
        ends = {"ACTIVATION": ACTIVATIONS["gelu"] if full else 0, "HAS_RESIDUAL": full, "GATED": full, "NORM": norm}
        ends |= {"TURNED_A": turned, "TURNED_B": turned}
        known = dict.fromkeys(named, 1) | ends | dict(dealt.constants)
        known = {name: known[name] for name in named}
        if known not in sets:
            sets.append(known)
    return sets


#: Options whose words take the most registers, of those that a map of blocks and dropout are not beside.
_LARGE = ("bias", "t5", "lengths", "tiles", "paged")

#: Kinds of masks, and options that meet in one call.
_MEETING = (
    (1, ()), (1, ("dropout",)), (0, ("t5", "segments", "lengths")), (2, ("window", "soft-cap", "bias")),
    (1, tuple(EXTRAS)),
)
#: Families that are compiled with each of their options as well, and with many at once.
_EACH_OPTION = ("flash-attention-narrow",)

# What follows is of operations whose constants say what is computed: what takes the most registers. With zeros alone
# drivers would compile next to nothing, or a workgroup of no invocations, at which some of them stop the process.

_FLOAT32, _FLOAT16, _INT64 = (value("elements", name) for name in ("FLOAT32", "FLOAT16", "INT64"))
_FLAT, _STRIDED, _RUNS = (value("forms", name) for name in ("FLAT", "STRIDED", "RUNS"))
_LONG = value("kinds", "LONG")


def _map(variant: Variant) -> list[dict[str, int]]:
    def asked(name: str, element: int, kind: int, form: int, each: int) -> dict[str, int]:
        types = {f"TYPE_{operand}": element for operand in "ABCY"}
        forms = {f"FORM_{operand}": form for operand in "ABC"}
        return {"OPERATION": NUMBERS[name], "KIND": kind, "RESULT": kind, "AXES": 4, "EACH": each, **types, **forms}

    names = (("divide", "clip"), ("pow", "logaddexp", "tan"), ("gelu", "gelu_slope"))[variant.limits["functions"][0]]
    sets = [asked(name, _FLOAT16, 0, form, 8) for name in names for form in (_FLAT, _STRIDED)]
    if "divide" in names:
        sets += [asked("remainder", _INT64, _LONG, _STRIDED, 4)]
        sets += [asked("copy", _FLOAT32, 0, _STRIDED, 4) | {"DEEP": 1, "FORM_B": 0, "FORM_C": 0}]
    return sets


def _chain(variant: Variant) -> list[dict[str, int]]:
    floating, none, steps = value("kinds", "FLOATING"), 31, variant.limits["steps"][1]
    names = ("erf", "divide", "tanh", "where") * 3
    found = []
    for type_, each, form in ((_FLOAT16, 8, _RUNS), (_FLOAT32, 4, _STRIDED)):
        own = {f"TYPE_{name}": type_ for name in "ABCDY"} | {f"FORM_{name}": form for name in "ABCD"}
        own |= {"AXES": 4, "EACH": each} | {f"FROM_{n}": 2**32 - 1 for n in range(12)}
        for n, name in enumerate(names[:steps]):
            before = 12 + n - 1 if n else 0
            operands = (before, 4 + n % 6, n % 4) if name == "where" else (before, n % 4, none)
            own[f"STEP_{n}"] = NUMBERS[name] | floating << 8 | floating << 10 | type_ << 12
            own[f"FROM_{n}"] = sum(operand << 5 * place for place, operand in enumerate(operands))
        found.append(own)
    return found


def _norms(variant: Variant) -> list[dict[str, int]]:
    tile = variant.tile
    rows = {"LANES": tile["lanes"], "QUADS": 1, "HELD": tile["held"], "THREADS": variant.threads, "WEIGHT": 1}
    rows |= {"LATE": tile["late"]} if "late" in tile else {}
    columns = rows | {"LANES": max(variant.threads // tile["rows"], 1), "COLUMNS": 1, "QUADS": 0, "LONG": 1}
    asked = [("LAYER_NORM", {"BIAS": 1}), ("SOFTMAX", {})]
    if variant.limits.get("gradient") != (0, 0):
        asked += [("LAYER_NORM_BACKWARD", {"CHANNELS": 1, "TERMS": 1}), ("RMS_NORM_BACKWARD", {"TERMS": 1})]
        asked += [("LOG_SOFTMAX_BACKWARD", {})]
    forms = (rows, columns) if "COLUMNS" in variant.constants else (rows,)
    found = [own | {"OPERATION": value("norms", name), **more} for own in forms for name, more in asked]
    added = forms if variant.limits.get("sums") != (0, 0) else (rows,)
    found += [own | {"OPERATION": value("norms", "LAYER_NORM"), "ADDS": 1, "BIAS": 1} for own in added]
    return [{name: own[name] for name in own if name in variant.constants} for own in found]


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
    own = {"TYPE_X": _FLOAT16, "TYPE_T": _INT64, "WEIGHTED": 1, "SMOOTHED": 1}
    return [own | ({"LANES": variant.tile["lanes"]} if "LANES" in variant.constants else {"FLAT": 1})]


_ARRAYS = {
    "attention-mask-lanes": lambda variant: [{"ROWS": 64, "KEYS": 64}],
    "attention-tiles": lambda variant: [{"MASK": 2, "ROWS": 64, "KEYS": 64, "LANES": 32}],
    "cache-step": lambda variant: [
        {"ROTARY": 1, "LENGTHS": 1, "PAGE_KEYS": 256, "ADVANCE": 1, "WIDTH": 128, "PAIRS": 64, "KEY_HEADS": 8,
         "HEADS": 32}
    ],
    "chain": _chain,
    "cross-entropy": _losses,
    "cross-entropy-backward": _losses,
    "dropout": lambda variant: [{"TYPE": _FLOAT16}],
    "embedding": lambda variant: [{"TYPE_IDS": _INT64, "WORDS": 4}],
    "embedding-backward": lambda variant: [
        {"TYPE_IDS": _INT64, "TYPE_G": _FLOAT16, "QUADS": quads} for quads in (1, 0)
    ],
    "fold": lambda variant: [{"TYPE": _FLOAT16, "TYPE_Y": _FLOAT16, "QUADS": quads} for quads in (1, 0)],
    "map": _map,
    "norm-rows": _norms,
    "put": lambda variant: [{"BITS": 16, "INDEX": _INT64}],
    "random": lambda variant: [
        *({"DRAW": draw, "TYPE_Y": _FLOAT16} for draw in (0, 1)), {"DRAW": 2, "TYPE_Y": _INT64, "SEED": _INT64},
    ],
    "reduce": _reduced,
    "reduce-columns": _reduced,
    "scan": lambda variant: [
        {"TYPE_X": _FLOAT16, "EACH": 8, "RUNS": 1, "TYPE_Y": _FLOAT16}, {"TYPE_X": _INT64, "KIND": _LONG, "EACH": 4},
    ],
    "sort": _sorts,
    "transpose": lambda variant: [{"BITS": bits} for bits in (8, 16, 32, 64)],
    "unfold": lambda variant: [{"TYPE": _FLOAT16, "TRANSPOSED": turned} for turned in (0, 1)],
}
