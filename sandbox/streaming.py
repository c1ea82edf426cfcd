"""One run as a stream of events, at the pace of who reads them."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio

from .cell_client import Cell, Program, Stream
from .events import ArtifactMade, Event, Finished, Stderr, Stdout


async def stream_run(cell: Cell, program: Program) -> AsyncGenerator[Event, None]:
    """Run a program and yield what happens. Nothing is read ahead of the reader.

    Raises:
        CellLostError: The cell went away.
        SandboxUnavailableError: The program could not be confined.
    """
    pieces: list[Event] = []

    def keep(stream: Stream, data: bytes) -> None:
        pieces.append(Stdout(data) if stream == "stdout" else Stderr(data))

    report = await cell.begin(program)
    until = cell.backstop(program)
    done = False
    while not done:
        # Time that the reader takes is the program's loss, not the supervisor's.
        with anyio.CancelScope(deadline=max(until, anyio.current_time() + 1)) as scope:
            done = await cell.step(report, keep)
        if scope.cancelled_caught:
            await cell.give_up(report)
            done = True
        for piece in pieces:
            yield piece
        pieces.clear()
    await cell.check(report)
    result = cell.result(report, program)
    for artifact in result.artifacts:
        yield ArtifactMade(artifact)
    yield Finished(result)
