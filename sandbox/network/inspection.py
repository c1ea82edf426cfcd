"""Requests inside of HTTPS: each is judged, and made anew for the server.

Theory of operation. The proxy ends the program's TLS with its own certificate
(`authority.py`), reads one request after the other, and has each admitted. Only then
it connects to the server, whose certificate is checked; that connection serves the
others of the same program's connection, and no one else's. What is sent in either
direction is written by h11 from what was read, never copied. WebSockets are admitted
when they open, and their bytes are passed on.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import anyio
import h11
from pydantic import JsonValue

from toolcell.core.event_loop import unwrapped_single_error

from ..config.host_rules import DEFAULT_PORTS, read_authority
from . import stream as egress_stream
from .attempt import Attempt
from .client_hello import HANDSHAKE, read_client_hello
from .exchange import Exchange, NoAnswerError, passed_on
from .http_request import (
    HTTPRequest,
    check_host,
    new_reader,
    new_writer,
)
from .inspector import Inspector
from .proxy import http_answer
from .request_head import next_head
from .stream import CellStream
from .tls import TLSStream
from .types import REFUSAL, ByteStream, EgressError, ProgramEnd

_HANDSHAKE_SECONDS = 10.0
_HTTPS = "https://"
_SPOKEN = frozenset((b"http/1.1", b"http/1.0"))
# The alert `no_application_protocol` (RFC 7301).
_NO_PROTOCOL = bytes((21, 3, 3, 0, 2, 2, 120))


class Carrier(Protocol):
    """The network of the run, as an inspected connection needs it."""

    def judged(
        self,
        attempt: Attempt,
        http: HTTPRequest,
        program: ProgramEnd,
        outcome: Callable[[], Mapping[str, JsonValue]],
    ) -> AbstractAsyncContextManager[None]:
        """Have a request admitted; the body goes on. Raises EgressError."""
        ...

    async def reach(self, attempt: Attempt) -> socket.socket:
        """Return a connection to the server. Raises EgressError, OSError."""
        ...

    def pay(self, size: int) -> bool:
        """Charge bytes to the run; False if it has used up its own."""
        ...


class _Program:
    """The program's end of an inspected connection.

    Args:
        stream: Its connection.
        tls: The plain text of that.
    """

    def __init__(self, stream: CellStream, tls: TLSStream) -> None:
        self._stream = stream
        self.receive = tls.receive
        self.send = tls.send
        self.end = tls.end

    async def ended(self) -> None:
        """Wait until the program has sent its last byte; see `CellStream.ended`."""
        await self._stream.ended()


class _Wire:
    """The socket to a server, whose bytes are charged to the run."""

    def __init__(self, sock: socket.socket, attempt: Attempt, carrier: Carrier) -> None:
        self._sock = sock
        self._attempt = attempt
        self._carrier = carrier

    async def receive(self) -> bytes:
        size = await self._attempt.stream.room()
        # Others take turns, too, while a server sends more and more of nothing.
        await anyio.wait_readable(self._sock)
        data = await egress_stream.receive(self._sock, size)
        if not self._carrier.pay(len(data)):
            return b""
        self._attempt.bytes_in += len(data)
        return data

    async def send(self, data: bytes) -> None:
        if self._carrier.pay(len(data)):
            self._attempt.bytes_out += len(data)
            await egress_stream.send(self._sock, data)

    @property
    def is_quiet(self) -> bool:
        """False if the server has closed it, or sent something by itself."""
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        return not poller.poll(0)

    def close(self) -> None:
        self._sock.close()


class InspectedConnection:
    """One connection of a program to a host whose HTTPS is inspected.

    Args:
        attempt: It.
        inspector: Has the certificates.
        carrier: The network of its run.
    """

    def __init__(
        self, attempt: Attempt, inspector: Inspector, carrier: Carrier
    ) -> None:
        self._attempt = attempt
        self._inspector = inspector
        self._carrier = carrier
        self._program: _Program
        self._server: TLSStream | None = None
        self._wire: _Wire | None = None
        self._rest = b""

    async def serve(self, first: bytes) -> None:
        """Serve its requests until one of the ends closes it, or one is refused.

        Args:
            first: The program's first bytes, with its ClientHello.

        Raises:
            OSError: One of the ends has failed.
        """
        attempt = self._attempt
        is_tls = first.startswith(bytes((HANDSHAKE,)))
        hello = read_client_hello(first) if is_tls else None
        if hello is None:
            attempt.judge("refused", "it is inspected, and reached by HTTPS alone")
            return
        if hello.protocols and not _SPOKEN.intersection(hello.protocols):
            attempt.judge("refused", "it speaks HTTP/2 alone, which is not inspected")
            await attempt.stream.send(_NO_PROTOCOL)
            return
        context = self._inspector.for_programs(attempt.host)
        tls = TLSStream(attempt.stream, context, first=first)
        with anyio.fail_after(_HANDSHAKE_SECONDS):
            await tls.handshake()
        self._program = _Program(attempt.stream, tls)
        attempt.judge("allowed")
        try:
            while await self._serve_next():
                pass
        finally:
            self._close_server()
        with contextlib.suppress(OSError):
            await self._program.end()
            await attempt.stream.turn_away()

    async def _serve_next(self) -> bool:
        """Serve one request; return True if another one may follow."""
        try:
            found = await self._next_request()
            if found is None:
                return False
            request, reader = found
            exchange = Exchange(self._attempt, request)
            async with self._carrier.judged(
                self._attempt, request, self._program, exchange.outcome
            ):
                self._attempt.judge("allowed")
                try:
                    return await self._exchange(exchange, request, reader)
                except (EgressError, NoAnswerError) as error:
                    # The record of an admitted request has it, too.
                    self._judge(error)
                    raise
        except (EgressError, NoAnswerError) as error:
            self._judge(error)
            await self._program.send(_turned_down(error))
        return False

    def _judge(self, error: EgressError | NoAnswerError) -> None:
        is_refused = isinstance(error, EgressError)
        self._attempt.judge("refused" if is_refused else "failed", error)

    async def _next_request(self) -> tuple[HTTPRequest, h11.Connection] | None:
        """Return the next request and its reader; None if there is none.

        Raises:
            EgressError: It cannot be judged exactly.
        """
        host, port = self._attempt.host, self._attempt.port
        reader = new_reader()
        try:
            head, self._rest = await next_head(self._rest, self._program)
            if not head:
                return None
            reader.receive_data(head + self._rest)
            request = reader.next_event()
            if not isinstance(request, h11.Request):
                raise ValueError("it is no request")
            check_host(request, host, port, default_port=DEFAULT_PORTS["https"])
            target = self._path_of(request.target.decode("ascii"))
        except h11.ProtocolError:
            # Its messages quote what came.
            why = "it is not HTTP/1.1 as servers agree on it"
        except ValueError as error:
            why = str(error)
        else:
            made = HTTPRequest(reader, request, target, host, port, scheme="https")
            return made, reader
        raise EgressError(why, headers={REFUSAL: "not_exact"})

    def _path_of(self, target: str) -> str:
        if target.startswith("/") or target == "*":
            return target
        authority, slash, path = target.removeprefix(_HTTPS).partition("/")
        if not target.startswith(_HTTPS) or read_authority(authority, 443) != (
            self._attempt.host,
            self._attempt.port,
        ):
            raise ValueError("its target is on another host")
        return slash + path or "/"

    async def _exchange(
        self, exchange: Exchange, request: HTTPRequest, reader: h11.Connection
    ) -> bool:
        """Send an admitted request, and its answer back; see `_serve_next`."""
        server = await self._reach()
        out = new_writer()
        with unwrapped_single_error():
            await self._both_ways(exchange, request, reader, out, server)
        if reader.our_state is h11.SWITCHED_PROTOCOL:
            await self._pass_on(reader, out, server)
            return False
        ends = out.our_state, out.their_state
        is_whole = exchange.is_sent and ends == (h11.DONE, h11.DONE)
        # What comes before a request is not the answer to the next request.
        if not is_whole or out.trailing_data[0] or server.has_more:
            self._close_server()
        if (reader.our_state, reader.their_state) != (h11.DONE, h11.DONE):
            return False
        self._rest = reader.trailing_data[0]
        return True

    async def _both_ways(
        self,
        exchange: Exchange,
        request: HTTPRequest,
        reader: h11.Connection,
        out: h11.Connection,
        server: TLSStream,
    ) -> None:
        # It raises if a credential has broken while a person looked.
        head = request.head()
        exchange.is_reached, exchange.mask = True, request.mask()
        if request.opens_web_socket:
            head = _upgrading(head)
        if not request.has_body:
            await self._upload(exchange, request, head, out, server)
            await self._whole_answer(exchange, reader, out, server)
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._upload, exchange, request, head, out, server)
            try:
                await self._whole_answer(exchange, reader, out, server)
            finally:
                # What it answers before the request has ended is its answer.
                tasks.cancel_scope.cancel()

    async def _whole_answer(
        self,
        exchange: Exchange,
        reader: h11.Connection,
        out: h11.Connection,
        server: TLSStream,
    ) -> None:
        """Pass on the answer of the server. Raises NoAnswerError, OSError."""
        try:
            await self._answer(exchange, reader, out, server)
        except h11.ProtocolError:
            if exchange.status is not None:
                raise OSError("the server's answer broke off") from None
            ended = out.trailing_data == (b"", True)
            why = (
                "the server ended the connection without an answer"
                if ended
                else "the server's answer is not HTTP/1.1"
            )
            raise NoAnswerError(why) from None

    async def _reach(self) -> TLSStream:
        """Return a connection to the server, the one of the last request if it stands.

        Raises:
            EgressError: The rules or limits forbid it.
            NoAnswerError: It cannot be reached, or does not prove its name.
        """
        if self._server is not None and self._wire is not None and self._wire.is_quiet:
            return self._server
        self._close_server()
        attempt, host = self._attempt, self._attempt.host
        try:
            sock = await self._carrier.reach(attempt)
            self._wire = _Wire(sock, attempt, self._carrier)
            server = TLSStream(self._wire, self._inspector.for_servers, host)
            with anyio.fail_after(_HANDSHAKE_SECONDS):
                await server.handshake()
        except ssl.SSLCertVerificationError as error:
            why = f"the certificate of {host} does not verify: {error.verify_message}"
        except OSError as error:
            why = str(error) or "nobody answered in time"
        else:
            self._server = server
            return server
        raise NoAnswerError(why)

    def _close_server(self) -> None:
        if self._wire is not None:
            self._wire.close()
        self._server = self._wire = None

    async def _upload(
        self,
        exchange: Exchange,
        request: HTTPRequest,
        head: h11.Request,
        out: h11.Connection,
        server: TLSStream,
    ) -> None:
        is_open = True

        async def send(data: bytes) -> None:
            nonlocal is_open
            try:
                if is_open:
                    await server.send(data)
            except OSError:
                # It may have answered before.
                is_open = False

        try:
            await request.send(head, out, self._program, send)
            exchange.is_sent = is_open
        except EgressError as error:
            self._attempt.judge("refused", error)
            if error.headers and exchange.status is None:
                raise
            self._attempt.stop()
        except OSError as error:
            self._attempt.stop(error)

    async def _answer(
        self,
        exchange: Exchange,
        reader: h11.Connection,
        out: h11.Connection,
        server: TLSStream,
    ) -> None:
        """Pass on the answer of the server. Raises h11.ProtocolError, OSError."""
        send = self._program.send
        while True:
            event = out.next_event()
            if event is h11.NEED_DATA:
                out.receive_data(await self._received(exchange, server))
                continue
            if (
                isinstance(event, h11.InformationalResponse)
                and event.status_code == 101
            ):
                exchange.status = 101
                await send(reader.send(_switching(event)) or b"")
                return
            is_end = isinstance(event, h11.EndOfMessage)
            if is_end and server.was_cut:
                # Only its end says where the body ends, and anybody may cut it.
                raise h11.RemoteProtocolError("it may not be whole")
            await send(exchange.written(event))
            if is_end:
                return

    async def _received(self, exchange: Exchange, server: TLSStream) -> bytes:
        """Return the next bytes of a server. Raises NoAnswerError, OSError."""
        try:
            return await server.receive()
        except OSError as error:
            if exchange.status is not None or self._attempt.stream.is_broken:
                raise
            raise NoAnswerError(f"the server gave no answer: {error}") from None

    async def _pass_on(
        self, reader: h11.Connection, out: h11.Connection, server: TLSStream
    ) -> None:
        """Pass on the bytes of a WebSocket until one end closes it."""
        await self._program.send(out.trailing_data[0])
        await server.send(reader.trailing_data[0])
        async with anyio.create_task_group() as tasks:

            async def copy(source: ByteStream, target: ByteStream) -> None:
                try:
                    while data := await source.receive():
                        await target.send(data)
                except OSError as error:
                    self._attempt.stop(error)
                tasks.cancel_scope.cancel()

            tasks.start_soon(copy, server, self._program)
            await copy(self._program, server)


def _turned_down(error: EgressError | NoAnswerError) -> bytes:
    if isinstance(error, EgressError):
        return http_answer("403 Forbidden", str(error), error.headers)
    return http_answer("502 Bad Gateway", str(error))


def _upgrading(head: h11.Request) -> h11.Request:
    """Return the head of a request that opens a WebSocket."""
    more = [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    return h11.Request(
        method=head.method,
        target=head.target,
        headers=[*head.headers.raw_items(), *more],
    )


def _switching(event: h11.InformationalResponse) -> h11.InformationalResponse:
    more = [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    return h11.InformationalResponse(
        status_code=101, headers=[*passed_on(event), *more]
    )
