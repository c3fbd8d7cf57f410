"""Every public name has a docstring; an override may inherit it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import grilly

#: The modules whose names users or implementers of a runtime see, with what lies below them.
PACKAGES = ("grilly", "grilly.nn", "grilly.functional", "grilly.compute", "grilly.reference", "grilly.registry",
            "grilly.runtime", "grilly.integrations", "grilly.models", "grilly.onnx", "grilly.cli")  # fmt: skip


def modules() -> list[str]:
    """Names of all modules of grilly, without the entry point that runs when it is imported."""
    found = ["grilly"]
    for info in pkgutil.walk_packages(grilly.__path__, "grilly."):
        if info.name != "grilly.__main__":
            found.append(info.name)
    return found


def load(name: str):
    """The module, or a skip naming the optional package it lacks."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if (error.name or "").startswith("grilly"):
            raise
        pytest.skip(f"{name} needs {error.name}")


def public(module) -> dict[str, object]:
    """A module's public functions and classes, defined by it or listed in its ``__all__``."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return {name: getattr(module, name) for name in listed}
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }


def undocumented(owner: str, value) -> list[str]:
    """Names at or under ``value`` without a docstring of their own or of a base class's."""
    missing = []
    home = getattr(value, "__name__" if inspect.ismodule(value) else "__module__", None) or ""
    if home.split(".")[0] not in ("grilly", __name__):
        return []  # another package's, made available
    if inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value):
        # For a class, inspect.getdoc would be content with a base's (say, object's).
        text = value.__doc__ if inspect.isclass(value) else inspect.getdoc(value)
        if not (text or "").strip():
            missing.append(owner)
    if inspect.isclass(value):
        for name, member in vars(value).items():
            if name.startswith("_"):
                continue
            target = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if isinstance(target, property) or inspect.isfunction(target):
                text = inspect.getdoc(getattr(value, name)) if not isinstance(target, property) else target.__doc__
                inherited = any((getattr(getattr(base, name, None), "__doc__", None) or "").strip()
                                for base in value.__mro__[1:])  # fmt: skip
                if not (text or "").strip() and not inherited:
                    missing.append(f"{owner}.{name}")
    return missing


@pytest.mark.parametrize("name", modules())
def test_public_names_are_documented(name):
    module = load(name)
    missing = undocumented(name, module)
    for key, value in public(module).items():
        missing += undocumented(f"{name}.{key}", value)
    assert not missing, "without a docstring: " + ", ".join(missing)


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_right(name):
    """``__all__`` lists names that exist, sorted into no duplicates."""
    module = load(name)
    listed = getattr(module, "__all__", [])
    assert len(set(listed)) == len(listed)
    assert not [key for key in listed if not hasattr(module, key)]


def test_a_missing_docstring_is_seen():
    class Documented:
        """It is."""

        def method(self): ...

    assert undocumented("Documented", Documented) == ["Documented.method"]
    assert undocumented("bare", lambda: None) == ["bare"]

    class Child(Documented):
        def method(self): ...
    assert undocumented("Child", Child) == ["Child", "Child.method"]
