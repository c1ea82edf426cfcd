"""Memory that a program prints its lines into, and that outlives the program.

A line that goes into a pipe costs a system call, several times what it takes to make
it. So lines are gathered here. The program's process moves them on to its pipe when the
page is full, and before anything that could tell the difference: a flush, a child, a
line on standard error. The supervisor takes what has lain here for a moment, and what a
program that was killed has left.

Both move bytes out of the page, but never at once. Each first says that it does, then
looks at what the other said: the program waits, the supervisor comes again later. All
of it is the program's to write, so to the supervisor it is a claim like any output.
"""

from __future__ import annotations

import mmap

SENDING = 0
"""The word that the program's process sets while it moves bytes into its pipe."""

TAKING = 1
"""The word that the supervisor sets while it takes bytes."""

BASE = 2
"""The number of bytes printed before the first one in the page."""

SENT = 3
"""The number of bytes printed up to the last one that went to the pipe."""

TAKEN = 4
"""The number of bytes printed up to the last one that the supervisor took."""

BEGAN = 5
"""The word that the program's process sets when a signal may interrupt the program."""

FLUSHED = 6
"""The word that the program's process sets once it flushed, before it is killed."""

START = 64
SIZE = 64 * 1024
_ZEROS = bytes(SIZE)
_RUNS = tuple(_ZEROS[: 1 << power] for power in range(15, 5, -1))


class OutputPage:
    """The memory of one cell, mapped before the processes that share it are forked.

    Bytes printed follow each other from `START`; those behind them are zero.
    """

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, SIZE)
        self.words = memoryview(self.memory)[:START].cast("Q")

    def written(self, at: int) -> bytes:
        """Return the bytes from a place on, without the zeros behind them.

        `rstrip` alone looks for each zero by a call of C, which takes 0.2 ms in all.
        """
        data = self.memory[at:SIZE]
        end = len(data)
        for run in _RUNS:
            if data.endswith(run, 0, end):
                end -= len(run)
        return data[:end].rstrip(b"\0")

    def clear(self) -> None:
        """Begin anew; no process prints into it now."""
        self.memory[:] = _ZEROS
