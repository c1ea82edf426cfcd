"""The calls of commands: a door for each that may call the host, until it ends."""

from __future__ import annotations

import os
import select
import socket
from functools import partial

from ..wire.frames import encode
from .call_door import CallDoor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..wire.frames import Frame


class CommandCalls:
    """The doors of the commands of one cell, by the numbers of the commands.

    Args:
        send: Sends a frame towards the host.
    """

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._doors: dict[int, CallDoor] = {}
        self._by_fd: dict[int, CallDoor] = {}
        self._epoll = select.epoll()

    @property
    def fd(self) -> int:
        """A descriptor that is readable when `pump` has something to do."""
        return self._epoll.fileno()

    def open(self, number: int, bounds: dict[str, Any] | None) -> list[int]:
        """Return the command's end of its door, for the caller to close.

        Args:
            number: The command.
            bounds: As for `CallDoor`; None for a command that may make no calls.

        Raises:
            OSError: There is no descriptor left.
        """
        if bounds is None:
            return []
        ours, theirs = socket.socketpair()
        with ours:
            door = CallDoor(ours.fileno(), partial(self._pass_on, number), bounds)
        self._doors[number] = self._by_fd[door.fd] = door
        self._epoll.register(door.fd, select.EPOLLIN)
        return [theirs.detach()]

    def _pass_on(self, number: int, call: bytes) -> None:
        self._send(encode({"type": "exec_call", "id": number}, call))

    def close(self, number: int) -> None:
        """Close the door of a command that has ended, if it had one."""
        door = self._doors.pop(number, None)
        if door is not None:
            del self._by_fd[door.fd]
            self._epoll.unregister(door.fd)
            door.close()

    def pump(self) -> None:
        """Read and write as far as possible without blocking."""
        for fd, _ in self._epoll.poll(0):
            self._by_fd[fd].pump()

    def handle_frame(self, frame: Frame) -> None:
        """Take an answer of the host; those for commands that ended are ignored."""
        door = self._doors.get(frame.header["id"])
        if door is not None:
            door.answer(frame.payload)


def close_all(fds: list[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
