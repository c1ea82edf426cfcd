"""A host that is slow greets a cell that has ended already."""

from __future__ import annotations

import socket

import anyio
import pytest

from toolcell.core import CellLostError, SandboxUnavailableError
from toolcell.sandbox import Limits
from toolcell.sandbox.cell.wire.frames import encode
from toolcell.sandbox.client.channel import Channel
from toolcell.sandbox.client.handshake import Handshake
from toolcell.sandbox.client.types import Program

from ...support.cells.speaking_cell import cell_that_says

pytestmark = pytest.mark.anyio

READY = encode({"type": "ready", "protocol": 1})
FAILED = encode({"type": "failed", "why": "no room"})
FINISHED = encode({"type": "finished"})

PROGRAM = Program(code=b"", language="python", inputs=b"", limits=Limits())


async def test_a_cell_that_has_run_its_program_and_ended_has_started() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    handshake = Handshake(channel, {}, None)

    await handshake.send(handshake.hello() + b"a program")
    theirs.recv(65_536)
    theirs.sendall(READY + FINISHED)
    theirs.close()
    await handshake.complete()
    frame = await channel.receive()

    assert handshake.started
    assert frame.header["type"] == "finished"
    channel.close()


async def test_a_cell_that_started_and_ended_before_its_program_is_lost() -> None:
    cell, theirs = cell_that_says(READY)
    theirs.close()
    async with cell:
        with pytest.raises(CellLostError, match="before its result was in"):
            await cell.run(PROGRAM)
        assert cell.handshake.started


@pytest.mark.parametrize(
    ("said", "why"), [([FAILED], "no room"), ([], "had not answered its greeting")]
)
async def test_a_cell_that_ended_before_its_greeting_says_why(
    said: list[bytes], why: str
) -> None:
    cell, theirs = cell_that_says(*said)
    theirs.close()
    async with cell:
        with anyio.fail_after(60), pytest.raises(SandboxUnavailableError, match=why):
            await cell.keep()
        assert cell.handshake.started is False


async def test_a_cell_that_this_host_ends_while_it_starts_is_lost() -> None:
    cell, theirs = cell_that_says(hang=True)
    with theirs:
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                with pytest.raises(CellLostError, match="was ended"):
                    await cell.wait_ready()

            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await cell.kill()
        with pytest.raises(CellLostError, match="was ended"):
            await cell.wait_ready()
