"""What editors and type checkers know of the public names: tests/typing read by mypy, and one home for each option."""

from __future__ import annotations

import ast
import dataclasses
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
from grilly import models, nn
from grilly.compute.attention import keywords
from grilly.compute.attention.options import NAMES, OPTIONS, Options
from grilly.compute.methods import Attention

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "grilly_py" / "grilly"
PROGRAMS = ROOT / "tests" / "typing"
OPERATIONS = sorted(name for name in vars(Attention) if not name.startswith("_"))
#: What functions take by keyword, but for return_lse, which chooses the result.
TAKEN = {
    "flash_attention2": keywords.AttentionKeywords,
    "flash_attention3": keywords.JoinedKeywords,
    "flash_attention2_backward": keywords.GradientKeywords,
    "flash_attention_varlen": keywords.PackedKeywords,
    "flash_attention_varlen_backward": keywords.PackedGradientKeywords,
    "flash_attention_with_kvcache": keywords.CacheKeywords,
}


@pytest.mark.parametrize("program", ["public_api", "dask_api", "torch_api", "onnx_api"])
def test_mypy_takes_what_is_right_and_finds_what_is_wrong(program):
    """--strict has warn_unused_ignores: an error that mypy does not report fails this as well."""
    needed = ["mypy", *{"dask_api": ["dask"], "torch_api": ["torch"], "onnx_api": ["onnx"]}.get(program, ())]
    for package in needed:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", f".mypy_cache/{program}",
               f"tests/typing/{program}.py"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# -- nothing public is left out ----------------------------------------------------------------------------------------


def used(program: str, only_wrong: bool = False) -> set[str]:
    """Names like "F.linear" in a program; or only those on lines on which mypy must find an error."""
    text = (PROGRAMS / f"{program}.py").read_text()
    lines = text.splitlines()
    return {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        and (not only_wrong or "type: ignore[" in lines[node.lineno - 1])
    }  # fmt: skip


def test_every_public_name_is_used():
    found = used("public_api")
    wanted = {f"{prefix}.{name}" for prefix, module in (("grilly", grilly), ("F", F), ("nn", nn), ("models", models))
              for name in module.__all__}  # fmt: skip
    wanted |= {f"ops.{name}" for name in OPERATIONS}
    by_another_name = {"grilly.functional", "grilly.nn", "grilly.models"}  # imported as F, nn and models
    assert not wanted - found - by_another_name


def test_every_function_is_called_wrongly_too():
    assert not {f"F.{name}" for name in F.__all__} - used("public_api", only_wrong=True)


# -- one home ----------------------------------------------------------------------------------------------------------


def test_options_have_one_list_of_names_and_types():
    hints = typing.get_type_hints(Options)
    assert typing.get_type_hints(keywords.OptionKeywords) == hints
    assert sorted([*(name for option in OPTIONS for name in option.arguments)]) == sorted(NAMES)
    assert [field.name for field in dataclasses.fields(Options)] == list(NAMES)


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


@pytest.mark.parametrize("name", TAKEN)
def test_functions_take_the_keywords_that_checkers_know(name):
    expected = typing.get_type_hints(TAKEN[name])
    for home in (F, Attention) if name in OPERATIONS else (F,):
        found = parameters(getattr(home, name))
        found.pop("return_lse", None)
        assert found == expected


def test_caches_in_host_memory_take_the_same_keywords():
    assert keywords.HostCacheKeywords.__annotations__.keys() == keywords.CacheKeywords.__annotations__.keys()


@pytest.mark.parametrize("name", TAKEN)
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


def overloads(path: Path) -> dict[str, list[str]]:
    """Each function's overloads as text, ``self`` left out."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "overload" for d in node.decorator_list):
            arguments = ast.unparse(node.args).removeprefix("self, ")
            found.setdefault(node.name, []).append(f"({arguments}) -> {ast.unparse(node.returns)}")
    return found


def test_methods_have_the_types_of_the_functions():
    functions = {}
    for path in (PACKAGE / "functional").glob("*.py"):
        functions |= overloads(path)
    methods = overloads(PACKAGE / "compute/methods.py")
    assert sorted(methods) == OPERATIONS
    for name, forms in methods.items():
        if name != "softmax":  # attention's takes no axis: F.softmax is another function
            assert forms == functions[name], name


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
    """What an editor reads in the file is what there is."""
    found = []
    for path in PACKAGE.rglob("*.py"):
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
