"""Recordings that are kept for calls that come again, and for groups of them that do.

The first dispatch of a command buffer runs slower than those behind it: on an H200 by 4 to 7 us, one that reads 67 MB
or more by 19 (docs/benchmarks/h200-calls.md). So calls that are submitted together for the second time get one
recording.
"""

from __future__ import annotations

from collections.abc import Callable

from .objects import Handle

RECORDINGS = 512  # kept at most
SEEN = 5 * RECORDINGS  # known at most, with those that have no recording
FILLED = 256  # programs of filled binaries, at most, that calls without a recording keep


class Known:
    """A call, or a group of calls, that was seen."""

    __slots__ = ("again", "recording")

    def __init__(self) -> None:
        self.again = False  # whether it was seen more than once
        self.recording: Handle | None = None


class RecordingCache:
    """What was seen of calls, and their recordings.

    ``record`` makes a command buffer of commands, to be submitted any number of times.
    """

    def __init__(self, record: Callable[[list[tuple]], Handle]):
        self._record = record
        self._known: dict[tuple, Known] = {}
        self._filled: dict[object, list[tuple]] = {}  # by such a program the calls that have it, the oldest first
        self.count = 0  # recordings

    def see(self, key: tuple) -> Known:
        """Note a call, whose key are its commands, or a group of calls, whose key is what was known of them."""
        found = self._known.get(key)
        if found is not None:
            found.again = True
            return found
        if len(self._known) >= SEEN:
            self._known = {key: known for key, known in self._known.items() if known.recording}
            self._filled = {}
        found = self._known[key] = Known()
        for command in key:
            if command.__class__ is tuple and command[0] is not None and command[0].spec.filling is not None:
                self._note(command[0], key)
        return found

    def _note(self, program: object, key: tuple) -> None:
        """Note that a call has a program of a filled binary; forget calls that have the oldest, if there are too many.

        A program that makes functions in a loop would otherwise keep all of them.
        """
        self._filled.setdefault(program, []).append(key)
        while len(self._filled) > FILLED:
            for old in self._filled.pop(next(iter(self._filled))):
                known = self._known.get(old)
                if known is not None and known.recording is None:
                    del self._known[old]

    def recording(self, known: Known | None, commands: list[tuple]) -> Handle | None:
        """The recording of these commands, which is made at the second sight of them; None before."""
        if known is None or not known.again:
            return None
        if known.recording is None:
            known.recording = self._record(commands)
            self.count += 1
        return known.recording

    def forget(self) -> None:
        """Let go of everything; nothing of it may be in flight."""
        self._known = {}
        self._filled = {}
        self.count = 0
