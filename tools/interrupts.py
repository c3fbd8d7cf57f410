"""Interrupts grilly at random points, thousands of times, and looks at what is left.

    python tools/interrupts.py --seconds 200 --seed 1 --runtime vulkan kompute
    python tools/interrupts.py --kind signal --work large --bus      one of them

The kinds:

- ``point``: KeyboardInterrupt raised at a chosen instruction of grilly's own files, of those at which Python runs
  signal handlers. With the same seed at the same ones.
- ``signal``: a timer's signal, whose handler raises KeyboardInterrupt, after a random time; so also while threads copy.
- ``inside``: at such a point a handler makes a call of grilly's, which must be right or raise one of grilly's errors,
  and the call that it came in the middle of goes on.

After each: tensors made before have their bits, or raise one of grilly's errors; the same call again is right; the
memory in use is what it was. At the end, and where it is ``close`` that is interrupted, closing leaves no object of
Vulkan's. A process that crashes or hangs is reported with its seed and its point.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dis
import faulthandler
import functools
import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/internals/helpers"), str(ROOT / "grilly_py")]
LEAST = 10  # interrupts of a kind in a piece of work, however slow the machine
HANGS = 60  # seconds after which an interrupt counts as hung
KINDS = ("point", "signal", "inside")
WORK = ("attention", "linear", "caches", "masks", "rope", "transfers", "large", "streaming", "many", "profile",
        "graph", "growing")  # fmt: skip
#: What is done besides the scenarios; the last two to a backend that was just opened.
OTHER = ("finalizers", "close", "pipelines")
FRESH = OTHER[1:]


@functools.cache
def points(code) -> frozenset[int]:
    """Offsets of the instructions before which Python may run a signal's handler: after calls, at loops' beginnings."""
    found, after = set(), False
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("CACHE", "EXTENDED_ARG"):
            continue
        if after:
            found.add(instruction.offset)
        name = instruction.opname
        after = name.startswith(("CALL", "RESUME")) and not name.startswith("CALL_INTRINSIC")
        if name.startswith(("JUMP_BACKWARD", "JUMP_ABSOLUTE")) and isinstance(instruction.argval, int):
            found.add(instruction.argval)
    return frozenset(found)


class Points:
    """Counts the points that a piece of work passes, and does something at one of them.

    Parameters
    ----------
    files : str or tuple of str
        How the names of the files begin whose points count.
    """

    def __init__(self, files: str | tuple[str, ...]):
        self._files = files
        self._left, self._then = 0, None
        self.happened = False

    def run(self, work, at: int = 0, then=None):
        """What ``work`` gives; ``then`` is called at the ``at``-th point."""
        self._left, self._then, self.happened = at, then, False
        sys.settrace(self._enter)
        try:
            return work()
        finally:
            sys.settrace(None)

    def count(self, work) -> int:
        """How many points the work passes."""
        self.run(work)
        return -self._left

    def _enter(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(self._files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame, event, argument):
        if event == "opcode" and frame.f_lasti in points(frame.f_code):
            self._left -= 1
            if self._left == 0:
                self.happened = True
                self._then()
        return self._step


def _interrupt(signum=None, frame=None):
    """A handler that interrupts, but not the stand-in for the driver: a real one returns what it did."""
    while frame is not None:
        if frame.f_code.co_filename.endswith("faults.py"):
            signal.setitimer(signal.ITIMER_REAL, 20e-6)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


class Trial:
    """Interrupts of one piece of work, again and again."""

    def __init__(self, options, faults):
        import grilly
        import scenarios

        self.grilly, self.scenarios, self.faults, self.options = grilly, scenarios, faults, options
        self.name = options.work[0]
        self.random = random.Random(f"{options.seed} {self.name} {options.runtime} {options.bus}")
        self.kind = options.kind[0]
        self.points = Points(str(Path(grilly.__file__).parent))
        self.problems: list[str] = []
        self.raised = 0
        self.held = None
        self.backend = self.open()
        self.kept = {name: read() for name, read in scenarios.Before(self.backend).parts().items()}
        self.right = self.work(self.backend) if self.name not in ("finalizers", "close") else None
        for _ in range(3):
            before = scenarios.Before(self.backend)
            self.work(self.backend if self.name not in FRESH else self.open())
            for read in before.parts().values():
                read()
            del before, read
        gc.collect()
        gc.freeze()
        self.in_use = self.settled()
        target = self.open() if self.name in FRESH else self.backend
        began = time.perf_counter()
        self.work(target)
        self.seconds = time.perf_counter() - began
        target = self.open() if self.name in FRESH else self.backend
        self.total = self.points.count(lambda: self.work(target))
        sys.unraisablehook = lambda *_: None  # an interrupt in a finalizer is lost; what it was about must not be

    def open(self):
        backend = self.grilly.Compute(runtime=self.options.runtime)
        if self.name == "close":
            self.held = self.scenarios.Before(backend)
        return backend

    def work(self, backend):
        if self.name == "close":
            backend.close()
            self.held = None  # arrays outlive the backend, and the last one ends the device
            return []
        if self.name == "finalizers":
            for n in range(8):
                tensors = [backend.tensor(self.scenarios.arrays(10, 10 + i)) for i in range(4)]
                tensors.append(tensors[0].astype("float16"))
                del tensors
                backend.host_empty((7, n + 1))
            return []
        if self.name == "pipelines":  # which threads make, where there are some
            from grilly import functional as F

            x = self.scenarios.arrays(8, 8)
            graph = backend.capture(lambda x: F.softmax(F.layer_norm(F.linear(x, x) @ x, (8,)), dim=-1), x)
            return [graph(x).numpy()]
        return self.scenarios.SCENARIOS[self.name](backend)

    def settled(self) -> int:
        gc.collect()
        self.backend.synchronize()
        return self.backend.memory().in_use

    def same(self, what: str, found, wanted) -> None:
        from numpy import array_equal

        if len(found) != len(wanted) or not all(map(array_equal, found, wanted)):
            self.problems.append(f"{what}: wrong numbers")

    def interrupted(self, backend, at: int) -> list | None:
        """The work's results, or None where the interrupt ended it."""
        try:
            if self.kind == "signal":
                signal.signal(signal.SIGALRM, _interrupt)
                try:
                    signal.setitimer(signal.ITIMER_REAL, max(self.random.uniform(0, 1.1) * self.seconds, 1e-6))
                    return self.work(backend)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    signal.signal(signal.SIGALRM, signal.SIG_IGN)
            then = _interrupt if self.kind == "point" else lambda: self.call_inside(backend)
            return self.points.run(lambda: self.work(backend), at, then)
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt):  # where the signal came between the two lines above
                signal.setitimer(signal.ITIMER_REAL, 0)
            return None

    def call_inside(self, backend) -> None:
        """What a handler that uses grilly does."""
        try:
            tensor = backend.tensor(self.scenarios.arrays(6, 7))
            half = tensor.astype("float32").numpy()
        except self.grilly.GrillyError:
            self.raised += 1
        else:
            self.same("a call from a handler", [half], [self.scenarios.arrays(6, 7)])

    def one(self, at: int) -> list[str]:
        """What is wrong after one interrupt."""
        self.problems = []
        if self.name in FRESH:
            return self.one_close(at) if self.name == "close" else self.one_pipelines(at)
        before = self.scenarios.Before(self.backend)
        try:
            result = self.interrupted(self.backend, at)
            if result is not None and self.name not in OTHER:
                self.same("the call that was not interrupted", result, self.right)
            del result
            for name, read in before.parts().items():
                try:
                    self.same(f"'{name}' of before", [read()], [self.kept[name]])
                except self.grilly.GrillyError:
                    self.raised += 1
            del read
            later = self.work(self.backend)
            if self.name not in OTHER:
                self.same("the call, later", later, self.right)
            del later, before
            if (held := self.settled()) != self.in_use:
                self.problems.append("memory in use grew" if held > self.in_use else "memory in use shrank")
                self.in_use = held
        except Exception as error:
            self.problems.append(f"raises {type(error).__name__}: {str(error)[:120]}")
        return self.problems

    def one_close(self, at: int) -> list[str]:
        self.backend.close()
        backend = self.open()
        self.interrupted(backend, at)
        self.held = None
        try:
            backend.close()
        except Exception as error:
            self.problems.append(f"closing again raises {type(error).__name__}: {str(error)[:120]}")
        self.nothing_left()
        self.backend = self.open()
        return self.problems

    def one_pipelines(self, at: int) -> list[str]:
        self.backend.close()
        backend = self.open()
        try:
            result = self.interrupted(backend, at)
            if result is not None:
                self.same("the capture that was not interrupted", result, self.right)
            if at % 2:  # else it is closed as the interrupt left it
                self.same("the capture, later", self.work(backend), self.right)
            backend.close()
        except Exception as error:
            self.problems.append(f"raises {type(error).__name__}: {str(error)[:120]}")
        self.nothing_left()
        self.backend = self.open()
        return self.problems

    def nothing_left(self) -> None:
        gc.collect()
        if self.faults is not None and (left := self.faults.counts()):
            self.problems.append(f"left: {', '.join(f'{n} {kind}' for kind, n in sorted(left.items()))}")
            for handles in self.faults.live.values():
                handles.clear()
            self.faults.maps.clear()

    def end(self) -> list[str]:
        self.problems, self.held = [], None
        try:
            self.backend.close()
        except Exception as error:
            self.problems.append(f"close raises {type(error).__name__}: {str(error)[:120]}")
        self.nothing_left()
        return self.problems


def run_trial(options) -> None:
    """One piece of work in this process, the kinds in turn; a line of JSON for each interrupt."""
    import faults as module

    if options.threads:
        from grilly.runtime.vulkan import threads

        threads.usable_processors = lambda: options.threads
    with contextlib.ExitStack() as stack:
        faults = stack.enter_context(module.between(options.bus)) if options.runtime == "vulkan" else None
        faulthandler.dump_traceback_later(240, exit=True)
        end = time.monotonic() + options.seconds
        trial = Trial(options, faults)
        for n in range(options.start + options.count):
            at = trial.random.randint(1, trial.total)
            if n < options.start:
                continue
            if time.monotonic() > end and n >= options.start + LEAST:
                break
            trial.kind = options.kind[n % len(options.kind)]
            print(json.dumps({"at": at, "n": n, "kind": trial.kind}), flush=True)
            faulthandler.dump_traceback_later(HANGS, exit=True)
            problems = trial.one(at)
            if faults is not None:
                problems += sorted(set(faults.misuse))
                faults.misuse = []
            print(json.dumps({"problems": problems, "raised": trial.raised}), flush=True)
            trial.raised = 0
        problems = trial.end()
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"end": problems}), flush=True)


class Report:
    """What the processes said."""

    def __init__(self):
        self.ran = self.raised = 0
        self.found, self.first = Counter(), {}
        self.lock = threading.Lock()

    def problem(self, text: str, where: str) -> None:
        with self.lock:
            self.found[text] += 1
            self.first.setdefault(text, where)


def child(options, item: tuple, seconds: float, report: Report) -> None:
    """A piece of work in processes of its own; after a crash it goes on behind it."""
    work, runtime, bus, threads = item
    end, start = time.monotonic() + seconds, 0
    flags = ["--kind", *options.kind, "--work", work, "--runtime", runtime, "--seed", str(options.seed)]
    flags += [*(["--bus"] if bus else []), "--threads", str(threads)]
    for attempt in range(options.crashes):
        left = end - time.monotonic()
        if left <= 0 and attempt:
            return
        command = [sys.executable, __file__, "--child", *flags, "--seconds", str(max(left, 1))]
        command += ["--count", str(options.count - start), "--start", str(start)]
        with tempfile.TemporaryFile("w+") as errors:
            last, ended = None, False
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT)
            for line in process.stdout:
                try:
                    said = json.loads(line)
                except ValueError:
                    continue
                if "at" in said:
                    last, start = said, said["n"] + 1
                elif "raised" in said:
                    report.ran += 1
                    report.raised += said["raised"]
                ended = ended or "end" in said
                for text in said.get("problems", []) + said.get("end", []):
                    where = "at the end" if "end" in said else f"number {last['n']}, point {last['at']}"
                    kind = "after all" if "end" in said else last["kind"]
                    report.problem(f"{work}, {kind}, {runtime}: {text}", f"{' '.join(flags)}: {where}")
            process.wait()
            if ended and process.returncode == 0:
                return
            errors.seek(0)
            tail = errors.read()[-2000:].strip()
            text = "hangs" if "Timeout" in tail else f"ends the process with {process.returncode}"
            where = f"number {last['n']}, point {last['at']}" if last else "at the beginning"
            kind = last["kind"] if last else "none"
            report.problem(f"{work}, {kind}, {runtime}: {text}", f"{' '.join(flags)}: {where}")
            if options.verbose or last is None:
                print(tail, file=sys.stderr)
            if last is None:
                return
    report.problem(f"{work}, {runtime}: given up after {options.crashes} crashes", " ".join(flags))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=200, help="how long all of it may take")
    parser.add_argument("--count", type=int, default=1000, help="interrupts of each piece of work at most")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    parser.add_argument("--kind", choices=KINDS, nargs="*", default=list(KINDS))
    parser.add_argument("--work", choices=(*WORK, *OTHER), nargs="*", default=[*WORK, *OTHER])
    parser.add_argument("--runtime", choices=("vulkan", "kompute"), nargs="*", default=["vulkan"])
    parser.add_argument("--bus", action="store_true", help="only with memory that the host cannot address")
    parser.add_argument("--threads", type=int, default=0, help="that copy large arrays")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 4), help="processes at a time")
    parser.add_argument("--crashes", type=int, default=10, help="of one piece of work, before it is given up")
    parser.add_argument("--verbose", action="store_true", help="show what a process that crashed said last")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        options.runtime = options.runtime[0]
        run_trial(options)
        return 0
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 30)
    from scenarios import LARGE, VULKAN_ALONE

    items = []
    for runtime in options.runtime:
        for n, work in enumerate(options.work):
            if runtime == "kompute" and work in (*LARGE, *VULKAN_ALONE, "pipelines"):
                continue  # "pipelines" captures
            staged = options.bus or (runtime == "vulkan" and (n % 2 == 1 or work in LARGE))
            threads = options.threads or (4 if work in (*LARGE, "pipelines") else 0)
            items.append((work, runtime, staged, threads))
    random.Random(options.seed).shuffle(items)
    report, end, left = Report(), time.monotonic() + options.seconds, len(items)

    def one(item) -> None:
        nonlocal left
        share = (end - time.monotonic()) * options.jobs / max(left, options.jobs)
        left -= 1
        child(options, item, max(share, 1), report)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as executor:
        for future in [executor.submit(one, item) for item in items]:
            future.result()
    for text, count in sorted(report.found.items(), key=lambda item: -item[1]):
        print(f"  {count} x {text} (first: {report.first[text]})")
    print(
        f"interrupts, {', '.join(options.runtime)}, seed {options.seed}: {report.ran:,}; {report.raised:,} reads or "
        f"calls raised, {report.found.total():,} problems"
    )
    return 1 if report.found or not report.ran else 0


if __name__ == "__main__":
    sys.exit(main())
