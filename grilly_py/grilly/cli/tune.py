"""``grilly tune``: measures the kernels that can serve common shapes on a device, and keeps the winners."""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from dataclasses import dataclass

import numpy as np

from ..compute import Compute
from ..compute.attention.forward import flash_attention
from ..compute.device.dtypes import dtype_of
from ..compute.device.trial import pin, request_of, view_of
from ..compute.matmul.linear import linear
from ..compute.selfcheck import comparing
from ..errors import ClosedError, DeviceLostError, GrillyError, OutOfDeviceMemoryError
from ..registry import DTYPES, Choice, Registry, Request
from . import CommandError
from .common import add_device, numbers, open_backend
from .output import Progress, facts, heading, table, time_text

OPERATIONS = ("attention", "linear")
#: (B, H, Sq, Sk, D) of attention and (M, N, K) of linear that are measured where no shape is given, by device.
SHAPES = {
    "gpu": (
        *((4, 32, 4096, 4096, dim) for dim in (64, 128)), *((8, 16, 1024, 1024, dim) for dim in (64, 80, 96, 128)),
        (4, 16, 2048, 2048, 256), (1, 8, 128, 128, 64), (4096, 4096, 4096), (512, 4096, 4096), (16, 4096, 4096),
    ),
    "cpu": ((1, 8, 512, 512, 64), (1, 8, 256, 256, 128), (512, 512, 512), (16, 512, 512)),
}  # fmt: skip
QUICK = {
    "gpu": ((4, 32, 4096, 4096, 64), (4, 32, 4096, 4096, 128), (4096, 4096, 4096)),
    "cpu": ((1, 4, 128, 128, 64), (64, 256, 256)),
}
#: A kernel this much slower than the fastest one so far is timed twice only.
HOPELESS = 5.0
#: Kernels within this factor of the fastest are timed again, in so many turns.
FINAL, TURNS = 1.3, 5
#: Seconds for which a GPU is kept busy before it is timed.
WARM = 0.4
#: The present choice stays where the fastest kernel is no faster than by this, so that noise changes nothing.
MARGIN = 1.02
#: Query rows at either end that are compared with the naive kernel's.
CHECKED = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_device(parser)
    parser.add_argument(
        "--shape",
        action="append",
        type=_shape,
        metavar="B,H,Sq,Sk,D|M,N,K",
        help="an attention call or a matrix product; may be repeated (default: a set of common ones)",
    )
    parser.add_argument("--operation", choices=OPERATIONS, help="only this operation")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        action="append",
        help="element type; may be repeated (default: all that the device has kernels for)",
    )
    parser.add_argument(
        "--causal",
        action="store_true",
        help="measure causal attention; its winners serve calls that are not causal too",
    )
    parser.add_argument("--kv-heads", type=int, metavar="N", help="key heads of --shape (default: as many as H)")
    parser.add_argument(
        "--precision",
        choices=("highest", "high"),
        help="of float32 products: high measures kernels that split float32 (default: the operation's)",
    )
    parser.add_argument("--quick", action="store_true", help="fewer shapes, and less time for each")
    parser.add_argument("--show", action="store_true", help="print the winners kept for this device, measure nothing")
    parser.add_argument("--reset", action="store_true", help="forget the winners kept for this device")  # fmt: skip


def _shape(text: str) -> tuple[int, ...]:
    found = numbers(text)
    if len(found) not in (3, 5):
        raise argparse.ArgumentTypeError(f"{text!r}: expected B,H,Sq,Sk,D or M,N,K")
    if math.prod(found) >= 2**60:
        raise argparse.ArgumentTypeError(f"{text!r}: the shape is too large to be measured")
    return found


def run(args: argparse.Namespace) -> int:
    """Measure, show or forget; 1 when a kernel computed wrongly."""
    if args.show or args.reset:
        with open_backend(args) as backend:
            return (_reset if args.reset else _show)(backend.registry)
    if args.kv_heads is not None and args.kv_heads < 1:
        raise CommandError(f"--kv-heads is {args.kv_heads}; expected at least 1")
    for shape in args.shape or ():
        if len(shape) == 5 and shape[4] > 256:
            raise CommandError(f"--shape {_text(shape)}: head dimensions go from 1 to 256")
        if len(shape) == 5 and args.kv_heads and shape[1] % args.kv_heads:
            raise CommandError(f"--kv-heads {args.kv_heads}: the {shape[1]} heads must be a multiple of it")
    with open_backend(args) as backend:
        if "timestamps" not in backend.runtime.features:
            raise CommandError(f"{backend.device.name} has no timestamps through the {backend.runtime.name} runtime")
        heading(f"Kernels on {backend.device.name} ({backend.registry.architecture}), {backend.runtime.name} runtime")
        return _tune(args, backend)


@dataclass
class Measured:
    """One kernel on one shape: median device seconds of a call, or why there are none."""

    choice: Choice
    seconds: float | None = None
    fault: str | None = None
    runs: int = 0


def _tune(args: argparse.Namespace, backend: Compute) -> int:
    kind = "cpu" if backend.device.kind == "cpu" else "gpu"
    shapes = args.shape or (QUICK if args.quick else SHAPES)[kind]
    names = {3: "linear", 5: "attention"}
    shapes = [shape for shape in shapes if args.operation in (None, names[len(shape)])]
    problems = list(itertools.product(args.dtype or DTYPES, shapes))
    progress, wrong, kept = Progress(), False, 0
    if not shapes:
        raise CommandError(f"none of the shapes is one of {args.operation}")
    for number, (dtype, shape) in enumerate(problems, 1):
        what = f"{names[len(shape)]} {_text(shape)} {dtype}{', causal' if args.causal and len(shape) == 5 else ''}"
        label = f"{number}/{len(problems)} {what}"
        progress.say(label)
        try:
            problem = Problem(backend, shape, dtype, args.causal, args.kv_heads, args.precision)
            choices = backend.registry.candidates(problem.request)
            if not choices:
                raise CommandError(f"no kernel for {dtype}")
            results = _measure(problem, choices, 0.2 if args.quick else 1.0, progress, label)
        except (OutOfDeviceMemoryError, CommandError, ImportError) as error:
            progress.done()
            if args.shape or not isinstance(error, OutOfDeviceMemoryError):
                print(f"\n{what}: left out: {error}")
            continue
        progress.done()
        wrong |= any(result.fault for result in results)
        kept += _conclude(backend.registry, problem, results, what)
    if kept:
        print(f"\n{kept} winners kept in {backend.registry.winners.path}; grilly tune --show lists them")
    return 1 if wrong else 0


class Problem:
    """A call with random normal inputs on the device, and the rows by which its results are judged."""

    def __init__(self, backend: Compute, shape, dtype: str, causal: bool, kv_heads: int | None, precision: str | None):
        self.view = Compute.over(view_of(backend.opened))
        self.shape, self.dtype, self.causal = shape, dtype, causal
        self.precision = {} if precision is None else {"precision": precision}
        rng = np.random.default_rng(list(shape))
        if len(shape) == 5:
            batch, heads, queries, keys, dim = shape
            kv = (batch, kv_heads or heads, keys, dim)
            extents = ((batch, heads, queries, dim), kv, kv)
            seen = sum(max(0, min(keys, i + 1 + keys - queries)) for i in range(queries)) if causal else queries * keys
            self.flops = 4.0 * batch * heads * seen * dim
        else:
            rows, cols, depth = shape
            extents = ((rows, depth), (cols, depth))
            self.flops = 2.0 * rows * cols * depth
        kind = dtype_of(dtype)
        self.tensors = [self.view.tensor(rng.standard_normal(e, dtype=np.float32).astype(kind)) for e in extents]
        request = request_of(self.view.opened, self.call)
        assert request is not None
        #: What the plan asks the registry for.
        self.request: Request = request

    def call(self, tensors=None, **options):
        """The operation on these tensors, the problem's own by default."""
        tensors = self.tensors if tensors is None else tensors
        if len(self.shape) == 5:
            options = {"causal": self.causal, **self.precision, **options}
            return flash_attention("tune", self.view.opened, *tensors, **options)
        return linear(self.view.opened, *tensors, **self.precision)

    def judge(self):
        """A function that says what is wrong with a result of ``call``, by the kernels that need no proof."""
        return self._judge_attention() if len(self.shape) == 5 else self._judge_linear()

    def _judge_attention(self):
        q, k, v = self.tensors
        queries, keys = q.shape[2], k.shape[2]
        naive = comparing.proven(
            self.view.opened, "attention", self.dtype,
            {**dict(self.request.problem), "rows": CHECKED}, comparing.NAIVE,
        )  # fmt: skip
        rows = min(queries, CHECKED)
        # The first and the last rows of the first batch, with the keys that bottom-right alignment gives them.
        first = keys - queries + rows if self.causal else keys
        parts = [(slice(queries - rows, queries), keys), *([(slice(0, rows), first)] if first > 0 else [])]
        expected = []
        pin(self.view.opened, naive)
        for where, count in parts:
            some = [q[:1, :, where], k[:1, :, :count], v[:1, :, :count]]
            expected.append((where, self.call(some, kernel=comparing.NAIVE).numpy(), np.abs(some[2].numpy())))

        def judge(out):
            for where, exact, values in expected:
                # The sum of an output's terms is at most the largest value of its column.
                most = np.repeat(values.max(2, keepdims=True), q.shape[1] // k.shape[1], axis=1).astype(np.float64)
                bound = comparing.attention_bound(most, 8.0, self.dtype)
                off = comparing.difference(out[:1, :, where].numpy(), exact, bound, self.dtype)
                if off is not None:
                    return off
            return None

        return judge

    def _judge_linear(self):
        x, weight = self.tensors
        other = comparing.proven(self.view.opened, "linear", self.dtype, dict(self.request.problem))
        rows = min(x.shape[0], CHECKED)
        pin(self.view.opened, other)
        some = x[x.shape[0] - rows :]
        exact = self.call([some, weight]).numpy()
        wide = [np.abs(t.numpy().astype(np.float64)) for t in (some, weight)]
        bound = comparing.product_bound(exact.astype(np.float64), wide[0] @ wide[1].T, self.dtype)
        return lambda out: comparing.difference(out[-rows:].numpy(), exact, bound, self.dtype)


def _measure(problem: Problem, choices, seconds: float, progress: Progress, label: str) -> list[Measured]:
    """Check each kernel's result, then time it for about ``seconds``."""
    judge, results, best = problem.judge(), [], float("inf")
    for number, choice in enumerate(choices, 1):
        progress.say(f"{label}: {number}/{len(choices)} {choice.variant.label}")
        result = Measured(choice)
        results.append(result)
        pin(problem.view.opened, choice)
        try:
            result.fault = judge(problem.call())  # also warms up: the pipeline is made
            if result.fault is None:
                result.seconds, result.runs = _time(problem, seconds, HOPELESS * best)
        except (DeviceLostError, OutOfDeviceMemoryError, ClosedError):
            raise
        except GrillyError as error:
            result.fault = str(error).splitlines()[0]
        best = min(best, result.seconds or best)
    # The first pass meets each kernel at another clock and temperature. What may win is timed once more, in turns.
    final = [r for r in results if r.seconds and r.seconds <= FINAL * best]
    if len(final) > 1:
        times: dict[int, list[float]] = {id(r): [] for r in final}
        for turn in range(TURNS):
            progress.say(f"{label}: turn {turn + 1}/{TURNS} of the fastest {len(final)}")
            for r in final:
                pin(problem.view.opened, r.choice)
                _warm(problem, WARM if turn == 0 and r is final[0] else 0.0)
                times[id(r)] += _times(problem, seconds / TURNS, 10)
        for r in final:
            r.seconds, r.runs = statistics.median(times[id(r)]), r.runs + len(times[id(r)])
    return results


def _warm(problem: Problem, seconds: float) -> None:
    """Call without a pause for so long: a device at rest has a clock of a sixth, and needs a while to raise it."""
    began = time.perf_counter()
    for n in itertools.count():
        if problem.view.device.kind == "cpu" or (n >= 3 and time.perf_counter() - began > seconds):
            break
        problem.call()
        if n % 4 == 3:
            problem.view.synchronize()
    problem.view.synchronize()


def _times(problem: Problem, seconds: float, most: int) -> list[float]:
    """Device seconds of up to ``most`` calls in a row, in about ``seconds``."""
    began, times = time.perf_counter(), []
    while len(times) < most and (not times or time.perf_counter() - began < seconds):
        with problem.view.profile() as profile:
            problem.call()
        times.append(profile.seconds)
    return times


def _time(problem: Problem, seconds: float, hopeless: float) -> tuple[float, int]:
    """Median device seconds of a call, and of how many: 1 or 2 past ``hopeless``, else up to 50."""
    times = _times(problem, 0.0, 1)
    if times[0] > 10 * hopeless:
        return times[0], 1
    _warm(problem, WARM)
    times = _times(problem, 0.0, 2)
    if min(times) > hopeless:  # twice, as any one may be disturbed
        return min(times), 2
    times += _times(problem, 4 * seconds, 3)
    times += _times(problem, seconds, 45)
    return statistics.median(times), len(times)


def _conclude(registry: Registry, problem: Problem, results: list[Measured], what: str) -> int:
    """Print one shape's table and keep its winner; returns the number kept."""
    present = registry.resolve(problem.request).variant
    timed = sorted((r for r in results if r.seconds), key=lambda r: r.seconds)
    winner = timed[0] if timed else None
    own = next((r for r in timed if r.choice.variant is present), None)
    if own is not None and own.seconds <= MARGIN * winner.seconds:
        winner = own
    heading(what)
    notes = {present.name: ["used now"]}
    if winner is not None:
        notes.setdefault(winner.choice.variant.name, []).append("winner")
    rows = []
    for r in [*timed, *(r for r in results if not r.seconds)]:
        said = ", ".join([*notes.get(r.choice.variant.name, ()), *([f"WRONG: {r.fault}"] if r.fault else [])])
        rate = f"{problem.flops / r.seconds / 1e12:.3g}" if r.seconds else None
        rows.append((r.choice.variant.label, time_text(r.seconds), rate, r.runs or None, said))
    table(("kernel", "device time", "TFLOP/s", "runs", "note"), rows, right=("device time", "TFLOP/s", "runs"))
    if winner is None:
        return 0
    try:
        registry.remember(problem.request, winner.choice, winner.seconds, what)
    except OSError as error:
        raise CommandError(f"{registry.winners.path} cannot be written: {error.strerror}") from error
    return 1


def _show(registry: Registry) -> int:
    entries = registry.winners.entries
    if not entries:
        print(f"Nothing was measured on {registry.device.name} with this driver; grilly tune does")
        return 0
    heading(f"Winners on {registry.device.name}, driver {registry.device.driver_version}")
    winners_table(registry)
    facts({"kept in": registry.winners.path})
    return 0


def winners_table(registry: Registry) -> None:
    """Print the winners kept for a device, and which of them no longer stand."""
    rows = []
    for _, entry in sorted(registry.winners.entries.items()):
        stands = entry["shaders"] == registry.shaders(entry["operation"], entry["dtype"])
        sizes = " ".join(f"{name} {value}" for name, value in entry["facts"].items())
        label = entry["variant"].removesuffix(f".{entry['dtype']}")
        rows.append((
            entry["operation"], entry["dtype"], sizes, label, time_text(entry["seconds"]), entry["day"],
            entry["shape"] if stands else "not used: the kernels have changed since",
        ))  # fmt: skip
    table(("operation", "dtype", "for", "kernel", "device time", "measured", "on"), rows, right=("device time",))


def _reset(registry: Registry) -> int:
    try:
        found = registry.forget_winners()
    except OSError as error:
        raise CommandError(f"{registry.winners.path} cannot be deleted: {error.strerror}") from error
    print(f"{'Forgotten' if found else 'There was nothing to forget'}: the winners on {registry.device.name}")
    return 0


def _text(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"
