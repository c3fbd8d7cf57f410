"""Commits one fault on purpose, so that tools/lanes.sh can see the validation layers report it.

    python tools/validation_faults.py call      a buffer of no bytes
    python tools/validation_faults.py barrier   two dispatches where the second reads what the first writes, unordered
"""

import hashlib
import struct
import sys
from pathlib import Path

import numpy as np

from grilly.runtime import open_runtime, probe
from grilly.runtime.interface import ProgramSpec


def wrong_call() -> None:
    ffi, lib = probe.load()
    runtime = open_runtime(runtime="vulkan")
    info = ffi.new("VkBufferCreateInfo *", {"sType": 12, "size": 0, "usage": 0x20})
    buffer = ffi.new("VkBuffer *")
    lib.vkCreateBuffer(runtime._parts.device.handle, info, ffi.NULL, buffer)
    runtime.close()


def missing_barrier() -> None:
    spirv = (Path(__file__).resolve().parents[1] / "tests/shaders/reverse.spv").read_bytes()
    # The spec hides that binding 2 is written, so the runtime puts no barrier between the dispatches.
    spec = ProgramSpec("unordered", hashlib.sha256(spirv).hexdigest(), spirv, ("r", "r", "r"), 4)
    runtime = open_runtime(runtime="vulkan")
    program = runtime.program(spec)
    count = 4096
    buffers = [runtime.allocate(4 * count) for _ in range(2)]
    for buffer in buffers:
        runtime.write(buffer, np.zeros(count, np.uint32))
    runtime.synchronize()
    for source, target in (buffers, buffers[::-1]):
        bindings = [(source, 0, source.nbytes), None, (target, 0, target.nbytes)]
        runtime.dispatch(program, bindings, struct.pack("<I", count), (count // 64, 1, 1))
    runtime.synchronize()
    runtime.close()


{"call": wrong_call, "barrier": missing_barrier}[sys.argv[1]]()
