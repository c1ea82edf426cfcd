"""The ways of commands to the network: a relay for each, from its start to its end."""

from __future__ import annotations

import select

from .egress_relay import EgressRelay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..wire.frames import Frame


class CommandNetworks:
    """The relays of the commands of one cell, by the numbers of the commands.

    Args:
        send: Sends a frame towards the host.
        notifier: As for `EgressRelay`.
        trusted: As for `EgressRelay.variables`.
    """

    def __init__(
        self, send: Callable[[bytes], None], notifier: int, trusted: str
    ) -> None:
        self._send = send
        self._trusted = trusted
        self._notifier = notifier
        self._relays: dict[int, EgressRelay] = {}
        self._by_fd: dict[int, EgressRelay] = {}
        self._epoll = select.epoll()

    @property
    def fd(self) -> int:
        """A descriptor that is readable when `pump` has something to do."""
        return self._epoll.fileno()

    def open(self, number: int, request: dict[str, Any] | None) -> dict[str, str]:
        """Return the variables that lead a command to its relay; none without one.

        Args:
            number: The command.
            request: The host's `connections`, `listeners`, `set_variables`,
                `without_proxy` and `is_inspected`; None for a command without network.

        Raises:
            OSError: There is no descriptor left.
        """
        if request is None:
            return {}
        relay = EgressRelay(self._send, self._notifier, "reach", exec=number)
        relay.begin(request)
        self._relays[number] = self._by_fd[relay.fd] = relay
        self._epoll.register(relay.fd, select.EPOLLIN)
        if not request["set_variables"]:
            return {}
        return relay.variables(request, self._trusted)

    def close(self, number: int) -> None:
        """Close the relay of a command that has ended, if it had one."""
        relay = self._relays.pop(number, None)
        if relay is not None:
            del self._by_fd[relay.fd]
            self._epoll.unregister(relay.fd)
            relay.shut_down()

    def pump(self) -> None:
        """Read and write as far as possible without blocking."""
        for fd, _ in self._epoll.poll(0):
            self._by_fd[fd].pump()

    def handle_frame(self, frame: Frame) -> None:
        """Handle a frame of the host; frames for commands that ended are ignored."""
        relay = self._relays.get(frame.header["exec"])
        if relay is not None:
            relay.handle_frame(frame)
