"""Runs before the first request that make its run faster, here and in the child.

Each fork shares this process's memory with a child again, and the first write to each
page then copies it. So the pages that a run touches are touched ahead of it, after the
fork, and by nothing that forks again.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys

from ..accounting.usage import ResourceAccounting
from ..wire.channel import SupervisorChannel
from ..wire.contract import WARM_UP
from ..wire.frames import RUN_DEFAULTS, FrameDecoder, encode
from .child import Child
from .run import Run

# The output of a program that prints 1: its stdout, stderr and result pipe.
_DUMMY_OUTPUT = (b"1\n", b"", b'{"layers":[],"cpu":0.0}\n{"outcome":"ok"}\n')
# An interpreter adapts a function to its arguments in its ninth call, and its parts in
# the next ones.
_REHEARSALS = 20


def rehearse() -> None:
    """Do the supervisor's part of some runs, before supervisors are forked from here.

    Each of them would else have to learn what the interpreter learns of it, in pages
    that it has to copy. Before Python 3.11 it learns nothing.

    Whoever calls this has no children: it collects them.

    Raises:
        OSError: There are too few descriptors.
    """
    if sys.version_info < (3, 11):
        return
    with contextlib.closing(ResourceAccounting({}, adopts=False)) as accounting:
        wake = os.pipe()
        try:
            for fd in wake:
                os.set_blocking(fd, False)
            for _ in range(_REHEARSALS):
                _run_dummy(accounting, wake)
        finally:
            for fd in wake:
                os.close(fd)


def warm_up(
    child: Child,
    channel: SupervisorChannel,
    accounting: ResourceAccounting,
    wake: tuple[int, int],
) -> None:
    """Have the child run a small program, and this process its part of two runs.

    Args:
        child: Waits for its first request.
        channel: Leads to the host, whose next frame ends the wait for the child.
        accounting: Counts runs.
        wake: Both ends of the pipe that wakes this process.
    """
    try:
        os.write(child.request, WARM_UP)
    except BrokenPipeError:
        # It could not be confined; its run reports the reason.
        return
    for _ in range(2):
        _run_dummy(accounting, wake)
    accounting.rest()
    # Until the child is done, or the host cannot wait.
    select.select([child.result, channel.read_fd], [], [])


def _run_dummy(accounting: ResourceAccounting, wake: tuple[int, int]) -> None:
    wake_r, wake_w = wake
    # Of Python it would be told that its end is near, and it has no process.
    header = {"type": "run", "language": "", "wall_seconds": 0, "output_bytes": 2}
    [frame] = FrameDecoder().feed(encode(header, b"print(1)"))
    frame.header = {**RUN_DEFAULTS, **frame.header}
    # Its own channel: frames of the host are not for this run.
    fds = [*os.pipe()]
    pipes: list[int] = []
    try:
        null = os.open(os.devnull, os.O_RDWR)
        fds.append(null)
        pipes.append(os.dup(null))
        pipes.extend(_closed_pipe_with(text) for text in _DUMMY_OUTPUT)
        channel, child = SupervisorChannel(fds[0], null), Child(0, *pipes)
        run = Run(channel, child, frame.header, accounting, wake_r)
        run.hand_over(frame)
        os.write(wake_w, b"!")
        run.watch()
        run.finish(None)
        # It has closed these.
        pipes.clear()
    finally:
        for fd in (*fds, *pipes):
            os.close(fd)


def _closed_pipe_with(text: bytes) -> int:
    """Return the read end of a closed pipe that holds `text`."""
    read_fd, write_fd = os.pipe()
    os.write(write_fd, text)
    os.close(write_fd)
    os.set_blocking(read_fd, False)
    return read_fd
