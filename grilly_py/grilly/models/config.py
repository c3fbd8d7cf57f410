"""The fields of a JSON file of a model, each of which must be known: one that is not may change what is computed."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .fields import ONE_VALUE, WITHOUT_EFFECT

REQUIRED = object()
#: What families of texts are called that are a part of another one.
TEXT_PARTS = {"gemma3": "gemma3_text", "gemma3text": "gemma3_text"}


def read_json(file: Path) -> dict[str, Any]:
    """The object in a file. Raises ModelError, which names it, where there is none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{file} is missing") from None
    except (ValueError, OSError, RecursionError) as error:
        raise ModelError(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise ModelError(f"{file} holds a {type(found).__name__}; expected an object with fields")
    return found


def place_of(folder: Path) -> str:
    """Where a model's fields stand, for messages: in a folder's config.json, or in the keys of a GGUF file."""
    return str(folder if folder.is_file() else folder / "config.json")


def family_of(where: str, fields: Mapping[str, Any], architecture: str) -> str:
    """The ``model_type`` that goes with an architecture, by which models that share a class differ. Old files lack it.

    Raises ModelError for that of another family.
    """
    family = re.sub("((Encoder|LMHead)?Model(WithProjection)?|For[A-Z].*)$", "", architecture).lower()
    family = TEXT_PARTS.get(family, family)
    given = fields.get("model_type")
    # CLIP's parts are called clip_text_model and clip_vision_model.
    plain = re.sub("[-_]", "", family)
    if given is not None and (not isinstance(given, str) or re.sub("_model$|[-_]", "", given).lower() != plain):
        raise ModelError(f"{where}: model_type is {given!r}; expected {family!r}, as {architecture} has it")
    return family if given is None else given


class Config:
    """The fields of one JSON object, which notes those that were asked for.

    Parameters
    ----------
    where : str
        The file, and the field that the object stands in, for messages.
    fields : mapping
    ignored : iterable of str
        Fields that the user vouches for, besides `WITHOUT_EFFECT`; not those of `ONE_VALUE`.
    """

    def __init__(self, where: str, fields: Mapping[str, Any], ignored: Iterable[str] = ()) -> None:
        self.where = where
        self.fields = dict(fields)
        self._ignored = frozenset(ignored)
        self._known: set[str] = set()
        self._inner: list[Config] = []

    def __contains__(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def error(self, name: str, expected: str) -> ModelError:
        """The error for a field whose value cannot be used."""
        if name not in self.fields:
            return ModelError(f"{self.where}: {name} is missing; expected {expected}")
        return ModelError(f"{self.where}: {name} is {self.fields[name]!r}; expected {expected}")

    def _get(self, name: str, default: Any, expected: str) -> Any:
        self._known.add(name)
        value = self.fields.get(name)
        if value is None:  # null in the file is as if it were not there
            if default is REQUIRED:
                raise self.error(name, expected)
            return default
        return value

    def integer(self, name: str, default: Any = REQUIRED, least: int = 1) -> Any:
        """A whole number, at least ``least``; ``default`` where there is none."""
        expected = f"a whole number, at least {least}"
        value = self._get(name, default, expected)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or operator.index(value) < least:
            raise self.error(name, expected)
        if value >= 2**31:  # of whatever a model has
            raise self.error(name, f"{expected} and below 2**31")
        return value

    def number(self, name: str, default: Any = REQUIRED, *, least: float = -math.inf, above: float = -math.inf) -> Any:
        """A finite number, at least ``least`` and above ``above``; ``default`` where there is none."""
        bound = f" above {above:g}" if above > -math.inf else f", at least {least:g}" if least > -math.inf else ""
        expected = f"a finite number{bound}"
        value = self._get(name, default, expected)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(name, expected)
        try:
            found = float(value)
        except OverflowError:  # a whole number of hundreds of digits
            raise self.error(name, expected) from None
        if not math.isfinite(found) or found < least or found <= above:  # JSON's reader takes NaN and Infinity
            raise self.error(name, expected)
        return found

    def eps(self, name: str, default: float) -> float:
        """What a norm adds to a variance."""
        found: float = self.number(name, default, least=0.0)
        return found

    def dropout(self, name: str, default: float) -> float:
        """The share that is dropped in training: at least 0, below 1."""
        found: float = self.number(name, default, least=0.0)
        if found >= 1:
            raise self.error(name, "a number from 0 on, below 1")
        return found

    def flag(self, name: str, default: Any = REQUIRED) -> Any:
        """true or false; ``default`` where there is none."""
        value = self._get(name, default, "true or false")
        if value is not default and not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def text(self, name: str, among: Collection[str], default: Any = REQUIRED) -> Any:
        """One of the words ``among``; ``default`` where there is none."""
        expected = "one of " + ", ".join(among)
        value = self._get(name, default, expected)
        if value is not default and (not isinstance(value, str) or value not in among):
            raise self.error(name, expected)
        return value

    def list(self, name: str, default: Any = REQUIRED) -> Any:
        """A list; ``default`` where there is none."""
        value = self._get(name, default, "a list")
        if value is not default and not isinstance(value, list):
            raise self.error(name, "a list")
        return value

    def default(self, name: str, absent: Any, null: Any) -> Any:
        """The default of a field for which null says something else than that it is not there."""
        return null if name in self.fields else absent

    def labels(self) -> int:
        """How many classes a classifier has: two where the file does not say."""
        named = self._get("id2label", {}, "an object of names by number")
        if not isinstance(named, Mapping):
            raise self.error("id2label", "an object of names by number")
        return len(named) or self.integer("num_labels", 2)

    def inner(self, name: str) -> Config | None:
        """The object that a field holds, or None."""
        value = self._get(name, None, "an object")
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, "an object with fields")
        found = Config(f"{self.where}: {name}", value, self._ignored)
        self._inner.append(found)
        return found

    def only(self, **values: Any) -> None:
        """Fields that may have this value alone, or a tuple's: others would ask for what is not computed here."""
        for name, allowed in values.items():
            self._known.add(name)
            allowed = allowed if isinstance(allowed, tuple) else (allowed,)
            if name in self and self.fields[name] not in allowed:
                raise self.error(name, " or ".join(repr(value) for value in allowed))

    def unused(self, *names: str) -> None:
        """Fields that have no effect on this model."""
        self._known.update(names)

    def finish(self) -> None:
        """Raise ModelError for fields that nobody asked for, and for other values of `ONE_VALUE`."""
        others = self.fields.keys() - self._known - WITHOUT_EFFECT
        self.only(**{name: value for name, value in ONE_VALUE.items() if name in others})
        unknown = sorted(others - ONE_VALUE.keys() - self._ignored)
        if unknown:
            raise ModelError(
                f"{self.where}: not known: {', '.join(unknown)}; if they do not change what the model computes, "
                f"load(folder, ignore={unknown!r}), or --ignore {unknown[0]} for a command"
            )
        for inner in self._inner:
            inner.finish()
