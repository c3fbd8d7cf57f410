"""KomputeRuntime: the Runtime interface over Kompute's Python package, kp 0.9.

Kompute is a small framework of its own, and this runtime is for programs that already use it. What it lacks shapes
this file:

- Between two dispatches it puts no barrier, so each dispatch is submitted and waited for by itself; ``flush`` and
  ``synchronize`` find nothing left to do.
- A kp algorithm has its buffers and its workgroup count baked in, and makes a pipeline of its own. Algorithms are
  kept, and freed buffers are handed out again by exact size, so that a repeated call finds its algorithm.
- A tensor on a GPU has a copy on the host, and kp copies all of it or nothing. Each buffer knows which of its two
  sides is newer, and is copied only when the other side is wanted.
- kp opens its device with Vulkan 1.1 and no optional feature, binds whole buffers, and never resets its timestamp
  queries. So the features are the subgroup operations alone.
- kp ignores the results of most Vulkan calls. What can be checked beforehand is, and a canary shows a lost device.
- An exception between two steps, such as an interrupt from the keyboard, leaves the runtime marked as at work; the next
  call counts again what is there before it goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator

import numpy as np

from ..errors import (
    DeviceLostError,
    GrillyError,
    NoDeviceError,
    OutOfDeviceMemoryError,
    ShaderError,
    UnsupportedError,
)
from .binary import instructions, verify
from .interface import REENTERED, Buffer, DeviceInfo, MemoryUse, Program, ProgramSpec, Runtime, Timing
from .lifetime import CLOSED, FORKED, check_alive, closed, track
from .pruned import code_for

INSTALL_HINT = """Kompute (kp 0.9.0) is built from source:
  apt-get install g++ cmake libvulkan-dev libfmt-dev pybind11-dev python3-dev
  KOMPUTE_OPT_USE_BUILT_IN_VULKAN_HEADER=OFF KOMPUTE_OPT_USE_BUILT_IN_FMT=OFF KOMPUTE_OPT_USE_BUILT_IN_PYBIND11=OFF \\
  KOMPUTE_OPT_INSTALL=OFF KOMPUTE_OPT_DISABLE_VK_DEBUG_LAYERS=ON pip install --no-deps kp==0.9.0"""

_ALIGNMENT = 256  # a multiple of nonCoherentAtomSize, by which kp flushes
_LARGEST = 1 << 32  # kp counts a tensor's bytes in 32 bits
_ALGORITHMS = 256  # pipelines kept
_RECORDINGS = 512  # recorded command buffers kept
_POOLED = 256 << 20  # bytes of freed buffers kept
_SUBGROUP = frozenset(
    ("subgroup-basic", "subgroup-vote", "subgroup-arithmetic", "subgroup-shuffle", "subgroup-shuffle-relative")
)
# SPIR-V capabilities that need no device feature in Vulkan 1.1 (specification, appendix "Vulkan Environment for
# SPIR-V"): Matrix, Shader, ImageQuery, and GroupNonUniform with its vote, arithmetic, ballot, shuffle, relative
# shuffle, clustered and quad forms.
_CAPABILITIES = frozenset((0, 1, 50, 61, 62, 63, 64, 65, 66, 67, 68))


def _import_kp():
    handlers = logging.root.handlers[:]
    try:
        import kp
    except ImportError as error:
        raise NoDeviceError(f"the kompute runtime needs the Python package `kp` ({error}). {INSTALL_HINT}") from error
    logging.root.handlers[:] = handlers  # kp calls logging.basicConfig(), which is the application's to call
    return kp


class _Memory:
    """A kp tensor, and which of its two sides holds the newer bytes."""

    __slots__ = ("tensor", "data", "nbytes", "size", "serial", "host_newer", "device_newer")

    def __init__(self, tensor, size: int, serial: int):
        self.tensor = tensor
        # kp's own array has stride 0 where a pybind11 older than 2.12 meets NumPy 2; its address is right.
        self.data = np.lib.stride_tricks.as_strided(tensor.data(), (size // 4,), (4,)).view(np.uint8)
        self.nbytes = self.size = size
        self.serial = serial
        self.host_newer = False
        self.device_newer = False


class KomputeBuffer(Buffer):
    """Memory that somebody uses; it goes back when this does."""

    __slots__ = ("memory", "end", "__weakref__")


class _End(weakref.ref):
    """What is left of a buffer when it goes."""

    __slots__ = ("memory",)


class KomputeProgram(Program):
    """A checked binary as the driver gets it, with its specialization constants in kp's form."""

    __slots__ = ("code", "constants", "push_words", "__weakref__")

    def __init__(self, spec: ProgramSpec, code: bytes, constants: np.ndarray):
        super().__init__(spec)
        self.code = code
        self.constants = constants
        self.push_words = spec.push_bytes // 4


def _constants(spec: ProgramSpec) -> np.ndarray:
    """Check that kompute can run a binary, and return its specialization constants, dense from id 0.

    kp numbers constants 0, 1, 2, ... so an id that the spec leaves out must be given the shader's own default.
    """
    name = spec.name
    version = int.from_bytes(spec.spirv[4:8], "little")
    if version > 0x00010300:
        found = f"{version >> 16 & 0xFF}.{version >> 8 & 0xFF}"
        raise UnsupportedError(f"{name}: SPIR-V {found}, and kompute's Vulkan 1.1 takes at most 1.3")
    ids: dict[int, int] = {}
    values: dict[int, int] = {}
    for opcode, words in instructions(name, spec.spirv, (17, 48, 49, 50, 71)):
        if opcode == 17 and int(words[0]) not in _CAPABILITIES:  # OpCapability
            raise UnsupportedError(
                f"{name}: the shader needs SPIR-V capability {words[0]}, a device feature that kompute cannot enable; "
                "use the vulkan runtime"
            )
        if opcode == 71 and int(words[1]) == 1:  # OpDecorate id SpecId
            ids[int(words[0])] = int(words[2])
        elif opcode in (48, 49, 50):  # OpSpecConstantTrue, OpSpecConstantFalse, OpSpecConstant: type, id, value
            if opcode == 50 and len(words) != 3:
                raise UnsupportedError(f"{name}: kompute takes specialization constants of 32 bits only")
            values[int(words[1])] = int(words[2]) if opcode == 50 else int(opcode == 48)
    wanted = {ids[result]: value for result, value in values.items() if result in ids} | dict(spec.constants)
    dense = np.zeros(max(wanted, default=-1) + 1, np.uint32)
    for constant, value in wanted.items():
        dense[constant] = value & 0xFFFFFFFF
    return dense


class KomputeRuntime(Runtime):
    """A Vulkan device opened by Kompute. See Runtime for the methods.

    Parameters
    ----------
    device : DeviceInfo
        The device to open.

    Raises
    ------
    NoDeviceError
        kp is not installed, or it does not see the device.
    """

    name = "kompute"

    def __init__(self, device: DeviceInfo):
        check_alive()
        self._kp = kp = _import_kp()
        self.device = device
        self.features = device.features & _SUBGROUP
        family = device.properties.get("queue_family")
        try:
            self._manager = kp.Manager(device.index, [] if family is None else [family], [])
            found = self._manager.get_device_properties()["device_name"]
        except RuntimeError as error:
            raise NoDeviceError(f"kompute cannot open {device.name}: {error}") from error
        if found != device.name:
            self._manager.destroy()
            raise NoDeviceError(f"kompute's device {device.index} is {found}, and {device.name} was asked for")
        # A CPU's "device" memory is the host's: one copy then serves both sides.
        self._shared = device.kind == "cpu"
        self._capacity = device.memory_bytes // (2 if device.unified and not self._shared else 1)
        self._lock = threading.RLock()
        self._closed: str | None = None  # why, once it is
        self._at_work = False
        self._all: dict[int, _Memory] = {}  # by serial
        self._live: set[_End] = set()
        self._gone: deque[_End] = deque()
        self._pool: OrderedDict[int, _Memory] = OrderedDict()  # by serial, the oldest first: what nobody uses
        self._programs: dict[ProgramSpec, KomputeProgram] = {}
        #: Those of filled binaries, as long as a plan has them.
        self._filled: weakref.WeakValueDictionary[ProgramSpec, KomputeProgram] = weakref.WeakValueDictionary()
        self._algorithms: OrderedDict[tuple, object] = OrderedDict()
        self._recordings: OrderedDict[tuple, object] = OrderedDict()
        self._serial = 0
        self._in_use = self._peak = self._reserved = 0
        self._unchecked = False
        self._beat = 0
        self._lost: str | None = None
        self._finalizer = weakref.finalize(self, self._manager.destroy)
        self._finalizer.atexit = False  # the end of the interpreter comes through track()
        try:
            self._canary = _Memory(self._make(_ALIGNMENT, kp.TensorTypes.device), _ALIGNMENT, -1)
            # What stands in for a binding that the shader does not touch.
            self._dummy = _Memory(self._make(_ALIGNMENT, kp.TensorTypes.device), _ALIGNMENT, -2)
        except RuntimeError as error:
            self._finalizer()
            raise self._meaning(error) from error
        track(self)

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """The lock, the runtime in order, and marked as at work meanwhile."""
        if self._lock._is_owned():
            raise GrillyError(REENTERED)
        with self._lock:
            if self._closed is not None:
                raise closed(self._closed)
            if self._lost is not None:
                raise DeviceLostError(self._lost)
            if self._at_work:
                self._mend()
            self._at_work = True
            yield
            self._at_work = False

    def _mend(self) -> None:
        """Count again what is there, after an exception that came between two steps."""
        self._gone.clear()
        self._live = {end for end in self._live if (buffer := end()) is not None and buffer.end is end}
        used = {end.memory.serial for end in self._live}
        self._pool = OrderedDict((serial, memory) for serial, memory in self._all.items() if serial not in used)
        self._reserved = sum(memory.size for memory in self._all.values())
        self._in_use = sum(end.memory.size for end in self._live)

    # -- memory ----------------------------------------------------------------------------------------------------

    def _make(self, size: int, kind):
        return self._manager.tensor_t(np.empty(size // 4, np.uint32), kind)

    def allocate(self, nbytes: int, idle: bool = False, passing: bool = False) -> KomputeBuffer:
        # Work here is never in flight, and nothing is shared.
        if nbytes < 1:
            raise ValueError(f"allocate: expected at least 1 byte, and received {nbytes}")
        size = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        with self._working():
            self._sweep()
            # The oldest: a loop that allocates and frees alike then gets the same buffers each time, and with them the
            # pipelines that kp made for them.
            found = min((serial for serial, memory in self._pool.items() if memory.size == size), default=None)
            if found is not None:
                memory = self._pool.pop(found)
                memory.host_newer = memory.device_newer = False
            else:
                memory = self._fresh(nbytes, size)
            self._in_use += size
            self._peak = max(self._peak, self._in_use)
            buffer = KomputeBuffer(nbytes)
            buffer.memory = memory
            end = buffer.end = _End(buffer, self._gone.append)
            end.memory = memory
            self._live.add(end)
            return buffer

    def _fresh(self, nbytes: int, size: int) -> _Memory:
        self._make_room(nbytes, size)
        kind = self._kp.TensorTypes.host if self._shared else self._kp.TensorTypes.device
        try:
            tensor = self._make(size, kind)
        except (RuntimeError, MemoryError) as error:
            raise OutOfDeviceMemoryError(f"{self._full(nbytes)} (kompute: {error})") from error
        self._serial += 1
        memory = self._all[self._serial] = _Memory(tensor, size, self._serial)
        self._reserved += size
        return memory

    def _make_room(self, nbytes: int, size: int) -> None:
        # kp ignores the result of vkAllocateMemory and crashes on the missing memory, so it must not come to that.
        limits = self.device.limits
        if size > min(int(limits["allocation"]), _LARGEST - _ALIGNMENT) or self._in_use + size > self._capacity:
            raise OutOfDeviceMemoryError(self._full(nbytes))
        most = int(limits["allocations"]) // 2 - 2  # a tensor takes one allocation a side; the canary and the dummy
        while self._pool and (self._reserved + size > self._capacity or len(self._all) >= most):
            self._evict()
        if len(self._all) >= most:
            raise OutOfDeviceMemoryError(f"{self.device.name} allows kompute {most} buffers at a time")

    def _full(self, nbytes: int) -> str:
        return (
            f"{self.device.name} has no room for {nbytes:,} bytes through kompute: {self._in_use:,} are in use of "
            f"{self._capacity:,}. Free tensors, or work on fewer batches or heads at a time."
        )

    def free(self, buffer: KomputeBuffer) -> None:
        end, buffer.end = buffer.end, None
        if end is not None:
            self._gone.append(end)

    def _sweep(self) -> None:
        while self._gone:
            end = self._gone.popleft()
            if end in self._live:  # else it was given back before
                self._live.remove(end)
                memory = end.memory
                self._in_use -= memory.size
                self._pool[memory.serial] = memory
        while self._pool and self._reserved - self._in_use > _POOLED:
            self._evict()

    def _evict(self) -> None:
        serial, memory = self._pool.popitem(last=False)
        for key in [key for key in self._algorithms if serial in key[1]]:
            self._drop_algorithm(key)
        for key in [key for key in self._recordings if key[1] == serial]:
            self._recordings.pop(key).destroy()
        del self._all[serial]
        self._reserved -= memory.size
        memory.data = None
        memory.tensor.destroy()

    def _held(self, buffer: Buffer, what: str) -> _Memory:
        if not isinstance(buffer, KomputeBuffer) or buffer.end is None:
            raise ValueError(f"{what}: the buffer was freed, or belongs to another runtime")
        return buffer.memory

    def host_array(self, nbytes: int) -> np.ndarray:
        with self._working():
            return super().host_array(nbytes)

    def _range(self, buffer: Buffer, nbytes: int, offset: int, what: str) -> slice:
        if offset < 0 or offset + nbytes > buffer.nbytes:
            raise ValueError(f"{what}: bytes {offset} to {offset + nbytes} of a buffer of {buffer.nbytes}")
        return slice(offset, offset + nbytes)

    def write(self, buffer: Buffer, array: np.ndarray, offset: int = 0, borrow: bool = False) -> None:
        with self._working():
            held = self._held(buffer, "write")
            where = self._range(buffer, array.nbytes, offset, "write")
            if array.nbytes == 0:
                return
            if held.device_newer and array.nbytes < buffer.nbytes:
                self._pull(held)
            if not self._shared:  # said first: after an interruption the copy's remains must not look like the device's
                held.host_newer, held.device_newer = True, False
            target = np.frombuffer(held.data[where], array.dtype).reshape(array.shape)
            np.copyto(target, array)

    def read(self, buffer: Buffer, out: np.ndarray, offset: int = 0) -> None:
        with self._working():
            held = self._held(buffer, "read")
            where = self._range(buffer, out.nbytes, offset, "read")
            if not out.flags.c_contiguous:
                raise ValueError("read: `out` must be C-contiguous")
            if out.nbytes == 0:
                return
            if held.device_newer:
                self._pull(held)
            self._check_alive()
            np.copyto(out.reshape(-1).view(np.uint8), held.data[where])

    def _pull(self, buffer: _Memory) -> None:
        self._copy(buffer, self._kp.OpTensorSyncLocal, "pull")
        buffer.device_newer = False

    def _copy(self, buffer: _Memory, operation, key: str) -> None:
        self._run((key, buffer.serial), lambda: operation([buffer.tensor]))

    def _run(self, key: tuple, operation) -> None:
        """Submit and wait. A recording is kept and submitted again as it is: kp's command pools cannot reset one."""
        sequence = self._recordings.get(key)
        try:
            if sequence is None:
                sequence = self._manager.sequence()
                sequence.record(operation())
                self._recordings[key] = sequence
                if len(self._recordings) > _RECORDINGS:
                    self._recordings.popitem(last=False)[1].destroy()
            else:
                self._recordings.move_to_end(key)
            sequence.eval()
        except RuntimeError as error:
            self._recordings.pop(key, None)
            raise self._meaning(error) from error

    def _meaning(self, error: RuntimeError) -> GrillyError:
        """What an exception of kp's, which is a RuntimeError with Vulkan's result in its text, says in our terms."""
        text = str(error)
        if "DeviceLost" in text:
            self._lost = f"{self.device.name} was lost; what it held is gone. Open a new grilly.Compute(). ({text})"
            return DeviceLostError(self._lost)
        if "OutOf" in text:
            return OutOfDeviceMemoryError(f"{self.device.name}, through kompute: {text}")
        return GrillyError(f"{self.device.name}, through kompute: {text}")

    def _check_alive(self) -> None:
        """See whether the device still copies: kp does not look at the results of submitting and waiting."""
        if not self._unchecked:
            return
        self._beat = (self._beat + 1) & 0xFF
        self._canary.data[0] = self._beat
        self._copy(self._canary, self._kp.OpTensorSyncDevice, "push")
        self._canary.data[0] = ~self._beat & 0xFF
        self._copy(self._canary, self._kp.OpTensorSyncLocal, "pull")
        if self._canary.data[0] != self._beat:
            self._lost = f"{self.device.name} stopped answering; what it held is gone. Open a new grilly.Compute()."
            raise DeviceLostError(self._lost)
        self._unchecked = False

    # -- work ------------------------------------------------------------------------------------------------------

    def program(self, spec: ProgramSpec) -> KomputeProgram:
        """Check the binary. kp makes pipelines for given buffers, so the driver sees it at the first dispatch, which
        raises ShaderError if it is refused there."""
        with self._working():
            programs = self._programs if spec.filling is None else self._filled
            program = programs.get(spec)
            if program is None:
                if spec.subgroup_size not in (None, self.device.subgroup_size):
                    raise UnsupportedError(
                        f"{spec.name}: subgroups of {spec.subgroup_size} were asked for; kompute cannot ask for a "
                        f"size, and the device's own is {self.device.subgroup_size}"
                    )
                if spec.push_bytes % 4 or spec.push_bytes > int(self.device.limits["push_bytes"]):
                    raise UnsupportedError(
                        f"{spec.name}: {spec.push_bytes} bytes of push constants; the device takes multiples of 4 up "
                        f"to {self.device.limits['push_bytes']}"
                    )
                verify(spec)
                program = programs[spec] = KomputeProgram(spec, code_for(self.device, spec), _constants(spec))
            return program

    def dispatch(self, program, bindings, push, groups, seconds: float = 0.0) -> None:
        with self._working():
            spec = program.spec
            label = spec.name
            if (self._programs if spec.filling is None else self._filled).get(spec) is not program:
                raise ValueError(f"{label}: the program belongs to another runtime")
            if len(bindings) != len(spec.access):
                raise ValueError(f"{label}: expected {len(spec.access)} bindings, and received {len(bindings)}")
            if len(push) > spec.push_bytes or len(push) % 4:
                raise ValueError(
                    f"{label}: {len(push)} bytes of push constants; expected a multiple of 4 up to {spec.push_bytes}"
                )
            if any(not 0 <= n <= most for n, most in zip(groups, self.device.limits["groups"], strict=True)):
                raise UnsupportedError(f"{label}: {groups} workgroups; the device takes {self.device.limits['groups']}")
            buffers = [
                self._dummy if binding is None else self._bound(binding, f"{label}: binding {index}")
                for index, binding in enumerate(bindings)
            ]
            if 0 in groups:  # kp would take 0 as "as many as the first tensor has elements"
                return
            for buffer in buffers:
                if buffer.host_newer:
                    self._copy(buffer, self._kp.OpTensorSyncDevice, "push")
                    buffer.host_newer = False
            data = bytes(push).ljust(spec.push_bytes, b"\0")
            key = (spec, tuple(b.serial for b in buffers), tuple(groups))
            algorithm = self._algorithm(key, program, buffers)
            self._unchecked = True
            for buffer, access in zip(buffers, spec.access, strict=True):
                if "w" in access and buffer is not self._dummy:
                    buffer.device_newer = not self._shared  # said first: nothing may come between it and the writing
            self._run((key, data), lambda: self._operation(algorithm, data))

    def _bound(self, binding, what: str) -> _Memory:
        buffer, offset, length = binding
        held = self._held(buffer, what)
        if offset:
            raise UnsupportedError(f"{what}: kompute binds whole buffers, and an offset of {offset} was asked for")
        self._range(buffer, length, offset, what)
        if held.size > int(self.device.limits["storage_range"]):
            raise UnsupportedError(
                f"{what}: kompute binds whole buffers; this one has {held.size:,} bytes and the device binds at most "
                f"{self.device.limits['storage_range']:,}. Use the vulkan runtime or smaller arrays."
            )
        return held

    def _operation(self, algorithm, data: bytes):
        if not data:
            return self._kp.OpAlgoDispatch(algorithm)
        return self._kp.OpAlgoDispatch(algorithm, np.frombuffer(data, np.uint32))

    def _algorithm(self, key: tuple, program: KomputeProgram, buffers: list[_Memory]):
        algorithm = self._algorithms.get(key)
        if algorithm is not None:
            self._algorithms.move_to_end(key)
            return algorithm
        try:
            algorithm = self._manager.algorithm(
                [buffer.tensor for buffer in buffers],
                program.code,
                list(key[2]),
                program.constants,
                np.zeros(program.push_words, np.uint32),
            )
        except RuntimeError as error:
            meaning = self._meaning(error)
            if isinstance(meaning, (DeviceLostError, OutOfDeviceMemoryError)):
                raise meaning from error
            raise ShaderError(f"{program.spec.name}: the driver refused the shader through kompute: {error}") from error
        if not algorithm.is_init():
            raise ShaderError(f"{program.spec.name}: kompute made no pipeline of the shader")
        self._algorithms[key] = algorithm
        if len(self._algorithms) > _ALGORITHMS:
            self._drop_algorithm(next(iter(self._algorithms)))
        return algorithm

    def _drop_algorithm(self, key: tuple) -> None:
        for recording in [name for name in self._recordings if name[0] == key]:
            self._recordings.pop(recording).destroy()
        self._algorithms.pop(key).destroy()

    def flush(self) -> None:
        with self._working():
            self._sweep()

    def synchronize(self) -> None:
        with self._working():
            self._check_alive()
            self._sweep()

    def profile(self, what: str | None) -> list[Timing]:
        with self._working():
            raise UnsupportedError("profile: kompute offers no device timestamps; use the vulkan runtime")

    def memory(self, reset_peak: bool = False) -> MemoryUse:
        with self._working():
            self._sweep()
            if reset_peak:
                self._peak = self._in_use
            return MemoryUse(self._in_use, self._peak, self._reserved)

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._lock._is_owned():
            raise GrillyError(REENTERED)
        with self._lock:
            if self._finalizer.alive:  # also where an interrupt came into an earlier call
                self._close()

    def _close(self) -> None:
        self._closed = CLOSED
        self._recordings.clear()
        self._algorithms.clear()
        self._programs.clear()
        self._filled.clear()
        self._pool.clear()
        self._gone.clear()
        self._all.clear()
        # Buffers that are still alive keep their tensors; the manager takes those tensors' memory with it.
        self._manager.destroy()
        self._finalizer.detach()

    def end(self, patience: float) -> None:
        """See lifetime.Mortal."""
        if self._closed is None and not self._lock._is_owned() and self._lock.acquire(timeout=patience):
            try:
                if self._closed is None:
                    self._close()
            finally:
                self._lock.release()

    def before_fork(self) -> None:
        """See lifetime.Mortal."""
        self._lock.acquire()

    def after_fork(self, child: bool) -> None:
        """See lifetime.Mortal."""
        if not child:
            if self._lock._is_owned():
                self._lock.release()
            return
        self._lock = threading.RLock()
        if self._closed is None:
            self._closed = FORKED
            self._finalizer.detach()
            # One reference too many: kp's objects call the driver when they go, which a child must not do.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(dict(vars(self))))
