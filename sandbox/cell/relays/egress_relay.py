"""Carries bytes between a port of a cell and the host, unread.

Theory of operation. The relay's port is in the proxy variables of a program, and each
rule for one host has a listener at the address that /etc/hosts gives its name. Each
connection there becomes a stream of frames on the cell's channel. The host alone
interprets the bytes and decides whom they may reach.
"""

from __future__ import annotations

import _socket
import os
import select

from ..wire import trust
from ..wire.contract import LOOPBACK
from .ports import ListeningPort, NotifiedPort
from .streams import MAX_STREAMS, RelayedStream, StreamRelay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .ports import Port


class EgressRelay(StreamRelay):
    """Accepts the connections of a cell's programs, and relays their bytes.

    With `MAX_STREAMS` connections others wait for one to end. Neither that nor the
    number of connections of a run is a security boundary, as the host counts for
    itself.

    Args:
        send: Sends a frame to the host.
        notifier: The socket to the notifier of a cell without its own network;
            else -1.
        family: The first word of the types of its frames.
        fields: Further fields of each of its frames.
    """

    def __init__(
        self,
        send: Callable[[bytes], None],
        notifier: int,
        family: str = "net",
        **fields: object,
    ) -> None:
        super().__init__(send, family, **fields)
        self._opened = 0
        self._left = 0
        self._port: Port
        if notifier < 0:
            self._port = ListeningPort(MAX_STREAMS)
        else:
            self._port = NotifiedPort(notifier)
        # By descriptor: the main port, and the listeners of rules with their numbers.
        self._ports: dict[int, tuple[Port, int]] = {
            self._port.fileno(): (self._port, -1)
        }
        self._has_names = notifier < 0
        self._listens = False
        self._listen(True)

    def variables(self, request: dict[str, Any], trusted: str) -> dict[str, str]:
        """Return the environment variables that lead programs to this relay.

        Args:
            request: The host's `without_proxy`, hosts that programs reach without it,
                `is_inspected`, True if it shows certificates of its own, and further
                `variables`.
            trusted: The folder that `wire.trust` made; empty if there is none.
        """
        url = f"http://{LOOPBACK}:{self._port.number}"
        found = {"NODE_USE_ENV_PROXY": "1"}
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            found[name] = found[name.upper()] = url
        found["no_proxy"] = found["NO_PROXY"] = request["without_proxy"]
        if request["is_inspected"]:
            found.update(trust.variables(trusted))
        found.update(request["variables"])
        return found

    def begin(self, request: dict[str, Any]) -> None:
        """Start a run.

        Args:
            request: The host's `connections`, the most that it may make, and
                `listeners`: address and port of rules, which `net_open` then names.
        """
        self._left = request["connections"]
        if not self._has_names:
            return
        for number, (address, port, _) in enumerate(request["listeners"]):
            try:
                listener = ListeningPort(MAX_STREAMS, address, port)
            except OSError:
                # The relay of another command has it, or there are no descriptors.
                continue
            self._ports[listener.fileno()] = listener, number
            if self._listens:
                self.epoll.register(listener.fileno(), select.EPOLLIN)

    def finish(self) -> None:
        """End a run: close its connections and the listeners of its rules."""
        self.close_streams()
        for fd, (port, number) in list(self._ports.items()):
            if number >= 0:
                del self._ports[fd]
                if self._listens:
                    self.epoll.unregister(fd)
                port.close()

    def serve_other(self, fd: int) -> None:
        """Accept a connection."""
        port, number = self._ports[fd]
        try:
            fd = port.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            # There are no descriptors left until a stream ends.
            self._listen(False)
            return
        if not self._left:
            os.close(fd)
            return
        self._left -= 1
        self._opened += 1
        stream = self.add(self._opened, _socket.socket(fileno=fd))
        named = {} if number < 0 else {"listener": number}
        self.say("open", stream.number, b"", **named)
        self.settle(stream)
        self._listen(not self.is_full)

    def _listen(self, wanted: bool) -> None:
        wanted = wanted and not self.is_full
        for fd in self._ports:
            if wanted and not self._listens:
                self.epoll.register(fd, select.EPOLLIN)
            elif self._listens and not wanted:
                self.epoll.unregister(fd)
        self._listens = wanted

    def drop(self, stream: RelayedStream) -> None:
        """Forget a stream, and listen for another one."""
        super().drop(stream)
        self._listen(True)

    def shut_down(self) -> None:
        """Close the port, and all that came by it."""
        self.finish()
        self._port.close()
        self.epoll.close()
