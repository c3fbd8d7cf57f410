"""Files that others may have damaged, moved or be writing at the same time; and users without a home folder."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import children
import grilly
from grilly.errors import ShaderError
from grilly.registry import default_manifest
from grilly.registry.manifest import Manifest
from grilly.registry.names import MANIFEST
from grilly.registry.packed import Packed
from grilly.registry.shader_constants import CONSTANTS
from grilly.runtime import files, folders
from grilly.runtime.folders import DeviceFile
from grilly.runtime.interface import DeviceInfo
from grilly.runtime.locks import file_lock

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from manifests import SPIRV, put_manifest
from shaderbuild.pack import pack
from threads import in_time

DEVICE = DeviceInfo(
    index=0, name="Some GPU", vendor="nvidia", vendor_id=1, device_id=2, kind="discrete", driver="some",
    driver_version="1", api_version=(1, 3, 0), subgroup_size=32, subgroup_sizes=(32, 32), limits={},
    features=frozenset(), memory_bytes=1, unified=False, properties={"device_uuid": "ab", "driver_uuid": "cd"},
)  # fmt: skip
NESTED = "[" * 200_000 + "]" * 200_000


@pytest.fixture
def device_file(tmp_path, monkeypatch):
    monkeypatch.setenv("GRILLY_CACHE_DIR", str(tmp_path))
    return DeviceFile(DEVICE, "tuned", 1, {"n": int})


def python(code: str, seconds: float = 60, options: tuple = (), **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=seconds,
        env=children.environment(**environment),
    )  # fmt: skip


# -- damaged files ---------------------------------------------------------------------------------------------------


def damage(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "nested":
        path.write_text(NESTED)
    elif kind == "nested objects":
        path.write_text('{"entries":' * 100_000 + "1" + "}" * 100_000)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "huge":
        with open(path, "wb") as file:
            file.truncate(1 << 40)
    elif kind == "folder":
        path.mkdir()
    elif kind == "no UTF-8":
        path.write_bytes(b"\xff\xfe\0")


@pytest.mark.parametrize("kind", ["nested", "nested objects", "pipe", "huge", "folder", "no UTF-8"])
def test_a_damaged_file_is_passed_over(device_file, kind):
    if kind == "pipe" and not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    damage(device_file.path, kind)
    with pytest.warns(RuntimeWarning, match="ignored"):
        assert device_file.read() == {}
    if kind != "folder":
        device_file.update({"a": {"n": 1}})
        assert device_file.read() == {"a": {"n": 1}}


@pytest.mark.parametrize("kind", ["nested", "huge", "pipe"])
def test_a_damaged_manifest_is_named(tmp_path, kind):
    if kind == "nested":
        put_manifest(tmp_path, NESTED.encode())
    else:
        damage(tmp_path / MANIFEST, kind)
    with pytest.raises(ShaderError, match="manifest.json"):
        Manifest(tmp_path)


def test_what_is_read(tmp_path):
    path = tmp_path / "file"
    assert files.read_file(path) is None
    assert files.read_file(path / "below") is None
    path.write_bytes(b"12345")
    assert files.read_file(path / "below") is None  # "not a directory": there is no such file
    assert files.read_file(path) == files.read_file(path, 5) == b"12345"
    with pytest.raises(OSError, match="at most"):
        files.read_file(path, 4)
    before = open_files()
    for other in (Path(os.devnull), tmp_path):
        with pytest.raises(OSError, match="no regular file|Permission"):  # Windows opens no folder
            files.read_file(other)
    assert open_files() == before


def open_files():
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def test_a_signal_handler_may_write_in_the_midst_of_it(device_file, monkeypatch):
    replace = folders.replace_file

    def interrupted(path, data):
        with pytest.raises(OSError, match="interrupted"):
            device_file.update({"inner": {"n": 1}})
        replace(path, data)

    monkeypatch.setattr(folders, "replace_file", interrupted)
    in_time(lambda: device_file.update({"outer": {"n": 2}}))
    assert list(device_file.read()) == ["outer"]


# -- two processes ---------------------------------------------------------------------------------------------------

WRITER = """
import sys
sys.path.insert(0, {tests!r})
from test_cache_files import DEVICE
from grilly.runtime.folders import DeviceFile
file = DeviceFile(DEVICE, "tuned", 1, {{"n": int}})
for n in range(40):
    file.update({{f"{{sys.argv[1]}} {{n}}": {{"n": n}}}})
"""


def test_processes_that_write_at_once_lose_nothing(device_file):
    code = WRITER.format(tests=str(Path(__file__).parent))
    workers = [
        subprocess.Popen([sys.executable, "-c", code, str(number)], env=children.environment()) for number in range(3)
    ]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0, 0]
    assert len(device_file.read()) == 120


def test_a_lock_is_waited_for_and_given_up(tmp_path):
    path = tmp_path / "sub" / "file.lock"
    with file_lock(path):
        with pytest.raises(TimeoutError, match="locked by another"), file_lock(path, seconds=0.05):
            pass
    with file_lock(path, seconds=0):  # the lock is free again, also after the failure
        pass


def test_a_process_that_dies_gives_its_lock_back(tmp_path):
    path = tmp_path / "file.lock"
    code = (
        "import os, sys, pathlib\nfrom grilly.runtime.locks import file_lock\n"
        "with file_lock(pathlib.Path(sys.argv[1])): os._exit(3)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], env=children.environment())
    assert done.returncode == 3
    with file_lock(path, seconds=0):
        pass


def test_a_pipe_in_the_locks_place(tmp_path):
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    os.mkfifo(tmp_path / "file.lock")
    with pytest.raises(OSError, match="no regular file"), file_lock(tmp_path / "file.lock"):
        pass


# -- where grilly is run ---------------------------------------------------------------------------------------------

NOBODY = """
import os, pwd
def unknown(*arguments): raise KeyError(arguments)
pwd.getpwuid = pwd.getpwnam = unknown
for name in ("HOME", "XDG_CACHE_HOME", "GRILLY_CACHE_DIR"): os.environ.pop(name, None)
"""
ATTEND = """
import numpy as np, grilly
x = np.ones((1, 1, 4, 8), np.float32)
assert np.allclose(grilly.Compute().attention.flash_attention2(x, x, x), 1)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows knows every user")
def test_a_user_without_a_home(tmp_path):
    done = python(NOBODY + ATTEND, TMPDIR=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("grilly-*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and any(folder.rglob("*.bin"))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows knows every user")
@pytest.mark.parametrize("taken", ["writable by all", "a link", "a file"])
def test_a_temporary_folder_of_others_is_not_trusted(tmp_path, taken):
    folder = tmp_path / f"grilly-{os.getuid()}"
    if taken == "writable by all":
        folder.mkdir()
        folder.chmod(0o777)
    elif taken == "a link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.touch()
    done = python(NOBODY + ATTEND, TMPDIR=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not any(path.is_file() and path != folder for path in tmp_path.rglob("*"))


def test_without_docstrings():
    """``python -OO`` has none: every module is imported and one call made."""
    code = (
        "import importlib, pkgutil, grilly, numpy as np\n"
        "optional = ('__main__', 'dask', 'torch', 'transformers', 'onnx')\n"
        "def walk(path, start):\n"
        "    for module in pkgutil.iter_modules(path, start):\n"
        "        if module.name.split('.')[-1] in optional: continue\n"
        "        found = importlib.import_module(module.name)\n"
        "        if module.ispkg: walk(found.__path__, module.name + '.')\n"
        "walk(grilly.__path__, 'grilly.')\n"
        "from grilly import nn\n"
        "print(nn.FlashAttention3.__doc__, grilly.functional.softmax(np.zeros((1, 1, 2, 2), np.float32))[0, 0, 0])"
    )
    done = python(code, options=("-OO",))
    assert done.stdout.strip() == "None [0.5 0.5]", done.stderr


def pack_some(folder: Path) -> None:
    """Shaders as in a wheel, of the families that a small call can use."""
    source = default_manifest().source
    entries = [
        entry for entry in source.entries()
        if entry["family"] in ("flash-attention2", "flash-attention-llvmpipe") and entry["dtype"] == "float32"
    ]  # fmt: skip
    made = []
    for entry in entries:
        name = ".".join(entry[key] for key in ("family", "variant", "case", "dtype") if entry.get(key))
        made.append((entry, source.key(name), source.binary(name)[0]))
    sources = {entry["family"]: entry["family"] for entry, *_ in made}
    pack(folder, made, sources, {"constants": CONSTANTS}, jobs=2)


def test_variants_of_one_binary_share_its_place(tmp_path):
    source = default_manifest().source
    some = [entry for entry in source.entries() if entry["family"] == "flash-attention2"][:3]
    one, two = (SPIRV + bytes((0, 0, 1, 0)) * 300, SPIRV + bytes((0, 0, 1, 0)) * 400)  # of so many OpNop
    binaries = [one, two, one]
    made = [(entry, "0" * 64, binary) for entry, binary in zip(some, binaries, strict=True)]
    pack(tmp_path, made, {"flash-attention2": "attention"}, {"constants": CONSTANTS}, jobs=1)
    packed = Packed(tmp_path)
    places = [(entry["block"], entry["place"]) for entry in packed.entries()]
    names = [".".join(entry[key] for key in ("family", "variant", "case", "dtype") if entry.get(key)) for entry in some]
    assert [packed.binary(name)[0] for name in names] == binaries
    assert places[0] == places[2] != places[1]


def test_from_a_zip_file(tmp_path):
    package = Path(grilly.__file__).parent
    archive = tmp_path / "grilly.zip"
    pack_some(tmp_path / "spirv")
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as target:
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                target.write(path, path.relative_to(package.parent))
        for path in (tmp_path / "spirv").iterdir():
            target.write(path, f"grilly/spirv/{path.name}")
    done = python(ATTEND + f"assert grilly.__file__.startswith({str(archive)!r})", package=archive)
    assert done.returncode == 0, done.stderr
    short = tmp_path / "short.zip"
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(short, "w") as target:
        for name in source.namelist():
            if not name.endswith(MANIFEST):
                target.writestr(name, source.read(name))
    code = "import grilly\ntry: grilly.Compute()\nexcept grilly.ShaderError as e: print('caught', e)"
    done = python(code, package=short)
    assert "caught" in done.stdout and f"{MANIFEST} is missing" in done.stdout, done.stderr


def test_json_that_is_deep():
    with pytest.raises(ValueError, match="nested too deep"):
        files.parse_json(NESTED.encode())
    assert files.parse_json(json.dumps([1]).encode()) == [1]
