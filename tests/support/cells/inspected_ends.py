"""Both ends of an inspected connection, without cells."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import (
    AsyncExitStack,
    asynccontextmanager,
    closing,
    nullcontext,
    suppress,
)
from types import SimpleNamespace
from typing import Any, cast

import anyio

from toolcell.sandbox.cell.wire.contract import WINDOW_BYTES
from toolcell.sandbox.network import stream as sockets
from toolcell.sandbox.network.attempt import Attempt
from toolcell.sandbox.network.authority import CertificateAuthority
from toolcell.sandbox.network.inspection import InspectedConnection
from toolcell.sandbox.network.stream import CellStream
from toolcell.sandbox.network.tls import TLSStream

NAME = "api.example.test"
OTHER = "other.example.test"
OURS, THEIRS = CertificateAuthority([NAME]), CertificateAuthority([NAME, OTHER])
Serve = Callable[[TLSStream, "Wire"], Awaitable[None]]


def trusting(authority: CertificateAuthority) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.pem)


class Wire:
    """One end of a pair of sockets."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.held: bytes | None = None
        """What is sent together, later; None: each is sent at once."""

    async def receive(self) -> bytes:
        return await sockets.receive(self.sock, 65_536)

    async def send(self, data: bytes) -> None:
        if self.held is not None:
            self.held += data
        else:
            await sockets.send(self.sock, data)

    async def garbage(self) -> None:
        """Send what looks like a record, and is not."""
        await sockets.send(self.sock, b"\x17\x03\x03\x00\x20" + b"x" * 32)


class Program:
    """A program's end, whose frames the host takes at once."""

    def __init__(self) -> None:
        self.stream = CellStream(1, self._take)
        self.give, self.frames = anyio.create_memory_object_stream[bytes](1_000)
        self._hello = anyio.Event()
        self.first = b""

    async def _take(
        self, header: dict[str, Any], payload: bytes | memoryview = b""
    ) -> None:
        if header["type"] == "net_data":
            self.stream.take("net_credit", {"bytes": len(payload)}, b"")
            await self._give(bytes(payload))
        elif header["type"] in ("net_end", "net_close"):
            await self._give(b"")

    async def _give(self, data: bytes) -> None:
        """Wait only while there is no room, as a channel does."""
        try:
            self.give.send_nowait(data)
        except anyio.WouldBlock:
            await self.give.send(data)

    async def receive(self) -> bytes:
        return await self.frames.receive()

    async def send(self, data: bytes) -> None:
        if not self.first:
            self.first = data
            self._hello.set()
            return
        assert len(data) <= WINDOW_BYTES
        self.stream.take("net_data", {}, data)

    async def hello(self) -> bytes:
        await self._hello.wait()
        return self.first


class Carrier:
    """The network of a run whose server is `serve`; each call is a connection."""

    def __init__(
        self, tasks: anyio.abc.TaskGroup, serve: Serve, context: ssl.SSLContext
    ) -> None:
        self._tasks, self._serve, self._context = tasks, serve, context
        self.reached = 0

    def judged(self, *_: Any) -> Any:
        return nullcontext()

    def pay(self, size: int) -> bool:
        return True

    async def reach(self, attempt: Attempt) -> socket.socket:
        self.reached += 1
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self._tasks.start_soon(self._answer, theirs)
        return ours

    async def _answer(self, sock: socket.socket) -> None:
        with closing(sock), suppress(OSError):
            wire = Wire(sock)
            tls = TLSStream(wire, self._context)
            await tls.handshake()
            await self._serve(tls, wire)


@asynccontextmanager
async def inspected(
    serve: Serve, context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[TLSStream, Carrier, Attempt]]:
    """Yield a program's TLS to a server, through the proxy."""
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(30))
        program = Program()
        stack.enter_context(program.frames)
        stack.enter_context(program.give)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        carrier = Carrier(tasks, serve, context or THEIRS.context(NAME))
        attempt = Attempt(program.stream, host=NAME, port=443)
        inspector = cast(
            "Any",
            SimpleNamespace(for_programs=OURS.context, for_servers=trusting(THEIRS)),
        )

        async def proxy() -> None:
            connection = InspectedConnection(attempt, inspector, carrier)
            try:
                with attempt.scope:
                    await connection.serve(await program.hello())
            except OSError as error:
                attempt.stop(error)
            await program.stream.aclose()
            attempt.over.set()

        tasks.start_soon(proxy)
        tls = TLSStream(program, trusting(OURS), NAME)
        await tls.handshake()
        yield tls, carrier, attempt
        tasks.cancel_scope.cancel()


def request(path: str = "/", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode()


def answer(body: bytes, head: str = "") -> bytes:
    told = f"HTTP/1.1 200 OK\r\n{head}Content-Length: {len(body)}\r\n\r\n"
    return told.encode() + body


async def all_of(tls: TLSStream) -> bytes:
    """Return all that a program receives, to the end of the connection."""
    said = b""
    while data := await tls.receive():
        said += data
    return said


async def until(tls: TLSStream, end: bytes) -> bytes:
    """Return what comes, up to bytes that end it."""
    said = b""
    while not said.endswith(end):
        data = await tls.receive()
        assert data, said[-200:]
        said += data
    return said


async def heard(tls: TLSStream) -> bytes:
    return await until(tls, b"\r\n\r\n")
