"""Ports for servers that have to be told theirs."""

from __future__ import annotations

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """Return a free port of loopback, below those that Linux gives to connections.

    One of those might be given to somebody before a server has taken it.
    """
    while True:
        port = random.randrange(22_000, 32_000)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
