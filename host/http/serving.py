"""Opens sockets, and serves applications at them until a signal ends the process.

A server limits its connections, and ends those that may go on no longer.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import struct
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Hashable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Generic, TypeVar

import anyio
import h11
import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from toolcell.core import ConfigError, StoreUnavailableError

CLOSE_SECONDS = 3
"""Seconds that open requests have when a server stops. When it is reached their
connections are closed."""

HEAD_SECONDS = 10.0
"""Seconds for the head of a request to arrive, from the start of the connection or
from the first byte after an answer. When it is reached the connection is closed."""

IDLE_SECONDS = 330
"""Seconds from an answer to the first byte of another request. When it is reached the
connection is closed. E2B's clients keep connections for 300 seconds, and lose a request
that they send while the server closes."""

READ_BYTES = 16_384
"""Bytes that are read of a connection at once. When it is reached the rest waits until
the event loop has turned to others: to parse 256 KiB of small chunks takes it a fifth
of a second, before anybody looks at a token."""

_RESET = struct.pack("ii", 1, 0)
"""No lingering: what closes a socket then is a reset."""


_FULL = JSONResponse(
    {
        "code": 503,
        "message": "there are too many connections",
        "reason": "too_many_connections",
        "retry_after": 1.0,
    },
    503,
    {"Retry-After": "1", "Connection": "close"},
)


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of `HOST:PORT` or `[HOST]:PORT`.

    Raises:
        ConfigError: The address cannot be read.
    """
    name, colon, port = address.rpartition(":")
    name = name.removeprefix("[").removesuffix("]")
    if not colon or not name or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(
            f"{address!r} is no address", hint="write it as 127.0.0.1:8931"
        )
    return name, int(port)


def listen(address: str) -> socket.socket:
    """Return a socket that listens at an address.

    Args:
        address: `HOST:PORT` or `[HOST]:PORT`; port 0 chooses a free one.

    Raises:
        ConfigError: The address cannot be read or used.
    """
    name, port = host_and_port(address)
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    try:
        listening = socket.create_server((name, port), family=family, backlog=512)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address}: {error.strerror}",
            hint="choose another port, or 0 for any; the host must be "
            "one of this machine",
        ) from None
    # Otherwise an answer of two packets waits 40 ms for the first acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def uvicorn_server(
    app: ASGIApp,
    max_connections: int,
    *,
    max_message_bytes: int | None = None,
    trusted_proxies: Sequence[str] = (),
) -> uvicorn.Server:
    """Return a server for an application, with limited connections.

    Args:
        app: The application.
        max_connections: As `ConnectionLimiter` has it.
        max_message_bytes: Bytes of one message of a WebSocket. When it is reached the
            WebSocket is closed. None: there are no WebSockets.
        trusted_proxies: Addresses and networks whose `X-Forwarded-For` says where a
            request comes from. That of others is ignored.
    """
    connections = ConnectionLimiter(max_connections)
    config = uvicorn.Config(
        app,
        # uvicorn only calls it, so any callable will do.
        http=connections.protocol,  # type: ignore[arg-type]
        lifespan="off",
        ws="none" if max_message_bytes is None else "wsproto",
        ws_max_size=max_message_bytes or 0,
        # A small message must not become a large one.
        ws_per_message_deflate=False,
        log_config=None,
        access_log=False,
        server_header=False,
        # By default uvicorn believes every program on the loopback address.
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=[*trusted_proxies],
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
    return uvicorn.Server(config)


@asynccontextmanager
async def serving(
    app: ASGIApp,
    listening: socket.socket,
    max_connections: int,
    *,
    max_message_bytes: int | None = None,
    trusted_proxies: Sequence[str] = (),
) -> AsyncIterator[str]:
    """Serve an application while the block runs.

    Args:
        app: The application.
        listening: The socket.
        max_connections: As `uvicorn_server` has it.
        max_message_bytes: As `uvicorn_server` has it.
        trusted_proxies: As `uvicorn_server` has it.

    Yields:
        The URL of the server.
    """
    server = uvicorn_server(
        app,
        max_connections,
        max_message_bytes=max_message_bytes,
        trusted_proxies=trusted_proxies,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_serve, server, listening)
        try:
            yield url_of(listening)
        finally:
            server.should_exit = True


async def _serve(server: uvicorn.Server, listening: socket.socket) -> None:
    try:
        # `serve` would catch signals, which are for all servers of the process.
        await server._serve([listening])
    finally:
        # Cancelled, uvicorn leaves its socket to the loop, which would take the next
        # socket of the same number for it, and never look at that one.
        for listener in vars(server).get("servers", ()):
            listener.close()


def url_of(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    name, port = listening.getsockname()[:2]
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"


async def until_signal(
    drain: Callable[[float], Awaitable[object]],
    seconds: float,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Wait for SIGTERM or SIGINT, and then for the calls that run.

    Args:
        drain: Waits for the calls that run, at most for so many seconds.
        seconds: Seconds that they have. A second signal gives them none.
        on_ready: Called when signals are waited for.
    """
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        on_ready()
        async with anyio.create_task_group() as tasks:

            async def drain_and_end(seconds: float) -> None:
                await drain(seconds)
                tasks.cancel_scope.cancel()

            async for _ in signals:
                tasks.start_soon(drain_and_end, seconds)
                seconds = 0.0


class ConnectionLimiter:
    """The connections of one server.

    A client needs no token to open a connection and send half a head. Therefore
    connections that wait for a head are closed to make room for new ones, the longest
    waiting first, so that clients with whole requests are answered.

    Args:
        max_connections: Connections at once. When it is reached the one that has
            waited longest for a request is closed; if none waits, the requests of new
            ones are answered 503.
    """

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._waiting: dict[_LimitedConnection, None] = {}

    def protocol(self, **options: Any) -> asyncio.Protocol:
        """Return the protocol of a new connection; uvicorn calls it."""
        return _LimitedConnection(self, **options)

    def begin_waiting(self, connection: _LimitedConnection) -> None:
        """Register a connection that has no request now."""
        self._waiting[connection] = None

    def end_waiting(self, connection: _LimitedConnection) -> None:
        """Unregister a connection that has a request, or is closed."""
        self._waiting.pop(connection, None)

    def is_full(self, connection: _LimitedConnection) -> bool:
        """Return True if there are too many with this one."""
        return len(connection.connections) > self._max_connections

    def make_room(self, connection: _LimitedConnection) -> None:
        """Close another connection if there are too many with this one."""
        if not self.is_full(connection):
            return
        for waiting in self._waiting:
            if waiting is not connection:
                waiting.end()
                return


class _LimitedConnection(H11Protocol, asyncio.BufferedProtocol):
    """One connection, with a deadline for the heads of its requests."""

    def __init__(self, limiter: ConnectionLimiter, **options: Any) -> None:
        super().__init__(**options)
        # The state of its requests, where their answers find it.
        self.app_state = {**self.app_state, "abort": self.reset}
        self.timeout_keep_alive = IDLE_SECONDS
        self._limiter = limiter
        self._app = self.app
        self._is_idle = False
        self._deadline: asyncio.TimerHandle | None = None
        self._read = bytearray(READ_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limiter.begin_waiting(self)
        self._await_head()
        self._limiter.make_room(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._read[:nbytes]))

    def data_received(self, data: bytes) -> None:
        if self._is_idle:
            self._await_head()
        super().data_received(data)

    def handle_events(self) -> None:
        self.app = _FULL if self._limiter.is_full(self) else self._app
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        # First, because the next request may have arrived already.
        self._stop_waiting()
        self._limiter.begin_waiting(self)
        self._is_idle = True
        super().on_response_complete()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._stop_waiting()
        super().handle_websocket_upgrade(event)

    def end(self) -> None:
        """Close the connection at once, and drop unsent bytes."""
        self._stop_waiting()
        self.transport.abort()

    def reset(self) -> None:
        """Close it so that whoever reads an answer knows that it is not whole."""
        if not self.transport.is_closing():
            connection = self.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.end()

    def _await_head(self) -> None:
        self._is_idle = False
        self._deadline = self.loop.call_later(HEAD_SECONDS, self.end)

    def _stop_waiting(self) -> None:
        self._is_idle = False
        self._limiter.end_waiting(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


LOOK_SECONDS = 0.5
"""Seconds between two looks at whoever has requests open. Those of a client whose token
was revoked, or who was signed out, end within it."""

K = TypeVar("K", bound=Hashable)


class OpenRequests(Generic[K]):
    """The requests of one server that are open, by token or session.

    A token is looked at when a request begins; a stream would outlive it for as long as
    its client reads. So whoever has requests open is looked at again and again.

    Args:
        may_go_on: Returns False for a client whose requests have to end.
    """

    def __init__(self, may_go_on: Callable[[K], bool]) -> None:
        self._may_go_on = may_go_on
        self._open: dict[K, set[_Open]] = {}
        self._next_look: asyncio.TimerHandle | None = None

    @contextmanager
    def request(self, scope: Scope) -> Iterator[Callable[[K], None]]:
        """Hold a request while it is open.

        Its end breaks off the connection: what came until then is not the whole answer.

        Args:
            scope: The scope of the request.

        Yields:
            The function that says whose the request is.
        """
        mine = _Open(scope)
        keys: list[K] = []

        def belongs_to(key: K) -> None:
            keys.append(key)
            self._open.setdefault(key, set()).add(mine)
            self._look_later()

        with mine.cancel:
            try:
                yield belongs_to
            finally:
                for key in keys:
                    self._open[key].discard(mine)
                    if not self._open[key]:
                        del self._open[key]

    def _look_later(self) -> None:
        if self._next_look is None:
            loop = asyncio.get_running_loop()
            self._next_look = loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._next_look = None
        if self._open:
            self._look_later()
        for key in [key for key in self._open if not self._is_good(key)]:
            for stream in self._open.get(key, ()):
                stream.end()

    def _is_good(self, key: K) -> bool:
        try:
            return self._may_go_on(key)
        except StoreUnavailableError:
            # No token is accepted while nobody can say whether it is good.
            return False


class _Open:
    """One request."""

    def __init__(self, scope: Scope) -> None:
        self.cancel = anyio.CancelScope()
        state: dict[str, Any] = scope.get("state") or {}
        self._abort: Callable[[], object] = state.get("abort", _nothing)

    def end(self) -> None:
        self._abort()
        self.cancel.cancel()


def _nothing() -> None: ...
