"""Fixtures that open devices.

``runtime`` is a bare Runtime, ``backend`` a ``grilly.Compute``; a test that takes one of them runs once with each
runtime. Where a runtime cannot be opened its tests are skipped with the reason, unless ``GRILLY_REQUIRE_RUNTIMES``
(say, ``vulkan,kompute``) names it: then they fail.
"""

import os

import pytest

RUNTIMES = ("vulkan", "kompute")
REQUIRED = [name for name in os.environ.get("GRILLY_REQUIRE_RUNTIMES", "").split(",") if name]
_causes: dict[str, str] = {}


def pytest_addoption(parser):
    parser.addoption("--devices-only", action="store_true", help="leave out the tests that take no fixture of a device")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--devices-only"):
        chosen = [item for item in items if {"runtime", "backend", "vulkan_backend"} & set(item.fixturenames)]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


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


@pytest.fixture(scope="session", params=RUNTIMES)
def backend(request):
    """A Compute shared by all tests, so that pipelines are made once."""
    import grilly

    opened = open_or_skip(request.param, lambda: grilly.Compute(runtime=request.param))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def vulkan_backend():
    """A Compute with the vulkan runtime, for tests of what only that one offers."""
    import grilly

    opened = open_or_skip("vulkan", lambda: grilly.Compute(runtime="vulkan"))
    yield opened
    opened.close()
