"""Pipelines of a captured function are made in threads, side by side, and a capture that fails leaves all in order."""

import os
import threading
import time

import numpy as np
import pytest

import faults
from grilly import Compute, ShaderError
from grilly import functional as F
from grilly.runtime.vulkan import threads

REFUSED = -1000012000  # VK_ERROR_INVALID_SHADER_NV
X = np.random.RandomState(0).standard_normal((5, 24)).astype(np.float32)


def several(x):
    """Four programs of the driver's."""
    return F.softmax(F.layer_norm(F.linear(x, x[:, :24]) @ x, (24,)), dim=-1)


class Slow(faults.Faults):
    """A driver whose compiler takes a while, and that says how many pipelines it made at a time and in which thread."""

    seconds = 0.0
    refuses = False

    def _wrapped(self, name, real):
        call = super()._wrapped(name, real)
        if name != "vkCreateComputePipelines":
            return call
        self.now = self.most = 0
        self.makers = []

        def create(*arguments):
            with self._lock:
                self.now += 1
                self.most = max(self.most, self.now)
                self.makers.append(threading.get_ident())
            try:
                time.sleep(self.seconds)
                return self._fail(name, real, arguments, REFUSED) if self.refuses else call(*arguments)
            finally:
                with self._lock:
                    self.now -= 1

        return create


@pytest.fixture
def driver(monkeypatch, vulkan_backend):
    """Such a driver, on a machine with so many processors that there are threads."""
    monkeypatch.setattr(threads, "usable_processors", lambda: 4)
    with faults.between(kind=Slow) as found:
        yield found
        assert not found.misuse and not found.counts()


def test_they_are_made_at_the_same_time(driver):
    with Compute(runtime="vulkan") as backend:
        wanted = np.asarray(several(backend.tensor(X)).numpy())
        assert driver.most == 1 and set(driver.makers) == {threading.get_ident()}
        made = len(driver.makers)
    driver.makers.clear()
    driver.seconds = 0.1
    with Compute(runtime="vulkan") as backend:
        graph = backend.capture(several, X)
        assert len(driver.makers) == made and driver.most >= min(made, 3)
        assert threading.get_ident() not in driver.makers
        np.testing.assert_array_equal(graph(X).numpy(), wanted)
        driver.makers.clear()
        np.testing.assert_array_equal(several(backend.tensor(X)).numpy(), wanted)
        assert not driver.makers, "what a capture made is of use to other calls"


def test_a_capture_that_ends_early_leaves_pipelines_of_use(driver):
    driver.seconds = 0.05

    def fails(x):
        several(x)
        raise KeyError("on purpose")

    with Compute(runtime="vulkan") as backend:
        with pytest.raises(KeyError):
            backend.capture(fails, X)
        found = several(backend.tensor(X)).numpy()  # waits for what is under way
    driver.seconds = 0.0
    with Compute(runtime="vulkan") as backend:
        np.testing.assert_array_equal(found, several(backend.tensor(X)).numpy())


def test_closing_waits(driver):
    driver.seconds = 0.05
    with Compute(runtime="vulkan") as backend:
        with pytest.raises(KeyError):
            backend.capture(lambda x: (several(x), {}[0]), X)
    assert driver.now == 0


def test_a_refused_shader_fails_the_capture_alone(driver):
    with Compute(runtime="vulkan") as backend:
        in_use = backend.memory().in_use
        driver.refuses = True
        with pytest.raises(ShaderError, match="could not compile it"):
            backend.capture(several, X)
        with pytest.raises(ShaderError, match="could not compile it"):
            several(backend.tensor(X))
        driver.refuses = False
        found = several(backend.tensor(X)).numpy()
        np.testing.assert_array_equal(backend.capture(several, X)(X).numpy(), found)
        assert np.isfinite(found).all() and in_use >= 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_between(driver):
    """The parent goes on; what was not begun by then is made when it is needed."""
    driver.seconds = 0.05
    with Compute(runtime="vulkan") as backend:

        def forks(x):
            found = several(x)
            child = os.fork()
            if not child:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            return found

        graph = backend.capture(forks, X)
        np.testing.assert_array_equal(graph(X).numpy(), several(backend.tensor(X)).numpy())


def test_a_thread_that_is_slow_to_forget_keeps_no_pipeline(driver, monkeypatch):
    """A job that is done may be in a thread's hand until long after the device is closed."""
    held, begin = [], threads.Threads.begin

    def keeping(self, job):
        held.append(job)
        begin(self, job)

    monkeypatch.setattr(threads.Threads, "begin", keeping)
    with Compute(runtime="vulkan") as backend:
        backend.capture(several, X)
    assert held and not driver.counts()
