"""Bars in SVG: what figures.py and gallery.py draw with."""

from __future__ import annotations

import dataclasses
import textwrap
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs/pictures"
#: Ours first; those of others are paler.
COLOURS = ("#00796b", "#f4a259", "#a8b8c4", "#7c9cbf")
WIDTH, BAR, GAP = 540, 15, 12
#: Letters of a line at the foot, which a phone's wider letters do not push over the edge.
FOOT = 84


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
        foot = textwrap.wrap(self.note, FOOT)
        height = y + 6 + 14 * len(foot)
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
            *(f'<text x="20" y="{y + 8 + 14 * n}" font-size="11" fill="#5a6873">{escape(line)}</text>'
              for n, line in enumerate(foot)),
            "</svg>", "",
        ])  # fmt: skip
