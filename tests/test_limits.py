"""No function of the package is too long to be read at once: its lines, branches and parameters have limits."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "grilly_py" / "grilly"
MOST = {"lines": 80, "branches": 25, "parameters": 12}

KEYWORDS = "users' keyword arguments, each with its default, which editors show"
OPERATOR = "operators of PyTorch take arrays and numbers one by one: torch.library has no records"
#: Functions that may have more parameters, and why.
EXEMPT = {
    "compute/attention/public.py:flash_attention2_backward": KEYWORDS,
    "compute/attention/public.py:flash_attention3": KEYWORDS,
    "functional/attention.py:flash_attention2_backward": KEYWORDS,
    "functional/sequences.py:flash_attention_varlen": KEYWORDS,
    "functional/sequences.py:flash_attention_varlen_backward": KEYWORDS,
    "functional/sequences.py:flash_attention_with_kvcache": KEYWORDS,
    "nn/multihead.py:MultiheadAttention.forward": KEYWORDS,
    "nn/multihead.py:MultiheadAttention.__init__": "the arguments of torch.nn.MultiheadAttention, and grilly's own",
    "optim/matrices.py:Muon.__init__": "the arguments of torch.optim.Muon, and grilly's own",
    "torch/attention.py:attention": KEYWORDS,
    "torch/operators.py:_options": OPERATOR,
    "torch/operators.py:attend": OPERATOR,
    "torch/operators.py:gradients": OPERATOR,
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, Function]]:
    """All functions with their names, those of classes and of other functions too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield owner + node.name, node
        inner = isinstance(node, (Function, ast.ClassDef))
        yield from functions(node, f"{owner}{node.name}." if inner else owner)


def sizes(function: Function) -> dict[str, int]:
    """Lines without the docstring; branches; parameters.

    Branches are also each further operand of ``and`` and ``or``, and each ``for`` and ``if`` of a comprehension.
    """
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is not None:
        lines -= function.body[0].end_lineno - function.body[0].lineno + 1
    branches = 0
    for node in ast.walk(function):
        if isinstance(node, (ast.If, ast.For, ast.While, ast.IfExp, ast.ExceptHandler, ast.match_case)):
            branches += 1
        elif isinstance(node, ast.BoolOp):
            branches += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            branches += 1 + len(node.ifs)
    given = function.args
    return {
        "lines": lines,
        "branches": branches,
        "parameters": len(given.posonlyargs + given.args + given.kwonlyargs),
    }


def beyond(path: Path) -> dict[str, dict[str, int]]:
    """The functions of a file that pass a limit, and by what."""
    found = {}
    for name, function in functions(ast.parse(path.read_text(encoding="utf-8"))):
        over = {kind: count for kind, count in sizes(function).items() if count > MOST[kind]}
        if over:
            found[f"{path.relative_to(PACKAGE).as_posix()}:{name}"] = over
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_functions_are_within_limits(path):
    found = beyond(path)
    over = {
        name: counts for name, counts in found.items()
        if not (name in EXEMPT and counts.keys() == {"parameters"})
    }  # fmt: skip
    assert not over, f"more than {MOST}"
    here = path.relative_to(PACKAGE).as_posix()
    left = {name for name in EXEMPT if name.startswith(f"{here}:")} - found.keys()
    assert not left, "they need no exemption any more"


def test_exempt_functions_are_there():
    assert {name.split(":")[0] for name in EXEMPT} <= {p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py")}


def test_sizes_are_counted():
    code = '''
def f(a, /, b, *, c):
    """Two
    lines."""
    if a and b or c:
        return [x for x in b if x]
    return 1 if a else 2
'''
    ((name, function),) = functions(ast.parse(code))
    assert (name, sizes(function)) == ("f", {"lines": 4, "branches": 6, "parameters": 3})
