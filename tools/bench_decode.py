#!/usr/bin/env python3
"""Times decoding (few queries over many keys) on the chosen device, beside torch where it is installed.

    python tools/bench_decode.py                 the cases as the registry does them, and torch
    python tools/bench_decode.py --sweep         also other tile sizes, splits and loads in flight of flash-decode
    python tools/bench_decode.py --cases b16 b1 --dtype bfloat16 --no-torch
    python tools/bench_decode.py --few           several queries and a chunk of a prefill, all causal: a line a kernel
    python tools/bench_decode.py --candidates    one short line for each kernel and setting in question, B = 16 and 1

Every case reads keys and values out of two arrays of --megabytes each, another part at every call, so that no cache
holds them. Figures: device time of a call in a row of calls, by timestamps around the row (median of five), and of a
call alone; bytes of keys and values read by the first; the time of one call and of each of many calls in a row, as
Python issues them; and the largest error against float64 over the first batch and key head.
torch: each kernel that takes the case: a row of calls in a CUDA graph, and per call.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import statistics
import time
from dataclasses import dataclass

import numpy as np

import grilly
from bench_calls import torch_with_gpu
from grilly import reference
from grilly.cli.common import measured_on
from grilly.compute.attention.decode import FAMILY
from grilly.compute.attention.forward import flash_attention
from grilly.compute.attention.kvcache import flash_attention_with_kvcache
from grilly.compute.attention.plan import planned
from grilly.compute.device.trial import pin, view_of
from grilly.registry import Request
from measured import add_json, write


@dataclass(frozen=True)
class Case:
    """(batch, heads, kv_heads, queries, keys, dim); ``sweep``: the other settings are tried on it."""

    name: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    sweep: bool = False


CASES = [
    Case("b16", 16, 32, 8, 1, 8192, 128, True),
    Case("b1", 1, 32, 8, 1, 8192, 128, True),
    Case("b4", 4, 32, 8, 1, 8192, 128),
    Case("b1-1k", 1, 32, 8, 1, 1024, 128),
    Case("b16-1k", 16, 32, 8, 1, 1024, 128),
    Case("b1-64k", 1, 32, 8, 1, 65536, 128),
    Case("b16-d64", 16, 32, 8, 1, 8192, 64),
    Case("b16-mha", 8, 16, 16, 1, 8192, 128),
    Case("b16-group8", 16, 64, 8, 1, 8192, 128, True),
    Case("b1-q4", 1, 32, 8, 4, 8192, 128),
    Case("b1-q16", 1, 32, 8, 16, 8192, 128),
    Case("b1-q64-few", 1, 4, 4, 64, 8192, 128),
    Case("b1-q128-few", 1, 8, 8, 128, 8192, 128),
    Case("b4-q8", 4, 32, 8, 8, 8192, 128),
]
# Settings of the data file, and `threads`, one or two changed at a time.
SWEEP = [
    {"resident": 2}, {"resident": 4}, {"resident": 16}, {"resident": 32}, {"resident": 64},
    {"keys": 128}, {"keys": 128, "resident": 32}, {"keys": 64, "resident": 32}, {"keys": 512},
    {"stages": 1}, {"words": 2}, {"words": 2, "stages": 1}, {"words": 8}, {"words": 8, "stages": 1},
    {"columns": 16}, {"columns": 16, "words": 2}, {"columns": 16, "threads": 64, "resident": 16},
    {"rows": 8}, {"rows": 8, "words": 2}, {"rows": 2}, {"threads": 64},
    {"threads": 64, "resident": 16},
    {"threads": 256}, {"threads": 256, "resident": 4},
]  # fmt: skip

# For --candidates, by batch: (variant, settings) to decide between; {} is the data file's. `resident`, workgroups of a
# round for each multiprocessor, decides how many splits there are.
VECTOR, MATRIX = "flash-decode.split16", "flash-decode-matrix.quads.d128"
CANDIDATES = {
    16: [
        (VECTOR, {}), (MATRIX, {}), (MATRIX, {"stages": 1}), (MATRIX, {"stages": 3}),
        (MATRIX, {"resident": 2}), (MATRIX, {"resident": 2, "stages": 3}),
        (MATRIX, {"threads": 64, "resident": 4}), (MATRIX, {"threads": 64, "resident": 5}),
        (MATRIX, {"threads": 256, "resident": 1}), (MATRIX, {"threads": 256, "resident": 2}),
        (MATRIX, {"threads": 32, "resident": 10}),
    ],
    1: [
        (VECTOR, {}), (MATRIX, {}), (MATRIX, {"stages": 2, "ahead": 0}), (MATRIX, {"stages": 3, "ahead": 0}),
        (MATRIX, {"threads": 256, "resident": 1, "stages": 3, "ahead": 0}), (MATRIX, {"threads": 256, "resident": 1}),
        (MATRIX, {"threads": 64, "resident": 4, "keys": 128}),
        (MATRIX, {"threads": 64, "resident": 5, "keys": 128, "stages": 3, "ahead": 0}),
        (MATRIX, {"threads": 512, "resident": 1}), (MATRIX, {"rows": 2, "resident": 4}),
    ],
}  # fmt: skip

WARM_SECONDS = 0.5  # a device at rest has a sixth of its clock


def median(values) -> float:
    return statistics.median(values)


class Bench:
    """Two large arrays of keys and values on the device, and the host's copy of them."""

    def __init__(self, backend, dtype: str, megabytes: int):
        self.backend = backend
        self.dtype = np.dtype(dtype) if dtype != "bfloat16" else __import__("ml_dtypes").bfloat16
        self.elements = megabytes * 1_000_000 // 2**20 * 2**20 // np.dtype(self.dtype).itemsize
        rng = np.random.default_rng(0)
        block = rng.standard_normal(2**24 + 4096, dtype=np.float32).astype(self.dtype)
        # Blocks of unlike beginnings: no two heads hold the same numbers in the same place.
        starts = range(0, -(-self.elements // 2**24))
        self.host = [
            np.concatenate([block[64 * (i + shift) % 4096 :][: 2**24] for i in starts])[: self.elements]
            for shift in (0, 17)
        ]
        self.device = [backend.tensor(array) for array in self.host]
        self.queries = rng.standard_normal((128, 64, 64, 256), dtype=np.float32)
        self.results: list[dict] = []

    def keep(self, case: Case, setting: str, seconds: float, **more) -> None:
        """A result: the device's seconds of a call of the case, in a row of such calls."""
        self.results.append({"case": case.name, "setting": setting, "seconds": seconds, **more})

    def parts(self, case: Case, arrays, make_query):
        """(q, k, v) for each part of the arrays that makes a call of the case."""
        size = case.batch * case.kv_heads * case.keys * case.dim
        count = min(self.elements // size, 64)
        if count == 0:
            return []
        shape = (count * case.batch, case.kv_heads, case.keys, case.dim)
        k, v = (a[: count * size].reshape(shape) for a in arrays)
        q = self.queries[: case.batch, : case.heads, : case.queries, : case.dim].astype(self.dtype)
        q = make_query(np.ascontiguousarray(q))
        return [(q, k[i * case.batch : (i + 1) * case.batch], v[i * case.batch : (i + 1) * case.batch])
                for i in range(count)]  # fmt: skip

    def exact(self, case: Case):
        """The float64 output of the first batch and key head."""
        group = case.heads // case.kv_heads
        q, k, v = self.parts(case, self.host, np.asarray)[0]
        q, k, v = (a.astype(np.float64) for a in (q[:1, :group], k[:1, :1], v[:1, :1]))
        return reference.naive_attention(q, k, v, dtype=np.float64)[0]

    def error(self, case: Case, out, exact) -> float:
        return float(np.abs(out[:1, : case.heads // case.kv_heads].astype(np.float64) - exact).max())


def keys_bytes(case: Case, itemsize: int) -> int:
    return 2 * case.batch * case.kv_heads * case.keys * case.dim * itemsize


def measure(bench: Bench, case: Case, exact, label: str, repeats: int, kernel=None, short=False) -> None:
    """``short``: a line of device time only."""
    backend = bench.backend
    parts = bench.parts(case, bench.device, backend.tensor)
    run = functools.partial(flash_attention, "bench_decode", backend.opened)
    out = run(*parts[0], kernel=kernel).numpy()
    error = bench.error(case, out, exact)
    turns = list(itertools.islice(itertools.cycle(parts), repeats))
    start = time.perf_counter()
    while time.perf_counter() - start < WARM_SECONDS:
        run(*turns[0], kernel=kernel)
        backend.synchronize()
    with backend.profile() as profile:
        for part in turns:
            run(*part, kernel=kernel)
    each = len(profile.timings) // len(turns)  # kernels other than the split ones may be of several dispatches
    calls = [profile.timings[i : i + each] for i in range(0, len(profile.timings), each)]
    alone = median([sum(t.seconds for t in call) for call in calls])
    rows = []
    for _ in range(5):
        with backend.profile(by="row") as profile:
            for part in turns:
                run(*part, kernel=kernel)
        rows.append(profile.seconds / len(turns))
    device = median(rows)
    bench.keep(case, label, device, alone=alone, error=error)
    if short:
        rate = keys_bytes(case, np.dtype(bench.dtype).itemsize) / device / 1e9
        groups = groups_of(backend)
        figures = f"{device * 1e6:6.1f} us, alone {alone * 1e6:6.1f}  {rate:5.0f} GB/s  error {error:.1e}  {groups}"
        print(f"  {label:58} {figures}", flush=True)
        return
    one = []
    for part in turns:
        start = time.perf_counter()
        run(*part, kernel=kernel)
        backend.synchronize()
        one.append(time.perf_counter() - start)
    issue = []
    start = time.perf_counter()
    for part in turns:
        begin = time.perf_counter()
        run(*part, kernel=kernel)
        issue.append(time.perf_counter() - begin)
    backend.synchronize()
    row = (time.perf_counter() - start) / len(turns)
    rate = keys_bytes(case, np.dtype(bench.dtype).itemsize) / device / 1e9
    groups = groups_of(backend, "attention-decode")
    print(
        f"  {label:34} device {device * 1e6:8.1f} us, alone {alone * 1e6:6.1f} {rate:7.0f} GB/s  "
        f"call {median(one) * 1e6:7.1f} issue {median(issue) * 1e6:6.1f} in a row {row * 1e6:7.1f} us  "
        f"error {error:.1e}  groups {groups}",
        flush=True,
    )


def groups_of(backend, operation: str | None = None):
    """Workgroups of the first dispatch of the latest plan of attention, or of the latest of an operation."""
    steps = [found.plan.steps[0] for found in backend.opened.caches[planned].values()]
    return next((s.groups for s in reversed(steps) if operation in (None, s.choice.variant.operation)), None)


def sweep(bench: Bench, case: Case, exact, repeats: int) -> None:
    backend = bench.backend
    name = np.dtype(bench.dtype).name
    facts = (("align", 16), ("head_dim", case.dim), ("value_dim", case.dim), ("masked", int(case.queries > 1)))
    choice = backend.registry.resolve(Request("attention-decode", name, problem=facts, prefer=FAMILY))
    own = choice.tile, choice.threads
    for change in SWEEP:
        settings = dict(change)
        choice.threads = settings.pop("threads", own[1])
        choice.tile = {**own[0], **settings}
        backend.opened.caches.forget()
        measure(bench, case, exact, " ".join(f"{k} {v}" for k, v in change.items()), repeats, FAMILY)
    choice.tile, choice.threads = own
    backend.opened.caches.forget()


def candidates(bench: Bench, case: Case, exact, repeats: int) -> None:
    """Variants in question, whatever the registry thinks of them: a wrong one shows by its error."""
    backend = bench.backend
    name = np.dtype(bench.dtype).name
    opened = backend.opened
    measure(bench, case, exact, "as chosen", repeats, short=True)
    own, opened.registry = opened.registry, view_of(opened).registry
    known = {v.label: v for v in backend.registry.manifest.by_operation["attention-decode"] if v.dtype == name}
    for label, change in CANDIDATES[case.batch]:
        if label not in known:
            print(f"  {label}: not for {name}")
            continue
        missing = [feature for feature in known[label].requires if feature not in backend.runtime.features]
        if missing:
            print(f"  {label}: the device lacks {', '.join(missing)}")
            continue
        settings = dict(change)
        choice = backend.registry.choice(known[label])
        choice.threads = settings.pop("threads", choice.threads)
        choice.tile = {**choice.tile, **settings}
        told = " ".join([label, *(f"{k} {v}" for k, v in change.items())])
        pin(opened, choice)
        try:
            measure(bench, case, exact, told, repeats, known[label].family, short=True)
        except grilly.GrillyError as problem:
            print(f"  {told}: {str(problem).splitlines()[0][:120]}")
    opened.registry = own
    backend.opened.caches.forget()


# For --few: cases, and of each what is tried: the registry's own choice (""), or a variant and settings of its tile.
BANDS, SPLIT_KV = "flash-decode-matrix.quads-bands.d128", "flash-attention3-split-kv.matrix.d128"
FEW = [
    (Case("five", 8, 32, 8, 5, 8192, 128),
     [("", {}), (BANDS, {"stages": 1}), (BANDS, {"stages": 3}), (BANDS, {"rows": 10}), (BANDS, {"resident": 2}),
      (VECTOR, {})]),
    (Case("one", 8, 32, 8, 1, 8192, 128), [("", {}), (BANDS, {})]),
    (Case("sixteen", 8, 32, 8, 16, 8192, 128), [("", {}), (BANDS, {"rows": 32}), (BANDS, {"rows": 16})]),
    (Case("multi-query", 64, 32, 1, 1, 8192, 128), [("", {})]),
    (Case("chunk", 1, 32, 8, 512, 8192, 128),
     [("", {}), (SPLIT_KV, {"resident": 2}), (SPLIT_KV, {"resident": 4}), ("flash-attention3.matrix-short.d128", {}),
      ("flash-attention3.matrix.d128", {})]),
    (Case("chunk-128", 1, 32, 8, 128, 8192, 128), [("", {}), ("flash-attention3.matrix-short.d128", {})]),
]  # fmt: skip


def pairs(case: Case) -> float:
    """Queries times keys that they see, under a causal mask, of all heads."""
    return case.batch * case.heads * case.queries * (case.keys - (case.queries - 1) / 2)


def few(bench: Bench, seconds: float = 0.25) -> None:
    """Device time of a call in a row, and alone; GB/s of keys and values once, TFLOP/s of what is seen; the error."""
    backend, opened, name = bench.backend, bench.backend.opened, np.dtype(bench.dtype).name
    own, opened.registry = opened.registry, view_of(opened).registry
    known = {v.label: v for v in own.manifest.variants if v.dtype == name}
    for case, tried in FEW:
        parts = bench.parts(dataclasses.replace(case, queries=min(case.queries, 64)), bench.device, backend.tensor)
        if not parts:
            print(f"{case.name}: needs larger arrays (--megabytes)")
            continue
        if case.queries > 64:  # as many as the bench has, again and again
            q = backend.tensor(np.tile(parts[0][0].numpy(), (1, 1, -(-case.queries // 64), 1))[:, :, : case.queries])
            parts = [(q, *part[1:]) for part in parts]
        exact = few_exact(bench, case, parts[0][0].numpy())
        print(case, flush=True)
        for label, change in tried:
            if label and label not in known:
                print(f"  {label}: not for {name}")
                continue
            choice = own.choice(known[label]) if label else None
            if choice is not None:
                choice.tile = {**choice.tile, **change}
            pin(opened, choice)
            kernel = known[label].family if label else None

            def run(part, kernel=kernel):
                return flash_attention("bench_decode", backend.opened, *part, causal=True, kernel=kernel)

            told = " ".join([label or "as chosen", *(f"{k} {v}" for k, v in change.items())])
            try:
                error = bench.error(case, run(parts[0]).numpy(), exact)
                start = time.perf_counter()
                while time.perf_counter() - start < seconds:
                    run(parts[0])
                    backend.synchronize()
                rows, turns = [], list(itertools.islice(itertools.cycle(parts), 20))
                with backend.profile() as profile:
                    for part in turns:
                        run(part)
                alone = sum(t.seconds for t in profile.timings) / len(turns)
                for _ in range(5):
                    with backend.profile(by="row") as profile:
                        for part in turns:
                            run(part)
                    rows.append(profile.seconds / len(turns))
            except grilly.GrillyError as problem:
                print(f"  {told}: {str(problem).splitlines()[0][:120]}")
                continue
            device = median(rows)
            bench.keep(case, told, device, alone=alone, error=error)
            seen = 4 * case.dim * pairs(case) / device / 1e12
            rates = f"{keys_bytes(case, 2) / device / 1e9:5.0f} GB/s {seen:4.0f} TFLOP/s"
            steps = [s for found in dict.fromkeys(opened.caches[planned].values()) for s in found.plan.steps]
            what = ", ".join(f"{s.choice.variant.label} {s.groups}" for s in steps[-2:])
            figures = f"{device * 1e6:7.1f} us, alone {alone * 1e6:7.1f} {rates} error {error:.1e}"
            print(f"  {told:50} {figures}  {what}", flush=True)
    opened.registry = own
    opened.caches.forget()


def few_exact(bench: Bench, case: Case, q):
    """The float64 output of the first batch and key head."""
    size = case.batch * case.kv_heads * case.keys * case.dim
    k, v = (a[:size].reshape(case.batch, case.kv_heads, case.keys, case.dim)[:1, :1] for a in bench.host)
    q, k, v = (a.astype(np.float64) for a in (q[:1, : case.heads // case.kv_heads], k, v))
    return reference.naive_attention(q, k, v, causal=True, dtype=np.float64)[0]


def few_torch(bench: Bench) -> None:
    """The same cases by torch's FlashAttention and cuDNN, calls in a row, where torch is installed."""
    torch = torch_with_gpu()
    if torch is None:
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    attend = torch.nn.functional.scaled_dot_product_attention
    kind = getattr(torch, np.dtype(bench.dtype).name)
    for case, _ in FEW:
        shapes = [(case.batch, case.heads, case.queries), *[(case.batch, case.kv_heads, case.keys)] * 2]
        q, k, v = (torch.randn((*shape, case.dim), device="cuda", dtype=kind) for shape in shapes)
        for label, which in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
            hide = None if case.queries == 1 else causal_lower_right(case.queries, case.keys)
            try:
                with sdpa_kernel(which):
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    for n in range(60):
                        if n == 20:
                            begin.record()
                        attend(q, k, v, attn_mask=hide, enable_gqa=True)
                    end.record()
                    torch.cuda.synchronize()
                each = begin.elapsed_time(end) / 40 * 1e3
                bench.keep(case, f"torch {label}", each * 1e-6)
                print(f"  torch {label:6} {case.name:12} {each:7.1f} us in a row", flush=True)
            except RuntimeError as problem:
                print(f"  torch {label} {case.name}: {str(problem).splitlines()[0][:90]}")


def torch_rows(bench: Bench, cases, exacts, repeats: int, short: bool = False) -> None:
    torch = torch_with_gpu()
    if torch is None:
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attend = torch.nn.functional.scaled_dot_product_attention
    name = np.dtype(bench.dtype).name
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {name}")

    def upload(array):
        bits = np.ascontiguousarray(array).view({2: np.int16, 4: np.int32}[array.dtype.itemsize])
        return torch.from_numpy(bits).cuda().view(getattr(torch, name))

    big = [upload(a) for a in bench.host]
    kernels = {"default": None, "flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
               "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}  # fmt: skip
    every = list(kernels.values())[1:]
    if short:
        kernels = {label: kernels[label] for label in ("default", "flash")}
    for case in cases:
        parts = bench.parts(case, big, upload)
        if not parts or exacts.get(case.name) is None:
            continue
        turns = list(itertools.islice(itertools.cycle(parts), repeats))
        print(case)
        for label, which in kernels.items():
            if label == "math" and keys_bytes(case, 2) > 1e8:
                continue

            def run(part, grouped=case.heads != case.kv_heads):
                return attend(*part, enable_gqa=grouped)

            try:
                with sdpa_kernel(which or every):
                    error = bench.error(case, run(parts[0]).float().cpu().numpy(), exacts[case.name])
                    for part in turns:
                        run(part)
                    torch.cuda.synchronize()
                    one = []
                    for part in turns:
                        start = time.perf_counter()
                        run(part)
                        torch.cuda.synchronize()
                        one.append(time.perf_counter() - start)
                    start = time.perf_counter()
                    for part in turns:
                        run(part)
                    torch.cuda.synchronize()
                    row = (time.perf_counter() - start) / len(turns)
                    stream = torch.cuda.Stream()
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.stream(stream):
                        run(parts[0])
                    torch.cuda.synchronize()
                    with torch.cuda.graph(graph, stream=stream):
                        for part in turns:
                            run(part)
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    times = []
                    for _ in range(5):
                        begin.record()
                        graph.replay()
                        end.record()
                        torch.cuda.synchronize()
                        times.append(begin.elapsed_time(end) / 1e3 / len(turns))
                    del graph
            except RuntimeError as problem:
                print(f"  torch {label:28} {str(problem).splitlines()[0][:90]}")
                continue
            device = median(times)
            bench.keep(case, f"torch {label}", device, error=error)
            rate = keys_bytes(case, np.dtype(bench.dtype).itemsize) / device / 1e9
            print(
                f"  torch {label:28} device {device * 1e6:8.1f} us {rate:7.0f} GB/s  call {median(one) * 1e6:7.1f} "
                f"in a row {row * 1e6:7.1f} us  error {error:.1e}",
                flush=True,
            )


def measure_pages(bench: Bench, case: Case, repeats: int, page: int = 256) -> None:
    """A step of decoding over a paged cache, lengths and page table on the device: a key is added, then attended to."""
    backend = bench.backend
    shape = (-1, page, case.kv_heads, case.dim)
    size = page * case.kv_heads * case.dim
    caches = [a[: a.size // size * size].reshape(shape) for a in bench.device]
    each = case.batch * case.keys // page
    count = min(caches[0].shape[0] // each, 64)
    if case.queries > 1 or not count:
        return
    order = np.random.default_rng(1).permutation(count * each).astype(np.int32).reshape(count, case.batch, -1)
    tables = [backend.tensor(table) for table in order]
    lengths = backend.tensor(np.full(case.batch, case.keys - 1, np.int32))
    q = bench.queries[: case.batch, :1, : case.heads, : case.dim].astype(bench.dtype)
    new = np.ascontiguousarray(q[:, :, : case.kv_heads])
    rows = [backend.tensor(np.ascontiguousarray(a)) for a in (q, new, new)]

    def run(table):
        return flash_attention_with_kvcache(backend.opened, rows[0], *caches, *rows[1:], lengths, table)

    out = run(tables[0]).numpy()
    group = case.heads // case.kv_heads
    held = [cache[int(n)].numpy() for cache in caches for n in order[0, 0]]
    k, v = (np.concatenate(part)[None, None, :, 0].astype(np.float64) for part in np.array_split(np.array(held), 2))
    exact = reference.naive_attention(q[:1, :, :group].astype(np.float64).swapaxes(1, 2), k, v, dtype=np.float64)[0]
    error = np.abs(out[:1, :, :group].astype(np.float64).swapaxes(1, 2) - exact).max()
    turns = list(itertools.islice(itertools.cycle(tables), repeats))
    with backend.profile() as profile:
        for table in turns:
            run(table)
    times: dict[str, list[float]] = {}
    for timing in profile.timings:
        times.setdefault(timing.label, []).append(timing.seconds)
    device = sum(sum(seconds) for seconds in times.values()) / len(turns)
    bench.keep(case, f"pages of {page}", device, error=float(error))
    start = time.perf_counter()
    for table in turns:
        run(table)
    backend.synchronize()
    row = (time.perf_counter() - start) / len(turns)
    told = ", ".join(f"{label} {sum(seconds) / len(turns) * 1e6:.1f}" for label, seconds in times.items())
    rate = keys_bytes(case, np.dtype(bench.dtype).itemsize) / device / 1e9
    print(
        f"  cache in pages of {page}: device {device * 1e6:8.1f} us ({told}) {rate:7.0f} GB/s  "
        f"in a row {row * 1e6:7.1f} us  error {error:.1e}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", help=f"of {' '.join(c.name for c in CASES)}")
    parser.add_argument("--dtype", default="float16", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--megabytes", type=int, default=300, help="of each of the two arrays")
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--candidates", action="store_true", help="kernels and settings in question, short lines")
    parser.add_argument("--few", action="store_true", help="several queries, and a chunk of a prefill")
    parser.add_argument("--kernel", help="also time this family, say flash-attention3")
    parser.add_argument("--no-torch", action="store_true")
    add_json(parser)
    options = parser.parse_args()
    if options.candidates and not options.cases:
        options.cases = ["b16", "b1"]
    cases = [c for c in CASES if not options.cases or c.name in options.cases]
    with grilly.Compute(runtime="vulkan") as backend:
        print(f"{backend.device.name}, {backend.device.driver} {backend.device.driver_version}, {options.dtype}")
        bench = Bench(backend, options.dtype, options.megabytes)
        if options.few:
            few(bench)
            if not options.no_torch:
                few_torch(bench)
            return write(options.json, backend, bench.results)
        exacts = {}
        for case in cases:
            if not bench.parts(case, bench.host, np.asarray):
                print(f"{case.name}: needs more than --megabytes {options.megabytes}")
                continue
            exacts[case.name] = bench.exact(case)
            backend.opened.caches.forget()
            print(f"{case}, {keys_bytes(case, np.dtype(bench.dtype).itemsize) / 1e6:.0f} MB of keys and values")
            if options.candidates:
                candidates(bench, case, exacts[case.name], options.repeats)
                continue
            measure(bench, case, exacts[case.name], "as chosen", options.repeats)
            measure_pages(bench, case, options.repeats)
            if options.kernel:
                measure(bench, case, exacts[case.name], options.kernel, max(options.repeats // 10, 3), options.kernel)
            if options.sweep and case.sweep:
                sweep(bench, case, exacts[case.name], max(options.repeats // 2, 5))
        where = measured_on(backend.device, backend.runtime.name)
    if not options.no_torch:
        torch_rows(bench, cases, exacts, options.repeats, options.candidates)
    write(options.json, where, bench.results)


if __name__ == "__main__":
    main()
