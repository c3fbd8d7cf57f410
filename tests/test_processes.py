"""Threads, fork, and the end of the interpreter: each case in a process of its own, killed where it hangs.

What a case prints is checked to the letter, and standard error must stay empty.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

import grilly
from children import environment
from conftest import RUNTIMES, open_or_skip

SECONDS = 100
#: Every case begins so. `call` is right or raises; `right` says whether a result is.
BEGIN = """
import faulthandler, os, sys, threading, time
faulthandler.dump_traceback_later({seconds}, exit=True)
import numpy as np
import grilly
import grilly.functional as F

x = np.random.default_rng(0).standard_normal((2, 33, 16)).astype(np.float32)
want = grilly.reference.naive_attention(x, x, x, dtype=np.float64)[0]

def call(a=x):
    return F.flash_attention2(a, a, a)

def right(out):
    return bool(np.abs(np.asarray(out) - want).max() < 1e-5)

def first():
    grilly.use(grilly.Compute(runtime={runtime!r}))
    assert right(call())

def wait(child):
    # The child's exit status, once it has ended; a signal counts as its negative.
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "hung"

def forked(work):
    # What the child's work gives, in a child that ends as programs do.
    sys.stdout.flush()
    faulthandler.cancel_dump_traceback_later()  # its thread would be missing in the child, which would wait for it
    child = os.fork()
    if child:
        faulthandler.dump_traceback_later({seconds}, exit=True)
        return wait(child)
    faulthandler.dump_traceback_later(50, exit=True)
    code = work()
    faulthandler.cancel_dump_traceback_later()
    sys.exit(code)
"""


@pytest.fixture(scope="module", params=RUNTIMES)
def runtime_name(request):
    open_or_skip(request.param, lambda: grilly.Compute(runtime=request.param)).close()
    return request.param


def run(runtime: str, code: str, times: int = 1, **variables) -> str:
    """What a process prints; it must end well and say nothing else."""
    code = BEGIN.format(seconds=SECONDS - 10, runtime=runtime) + textwrap.dedent(code)
    for _ in range(times):
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]  # of fork beside threads
        done = subprocess.run(
            command, env=environment(**variables), capture_output=True, text=True, timeout=SECONDS
        )
        said = f"exit {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
        assert (done.returncode, done.stderr) == (0, ""), said
    return done.stdout


# -- the end of the interpreter ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", ["call()", "T.astype('float16').numpy()", "grilly.Compute(runtime=NAME).close()"])
def test_daemon_threads_at_the_end(runtime_name, work):
    """Three of them are in the middle of calls when the main thread ends."""
    run(
        runtime_name,
        f"""
        first()
        NAME = {runtime_name!r}
        T = grilly.compute.backend.default_backend().tensor(x)
        def loop():
            while True:
                {work}
        for _ in range(3):
            threading.Thread(target=loop, daemon=True).start()
        time.sleep(0.3)
        """,
        times=3,
    )


def test_a_hook_that_was_there_before_the_first_use(runtime_name):
    """It runs after grilly's own: what it calls is closed, or works."""
    said = run(
        runtime_name,
        """
        import atexit
        def hook():
            try:
                print("right" if right(call()) else "WRONG")
            except grilly.ClosedError:
                print("closed")
            try:
                print("right" if right(T.numpy() * 0 + want) else "WRONG")
            except grilly.ClosedError:
                print("closed")
        atexit.register(hook)
        first()
        T = grilly.compute.backend.default_backend().tensor(x)
        """,
    )
    assert set(said.split()) <= {"right", "closed"} and len(said.split()) == 2


def test_a_hook_that_came_after_the_first_use(runtime_name):
    said = run(
        runtime_name,
        """
        import atexit
        first()
        atexit.register(lambda: print("right" if right(call()) else "WRONG"))
        """,
    )
    assert said.split() == ["right"]


def test_first_use_when_the_main_thread_has_ended(runtime_name):
    said = run(
        runtime_name,
        """
        def late():
            threading.main_thread().join()
            try:
                first()
                print("right")
            except grilly.GrillyError:
                print("refused")
        threading.Thread(target=late).start()
        """,
    )
    assert said.split() in (["right"], ["refused"])


def test_use_after_the_main_thread_has_ended(runtime_name):
    said = run(
        runtime_name,
        """
        first()
        def late():
            threading.main_thread().join()
            time.sleep(0.2)
            try:
                print("right" if right(call()) else "WRONG")
            except grilly.ClosedError:
                print("closed")
        threading.Thread(target=late).start()
        """,
    )
    assert said.split() in (["right"], ["closed"])


def test_threads_that_come_and_go(runtime_name):
    """Each makes a call and leaves a tensor to another thread."""
    said = run(
        runtime_name,
        """
        first()
        backend, left, wrong = grilly.compute.backend.default_backend(), [], []
        def short(n):
            if not right(call()):
                wrong.append(n)
            left.append((n, backend.tensor(x + n)))
        rounds = 60 if backend.runtime.name == "vulkan" else 20  # kompute makes pipelines anew, a tenth of a second
        for n in range(rounds):
            threads = [threading.Thread(target=short, args=(2 * n + i,)) for i in range(2)]
            for t in threads: t.start()
            for t in threads: t.join()
        wrong += [n for n, t in left if not np.array_equal(t.numpy(), x + n)]
        print(len(left) == 2 * rounds, wrong)
        """,
    )
    assert said.split() == ["True", "[]"]


def test_a_tensor_outlives_everything(runtime_name):
    """Modules are torn down in no order; the last reference to a tensor goes late, and in a cycle."""
    run(
        runtime_name,
        """
        first()
        class Holder: pass
        holder = Holder()
        holder.me, holder.tensor = holder, grilly.compute.backend.default_backend().tensor(x).astype("float16")
        sys.kept = holder
        import builtins
        builtins.kept_tensor = holder.tensor
        """,
    )


# -- fork -------------------------------------------------------------------------------------------------------------

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@pytest.fixture(scope="module")
def child_opens(runtime_name):
    """Leaves tests out where the driver refuses its device to forked children, which the error must say."""
    said = run(
        runtime_name,
        """
        first()
        def child():
            try:
                grilly.Compute(runtime=NAME).close()
                return 0
            except grilly.NoDeviceError as error:
                return 3 if "spawn" in str(error) else 4
        print(forked(child))
        """.replace("NAME", repr(runtime_name)),
    )
    if said.split() == ["3"]:
        pytest.skip("this driver refuses its device to forked children")
    assert said.split() == ["0"]


@needs_fork
def test_a_child_that_only_exits(runtime_name):
    said = run(runtime_name, "first()\nprint(forked(lambda: 0), right(call()))")
    assert said.split() == ["0", "True"]


@needs_fork
def test_a_child_opens_anew(runtime_name, child_opens):
    """The default backend; with "auto" for the runtime, as the parent's was chosen by hand."""
    said = run(
        runtime_name,
        """
        first()
        former = grilly.use(None)
        grilly.use(former)
        print(forked(lambda: 0 if right(call()) and right(call()) else 1), right(call()))
        """,
    )
    assert said.split() == ["0", "True"]


@needs_fork
def test_the_parents_tensors_are_refused_in_a_child(runtime_name):
    said = run(
        runtime_name,
        """
        first()
        backend = grilly.compute.backend.default_backend()
        T = backend.tensor(x)
        H = T.astype("float16") if backend.runtime.name == "vulkan" else backend.tensor(x)
        kept = H.numpy()
        uses = [T.numpy, lambda: T.astype("float16"), lambda: call(T), lambda: backend.tensor(x), backend.synchronize,
                lambda: backend.attention.flash_attention2(x, x, x), backend.memory, lambda: backend.empty((3, 4)),
                lambda: backend.host_empty((3, 4))]
        def child():
            for n, use in enumerate(uses):
                try:
                    use()
                    return 10 + n
                except grilly.ClosedError as error:
                    if "fork" not in str(error):
                        return 40 + n
            backend.close()
            return 0
        print(forked(child), right(call()), np.array_equal(H.numpy(), kept), np.array_equal(T.numpy(), x))
        """,
    )
    assert said.split() == ["0", "True", "True", "True"]


@needs_fork
def test_a_child_lets_go_of_the_parents_things(runtime_name, child_opens):
    """Tensors, host arrays and backends that go in the child touch nothing of the parent's."""
    said = run(
        runtime_name,
        """
        import gc
        first()
        backend = grilly.compute.backend.default_backend()
        things = [backend.tensor(x) for _ in range(50)]
        arrays = [backend.host_asarray(x) for _ in range(5)]
        def child():
            things.clear(); arrays.clear(); gc.collect()
            grilly.use(None)
            gc.collect()
            return 0 if right(call()) else 1
        print(forked(child), right(call()), all(np.array_equal(t.numpy(), x) for t in things),
              all(np.array_equal(a, x) for a in arrays))
        """,
    )
    assert said.split() == ["0", "True", "True", "True"]


@needs_fork
def test_grandchildren(runtime_name, child_opens):
    said = run(
        runtime_name,
        """
        first()
        def grandchild():
            return 0 if right(call()) else 1
        def child():
            if not right(call()):
                return 1
            code = forked(grandchild)
            return code if code else (0 if right(call()) else 2)
        print(forked(child), right(call()))
        """,
    )
    assert said.split() == ["0", "True"]


@needs_fork
def test_workers_of_multiprocessing(runtime_name, child_opens):
    said = run(
        runtime_name,
        """
        import multiprocessing
        faulthandler.cancel_dump_traceback_later()
        first()
        def work(n):
            return right(call())
        for _ in range(2):
            with multiprocessing.get_context("fork").Pool(2) as pool:
                print(pool.map(work, range(4)))
        print(right(call()))
        """,
    )
    assert set(said.replace("[", "").replace("]", "").replace(",", "").split()) == {"True"}


@needs_fork
def test_fork_in_the_middle_of_another_threads_call(runtime_name, child_opens):
    """Its locks are held when the process forks; the child must not wait for a thread that it does not have."""
    said = run(
        runtime_name,
        """
        first()
        T = grilly.compute.backend.default_backend().tensor(np.ones((700, 900), np.float32))
        going, wrong = True, []
        def loop():
            while going:
                if not right(call()):
                    wrong.append(1)
                T.numpy()
        threads = [threading.Thread(target=loop) for _ in range(2)]
        for t in threads: t.start()
        codes = []
        for n in range(12):
            time.sleep(0.01 + n / 300)
            codes.append(forked(lambda: 0 if right(call()) else 1))
        going = False
        for t in threads: t.join()
        print(set(codes), wrong, right(call()))
        """,
    )
    assert said.strip() == "{0} [] True"


@needs_fork
def test_fork_before_the_first_use(runtime_name, child_opens):
    said = run(runtime_name, "print(forked(lambda: first() or 0)); first()")
    assert said.split() == ["0"]


@needs_fork
def test_fork_in_the_middle_of_the_first_use(runtime_name, child_opens):
    said = run(
        runtime_name,
        """
        thread = threading.Thread(target=call)
        thread.start()
        time.sleep(0.05)
        code = forked(lambda: 0 if right(call()) else 1)
        thread.join()
        print(code, right(call()))
        """,
    )
    assert said.split() == ["0", "True"]


def test_spawn(runtime_name, tmp_path):
    (tmp_path / "spawned.py").write_text(
        "import numpy as np\nimport grilly\nimport grilly.functional as F\n"
        "def work(x):\n    return F.flash_attention2(x, x, x)\n"
    )
    said = run(
        runtime_name,
        f"""
        import multiprocessing
        sys.path.insert(0, {str(tmp_path)!r})
        import spawned
        first()
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            print([right(out) for out in pool.map(spawned.work, [x, x, x])], right(call()))
        """,
    )
    assert said.strip() == "[True, True, True] True"
