"""The calls that one command makes to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from toolcell.core import CellLostError

from ..client.host_calls import CallServer, HostCalls
from ..network.run_clock import RunClock
from .side_channel import SideChannel

if TYPE_CHECKING:
    from ..client.types import Spawn


class CommandCalls:
    """Answers the calls of a command, from its start to its end.

    Args:
        calls: What it may call.
        number: The command.
        frames: Leads to the cell.
        clock: That of the command.
    """

    def __init__(
        self, calls: HostCalls, number: int, frames: SideChannel, clock: RunClock
    ) -> None:
        self.request = {
            "calls_at_once": calls.max_concurrency,
            "max_calls": calls.max_calls,
        }
        """Their bounds, for the cell."""

        self.failure: Exception | None = None
        """The exception of the handler, which ended the command."""

        self._number = number
        self._frames = frames
        self._server = CallServer(calls, self._send, clock)
        self._serves = False
        self._begun, self._over, self._left = (anyio.Event() for _ in range(3))

    async def begin(self, spawn: Spawn) -> None:
        """Answer from now on, in a task of the manager's."""
        spawn(self._serve)
        await self._begun.wait()

    async def _serve(self) -> None:
        try:
            async with self._server:
                self._serves = True
                self._begun.set()
                await self._over.wait()
        except Exception as error:  # noqa: BLE001 - raised by `Process.wait`
            self.failure = error
            await self._kill()
        finally:
            self._serves = False
            self._begun.set()
            self._left.set()

    async def _kill(self) -> None:
        try:
            await self._frames.send({"type": "exec_kill", "id": self._number})
        except CellLostError:
            # It has ended with its cell.
            return

    async def _send(
        self, header: dict[str, Any], payload: bytes | memoryview = b""
    ) -> None:
        await self._frames.send(
            {**header, "type": "exec_answer", "id": self._number}, payload
        )

    def take(self, payload: bytes) -> None:
        """Begin to answer a call.

        Raises:
            FrameError: The cell passed on more calls than it may.
        """
        if self._serves and not self._over.is_set():
            self._server.serve(payload)

    def stop(self) -> None:
        """Cancel what is not answered: the command has ended."""
        self._over.set()

    async def aclose(self) -> None:
        """Do so, and return when no handler is at work any more."""
        self._over.set()
        await self._left.wait()
