"""grilly.torch on CUDA tensors: over CUDA's stand-in, and where PyTorch has the backend's GPU, the checks of
tools/bench_torch.py."""

import numpy as np
import pytest

from sharing import sharing
from toolbox import tool


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
