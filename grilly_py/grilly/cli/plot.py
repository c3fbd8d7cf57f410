"""Pictures of ``grilly bench --plot``, time and device memory over sequence length, and of losses."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

from . import CommandError
from .output import check_writable, is_stream

#: Method -> colour and marker. Flash is drawn thick; the rest recede.
STYLES = {
    "flash": ("#0b6e4f", "o", 2.6),
    "flash, NumPy in and out": ("#6bbf9c", "o", 1.6),
    "naive on the device": ("#c1440e", "s", 1.6),
    "naive in NumPy": ("#3b5b92", "^", 1.6),
    "torch on cpu": ("#8a8a8a", "D", 1.6),
    "torch on cuda": ("#444444", "v", 1.6),
}


def written(path: str) -> str:
    """The file that `draw` writes: of a name without an ending, a .png.

    Raises CommandError when it cannot be written: for its place, or for the format that its ending names.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if os.path.isdir(path):  # else matplotlib would write FOLDER.png beside the folder
        raise CommandError(f"{path} cannot be written: it is a folder; give a file in it")
    ending = os.path.splitext(path)[1][1:].lower()
    known = FigureCanvasAgg.get_supported_filetypes()
    if ending and ending not in known:
        raise CommandError(f"{path} cannot be written: the ending is none of {', '.join(sorted(known))}")
    path = path if ending or (os.path.exists(path) and is_stream(path)) else f"{path}.png"
    check_writable(path)
    return path


def draw_losses(path: str, losses: Sequence[float]) -> None:
    """Draw the loss of each step, and a running mean, into a file, whose ending gives the format.

    Raises CommandError when the file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    import numpy as np
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    steps = np.arange(1, len(losses) + 1)
    width = max(len(losses) // 20, 1)
    axes.plot(steps, losses, color="#6bbf9c", linewidth=0.8, alpha=0.7, label="of a step")
    if width > 1:
        sums = np.cumsum([0.0, *losses])
        mean = (sums[width:] - sums[:-width]) / width
        axes.plot(steps[width - 1 :], mean, color="#0b6e4f", linewidth=2, label=f"mean of {width}")
    axes.set(xlabel="step", ylabel="loss, nats per token")
    axes.grid(True, color="#e4e4e4", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    _saved(figure, path)


def _saved(figure, path: str) -> None:
    """Write a figure, and let it go. Raises CommandError when the file cannot be written."""
    from matplotlib import pyplot

    drawn = io.BytesIO()  # some formats are not written from the first byte to the last, as pipes take them
    try:
        figure.savefig(drawn, dpi=150, format=os.path.splitext(path)[1][1:].lower() or "png")
        with open(path, "wb") as file:
            file.write(drawn.getbuffer())
    except (OSError, ValueError) as error:
        raise CommandError(f"{path} cannot be written: {error}") from error
    finally:
        pyplot.close(figure)


def draw(path: str, report: dict) -> None:
    """Draw a report of ``grilly bench`` into a file, whose ending gives the format (png, svg, pdf).

    Raises CommandError when the file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (times, memory) = pyplot.subplots(1, 2, figsize=(11, 4.8), layout="constrained")
    results = report["results"]
    for name in dict.fromkeys(r["method"] for r in results):
        _draw_method(times, memory, name, [r for r in results if r["method"] == name])
    lengths = sorted({r["length"] for r in results})
    limit = report["limits"]["memory_bytes"] / 2**20
    top = max(r["device_bytes"] or 0 for r in results) / 2**20
    if limit < 20 * top:
        memory.axhline(limit, color="#999999", linestyle="--", linewidth=1)
        place = {"xytext": (0, 4), "textcoords": "offset points", "color": "#666666"}
        memory.annotate("device memory", (lengths[0], limit), **place)
    for axes, title, unit in ((times, "Time of a call (median, p10 to p90)", "milliseconds"),
                              (memory, "Peak device memory, inputs and output included", "MiB")):  # fmt: skip
        axes.set(title=title, xlabel="sequence length S", ylabel=unit, xscale="log", yscale="log")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.grid(True, which="major", color="#e4e4e4", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    p = report["problem"]
    figure.suptitle(
        f"Attention on {report['device']['name']}: batch {p['batch']}, {p['heads']} heads of {p['dim']}, {p['dtype']}"
        + (", causal" if p["causal"] else ""),
        fontsize=11,
    )
    _saved(figure, path)


def _draw_method(times, memory, name: str, results: list[dict]) -> None:
    """Draw a method's times, and its memory where it is one of the two that are compared, into their axes."""
    color, marker, width = STYLES.get(name, ("#777777", "x", 1.6))
    style = {"color": color, "marker": marker, "markersize": 5, "linewidth": width, "label": name}
    timed = [r for r in results if r["median_seconds"] is not None]
    if timed:
        x = [r["length"] for r in timed]
        times.plot(x, [r["median_seconds"] * 1e3 for r in timed], **style)
        times.fill_between(
            x, [r["p10_seconds"] * 1e3 for r in timed], [r["p90_seconds"] * 1e3 for r in timed],
            color=color, alpha=0.15, linewidth=0,
        )  # fmt: skip
    used = [r for r in results if r["device_bytes"] is not None]
    if used and name in ("flash", "naive on the device"):
        memory.plot([r["length"] for r in used], [r["device_bytes"] / 2**20 for r in used], **style)
        computed = [(r["length"], r["device_bytes"] / 2**20) for r in used if r["computed_bytes"]]
        if computed:
            hollow = {**style, "linestyle": "", "markerfacecolor": "white", "label": f"{name}, computed"}
            memory.plot(*zip(*computed, strict=True), **hollow)
