"""Buffers of a bare runtime, and small dispatches on them."""

import hashlib
import struct
from pathlib import Path

import numpy as np

from grilly.runtime.interface import ProgramSpec

SHADERS = Path(__file__).parents[2] / "shaders"


def spec_of(name, access, push_bytes, constants=()):
    """The ProgramSpec of a binary in tests/shaders."""
    spirv = (SHADERS / f"{name}.spv").read_bytes()
    return ProgramSpec(name, hashlib.sha256(spirv).hexdigest(), spirv, access, push_bytes, constants)


def scale_spec(constants=()):
    """Of the program that `scale` runs."""
    return spec_of("scale", ("r", "rw"), 8, constants)


def reverse_spec():
    """Of one that reads two buffers and writes a third."""
    return spec_of("reverse", ("r", "r", "w"), 4)


def whole(buffer):
    """A binding of all bytes of a buffer."""
    return (buffer, 0, buffer.nbytes)


def upload(runtime, array):
    """A new buffer with the array's bytes."""
    buffer = runtime.allocate(array.nbytes)
    runtime.write(buffer, array)
    return buffer


def download(runtime, buffer, dtype=np.float32):
    """A buffer's numbers, as one row."""
    out = np.empty(buffer.nbytes // np.dtype(dtype).itemsize, dtype)
    runtime.read(buffer, out)
    return out


def scale(runtime, x, y, count, factor, constants=(), seconds=0.0):
    """y = factor * x + y + constants, on the device."""
    program = runtime.program(scale_spec(constants))
    push = struct.pack("<If", count, factor)
    runtime.dispatch(program, [whole(x), whole(y)], push, (-(-count // 64), 1, 1), seconds)


def host_array(runtime, shape, dtype=np.float32):
    """An array of the runtime's own host memory."""
    return runtime.host_array(int(np.prod(shape)) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)
