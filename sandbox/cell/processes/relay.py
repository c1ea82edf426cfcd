"""The supervisor's end of the process server: starts it, and passes frames on."""

from __future__ import annotations

import select
import socket

from ..wire.frames import FrameDecoder, encode, frame_prefix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..wire.channel import SupervisorChannel

_READ_BYTES = 262_144
_KILLED = {"type": "exec_lost", "why": "it was killed"}


class ProcessRelay:
    """Passes frames between the host and the process server of this cell.

    Commands run below their own process, the process server, so that what they leave
    behind becomes its child and not the supervisor's, which kills its strays after
    each run. The process server is forked at the first command or connection; a cell
    without them pays nothing. If it fails, or a program kills it (where both have the
    same user), commands and connections end with it, the host gets `exec_lost`, and the
    next one gets a new one.

    Args:
        channel: Leads to the host.
        fork: Forks this process, as `os.fork`.
        on_memory_kill: Called when a command was ended for its memory.
    """

    def __init__(
        self,
        channel: SupervisorChannel,
        fork: Callable[[], int],
        on_memory_kill: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._fork = fork
        self._on_memory_kill = on_memory_kill
        self._sock: socket.socket | None = None
        self._decoder = FrameDecoder()
        # Bounded by the credit of each command's input, and by its calls at once.
        self._unsent = bytearray()
        self._lost = _KILLED
        self.pid = 0
        """The process server; 0 if there is none."""

    def watch(self, poller: select.poll) -> None:
        """Have a poller tell when `pump` has something to do."""
        if self._sock is not None:
            events = select.POLLIN | (select.POLLOUT if self._unsent else 0)
            poller.register(self._sock.fileno(), events)

    def owns(self, fd: int) -> bool:
        """Tell whether a descriptor of a poller is the one that leads to it."""
        return self._sock is not None and fd == self._sock.fileno()

    def forward(
        self, header: dict[str, Any], payload: bytes, settings: dict[str, Any], oom: int
    ) -> None:
        """Pass a frame of the host on, to a new process server if there is none.

        Args:
            header: The header of the host's frame.
            payload: Its payload.
            settings: The confinement of every program of this cell.
            oom: The descriptor of the cgroup's count of kills for memory; -1 if none.
        """
        if self._sock is None:
            if header["type"] not in ("exec_start", "port_open", "watch_open"):
                return
            self._start(settings, oom)
        self._unsent += encode(header, payload)
        self._push()

    def _start(self, settings: dict[str, Any], oom: int) -> None:
        ours, theirs = socket.socketpair()
        self.pid = self._fork()
        if self.pid == 0:
            from . import server

            server.main(theirs.detach(), settings, oom)
        theirs.close()
        ours.setblocking(False)
        self._sock, self._decoder = ours, FrameDecoder()

    def _push(self) -> None:
        assert self._sock is not None
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            # It is gone; reading says so, too.
            self._unsent.clear()

    def pump(self, poller: select.poll) -> None:
        """Send what waits, and pass what has come on to the host."""
        assert self._sock is not None
        self._push()
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            self.watch(poller)
            return
        except OSError:
            data = b""
        if not data:
            poller.unregister(self._sock.fileno())
            self._sock.close()
            self._sock, self.pid = None, 0
            self._unsent.clear()
            self._channel.send(encode(self._lost))
            self._lost = _KILLED
            return
        for frame in self._decoder.feed(data):
            if frame.header["type"] == "exec_lost":
                self._lost = frame.header
            elif frame.header["type"] == "exec_memory":
                self._on_memory_kill()
            else:
                prefix = frame_prefix(frame.text, len(frame.payload))
                self._channel.send(prefix, frame.payload)
        self.watch(poller)
