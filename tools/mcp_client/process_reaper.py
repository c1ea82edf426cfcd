"""Runs a command, and leaves nothing of it behind.

Started as `python -I -S process_reaper.py OWNER COMMAND ARGUMENT...`, on Linux, with
the standard library only. Every process that the command starts stays below this
one, daemons included: orphans are handed to a subreaper. When the command ends, the
owner dies or SIGTERM comes, every process below is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

NOT_STARTED = 127
_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36
_AWAITED = {signal.SIGTERM, signal.SIGCHLD}


def main(owner: int, command: list[str]) -> int:
    """Run the command and return its exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    system = ctypes.CDLL(None)
    system.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    system.prctl(_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != owner:
        # It died before the signal was asked for.
        return NOT_STARTED
    code = _run(command)
    _kill_all()
    return code if code >= 0 else 128 - code


def _run(command: list[str]) -> int:
    try:
        child = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE],
        )
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return NOT_STARTED
    # The pipes are the command's alone, so that their ends are seen.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    while signal.sigwait(_AWAITED) != signal.SIGTERM:
        # One signal may stand for several children.
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                return os.waitstatus_to_exitcode(ended[1])
    return -signal.SIGTERM


def _kill_all() -> None:
    # Those below a child that is killed become children themselves.
    while True:
        for child in _children():
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def _children() -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                after_name = file.read().rpartition(b")")[2].split()
                if int(after_name[1]) == os.getpid():
                    found.append(int(name))
    return found


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), sys.argv[2:]))
