"""Tables of docs/benchmarks that are made from measured figures: which columns they have, and what a cell says.

`figures.py` puts each below the line `<!-- figures: NAME -->` of its page.
"""

from __future__ import annotations

from collections.abc import Callable

from data import Measured

Rows = list[list[str]]


def dims(shape: list[int]) -> str:
    return f"({', '.join(map(str, shape))})"


def small(number: float) -> str:
    """An error: two digits, without the zero that Python puts into exponents."""
    return f"{number:.1e}".replace("e-0", "e-")


def spread(result: dict, scale: float, places: int) -> str:
    """A median, and in brackets the 10th and 90th percentile."""
    if not result:
        return ""
    middle = f"{result['seconds'] * scale:.{places}f}"
    if "p10" not in result:
        return middle
    return f"{middle} ({result['p10'] * scale:.{places}f} to {result['p90'] * scale:.{places}f})"


def attention(data: Measured) -> Rows:
    rows, shape = [["float16", "grilly", "torch FlashAttention-2", "cuDNN", "error"]], None
    for own in data.all(by="grilly", dtype="float16"):
        what = {name: own[name] for name in ("shape", "causal", "dtype")}
        flash, cudnn = data.one(by="torch flash", **what), data.one(by="torch cudnn", **what)
        name = "causal" if own["shape"] == shape else dims(own["shape"]) + " causal" * own["causal"]
        errors = "; ".join(f"{small(r['error'])}, {small(r['rms'])}" for r in (own, flash))
        speed = f"{own['tflops']:.1f} ({own['tflops'] / flash['tflops']:.2f})"
        rows.append([name, speed, f"{flash['tflops']:.1f}", f"{cudnn['tflops']:.1f}", errors])
        shape = own["shape"]
    return rows


def shapes(data: Measured) -> Rows:
    heads = "(batch, heads / key heads, queries x keys, D)"
    rows = [["model", heads, "us", "TFLOP/s", "FlashAttention-2", "cuDNN", "ratio to FA2"]]
    for found in data.results:
        rates = [f"{found['tflops'][name]:.1f}" for name in ("grilly", "FA2", "cuDNN")]
        rows.append(
            [found["name"], f"`{found['shape']}`", f"{found['grilly'] * 1e6:.1f}", *rates, f"{found['ratio']:.2f}"]
        )
    return rows


#: What the tables call the features of tools/bench_features.py.
FEATURES = {
    "full": "plain", "causal": "causal", "window": "window, 511 keys back",
    "window-both": "window, 256 back and 256 on", "blocks": "128 x 128 blocks, 25 % kept",
    "blocks-64": "64 x 64 blocks, 25 % kept", "mask": "random mask, 90 % kept",
    "mask-documents": "mask of eight documents", "alibi": "ALiBi", "sinks": "sinks", "soft-cap": "soft-cap",
    "dropout": "dropout", "bias": "bias",
}  # fmt: skip


def relative(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < 1 else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"


def options(data: Measured) -> Rows:
    rows = [["", "D = 64, 4096", "before", "D = 64, 16384", "D = 128, 16384"]]
    for feature, label in FEATURES.items():
        cells = []
        for case in ("d64", "long64", "long128"):
            found = data.one(case=case, feature=feature)
            ratio = "" if feature == "full" else f" ({relative(found['ratio'])})"
            cells.append(f"{found['seconds'] * 1e3:.3f}{ratio}")
        former = data.maybe(before=True, case="d64", feature=feature)
        if former:
            former = f"{former['seconds'] * 1e3:.3f}" if feature == "full" else relative(former["ratio"])
        rows.append([label, cells[0], former or "", *cells[1:]])
    return rows


def decoding(data: Measured) -> Rows:
    names = {"torch flash": "torch, its FlashAttention", "torch default": "torch, as it chooses (cuDNN)"}
    rows = [["kernel and setting", "B = 16", "B = 1"]]
    for setting in dict.fromkeys(found["setting"] for found in data.results):
        cells, notes = [], set()
        for case in ("b16", "b1"):
            found = data.maybe(case=case, setting=setting)
            alone = f" ({found['alone'] * 1e6:.1f})" if "alone" in found else ""
            cells.append(f"{found['seconds'] * 1e6:.1f}{alone}" if found else "")
            notes |= {found["note"]} if "note" in found else set()
        rows.append([", ".join([names.get(setting, setting), *notes]), *cells])
    return rows


def gradients(data: Measured) -> Rows:
    rows, shape = [["", "grilly, ms", "torch, ms", "TFLOP/s, torch's", "ratio", "rows, dk and dv, dq, ms"]], None
    for own in data.all(name="chosen", dtype="float16"):
        other = data.one(name="torch flash", **{name: own[name] for name in ("shape", "causal", "dtype")})
        label = "causal" if own["causal"] and own["shape"] == shape else f"D = {own['shape'][3]}"
        parts = ", ".join(f"{seconds * 1e3:.3f}" for seconds in own["parts"].values())
        rows.append([label, spread(own, 1e3, 3), spread(other, 1e3, 3), f"{own['tflops']:.1f}, {other['tflops']:.1f}",
                     f"{other['seconds'] / own['seconds']:.2f}", parts])  # fmt: skip
        shape = own["shape"]
    return rows


def float32(data: Measured) -> Rows:
    rows = [["(4, 32, 4096, D)", "TFLOP/s", "ratio to torch", "ms", "error"]]
    for found in data.results:
        torch = found["by"].startswith("torch")
        label = f"D = {found['shape'][3]}" + ", torch" * torch + (f", {found['note']}" if "note" in found else "")
        peer = data.one(by="torch efficient", shape=found["shape"], causal=found["causal"])
        ratio = "" if torch else f"{found.get('ratio', found['tflops'] / peer['tflops']):.2f}"
        rows.append([label, f"{found['tflops']:.1f}", ratio, f"{found['seconds'] * 1e3:.2f}",
                     f"{small(found['error'])}, {small(found['rms'])}"])  # fmt: skip
    return rows


def best(data: Measured, before: bool = False, **what) -> dict:
    """The fastest of our variants of linear, or nothing."""
    return max(data.all(before, by="grilly", **what), key=lambda found: found["tflops"], default={})


def linear(data: Measured) -> Rows:
    size, high = "rows x depth x columns", 'float32, `precision="high"`'
    rows = [[size, "float16", "bfloat16", high, "float32, error (NumPy's)"]]

    def pair(before: bool, **what) -> str:
        own, other = best(data, before, **what), data.maybe(before, by="torch", **what)
        return f"{own['tflops']:.0f} ({other['tflops']:.0f})" if own else ""

    for shape in dict.fromkeys(tuple(found["shape"]) for found in data.results):
        cells, shape = [], list(shape)
        for dtype in ("float16", "bfloat16", "float32"):
            now, former = (pair(before, dtype=dtype, shape=shape) for before in (False, True))
            cells.append(f"{now}; before: {former}" if former else now)
        own = best(data, dtype="float32", shape=shape)
        error = f"{small(own['error'])} ({small(own['plain'])})" if own else ""
        rows.append([f"{shape[0]} x {shape[2]} x {shape[1]}", *cells, error])
    return rows


def calls(data: Measured) -> Rows:
    rows = [["", "grilly", "torch, same run"]]
    small_call = dims([1, 8, 128, 64])
    names = {
        "Tensor to Tensor, completed": f"{small_call}, Tensor to Tensor, call to completion, us",
        "Tensor to Tensor, not waited": "the same, without waiting, us",
        "NumPy to NumPy": "the same, NumPy to NumPy, us", "kernel alone": "its kernel alone, us",
    }  # fmt: skip
    for what, label in names.items():
        own, other = data.one(what=what, by="grilly"), data.maybe(what=what, by="torch")
        rows.append([label, spread(own, 1e6, 1), spread(other, 1e6, 1)])
    for own in data.all(what="kernel", by="grilly"):
        other = data.maybe(what="kernel", by="torch", shape=own["shape"], causal=own["causal"])
        told = [f"{r['seconds'] * 1e3:.2f} ms, {r['tflops']:.1f} TFLOP/s" if r else "" for r in (own, other)]
        rows.append([f"{dims(own['shape'])} {'causal' if own['causal'] else 'full'}", *told])
    for own in data.all(what="Compute()"):
        note = f", {own['note']}" if "note" in own else ""
        rows.append([f"`Compute()`, first in a process{note}", f"{own['seconds']:.2f} s", ""])
    return rows


#: Whole calls of tools/bench_transfers.py, and their parts.
TRANSFERS = (
    "plain arrays", "host arrays", "host arrays, borrowed, into a host array", "upload alone",
    "download alone, to a new array", "download alone, to the same array",
)  # fmt: skip


def transfers(data: Measured) -> Rows:
    rows = [["", "ms"]]
    for what in TRANSFERS:
        found = data.one(what=what, by="grilly", dtype="float16")
        least = f" (from {found['least'] * 1e3:.1f})" if "least" in found else ""
        rows.append([what, f"{found['seconds'] * 1e3:.1f}{least}"])
    torch = data.one(what="NumPy to NumPy", by="torch", dtype="float16")
    return [*rows, ["torch: from_numpy, cuda, attention, cpu, numpy", f"{torch['seconds'] * 1e3:.1f}"]]


def two_gpus(data: Measured) -> Rows:
    one, two = data.one(workers=1), data.one(workers=2)
    runs = [f"{r['seconds']:.3f} ({', '.join(f'{s:.3f}' for s in r['runs'])})" for r in (one, two)]
    return [
        ["", "one worker", "two workers", "times as fast"],
        ["median of the runs, s", *runs, f"{one['seconds'] / two['seconds']:.3f}"],
        ["TFLOP/s", *(f"{r['tflops']:.1f}" for r in (one, two)), ""],
        ["first run, which makes the pipelines, s", *(f"{r['first']:.3f}" for r in (one, two)), ""],
    ]


def processor(data: Measured) -> Rows:
    rows = [["D", "WIDTH = 8", "NumPy"]]
    return rows + [[f"{found[name]:g}" for name in ("dim", "grilly", "numpy")] for found in data.results]


def rounds(data: Measured) -> Rows:
    rows = [["version", "D = 64", "causal", "D = 128", "causal", "predicted"]]
    for found in data.results:
        speeds = [f"{found[name]:.1f}" if name in found else "" for name in ("64", "64 causal", "128", "128 causal")]
        rows.append([found["version"], *speeds, found.get("predicted", "")])
    return rows


def arrays(data: Measured) -> Rows:
    rows = [["", *(cell for dtype in ("float16", "float32") for cell in (f"{dtype}, us", "GB/s", "before", "torch"))]]
    for name in dict.fromkeys(found["name"] for found in data.results):
        cells = []
        for dtype in ("float16", "float32"):
            found, former = (data.maybe(before, name=name, dtype=dtype) for before in (False, True))
            us = [f"{r[key] * 1e6:.0f}" if key in r else "" for r, key in ((former, "grilly"), (found, "torch"))]
            cells += [f"{found['grilly'] * 1e6:.0f}", f"{found['GB/s']:,.0f}", *us] if found else [""] * 4
        rows.append([name, *cells])
    return rows


#: Models of tools/bench_models.py, as the page names them.
MODELS = {"bert-base": "BERT-base", "vit-b16": "ViT-B/16", "minilm": "MiniLM"}


def encoder_figures(data: Measured) -> list[tuple[str, list[dict]]]:
    """For each model, type and size: its name, and results of the model, before, from NumPy, of torch, of its graph."""
    rows = []
    for model, label in MODELS.items():
        for found in data.all(model=model):
            words = found["what"].split(", ")
            if len(words) != 3 or words[0] != "the model":
                continue
            kind, size = words[1], words[2]
            torch = f"torch, {kind.partition(' ')[0]}, {size}"
            wanted = (found["what"], f"{found['what']}, NumPy in and out", torch, f"{torch}, CUDA graph")
            own, whole, eager, graph = (data.maybe(model=model, what=what) for what in wanted)
            former = data.maybe(before=True, model=model, what=found["what"])
            size = size if " x " in size else f"{size} images"
            kind = kind.replace(" high", ', "high"')
            rows.append((f"{label}, {kind}, {size}", [own, former, whole, eager, graph]))
    return rows


def encoders(data: Measured) -> Rows:
    rows = [["", "the model", "at first", "NumPy in and out", "torch, eager", "torch, CUDA graph"]]
    for label, results in encoder_figures(data):
        values = [found.get("value") for found in results]
        told = ["" if v is None else f"{v:.2f}" if v < 10 else f"{v:.1f}" for v in values]
        beside = [n for n in (0, 3, 4) if values[n] is not None]
        best = min(beside, key=lambda n: values[n])
        told[best] = f"**{told[best]}**"
        rows.append([label, *told])
    return rows


#: The file of figures, the page of docs/benchmarks, and what its table says.
TABLES: dict[str, tuple[str, Callable[[Measured], Rows]]] = {
    "attention": ("h200-matrix.md", attention),
    "shapes": ("h200-shapes.md", shapes),
    "options": ("features.md", options),
    "decoding": ("decode.md", decoding),
    "gradients": ("backward.md", gradients),
    "float32": ("float32-matrix.md", float32),
    "linear": ("h200-linear.md", linear),
    "calls": ("h200-calls.md", calls),
    "transfers": ("transfers.md", transfers),
    "two-gpus": ("streaming.md", two_gpus),
    "processor": ("lavapipe.md", processor),
    "float32-rounds": ("h200-float32.md", rounds),
    "arrays": ("h200-arrays.md", arrays),
    "encoders": ("h200-models.md", encoders),
}
