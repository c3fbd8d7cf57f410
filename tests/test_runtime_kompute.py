"""What is particular to the kompute runtime: what it refuses, and how it gets round what kp lacks."""

import logging
import os
import struct
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from buffers import download, reverse_spec, scale, scale_spec, upload, whole
from conftest import open_or_skip
from grilly.errors import NoDeviceError, UnsupportedError
from grilly.runtime import open_runtime
from grilly.runtime.kompute import KomputeRuntime


@pytest.fixture
def kompute():
    opened = open_or_skip("kompute", lambda: open_runtime(runtime="kompute"))
    yield opened
    opened.close()


def test_features_need_nothing_that_kp_leaves_off(kompute):
    assert all(name.startswith("subgroup-") for name in kompute.features)
    assert "subgroup-size-control" not in kompute.features


def test_a_repeated_call_finds_its_pipeline(kompute):
    for _ in range(10):
        x, y = upload(kompute, np.ones(500, np.float32)), upload(kompute, np.zeros(500, np.float32))
        scale(kompute, x, y, 500, 1.0)
        kompute.free(y)
        kompute.free(x)
        kompute.flush()
    assert len(kompute._algorithms) <= 2
    assert len(kompute._recordings) <= 12


def test_the_pool_and_the_pipelines_are_bounded(kompute):
    for i in range(300):
        x, y = upload(kompute, np.ones(64 * (i + 1), np.float32)), upload(kompute, np.zeros(64 * (i + 1), np.float32))
        scale(kompute, x, y, 64, 1.0)
        kompute.free(x)
        kompute.free(y)
    assert len(kompute._algorithms) <= 256
    big = [kompute.allocate(64 << 20) for _ in range(6)]
    for buffer in big:
        kompute.free(buffer)
    figures = kompute.memory()
    assert figures.in_use == 0 and figures.reserved <= 256 << 20
    y = upload(kompute, np.zeros(64, np.float32))
    scale(kompute, upload(kompute, np.ones(64, np.float32)), y, 64, 2.0, ((2, 0),))
    assert (download(kompute, y) == 2).all()


def test_whole_buffers_past_the_binding_limit_are_refused(kompute):
    limit = kompute.device.limits["storage_range"]
    if kompute.device.limits["allocation"] <= limit:
        pytest.skip("this device can bind all that it can allocate")
    x, y = kompute.allocate(limit + 256), upload(kompute, np.zeros(64, np.float32))
    with pytest.raises(UnsupportedError, match="binding 0: kompute binds whole buffers"):
        kompute.dispatch(kompute.program(scale_spec()), [(x, 0, 64), whole(y)], struct.pack("<If", 1, 1.0), (1, 1, 1))


def test_bad_calls_are_refused(kompute):
    x, y = upload(kompute, np.ones(64, np.float32)), upload(kompute, np.ones(64, np.float32))
    program, push = kompute.program(scale_spec()), struct.pack("<If", 64, 1.0)
    bindings = [whole(x), whole(y)]
    for call, error, message in (
        (lambda: kompute.dispatch(program, bindings[:1], push, (1, 1, 1)), ValueError, "expected 2 bindings"),
        (lambda: kompute.dispatch(program, bindings, push * 2, (1, 1, 1)), ValueError, "16 bytes of push"),
        (lambda: kompute.dispatch(program, bindings, push, (70_000, 1, 1)), UnsupportedError, "70000"),
        (lambda: kompute.dispatch(program, [(x, 0, 512), whole(y)], push, (1, 1, 1)), ValueError, "binding 0"),
        (lambda: kompute.write(x, np.ones(65, np.float32)), ValueError, "write: bytes 0 to 260"),
        (lambda: kompute.read(x, np.ones(4, np.float32), offset=250), ValueError, "read: bytes 250"),
        (lambda: kompute.allocate(0), ValueError, "at least 1 byte"),
    ):
        if "70000" in message and kompute.device.limits["groups"][0] >= 70_000:
            continue
        with pytest.raises(error, match=message):
            call()
    kompute.free(x)
    with pytest.raises(ValueError, match="freed"):
        kompute.dispatch(program, bindings, push, (1, 1, 1))


def test_a_subgroup_size_cannot_be_asked_for(kompute):
    kompute.program(replace(reverse_spec(), subgroup_size=kompute.device.subgroup_size))
    with pytest.raises(UnsupportedError, match="subgroups of 7"):
        kompute.program(replace(reverse_spec(), subgroup_size=7))


def test_opening_leaves_the_applications_logging_alone(kompute):
    code = (
        "import logging\nfrom grilly.runtime import open_runtime\n"
        "open_runtime(runtime='kompute').close()\nassert not logging.root.handlers, logging.root.handlers"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=environment)
    assert logging.root is logging.getLogger()


def test_without_kp_the_error_tells_how_to_build_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "kp", None)
    with pytest.raises(NoDeviceError, match="KOMPUTE_OPT_USE_BUILT_IN_FMT=OFF"):
        KomputeRuntime(None)
