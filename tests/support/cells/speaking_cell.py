"""A cell whose supervisor is the test."""

from __future__ import annotations

import socket
from collections.abc import Callable

from toolcell.sandbox.client.cell import Cell
from toolcell.sandbox.client.channel import Channel
from toolcell.sandbox.client.types import CellTraits


class NoProcess:
    """A cell without a process: only its channel counts here."""

    killed = False

    async def killed_for_memory(self, known: int, since: float) -> bool:
        return False

    async def kill(self) -> None:
        self.killed = True


def cell_that_says(
    *pieces: bytes,
    hang: bool = False,
    on_code: Callable[[bytes], None] | None = None,
) -> tuple[Cell, socket.socket]:
    """Return a cell whose supervisor sends these bytes, then hangs up."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    theirs.sendall(b"".join(pieces))
    if not hang:
        theirs.shutdown(socket.SHUT_WR)
    traits = CellTraits(backend="subprocess", level="namespaces", layers=())
    return Cell(Channel(ours), NoProcess(), traits, {}, on_code), theirs
