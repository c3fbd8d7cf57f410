#!/usr/bin/env python3
"""Makes tables of docs/benchmarks, and charts in docs/pictures, from the measured figures in docs/benchmarks/data.

    python tools/docsite/figures.py                                 all of them, as the files stand
    python tools/docsite/figures.py --take arrays found.json ...    first take a new measurement

What `--take` is given was written by a benchmark's --json, in one run or in several on the same device. The former
results become "before", where the table shows them. Nothing is taken that would leave the table or a picture without
a figure. tests/test_figures.py fails where a page or a picture is not what the data says.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from bars import PICTURES, ROOT
from charts import CHARTS
from data import DATA, DEVICE, Measured, read
from tables import TABLES, Rows

sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "grilly_py")]
from measured import text  # noqa: E402

BENCHMARKS = ROOT / "docs/benchmarks"


def markdown(rows: Rows) -> str:
    """A table; its first row is the heading."""
    lines = ["|" + "".join(f" {cell} |" if cell else " |" for cell in row) for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"


def placed(page: str, name: str, table: str) -> str:
    """The page's text with the table below its mark; LookupError unless the mark is there once."""
    mark = f"<!-- figures: {name} -->\n\n"
    if page.count(mark) != 1:
        raise LookupError(f"{page.count(mark)} times {mark.strip()!r}, with an empty line below it")
    start = page.index(mark) + len(mark)
    return page[:start] + table + re.sub(r"\A(\|.*\n)*", "", page[start:])


def made(name: str, data: Measured) -> dict[Path, str]:
    """The files that show these figures: the page, and each picture, with the text that they should have."""
    page = BENCHMARKS / TABLES[name][0]
    files = {page: placed(page.read_text(encoding="utf-8"), name, markdown(TABLES[name][1](data)))}
    for picture, (source, chart) in CHARTS.items():
        if source == name:
            files[PICTURES / f"{picture}.svg"] = chart(data).svg()
    return files


def taken(name: str, found: list[dict], former: Measured) -> dict:
    """What the file of figures becomes: measurements of one device and of the same versions, in a row.

    ValueError where they are not, or where one has no results.
    """
    first = found[0]
    for one in found:
        if not one.get("results"):
            raise ValueError("a file has no results")
        for key in ("device", "versions"):
            if one[key] != first[key]:
                raise ValueError(f"the files differ in {key}: {one[key]} and {first[key]}")
    what = {
        "command": "; ".join(re.sub(r" --json(=| )\S+", "", one["command"]) for one in found), "date": first["date"],
        "versions": first["versions"], "device": {key: first["device"][key] for key in DEVICE},
        "runtime": first["runtime"], "results": [result for one in found for result in one["results"]],
    }  # fmt: skip
    return what | ({"before": former.results} if "before" in former.found else {})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", nargs="+", metavar=("NAME", "FILE"), help=", ".join(TABLES))
    given = parser.parse_args().take
    if given:
        name, *paths = given
        if name not in TABLES or not paths:
            parser.error(f"--take needs one of {', '.join(TABLES)}, and files")
        found = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
        try:
            new = taken(name, found, read(name))
            made(name, Measured(name, new))
        except (KeyError, LookupError, ValueError) as error:
            print(f"Not taken, nothing was changed: {error}", file=sys.stderr)
            return 1
        (DATA / f"{name}.json").write_text(text(new), encoding="utf-8")
    for name in TABLES:
        for path, written in made(name, read(name)).items():
            if not path.exists() or path.read_text(encoding="utf-8") != written:
                path.write_text(written, encoding="utf-8")
                print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
