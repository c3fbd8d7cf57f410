#!/usr/bin/env python3
"""Is memory shared with PyTorch's CUDA tensors rightly, and what does it cost? Needs PyTorch with CUDA and its GPU.

    python tools/bench_torch.py             # checks, then a table of times
    python tools/bench_torch.py --checks    # checks alone
    python tools/bench_torch.py --only in_turn,memory
    python tools/bench_torch.py --no-timelines

Each check says "ok", or what went wrong, and the next one follows. Times are medians in microseconds: "host", of the
call alone, which does not wait; "done", of a call and the wait for its result; "row", of a call in a row of them that
is waited for once. The status is the number of checks that failed.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import math
import statistics
import sys
import time
import traceback

import numpy as np
import torch
import torch.nn.functional as tF

import grilly
import grilly.functional as F
import grilly.torch
from grilly.compute.backend import default_backend as backend
from grilly.runtime.vulkan.sharing import VulkanSharing
from measured import add_json, write

DEVICE = "cuda"
TURNS = 1000
TIMED = ((1, 8, 128, 64, "float16"), (1, 16, 1024, 64, "float16"), (4, 16, 2048, 128, "float16"),
         (1, 8, 1024, 64, "float32"))  # fmt: skip
CALLS = 200
PATIENCE = 90  # seconds after which a check that hangs ends the run
_checks = []


def check(function):
    """A step of the run, by its docstring."""
    _checks.append(function)
    return function


def exact(q, k, v, causal=False):
    """Attention in float64, with every weight stored."""
    q, k, v = (x.double() for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool, device=DEVICE).tril(), -math.inf)
    return torch.softmax(scores, -1) @ v


def near(found, wanted, bound, what):
    """Complain where two tensors differ by more than ``bound`` of the larger of 1 and the largest number."""
    error = (found.double() - wanted.double()).abs().max().item()
    most = bound * max(1.0, wanted.abs().max().item())
    if not error <= most:
        raise AssertionError(f"{what}: the largest difference is {error:.3g}, more than {most:.3g}")
    return error


def exchange():
    return grilly.torch.cuda._exchange()


class Copies:
    """How many copies were asked of CUDA's driver inside a ``with`` block."""

    def __enter__(self):
        self.count, self._driver = 0, exchange().driver
        self._own = self._driver.copy

        def counted(*arguments):
            self.count += 1
            return self._own(*arguments)

        self._driver.copy = counted
        return self

    def __exit__(self, *error):
        self._driver.copy = self._own


@check
def one_device():
    """the backend's GPU is found in CUDA by its UUID"""
    found = grilly.torch.cuda_device()
    sharing = exchange()._sharing
    return f"{found}, UUID {sharing.uuid.hex()}, {'timelines' if sharing.timelines else 'no timelines: the host waits'}"


@check
def to_torch():
    """torch.from_dlpack of a Tensor is a CUDA tensor over the same bytes"""
    array = np.arange(6000, dtype=np.float32).reshape(60, 100)
    tensor = backend().tensor(array)
    other = torch.from_dlpack(tensor)
    assert other.device.type == DEVICE and other.shape == (60, 100), (other.device, other.shape)
    assert np.array_equal(other.cpu().numpy(), array), "torch reads other numbers"
    other.mul_(2)
    assert np.array_equal(tensor.numpy(), 2 * array), "what torch wrote is not what grilly reads"
    tensor[1:3] = 7.0
    assert (other[1:3] == 7).all() and other[3, 0] == 600, "what grilly wrote is not what torch reads"
    turned = torch.from_dlpack(tensor.T[5:9])
    assert torch.equal(turned, other.T[5:9]) and turned.data_ptr() == other.T[5:9].data_ptr()
    for name in ("float16", "bfloat16", "int64", "bool", "uint8"):
        try:
            small = torch.from_dlpack(tensor[:2].astype("float32").astype(name) if "float" in name else
                                      backend().tensor((array[:2] % 2).astype(name)))  # fmt: skip
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error
        assert str(small.dtype) == f"torch.{name}" and small.device.type == DEVICE, small.dtype


@check
def from_torch():
    """a CUDA tensor of grilly.torch.empty goes in without a copy, another by a copy on the GPU"""
    mine = grilly.torch.empty(300, 40, dtype=torch.float32)
    mine.copy_(torch.randn(300, 40))
    with Copies() as copies:
        tensor = grilly.from_dlpack(mine)
        assert np.array_equal(tensor.numpy(), mine.cpu().numpy())
        assert np.array_equal(grilly.from_dlpack(mine[10:20, ::2]).numpy(), mine[10:20, ::2].cpu().numpy())
        assert copies.count == 0, f"{copies.count} copies of memory that is grilly's"
        other = torch.randn(300, 40, device=DEVICE)
        assert np.array_equal(grilly.from_dlpack(other).numpy(), other.cpu().numpy())
        assert np.array_equal(grilly.torch.from_torch(other[:, 3:9]).numpy(), other[:, 3:9].cpu().numpy())
        assert np.array_equal(grilly.torch.from_torch(other.T).numpy(), other.T.cpu().numpy())
        assert copies.count == 2, f"{copies.count} copies, expected 2"
    assert torch.equal(torch.from_dlpack(tensor), mine)
    tensor += 1.0
    assert torch.equal(torch.from_dlpack(tensor), mine)


@check
def attention():
    """SDPA of CUDA tensors against float64"""
    said = []
    for dtype, bound in ((torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)):
        q, k, v = (torch.randn(2, 4, 333, 64, device=DEVICE).to(dtype) for _ in range(3))
        for causal in (False, True):
            out = grilly.torch.scaled_dot_product_attention(q, k, v, is_causal=causal)
            assert out.device.type == DEVICE and out.dtype == dtype
            error = near(out, exact(q, k, v, causal), bound, f"{dtype}, causal {causal}")
        joined = torch.randn(2, 333, 3, 4, 64, device=DEVICE).to(dtype)
        parts = [part.transpose(1, 2) for part in joined.unbind(2)]  # neither contiguous nor dense
        near(grilly.torch.scaled_dot_product_attention(*parts), exact(*parts), bound, f"{dtype}, parts of one tensor")
        said.append(f"{dtype}: {error:.1e}")
    q, k, v = (torch.randn(2, 4, 50, 64, device=DEVICE) for _ in range(3))
    mask = torch.rand(50, 50, device=DEVICE) < 0.8
    mask[:, 0] = True
    found = grilly.torch.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    near(found, tF.scaled_dot_product_attention(q, k, v, attn_mask=mask), 1e-5, "a boolean mask")
    bias = torch.randn(4, 50, 50, device=DEVICE)
    found = grilly.torch.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    near(found, tF.scaled_dot_product_attention(q, k, v, attn_mask=bias), 1e-5, "a floating mask")
    lengths = torch.tensor([50, 20], dtype=torch.int32, device=DEVICE)
    found = grilly.torch.attention(q, k, v, seqlens_k=lengths)
    near(found[1], exact(q[1], k[1, :, :20], v[1, :, :20]), 1e-5, "lengths on the GPU")
    return ", ".join(said)


@check
def gradients():
    """gradients of CUDA tensors against PyTorch's in float64"""
    for dtype, bound in ((torch.float32, 2e-5), (torch.float16, 1e-2)):
        leaves = [torch.randn(2, 4, 100, 64, device=DEVICE).to(dtype).requires_grad_() for _ in range(3)]
        bias = torch.randn(4, 100, 100, device=DEVICE).to(dtype).requires_grad_()
        out = grilly.torch.scaled_dot_product_attention(*leaves, attn_mask=bias)
        grad = torch.randn_like(out)
        found = torch.autograd.grad(out, (*leaves, bias), grad)
        twins = [leaf.detach().double().requires_grad_() for leaf in (*leaves, bias)]
        wanted = torch.autograd.grad(
            tF.scaled_dot_product_attention(*twins[:3], attn_mask=twins[3]), twins, grad.double()
        )
        for name, one, two in zip(("q", "k", "v", "bias"), found, wanted, strict=True):
            assert one.dtype == dtype and one.device.type == DEVICE
            near(one, two, bound, f"{dtype}, gradient of {name}")


@check
def in_turn():
    """written by torch and read by grilly, written by grilly and read by torch, in turn"""
    size = 1 << 20
    mine = grilly.torch.empty(size, dtype=torch.float32).zero_()
    tensor = grilly.from_dlpack(mine)
    sums = []
    for turn in range(TURNS):
        mine.add_(1.0)
        tensor[...] = tensor * 1.0 + 1.0  # grilly reads what torch wrote, and writes
        if turn % 100 == 0:
            sums.append((turn, mine.sum(dtype=torch.float64)))  # asked before the next turn writes
    assert (mine == 2 * TURNS).all(), f"after {TURNS} turns: {mine.min().item()} to {mine.max().item()}"
    for turn, total in sums:
        assert total.item() == size * 2 * (turn + 1), f"turn {turn}: {total.item() / size}"
    return f"{TURNS} turns over {size * 4 >> 20} MiB"


@check
def fresh_results():
    """results that are dropped while torch still reads them are not overwritten"""
    q = grilly.torch.empty(4, 16, 512, 64, dtype=torch.float16).normal_()
    wanted = grilly.torch.scaled_dot_product_attention(q, q, q).clone()
    totals = []
    for turn in range(200):
        out = grilly.torch.scaled_dot_product_attention(q, q, q)
        totals.append((out != wanted).sum())
        del out
        if turn % 3 == 0:
            backend().tensor(np.full((4, 16, 512, 64), 9, np.float16))  # wants such memory too
    wrong = torch.stack(totals).sum().item()
    assert wrong == 0, f"{wrong} elements were wrong"


@check
def other_streams():
    """the same with work of PyTorch's on two streams of its own"""
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    q = torch.randn(4, 16, 512, 64, device=DEVICE, dtype=torch.float16)
    wanted = grilly.torch.scaled_dot_product_attention(q, q, q).clone()
    torch.cuda.synchronize()
    wrong = []
    for turn in range(100):
        with torch.cuda.stream(streams[turn % 2]):
            mine = q * 1.0
            out = grilly.torch.scaled_dot_product_attention(mine, mine, mine)
            wrong.append((out != wanted).sum())
            del out, mine
    torch.cuda.synchronize()
    wrong = sum(each.item() for each in wrong)
    assert wrong == 0, f"{wrong} elements were wrong"


@check
def lifted():
    """other operations by grilly.torch.lift, compiled code, and patched()"""
    x = torch.randn(64, 256, device=DEVICE)
    softmax, layer = grilly.torch.lift(F.softmax), grilly.torch.lift(grilly.nn.Linear(256, 64, rng=0))
    with torch.no_grad():
        near(softmax(x), torch.softmax(x, -1), 1e-6, "softmax")
        assert layer(x).shape == (64, 64) and layer(x).device.type == DEVICE
    q = torch.randn(2, 4, 64, 64, device=DEVICE)
    with grilly.torch.patched() as report:
        out = tF.scaled_dot_product_attention(q, q, q)
    assert report.calls == 1, report
    near(out, exact(q, q, q), 1e-5, "patched")
    said = torch.library.opcheck(
        torch.ops.grilly.attention.default,
        (q, q, q, *[None] * 12, False, 0.125, 0.0, None, None, True, 128, [], 0.0, 0, True, None, "highest"),
    )
    return ", ".join(f"{name}: {result}" for name, result in said.items())


@check
def memory():
    """memory is given back"""

    def settled():
        gc.collect()
        backend().synchronize()
        torch.cuda.synchronize()
        return backend().memory().in_use

    def work():
        q = torch.randn(4, 16, 1024, 64, device=DEVICE, dtype=torch.float16)
        for _ in range(20):
            out = grilly.torch.scaled_dot_product_attention(q, q, q)
        kept = [torch.from_dlpack(backend().tensor(np.zeros(1000, np.float32))) for _ in range(50)]
        del out, kept

    work()
    before, free = settled(), torch.cuda.mem_get_info()[0]
    for _ in range(10):
        work()
    after = settled()
    assert after == before, f"{after - before:,} bytes of grilly's are still in use"
    lost = free - torch.cuda.mem_get_info()[0]
    assert lost <= 64 << 20, f"{lost:,} bytes of the GPU are gone"

    other = grilly.Compute(runtime="vulkan", device=backend().device.index)
    tensor = other.tensor(np.arange(1000, dtype=np.float32))
    kept = torch.from_dlpack(tensor)
    del tensor
    other.close()
    assert (kept == torch.arange(1000, device=DEVICE)).all(), "a tensor of a backend that was closed"
    del kept, other
    return f"{before:,} bytes in use"


@check
def refusals():
    """errors say what is wrong"""
    with torch.no_grad():
        try:
            grilly.from_dlpack(torch.zeros(3, device=DEVICE), copy=False)
        except BufferError as error:
            assert "copy" in str(error)
        else:
            raise AssertionError("from_dlpack(copy=False) of other memory was not refused")
    tensor = backend().tensor(np.zeros(3, np.float32))
    assert np.from_dlpack(_Host(tensor)).tolist() == [0, 0, 0], "dl_device=(1, 0)"
    for options in ({"dl_device": (13, 0)}, {"dl_device": (1, 0), "copy": False}):
        try:
            tensor.__dlpack__(**options)
        except BufferError:
            continue
        raise AssertionError(f"__dlpack__({options}) was not refused")


class _Host:
    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(dl_device=(1, 0))


# -- times -------------------------------------------------------------------------------------------------------------


def micro(call, wait, calls) -> tuple[float, float, float]:
    """Microseconds of a call: the host's, with the wait for it, and in a row."""
    for _ in range(20):
        call()
    wait()
    host, done = [], []
    for _ in range(calls):
        start = time.perf_counter()
        result = call()
        middle = time.perf_counter()
        wait()
        done.append(time.perf_counter() - start)
        host.append(middle - start)
        del result
    start = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    row = (time.perf_counter() - start) / calls
    return 1e6 * statistics.median(host), 1e6 * statistics.median(done), 1e6 * row


def times() -> list[dict]:
    """Print and give what calls take."""
    results: list[dict] = []
    print(f"\n{'B, H, S, D':22} {'elements':9} {'':34} {'host':>8} {'done':>8} {'row':>8}  us")
    for *shape, dtype in TIMED:
        kind = getattr(torch, dtype)
        torch.manual_seed(0)
        plain = [torch.randn(shape, device=DEVICE).to(kind) for _ in range(3)]
        mine = [grilly.torch.empty(*shape, dtype=kind).copy_(x) for x in plain]
        own = [backend().tensor(x.cpu().numpy()) for x in plain]
        rows = {
            "grilly, its own Tensors": (lambda own=own: F.flash_attention2(*own), backend().synchronize),
            "grilly, CUDA tensors it shares": (
                lambda mine=mine: grilly.torch.scaled_dot_product_attention(*mine), torch.cuda.synchronize
            ),
            "grilly, any CUDA tensors": (
                lambda plain=plain: grilly.torch.scaled_dot_product_attention(*plain), torch.cuda.synchronize
            ),
            "PyTorch": (lambda plain=plain: tF.scaled_dot_product_attention(*plain), torch.cuda.synchronize),
        }  # fmt: skip
        for name, (call, wait) in rows.items():
            try:
                took = micro(call, wait, CALLS)
                found = "".join(f" {value:8.1f}" for value in took)
                seconds = {way: value / 1e6 for way, value in zip(("host", "seconds", "row"), took, strict=True)}
                results.append({"what": name, "shape": shape, "dtype": dtype, **seconds})
            except Exception as error:
                found = f" {type(error).__name__}: {error}"
            print(f"{', '.join(map(str, shape)):22} {dtype:9} {name:34}{found}", flush=True)
    return results + parts()


def parts() -> list[dict]:
    """Print and give what the single steps of a shared call take of the host."""
    found = exchange()
    driver, interop = found.driver, found.interop
    stream = interop.current()
    source = torch.randn(1 << 16, device=DEVICE, dtype=torch.float16)
    target = grilly.torch.empty(1 << 16, dtype=torch.float16)
    tensor = grilly.from_dlpack(target)
    steps = {
        "a signal on the stream": lambda: interop.signal({stream}),
        "a wait on the stream": lambda: interop.wait({stream}, 1),
        "a copy on the GPU": lambda: driver.copy(target.data_ptr(), source.data_ptr(), 1 << 17, stream),
        "a Tensor as a CUDA tensor": lambda: grilly.torch.cuda.give(found, tensor),
        "a CUDA tensor that is shared as a Tensor": lambda: grilly.torch.cuda.taken(found, target),
        "a CUDA tensor copied to a Tensor": lambda: grilly.torch.cuda.taken(found, source),
    }
    if not found._sharing.timelines:
        del steps["a signal on the stream"], steps["a wait on the stream"]
    print()
    results = []
    for name, call in steps.items():
        try:
            host = micro(call, torch.cuda.synchronize, CALLS)[0]
            print(f"{name:42} {host:8.1f} us of the host")
            results.append({"what": name, "host": host / 1e6})
        except Exception as error:
            print(f"{name:42} {type(error).__name__}: {error}")
    backend().synchronize()
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checks", action="store_true", help="no times")
    parser.add_argument("--only", default="", help="names of checks, with commas, and 'times'")
    parser.add_argument("--no-timelines", action="store_true", help="order by waiting, as without semaphores")
    add_json(parser)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("PyTorch has no CUDA here")
        return 77
    if asked.no_timelines:
        own = VulkanSharing.__init__

        def waiting(self, *arguments):
            own(self, *arguments)
            self.timelines = False

        VulkanSharing.__init__ = waiting
    grilly.use(grilly.Compute(runtime="vulkan"))
    device = backend().device
    print(f"{device.name}, {device.driver} {device.driver_version}")
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}")
    torch.backends.cuda.matmul.allow_tf32 = False
    failed = 0
    only = [name for name in asked.only.split(",") if name]
    steps = [step for step in _checks if not only or step.__name__ in only]
    for step in steps:
        start = time.perf_counter()
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            said = step()
            took = time.perf_counter() - start
            print(f"ok      {step.__doc__} ({took:.1f} s){f': {said}' if said else ''}", flush=True)
        except BaseException as error:
            failed += 1
            print(f"FAILED  {step.__doc__}: {type(error).__name__}: {error}", flush=True)
            print("".join(f"        {line}\n" for line in traceback.format_exc().splitlines()[-14:]), flush=True)
            if isinstance(error, KeyboardInterrupt):
                break
        finally:
            faulthandler.cancel_dump_traceback_later()
    if not asked.checks and (not only or "times" in only):
        try:
            write(asked.json, backend(), times())
        except Exception:
            failed += 1
            traceback.print_exc()
    print(f"\n{failed} of {len(steps)} checks failed")
    return failed


if __name__ == "__main__":
    sys.exit(main())
