"""Lets every call of the driver fail once, at every position and with every code, and looks at what is left.

    python tools/inject_faults.py --seconds 600           all scenarios, as many positions as there is time for
    python tools/inject_faults.py --scenario masks --bus  one of them, with staged transfers
    python tools/inject_faults.py --runtime kompute       kp's calls in place of Vulkan's

After each fault: what there was before has the bits it had, or raises an error of grilly's; what comes later is right,
or raises DeviceLostError where the device was lost; the memory in use is what it was; and when the backend is closed no
object of Vulkan's is left. The scenarios and the faulty driver are scenarios.py and faults.py of
tests/internals/helpers. Each scenario runs in processes of its own: one that crashes or hangs is reported with its
position.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import faulthandler
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/internals/helpers"), str(ROOT / "grilly_py")]
LEAST = 12  # positions of a scenario, however slow the machine
HANGS = 60  # seconds after which a position counts as hung
MODES = ("warm", "cold")


def spread(count: int) -> list[int]:
    """0 to count - 1 in an order of which every beginning is spread evenly: the bits of a counter, reversed."""
    bits = max(count - 1, 1).bit_length()
    order = (int(f"{i:0{bits}b}"[::-1], 2) for i in range(1 << bits))
    return [i for i in order if i < count]


class Lane:
    """The positions of one scenario.

    A warm position is one of a backend that has run the scenario before; a cold one is of a backend opened for it, from
    its opening to its end.
    """

    def __init__(self, scenario: str, bus: bool, runtime: str, faults):
        import faults as module
        import grilly
        import scenarios

        self.grilly, self.scenarios, self.faults, self.lost_code = grilly, scenarios, faults, module.LOST
        self.codes = module.CODES if runtime == "vulkan" else None
        self.kp_codes = (module.KP_BEFORE, module.KP_AFTER)
        self.scenario = scenarios.SCENARIOS[scenario]
        self.runtime, self.backend, self.in_use = runtime, None, 0
        self.problems: list[str] = []
        self.raised = 0
        cold = self._right()
        gc.collect()
        gc.freeze()  # so that the collections between positions are quick
        self.jobs = {"warm": self._jobs(self._warm_trace()), "cold": self._jobs(cold)}

    def open(self):
        return self.grilly.Compute(runtime=self.runtime)

    def _right(self) -> list[str]:
        """The calls of a cold run; what is right is noted on the way."""
        self.faults.trace = trace = []
        with self.open() as backend:
            before = self.scenarios.Before(backend)
            self.right = self.scenario(backend)
            self.faults.trace = None  # a cold position reads what was before only when its fault has happened
            self.kept = {name: read() for name, read in before.parts().items()}
            del before
            self.faults.trace = trace
        self.faults.trace = None
        return trace

    def _warm_trace(self) -> list[str]:
        """The calls of a warm run."""
        self._warm()
        before = self.scenarios.Before(self.backend)
        self.faults.trace = trace = []
        self.scenario(self.backend)
        self.faults.trace = None
        del before
        return trace

    def _jobs(self, trace: list[str]) -> list[tuple[int, str, int]]:
        """(position, call, code) of every fault."""
        jobs = [
            (n, name, code)
            for n, name in enumerate(trace, 1)
            for code in (self.kp_codes if self.codes is None else self.codes[name])
        ]
        return [jobs[i] for i in spread(len(jobs))]

    def _warm(self) -> None:
        """A backend that knows the scenario, and what it has in use."""
        if self.backend is None:
            self.faults.arm()
            self.backend = self.open()
            for _ in range(3):
                before = self.scenarios.Before(self.backend)
                self.scenario(self.backend)
                for read in before.parts().values():
                    read()
                del before, read
            self.in_use = self.settled(self.backend)

    def settled(self, backend) -> int:
        gc.collect()
        backend.synchronize()
        return backend.memory().in_use

    # -- judging -----------------------------------------------------------------------------------------------------

    def attempt(self, what: str, call, lost: bool):
        """(result, error). An error must be one of grilly's; DeviceLostError if the device is lost, and only then."""
        try:
            return call(), None
        except self.grilly.GrillyError as error:
            if lost != isinstance(error, self.grilly.DeviceLostError):
                self.problems.append(f"{what}: {type(error).__name__} where the device is {'' if lost else 'not '}lost")
            return None, f"{type(error).__name__}: {error}"
        except Exception as error:
            self.problems.append(f"{what}: untyped {type(error).__name__}: {str(error)[:100]}")
            return None, f"{type(error).__name__}: {error}"

    def same(self, what: str, found, wanted) -> None:
        from numpy import array_equal

        if len(found) != len(wanted) or not all(map(array_equal, found, wanted)):
            self.problems.append(f"{what}: wrong numbers")

    def look(self, backend, before, lost: bool) -> None:
        """What there was before, and what comes later, after a fault."""
        failed = False
        for name, read in before.parts().items():
            value, error = self.attempt(f"reading '{name}' of before", read, lost)
            if error is None:
                self.same(f"'{name}' of before", [value], [self.kept[name]])
            else:
                self.raised += 1
                if name == "host":
                    self.problems.append("an array of host memory cannot be read")
            failed = failed or error is not None
        later, error = self.attempt("the scenario, later", lambda: self.scenario(backend), lost)
        if error is None:
            self.same("the scenario, later", later, self.right)
            if lost and failed:
                self.problems.append("works after the device was lost")
        elif not lost:
            self.problems.append(f"the scenario, later: {error[:160]}")

    def warm(self, at: int, code: int) -> bool:
        """One position; False where the calls ended before it."""
        self._warm()
        backend, faults = self.backend, self.faults
        before = self.scenarios.Before(backend)
        faults.arm(at, code)
        lost = code == self.lost_code
        result, error = self.attempt("the scenario", lambda: self.scenario(backend), lost)
        reached = faults.failed
        faults.arm()
        if error is None:
            self.same("the scenario", result, self.right)
        elif reached is None:
            self.problems.append(f"raises without a fault: {error[:160]}")
        if reached is not None:
            self.look(backend, before, lost)
        del before, result
        if not lost or reached is None:
            held, error = self.attempt("counting", lambda: self.settled(backend), False)
            if error is None and held != self.in_use:
                self.problems.append(f"memory in use grew by {held - self.in_use}")
        if self.problems or (lost and reached):
            self.end()
        return reached is not None

    def end(self) -> None:
        """Close the backend that positions share; nothing of it may be left."""
        if self.backend is not None:
            backend, self.backend = self.backend, None
            self.attempt("close", backend.close, self.faults.lost)
            self.nothing_left()

    def nothing_left(self) -> None:
        gc.collect()
        if left := self.faults.counts():
            self.problems.append(f"left: {', '.join(f'{n} {kind}' for kind, n in sorted(left.items()))}")
            for handles in self.faults.live.values():
                handles.clear()
            self.faults.maps.clear()

    def cold(self, at: int, code: int) -> bool:
        self.end()
        faults, lost = self.faults, code == self.lost_code
        faults.arm(at, code)
        try:
            backend = self.open()
        except self.grilly.GrillyError:
            reached, backend = faults.failed, None
        except Exception as error:
            self.problems.append(f"open: untyped {type(error).__name__}: {str(error)[:100]}")
            reached, backend = faults.failed, None
        if backend is None:
            faults.arm()
            self.nothing_left()
            with self.open() as backend:
                self.same("the scenario, later", self.scenario(backend), self.right)
            return reached is not None
        before = None
        made, error = self.attempt("making what is before", lambda: self.scenarios.Before(backend), lost)
        if error is not None:
            faults.arm()
        else:
            before = made
            result, error = self.attempt("the scenario", lambda: self.scenario(backend), lost)
            if error is None:
                self.same("the scenario", result, self.right)
        del made
        if faults.failed is not None or error is not None:
            reached = faults.failed
            faults.arm()
            if before is not None:
                self.look(backend, before, lost)
            else:
                later, error = self.attempt("the scenario, later", lambda: self.scenario(backend), lost)
                if error is None:
                    self.same("the scenario, later", later, self.right)
                elif not lost:
                    self.problems.append(f"the scenario, later: {error[:160]}")
            del before
            self.attempt("close", backend.close, lost)
        else:  # it is in the end that the fault lies
            del before
            self.attempt("close", backend.close, lost)
            reached = faults.failed
            faults.arm()
        self.nothing_left()
        return reached is not None

    def one(self, mode: str, job: tuple[int, str, int]) -> tuple[bool, list[str]]:
        """Whether the fault happened, and what was wrong after it."""
        at, _, code = job
        self.problems, self.faults.misuse = [], []
        try:
            reached = getattr(self, mode)(at, code)
        except Exception as error:  # a backend that is beyond use
            self.problems.append(f"{type(error).__name__}: {str(error)[:160]}")
            self.faults.arm()
            reached = True
            backend, self.backend = self.backend, None
            try:
                if backend is not None:
                    backend.close()
            except Exception:
                pass
            self.nothing_left()
        self.problems += sorted(set(self.faults.misuse))
        return reached, self.problems


def run_lane(options) -> None:
    """One scenario in this process; a line of JSON for each position, and for what the totals are."""
    import faults as module

    between = module.between(options.bus) if options.runtime == "vulkan" else module.between_kompute()
    with between as faults:
        faulthandler.dump_traceback_later(240, exit=True)
        end, ran = time.monotonic() + options.seconds, 0
        lane = Lane(options.scenario[0], options.bus, options.runtime, faults)
        places = dict(zip(MODES, options.resume, strict=True))
        spent = dict.fromkeys(MODES, 0.0)
        print(json.dumps({"totals": {mode: len(jobs) for mode, jobs in lane.jobs.items()}}), flush=True)
        while time.monotonic() < end or ran < LEAST:
            open_ = [mode for mode in MODES if places[mode] < len(lane.jobs[mode])]
            if not open_:
                break
            mode = min(open_, key=spent.get)
            job = lane.jobs[mode][places[mode]]
            places[mode] += 1
            ran += 1
            print(json.dumps({"at": [mode, *job], "places": places}), flush=True)
            faulthandler.dump_traceback_later(HANGS, exit=True)
            began = time.monotonic()
            reached, problems = lane.one(mode, job)
            spent[mode] += time.monotonic() - began
            print(json.dumps({"reached": reached, "problems": problems, "raised": lane.raised}), flush=True)
            lane.raised = 0
        lane.problems = []
        lane.end()
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"end": lane.problems}), flush=True)


class Report:
    """What the processes said."""

    def __init__(self):
        self.totals, self.ran, self.reached, self.raised = Counter(), Counter(), 0, 0
        self.found: Counter = Counter()
        self.first: dict[str, str] = {}

    def problem(self, where: str, call: str, code, text: str, at) -> None:
        key = f"{call} = {code}: {text}"
        self.found[key] += 1
        self.first.setdefault(key, f"{where}, {at}")


def child(options, scenario: str, bus: bool, seconds: float, report: Report) -> None:
    """A scenario in processes of its own; after a crash it goes on behind it."""
    where, resume, end = f"{scenario}{' --bus' if bus else ''}", [0, 0], time.monotonic() + seconds
    for attempt in range(options.crashes):
        left = end - time.monotonic()
        if left <= 0 and attempt:
            break
        command = [sys.executable, __file__, "--child", "--scenario", scenario, "--runtime", options.runtime]
        command += [*(["--bus"] if bus else []), "--seconds", str(max(left, 1)), "--resume", *map(str, resume)]
        with tempfile.TemporaryFile("w+") as errors:
            last = None
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT)
            ended = False
            for line in process.stdout:
                try:
                    said = json.loads(line)
                except ValueError:
                    continue
                if "totals" in said and attempt == 0:
                    for mode, count in said["totals"].items():
                        report.totals[mode] += count
                elif "at" in said:
                    last, resume = said["at"], [said["places"][mode] for mode in MODES]
                    report.ran[last[0]] += 1
                elif "reached" in said:
                    report.reached += said["reached"]
                    report.raised += said["raised"]
                    for text in said["problems"]:
                        report.problem(where, last[2], last[3], text, f"{last[0]} call {last[1]}")
                elif "end" in said:
                    ended = True
                    for text in said["end"]:
                        report.problem(where, "the end", 0, text, "all positions")
            process.wait()
            if ended and process.returncode == 0:
                return
            errors.seek(0)
            tail = errors.read()[-1500:].strip()
            kind = "hangs" if "Timeout" in tail else f"ends the process with {process.returncode}"
            mode, at, call, code = last or ("warm", 0, "the beginning", 0)
            report.problem(where, call, code, kind, f"{mode} call {at}")
            if options.verbose or last is None:
                print(tail, file=sys.stderr)
            if last is None:
                return
    else:
        report.problem(where, "all", "any", f"given up after {options.crashes} crashes", "the rest")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600, help="how long all of it may take")
    parser.add_argument("--scenario", nargs="*", help="names of tests/internals/helpers/scenarios.py; default: all")
    parser.add_argument("--bus", action="store_true", help="only with memory that the host cannot address")
    parser.add_argument("--runtime", choices=("vulkan", "kompute"), default="vulkan")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 4), help="processes at a time")
    parser.add_argument("--crashes", type=int, default=40, help="of one scenario, before it is given up")
    parser.add_argument("--verbose", action="store_true", help="show what a process that crashed said last")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--resume", type=int, nargs=2, default=(0, 0), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_lane(options)
        return 0
    from scenarios import SCENARIOS, VULKAN_ALONE

    beyond = () if options.runtime == "vulkan" else (*VULKAN_ALONE, "large")
    names = options.scenario or [name for name in SCENARIOS if name not in beyond]
    buses = [True] if options.bus else [False, True] if options.runtime == "vulkan" else [False]
    work = [(name, bus) for name in names for bus in buses]
    report, end, left = Report(), time.monotonic() + options.seconds, len(work)

    def one(item) -> None:
        nonlocal left
        share = (end - time.monotonic()) * options.jobs / max(left, options.jobs)
        left -= 1
        child(options, *item, max(share, 1), report)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as executor:
        for future in [executor.submit(one, item) for item in work]:
            future.result()
    for key, count in sorted(report.found.items(), key=lambda item: -item[1]):
        print(f"  {count} x {key} (first: {report.first[key]})")
    parts = ", ".join(f"{report.ran[mode]:,} of {report.totals[mode]:,} {mode}" for mode in MODES)
    print(
        f"faults, {options.runtime}: {parts} positions; {report.reached:,} faults happened, {report.raised:,} reads of "
        f"what was before raised, {report.found.total():,} problems"
    )
    return 1 if report.found or not report.reached else 0


if __name__ == "__main__":
    sys.exit(main())
