"""What mkdocstrings is told of functions that are made of an operation's record: it reads files, and runs none."""

import importlib
import sys
from pathlib import Path

import griffe

#: Modules that have such functions.
MADE = ("grilly.array_api.elementwise", "grilly.functional.activations")
#: Those whose lists of names have theirs.
LISTED = ("array_api", "functional")


class Records(griffe.Extension):
    """Puts functions in the place of the attributes that files show."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: object) -> None:
        """Read signatures and docstrings of the functions that are there at run time."""
        for name in MADE if pkg.name == "grilly" else ():
            module = pkg[name.partition(".")[2]]
            paths = [pkg.filepath.parent.parent, *map(Path, sys.path)]
            seen = griffe.inspect(name, filepath=module.filepath, import_paths=paths)
            for key, member in list(module.members.items()):
                made = seen.members.get(key)
                if isinstance(member, griffe.Attribute) and isinstance(made, griffe.Function):
                    made.lineno = member.lineno
                    module.set_member(key, made)
        for name in LISTED if pkg.name == "grilly" else ():
            pkg[name].exports = list(importlib.import_module(f"grilly.{name}").__all__)
