"""The network of one command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..cell.wire.frames import Frame
from ..network.run_clock import RunClock
from ..results.name_warnings import with_name_warnings
from ..results.result import ExecutionResult
from .side_channel import SideChannel

if TYPE_CHECKING:
    from ..network.egress import Egress

_INSIDE, _OUTSIDE = "reach_", "net_"


class CommandNetwork:
    """Leads frames of a command's connections to its proxy, and back.

    Args:
        egress: The proxy, which is this command's alone.
        number: The command.
        frames: Leads to the cell.
        clock: That of the command.
    """

    def __init__(
        self, egress: Egress, number: int, frames: SideChannel, clock: RunClock
    ) -> None:
        self.egress = egress
        self._number = number
        self._frames = frames
        egress.begin(self._send, clock)

    async def _send(
        self, header: dict[str, Any], payload: bytes | memoryview = b""
    ) -> None:
        kind = header["type"].replace(_OUTSIDE, _INSIDE, 1)
        header = {**header, "type": kind, "exec": self._number}
        await self._frames.send(header, payload)

    def serve(self, frame: Frame) -> None:
        """Take a frame of the cell.

        Raises:
            FrameError, KeyError, TypeError: No cell of ours sends it.
        """
        kind = frame.header["type"].replace(_INSIDE, _OUTSIDE, 1)
        self.egress.serve({**frame.header, "type": kind}, frame.payload)

    def complete(self, result: ExecutionResult) -> ExecutionResult:
        """Return a result with the connections of the command."""
        egress = self.egress
        usage = {
            "connections": len(egress.connections),
            "network_bytes": egress.spent,
        }
        completed = result.model_copy(
            update={
                "connections": egress.connections,
                "warnings": (*result.warnings, *egress.warnings),
                "usage": result.usage.model_copy(update=usage),
            }
        )
        return with_name_warnings(completed, egress.listeners)
