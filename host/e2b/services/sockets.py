"""Leads WebSockets to servers inside sandboxes, message by message."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
from anyio.abc import ByteStream
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Message,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from ...config.sandbox_api import SandboxAPIConfig
from ..operations.action import Actions
from ..operations.ports import CONNECT, Server
from ..protocol.errors import APIError, gone
from ..state.sandbox import Sandbox
from .ports import headers_for, port_arguments

_HANDSHAKE_SECONDS = 10.0
_TOO_LARGE, _SERVER_FAILED = 1009, 1011


class Sockets:
    """Joins WebSockets of clients with those of servers in sandboxes.

    Args:
        settings: `max_body_bytes` bounds each message.
        actions: Leads each WebSocket through the guard.
    """

    def __init__(self, settings: SandboxAPIConfig, actions: Actions) -> None:
        self._max_bytes = settings.max_body_bytes
        self._actions = actions

    async def forward(
        self, socket: WebSocket, sandbox: Sandbox, port: int, path: str
    ) -> None:
        """Join a WebSocket with that of the server at a port, until one ends.

        A side that does not read holds up the other one.

        Raises:
            APIError: Nothing listens there, or it opens no WebSocket.
            GuardDeniedError: The guard refuses it.
        """
        wanted = port_arguments(socket, sandbox, port, path, "GET")
        async with self._actions.do(CONNECT, sandbox.token, wanted) as reached:
            if reached.method != "GET":
                raise APIError(400, "a WebSocket is opened by GET alone")
            server = _Server(reached.stream, self._max_bytes)
            answer = await server.opened(_request(socket, reached))
            if isinstance(answer, Response):
                await socket.send_denial_response(answer)
                return
            await socket.accept(answer.subprotocol, answer.extra_headers)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_to_server, socket, server, tasks.cancel_scope)
                await _to_client(socket, server, sandbox)
                tasks.cancel_scope.cancel()


async def _to_server(
    socket: WebSocket, server: _Server, scope: anyio.CancelScope
) -> None:
    """Pass on what a client says, and that it leaves."""
    while (message := await socket.receive())["type"] == "websocket.receive":
        data = message.get("bytes")
        await server.send(Message(message["text"] if data is None else data))
    await server.send(CloseConnection(message.get("code", 1005)))
    scope.cancel()


async def _to_client(socket: WebSocket, server: _Server, sandbox: Sandbox) -> None:
    """Pass on what a server says, and that it leaves."""
    end = CloseConnection(_SERVER_FAILED, "the server in the sandbox broke off")
    try:
        async with aclosing(server.messages()) as messages:
            async for message in messages:
                if isinstance(message, CloseConnection):
                    end = message
                elif isinstance(message, str):
                    await socket.send_text(message)
                else:
                    await socket.send_bytes(message)
        if sandbox.state == "ended":
            end = CloseConnection(_SERVER_FAILED, gone().message)
        await socket.close(end.code, end.reason)
    except WebSocketDisconnect:
        return


def _request(socket: WebSocket, reached: Server) -> Request:
    return Request(
        host=f"localhost:{reached.port}",
        target=reached.target,
        subprotocols=list(socket.scope["subprotocols"]),
        extra_headers=[
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in headers_for(socket)
            if not name.startswith("sec-websocket-")
        ],
    )


class _Server:
    """The client's end of one WebSocket into a cell; nothing of it is trusted."""

    def __init__(self, stream: ByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._socket = WSConnection(ConnectionType.CLIENT)
        self._sending = anyio.Lock()

    async def opened(self, request: Request) -> AcceptConnection | Response:
        """Return how the server answers: it accepts, or says something else.

        Raises:
            APIError: It says nothing that can be understood.
        """
        try:
            with anyio.fail_after(_HANDSHAKE_SECONDS):
                await self._send(request)
                async with aclosing(self._events()) as events:
                    async for event in events:
                        if isinstance(event, AcceptConnection):
                            return event
                        if isinstance(event, RejectConnection):
                            body = await self._rest(events) if event.has_body else b""
                            return Response(body, event.status_code)
        except TimeoutError:
            raise APIError(504, "the server opens no WebSocket") from None
        except (RemoteProtocolError, anyio.BrokenResourceError):
            pass
        raise APIError(502, "the server speaks no WebSocket")

    async def _rest(self, events: AsyncGenerator[Event, None]) -> bytes:
        """Return the body of a refusal, or its beginning."""
        body = bytearray()
        async for event in events:
            if isinstance(event, RejectData):
                body += event.data
                if event.body_finished or len(body) > self._max_bytes:
                    break
        return bytes(body[: self._max_bytes])

    async def send(self, event: Event) -> None:
        """Send an event, if the server is still there."""
        try:
            await self._send(event)
        except (LocalProtocolError, anyio.BrokenResourceError):
            return

    async def messages(self) -> AsyncGenerator[str | bytes | CloseConnection, None]:
        """Yield whole messages, and the end if it is sent."""
        held: list[str | bytes] = []
        size = 0
        try:
            async with aclosing(self._events()) as events:
                async for event in events:
                    if isinstance(event, Ping):
                        await self.send(event.response())
                    elif isinstance(event, CloseConnection):
                        await self.send(event.response())
                        yield event
                        return
                    elif isinstance(event, (TextMessage, BytesMessage)):
                        data = event.data
                        held.append(data if isinstance(data, str) else bytes(data))
                        size += len(event.data)
                        if size > self._max_bytes:
                            yield await self._too_large()
                            return
                        if event.message_finished:
                            yield _joined(held)
                            held, size = [], 0
        except (RemoteProtocolError, anyio.BrokenResourceError):
            return

    async def _too_large(self) -> CloseConnection:
        end = CloseConnection(_TOO_LARGE, f"a message has more than {self._max_bytes}")
        await self.send(end)
        return end

    async def _send(self, event: Event) -> None:
        async with self._sending:
            await self._stream.send(self._socket.send(event))

    async def _events(self) -> AsyncGenerator[Event, None]:
        while True:
            for event in self._socket.events():
                yield event
            try:
                data = await self._stream.receive()
            except anyio.EndOfStream:
                return
            self._socket.receive_data(data)


def _joined(parts: list[str | bytes]) -> str | bytes:
    if isinstance(parts[0], str):
        return "".join(str(part) for part in parts)
    return b"".join(part for part in parts if not isinstance(part, str))
