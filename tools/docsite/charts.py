#!/usr/bin/env python3
"""Draws the figures of docs/benchmarks as bars, into docs/pictures: python tools/docsite/charts.py

Every bar is a number that stands in a table of a page there. Pictures are SVG in plain shapes, the same bytes each
time: tests/test_pictures.py holds them against the tables. Run this after a table was changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from bars import PICTURES, Chart, number, rows

H200 = "NVIDIA H200, driver 580.159.04"
TORCH = f"{H200}, torch 2.11.0+cu130, one run"
FLOAT32 = "| (4, 32, 4096, D) | TFLOP/s | ratio to torch | ms | error |"
ATTENTION = "| float16 | grilly | torch FlashAttention-2 | cuDNN | error |"
MODELS = (
    "| model | (batch, heads / key heads, queries x keys, D) | us | TFLOP/s | FlashAttention-2 | cuDNN | ratio to FA2 |"
)
BESIDE = ("grilly (Vulkan)", "PyTorch FlashAttention-2", "PyTorch cuDNN")


def attention_groups() -> list[tuple[str, list[float | None]]]:
    """Each row of the table beside torch; a row "causal" belongs to the one above it."""
    groups, shape = [], ""
    for cells in rows("h200-matrix.md", ATTENTION):
        shape = shape if cells[0] == "causal" else cells[0]
        label = f"{shape} causal" if cells[0] == "causal" else shape
        groups.append((label, [number(cell) for cell in cells[1:4]]))
    return groups


def speed() -> Chart:
    """The README's picture: five shapes of the table beside torch."""
    chosen = {
        "(1, 8, 1024, 64)": "1 text, 8 heads, 1,024 tokens, D 64",
        "(16, 32, 1024, 64)": "16 texts, 32 heads, 1,024 tokens, D 64",
        "(4, 32, 4096, 64)": "4 texts, 32 heads, 4,096 tokens, D 64",
        "(1, 32, 16384, 128)": "1 text, 32 heads, 16,384 tokens, D 128",
        "(4, 16, 4096, 256)": "4 texts, 16 heads, 4,096 tokens, D 256",
    }
    found = dict(attention_groups())
    return Chart("Attention in float16, TFLOP/s", "longer is faster", f"{TORCH} but for the third",
                 BESIDE, [(label, found[shape]) for shape, label in chosen.items()])  # fmt: skip


def attention() -> Chart:
    return Chart("Attention in float16, TFLOP/s", "(batch, heads, length, D); longer is faster",
                 f"{TORCH}, the first two another", BESIDE, attention_groups())  # fmt: skip


def models() -> Chart:
    """Plain and causal calls of many queries: for others torch's kernels do another thing, says the page."""
    groups = []
    for cells in rows("h200-shapes.md", MODELS):
        if not re.search(r"bias|window|softcap|sinks|, \d{1,2} x ", cells[1]):
            groups.append((cells[0], [number(cell) for cell in cells[3:6]]))
    return Chart("Attention at the shapes of models, TFLOP/s",
                 "float16, plain and causal calls of many queries; longer is faster",
                 TORCH, BESIDE, groups)  # fmt: skip


def options() -> Chart:
    groups = []
    for cells in rows("features.md", "| | D = 64, 4096 | before | D = 64, 16384 | D = 128, 16384 |")[1:]:
        groups.append((cells[0], [float(re.search(r"\((.*?)\)", cells[3])[1])]))
    return Chart("What options of attention cost", "time relative to the plain call: below 1 is faster, above 1 slower",
                 f"{H200}, float16, (1, 16, 16384, 64)", ("relative to plain",), groups)  # fmt: skip


def decoding() -> Chart:
    found = {cells[0]: cells for cells in rows("decode.md", "| kernel and setting | B = 16 | B = 1 |", "4 trips")}
    kernels = ("loaded ahead from 4 trips on (kept)", "torch, its FlashAttention", "torch, as it chooses (cuDNN)")
    places = {"batch 1": 2, "batch 16": 1}
    groups = [(label, [number(found[name][place]) for name in kernels]) for label, place in places.items()]
    return Chart("One new token over 8,192 keys, float16",
                 "32 heads over 8 key heads, D 128; microseconds; shorter is faster", f"{H200}, torch 2.11",
                 ("grilly", "PyTorch: FlashAttention-2", "PyTorch: cuDNN"), groups)  # fmt: skip


def gradients() -> Chart:
    groups, shape = [], ""
    for cells in rows("backward.md", "| | grilly | torch | TFLOP/s, torch's | ratio | rows, dq, dk and dv |"):
        shape = shape if cells[0] == "causal" else cells[0]
        label = f"{shape}, causal" if cells[0] == "causal" else shape
        groups.append((label, [number(cells[1]), number(cells[2])]))
    return Chart("Gradients of attention, (4, 16, 4096, D), float16", "milliseconds; shorter is faster",
                 f"{H200}, torch 2.11, one run", ("grilly", "PyTorch: FlashAttention-2"), groups)  # fmt: skip


def float32() -> Chart:
    found = {cells[0]: number(cells[1]) for cells in rows("float32-matrix.md", FLOAT32)}
    torch = {"D = 64": 'D = 64, torch\'s float32 kernel ("efficient")', "D = 96": "D = 96, torch",
             "D = 128": "D = 128, torch"}  # fmt: skip
    return Chart("Attention in float32, TFLOP/s", "(4, 32, 4096, D); longer is faster", f"{H200}",
                 ('grilly, precision="high"', "PyTorch float32"),
                 [(label, [found[label], found[name]]) for label, name in torch.items()])  # fmt: skip


def linear() -> Chart:
    header = '| rows x depth x columns | float16 | bfloat16 | float32, `precision="high"` | float32, error (NumPy\'s) |'
    return Chart("linear in float16, TFLOP/s", "rows x depth x columns; longer is faster", TORCH, ("grilly", "PyTorch"),
                 [(cells[0], [number(cells[1]), number(cells[1].partition("(")[2])])
                  for cells in rows("h200-linear.md", header)])  # fmt: skip


def calls() -> Chart:
    found = {cells[0]: cells for cells in rows("h200-calls.md", "| | grilly | torch, same run |")}
    names = {"on the device, until it is done": "(1, 8, 128, 64), Tensor to Tensor, call to completion",
             "from NumPy to NumPy": "the same, NumPy to NumPy"}  # fmt: skip
    return Chart("A small call, (1, 8, 128, 64), float32", "microseconds; shorter is faster", TORCH,
                 ("grilly", "PyTorch"), [(label, [number(cell) for cell in found[name][1:3]])
                                         for label, name in names.items()])  # fmt: skip


def transfers() -> Chart:
    found = {cells[0]: number(cells[1]) for cells in rows("transfers.md", "| | ms |")}
    names = {
        "plain arrays": "grilly, NumPy to NumPy", "host arrays": "the same, grilly.pinned arrays",
        "host arrays, borrowed, into a host array": "the same, out= another",
        "torch: from_numpy, cuda, attention, cpu, numpy": "PyTorch: from_numpy ... numpy",
    }  # fmt: skip
    return Chart("A whole call from NumPy to NumPy, 537 MB",
                 "(4, 32, 4096, 128), float16, milliseconds; shorter is faster", f"{H200}, 16 processors, torch 2.11",
                 ("milliseconds",),
                 [(label, [found[name]]) for name, label in names.items()])  # fmt: skip


def two_gpus() -> Chart:
    (measured,) = [cells for cells in rows("streaming.md", "| | one worker | two workers | |")
                   if cells[0].startswith("measured")]  # fmt: skip
    return Chart("grilly.dask on one and two GPUs",
                 "262,144 tokens, 32 heads, D 128, float16; seconds; shorter is faster",
                 "NVIDIA H200, two of one host, driver 580.159.04", ("seconds",),
                 [("one GPU", [number(measured[1])]), ("two GPUs", [number(measured[2])])])  # fmt: skip


def processor() -> Chart:
    """Attention on the CPU: columns of two tables of the same runs."""
    wide = {cells[0]: number(cells[1]) for cells in rows("lavapipe.md", "| D | WIDTH = 8 | NumPy |")}
    numpy = {cells[0]: number(cells[2]) for cells in rows("lavapipe.md", "| D | WIDTH = 8 | NumPy |")}
    groups = [(f"D = {d}", [wide[d], numpy[d]]) for d in wide]
    return Chart("Attention on a processor, float32, GFLOP/s", "8 heads, 2,048 tokens; longer is faster",
                 "Intel Xeon (Ice Lake), two cores; Mesa 22.3.6, NumPy 2.4 with OpenBLAS",
                 ("grilly on lavapipe", "NumPy"), groups)  # fmt: skip


def rounds() -> Chart:
    groups = []
    for cells in rows("h200-float32.md", "| version | D = 64 | causal | D = 128 | causal | predicted |"):
        label = "PyTorch" if cells[0].startswith("PyTorch") else cells[0].partition(" (D = 64)")[0]
        groups.append((label, [number(cells[place]) if cells[place] else None for place in (1, 3)]))
    return Chart("Attention in float32 without matrix units, round by round",
                 "(4, 32, 4096, D), TFLOP/s; longer is faster", H200, ("D = 64", "D = 128"), groups)  # fmt: skip


def arrays() -> Chart:
    header = "| | float16, us | GB/s | before | torch | float32, us | GB/s | before | torch |"
    return Chart("Operations on arrays of (16384, 4096), float16", "microseconds; shorter is faster", TORCH,
                 ("grilly", "PyTorch"), [(cells[0], [number(cells[1]), number(cells[4])])
                                         for cells in rows("h200-arrays.md", header)])  # fmt: skip


def encoders() -> Chart:
    """Rows that begin with a shape belong to the model above, and "the same" is that model."""
    groups, model, dtype = [], "", ""
    header = "| | the model | at first | NumPy in and out | torch, eager | torch, CUDA graph |"
    for cells in rows("h200-models.md", header):
        name, _, rest = cells[0].replace(" (captured)", "").partition(", ")
        if name[0].isdigit() and not rest:
            label = f"{model}, {dtype}, {name}"
        elif name == "the same":
            label = f"{model}, {rest}"
        else:
            model, label = name, f"{name}, {rest}"
            dtype = 'float32, "high"' if '"high"' in rest else "float16"
        groups.append((label, [number(cells[place]) for place in (1, 4, 5)]))
    return Chart("Whole encoders", "milliseconds; shorter is faster", f"{H200}, torch 2.11.0+cu130",
                 ("grilly", "PyTorch, eager", "PyTorch, CUDA graph"), groups)  # fmt: skip


CHARTS: dict[str, Callable[[], Chart]] = {
    "speed": speed, "attention": attention, "models": models, "options": options, "decoding": decoding,
    "gradients": gradients, "linear": linear, "float32": float32, "calls": calls, "transfers": transfers,
    "two-gpus": two_gpus, "processor": processor, "float32-rounds": rounds, "arrays": arrays, "encoders": encoders,
}  # fmt: skip


if __name__ == "__main__":
    for name, chart in CHARTS.items():
        (PICTURES / f"{name}.svg").write_text(chart().svg(), encoding="utf-8")
