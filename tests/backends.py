"""Functions that take no backend, run on one of a test's choice."""

from __future__ import annotations

import contextlib
import functools

import grilly


@contextlib.contextmanager
def default(backend):
    """Inside, what is not told a backend runs on this one."""
    former = grilly.use(backend)
    try:
        yield backend
    finally:
        grilly.use(former)


def on(backend, function):
    """The function, which runs on this backend where all that it is given are arrays of NumPy."""

    @functools.wraps(function)
    def called(*arguments, **options):
        with default(backend):
            return function(*arguments, **options)

    return called


def has_sixteen_bits(backend) -> bool:
    """Whether its device stores numbers of 16 bits, which otherwise are converted to float32 and back."""
    return "float16-storage" in backend.runtime.features
