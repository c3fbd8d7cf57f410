"""Runs the Python blocks of pages, each by itself: python tests/standalone.py [--together] PAGE ...

Each block is what a reader pastes into a fresh interpreter: it has a namespace of its own, and its process is forked
from one that has opened no device and has none of the modules that ``import grilly`` does not find by itself. With
--together all blocks share a process, which makes each kernel once and not once a block. Prints a line of JSON for each
block: page, number, text, what it printed, what failed.
"""

import contextlib
import io
import json
import os
import re
import sys
import traceback

import grilly

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run(name: str, block: str) -> dict:
    """What the block printed, and the exception with which it ended."""
    printed, failed = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(block, name, "exec"), {"__name__": "__main__"})
    except BaseException:
        failed = traceback.format_exc()
    return {"printed": printed.getvalue(), "failed": failed}


def forked(name: str, block: str) -> dict:
    """`run` in a child."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with open(writer, "w") as out:
            json.dump(run(name, block), out)
        os._exit(0)
    os.close(writer)
    with open(reader) as said:
        text = said.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"printed": "", "failed": f"the process ended with status {status}"}


def main(pages: list[str]) -> None:
    for module in ("functional", "nn", "random"):  # imported once, as they are found in grilly anyway
        getattr(grilly, module)
    together = "--together" in pages
    for page in pages[together:]:
        with open(page, encoding="utf-8") as file:
            blocks = BLOCK.findall(file.read())
        for number, block in enumerate(blocks, 1):
            found = (run if together else forked)(f"{page}, block {number}", block)
            print(json.dumps({"page": page, "number": number, "block": block, **found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
