"""Reads shaders/<room>/<family>.toml: checks every key and type, and expands a family into its cases.

A mistake is a FamilyError that reads `file:line: what is wrong`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

from . import names
from .rules import by_rule, rounded_down


class FamilyError(Exception):
    """A family's data file is wrong."""


@dataclass
class Case:
    """One case of one variant for one dtype: what becomes one binary and one entry of the manifest."""

    family: str
    variant: str
    case: str
    dtype: str
    operation: str
    source: Path | None
    generator: Path | None
    push_bytes: int
    bindings: list
    constants: dict
    line: int
    data_file: Path
    settings: dict = field(default_factory=dict)
    sets: frozenset = frozenset()  # names of what its family uses of SETS_FILE

    @property
    def name(self) -> str:
        """``family.variant[.case].dtype``, the binary's name without its ending."""
        return ".".join(part for part in (self.family, self.variant, self.case, self.dtype) if part)


_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*\Z")
_DEFINE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def _integer(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_name(value) -> bool:
    return isinstance(value, str) and bool(_NAME.match(value))


def _power_of_two(value) -> bool:
    return _integer(value) and value > 0 and value & (value - 1) == 0


def _entries(key, value):
    """What of a setting can be stated by itself: entries of a table, names of ``offers``, else the whole (None)."""
    return value if isinstance(value, dict) or key == "offers" else (None,)


def _joined(first, second):
    """A setting that two places state, each some entries of it."""
    return {**first, **second} if isinstance(second, dict) else [*first, *second]


def _list_of(test):
    return lambda value: isinstance(value, list) and all(map(test, value)) and len(set(value)) == len(value)


def _table_of(key_test, value_test):
    return lambda value: isinstance(value, dict) and all(key_test(k) and value_test(v) for k, v in value.items())


def _pattern(value) -> bool:
    return isinstance(value, str) and any(names.matches(value, known) for known in names.ARCHITECTURES)


def _or_rule(test):
    """A number that ``test`` is for, or the rule for it."""
    return lambda value: isinstance(value, str) or test(value)


def _range(value) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_integer, value)) and value[0] <= value[1]


def _bindings(value) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(b, list) and len(b) == 2 and isinstance(b[0], str) and b[1] in ("r", "w", "rw", "rt")
            for b in value
        )
        and len({b[0] for b in value}) == len(value)
    )


def _constants(value) -> bool:
    return _table_of(_DEFINE.match, lambda i: _integer(i) and i >= 0)(value) and len(set(value.values())) == len(value)


def _file_name(ending):
    return lambda value: isinstance(value, str) and value.endswith(ending) and "/" not in value and "\\" not in value


_USE = (lambda v: _list_of(_is_name)(v) and bool(v), "a list of names of sets")
_FAMILY = {
    "operation": (_is_name, "a lower-case name"),
    "source": (_file_name(".comp"), "the name of a .comp file beside this one"),
    "generator": (_file_name(".py"), "the name of a .py file beside this one"),
    "push_bytes": (lambda v: _integer(v) and 0 <= v <= 256 and v % 4 == 0, "a multiple of 4 from 0 to 256"),
    "bindings": (_bindings, '[["name", "r" | "w" | "rw" | "rt"], ...], at least one, names unlike'),
    "constants": (_constants, "a table of names with ids from 0 up, all unlike"),
    "variant": (lambda v: isinstance(v, list) and all(isinstance(x, dict) for x in v), "[[variant]] tables"),
    "sets": (_table_of(_is_name, lambda v: isinstance(v, dict)), "[sets.NAME] tables with lower-case names"),
    "use": _USE,
}
TARGETS = ("vulkan1.0", "vulkan1.1", "vulkan1.2", "vulkan1.3")
#: What may be said by a rule: the test of what a file says, and of the numbers that it stands for.
_BY_RULE = {
    "limits": (
        _table_of(_is_name, lambda v: isinstance(v, list) and len(v) == 2 and all(map(_or_rule(_integer), v))),
        _table_of(_is_name, _range), "a table of fact names with [lowest, highest]",
    ),
    "tile": (
        _table_of(_is_name, _or_rule(_integer)), _table_of(_is_name, lambda v: _integer(v) and v > 0),
        "a table of names with whole numbers above 0",
    ),
    "threads": (_or_rule(_integer), lambda v: _integer(v) and v > 0, "a whole number above 0"),
    "shared_bytes": (_or_rule(_integer), lambda v: _integer(v) and v >= 0, "a whole number from 0 up"),
    "keys_per_trip": (_or_rule(_number), lambda v: _number(v) and v > 0, "a number above 0"),
}  # fmt: skip
_LENIENT = {key: (lenient, f"{wanted}, or a rule") for key, (lenient, _, wanted) in _BY_RULE.items()}
#: What a family may state for all its variants.
_SHARED = {
    "target": (lambda v: v in TARGETS, "one of vulkan1.0 ... vulkan1.3"),
    "optimize": (lambda v: isinstance(v, bool) or v == "functions", 'true, false or "functions"'),
    "holes": (lambda v: isinstance(v, bool), "true or false"),
    "tile": _LENIENT["tile"],
}
_SETTINGS = {
    "dtypes": (
        lambda v: _list_of(lambda x: x in names.DTYPES)(v) and bool(v),
        f"a list of {', '.join(names.DTYPES)}",
    ),
    "models": (lambda v: _list_of(_is_name)(v) and bool(v), "a list of lower-case names"),
    "requires": (_list_of(lambda x: x in names.FEATURES), f"a list of feature names: {', '.join(names.FEATURES)}"),
    "matrix": (lambda v: v in names.MATRIX_SHAPES, f"one of {', '.join(names.MATRIX_SHAPES)}"),
    "offers": (_list_of(lambda x: x in names.OFFERS), f"a list of {', '.join(names.OFFERS)}"),
    "architectures": (
        _list_of(lambda v: isinstance(v, str) and _pattern(v.removeprefix("!"))),
        'a list of architecture names or prefixes, with "!" before those that are shut out',
    ),
    "subgroup_sizes": (_list_of(_power_of_two), "a list of powers of two"),
    "align": (_power_of_two, "a power of two"),
    "rank": (_integer, "a whole number"),
    "rank_on": (_table_of(_pattern, _integer), "a table of architecture names or prefixes with whole numbers"),
    "defines": (
        _table_of(_DEFINE.match, lambda v: isinstance(v, int | float)),
        "a table of macro names with numbers or true/false",
    ),
    **_LENIENT,
    "wheel": (lambda v: isinstance(v, bool), "true or false"),
    **_SHARED,
}
_VARIANT = {
    "name": (_is_name, "a lower-case name"),
    "case": (lambda v: isinstance(v, list) and all(isinstance(x, dict) for x in v), "[[variant.case]] tables"),
    "use": _USE,
    **_SETTINGS,
}
_CASE = {"name": (_is_name, "a lower-case name"), "use": _USE, **_SETTINGS}
#: What a set may state: anything but names and what makes a family's binaries its own.
_SET = {
    **{key: _FAMILY[key] for key in ("operation", "push_bytes", "bindings", "constants")},
    "case": _VARIANT["case"],
    **_SETTINGS,
}
#: Beside the rooms: sets that several families use.
SETS_FILE = "include/sets.toml"
_DEFAULTS = {
    "dtypes": ["float32"],
    "models": ["generic"],
    "requires": [],
    "matrix": None,
    "offers": [],
    "architectures": [],
    "subgroup_sizes": [],
    "align": 1,
    "rank": 0,
    "rank_on": {},
    "limits": {},
    "defines": {},
    "tile": {},
    "threads": None,
    "shared_bytes": None,
    "keys_per_trip": None,
    "target": "vulkan1.1",
    "optimize": True,
    "holes": False,
    "wheel": True,
}


#: What an operation's plan takes from every variant.
_PLAN_READS = {
    "attention": ("tile.rows", "keys_per_trip"),
    "attention-tiled": ("tile.rows", "tile.keys", "tile.mask_order", "keys_per_trip"),
    "attention-mask-lanes": ("tile.rows", "tile.keys", "tile.lanes"),
    "attention-decode": ("tile.rows",),
}


class _Lines:
    """Finds the line of a key, since TOML readers do not tell. Good for files laid out one key a line."""

    _HEADER = re.compile(r"\s*\[\[?\s*([A-Za-z0-9_.\s-]+?)\s*\]\]?\s*(#.*)?$")
    _KEY = re.compile(r"""\s*(["']?)([A-Za-z0-9_-]+)\1\s*[=.]""")

    def __init__(self, text: str):
        self._lines: dict[tuple, int] = {}
        counts: dict[str, int] = {}
        table: tuple = ()
        for number, line in enumerate(text.splitlines(), 1):
            header = self._HEADER.match(line)
            if header:
                name = re.sub(r"\s", "", header.group(1))
                if line.lstrip().startswith("[["):
                    counts[name] = counts.get(name, -1) + 1
                    for deeper in [n for n in counts if n.startswith(name + ".")]:
                        del counts[deeper]
                table, prefix = (), ""
                for part in name.split("."):
                    prefix = f"{prefix}.{part}" if prefix else part
                    table += (part, counts[prefix]) if prefix in counts else (part,)
                for depth in range(1, len(table) + 1):
                    self._lines.setdefault(table[:depth], number)
            elif key := self._KEY.match(line):
                self._lines.setdefault((*table, key.group(2)), number)

    def of(self, *path) -> int:
        """The line of the key at ``path``, or of the nearest table or key above it."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)


@dataclass
class _Set:
    """A set of settings, and the table's path in the file that states it (None: in another file than the family's)."""

    table: dict
    at: tuple | None


def _load(text: str, label: str) -> tuple[dict, _Lines, Callable, Callable]:
    """A data file's content and lines, and two functions: one that fails, one that checks a table's keys and values."""

    def fail(line, said):
        raise FamilyError(f"{label}:{line}: {said}")

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        fail(line.group(1) if line else len(text.splitlines()), str(error))
    lines = _Lines(text)

    def check(table, known, where, at):
        for key, value in table.items():
            line = lines.of(*at, key)
            if key not in known:
                fail(line, f"unknown key {key!r} in {where}; known: {', '.join(sorted(known))}")
            test, wanted = known[key]
            if not test(value):
                fail(line, f"{key} = {value!r} in {where}: wanted {wanted}")

    return data, lines, fail, check


def _ruled(key: str, settings: dict, where: str, fail: Callable):
    """The setting with the numbers that its rules stand for, of the macros of a case."""
    stated = settings[key]
    try:
        value = by_rule(stated, settings["defines"])
    except ValueError as error:
        fail(f"{key} in {where}: {error}")
    if key == "keys_per_trip" and isinstance(stated, str):
        value = rounded_down(value)
    _, test, wanted = _BY_RULE[key]
    if not test(value):
        fail(f"{key} = {value!r} in {where}: wanted {wanted}")
    return value


def _check_sets(sets: dict, check: Callable) -> None:
    for name, table in sets.items():
        check(table, _SET, f"set {name}", ("sets", name))
        for c, case in enumerate(table.get("case", ())):
            check(case, _CASE, f"set {name}, case {case.get('name', c + 1)}", ("sets", name, "case", c))


def sets_file(path: Path) -> Path | None:
    """The file of the sets that the family in ``path`` shares with others; None where there is none."""
    found = (folder / SETS_FILE for folder in (path.parent, path.parent.parent))
    return next((file for file in found if file.is_file()), None)


def read_sets(path: Path, display: str | None = None) -> dict[str, int]:
    """The sets that several families share, by name, with the line of each. Raises FamilyError as read_family does."""
    return _shared_sets(path.read_text(encoding="utf-8"), display or path.name)[1]


@functools.lru_cache(maxsize=4)
def _shared_sets(text: str, label: str) -> tuple[dict[str, dict], dict[str, int]]:
    """The sets of such a file and the line of each. Every family asks for them, so they are parsed once."""
    data, lines, _, check = _load(text, label)
    check(data, {"sets": _FAMILY["sets"]}, "the shared sets", ())
    sets = data.get("sets", {})
    _check_sets(sets, check)
    return sets, {name: lines.of("sets", name) for name in sets}


def read_family(path: Path, display: str | None = None) -> list[Case]:
    """All cases of the family in ``path``, in the file's order.

    Raises FamilyError naming file and line for anything that is not in docs/shader-files.md's format.
    """
    data, lines, fail, check = _load(path.read_text(encoding="utf-8"), display or path.name)
    check(data, {**_FAMILY, **_SHARED}, "the family", ())
    own, common = data.pop("sets", {}), {}
    _check_sets(own, check)
    if file := sets_file(path):
        common = _shared_sets(file.read_text(encoding="utf-8"), SETS_FILE)[0]
    for name in own.keys() & common.keys():
        fail(lines.of("sets", name), f"set {name} is in {SETS_FILE} too; give it another name")
    sets = {name: _Set(table, None) for name, table in common.items()}
    sets |= {name: _Set(table, ("sets", name)) for name, table in own.items()}
    used: set[str] = set()

    def expanded(table: dict, known: dict, where: str, at: tuple) -> dict:
        """``table`` with what the sets that it uses state. No key, and no entry of a table, may be stated twice."""
        result = {key: value for key, value in table.items() if key != "use"}
        stated = {(key, entry): where for key, value in result.items() for entry in _entries(key, value)}
        for name in table.get("use", ()):
            line = lines.of(*at, "use")
            if name not in sets:
                fail(line, f"there is no set {name}; sets: {', '.join(sorted(sets)) or 'none'}")
            used.add(name)
            for key, value in sets[name].table.items():
                if key not in known:
                    fail(line, f"set {name} states {key}, which {where} cannot have")
                for entry in _entries(key, value):
                    if (key, entry) in stated or (key, None) in stated:
                        what = key if entry is None else f"{key}.{entry}"
                        by = stated.get((key, entry), stated.get((key, None)))
                        fail(line, f"{what} is stated by set {name} and by {by}")
                    stated[key, entry] = f"set {name}"
                result[key] = _joined(result[key], value) if key in result else value
        return result

    data = expanded(data, {**_FAMILY, **_SHARED}, "the family", ())
    for key in ("operation", "push_bytes", "bindings", "variant"):
        if key not in data:
            fail(1, f"the family lacks {key}")
    if ("source" in data) == ("generator" in data):
        fail(1, "the family needs either source or generator, not both")
    kind = "source" if "source" in data else "generator"
    file = path.parent / data[kind]
    if not file.is_file():
        fail(lines.of(kind), f"{kind} {data[kind]} does not exist beside this file")
    if not _is_name(path.stem):
        fail(1, f"the file's name {path.stem!r} is no lower-case name")
    shared = {key: data[key] for key in _SHARED if key in data}

    result: list[Case] = []
    seen: dict[str, int] = {}
    for v, variant in enumerate(data["variant"]):
        at = ("variant", v)
        check(variant, _VARIANT, f"variant {variant.get('name', v)}", at)
        if "name" not in variant:
            fail(lines.of(*at), "the variant lacks name")
        lenders = [sets[name] for name in variant.get("use", ()) if name in sets and "case" in sets[name].table]
        variant = expanded(variant, _VARIANT, f"variant {variant['name']}", at)
        cases = variant.get("case")
        if cases == []:
            fail(lines.of(*at, "case"), "the variant's list of cases is empty")
        for c, case in enumerate([{}] if cases is None else cases):
            where = (*at, "case", c) if cases is not None else at
            if lenders:
                where = (*lenders[0].at, "case", c) if lenders[0].at else (*at, "use")
            named = f"variant {variant['name']}, case {case.get('name', c + 1)}"
            check(case, _CASE, named, where)
            case = expanded(case, _CASE, named, where)
            settings = {**_DEFAULTS, **shared}
            for level in (variant, case):
                for key, value in level.items():
                    if key in ("name", "case"):
                        continue
                    merged = isinstance(value, dict) and isinstance(settings[key], dict)
                    settings[key] = {**settings[key], **value} if merged else value
            case_name = "" if cases is None else case.get("name", str(c + 1))
            line = lines.of(*where)
            for key in _BY_RULE:
                if settings[key] is not None:
                    settings[key] = _ruled(key, settings, named, functools.partial(fail, lines.of(*where, key)))
            for define in settings["defines"]:
                if define.startswith("DTYPE_"):
                    fail(line, f"{define} is defined by the build tool; choose another macro name")
            for key in _PLAN_READS.get(data["operation"], ()):
                table, _, entry = key.partition(".")
                if settings[table] is None or (entry and entry not in settings[table]):
                    fail(line, f"operation {data['operation']} needs {key}, which its plan reads")
            for dtype in settings["dtypes"]:
                requires = settings["requires"]
                if settings["matrix"]:
                    if dtype not in names.SIXTEEN_BITS:
                        fail(line, f"matrix names the shape for 16-bit dtypes, and {dtype} is none; use requires")
                    requires = [*requires, *names.matrix_features(dtype, settings["matrix"])]
                new = Case(
                    family=path.stem,
                    variant=variant["name"],
                    case=case_name,
                    dtype=dtype,
                    operation=data["operation"],
                    source=file if kind == "source" else None,
                    generator=file if kind == "generator" else None,
                    push_bytes=data["push_bytes"],
                    bindings=data["bindings"],
                    constants=data.get("constants", {}),
                    line=line,
                    data_file=path,
                    settings={**settings, "requires": requires},
                )
                if new.name in seen:
                    fail(line, f"{new.name} is already declared at line {seen[new.name]}; give it another name")
                seen[new.name] = line
                result.append(new)
    if not result:
        fail(1, "the family has no variants")
    for name in own.keys() - used:
        fail(lines.of("sets", name), f"nothing uses set {name}")
    for case in result:
        case.sets = frozenset(used & common.keys())
    return result
