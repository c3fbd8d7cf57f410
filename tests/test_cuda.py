"""Memory shared with CUDA, with a CUDA driver made of Python (`cudas`) over a second Vulkan device: order, lifetime,
errors. With PyTorch's CUDA on the backend's GPU, the checks of tools/bench_torch.py run too."""

import contextlib
import ctypes
import gc
import importlib.util
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import cudas
import grilly
from conftest import open_or_skip
from grilly import errors
from grilly.cuda import capsules
from grilly.cuda.driver import Driver
from grilly.cuda.exchange import CudaExchange
from grilly.runtime.vulkan.external import descriptor_of_memory

TOOLS = Path(__file__).parents[1] / "tools"
A, B = 5, 6  # streams
ARRAY = np.arange(60, dtype=np.float32).reshape(6, 10)


def tool(name):
    if not (TOOLS / f"{name}.py").exists():
        pytest.skip("tools/ is not in an installed package")
    spec = importlib.util.spec_from_file_location(f"{name}_tool", TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Shared:
    """A backend whose memory the stand-in shares."""

    def __init__(self, noted, delay):
        self.backend = grilly.Compute(runtime="vulkan")
        device = self.backend.opened
        uuid = bytes.fromhex(device.info.properties["device_uuid"])
        self.fake = cudas.FakeCuda(device.info, [bytes(16), uuid], delay)
        self.fake.by_descriptor = noted
        self.stream = A
        self.sharing = device.runtime.share()
        self.exchange = device.exchange = CudaExchange(device, Driver(self.fake, self.sharing.uuid), self.current)

    def current(self) -> int:
        return self.stream

    def gate(self, stream=A) -> threading.Event:
        """What the stream waits for before it does what it is given next."""
        event = threading.Event()
        self.fake.stream(stream).give(lambda: event.wait(60))
        return event

    def done(self) -> bool:
        """Whether all that the device was given has run."""
        stream = self.backend.runtime._parts.stream
        stream.poll()
        return stream.completed == stream.serial - 1

    def bytes(self) -> int:
        gc.collect()
        self.backend.synchronize()
        return self.backend.memory().in_use

    def close(self):
        drop()
        self.backend.close()
        self.fake.close()


@contextlib.contextmanager
def sharing(order="timelines", delay=0.0, dedicated=False):
    """``order``: by "timelines", after "a moment" in which the host waits, or by "waiting" alone."""
    open_or_skip("vulkan", lambda: grilly.Compute(runtime="vulkan")).close()
    with cudas.exporting(order != "waiting", dedicated) as noted:
        shared = Shared(noted, delay)
        if order == "timelines":
            shared.exchange.peer.idle = lambda streams, seconds: False
            shared.backend.runtime._parts.stream.finished = lambda serial, seconds: False
        if not shared.backend.runtime._parts.device.external.memories:
            pytest.skip(f"{shared.backend.device.name} exports no memory")
        try:
            yield shared
        finally:
            shared.close()


ORDERS = ["timelines", "a moment", "waiting"]


@pytest.fixture(autouse=True)
def mappable(request):
    """The stand-in reads and writes shared memory through the host, which drivers of GPUs do not let it."""
    if request.node.name != "test_on_cuda":
        with open_or_skip("vulkan", lambda: grilly.Compute(runtime="vulkan")) as backend:
            if backend.device.kind != "cpu":
                pytest.skip(f"the host cannot map memory that {backend.device.name} shares")


@pytest.fixture(params=ORDERS)
def shared(request):
    with sharing(request.param) as made:
        yield made


@pytest.fixture
def timed():
    with sharing() as made:
        yield made


def shown(capsule, device=(2, 1)) -> np.ndarray:
    """What a capsule of the stand-in's device holds, over the same memory."""
    words, name = capsules.opened(capsule)
    assert name == "float32"
    flat = (ctypes.c_float * words.size).from_address(words.__array_interface__["data"][0])
    array = np.ctypeslib.as_array(flat).reshape(words.shape)
    kept.append((words, array))
    return array


kept: list = []  # what capsules gave


@pytest.fixture(autouse=True)
def let_go():
    yield
    kept.clear()
    gc.collect()


def drop() -> None:
    """Let go of what capsules gave."""
    kept.clear()
    gc.collect()


class Foreign:
    """An array of another library of CUDA's."""

    def __init__(self, array, device=(2, 1)):
        self.array, self.device, self.streams = array, device, []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        address = self.array.__array_interface__["data"][0]
        holder = capsules.Holder(address, self.array.shape, self.array.strides, self.array.itemsize, self.array)
        return capsules.make(holder, self.array.dtype, self.device)


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dedicated", [False, True])
def test_exported_memory_is_that_of_another_device(dedicated):
    with sharing(dedicated=dedicated) as shared:
        tensor = shared.backend.tensor(ARRAY)
        piece = tensor._storage.buffer.piece
        given = descriptor_of_memory(shared.backend.runtime._parts.device, piece.block.memory.value)
        other = cudas.Import(shared.backend.device, given.number, piece.block.allocated)
        given.taken()
        try:
            found = np.ctypeslib.as_array((ctypes.c_float * 60).from_address(other.address + piece.start))
            shared.backend.synchronize()
            assert np.array_equal(found, ARRAY.reshape(-1))
            found[:] = 3
            assert (tensor.numpy() == 3).all()
            del found
        finally:
            other.close()


def test_devices_without_an_importer_export_nothing(vulkan_backend):
    """No memory is made to be exported where nothing could import it."""
    external = vulkan_backend.runtime._parts.device.external
    if "nvidia-compiler" in vulkan_backend.device.features:
        pytest.skip("CUDA can import this device's memory")
    assert not external.memories and not external.extensions
    with pytest.raises(errors.UnsupportedError, match="no memory that CUDA can import"):
        vulkan_backend.runtime.share()


def test_a_capsule_shows_the_tensor(shared):
    tensor = shared.backend.tensor(ARRAY)
    assert tensor.__dlpack_device__() == (2, 1)
    array = shown(tensor.__dlpack__(stream=A))
    shared.fake.stream(A).settle()
    assert np.array_equal(array, ARRAY)
    array[:] = -ARRAY
    assert np.array_equal(tensor.numpy(), -ARRAY)
    assert np.array_equal((tensor + 1).numpy(), 1 - ARRAY)
    tensor[2:4] = 9.0
    part = capsules.opened(tensor.T[3:7, ::2].__dlpack__(stream=A))[0]
    assert part.shape == (4, 3) and part.strides == (4, 80)
    assert part.__array_interface__["data"][0] == array.ctypes.data + 12
    shared.fake.stream(A).settle()
    assert (array[2:4] == 9).all() and array[4, 0] == -40
    assert shared.fake.count("cuImportExternalMemory") == 1, "a block is imported once"


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int64", "uint8", "bool"])
def test_types_of_elements(timed, name):
    array = np.array([0, 1, 2, 1]).astype(grilly.compute.device.dtypes.dtype_of(name))
    made = timed.backend.tensor(array)
    words, found = capsules.opened(made.__dlpack__(stream=-1))
    assert found == name and words.itemsize == array.itemsize and words.shape == (4,)
    back = grilly.from_dlpack(Foreign(array), device=timed.backend)
    assert back.dtype == array.dtype and np.array_equal(back.numpy(), array)


def test_where_capsules_are(timed):
    tensor = timed.backend.tensor(ARRAY)
    host = tensor.__dlpack__(dl_device=(1, 0))
    assert np.array_equal(np.from_dlpack(capsules._Host(host)), ARRAY)
    assert timed.fake.count("cuImportExternalMemory") == 0
    own, copy = (capsules.opened(tensor.__dlpack__(stream=-1, copy=c))[0] for c in (None, True))
    assert own.__array_interface__["data"] != copy.__array_interface__["data"]
    for options, words in (
        ({"dl_device": (13, 0)}, "no memory of the device"), ({"dl_device": (2, 0)}, "no memory of the device"),
        ({"dl_device": (1, 0), "copy": False}, "needs a copy"), ({"dl_device": (1, 0), "stream": 4}, "stream is 4"),
    ):  # fmt: skip
        with pytest.raises(BufferError, match=words):
            tensor.__dlpack__(**options)


def test_a_devices_array_goes_in(shared):
    """By a copy on the device, or as it is where the memory is grilly's."""
    backend, fake = shared.backend, shared.fake
    given = Foreign(ARRAY.copy())
    tensor = grilly.from_dlpack(given, device=backend)
    assert np.array_equal(tensor.numpy(), ARRAY) and fake.count("cuMemcpyDtoDAsync_v2") == 1
    assert given.streams == [shared.exchange.peer.own_stream()], "the producer was told the stream of the copy"
    wide = np.arange(200, dtype=np.float32).reshape(10, 20)
    assert np.array_equal(grilly.from_dlpack(Foreign(wide[1::3, 2:9]), device=backend).numpy(), wide[1::3, 2:9])
    with pytest.raises(BufferError, match="copy is False"):
        grilly.from_dlpack(Foreign(ARRAY), device=backend, copy=False)
    with pytest.raises(BufferError, match="on CUDA's device 0, and the backend's GPU is device 1"):
        grilly.from_dlpack(Foreign(ARRAY, (2, 0)), device=backend)
    copies = fake.count("cuMemcpyDtoDAsync_v2")
    mine = shown(tensor.__dlpack__(stream=A))
    for part in (mine, mine[2:5, ::3], mine.T):
        again = grilly.from_dlpack(Foreign(part), device=backend, copy=False)
        assert again._storage is tensor._storage and np.array_equal(again.numpy(), part)
    own = grilly.from_dlpack(Foreign(mine), device=backend, copy=True)
    assert own._storage is not tensor._storage and fake.count("cuMemcpyDtoDAsync_v2") == copies + 1


# -- order -------------------------------------------------------------------------------------------------------------


def test_grilly_waits_for_the_stream(timed):
    """Work on shared memory does not run before what the stream was given; other work does."""
    tensor, other = timed.backend.tensor(ARRAY), timed.backend.tensor(ARRAY)
    array = shown(tensor.__dlpack__(stream=A))
    timed.backend.synchronize()
    (other + 1).numpy()
    gate = timed.gate()
    timed.fake.stream(A).give(lambda: array.__imul__(2))
    (other * 3).numpy()  # which would wait for ever
    result = tensor + 1
    assert not timed.done()
    gate.set()
    assert np.array_equal(result.numpy(), 2 * ARRAY + 1)


def test_the_stream_waits_for_grilly(timed):
    """What a stream is given after a capsule, or after a call on shared memory, runs after grilly's work."""
    tensor = timed.backend.tensor(ARRAY)
    array = shown(tensor.__dlpack__(stream=A))
    gate = timed.gate(A)
    result = tensor * 2
    tensor[...] = 7.0
    found = shown(result.__dlpack__(stream=B))
    seen = []
    timed.fake.stream(B).give(lambda: seen.append(found.copy()))
    timed.fake.stream(A).give(lambda: seen.append(array.copy()))
    assert not timed.done() and not seen
    gate.set()
    timed.fake.stream(B).settle()
    timed.fake.stream(A).settle()
    assert sorted(float(each[1, 1]) for each in seen) == [7.0, 22.0]


@pytest.mark.parametrize("order", ORDERS)
def test_in_turn(order):
    with sharing(order, delay=0.002) as shared:
        tensor = shared.backend.tensor(np.zeros(1000, np.float32))
        array = shown(tensor.__dlpack__(stream=A))
        for turn in range(40):
            shared.stream = (A, B)[turn % 2]
            if turn:  # PyTorch's streams wait for each other by events
                shared.fake.stream((B, A)[turn % 2]).settle()
            shared.fake.stream(shared.stream).give(lambda: array.__iadd__(1))
            tensor[...] = tensor * 1.0 + 1.0
        assert (tensor.numpy() == 80).all()


def test_a_timeline_only_goes_up(timed):
    """Two streams, of which the one that is asked first is late."""
    tensor = timed.backend.tensor(ARRAY)
    shown(tensor.__dlpack__(stream=A))
    gate = timed.gate(A)
    first = tensor + 1
    timed.stream = B
    second = tensor + 2
    gate.set()
    assert np.array_equal(first.numpy(), ARRAY + 1) and np.array_equal(second.numpy(), ARRAY + 2)
    values = [
        (arguments[1][0], arguments[3])
        for name, arguments in timed.fake.calls
        if name == "cuSignalExternalSemaphoresAsync"
    ]
    assert [value for value, _ in values] == sorted({value for value, _ in values}) and {s for _, s in values} == {A, B}


def test_a_graph_is_in_order_too(timed):
    given = timed.backend.tensor(ARRAY)
    with_bias = timed.backend.tensor(np.ones(10, np.float32))
    graph = timed.backend.capture(lambda x: (x + with_bias) * 2, given)
    bias = shown(with_bias.__dlpack__(stream=A))
    graph(given)
    gate = timed.gate()
    timed.fake.stream(A).give(lambda: bias.__imul__(5))
    result = graph(given)
    assert not timed.done()
    gate.set()
    assert np.array_equal(result.numpy(), (ARRAY + 5) * 2)

    def exports(x):
        x.__dlpack__(stream=A)
        return x + 1

    with pytest.raises(errors.CaptureError):
        timed.backend.capture(exports, given)


def test_split_weights_are_not_kept(timed):
    """What is made of a weight's contents is not kept where CUDA may write to it."""
    from grilly.compute.products import kept as weights

    weight = timed.backend.tensor(ARRAY)
    weights.keep(timed.backend.opened, weight, timed.backend.tensor(ARRAY))
    assert weights.find(weight) is not None
    shown(weight.__dlpack__(stream=A))
    assert weights.find(weight) is None
    weights.keep(timed.backend.opened, weight, timed.backend.tensor(ARRAY))
    assert weights.find(weight) is None


# -- lifetime ----------------------------------------------------------------------------------------------------------


def test_memory_comes_back_after_the_streams_work(timed):
    """Memory that a stream may still read is nobody else's; then it is given back."""
    before = timed.bytes()
    tensor = timed.backend.tensor(ARRAY)
    array = shown(tensor.__dlpack__(stream=A))
    place = (tensor._storage.buffer.piece.block, tensor._storage.buffer.piece.start)
    del tensor
    assert timed.bytes() > before, "CUDA has it"
    gate = timed.gate()
    seen = []
    timed.fake.stream(A).give(lambda: seen.append(array.copy()))
    drop()
    others = [timed.backend.tensor(np.full((6, 10), 9, np.float32)) for _ in range(3)]
    assert place not in [(t._storage.buffer.piece.block, t._storage.buffer.piece.start) for t in others]
    gate.set()
    del others
    assert timed.bytes() == before and not timed.exchange.peer._loans and not timed.exchange.peer.gone
    assert np.array_equal(seen[0], ARRAY)


def test_results_take_turns(timed):
    """Repeated calls whose results are dropped use the same memory again, in order with the streams that read them."""
    tensor = timed.backend.tensor(ARRAY)
    shown(tensor.__dlpack__(stream=A))
    seen, places = [], set()
    for turn in range(30):
        result = tensor * float(turn)
        array = shown(result.__dlpack__(stream=A))
        places.add(array.ctypes.data)
        timed.fake.stream(A).give(lambda array=array: seen.append(array[1, 1]))
        del result, array
        kept.pop()
    timed.fake.stream(A).settle()
    assert seen == [11.0 * turn for turn in range(30)]
    assert len(places) <= 4, "each call took memory of its own"


def test_short_memory_is_taken_back_from_loans(timed):
    pool = timed.backend.runtime._parts.pool
    pool._heap = 4 << 20
    for _ in range(6):
        tensor = timed.backend.empty((700_000,), np.float32)
        shown(tensor.__dlpack__(stream=A))
        del tensor
        drop()


def test_arrays_outlive_the_backend(timed):
    tensor = timed.backend.tensor(ARRAY)
    array = shown(tensor.__dlpack__(stream=A))
    timed.backend.close()
    assert np.array_equal(array, ARRAY)
    assert not timed.fake.freed
    del array, tensor
    drop()
    assert len(timed.fake.freed) == 1 and not timed.fake.memories


def test_a_block_that_is_given_back_is_unmapped(timed):
    tensor = timed.backend.empty((20_000_000,), np.float32)  # a block of its own
    shown(tensor.__dlpack__(stream=A))
    assert len(timed.fake.memories) == 1
    del tensor
    drop()
    timed.backend.synchronize()
    timed.backend.empty((30_000_000,), np.float32)
    assert not timed.fake.memories


def test_file_descriptors_are_not_lost():
    def count():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    found = []
    for _ in range(3):
        with sharing() as shared:
            shown(shared.backend.tensor(ARRAY).__dlpack__(stream=A))
            drop()
        found.append(count())
    assert found[0] == found[1] == found[2]


# -- faults ------------------------------------------------------------------------------------------------------------


def opened(fake, uuid):
    return Driver(fake, uuid)


def test_another_gpu_is_refused(vulkan_backend):
    fake = cudas.FakeCuda(vulkan_backend.device, [b"a" * 16, b"b" * 16])
    with pytest.raises(errors.UnsupportedError, match=f"{(b'c' * 16).hex()}.*{(b'a' * 16).hex()}, {(b'b' * 16).hex()}"):
        opened(fake, b"c" * 16)
    assert opened(fake, b"b" * 16).ordinal == 1

    class Old:
        def __getattr__(self, name):
            if name == "cuImportExternalMemory":
                raise AttributeError(name)
            return getattr(fake, name)

    with pytest.raises(errors.UnsupportedError, match="no cuImportExternalMemory"):
        opened(Old(), b"b" * 16)


def test_two_peers_are_refused(timed):
    with pytest.raises(errors.GrillyError, match="another peer"):
        CudaExchange(timed.backend.opened, timed.exchange.driver, timed.current)


@pytest.mark.parametrize(
    "function", ["cuImportExternalMemory", "cuExternalMemoryGetMappedBuffer", "cuWaitExternalSemaphoresAsync",
                 "cuSignalExternalSemaphoresAsync", "cuMemcpyDtoDAsync_v2", "cuStreamSynchronize", "cuStreamCreate"]
)  # fmt: skip
def test_a_call_of_cudas_that_fails_takes_nothing_with_it(timed, function):
    before = timed.bytes()

    def work():
        tensor = timed.backend.tensor(ARRAY)
        shown(tensor.__dlpack__(stream=B))
        other = grilly.from_dlpack(Foreign(ARRAY.copy()), device=timed.backend)
        result = tensor + other
        values = result.numpy()
        drop()
        return values

    once = function.startswith(("cuImport", "cuExternalMemory", "cuStreamCreate"))
    codes = ((1, errors.GrillyError), (cudas.OUT_OF_MEMORY, errors.OutOfDeviceMemoryError))
    for code, error in codes[: 1 if once else 2]:
        timed.fake.failing[function] = code
        with pytest.raises(error, match=f"{function}: CUDA_ERROR_OF_THE_STAND_IN: made on purpose"):
            work()
        assert not timed.fake.failing
        drop()
        assert np.array_equal(work(), 2 * ARRAY)
        assert timed.bytes() == before


@pytest.mark.parametrize("function", ["cuImportExternalSemaphore", "cuDevicePrimaryCtxRetain"])
def test_sharing_that_cannot_begin_can_begin_later(function):
    open_or_skip("vulkan", lambda: grilly.Compute(runtime="vulkan")).close()
    with cudas.exporting(True) as noted, grilly.Compute(runtime="vulkan") as backend:
        device = backend.opened
        uuid = bytes.fromhex(device.info.properties["device_uuid"])
        fake = cudas.FakeCuda(device.info, [uuid])
        fake.by_descriptor = noted
        fake.failing[function] = 1
        with pytest.raises(errors.GrillyError, match=function):
            CudaExchange(device, Driver(fake, uuid), lambda: A)
        assert np.array_equal((backend.tensor(ARRAY) + 1).numpy(), ARRAY + 1)
        device.exchange = CudaExchange(device, Driver(fake, uuid), lambda: A)
        tensor = backend.tensor(ARRAY)
        array = shown(tensor.__dlpack__(stream=A))
        fake.stream(A).settle()
        assert np.array_equal(array, ARRAY)
        del array
        drop()
        device.exchange = None
    fake.close()


@pytest.mark.parametrize("order", ["timelines", "waiting"])
def test_interrupts(order):
    """An interrupt at any point of a shared call: the next call is right, and no memory is lost."""
    points = tool("interrupts").Points(str(Path(grilly.__file__).parent))

    def stop():
        raise KeyboardInterrupt

    with sharing(order) as shared:
        tensor = shared.backend.tensor(ARRAY)
        array = shown(tensor.__dlpack__(stream=A))
        foreign = Foreign(np.ones((6, 10), np.float32))
        before = shared.bytes()

        def work():
            other = grilly.from_dlpack(foreign, device=shared.backend)
            result = (tensor + other) * 2.0
            return result.__dlpack__(stream=A)

        def looked(capsule):
            words = capsules.opened(capsule)[0]
            flat = (ctypes.c_float * 60).from_address(words.__array_interface__["data"][0])
            shared.fake.stream(A).settle()
            return np.array(flat)

        for _ in range(3):
            assert np.array_equal(looked(work()), 2 * ARRAY.reshape(-1) + 2)
        count = points.count(work)
        wrong = []
        for at in range(1, count + 1, max(1, count // 60)):
            with contextlib.suppress(KeyboardInterrupt):
                points.run(work, at, stop)
            if not np.array_equal(looked(work()), 2 * ARRAY.reshape(-1) + 2):
                wrong.append((at, "values"))
            if shared.bytes() != before:
                wrong.append((at, f"{shared.bytes() - before} bytes"))
        assert not wrong
        assert count > 200 and np.array_equal(array, ARRAY)
        del array
        drop()


# -- PyTorch -----------------------------------------------------------------------------------------------------------


def left_out(registry, item):
    if "on_cuda" not in item.name:
        return None
    import torch

    return None if torch.cuda.is_available() else "PyTorch has no CUDA here"


@pytest.mark.needs("torch")
@pytest.mark.parametrize("order", ["a moment", "waiting"])
def test_pytorch_over_the_stand_in(order, monkeypatch):
    """The way of CUDA tensors through grilly.torch, with tensors of the CPU that say that they are CUDA's."""
    import torch

    import grilly.torch
    from grilly.torch import cuda

    with sharing(order) as shared:
        backend, exchange = shared.backend, shared.exchange
        exchange.dlpack_device, exchange.driver.ordinal, shared.stream = (1, 0), None, 0
        # PyTorch's work here is done when its functions return, so what the stream waits for must be, too.
        waited = exchange.driver.wait
        monkeypatch.setattr(exchange.driver, "wait", lambda *given: (waited(*given), exchange.driver.settle(given[2])))
        copied = exchange.driver.copy
        monkeypatch.setattr(exchange.driver, "copy", lambda *given: (copied(*given), exchange.driver.settle(given[3])))
        monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        former = grilly.use(backend)
        try:
            torch.manual_seed(0)
            plain = [torch.randn(1, 2, 17, 16) for _ in range(3)]
            wanted = torch.softmax(plain[0].double() @ plain[1].double().mT / 4, -1) @ plain[2].double()
            mine = [cuda.give(exchange, backend.empty((1, 2, 17, 16), np.float32)).copy_(x) for x in plain]
            apart = [torch.stack([x, x], -1)[..., 0] for x in plain]  # with gaps
            copies = shared.fake.count("cuMemcpyDtoDAsync_v2")
            for given in (mine, mine, apart, plain, plain):
                out = grilly.torch.scaled_dot_product_attention(*given)
                assert (out - wanted).abs().max() < 1e-5
            assert shared.fake.count("cuMemcpyDtoDAsync_v2") == copies, "known calls copy into memory that is kept"
            with torch.inference_mode():
                assert (grilly.torch.scaled_dot_product_attention(*plain) - wanted).abs().max() < 1e-5
            bias = torch.zeros(17, 17)
            bias[:, 9:] = -torch.inf
            q, k, v = (x.double() for x in plain)
            half = torch.softmax(q @ k[..., :9, :].mT / 4, -1) @ v[..., :9, :]
            for options in ({"attn_mask": bias}, {"attn_mask": bias == 0}):
                out = grilly.torch.scaled_dot_product_attention(*plain, **options)
                assert (out - half).abs().max() < 1e-5
            assert shared.fake.count("cuMemcpyDtoDAsync_v2") > copies
            leaves = [x.clone().requires_grad_() for x in plain]
            twins = [x.double().requires_grad_() for x in plain]
            found = torch.autograd.grad(grilly.torch.scaled_dot_product_attention(*leaves).sum(), leaves)
            other = torch.softmax(twins[0] @ twins[1].mT / 4, -1) @ twins[2]
            for one, two in zip(found, torch.autograd.grad(other.sum(), twins), strict=True):
                assert (one - two).abs().max() < 1e-5
            softmax = grilly.torch.lift(grilly.functional.softmax)
            assert (softmax(plain[0]) - plain[0].softmax(-1)).abs().max() < 1e-6
            assert np.array_equal(grilly.torch.from_torch(apart[1]).numpy(), plain[1].numpy())
            del mine, out, found
        finally:
            grilly.use(former)
            exchange.staged.clear()


@pytest.mark.needs("torch")
def test_on_cuda(vulkan_backend):
    """All that tools/bench_torch.py looks at, on PyTorch's own CUDA."""
    import torch

    import grilly.torch  # noqa: F401

    script = tool("bench_torch")
    former = grilly.use(vulkan_backend)
    torch.manual_seed(0)
    try:
        for step in script._checks:
            step()
    finally:
        grilly.use(former)
