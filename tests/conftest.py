"""Fixtures that open devices, and which tests a run takes.

A test of behaviour takes

- ``backend``: a ``grilly.Compute``; the test runs once with each runtime,
- ``vulkan_backend``: one with the vulkan runtime,
- ``default`` or ``by_default``: ``vulkan_backend`` or ``backend``, on which runs what is not told a backend,

and uses what docs/api documents. It may import the helpers beside this file, and those in internals/helpers, which look
inside grilly for it: `kernels` above all, which chooses kernels, limits and plans. Tests in internals/ also take
``runtime``, a bare Runtime, ``vulkan``, and ``across_a_bus``. test_interface.py checks this.

Where a runtime cannot be opened its tests are left out, unless ``GRILLY_REQUIRE_RUNTIMES`` (say, ``vulkan,kompute``)
names it: then they fail. What else this machine cannot run is left out too: see `leftout`.
"""

import functools
import gc
import time
from collections import Counter

import pytest

import backends
import counts
import leftout
import selection
from leftout import REQUIRED

RUNTIMES = ("vulkan", "kompute")
_causes: dict[str, str] = {}
_LEFT_OUT = pytest.StashKey[Counter]()
_OF_ALL = pytest.StashKey[tuple]()
_TOO_LATE = "the time was over (--until)"


def pytest_addoption(parser):
    parser.addoption("--devices-only", action="store_true", help="leave out the tests that take no fixture of a device")
    parser.addoption("--every", type=int, default=1, metavar="N", help="of each test's cases only every N-th")
    parser.addoption("--turn", type=int, default=0, metavar="K", help="with --every: from the K-th case on")
    parser.addoption("--short", action="store_true", help="only what a short run takes; see `selection`")
    parser.addoption("--rest", metavar="K/N", help="only the K-th of N shares of what a short run leaves out")
    parser.addoption("--until", type=int, metavar="SECONDS", help="since 1970: no test begins after them")


def pytest_configure(config):
    config.addinivalue_line("markers", "long(why): not in a short run")
    config.addinivalue_line("markers", "needs(package): leave the test out where the package is not installed")


def pytest_ignore_collect(collection_path, config):
    return True if config.getoption("--short") and selection.is_internal(collection_path) else None


def pytest_collection_modifyitems(config, items):
    if config.getoption("--devices-only"):
        _keep(config, items, [i for i in items if {"runtime", "backend", "vulkan_backend"} & set(i.fixturenames)])
    kept, _, config.stash[_LEFT_OUT] = leftout.sort_out(items)
    _keep(config, items, kept)
    if config.getoption("--short") or config.getoption("--rest"):
        taken = selection.taken(items, config.getoption("--rest"))
        config.stash[_OF_ALL] = (len(taken), len(items))
        _keep(config, items, taken)
    if config.getoption("--every") > 1:
        _keep(config, items, selection.every(items, config.getoption("--every"), config.getoption("--turn")))


def _keep(config, items, kept):
    """Take these of the collected tests, and tell pytest that the others are not run."""
    config.hook.pytest_deselected(items=list(set(items) - set(kept)))
    items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    until = item.config.getoption("--until")
    if until is not None and time.time() >= until:
        pytest.skip(_TOO_LATE)


def pytest_collection_finish(session):
    # Tests of what is given back collect garbage: a second each time, were it looked for among tests and libraries too.
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):  # of pytest-xdist, whose workers collect and whose controller reports
        session.config.workeroutput["left_out"] = dict(session.config.stash.get(_LEFT_OUT, {}))
        session.config.workeroutput["of_all"] = session.config.stash.get(_OF_ALL, None)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    output = getattr(node, "workeroutput", {})
    node.config.stash[_LEFT_OUT] = Counter(output.get("left_out", {}))
    node.config.stash[_OF_ALL] = output.get("of_all")


def pytest_terminal_summary(terminalreporter, config):
    reports = (report for found in terminalreporter.stats.values() for report in found)
    if found := counts.lines(reports):
        terminalreporter.section("lists of other projects")
        for line in found:
            terminalreporter.line(line)
    if of_all := config.stash.get(_OF_ALL, None):
        terminalreporter.section("what was covered")
        terminalreporter.line(selection.line(*of_all, config.getoption("--rest")))
    if late := sum(_TOO_LATE in str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())):
        terminalreporter.line(f"{late} tests did not begin: {_TOO_LATE}")
    if why := config.stash.get(_LEFT_OUT, None):
        terminalreporter.section(f"left out: {why.total():,} tests that this machine cannot run")
        for line in leftout.lines(why):
            terminalreporter.line(line)


def open_or_skip(name, opener):
    """What ``opener`` returns; or a skip that says why the runtime ``name`` cannot be opened here."""
    from grilly.errors import NoDeviceError

    if name in _causes:
        pytest.skip(_causes[name])
    try:
        return opener()
    except NoDeviceError as error:
        if name in REQUIRED:
            raise
        _causes[name] = f"the {name} runtime cannot be opened here: {error}"
        pytest.skip(_causes[name])


@pytest.fixture
def count(record_property):
    """count(list, numbers): added up in the run's summary; see `counts`."""
    return functools.partial(counts.note, record_property)


@pytest.fixture(scope="session", autouse=True)
def portable_reference():
    """The reference's float32, against which errors are judged, is the same on every processor."""
    from grilly import reference

    with reference.portable():
        yield


@pytest.fixture(scope="session", autouse=True)
def shaders():
    """The package's shaders, looked up before a test names another cache folder: they stay in the user's."""
    from grilly.registry import default_manifest

    return default_manifest()


@pytest.fixture(params=RUNTIMES)
def runtime(request):
    """A Runtime of its own for each test, closed after it."""
    from grilly.runtime import open_runtime

    opened = open_or_skip(request.param, lambda: open_runtime(runtime=request.param))
    yield opened
    opened.close()


# Not one for all files: CPU drivers take up to nine megabytes for a pipeline, and thousands are made.
@pytest.fixture(scope="module", params=RUNTIMES)
def backend(request):
    """A Compute shared by a file's tests, so that pipelines are made once."""
    import grilly

    opened = open_or_skip(request.param, lambda: grilly.Compute(runtime=request.param))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def vulkan_backend():
    """A Compute with the vulkan runtime, for tests of what only that one offers."""
    import grilly

    opened = open_or_skip("vulkan", lambda: grilly.Compute(runtime="vulkan"))
    yield opened
    opened.close()


@pytest.fixture
def vulkan(vulkan_backend):
    """A vulkan runtime of its own."""
    from grilly.runtime import open_runtime

    opened = open_runtime(runtime="vulkan")
    yield opened
    opened.close()


@pytest.fixture(params=[1, 4], ids=["one-thread", "four-threads"])
def across_a_bus(request, monkeypatch, vulkan_backend):
    """A vulkan runtime whose device memory the host cannot address, as across a bus, with so many copying threads."""
    from grilly.runtime import open_runtime
    from grilly.runtime.vulkan import runtime as module
    from grilly.runtime.vulkan.copier import Copier
    from grilly.runtime.vulkan.memory import Pool

    made = module.device_pool

    def unmapped(device):
        pool = made(device)
        return Pool(device, pool._wishes, pool._heap, mapped=False)

    monkeypatch.setattr(module, "device_pool", unmapped)
    opened = open_runtime(runtime="vulkan")
    opened._transfers.copier = Copier(request.param)
    yield opened
    opened.close()


@pytest.fixture
def default(vulkan_backend):
    """The same, and what is not told a backend runs on it."""
    with backends.default(vulkan_backend):
        yield vulkan_backend


@pytest.fixture
def by_default(backend):
    """``backend``, and what is not told a backend runs on it."""
    with backends.default(backend):
        yield backend


@pytest.fixture
def no_models_on_devices(monkeypatch):
    """No model may reach a device without being told which."""

    def opened():
        raise AssertionError("load went on to the device")

    monkeypatch.setattr("grilly.models.loading.default_backend", opened)
