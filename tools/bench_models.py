#!/usr/bin/env python3
"""Times whole models of grilly.models with random weights, as a program gets them; with --torch beside torch.

    python tools/bench_models.py --folder /dev/shm/models --torch --json figures.json

Models lie in folders that tools/random_models.py writes once, in float16: Llama of 8B and 1B, BERT-base, ViT-B/16,
MiniLM, Whisper large, GPT-2 small, T5-base; --tiny makes all of them small, to try the script. Times are wall time. A
chain is calls one after the other with one wait at the end, Python's time included; the figure is the median of the
chains that --seconds allow. "one call" is from NumPy arrays to NumPy arrays. The device's own time is the sum of its
timestamps over rows of dispatches. A measurement that fails says why, and the next goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np

import grilly
import random_models
import torch_models
from grilly import models
from measured import add_json, write


class Bench:
    """The options, the device, and the figures so far."""

    def __init__(self, options, backend, torch) -> None:
        self.options, self.backend, self.torch = options, backend, torch
        self.device = "cuda" if torch is not None and torch.cuda.is_available() else "cpu"
        self.figures: list[dict] = []
        self.name = ""

    def figure(self, what: str, value: float, unit: str, note: str = "") -> None:
        """Print one figure, and keep it."""
        self.figures.append({"model": self.name, "what": what, "value": value, "unit": unit, "note": note})
        print(f"{self.name:14} {what:58} {value:12.3f} {unit}{'  ' + note if note else ''}", flush=True)
        write(self.options.json, self.backend, self.figures)

    @contextlib.contextmanager
    def attempt(self, what: str):
        """A measurement, whose failure is said."""
        try:
            yield
        except Exception as error:
            last = "".join(traceback.format_exception(error)).strip().splitlines()[-8:]
            self.figures.append({"model": self.name, "what": what, "failed": str(error)})
            print(f"{self.name:14} {what}: FAILED\n    " + "\n    ".join(last), flush=True)

    def chain(self, call, wait, count: int | None = None, before=None) -> tuple[float, float]:
        """Medians in seconds of a call in a chain: until all are done, and until the call returned."""
        before = before or (lambda: None)
        before()
        call()
        wait()
        start = time.perf_counter()
        before()
        call()
        wait()
        once = time.perf_counter() - start
        count = count or max(1, min(200, int(self.options.seconds / 5 / once)))
        done, returned, end = [], [], time.perf_counter() + self.options.seconds
        while len(done) < 3 or (time.perf_counter() < end and len(done) < 50):
            before()
            wait()
            start = time.perf_counter()
            for _ in range(count):
                call()
            returned.append((time.perf_counter() - start) / count)
            wait()
            done.append((time.perf_counter() - start) / count)
            if len(done) >= 3 and time.perf_counter() > end:
                break
        return statistics.median(done), statistics.median(returned)

    def took(self, what: str, call, wait=None, **how) -> None:
        """A chain's figure, with the host's part."""
        done, host = self.chain(call, wait or self.backend.synchronize, **how)
        self.figure(what, done * 1e3, "ms", f"host {host * 1e3:.3f} ms")

    def on_device(self, what: str, call, before=lambda: None) -> None:
        """The device's own time of a call, and its dearest kernels."""
        before()
        with self.backend.profile("row") as rows:
            call()
            self.backend.synchronize()
        self.figure(f"{what}, device", rows.seconds * 1e3, "ms")
        if self.options.kernels:
            before()
            with self.backend.profile() as each:
                call()
                self.backend.synchronize()
            sums: dict[str, list[float]] = {}
            for timing in each.timings:
                sums.setdefault(timing.label, []).append(timing.seconds)
            print(f"    {len(each.timings)} dispatches, each alone {each.seconds * 1e3:.3f} ms")
            for label, found in sorted(sums.items(), key=lambda item: -sum(item[1]))[: self.options.kernels]:
                print(f"    {sum(found) * 1e3:9.3f} ms {len(found):5} x {label}", flush=True)

    def load(self, config: dict, dtype: str, **options):
        """The model of this name, its time of loading a figure."""
        start = time.perf_counter()
        place, type = Path(self.options.folder) / (self.name + "-tiny" * self.options.tiny), self.options.type
        if type is None:
            file = random_models.write(place, config) / "model.safetensors"
        else:
            file = random_models.write_gguf(place / f"{type}.gguf", config, type)
        made, size = time.perf_counter() - start, file.stat().st_size
        if made > 1:
            self.figure("making the file", made, "s", f"{size / made / 1e9:.2f} GB/s")
        start = time.perf_counter()
        model = models.load(place if type is None else file, dtype, self.backend, progress=False, **options)
        self.backend.synchronize()
        took = time.perf_counter() - start
        self.figure(f"loading as {type or dtype}", took, "s", f"{size / took / 1e9:.2f} GB/s of the file")
        return model


def finite(array) -> None:
    if not np.isfinite(np.asarray(array, np.float32)).all():
        raise ArithmeticError("results are not finite")


def check_replay(found, wanted) -> None:
    """Raise ArithmeticError where a replay differs from the call by more than fused operations round otherwise."""
    found, wanted = (np.asarray(array, np.float32) for array in (found, wanted))
    error = np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2))
    if not error <= 1e-3:  # a float16 result is rounded by up to 5e-4
        raise ArithmeticError(f"a replay differs from the call by {error:.1e} of it")


def decoder(bench: Bench, config: dict, contexts=(1024,), batches=None, prompt: int = 2048) -> None:
    """A language model: steps, prefill, generation."""
    batches = batches or bench.options.batches
    tiny, rng = bench.options.tiny, np.random.default_rng(0)
    rows = config["vocab_size"]
    prompt, context, count = (24, 16, 12) if tiny else (prompt, contexts[0], bench.options.tokens)
    steps = 4 if tiny else 64

    def drawn(*shape):
        return rng.integers(3, rows, shape).astype(np.int32)

    model = None
    with bench.attempt("loading"):
        model = bench.load(config, "float16")
    if model is not None:
        for batch in batches:
            with bench.attempt(f"a step of {batch}"):
                cache = model.make_cache(batch, context + steps)
                model(drawn(batch, context), past_key_values=cache)
                ids = bench.backend.tensor(drawn(batch, 1))

                def before(cache=cache):
                    cache.lengths[:] = context

                def step(cache=cache, ids=ids):
                    return model(ids, past_key_values=cache).logits

                finite(step().numpy())
                before()
                graph = bench.backend.capture(lambda ids, cache=cache: model(ids, past_key_values=cache).logits, ids)
                what = f"a captured step at {context} tokens, batch {batch}"
                bench.took(what, lambda graph=graph, ids=ids: graph(ids, copy=False), count=steps, before=before)
                bench.on_device(what, step, before=before)
                del graph
        with bench.attempt("prefill"):
            cache = model.make_cache(1, prompt)
            ids = bench.backend.tensor(drawn(1, prompt))

            def forget():
                cache.lengths[:] = 0

            def prefill():
                return model.head(model(ids, past_key_values=cache).last_hidden_state[:, -1])

            bench.took(f"prefill of {prompt}", prefill, count=1, before=forget)
            bench.on_device(f"prefill of {prompt}", prefill, before=forget)
        for batch in batches:
            for kind in ({}, {"do_sample": True, "temperature": 0.8, "seed": 0}):
                how = "drawn" if kind else "greedy"
                with bench.attempt(f"generate, {how}, batch {batch}"):
                    ids = drawn(batch, context)
                    (_, very_first, _), *runs = [generated(model, ids, count, kind) for _ in range(3)]
                    found = [statistics.median(values) for values in zip(*runs, strict=True)]
                    bench.figure(f"generate, {how}, batch {batch}, {count} tokens in all", batch * count / found[1],
                                 "tokens/s", f"with the prompt of {context} and the capture; the first text "
                                 f"{very_first:.2f} s, then {found[1]:.2f}")  # fmt: skip
                    bench.figure(f"generate, {how}, batch {batch}, a token after the eighth", found[2] * 1e3, "ms",
                                 f"{batch / found[2]:.1f} tokens/s")  # fmt: skip
        with bench.attempt("time to the first token"):
            first = [generated(model, drawn(1, prompt), 1, {})[0] for _ in range(2 if tiny else 4)]
            bench.figure(f"generate, the first token after {prompt}", statistics.median(first[1:]) * 1e3, "ms",
                         f"the very first {first[0] * 1e3:.1f} ms")  # fmt: skip
        del model, cache
    gc.collect()
    if bench.torch is not None and "num_key_value_heads" in config:
        torch_decoder(bench, config, batches, context, prompt)


def generated(model, ids, count: int, kind: dict) -> tuple[float, float, float]:
    """Seconds to the first token, to the last, and of one after the eighth."""
    start, times = time.perf_counter(), []
    for _ in model.stream(ids, max_new_tokens=count, **kind):
        times.append(time.perf_counter())
    late = times[min(8, count - 1) :]
    return times[0] - start, times[-1] - start, (late[-1] - late[0]) / max(len(late) - 1, 1)


def torch_decoder(bench: Bench, config: dict, batches, context: int, prompt: int) -> None:
    torch, device = bench.torch, bench.device
    wait = torch_models.moment(torch, device)
    for batch in batches:
        with bench.attempt(f"torch, a step of {batch}"), torch.inference_mode():
            model = torch_models.Llama(torch, config, batch, max(prompt, context + 1), device, torch.float16)
            ids, at = torch.full((batch, 1), 5, device=device), torch.tensor([context], device=device)

            def step(model=model, ids=ids, at=at):
                return model(ids, at, context + 1)

            def prefill(model=model):
                whole, places = torch.full((1, prompt), 5, device=device), torch.arange(prompt, device=device)
                return model(whole, places, prompt)

            what = f"a step at {context} tokens, batch {batch}"
            bench.took(f"torch, {what}", step, wait)
            if device == "cuda":
                bench.took(f"torch, {what}, CUDA graph", torch_models.graphed(torch, step), wait)
            if batch == batches[0]:
                bench.took(f"torch, prefill of {prompt}", prefill, wait)
            del model, step, prefill


def encoder(bench: Bench, config: dict, shapes, kinds=("float16", "float32")) -> None:
    """An encoder of tokens or pictures: ``shapes`` are (batch, length), or (batch,) of pictures."""
    rng, tiny = np.random.default_rng(0), bench.options.tiny
    shapes = [(2, *(min(n, 16) for n in shape[1:])) for shape in shapes[:1]] if tiny else shapes
    for kind in kinds:
        model = None
        with bench.attempt(f"loading as {kind}"):
            model = bench.load(config, kind, precision="high")
        for shape in shapes if model is not None else ():
            name = f"{kind}{' high' * (kind == 'float32')}, {' x '.join(map(str, shape))}"
            with bench.attempt(name):
                if len(shape) == 1:
                    side = config["image_size"]
                    given = rng.standard_normal((*shape, 3, side, side), np.float32).astype(kind)
                else:
                    given = rng.integers(3, config["vocab_size"], shape).astype(np.int32)
                sent = bench.backend.tensor(given)
                graph = bench.backend.capture(lambda x, model=model: model(x).last_hidden_state, sent)
                found = graph(given).numpy()
                finite(found)
                check_replay(found, model(given).last_hidden_state)
                bench.took(f"captured, {name}", lambda graph=graph, sent=sent: graph(sent, copy=False))
                bench.took(f"captured, {name}, one call", lambda graph=graph, given=given: graph(given).numpy())
                del graph
                itself(bench, f", {name}", model, sent, given, lambda x, model=model: model(x).last_hidden_state)
                if len(shape) == 2:
                    encoder = models.SentenceEncoder(model, Read(given))
                    texts = [""] * len(given)

                    def run(encode=encoder.encode, texts=texts):
                        return encode(texts, len(texts))

                    for _ in range(3):
                        run()
                    bench.took(f"SentenceEncoder, {name}", run)
                bench.on_device(name, lambda model=model, sent=sent: model(sent).last_hidden_state)
        del model
        gc.collect()
    for kind in kinds if bench.torch is not None else ():
        with bench.attempt(f"torch, {kind}"), bench.torch.inference_mode():
            torch_encoder(bench, config, shapes, kind)


class Read:
    """In place of a tokenizer: whatever the texts, these tokens, so that no text has to be read."""

    def __init__(self, ids) -> None:
        self.ids = ids

    def tokens_of(self, texts):
        return self.ids.tolist()

    def padded(self, rows):
        return np.array(rows), np.ones((len(rows), len(rows[0])), np.int64)


def itself(bench: Bench, name: str, model, sent, given, call) -> None:
    """Calls of a model that captures them by itself, on a Tensor and on an array, and those that it may not capture."""
    model.graphs.kept = 0
    bench.took(f"not captured{name}", lambda: call(sent))
    model.graphs.kept = 8
    for _ in range(3):
        call(sent)
    if not len(model.graphs):  # one would take more memory than the model may keep: docs/models.md
        return
    bench.took(f"the model{name}", lambda: call(sent))
    bench.took(f"the model{name}, NumPy in and out", lambda: _host(call(given)))


def _host(found):
    """A result on the host."""
    return found.numpy() if hasattr(found, "numpy") else found


def torch_encoder(bench: Bench, config: dict, shapes, kind: str) -> None:
    torch, device = bench.torch, bench.device
    wait = torch_models.moment(torch, device)
    dtype = getattr(torch, kind)
    model = torch_models.transformers_model(torch, config, device, dtype)
    for shape in shapes:
        if len(shape) == 1:
            side = config["image_size"]
            given = torch.randn((*shape, 3, side, side), device=device, dtype=dtype)
        else:
            given = torch.randint(3, config["vocab_size"], shape, device=device)
        name = f"{kind}, {' x '.join(map(str, shape))}"
        bench.took(f"torch, {name}", lambda given=given: model(given).last_hidden_state, wait)
        if device == "cuda":
            with bench.attempt(f"torch, {name}, CUDA graph"):
                replay = torch_models.graphed(torch, lambda given=given: model(given).last_hidden_state)
                bench.took(f"torch, {name}, CUDA graph", replay, wait)


def translator(bench: Bench, config: dict, count: int) -> None:
    """An encoder with a decoder: from its input to ``count`` tokens."""
    rng, tiny = np.random.default_rng(0), bench.options.tiny
    count = 12 if tiny else count
    sound = "num_mel_bins" in config
    if sound:
        given = rng.standard_normal((1, config["num_mel_bins"], 2 * config["max_source_positions"]), np.float32)
    else:
        given = rng.integers(3, config["vocab_size"], (1, 16 if tiny else 128)).astype(np.int32)
    model = None
    with bench.attempt("loading"):
        model = bench.load(config, "float16")
    if model is not None:
        with bench.attempt(f"{count} tokens"):
            runs = [generated(model, given, count, {}) for _ in range(3)]
            for what, place in (("the first token", 0), (f"{count} tokens", 1), ("a token after the eighth", 2)):
                times = [run[place] for run in runs]
                bench.figure(f"generate, {what}", statistics.median(times[1:]) * 1e3, "ms",
                             f"the first time {times[0] * 1e3:.1f} ms")  # fmt: skip
        with bench.attempt("encoder"):
            own = given.astype(np.float16) if sound else given
            sent = bench.backend.tensor(own)
            itself(bench, ", the encoder", model, sent, own, lambda x: model.encode(x, None)[0])
            bench.on_device("the encoder", lambda: model.encode(sent, None)[0])
        del model
    gc.collect()
    if bench.torch is not None:
        with bench.attempt("torch"), bench.torch.inference_mode():
            torch, device = bench.torch, bench.device
            model = torch_models.transformers_model(torch, config, device, torch.float16)
            sent = torch.from_numpy(given).to(device)
            sent = {"input_features": sent.half()} if sound else {"input_ids": sent.long()}
            runs = [torch_models.written(torch, model, sent, count, device) for _ in range(3)]
            for what, place in (("the first token", 0), (f"{count} tokens", 1)):
                bench.figure(f"torch, {what}, eager", statistics.median(r[place] for r in runs[1:]) * 1e3, "ms")


MEASURES = {
    "llama-8b": decoder,
    "llama-1b": decoder,
    "bert-base": lambda bench, config: encoder(bench, config, [(1, 128), (32, 128), (8, 512)]),
    "vit-b16": lambda bench, config: encoder(bench, config, [(64,)]),
    "minilm": lambda bench, config: encoder(bench, config, [(64, 128)]),
    "whisper-large": lambda bench, config: translator(bench, config, 200),
    "gpt2": lambda bench, config: decoder(bench, config, contexts=(512,), batches=(1,), prompt=512),
    "t5-base": lambda bench, config: translator(bench, config, 128),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(MEASURES), default=list(MEASURES), metavar="NAME",
                        help=", ".join(MEASURES))  # fmt: skip
    parser.add_argument("--folder", default=str(Path(tempfile.gettempdir()) / "grilly-models"), help="of the folders")
    parser.add_argument("--type", help="of the weights of llama-8b and llama-1b, in a GGUF file: Q4_K_M, Q8_0 ...")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16], help="of language models")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the script")
    parser.add_argument("--torch", action="store_true", help="beside torch")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each figure, about")
    parser.add_argument("--tokens", type=int, default=256, help="that language models generate")
    parser.add_argument("--kernels", type=int, default=0, help="print so many of the dearest kernels")
    add_json(parser)
    parser.add_argument("--make", action="store_true", help="write the folders and end")
    options = parser.parse_args()
    if options.make:
        for name in options.only:
            folder = Path(options.folder) / (name + "-tiny" * options.tiny)
            start = time.perf_counter()
            random_models.write(folder, random_models.MODELS[name][options.tiny])
            print(f"{folder}: {time.perf_counter() - start:.1f} s", flush=True)
        return
    torch = None
    if options.torch:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU'}")
    with grilly.Compute(runtime="vulkan") as backend:
        print(f"{backend.device.name}, {backend.device.driver} {backend.device.driver_version}", flush=True)
        bench = Bench(options, backend, torch)
        for name in options.only:
            bench.name = name
            with bench.attempt("all"):
                MEASURES[name](bench, random_models.MODELS[name][options.tiny])
            gc.collect()
            if torch is not None and torch.cuda.is_available():
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
