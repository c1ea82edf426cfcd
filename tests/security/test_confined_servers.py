"""Servers of `confined` cells listen on the machine's loopback, for one cell alone."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolcell.sandbox import SandboxManager, Session

from ..conftest import CONFINED
from ..support.ordinary_user import SYSTEM_PYTHON, need_system_python
from ..support.polling import until

pytestmark = pytest.mark.anyio

SERVE = """
import socket
server = socket.create_server(("127.0.0.1", 8000))
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
real = server.getsockname()[1]
real
"""
COME = """
import errno, socket
def come(port):
    try:
        with socket.create_connection(("127.0.0.1", port), 5):
            return "reached"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
[come(port) for port in ports]
"""
REFUSED = "ECONNREFUSED"


@pytest.fixture(params=[None, SYSTEM_PYTHON], ids=["usual", "system"])
async def manager(request: pytest.FixtureRequest) -> AsyncIterator[SandboxManager]:
    """Cells of the host's user, or as root of users of their own."""
    if request.param is not None:
        need_system_python()
    async with SandboxManager(CONFINED.config(python=request.param)) as manager:
        yield manager


async def said(session: Session, code: str, **inputs: Any) -> Any:
    result = await session.run(code, inputs=inputs)
    assert result.ok, result.stderr
    return result.value


async def come(session: Session, *ports: int) -> Any:
    return await said(session, COME, ports=list(ports))


def reached(port: int) -> bool:
    """Say whether a process of the machine comes to a port of it."""
    try:
        with socket.create_connection(("127.0.0.1", port), 0.5):
            return True
    except OSError:
        return False


@pytest.mark.promise("E-67")
async def test_only_its_cell_comes_to_a_server(manager: SandboxManager) -> None:
    async with manager.session() as session, manager.session() as other:
        real = await said(session, SERVE)
        assert await come(session, 8000, real) == ["reached", "reached"]
        assert await come(other, 8000, real) == [REFUSED, REFUSED]
        assert not reached(real) and not reached(8000)
        async with await session.connect(8000), await session.connect(real):
            pass


@pytest.mark.promise("E-67")
@pytest.mark.parametrize("end", ["server.shutdown(2)", "server.close()", ""])
async def test_nobody_takes_the_place_of_a_server(
    manager: SandboxManager, end: str
) -> None:
    async with manager.session() as session:
        real = await said(session, SERVE)
        await said(session, end)
        # It would be the host's server that the cell comes to.
        if end != "server.close()":
            with pytest.raises(OSError, match="in use"):
                socket.create_server(("127.0.0.1", real))
        await said(session, "server.close()")
        assert await come(session, 8000) == [REFUSED]
        with socket.socket() as later:
            await until(lambda: binds(later, real))
            later.listen()
            assert await come(session, 8000, real) == [REFUSED, REFUSED]


def binds(server: socket.socket, port: int) -> bool:
    try:
        server.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


@pytest.mark.promise("E-67")
async def test_what_a_server_cannot_change(manager: SandboxManager) -> None:
    async with manager.session() as session:
        await said(session, SERVE)
        found = await said(
            session,
            """
import errno, os
def attempt(what):
    try:
        what()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
new = socket.socket
{
    "key": attempt(lambda: server.setsockopt(6, 14, bytes(216))),
    "key of a range": attempt(lambda: server.setsockopt(6, 32, bytes(216))),
    "no address": attempt(lambda: new().listen()),
    "another address": attempt(lambda: new().bind(("192.0.2.1", 0))),
    "taken": attempt(lambda: new().bind(("0.0.0.0", 8000))),
    "many": len([s for s in [new() for _ in range(80)]
                 if attempt(lambda: s.bind(("127.0.0.1", 0))) == "done"]),
}
""",
        )
    assert found == {
        **dict.fromkeys(("key", "key of a range"), "ENOPROTOOPT"),
        "no address": "EACCES",
        "another address": "EADDRNOTAVAIL",
        "taken": "EADDRINUSE",
        "many": 63,
    }


async def test_each_family_of_addresses(manager: SandboxManager) -> None:
    async with manager.session() as session:
        found = await said(
            session,
            """
import asyncio
async def serve(reader, writer):
    writer.write(await reader.read(4))
    writer.close()
async def main():
    said = []
    async with await asyncio.start_server(serve, None, 9000):
        for host in ("127.0.0.1", "localhost", "127.9.9.9"):
            reader, writer = await asyncio.open_connection(host, 9000)
            writer.write(host[:4].encode())
            said.append((await reader.read()).decode())
            writer.close()
    return said
asyncio.run(main())
""",
        )
    assert found == ["127.", "loca", "127."]
