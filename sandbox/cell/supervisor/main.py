"""The supervisor: the first process of a cell, and the only one that the host trusts.

Theory of operation. The supervisor is PID 1 of the cell. It exchanges frames with
the host on its channel and keeps one child ready: its own fork warm
interpreter, already confined, that waits for a program. A run hands the program
to that child, reads its output and result pipes, enforces the deadline and the
caps, and reports the status from wait4. When the program ends, or must end, every
process but PID 1 is killed and reaped before the result leaves, so nothing survives
a run. The child cannot reach the channel (its descriptors are closed before it runs
anything), cannot signal PID 1 (another uid, or the kernel's protection of a
namespace's first process) and cannot trace it (not dumpable).

Without a PID namespace it adopts what programs leave, and all of the cell is below it.
In the `process` isolation of last resort it kills the child's process group alone.
"""

from __future__ import annotations

import os
import signal
import sys

from ..kernel import process_tree, signals
from ..wire.channel import HostGone, SupervisorChannel
from ..wire.frames import FrameError
from .supervisor import Supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main(read_fd: int, write_fd: int) -> NoReturn:
    """Serve one cell until the host closes the channel."""
    signals.inherit_nothing()
    serve(Supervisor(), SupervisorChannel(read_fd, write_fd))


def serve(supervisor: Supervisor, channel: SupervisorChannel) -> NoReturn:
    """Serve one cell, prepared or not, until the host closes the channel."""
    try:
        supervisor.serve(channel)
    except (HostGone, BrokenPipeError, ConnectionResetError):
        pass
    except FrameError as error:
        print(f"toolcell supervisor: {error}", file=sys.stderr)
    finally:
        _end()


def _end() -> NoReturn:
    process_tree.signal_others(signal.SIGKILL)
    os._exit(0)
