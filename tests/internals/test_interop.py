"""Memory shared with CUDA or HIP, with drivers made of Python (`drivers`) over a second Vulkan device: what capsules
show and what comes in by them, in which order both sides work, and how long it lives. The drivers' own side, errors and
interrupts: test_peer_drivers.py."""

import ctypes
import gc
import os

import numpy as np
import pytest

import drivers
import grilly
from grilly import errors
from grilly.compute.device import capsules
from grilly.runtime.vulkan.external import descriptor_of_memory, importable
from sharing import ARRAY, ORDERS, A, B, Foreign, drop, kept, sharing, shown
from toolbox import tool


@pytest.fixture(params=[*ORDERS, "hip"])
def shared(request):
    with sharing(request.param) as made:
        yield made


@pytest.fixture
def timed():
    with sharing() as made:
        yield made


@pytest.mark.parametrize("dedicated", [False, True])
def test_exported_memory_is_that_of_another_device(dedicated):
    with sharing(dedicated=dedicated) as shared:
        tensor = shared.backend.tensor(ARRAY)
        chunk = tensor._storage.buffer.suballocation
        given = descriptor_of_memory(shared.backend.runtime._parts.device, chunk.block.memory.value)
        other = drivers.Import(shared.backend.device, given.number, chunk.block.allocated)
        given.taken()
        try:
            found = np.ctypeslib.as_array((ctypes.c_float * 60).from_address(other.address + chunk.start))
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
    if importable(vulkan_backend.device):
        pytest.skip("CUDA or HIP can import this device's memory")
    assert not external.memories and not external.extensions
    with pytest.raises(errors.UnsupportedError, match="no memory that CUDA or HIP can import"):
        vulkan_backend.runtime.share()


def test_a_capsule_shows_the_tensor(shared):
    tensor = shared.backend.tensor(ARRAY)
    device = (shared.fake.kind.dlpack, 1)
    assert tensor.__dlpack_device__() == device
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
    assert shared.fake.count("import memory") == 1, "a block is imported once"


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
    assert timed.fake.count("import memory") == 0
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
    device = shared.exchange.dlpack_device
    given = Foreign(ARRAY.copy(), device)
    tensor = grilly.from_dlpack(given, device=backend)
    assert np.array_equal(tensor.numpy(), ARRAY) and fake.count("copy") == 1
    assert given.streams == [shared.exchange.interop.own_stream()], "the producer was told the stream of the copy"
    wide = np.arange(200, dtype=np.float32).reshape(10, 20)
    assert np.array_equal(grilly.from_dlpack(Foreign(wide[1::3, 2:9], device), device=backend).numpy(), wide[1::3, 2:9])
    with pytest.raises(BufferError, match="copy is False"):
        grilly.from_dlpack(Foreign(ARRAY, device), device=backend, copy=False)
    for other in ((device[0], 0), (12 - device[0], 1)):
        with pytest.raises(BufferError, match="on the device .* and the backend's GPU is (CUDA|HIP)'s device"):
            grilly.from_dlpack(Foreign(ARRAY, other), device=backend)
    copies = fake.count("copy")
    mine = shown(tensor.__dlpack__(stream=A))
    for part in (mine, mine[2:5, ::3], mine.T):
        again = grilly.from_dlpack(Foreign(part, device), device=backend, copy=False)
        assert again._storage is tensor._storage and np.array_equal(again.numpy(), part)
    own = grilly.from_dlpack(Foreign(mine, device), device=backend, copy=True)
    assert own._storage is not tensor._storage and fake.count("copy") == copies + 1


# -- order: neither side's work begins before what was given first has run --------------------------------------------


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


@pytest.mark.parametrize("order", [*ORDERS, "hip"])
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
    from grilly.compute.matmul import split_weights as weights

    weight = timed.backend.tensor(ARRAY)
    weights.keep(timed.backend.opened, weight, timed.backend.tensor(ARRAY))
    assert weights.find(weight) is not None
    shown(weight.__dlpack__(stream=A))
    assert weights.find(weight) is None
    weights.keep(timed.backend.opened, weight, timed.backend.tensor(ARRAY))
    assert weights.find(weight) is None


# -- lifetime: until the streams have done what they were given, and no longer ----------------------------------------


def test_memory_comes_back_after_the_streams_work(timed):
    """Memory that a stream may still read is nobody else's; then it is given back."""
    before = timed.bytes()
    tensor = timed.backend.tensor(ARRAY)
    array = shown(tensor.__dlpack__(stream=A))
    place = (tensor._storage.buffer.suballocation.block, tensor._storage.buffer.suballocation.start)
    del tensor
    assert timed.bytes() > before, "CUDA has it"
    gate = timed.gate()
    seen = []
    timed.fake.stream(A).give(lambda: seen.append(array.copy()))
    drop()
    others = [timed.backend.tensor(np.full((6, 10), 9, np.float32)) for _ in range(3)]
    assert place not in [(t._storage.buffer.suballocation.block, t._storage.buffer.suballocation.start) for t in others]
    gate.set()
    del others
    assert timed.bytes() == before and not timed.exchange.interop._loans and not timed.exchange.interop.gone
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


@pytest.mark.parametrize("order", ["timelines", "hip"])
def test_file_descriptors_are_not_lost(order):
    def count():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    found = []
    for _ in range(3):
        with sharing(order) as shared:
            shown(shared.backend.tensor(ARRAY).__dlpack__(stream=A))
            drop()
        found.append(count())
    assert found[0] == found[1] == found[2]


# -- grilly.torch on CUDA's tensors -----------------------------------------------------------------------------------


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
            copies = shared.fake.count("copy")
            for given in (mine, mine, apart, plain, plain):
                out = grilly.torch.scaled_dot_product_attention(*given)
                assert (out - wanted).abs().max() < 1e-5
            assert shared.fake.count("copy") == copies, "known calls copy into memory that is kept"
            with torch.inference_mode():
                assert (grilly.torch.scaled_dot_product_attention(*plain) - wanted).abs().max() < 1e-5
            bias = torch.zeros(17, 17)
            bias[:, 9:] = -torch.inf
            q, k, v = (x.double() for x in plain)
            half = torch.softmax(q @ k[..., :9, :].mT / 4, -1) @ v[..., :9, :]
            for options in ({"attn_mask": bias}, {"attn_mask": bias == 0}):
                out = grilly.torch.scaled_dot_product_attention(*plain, **options)
                assert (out - half).abs().max() < 1e-5
            assert shared.fake.count("copy") > copies
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
@pytest.mark.parametrize(("version", "name"), [(None, "CUDA"), ("6.2.41133", "HIP")])
def test_which_driver_pytorch_is_built_for(version, name, monkeypatch, vulkan_backend):
    """PyTorch for ROCm calls its devices "cuda" too."""
    import torch

    from grilly import errors
    from grilly.torch import cuda

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.version, "hip", version)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda ordinal: 40 + ordinal, raising=False)
    opened = []
    monkeypatch.setattr(cuda, "open_exchange", lambda device, kind, current: opened.append((kind.name, current(2)())))
    cuda._open(vulkan_backend.opened)
    assert opened == [(name, 42)]
    with pytest.raises(errors.UnsupportedError):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        cuda._open(vulkan_backend.opened)


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
