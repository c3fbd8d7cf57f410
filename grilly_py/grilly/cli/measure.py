"""What ``grilly bench`` measures: the methods, their timing, memory and error, and where naive attention ends.

A method is timed from the call to the completion of its result, on inputs that lie where the method wants them.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .. import reference
from ..compute import Compute
from ..compute.device.dtypes import dtype_of, epsilon
from ..errors import GrillyError

#: Elements of the float64 score matrix that the check of a result may make; more rows than fit are sampled.
CHECK_ELEMENTS = 1 << 23
#: Bytes of scores from which naive attention is not tried on the host.
HOST_BYTES = 4 << 30


@dataclass(frozen=True)
class Problem:
    """One attention call of the benchmark: random normal inputs ``(batch, heads, length, dim)``."""

    batch: int
    heads: int
    length: int
    dim: int
    causal: bool
    dtype: str

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q, k and v, the same for the same problem."""
        rng = np.random.default_rng([self.length, self.dim])
        shape = (self.batch, self.heads, self.length, self.dim)
        return tuple(rng.standard_normal(shape, dtype=np.float32).astype(dtype_of(self.dtype)) for _ in range(3))

    @property
    def flops(self) -> float:
        """Floating-point operations of the two products: 4 D for each pair of a query and a key that it may see."""
        pairs = self.length * (self.length + 1) // 2 if self.causal else self.length**2
        return 4.0 * self.batch * self.heads * pairs * self.dim

    def operand_bytes(self, length: int | None = None) -> int:
        """Bytes of q, k, v and the output, at this or another length."""
        length = self.length if length is None else length
        return 4 * self.batch * self.heads * length * self.dim * dtype_of(self.dtype).itemsize

    def score_bytes(self, length: int | None = None) -> int:
        """Bytes of one float32 score matrix of all heads, at this or another length."""
        length = self.length if length is None else length
        return 4 * self.batch * self.heads * length**2


class Check:
    """The float64 result of a problem for some rows of queries, against which every method's output is held."""

    def __init__(self, problem: Problem, q: np.ndarray, k: np.ndarray, v: np.ndarray):
        batch, heads, length, _ = q.shape
        most = max(CHECK_ELEMENTS // (batch * heads * length), 1)
        #: Numbers of the rows that are compared: all, or evenly spread ones with the first and last.
        self.rows = np.unique(np.linspace(0, length - 1, min(most, length)).round().astype(int))
        mask = np.arange(length) <= self.rows[:, None] if problem.causal else None
        part = q[:, :, self.rows]
        self.exact, _ = reference.naive_attention(part, k, v, mask=mask, dtype=np.float64)
        with reference.portable():  # what is wrong must not depend on this machine's BLAS
            single, _ = reference.naive_attention(part, k, v, mask=mask, dtype=np.float32)
        single = single.astype(q.dtype).astype(np.float64)
        #: Largest error of plain float32, the same on every processor, rounded to the inputs' dtype.
        self.plain_error = float(np.abs(single - self.exact).max())
        terms, _ = reference.naive_attention(part, k, np.abs(v), mask=mask, dtype=np.float64)
        #: The error from which a result counts as wrong: twice plain float32's (a random number too), and one rounding
        #: of the largest sum of absolute terms behind an output. tests/cases.py judges alike.
        self.limit = 2 * self.plain_error + epsilon(q.dtype) * float(terms.max())

    def error(self, output: np.ndarray) -> float:
        """Largest difference of ``output`` (B, H, S, D) from the float64 result on the rows checked."""
        return float(np.abs(output[:, :, self.rows].astype(np.float64) - self.exact).max())


@dataclass(frozen=True)
class Method:
    """One way to compute attention.

    ``prepare(problem, q, k, v)`` gives a function without arguments that computes and returns the result, complete, in
    the method's own kind of array. ``fetch`` makes NumPy of it. ``backend`` is set where device memory and device time
    can be measured.
    """

    name: str
    prepare: Callable[[Problem, np.ndarray, np.ndarray, np.ndarray], Callable[[], object]]
    fetch: Callable[[object], np.ndarray] = np.asarray
    backend: Compute | None = None
    on_device: bool = False
    #: How many times `Check.limit` its error may be. Others choose their own accuracy, which the report shows.
    slack: float = 1.0


def device_methods(backend: Compute) -> list[Method]:
    """Flash attention on tensors and on NumPy arrays, and attention by way of the whole score matrix."""
    attention = backend.attention

    def flash(problem, q, k, v):
        tensors = [backend.tensor(array) for array in (q, k, v)]

        def call():
            out = attention.flash_attention2(*tensors, causal=problem.causal)
            backend.synchronize()
            return out

        return call

    def flash_numpy(problem, q, k, v):
        return lambda: _on(backend, q, k, v, problem.causal)

    def naive(problem, q, k, v):
        tensors = [backend.tensor(array) for array in (q, k, v)]

        def call():
            scores = attention.attention_scores(tensors[0], tensors[1])
            if problem.causal:
                scores = attention.attention_mask(scores, causal=True)
            weights = attention.softmax(scores)
            del scores
            out = attention.attention_output(weights, tensors[2])
            backend.synchronize()
            return out

        return call

    fetch = lambda tensor: tensor.numpy()  # noqa: E731
    return [
        Method("flash", flash, fetch, backend, True),
        Method("flash, NumPy in and out", flash_numpy, np.asarray, backend),
        Method("naive on the device", naive, fetch, backend, True),
    ]


def _on(backend: Compute, q, k, v, causal: bool) -> np.ndarray:
    return backend.attention.flash_attention2(q, k, v, causal=causal)


def numpy_method() -> Method:
    """``grilly.reference.naive_attention``, in float32 whatever the inputs are."""

    def naive(problem, q, k, v):
        q, k, v = (array.astype(np.float32, copy=False) for array in (q, k, v))
        return lambda: reference.naive_attention(q, k, v, causal=problem.causal)[0]

    return Method("naive in NumPy", naive)


def torch_methods() -> list[Method]:
    """PyTorch's scaled_dot_product_attention on the processor, and on CUDA where there is one; none without PyTorch."""
    try:
        import torch
    except ImportError:
        return []

    def fetch(tensor):
        return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).cpu().numpy()

    def on(place):
        def prepare(problem, q, k, v):
            kind = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}[q.dtype.name]
            if kind is torch.bfloat16:
                q, k, v = (array.view(np.int16) for array in (q, k, v))  # torch takes NumPy's own types only
            tensors = [torch.from_numpy(array).view(kind).to(place) for array in (q, k, v)]

            def call():
                with torch.inference_mode():
                    out = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=problem.causal)
                if place == "cuda":
                    torch.cuda.synchronize()
                return out

            return call

        return Method(f"torch on {place}", prepare, fetch, slack=16.0)

    return [on("cpu"), *([on("cuda")] if torch.cuda.is_available() else [])]


@dataclass
class Result:
    """What was measured of a method on a problem. Seconds and bytes; None where it was not measured.

    ``skipped`` says why nothing was measured, ``failed`` that the result was wrong or could not be computed.
    ``device_bytes`` is the peak of device memory with inputs and output; ``computed_bytes`` says that it is what the
    method would need, not what it was seen to use.
    """

    method: str
    length: int
    times: list[float] | None = None
    device_seconds: float | None = None
    device_bytes: int | None = None
    computed_bytes: bool = False
    saved_percent: float | None = None
    error: float | None = None
    gflops: float | None = None
    rows_checked: int | None = None
    skipped: str | None = None
    failed: str | None = None

    def quantile(self, fraction: float) -> float | None:
        """A quantile of the times by linear interpolation; 0.5 is the median."""
        return None if not self.times else float(np.quantile(self.times, fraction))

    def as_dict(self) -> dict:
        """The result for JSON: the measured values with their spread."""
        named = {key: value for key, value in vars(self).items() if key != "times"}
        return {
            **named,
            "median_seconds": self.quantile(0.5),
            "p10_seconds": self.quantile(0.1),
            "p90_seconds": self.quantile(0.9),
            "repeats": len(self.times or ()),
        }


def measure(method: Method, problem: Problem, arrays, check: Check, repeat: int, max_seconds: float) -> Result:
    """Check a method's result, then time it: ``repeat`` calls, or fewer (one at least) to stay near ``max_seconds``."""
    result = Result(method.name, problem.length)
    try:
        _measure(result, method, problem, arrays, check, repeat, max_seconds)
    except (GrillyError, MemoryError) as error:
        result.failed = str(error) or type(error).__name__
    gc.collect()
    return result


def _measure(result: Result, method: Method, problem: Problem, arrays, check: Check, repeat, max_seconds) -> None:
    backend = method.backend
    gc.collect()
    before = backend.memory(reset_peak=True).in_use if backend else 0
    call = method.prepare(problem, *arrays)
    output = call()  # also warms up: pipelines are made, pages are touched
    if backend:
        result.device_bytes = backend.memory().peak - before
    result.error = check.error(method.fetch(output))
    result.rows_checked = len(check.rows)
    if not result.error <= check.limit * method.slack:  # NaN too
        result.failed = f"wrong: error {result.error:.2g}, plain float32's {check.plain_error:.2g}"
        return
    del output
    result.times = []
    began = time.perf_counter()
    while len(result.times) < repeat:
        start = time.perf_counter()
        call()
        result.times.append(time.perf_counter() - start)
        if time.perf_counter() - began > max_seconds:
            break
    result.gflops = problem.flops / result.quantile(0.5) / 1e9
    if method.on_device and "timestamps" in backend.runtime.features:
        seconds = []
        for _ in range(3 if 3 * result.quantile(0.5) < max_seconds else 1):
            with backend.profile() as profile:
                call()
            seconds.append(profile.seconds)
        result.device_seconds = statistics.median(seconds)


def naive_bytes(problem: Problem, length: int | None = None) -> int:
    """Device bytes of naive attention at its peak: inputs and weights, with the scores before or the output after."""
    operand, scores = problem.operand_bytes(length) // 4, problem.score_bytes(length)
    return 3 * operand + scores + max(scores, operand)


def first_length(problem: Problem, fits: Callable[[int], bool]) -> int:
    """The smallest length for which ``fits`` is False; it must be True below and False above."""
    low, high = 0, 1
    while fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return high


def naive_limits(problem: Problem, device) -> dict:
    """From which length naive attention no longer fits a device, for each reason, and flash attention likewise.

    The lengths are computed from what the driver reports, not tried.
    """
    memory, allocation = device.memory_bytes, device.limits["allocation"]
    return {
        "memory_bytes": memory,
        "naive_memory": first_length(problem, lambda s: naive_bytes(problem, s) <= memory),
        "naive_allocation": first_length(problem, lambda s: problem.score_bytes(s) <= allocation),
        "naive_one_head_binding": first_length(problem, lambda s: 4 * s * s <= device.limits["storage_range"]),
        "flash_memory": first_length(problem, lambda s: problem.operand_bytes(s) <= memory),
    }
