"""tools/standins/i915.c: what a driver asks Intel's kernel driver, asked by Python in a process that has the stand-in.

Mesa's own compiler behind it is tools/lanes.sh's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long("of a tool that only the project runs")

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "tools/standins/i915.c"
COMPILER = shutil.which("gcc") or shutil.which("cc")

#: Numbers of the ioctls and structures are drm/i915_drm.h's.
ASK = """
import fcntl, mmap, os, stat, struct, sys, ctypes
assert os.listdir("/dev/dri") == ["renderD128"]
about = os.stat("/dev/dri/renderD128")
assert stat.S_ISCHR(about.st_mode) and (os.major(about.st_rdev), os.minor(about.st_rdev)) == (226, 128)
libc = ctypes.CDLL(None, use_errno=True)
libc.fopen.restype, libc.fopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_char_p]
libc.fgets.restype, libc.fgets.argtypes = ctypes.c_char_p, [ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
line = ctypes.create_string_buffer(64)
print("sysfs", libc.fgets(line, 64, libc.fopen(b"/sys/dev/char/226:128/device/device", b"r")).decode().strip())
node = os.open("/dev/dri/renderD128", os.O_RDWR)
assert stat.S_ISCHR(os.fstat(node).st_mode)

def wr(number, size):
    return 3 << 30 | size << 16 | ord("d") << 8 | 0x40 + number

def getparam(number):
    value = ctypes.c_int(-1)
    fcntl.ioctl(node, wr(0x06, 16), struct.pack("=iiQ", number, 0, ctypes.addressof(value)))
    return value.value

print("chip", hex(getparam(4)), "mmap", getparam(40), "timelines", getparam(55))

def query(number, length=0, to=0):
    item = (ctypes.c_uint64 * 3)(number, length, to)
    fcntl.ioctl(node, wr(0x39, 16), struct.pack("=IIQ", 1, 0, ctypes.addressof(item)))
    return ctypes.c_int32(item[1] & 0xFFFFFFFF).value

need = query(1)
masks = ctypes.create_string_buffer(need)
assert query(1, need, ctypes.addressof(masks)) == need and query(1, need - 1, ctypes.addressof(masks)) == -22
print("topology", struct.unpack_from("=HHHH", masks, 0)[1:])
regions = ctypes.create_string_buffer(query(4))
query(4, len(regions), ctypes.addressof(regions))
print("regions", struct.unpack_from("=I", regions)[0], "unknown", query(99))

def create(size):
    return struct.unpack("=QII", fcntl.ioctl(node, wr(0x1b, 16), struct.pack("=QII", size, 0, 0)))

# Two buffers keep what is written into them.
views = []
for n, size in enumerate((5000, 70000)):
    given, handle, _ = create(size)
    assert given >= size
    place = struct.unpack("=IIQQQ", fcntl.ioctl(node, wr(0x24, 32), struct.pack("=IIQQQ", handle, 0, 0, 0, 0)))[2]
    views.append((handle, mmap.mmap(node, given, offset=place)))
    views[-1][1][:] = bytes([n + 1]) * given
print("buffers", [(view[0], view[-1], len(view)) for _, view in views])
close = 1 << 30 | 8 << 16 | ord("d") << 8 | 0x09
fcntl.ioctl(node, close, struct.pack("=II", views[0][0], 0))
try:
    fcntl.ioctl(node, close, struct.pack("=II", views[0][0], 0))
except OSError as error:
    print("closed twice", error.errno)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if COMPILER is None or not sys.platform.startswith("linux"):
        pytest.skip("no C compiler for Linux")
    header = subprocess.run([COMPILER, "-E", "-x", "c", "-"], input="#include <drm/i915_drm.h>\n", text=True,
                            capture_output=True)  # fmt: skip
    if header.returncode:
        pytest.skip("drm/i915_drm.h (of linux-libc-dev) is missing")
    out = tmp_path_factory.mktemp("standins") / "libi915_standin.so"
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
    subprocess.run([COMPILER, *warnings, "-O1", "-shared", "-fPIC", "-o", out, SOURCE, "-ldl"], check=True)
    return out


def ask(library, chip):
    environment = os.environ | {"LD_PRELOAD": str(library), "I915_STANDIN": chip}
    return subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "chip, number, units, regions",
    [
        ("skylake", "0x1912", (1, 3, 8), 1),
        ("arc-a770", "0x56a0", (1, 32, 16), 2),
        ("lunar-lake", "0x64a0", (1, 8, 8), 1),
    ],
)
def test_what_a_driver_asks(library, chip, number, units, regions):
    result = ask(library, chip)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        f"sysfs {number}", f"chip {number} mmap 4 timelines 1", f"topology {units}", f"regions {regions} unknown -22",
        "buffers [(1, 1, 65536), (2, 2, 131072)]", "closed twice 22",
    ]  # fmt: skip


def test_an_unknown_chip_is_refused(library):
    result = ask(library, "arc-z999")
    assert result.returncode == 2 and "arc-z999" in result.stderr and "arc-b580" in result.stderr


def test_a_misspelt_lane_is_refused_before_anything_runs():
    done = subprocess.run(["bash", "tools/lanes.sh", "validaton"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and not done.stdout
    assert "'validaton'; there are: faults validation devices" in done.stderr


def test_the_lane_asks_for_chips_that_there_are():
    lane = (ROOT / "tools/lanes.sh").read_text()
    named = lane.split('done <<<"intel-', 1)[1].split('"', 1)[0].split()
    chips = SOURCE.read_text()
    assert len(named) == 2 * 9
    assert all(f'{{"{chip}",' in chips for chip in named[1::2])
