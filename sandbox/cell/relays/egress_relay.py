"""Carries bytes between a port of a cell and the host, unread.

Theory of operation. The relay's port is in the proxy variables of a program. Each
connection there becomes a stream of frames on the cell's channel. The
host alone interprets the bytes and decides whom they may reach.
"""

from __future__ import annotations

import _socket
import os
import select

from ..wire.contract import LOOPBACK
from .ports import ListeningPort, NotifiedPort
from .streams import MAX_STREAMS, RelayedStream, StreamRelay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from .ports import Port


class EgressRelay(StreamRelay):
    """Accepts the connections of a cell's programs, and relays their bytes.

    With `MAX_STREAMS` connections others wait for one to end. Neither that nor the
    number of connections of a run is a security boundary, as the host counts for
    itself.

    Args:
        send: Sends a frame to the host.
        notifier: The socket to the notifier of a cell without a network of its own;
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
        self._listens = False
        self._listen(True)

    def variables(self, without: str) -> dict[str, str]:
        """Return the environment variables that lead programs to this relay.

        Args:
            without: Hosts that programs reach without the proxy, for `no_proxy`.
        """
        url = f"http://{LOOPBACK}:{self._port.number}"
        found = {"NODE_USE_ENV_PROXY": "1"}
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            found[name] = found[name.upper()] = url
        found["no_proxy"] = found["NO_PROXY"] = without
        return found

    def begin(self, connections: int) -> None:
        """Start a run that may make at most `connections` connections."""
        self._left = connections

    def serve_other(self, fd: int) -> None:
        """Accept a connection."""
        try:
            fd = self._port.accept()
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
        self.say("open", stream.number)
        self.settle(stream)
        self._listen(not self.is_full)

    def _listen(self, wanted: bool) -> None:
        wanted = wanted and not self.is_full
        if wanted and not self._listens:
            self.epoll.register(self._port.fileno(), select.EPOLLIN)
        elif self._listens and not wanted:
            self.epoll.unregister(self._port.fileno())
        self._listens = wanted

    def drop(self, stream: RelayedStream) -> None:
        """Forget a stream, and listen for another one."""
        super().drop(stream)
        self._listen(True)

    def shut_down(self) -> None:
        """Close the port, and all that came by it."""
        self.close_streams()
        self._port.close()
        self.epoll.close()
