"""Bad input is refused with a clear exception before any device work; nothing is lost by it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import children
import grilly
import grilly.functional as F
from compilers import NO_COMPILER
from manifests import manifest_file, put_manifest
from shaderbuild.builder import Builder
from shaderbuild.everything import build, pack_all

ROOT = Path(__file__).parents[1]
Q = np.ones((2, 4, 5, 8), np.float32)


def f32(*shape):
    return np.ones(shape, np.float32)


REFUSED = [
    ("one axis", lambda: (f32(8), f32(8), f32(8)), {}, ValueError, "expected (B, H, S, D)"),
    ("five axes", lambda: (f32(1, 1, 1, 1, 8),) * 3, {}, ValueError, "expected (B, H, S, D)"),
    ("mixed ranks", lambda: (Q, f32(4, 5, 8), f32(4, 5, 8)), {}, ValueError, "axes"),
    ("heads", lambda: (f32(1, 12, 5, 8), f32(1, 8, 5, 8), f32(1, 8, 5, 8)), {}, ValueError, "8 heads and q has 12"),
    ("no key heads", lambda: (Q, f32(2, 0, 5, 8), f32(2, 0, 5, 8)), {}, ValueError, "multiple"),
    ("key heads of v", lambda: (Q, f32(2, 2, 5, 8), Q), {}, ValueError, "k has 2 heads and v has 4"),
    ("batch", lambda: (Q, f32(3, 4, 5, 8), f32(3, 4, 5, 8)), {}, ValueError, "batch"),
    ("batch of v", lambda: (Q, Q, f32(1, 4, 5, 8)), {}, ValueError, "batch"),
    ("keys", lambda: (Q, Q, f32(2, 4, 6, 8)), {}, ValueError, "k has 5 keys and v has 6"),
    ("head dimension", lambda: (Q, f32(2, 4, 5, 9), Q), {}, ValueError, "head dimension"),
    ("dimension 0", lambda: (Q[..., :0], Q[..., :0], Q), {}, ValueError, "1 to 576"),
    ("dimension 577", lambda: (f32(1, 1, 2, 577),) * 3, {}, ValueError, "1 to 576"),
    ("value dimension 513", lambda: (Q, Q, f32(2, 4, 5, 513)), {}, ValueError, "1 to 512"),
    ("float64", lambda: (Q.astype(np.float64),) * 3, {}, TypeError, "q.astype(numpy.float32)"),
    ("int32", lambda: (Q.astype(np.int32),) * 3, {}, TypeError, "float32, float16 or bfloat16"),
    ("complex", lambda: (Q.astype(np.complex64),) * 3, {}, TypeError, "float32, float16 or bfloat16"),
    ("mixed dtypes", lambda: (Q, Q.astype(np.float16), Q), {}, TypeError, "same dtype"),
    ("a list", lambda: ([[1.0]], [[1.0]], [[1.0]]), {}, TypeError, "list"),
    ("None", lambda: (Q, None, Q), {}, TypeError, "NoneType"),
    ("mask shape", lambda: (Q, Q, Q), {"mask": np.ones((3, 5), bool)}, ValueError, "does not broadcast"),
    ("mask rank", lambda: (Q, Q, Q), {"mask": np.ones((1, 2, 4, 5, 5), bool)}, ValueError, "does not broadcast"),
    ("mask dtype", lambda: (Q, Q, Q), {"mask": np.ones((5, 5), np.int64)}, TypeError, "astype(bool)"),
    ("mask type", lambda: (Q, Q, Q), {"mask": [[True]]}, TypeError, "list"),
    ("scale NaN", lambda: (Q, Q, Q), {"scale": float("nan")}, ValueError, "scale"),
    ("scale inf", lambda: (Q, Q, Q), {"scale": float("inf")}, ValueError, "scale"),
    ("kernel", lambda: (Q, Q, Q), {"kernel": "no-such-kernel"}, grilly.UnsupportedError, "no-such-kernel"),
]


@pytest.mark.parametrize("arrays, options, error, words", [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
@pytest.mark.parametrize("operation", ["flash_attention2", "flash_attention3"])
def test_attention_refuses(backend, monkeypatch, operation, arrays, options, error, words):
    def no_work(*arguments, **options):
        raise AssertionError("device work was recorded")

    monkeypatch.setattr(backend.runtime, "dispatch", no_work)
    if error is not grilly.UnsupportedError:
        monkeypatch.setattr(backend.runtime, "write", no_work)
    with pytest.raises(error) as caught:
        getattr(backend.attention, operation)(*arrays(), **options)
    assert words in str(caught.value), caught.value


@pytest.mark.parametrize(
    "options, words",
    [
        ({"num_heads": 3}, "no multiple"),
        ({"num_heads": 4, "head_dim": 5}, "4 * 5"),
        ({"num_heads": 0}, "num_heads is 0"),
    ],
)
def test_flash_attention3_joined_heads_refused(backend, options, words):
    x = f32(2, 5, 32)
    with pytest.raises(ValueError) as caught:
        backend.attention.flash_attention3(x, x, x, **options)
    assert words in str(caught.value)


def test_nothing_is_lost(backend):
    """After many refusals the memory is what it was, and the backend works."""
    import gc

    gc.collect()
    backend.synchronize()
    before = backend.memory().in_use
    for _, arrays, options, error, _ in REFUSED:
        with pytest.raises(error):
            backend.attention.flash_attention2(*arrays(), **options)
    gc.collect()
    assert backend.memory().in_use == before
    assert np.allclose(backend.attention.flash_attention2(Q, Q, Q), 1)


def test_float64_tensor_names_the_cast(backend):
    with pytest.raises(TypeError, match="astype"):
        backend.tensor(np.ones(3))


def test_linear_without_an_input(backend):
    with pytest.raises(TypeError, match="linear: input is a NoneType"):
        F.linear(None, backend.tensor(Q[0, 0]))


def test_arrays_beyond_device_memory(backend):
    with pytest.raises(grilly.OutOfDeviceMemoryError) as caught:
        backend.empty((1 << 20, 1 << 20, 16))
    assert isinstance(caught.value, MemoryError)
    assert "bytes" in str(caught.value)
    assert np.allclose(backend.attention.flash_attention2(Q, Q, Q), 1)


def test_unknown_names():
    with pytest.raises(ValueError, match="unknown runtime"):
        grilly.Compute(runtime="cuda")
    with pytest.raises(ValueError, match="no-such-gpu"):
        grilly.Compute("no-such-gpu")
    with pytest.raises(ValueError):
        grilly.Compute(10_000)
    with pytest.raises(TypeError):
        grilly.use("backend")


def test_use_after_close(backend):
    """A closed backend and its tensors say so, and closing twice is allowed."""
    own = grilly.Compute(runtime=backend.runtime.name)
    tensor = own.tensor(Q)
    own.close()
    own.close()
    for call in (
        tensor.numpy,
        own.synchronize,
        own.memory,
        lambda: own.tensor(Q),
        lambda: F.flash_attention2(tensor, tensor, tensor),
        lambda: own.attention.flash_attention2(Q, Q, Q),
    ):
        with pytest.raises(grilly.ClosedError, match="closed"):
            call()


def test_mixed_backends(backend):
    with grilly.Compute(runtime=backend.runtime.name) as other:
        a, b = backend.tensor(Q), other.tensor(Q)
        with pytest.raises(ValueError, match="different backends"):
            F.flash_attention2(a, b, a)


def run_python(code: str, **environment: str | Path) -> subprocess.CompletedProcess:
    package = environment.pop("package", Path(grilly.__file__).parents[1])
    environment = children.environment(package, **environment)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)


@pytest.mark.parametrize(
    "hide", ["import sys; sys.modules['vulkan'] = None", "import os; os.environ['VK_DRIVER_FILES'] = '/nowhere.json'"]
)
def test_no_driver_says_what_to_install(hide):
    code = f"{hide}\nimport grilly\ntry: grilly.Compute()\nexcept grilly.NoDeviceError as e: print('caught', e)"
    done = run_python(code, VK_ICD_FILENAMES="/nowhere.json")
    assert "caught" in done.stdout, done.stderr
    assert "install" in done.stdout


ATTEND = (
    "import numpy as np, grilly\n"
    "x = np.ones((1, 1, 4, 8), np.float32)\n"
    "try: grilly.Compute().attention.flash_attention2(x, x, x)\n"
    "except grilly.ShaderError as e: print('caught', e)"
)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """The packed shaders of three families, in a checkout that has no others."""
    if NO_COMPILER:
        pytest.skip(NO_COMPILER)
    root = tmp_path_factory.mktemp("packed")
    shutil.copytree(ROOT / "shaders/include", root / "shaders/include")
    families = shutil.ignore_patterns("*.comp", "*.toml")
    shutil.copytree(ROOT / "shaders/attention", root / "shaders/attention", ignore=families)
    (root / "shaders/elementwise").mkdir()
    for family in ("attention/attention-naive", "elementwise/copy", "attention/attention-merge"):
        for ending in ("comp", "toml"):
            shutil.copy(ROOT / f"shaders/{family}.{ending}", root / f"shaders/{family}.{ending}")
    builder = Builder(root)
    pack_all(builder, build(builder, 2), root / "packed", 2)
    return root / "packed"


@pytest.mark.parametrize(
    "damage", ["nothing", "truncated", "one bit", "no file", "manifest cut", "manifest no JSON", "no manifest"]
)
def test_damaged_shaders_are_named(packed, tmp_path, damage):
    folder = tmp_path / "packed"
    shutil.copytree(packed, folder)
    manifest = manifest_file(folder)
    for file in folder.glob("*.xz"):
        if damage == "truncated":
            file.write_bytes(file.read_bytes()[:200])
        elif damage == "one bit":
            data = bytearray(file.read_bytes())
            data[100] ^= 4
            file.write_bytes(data)
        elif damage == "no file":
            file.unlink()
    if damage == "manifest cut":
        manifest.write_bytes(manifest.read_bytes()[:100])
    elif damage == "manifest no JSON":
        put_manifest(folder, b"\xff\xfe nonsense")
    elif damage == "no manifest":
        manifest.unlink()
    done = run_python(ATTEND, GRILLY_SHADERS=folder)
    if damage == "nothing":
        assert done.returncode == 0 and "caught" not in done.stdout, done.stderr
        return
    assert "caught" in done.stdout, done.stderr
    assert (".xz" in done.stdout) or ("manifest.json" in done.stdout)
    assert "--pack" in done.stdout, "the cure"


@pytest.mark.parametrize(
    ("q_shape", "k_shape", "options", "words"),
    [
        ((2, 4, 5, 6), (2, 2, 5, 6), {"num_kv_heads": 3}, "num_kv_heads is 3"),
        ((2, 5, 24), (2, 5, 24), {"num_kv_heads": 7}, "num_kv_heads is 7.*need num_heads too"),
        ((2, 5, 24), (2, 5, 12), {"num_heads": 4, "num_kv_heads": 5}, "no multiple of num_kv_heads, 5"),
        ((2, 5, 24), (2, 5, 12), {"num_heads": 4, "num_kv_heads": 0}, "num_kv_heads is 0"),
        ((2, 5, 24), (2, 5, 12), {"num_heads": 4, "num_kv_heads": 2, "head_dim": 5}, r"num_heads \* head_dim = 4 \* 5"),
    ],
)  # fmt: skip
def test_numbers_of_key_heads(vulkan_backend, q_shape, k_shape, options, words):
    q, k = np.ones(q_shape, np.float32), np.ones(k_shape, np.float32)
    with pytest.raises(ValueError, match=words):
        vulkan_backend.attention.flash_attention3(q, k, k, **options)


def test_joined_keys_that_are_no_array(vulkan_backend):
    q = np.ones((2, 5, 24), np.float32)
    with pytest.raises(TypeError, match="k is a list"):
        vulkan_backend.attention.flash_attention3(q, q.tolist(), q, num_heads=4)


def test_a_mask_without_axes_is_for_all(vulkan_backend):
    q = np.ones((1, 1, 3, 8), np.float32)
    attend = vulkan_backend.attention.flash_attention2
    np.testing.assert_array_equal(attend(q, q, q, mask=np.array(True)), attend(q, q, q))
    np.testing.assert_array_equal(attend(q, q, q, mask=np.array(False)), np.zeros_like(q))
