"""One run as a stream of events, at the pace of its reader."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress

import anyio

from toolcell.core import CellLostError

from ..cell.wire.contract import WINDOW_BYTES
from ..results.events import (
    ArtifactMade,
    Connected,
    Displayed,
    Event,
    Finished,
    Stderr,
    Stdout,
)
from ..results.output import Output
from ..results.result import Connection
from .cell import Cell
from .types import Listener, Program, Stream

# Often enough that a program never waits for a reader that keeps up.
_ROOM_BYTES = WINDOW_BYTES // 4


class PendingEvents:
    """Events that have happened and were not yielded yet."""

    def __init__(self) -> None:
        self._found: list[Event] = []

    def add_output(self, stream: Stream, data: bytes) -> None:
        """Keep a piece of output."""
        self._found.append(Stdout(data) if stream == "stdout" else Stderr(data))

    def add_display(self, output: Output) -> None:
        """Keep what the program displayed."""
        self._found.append(Displayed(output))

    def add_connection(self, connection: Connection) -> None:
        """Keep a connection that has ended."""
        self._found.append(Connected(connection))

    def take(self) -> list[Event]:
        """Return the events so far, and forget them."""
        found, self._found = self._found, []
        return found


def _size(event: Event) -> int:
    return len(event.data) if isinstance(event, (Stdout, Stderr)) else 0


async def stream_run(
    cell: Cell, program: Program, pending: PendingEvents
) -> AsyncGenerator[Event, None]:
    """Run a program and yield its events; nothing is read ahead of the reader.

    Raises:
        CellLostError: The cell went away.
        SandboxUnavailableError: The program could not be confined.
    """
    done, unread = False, 0
    listener = Listener(pending.add_output, pending.add_display)
    try:
        report, clock = await cell.begin(program)
        while not done:
            # A slow reader costs the program time, but is no fault of the supervisor.
            with clock.scope(at_least=anyio.current_time() + 1) as scope:
                done = await cell.step(report, listener, None, program.egress)
            if scope.cancelled_caught:
                await cell.give_up(report)
                done = True
            # Before the reader can leave: the next run must not find them.
            await cell.collect(report)
            for event in pending.take():
                yield event
                unread += _size(event)
            if unread >= _ROOM_BYTES and not done:
                # The next frame tells how a cell ended.
                with suppress(CellLostError):
                    await cell.send_frame({"type": "room", "bytes": unread})
                unread = 0
    except BaseException as error:
        await cell.abandon(program, error)
        raise
    finally:
        await cell.end(program)
    await cell.require_confined(report)
    result = cell.result(report, program)
    for event in pending.take():
        yield event
    for artifact in result.artifacts:
        yield ArtifactMade(artifact)
    yield Finished(result)
