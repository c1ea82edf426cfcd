"""The notifier: answers the calls of a cell's programs that wait for an answer.

Theory of operation. It is a separate process, so that a flood of calls costs the
supervisor none of its turns, and the parent of the supervisor, since some kernels let a
process read the memory of its descendants alone. Each program sends the listener of its
filter before it runs anything of others. A call is looked at, its thread is found to be
alive still, and only then the call is done, on what was opened. The listeners take
turns, one call each. When this process ends, so does the supervisor, and calls that
wait fail with ENOSYS.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import time

from ..kernel import linux, notification, seccomp
from ..kernel.confine import NICE
from ..kernel.descriptors import move_fds, receive_fds, send_fds
from ..wire.contract import ASKED
from . import attributes
from .caller import Caller, Later
from .signals import Signals
from .sockets import Sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, FrozenSet, NoReturn, Sequence

    from .caller import Act

_HIGHEST_FD = 65_536
_CHANNEL_FD = 3
_AGAIN_MS = 10
# Whoever waits for a server that was closed learns of it after this time.
_LOOK_SECONDS = 1.0
_UNABLE = OSError(errno.ENOSYS, "an argument that nothing was foreseen for")


def start(served: FrozenSet[str], folders: Sequence[str], uid: int | None) -> int:
    """Fork; return in the child, which is the supervisor from now on.

    The parent answers calls until the supervisor ends, and ends with its status.

    Args:
        served: What it answers, such as `notification.ATTRIBUTES`.
        folders: Real paths of the cell's own folders. Programs may change what is
            beneath them, and connect to sockets there.
        uid: The user that it becomes; None to stay what it is.

    Returns:
        A socket for `notification.install`, which programs inherit. A message of a
        relay's port in digits, with a socket, has connections to that port sent there;
        `ASKED` and the port of a program's server has a connection to it sent there.

    Raises:
        OSError: There are no processes or descriptors left.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        ours.close()
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(70)
        return theirs.detach()
    try:
        _become(ours, uid)
        channel = socket.socket(fileno=_CHANNEL_FD)
        Notifier(channel, served, [os.fsencode(path) for path in folders], pid).serve()
        _end_like(pid)
    finally:
        # The supervisor ends with this process.
        os._exit(70)


def _become(channel: socket.socket, uid: int | None) -> None:
    """Keep one descriptor and no rights, and be closed to the cell's programs."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    move_fds([null, null, null, channel.detach()], inherited=3)
    os.closerange(_CHANNEL_FD + 1, _HIGHEST_FD)
    os.chdir("/")
    # As programs are: those that call most get least of the supervisor's time.
    os.nice(NICE)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    # A change of user ends this.
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.install_own()


def _end_like(pid: int) -> NoReturn:
    status = os.waitpid(pid, 0)[1]
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 70)


class Notifier:
    """Answers calls.

    Args:
        channel: Listeners come from here, and relays.
        served: As for `start`.
        folders: As for `start`.
        supervisor: The process whose descendants the programs are.
    """

    def __init__(
        self,
        channel: socket.socket,
        served: FrozenSet[str],
        folders: Sequence[bytes],
        supervisor: int,
    ) -> None:
        self._channel = channel
        self._folders = folders
        self._calls = notification.notified(os.uname().machine, served)
        self._sockets = Sockets(supervisor)
        groups = attributes, self._sockets, Signals(supervisor)
        self._acts: dict[int, Callable[..., Act]] = {
            number: next(
                getattr(group, name) for group in groups if hasattr(group, name)
            )
            for number, name in self._calls.items()
        }
        self._waiting: list[tuple[Caller, Act]] = []
        self._next_look = 0.0
        self._supervisor = linux.pidfd_open(supervisor)
        self._poller = select.poll()
        for fd in (channel.fileno(), self._supervisor):
            self._poller.register(fd, select.POLLIN)

    def serve(self) -> None:
        """Answer calls until the supervisor ends."""
        while True:
            for fd, events in self._poller.poll(self._wait_ms()):
                if fd == self._supervisor:
                    return
                if fd == self._channel.fileno():
                    self._take_message()
                elif events & select.POLLIN:
                    self._take_call(fd)
                else:
                    self._drop(fd)
            if self._waiting:
                self._try_again()
            if time.monotonic() >= self._next_look:
                self._sockets.ports.forget_closed()
                self._next_look = time.monotonic() + _LOOK_SECONDS

    def _wait_ms(self) -> float | None:
        if self._waiting:
            return _AGAIN_MS
        return _LOOK_SECONDS * 1000 if len(self._sockets.ports) else None

    def _take_message(self) -> None:
        data, fds = receive_fds(self._channel, 16, 1)
        if not data:
            # Only the supervisor's end counts, and it may end later.
            self._poller.unregister(self._channel)
        for fd in fds:
            if data.startswith(ASKED):
                self._answer_asked(int(data[len(ASKED) :]), fd)
            elif data.isdigit():
                os.set_blocking(fd, False)
                self._sockets.relays[int(data)] = socket.socket(fileno=fd)
                self._poller.register(fd, 0)
            else:
                self._poller.register(fd, select.POLLIN)

    def _answer_asked(self, port: int, fd: int) -> None:
        """Send a connection to a server of the cell, or none if there is none."""
        with socket.socket(fileno=fd) as asker, contextlib.suppress(OSError):
            with self._sockets.open(port) as own:
                send_fds(asker, ASKED, [own.fileno()])

    def _drop(self, fd: int) -> None:
        """Close a listener without processes, or the socket of a relay that ended."""
        self._poller.unregister(fd)
        for port, relay in self._sockets.relays.items():
            if relay.fileno() == fd:
                self._sockets.relays.pop(port).close()
                return
        os.close(fd)

    def _take_call(self, listener: int) -> None:
        try:
            call = notification.receive(listener)
        except OSError:
            # Its thread has ended meanwhile.
            return
        caller = Caller(listener, call, self._folders)
        try:
            act = self._acts[call.number](caller, *call.arguments)
        except OSError as error:
            caller.fail(error)
        except Exception:
            caller.fail(_UNABLE)
        else:
            self._try(caller, act)

    def _try_again(self) -> None:
        waiting, self._waiting = self._waiting, []
        for caller, act in waiting:
            self._try(caller, act)

    def _try(self, caller: Caller, act: Act) -> None:
        if not caller.waits:
            caller.close()
            return
        try:
            caller.answer(act())
        except Later:
            self._waiting.append((caller, act))
        except OSError as error:
            caller.fail(error)
        except Exception:
            caller.fail(_UNABLE)
