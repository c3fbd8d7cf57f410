"""The check that matrix-unit variants pass before their first use, with kernels that only claim to use matrix units."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import shutil
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import grilly
import grilly.functional as F
from compilers import NO_COMPILER
from grilly.compute import selfcheck
from grilly.compute.attention import tile_classes as tiles
from grilly.compute.device.call import key_of, plan_of
from grilly.compute.device.dtypes import dtype_of
from grilly.compute.expressions.body import VERSION
from grilly.compute.matmul.finish import Behind, Finish
from grilly.compute.selfcheck import behind, comparing
from grilly.registry import Manifest, Registry, Request, default_manifest
from grilly.registry.checkout import Checkout
from grilly.registry.shared import extras_bits
from grilly.runtime.interface import DeviceInfo
from kernels import pretend
from manifests import Joined, entry, name_of, write_manifest
from threads import together

ROOT = Path(__file__).parents[2]
FAKE = "flash-attention-matrix.fake"
FACTS = {"align": 8, "head_dim": 40, "value_dim": 24, "rows": 64}
TOML = """\
operation = "attention"
source = "flash-attention-matrix.comp"
push_bytes = 120
bindings = [
  ["q", "r"], ["k", "r"], ["v", "r"], ["mask", "r"], ["o", "rw"], ["lse", "rw"], ["extra", "r"], ["bias", "r"],
  ["tiles", "r"],
]
[constants]
HEAD_DIM = 0
VALUE_DIM = 1
MASK = 2
CAUSAL = 3
LSE = 4
MERGE = 5
FEATURES = 6
[[variant]]
name = "fake"
dtypes = ["float32", "float16"]
requires = ["cooperative-matrix"]
align = 4
rank = 1000
threads = 64
shared_bytes = 0
keys_per_trip = 0.0065
defines = { THREADS = 64, CHUNK = 32, ALIGN = 4 }
tile = { rows = 64, keys = 32 }
"""
# What to change in the naive kernel, and the problem that shows it. Each keeps the result plausible.
FAULTS = {
    "a key is forgotten": (
        "for (uint key = first_key; key < keys; key++) {\n            float w",
        "for (uint key = first_key; key < keys; key++) {\n            if (key == 33u) continue;\n            float w",
        "plain",
    ),
    "two keys' values are exchanged": (
        "uint v_row = v_first + V_PLACE(key)",
        "uint v_row = v_first + V_PLACE((key < 2u ? 1u - key : key))",
        "plain",
    ),
    "the maximum stops at a tile, and P has 16 bits": (
        "if (score > maximum) {",
        "if (key < 64u && score > maximum) {",
        "causal",
    ),
    "a key too many is read": (
        "uint keys = visible_keys(row, row);",
        "uint keys = visible_keys(row, row) + (CAUSAL == 0 ? 1u : 0u);",
        "plain",
    ),
    "the log-sum-exp has another base": ("= lse;\n}", "= lse * LOG2_E;\n}", "masked"),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRILLY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("GRILLY_SELF_CHECK", raising=False)
    return tmp_path / "cache"


def borrowed(tmp_path, family="attention-naive", fake=FAKE, dtype="float32", **changes):
    """The package's shaders with one kernel listed once more, as if it used matrix units and were the best."""
    own = default_manifest().source
    entries = own.entries()
    found = [e for e in entries if e["family"] == family and e["dtype"] == dtype and not e["requires"]]
    real = max(found, key=lambda e: len(str(e["limits"])))
    made = {**real, "rank": 1000, "rank_on": {}, "case": ""}
    made["family"], made["variant"] = fake.split(".")
    made["requires"] = [*made["requires"], "cooperative-matrix"]
    return Joined(own, more=[({**made, **changes}, name_of(real))])


@pytest.fixture
def registry_on(vulkan_backend, monkeypatch):
    """Gives the device, for one test, the shaders of a source and a runtime that claims matrix units."""

    def use(source):
        features = vulkan_backend.runtime.features | {"cooperative-matrix"}
        prove = functools.partial(selfcheck.prove, vulkan_backend.opened)
        registry = Registry(vulkan_backend.device, features, Manifest(source), prove)
        monkeypatch.setattr(vulkan_backend.opened, "registry", registry)
        pretend(monkeypatch, vulkan_backend)
        return registry

    return use


def file_of(cache):
    (path,) = (cache / "verdicts").glob("*.json")
    return path


def wide_requests(dtype="float32"):
    return Request("attention", dtype, problem=FACTS)


# -- the registry's part, no device needed ----------------------------------------------------------------------------

GPU = DeviceInfo(
    index=0, name="NVIDIA H200", vendor="nvidia", vendor_id=0x10DE, device_id=0x2335, kind="discrete", driver="NVIDIA",
    driver_version="580", api_version=(1, 4, 0), subgroup_size=32, subgroup_sizes=(32, 32), limits={},
    features=frozenset(), memory_bytes=1, unified=False, properties={"device_uuid": "1f", "driver_uuid": "2e"},
)  # fmt: skip


class Prover:
    """Stands for the check: fails the variants it is told to, and counts."""

    def __init__(self, *bad):
        self.bad, self.calls = bad, []

    def __call__(self, choice, facts):
        self.calls.append(choice.variant.name)
        return "error 0.5, 0.001 expected at most" if choice.variant.name in self.bad else None


@pytest.fixture
def make(tmp_path):
    entries = [
        entry("a.x.float32", rank=3, requires=["cooperative-matrix"]),
        entry("b.x.float32", rank=2, requires=["matrix-float16-16x16x16"]),
        entry("c.x.float32", rank=1, limits={"head_dim": [1, 64], "value_dim": [1, 64]}),
    ]
    folder = write_manifest(tmp_path / "made", entries)

    def registry(prove, device=GPU, **changes):
        features = {"cooperative-matrix", "matrix-float16-16x16x16"}
        return Registry(dataclasses.replace(device, **changes), features, Manifest(folder), prove)

    return registry


SMALL = Request("attention", "float32", problem={"head_dim": 64, "value_dim": 64})


def test_what_counts_as_unproven(make):
    assert [v.unproven for v, _ in make(None).explain(SMALL)] == [True, True, False]


def test_only_what_would_be_chosen_is_checked_and_once(make):
    prover = Prover()
    registry = make(prover)
    for align in (1, 2, 4):
        facts = {**dict(SMALL.problem), "align": align}
        assert registry.resolve(SMALL._replace(problem=facts)).variant.name == "a.x.float32"
    assert prover.calls == ["a.x.float32"]
    registry.resolve(SMALL._replace(problem={"head_dim": 32, "value_dim": 64}))
    assert prover.calls == ["a.x.float32"] * 2, "another head dimension is another program"


def test_a_failing_variant_is_passed_over_with_one_warning(make):
    prover = Prover("a.x.float32")
    registry = make(prover)
    with pytest.warns(grilly.SelfCheckWarning) as caught:
        assert registry.resolve(SMALL).variant.name == "b.x.float32"
        registry.resolve(SMALL._replace(problem={**dict(SMALL.problem), "align": 2}))
    (warning,) = caught
    for words in ("a.x.float32 failed its self-check", "error 0.5", "580", "NVIDIA H200", "b.x.float32 is used"):
        assert words in str(warning.message)
    reasons = {v.name: why for v, why in registry.explain(SMALL)}
    assert reasons["a.x.float32"].startswith("failed its self-check on this driver: error 0.5")
    (row,) = [r for r in registry.table(sizes=(64,)) if r["variant"] == "a.x"]
    assert not row["chosen"] and row["reason"] == reasons["a.x.float32"]


def test_verdicts_outlive_the_process_and_warn_again(make, cache):
    first, second = Prover("a.x.float32"), Prover()
    with pytest.warns(grilly.SelfCheckWarning):
        make(first).resolve(SMALL)
    registry = make(second)
    with pytest.warns(grilly.SelfCheckWarning):
        assert registry.resolve(SMALL).variant.name == "b.x.float32"
    assert second.calls == []
    assert not registry.unchecked(registry.manifest.variants[1], dict(SMALL.problem))
    stored = json.loads(file_of(cache).read_text())
    assert (stored["device"], stored["driver_version"]) == ("NVIDIA H200", "580")


@pytest.mark.parametrize(
    "changes",
    [
        {"driver_version": "581"},
        {"properties": {"device_uuid": "1e", "driver_uuid": "2e"}},
        {"properties": {"device_uuid": "1f", "driver_uuid": "2f"}},
    ],
    ids=str,
)
def test_another_driver_or_device_is_checked_anew(make, changes):
    make(Prover()).resolve(SMALL)
    prover = Prover()
    make(prover, **changes).resolve(SMALL)
    assert prover.calls == ["a.x.float32"]


def test_a_device_without_identity_is_checked_by_each_backend(make, cache):
    for _ in range(2):
        prover = Prover()
        make(prover, properties={}).resolve(SMALL)
        assert prover.calls == ["a.x.float32"]
    assert not cache.exists()


@pytest.mark.parametrize(
    "contents",
    ["", "{", "[]", '{"schema": 0}', '{"schema": 1, "entries": 7}', "nul"],
)
def test_a_damaged_file_is_ignored_with_a_warning_and_replaced(make, cache, contents):
    make(Prover()).resolve(SMALL)
    good = file_of(cache).read_text()
    file_of(cache).write_text(contents)
    prover = Prover()
    with pytest.warns(RuntimeWarning, match="ignored"):
        make(prover).resolve(SMALL)
    assert prover.calls == ["a.x.float32"]
    assert file_of(cache).read_text() == good


def test_a_damaged_entry_is_ignored(make, cache):
    make(Prover()).resolve(SMALL)
    data = json.loads(file_of(cache).read_text())
    for made in data["entries"].values():
        made["failure"] = 3
    file_of(cache).write_text(json.dumps(data))
    prover = Prover()
    with pytest.warns(RuntimeWarning, match="1 damaged"):
        make(prover).resolve(SMALL)
    assert prover.calls == ["a.x.float32"]


def test_a_folder_that_cannot_be_written_is_no_error(make, cache):
    cache.write_text("a file where the folder should be")
    prover = Prover()
    registry = make(prover)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing lies there, which is no damage
        assert registry.resolve(SMALL).variant.name == "a.x.float32"
    registry.resolve(SMALL._replace(problem={**dict(SMALL.problem), "align": 2}))
    assert prover.calls == ["a.x.float32"]


def test_the_variable(make, monkeypatch):
    with pytest.warns(grilly.SelfCheckWarning):
        make(Prover("a.x.float32")).resolve(SMALL)
    monkeypatch.setenv("GRILLY_SELF_CHECK", "0")
    prover = Prover("a.x.float32")
    assert make(prover).resolve(SMALL).variant.name == "a.x.float32"
    assert prover.calls == []
    monkeypatch.setenv("GRILLY_SELF_CHECK", "always")
    for _ in range(2):
        prover = Prover()
        registry = make(prover)
        registry.resolve(SMALL)
        registry.resolve(SMALL._replace(problem={**dict(SMALL.problem), "align": 2}))
        assert prover.calls == ["a.x.float32"]


def test_all_fail(make):
    registry = make(Prover("a.x.float32", "b.x.float32"))
    with pytest.raises(grilly.UnsupportedError) as caught:
        registry.resolve(SMALL._replace(problem={"head_dim": 99, "value_dim": 64}))
    assert str(caught.value).count("failed its self-check on this driver") == 2
    assert "head_dim is 99" in str(caught.value)


def test_a_lost_device_is_raised_and_remembered(make):
    def lose(choice, facts):
        raise grilly.DeviceLostError("gone")

    with pytest.raises(grilly.DeviceLostError):
        make(lose).resolve(SMALL)
    prover = Prover()
    with pytest.warns(grilly.SelfCheckWarning, match="the device was lost"):
        assert make(prover).resolve(SMALL).variant.name == "b.x.float32"
    assert prover.calls == ["b.x.float32"]


def test_what_is_no_verdict_is_raised_and_not_remembered(make):
    def fail(choice, facts):
        raise grilly.OutOfDeviceMemoryError("full")

    registry = make(fail)
    with pytest.raises(grilly.OutOfDeviceMemoryError):
        registry.resolve(SMALL)
    registry._prove = Prover()
    assert registry.resolve(SMALL).variant.name == "a.x.float32"


def test_threads_check_once(make):
    started, calls = threading.Barrier(8), []

    def prove(choice, facts):
        calls.append(choice.variant.name)
        return None

    registry = make(prove)

    def work():
        started.wait()
        registry.resolve(SMALL)

    together(8, lambda _: work())
    assert calls == ["a.x.float32"]


def test_grilly_shaders_says_what_failed_and_what_was_not_checked(make, capsys):
    from grilly.cli import shaders

    def shown(registry):
        shaders._print(registry.table(sizes=(64,)))
        shaders._explain(registry, None, None, (64,))
        return capsys.readouterr().out

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert shown(make(None)).count(f"{shaders.UNCHECKED}") == 2
        prover = Prover("a.x.float32")
        with pytest.warns(grilly.SelfCheckWarning):
            make(prover).resolve(SMALL)
        text = shown(make(None))
    assert text.count("failed its self-check on this driver: error 0.5") == 2
    assert shaders.UNCHECKED not in text and "used" in text


# -- the comparison ---------------------------------------------------------------------------------------------------


def test_difference():
    one = np.linspace(-1, 1, 50)
    assert comparing.difference(one, one, np.float64(0.0), "float16") is None
    assert "error 0.5" in comparing.difference(one + 0.5, one, np.float64(0.1), "float16")
    assert "error nan" in comparing.difference(np.where(one > 0, np.nan, one), one, np.float64(0.1), "float16")
    assert "root mean square" in comparing.difference(one * 1.01, one, np.float64(0.1), "float16")
    assert comparing.difference(one * 1.001, one, np.float64(0.1), "float16") is None
    low = np.where(one > 0.9, -np.inf, one)
    assert comparing.difference(low, low, np.float64(0.0), "float32") is None
    assert comparing.difference(one, low, np.float64(9.0), "float32") == "wrong infinities"


# -- on a device ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [(), ("tiles", "mask-pairs"), ("bias", "bias-halves")], ids=str)
@pytest.mark.parametrize("family", ["attention-naive", "flash-attention2", "flash-attention3"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_right_kernels_pass(vulkan_backend, family, dtype, asked):
    """Also where the first call to want one asks for what the naive kernel, which it is held against, lacks."""
    registry = vulkan_backend.registry
    able = [v for v, why in registry.explain(wide_requests(dtype)._replace(prefer=family)) if why is None]
    if not able:
        pytest.skip(f"this device has no {dtype} kernel of {family}")
    best = max(able, key=registry.rank)
    facts = FACTS | {"extras": extras_bits(asked), "options": len(asked)}
    assert selfcheck.prove(vulkan_backend.opened, registry.choice(best), facts) is None


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_right_products_pass(vulkan_backend, dtype):
    registry = vulkan_backend.registry
    facts = {"align": 4, "rows": 99, "cols": 99, "outputs": 99 * 99, "high": 0, "turned": 0}
    able = [v for v, why in registry.explain(Request("linear", dtype, problem=facts)) if why is None]
    assert able
    for variant in able:
        assert selfcheck.prove(vulkan_backend.opened, registry.choice(variant), facts) is None, variant.name


def runnable(registry):
    """The variants that the device can run, each with the facts of its largest problem."""
    for variant in registry.manifest.variants:
        facts = {fact: high for fact, (low, high) in variant.limits.items()} | {"align": 16}
        request = Request(variant.operation, variant.dtype, variant.models[0], facts, variant.family)
        if any(v == variant and why is None for v, why in registry.explain(request)):
            yield variant, facts


@pytest.mark.parametrize("part", range(12))
def test_this_devices_matrix_kernels_pass(vulkan_backend, part):
    """On a correct driver; where one fails here, it is the kernel or the check that is wrong."""
    unproven = [(variant, facts) for variant, facts in runnable(vulkan_backend.registry) if variant.unproven]
    if not unproven:
        pytest.skip("this device has no matrix units that a kernel is written for")
    for variant, facts in unproven[part::12]:
        choice = vulkan_backend.registry.choice(variant)
        assert selfcheck.prove(vulkan_backend.opened, choice, facts) is None, variant.name


def test_masks_as_bits_are_checked(vulkan_backend, monkeypatch):
    """Classes of tiles and the bits of a mask, which only large calls have."""
    dispatch = tiles.TileClasses._dispatch_bits

    def wrong(self, planner, registry, classes, mask):
        batch, head, _, key = mask._strides  # every row as the first
        dispatch(self, planner, registry, classes, mask._view(mask.shape, (batch, head, 0, key)))

    monkeypatch.setattr(tiles.TileClasses, "_dispatch_bits", wrong)
    checked = 0
    for variant, facts in runnable(vulkan_backend.registry):
        if variant.tile.get("mask_bits"):
            choice = vulkan_backend.registry.choice(variant)
            assert selfcheck.prove(vulkan_backend.opened, choice, facts).startswith("tiled attention"), variant.name
            checked += 1
    if not checked:
        pytest.skip("this device has no kernel that takes masks as bits")


def test_a_kernel_that_passes_is_used(registry_on, tmp_path, cache):
    registry = registry_on(borrowed(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry.resolve(wide_requests()).variant.label == FAKE
    assert [e["failure"] for e in json.loads(file_of(cache).read_text())["entries"].values()] == [""]


@pytest.mark.parametrize(
    ("constant", "problem"), [("CAUSAL", "causal attention"), ("MASK", "masked attention"), ("LSE", "log-sum-exp")]
)
def test_a_kernel_deaf_to_a_constant_is_passed_over(vulkan_backend, registry_on, tmp_path, constant, problem):
    """Under a wrong id the constant keeps the value that the shader gives it. The whole call, as users make it."""
    constants = {"HEAD_DIM": 0, "VALUE_DIM": 1, "MASK": 2, "CAUSAL": 3, "LSE": 4, "MERGE": 5, constant: 99}
    registry_on(borrowed(tmp_path, constants=constants))
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 2, 33, d), dtype=np.float32) for d in (40, 40, 24))
    with pytest.warns(grilly.SelfCheckWarning, match=problem):
        out = vulkan_backend.attention.flash_attention2(q, k, v)
    exact, _ = grilly.reference.naive_attention(q, k, v, dtype=np.float64)
    assert np.abs(out - exact).max() < 1e-5


def test_a_wrong_product_is_passed_over(registry_on, tmp_path):
    folder = borrowed(tmp_path, "linear", "linear-matrix.fake", constants={"HAS_BIAS": 99, "FINISHED": 98}, limits={})
    registry = registry_on(folder)
    facts = {"align": 4, "rows": 99, "cols": 100, "outputs": 9900, "high": 0, "turned": 0}
    with pytest.warns(grilly.SelfCheckWarning, match="linear, .*: error"):
        assert registry.resolve(Request("linear", "float32", problem=facts)).variant.family != "linear-matrix"


def test_expressions_are_checked_behind_every_kernel_that_takes_one(vulkan_backend):
    """The check's problem becomes one dispatch of the kernel with the expression, on whichever device."""
    for variant in default_manifest().variants:
        if variant.operation in behind.PROBLEMS and "FINISHED" in variant.constants:
            choice = vulkan_backend.registry.choice(variant)
            view = behind.view_for(vulkan_backend.opened, choice)
            problem, dtype = behind.problem_of(view, choice), dtype_of(variant.dtype)
            (made, *_) = plan_of(view, problem.plan, key_of(view, problem.static, problem.arrays)).results
            others = behind.others(view, dtype, math.prod(made.shape) // problem.cols, problem.cols)
            static = (*problem.static, Behind(behind.expression_of(choice, dtype), ()))
            plan = plan_of(view, problem.plan, key_of(view, static, (*problem.arrays, *others)))
            finished = [step.choice.variant.name for step in plan.steps if dict(step.constants).get("FINISHED")]
            assert finished == [variant.name]


def test_right_kernels_pass_with_an_expression_behind_them(vulkan_backend):
    """One for each family and dtype."""
    smallest = {}
    for variant, _ in runnable(vulkan_backend.registry):
        if variant.operation in behind.PROBLEMS and "FINISHED" in variant.constants:
            size = variant.tile.get("rows", 0) * variant.tile.get("cols", 0)
            least = smallest.setdefault((variant.family, variant.dtype), (size, variant))
            smallest[variant.family, variant.dtype] = min(least, (size, variant), key=lambda pair: pair[0])
    for _, variant in smallest.values():
        choice = vulkan_backend.registry.choice(variant)
        assert selfcheck.prove(vulkan_backend.opened, choice, {"holes": VERSION}) is None, variant.name


def test_behind_a_kernel_that_computes_expressions_wrongly_stands_nothing(vulkan_backend, monkeypatch):
    monkeypatch.setenv("GRILLY_SELF_CHECK", "always")
    right = Finish.constants
    monkeypatch.setattr(Finish, "constants", lambda self: right(self) | {"FORM_R": 0})  # as if there were no such array
    x, w, r = (vulkan_backend.tensor(np.float32(np.random.default_rng(n).normal(size=(16, 16)))) for n in range(3))

    def call(x, w, r):
        return abs(F.linear(x, w) * r)

    with pytest.warns(grilly.SelfCheckWarning, match="behind it: .* takes dispatches of its own") as caught:
        graph = vulkan_backend.capture(call, x, w, r)
    assert graph.dispatches == 2 and len(caught) == 1
    np.testing.assert_array_equal(graph(x, w, r).numpy(), call(x, w, r).numpy())


def test_an_operation_without_a_check_is_not_trusted(registry_on, tmp_path):
    folder = borrowed(tmp_path, "rope", "rope-matrix.fake")
    with pytest.warns(grilly.SelfCheckWarning, match="there is no self-check for rope"):
        assert registry_on(folder).resolve(Request("rope", "float32")).variant.family == "rope"


def test_a_driver_that_refuses_the_shader(vulkan_backend, registry_on, tmp_path, monkeypatch):
    def refuse(spec):
        if FAKE in spec.name:
            raise grilly.ShaderError(f"{spec.name}: the driver could not compile it: VK_ERROR_UNKNOWN")
        return program(spec)

    program = vulkan_backend.runtime.program
    registry = registry_on(borrowed(tmp_path))
    monkeypatch.setattr(vulkan_backend.runtime, "program", refuse)
    with pytest.warns(grilly.SelfCheckWarning, match="could not compile it: VK_ERROR_UNKNOWN"):
        assert registry.resolve(wide_requests()).variant.label != FAKE


def test_a_device_lost_while_compiling_is_raised(vulkan_backend, registry_on, tmp_path, monkeypatch):
    def lose(spec):
        raise grilly.ShaderError("could not compile it") from grilly.DeviceLostError("gone")

    registry = registry_on(borrowed(tmp_path))
    monkeypatch.setattr(vulkan_backend.runtime, "program", lose)
    with pytest.raises(grilly.DeviceLostError):
        registry.resolve(wide_requests())


def test_a_damaged_binary_is_no_verdict(registry_on, tmp_path, cache):
    source = borrowed(tmp_path)
    good = source.binary

    def binary(name):
        if name.startswith(FAKE):
            raise grilly.ShaderError("damaged")
        return good(name)

    source.binary = binary
    with pytest.raises(grilly.ShaderError, match="damaged"):
        registry_on(source).resolve(wide_requests())
    assert not (cache / "verdicts").exists()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A changed naive kernel under another family's name; returns it and the package's other families."""
    if NO_COMPILER:
        pytest.skip(NO_COMPILER)
    made = {}

    def build(fault):
        if fault in made:
            return made[fault]
        root = tmp_path_factory.mktemp("shaders")
        families = shutil.ignore_patterns("*.comp", "*.toml")
        for room, skip in {"attention": families, "include": None}.items():
            shutil.copytree(ROOT / "shaders" / room, root / "shaders" / room, ignore=skip)
        text = (ROOT / "shaders/attention/attention-naive.comp").read_text()
        old, new, _ = FAULTS[fault]
        assert text.count(old) == 1
        text = text.replace(old, new)
        if "16 bits" in fault:
            text = text.replace("sum[i] += w *", "sum[i] += min(w, 65504.0) *")
        (root / "shaders/attention/flash-attention-matrix.comp").write_text(text)
        (root / "shaders/attention/flash-attention-matrix.toml").write_text(TOML)
        made[fault] = Joined(Checkout(root), default_manifest().source)
        return made[fault]

    return build


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_is_caught(registry_on, compiled, fault, dtype):
    registry = registry_on(compiled(fault))
    with pytest.warns(grilly.SelfCheckWarning, match=f"{FAKE}.{dtype} .*{FAULTS[fault][2]} attention") as caught:
        assert registry.resolve(wide_requests(dtype)).variant.label != FAKE
    assert len(caught) == 1
