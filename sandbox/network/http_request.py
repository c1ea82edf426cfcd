"""HTTP requests of programs: read, checked, and made anew for the server.

Sources: RFC 9110 section 7, RFC 9112 section 3.2.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import anyio
import h11
from pydantic import JsonValue

from toolcell.core import CellLostError, GuardDeniedError
from toolcell.core.event_loop import SmallParts

from ..config.host_rules import DEFAULT_PORTS, read_authority, write_authority
from ..credentials.agents import AgentCredentials, MisplacedError, UnreadableError
from ..credentials.masking import Mask
from .gate import ActName, Unplaced
from .held_body import MAX_READ_SECONDS, HeldBody, Share
from .types import (
    HTTP_PORT,
    REFUSAL,
    ByteStream,
    EgressError,
    ProgramEnd,
)

MAX_HEAD_BYTES = 65_536
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_ABSOLUTE = re.compile(r"(?i:http)://([^/?#]*)(.*)", re.DOTALL)
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_LINE_END = re.compile(rb"\r?\n")
_NO_INTERIM = re.compile(rb"node\b|undici\b")
_INTERIM = (b"HTTP/1.1 1", b"HTTP/1.0 1")
_STATUS = re.compile(rb"HTTP/1\.[01] +([0-9]{3})\b")
_OF_A_CONNECTION = (b"connection", b"keep-alive", b"proxy-connection")
_HOP_BY_HOP = frozenset(
    (
        "connection keep-alive proxy-authenticate proxy-authorization proxy-connection "
        "te trailer upgrade"
    ).split()
)


class HTTPRequest:
    """A request that is made anew, so that the server gets exactly what was checked.

    Args:
        connection: Parses the rest of the request.
        request: Its head.
        target: Path and query for the server.
        host: The server.
        port: Its port.
        scheme: `https` if it came, and goes, by TLS.
    """

    def __init__(
        self,
        connection: h11.Connection,
        request: h11.Request,
        target: str,
        host: str,
        port: int,
        *,
        scheme: Literal["http", "https"] = "http",
    ) -> None:
        self._connection = connection
        self._request = request
        self._place = host, port
        self._target = target
        self._scheme = scheme
        self._credentials: AgentCredentials | None = None
        self._held: HeldBody | None = None
        self._pieces = SmallParts()
        self.used: tuple[str, ...] = ()
        """The names of the credentials that its head for the server has."""

    def use(self, credentials: AgentCredentials) -> None:
        """Write credentials into it, where they may be.

        Args:
            credentials: Those of its program's agent.

        Raises:
            EgressError: A placeholder is where no value may go; or it opens a
                WebSocket.
        """
        if self.opens_web_socket:
            raise EgressError(
                "programs that use credentials open no WebSockets to inspected hosts, "
                "as what comes in them is not searched for their values",
                headers={REFUSAL: "not_served"},
            )
        self._credentials = credentials
        self.head()

    def mask(self) -> Mask:
        """Return what writes over credentials in its answer."""
        return Mask({}) if self._credentials is None else self._credentials.mask()

    def exactly(self) -> dict[str, JsonValue]:
        """Give its target the one spelling that is judged; return the facts for that.

        Raises:
            EgressError: It cannot be judged exactly.
        """
        from .request_facts import exact_target, request_facts

        try:
            self._target = exact_target(self._target)
            facts = request_facts(
                self._request, self._target, *self._place, scheme=self._scheme
            )
        except ValueError as error:
            why = f"{error}; what servers may read in two ways is not sent"
            raise EgressError(why, headers={REFUSAL: "not_exact"}) from None
        if self.act == "http.upgrade":
            facts["protocol"] = "websocket"
        return facts

    @property
    def has_credentials(self) -> bool:
        """True if its program's agent has credentials, whether it uses one or not."""
        return self._credentials is not None

    @property
    def reader(self) -> h11.Connection:
        """The parser of it, which also writes the answer to it."""
        return self._connection

    @property
    def act(self) -> ActName:
        """The name by which rules know it."""
        inspected = self._scheme == "https"
        return "http.upgrade" if inspected and self.opens_web_socket else "http.request"

    @property
    def takes_interim(self) -> bool:
        """True if its client takes `100 Continue` for a sign that somebody looks.

        Not so clients of HTTP/1.0, and undici (node), which fails on it.
        """
        agent = dict(self._request.headers).get(b"user-agent", b"").lower()
        return self._request.http_version >= b"1.1" and not _NO_INTERIM.match(agent)

    @property
    def has_body(self) -> bool:
        """True if a body follows its head, which may be empty."""
        names = {name for name, _ in self._request.headers}
        return bool(names & {b"content-length", b"transfer-encoding"})

    @property
    def opens_web_socket(self) -> bool:
        """True if it asks for a WebSocket in place of an answer."""
        return asks_for_web_socket(self._request)

    def head(self) -> h11.Request:
        """Return its head for the server, without the fate of the connection.

        Raises:
            EgressError: A credential cannot be written into it.
        """
        head = h11.Request(
            method=self._request.method,
            target=self._target,
            headers=_headers(self._request, *self._place, self._scheme),
        )
        if self._held is not None:
            # Its body was asked for, and has come.
            headers = head.headers.raw_items()
            kept = [header for header in headers if header[0].lower() != b"expect"]
            head = h11.Request(method=head.method, target=head.target, headers=kept)
        if self._credentials is not None:
            place = self._place if self._scheme == "https" else None
            with _unplaced_is_refused():
                head, self.used = self._credentials.placed(head, place)
        return head

    async def make(
        self,
        out: h11.Connection,
        source: ByteStream,
        send: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """Send the request and its body as the only one of a connection.

        Args:
            out: Writes what is sent.
            source: Delivers the body.
            send: Sends bytes to the server.

        Raises:
            EgressError: The body does not match its head.
        """
        head = self.head()
        close = (b"Connection", b"close")
        head = h11.Request(
            method=head.method,
            target=head.target,
            headers=[*head.headers.raw_items(), close],
        )
        await self.send(head, out, source, send)

    async def send(
        self,
        head: h11.Request,
        out: h11.Connection,
        source: ByteStream,
        send: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """Send a head, and the body that follows this request.

        Args:
            head: The head for the server.
            out: Writes what is sent.
            source: Delivers the body.
            send: Sends bytes to the server.

        Raises:
            EgressError: The body does not match its head, or has a placeholder.
        """
        check = self._body_check()
        try:
            await send(out.send(head) or b"")
            if self._held is not None:
                for piece in self._held.pieces:
                    await send(out.send(h11.Data(data=bytes(piece))) or b"")
                self._held.close()
            else:
                while (next_one := await self._next_piece(source)) is not None:
                    check(next_one)
                    await send(out.send(h11.Data(data=next_one)) or b"")
            # Trailers were not judged.
            await send(out.send(h11.EndOfMessage()) or b"")
        except h11.ProtocolError:
            raise _unlike_its_head() from None

    async def hold(self, source: ProgramEnd, share: Share) -> HeldBody:
        """Read all of its body into memory, from where `send` takes it.

        Args:
            source: Delivers the body.
            share: The room of its run.

        Raises:
            GuardDeniedError: It does not fit, or come whole or in time, or has a
                placeholder.
        """
        self._held = body = HeldBody(share)
        check, reason = self._body_check(), "bad_call"
        declared = dict(self._request.headers).get(b"content-length", b"0")
        body.check_size(int(declared))
        try:
            with anyio.fail_after(MAX_READ_SECONDS):
                if self._connection.they_are_waiting_for_100_continue:
                    await source.send(CONTINUE)
                while (piece := await self._next_piece(source)) is not None:
                    check(piece)
                    body.add(piece)
        except EgressError as error:
            why, reason = str(error), error.headers.get(REFUSAL, reason)
        except TimeoutError:
            why = f"its body did not come within {MAX_READ_SECONDS:.0f} seconds"
        except (OSError, CellLostError):
            why = "its body did not come whole"
        else:
            return body
        raise GuardDeniedError(why, hint=None, details={"reason": reason})

    def let_go(self) -> None:
        """Let the body go that `hold` has read."""
        if self._held is not None:
            self._held.close()

    def _body_check(self) -> Callable[[bytes], None]:
        """Return what is called with each piece of its body. It raises EgressError."""
        if self._credentials is None:
            return _pass
        find = self._credentials.body_check()

        def check(piece: bytes) -> None:
            with _unplaced_is_refused():
                find(piece)

        return check

    async def _next_piece(self, source: ByteStream) -> bytes | None:
        """Return the next bytes of its body; None at the end. Raises EgressError."""
        await self._pieces.begin()
        try:
            while (event := self._connection.next_event()) is h11.NEED_DATA:
                self._connection.receive_data(await source.receive())
        except h11.ProtocolError:
            raise _unlike_its_head() from None
        if isinstance(event, h11.EndOfMessage):
            return None
        if not isinstance(event, h11.Data):
            raise EgressError("the request ended too early")
        return bytes(event.data)


class UnplacedError(EgressError):
    """No value of a credential can be written into a request.

    Args:
        why: The reason, for the record of the connection.
        reason: It, as the guard names it.
    """

    def __init__(self, why: str, reason: Unplaced) -> None:
        super().__init__(why, headers={REFUSAL: reason})
        self.reason = reason


@contextmanager
def _unplaced_is_refused() -> Iterator[None]:
    try:
        yield
    except MisplacedError as error:
        raise UnplacedError(str(error), "credential_misplaced") from None
    except UnreadableError as error:
        raise UnplacedError(str(error), "credential_unreadable") from None


def _unlike_its_head() -> EgressError:
    # Messages of h11 quote what came.
    return EgressError("its body is not as its head says")


def _pass(data: bytes) -> None:
    """Find nothing in a piece of a body."""


def _headers(
    request: h11.Request, host: str, port: int, scheme: str
) -> list[tuple[bytes, bytes]]:
    """Return the headers for the server, without those meant for the proxy."""
    named = {name for name, _ in request.headers}
    connection = [value for name, value in request.headers if name == b"connection"]
    nominated = b",".join(connection).lower().split(b",")
    dropped = {name.strip().decode("latin-1") for name in nominated} | _HOP_BY_HOP
    # These were judged, and say what the body is and where it ends.
    dropped -= {"content-length", "content-type", "transfer-encoding"}
    if b"transfer-encoding" in named:
        dropped.add("content-length")
    dropped.add("host")
    authority = write_authority(host, port)
    if port == DEFAULT_PORTS[scheme]:
        authority = authority.removesuffix(f":{port}")
    return [
        (b"Host", authority.encode()),
        *(
            (name, value)
            for name, value in request.headers.raw_items()
            if name.lower().decode("latin-1") not in dropped
        ),
    ]


def asks_for_web_socket(request: h11.Request) -> bool:
    """Return True for an upgrade without which the request is of no use."""
    return any(
        name == b"upgrade" and value.lower() == b"websocket"
        for name, value in request.headers
    )


class ResponseHead:
    """Says in the head of a server's response that its connection closes.

    Whoever closes a connection says so (RFC 9112, 9.6); a client's pool would use it
    again otherwise. The server's own word was about its connection to the proxy.
    """

    def __init__(self) -> None:
        self._held = b""
        self._passed = False
        self.status: int | None = None
        """The status code, once it has come."""

    async def pass_on(self, data: bytes | memoryview) -> bytes | memoryview:
        """Return the bytes for the program that these ones of the server allow."""
        if self._passed:
            return data
        self._held += bytes(data)
        ready = b""
        while not self._passed and (end := _END_OF_HEAD.search(self._held)):
            head, self._held = self._held[: end.end()], self._held[end.end() :]
            self._passed = not head.startswith(_INTERIM)
            if self._passed:
                self.status = _status_of(head)
            ready += _closing(head) if self._passed else head
        if self._passed or len(self._held) > MAX_HEAD_BYTES:
            self._passed = True
            ready, self._held = ready + self._held, b""
        return ready

    async def end(self) -> bytes:
        """Return what is left when the server has ended."""
        return self._held


def _status_of(head: bytes) -> int | None:
    found = _STATUS.match(head)
    return None if found is None else int(found[1])


def _closing(head: bytes) -> bytes:
    """Return the head of a response with the fate of this connection."""
    status, *lines = _LINE_END.split(head)
    kept: list[bytes] = []
    drops = False
    for line in filter(None, lines):
        if not line.startswith((b" ", b"\t")):
            drops = line.partition(b":")[0].strip().lower() in _OF_A_CONNECTION
        if not drops:
            kept.append(line)
    return b"\r\n".join([status, *kept, b"Connection: close", b"", b""])


def new_writer() -> h11.Connection:
    """Return what writes one request and parses its answer: heads of 65,536 bytes."""
    return h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)


def new_reader() -> h11.Connection:
    """Return a parser of one request; its head has at most 65,536 bytes."""
    return h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)


async def read_head(
    connection: h11.Connection, source: ByteStream, first: bytes
) -> h11.Request:
    """Read the head of a request.

    Args:
        connection: Its parser, from `new_reader`.
        source: Delivers the bytes.
        first: Its first bytes.

    Raises:
        h11.ProtocolError: It is not HTTP.
        ValueError: It ended too early.
    """
    connection.receive_data(first)
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await source.receive())
    if not isinstance(event, h11.Request):
        raise ValueError("the request ended too early")
    return event


def check_host(
    request: h11.Request, host: str, port: int, default_port: int = HTTP_PORT
) -> None:
    """Check that the Host header of a request is the host that it goes to.

    Raises:
        ValueError: It names another one.
    """
    for name, value in request.headers:
        if name == b"host":
            named = read_authority(value.decode("latin-1"), default_port)
            if named != (host, port):
                raise ValueError(
                    f"the Host header says {write_authority(*named)}, "
                    f"the request goes to {write_authority(host, port)}"
                )


def split_absolute(target: str) -> tuple[str, str] | None:
    """Return authority and path of `http://...`; None for another target."""
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        return None
    path = found[2]
    return found[1], path if path.startswith("/") else f"/{path}"
