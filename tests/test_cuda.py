"""grilly.cuda: memory shared without PyTorch, with a stand-in of CUDA's or HIP's driver (`drivers`)."""

import subprocess
import sys
import types

import numpy as np
import pytest

import children
import drivers
import grilly
import grilly.cuda
from grilly import errors
from grilly.compute.device import exchange
from sharing import ARRAY, Foreign, drop, mappable_or_skip, shown, stand_in


@pytest.fixture(params=[drivers.FakeCuda, drivers.FakeHip])
def shared(request, monkeypatch):
    """A backend that only grilly.cuda opens for exchange, and the stand-in."""
    mappable_or_skip()
    kind = request.param
    with drivers.exporting(True, False) as noted, grilly.Compute(runtime="vulkan") as backend:
        fake, own = stand_in(backend.opened, noted, 0.0, kind)
        for one in (grilly.cuda.Cuda, grilly.cuda.Hip):
            monkeypatch.setattr(one, "open", classmethod(lambda cls, _: opened(cls, fake, own)))
        monkeypatch.setattr(exchange, "_open", grilly.cuda._open)
        if not backend.runtime._parts.device.external.memories:
            pytest.skip(f"{backend.device.name} exports no memory")
        yield backend, fake
        drop()
        backend.close()
        fake.close()


def opened(interface, fake, device):
    if fake.kind is not interface:
        raise errors.UnsupportedError(f"{interface.name}'s driver library was not found")
    return interface(fake, device)


def test_arrays_go_both_ways(shared):
    backend, fake = shared
    assert grilly.cuda.ordinal(backend) == 1
    foreign = Foreign(ARRAY.copy(), (fake.kind.dlpack, 1))
    tensor = grilly.from_dlpack(foreign, device=backend)
    np.testing.assert_array_equal((tensor * 2).numpy(), 2 * ARRAY)
    assert tensor.__dlpack_device__() == (fake.kind.dlpack, 1)
    array = shown(tensor.__dlpack__(stream=-1), tensor.__dlpack_device__())
    fake.stream(0).settle()
    np.testing.assert_array_equal(array, ARRAY)


def test_which_stream_is_the_current_one(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert grilly.cuda._stream(2) == 0
    torch = types.SimpleNamespace(
        cuda=types.SimpleNamespace(is_initialized=lambda: used), _C=types.SimpleNamespace(_cuda_getCurrentRawStream=str)
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    used = False
    assert grilly.cuda._stream(2) == 0
    used = True
    assert grilly.cuda._stream(2) == "2"


def test_why_nothing_is_shared(vulkan_backend, monkeypatch):
    monkeypatch.setattr(exchange, "_open", grilly.cuda._open)
    monkeypatch.setattr(vulkan_backend.opened.home, "exchange", None)
    if vulkan_backend.device.kind != "cpu":
        pytest.skip("CUDA or HIP may have this device")
    with pytest.raises(errors.UnsupportedError, match="no memory that CUDA or HIP can import"):
        grilly.cuda.ordinal(vulkan_backend)
    monkeypatch.setattr(vulkan_backend.opened.home, "exchange", None)
    monkeypatch.setattr(exchange, "_open", None)
    with pytest.raises(BufferError, match="CUDA's, whose memory is not shared: .*import grilly.cuda, or for PyTorch"):
        grilly.from_dlpack(Foreign(ARRAY), device=vulkan_backend)


def test_pytorchs_comes_first():
    """Whichever of the two modules is imported first: it knows PyTorch's current stream."""
    mark = object()
    before = exchange._open
    try:
        exchange.provide(mark)
        exchange.provide(before, instead=False)
        assert exchange._open is mark
    finally:
        exchange.provide(before)


def test_it_needs_no_pytorch():
    code = "import sys, grilly.cuda; assert 'torch' not in sys.modules and grilly.compute.device.exchange._open"
    subprocess.run([sys.executable, "-c", code], check=True, env=children.environment())
