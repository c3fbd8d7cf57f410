"""The progress of a streamed call, and its line of text."""

from __future__ import annotations

import dataclasses
import math
import sys


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a streamed call.

    Attributes
    ----------
    operation : str
        The function's name.
    done, total : int
        Pairs of a query and a key over all batches and heads, without the blocks that a causal mask hides.
    seconds : float
        Since the call began.
    """

    operation: str
    done: int
    total: int
    seconds: float

    def __str__(self) -> str:
        left = self.seconds * (self.total / self.done - 1) if self.done else math.nan
        return (
            f"{self.operation}: {100 * self.done / max(self.total, 1):.0f} % of the pairs of queries and keys, "
            f"{self.seconds:.0f} s gone, about {left:.0f} s left"
        )


def show(progress: Progress) -> None:
    """Write the progress to standard error, over the line before it where that is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{progress}" + ("\n" if progress.done == progress.total else ""))
    else:
        sys.stderr.write(f"{progress}\n")
    sys.stderr.flush()
