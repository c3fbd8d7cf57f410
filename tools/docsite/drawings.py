#!/usr/bin/env python3
"""Draws how attention is tiled, into docs/pictures: python tools/docsite/drawings.py

Plain shapes, the same bytes each time; tests/test_pictures.py holds the files against this.
"""

from __future__ import annotations

from collections.abc import Callable

from bars import PICTURES

INK, PALE, LINE = "#22303c", "#5a6873", "#c3ced6"
HIDDEN, CLEAR, MIXED = "#eef2f4", "#00796b", "#f4a259"


class Drawing:
    """Shapes on a white ground."""

    def __init__(self, title: str, width: int, height: int):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' font-family="Helvetica, Arial, DejaVu Sans, sans-serif" font-size="13" fill="{INK}" role="img">',
            f"<title>{title}</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
            ' orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{PALE}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>',
        ]

    def box(self, x: float, y: float, width: float, height: float, fill: str, line: str = LINE) -> None:
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{line}"/>'
        )

    def text(self, x: float, y: float, text: str, *, anchor: str = "start", fill: str = INK, size: int = 13,
             bold: bool = False) -> None:  # fmt: skip
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{fill}" font-size="{size}"{weight}>{text}</text>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self.parts.append(
            f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{PALE}" stroke-width="1.6" marker-end="url(#head)"/>'
        )

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>", ""])


def tiles() -> str:
    """The matrix of scores stored, and walked tile by tile."""
    d = Drawing("Scores stored, and scores made tile by tile", 760, 372)
    side, cell = 224, 28
    d.text(40, 34, "Stored", bold=True, size=15)
    d.text(40, 54, "every score of every pair is kept", fill=PALE)
    for x in range(8):
        for y in range(8):
            d.box(40 + x * cell, 84 + y * cell, cell, cell, "#f9d9b8", "#ffffff")
    d.text(40 + side / 2, 76, "keys", anchor="middle", fill=PALE, size=12)
    d.text(40, 330, "16,384 queries x 16,384 keys, float32:", size=12)
    d.text(40, 348, "1.07 GB for one head", size=12, bold=True)

    left = 330
    d.text(left, 34, "Tiled", bold=True, size=15)
    d.text(left, 54, "one tile of scores exists at a time", fill=PALE)
    d.box(left, 84, side, side, HIDDEN)
    band = 84 + 2 * cell
    d.box(left, band, side, cell, "#cfe8e4")
    d.box(left + 3 * cell, band, cell, cell, CLEAR)
    d.arrow(left + 4 * cell + 4, band + cell / 2, left + side - 6, band + cell / 2)
    d.text(left + side / 2, 76, "keys", anchor="middle", fill=PALE, size=12)
    d.box(left, 84, side, side, "none")
    right = left + side + 22
    d.text(right, band - 4, "A workgroup owns a band", size=12)
    d.text(right, band + 12, "of queries and walks", size=12)
    d.text(right, band + 28, "along the keys.", size=12)
    d.text(right, band + 62, "For each query it keeps", size=12)
    d.text(right, band + 80, "the largest score so far,", size=12, bold=True)
    d.text(right, band + 98, "the sum of the weights,", size=12, bold=True)
    d.text(right, band + 116, "one row of the output.", size=12, bold=True)
    d.text(left, 330, "16,384 queries, D = 64, float32:", size=12)
    d.text(left, 348, "4.2 MB of output for one head, no scores", size=12, bold=True)
    return d.svg()


def step() -> str:
    """What is done with one tile."""
    d = Drawing("One step: a tile of keys and values", 760, 250)
    y = 70
    d.text(30, 34, "One step of a workgroup, for heads of 64 columns", bold=True, size=15)
    d.box(30, y, 64, 128, "#cfe8e4")
    d.text(62, y + 68, "q", anchor="middle", bold=True)
    d.text(62, y + 146, "128 x 64", anchor="middle", fill=PALE, size=12)
    d.text(112, y + 70, "x", anchor="middle", size=16)
    d.box(132, y + 32, 64, 64, "#dfe7ee")
    d.text(164, y + 68, "k, turned", anchor="middle", bold=True, size=12)
    d.text(164, y + 146, "64 keys", anchor="middle", fill=PALE, size=12)
    d.arrow(206, y + 64, 240, y + 64)
    d.box(250, y, 64, 128, CLEAR)
    d.text(282, y + 68, "scores", anchor="middle", fill="#ffffff", bold=True)
    d.text(282, y + 146, "128 x 64", anchor="middle", fill=PALE, size=12)
    d.arrow(324, y + 64, 408, y + 64)
    d.text(366, y + 52, "exp(s - max)", anchor="middle", size=12)
    d.box(418, y, 64, 128, CLEAR)
    d.text(450, y + 68, "weights", anchor="middle", fill="#ffffff", bold=True)
    d.text(450, y + 146, "in registers", anchor="middle", fill=PALE, size=12)
    d.text(500, y + 70, "x", anchor="middle", size=16)
    d.box(520, y + 32, 64, 64, "#dfe7ee")
    d.text(552, y + 68, "v", anchor="middle", bold=True)
    d.text(552, y + 146, "64 values", anchor="middle", fill=PALE, size=12)
    d.arrow(594, y + 64, 640, y + 64)
    d.text(617, y + 52, "added", anchor="middle", size=12)
    d.box(650, y, 64, 128, "#cfe8e4")
    d.text(682, y + 68, "output", anchor="middle", bold=True)
    d.text(682, y + 146, "128 x 64", anchor="middle", fill=PALE, size=12)
    said = "Where a larger maximum appears, what was added before is multiplied by exp(old max - new max)."
    d.text(30, 238, said, size=12)
    return d.svg()


def hidden() -> str:
    """Tiles of three patterns: walked, looked at score by score, passed over."""
    d = Drawing("Tiles of a causal mask, a window and documents", 760, 330)
    size, tall, wide = 1024, 128, 64  # tokens, rows and columns of a tile
    ends = (0, 300, 700, 1024)
    document = [sum(token >= end for end in ends) for token in range(size)]
    patterns: list[tuple[str, Callable[[int, int], bool]]] = [
        ("causal", lambda i, j: j <= i),
        ("causal, window of 256", lambda i, j: i - 256 < j <= i),
        ("three documents", lambda i, j: document[i] == document[j]),
    ]
    scale = 208 / size
    for n, (name, sees) in enumerate(patterns):
        left, top = 30 + 244 * n, 62
        d.text(left, 40, name, bold=True, size=14)
        passed = 0
        for i in range(0, size, tall):
            for j in range(0, size, wide):
                # Each pattern is made of ranges, so that every 4th pair shows what a tile has.
                seen = [sees(a, b) for a in (*range(i, i + tall, 4), i + tall - 1)
                        for b in (*range(j, j + wide, 4), j + wide - 1)]  # fmt: skip
                fill = CLEAR if all(seen) else MIXED if any(seen) else HIDDEN
                passed += fill == HIDDEN
                d.box(left + j * scale, top + i * scale, wide * scale, tall * scale, fill, "#ffffff")
        d.text(left, top + 228, f"{passed} of {size * size // tall // wide} tiles passed over", fill=PALE, size=12)
    for x, fill, what in ((30, CLEAR, "every pair sees: no mask is read"),
                          (276, MIXED, "some do: looked at one by one"), (506, HIDDEN, "none does: passed over")):
        d.box(x, 304, 13, 13, fill)
        d.text(x + 20, 315, what, size=12)
    return d.svg()


DRAWINGS: dict[str, Callable[[], str]] = {"tiles": tiles, "step": step, "hidden-tiles": hidden}


if __name__ == "__main__":
    for name, drawing in DRAWINGS.items():
        (PICTURES / f"{name}.svg").write_text(drawing(), encoding="utf-8")
