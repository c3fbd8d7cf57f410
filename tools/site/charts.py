#!/usr/bin/env python3
"""Draws the figures of docs/benchmarks as bars, into docs/pictures: python tools/site/charts.py

Every bar is a number that stands in a table of a page there. Pictures are SVG in plain shapes, the same bytes each
time: tests/test_pictures.py holds them against the tables. Run this after a table was changed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs/pictures"
#: Ours first; those of others are paler.
COLOURS = ("#00796b", "#f4a259", "#a8b8c4", "#7c9cbf")
WIDTH, BAR, GAP = 540, 15, 12
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def rows(page: str, header: str, holding: str = "") -> list[list[str]]:
    """The cells of the table in docs/benchmarks/``page`` whose first line is ``header``, one with ``holding`` in it.

    LookupError unless there is exactly one.
    """
    lines = (ROOT / "docs/benchmarks" / page).read_text(encoding="utf-8").splitlines()
    tables = []
    for start in (n for n, line in enumerate(lines) if line == header):
        end = start
        while end < len(lines) and lines[end].startswith("|"):
            end += 1
        tables.append(lines[start + 2 : end])
    tables = [table for table in tables if any(holding in line for line in table)]
    if len(tables) != 1:
        raise LookupError(f"{page} has {len(tables)} tables that begin with {header!r}")
    return [[c.strip().replace("**", "").replace("`", "") for c in line.strip("|").split("|")] for line in tables[0]]


def number(cell: str) -> float:
    """The first number of a cell."""
    return float(NUMBER.search(cell)[0].replace(",", ""))


@dataclasses.dataclass(frozen=True)
class Chart:
    """Groups of bars, one group a label, one bar a series.

    ``groups`` has for each label its numbers, None where there is none, in the order of ``series``.
    """

    title: str
    unit: str
    note: str
    series: tuple[str, ...]
    groups: list[tuple[str, list[float | None]]]

    def svg(self) -> str:
        """The picture."""
        left, room = 20, WIDTH - 90
        largest = max(value for _, values in self.groups for value in values if value is not None)
        body, y = [], 92 if len(self.series) > 1 else 70
        for label, values in self.groups:
            present = [(n, value) for n, value in enumerate(values) if value is not None]
            body.append(f'<text x="{left}" y="{y + 8}">{escape(label)}</text>')
            y += 14
            for n, value in present:
                width, weight = room * value / largest, ' font-weight="bold"' if n == 0 else ""
                fill = COLOURS[n]
                body.append(f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{BAR - 2}" rx="2" fill="{fill}"/>')
                body.append(f'<text x="{left + width + 6:.1f}" y="{y + 11}" font-size="11"{weight}>{value:g}</text>')
                y += BAR
            y += GAP
        height = y + 20
        legend, x = [], 20
        if len(self.series) > 1:
            for n, name in enumerate(self.series):
                legend.append(f'<rect x="{x}" y="56" width="12" height="12" rx="2" fill="{COLOURS[n]}"/>')
                legend.append(f'<text x="{x + 17}" y="66.5" font-size="11.5">{escape(name)}</text>')
                x += 34 + round(6.4 * len(name))
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
            ' font-family="Helvetica, Arial, DejaVu Sans, sans-serif" font-size="12.5" fill="#22303c" role="img">',
            f"<title>{escape(self.title)}</title>",
            f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>',
            f'<text x="20" y="28" font-size="15" font-weight="bold">{escape(self.title)}</text>',
            f'<text x="20" y="46" font-size="11.5" fill="#5a6873">{escape(self.unit)}</text>',
            *legend, *body,
            f'<text x="20" y="{height - 12}" font-size="11" fill="#5a6873">{escape(self.note)}</text>',
            "</svg>", "",
        ])  # fmt: skip


H200 = "NVIDIA H200, driver 580.159.04"
TORCH = f"{H200}, torch 2.11.0+cu130, one run"
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


CHARTS: dict[str, Callable[[], Chart]] = {
    "speed": speed, "attention": attention, "models": models, "options": options, "decoding": decoding,
    "gradients": gradients, "transfers": transfers, "two-gpus": two_gpus, "processor": processor,
}  # fmt: skip


if __name__ == "__main__":
    for name, chart in CHARTS.items():
        (PICTURES / f"{name}.svg").write_text(chart().svg(), encoding="utf-8")
