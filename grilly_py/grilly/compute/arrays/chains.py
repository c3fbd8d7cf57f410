"""Chains of elementwise operations in captured work, each made one dispatch: shaders/arrays/chain.comp.

A captured function has run when this begins, so it is known of every result who reads it. Where operations of one chain
alone read a result, and nobody has the tensor any more, it is never stored. Each step still rounds to its dtype, so a
replay has the bits of the calls; only which of the many NaNs a NaN is may differ. A chain moves fewer bytes than its
operations: all have the extents of its result, and each operand is read once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...registry import Choice, Registry, Request
from ...runtime.interface import Capture, Program
from ..device.caches import Kept
from ..device.device import Device
from ..device.plan import push_struct
from .axes import fewest_axes
from .map import ABSENT, FLAT, NUMBER, REPEATED, RUNS, STRIDED, halves
from .operations import NUMBERS
from .promotion import CODES, FLOATING, LONG

#: Programs of chains. A driver compiles each and keeps it as long as the device is open, so there are no more of them
#: than this; further chains stay single operations.
PROGRAMS: Kept[tuple, Program] = Kept("programs of chains", 256)

#: What a chain has at most (shaders/arrays/chain.comp).
STEPS, OPERANDS, CONSTANTS = 12, 4, 6
_AXES, _RUN = 4, 8
_FIRST_CONSTANT, _ZERO, _FIRST_STEP, _NONE = 4, 10, 12, 31
_UNUSED = 0xFFFFFFFF
#: Operations that a chain takes.
CHAINED = frozenset((
    "copy", "where", "clip", "add", "subtract", "multiply", "divide", "maximum", "minimum", "negative", "abs", "sign",
    "square", "reciprocal", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_invert", "bitwise_left_shift",
    "bitwise_right_shift", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and",
    "logical_or", "logical_xor", "logical_not", "isnan", "isinf", "isfinite", "signbit", "floor", "ceil", "trunc",
    "round", "sqrt", "exp", "log", "tanh", "erf", "relu",
))  # fmt: skip
_CHAINED = frozenset(NUMBERS[name] for name in CHAINED)
_BITS = {CODES[name]: bits for name, bits in (
    ("bool", 8), ("int8", 8), ("uint8", 8), ("int16", 16), ("uint16", 16), ("int32", 32), ("uint32", 32),
    ("int64", 64), ("float32", 32), ("float16", 16), ("bfloat16", 16),
)}  # fmt: skip
#: Of these a copy has bits that the elements' values do not tell: of what is true, and of what is no number.
_AS_BITS = frozenset(CODES[name] for name in ("bool", "float16", "bfloat16"))


class _Operand(NamedTuple):
    """Memory that an operation reads: where it begins and how it lies, in elements."""

    binding: tuple[Any, int, int]
    offset: int
    type: int
    flat: bool
    steps: tuple[int, ...]


class _Map(NamedTuple):
    """An elementwise operation as it was captured. Operands are memory, words of numbers, or None."""

    operation: int
    kind: int
    result: int
    type: int
    count: int
    binding: tuple[Any, int, int]
    offset: int
    operands: tuple[_Operand | int | None, ...]
    extents: tuple[int, ...]


def fuse(device: Device, captured: Capture) -> None:
    """Replace chains of elementwise operations among captured work by one dispatch each."""
    commands = captured.commands
    maps = _maps(device.registry, commands)
    if len(maps) < 2:
        return
    readers: dict[Any, set[int]] = defaultdict(set)
    writers: dict[Any, set[int]] = defaultdict(set)
    for number, command in enumerate(commands):
        for memory, reads, writes in _uses(command):
            if reads:
                readers[memory].add(number)
            if writes:
                writers[memory].add(number)
    private = {each.binding[0]: captured.private(each.binding[0]) for each in maps.values()}

    def addable(number: int, chain: set[int], last: int) -> bool:
        """Whether the operation, of which the chain reads the result, can become a part of it."""
        made = maps[number]
        memory = made.binding[0]
        if made.count != maps[last].count or writers[memory] != {number} or not readers[memory] <= chain:
            return False
        for reader in readers[memory]:
            for operand in maps[reader].operands:
                if isinstance(operand, _Operand) and operand.binding[0] is memory and not (
                    operand.flat and operand.offset == made.offset and operand.type == made.type
                    and operand.binding == made.binding
                ):  # fmt: skip
                    return False
        return not any(  # what it reads is to be the same when the chain runs
            number < writer < last and writer not in chain
            for operand in made.operands if isinstance(operand, _Operand)
            for writer in writers[operand.binding[0]]
        )  # fmt: skip

    found: dict[int, tuple | None] = {}
    for last in sorted(maps, reverse=True):
        if last in found:
            continue
        chain = {last}
        grows = True
        while grows and len(chain) < STEPS:
            grows = False
            for number in sorted(_makers(chain, maps, writers), reverse=True):
                if number not in found and private[maps[number].binding[0]] and addable(number, chain, last):
                    if _Chain(maps, sorted(chain | {number})).fits:
                        chain.add(number)
                        grows = True
                        break
        if len(chain) > 1:
            command = _command(device, _Chain(maps, sorted(chain)), sum(commands[n][4] for n in chain))
            if command is not None:
                found |= dict.fromkeys(chain)
                found[last] = command
    kept = (found.get(number, command) for number, command in enumerate(commands))
    captured.commands = [command for command in kept if command is not None]


def _makers(chain: set[int], maps: dict[int, _Map], writers: dict[Any, set[int]]) -> set[int]:
    """The operations outside a chain whose results it reads."""
    return {
        number
        for member in chain
        for operand in maps[member].operands if isinstance(operand, _Operand)
        for number in writers[operand.binding[0]]
        if number in maps and number not in chain and number < member
    }  # fmt: skip


def _uses(command: tuple) -> Iterator[tuple[Any, bool, bool]]:
    """The memory that a command uses, and whether it reads and writes there."""
    if command[0] is None:
        yield command[1], True, False
        yield command[3], False, True
    else:
        for letters, binding in zip(command[0].spec.access, command[1], strict=True):
            if binding is not None:
                yield binding[0], "r" in letters, "w" in letters


# -- what was captured -----------------------------------------------------------------------------------------------


def _maps(registry: Registry, commands: Sequence[tuple]) -> dict[int, _Map]:
    """Those commands, by their numbers, that a chain may have among its steps."""
    variants = {}
    for functions in range(3):
        variant = registry.resolve(Request("map", "float32", facts=(("functions", functions),))).variant
        variants[variant.name] = variant
    found = {}
    for number, command in enumerate(commands):
        variant = None if command[0] is None else variants.get(command[0].spec.name)
        if variant is not None:
            made = _read(variant, command)
            if made is not None:
                found[number] = made
    return found


def _read(variant, command: tuple) -> _Map | None:
    """The operation that a dispatch of the map kernel is; None for one that no chain takes."""
    program, bindings, push, _, _ = command
    values = dict(program.spec.constants)
    told = {name: values[number] for name, number in variant.constants.items()}
    if told["OPERATION"] not in _CHAINED or told["KIND"] == LONG or told["DEEP"] or _BITS[told["TYPE_Y"]] == 64:
        return None
    words = dict(zip((name for name, _ in variant.push), push_struct(variant.push).unpack(push), strict=True))
    axes = range(_AXES)
    operands: list[_Operand | int | None] = []
    where = told["OPERATION"] == NUMBERS["where"]
    for place, (name, letter) in enumerate(zip("abc", "ABC", strict=True)):
        form = told[f"FORM_{letter}"]
        if form == ABSENT:
            operands.append(None)
        elif form == NUMBER:
            operands.append(words[f"{name}_low"])
        else:
            type_ = told[f"TYPE_{letter}"]
            floating = type_ >= CODES["float32"]
            if _BITS[type_] == 64 or floating != (told["KIND"] == FLOATING) and not (where and place == 0):
                return None  # a chain converts results only
            if told["OPERATION"] == NUMBERS["copy"] and type_ == told["TYPE_Y"] and type_ in _AS_BITS:
                return None
            # Signed, as splitting an axis multiplies them.
            steps = tuple((words[f"{name}_{axis}"] + 2**31) % 2**32 - 2**31 for axis in axes)
            operands.append(_Operand(bindings[place], words[f"{name}_offset"], type_, form == FLAT, steps))
    if told["OPERATION"] == NUMBERS["relu"] and (operands[1] is not None or operands[2] is not None):
        return None
    return _Map(
        told["OPERATION"], told["KIND"], told["RESULT"], told["TYPE_Y"], words["count"], bindings[3],
        words["y_offset"], tuple(operands), tuple(words[f"e_{axis}"] for axis in axes),
    )  # fmt: skip


# -- chains ----------------------------------------------------------------------------------------------------------


class _Chain:
    """Operations in their order as the steps of one dispatch. ``fits``: whether the kernel can do it."""

    def __init__(self, maps: dict[int, _Map], numbers: Sequence[int]):
        self.last = maps[numbers[-1]]
        made = {maps[number].binding[0]: step for step, number in enumerate(numbers[:-1])}
        self.numbers: list[int] = []
        self.steps: list[tuple[int, int]] = []
        lying: dict[tuple, int] = {}  # operands, and the extents that their steps belong to
        for number in numbers:
            each = maps[number]
            sources = 0
            for place, operand in enumerate(each.operands):
                source = _NONE
                if operand == 0:
                    source = _ZERO
                elif isinstance(operand, int):
                    if operand not in self.numbers:
                        self.numbers.append(operand)
                    source = _FIRST_CONSTANT + self.numbers.index(operand)
                elif operand is not None:
                    step = made.get(operand.binding[0])
                    if step is None:
                        key = (operand, None if operand.flat else each.extents)
                        source = min(lying.setdefault(key, len(lying)), OPERANDS)
                    else:
                        source = _FIRST_STEP + step
                sources |= source << 5 * place
            self.steps.append((each.operation | each.kind << 8 | each.result << 10 | each.type << 12, sources))
        self.operands = [operand for operand, _ in lying]
        self.fits = len(lying) <= OPERANDS and len(self.numbers) <= CONSTANTS and all(
            operand.binding[0] is not self.last.binding[0] or self._replaced(operand) for operand in self.operands
        )  # fmt: skip
        if self.fits:
            self.extents, self.strides = _together([
                None if extents is None else (extents, operand.steps) for operand, extents in lying
            ])  # fmt: skip
            self.fits = len(self.extents) <= _AXES

    def _replaced(self, operand: _Operand) -> bool:
        """Whether the result has the place of an operand, element by element."""
        place = (operand.binding, operand.offset, operand.type)
        return operand.flat and place == (self.last.binding, self.last.offset, self.last.type)

    @property
    def each(self) -> int:
        """How many elements an invocation makes at a time: as of one operation (map.py)."""
        if _BITS[self.last.type] == 32:
            return _RUN // 2
        starts = [self.last.offset]
        starts += [operand.offset for operand in self.operands if operand.flat and _BITS[operand.type] > 8]
        return _RUN // 2 if any(start % _RUN for start in starts) else _RUN

    def forms(self, each: int) -> list[int]:
        """How the operands lie."""
        found = []
        for operand, steps in zip(self.operands, self.strides, strict=True):
            if steps is None:
                found.append(FLAT)
            elif self.extents[-1] % each or steps[-1] not in (0, 1):
                found.append(STRIDED)
            elif steps[-1] == 0:
                found.append(REPEATED)
            elif _BITS[operand.type] == 8 or not any(step % each for step in (*steps[:-1], operand.offset)):
                found.append(RUNS)
            else:
                found.append(STRIDED)
        return found


def _together(lying: Sequence[tuple | None]) -> tuple[list[int], list[list[int] | None]]:
    """Axes that serve all operands, and the operands' strides over these; None for those that lie flat.

    ``lying`` has the extents and strides of each, of arrays of one shape: an axis of one operand may be several of
    another's.
    """
    inner = {1}
    for each in lying:
        if each is not None:
            inner |= {math.prod(each[0][axis:]) for axis in range(len(each[0]))}
    bounds = sorted(inner)
    extents = [above // below for below, above in zip(bounds, bounds[1:], strict=False)][::-1] or [1]
    strides: list[list[int] | None] = []
    for each in lying:
        if each is None:
            strides.append(None)
            continue
        own = []
        for below in bounds[:-1]:
            within = 1
            for extent, step in zip(reversed(each[0]), reversed(each[1]), strict=True):
                if below < within * extent:
                    own.append(below // within * step)
                    break
                within *= extent
        strides.append(own[::-1] or [0])
    strided = [own for own in strides if own is not None]
    if not strided:
        return [1], strides
    extents, joined = fewest_axes(tuple(extents), strided)
    rest = iter(joined)
    return extents, [None if own is None else next(rest) for own in strides]


def _command(device: Device, chain: _Chain, seconds: float) -> tuple | None:
    """The dispatch of a chain; None where there are too many programs already."""
    choice = device.registry.resolve(Request("chain", "float32", facts=(("steps", len(chain.steps)),)))
    each = chain.each
    forms = chain.forms(each)
    constants = {"TYPE_Y": chain.last.type, "AXES": len(chain.extents), "EACH": each, "HALVES": halves(device.registry)}
    for step in range(STEPS):
        there = step < len(chain.steps)
        constants[f"STEP_{step}"], constants[f"FROM_{step}"] = chain.steps[step] if there else (0, _UNUSED)
    last = chain.last
    words = {"count": last.count, "y_offset": last.offset}
    words |= dict.fromkeys((name for name, _ in choice.variant.push if name not in words), 0)
    extents = [1] * (_AXES - len(chain.extents)) + chain.extents
    words |= {f"e_{axis}": extent for axis, extent in enumerate(extents)}
    words |= {f"n_{place}": number for place, number in enumerate(chain.numbers)}
    bindings: list = [None] * OPERANDS
    for place, (name, letter) in enumerate(zip("abcd", "ABCD", strict=True)):
        there = place < len(chain.operands)
        constants[f"FORM_{letter}"] = forms[place] if there else ABSENT
        constants[f"TYPE_{letter}"] = chain.operands[place].type if there else 0
        if there:
            bindings[place], words[f"{name}_offset"] = chain.operands[place].binding, chain.operands[place].offset
            own = chain.strides[place] or []
            own = [0] * (_AXES - len(own)) + own
            words |= {f"{name}_{axis}": step % 2**32 for axis, step in enumerate(own)}
    program = _program(device, choice, constants)
    if program is None:
        return None
    push = push_struct(choice.variant.push).pack(*(words[name] for name, _ in choice.variant.push))
    count, stripe = -(-last.count // (each * choice.threads)), choice.tile["stripe"]
    groups = (min(count, stripe), -(-count // stripe), 1)
    return program, (*bindings, last.binding), push, groups, seconds


def _program(device: Device, choice: Choice, constants: dict[str, int]) -> Program | None:
    """The program of a chain, unless there are too many."""
    kept, key = device.caches[PROGRAMS], tuple(constants.items())
    program = kept.get(key)
    if program is None and len(kept) < kept.limit:
        program = kept.keep(key, device.runtime.program(choice.spec(constants)))
    return program


__all__ = ["fuse"]
