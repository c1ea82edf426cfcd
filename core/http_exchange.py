"""One request and its answer, over its own connection.

One parser reads a URL, one lookup finds its addresses, every address is checked,
and the connection goes to the address that was checked: a name that points
elsewhere a moment later points in vain. No redirect is followed, and no setting of
the environment is used.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from .egress import EgressRules, Target

_T = TypeVar("_T")

TAKE_CUTS_FOR_ENDS = getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
"""An option of TLS by which a connection that was cut seems to have ended. Python
before 3.11.4 sets it (https://github.com/python/cpython/issues/95494)."""

_HEADERS = {
    # What is compressed would be counted before it grows.
    "Accept-Encoding": "identity",
    "User-Agent": "toolcell",
    "Connection": "close",
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request but for its URL."""

    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = None


class NoAnswerError(Exception):
    """The host gave no answer that can be used.

    Args:
        was_sent: True if the request may have reached the host.
    """

    def __init__(self, was_sent: bool) -> None:
        super().__init__("there was no answer")
        self.was_sent = was_sent


def exchange(
    target: Target,
    rules: EgressRules,
    request: Request,
    seconds: float,
    read: Callable[[http.client.HTTPResponse], _T],
) -> _T:
    """Send a request and return what `read` makes of the answer. Blocks.

    Args:
        target: The place, as `rules` read it.
        rules: Checks the addresses.
        request: The request; `Host`, `User-Agent` and such are added.
        seconds: Seconds for all of it but the lookup of the host. When it is reached
            the connection is cut: without TLS what was read so far looks like an end.
        read: Reads the answer.

    Raises:
        ToolError: The host may not be reached; also what `read` raises.
        NoAnswerError: It did not answer well.
    """
    addresses = rules.addresses(target)
    deadline = time.monotonic() + seconds
    connection = http.client.HTTPConnection(target.host, target.port)
    was_sent = False
    try:
        sock = connection.sock = _connect(target, addresses, deadline)
        left = max(deadline - time.monotonic(), 0.001)
        sock.settimeout(left)
        # A server that drips keeps every single read short: this ends them all.
        end = threading.Timer(left, _cut, (sock,))
        end.daemon = True
        end.start()
        try:
            if isinstance(sock, ssl.SSLSocket):
                sock.do_handshake()
            was_sent = True
            connection.request(
                request.method,
                target.path,
                request.body,
                {**_HEADERS, **request.headers, "Host": _host(target)},
            )
            with closing(connection.getresponse()) as response:
                return read(response)
        finally:
            end.cancel()
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswerError(was_sent) from error
    finally:
        connection.close()


def read_body(response: http.client.HTTPResponse, max_bytes: int) -> bytes:
    """Read the body of an answer, at most one byte more than `max_bytes`.

    Raises:
        http.client.IncompleteRead: The connection ended before the body did.
    """
    body = response.read(max_bytes + 1)
    if len(body) <= max_bytes and response.length:
        raise http.client.IncompleteRead(body, response.length)
    return body


def _cut(sock: socket.socket) -> None:
    """End what is read and written; it may have ended, or be closed, just now."""
    with suppress(OSError):
        # That of TLS would forget its state while another thread reads.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _host(target: Target) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"{host}:{target.port}"


def _connect(target: Target, addresses: list[str], deadline: float) -> socket.socket:
    """Return a connection to the first checked address that answers.

    With TLS its handshake is still to be made. Raises OSError.
    """
    problem = OSError("no address")
    for tried, address in enumerate(addresses):
        left = max(deadline - time.monotonic(), 0.001)
        share = left / (len(addresses) - tried)
        try:
            plain = socket.create_connection((address, target.port), share)
        except OSError as error:
            problem = error
            continue
        if not target.secure:
            return plain
        return _secured(plain, target.host)
    raise problem


def _secured(plain: socket.socket, host: str) -> ssl.SSLSocket:
    """Return TLS over a connection, whose end counts only if the host says it."""
    context = ssl.create_default_context()
    context.options &= ~TAKE_CUTS_FOR_ENDS
    return context.wrap_socket(
        plain,
        server_hostname=host,
        do_handshake_on_connect=False,
        suppress_ragged_eofs=False,
    )
