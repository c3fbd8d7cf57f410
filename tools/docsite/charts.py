"""Charts of docs/benchmarks: which of the measured figures become bars. `figures.py` draws them."""

from __future__ import annotations

import re
from collections.abc import Callable

from bars import Chart
from data import Measured
from tables import FEATURES, best, dims, encoder_figures

BESIDE = ("grilly (Vulkan)", "PyTorch FlashAttention-2", "PyTorch cuDNN")
FASTER, SHORTER = "longer is faster", "shorter is faster"


def attention_groups(data: Measured) -> list[tuple[str, list[float | None]]]:
    groups = []
    for own in data.all(by="grilly", dtype="float16"):
        what = {name: own[name] for name in ("shape", "causal", "dtype")}
        speeds = [data.one(by=by, **what)["tflops"] for by in ("grilly", "torch flash", "torch cudnn")]
        groups.append((dims(own["shape"]) + " causal" * own["causal"], speeds))
    return groups


def speed(data: Measured) -> Chart:
    """The README's picture: five shapes."""
    chosen = {
        "(1, 8, 1024, 64)": "1 text, 8 heads, 1,024 tokens, D 64",
        "(16, 32, 1024, 64)": "16 texts, 32 heads, 1,024 tokens, D 64",
        "(4, 32, 4096, 64)": "4 texts, 32 heads, 4,096 tokens, D 64",
        "(1, 32, 16384, 128)": "1 text, 32 heads, 16,384 tokens, D 128",
        "(4, 16, 4096, 256)": "4 texts, 16 heads, 4,096 tokens, D 256",
    }
    found = dict(attention_groups(data))
    return Chart("Attention in float16, TFLOP/s", FASTER, data.where, BESIDE,
                 [(label, found[shape]) for shape, label in chosen.items()])  # fmt: skip


def attention(data: Measured) -> Chart:
    return Chart("Attention in float16, TFLOP/s", f"(batch, heads, length, D); {FASTER}", data.where, BESIDE,
                 attention_groups(data))  # fmt: skip


def models(data: Measured) -> Chart:
    """Plain and causal calls of many queries: for others torch's kernels do another thing, says the page."""
    groups = []
    for found in data.results:
        if not re.search(r"bias|window|softcap|sinks|, \d{1,2} x ", found["shape"]):
            groups.append((found["name"], [found["tflops"][name] for name in ("grilly", "FA2", "cuDNN")]))
    return Chart("Attention at the shapes of models, TFLOP/s",
                 f"float16, plain and causal calls of many queries; {FASTER}", data.where, BESIDE, groups)  # fmt: skip


def options(data: Measured) -> Chart:
    groups = [(label, [round(data.one(case="long64", feature=feature)["ratio"], 3)])
              for feature, label in FEATURES.items() if feature != "full"]  # fmt: skip
    return Chart("What options of attention cost", "time relative to the plain call: below 1 is faster, above 1 slower",
                 f"{data.where}, float16, (1, 16, 16384, 64)", ("relative to plain",), groups)  # fmt: skip


def decoding(data: Measured) -> Chart:
    settings = ("as chosen", "torch flash", "torch default")
    groups = [(label, [round(data.one(case=case, setting=setting)["seconds"] * 1e6, 1) for setting in settings])
              for case, label in (("b1", "batch 1"), ("b16", "batch 16"))]  # fmt: skip
    return Chart("One new token over 8,192 keys, float16", f"32 heads over 8 key heads, D 128; microseconds; {SHORTER}",
                 data.where, ("grilly", "PyTorch: FlashAttention-2", "PyTorch: cuDNN"), groups)  # fmt: skip


def gradients(data: Measured) -> Chart:
    groups = []
    for own in data.all(name="chosen", dtype="float16"):
        other = data.one(name="torch flash", **{name: own[name] for name in ("shape", "causal", "dtype")})
        label = f"D = {own['shape'][3]}" + ", causal" * own["causal"]
        groups.append((label, [round(found["seconds"] * 1e3, 3) for found in (own, other)]))
    return Chart("Gradients of attention, (4, 16, 4096, D), float16", f"milliseconds; {SHORTER}", data.where,
                 ("grilly", "PyTorch: FlashAttention-2"), groups)  # fmt: skip


def float32(data: Measured) -> Chart:
    groups = []
    for other in data.all(by="torch efficient", causal=False):
        own = data.one(by="grilly", shape=other["shape"], causal=False)
        groups.append((f"D = {own['shape'][3]}", [own["tflops"], other["tflops"]]))
    return Chart("Attention in float32, TFLOP/s", f"(4, 32, 4096, D); {FASTER}", data.where,
                 ('grilly, precision="high"', "PyTorch float32"), groups)  # fmt: skip


def linear(data: Measured) -> Chart:
    groups = []
    for other in data.all(by="torch", dtype="float16"):
        rows, columns, depth = other["shape"]
        own = best(data, dtype="float16", shape=other["shape"])
        groups.append((f"{rows} x {depth} x {columns}", [own["tflops"], other["tflops"]]))
    return Chart("linear in float16, TFLOP/s", f"rows x depth x columns; {FASTER}", data.where, ("grilly", "PyTorch"),
                 groups)  # fmt: skip


def calls(data: Measured) -> Chart:
    names = {"Tensor to Tensor, completed": "on the device, until it is done", "NumPy to NumPy": "from NumPy to NumPy"}
    groups = [(label, [round(data.one(what=what, by=by)["seconds"] * 1e6, 1) for by in ("grilly", "torch")])
              for what, label in names.items()]  # fmt: skip
    return Chart("A small call, (1, 8, 128, 64), float32", f"microseconds; {SHORTER}", data.where,
                 ("grilly", "PyTorch"), groups)  # fmt: skip


def transfers(data: Measured) -> Chart:
    names = {
        "plain arrays": "grilly, NumPy to NumPy", "host arrays": "the same, grilly.pinned arrays",
        "host arrays, borrowed, into a host array": "the same, out= another",
        "NumPy to NumPy": "PyTorch: from_numpy ... numpy",
    }  # fmt: skip
    return Chart("A whole call from NumPy to NumPy, 537 MB", f"(4, 32, 4096, 128), float16, milliseconds; {SHORTER}",
                 data.where, ("milliseconds",),
                 [(label, [round(data.one(what=what, dtype="float16")["seconds"] * 1e3, 1)])
                  for what, label in names.items()])  # fmt: skip


def two_gpus(data: Measured) -> Chart:
    return Chart("grilly.dask on one and two GPUs",
                 f"262,144 tokens, 32 heads, D 128, float16; seconds; {SHORTER}", data.where, ("seconds",),
                 [(label, [round(data.one(workers=workers)["seconds"], 3)])
                  for workers, label in ((1, "one GPU"), (2, "two GPUs"))])  # fmt: skip


def processor(data: Measured) -> Chart:
    return Chart("Attention on a processor, float32, GFLOP/s", f"8 heads, 2,048 tokens; {FASTER}", data.where,
                 ("grilly on lavapipe", "NumPy"),
                 [(f"D = {found['dim']}", [found["grilly"], found["numpy"]]) for found in data.results])  # fmt: skip


def rounds(data: Measured) -> Chart:
    groups = []
    for found in data.results:
        label = "PyTorch" if found["version"].startswith("PyTorch") else found["version"].partition(" (D = 64)")[0]
        groups.append((label, [found.get("64"), found.get("128")]))
    return Chart("Attention in float32 without matrix units, round by round", f"(4, 32, 4096, D), TFLOP/s; {FASTER}",
                 data.where, ("D = 64", "D = 128"), groups)  # fmt: skip


def arrays(data: Measured) -> Chart:
    return Chart("Operations on arrays of (16384, 4096), float16", f"microseconds; {SHORTER}", data.where,
                 ("grilly", "PyTorch"), [(found["name"], [round(found[by] * 1e6) for by in ("grilly", "torch")])
                                         for found in data.all(dtype="float16")])  # fmt: skip


def encoders(data: Measured) -> Chart:
    groups = [(label, [results[place].get("value") for place in (0, 3, 4)]) for label, results in encoder_figures(data)]
    return Chart("Whole encoders", f"milliseconds; {SHORTER}", data.where,
                 ("grilly", "PyTorch, eager", "PyTorch, CUDA graph"), groups)  # fmt: skip


#: The picture, its file of figures, and what is drawn.
CHARTS: dict[str, tuple[str, Callable[[Measured], Chart]]] = {
    "speed": ("attention", speed), "attention": ("attention", attention), "models": ("shapes", models),
    "options": ("options", options), "decoding": ("decoding", decoding), "gradients": ("gradients", gradients),
    "linear": ("linear", linear), "float32": ("float32", float32), "calls": ("calls", calls),
    "transfers": ("transfers", transfers), "two-gpus": ("two-gpus", two_gpus), "processor": ("processor", processor),
    "float32-rounds": ("float32-rounds", rounds), "arrays": ("arrays", arrays), "encoders": ("encoders", encoders),
}  # fmt: skip
