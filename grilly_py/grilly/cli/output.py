"""What the commands print: tables, quantities with units, progress.

On a terminal with the package rich installed, tables are rich's (which respects NO_COLOR and the width); everywhere
else they are aligned text without colour, which other programs can read.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from . import CommandError


def _rich():
    """rich's console and table modules for a terminal, or None."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich import box, console, table, text
    except ImportError:
        return None
    return console, table, box, text


def heading(text: str) -> None:
    """Print a line that begins a section, with an empty line before it."""
    rich = _rich()
    if rich is None:
        print(f"\n{text}\n{'-' * min(len(text), 80)}")
        return
    rich[0].Console(highlight=False).print(f"\n{text}", style="bold", markup=False)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    right: Iterable[str] = (),
    styles: Mapping[tuple[int, int], str] | None = None,
) -> None:
    """Print a table.

    Parameters
    ----------
    columns : sequence of str
        Headings.
    rows : iterable of sequence
        Cells, one for each column; None is shown as "-".
    right : iterable of str
        Headings of the columns that are aligned to the right (numbers).
    styles : mapping, optional
        (row, column) to a style of rich's, such as "bold green"; without colour nothing is lost but emphasis.
    """
    right = frozenset(right)
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    rich = _rich()
    if rich is None:
        print(plain_table(columns, cells, right, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
        return
    console, tables, box, text = rich
    shown = tables.Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for name in columns:  # only the last column may be wrapped, as in the plain table
        shown.add_column(
            name, justify="right" if name in right else "left", overflow="fold", no_wrap=name != columns[-1]
        )
    for i, row in enumerate(cells):
        shown.add_row(*(text.Text(cell, (styles or {}).get((i, j), "")) for j, cell in enumerate(row)))
    console.Console(highlight=False).print(shown)


def plain_table(columns: Sequence[str], rows: list[list[str]], right: frozenset[str], width: int | None = None) -> str:
    """A table as aligned text; the last column is wrapped to ``width`` characters (None: never)."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    indent = sum(widths[:-1]) + 2 * (len(widths) - 1)
    if width is not None:
        widths[-1] = min(widths[-1], max(width - indent, 20))
    lines = []
    for row in [list(columns), ["-" * w for w in widths], *rows]:
        wrapped = textwrap.wrap(row[-1], widths[-1] or 1) or [""]
        first = [
            cell.rjust(w) if name in right else cell.ljust(w)
            for name, cell, w in zip(columns, [*row[:-1], wrapped[0]], widths, strict=True)
        ]
        lines.append("  ".join(first).rstrip())
        lines += [" " * indent + line for line in wrapped[1:]]
    return "\n".join(lines)


def facts(pairs: Mapping[str, object], indent: str = "  ") -> None:
    """Print names and values in two columns, long values wrapped."""
    widest = max(map(len, pairs))
    width = max(shutil.get_terminal_size((120, 24)).columns, 60)
    for name, value in pairs.items():
        lead = f"{indent}{name:{widest}}  "
        print(textwrap.fill(str(value), width, initial_indent=lead, subsequent_indent=" " * len(lead),
                            break_on_hyphens=False))  # fmt: skip


def as_json(data) -> str:
    """Indented JSON; sets become sorted lists, other objects of their own kinds become strings."""
    return json.dumps(data, indent=2, default=lambda o: sorted(o) if isinstance(o, set | frozenset) else str(o))


def write_json(path: str, data) -> None:
    """Write JSON to a file, or to standard output for "-". Raises CommandError when the file cannot be written."""
    if path == "-":
        print(as_json(data))
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(as_json(data) + "\n")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from error


def check_writable(path: str) -> None:
    """Raise CommandError when a file cannot be written, before work whose results would be lost. Changes nothing."""
    existed = os.path.exists(path)
    try:
        if existed and is_stream(path):  # to open it is seen at its other end
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        open(path, "ab").close()
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from error
    if not existed:
        os.remove(os.path.realpath(path))  # what a link names, not the link


def is_stream(path: str) -> bool:
    """Whether a path is a device or a pipe."""
    mode = os.stat(path).st_mode
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISBLK(mode)


def shown(name: str) -> str:
    """A name of a file or a model, as a line may have it: quoted where it would break the line or steer a terminal."""
    return name if name.isprintable() else repr(name)


def bytes_text(number: float | None) -> str | None:
    """A number of bytes with a binary unit: "1.5 MiB"."""
    if number is None:
        return None
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(number) >= 1024 and len(units) > 1:
        number /= 1024
        del units[0]
    return f"{number:.0f} {units[0]}" if units[0] == "B" or number >= 100 else f"{number:.1f} {units[0]}"


def time_text(seconds: float | None) -> str | None:
    """A duration with a unit and three digits: "4.21 ms"."""
    if seconds is None:
        return None
    number, unit = next(
        (seconds * factor, unit) for factor, unit in ((1e6, "us"), (1e3, "ms"), (1.0, "s"))
        if seconds * factor < 1000 or unit == "s"
    )  # fmt: skip
    digits = max(0, 2 - (number >= 10) - (number >= 100))
    return f"{number:.{digits}f} {unit}"


class Progress:
    """One line on stderr that says what is being done; on a terminal each line replaces the former."""

    def __init__(self, quiet: bool = False):
        #: Whether each line is written over the one before it.
        self.replaces = self._terminal = sys.stderr.isatty()
        self._quiet = quiet

    def say(self, text: str) -> None:
        """Show ``text``."""
        if self._quiet:
            return
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def done(self) -> None:
        """Clear the line."""
        if self._terminal and not self._quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
