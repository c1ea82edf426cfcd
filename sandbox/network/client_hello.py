"""Parses the ClientHello of TLS: the server that a client asks for.

Sources: RFC 8446 sections 4.1.2 and 5.1, RFC 6066 section 3, RFC 7301, RFC 9849.
"""

from __future__ import annotations

from typing import NamedTuple

HANDSHAKE = 22
RECORDS = range(20, 25)
"""The kinds of TLS records; a record begins with its kind."""

_CLIENT_HELLO = 1
_SERVER_NAME = 0
_PROTOCOLS = 16
_ENCRYPTED_CLIENT_HELLO = 0xFE0D
_MAX_RECORD = 2**14
MAX_HELLO_BYTES = 65_536
"""Bytes of a ClientHello. When it is exceeded the connection is refused."""


class ClientHello(NamedTuple):
    """The parts of a ClientHello that name a server."""

    server_name: str | None
    """The host in its server name extension, if there is one."""

    encrypted: bool
    """True if it also has an encrypted name, which only the server can read."""

    protocols: tuple[bytes, ...] = ()
    """The application protocols that the client speaks; empty if it names none."""


class _Reader:
    """Reads bytes from the front. Raises ValueError where there are too few."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __bool__(self) -> bool:
        return bool(self._data)

    def take(self, size: int) -> bytes:
        if len(self._data) < size:
            raise ValueError("it ends too early")
        part, self._data = self._data[:size], self._data[size:]
        return part

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> _Reader:
        """Take a length of `size` bytes, and as many bytes as it says."""
        return _Reader(self.take(self.number(size)))

    def rest(self) -> bytes:
        return self._data


def read_client_hello(data: bytes) -> ClientHello | None:
    """Return the ClientHello at the start of a stream; None if it is incomplete.

    Raises:
        ValueError: This is not TLS, or is ambiguous.
    """
    message = _message(data)
    if message is None:
        if len(data) > MAX_HELLO_BYTES:
            raise ValueError("it is too long")
        return None
    body = _Reader(message)
    body.take(2 + 32)
    body.vector(1)
    body.vector(2)
    body.vector(1)
    extensions: dict[int, _Reader] = {}
    left = body.vector(2) if body else body
    while left:
        kind = left.number(2)
        if kind in extensions:
            raise ValueError("an extension is there twice")
        extensions[kind] = left.vector(2)
    name = extensions.get(_SERVER_NAME)
    return ClientHello(
        server_name=None if name is None else _server_name(name),
        encrypted=_ENCRYPTED_CLIENT_HELLO in extensions,
        protocols=_protocols(extensions.get(_PROTOCOLS)),
    )


def _protocols(extension: _Reader | None) -> tuple[bytes, ...]:
    found = []
    names = _Reader(b"") if extension is None else extension.vector(2)
    while names:
        found.append(names.vector(1).rest())
    return tuple(found)


def _message(data: bytes) -> bytes | None:
    """Return the body of the first message, joined from its records."""
    found = b""
    while len(data) >= 5:
        size = int.from_bytes(data[3:5], "big")
        if data[0] != HANDSHAKE or data[1] != 3 or not 0 < size <= _MAX_RECORD:
            raise ValueError("it is not a handshake")
        found, data = found + data[5 : 5 + size], data[5 + size :]
        if found and found[0] != _CLIENT_HELLO:
            raise ValueError("it is not a client's first message")
        if len(found) >= 4:
            whole = 4 + int.from_bytes(found[1:4], "big")
            if len(found) >= whole:
                return found[4:whole]
    return None


def _server_name(extension: _Reader) -> str:
    names = extension.vector(2)
    if names.number(1) != 0:
        raise ValueError("the server's name is no host")
    name = names.vector(2).rest()
    if names or extension or not name:
        raise ValueError("there is not exactly one server name")
    return name.decode("ascii")
