#!/usr/bin/env python3
"""Calls attention with random arguments, half of them invalid, in one process, and checks what becomes of each call.

    python tools/fuzz.py --calls 10000 --seed 0 [--recipes 40] [--runtime vulkan]

- A valid call returns; one of ten is compared with the float64 reference.
- A call with an argument that is known to be wrong raises TypeError, ValueError or one of grilly's exceptions, and
  nothing has been dispatched or, unless there is no kernel for it, written to the device.
- A call with a random object in a random place (which may be valid) does either.
- At the end the bytes in use on the device and the numbers of tensors and storages are what they were at the start.

Kernels are compiled for a few ``recipes`` (element type, widths, options) only, so that the time goes into calls.
"""

from __future__ import annotations

import argparse
import collections
import gc
import sys
import time
import traceback

import numpy as np

import grilly
from grilly import reference
from grilly.compute.device.tensor import Storage, Tensor

TYPED = (TypeError, ValueError, grilly.GrillyError)
#: Options that go together in a recipe; a kernel is compiled for each.
OPTIONS = [
    (),
    ("causal",),
    ("mask-bool",),
    ("mask-add", "causal"),
    ("window", "causal", "alibi"),
    ("softcap", "bias", "t5"),
    ("segments", "sinks"),
    ("lengths", "causal"),
    ("blocks", "dropout"),
    ("prefix", "window", "lengths"),
]
WIDTHS = [(8, 8), (16, 16), (7, 5), (64, 64)]


class Fault(Exception):
    """A call did what it must not do."""


class Watch:
    """Counts what reaches the device."""

    def __init__(self, backend):
        self.counts = {"dispatch": 0, "write": 0}
        for name in self.counts:
            setattr(backend.runtime, name, self._counting(name, getattr(backend.runtime, name)))

    def _counting(self, name: str, method):
        def counted(*arguments, **options):
            self.counts[name] += 1
            return method(*arguments, **options)

        return counted


def held(backend) -> tuple[int, int, int]:
    """Bytes in use on the device, tensors and storages, less what the backend keeps for calls that are repeated."""
    backend.synchronize()
    backend.opened.caches.forget()
    gc.collect()
    objects = gc.get_objects()
    counts = [sum(isinstance(o, kind) for o in objects) for kind in (Tensor, Storage)]
    return backend.memory().in_use, *counts


class Fuzzer:
    """Draws calls and makes them."""

    def __init__(self, backend, seed: int, recipes: int):
        self.backend = backend
        self.rng = np.random.default_rng(seed)
        self.watch = Watch(backend)
        self.counts = collections.Counter()
        self.made = ""  # the latest call, in words
        pool = [
            (dtype, width, options)
            for dtype in (np.float32, np.float16)
            for width in WIDTHS
            for options in OPTIONS
        ]  # fmt: skip
        self.recipes = [pool[i] for i in self.rng.permutation(len(pool))[:recipes]]

    def pick(self, values):
        return values[int(self.rng.integers(len(values)))]

    # -- valid calls --

    def valid(self) -> tuple[str, list, dict]:
        """The name of a method, its arrays and its keyword arguments."""
        rng = self.rng
        dtype, (dim, value_dim), wanted = self.pick(self.recipes)
        batch, kv_heads = int(rng.integers(1, 3)), int(rng.integers(1, 3))
        heads = kv_heads * int(rng.integers(1, 3))
        queries, keys = int(rng.integers(1, 40)), int(rng.integers(1, 40))
        q = rng.standard_normal((batch, heads, queries, dim)).astype(dtype)
        k = rng.standard_normal((batch, kv_heads, keys, dim)).astype(dtype)
        v = rng.standard_normal((batch, kv_heads, keys, value_dim)).astype(dtype)
        options: dict = {"causal": "causal" in wanted}
        for name in wanted:
            options.update(self.option(name, (batch, heads, queries, keys)))
        if rng.random() < 0.3:
            options["scale"] = float(rng.uniform(-1, 1))
        if rng.random() < 0.3:
            q, k, v = (self.backend.tensor(a) for a in (q, k, v))
        return self.pick(["flash_attention2", "flash_attention3"]), [q, k, v], options

    def option(self, name: str, full: tuple[int, int, int, int]) -> dict:
        rng, (batch, heads, queries, keys) = self.rng, full
        if name == "mask-bool":
            return {"mask": rng.random(self.pick([full, (queries, keys), (batch, 1, 1, keys)])) < 0.7}
        if name == "mask-add":
            return {"mask": rng.standard_normal(self.pick([full, (queries, keys)])).astype(np.float32)}
        if name == "window":
            return {"window_size": self.pick([(3, 4), (0, 0), (9, None), (20, 1)])}
        if name == "alibi":
            return {"alibi_slopes": rng.random(self.pick([(heads,), (batch, heads)])).astype(np.float32)}
        if name == "softcap":
            return {"softcap": float(rng.uniform(1, 30))}
        if name == "bias":
            return {"attn_bias": rng.standard_normal(self.pick([full, (1, heads, queries, keys)])).astype(np.float32)}
        if name == "t5":
            return {"t5_table": rng.standard_normal((8, heads)).astype(np.float32), "t5_max_distance": 16}
        if name == "segments":
            return {"segment_ids": tuple(rng.integers(0, 3, (batch, n)).astype(np.int32) for n in (queries, keys))}
        if name == "sinks":
            return {"sinks": rng.standard_normal(heads).astype(np.float32)}
        if name == "lengths":
            return {
                "seqlens_q": rng.integers(0, queries + 1, batch).astype(np.int32),
                "seqlens_k": rng.integers(0, keys + 1, batch).astype(np.int32),
            }
        if name == "prefix":
            return {"prefix_len": rng.integers(0, keys + 1, batch).astype(np.int32)}
        if name == "blocks":
            rows, columns = self.pick([(4, 4), (16, 8), (64, 64)])
            shape = (1, heads, -(-queries // rows), -(-keys // columns))
            return {"block_map": rng.random(shape) < 0.7, "block_size": (rows, columns)}
        if name == "dropout":
            return {"dropout_p": float(rng.uniform(0.1, 0.9)), "dropout_seed": int(rng.integers(2**63))}
        return {}

    # -- invalid ones --

    def broken(self, arrays: list, options: dict) -> tuple[list, dict]:
        """The call with one argument that cannot be right."""
        batch, heads, queries, dim = arrays[0].shape
        keys = arrays[1].shape[2]
        i = int(self.rng.integers(3))
        array = arrays[i]
        f32, i32 = np.float32, np.int32
        wrong = np.zeros((3, 5, 77, 131), f32)
        arrays_ = {
            "type": self.pick([None, 3, "q", [[1.0]], object(), np.float32(1)]),
            "dtype": np.zeros(array.shape, self.pick([i32, np.float64, np.complex64, bool, np.uint8, object, "U3"])),
            "rank": np.zeros(self.pick([(), (4,), (1, *array.shape)]), f32),
            "dim": np.zeros((*array.shape[:2], array.shape[2], self.pick([0, 257, 300])), array.dtype),
            "batch": np.zeros((array.shape[0] + 1, *array.shape[1:]), array.dtype),
            "other": np.zeros(array.shape, np.float16 if array.dtype == f32 else f32),
        }
        keywords = [
            {"mask": self.pick([wrong, wrong > 0, "mask", 1, [[True]], np.zeros((queries, keys), np.int8)])},
            {"attn_bias": self.pick([wrong, "bias", 1.5, np.zeros((queries, keys), i32), [0.0]])},
            {"alibi_slopes": self.pick([np.zeros(heads + 1, f32), "a", np.zeros(heads, i32), 1.0, object()])},
            {"t5_table": self.pick([np.zeros((8, heads + 1), f32), np.zeros((1, heads), f32), "t", 3, np.zeros(8, f32),
                                    np.zeros((8, heads), i32)])},
            {"t5_table": np.zeros((8, heads), f32), "t5_max_distance": self.pick([0, -3, 2.5, "far", None, 2**40])},
            {"softcap": self.pick([-1.0, float("nan"), float("inf"), "x", None, [1, 2], 1j])},
            {"sinks": self.pick([np.zeros(heads + 1, f32), np.zeros((heads, 1), f32), "s", np.zeros(heads, bool), 1])},
            {"window_size": self.pick([3, (1,), (1, 2, 3), (-2, 0), (0, -7), (1.5, 2), "ab", object(), {}])},
            {"prefix_len": self.pick([np.full(batch, keys + 1), np.full(batch, -1), np.zeros(batch + 1, i32), 1.5])},
            {"segment_ids": self.pick([np.zeros((batch, keys + queries + 1), i32), "s", (1, 2, 3), 7,
                                       (np.zeros((batch, queries), f32), np.zeros((batch, keys), i32))])},
            {"seqlens_q": self.pick([np.full(batch, queries + 1), np.full(batch, -1), np.zeros(batch + 1, i32), "q"])},
            {"seqlens_k": self.pick([np.full(batch, keys + 1), np.zeros((batch, 1), i32), np.zeros(batch, f32), 2])},
            {"block_map": np.ones((1, 1, 99, 99), bool), "block_size": (4, 4)},
            {"block_map": np.ones((1, 1, 1, 1), bool),
             "block_size": self.pick([None, 4, (0, 4), (4,), (1.5, 2), "44", (-1, 2)])},
            {"block_map": self.pick([np.ones((1, 1, 1, 1), f32), "m", 1.0, [[0]]]), "block_size": (64, 64)},
            {"block_map": None, "block_size": (64, 64)},
            {"dropout_p": self.pick([1.0, -0.1, float("nan"), 2, "p", None, [0.5, 0.5]])},
            {"dropout_p": 0.5, "dropout_seed": self.pick([-1, 2**64, 1.5, "s"])},
            {"dropout_p": 0.5, "dropout_offset": self.pick([-1, 2**32, 0.5, "o"])},
            {"scale": self.pick([float("nan"), float("inf"), "s", [1.0, 2.0], 1j, object()])},
            {"kernel": self.pick(["no-such-kernel", "", "flash-attention9"])},
            {"precision": self.pick(["low", 3, None, [], {}])},
            {"no_such_option": 1},
        ]  # fmt: skip
        if self.rng.random() < 0.35:
            how = self.pick([name for name in arrays_ if name != "dtype" or array.shape])
            arrays = [arrays_[how] if n == i else a for n, a in enumerate(arrays)]
            return arrays, options
        return arrays, options | self.pick(keywords)

    def wild(self, arrays: list, options: dict) -> tuple[list, dict]:
        """The call with a random object somewhere."""
        junk = [
            None, 0, -1, 1, 2**70, 0.5, -0.0, float("nan"), float("inf"), "", "text", b"bytes", (), (1, 2), [1], [[]],
            {}, set(), object(), np.float32(2), np.int64(3), np.array(5), np.zeros(0, np.float32), True, 1j, print,
            np.zeros((0, 0, 0, 0), np.float32), np.zeros((1, 1, 1, 1), np.float32), np.zeros((2, 2), np.int32),
            np.array([None]), np.array("x"), np.zeros(3, [("a", "f4")]), np.datetime64("2020"), slice(None),
            np.ma.masked, np.zeros((1, 1, 4, 4), bool)[..., ::-1], range(3), np.float16(1), type,
        ]  # fmt: skip
        if self.rng.random() < 0.2:
            i = int(self.rng.integers(3))
            return [self.pick(junk) if n == i else a for n, a in enumerate(arrays)], options
        names = ["mask", "causal", "scale", "return_lse", "precision", *reference.Options.__dataclass_fields__]
        return arrays, options | {self.pick(names): self.pick(junk) for _ in range(int(self.rng.integers(1, 3)))}

    # -- making them --

    def call(self, number: int) -> None:
        """Make one call. Raises Fault."""
        name, arrays, options = self.valid()
        kind = "valid"
        if self.rng.random() < 0.5:
            kind = self.pick(["broken", "broken", "wild"])
            arrays, options = getattr(self, kind)(arrays, options)
        self.made = f"{name}({', '.join(map(describe, arrays))}, {', '.join(map(describe_named, options.items()))})"
        before = dict(self.watch.counts)
        try:
            result = getattr(self.backend.attention, name)(*arrays, **options)
        except TYPED as error:
            if kind == "valid" or isinstance(error, (grilly.DeviceLostError, grilly.ShaderError, grilly.ClosedError)):
                raise Fault(f"a {kind} call raised") from error
            # Whether a kernel exists is known when the arrays are on the device: where they lie there matters.
            if isinstance(error, grilly.UnsupportedError):
                before["write"] = self.watch.counts["write"]
            if self.watch.counts != before:
                raise Fault(f"device work before {type(error).__name__}") from error
            self.counts[f"{kind}: {type(error).__name__}"] += 1
            return
        except Exception as error:
            raise Fault(f"a {kind} call raised {type(error).__name__}") from error
        if kind == "broken":
            raise Fault("an invalid call returned")
        self.counts[f"{kind}: returned"] += 1
        if kind == "valid" and self.rng.random() < 0.1:
            self.compare(result, arrays, options)

    def compare(self, result, arrays: list, options: dict) -> None:
        self.counts["compared"] += 1
        q, k, v = (np.asarray(a.numpy() if isinstance(a, Tensor) else a) for a in arrays)
        got = result.numpy() if isinstance(result, Tensor) else result
        want = reference.naive_attention(q, k, v, dtype=np.float64, **options)[0]
        off = float(np.abs(got - want).max(initial=0))
        most = (3e-5 if q.dtype == np.float32 else 4e-3) * max(1.0, float(np.abs(want).max(initial=0)))
        if not off <= most:
            raise Fault(f"off by {off:.3g}, more than {most:.3g}")


def describe(value) -> str:
    """An argument in a line."""
    if isinstance(value, (np.ndarray, Tensor)):
        return f"{type(value).__name__}{tuple(value.shape)} {value.dtype}"
    return repr(value)[:60]


def describe_named(item: tuple) -> str:
    return f"{item[0]}={describe(item[1])}"


def fuzz(backend, calls: int, seed: int, recipes: int, say=lambda text: None) -> tuple[collections.Counter, list[str]]:
    """Make the calls; what became of them, and the faults found."""
    fuzzer = Fuzzer(backend, seed, recipes)
    faults: dict[str, str] = {}
    start = None
    began = time.perf_counter()
    for number in range(calls):
        if number == min(calls // 4, 500):
            start = held(backend)
        try:
            fuzzer.call(number)
        except Fault as fault:
            fuzzer.counts["faults"] += 1
            cause = fault.__cause__
            where = traceback.extract_tb(cause.__traceback__)[-1] if cause else None
            place = f"{where.filename.split('/')[-1]}:{where.lineno}" if where else ""
            faults.setdefault(f"{fault} {place}", f"call {number}: {fault}: {cause!r} {place}; {fuzzer.made}")
            cause = where = None  # they hold the call's arrays
        if number % 500 == 499:
            say(f"{number + 1} calls, {time.perf_counter() - began:.0f} s, {len(faults)} kinds of fault")
    end = held(backend)
    if end != start:
        faults["leak"] = f"(bytes in use, tensors, storages) was {start} and is {end}"
    return fuzzer.counts, list(faults.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recipes", type=int, default=40)
    parser.add_argument("--runtime", default="auto")
    given = parser.parse_args()
    with grilly.Compute(runtime=given.runtime) as backend:
        print(backend.device.name)
        counts, faults = fuzz(backend, given.calls, given.seed, given.recipes, lambda text: print(text, flush=True))
    for name, count in sorted(counts.items()):
        print(f"{count:6} {name}")
    for fault in faults:
        print(f"FAULT {fault}")
    print(f"{len(faults)} faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
