"""A sample of the fault lane (tools/inject_faults.py); what its faulty driver (`faults`) notices; and forks."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import faults
import grilly
import scenarios
from children import environment
from conftest import open_or_skip
from test_processes import child_opens, needs_fork, run, runtime_name

TOOL = Path(__file__).parents[2] / "tools/inject_faults.py"
here = pytest.mark.skipif(not TOOL.exists(), reason="tools/inject_faults.py is not in an installed package")


@pytest.fixture
def vulkan():
    """Nothing, where the vulkan runtime opens."""
    open_or_skip("vulkan", lambda: grilly.Compute(runtime="vulkan")).close()


def lane(*options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(TOOL), *options], env=environment(), capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@here
def test_a_sample_of_the_lane(vulkan):
    """Each position of a few calls; tools/lanes.sh runs the rest."""
    assert "0 problems" in lane("--seconds", "15", "--jobs", "1", "--scenario", "transfers")


@here
def test_a_sample_of_the_lane_with_kompute():
    open_or_skip("kompute", lambda: grilly.Compute(runtime="kompute")).close()
    assert "0 problems" in lane("--seconds", "8", "--jobs", "1", "--scenario", "transfers", "--runtime", "kompute")


@pytest.mark.parametrize("name", [n for n in scenarios.SCENARIOS if n not in scenarios.LARGE])
@pytest.mark.parametrize("bus", [False, True], ids=["mapped", "bus"])
def test_without_a_fault_nothing_is_left(vulkan, name, bus):
    """Nor is the driver misused; and a scenario gives the same bits every time."""
    if bus:
        skip_unless_mapped()
    with faults.between(bus) as driver:
        with grilly.Compute(runtime="vulkan") as backend:
            first, second, third = (scenarios.SCENARIOS[name](backend) for _ in range(3))
            assert driver.counts()["Device"] == 1
        assert driver.counts() == {} and driver.misuse == []
    for a, b, c in zip(first, second, third, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


def skip_unless_mapped():
    """The stand-in for a bus hides memory that the host addresses, so there must be some of the kind."""
    kind = grilly.devices()[0].kind
    if kind != "cpu":
        pytest.skip("only a processor's memory can be shown as one behind a bus")


@pytest.mark.parametrize("bus", [False, True], ids=["mapped", "bus"])
@pytest.mark.parametrize("largest", [1 << 20, 5 << 20, 40 << 20])
def test_small_blocks_where_large_ones_cannot_be_had(vulkan, largest, bus):
    """A driver that gives no 64 MiB at a time may give less."""
    if bus:
        skip_unless_mapped()
    with faults.between(bus, faults.Little) as driver:
        with grilly.Compute(runtime="vulkan") as backend:
            driver.largest = largest
            x = scenarios.arrays(500)
            np.testing.assert_array_equal(backend.tensor(x).numpy(), x)
            right = scenarios.SCENARIOS["attention"](backend)
            with pytest.raises(grilly.OutOfDeviceMemoryError):
                backend.tensor(np.zeros(largest // 4 + 4096, np.float32))
            for a, b in zip(scenarios.SCENARIOS["attention"](backend), right, strict=True):
                np.testing.assert_array_equal(a, b)
        assert driver.counts() == {}


def fail_at(driver, call: str, code: int, work, tries: int = 50):
    """Run ``work`` with the first ``call`` in it failing; again until there was one, as runs differ in their calls."""
    for _ in range(tries):
        driver.arm(1, code)
        driver.only = call
        try:
            work()
        finally:
            driver.only = None
            failed = driver.failed
            driver.arm()
        if failed:
            return
    raise AssertionError(f"{call} was never called")


MAKING = ["vkCreateShaderModule", "vkCreateComputePipelines", "vkCreatePipelineLayout", "vkCreateDescriptorSetLayout"]


@pytest.mark.parametrize("call", MAKING)
@pytest.mark.parametrize("code", faults.MEMORY, ids=["host", "device"])
def test_memory_that_is_short_while_a_pipeline_is_made(vulkan, call, code):
    """It is no fault of the shader's, and the next attempt may have it."""
    x = scenarios.arrays(5, 7)
    with faults.between() as driver:
        with grilly.Compute(runtime="vulkan") as backend:
            tensor = backend.tensor(x)
            with pytest.raises(grilly.OutOfDeviceMemoryError):
                fail_at(driver, call, code, lambda: tensor.astype("float16").numpy())
            np.testing.assert_array_equal(tensor.astype("float16").numpy(), x.astype(np.float16))
        assert driver.counts() == {} and driver.misuse == []


def test_a_shader_that_the_driver_refuses(vulkan):
    with faults.between() as driver, grilly.Compute(runtime="vulkan") as backend:
        tensor = backend.tensor(scenarios.arrays(5, 7))
        with pytest.raises(grilly.ShaderError):
            fail_at(driver, "vkCreateComputePipelines", -1000012000, lambda: tensor.astype("float16").numpy())


@pytest.mark.parametrize("call", ["vkQueueSubmit", "vkGetFenceStatus", "vkWaitForFences"])
def test_a_lost_device_stays_lost(vulkan, call):
    """Every later use says so, arrays of host memory stay, and closing leaves nothing."""
    with faults.between() as driver:
        backend = grilly.Compute(runtime="vulkan")
        before = scenarios.Before(backend)
        with pytest.raises(grilly.DeviceLostError):
            fail_at(driver, call, faults.LOST, lambda: scenarios.SCENARIOS["attention"](backend))
        for name, read in before.parts().items():
            if name != "host":
                with pytest.raises(grilly.DeviceLostError):
                    read()
        np.testing.assert_array_equal(before.host, scenarios.arrays(50, 9, seed=20))
        for use in (backend.synchronize, lambda: backend.tensor(scenarios.arrays(3)), backend.memory):
            with pytest.raises(grilly.DeviceLostError):
                use()
        del before, read
        backend.close()
        assert driver.counts() == {} and driver.misuse == []
        with grilly.Compute(runtime="vulkan") as other:
            scenarios.SCENARIOS["attention"](other)


def test_a_submission_that_fails_loses_nothing(vulkan):
    """Nor does it raise twice: the work that was recorded is submitted when the driver can again."""
    x = scenarios.arrays(30, 40)
    for call, code in (("vkQueueSubmit", -2), ("vkEndCommandBuffer", -1), ("vkAllocateDescriptorSets", -2),
                       ("vkBeginCommandBuffer", -1), ("vkResetFences", -2)):  # fmt: skip
        for bus in (False, True) if grilly.devices()[0].kind == "cpu" else (False,):
            with faults.between(bus) as driver:
                with grilly.Compute(runtime="vulkan") as backend:
                    first, want = backend.tensor(x).astype("float16"), x.astype(np.float16)

                    def later(backend=backend, want=want):
                        np.testing.assert_array_equal(backend.tensor(x).astype("float16").numpy(), want)

                    with contextlib.suppress(grilly.OutOfDeviceMemoryError):  # or it gets round it, and is right
                        fail_at(driver, call, code, later)
                    np.testing.assert_array_equal(first.numpy(), want, err_msg=call)
                    later()
                assert driver.counts() == {} and driver.misuse == [], call


def test_time_stamps_that_were_not_submitted_are_forgotten(vulkan):
    """They belong to a slot that may come to serve a submission without any."""
    with faults.between() as driver, grilly.Compute(runtime="vulkan") as backend:
        if "timestamps" not in backend.runtime.features:
            pytest.skip("the device has no time stamps")
        stream, x = backend.runtime._parts.stream, backend.tensor(scenarios.arrays(30, 40))

        def two() -> None:
            """Two submissions, the second before the first is known to be over: each has a slot."""
            poll, stream.poll = stream.poll, lambda: None
            try:
                for _ in range(2):
                    x.astype("float16")
                    stream.flush()
            finally:
                stream.poll = poll
            backend.synchronize()

        two()
        two()
        if len(stream._slots) != 2 or stream._idle[-1] is stream._slots[-1]:
            two()  # so that the next to serve is not the one that comes first after an error
        backend.runtime.profile("dispatch")
        driver.only = "vkQueueSubmit"
        driver.arm(1, faults.DEVICE)
        with contextlib.suppress(grilly.OutOfDeviceMemoryError):
            x.astype("float16")
        assert driver.failed
        driver.only = None
        assert len(backend.runtime.profile(None)) == 1
        two()
        two()
        assert backend.runtime.profile("dispatch") == []


# -- the faulty driver ------------------------------------------------------------------------------------------------


def test_every_call_of_the_runtime_that_returns_a_result_is_known():
    """Found in the sources: what is not in the table could never fail."""
    import re

    from vulkan import ffi, lib

    called = set()
    for module in faults.modules():
        called |= set(re.findall(r"\blib\.(vk[A-Z]\w+)", Path(module.__file__).read_text()))
    assert len(called) > 30
    results = {name for name in called if ffi.typeof(getattr(lib, name)).result.cname == "enum VkResult"}
    results |= {name for name in called if ffi.typeof(getattr(lib, name)).result.cname == "VkResult"}
    assert results and results <= set(faults.CODES), sorted(results - set(faults.CODES))


def test_the_driver_notices_misuse(vulkan):
    from vulkan import ffi

    with faults.between() as driver:
        with grilly.Compute(runtime="vulkan") as backend:
            device = backend.runtime._parts.device.handle
            fence = ffi.new("VkFence*")
            info = ffi.new("VkFenceCreateInfo*", {"sType": 8})
            assert driver.vkCreateFence(device, info, ffi.NULL, fence) == 0
            assert driver.counts()["Fence"] >= 1
            driver.vkDestroyFence(device, fence[0], ffi.NULL)
            driver.vkDestroyFence(device, fence[0], ffi.NULL)
            assert driver.misuse == ["vkDestroyFence of what is not there"]


def test_the_driver_fails_where_it_is_told_to(vulkan):
    from vulkan import ffi

    with faults.between() as driver:
        with grilly.Compute(runtime="vulkan") as backend:
            device, fence = backend.runtime._parts.device.handle, ffi.new("VkFence*")
            info = ffi.new("VkFenceCreateInfo*", {"sType": 8})
            driver.arm(2, faults.HOST)
            found = []
            for _ in range(3):
                found.append(driver.vkCreateFence(device, info, ffi.NULL, fence))
                if found[-1] == 0:
                    driver.vkDestroyFence(device, fence[0], ffi.NULL)
            assert found == [0, faults.HOST, 0] and driver.failed == "vkCreateFence"
            assert driver.misuse == []


# -- forks ------------------------------------------------------------------------------------------------------------


#: Fixtures of another file, found by their names here.
FIXTURES = child_opens, runtime_name


@needs_fork
def test_an_interrupt_while_a_fork_waits_for_a_lock(runtime_name, child_opens):
    """Whatever it ends, no backend stays locked."""
    said = run(
        runtime_name,
        """
        import signal
        from grilly.runtime import lifetime
        first()
        one = grilly.compute.backend.default_backend()
        backends = [one, grilly.Compute(runtime=one.runtime.name)]
        held = list(lifetime._open)[1]
        begun = threading.Event()
        def call_of_another_thread():
            with held._lock:
                begun.set()
                time.sleep(1.5)
        thread = threading.Thread(target=call_of_another_thread)
        thread.start()
        begun.wait()
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        sys.unraisablehook = lambda told: None
        try:
            if not (pid := os.fork()):
                os._exit(0)
            os.waitpid(pid, 0)
            time.sleep(0.5)
        except KeyboardInterrupt:
            pass
        thread.join()
        faulthandler.cancel_dump_traceback_later()
        done = []
        def use():
            done.extend(bool((b.tensor(np.ones(3, np.float32)).numpy() == 1).all()) for b in backends)
        use()
        other = threading.Thread(target=use, daemon=True)
        other.start()
        other.join(20)
        print(done)
        """,
    )
    assert said.strip() == "[True, True, True, True]"
