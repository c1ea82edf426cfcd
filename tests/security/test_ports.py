"""Attacks on the way from the host to servers inside a cell."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from toolcell.core import CellLostError, InvalidInputError
from toolcell.sandbox import PortStream, SandboxManager, Session
from toolcell.sandbox.cell.wire.contract import WINDOW_BYTES
from toolcell.sandbox.cell.wire.frames import Frame, FrameError
from toolcell.sandbox.processes.ports import PortTable
from toolcell.sandbox.processes.side_channel import SideChannel

from ..conftest import BackendRow

pytestmark = pytest.mark.anyio

SERVER = """
import socket
door = socket.create_server(('127.0.0.1', 8000))
print('listening', flush=True)
while True:
    peer = door.accept()[0]
    peer.sendall({name!r})
    peer.close()
"""


@pytest.fixture
async def manager(backend: BackendRow) -> AsyncIterator[SandboxManager]:
    async with SandboxManager(backend.config()) as manager:
        yield manager


async def serve(session: Session, name: bytes) -> None:
    server = await session.exec(["python3", "-c", SERVER.format(name=name)])
    assert await anext(server.output()) == ("stdout", b"listening\n")


@pytest.mark.promise("E-67")
async def test_a_connection_never_leads_to_the_host(manager: SandboxManager) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        async with manager.session() as session:
            with pytest.raises(InvalidInputError) as caught:
                await session.connect(door.getsockname()[1])
            assert caught.value.details["reason"] == "missing"


@pytest.mark.promise("E-67")
async def test_a_connection_leads_to_its_own_session(manager: SandboxManager) -> None:
    async with manager.session() as one, manager.session() as two:
        await serve(one, b"one")
        with pytest.raises(InvalidInputError):
            await two.connect(8000)
        await serve(two, b"two")
        for session, name in ((one, b"one"), (two, b"two")):
            async with await session.connect(8000) as stream:
                assert await stream.receive() == name


def listening() -> set[str]:
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        with open(f"/proc/self/net/{table}", encoding="ascii") as file:
            rows = [line.split() for line in file][1:]
        found |= {row[1] for row in rows if table[:3] == "udp" or row[3] == "0A"}
    return found


async def test_no_port_of_the_host_opens(manager: SandboxManager) -> None:
    async with manager.session() as session:
        before = listening()
        await serve(session, b"inside")
        async with await session.connect(8000) as stream:
            assert await stream.receive() == b"inside"
            opened = listening() - before
        # Other processes of this machine may listen meanwhile; no cell's port does.
        assert not [each for each in opened if each.endswith(f":{8000:04X}")]


@pytest.mark.promise("E-67")
async def test_an_open_connection_is_no_way_out(manager: SandboxManager) -> None:
    code = """
import socket
found = []
for family, where in [(socket.AF_INET, '127.0.0.1'), (socket.AF_INET, '10.0.0.1'),
                      (socket.AF_INET, '172.17.0.1'), (socket.AF_INET6, '::1')]:
    try:
        with socket.socket(family) as sock:
            sock.settimeout(2)
            sock.connect((where, port))
            found.append(where)
    except OSError:
        pass
found
"""
    with socket.create_server(("0.0.0.0", 0)) as door:
        async with manager.session() as session:
            await serve(session, b"inside")
            async with await session.connect(8000):
                port = door.getsockname()[1]
                result = await session.run(code, inputs={"port": port})
    assert (result.status, result.value) == ("ok", [])


class Cell:
    """The host's end of a cell that says whatever the test wants."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.said = anyio.Event()

    async def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        self.sent.append(header)
        self.said.set()

    def add(self, family: str, table: object) -> None: ...

    def follow(self) -> None: ...


async def connected() -> tuple[PortTable, PortStream]:
    """Return a table with one connection, number 1, to a cell of one's own."""
    cell = Cell()
    frames: SideChannel = cell  # type: ignore[assignment]
    table = PortTable(frames)
    found: list[PortStream] = []

    async def connect() -> None:
        found.append(await table.connect(8000))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connect)
        await cell.said.wait()
        table.handle_frame(frame("port_opened"))
    return table, found[0]


def frame(kind: str, payload: bytes = b"", **fields: Any) -> Frame:
    return Frame({"type": kind, "id": 1, **fields}, b"", payload)


@pytest.mark.parametrize(
    "frames",
    [
        [frame("port_opened")],
        [frame("port_failed", why="late", reason="missing")],
        [frame("port_data", bytes(WINDOW_BYTES)), frame("port_data", b"x")],
        [frame("port_end"), frame("port_data", b"x")],
        [frame("port_credit", bytes=1)],
        [frame("port_credit", bytes=-1)],
        [frame("port_credit", bytes=True)],
        [frame("port_credit")],
        [frame("port_open", port=80)],
        [frame("port_")],
    ],
    ids=[
        "opened twice",
        "failed after it was opened",
        "more than the window",
        "data after the end",
        "credit that was not used",
        "credit below zero",
        "credit that is no number",
        "no credit",
        "a request of the host",
        "no kind",
    ],
)
async def test_a_cell_that_lies_is_not_believed(frames: list[Frame]) -> None:
    table, _ = await connected()
    with pytest.raises((FrameError, KeyError, TypeError, ValueError)):
        for each in frames:
            table.handle_frame(each)


async def test_a_cell_opens_no_connection_by_itself() -> None:
    table, stream = await connected()
    for kind in ("port_open", "port_opened", "port_data", "port_close", "port_end"):
        table.handle_frame(Frame({"type": kind, "id": 2}, b"", b"x"))
    await stream.aclose()
    assert not table.is_busy


async def test_a_cell_that_goes_away_while_it_is_asked() -> None:
    cell = Cell()
    frames: SideChannel = cell  # type: ignore[assignment]
    table = PortTable(frames)

    async def go_away() -> None:
        await cell.said.wait()
        table.end_all("the cell is gone")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go_away)
        with pytest.raises(CellLostError):
            await table.connect(8000)
