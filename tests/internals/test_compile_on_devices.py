"""tools/compile_on_devices.py: that it would see a spill and a refusal. The GPUs themselves are tools/lanes.sh's."""

import collections
import dataclasses
import itertools
import sys
from pathlib import Path

import pytest

from grilly.errors import NoDeviceError
from manifests import entry, write_manifest

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import compile_on_devices as tool
import pipelines
from buffers import scale_spec
from grilly.registry import Choice, Manifest, Registry, default_manifest
from grilly.registry.shared import extras_bits


@pytest.mark.parametrize(
    ("statistics", "spilled"),
    [
        ({"VGPRs": 96, "Spilled VGPRs": 0, "Spilled SGPRs": 0, "Scratch size": 0}, 0),
        ({"VGPRs": 256, "Spilled VGPRs": 12, "Scratch size": 1024}, 1036),
        ({"Spilled SGPRs": 3}, 3),
        ({"Spills to memory": 2, "Fills from memory": 5, "Spills to reg": 7}, 2),
        ({"Registers used": 48, "STP Count": 8, "LDP Count": 9}, 17),
        ({}, 0),
    ],
)
def test_spills(statistics, spilled):
    assert tool.spills(statistics) == spilled


def test_constants_follow_the_variants_limits(tmp_path):
    constants = {"HEAD_DIM": 0, "VALUE_DIM": 1, "MASK": 2, "CAUSAL": 3}
    limits = {"head_dim": [33, 64], "value_dim": [1, 128]}
    write_manifest(tmp_path, [entry("flash.tile.float32", constants=constants, limits=limits)])
    (variant,) = Manifest(tmp_path).variants
    plain = {"HEAD_DIM": 64, "VALUE_DIM": 128, "MASK": 0, "CAUSAL": 0}
    assert tool.constant_sets(variant) == [plain | {"MASK": 2, "CAUSAL": 1}, plain]
    assert tool.constant_sets(dataclasses.replace(variant, operation="rope")) == [plain]


@pytest.mark.parametrize(("parts", "share"), [(2, 4), (3, 12)])
def test_parts_share_the_pipelines(parts, share):
    """No part is left with little of an operation of eight pipelines or more: a quarter of it, of three a twelfth."""
    found = collections.defaultdict(lambda: [0] * parts)
    for variant in default_manifest().variants:
        choice = Choice(variant, 32, default_manifest())
        for constants in tool.constant_sets(variant):
            found[variant.operation][tool.Asked(choice, constants).part(parts)] += 1
    for operation, counts in found.items():
        assert sum(counts) < 8 or min(counts) >= sum(counts) // share, operation


@pytest.mark.parametrize("given", ["0/2", "3/2", "2", "1/0", "-1/2", "a/b", ""])
def test_parts_are_checked(given, monkeypatch, capsys):
    monkeypatch.setattr(tool.sys, "argv", ["compile_on_devices.py", "name", f"--part={given}"])
    with pytest.raises(SystemExit):
        tool.main()
    assert "expected K/N" in capsys.readouterr().err


def test_any_two_options_meet():
    name = "flash-attention-narrow.sixteen-extra.d64.float16"
    (variant,) = (v for v in default_manifest().variants if v.name == name)
    together = [own["FEATURES"] for own in tool.constant_sets(variant) if own["FEATURES"].bit_count() == 3]
    for one, other in itertools.combinations(variant.offers, 2):
        bits = extras_bits((one, other))
        assert any(features & bits == bits for features in together), (one, other)
    assert extras_bits(variant.offers) in [own["FEATURES"] for own in tool.constant_sets(variant)]


def test_what_is_computed_is_asked_for():
    """Each operation that constants choose among is compiled for something, in workgroups that have invocations."""
    seen = set()
    for variant in default_manifest().variants:
        if variant.operation in pipelines._ARRAYS:
            sets = tool.constant_sets(variant)
            assert sets and all(set(own) == set(variant.constants) for own in sets), variant.name
            assert all(own.get(name, 1) for own in sets for name in ("THREADS", "LANES", "HELD")), variant.name
            assert len({tuple(own.items()) for own in sets}) == len(sets), variant.name
            seen.add(variant.operation)
    assert seen == set(pipelines._ARRAYS)


@pytest.fixture(scope="module")
def compiler():
    try:
        return tool.Compiler()
    except NoDeviceError as error:
        pytest.skip(f"there is no Vulkan device: {error}")


def test_a_good_shader_compiles(compiler):
    statistics = compiler.compile(scale_spec())
    assert isinstance(statistics, dict)
    assert compiler.has_statistics == bool(statistics)


def test_a_refusal_is_a_complaint(compiler, monkeypatch, tmp_path):
    manifest = Manifest(write_manifest(tmp_path, [entry("flash.good.float32"), entry("flash.refused.float16")]))
    monkeypatch.setattr(tool, "Registry", lambda info, features: Registry(info, features, manifest))

    def compile_(spec):
        if "refused" in spec.name:
            raise RuntimeError("VkResult -1")
        return {"Spilled VGPRs": 4}

    monkeypatch.setattr(compiler, "compile", compile_)
    rows, complaints, _ = tool.examine("test", compiler)
    assert {row["variant"].split(".")[1] for row in rows} == {"good"}
    assert any("refused" in text for text in complaints) and not any("spills" in text for text in complaints)
    for vendor, architecture in (
        ("amd", "amd-rdna4"), ("apple", "apple"), ("qualcomm", "qualcomm-adreno6"), ("nvidia", "nvidia-ada"),
        ("intel", "intel-xe2"),
    ):  # fmt: skip
        info = dataclasses.replace(compiler.info, vendor=vendor, architecture=architecture)
        monkeypatch.setattr(compiler, "info", info)
        _, complaints, _ = tool.examine("test", compiler)
        assert any("good" in text and "spills (4)" in text for text in complaints)
        assert not any("took" in text for text in complaints)
    monkeypatch.setattr(tool, "MOST_SECONDS", -1.0)
    _, complaints, _ = tool.examine("test", compiler)
    assert any("good" in text and "took" in text for text in complaints)


def test_what_a_device_is_not_given_is_not_compiled_there(compiler, monkeypatch, tmp_path):
    manifest = Manifest(
        write_manifest(tmp_path, [entry("flash.good.float32"), entry("flash.amd.float32", architectures=["amd"])])
    )
    monkeypatch.setattr(tool, "Registry", lambda info, features: Registry(info, features, manifest))
    monkeypatch.setattr(compiler, "compile", lambda spec: {"Spill count": 0})
    both = {"flash.good.float32", "flash.amd.float32"}
    for vendor, compiled in (("intel", {"flash.good.float32"}), ("apple", {"flash.good.float32"}), ("amd", both)):
        info = dataclasses.replace(compiler.info, vendor=vendor, architecture=vendor)
        monkeypatch.setattr(compiler, "info", info)
        rows, complaints, _ = tool.examine("test", compiler)
        assert ({row["variant"] for row in rows}, complaints) == (compiled, [])


def test_what_shuts_the_architecture_out_is_not_compiled(compiler, monkeypatch, tmp_path):
    away = entry("flash.away.float32", architectures=["!llvmpipe", "!intel", "!amd", "!nvidia", "!apple"])
    manifest = Manifest(write_manifest(tmp_path, [entry("flash.good.float32"), away]))
    monkeypatch.setattr(tool, "Registry", lambda info, features: Registry(info, features, manifest))
    monkeypatch.setattr(compiler, "compile", lambda spec: {"Spills": 0})
    rows, complaints, _ = tool.examine("test", compiler)
    assert ([row["variant"] for row in rows], complaints) == (["flash.good.float32"], [])
