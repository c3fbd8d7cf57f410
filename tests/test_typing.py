"""What editors and type checkers know of the public names: tests/typing read by mypy, and one home for each option."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import grilly
import grilly.functional as F
from grilly import array_api, models, nn, optim
from grilly.compute.methods import Attention

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "grilly_py" / "grilly"
PROGRAMS = ROOT / "tests" / "typing"
#: The programs that use the public names.
PUBLIC = ("public_api", "functional_api", "layers_api", "models_api")
OPERATIONS = sorted(name for name in vars(Attention) if not name.startswith("_"))
#: Functions of elements that are made of records.
MADE, ACTIVATIONS = (
    [name for name in module.__all__ if getattr(getattr(module, name), "__module__", "") == one.__module__]
    for module, one in ((array_api, array_api.exp), (F, F.relu))
)
#: Functions that take options.
TAKING = (
    "flash_attention2", "flash_attention3", "flash_attention2_backward", "flash_attention_varlen",
    "flash_attention_varlen_backward", "flash_attention_with_kvcache", "cascade_attention",
)  # fmt: skip




def of_records() -> str:
    """A program that uses every function that is made of a record, rightly and wrongly."""
    lines = [
        "import numpy as np", "from numpy.typing import NDArray", "from typing_extensions import assert_type",
        "import grilly", "import grilly.functional as F", "t = grilly.zeros(3)",
        "x: NDArray[np.float32] = np.zeros(3, np.float32)", "mask = np.zeros(3, np.bool_)",
    ]  # fmt: skip
    for name in MADE:
        operands = arrays_of(getattr(grilly, name))
        lines.append(f"assert_type(grilly.{name}({', '.join('t' * operands)}), grilly.Tensor)")
        lines.append(f"grilly.{name}()  # type: ignore[call-arg]")
    for name in ACTIVATIONS:
        operands = arrays_of(getattr(F, name))
        for given, type in (("t", "grilly.Tensor"), ("x", "NDArray[np.float32]")):
            lines.append(f"assert_type(F.{name}({', '.join([given] * operands)}), {type})")
        lines.append(f"F.{name}({', '.join(['mask'] * operands)})  # type: ignore[type-var]")
    return "\n".join(lines) + "\n"


def arrays_of(function) -> int:
    """How many arrays a function takes: all that has no default."""
    return sum(one.default is one.empty for one in inspect.signature(function).parameters.values())


@pytest.mark.parametrize("program", ["public_api", "dask_api", "torch_api", "onnx_api"])
def test_mypy_takes_what_is_right_and_finds_what_is_wrong(program, tmp_path):
    """--strict has warn_unused_ignores: an error that mypy does not report fails this as well."""
    needed = ["mypy", *{"dask_api": ["dask"], "torch_api": ["torch"], "onnx_api": ["onnx"]}.get(program, ())]
    for package in needed:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    names = PUBLIC if program == "public_api" else (program,)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", f".mypy_cache/{program}",
               *(f"tests/typing/{name}.py" for name in names)]  # fmt: skip
    if program == "public_api":
        made = tmp_path / "of_records.py"
        made.write_text(of_records())
        command.append(str(made))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# -- nothing public is left out ----------------------------------------------------------------------------------------


def used(only_wrong: bool = False) -> set[str]:
    """Names like "F.linear" in the programs; or only those on lines on which mypy must find an error."""
    return set().union(*(_used((PROGRAMS / f"{name}.py").read_text(), only_wrong) for name in PUBLIC))


def _used(text: str, only_wrong: bool) -> set[str]:
    lines = text.splitlines()
    return {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        and (not only_wrong or "type: ignore[" in lines[node.lineno - 1])
    }  # fmt: skip


def test_every_public_name_is_used():
    found = used()
    modules = {"grilly": grilly, "F": F, "nn": nn, "models": models, "optim": optim}
    wanted = {f"{prefix}.{name}" for prefix, module in modules.items() for name in module.__all__}
    wanted |= {f"ops.{name}" for name in OPERATIONS}
    by_another_name = {"grilly.functional", "grilly.nn", "grilly.models", "grilly.optim"}  # imported as F, nn...
    made = {f"grilly.{name}" for name in MADE} | {f"F.{name}" for name in ACTIVATIONS}
    assert not wanted - found - by_another_name - made


def test_every_function_is_called_wrongly_too():
    assert not {f"F.{name}" for name in F.__all__ if name not in ACTIVATIONS} - used(only_wrong=True)


# -- one home ----------------------------------------------------------------------------------------------------------


def parameters(function) -> dict[str, object]:
    """Keyword-only parameters with their types, those of ``**options`` among them."""
    hints = typing.get_type_hints(function)
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            found[name] = hints[name]
        elif parameter.kind is parameter.VAR_KEYWORD:
            # Unpack[Keywords]; in Python 3.10 Keywords
            found |= typing.get_type_hints((typing.get_args(hints[name]) or (hints[name],))[0])
    return found


@pytest.mark.parametrize("name", TAKING)
def test_every_keyword_is_documented(name):
    """In the function's own docstring, or where it says that ``**options`` are those of flash_attention2."""
    own = documented(getattr(F, name))
    if "**options" in own:
        own |= documented(F.flash_attention2)
    assert not {*parameters(getattr(F, name))} - own


def documented(function) -> set[str]:
    """Names in the docstring's section on parameters."""
    section = inspect.getdoc(function).split("Parameters\n----------\n")[1].split("\n\nReturns\n")[0]
    heads = [line.split(" : ")[0] for line in section.splitlines() if re.match(r"\S", line)]
    return {name.strip() for head in heads for name in head.split(",")}


@pytest.mark.parametrize("name", OPERATIONS)
def test_methods_take_what_the_functions_take(name):
    if name == "softmax":  # attention's takes no axis: F.softmax is another function
        return
    homes = (getattr(Attention, name), getattr(F, name))
    (device, *own), wanted = (list(inspect.signature(home).parameters.values()) for home in homes)
    assert device.name == "device"
    assert [(p.name, p.kind, p.default) for p in own] == [(p.name, p.kind, p.default) for p in wanted]


# -- at run time -------------------------------------------------------------------------------------------------------


def public_functions():
    """Every public function and method, with a name for messages."""
    things = [(f"{module.__name__}.{name}", getattr(module, name))
              for module in (grilly, F, nn) for name in module.__all__]  # fmt: skip
    things.append(("Attention", Attention))
    for owner, thing in things:
        if inspect.isclass(thing):
            for name, member in vars(thing).items():
                function = member.__func__ if isinstance(member, classmethod) else member
                if inspect.isfunction(function) and (not name.startswith("_") or name in ("__init__", "__call__")):
                    yield f"{owner}.{name}", function
        elif inspect.isfunction(thing):
            yield owner, thing


@pytest.mark.parametrize("name, function", [pytest.param(n, f, id=n) for n, f in public_functions()])
def test_every_argument_and_result_has_a_type(name, function):
    if not function.__module__.startswith("grilly") or "__create_fn__" in function.__qualname__:
        pytest.skip("not written here")
    hints = typing.get_type_hints(function)  # which fails for names that are there for type checkers only
    missing = [p for p in inspect.signature(function).parameters if p not in (*hints, "self", "cls")]
    assert not missing
    assert "return" in hints or function.__name__ == "__init__"


def test_nothing_is_patched_after_its_definition():
    """What an editor reads in the file is what there is, but for functions that are made of an operation's record."""
    found = []
    for path in set(PACKAGE.rglob("*.py")) - {PACKAGE / "compute/expressions/records.py"}:
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
                if name in ("__doc__", "__signature__"):
                    found.append(f"{path.name}:{node.lineno}")
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
                if any(isinstance(a, ast.Constant) and a.value in ("__doc__", "__signature__") for a in node.args):
                    found.append(f"{path.name}:{node.lineno}")
    assert not found


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").is_file()
    assert 'grilly = ["py.typed"]' in (ROOT / "pyproject.toml").read_text()
