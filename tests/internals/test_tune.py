"""``grilly tune``: measuring, keeping and using the winners, on tiny shapes."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import grilly
from grilly.cli import main, tune
from grilly.compute.attention import forward
from grilly.compute.attention.plan import planned
from grilly.compute.device.trial import request_of, view_of
from grilly.registry import Manifest, Registry, Request
from grilly.registry.measured import bucket
from grilly.runtime import folders
from grilly.runtime.interface import DeviceInfo
from kernels import plans
from manifests import entry, write_manifest

GPU = DeviceInfo(
    index=0, name="NVIDIA H200", vendor="nvidia", vendor_id=0x10DE, device_id=0x2335, kind="discrete", driver="NVIDIA",
    driver_version="580", api_version=(1, 4, 0), subgroup_size=32, subgroup_sizes=(32, 32), limits={},
    features=frozenset(), memory_bytes=1, unified=False, properties={"device_uuid": "1f", "driver_uuid": "2e"},
)  # fmt: skip
FACTS = {"align": 16, "head_dim": 64, "value_dim": 64, "rows": 4096}
PLAIN = Request("attention", "float32", problem=FACTS)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRILLY_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def make(tmp_path):
    def registry(*more, **changes):
        entries = [entry("a.x.float32", rank=3), entry("b.x.float32", rank=2, align=4), entry("c.x.float32"), *more]
        return Registry(dataclasses.replace(GPU, **changes), (), Manifest(write_manifest(tmp_path / "made", entries)))

    return registry


def chosen(registry, request=PLAIN):
    return registry.resolve(request).variant.name


def keep(registry, name="b.x.float32", request=PLAIN):
    (variant,) = [v for v in registry.manifest.variants if v.name == name]
    registry.remember(request, registry.choice(variant), 1e-3, "a shape")


# -- the registry's part, no device needed ----------------------------------------------------------------------------


def test_a_winner_goes_before_ranks_here_and_in_later_processes(make):
    registry = make()
    assert chosen(registry) == "a.x.float32"
    keep(registry)
    assert chosen(registry) == "b.x.float32"
    assert registry.measured(PLAIN) == "b.x.float32"
    assert chosen(make()) == "b.x.float32"


def test_what_cannot_be_written_changes_nothing(make, monkeypatch):
    def refuse(*arguments):
        raise OSError("read-only")

    registry = make()
    with monkeypatch.context() as patch:
        patch.setattr(folders.DeviceFile, "update", refuse)
        with pytest.raises(OSError, match="read-only"):
            keep(registry)
    assert chosen(registry) == "a.x.float32" and registry.measured(PLAIN) is None
    keep(registry)
    monkeypatch.setattr(folders.DeviceFile, "remove", refuse)
    with pytest.raises(OSError, match="read-only"):
        registry.forget_winners()
    assert chosen(registry) == registry.measured(PLAIN) == "b.x.float32"


def test_a_winner_stands_for_its_sizes_only(make):
    keep(make())
    registry = make()
    for other in ({"head_dim": 80}, {"value_dim": 32}, {"rows": 4097}, {"keys": 5}):
        assert chosen(registry, PLAIN._replace(problem={**FACTS, **other})) == "a.x.float32", other
    for same in ({"rows": 4000}, {"align": 8}):
        assert chosen(registry, PLAIN._replace(problem={**FACTS, **same})) == "b.x.float32", same


def test_a_winner_that_cannot_run_is_passed_over(make):
    keep(make())
    assert chosen(make(), PLAIN._replace(problem={**FACTS, "align": 1})) == "a.x.float32"


def test_a_family_asked_for_goes_before_a_winner(make):
    keep(make())
    assert chosen(make(), PLAIN._replace(prefer="c")) == "c.x.float32"


def test_a_winner_falls_with_driver_device_and_shaders(make):
    keep(make())
    assert chosen(make(driver_version="581")) == "a.x.float32"
    assert chosen(make(properties={"device_uuid": "1e", "driver_uuid": "2e"})) == "a.x.float32"
    assert chosen(make(entry("d.x.float32", rank=-1))) == "a.x.float32", "it was not measured against the new kernel"
    assert chosen(make(entry("d.x.float16", rank=-1))) == "b.x.float32"


@pytest.mark.parametrize("contents", ["{", '{"schema": 0, "entries": {}}', '{"schema": 1}', "\x00\x01"])
def test_a_damaged_or_older_file_is_ignored_with_a_warning(make, cache, contents):
    keep(make())
    (path,) = (cache / "tuned").glob("*.json")
    good = path.read_text()
    path.write_text(contents)
    registry = make()
    with pytest.warns(RuntimeWarning, match="ignored"):
        assert chosen(registry) == "a.x.float32"
    keep(registry)
    assert json.loads(path.read_text()) == json.loads(good)


def test_damaged_entries_are_ignored(make, cache):
    keep(make())
    keep(make(), request=PLAIN._replace(problem={**FACTS, "head_dim": 80}))
    (path,) = (cache / "tuned").glob("*.json")
    data = json.loads(path.read_text())
    next(iter(data["entries"].values()))["seconds"] = "fast"
    path.write_text(json.dumps(data))
    registry = make()
    with pytest.warns(RuntimeWarning, match="1 damaged"):
        assert len(registry.winners.entries) == 1


def test_buckets():
    assert bucket({"align": 4, "head_dim": 80, "rows": 65, "keys": 64, "high": 0, "cols": 1}) == {
        "cols": 1, "head_dim": 80, "high": 0, "keys": 64, "rows": 128,
    }  # fmt: skip


def test_table_shows_measured_choices(make):
    registry = make(entry("d.x.float32", rank=-1, limits={"head_dim": [1, 256], "rows": [1, 1 << 30]}))
    sized = PLAIN._replace(problem={"head_dim": 64, "rows": 1 << 24, "align": 16})
    keep(registry, request=sized)
    rows = {row["variant"]: row for row in registry.table(sizes=(64,)) if row["dtype"] == "float32"}
    assert rows["b.x"]["chosen"] == (64,)
    assert rows["a.x"]["reason"] == "b.x was measured faster"


def test_grilly_shaders_shows_measured_choices(make, capsys):
    from grilly.cli import shaders

    registry = make(entry("d.x.float32", rank=-1, limits={"head_dim": [1, 256], "rows": [1, 1 << 30]}))
    keep(registry, request=PLAIN._replace(problem={"head_dim": 64, "rows": 1 << 24, "align": 16}))
    shaders._explain(registry, None, "float32", (64,))
    text = capsys.readouterr().out
    assert "used, measured by grilly tune" in text and "can run; b.x was measured faster" in text


# -- on a device ------------------------------------------------------------------------------------------------------

SHAPES = ["--shape", "1,2,33,65,40", "--shape", "33,40,64"]


@pytest.fixture
def quickly(monkeypatch, vulkan_backend):
    """A device with two kernels for each operation, as lavapipe takes seconds to compile each."""
    if "timestamps" not in vulkan_backend.runtime.features:
        pytest.skip("this device has no timestamps")
    candidates = Registry.candidates

    def few(self, request):
        found = candidates(self, request)
        fast = [c for c in found if c.variant.family.endswith("naive") or "lanes" in c.variant.variant or
                "tile" in c.variant.variant]  # fmt: skip
        return fast[:2]

    monkeypatch.setattr(Registry, "candidates", few)


def run(*arguments):
    return main(["tune", "--runtime", "vulkan", *arguments])


def test_tune_show_reset(vulkan_backend, quickly, cache, capsys):
    assert run(*SHAPES, "--dtype", "float32", "--quick") == 0
    said = capsys.readouterr()
    assert "attention (1, 2, 33, 65, 40) float32" in said.out and "linear (33, 40, 64) float32" in said.out
    assert said.out.count("winner") >= 3 and "WRONG" not in said.out
    assert "1/2 attention" in said.err  # progress
    (path,) = (cache / "tuned").glob("*.json")
    entries = json.loads(path.read_text())["entries"]
    assert {(e["operation"], e["dtype"]) for e in entries.values()} == {("attention", "float32"), ("linear", "float32")}
    assert all(0 < e["seconds"] < 10 for e in entries.values())
    assert run("--show") == 0
    shown = capsys.readouterr().out
    assert all(e["variant"].removesuffix(".float32") in shown for e in entries.values())
    # A new backend takes the winner for the call that was measured.
    with grilly.Compute(vulkan_backend.device.index, "vulkan") as backend:
        q, k, v = (backend.tensor(np.ones((1, 2, n, 40), np.float32)) for n in (33, 65, 65))
        with backend.profile() as profile:
            backend.attention.flash_attention2(q, k, v)
        won = [e["variant"] for e in entries.values() if e["operation"] == "attention"]
        assert [t.label for t in profile.timings] == won
    assert run("--reset") == 0
    assert "Forgotten" in capsys.readouterr().out and not path.exists()
    assert run("--reset") == 0 and run("--show") == 0
    shown = capsys.readouterr().out
    assert "nothing to forget" in shown and "Nothing was measured" in shown


def test_causal_and_grouped(vulkan_backend, quickly, capsys):
    assert run("--shape", "2,4,70,90,24", "--kv-heads", "2", "--causal", "--dtype", "float32", "--quick") == 0
    assert "WRONG" not in capsys.readouterr().out
    assert run("--shape", "1,2,90,5,24", "--causal", "--dtype", "float32", "--quick") == 0
    assert "WRONG" not in capsys.readouterr().out


def test_a_winner_serves_calls_that_had_a_plan(vulkan_backend):
    """A call like an earlier one asks neither the registry nor the planner: what it had must go."""
    with grilly.Compute(vulkan_backend.device.index, "vulkan") as backend:
        q = backend.tensor(np.random.default_rng(0).standard_normal((1, 2, 40, 24), np.float32))
        view = view_of(backend.opened)
        request = request_of(view, lambda: forward.flash_attention("test", view, q, q, q))

        def used():
            backend.attention.flash_attention2(q, q, q)
            (executable,) = plans(backend, planned)
            return [step.choice.variant.name for step in executable.plan.steps]

        (before,) = used()
        assert used() == [before]
        registry = backend.registry
        other = next(choice for choice in registry.candidates(request) if choice.variant.name != before)
        registry.remember(request, other, 1e-3, "a shape")
        assert used() == [other.variant.name]
        assert registry.forget_winners() and used() == [before]
        assert not registry.forget_winners()


def test_a_wrong_kernel_never_wins(vulkan_backend, quickly, monkeypatch, capsys):
    called = []
    original = tune.Problem.call

    def call(self, tensors=None, **options):
        out = original(self, tensors, **options)
        pinned = self.view.registry.pinned
        if tensors is None and pinned is not None:
            called.append(pinned.variant.name)
            if pinned.variant.name == called[0]:  # of two candidates the first forgets its last row
                array = out.numpy()
                array[:, :, -1] = 0
                return self.view.tensor(array)
        return out

    monkeypatch.setattr(tune.Problem, "call", call)
    assert run("--shape", "1,2,33,65,40", "--dtype", "float32", "--quick") == 1
    said = capsys.readouterr().out
    assert "WRONG: error" in said
    with grilly.Compute(vulkan_backend.device.index, "vulkan") as backend:
        (kept,) = backend.registry.winners.entries.values()
    assert kept["variant"] != called[0]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--shape", "1,2,3"], 0, ""),
        (["--shape", "1,2,3,4"], 2, "expected B,H,Sq,Sk,D or M,N,K"),
        (["--shape", "1,2,3,4,257"], 1, "head dimensions go from 1 to 256"),
        (["--shape", "1,3,3,4,8", "--kv-heads", "2"], 1, "the 3 heads must be a multiple"),
        (["--shape", "1,3,3,4,8", "--operation", "linear"], 1, "none of the shapes"),
    ],
    ids=str,
)
def test_arguments(quickly, capsys, arguments, status, said):
    if status == 2:
        with pytest.raises(SystemExit):
            run(*arguments)
    else:
        assert run(*arguments, "--dtype", "float32", "--quick") == status
    assert said in capsys.readouterr().err
